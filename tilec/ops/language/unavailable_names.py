"""Names of TileLang and of TVM below it that tilec knows but does not support, each with the reason and an alternative.

A name that is neither here nor supported is reported as a mistake, with the supported name of the nearest spelling.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.support.diagnostics import CompileError, Diagnostic, Label
from tilec.support.source import Span


def _parse_rows(text: str, because: Diagnostic) -> dict[str, Diagnostic]:
    """Return the diagnostic of each name in a table of lines `names: alternative`: `because`, with the alternative as
    help. Each title completes "T.name is not available"."""
    rows: dict[str, Diagnostic] = {}
    for line in text.strip().split("\n"):
        names, _, instead = line.partition(":")
        rows |= {name: replace(because, help=instead.strip() or None) for name in names.split()}
    return rows


_BLACKWELL = _parse_rows(
    """
    tcgen05_gemm_sp: write T.gemm_sp, tilec chooses the instructions
    deallocate_tmem: remove it; tensor memory is freed when the block ends
    make_blockscaled_gemm_layout
    tcgen05_before_thread_sync tcgen05_after_thread_sync alloc_tcgen05_smem_desc initialize_tcgen05_descriptor
    alloc_tcgen05_instr_desc alloc_tcgen05_instruction_desc ptx_tcgen05_mma_ss ptx_tcgen05_mma_ts
    ptx_tcgen05_mma_blockscaled_ss tma_load_2sm
    clc_try_cancel_multicast: write T.clc_try_cancel, in a kernel without clusters
    float4_e2m1_unpacked: use T.float4_e2m1fn, which stores two elements in a byte
    """,
    Diagnostic(
        "needs-sm-100a", "it needs a unit that sm_100a has and older GPUs lack, and tilec makes no code for it yet"
    ),
)

_BLOCK_SCALED = _parse_rows(
    "mma_gemm_blockscaled ptx_mma_block_scale: convert the tiles and write T.gemm",
    Diagnostic(
        "needs-sm-100a",
        "block scaling is done by the tensor cores of sm_100a and sm_120a, for which tilec makes no code yet",
    ),
)

_LEGACY = _parse_rows(
    """
    match_buffer handle: annotate the parameter, as in `A: T.Tensor((M, N), "float16")`
    alloc_buffer decl_buffer sblock_alloc_buffer: write T.alloc_shared or T.alloc_fragment
    sblock sblock_attr block block_attr block_name reads writes axis init root: remove it; tilec derives
    launch_thread: write `with T.Kernel(grid, threads=n) as bx:`
    env_thread: write T.get_thread_binding()
    While: write `while condition:`
    If Then Else: write `if condition:`
    let LetStmt Let bind: write `x = value`
    attr: remove it; a reduction over threads is T.alloc_reducer, or T.warp_reduce_sum in a warp
    Broadcast Shuffle: write a loop over T.vectorized
    extract_lane: index the elements one by one
    comm_reducer tvm_thread_allreduce: write T.alloc_reducer and T.finalize_reducer, or T.warp_reduce_sum in a warp
    tvm_storage_sync: write T.sync_threads()
    tvm_access_ptr address_of type_annotation: pass the buffer, or a slice of it
    type_cast: write T.cast
    PrimExpr: remove the annotation
    target: pass --target on the command line
    call_intrin call_llvm_intrin call_llvm_pure_intrin: write the T.* function that it stands for
    thread_return: put the rest under an `if`
    """.replace("tilec derives\n", "tilec derives the reads and writes of a statement\n"),
    Diagnostic("legacy-name", "it is a spelling of TVM, below TileLang"),
)

_FOREIGN = _parse_rows(
    """
    call_extern call_pure_extern: write the function in the kernel, or its instructions by T.ptx
    import_source CUDASourceCodeKernel: write the kernel in TileLang, and its instructions by T.ptx
    """,
    Diagnostic("foreign-code", "tilec makes PTX itself and cannot paste CUDA C into it"),
)

_SCHEDULED = _parse_rows(
    "WSInstr: write T.WSSync or T.WSOpRef; or divide the work by `with T.ws(…):` and T.alloc_barrier",
    Diagnostic("scheduling-directive", "tilec schedules the statements and makes the roles itself"),
)

_RAW = _parse_rows(
    """
    ptx_wgmma_ss ptx_wgmma_rs ptx_wgmma_sp_ss ptx_wgmma_sp_rs ptx_mma ptx_mma_sm70 ptx_mma_sp ptx_ldmatrix: write T.gemm
    warpgroup_arrive warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand mma_fill: write T.gemm
    initialize_wgmma_descriptor increase_descriptor_offset alloc_wgmma_desc alloc_descriptor: write T.gemm
    create_tma_descriptor tma_load: write T.copy
    ptx_init_barrier_thread_count ptx_fence_barrier_init: write T.alloc_barrier, which includes it
    ptx_arrive_barrier ptx_arrive_barrier_expect_tx ptx_arrive_cluster_barrier: write T.barrier_arrive
    ds_read_tr16_b64 ds_read_tr8_b64: write T.copy
    cooperative_tensor_fill cooperative_tensor_load cooperative_tensor_multiply_accumulate cooperative_tensor_store
    """,
    Diagnostic("raw-instruction", "it is a single instruction, whose ordering tilec cannot track"),
)

_AMD = _parse_rows(
    """
    float8_e4m3fnuz: use T.float8_e4m3fn, whose largest number is 448 instead of 240
    float8_e5m2fnuz: use T.float8_e5m2, which has infinities
    """,
    Diagnostic("foreign-format", "it is a format of AMD's GPUs, which no NVIDIA GPU converts or multiplies"),
)

REFUSED: dict[str, Diagnostic] = {**_AMD, **_BLACKWELL, **_BLOCK_SCALED, **_LEGACY, **_FOREIGN, **_SCHEDULED, **_RAW}
"""The diagnostic of each unavailable name, without the `T.`."""


def refuse_unavailable(path: str, span: Span) -> None:
    """Raise the diagnostic of `T.name` if the name is one of `REFUSED`; otherwise do nothing."""
    found = REFUSED.get(path.removeprefix("T."))
    if found is not None:
        raise CompileError(replace(found, title=f"{path} is not available: {found.title}", primary=Label(span)))
