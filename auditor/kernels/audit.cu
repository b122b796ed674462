// Device kernels on bytes: fills and comparisons. `engine.py` calls them; `classes.cu` has the others.

// --- fills --------------------------------------------------------------------------------------------------------

template <int BYTES>
FN void put(Piece& piece, int k, u64 code) {
    if (BYTES == 8) {
        piece.w[2 * k] = (u32)code;
        piece.w[2 * k + 1] = (u32)(code >> 32);
    } else {
        const int EACH = 4 / BYTES > 0 ? 4 / BYTES : 1;
        if (k % EACH == 0) piece.w[k / EACH] = 0;
        u32 part = BYTES == 4 ? (u32)code : (u32)code & ((1u << (8 * BYTES % 32)) - 1);
        piece.w[k / EACH] |= part << (8 * BYTES * (k % EACH) % 32);
    }
}

// Rule `scaled`; the constants come in registers.
template <int BYTES>
FN Piece made_scaled(Scale c, u32 index) {
    c.top = 8 * BYTES - 1;
    Piece piece;
    #pragma unroll
    for (int k = 0; k < 16 / BYTES; k++) put<BYTES>(piece, k, scaled_code(c, index + k));
    return piece;
}

// 16-bit formats, rule `scaled`: two codes at a time, four instructions and a half for each beside the hash.
template <>
FN Piece made_scaled<2>(Scale c, u32 index) {
    u32 factor = c.choices << (c.mantissa + 1), base = c.base << (c.mantissa + 16);
    u32 mask = (u32)c.mask * 0x10001u, field = (0x7FFFu >> c.mantissa << c.mantissa) * 0x10001u;
    u32 place = index * WEYL + c.key[0], unit = one();
    Piece piece;
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 x[2];
        #pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 y = unit * ((2 * k + j) * WEYL) + place;
            y ^= y >> 16;
            y *= 0x7FEB352Du;
            y ^= y >> 15;
            x[j] = y * 0x846CA68Bu;
        }
        u32 upper = picked(x[0], x[1], 0x7632), lower = picked(x[0], x[1], 0x5410);
        u32 first = (upper & 0x7FFF) * factor + base, second = ((upper >> 16) & 0x7FFF) * factor + base;
        u32 exponents = picked(first, second, 0x7632) & field;
        piece.w[k] = exponents | ((upper ^ lower) & mask) | (upper & 0x80008000u);
    }
    return piece;
}

template <int BYTES>
FN Piece made_any(const Sender& s, const Format& f, u64 index) {
    const int EACH = BYTES < 4 ? 4 / BYTES : 1, WORDS_EACH = BYTES < 4 ? 1 : BYTES / 4;
    Piece piece;
    #pragma unroll
    for (int w = 0; w < 4; w += WORDS_EACH) {
        u64 both = 0;
        #pragma unroll 1
        for (int k = 0; k < EACH; k++) both |= cut_to(f, sent(s, f, index++)) << (8 * BYTES * k % 64);
        piece.w[w] = (u32)both;
        if (WORDS_EACH == 2) piece.w[(w + 1) % 4] = (u32)(both >> 32);
    }
    return piece;
}

template <int BYTES, bool SCALED_ONLY>
FN void fill(const Sender& s, const Format& f, u64 start, u64 address, u64 count) {
    const Scale c = scale_from(s.rule[0], f);
    const u32 EACH = 16 / BYTES;
    bool aligned = address % BYTES == 0;
    u32 head = aligned ? (u32)(address % 16 / BYTES) : 0, pieces = (u32)((head + count + EACH - 1) / EACH);
    for (u32 piece = (u32)thread_number(); piece < pieces; piece += (u32)thread_count()) {
        i64 first = (i64)piece * EACH - head;
        if (aligned && first >= 0 && first + EACH <= (i64)count) {
            Piece made;
            if (SCALED_ONLY) {
                made = made_scaled<BYTES>(c, (u32)(start + first));
            } else {
                made = made_any<BYTES>(s, f, start + first);
            }
            store(address + first * BYTES, made);
            continue;
        }
        #pragma unroll 1
        for (i64 k = first; k < first + EACH; k++)
            if (k >= 0 && k < (i64)count) store_item(address + k * BYTES, sent(s, f, start + k), BYTES);
    }
}

#define FILL(BYTES)                                                                                          \
    KERNEL fill_##BYTES(const Sender* s, const Format* f, u64 start, u64 address, u64 count) {               \
        fill<BYTES, false>(*s, *f, start, address, count);                                                   \
    }                                                                                                        \
    KERNEL fill_##BYTES##_scaled(const Sender* s, const Format* f, u64 start, u64 address, u64 count) {      \
        fill<BYTES, true>(*s, *f, start, address, count);                                                    \
    }
FILL(1)
FILL(2)
FILL(4)
FILL(8)

// Bytes from a pattern that repeats; `pattern` holds two periods, `offset` is where in it the first byte belongs. A period
// is a power of two, 16 or more.
KERNEL fill_pattern(u64 address, u64 count, u64 pattern, u64 offset, u64 period) {
    u64 head = address % 16, pieces = (head + count + 15) / 16;
    bool together = (pattern + offset) % 16 == head;
    for (u64 piece = thread_number(); piece < pieces; piece += thread_count()) {
        i64 first = (i64)(piece * 16 - head);
        u64 from = pattern + (first < 0 ? 0 : (offset + first) & (period - 1));
        if (together && first >= 0 && first + 16 <= (i64)count) {
            store(address + first, fetch(from));
            continue;
        }
        for (i64 k = first; k < first + 16; k++)
            if (k >= 0 && k < (i64)count) ((u8*)address)[k] = ((const u8*)pattern)[(offset + k) & (period - 1)];
    }
}

// --- comparison of bytes ------------------------------------------------------------------------------------------

const u64 PAGE = 4096;  // bytes whose differences are counted together

// The other side of byte k: `other` + k, or, where there is a period, a place in the pattern.
FN u64 beside(u64 other, u64 offset, u64 period, u64 k) { return other + (period ? (offset + k) & (period - 1) : k); }

// Items that differ between two ranges of `count` bytes, by page; `pages` may be null: then only whether any does.
KERNEL compare(u64 address, u64 other, u64 count, u64 bytes, u64 offset, u64 period, u32* pages, u32* any) {
    bool aligned = address % bytes == 0 && beside(other, offset, period, 0) % 16 == address % 16;
    u64 head = aligned ? address % 16 : 0, pieces = (head + count + 15) / 16;
    for (u64 piece = thread_number(); piece < pieces; piece += thread_count()) {
        i64 first = (i64)(piece * 16 - head);
        if (aligned && first >= 0 && first + 16 <= (i64)count) {
            Piece a = fetch(address + first), b = fetch(beside(other, offset, period, (u64)first));
            if (!((a.w[0] ^ b.w[0]) | (a.w[1] ^ b.w[1]) | (a.w[2] ^ b.w[2]) | (a.w[3] ^ b.w[3]))) continue;
        }
        for (i64 k = first < 0 ? 0 : first; k < first + 16 && k < (i64)count; k += bytes) {
            bool differs = false;
            for (u64 j = 0; j < bytes; j++)
                differs |= *(const u8*)(address + k + j) != *(const u8*)beside(other, offset, period, k + j);
            if (!differs) continue;
            if (pages) more(&pages[k / PAGE], 1);
            *any = 1;
        }
    }
}

// Item numbers and both sides of the first differences in the pages named: a thread a page, in order.
KERNEL list_compare(u64 address, u64 other, u64 count, u64 bytes, u64 offset, u64 period, const u64* pages, u64 page_n,
                    const u64* places, u64 limit, u64* indices, u64* found, u64* wanted) {
    for (u64 one = thread_number(); one < page_n; one += thread_count()) {
        u64 place = places[one], stop = (pages[one] + 1) * PAGE;
        for (u64 k = pages[one] * PAGE; k < stop && k < count && place < limit; k += bytes) {
            u64 a = load_item(address + k, (int)bytes), b = 0;
            for (u64 j = 0; j < bytes; j++) b |= (u64) * (const u8*)beside(other, offset, period, k + j) << (8 * j);
            if (a == b) continue;
            indices[place] = k / bytes;
            found[place] = a;
            wanted[place++] = b;
        }
    }
}
