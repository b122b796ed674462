// What multimem.cu needs of a GPU: threads, loads and stores at system scope, additions, and the switch.
//
// multimem_kernels.py puts before this text: FORMAT, ITEM (bytes of an element), UNIT (bytes of a whole access), WIDE (additions in
// binary32, of 8-bit formats in binary16), SWITCH and PAIR, and behind it the assembly of the forms that the call uses.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FN __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)

FN u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
FN u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

template <int N>
struct Words {
    u32 w[N];
};

// Loads and stores are relaxed at system scope, as the switch's are: nothing stale from a cache of this GPU.
FN void fetch(u64 at, Words<1>& v) { asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v.w[0]) : "l"(at) : "memory"); }
FN void fetch(u64 at, Words<2>& v) {
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(at) : "memory");
}
FN void fetch(u64 at, Words<4>& v) {
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(at)
                 : "memory");
}
FN u32 fetch_item(u64 at) {
    u32 item;
    if (ITEM == 1) asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(item) : "l"(at) : "memory");
    if (ITEM == 2) asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=r"(item) : "l"(at) : "memory");
    if (ITEM == 4) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(item) : "l"(at) : "memory");
    return item;
}

FN void store(u64 at, const Words<1>& v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v.w[0]) : "memory"); }
FN void store(u64 at, const Words<2>& v) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(v.w[0]), "r"(v.w[1]) : "memory");
}
FN void store(u64 at, const Words<4>& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}
FN void store_item(u64 at, u32 item) {
    if (ITEM == 1) asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(at), "r"(item) : "memory");
    if (ITEM == 2) asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(at), "r"(item) : "memory");
    if (ITEM == 4) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(item) : "memory");
}

// ---- additions: every one to nearest, ties to even, subnormals kept; .rn also keeps the compiler from fusing -----------------

FN float add32(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}
FN u32 add16x2(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

#if FORMAT == BINARY32
typedef float Sum;
FN Sum enter(u32 w) { return __uint_as_float(w); }
FN Sum add(Sum a, Sum b) { return add32(a, b); }
FN u32 leave(Sum s) { return __float_as_uint(s); }

#elif ITEM == 2 && !WIDE
typedef u32 Sum;
FN Sum enter(u32 w) { return w; }
#if FORMAT == BINARY16
FN Sum add(Sum a, Sum b) { return add16x2(a, b); }
#else
FN Sum add(Sum a, Sum b) {
    u32 sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
#endif
FN u32 leave(Sum s) { return s; }

#elif ITEM == 2
struct Sum {
    float low, high;
};
#if FORMAT == BINARY16
FN Sum enter(u32 w) {
    Sum s;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(s.low), "=f"(s.high) : "r"(w));
    return s;
}
FN u32 leave(Sum s) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(s.high), "f"(s.low));
    return w;
}
#else
FN Sum enter(u32 w) { return {__uint_as_float(w << 16), __uint_as_float(w & 0xFFFF0000u)}; }
FN u32 leave(Sum s) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(s.high), "f"(s.low));
    return w;
}
#endif
FN Sum add(Sum a, Sum b) { return {add32(a.low, b.low), add32(a.high, b.high)}; }

#else  // 8-bit formats: additions in binary16, brought back with saturation, the only way the instruction has
#if FORMAT == FLOAT8_E4M3FN
#define EIGHT "e4m3x2"
#else
#define EIGHT "e5m2x2"
#endif
struct Halves {
    u32 low, high;
};
FN Halves widen(u32 w) {
    Halves s;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2." EIGHT " %0, l; cvt.rn.f16x2." EIGHT " %1, h; }"
        : "=r"(s.low), "=r"(s.high)
        : "r"(w));
    return s;
}
FN u32 narrow(Halves s) {
    u32 w;
    asm("{ .reg .b16 l, h; cvt.rn.satfinite." EIGHT ".f16x2 l, %1; cvt.rn.satfinite." EIGHT ".f16x2 h, %2; mov.b32 %0, {l, h}; }"
        : "=r"(w)
        : "r"(s.low), "r"(s.high));
    return w;
}
FN Halves add_halves(Halves a, Halves b) { return {add16x2(a.low, b.low), add16x2(a.high, b.high)}; }
#if WIDE
typedef Halves Sum;
FN Sum enter(u32 w) { return widen(w); }
FN Sum add(Sum a, Sum b) { return add_halves(a, b); }
FN u32 leave(Sum s) { return narrow(s); }
#else
typedef u32 Sum;
FN Sum enter(u32 w) { return w; }
FN Sum add(Sum a, Sum b) { return narrow(add_halves(widen(a), widen(b))); }
FN u32 leave(Sum s) { return s; }
#endif
#endif
