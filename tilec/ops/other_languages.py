"""Words of Triton, CUDA, numpy and torch that have no meaning here, each with what is written instead.

A word is looked up by its last name, wherever it comes from: `tl.sum`, `np.sum` and `T.sum` mean the same.
"""

from __future__ import annotations

MODULES = ("np", "numpy", "torch", "tl", "triton", "cp", "cupy", "jnp", "jax", "cuda", "cute", "ct")
"""What programs of other languages import, and kernels then take for known."""

_ROWS = """
load: write T.copy(A[row, column], tile)
store: write T.copy(tile, C[row, column])
program_id bid: use the names of the launch, as in `with T.Kernel(n) as bx:`
num_programs num_blocks: use the sizes of the launch, which T.Kernel is given
zeros zeros_like full full_like ones ones_like empty_like: write T.alloc_fragment(shape, dtype), then T.clear or T.fill
sum: write T.reduce_sum(tile, sums, dim=1)
amax: write T.reduce_max(tile, largest, dim=1)
amin: write T.reduce_min(tile, smallest, dim=1)
mean: write T.reduce_sum(tile, sums, dim=1), then divide
prod: write a T.serial loop that multiplies
dot matmul mm bmm tensordot einsum mma: write T.gemm(A_tile, B_tile, sums)
where: write T.if_then_else(condition, a, b)
maximum: write T.max(a, b)
minimum: write T.min(a, b)
arange: use the variables of `for i in T.Parallel(n):`
cdiv: write T.ceildiv(a, b)
transpose trans permute: write T.transpose, or T.gemm with transpose_A=True or transpose_B=True
view broadcast_to expand_dims squeeze ravel: write T.reshape, or index the tile inside T.Parallel
softmax: write T.reduce_max, T.exp2 and T.reduce_sum, as samples/softmax.tl does
num_warps: use threads=32 * warps in T.Kernel
static_range: write T.unroll(n)
static_assert: write assert
constexpr autotune: use a constant of the file, which -D and `tilec tune` set
device_print printf: write T.print(value)
debug_barrier __syncthreads syncthreads barrier: leave it out; where one is needed all the same, write T.sync_threads()
__syncwarp syncwarp: write T.sync_warp()
threadIdx thread_idx thread_id: write T.get_thread_binding(), or the variables of `for i in T.Parallel(n):`
blockIdx block_idx: use the names of the launch, as in `with T.Kernel(n) as bx:`
blockDim block_dim: use threads= of T.Kernel
gridDim grid_dim: use the sizes of the launch, which T.Kernel is given
__shared__ shared: write T.alloc_shared(shape, dtype)
__shfl_sync __shfl_down_sync __shfl_up_sync __shfl_xor_sync: write T.shfl_sync and its like
__expf expf: write T.exp(x)
__fdividef: write x / y
sqrtf: write T.sqrt(x)
fmaf: write x * y + z
atomicAdd: write T.atomic_add(C[i], value)
atomicMax: write T.atomic_max(C[i], value)
atomicMin: write T.atomic_min(C[i], value)
float2 float4: write T.vectorized, or leave the width to the compiler
"""

_INSTEAD = {
    name: way_out.strip()
    for names, _, way_out in (row.partition(": ") for row in _ROWS.strip().split("\n"))
    for name in names.split()
}


def instead_of(path: str) -> str | None:
    """What to write in place of a word of another language, if it is one."""
    return _INSTEAD.get(path.rpartition(".")[2])
