// What one contributor sends at an index: the rules of numerics/recipes.py and of the families in inputs/, bit for bit.
//
// Plain C++ but for the markers below, so that the same lines are compiled for a device and, by a test, for the host.
// Integer arithmetic only, except conversions of integers below 2**53 to binary64, which are exact.

#ifdef __CUDACC__
#define FN __device__ __forceinline__
#define COLD __device__ __noinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256, 3)
#define FAST_KERNEL extern "C" __global__ void __launch_bounds__(256, 8)
#else
#define FN inline
#define COLD inline
#define KERNEL extern "C" void
#define FAST_KERNEL extern "C" void
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Layouts are mirrored by kernels/packing.py; every field is 8 bytes, so there is no padding to disagree about.
struct Format {
    i64 bits, mantissa, emin, emax, has_infinity;
    u64 max_code, overflow_code, nan_code;
};

struct Rule {
    i64 kind;
    u64 key[4];        // of the streams drawn from; they hold for indices of one high word
    i64 p[6];          // small integers, in the order that the rule reads them
    u64 q[2];          // wide ones
    const u64* table;  // values that the host lists: operands, specials, weights of digits
};

struct Sender {
    Rule rule[2];     // contributors 0 and 1 of a pair; else only the first
    u64 period;       // send index i holds the data of index i mod period; 0: no period
    u64 pairs;        // element i belongs to pair i mod pairs; 0: every element is rule[0]'s
    const u8* roles;  // of this contributor in each pair: 0, 1, or 255 for none
};

enum Kind {
    ZERO, SCALED, SPARSE, REPORT132, NORMAL, LOGNORMAL, RANK_CODED, CONSTANT, POSITION, SMOOTH, TIES, OPERANDS, SPECIALS,
    EXHAUSTIVE
};

// 1, which the compiler cannot know: a step times it is added by the multiplier, which has time where the adders have none.
FN u32 one() {
#ifdef __CUDACC__
    return gridDim.y;
#else
    return 1;
#endif
}

FN u64 as_bits(double value) {
#ifdef __CUDACC__
    return (u64)__double_as_longlong(value);
#else
    u64 word;
    __builtin_memcpy(&word, &value, 8);
    return word;
#endif
}

FN float as_float(u32 word) {
#ifdef __CUDACC__
    return __uint_as_float(word);
#else
    float value;
    __builtin_memcpy(&value, &word, 4);
    return value;
#endif
}

FN u32 as_word(float value) {
#ifdef __CUDACC__
    return __float_as_uint(value);
#else
    u32 word;
    __builtin_memcpy(&word, &value, 4);
    return word;
#endif
}

// --- hashes -------------------------------------------------------------------------------------------------------

const u32 WEYL = 0x9E3779B1u;

FN u32 mixed(u32 x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

FN u32 hashed(u64 key, u64 index) { return mixed((u32)index * WEYL + (u32)key); }

FN u64 below(u32 word, u64 choices) { return ((u64)word * choices) >> 32; }

FN u64 splitmix64(u64 state) {
    u64 z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// --- rules --------------------------------------------------------------------------------------------------------

FN u64 field_of(const Format& f, i64 exponent) { return (u64)(exponent + 1 - f.emin) << f.mantissa; }

// recipes.truncate: the leading bit is read from the exponent field of the exact binary64 value.
FN u64 truncated(const Format& f, bool negative, u64 magnitude, i64 exponent) {
    u64 word = as_bits((double)magnitude);
    i64 top = (i64)(word >> 52) - 1023 + exponent;
    u64 significand = ((word & 0xFFFFFFFFFFFFFull) | 0x10000000000000ull) >> (52 - f.mantissa);
    i64 lost = f.emin - top;
    lost = lost < 0 ? 0 : lost > 63 ? 63 : lost;
    u64 code = ((u64)((top > f.emin ? top : f.emin) - f.emin) << f.mantissa) + (significand >> lost);
    return (magnitude ? code : 0) | ((u64)negative << (f.bits - 1));
}

// p: span + 1, lowest exponent + bias; q: mantissa bits drawn, in place. As words, so that a loop can keep them.
struct Scale {
    u32 key[3], choices, base, top, mantissa;
    u64 mask;
};

FN Scale scale_from(const Rule& r, const Format& f) {
    return {{(u32)r.key[0], (u32)r.key[1], (u32)r.key[2]}, (u32)r.p[0], (u32)r.p[1], (u32)f.bits - 1, (u32)f.mantissa, r.q[0]};
}

FN u64 scaled_code(const Scale& c, u32 index) {
    u32 word = hashed(c.key[0], index);
    u64 fraction = word;
    if (c.top == 31) fraction = hashed(c.key[1], index);
    if (c.top == 63) fraction = hashed(c.key[1], index) | (u64)hashed(c.key[2], index) << 32;
    u32 exponent = ((((word >> 16) & 0x7FFF) * c.choices) >> 15) + c.base;
    return (fraction & c.mask) | (u64)exponent << c.mantissa | (u64)(word >> 31) << c.top;
}

FN u64 scaled(const Rule& r, const Format& f, u64 index) { return scaled_code(scale_from(r, f), (u32)index); }

// p: as scaled, then active, contributors, rank; key[3]: the hash that all share
FN u64 sparse(const Rule& r, const Format& f, u64 index) {
    u64 turn = (below(hashed(r.key[3], index), (u64)r.p[3]) + (u64)r.p[4]) % (u64)r.p[3];
    return turn < (u64)r.p[2] ? scaled(r, f, index) : 0;
}

FN u64 report132(const Rule& r, const Format& f, u64 index) {
    u64 word = splitmix64(index ^ r.q[0]);
    u64 exponent = (u32)(word >> 32) % 9u + (u64)(1 - f.emin - 4);
    return (word & ((1ull << f.mantissa) - 1)) | exponent << f.mantissa | (word >> 63) << (f.bits - 1);
}

// p: top exponent, or shift and centre
FN u64 wide(const Rule& r, const Format& f, u64 index, bool normal) {
    u32 a = hashed(r.key[0], index), b = hashed(r.key[1], index), c = hashed(r.key[2], index);
    i64 value = (i64)((a & 0xFFFF) + (a >> 16) + (b & 0xFFFF) + (b >> 16)) - 131070;
    u64 extra = c & 0x3F;
    int width = 6;
    if (f.bits > 16) {
        extra = ((u64)(c & 0x7FFFFFFF) << 4) | (hashed(r.key[3], index) >> 28);
        width = 35;
    }
    if (normal) {
        u64 magnitude = ((u64)(value < 0 ? -value : value) << width) | extra | 1;
        return truncated(f, value < 0, magnitude, r.p[0] - 16 - width);
    }
    u64 within = (u64)(value & ((1ll << r.p[0]) - 1)) | 1ull << r.p[0];
    return truncated(f, c >> 31, (within << width) | extra, (value >> r.p[0]) + r.p[1] - r.p[0] - width);
}

// p: position + seed mod size, size, seed mod slots, slots, lowest + bias
FN u64 rank_coded(const Rule& r, const Format& f, u64 index) {
    u32 place = hashed(r.key[0], index), sign = hashed(r.key[1], index), size = (u32)r.p[1], slots = (u32)r.p[3];
    u32 bit = ((((place & 0xFFFF) * size) >> 16) + (u32)r.p[0]) % size;
    u32 unit = ((((place >> 16) * slots) >> 16) + (u32)r.p[2]) % slots;
    return (u64)(bit + unit + (u32)r.p[4]) << f.mantissa | (u64)(sign >> 31) << (f.bits - 1);
}

// p: bits, scale bits, lowest field, active, contributors, rank; q: what the seed adds; table: a weight for each digit
FN u64 position_coded(const Rule& r, const Format& f, u64 index) {
    int bits = (int)r.p[0], width = bits + (int)r.p[1];
    if (r.p[3] < r.p[4]) {
        u64 turn = (below(hashed(r.key[0], index), (u64)r.p[4]) + (u64)r.p[5]) % (u64)r.p[4];
        if (turn >= (u64)r.p[3]) return 0;
    }
    u64 mask = (1ull << width) - 1, total = r.q[0];
    for (int digit = 0; digit * width < 64; digit++) total += ((index >> (digit * width)) & mask) * r.table[digit];
    total = (total * 0x9E3779B1ull) & mask;
    u64 number = total ^ (total >> ((width + 1) / 2));
    u64 fraction = number & ((1ull << (bits - 1)) - 1);
    u64 scale = (number >> (bits - 1)) & ((1ull << r.p[1]) - 1);
    u64 code = (scale + (u64)r.p[2]) << f.mantissa | fraction << (f.mantissa + 1 - bits);
    return code | (number >> (width - 1)) << (f.bits - 1);
}

// q: step and phase in units of 2**-64 periods
FN u64 smooth(const Rule& r, const Format& f, u64 index) {
    u64 angle = (index * r.q[0] + r.q[1]) >> 32;
    u64 along = (angle & 0x7FFFFFFF) >> 5;
    return truncated(f, angle >> 31, along * ((1ull << 26) - along), -50);
}

// p: lowest exponent, number of exponents, rank
FN u64 ties(const Rule& r, const Format& f, u64 index) {
    u32 first = hashed(r.key[0], index), third = hashed(r.key[2], index);
    u64 chosen = below(first, 8 * 5 * 4), place = (chosen >> 3) / 5, kind = (chosen >> 3) % 5;
    u64 holder = chosen & 1, negative = (chosen >> 1) & 1, minus = (chosen >> 2) & 1;
    i64 exponent = (i64)below(hashed(r.key[1], index), (u64)r.p[1]) + r.p[0];
    i64 half = exponent - f.mantissa - 1 - (minus && place == 2);
    if (holder == (u64)r.p[2]) {
        u64 mask = (1ull << f.mantissa) - 1, spread = (u64)third * 0x9E3779B97F4A7C15ull >> (64 - f.mantissa);
        u64 fraction = place == 0 ? spread & ~1ull : place == 1 ? spread | 1 : place == 2 ? 0 : mask;
        return field_of(f, exponent) | (fraction & mask) | negative << (f.bits - 1);
    }
    i64 deepest = half - 30 > f.emin ? half - 30 : f.emin;
    i64 depth = ((i64)(third & 0xFFFF) * (half - deepest)) >> 16;
    u64 code = kind < 3 ? field_of(f, half) + (kind == 1) - (kind == 2) : field_of(f, kind == 3 ? half - 1 : deepest + depth);
    return code | (negative ^ minus) << (f.bits - 1);
}

FN u64 turning(u64 index, u64 cases, u64 seed) { return (index + index / cases + seed) % cases; }

// p: number of operands, rank; q: seed mod cases
FN u64 operands(const Rule& r, u64 index) {
    u64 n = (u64)r.p[0], chosen = turning(index, n * n, r.q[0]);
    return r.table[r.p[1] == 0 ? chosen / n : chosen % n];
}

// p: number of values, contributors, rank; q: seed mod cases; table: the values, then what surrounds them in four companies
FN u64 specials(const Rule& r, u64 index) {
    u64 n = (u64)r.p[0], members = (u64)r.p[1], rank = (u64)r.p[2];
    u64 chosen = turning(index, n * members * (n + 4), r.q[0]);
    u64 slot = chosen % members, rest = chosen / members, company = rest / n;
    if (slot == rank) return r.table[rest % n];
    if (company < 4) return r.table[n + company];
    return slot == (rank + members - 1) % members ? r.table[company - 4] : 0;
}

// p: rank; q: pairs in the chunk less 1, number of the first pair
FN u64 exhaustive(const Rule& r, const Format& f, u64 index) { return ((index & r.q[0]) + r.q[1]) >> (f.bits * r.p[0]); }

// The code at a data index; bits above the format's are not cleared. Not inlined: it is what hot loops fall back to.
COLD u64 code_at(const Rule& r, const Format& f, u64 index) {
    switch (r.kind) {
        case SCALED: return scaled(r, f, index);
        case SPARSE: return sparse(r, f, index);
        case REPORT132: return report132(r, f, index);
        case NORMAL: return wide(r, f, index, true);
        case LOGNORMAL: return wide(r, f, index, false);
        case RANK_CODED: return rank_coded(r, f, index);
        case CONSTANT: return r.q[0];
        case POSITION: return position_coded(r, f, index);
        case SMOOTH: return smooth(r, f, index);
        case TIES: return ties(r, f, index);
        case OPERANDS: return operands(r, index);
        case SPECIALS: return specials(r, index);
        case EXHAUSTIVE: return exhaustive(r, f, index);
        default: return 0;
    }
}

FN u64 cut_to(const Format& f, u64 code) { return f.bits == 64 ? code : code & ((1ull << f.bits) - 1); }

// The code at a send index.
FN u64 sent(const Sender& s, const Format& f, u64 index) {
    u64 place = s.period ? index % s.period : index;
    if (!s.pairs) return code_at(s.rule[0], f, place);
    u8 role = s.roles[place % s.pairs];
    return role == 255 ? 0 : code_at(s.rule[role], f, place);
}
