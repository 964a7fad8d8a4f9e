"""Choose the hardware mechanism of each copy and gemm, and the form of the kernel: one role or several.

Afterwards every copy and gemm has an attribute `via`:
copy: "tma" | "cp_async" | "registers" | "tma_store" | "stmatrix"; im2col: the first three; gemm: "wgmma" | "mma".
A gemm whose sum is in tensor memory, and the copy that loads it, go by "tcgen05" (`layout.mechanisms.tensor_memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NoReturn, TypeVar

from tilec.analysis import scheduling_hints
from tilec.analysis.box_starts import collect_coordinates
from tilec.analysis.clusters import check_block_request, check_cluster_support
from tilec.analysis.rings import find_pipelined_loops, is_load, is_pipelined, why_not_fed
from tilec.analysis.tensor_order import find_ordered_tensors
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import affine_form, reads_elements, row_divisor
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.placement import contiguous_run
from tilec.ir.rewrite import map_nested_bodies
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64, UINT32, UINT64
from tilec.ops.atomic import AtomicTile
from tilec.ops.copies import im2col
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.four_rows import Gather4, Scatter4
from tilec.ops.copies.im2col import Im2col
from tilec.ops.fill import Fill, build_masked_fill
from tilec.ops.placeholder import make_refused
from tilec.ops.products.gemm import Gemm, get_gemm_shape
from tilec.ops.reductions.reduce import Reduce, get_kept_extents
from tilec.ops.reductions.scan import Scan
from tilec.ops.synchronisation.cluster_launch import TryCancel
from tilec.ops.synchronisation.sync import Fence
from tilec.ops.synchronisation.warpgroups import SetRegisters, WaitWgmma
from tilec.passes.layout.fragments.convert_layouts import cover_buffer
from tilec.passes.layout.fragments.depth_runs import prefers_depth_runs
from tilec.passes.layout.fragments.warp_partition import partition_warpgroups, partition_warps
from tilec.passes.layout.mechanisms import kernel_form, legalise, tensor_maps
from tilec.passes.layout.mechanisms.tensor_memory import check_tensor_copy, check_tensor_sums, move_sums_to_tmem
from tilec.passes.layout.shared.atoms import CHUNK
from tilec.passes.layout.shared.named_versions import carry_versions
from tilec.passes.layout.shared.transpose_operands import (
    find_invariant_transpositions,
    is_transposed_operand,
    transpose_operands,
)
from tilec.support.diagnostics import RAISE_FIRST, CompileError, ErrorCollector, Label, raise_error
from tilec.support.identity import IdentityKey
from tilec.support.options import NO_SWITCHES, EnvironmentSwitches, Strategy
from tilec.support.records import dataclass
from tilec.target.table import LayoutWeights, Target

MIN_CP_ASYNC_BYTES = 4  # the least that cp.async moves
STAGED_CHUNK_BYTES = 128  # of a row that go at a time in a staged store: as the widest bank swizzle has
MOST_THREADS = 1024  # of a block
Op = TypeVar("Op", bound=tile.TileOp)
StoredByTma = Copy | AtomicTile | Scatter4
TMA_REDUCTIONS = {
    "add": (FLOAT16, BFLOAT16, FLOAT32, INT32, UINT32, UINT64),
    "min": (INT32, UINT32, INT64, UINT64),
    "max": (INT32, UINT32, INT64, UINT64),
}
"""The types that cp.reduce.async.bulk.tensor combines (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class MechanismSelection:
    """A kernel with its mechanisms, and the settings for its layouts. `has_one_loader`: one thread loads by TMA."""

    kernel: tile.Kernel
    form: kernel_form.FormChoice
    weights: LayoutWeights
    always_swizzle: bool = False
    has_one_loader: bool = False


def select_mechanisms(
    kernel: tile.Kernel,
    target: Target,
    strategy: Strategy,
    switches: EnvironmentSwitches = NO_SWITCHES,
    mistakes: ErrorCollector = RAISE_FIRST,
    tma_loads: bool = True,
) -> MechanismSelection:
    """Choose the kernel's form and the mechanism of copies and products; `tma_loads` allows TMA without a producer.
    Records the error of an impossible operation."""
    form = _choose_form(kernel, target, strategy, mistakes)
    tma_loads = tma_loads and "thread-loads" not in kernel.asks and target.has("tma")
    selector = _MechanismSelector(kernel, target, form.form, switches, mistakes, tma_loads)
    return _apply_selector(selector, form)


def select_role_mechanisms(
    kernel: tile.Kernel,
    target: Target,
    switches: EnvironmentSwitches,
    mistakes: ErrorCollector,
    passed_tensors: frozenset[str],
) -> MechanismSelection:
    """Choose the mechanisms of an explicit role. `passed_tensors` are the names of those that other roles access, too,
    in an order that counts."""
    form = _choose_form(kernel, target, "none", mistakes)
    selector = _MechanismSelector(kernel, target, form.form, switches, mistakes, False)
    selector.ordered |= passed_tensors
    return _apply_selector(selector, form)


def _choose_form(
    kernel: tile.Kernel, target: Target, strategy: Strategy, mistakes: ErrorCollector
) -> kernel_form.FormChoice:
    """Return the kernel's form, unspecialised after an error, and record errors of arithmetic and clusters."""
    legalise.check_arithmetic(kernel.body, target, mistakes)
    with mistakes.caught():
        check_cluster_support(kernel, target)
    chosen = [kernel_form.FormChoice("unspecialised")]
    with mistakes.caught():
        chosen.append(kernel_form.choose_kernel_form(kernel, target, strategy))
    return chosen[-1]


def _apply_selector(selector: _MechanismSelector, form: kernel_form.FormChoice) -> MechanismSelection:
    """Return the selector's kernel with the mechanisms that it chooses; record errors of sums in tensor memory."""
    target, mistakes = selector.target, selector.mistakes
    body = selector.select_body(selector.kernel.body)
    kernel = replace(selector.kernel, body=body, buffers=selector.kernel.buffers + tuple(selector.staging))
    if selector.has_tensor_memory:
        kernel = move_sums_to_tmem(kernel, target)
        for op in tile.walk_statements(kernel.body):
            if isinstance(op, Gemm) and op.via == "mma":
                with mistakes.caught():
                    legalise.check_narrow_sum(op)
    with mistakes.caught():
        check_tensor_sums(
            kernel, target, None if selector.has_tensor_memory else form.why_alike or kernel_form.NO_ROLE_WARPS
        )
    has_one_loader = form.form != "warp_specialised" and bool(selector.fed_copies)
    return MechanismSelection(kernel, form, target.weights, selector.switches.always_swizzle, has_one_loader)


def _find_loads(loop: tile.For) -> tuple[tile.TileOp, ...]:
    """Return the copies from tensors to shared tiles in a loop, at any depth."""
    return tuple(s for s in tile.walk_statements(loop.body) if isinstance(s, tile.TileOp) and is_load(s))


def _is_sole_producer(copy: tile.TileOp, loop: tile.For) -> bool:
    """Return True if nothing else in the loop writes the copy's tile, and its source's start loads no element."""
    source, buffer = copy.regions[0], copy.regions[1].buffer
    return not any(map(reads_elements, source.start)) and sum(buffer in find_writes(s) for s in loop.body) == 1


def _find_sources_of_a(kernel: tile.Kernel) -> frozenset[str]:
    """Return the names of fragments that are A of a T.gemm, or from which such a fragment is computed elementwise."""
    statements = list(tile.walk_statements(kernel.body))
    found = {s.regions[0].buffer for s in statements if isinstance(s, Gemm)}
    found = {b for b in found if b.scope == "fragment"}
    steps = [s for s in statements if isinstance(s, tile.Parallel | Copy)]
    while True:
        more = set()
        for s in steps:
            shapes = {w.shape for w in find_writes(s) if w in found}
            more |= {b for b in find_reads(s) if b.scope == "fragment" and b.shape in shapes}
        if more <= found:
            return frozenset(b.name for b in found)
        found |= more


def _trace_accumulators(kernel: tile.Kernel) -> dict[str, frozenset[str]]:
    """Map each fragment that is computed elementwise from T.gemm accumulators to the names of these accumulators. They
    map to themselves."""
    statements = list(tile.walk_statements(kernel.body))
    found: dict[tile.Buffer, frozenset[str]] = {}
    for gemm in (s for s in statements if isinstance(s, Gemm)):
        found[gemm.regions[2].buffer] = frozenset({gemm.regions[2].buffer.name})
    steps = [s for s in statements if isinstance(s, tile.Parallel | Copy)]
    grows = True
    while grows:
        grows = False
        for s in steps:
            for made in (w for w in find_writes(s) if w.scope == "fragment" and w not in found):
                origins = [found[b] for b in find_reads(s) if b in found and b.shape == made.shape]
                if origins:
                    found[made] = frozenset().union(*origins)
                    grows = True
    return {buffer.name: origins for buffer, origins in found.items()}


class _MechanismSelector:
    """Selects the mechanisms of a kernel's statements in program order."""

    def __init__(
        self,
        kernel: tile.Kernel,
        target: Target,
        form: kernel_form.KernelForm,
        switches: EnvironmentSwitches,
        mistakes: ErrorCollector,
        tma_loads: bool,
    ) -> None:
        self.kernel, self.target, self.form, self.switches, self.mistakes = kernel, target, form, switches, mistakes
        self.tma_loads = tma_loads
        self.staging: list[tile.Buffer] = []
        self.values: dict[tile.Var, tile.Expr] = {}  # of the integer binds so far
        self.fed_copies: set[IdentityKey[tile.Stmt]] = set()  # the copies of a producer role or loading thread
        self.in_pipeline = False
        self.row_accumulators: set[str] = set()  # accumulators of which each warpgroup has whole rows
        self.ordered, self.placed = find_ordered_tensors(kernel), kernel_form.find_placed_tiles(kernel)
        self.coordinates = collect_coordinates(kernel)
        self.sources_of_a = _find_sources_of_a(kernel)
        self.origins = _trace_accumulators(kernel)
        self.accumulators = frozenset().union(*self.origins.values())
        self.has_tensor_memory = form == "warp_specialised" and target.has("tcgen05")
        if form != "warp_specialised":
            self.fed_copies |= {IdentityKey(copy) for copy in self.find_loader_copies()}

    def select_body(self, stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        """Return the statements that do the work of these, with mechanisms and placeholders for refused ones."""
        return tuple(new for stmt in stmts for new in self.select_or_refuse(stmt))

    def select_or_refuse(self, stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return the statements that do a statement's work; record the error of a refused one, with a placeholder."""
        try:
            made = self.select_statement(stmt)
            return carry_versions(stmt, made) if isinstance(stmt, tile.TileOp) else made
        except CompileError as error:
            self.mistakes.add(error)
            return (make_refused(find_reads(stmt), find_writes(stmt), stmt.span),)

    def select_statement(self, stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return the statements, with mechanisms, that do the work of one; raise the error of an impossible operation.
        Errors: those of its mechanisms."""
        match stmt:
            case tile.For():
                return self.select_loop(stmt)
            case tile.If() | tile.While():
                return (map_nested_bodies(stmt, self.select_body),)
            case tile.Bind(var=var, value=value):
                if var.dtype.kind == "int" and not reads_elements(value):
                    self.values[var] = tile.substitute_variables(value, self.values)
                return (stmt,)
            case Copy():
                return self.select_copy(stmt, is_fed=IdentityKey(stmt) in self.fed_copies)
            case Im2col():
                is_scattered = self.is_scattered(stmt.regions[1].buffer)
                by_threads = self.target.has("cp.async") and not is_scattered and im2col.select_cp_async_width(stmt)
                chosen = replace(stmt, via="cp_async" if by_threads else "registers")
                return (replace(stmt, via="tma") if IdentityKey(stmt) in self.fed_copies else chosen,)
            case Gather4():
                self.check_four_rows(stmt)
                return (stmt,)
            case TryCancel():
                check_block_request(stmt, self.kernel, self.target)
                return (stmt,)
            case Scatter4():
                self.check_four_rows(stmt)
                return (self.build_tma_store(stmt),)
            case Gemm() if stmt.is_in_tensor_memory:
                if stmt.via != "tcgen05":
                    legalise.refuse_tcgen05_gemm(stmt)
                return (stmt,)
            case Gemm():
                stmt = self.resolve_starts(stmt)
                if stmt.policy == "square" and stmt.regions[2].buffer.name in self.sources_of_a:
                    stmt = replace(stmt, policy="full_row")
                before: tuple[tile.Stmt, ...] = ()
                if self.target.has("wgmma"):
                    before, stmt = transpose_operands(stmt, self.fits_wgmma, self.add_staging_tile)
                return *before, replace(stmt, via=self.select_gemm(stmt))
            case AtomicTile():
                return self.select_atomic(stmt)
            case Reduce():
                return self.select_reduce(stmt)
            case Fill(regions=(part,)) if part.buffer.scope == "tmem":
                return legalise.refuse_tensor_fill(stmt)
            case Fill(regions=(part,)) if part.buffer.scope == "fragment" and not part.is_whole:
                return (build_masked_fill(stmt),)
            case Scan():
                return self.select_scan(stmt)
            case Fence() if not self.target.has("tma"):
                return (replace(stmt, via="nothing"),)  # there is no asynchronous proxy
            case WaitWgmma() | SetRegisters() if not stmt.via is not None:
                return (replace(stmt, via="nothing"),)  # the schedule decides
            case _:
                return (stmt,)

    def check_four_rows(self, op: Gather4 | Scatter4) -> None:
        """Refuse a gather or scatter of four rows that TMA cannot do. Errors: `unsupported-operand`."""
        if reason := tensor_maps.why_not_four_rows(op, self.target, self.placed, self.ordered, self.coordinates):
            raise_error(
                "unsupported-operand",
                f"TMA cannot do this T.tma_{op.name}",
                op.span,
                reason,
                secondary=tuple(Label(r.buffer.span, "from here") for r in op.regions if r.buffer.scope == "shared"),
                help="write T.copy for each row",
            )

    def select_loop(self, loop: tile.For) -> tuple[tile.Stmt, ...]:
        """Return the loop with mechanisms for its statements and, with a manual schedule, its hints applied and
        waits added. The statements keep their places in the schedule. Operands that the loop does not change are
        transposed before it."""
        if self.form == "warp_specialised" and is_pipelined(loop):
            self.fed_copies |= {IdentityKey(s) for s in self.find_producer_copies(loop)}
        was_in_pipeline, self.in_pipeline = self.in_pipeline, self.in_pipeline or is_pipelined(loop)
        parts = [self.select_or_refuse(s) for s in loop.body]
        self.in_pipeline = was_in_pipeline
        invariant = find_invariant_transpositions(loop, parts)
        parts = [tuple(s for s in part if s not in invariant) for part in parts]
        if loop.stage is not None and is_pipelined(loop):
            waits = zip(
                scheduling_hints.list_asynchronous_hints(loop),
                scheduling_hints.build_explicit_waits(self.kernel, loop),
                strict=True,
            )
            parts = [(*wait, *self.apply_hint(part, hint)) for part, (hint, wait) in zip(parts, waits, strict=True)]
        return *invariant, scheduling_hints.expand_statements(loop, parts)

    def apply_hint(self, part: tuple[tile.Stmt, ...], hint: Label | bool | None) -> tuple[tile.Stmt, ...]:
        """Return the statements with a scheduling hint applied to the copy; record the error of an impossible hint."""
        try:
            return scheduling_hints.apply_asynchronous_hint(part, hint)
        except CompileError as error:
            self.mistakes.add(error)
            return part

    def find_loader_copies(self) -> Iterator[tile.TileOp]:
        """Yield the copies of pipelined loops that one computing thread issues by TMA, all of a loop or none."""
        loads = {loop.var: _find_loads(loop) for loop in find_pipelined_loops(self.kernel.body)}
        supported = {loop.var for loop in find_pipelined_loops(self.kernel.body) if self.can_load_by_tma(loop)}
        while True:
            tiles = {s.regions[1].buffer for loop, copies in loads.items() if loop not in supported for s in copies}
            others = {loop for loop in supported if any(s.regions[1].buffer in tiles for s in loads[loop])}
            if not others:
                break
            supported -= others
        yield from (copy for loop in loads if loop in supported for copy in loads[loop])

    def can_load_by_tma(self, loop: tile.For) -> bool:
        """Return True if one computing thread can issue all loads of the loop by TMA, and wgmma reads the tiles. Then
        no other thread spends instructions on them, or waits for other threads' loads. Tiles that threads read, they
        load themselves."""
        products = (s for s in tile.walk_statements(loop.body) if isinstance(s, Gemm))
        return (
            self.tma_loads
            and self.target.has("wgmma")
            and loop.stage is None
            and not any(
                isinstance(s, tile.Break) or (isinstance(s, tile.For) and is_pipelined(s))
                for s in tile.walk_statements(loop.body)
            )
            and any(not s.is_in_tensor_memory and self.fits_wgmma(self.resolve_starts(s)) for s in products)
            and sum(_is_sole_producer(copy, loop) for copy in self.find_producer_copies(loop)) == len(_find_loads(loop))
        )

    def find_producer_copies(self, loop: tile.For) -> Iterator[tile.TileOp]:
        """Yield the copies directly in a pipelined loop that a producer role can issue by TMA."""
        for stmt, hint, waits in zip(
            loop.body,
            scheduling_hints.list_asynchronous_hints(loop),
            scheduling_hints.build_explicit_waits(self.kernel, loop),
            strict=True,
        ):
            if not isinstance(stmt, tile.TileOp) or not is_load(stmt) or hint is False or waits:
                continue
            is_ordered = stmt.regions[0].buffer.name in self.ordered
            if is_ordered or tensor_maps.why_not_tma(stmt, self.placed, self.coordinates) is not None:
                continue
            if why_not_fed(self.kernel, loop, stmt) is None:
                yield stmt

    def select_copy(self, op: Copy, is_fed: bool) -> tuple[tile.Stmt, ...]:
        """Return the statements that do a copy, by the mechanism that its scopes, layouts and alignment allow
        (`is_fed`: TMA). With `is_fed` one thread issues it."""
        # The alignment of an index shows only when its names are substituted.
        op = self.resolve_starts(op)
        source, destination = op.regions
        scopes = (source.buffer.scope, destination.buffer.scope)
        if op.signals_barrier:
            return (op,)  # `explicit_roles.assign_role_mechanisms`
        if "tmem" in scopes:
            check_tensor_copy(op, self.kernel.threads)
            return (replace(op, via="tcgen05"),)
        if scopes == ("global", "shared"):
            if is_fed:
                return (replace(op, via="tma"),)
            width = None if self.is_scattered(destination.buffer) else find_cp_async_width(op, self.target)
            return (replace(op, via="cp_async" if width else "registers"),)
        tma_store = (
            self.target.has("tma")
            and not tensor_maps.is_tma_disabled(op)
            and destination.buffer.scope == "global"
            and destination.buffer.name not in self.ordered
            and source.buffer not in self.placed
        )
        if tma_store and source.is_whole:
            if (
                scopes[0] == "shared"
                and tensor_maps.why_no_tma_store(destination, source.buffer, self.coordinates) is None
            ):
                return (self.build_tma_store(op),)
            if scopes[0] == "fragment" and (staged := self.build_staged_store(op)):
                return staged
        if (
            scopes == ("fragment", "shared")
            and destination.buffer not in self.placed
            and self.can_use_stmatrix(source, destination)
        ):
            return (replace(op, via="stmatrix"),)
        return (replace(op, via="registers"),)

    def is_scattered(self, buffer: tile.Buffer) -> bool:
        """Return True if the tile's given layout keeps fewer than 4 bytes of a row together, too few for cp.async."""
        return buffer in self.placed and self.count_contiguous_bytes(buffer) < MIN_CP_ASYNC_BYTES

    def count_contiguous_bytes(self, buffer: tile.Buffer) -> int:
        """Return how many bytes of a row the tile's given layout keeps together; 16 without a placement."""
        given = (p.layout for p in self.kernel.layouts if p.buffer == buffer and isinstance(p.layout, tile.Placement))
        return next((contiguous_run(placement) * buffer.dtype.bytes for placement in given), CHUNK)

    def build_tma_store(self, op: StoredByTma) -> StoredByTma:
        """Return the operation as a TMA store, waited for where the tile is needed again, or at once if the environment
        asks."""
        stored = replace(op, via="tma_store")
        return stored if self.switches.delay_tma_store_wait else replace(stored, wait="at once")

    def select_atomic(self, op: AtomicTile) -> tuple[tile.Stmt, ...]:
        """Return an atomic tile operation as a TMA reduction, staged for a fragment, or by threads; record a forced
        TMA's error. A forced TMA is no error where the tile may begin below 0 at run time: then the threads add it.
        """
        source = op.regions[0]
        reason = self.why_no_tma_reduction(op)
        if reason is None and source.buffer.scope == "shared":
            return (self.build_tma_store(op),)
        if reason is None and (staged := self.build_staged_store(op)):
            return staged
        may_be_negative = not all(map(self.coordinates.is_never_negative, op.regions[1].start))
        if op.use_tma and not (may_be_negative and self.target.has("tma")):
            with self.mistakes.caught():
                raise_error(
                    "unsupported-operand",
                    f"TMA cannot do this T.atomic_{op.kind}",
                    op.span,
                    reason or f"{source.buffer.name} is a fragment, and no T.gemm adds to it",
                    help="remove use_tma, or put the values in a shared tile",
                )
        return (replace(op, via="registers"),)

    def why_no_tma_reduction(self, op: AtomicTile) -> str | None:
        """Return why TMA cannot do this atomic operation on a tile; None if it can."""
        source, destination = op.regions
        dtype, kind = destination.buffer.dtype, op.kind
        if not self.target.has("tma"):
            return f"{self.target.name} has no TMA"
        if dtype not in TMA_REDUCTIONS.get(kind, ()):
            return f"TMA has no {kind} of {dtype}"
        if op.order != "relaxed":
            return "TMA reductions have relaxed order only"
        if destination.buffer.scope != "global" or destination.buffer.name in self.ordered:
            return f"another statement of the kernel also accesses {destination.buffer.name}"
        if not source.is_whole:
            return f"it needs a whole tile, and this is a part of {source.buffer.name}"
        if source.buffer in self.placed:
            return f"the given layout of {source.buffer.name} is none that TMA has"
        if source.buffer.scope == "shared":
            return tensor_maps.why_no_tma_store(destination, source.buffer, self.coordinates)
        return None

    def resolve_starts(self, op: Op) -> Op:
        """Return the operation with names in the starts of its regions replaced by their values."""
        starts = [tuple(tile.substitute_variables(s, self.values) for s in r.start) for r in op.regions]
        return op.with_regions(tuple(replace(r, start=s) for r, s in zip(op.regions, starts, strict=True)))

    def build_staged_store(self, op: Copy | AtomicTile) -> tuple[tile.Stmt, ...] | None:
        """Return the copy of a fragment to a shared tile and its TMA store to the tensor, or None if not possible or
        useful."""
        source, destination = op.regions
        is_scattered = source.buffer.name in (self.accumulators if self.in_pipeline else self.origins)
        if not is_scattered and not self.switches.prefer_tma:
            return None
        name = f"{source.buffer.name}.staging"
        taken = sum(s.name.startswith(name) for s in self.staging)
        # No dot before the number: chunks of `memory.split_staged_stores` have names with a dot.
        buffer = tile.Buffer(f"{name}{taken or ''}", source.buffer.shape, destination.buffer.dtype, "shared", op.span)
        if tensor_maps.why_no_tma_store(destination, buffer, self.coordinates) is not None:
            return None
        # Transposed operands are not reused: each warpgroup may have a copy.
        others = (s for s in self.staging if not is_transposed_operand(s))
        reuse = next((s for s in others if replace(s, name=name) == replace(buffer, name=name)), None)
        if reuse is None and not self.fits_memory(self.find_smallest_staging(buffer, source.buffer)):
            return None
        buffer = self.add_staging_tile(reuse or buffer)
        whole = tile.Region(buffer, source.start, source.extent, op.span)
        into = Copy(source, whole, staged=True, via="registers", span=op.span)
        if self.can_use_stmatrix(source, whole):
            into = replace(into, via="stmatrix")
        return into, self.build_tma_store(replace(op, source=whole, staged=True))

    def find_smallest_staging(self, buffer: tile.Buffer, source: tile.Buffer) -> tile.Buffer:
        """Return the least staging tile that an accumulator's store needs: one column chunk where it can go in
        chunks."""
        columns = STAGED_CHUNK_BYTES // buffer.dtype.bytes
        origins = self.origins.get(source.name, frozenset({""}))
        if self.in_pipeline or not origins <= self.row_accumulators or buffer.shape[-1] % columns:
            return buffer
        return replace(buffer, extents=(*buffer.extents[:-1], columns))

    def select_reduce(self, op: Reduce) -> tuple[tile.Stmt, ...]:
        """Return a reduction on fragments, with copies for shared operands; refuse a part of a fragment."""
        before: list[tile.Stmt] = []
        after: list[tile.Stmt] = []
        regions = []
        for i, region in enumerate(op.regions):
            if region.buffer.scope == "fragment":
                if not region.is_whole:
                    raise_error(
                        "unsupported-operand",
                        "T.reduce_* works on whole fragments",
                        region.span,
                        f"a part of {region.buffer.name}",
                        secondary=(Label(region.buffer.span, "allocated here"),),
                        help="use a tile made by T.alloc_shared where parts are reduced",
                    )
                regions.append(region)
                continue
            name = f"{region.buffer.name}.{'result' if i else 'values'}{len(self.staging)}"
            extents = get_kept_extents(region)
            self.staging.append(tile.Buffer(name, extents, region.buffer.dtype, "fragment", op.span))
            whole = cover_buffer(self.staging[-1], op.span)
            regions.append(whole)
            if i == 0 or not op.clear:
                before.append(Copy(region, whole, via="registers", span=op.span))
            if i == 1:
                after.append(Copy(whole, region, via="registers", span=op.span))
        return *before, op.with_regions(tuple(regions)), *after

    def select_scan(self, op: Scan) -> tuple[tile.Stmt, ...]:
        """Return a scan on whole fragments, with copies for shared operands and parts of fragments."""
        before: list[tile.Stmt] = []
        after: list[tile.Stmt] = []
        regions = []
        for i, region in enumerate(op.regions):
            if region.buffer.scope == "fragment" and region.is_whole:
                regions.append(region)
                continue
            name = f"{region.buffer.name}.{'scanned' if i else 'values'}{len(self.staging)}"
            whole = cover_buffer(
                self.add_staging_tile(
                    tile.Buffer(name, get_kept_extents(region), region.buffer.dtype, "fragment", op.span)
                ),
                op.span,
            )
            regions.append(whole)
            if i == 0:
                before.append(Copy(region, whole, via="registers", span=op.span))
            else:
                after.append(Copy(whole, region, via="registers", span=op.span))
        return *before, op.with_regions(tuple(regions)), *after

    def add_staging_tile(self, buffer: tile.Buffer) -> tile.Buffer:
        """Return the shared tile, added to the kernel's staging tiles unless it is one already."""
        if buffer not in self.staging:
            self.staging.append(buffer)
        return buffer

    def fits_memory(self, buffer: tile.Buffer) -> bool:
        """Return True if one more shared tile fits, counting two versions of each tile that a pipelined loop writes."""
        tiles = {b.name: b for b in (*self.kernel.buffers, *self.staging, buffer) if b.scope == "shared"}
        filled = {b.name for loop in find_pipelined_loops(self.kernel.body) for s in loop.body for b in find_writes(s)}
        needed = sum(b.bytes * (2 if name in filled else 1) for name, b in tiles.items())
        return needed <= self.target.limit("smem_bytes_per_cta")

    def fits_wgmma(self, op: Gemm) -> bool:
        return partition_warpgroups(op, self.kernel.threads) is not None

    def can_use_stmatrix(self, source: tile.Region, destination: tile.Region) -> bool:
        """Return True if stmatrix can copy this float32 accumulator to the tile as float16 or bfloat16."""
        return (
            self.target.has("stmatrix")
            and source.buffer.name in self.accumulators
            and source.is_whole
            and destination.is_whole
            and source.buffer.dtype == FLOAT32
            and destination.buffer.dtype in (FLOAT16, BFLOAT16)
            and destination.buffer.shape[-1] % 16 == 0
        )

    def select_gemm(self, op: Gemm) -> Literal["wgmma", "mma"]:
        """Return "wgmma" or "mma" for a product, recording accumulators of whole rows; refuse one that neither can
        do."""
        a, _, c, *_ = (r.buffer for r in op.regions)
        legalise.check_product_parts(op)
        if a.dtype in SMALL_FLOATS and not self.target.has("fp8"):
            raise_error(
                "unsupported-type",
                f"{self.target.name} has no tensor-core products of 8-bit floats",
                op.span,
                f"A is {a.dtype}",
                secondary=(Label(a.span, "allocated here"),),
                help="use float16 operands, or a target that has them: sm_89, sm_90a and later",
            )
        groups = partition_warpgroups(op, self.kernel.threads) if self.target.has("wgmma") else None
        by_runs = op.wait is None and prefers_depth_runs(op, self.kernel) and partition_warps(op, self.kernel.threads)
        if groups and not by_runs:
            self.row_accumulators |= {c.name} if groups[1] == 1 else set()
            return "wgmma"
        if op.wait == "wgmma":
            legalise.refuse_wgmma_gemm(op, self.target)
        if not self.has_tensor_memory:
            legalise.check_narrow_sum(op)
        if partition_warps(op, self.kernel.threads) is None:
            _refuse_product(op, self.kernel.threads)
        return "mma"


def _refuse_product(op: Gemm, threads: int) -> NoReturn:
    """Raise the error for a product that mma.sync cannot do: its K, its accumulator, or the number of threads."""
    m, n, k = get_gemm_shape(op)
    dtype = op.regions[0].buffer.dtype
    step = 32 // dtype.bytes
    if k % step:
        raise_error(
            "unsupported-shape",
            f"tensor cores cannot multiply along K = {k}",
            op.span,
            f"they multiply {step} elements of {dtype} at a time",
            help=f"make K, the dimension that A and B share, a multiple of {step}",
        )
    if m % 16 or n % 8:
        raise_error(
            "unsupported-shape",
            f"tensor cores cannot compute a {m} × {n} accumulator",
            op.span,
            "they compute blocks of 16 × 8",
            help="make the rows of C a multiple of 16, and its columns a multiple of 8",
        )
    fitting = [t for t in range(32, MOST_THREADS + 1, 32) if partition_warps(op, t)]
    near = [*[t for t in fitting if t < threads][-1:], *[t for t in fitting if t > threads][:1]]
    raise_error(
        "unsupported-shape",
        f"{threads} threads cannot share a {m} × {n} accumulator",
        op.span,
        f"{threads / 32:g} warps, blocks of 16 × 8",
        help=f"write threads={' or '.join(map(str, near))}",
    )


def find_cp_async_width(op: Copy, target: Target) -> int | None:
    """Return the largest chunk in bytes (16, 8 or 4) by which cp.async can make a copy, or None where it cannot."""
    source, destination = op.regions
    if not target.has("cp.async") or source.buffer.dtype != destination.buffer.dtype:
        return None
    if not (destination.is_whole or op.is_asynchronous or op.prefer_async is not None):
        return None
    size = source.buffer.dtype.bytes
    edge = row_divisor(source.buffer) * size
    row = edge if len(source.buffer.extents) > 1 else 0
    first = affine_form(source.start[-1]).divisor * size
    inner = source.extent[-1] * size
    into = math.gcd(affine_form(destination.start[-1]).divisor, destination.buffer.shape[-1]) * size
    return next((n for n in (16, 8, 4) if all(v % n == 0 for v in (row, first, inner, edge, into))), None)
