// What multimem.cu needs of a GPU, as plain C++: in place of multimem_device.cuh, on ordinary memory, one thread after the other.
//
// Additions are done in binary64 and rounded once, where binary64 holds the sum of two values of the format exactly or rounding
// twice changes nothing (53 >= 2 * 11 + 2); binary32 by the machine. NaN results are the one code that a GPU gives.
// Every read and write is checked for its alignment; reads of one watched range are noted, with their width, byte by byte.
#define FN static inline
#define KERNEL static void

FN u64 thread_number() { return emulated::thread; }
FN u64 thread_count() { return emulated::threads; }

template <int N>
struct Words {
    u32 w[N];
};

template <int N>
FN void fetch(u64 at, Words<N>& v) {
    emulated::read(at, 4 * N);
    memcpy(v.w, (const void*)at, 4 * N);
}
FN u32 fetch_item(u64 at) {
    u32 item = 0;
    emulated::read(at, ITEM);
    memcpy(&item, (const void*)at, ITEM);
    return item;
}
template <int N>
FN void store(u64 at, const Words<N>& v) {
    emulated::misaligned += at % (4 * N) != 0;
    memcpy((void*)at, v.w, 4 * N);
}
FN void store_item(u64 at, u32 item) {
    emulated::misaligned += at % ITEM != 0;
    memcpy((void*)at, &item, ITEM);
}

FN u32 bits_of(float x) {
    u32 w;
    memcpy(&w, &x, 4);
    return x != x ? 0x7FFFFFFFu : w;
}
FN float float_of(u32 w) {
    float x;
    memcpy(&x, &w, 4);
    return x;
}

FN emulated::Format own() {
    switch (FORMAT) {
        case BINARY16: return {11, -14, 15, true, 0x7FFF};
        case BFLOAT16: return {8, -126, 127, true, 0x7FFF};
        case FLOAT8_E4M3FN: return {4, -6, 8, false, 0x7F};
        case FLOAT8_E5M2: return {3, -14, 15, true, 0x7F};
    }
    return {24, -126, 127, true, 0x7FFFFFFF};
}
FN double value(u32 code) { return emulated::decode(own(), code, 8 * ITEM); }
FN u32 code(double x) { return emulated::encode(own(), x, 8 * ITEM, ITEM == 1); }

// A sum of a word: PARTS partial sums in the accumulator, held as doubles or, in binary32, as the machine's floats.
struct Sum {
    double part[4 / ITEM];
};
FN double kept(double x) {  // one addition's rounding, to the accumulator
    if (FORMAT == BINARY32 || (WIDE && ITEM == 2)) return (double)(float)x;
    if (ITEM == 2) return value(code(x));
    const emulated::Format half = {11, -14, 15, true, 0x7FFF};
    double in_half = emulated::decode(half, emulated::encode(half, x, 16, false), 16);
    return WIDE ? in_half : value(code(in_half));
}
FN Sum enter(u32 w) {
    Sum s;
    for (int k = 0; k < 4 / ITEM; k++) s.part[k] = value(ITEM == 4 ? w : w >> (8 * ITEM * k) & ((1u << 8 * (ITEM % 4)) - 1));
    return s;
}
FN Sum add(const Sum& a, const Sum& b) {
    Sum s;
    for (int k = 0; k < 4 / ITEM; k++) {
        bool machine = FORMAT == BINARY32 || (WIDE && ITEM == 2);
        s.part[k] = machine ? (double)((float)a.part[k] + (float)b.part[k]) : kept(a.part[k] + b.part[k]);
    }
    return s;
}
FN u32 leave(const Sum& s) {
    u32 w = 0;
    for (int k = 0; k < 4 / ITEM; k++) w |= (ITEM == 4 ? bits_of((float)s.part[k]) : code(s.part[k])) << (8 * ITEM * k);
    return w;
}

// The switch, as a model of it: the members' words in order, by the additions above. What a real one does is not known here.
#if SWITCH
template <int N>
FN void switch_reduce(u64 at, Words<N>& v) {
    emulated::misaligned += at % (4 * N) != 0;
    for (int k = 0; k < N; k++) {
        Sum sum = enter(emulated::behind(at + 4 * k, 0, 4 * N));
        for (u64 member = 1; member < emulated::member_n; member++)
            sum = add(sum, enter(emulated::behind(at + 4 * k, member, 4 * N)));
        v.w[k] = leave(sum);
    }
}
template <int N>
FN void switch_store(u64 at, const Words<N>& v) {
    emulated::misaligned += at % (4 * N) != 0;
    for (u64 member = 0; member < emulated::member_n; member++) memcpy((void*)emulated::local(at, member), v.w, 4 * N);
}
#endif
