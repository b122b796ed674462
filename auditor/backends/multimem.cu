// The sum of one rank's part of a call: reduce what the members hold, write where the result belongs.
//
// The switch adds nothing smaller than 4 bytes, and nothing that is not aligned to its size. So a range is cut by the address of its
// first element into lone elements, words of 4 bytes, whole units of UNIT bytes, words, lone elements. Which element takes which
// way depends on that address and the count alone; multimem_split.py is the same arithmetic in Python, for path().
//
//              units and words                              lone elements
//   SWITCH     multimem.ld_reduce of the multicast address  PAIR: the word around it, reduced, one element kept; else as below
//   unicast    loads from every member, added in the order  the same, one element at a time (PAIR: the word around it)
//              of the table, in the stated accumulator
//
// Every argument is 8 bytes wide. sources: table of n addresses of the first element, one a member. targets: table of m addresses
// that get the result. source_switch, target_switch: the same through the switch; 0 where there is none. Steps begin ... end - 1 of
// the range's are done; a step is an element, a word or a unit.

struct Source {
    const u64* at;
    u64 n, through_switch;
};

struct Target {
    const u64* at;
    u64 m, through_switch;
};

FN u64 least(u64 a, u64 b) { return a < b ? a : b; }

// ---- reading and adding ----------------------------------------------------------------------------------------------------

template <int N>
FN Words<N> chain(const Source& from, u64 offset) {
    Sum sum[N];
    Words<N> read;
    fetch(from.at[0] + offset, read);
    for (int k = 0; k < N; k++) sum[k] = enter(read.w[k]);
#pragma unroll 4
    for (u64 member = 1; member < from.n; member++) {
        fetch(from.at[member] + offset, read);
        for (int k = 0; k < N; k++) sum[k] = add(sum[k], enter(read.w[k]));
    }
    for (int k = 0; k < N; k++) read.w[k] = leave(sum[k]);
    return read;
}

template <int N>
FN Words<N> reduced(const Source& from, u64 offset) {
#if SWITCH
    Words<N> sum;
    switch_reduce(from.through_switch + offset, sum);
    return sum;
#else
    return chain<N>(from, offset);
#endif
}

FN u32 lone(const Source& from, u64 offset) {
#if PAIR && ITEM < 4
    u64 inside = (from.at[0] + offset) % 4;  // reads the neighbours, too
    return reduced<1>(from, offset - inside).w[0] >> (8 * inside);
#else
    Sum sum = enter(fetch_item(from.at[0] + offset));  // beside it +0: exact, and dropped
#pragma unroll 1
    for (u64 member = 1; member < from.n; member++) sum = add(sum, enter(fetch_item(from.at[member] + offset)));
    return leave(sum);
#endif
}

// ---- writing: as wide as the target's alignment allows ---------------------------------------------------------------------

FN void put_item(const Target& to, u64 offset, u32 item) {
#pragma unroll 1
    for (u64 k = 0; k < to.m; k++) store_item(to.at[k] + offset, item);
}

template <int N>
FN void put(const Target& to, u64 offset, const Words<N>& sum) {
    u64 first = to.at[0] + offset;
    for (int k = 0; k < N && first % 4; k++)
        for (int part = 0; part < 4 / ITEM; part++) put_item(to, offset + 4 * k + ITEM * part, sum.w[k] >> (8 * ITEM * part));
    if (first % 4) return;
#if SWITCH
    if (to.through_switch) {
        if (first % (4 * N) == 0) return switch_store(to.through_switch + offset, sum);
        for (int k = 0; k < N; k++) switch_store(to.through_switch + offset + 4 * k, Words<1>{{sum.w[k]}});
        return;
    }
#endif
#pragma unroll 1
    for (u64 t = 0; t < to.m; t++) {
        if (first % (4 * N) == 0) store(to.at[t] + offset, sum);
        else
            for (int k = 0; k < N; k++) store(to.at[t] + offset + 4 * k, Words<1>{{sum.w[k]}});
    }
}

// ---- which step is which ---------------------------------------------------------------------------------------------------

struct Split {
    u64 lone, words, units, last_words;
};

FN Split split(u64 address, u64 count) {
    const u64 in_word = 4 / ITEM, in_unit = UNIT / ITEM;
    Split s;
    s.lone = least(count, (0 - address) % 4 / ITEM);
    count -= s.lone;
    s.words = least(count / in_word, (0 - (address + s.lone * ITEM)) % UNIT / 4);
    count -= s.words * in_word;
    s.units = count / in_unit;
    s.last_words = count % in_unit / in_word;
    return s;
}

enum Way { LONE, WORD, WHOLE };

struct Place {
    Way way;
    u64 at;  // bytes from the first element
};

FN Place placed(const Split& s, u64 step) {
    u64 at = s.lone * ITEM;
    if (step < s.lone) return {LONE, step * ITEM};
    step -= s.lone;
    if (step < s.words) return {WORD, at + step * 4};
    step -= s.words;
    at += s.words * 4;
    if (step < s.units) return {WHOLE, at + step * UNIT};
    step -= s.units;
    at += s.units * UNIT;
    if (step < s.last_words) return {WORD, at + step * 4};
    return {LONE, at + s.last_words * 4 + (step - s.last_words) * ITEM};
}

FN void perform(const Source& from, const Target& to, const Place& here) {
    if (here.way == WHOLE) put(to, here.at, reduced<UNIT / 4>(from, here.at));
    if (here.way == WORD) put(to, here.at, reduced<1>(from, here.at));
    if (here.way == LONE) put_item(to, here.at, lone(from, here.at));
}

KERNEL multimem_sum(u64 sources, u64 n, u64 source_switch, u64 targets, u64 m, u64 target_switch, u64 count, u64 begin, u64 end) {
    const Source from = {(const u64*)sources, n, source_switch};
    const Target to = {(const u64*)targets, m, target_switch};
    const Split s = split(from.at[0], count);
    for (u64 step = begin + thread_number(); step < end; step += thread_count()) perform(from, to, placed(s, step));
}
