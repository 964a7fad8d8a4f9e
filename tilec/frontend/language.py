"""The names of the kernel language with their documentation, for the documents and for editors.

Operations and functions have their texts beside their code in tilec/ops. The others are here, with the functions that
check a call of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import cleandoc
from typing import Any

from tilec.analysis import clusters
from tilec.frontend.prelude.read import FILE_BY_NAME as PRELUDE, find_definition
from tilec.frontend.sema import elaborate, vocabulary
from tilec.frontend.sema.compile_time import functions, macros
from tilec.frontend.sema.expressions import emitters, evaluate, expressions, layout_maps, thread_values, vectors, views
from tilec.frontend.sema.launch import configs, eager, launch, pointers, schedule_descriptions
from tilec.frontend.sema.launch.hints import HINTS
from tilec.frontend.sema.loops import loop_headers, loops, manual_schedules as manual, nests, tile_scheduler
from tilec.frontend.sema.operations import (
    emitter_methods,
    inline_ptx,
    operations,
    printing,
    reducers,
    rng,
    thread_copies,
)
from tilec.frontend.sema.operations.block_scales import TRANSPOSE_SIGNATURE
from tilec.frontend.sema.roles import explicit_roles as roles, pipeline_rules, pipelines, stages
from tilec.frontend.sema.roles.linear_resources import Ledger
from tilec.frontend.sema.roles.pipeline_records import PIPELINE_SIGNATURES as PIPELINE_NAMES
from tilec.frontend.sema.statements import allocations, jumps, statements, stores
from tilec.ir.types import TYPES_BY_NAME, DType
from tilec.ops import registry
from tilec.ops.copies import thread_copy
from tilec.ops.functions import python, scalar, signatures
from tilec.ops.functions.signatures import LAUNCH_VALUES, PTX, VIEWS
from tilec.ops.functions.warp_functions import WARP_FUNCTIONS
from tilec.ops.language import signature
from tilec.ops.language.signature import Required, Signature
from tilec.ops.language.values import WARP_POLICIES
from tilec.ops.language.vectors import LDG, VECTOR_TYPES as VECTOR_NAMES, WIDE_ACCESSES as WIDE_ACCESSES
from tilec.ops.reductions import reducer
from tilec.passes.explicit_roles import split_roles as divide
from tilec.passes.explicit_roles.check_role_races import check_role_races
from tilec.passes.explicit_roles.check_stage_counts import check_stage_counts
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class LanguageEntry:
    """One or several names with the same meaning. `checks` are the functions that report mistakes in their use."""

    names: tuple[str, ...]
    signature: Signature | str
    meaning: str
    checks: tuple[Callable[..., Any], ...] = ()


def _make_entry(spelled: Signature, meaning: str, *checks: Callable[..., Any]) -> LanguageEntry:
    """Make the `LanguageEntry` of one name from its signature, its meaning and the functions that check its calls."""
    return LanguageEntry((spelled.name,), spelled, meaning, checks)


STRUCTURE = (
    LanguageEntry(
        ("T.prim_func",),
        "@T.prim_func",
        """Above a function: makes it a kernel. Its parameters are tensors or scalars, each with its type; its body is
        one `with T.Kernel(…):`, before which constants may be computed. A function that makes a kernel and returns it
        also counts; its arguments come from `-D` or from their defaults, and `out_idx=` in its `@tilelang.jit(…)` gives
        the parameters that are outputs. `--entry` chooses one of several kernels.""",
        (
            elaborate._choose_kernel,
            elaborate._call_factory,
            launch._find_launch_statement,
            launch.elaborate_kernel,
            configs.find_outputs,
        ),
    ),
    LanguageEntry(
        ("@tilelang.jit",),
        "@tilelang.jit(pass_configs=None)",
        """Above a function with its own `with T.Kernel(…):`: the eager style. A parameter is a tensor or a scalar where
        the body declares it, as in `A: T.Tensor((M, K), dtype)`, else known at compile time: by `-D`, or its default.
        In `pass_configs`, here or above a function that returns a kernel, tilec reads `tl.enable_fast_math`,
        `tl.disable_warp_specialized` and `tl.disable_tma_lower`; options of the command line override them.""",
        (
            eager.EagerKernel.read_header,
            eager.EagerKernel._declare,
            eager.EagerKernel.check_returned,
            configs.read_pass_configs,
        ),
    ),
    _make_entry(
        eager.CONST_SIGNATURE,
        'In the eager style, sizes by name: `M, N = T.const("M, N")` are the numbers of `-D M=… -D N=…`.',
        eager.EagerKernel._evaluate_const,
    ),
    _make_entry(
        eager.EMPTY_SIGNATURE,
        """In the eager style, `C = T.empty(shape, dtype)` is a tensor that the kernel returns, as its last parameter:
        `return C` after the launch.""",
        eager.EagerKernel._declare_empty,
        eager.EagerKernel._elaborate_return,
    ),
    LanguageEntry(
        ("T.macro", "T.inline"),
        "@T.macro",
        """Above a function: its statements are inserted into the kernel at each call, also inside T.Parallel if they
        are elementwise; names that it binds are its own. It may return values, also from the branches of an `if`; where
        a condition is known only at run time, such branches may have no effects.""",
        (functions.call_function,),
    ),
    LanguageEntry(
        ("T.Ref", "T.Var"),
        "T.Ref",
        """The type of a macro's parameter that the macro sets: the caller passes a T.alloc_var variable or an element
        of a buffer, and `x = e` in the macro sets it.""",
        (macros._make_reference,),
    ),
    LanguageEntry(
        ("T.SharedBuffer", "T.FragmentBuffer"),
        "T.SharedBuffer(shape, dtype), T.FragmentBuffer(shape, dtype)",
        "Types of a macro's parameters, for the reader only: a macro accepts any argument.",
    ),
    LanguageEntry(
        ("T.Tensor", "T.Buffer"),
        launch.TENSOR_SIGNATURE,
        """The type of a parameter in global memory, stored row by row; also written `T.Tensor[shape, dtype]`. Reads
        outside it give 0, writes outside it are dropped. An extent that is known at launch is a T.dynamic. TMA loads
        only rows of a multiple of 16 bytes: if they always are, declare the last extent so, as `8 * T.dynamic("n")` of
        float16. A parameter that is a dtype, as in `n: T.int32`, is a scalar that is passed at launch.""",
        (launch._bind_typed_parameter, launch.read_tensor_type, signature.as_shape),
    ),
    _make_entry(
        pointers.STRIDED_TENSOR_SIGNATURE,
        """A T.Tensor with strides: `strides` gives the number of elements of a step along each dimension, the last one
        1, the others numbers or T.dynamic; those of four-bit elements are even. TMA copies it where strides are
        multiples of 16 bytes.""",
        pointers.build_tensor,
    ),
    _make_entry(
        pointers.POINTER_SIGNATURE,
        """The type of a parameter that is an address, or of the entries of one that is a table of addresses,
        `T.Tensor((n,), T.ptr)`. T.make_tensor makes a tensor of each.""",
        launch._is_pointer,
    ),
    _make_entry(
        pointers.MAKE_TENSOR_SIGNATURES["T.make_tensor"],
        """The tensor at an address: a parameter of type T.ptr, or an entry of a table of them, as `table[i]`. The
        parameter becomes this tensor, also for the host program, and a table becomes one such tensor for each entry.
        One shape and dtype for each parameter. A table's tensors are dense, each begins at a multiple of 16 bytes, and
        none shares memory with another one that is written. TMA does not copy them. Outside the table reads give 0, and
        writes are dropped.""",
        pointers.make_tensor,
    ),
    _make_entry(
        pointers.MAKE_TENSOR_SIGNATURES["T.make_tensor_from_addr"],
        "As T.make_tensor, for a parameter of type T.int64 or T.uint64.",
        pointers.make_tensor,
    ),
    _make_entry(
        launch.KERNEL_SIGNATURE,
        """In a `with` statement: the grid, one to three extents for x, y and z, and the number of threads of a block.
        `as (bx, by):` names the block's indices, `as bx:` where there is one extent. `cluster_dims` gives the blocks of
        a cluster along x, y and z, as in T.ClusterKernel.""",
        launch._read_grid,
        launch._read_grid_extent,
        launch._read_thread_extents,
        launch._bind_block_variables,
    ),
    LanguageEntry((vocabulary.DIALECT_NAME,), vocabulary.DIALECT_NAME, 'The string "cuda", the platform.'),
    _make_entry(
        launch.CLUSTER_KERNEL_SIGNATURE,
        """T.Kernel with clusters: `cluster_dims` are the blocks along x, y and z that run together, at most 8, and the
        grid is a multiple of them. They wait for each other at T.cluster_sync and reach each other's tiles by
        T.copy_cluster. In a warp-specialised pipelined loop, a tile that several of them need is loaded once by
        multicast, one slice by each block (`--no-multicast` switches that off).""",
        clusters.read_cluster,
    ),
    LanguageEntry(
        ("T.GemmWarpPolicy",),
        " | ".join(f"T.GemmWarpPolicy.{name}" for name in WARP_POLICIES),
        "How the warps of a block share the tile of a T.gemm: in both directions, or whole rows or columns for each.",
        (expressions._evaluate_member,),
    ),
    _make_entry(
        emitters.EMITTER_SIGNATURE,
        """A product of block tiles by single instructions: `block_row_warps` by `block_col_warps` warps, each with a
        tile of `warp_row_tiles` by `warp_col_tiles` elements, over `chunk` elements along K. The kernel has arrays of
        T.alloc_local for the elements of a thread, as many as `e.warp_rows * e.local_size_a` and the like:
        `e.ldmatrix_a(A_local, A_shared, ki)` and `e.ldmatrix_b(B_local, B_shared, ki)` load slice `ki` along K of
        shared tiles, of `e.micro_size_k` elements, `e.mma(A_local, B_local, C_local)` adds their product, and
        `e.stmatrix(C_local, C, pid_m, pid_n)` stores the sums as a tile of a tensor, or without `pid_m` and `pid_n` in
        a matrix or in a tile of shape [rows / x, columns / y, x, y]. tilec chooses which thread has which element:
        nothing but these methods, T.clear and T.fill may use the arrays. T.gemm does the same, and can use wgmma.""",
        emitters.make_emitter,
        emitters.resolve_attribute,
        emitter_methods.elaborate_emitter_call,
        emitter_methods.refuse_other_uses,
        emitter_methods._find_fragment,
        emitter_methods._read_slice,
        emitter_methods._store_sums,
        emitter_methods._store_micro_tiles,
    ),
    _make_entry(
        layout_maps.LAYOUT_SIGNATURE,
        """The offset of each element of a shared tile, for T.annotate_layout: `forward_fn` gives one number or several,
        the last of which varies fastest. Offsets may be left unused, as padding. Where the map is not a swizzle of 32,
        64 or 128 bytes, copies do not use TMA, T.gemm needs 16 contiguous bytes of a row, and wgmma cannot read it.""",
        layout_maps.make_index_map,
    ),
    _make_entry(
        layout_maps.FRAGMENT_SIGNATURE,
        """The thread of each element of a shape, and the element's index in that thread: `forward_fn` gives both,
        `forward_thread_fn` and `forward_index_fn` one each; without the latter, elements are counted in their order.
        With `replicate=n` several threads have each element, and the function of the thread also takes the number of
        the copy; `.repeat([r, …])` repeats the layout along the dimensions, in further threads
        (`repeat_on_thread=True`) or at further indices, and `.replicate(n)` in further threads. For `loop_layout=` any
        map without collisions is allowed, also if threads of the block have no element; for T.annotate_layout its steps
        along the dimensions must be regular.""",
        layout_maps.make_fragment_layout,
        layout_maps._apply_lambda,
        layout_maps._repeat_layout,
        layout_maps._replicate_layout,
    ),
)

ALLOCATION = (
    _make_entry(
        allocations.TILE_SIGNATURES["T.alloc_shared"][1],
        "A tile in shared memory, for all threads of the block.",
        allocations.elaborate_allocation,
    ),
    _make_entry(
        allocations.TILE_SIGNATURES["T.alloc_fragment"][1],
        """A tile in the registers of the block's threads; its uses determine which thread holds which element. Where a
        kernel uses single elements only, and not the same in all threads, each thread has all of it.""",
        allocations.elaborate_allocation,
    ),
    _make_entry(
        allocations.TILE_SIGNATURES["T.alloc_tmem"][1],
        """A tile in the tensor memory of sm_100a, which T.gemm in a T.Pipelined loop adds to, and T.copy loads from; in
        kernels with explicit roles, T.tcgen05_gemm adds to it or multiplies it, and T.copy loads from and stores to it.
        It is allocated before the roles begin, and freed at the block's end. Without it, tilec puts the accumulator of
        a T.gemm there where it can.""",
        allocations.elaborate_allocation,
    ),
    _make_entry(
        allocations.VARIABLE_SIGNATURE,
        """A scalar that may change: `x = e` and `x += e` set it, outside T.Parallel; each thread has one, with the same
        value unless it is set to a value that depends on the thread.""",
        allocations.allocate_variable,
        stores.set_variable,
    ),
    _make_entry(
        allocations.TILE_SIGNATURES["T.alloc_global"][1],
        """A temporary tensor through which blocks pass values to each other: the host program allocates it. It is not
        initialised.""",
        allocations.elaborate_allocation,
    ),
    _make_entry(
        reducer.ALLOCATE,
        """A result that the threads compute together: each adds to partial results, and T.finalize_reducer combines
        them once at the end. `op` is sum, max, min, bitand, bitor or bitxor; with `replication="all"` each thread has a
        partial result of every element, else of the elements that its part of the nests adds to. T.reducer_init or
        T.fill starts it.""",
        reducer.read_kind,
        reducers._PartsRewriter.refuse_update,
        reducers._PartsRewriter.check_read,
    ),
    *(_make_entry(v.signature, v.doc[0].upper() + v.doc[1:] + ".", views.make_view) for v in VIEWS.values()),
    _make_entry(
        allocations.TILE_SIGNATURES["T.alloc_local"][1],
        """An array in registers, one for each thread. T.fill, T.clear and T.copy of it, and T.vectorized and serial
        loops over its elements, are executed by each thread for itself.""",
        allocations.elaborate_allocation,
        operations._check_tile_scopes,
    ),
)

THREADS = tuple(
    _make_entry(v.signature, v.doc[0].upper() + v.doc[1:] + ".", thread_values.evaluate_thread_value)
    for v in LAUNCH_VALUES.values()
)

UPDATE = _make_entry(
    reducer.UPDATE,
    """A statement inside T.Parallel: combine `target`, an element of a T.alloc_reducer buffer, with `value`, once for
    each element of the loop. `acc[i] += value` is the same for a sum, `acc[i] = T.max(acc[i], value)` for a
    maximum.""",
    reducer.read_update,
    operations.elaborate_reducer_update,
    reducers._PartsRewriter.check_begun,
)

DOT = _make_entry(
    signatures.DP4A,
    """A statement: `C` becomes `C + A[0] * B[0] + … + A[3] * B[3]`, of int8 or uint8, starting at the first elements or
    at the given ones.""",
    signatures.build_dp4a,
)

THREAD_COPIES = (
    _make_entry(
        thread_copy.THREAD_COPY,
        """A statement: each thread that runs it copies `num_elems` neighbours, of 4, 8 or 16 bytes in all, from a
        tensor to a shared tile, by cp.async; what every thread would copy alike, one of them copies. Both addresses are
        T.access_ptr(element, …). Elements outside the tensor are 0, and all are 0 where `predicate` is False. The
        copies are complete after T.ptx_wait_group, which counts the groups that T.ptx_commit_group closes, or after a
        wait for the barrier of T.cp_async_barrier_noinc; and wherever tilec sees that the tile is used. No other copy
        may be under way to the same elements. Where alignment is not certain, and inside T.Parallel and T.vectorized,
        elements are copied through registers.""",
        thread_copy.read_thread_copy,
        thread_copy.check_copied_bytes,
        thread_copies.elaborate_thread_copy,
    ),
    _make_entry(
        thread_copy.ACCESS_PTR,
        """The address of an element of a tensor or shared tile, for T.ptx_cp_async. The type of access and the extents
        are those of the copy, whatever is written here.""",
        thread_copy.make_element_pointer,
    ),
)

SCHEDULES = LanguageEntry(
    schedule_descriptions.SCHEDULE_NAMES,
    "T.WSSchedule(num_warps, roles, pipelines, scopes)",
    """A schedule with roles, as T.annotate_ws_schedule takes it: which warps run which statements, and in which order.
    The statements have their names by `annotations={T.WSID: "load"}` or by `with T.ws_op("load"):`. tilec reads all of
    it, and uses none: what the kernel computes is what its statements say, as if they had no roles.""",
    (schedule_descriptions.make_schedule_description, schedule_descriptions._want_text),
)

INLINE_PTX = _make_entry(
    PTX,
    """The result of PTX instructions that you write: {0} in `text` is the result, {1} the first of `ins`. As a
    statement with `out=x` the result is stored in the element or variable `x`, and has its type; as a value it has
    `dtype`, or else the type of the first of `ins`. The text may declare registers, but not use memory, barriers,
    branches or special registers. docs/inline-ptx.md has examples.""",
    inline_ptx.evaluate_ptx,
    inline_ptx.elaborate_ptx,
)

WARPGROUPS = LanguageEntry(
    roles.ROLE_SECTIONS,
    roles.ROLE_SECTION_SIGNATURE,
    """In a `with` statement: the body is executed by the named warpgroups of 128 threads, `T.ws(0)` or consecutive ones
    as `T.ws(0, 1)`. The other warpgroups skip it without waiting; barriers order them. Tiles are distributed over the
    threads that execute the body, and a fragment belongs to them. In a kernel with barriers `if tx < 128:`, with `tx =
    T.get_thread_binding()`, is the same, and `if tx < 32:` is a role of one warp. Loops run as written, also
    T.Pipelined. Outside of these blocks, at the top level of the kernel, all threads of the block execute everything
    together, and wait for each other before and behind the blocks.""",
    (roles.elaborate_role_section, divide._take_share, divide._check_fragments, check_role_races),
)

PIPELINES = (
    _make_entry(
        PIPELINE_NAMES["T.InputTilePipeline"],
        """`pipe = T.InputTilePipeline((A_shared, B_shared), stages=4)`: a pipeline from roles that load tiles to roles
        that use them. It has `stages` versions of the tiles of `payload`, which is a tile, a tuple of tiles or a
        dictionary with names for them, and the barriers for it. `pipe.producer()` and `pipe.consumer()` are its sides:
        `with producer.acquire() as tiles:` waits for the next stage, names its tiles `tiles.A_shared`, and releases it
        at the end; `stage = producer.acquire_stage()`, or `pipe.acquire_producer()`, is released by `stage.release()`,
        exactly once on every path. `producer.try_acquire()` tells without waiting whether the next stage is ready, and
        `with producer.acquire_if_needed(ready) as tiles:` takes that answer. `producer.drain()` waits until all stages
        are released. For a stage, `payload` is the tiles, also unpacked as `A, B = stage`, `stage` is its number,
        `barrier` or `mbar` the barrier at which its release arrives, and `expect_bytes(n)` announces bytes that the
        producer copies, which is seldom needed: T.copy and T.tma_copy into a stage announce their own.
        docs/pipelines.md tells more.""",
        pipelines.make_pipeline,
        pipelines.call_pipeline_method,
        stages.acquire_stage,
        pipelines.apply_stage_rules,
        pipelines.check_tile_read,
        pipelines.check_stage_names,
        Ledger.use,
        Ledger.release,
        Ledger._report_missing_release,
        stages.drain_pipeline,
        stages.announce_bytes,
        pipeline_rules.finish_pipelines,
        check_stage_counts,
    ),
    _make_entry(
        PIPELINE_NAMES["T.OutputTilePipeline"],
        """A pipeline for tiles that one role computes and another stores: what the producer has written is visible to
        the consumer after the release. `with results.consumer() as result:` enters the next stage, or the side itself
        if the body uses a method of the side, as `result.acquire()`.""",
        pipelines.make_pipeline,
    ),
)

BREAK = _make_entry(
    loop_headers.LOOP_BREAK, """A statement: `break`, which leaves the innermost loop.""", jumps.elaborate_jump
)

EVALUATE = _make_entry(
    statements.EVALUATE_SIGNATURE,
    """A statement: the call in it, as a statement.""",
    statements.elaborate_evaluate_call,
)

PRINT = _make_entry(
    printing.PRINT_SIGNATURE,
    """A statement: prints `msg` with a number or an element, in every thread that runs it; inside T.Parallel in the
    thread of the element. For a whole tile or tensor, one thread of the block, the first of a warp, prints every
    element; an array of each thread is printed by all threads. `tilec emulate` shows the lines, a GPU prints them when
    the host waits for it.""",
    printing.elaborate_print,
)

VECTOR_TYPES = LanguageEntry(
    VECTOR_NAMES,
    "T.float32x4, T.float16x2, …",
    """A dtype and the number of its adjacent elements in one element: 2, 4, 8, 16 or 32. The elements of tensors and
    tiles may be such vectors, which for the host are a last dimension. `x = A[i]` reads one, `A[i] = x` and `B[4 * i :
    4 * i + 4] = x` store it, `+` and other operators compute lane by lane; T.cast and T.float32x4(x) convert, also a
    number to all lanes.""",
    (vectors.store_vector, vectors.snapshot_vector),
)

WIDE = tuple(
    _make_entry(
        wide.signature,
        f"{wide.doc[0].upper()}{wide.doc[1:]}. Where the place is not known to be aligned, in several accesses.",
        vectors.elaborate_wide_store if wide.stores else vectors.evaluate_wide_load,
    )
    for wide in WIDE_ACCESSES.values()
)

READ_ONLY = _make_entry(
    LDG,
    "An element of a tensor. Tensors that the kernel does not write are always read as read-only ones.",
    vectors.evaluate_ldg,
)

RAMP = _make_entry(
    evaluate.RAMP_SIGNATURE,
    "An index of `n` elements: `A[T.Ramp(i, 1, n)]` is the vector of `A[i]` to `A[i + n - 1]`, and in T.copy the box "
    "`A[i:i + n]`. The stride is 1.",
    evaluate.evaluate_ramp,
)

RANDOM = (
    _make_entry(
        rng.INIT_SIGNATURE,
        """A statement: every thread gets a generator of random numbers, cuRAND's Philox 4x32-10, which with a seed, a
        sequence (by default the number of the thread in the grid) and an offset gives the same numbers as curand().""",
        rng.initialise_generator,
    ),
    _make_entry(
        rng.RAND_SIGNATURE,
        """The thread's next number, a uint32. Inside T.Parallel each thread draws for its elements, one after the
        other; as a statement of its own it skips one number.""",
        rng.draw_number,
    ),
    _make_entry(
        rng.RAND_FLOAT_SIGNATURE,
        """A random float32, or float64 with `bit=64`: `uniform` above 0 and up to 1, or `normal`, float32 only: like
        cuRAND's, normal numbers up to a few units in the last place.""",
        rng.draw_number,
    ),
)

_LOOP_CHECKS = (loops._elaborate_sequential, loop_headers.read_loop_header)
LOOPS = (
    LanguageEntry(
        ("range", "T.serial", "T.Serial"),
        loop_headers.SEQUENTIAL_LOOPS["T.serial"][1],
        "One iteration after another. Bounds may be known at run time only, the step not; it may be negative.",
        _LOOP_CHECKS,
    ),
    LanguageEntry(
        ("T.grid",),
        "T.grid(*extents)",
        """`for i, j in T.grid(m, n):` is one T.serial loop in another, over `m` and `n`. Extents are read before the
        first loop begins; `break` leaves the innermost loop only.""",
        (*_LOOP_CHECKS, loops._elaborate_grid),
    ),
    LanguageEntry(
        ("T.unroll", "T.Unroll"),
        loop_headers.SEQUENTIAL_LOOPS["T.unroll"][1],
        "A T.serial loop that is unrolled: by `unroll_factor`, completely with `explicit`, else as tilec chooses.",
        (*_LOOP_CHECKS, loop_headers.read_unroll_factor),
    ),
    _make_entry(
        loop_headers.SEQUENTIAL_LOOPS["T.Pipelined"][1],
        """A T.serial loop with the statements of several iterations in flight: by a solved schedule, or by `stage` and
        `order`. `num_stages` is the largest number of versions of a tile.""",
        *_LOOP_CHECKS,
        manual.read_schedule_request,
        manual.build_manual_schedule,
    ),
    LanguageEntry(
        ("T.Parallel", "T.parallel"),
        loop_headers.NEST_SIGNATURES["T.Parallel"],
        """All elements of a box at once, distributed over the threads. Its variables index fragments, if its extents
        are known at compile time. `coalesced_width`: elements that a thread moves at once; `loop_layout`: a T.Fragment;
        `prefer_async`: a nest that fills a box of a shared tile is an asynchronous copy, also for elements that are not
        a box of the tensor, and with T.if_then_else(condition, element, 0). Up to 64 iterations of a loop inside are
        written out for each element; a longer loop, or one whose length is known only at run time, runs equally often
        for all elements. T.alloc_var inside makes a variable for each element.""",
        (
            nests.elaborate_parallel,
            nests._collect_nest,
            loop_headers.read_nest_header,
            loop_headers.read_parallel_extents,
        ),
    ),
    LanguageEntry(
        ("T.vectorized", "T.Vectorized"),
        loop_headers.NEST_SIGNATURES["T.vectorized"],
        """A T.Parallel of one dimension whose elements one thread moves together; usually inside a T.Parallel. Where
        the body names the thread, or a per-thread array, each thread runs all of it.""",
        (nests.elaborate_parallel, nests._collect_nest, loop_headers.read_nest_header),
    ),
    _make_entry(
        loop_headers.PERSISTENT_SIGNATURE,
        """The tiles of a domain, in waves of `wave_size` blocks, of which this block is number `index`: `group_size`
        adjacent tiles along the last dimension in all rows, then the next ones.""",
        loops._elaborate_persistent,
        loop_headers.read_persistent_walk,
    ),
    _make_entry(
        tile_scheduler.SCHEDULER_SIGNATURE,
        """The tiles of a matrix, distributed over `num_workers` persistent blocks, by default one for each
        multiprocessor: `s.init(block)`, then `while s.valid():` around the work for tile `s.m_idx`, `s.n_idx`, with
        `s.next_tile()` at its end. `s.linear_idx` counts tiles, `s.current_iter` those of this block. Tiles come column
        by column, or row by row, in panels of `swizzle_size`; `cluster_size` rows count as one. With stateful=False it
        has only `s.coord(i)`, the row and column of tile `i`.""",
        tile_scheduler.make_tile_scheduler,
        tile_scheduler.call_scheduler_method,
        tile_scheduler.elaborate_scheduler_loop,
        tile_scheduler.resolve_attribute,
    ),
)

STATEMENTS: dict[str, str] = {
    "Assign": "`x = e` names a value; `A[i, j] = e` stores an element; `a, b = …` takes a tuple apart. A name that a "
    "loop binds ends with it.",
    "AugmentedAssign": "`x += e`, with any operator, of a variable or an element.",
    "AnnotatedAssign": "`x: T.int32 = e` converts.",
    "If": "`if`, `elif`, `else`: decided while compiling where the condition is known, else at run time.",
    "For": "`for i in …:`, over one of the loops above, or over a sequence known at compile time, whose body is then "
    "repeated for each item.",
    "While": "`while condition:`, at run time only, for each thread by itself where it differs, or left by `break`.",
    "Break": "`break` leaves the innermost serial loop.",
    "Continue": "`continue` goes on with the next iteration.",
    "Assert": "`assert condition, message`: known at compile time, or in a kernel as T.device_assert.",
    "Evaluate": "a call of an operation or of a macro. A string is a comment.",
    "Pass": "`pass` does nothing.",
    "With": "`with T.Kernel(…) as …:`, once in a kernel; `with T.ws(…):` and `with pipe.producer().acquire() as …:` in "
    "it.",
    "Function": "`def`: a kernel under `@T.prim_func`, statements to repeat in kernels under `@T.macro`, else a "
    "function of values known at compile time, which may hold a kernel and return it.",
    "Import": "`import`, `from … import`: at the top of the file, of `tilelang.language`, `tilelang` and `math`; and "
    "of other kernel files in the same folder or below, as in `from .common import helper`.",
    "Return": "`return e` in functions and macros, and of tensors that T.empty made; in other kernels it is refused: "
    "their results are the tensors they write.",
    "Raise": "`raise E(message)` in functions of values known at compile time.",
    "Foreign": "Python that no kernel needs, such as classes, or calls of torch at the top of the file: refused only "
    "where it is used.",
}

EXPRESSIONS: dict[str, str] = {
    "Number": "integers and floats",
    "String": "strings, as names of dtypes and the like",
    "JoinedString": '`f"block_{M}"`, of values known at compile time',
    "Constant": "`True`, `False`, `None`",
    "Name": "names",
    "Tuple": "tuples",
    "List": "lists, which are tuples here",
    "Dict": "dictionaries",
    "Comprehension": "`[f(i) for i in range(4) if i != 2]`, of tuples and of dictionaries, at compile time",
    "Starred": "`*items` in calls, tuples and targets",
    "Attribute": "`tile.shape`, `tile.dtype`, and the names of modules",
    "Call": "calls",
    "Subscript": "`A[i, j]`, `A[0:16, :]`, `shape[0]`; the extent of a slice is known at compile time",
    "Unary": "`-x`, `+x`, `~x`, `not x`",
    "Binary": "`+ - * / // % ** << >> & | ^`; `/` of integers is refused at run time, `//` and `%` round down",
    "Compare": "`< <= > >= == !=`, also chained; `in`, `not in`, `is`, `is not` at compile time",
    "Boolean": "`and`, `or`",
    "Conditional": "`a if condition else b`; the side that is not taken may read outside a tile",
    "Lambda": "`lambda i, j, by=2: …`, `lambda *indices: …`",
}


# ---- all of them -----------------------------------------------------------------------------------------------------


def format_signature(spelled: Signature) -> str:
    """Return a signature as text, with defaults and without unsupported parameters, as `T.copy(src, dst)`."""
    shown = ["*args"] if spelled.variadic else []
    for parameter in spelled.parameters:
        if not parameter.supported:
            continue
        if parameter.keyword_only and not spelled.variadic and "*" not in shown:
            shown.append("*")
        shown.append(format_parameter(parameter))
    return f"{spelled.name}({', '.join(shown)})"


def format_parameter(parameter: signature.Parameter) -> str:
    """Return a parameter as text, as `clear_accum=False`, or its name alone if it has no default."""
    value = parameter.default
    if isinstance(value, Required):
        return parameter.name
    policy = getattr(value, "name", None)
    shown = next((f"T.GemmWarpPolicy.{k}" for k, v in WARP_POLICIES.items() if v == policy), repr(value))
    return f"{parameter.name}={value.name if isinstance(value, DType) else shown}"


DTYPE_KIND_NAMES = {"int": "signed integer", "uint": "unsigned integer", "float": "float", "bool": "truth value"}


@cache
def list_documented_names() -> dict[str, LanguageEntry]:
    """Return a cached map from every `T.*` name, and each usable Python name, to its documentation entry."""
    return {name: entry for entry in _list_entries() for name in entry.names}


def _list_entries() -> Iterator[LanguageEntry]:
    """Yield the documentation entries of all names: structure, operations, functions, dtypes, Python built-ins."""
    yield from (*STRUCTURE, *ALLOCATION, *THREADS, UPDATE, WARPGROUPS, *PIPELINES, DOT, *THREAD_COPIES)
    yield from (INLINE_PTX, EVALUATE, PRINT, SCHEDULES)
    yield from (*LOOPS, BREAK, VECTOR_TYPES, *WIDE, READ_ONLY, RAMP, *RANDOM)
    yield _make_entry(TRANSPOSE_SIGNATURE, "A statement: lines of scale factors into the order of lanes.")
    for operation in registry.list_operations():
        for spelling in operation.spellings:
            yield _make_entry(spelling.signature, spelling.doc)
    for defined in map(find_definition, PRELUDE):
        yield _make_entry(defined.signature, defined.doc)
    for table in (scalar.FUNCTIONS, WARP_FUNCTIONS, HINTS):
        yield from (LanguageEntry((name,), row.signature, row.doc) for name, row in table.items())
    for name, dtype in TYPES_BY_NAME.items():
        also = "" if name == dtype.name else f", {dtype.name}"
        text = f"The {DTYPE_KIND_NAMES[dtype.kind]} of {dtype.bits} bits{also}; as a function it converts to it."
        yield LanguageEntry((f"T.{name}",), f"T.{name}(x)", text)
    for name in (*python.BUILTIN_NAMES, *python.MATH_CONSTANTS):
        yield LanguageEntry((name,), name, "Python's own, on values known at compile time.")


def format_meaning(name: LanguageEntry) -> str:
    """Return the documentation text of an entry as one line, with indents and line breaks made single spaces."""
    return " ".join(cleandoc(name.meaning).split())
