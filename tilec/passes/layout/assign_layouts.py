"""Give every tile a layout: registers for fragments, byte order for shared tiles.

Fragment layouts spread from where they are fixed (accumulators) along elementwise nests, reductions and copies. A
fragment that nothing fixes gets the coalesced layout. A statement that needs another layout gets its fragment through
shared memory (`layout.convert_layouts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import (
    Fragment,
    SharedLayout,
    is_accumulator,
    local,
    mma_accumulator,
    operand_a,
    operand_b,
    per_thread,
    placed,
    row_major,
    wgmma_accumulator,
)
from tilec.ops.copy import Copy
from tilec.ops.gemm import Gemm, Policy
from tilec.ops.reduce import Reduce, is_reducible
from tilec.ops.reducer import ACROSS_COPIES, FinalizeReducer
from tilec.ops.refused import is_refused, refused
from tilec.passes.analysis.unique_names import with_unique_names
from tilec.passes.analysis.usage import expressions, reads, writes
from tilec.passes.layout import vector_widths as widths
from tilec.passes.layout.atoms import MAX_BOX, Access, is_legal, shared_accesses, shared_layout, with_swizzle
from tilec.passes.layout.convert_layouts import Conflict, Conversion, resolve, rewritten
from tilec.passes.layout.fragment_dimensions import (
    extended,
    holds,
    shared_out,
    spread,
    with_unit_dims,
    without_unit_dims,
)
from tilec.passes.layout.irregular_loops import regular
from tilec.passes.layout.kernel_form import Form
from tilec.passes.layout.loop_layout import digits, is_regular
from tilec.passes.layout.reducer_layout import additions, everywhere, parts_layout, with_parts_of_its_own
from tilec.passes.layout.reshape_views import moved
from tilec.passes.layout.select_mechanisms import Selected
from tilec.passes.layout.tensor_memory import copied_layout
from tilec.passes.layout.warp_partition import mma_warps, wgmma_groups
from tilec.support.diagnostics import AT_ONCE, CompileError, InternalError, Label, Mistakes, fail
from tilec.support.identity import Same
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class LayoutAssignment:
    """A kernel whose tiles all have layouts, by buffer name. `conversions` are the copies through shared memory that
    the layouts need. A kernel with explicit roles has one assignment per role in `roles`
    (`explicit_roles.split_roles`). `versions` counts the versions of each tile whose statements name one."""

    kernel: tile.Kernel
    form: Form
    fragments: dict[str, Fragment]
    shared: dict[str, SharedLayout]
    conversions: tuple[Conversion, ...] = ()
    roles: tuple[RoleAssignment, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    why_alike: str | None = None
    """The reason why no warps have roles (`kernel_form.FormChoice`)."""
    has_one_loader: bool = False
    """True if one of the computing threads issues the TMA loads of loops (`select_mechanisms`)."""

    @property
    def kernels(self) -> tuple[LayoutAssignment, ...]:
        """Return the assignments whose statements run: those of the roles, or this one alone."""
        return tuple(part.assignment for part in self.roles) or (self,)

    @property
    def block_threads(self) -> int:
        """Count the threads of a block, the producer warpgroup included."""
        return self.kernel.threads + (WARPGROUP_THREADS if self.form == "warp_specialised" else 0)

    def nest_layout(self, nest: tile.Parallel) -> Fragment:
        """Return the layout in which a parallel nest runs: see `find_nest_layout`."""
        return nest_layout(nest, self.kernel.threads, self.fragments)


def nest_layout(nest: tile.Parallel, threads: int, fragments: Mapping[str, Fragment]) -> Fragment:
    """Return the layout in which a parallel nest runs, given the layouts of its fragments.

    It is the layout that the nest asks for; else that of a fragment indexed by all variables of the nest. With
    fragments of fewer dimensions, each thread runs the iterations of its elements, and threads with the same elements
    divide the rest, unless the nest stores to such a fragment. Otherwise it is the coalesced layout.
    """
    if nest.is_per_thread:
        return per_thread(threads, nest.extents[1:])
    if nest.layout is not None:
        return digits(nest.layout, threads)
    deciding = list(deciding_uses(nest))
    for use in deciding:
        if use.dims is not None and len(use.dims) == len(nest.vars):
            whole = _sweeping(use, fragments[use.buffer.name], nest.extents)
            if whole is not None:
                return whole
    uses = [(u.dims, fragments[u.buffer.name]) for u in deciding if u.dims is not None and not u.is_reshaped]
    vector = nest.width or widths.of_nest(nest, threads)
    swept = [extended(layout, dims, nest.extents) for dims, layout in uses]
    if not any(isinstance(s, tile.Store) and s.buffer.scope == "fragment" for s in tile.walk(nest.body)):
        swept = [s for use in uses if (s := shared_out(*use, nest.extents, vector)) is not None] + swept
    for whole in swept:
        if all(holds(whole, dims, layout) for dims, layout in uses):
            return whole
    return row_major(nest.extents, threads, vector)


@dataclass(frozen=True, slots=True)
class RoleAssignment:
    """An explicit role: its first warp, and the layouts of its statements."""

    name: str
    first_warp: int
    assignment: LayoutAssignment
    is_common: bool = False


def assign(selected: Selected, mistakes: Mistakes = AT_ONCE) -> LayoutAssignment:
    """Assign layouts, and choose the warp partition of open products so that fewer bytes pass through shared memory.
    Products are tried one after the other, in program order."""
    best = in_registers(selected, mistakes)
    for at, product in enumerate(_open_products(selected.kernel)):
        if not best.conversions or mistakes.met:
            break
        for policy in POLICIES:
            changed = _with_policy(selected, at, policy)
            if changed is None or policy == product.policy:
                continue
            assignment = in_registers(changed)
            if _converted(assignment) < _converted(best):
                best, selected = assignment, changed
    return replace(best, shared=shared_layouts([best], selected, mistakes))


POLICIES: tuple[Policy, ...] = ("full_row", "full_col")


def _open_products(kernel: tile.Kernel) -> list[Gemm]:
    """Return the products for which the kernel does not ask for whole rows or columns per warp."""
    products = (s for s in tile.walk(kernel.body) if isinstance(s, Gemm) and s.via != "tcgen05")
    return [s for s in products if s.policy == "square" or s.open is not None]


def _with_policy(selected: Selected, at: int, policy: Policy) -> Selected | None:
    """Return the kernel with product `at` partitioned by `policy`, or None where the instruction does not allow it."""
    product = _open_products(selected.kernel)[at]
    changed = replace(product, policy=policy, open=True)
    threads = selected.kernel.threads
    shared_out = wgmma_groups if product.via == "wgmma" else mma_warps
    if shared_out(changed, threads) in (None, shared_out(product, threads)):
        return None
    body = rewritten(selected.kernel.body, product, (changed,))
    return replace(selected, kernel=replace(selected.kernel, body=body))


def _converted(assignment: LayoutAssignment) -> int:
    return sum(conversion.bytes for conversion in assignment.conversions)


def in_registers(selected: Selected, mistakes: Mistakes = AT_ONCE) -> LayoutAssignment:
    """Assign layouts to fragments, and insert the conversions that they need."""
    # An operation that became several nests has the same variables in each.
    kernel = with_unique_names(_with_digits(selected.kernel, mistakes))
    conversions: list[Conversion] = []
    known: _Uses = {}
    while True:
        try:
            fragments = _Fragments(kernel, known).solve()
            form, why_alike = selected.form.form, selected.form.why_alike
            kernel = _stored_as_it_lies(kernel, fragments)
            return LayoutAssignment(
                kernel, form, fragments, {}, tuple(conversions), (), (), why_alike, selected.has_one_loader
            )
        except Conflict as conflict:
            if conflict.buffer.scope == "reducer":
                assert isinstance(conflict.stmt, tile.Parallel)
                kernel = with_parts_of_its_own(kernel, conflict.stmt, conflict.buffer)
                continue
            try:
                kernel, made = resolve(kernel, conflict)
                conversions.append(made)
            except CompileError as error:
                kernel = _without_conflict(kernel, conflict.stmt, error, mistakes)


def _stored_as_it_lies(kernel: tile.Kernel, fragments: Mapping[str, Fragment]) -> tile.Kernel:
    """Copy by registers instead of stmatrix where the source does not have an accumulator's layout."""
    for stmt in tile.walk(kernel.body):
        if isinstance(stmt, Copy) and stmt.via == "stmatrix" and not is_accumulator(fragments[stmt.source.buffer.name]):
            kernel = replace(kernel, body=rewritten(kernel.body, stmt, (replace(stmt, via="registers"),)))
    return kernel


def _with_digits(kernel: tile.Kernel, mistakes: Mistakes) -> tile.Kernel:
    """Drop given layouts that are impossible, and rewrite nests whose layout is not one of mixed-radix digits."""
    pinned = []
    for given in kernel.layouts:
        with mistakes.caught():
            if isinstance(given.layout, tile.LoopLayout):
                digits(given.layout, kernel.threads)
            pinned.append(given)
    for nest in tile.walk(kernel.body):
        if isinstance(nest, tile.Parallel) and nest.layout is not None:
            try:
                made = nest if is_regular(nest.layout, kernel.threads) else regular(nest, kernel.threads)
            except CompileError as error:
                mistakes.add(error)
                made = replace(nest, layout=None)
            if made is not nest:
                kernel = replace(kernel, body=rewritten(kernel.body, nest, (made,)))
    return kernel if len(pinned) == len(kernel.layouts) else replace(kernel, layouts=tuple(pinned))


def _without_conflict(kernel: tile.Kernel, stmt: tile.Stmt, error: CompileError, mistakes: Mistakes) -> tile.Kernel:
    """Replace a statement that cannot have its operands. The error is dropped where a refused statement already left an
    operand without a layout."""
    lost = {r.buffer for s in tile.walk(kernel.body) if isinstance(s, tile.TileOp) and is_refused(s) for r in s.regions}
    if not any(b.scope == "fragment" and b in lost for b in (*reads(stmt), *writes(stmt))):
        mistakes.add(error)
    instead = refused(reads(stmt), writes(stmt), stmt.span)
    return replace(kernel, body=rewritten(kernel.body, stmt, (instead,)))


def shared_layouts(
    kernels: list[LayoutAssignment], selected: Selected, mistakes: Mistakes = AT_ONCE
) -> dict[str, SharedLayout]:
    """Choose the cheapest layout of each shared tile for all its accesses, in all kernels that have the tile. Its
    versions have the same layout."""
    tiles = list(dict.fromkeys(b for assignment in kernels for b in assignment.kernel.buffers if b.scope == "shared"))
    accesses: dict[str, list[Access]] = {b.name: [] for b in tiles}
    for assignment in kernels:
        for access in shared_accesses(assignment.kernel, assignment.fragments, assignment.nest_layout):
            accesses[access.tile].append(access)
    weights, always = selected.weights, selected.always_swizzle
    pinned = {p.buffer: p for assignment in kernels for p in assignment.kernel.layouts}
    return {
        b.name: _asked_for(pinned[b], accesses[b.name], mistakes)
        if b in pinned
        else shared_layout(b, accesses[b.name], weights, always_swizzle=always)
        for b in tiles
    }


def _asked_for(pinned: tile.Pinned, accesses: list[Access], mistakes: Mistakes) -> SharedLayout:
    """Return the layout that the kernel gives a shared tile, and refuse it where an access does not allow it."""
    if isinstance(pinned.layout, tile.Placement):
        layout = placed(pinned.layout, pinned.buffer.dtype.bytes)
    else:
        assert isinstance(pinned.layout, int), "a layout of a fragment"
        layout = with_swizzle(pinned.buffer, pinned.layout)
    unable = next((a for a in accesses if not is_legal(layout, [a.pattern])), None)
    if unable is not None:
        with mistakes.caught():
            fail(
                "layout-conflict",
                f"{pinned.buffer.name} cannot have the layout that it is given",
                pinned.span,
                "given here",
                secondary=(Label(unable.span, _WANTED[str(unable.pattern)]),),
                help="use tilelang.layout.make_swizzled_layout, or leave the layout to tilec",
            )
    return layout


_WANTED = {
    "wgmma": "wgmma needs rows of 32, 64 or 128 bytes in the swizzle of that width",
    "tma": f"TMA needs rows, with or without a swizzle of 32, 64 or 128 bytes, of at most {MAX_BOX} elements",
    "matrix": "ldmatrix and stmatrix need 16 bytes of a row together",
}
"""The layouts that an access pattern needs."""


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a fragment in a nest. `dims` are the loop variables that index its dimensions, by number; None if the
    elements are not those of the loop. `by` counts the values of each variable that share an element (`x[i, j // 2]`:
    two). `is_reshaped`: the elements are those of the loop, in the same order but in another shape."""

    buffer: tile.Buffer
    indices: tuple[tile.Expr, ...]
    dims: tuple[int, ...] | None
    by: tuple[int, ...]
    stored: bool
    is_reshaped: bool = False


def fragment_uses(nest: tile.Parallel) -> Iterator[Use]:
    """Yield each use of a fragment in the nest; in a statement, the stored fragment comes first."""
    place = {var: i for i, var in enumerate(nest.vars)}

    def use(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], stored: bool = False) -> Use:
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
        if not fits and _in_order(nest, buffer, indices):
            every = tuple(range(len(nest.vars)))
            return Use(buffer, indices, every, (1,) * len(every), stored, is_reshaped=True)
        return Use(buffer, indices, tuple(d for d, _ in found) if fits else None, tuple(by for _, by in found), stored)

    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Store) and stmt.buffer.scope == "fragment":
            yield use(stmt.buffer, stmt.indices, stored=True)
        for expr in expressions(stmt):
            for e in tile.walk_expr(expr):
                if isinstance(e, tile.Load) and e.buffer.scope == "fragment":
                    yield use(e.buffer, e.indices)


def _in_order(nest: tile.Parallel, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> bool:
    """Return True if the nest visits the elements in their order, though it has another shape."""
    if nest.is_per_thread or math.prod(nest.extents) != math.prod(buffer.shape):
        return False
    return indices == moved(replace(buffer, extents=nest.extents), buffer, nest.vars)


def deciding_uses(nest: tile.Parallel) -> list[Use]:
    """Return the uses that decide which thread runs an iteration, those of one value per element first. A single
    element that is only read does not decide: each thread has a copy."""
    return _deciding(list(fragment_uses(nest)))


def _deciding(all_uses: list[Use]) -> list[Use]:
    uses = [use for use in all_uses if use.dims is not None]
    stored = {use.buffer for use in uses if use.stored}
    deciding = [use for use in uses if use.dims or use.buffer in stored]
    return sorted(deciding, key=lambda use: max(use.by, default=1) > 1)


_Uses = dict[Same[tile.Parallel], tuple[list[Use], list[Use]]]
"""The uses of fragments of each nest, by identity, and the deciding ones."""


class _Fragments:
    def __init__(self, kernel: tile.Kernel, nest_uses: _Uses) -> None:
        self.kernel, self.nest_uses = kernel, nest_uses
        self.known: dict[str, tuple[Fragment, Span]] = {}
        self.everywhere = everywhere(kernel)

    def solve(self) -> dict[str, Fragment]:
        fragments = [b for b in self.kernel.buffers if b.scope == "fragment"]
        stmts = list(tile.walk(self.kernel.body))
        for buffer in self.kernel.buffers:
            if buffer.scope == "local":
                self.known[buffer.name] = (local(self.kernel.threads, buffer.shape), buffer.span)
        self.known |= {name: (layout, self.kernel.span) for name, layout in self.everywhere.items()}
        for pinned in self.kernel.layouts:
            if isinstance(pinned.layout, tile.LoopLayout):
                self.known[pinned.buffer.name] = (digits(pinned.layout, self.kernel.threads), pinned.span)
        for stmt in stmts:
            if isinstance(stmt, tile.TileOp) and (isinstance(stmt, Gemm) or stmt.via == "tcgen05"):
                self.spread(stmt)  # hardware layouts come first
        while True:
            before = len(self.known)
            for stmt in stmts:
                self.spread(stmt)
            if len(self.known) > before:
                continue
            for stmt in stmts:
                if isinstance(stmt, tile.Parallel):
                    self.rows(stmt)
            if len(self.known) > before:
                continue
            unknown = [b for b in fragments if b.name not in self.known]
            if not unknown:
                return {name: layout for name, (layout, _) in self.known.items()}
            # The tile with the most dimensions fixes its projections; of two, the larger fixes the one that shares its
            # elements.
            first = max(unknown, key=lambda b: (len(b.shape), math.prod(b.shape)))
            vector = widths.of_fragment(first, stmts, self.kernel.threads)
            self.known[first.name] = (row_major(first.shape, self.kernel.threads, vector), first.span)

    def fix(self, buffer: tile.Buffer, layout: Fragment, stmt: tile.Stmt) -> None:
        """Give the buffer this layout, or raise a conflict."""
        _, origin = self.known.setdefault(buffer.name, (layout, stmt.span))
        if self.differs(buffer, layout):
            raise Conflict(stmt, buffer, origin)

    def fix_exactly(self, buffer: tile.Buffer, layout: Fragment, stmt: tile.Stmt) -> None:
        """Give the buffer this layout digit by digit: an equal one that the kernel gives may have other digits."""
        self.fix(buffer, layout, stmt)
        self.known[buffer.name] = layout, self.known[buffer.name][1]

    def differs(self, buffer: tile.Buffer, layout: Fragment | None) -> bool:
        """Return True if the buffer has another layout. `layout` None is one that no buffer has."""
        found = self.get(buffer)
        if found is None or layout is None:
            return layout is None
        return found is not layout and found.canonical() != layout.canonical()

    def get(self, buffer: tile.Buffer) -> Fragment | None:
        found = self.known.get(buffer.name)
        return found[0] if found else None

    def spread(self, stmt: tile.Stmt) -> None:
        match stmt:
            case Gemm() if stmt.via == "tcgen05":
                pass
            case Gemm():
                a, b, c, *_ = (r.buffer for r in stmt.regions)
                accumulator = self.accumulator(stmt)
                self.fix_exactly(c, accumulator, stmt)
                if b.scope == "fragment":
                    transposed = stmt.transpose_B
                    self.fix_exactly(b, operand_b(accumulator, b.shape[transposed], b.dtype.bytes, transposed), stmt)
                if a.scope == "fragment":
                    as_accumulated = stmt.order is not None
                    self.fix_exactly(a, operand_a(accumulator, a.shape[1], a.dtype.bytes, as_accumulated), stmt)
            case Reduce():
                source = self.get(stmt.regions[0].buffer)
                if source is not None:
                    if not is_reducible(source, stmt.dim):
                        buffer = stmt.regions[0].buffer
                        raise Conflict(stmt, buffer, self.known[buffer.name][1])
                    self.fix(stmt.regions[1].buffer, self.reduced(stmt, source), stmt)
            case FinalizeReducer():
                parts = self.get(stmt.regions[0].buffer)
                if parts is not None:
                    self.fix(stmt.regions[1].buffer, parts, stmt)
            case tile.TileOp(fragments_lie="alike"):
                self.copy(stmt)
            case tile.TileOp(fragments_lie=None):
                if len({r.buffer for r in stmt.regions if r.buffer.scope == "fragment"}) > 1:
                    raise InternalError(f"T.{stmt.name} does not say how its fragments lie")
            case tile.Parallel():
                self.nest(stmt)
                self.add(stmt)
            case _:
                pass

    def add(self, nest: tile.Parallel) -> None:
        """Fix the layouts of the reducers that a nest adds to, once the layout of the nest is known."""
        stores = list(additions(nest))
        if not stores or any(use.buffer.name not in self.known for use in fragment_uses(nest)):
            return
        whole = nest_layout(nest, self.kernel.threads, {name: layout for name, (layout, _) in self.known.items()})
        for store in stores:
            if store.buffer.name in self.everywhere:
                continue
            parts = parts_layout(nest, store, whole)
            if not is_reducible(parts, ACROSS_COPIES):
                parts = local(self.kernel.threads, store.buffer.shape)
            self.fix(store.buffer, parts, nest)

    def accumulator(self, op: Gemm) -> Fragment:
        m, n = op.regions[2].buffer.shape
        if op.via == "wgmma":
            groups = wgmma_groups(op, self.kernel.threads)
            assert groups is not None
            return wgmma_accumulator((m, n), *groups)
        warps = mma_warps(op, self.kernel.threads)
        assert warps is not None
        return mma_accumulator((m, n), *warps)

    def reduced(self, op: Reduce, source: Fragment) -> Fragment:
        keep = tuple(d for d in range(len(source.shape)) if d != op.dim)
        layout = source.project(keep)
        shape = op.regions[1].buffer.shape
        if len(shape) == len(source.shape):  # the dimension is kept with extent 1
            layout = spread(layout, shape, keep)
        return layout

    def copy(self, op: tile.TileOp) -> None:
        """Give all fragments of an elementwise operation the same layout."""
        for region in op.regions:
            if region.buffer.scope == "fragment" and not region.is_whole:
                raise Conflict(op, region.buffer, region.buffer.span)
        for source, destination in pairwise(r.buffer for r in op.regions):
            self.alike(op, source, destination)

    def alike(self, op: tile.TileOp, source: tile.Buffer, destination: tile.Buffer) -> None:
        if "tmem" in (source.scope, destination.scope):
            assert isinstance(op, Copy)
            tensor_layout = copied_layout(op, self.kernel.threads)
            assert tensor_layout is not None, "a tile that no warps can reach"
            self.fix_exactly(destination if source.scope == "tmem" else source, tensor_layout, op)
        if source.scope != "fragment" or destination.scope != "fragment":
            return
        if source.shape != destination.shape:
            raise Conflict(op, source, source.span)
        a, b = self.known.get(source.name), self.known.get(destination.name)
        if a is not None and b is not None and self.differs(destination, a[0]):
            if not a[0].shares_threads(b[0]):
                raise Conflict(op, source, a[1])
            return
        if a is not None:
            self.fix(destination, a[0], op)
        elif b is not None:
            self.fix(source, b[0], op)

    def nest(self, nest: tile.Parallel) -> None:
        uses, deciding = self.uses(nest)
        if nest.layout is not None:
            self.sweep(nest, uses, digits(nest.layout, self.kernel.threads))
            return
        whole = [u for u in deciding if len(u.by) == len(nest.vars) and u.buffer.name in self.known]
        swept = (_sweeping(u, self.known[u.buffer.name][0], nest.extents) for u in whole)
        layouts = [layout for layout in swept if layout is not None]
        if layouts:
            self.sweep(nest, uses, min(layouts, key=lambda layout: self.moved(uses, layout)))
        elif whole or any(use.dims is None for use in uses):
            self.sweep(nest, [use for use in uses if use.dims is None or use in whole], None)

    def uses(self, nest: tile.Parallel) -> tuple[list[Use], list[Use]]:
        """Return the uses of fragments of a nest and the deciding ones, cached."""
        if Same(nest) not in self.nest_uses:
            uses = list(fragment_uses(nest))
            self.nest_uses[Same(nest)] = uses, _deciding(uses)
        return self.nest_uses[Same(nest)]

    def moved(self, uses: list[Use], whole: Fragment) -> int:
        """Count the bytes of the fragments whose layout is not the one that a nest of layout `whole` needs."""
        conflicting = {use.buffer for use in uses if use.dims is None or self.differs(use.buffer, _needed(use, whole))}
        return sum(buffer.bytes for buffer in conflicting)

    def sweep(self, nest: tile.Parallel, uses: list[Use], whole: Fragment | None) -> None:
        """Run the nest in this layout: fix the layouts of its fragments, or raise a conflict."""
        conflicting: list[Use] = []
        for use in uses:
            if use.dims is None or whole is None:
                conflicting.append(use)
                continue
            needed = _needed(use, whole)
            if needed is not None:
                self.known.setdefault(use.buffer.name, (needed, nest.span))
            if self.differs(use.buffer, needed):
                conflicting.append(use)
        if conflicting:
            buffer = conflicting[0].buffer
            _, origin = self.known.get(buffer.name, (None, buffer.span))
            raise Conflict(nest, buffer, origin, frozenset(use.indices for use in conflicting if use.buffer == buffer))

    def rows(self, nest: tile.Parallel) -> None:
        """Fix the fragments of a nest that all have fewer dimensions than it: the first known one decides for the
        others."""
        uses, deciding = self.uses(nest)
        deciding = [use for use in deciding if use.buffer.name in self.known]
        reached = [use for use in deciding if use.dims is not None and not use.is_reshaped]
        known = [(use.dims, self.known[use.buffer.name][0]) for use in reached if use.dims is not None]
        if not known or any(use.dims is not None and len(use.dims) == len(nest.vars) for use in uses):
            return
        swept = [extended(layout, dims, nest.extents) for dims, layout in known]
        self.sweep(nest, uses, next((s for s in swept if all(holds(s, *use) for use in known)), swept[0]))


def _needed(use: Use, whole: Fragment) -> Fragment | None:
    """Return the layout that the fragment needs in a nest of layout `whole`, or None where there is none."""
    assert use.dims is not None
    if use.is_reshaped:
        return whole.reshaped(use.buffer.shape)
    layout: Fragment | None = whole.project(use.dims)
    for dim, by in enumerate(use.by):
        layout = None if layout is None else layout.grouped(dim, by)
    return None if layout is None else with_unit_dims(layout, use.buffer.shape)


def _sweeping(use: Use, layout: Fragment, extents: tuple[int, ...]) -> Fragment | None:
    """Return the layout of a nest of these extents that indexes a fragment of this layout with all its variables."""
    dims = use.dims
    assert dims is not None
    if use.is_reshaped:
        return layout.reshaped(extents)
    layout = without_unit_dims(layout, len(dims))
    for dim, by in enumerate(use.by):
        layout = layout.widened(dim, by)
    return layout if dims == tuple(range(len(dims))) else layout.project(tuple(dims.index(d) for d in range(len(dims))))
