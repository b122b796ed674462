// Eight sums at a time for formats of 16 bits or fewer, as binary32 numbers.
//
// A code whose magnitude is moved up by SHIFT = 23 - mantissa bits is the binary32 code of the value times 2**(bias - 127):
// subnormals, too, stay where they belong. So the numbers add as the values do, lo and rem are bit fields of the sum, and
// an output's code moved up the same way can be subtracted from it. Nothing is rounded: either the rule says so (`scaled`:
// significand bits + span + carries <= 24, checked by the host), or the error term of every addition is looked at.

const int EIGHT = 8;

FN float minus(float a, float b) { return plus(a, as_float(as_word(b) ^ 0x80000000u)); }

FN u32 lifted(u32 code, int shift) {
    int top = shift > 16 ? 24 : 16;  // where the sign moves from bit 7 or 15
    u32 sign = shift > 16 ? 0x80u : 0x8000u;
    return (code & sign) << top | (code & (sign - 1)) << shift;
}

// The constants of one `scaled` rule, in place for binary32 numbers.
struct Lift {
    u32 mask, factor, base;
};

FN Lift lift_of(const Rule& r) { return {(u32)r.q[0], (u32)r.p[0] << 8, (u32)r.p[1] << 23}; }

template <int SHIFT>
FN u32 scaled_word(const Lift& c, u32 x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    u32 upper = x >> 16, fraction = (x ^ upper) & c.mask;
    u32 exponent = (upper & 0x7FFF) * c.factor + c.base;  // whole exponents from bit 23 up
    return ((exponent & 0x7F800000u) + fraction * (1u << SHIFT)) | (x & 0x80000000u);
}

// Rules that differ in their keys alone.
template <int SHIFT>
FN void scaled_sums(const Rule* rules, u32 n, u32 index, float* sums) {
    const Lift c = lift_of(rules[0]);
    const u32 unit = one();
    u32 place = index * WEYL, first = place + (u32)rules[0].key[0];
    #pragma unroll
    for (int k = 0; k < EIGHT; k++) sums[k] = as_float(scaled_word<SHIFT>(c, unit * (k * WEYL) + first));
    for (u32 rank = 1; rank < n; rank++) {
        u32 from = place + (u32)rules[rank].key[0];
        #pragma unroll
        for (int k = 0; k < EIGHT; k++) sums[k] = plus(sums[k], as_float(scaled_word<SHIFT>(c, unit * (k * WEYL) + from)));
    }
}

// Any rules; false where an addition is not exact or a term is not finite.
template <int SHIFT>
FN bool any_sums(const Rule* rules, u32 n, const Format& f, u64 index, float* sums) {
    u32 wrong = 0;
    for (u32 rank = 0; rank < n; rank++) {
        for (int k = 0; k < EIGHT; k++) {
            u32 code = (u32)cut_to(f, code_at(rules[rank], f, index + k));
            wrong |= magnitude_of(f, code) > f.max_code;
            float b = as_float(lifted(code, SHIFT)), a = rank ? sums[k] : b;
            if (rank) {
                float total = plus(a, b), part = minus(total, a);
                float error = plus(minus(a, minus(total, part)), minus(b, part));
                wrong |= (as_word(error) & 0x7FFFFFFF) != 0;  // as a word: a comparison, too, may flush
                a = total;
            }
            sums[k] = a;
        }
    }
    u32 past = ((u32)f.max_code + 1) << SHIFT, largest = 0;
    for (int k = 0; k < EIGHT; k++) {
        u32 size = as_word(sums[k]) & 0x7FFFFFFF;
        largest = size > largest ? size : largest;
    }
    return !wrong && largest < past;
}

template <int SHIFT, bool SCALED>
FN bool eight_sums(const Rule* rules, u64 n, const Format& f, u64 index, float* sums) {
    if (SCALED) {
        scaled_sums<SHIFT>(rules, (u32)n, (u32)index, sums);
        return true;
    }
    return any_sums<SHIFT>(rules, (u32)n, f, index, sums);
}

// Eight outputs from an address that is a multiple of their size, moved up.
template <int SHIFT>
FN void eight_outputs(u64 address, u32* words) {
    u32 raw[4];
    const int WORDS_READ = SHIFT > 16 ? 2 : 4;
#ifdef __CUDACC__
    if (SHIFT > 16) {
        uint2 v = *(const uint2*)address;
        raw[0] = v.x, raw[1] = v.y;
    } else {
        uint4 v = *(const uint4*)address;
        raw[0] = v.x, raw[1] = v.y, raw[2] = v.z, raw[3] = v.w;
    }
#else
    emulated_misaligned += address % (4 * WORDS_READ) != 0;
    for (int k = 0; k < WORDS_READ; k++) raw[k] = ((const u32*)address)[k];
#endif
    #pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        u32 word = raw[k / (EIGHT / WORDS_READ)];
        if (SHIFT == 16) {
            words[k] = k % 2 ? word & 0xFFFF0000u : word << 16;
        } else if (SHIFT < 16) {
            words[k] = lifted(k % 2 ? word >> 16 : word & 0xFFFF, SHIFT);
        } else {
            words[k] = lifted((word >> (k % 4 * 8)) & 0xFF, SHIFT);
        }
    }
}
