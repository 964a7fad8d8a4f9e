"""Words of Triton, CUDA, numpy and torch that have no meaning here, each with its replacement in a kernel.

Messages about an unknown word look here first and guess by spelling afterwards: a word of another language is no typo.
A function is looked up by its last name, whatever its module: `tl.sum`, `np.sum` and `T.sum` mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence

MODULES = ("np", "numpy", "torch", "tl", "triton", "cp", "cupy", "jnp", "jax", "cuda", "cute", "ct")
"""Modules that programs of other languages import and that kernels use as if they were imported."""

_FUNCTION_ROWS = """
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
max: write T.max(a, b) for two numbers, or T.reduce_max(tile, largest, dim=1) for a tile
min: write T.min(a, b) for two numbers, or T.reduce_min(tile, smallest, dim=1) for a tile
where: write T.if_then_else(condition, a, b)
silu swish: write x * T.sigmoid(x), element by element inside T.Parallel
relu: write T.max(x, 0), element by element inside T.Parallel
gelu: write 0.5 * x * (1 + T.erf(x * 0.70710678)), element by element inside T.Parallel
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
debug_barrier __syncthreads syncthreads barrier: remove it; if one is still needed, write T.sync_threads()
__syncwarp syncwarp: write T.sync_warp()
threadIdx thread_idx thread_id: write T.get_thread_binding(), or the variables of `for i in T.Parallel(n):`
blockIdx block_idx: use the names of the launch, as in `with T.Kernel(n) as bx:`
blockDim block_dim: use threads= of T.Kernel
gridDim grid_dim: use the sizes of the launch, which T.Kernel is given
__shared__ shared smem alloc_smem shared_memory shared_array: write T.alloc_shared(shape, dtype)
rmem alloc_rmem alloc_register alloc_registers: write T.alloc_fragment(shape, dtype)
__shfl_sync __shfl_down_sync __shfl_up_sync __shfl_xor_sync: write T.shfl_sync or its variants
__expf expf: write T.exp(x)
__fdividef: write x / y
sqrtf: write T.sqrt(x)
fmaf: write x * y + z
atomicAdd: write T.atomic_add(C[i], value)
atomicMax: write T.atomic_max(C[i], value)
atomicMin: write T.atomic_min(C[i], value)
TensorCoreIntrinEmitter INT4TensorCoreIntrinEmitter TensorCoreIntrinEmitterWithLadderTransform: write T.gemm
TensorCoreIntrinEmitterSM120 WGMMATensorCoreIntrinEmitter TCGEN05TensorCoreIntrinEmitter: write T.gemm
SparseTensorCoreIntrinEmitter WGSparseTensorCoreIntrinEmitter: write T.gemm_sp
float2 float4: write T.vectorized, or leave the width to the compiler
"""

_DTYPE_ROWS = """
fp16 f16: float16
bf16: bfloat16
fp32 f32: float32
fp64 f64: float64
fp8 fp8e4nv fp8_e4m3 e4m3: float8_e4m3fn
fp8e5 fp8_e5m2 e5m2: float8_e5m2
fp4 e2m1: float4_e2m1fn
i8 s8: int8
i32 s32: int32
u8: uint8
"""

_KEYWORD_ROWS = """
stages: num_stages
axis: dim
trans_a transA: transpose_A
trans_b transB: transpose_B
"""

_KEYWORDS_WITHOUT_PARAMETER = """
mask boundary_check: remove it; outside of a tensor T.copy reads zeros and writes nothing
other padding_option: write T.annotate_safe_value({tensor: value}), which sets the value read outside of a tensor
"""

_METHOD_ROWS = """
sum: write T.reduce_sum({tile}, sums, dim={last})
max amax: write T.reduce_max({tile}, largest, dim={last})
min amin: write T.reduce_min({tile}, smallest, dim={last})
mean: write T.reduce_sum({tile}, sums, dim={last}), then divide
T mT t transpose: pass {tile} itself to T.gemm, with transpose_B=True (or transpose_A=True); T.transpose copies
view reshape: write T.reshape({tile}, shape)
to type half float astype: write T.copy({tile}, other), which converts to the dtype of the other tile
zero_ fill_ fill: write T.clear({tile}) or T.fill({tile}, value)
"""
"""Methods of a tile or a tensor: `{tile}` is its name, `{last}` the number of its last dimension."""


def _parse_rows(rows: str) -> dict[str, str]:
    """Return the answer for each word of a table whose lines are `word word: answer`."""
    split = (row.partition(": ") for row in rows.strip().split("\n"))
    return {word: answer.strip() for words, _, answer in split for word in words.split()}


_DTYPES = _parse_rows(_DTYPE_ROWS)
_REPLACEMENTS = _parse_rows(_FUNCTION_ROWS) | {word: f"write T.{dtype}" for word, dtype in _DTYPES.items()}
_KEYWORDS = _parse_rows(_KEYWORD_ROWS)
_METHODS = _parse_rows(_METHOD_ROWS)
_ADVICE_ON_KEYWORDS = _parse_rows(_KEYWORDS_WITHOUT_PARAMETER) | {"num_warps": _REPLACEMENTS["num_warps"]}

FOREIGN_WORDS = tuple(_REPLACEMENTS)


def find_equivalent(path: str) -> str | None:
    """Return advice on replacing another language's function or dtype, looked up by its last name; None if unknown."""
    return _REPLACEMENTS.get(path.rpartition(".")[2])


def suggest_dtype(name: str) -> str | None:
    """Return the name of our dtype for another language's name of it; None if unknown."""
    return _DTYPES.get(name)


def suggest_parameter(keyword: str, parameters: Sequence[str]) -> str | None:
    """Return the parameter that another language's keyword means, if it is one of `parameters`; else None."""
    parameter = _KEYWORDS.get(keyword)
    return parameter if parameter in parameters else None


def advise_on_keyword(keyword: str) -> str | None:
    """Return advice on replacing another language's keyword that has no parameter here; None if unknown."""
    return _ADVICE_ON_KEYWORDS.get(keyword)


def suggest_method_replacement(name: str, tile: str, rank: int) -> str | None:
    """Return advice on replacing a method of other languages' arrays, for a tile of this name and rank; None if
    unknown."""
    answer = _METHODS.get(name)
    return None if answer is None else answer.format(tile=tile, last=rank - 1)
