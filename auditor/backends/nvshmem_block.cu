// NVSHMEM's block-scope sums as kernels of one block. Built at run time by nvshmem_block.py, without a host compiler, which defines
// THREADS: the linker then gives no kernel, and nothing that it calls, more registers than a block of that size has.
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>

namespace std {  // NVSHMEM 3.4's headers say std:: where a run-time compiler only has cuda::std::
using cuda::std::is_integral;
using cuda::std::is_signed;
using cuda::std::is_unsigned;
}  // namespace std

#include <nvshmem.h>
#include <nvshmemx.h>

#define AUDITED(NAME, TYPE, KIND)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                             \
        NAME##_sum_##KIND(int team, void* target, const void* source, size_t n, int* status) {                        \
        int code = nvshmemx_##NAME##_sum_##KIND##_block((nvshmem_team_t)team, (TYPE*)target, (const TYPE*)source, n); \
        if (threadIdx.x == 0) *status = code;                                                                         \
    }

AUDITED(double, double, reduce)
AUDITED(double, double, reducescatter)
AUDITED(float, float, reduce)
AUDITED(float, float, reducescatter)
AUDITED(half, half, reduce)
AUDITED(half, half, reducescatter)
AUDITED(bfloat16, __nv_bfloat16, reduce)
AUDITED(bfloat16, __nv_bfloat16, reducescatter)
