// The exact sum of what all contributors send at an index, where it lies between its neighbours, and what an output makes
// of it: numerics/exact.py, numerics/rounding.py and kernels/table.py, one element at a time.

enum Count { EXACT_RIGHT = 16, EXACT_WRONG, SKIPPED, OUTSIDE, REM_LOW, REM_HIGH, COUNTS };
enum SumKind { FINITE, PLUS_ZERO, MINUS_ZERO, OTHER_ZERO, PLUS_INFINITY, MINUS_INFINITY, NOT_A_NUMBER };
enum Mode { TIES_TO_EVEN, TIES_TO_AWAY, TOWARD_ZERO, TOWARD_POSITIVE, TOWARD_NEGATIVE, AWAY_FROM_ZERO };

struct Sum {
    u64 sig;  // the 64 leading bits of |x|, top bit set; 0: a zero
    i64 exp;  // |x| = sig * 2**exp, and more below where sticky
    bool sticky, negative;
    int kind;
};

struct Split {
    u64 lo, rem;
    bool sticky, negative, finite, past;
    int kind;
};

FN u64 magnitude_of(const Format& f, u64 code) { return code & ((1ull << (f.bits - 1)) - 1); }

FN bool sign_of(const Format& f, u64 code) { return (code >> (f.bits - 1)) & 1; }

// Exponent of the unit of a code, counted from the smallest subnormal's.
FN i64 scale_of(const Format& f, u64 magnitude) {
    i64 field = (i64)(magnitude >> f.mantissa);
    return field > 1 ? field - 1 : 0;
}

FN int leading_zeros(u64 word) {
#ifdef __CUDACC__
    return __clzll((i64)word);
#else
    return word ? __builtin_clzll(word) : 64;
#endif
}

FN u64 left(u64 word, u64 by) { return by < 64 ? word << by : 0; }
FN u64 right(u64 word, u64 by) { return by < 64 ? word >> by : 0; }

// What one pass over the terms tells: specials, zeros, and the exponents present.
struct Look {
    i64 low, high;  // least and largest scale among the non-zero finite terms
    bool nan, plus, minus, plus_zeros, minus_zeros, any;
};

FN Look looked_at(const Rule* rules, u64 n, const Format& f, u64 index) {
    Look seen = {1 << 20, -1, false, false, false, true, true, false};
    for (u64 k = 0; k < n; k++) {
        u64 code = cut_to(f, code_at(rules[k], f, index)), magnitude = magnitude_of(f, code);
        bool negative = sign_of(f, code), special = magnitude > f.max_code;
        bool infinite = special && f.has_infinity && magnitude == f.overflow_code;
        seen.nan |= special && !infinite;
        seen.plus |= infinite && !negative;
        seen.minus |= infinite && negative;
        seen.plus_zeros &= code == 0;
        seen.minus_zeros &= magnitude == 0 && negative;
        if (special || !magnitude) continue;
        i64 scale = scale_of(f, magnitude);
        seen.any = true;
        seen.low = scale < seen.low ? scale : seen.low;
        seen.high = scale > seen.high ? scale : seen.high;
    }
    return seen;
}

// acc += or -= sig << shift, in two's complement over `words` 64-bit words
FN void accumulate(u64* acc, int words, u64 sig, i64 shift, bool negative) {
    int at = (int)(shift >> 6), by = (int)(shift & 63);
    u64 lower = sig << by, upper = by ? sig >> (64 - by) : 0, flip = negative ? ~0ull : 0, carry = negative;
    for (int k = 0; k < words; k++) {
        u64 term = (k == at ? lower : k == at + 1 ? upper : 0) ^ flip, with = term + carry;
        carry = with < term;
        acc[k] += with;
        carry += acc[k] < with;
    }
}

// sig, exp and sticky from a two's complement number in units of 2**unit
FN void normalised(Sum& sum, u64* acc, int words, i64 unit) {
    sum.negative = acc[words - 1] >> 63;
    u64 carry = sum.negative;
    for (int k = 0; sum.negative && k < words; k++) {
        acc[k] = ~acc[k] + carry;
        carry = carry && !acc[k];
    }
    int top = words - 1;
    while (top >= 0 && !acc[top]) top--;
    sum.sig = 0, sum.exp = 0, sum.sticky = false;
    if (top < 0) {
        sum.negative = false;
        return;
    }
    int empty = leading_zeros(acc[top]);
    u64 lower = top ? acc[top - 1] : 0;
    sum.sig = empty ? acc[top] << empty | lower >> (64 - empty) : acc[top];
    sum.exp = unit + 64 * top - empty;
    sum.sticky = empty ? (lower << empty) != 0 : lower != 0;
    for (int k = 0; k < top - 1; k++) sum.sticky |= acc[k] != 0;
}

const int WORDS = 36;  // binary64: 2046 scales, 53 bits and a sign, and 64 bits of carry

FN void add_all(Sum& sum, const Rule* rules, u64 n, const Format& f, u64 index, i64 low, u64* acc, int words) {
    for (int k = 0; k < words; k++) acc[k] = 0;
    for (u64 k = 0; k < n; k++) {
        u64 code = cut_to(f, code_at(rules[k], f, index)), magnitude = magnitude_of(f, code);
        if (!magnitude || magnitude > f.max_code) continue;
        i64 scale = scale_of(f, magnitude);
        accumulate(acc, words, magnitude - ((u64)scale << f.mantissa), scale - low, sign_of(f, code));
    }
    normalised(sum, acc, words, f.emin - f.mantissa + low);
}

COLD void add_far(Sum& sum, const Rule* rules, u64 n, const Format& f, u64 index, i64 low, int words) {
    u64 acc[WORDS];
    add_all(sum, rules, n, f, index, low, acc, words);
}

FN Sum exact_sum(const Rule* rules, u64 n, const Format& f, u64 index) {
    Look seen = looked_at(rules, n, f, index);
    Sum sum = {0, 0, false, false, FINITE};
    if (seen.any) {
        int bits = (int)(seen.high - seen.low + f.mantissa + 3) + 64 - leading_zeros(n);
        if (bits <= 128) {
            u64 acc[2];
            add_all(sum, rules, n, f, index, seen.low, acc, 2);
        } else {
            add_far(sum, rules, n, f, index, seen.low, bits / 64 + 1);
        }
    }
    if (!sum.sig) sum.kind = seen.plus_zeros ? PLUS_ZERO : seen.minus_zeros ? MINUS_ZERO : OTHER_ZERO;
    if (seen.plus) sum.kind = PLUS_INFINITY;
    if (seen.minus) sum.kind = MINUS_INFINITY;
    if (seen.nan || (seen.plus && seen.minus)) sum.kind = NOT_A_NUMBER;
    return sum;
}

// rounding.split
FN Split split_of(const Sum& sum, const Format& f) {
    Split s = {0, 0, false, sum.negative, sum.kind < PLUS_INFINITY, false, sum.kind};
    if (sum.kind != FINITE) return s;
    i64 precision = f.mantissa + 1, lead = sum.exp + 63 < f.emax + 1 ? sum.exp + 63 : f.emax + 1;
    u64 drop = (u64)(64 - precision + (f.emin > lead ? f.emin - lead : 0));
    drop = drop < 128 ? drop : 128;
    u64 over = drop > 64 ? drop - 64 : 0;
    s.rem = (over ? 0 : left(sum.sig, 64 - drop)) | (over ? right(sum.sig, over) : 0);
    s.sticky = sum.sticky || left(sum.sig, 64 - over) != 0;
    s.lo = ((u64)(lead > f.emin ? lead - f.emin : 0) << f.mantissa) + right(sum.sig, drop);
    s.past = s.lo > f.max_code;
    if (s.past) {
        s.lo = f.max_code;
        s.rem = ~0ull;
        s.sticky = true;
    }
    return s;
}

const u64 HALF = 1ull << 63;

// rounding.up_by_mode and join
FN u64 rounded(const Split& s, const Format& f, u64 mode) {
    u64 sign = 1ull << (f.bits - 1);
    if (s.kind == NOT_A_NUMBER) return f.nan_code;
    if (s.kind >= PLUS_INFINITY) return f.overflow_code | (s.kind == MINUS_INFINITY ? sign : 0);
    bool inexact = s.rem || s.sticky, up = false;
    if (mode == TIES_TO_EVEN) up = s.rem > HALF || (s.rem == HALF && (s.sticky || (s.lo & 1)));
    if (mode == TIES_TO_AWAY) up = s.rem >= HALF;
    if (mode == AWAY_FROM_ZERO) up = inexact;
    if (mode == TOWARD_POSITIVE || mode == TOWARD_NEGATIVE) up = inexact && s.negative == (mode == TOWARD_NEGATIVE);
    bool minus = s.negative || s.kind == MINUS_ZERO || (mode == TOWARD_NEGATIVE && s.kind == OTHER_ZERO);
    return (s.lo + up) | (minus ? sign : 0);
}

// table.tabulate: which of the counts an output belongs to, and whether its rem counts
FN int class_of(const Split& s, const Format& f, u64 out) {
    if (!s.finite || s.past) return SKIPPED;
    u64 magnitude = magnitude_of(f, out);
    bool same = magnitude == 0 || sign_of(f, out) == s.negative, down = same && magnitude == s.lo;
    bool up = same && magnitude == s.lo + 1;
    if (!s.rem && !s.sticky) return down ? EXACT_RIGHT : EXACT_WRONG;
    if (!down && !up) return OUTSIDE;
    bool tie = s.rem == HALF && !s.sticky;
    int relation = s.rem < HALF ? 0 : tie ? 1 + (int)(s.lo & 1) : 3;
    return (s.negative * 2 + up) * 4 + relation;
}
