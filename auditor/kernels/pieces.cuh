// What the kernels need of a device: thread numbers, 16-byte pieces of memory, items at any address.
//
// Every kernel argument is 8 bytes wide. A thread works on whole aligned pieces of 16 bytes (class counts: 8 elements); the
// ends of a range, and ranges that are not aligned to their elements, go element by element. Where 32-bit counters could
// overflow the host cuts the range: at most 2**31 elements a launch, all with one high word of the data index.

#ifdef __CUDACC__
#define SHARED __shared__
FN u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
FN u64 thread_count() { return (u64)gridDim.x * blockDim.x; }
FN u32 lane() { return threadIdx.x; }
FN u32 picked(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
FN u32 more(u32* counter, u32 by) { return atomicAdd(counter, by); }
#else
#define SHARED static
extern "C" u64 emulated_thread, emulated_threads, emulated_misaligned;
u64 emulated_thread, emulated_threads, emulated_misaligned;
FN u64 thread_number() { return emulated_thread; }
FN u64 thread_count() { return emulated_threads; }
FN u32 lane() { return (u32)(emulated_thread % 256); }
FN u32 picked(u32 a, u32 b, u32 selector) {
    u64 both = (u64)b << 32 | a;
    u32 word = 0;
    for (int k = 0; k < 4; k++) word |= (u32)(both >> (8 * ((selector >> (4 * k)) & 7)) & 0xFF) << (8 * k);
    return word;
}
FN u32 more(u32* counter, u32 by) {
    *counter += by;
    return *counter - by;
}
#endif

// a + b with subnormals kept. CuPy compiles with -ftz=true, whatever it is asked for, which would make zeros of subnormal
// terms, sums and errors; an instruction that is written out stays as it is.
FN float plus(float a, float b) {
#ifdef __CUDACC__
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return a + b;
#endif
}

struct Piece {
    u32 w[4];
};

FN void store(u64 address, const Piece& piece) {
#ifdef __CUDACC__
    *(uint4*)address = make_uint4(piece.w[0], piece.w[1], piece.w[2], piece.w[3]);
#else
    emulated_misaligned += address % 16 != 0;
    for (int k = 0; k < 4; k++) ((u32*)address)[k] = piece.w[k];
#endif
}

FN Piece fetch(u64 address) {
#ifdef __CUDACC__
    uint4 v = *(const uint4*)address;
    return {{v.x, v.y, v.z, v.w}};
#else
    Piece piece;
    emulated_misaligned += address % 16 != 0;
    for (int k = 0; k < 4; k++) piece.w[k] = ((const u32*)address)[k];
    return piece;
#endif
}

FN u64 load_item(u64 address, int bytes) {
    u64 code = 0;
    for (int k = 0; k < bytes; k++) code |= (u64)((const u8*)address)[k] << (8 * k);
    return code;
}

FN void store_item(u64 address, u64 code, int bytes) {
    for (int k = 0; k < bytes; k++) ((u8*)address)[k] = (u8)(code >> (8 * k));
}
