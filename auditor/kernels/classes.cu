// Device kernels that make every contributor's data again: class counts, and comparison with the exact sum. `engine.py`
// calls them. Only the outputs are read from memory.

// --- class counts -------------------------------------------------------------------------------------------------

// A row of the threads' private histograms: bits up and rem >= 1/2 (as they stand in the difference), then rem is neither
// 0 nor 1/2, lo odd, negative. Two rows more for what is no neighbour.
const u32 ROWS = 34, ROW_SKIPPED = 32, ROW_OUTSIDE = 33;

FN u32 row_of(int number) {
    if (number == SKIPPED || number == OUTSIDE) return number == SKIPPED ? ROW_SKIPPED : ROW_OUTSIDE;
    if (number == EXACT_RIGHT || number == EXACT_WRONG) return number == EXACT_RIGHT ? 1 : 3;
    u32 relation = number & 3, up = (number >> 2) & 1, negative = number >> 3;
    u32 below = relation == 0, odd = relation == 2, low = relation == 0 || relation == 3;
    return up << 1 | below | low << 2 | odd << 3 | negative << 4;
}

FN int number_of(u32 row) {
    if (row >= ROW_SKIPPED) return row == ROW_SKIPPED ? SKIPPED : OUTSIDE;
    u32 up = (row >> 1) & 1, below = row & 1, low = (row >> 2) & 1, odd = (row >> 3) & 1, negative = row >> 4;
    if (below && !low) return up ? EXACT_WRONG : EXACT_RIGHT;
    u32 relation = low ? (below ? 0 : 3) : 1 + odd;
    return (int)((negative * 2 + up) * 4 + relation);
}

struct Tally {
    u16 (*rows)[256];
    u64 rem_low, rem_high;  // of what went element by element, in units of 2**-64 and 2**-32
    u64 rems;               // of the others, in units of 2**-SHIFT
};

// The row of one output; its rem, 0 where that does not count.
COLD u32 one_row(const Rule* rules, u64 n, const Format& f, u64 index, u64 out, u64* rem) {
    Split s = split_of(exact_sum(rules, n, f, index), f);
    int number = class_of(s, f, out);
    *rem = number < EXACT_RIGHT ? s.rem : 0;
    return row_of(number);
}

// False, and nothing counted, where a sum or an output is not of the usual kind.
template <int SHIFT, bool SCALED>
FN bool tally_eight(Tally& t, const Rule* rules, u64 n, const Format& f, u64 index, u64 address) {
    float sums[EIGHT];
    u32 outs[EIGHT], strange = 0, rems = 0;
    if (!eight_sums<SHIFT, SCALED>(rules, n, f, index, sums)) return false;
    eight_outputs<SHIFT>(address, outs);
    #pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        // lo: 2**SHIFT - 1 - rem; lo + 1: 2**SHIFT more; anything else, the other sign included, is 2**(SHIFT + 1) or above
        outs[k] = outs[k] + ((1u << SHIFT) - 1) - as_word(sums[k]);
        strange |= outs[k];
    }
    if (strange >> (SHIFT + 1)) return false;
    #pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        u32 word = as_word(sums[k]), rest = word & ((1u << (SHIFT - 1)) - 1), low = rest ? 4 : 0;
        u32 row = (outs[k] >> (SHIFT - 1)) | low | ((word >> (SHIFT - 3)) & 8) | ((word >> 27) & 16);
        t.rows[row][lane()]++;
        rems += word & ((1u << SHIFT) - 1);
    }
    t.rems += rems;
    return true;
}

#ifdef __CUDACC__
FN void flush(const Tally& t, int shift, u64* counts) {
    __shared__ u64 block[COUNTS];
    if (threadIdx.x < COUNTS) block[threadIdx.x] = 0;
    __syncthreads();
    bool first = threadIdx.x % 32 == 0;
    #pragma unroll 1
    for (u32 row = 0; row < ROWS; row++) {
        u32 sum = __reduce_add_sync(0xFFFFFFFFu, (u32)t.rows[row][threadIdx.x]);
        if (first && sum) atomicAdd(&block[number_of(row)], (u64)sum);
    }
    u64 low = t.rem_low, high = t.rem_high + (t.rems << (32 - shift));
    for (int step = 16; step; step >>= 1) {
        low += __shfl_down_sync(0xFFFFFFFFu, low, step);
        high += __shfl_down_sync(0xFFFFFFFFu, high, step);
    }
    if (first) {
        atomicAdd(&block[REM_LOW], low);
        atomicAdd(&block[REM_HIGH], high);
    }
    __syncthreads();
    if (threadIdx.x < COUNTS && block[threadIdx.x]) atomicAdd(&counts[threadIdx.x], block[threadIdx.x]);
}
#else
FN void flush(const Tally& t, int shift, u64* counts) {
    for (u32 row = 0; row < ROWS; row++) counts[number_of(row)] += t.rows[row][lane()];
    counts[REM_LOW] += t.rem_low;
    counts[REM_HIGH] += t.rem_high + (t.rems << (32 - shift));
}
#endif

// A range of outputs, and the lattice of eight elements over it whose whole pieces are aligned.
struct Range {
    u64 start, period, address, count;  // index of the first element; data period or 0; where it lies; elements
    u32 bytes, head, pieces;
    bool aligned;
};

FN Range range_of(u64 start, u64 period, u64 address, u64 count, u32 bytes) {
    bool aligned = address % bytes == 0;
    u32 head = aligned ? (u32)(address % (EIGHT * bytes) / bytes) : 0;
    return {start, period, address, count, bytes, head, (u32)((head + count + EIGHT - 1) / EIGHT), aligned};
}

// Whether all eight elements of a piece lie in the range, in one period; their first index and address.
FN bool whole(const Range& r, u32 piece, u64* index, u64* address) {
    i64 first = (i64)piece * EIGHT - r.head;
    *address = r.address + first * r.bytes;
    *index = r.start + first;
    bool all = r.aligned && first >= 0 && first + EIGHT <= (i64)r.count;
    if (!r.period || !all) return all;
    *index %= r.period;
    return *index + EIGHT <= r.period;
}

FN bool inside(const Range& r, u32 piece, int k, u64* number) {
    *number = (u64)piece * EIGHT + k - r.head;  // wraps before the first
    return *number < r.count;
}

FN u64 index_of(const Range& r, u64 number) { return r.period ? (r.start + number) % r.period : r.start + number; }

FN void tally_piece(Tally& t, const Rule* rules, u64 n, const Format& f, const Range& r, u32 piece) {
    #pragma unroll 1
    for (int k = 0; k < EIGHT; k++) {
        u64 number, rem;
        if (!inside(r, piece, k, &number)) continue;
        u64 out = load_item(r.address + number * r.bytes, (int)r.bytes);
        t.rows[one_row(rules, n, f, index_of(r, number), out, &rem)][lane()]++;
        t.rem_low += rem & 0xFFFFFFFF;
        t.rem_high += rem >> 32;
    }
}

FN Tally fresh(u16 (*rows)[256]) {
    for (u32 row = 0; row < ROWS; row++) rows[row][lane()] = 0;
    return {rows, 0, 0, 0};
}

// Pieces that a fast kernel leaves to a slow one: so the slow way's registers do not crowd the fast one.
struct Rest {
    u64 room, count;  // the count may exceed the room: then the pieces named are not all
    u32* pieces;
};

FN void leave(Rest* rest, u32 piece) {
    u32 place = more((u32*)&rest->count, 1);
    if (place < rest->room) rest->pieces[place] = piece;
}

// Any rules; SHIFT 0: no binary32 way (binary32, binary64).
template <int SHIFT>
FN void classify(const Rule* rules, u64 n, const Format& f, const Range& r, u64* counts) {
    SHARED u16 rows[ROWS][256];
    Tally t = fresh(rows);
    for (u32 piece = (u32)thread_number(); piece < r.pieces; piece += (u32)thread_count()) {
        u64 index, address;
        bool all = SHIFT && whole(r, piece, &index, &address);
        if (all && tally_eight<SHIFT ? SHIFT : 16, false>(t, rules, n, f, index, address)) continue;
        tally_piece(t, rules, n, f, r, piece);
    }
    flush(t, SHIFT ? SHIFT : 16, counts);
}

template <int SHIFT>
FN void classify_scaled(const Rule* rules, u64 n, const Format& f, const Range& r, u64* counts, Rest* rest) {
    SHARED u16 rows[ROWS][256];
    Tally t = fresh(rows);
    for (u32 piece = (u32)thread_number(); piece < r.pieces; piece += (u32)thread_count()) {
        u64 index, address;
        bool done = whole(r, piece, &index, &address) && tally_eight<SHIFT, true>(t, rules, n, f, index, address);
        if (!done) leave(rest, piece);
    }
    flush(t, SHIFT, counts);
}

KERNEL classify_rest(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, u64 count, u64* counts,
                     const Rest* rest) {
    SHARED u16 rows[ROWS][256];
    Tally t = fresh(rows);
    const Range r = range_of(start, period, address, count, (u32)(f->bits / 8));
    for (u64 k = thread_number(); k < rest->count && k < rest->room; k += thread_count())
        tally_piece(t, rules, n, *f, r, rest->pieces[k]);
    flush(t, 16, counts);
}

// --- comparison with the exact sum, rounded -----------------------------------------------------------------------

const u32 CHUNK = 2048;  // elements whose mismatches are counted together

COLD bool mismatch(const Rule* rules, u64 n, const Format& f, u64 index, u64 out, u64 mode) {
    return rounded(split_of(exact_sum(rules, n, f, index), f), f, mode) != out;
}

template <int SHIFT, bool SCALED>
FN bool eight_right(const Rule* rules, u64 n, const Format& f, u64 index, u64 address) {
    float sums[EIGHT];
    u32 outs[EIGHT], wrong = 0;
    if (!eight_sums<SHIFT, SCALED>(rules, n, f, index, sums)) return false;
    eight_outputs<SHIFT>(address, outs);
    #pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        u32 word = as_word(sums[k]);
        wrong |= (word + ((1u << (SHIFT - 1)) - 1) + ((word >> SHIFT) & 1)) ^ outs[k];
        wrong &= ~((1u << SHIFT) - 1);
    }
    return !wrong;
}

FN void expect_piece(const Rule* rules, u64 n, const Format& f, const Range& r, u32 piece, u64 mode, u32* chunks, u32* any) {
    #pragma unroll 1
    for (int k = 0; k < EIGHT; k++) {
        u64 number;
        if (!inside(r, piece, k, &number)) continue;
        u64 out = load_item(r.address + number * r.bytes, (int)r.bytes);
        if (!mismatch(rules, n, f, index_of(r, number), out, mode)) continue;
        more(&chunks[number / CHUNK], 1);
        *any = 1;
    }
}

template <int SHIFT>
FN void expect(const Rule* rules, u64 n, const Format& f, const Range& r, u64 mode, u32* chunks, u32* any) {
    for (u32 piece = (u32)thread_number(); piece < r.pieces; piece += (u32)thread_count()) {
        u64 index, address;
        bool all = SHIFT && mode == TIES_TO_EVEN && whole(r, piece, &index, &address);
        if (all && eight_right<SHIFT ? SHIFT : 16, false>(rules, n, f, index, address)) continue;
        expect_piece(rules, n, f, r, piece, mode, chunks, any);
    }
}

template <int SHIFT>
FN void expect_scaled(const Rule* rules, u64 n, const Format& f, const Range& r, Rest* rest) {
    for (u32 piece = (u32)thread_number(); piece < r.pieces; piece += (u32)thread_count()) {
        u64 index, address;
        if (!whole(r, piece, &index, &address) || !eight_right<SHIFT, true>(rules, n, f, index, address)) leave(rest, piece);
    }
}

KERNEL expect_rest(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, u64 count, u64 mode,
                   u32* chunks, u32* any, const Rest* rest) {
    const Range r = range_of(start, period, address, count, (u32)(f->bits / 8));
    for (u64 k = thread_number(); k < rest->count && k < rest->room; k += thread_count())
        expect_piece(rules, n, *f, r, rest->pieces[k], mode, chunks, any);
}

#define GENERAL(NAME, SHIFT, BYTES)                                                                                  \
    KERNEL classify_##NAME(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, u64 count, \
                           u64* counts) {                                                                            \
        classify<SHIFT>(rules, n, *f, range_of(start, period, address, count, BYTES), counts);                       \
    }                                                                                                                \
    KERNEL expect_##NAME(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, u64 count,   \
                         u64 mode, u32* chunks, u32* any) {                                                          \
        expect<SHIFT>(rules, n, *f, range_of(start, period, address, count, BYTES), mode, chunks, any);              \
    }
#define FAST(NAME, SHIFT, BYTES)                                                                                      \
    FAST_KERNEL classify_##NAME##_scaled(const Rule* rules, u64 n, const Format* f, u64 start, u64 period,            \
                                         u64 address, u64 count, u64* counts, Rest* rest) {                           \
        classify_scaled<SHIFT>(rules, n, *f, range_of(start, period, address, count, BYTES), counts, rest);           \
    }                                                                                                                 \
    FAST_KERNEL expect_##NAME##_scaled(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, \
                                       u64 count, Rest* rest) {                                                       \
        expect_scaled<SHIFT>(rules, n, *f, range_of(start, period, address, count, BYTES), rest);                     \
    }
GENERAL(bfloat16, 16, 2)
GENERAL(binary16, 13, 2)
GENERAL(float8_e4m3fn, 20, 1)
GENERAL(float8_e5m2, 21, 1)
GENERAL(binary32, 0, 4)
GENERAL(binary64, 0, 8)
FAST(bfloat16, 16, 2)
FAST(binary16, 13, 2)
FAST(float8_e4m3fn, 20, 1)
FAST(float8_e5m2, 21, 1)

// The first mismatches of chunks that are known to hold some: a thread a chunk, in order.
KERNEL list_expect(const Rule* rules, u64 n, const Format* f, u64 start, u64 period, u64 address, u64 count, u64 mode,
                   const u64* chunks, u64 chunk_n, const u64* places, u64 limit, u64* indices) {
    const Range r = range_of(start, period, address, count, (u32)(f->bits / 8));
    for (u64 one = thread_number(); one < chunk_n; one += thread_count()) {
        u64 place = places[one], stop = (chunks[one] + 1) * CHUNK;
        for (u64 k = chunks[one] * CHUNK; k < stop && k < count && place < limit; k++) {
            u64 out = load_item(address + k * r.bytes, (int)r.bytes);
            if (mismatch(rules, n, *f, index_of(r, k), out, mode)) indices[place++] = k;
        }
    }
}
