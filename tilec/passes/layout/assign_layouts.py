"""Layout assignment: registers for fragments, byte order for shared tiles.

Fragment layouts spread from where they are fixed (accumulators) along elementwise nests, reductions and copies. A
fragment that nothing fixes gets the coalesced layout. A statement that needs another layout gets its fragment through
shared memory (`layout.fragments.convert_layouts`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import (
    Fragment,
    SharedLayout,
    is_accumulator_layout,
    mma_accumulator,
    operand_a_fragment,
    operand_b_fragment,
    per_thread_fragment,
    placed_layout,
    replicated_fragment,
    row_major_fragment,
    wgmma_accumulator,
)
from tilec.ops.copies.copy import Copy
from tilec.ops.placeholder import is_refused, make_refused
from tilec.ops.products.gemm import Gemm, Policy
from tilec.ops.reductions.reduce import Reduce, is_reducible
from tilec.ops.reductions.reducer import ACROSS_COPIES, FinalizeReducer
from tilec.ops.reductions.scan import Scan, list_scan_digits
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.passes.layout.fragments import dimensions, reducer_layout, vector_widths as widths
from tilec.passes.layout.fragments.convert_layouts import (
    LayoutConflict,
    LayoutConversion,
    insert_conversion,
    replace_statement,
)
from tilec.passes.layout.fragments.depth_runs import find_depth_run
from tilec.passes.layout.fragments.irregular_loops import regularise_nest
from tilec.passes.layout.fragments.loop_layout import build_digit_layout, is_regular
from tilec.passes.layout.fragments.shift_nests import shift_nest
from tilec.passes.layout.fragments.warp_partition import partition_warpgroups, partition_warps
from tilec.passes.layout.mechanisms.kernel_form import KernelForm
from tilec.passes.layout.mechanisms.tensor_memory import build_copied_layout
from tilec.passes.layout.select_mechanisms import MechanismSelection
from tilec.passes.layout.shared import atoms
from tilec.passes.layout.shared.reshape_views import map_view_indices
from tilec.rewriting.make_names_unique import make_names_unique
from tilec.support.diagnostics import RAISE_FIRST, CompileError, ErrorCollector, InternalError, Label, raise_error
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class LayoutAssignment:
    """A kernel whose tiles all have layouts, by buffer name. `conversions` are the copies through shared memory that
    the layouts need. A kernel with explicit roles has one assignment per role in `roles`
    (`explicit_roles.split_roles`). `versions` counts the versions of each tile whose statements name one."""

    kernel: tile.Kernel
    form: KernelForm
    fragments: dict[str, Fragment]
    shared: dict[str, SharedLayout]
    conversions: tuple[LayoutConversion, ...] = ()
    roles: tuple[RoleAssignment, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    why_alike: str | None = None
    """The reason why no warps have roles (`kernel_form.FormChoice`)."""
    has_one_loader: bool = False
    """True if one of the computing threads issues the TMA loads of loops (`select_mechanisms`)."""
    begins_early: bool = True
    """False if the kernel may not begin while the one before it runs (`choices.choose_programmatic_launch`)."""

    @property
    def kernels(self) -> tuple[LayoutAssignment, ...]:
        """Return the assignments whose statements run: those of the explicit roles, or this one if it has none."""
        return tuple(part.assignment for part in self.roles) or (self,)

    @property
    def block_threads(self) -> int:
        """Return the number of threads in a block, with the producer warpgroup of a warp-specialised kernel."""
        return self.kernel.threads + (WARPGROUP_THREADS if self.form == "warp_specialised" else 0)

    def nest_layout(self, nest: tile.Parallel) -> Fragment:
        """Return how a parallel nest's iterations are spread over threads, by the kernel's fragment layouts."""
        return find_nest_layout(nest, self.kernel.threads, self.fragments)


def find_nest_layout(nest: tile.Parallel, threads: int, fragments: Mapping[str, Fragment]) -> Fragment:
    """Return how a nest's iterations are spread over threads: as it asks, as its fragments lie, else coalesced. It is
    the layout that the nest asks for; else that of a fragment indexed by all variables of the nest. With fragments of
    fewer dimensions, each thread runs the iterations of its elements, and threads with the same elements divide the
    rest, unless the nest stores to such a fragment. Otherwise it is the coalesced layout."""
    if nest.is_per_thread:
        return per_thread_fragment(threads, nest.extents[1:])
    if nest.layout is not None:
        return build_digit_layout(nest.layout, threads)
    deciding = _select_deciding_uses(list(find_fragment_uses(nest)))
    for use in deciding:
        if use.dims is not None and len(use.dims) == len(nest.vars):
            whole = _build_sweeping_layout(use, fragments[use.buffer.name], nest.extents)
            if whole is not None:
                return whole
    uses = [(u.dims, fragments[u.buffer.name]) for u in deciding if u.dims is not None and not u.is_reshaped]
    vector = nest.width or widths.choose_nest_width(nest, threads)
    swept = [dimensions.extend_layout(layout, dims, nest.extents) for dims, layout in uses]
    if not any(isinstance(s, tile.Store) and s.buffer.scope == "fragment" for s in tile.walk_statements(nest.body)):
        swept = [
            s for use in uses if (s := dimensions.distribute_last_dimension(*use, nest.extents, vector)) is not None
        ] + swept
    for whole in swept:
        if all(dimensions.is_projection(whole, dims, layout) for dims, layout in uses):
            return whole
    return row_major_fragment(nest.extents, threads, vector)


@dataclass(frozen=True, slots=True)
class RoleAssignment:
    """An explicit role: its first warp, the layouts of its statements, and its section
    (`explicit_roles.split_roles`). `block` is the rank in the cluster of the block whose role it is."""

    name: str
    first_warp: int
    assignment: LayoutAssignment
    section: int = 0
    block: int = 0

    @property
    def kernel(self) -> tile.Kernel:
        """Return the role's statements, as a kernel of its threads."""
        return self.assignment.kernel

    def in_block(self, block: int) -> RoleAssignment:
        """Return this role of another block of the cluster, under a name of its own."""
        return replace(self, name=f"{self.name} of block {block}", block=block) if block else self


def assign_layouts(selection: MechanismSelection, mistakes: ErrorCollector = RAISE_FIRST) -> LayoutAssignment:
    """Choose layouts for all fragments and shared tiles, and warp partitions of products that convert the fewest bytes.

    Partitions that the kernel leaves open are tried one product after the other."""
    best = assign_fragment_layouts(selection, mistakes)
    for at, product in enumerate(_find_open_products(selection.kernel)):
        if not best.conversions or mistakes.met:
            break
        for policy in POLICIES:
            changed = _set_policy(selection, at, policy)
            if changed is None or policy == product.policy:
                continue
            assignment = assign_fragment_layouts(changed)
            if _count_converted_bytes(assignment) < _count_converted_bytes(best):
                best, selection = assignment, changed
    return replace(best, shared=assign_shared_layouts([best], selection, mistakes))


POLICIES: tuple[Policy, ...] = ("full_row", "full_col")


def _find_open_products(kernel: tile.Kernel) -> list[Gemm]:
    """Return the products, except by tcgen05, whose warp partition the kernel leaves open."""
    products = (s for s in tile.walk_statements(kernel.body) if isinstance(s, Gemm) and s.via != "tcgen05")
    return [s for s in products if s.policy == "square" or s.open is not None]


def _set_policy(selected: MechanismSelection, at: int, policy: Policy) -> MechanismSelection | None:
    """Return the selection with open product `at` partitioned by `policy`; None if impossible or no change."""
    product = _find_open_products(selected.kernel)[at]
    changed = replace(product, policy=policy, open=True)
    threads = selected.kernel.threads
    shared_out = partition_warpgroups if product.via == "wgmma" else partition_warps
    if shared_out(changed, threads) in (None, shared_out(product, threads)):
        return None
    body = replace_statement(selected.kernel.body, product, (changed,))
    return replace(selected, kernel=replace(selected.kernel, body=body))


def _count_converted_bytes(assignment: LayoutAssignment) -> int:
    """Return the bytes that all layout conversions write to shared memory."""
    return sum(conversion.bytes for conversion in assignment.conversions)


def assign_fragment_layouts(selected: MechanismSelection, mistakes: ErrorCollector = RAISE_FIRST) -> LayoutAssignment:
    """Choose layouts of fragments, not of shared tiles, and insert copies between layouts; record conflicts that
    stay. A statement in such a conflict becomes a placeholder."""
    # An operation that became several nests has the same variables in each.
    kernel = make_names_unique(_normalise_given_layouts(selected.kernel, mistakes))
    conversions: list[LayoutConversion] = []
    known: _NestUses = {}
    while True:
        try:
            fragments = _FragmentSolver(kernel, known).solve_layouts()
            form, why_alike = selected.form.form, selected.form.why_alike
            kernel = _replace_impossible_stmatrix(kernel, fragments)
            return LayoutAssignment(
                kernel, form, fragments, {}, tuple(conversions), (), (), why_alike, selected.has_one_loader
            )
        except LayoutConflict as conflict:
            if conflict.buffer.scope == "reducer":
                assert isinstance(conflict.stmt, tile.Parallel)
                kernel = reducer_layout.add_nest_parts(kernel, conflict.stmt, conflict.buffer)
                continue
            if (shifted := shift_nest(conflict)) is not None:
                kernel = replace(kernel, body=replace_statement(kernel.body, conflict.stmt, (shifted,)))
                continue
            try:
                kernel, made = insert_conversion(kernel, conflict)
                conversions.append(made)
            except CompileError as error:
                kernel = _replace_conflicting_statement(kernel, conflict.stmt, error, mistakes)


def _replace_impossible_stmatrix(kernel: tile.Kernel, fragments: Mapping[str, Fragment]) -> tile.Kernel:
    """Return the kernel with each stmatrix copy done by registers if its source is in no accumulator layout."""
    for stmt in [s for s in tile.walk_statements(kernel.body) if isinstance(s, Copy) and s.via == "stmatrix"]:
        if not is_accumulator_layout(fragments[stmt.source.buffer.name]):
            kernel = replace(kernel, body=replace_statement(kernel.body, stmt, (replace(stmt, via="registers"),)))
    return kernel


def _normalise_given_layouts(kernel: tile.Kernel, mistakes: ErrorCollector) -> tile.Kernel:
    """Drop given layouts that are impossible, recording errors, and rewrite nests of irregular layout to digits."""
    pinned = []
    for given in kernel.layouts:
        with mistakes.caught():
            if isinstance(given.layout, tile.LoopLayout):
                build_digit_layout(given.layout, kernel.threads)
            pinned.append(given)
    for nest in tile.walk_statements(kernel.body):
        if isinstance(nest, tile.Parallel) and nest.layout is not None:
            try:
                made = nest if is_regular(nest.layout, kernel.threads) else regularise_nest(nest, kernel.threads)
            except CompileError as error:
                mistakes.add(error)
                made = replace(nest, layout=None)
            if made is not nest:
                kernel = replace(kernel, body=replace_statement(kernel.body, nest, (made,)))
    return kernel if len(pinned) == len(kernel.layouts) else replace(kernel, layouts=tuple(pinned))


def _replace_conflicting_statement(
    kernel: tile.Kernel, stmt: tile.Stmt, error: CompileError, mistakes: ErrorCollector
) -> tile.Kernel:
    """Replace a statement whose layout conflict has no solution by a placeholder, and record the error. The error is
    dropped where a refused statement already left an operand without a layout."""
    refused = (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.TileOp) and is_refused(s))
    lost = {r.buffer for s in refused for r in s.regions}
    if not any(b.scope == "fragment" and b in lost for b in (*find_reads(stmt), *find_writes(stmt))):
        mistakes.add(error)
    instead = make_refused(find_reads(stmt), find_writes(stmt), stmt.span)
    return replace(kernel, body=replace_statement(kernel.body, stmt, (instead,)))


def assign_shared_layouts(
    kernels: list[LayoutAssignment], selected: MechanismSelection, mistakes: ErrorCollector = RAISE_FIRST
) -> dict[str, SharedLayout]:
    """Choose, for each shared tile, the cheapest layout for all its accesses in these kernels, or the given one. Its
    versions have the same layout."""
    tiles = list(dict.fromkeys(b for assignment in kernels for b in assignment.kernel.buffers if b.scope == "shared"))
    accesses: dict[str, list[atoms.SharedAccess]] = {b.name: [] for b in tiles}
    for assignment in kernels:
        for access in atoms.find_shared_accesses(assignment.kernel, assignment.fragments, assignment.nest_layout):
            accesses[access.tile].append(access)
    weights, always = selected.weights, selected.always_swizzle
    pinned = {p.buffer: p for assignment in kernels for p in assignment.kernel.layouts}
    return {
        b.name: _build_given_layout(pinned[b], accesses[b.name], mistakes)
        if b in pinned
        else atoms.choose_shared_layout(b, accesses[b.name], weights, always_swizzle=always)
        for b in tiles
    }


def _build_given_layout(
    pinned: tile.LayoutAnnotation, accesses: list[atoms.SharedAccess], mistakes: ErrorCollector
) -> SharedLayout:
    """Return the layout that the kernel gives a shared tile; record an error if an access pattern does not allow it."""
    if isinstance(pinned.layout, tile.Placement):
        layout = placed_layout(pinned.layout, pinned.buffer.dtype.bytes)
    else:
        assert isinstance(pinned.layout, int), "a layout of a fragment"
        layout = atoms.find_swizzled_layout(pinned.buffer, pinned.layout)
    unable = next((a for a in accesses if not atoms.is_legal(layout, [a.pattern])), None)
    if unable is not None:
        with mistakes.caught():
            raise_error(
                "layout-conflict",
                f"the given layout of {pinned.buffer.name} does not allow its accesses",
                pinned.span,
                "given here",
                secondary=(Label(unable.span, _LAYOUT_NEEDS[str(unable.pattern)]),),
                help="use tilelang.layout.make_swizzled_layout, or leave the layout to tilec",
            )
    return layout


_LAYOUT_NEEDS = {
    "wgmma": "wgmma needs rows of 32, 64 or 128 bytes in the swizzle of that width",
    "tma": "TMA needs rows, with or without a swizzle of 32, 64 or 128 bytes, of at most "
    f"{atoms.MAX_BOX_EXTENT} elements",
    "panels": "TMA fills columns of a tile only with a swizzle of 32, 64 or 128 bytes",
    "matrix": "ldmatrix and stmatrix need 16 bytes of a row together",
}
"""The layouts that an access pattern needs."""


@dataclass(frozen=True, slots=True)
class FragmentUse:
    """A use of a fragment in a nest. `dims` are the loop variables that index its dimensions, by number; None if the
    elements are not those of the loop. `by` counts the values of each variable that share an element (`x[i, j // 2]`:
    two). `is_reshaped`: the elements are those of the loop, in the same order but in another shape."""

    buffer: tile.Buffer
    indices: tuple[tile.Expr, ...]
    dims: tuple[int, ...] | None
    by: tuple[int, ...]
    stored: bool
    is_reshaped: bool = False


def find_fragment_uses(nest: tile.Parallel) -> Iterator[FragmentUse]:
    """Yield each load and store of a fragment in the nest, with the nest variables that index its dimensions."""
    place = {var: i for i, var in enumerate(nest.vars)}

    def match_indices(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], stored: bool) -> FragmentUse:
        """Return the use with the nest variables that index a fragment, plain or, if read, divided; else with None as
        dims. Each index is a variable `i` or, where the fragment is read, `i // n`."""
        found: list[tuple[int, int]] = []
        fits = True
        for index, size in zip(indices, buffer.shape, strict=True):
            match index:
                case tile.Var() if index in place and nest.extents[place[index]] == size:
                    found.append((place[index], 1))
                case tile.Binary(op="floordiv", a=tile.Var() as var, b=tile.Const(value=by)) if (
                    var in place and not stored and nest.extents[place[var]] == size * by
                ):
                    found.append((place[var], int(by)))
                case _:
                    fits &= size == 1 and index == tile.Const(0, index.dtype)
        fits &= len({dim for dim, _ in found}) == len(found)
        if not fits and _is_reshaped_access(nest, buffer, indices):
            every = tuple(range(len(nest.vars)))
            return FragmentUse(buffer, indices, every, (1,) * len(every), stored, is_reshaped=True)
        return FragmentUse(
            buffer, indices, tuple(d for d, _ in found) if fits else None, tuple(by for _, by in found), stored
        )

    for _, access in find_element_accesses(nest.body):
        if access.buffer.scope == "fragment":
            yield match_indices(access.buffer, access.indices, isinstance(access, tile.Store))


def _is_reshaped_access(nest: tile.Parallel, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> bool:
    """Return True if the nest visits a buffer's elements in their order, though its shape is another one."""
    if nest.is_per_thread or math.prod(nest.extents) != math.prod(buffer.shape):
        return False
    return indices == map_view_indices(replace(buffer, extents=nest.extents), buffer, nest.vars)


def _select_deciding_uses(all_uses: list[FragmentUse]) -> list[FragmentUse]:
    """Return the fragment uses that decide which thread runs an iteration: indexed ones, and stored single elements.
    Those with divided variables come last. A single element that is only read does not decide: each thread has a
    copy."""
    uses = [use for use in all_uses if use.dims is not None]
    stored = {use.buffer for use in uses if use.stored}
    deciding = [use for use in uses if use.dims or use.buffer in stored]
    return sorted(deciding, key=lambda use: max(use.by, default=1) > 1)


_NestUses = dict[IdentityKey[tile.Parallel], tuple[list[FragmentUse], list[FragmentUse]]]
"""The uses of fragments of each nest, by identity, and the deciding ones."""


class _FragmentSolver:
    """Finds the layouts of a kernel's fragments. `known` has those found so far, each with the place that fixed it."""

    def __init__(self, kernel: tile.Kernel, nest_uses: _NestUses) -> None:
        self.kernel, self.nest_uses = kernel, nest_uses
        self.known: dict[str, tuple[Fragment, Span]] = {}
        self.everywhere = reducer_layout.find_replicated_reducers(kernel)

    def solve_layouts(self) -> dict[str, Fragment]:
        """Return layouts of fragments, reducers and local buffers by name, or raise `LayoutConflict` at the first
        statement. It is the first that needs another layout of a buffer."""
        fragments = [b for b in self.kernel.buffers if b.scope == "fragment"]
        stmts = list(tile.walk_statements(self.kernel.body))
        for buffer in self.kernel.buffers:
            if buffer.scope == "local":
                self.known[buffer.name] = (replicated_fragment(self.kernel.threads, buffer.shape), buffer.span)
        self.known |= {name: (layout, self.kernel.span) for name, layout in self.everywhere.items()}
        for pinned in self.kernel.layouts:
            if isinstance(pinned.layout, tile.LoopLayout):
                self.known[pinned.buffer.name] = (build_digit_layout(pinned.layout, self.kernel.threads), pinned.span)
        for stmt in stmts:
            if isinstance(stmt, tile.TileOp) and (isinstance(stmt, Gemm) or stmt.via == "tcgen05"):
                self.spread_layouts(stmt)  # hardware layouts come first
        while True:
            before = len(self.known)
            for stmt in stmts:
                self.spread_layouts(stmt)
            if len(self.known) > before:
                continue
            for stmt in stmts:
                if isinstance(stmt, tile.Parallel):
                    self.spread_from_projections(stmt)
            if len(self.known) > before:
                continue
            unknown = [b for b in fragments if b.name not in self.known]
            if not unknown:
                return {name: layout for name, (layout, _) in self.known.items()}
            # The tile with the most dimensions fixes its projections; of two, the larger fixes the one that shares its
            # elements.
            first = max(unknown, key=lambda b: (len(b.shape), math.prod(b.shape)))
            vector = widths.choose_fragment_width(first, stmts, self.kernel.threads)
            most = _limit_threads_of_row(first, stmts, self.kernel.threads, vector)
            self.known[first.name] = (row_major_fragment(first.shape, self.kernel.threads, vector, most), first.span)

    def fix_layout(self, buffer: tile.Buffer, layout: Fragment, stmt: tile.Stmt) -> None:
        """Record the layout of a buffer that has none yet; raise `LayoutConflict` if it has a different one."""
        _, origin = self.known.setdefault(buffer.name, (layout, stmt.span))
        if self.has_other_layout(buffer, layout):
            raise LayoutConflict(stmt, buffer, origin)

    def fix_exact_layout(self, buffer: tile.Buffer, layout: Fragment, stmt: tile.Stmt) -> None:
        """Record the layout of a buffer with exactly these axes, even over an equal one; raise `LayoutConflict` if
        different."""
        self.fix_layout(buffer, layout, stmt)
        self.known[buffer.name] = layout, self.known[buffer.name][1]

    def has_other_layout(self, buffer: tile.Buffer, layout: Fragment | None) -> bool:
        """Return True if the buffer's known layout differs from this one, or this one is None. A layout of None is one
        that no buffer has."""
        found = self.get(buffer)
        if found is None or layout is None:
            return layout is None
        return found is not layout and found.to_canonical() != layout.to_canonical()

    def get(self, buffer: tile.Buffer) -> Fragment | None:
        """Return the known layout of a buffer, or None if there is none yet."""
        found = self.known.get(buffer.name)
        return found[0] if found else None

    def spread_layouts(self, stmt: tile.Stmt) -> None:
        """Record layouts that a statement fixes, by its instruction or other fragments; raise `LayoutConflict` if
        they differ."""
        match stmt:
            case Gemm() if stmt.via == "tcgen05":
                pass
            case Gemm():
                a, b, c, *_ = (r.buffer for r in stmt.regions)
                accumulator = self.build_accumulator_layout(stmt)
                self.fix_exact_layout(c, accumulator, stmt)
                if b.scope == "fragment":
                    depth, run = b.shape[stmt.transpose_B], find_depth_run(stmt, self.kernel)
                    self.fix_exact_layout(
                        b, operand_b_fragment(accumulator, depth, b.dtype.bytes, stmt.transpose_B, run), stmt
                    )
                if a.scope == "fragment":
                    as_accumulated, run = stmt.order is not None, find_depth_run(stmt, self.kernel)
                    self.fix_exact_layout(
                        a, operand_a_fragment(accumulator, a.shape[1], a.dtype.bytes, as_accumulated, run), stmt
                    )
            case Reduce():
                source = self.get(stmt.regions[0].buffer)
                if source is not None:
                    if not is_reducible(source, stmt.dim):
                        buffer = stmt.regions[0].buffer
                        raise LayoutConflict(stmt, buffer, self.known[buffer.name][1])
                    self.fix_layout(stmt.regions[1].buffer, self.reduce_layout(stmt, source), stmt)
            case Scan():
                source = self.get(stmt.regions[0].buffer)
                if source is not None and list_scan_digits(source, stmt.dim) is None:
                    buffer = stmt.regions[0].buffer
                    raise LayoutConflict(stmt, buffer, self.known[buffer.name][1])
                self.spread_over_copy(stmt)
            case FinalizeReducer():
                parts = self.get(stmt.regions[0].buffer)
                if parts is not None:
                    self.fix_layout(stmt.regions[1].buffer, parts, stmt)
            case tile.TileOp(fragments_lie="alike"):
                self.spread_over_copy(stmt)
            case tile.TileOp(fragments_lie=None):
                if len({r.buffer for r in stmt.regions if r.buffer.scope == "fragment"}) > 1:
                    raise InternalError(f"T.{stmt.name} does not say how its fragments lie")
            case tile.Parallel():
                self.spread_over_nest(stmt)
                self.spread_to_reducers(stmt)

    def spread_to_reducers(self, nest: tile.Parallel) -> None:
        """Record layouts of the reducers that a nest adds to, once its fragments have some; raise `LayoutConflict`
        if different."""
        stores = list(reducer_layout.find_additions(nest))
        if not stores or any(use.buffer.name not in self.known for use in find_fragment_uses(nest)):
            return
        whole = find_nest_layout(nest, self.kernel.threads, {name: layout for name, (layout, _) in self.known.items()})
        for store in stores:
            if store.buffer.name in self.everywhere:
                continue
            parts = reducer_layout.build_parts_layout(nest, store, whole)
            if not is_reducible(parts, ACROSS_COPIES):
                parts = replicated_fragment(self.kernel.threads, store.buffer.shape)
            self.fix_layout(store.buffer, parts, nest)

    def build_accumulator_layout(self, op: Gemm) -> Fragment:
        """Return the layout in which wgmma or mma.sync leaves the sum of a product."""
        m, n = op.regions[2].buffer.shape
        if op.via == "wgmma":
            groups = partition_warpgroups(op, self.kernel.threads)
            assert groups is not None
            return wgmma_accumulator((m, n), *groups)
        warps = partition_warps(op, self.kernel.threads)
        assert warps is not None
        return mma_accumulator((m, n), *warps)

    def reduce_layout(self, op: Reduce, source: Fragment) -> Fragment:
        """Return the layout of a reduction's result: the source's without the reduced dimension, or with extent 1
        there."""
        keep = tuple(d for d in range(len(source.shape)) if d != op.dim)
        layout = source.project(keep)
        shape = op.regions[1].buffer.shape
        if len(shape) == len(source.shape):  # the dimension is kept with extent 1
            layout = dimensions.embed_layout(layout, shape, keep)
        return layout

    def spread_over_copy(self, op: tile.TileOp) -> None:
        """Give all fragments of an elementwise operation one layout; raise `LayoutConflict` for a part of a
        fragment."""
        for region in op.regions:
            if region.buffer.scope == "fragment" and not region.is_whole:
                raise LayoutConflict(op, region.buffer, region.buffer.span)
        for source, destination in pairwise(r.buffer for r in op.regions):
            self.spread_between_fragments(op, source, destination)

    def spread_between_fragments(self, op: tile.TileOp, source: tile.Buffer, destination: tile.Buffer) -> None:
        """Give both sides of a copy one layout, the known one or tensor memory's; keep two that share threads.
        Raises `LayoutConflict` if impossible; does nothing while neither layout is known."""
        if "tmem" in (source.scope, destination.scope):
            assert isinstance(op, Copy)
            tensor_layout = build_copied_layout(op, self.kernel.threads)
            assert tensor_layout is not None, "a tile that no warps can reach"
            self.fix_exact_layout(destination if source.scope == "tmem" else source, tensor_layout, op)
        if source.scope != "fragment" or destination.scope != "fragment":
            return
        if source.shape != destination.shape:
            raise LayoutConflict(op, source, source.span)
        a, b = self.known.get(source.name), self.known.get(destination.name)
        if a is not None and b is not None and self.has_other_layout(destination, a[0]):
            if not a[0].shares_threads(b[0]):
                raise LayoutConflict(op, source, a[1])
            return
        if a is not None:
            self.fix_layout(destination, a[0], op)
        elif b is not None:
            self.fix_layout(source, b[0], op)

    def spread_over_nest(self, nest: tile.Parallel) -> None:
        """Record layouts of a nest's fragments by its given layout, or by a known fragment that all its variables
        index. Of several the one that conflicts in the fewest bytes. Raises `LayoutConflict` if a layout differs or
        an index is no variable."""
        uses, deciding = self.find_uses(nest)
        if nest.layout is not None:
            self.fix_nest_layout(nest, uses, build_digit_layout(nest.layout, self.kernel.threads))
            return
        whole = [u for u in deciding if len(u.by) == len(nest.vars) and u.buffer.name in self.known]
        swept = (_build_sweeping_layout(u, self.known[u.buffer.name][0], nest.extents) for u in whole)
        layouts = [layout for layout in swept if layout is not None]
        if layouts:
            best = min(layouts, key=lambda layout: self.count_conflicting_bytes(uses, layout))
            self.fix_nest_layout(nest, uses, best)
        elif whole or any(use.dims is None for use in uses):
            self.fix_nest_layout(nest, [use for use in uses if use.dims is None or use in whole], None)

    def find_uses(self, nest: tile.Parallel) -> tuple[list[FragmentUse], list[FragmentUse]]:
        """Return all fragment uses of a nest, and the deciding ones; cached by the nest's identity."""
        if IdentityKey(nest) not in self.nest_uses:
            uses = list(find_fragment_uses(nest))
            self.nest_uses[IdentityKey(nest)] = uses, _select_deciding_uses(uses)
        return self.nest_uses[IdentityKey(nest)]

    def count_conflicting_bytes(self, uses: list[FragmentUse], whole: Fragment) -> int:
        """Return the bytes of the used fragments whose known layout a nest of layout `whole` could not use."""
        conflicting = set()
        for use in uses:
            if use.dims is None or self.has_other_layout(use.buffer, _find_required_layout(use, whole)):
                conflicting.add(use.buffer)
        return sum(buffer.bytes for buffer in conflicting)

    def fix_nest_layout(self, nest: tile.Parallel, uses: list[FragmentUse], whole: Fragment | None) -> None:
        """Record layouts that a nest of layout `whole` needs; raise `LayoutConflict` for the first other one (None:
        for any)."""
        conflicting: list[FragmentUse] = []
        for use in uses:
            if use.dims is None or whole is None:
                conflicting.append(use)
                continue
            needed = _find_required_layout(use, whole)
            if needed is not None:
                self.known.setdefault(use.buffer.name, (needed, nest.span))
            if self.has_other_layout(use.buffer, needed):
                conflicting.append(use)
        if conflicting:
            buffer = conflicting[0].buffer
            _, origin = self.known.get(buffer.name, (None, buffer.span))
            raise LayoutConflict(
                nest, buffer, origin, frozenset(use.indices for use in conflicting if use.buffer == buffer)
            )

    def spread_from_projections(self, nest: tile.Parallel) -> None:
        """Record layouts of a nest whose fragments all have fewer dimensions than it, by a known one that suits the
        rest. It is the first such, or else the first of all; `LayoutConflict` is raised for another that differs."""
        uses, deciding = self.find_uses(nest)
        deciding = [use for use in deciding if use.buffer.name in self.known]
        reached = [use for use in deciding if use.dims is not None and not use.is_reshaped]
        known = [(use.dims, self.known[use.buffer.name][0]) for use in reached if use.dims is not None]
        if not known or any(use.dims is not None and len(use.dims) == len(nest.vars) for use in uses):
            return
        swept = [dimensions.extend_layout(layout, dims, nest.extents) for dims, layout in known]
        self.fix_nest_layout(
            nest, uses, next((s for s in swept if all(dimensions.is_projection(s, *use) for use in known)), swept[0])
        )


ROW_BYTES = 128
"""As many bytes of a row as make a whole line of DRAM, and of the banks of shared memory."""


def _limit_threads_of_row(buffer: tile.Buffer, stmts: Sequence[tile.Stmt], threads: int, vector: int) -> int | None:
    """Return in how many threads a row of a fragment may lie: as few as possible if rows are reduced or scanned, which
    saves shuffles. All threads hold elements nevertheless, and neighbours hold whole lines. None without such rows.
    """
    last = len(buffer.shape) - 1
    along_rows = (s for s in stmts if isinstance(s, Reduce | Scan) and s.dim == last)
    if last < 1 or not any(s.source.buffer.shape == buffer.shape for s in along_rows):
        return None
    rows = math.gcd(threads, 1 << (math.prod(buffer.shape[:-1]) - 1).bit_length())
    return max(threads // rows, ROW_BYTES // (vector * buffer.dtype.bytes), 1)


def _find_required_layout(use: FragmentUse, whole: Fragment) -> Fragment | None:
    """Return the layout in which a fragment's elements are where a nest of layout `whole` uses them; None if there is
    none."""
    assert use.dims is not None
    if use.is_reshaped:
        return whole.reshaped(use.buffer.shape)
    layout: Fragment | None = whole.project(use.dims)
    for dim, by in enumerate(use.by):
        layout = None if layout is None else layout.grouped(dim, by)
    return None if layout is None else dimensions.restore_unit_dims(layout, use.buffer.shape)


def _build_sweeping_layout(use: FragmentUse, layout: Fragment, extents: tuple[int, ...]) -> Fragment | None:
    """Return the nest layout in which each thread runs the iterations of its own elements of this fragment, or None."""
    dims = use.dims
    assert dims is not None
    if use.is_reshaped:
        return layout.reshaped(extents)
    layout = dimensions.drop_unit_dims(layout, len(dims))
    for dim, by in enumerate(use.by):
        layout = layout.widened(dim, by)
    return layout if dims == tuple(range(len(dims))) else layout.project(tuple(dims.index(d) for d in range(len(dims))))
