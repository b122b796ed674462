// Histograms of weights, whose tolerance `auditor calibrate` measures. Sample s falls in bin s mod bins, so that a bin gets one
// sample a round, and an order of the rounds is an order of its additions.

FN double plus(double a, double b) { return a + b; }

template <class T>
FN void joined(T* place, T value) {
#ifdef __CUDACC__
    atomicAdd(place, value);
#else
    *place = plus(*place, value);
#endif
}

// One thread a bin; the rounds in the order that is listed, one after the other.
template <class T>
FN void rounds_in_order(const T* weights, const u32* order, u64 rounds, u64 bins, T* out) {
    for (u64 bin = thread_number(); bin < bins; bin += thread_count()) {
        T sum = 0;
        for (u64 k = 0; k < rounds; k++) sum = plus(sum, weights[order[k] * bins + bin]);
        out[bin] = sum;
    }
}

// Threads take samples as they come, and the memory orders the additions. The bins are zeros before.
template <class T>
FN void rounds_as_they_come(const T* weights, u64 samples, u64 bins, T* out) {
    for (u64 s = thread_number(); s < samples; s += thread_count()) joined(out + s % bins, weights[s]);
}

KERNEL histogram_ordered_4(u64 weights, u64 order, u64 rounds, u64 bins, u64 out) {
    rounds_in_order((const float*)weights, (const u32*)order, rounds, bins, (float*)out);
}

KERNEL histogram_ordered_8(u64 weights, u64 order, u64 rounds, u64 bins, u64 out) {
    rounds_in_order((const double*)weights, (const u32*)order, rounds, bins, (double*)out);
}

KERNEL histogram_atomic_4(u64 weights, u64 samples, u64 bins, u64 out) {
    rounds_as_they_come((const float*)weights, samples, bins, (float*)out);
}

KERNEL histogram_atomic_8(u64 weights, u64 samples, u64 bins, u64 out) {
    rounds_as_they_come((const double*)weights, samples, bins, (double*)out);
}
