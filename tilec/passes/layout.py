"""Give every tile a layout: registers for fragments, byte order for shared tiles.

Fragment layouts spread from where they are fixed (accumulators) along elementwise nests, reductions and copies;
what nothing fixes gets the coalesced layout. Two demands that differ are an error that names both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.diag import Label, fail
from tilec.ir.layout import (
    Axis,
    Fragment,
    SharedLayout,
    local,
    mma_accumulator,
    operand_a,
    per_thread,
    row_major,
    wgmma_accumulator,
)
from tilec.ir.tile import (
    Bind,
    Buffer,
    Const,
    Expr,
    If,
    Kernel,
    Load,
    LoopLayout,
    Parallel,
    Pinned,
    Region,
    Stmt,
    Store,
    TileOp,
    Var,
    walk,
    walk_expr,
)
from tilec.passes.atoms import Access, candidates, is_legal, shared_accesses, shared_layout
from tilec.passes.loop_layout import digits
from tilec.passes.select import Form, Selected, mma_warps, wgmma_groups
from tilec.records import dataclass
from tilec.source import Span

VECTOR_BYTES = 16  # the widest access of one thread


@dataclass(frozen=True, slots=True)
class Laid:
    """A kernel whose tiles all have layouts, by buffer name. `nests` are those of the elementwise nests, by identity
    order.
    """

    kernel: Kernel
    form: Form
    fragments: dict[str, Fragment]
    shared: dict[str, SharedLayout]

    def nest_layout(self, nest: Parallel) -> Fragment:
        """The layout that a parallel nest sweeps: the one it asks for; that of a fragment it indexes with all its
        variables; with fragments of fewer dimensions, one in which each thread has what it needs of them, and those
        that have the same share the rest, unless the nest sets such a fragment; else coalesced."""
        if nest.is_per_thread:
            return per_thread(self.kernel.threads, nest.extents[1:])
        if nest.layout is not None:
            return digits(nest.layout, self.kernel.threads)
        uses = [(dims, self.fragments[buffer.name]) for buffer, dims in deciding_uses(nest)]
        for dims, layout in uses:
            if dims == tuple(range(len(nest.vars))):
                return layout
        vector = nest.width or _widest_vector(nest)
        swept = [_extended(layout, dims, nest.extents) for dims, layout in uses]
        if not any(isinstance(s, Store) and s.buffer.scope == "fragment" for s in walk(nest.body)):
            swept = [s for use in uses if (s := _shared_out(*use, nest.extents, vector)) is not None] + swept
        for whole in swept:
            if all(_holds(whole, dims, layout) for dims, layout in uses):
                return whole
        return row_major(nest.extents, self.kernel.threads, vector)


def assign(selected: Selected) -> Laid:
    kernel = selected.kernel
    fragments = _Fragments(kernel).solve()
    shared = _shared_layouts(selected, fragments)
    return Laid(kernel, selected.form, fragments, shared)


def _shared_layouts(selected: Selected, fragments: dict[str, Fragment]) -> dict[str, SharedLayout]:
    """Each alias group, that is each tile with its versions, by the cheapest layout for all that reaches it."""
    accesses: dict[str, list[Access]] = {b.name: [] for b in selected.kernel.buffers if b.scope == "shared"}
    for access in shared_accesses(selected.kernel, fragments):
        accesses[access.tile].append(access)
    weights, always = selected.weights, selected.always_swizzle
    tiles = [b for b in selected.kernel.buffers if b.scope == "shared"]
    pinned = {p.buffer: p for p in selected.kernel.layouts}
    return {
        b.name: _asked_for(pinned[b], accesses[b.name])
        if b in pinned
        else shared_layout(b, accesses[b.name], weights, always_swizzle=always)
        for b in tiles
    }


def _asked_for(pinned: Pinned, accesses: list[Access]) -> SharedLayout:
    """The layout that a person gives a shared tile, if all that reaches it can."""
    layout = next(c for c in candidates(pinned.buffer) if c.swizzle == pinned.layout)
    refused = next((a for a in accesses if not is_legal(layout, [a.pattern])), None)
    if refused is not None:
        fail(
            "layout-conflict",
            f"{pinned.buffer.name} cannot have the layout that it is given",
            pinned.span,
            "given here",
            secondary=(Label(refused.span, "this cannot reach such a tile"),),
            help="use tilelang.layout.make_swizzled_layout, or leave the layout to tilec",
        )
    return layout


def fragment_uses(nest: Parallel) -> Iterator[tuple[Buffer, tuple[int, ...], Span]]:
    """Each use of a fragment in a nest: the buffer, and which loop variable indexes each of its dimensions."""
    place = {var: i for i, var in enumerate(nest.vars)}

    def dims(buffer: Buffer, indices: tuple[Expr, ...], span: Span) -> tuple[int, ...]:
        for dim, index in enumerate(indices):
            if index not in place and not (buffer.shape[dim] == 1 and index == Const(0, index.dtype)):
                fail(
                    "fragment-index",
                    f"the fragment {buffer.name} must be indexed with the variables of T.Parallel",
                    span,
                    f"index {dim} is another expression",
                    secondary=(Label(buffer.span, "a fragment lives in registers"),),
                    help="use a tile made by T.alloc_shared where any element may be read",
                )
        return tuple(place[i] for i in indices if isinstance(i, Var))

    for stmt in walk(nest.body):
        exprs: tuple[Expr, ...] = ()
        match stmt:
            case Store(buffer=buffer, indices=indices, value=value, span=span):
                exprs = (value, *indices)
                if buffer.scope == "fragment":
                    yield buffer, dims(buffer, indices, span), span
            case Bind(value=value):
                exprs = (value,)
            case If(condition=condition):
                exprs = (condition,)
            case _:
                pass
        for expr in exprs:
            for e in walk_expr(expr):
                if isinstance(e, Load) and e.buffer.scope == "fragment":
                    yield e.buffer, dims(e.buffer, e.indices, stmt.span), stmt.span


def _widest_vector(nest: Parallel) -> int:
    """Elements a thread may move at once: as many of the largest element type as fit 16 bytes."""
    sizes = [1]
    for stmt in walk(nest.body):
        if isinstance(stmt, Store):
            sizes.append(stmt.buffer.dtype.bytes)
            sizes += [e.buffer.dtype.bytes for e in walk_expr(stmt.value) if isinstance(e, Load)]
    return VECTOR_BYTES // max(sizes)


def deciding_uses(nest: Parallel) -> Iterator[tuple[Buffer, tuple[int, ...]]]:
    """Those that say which thread runs what. One element that is only read does not: each thread has a copy of it, as
    of a variable."""
    stored = {stmt.buffer for stmt in walk(nest.body) if isinstance(stmt, Store)}
    for buffer, dims, _ in fragment_uses(nest):
        if dims or buffer in stored:
            yield buffer, dims


class _Fragments:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known: dict[str, tuple[Fragment, Span]] = {}

    def solve(self) -> dict[str, Fragment]:
        fragments = [b for b in self.kernel.buffers if b.scope == "fragment"]
        stmts = list(walk(self.kernel.body))
        for buffer in self.kernel.buffers:
            if buffer.scope == "local":
                self.fix(buffer, local(self.kernel.threads, buffer.shape), buffer.span)
        for pinned in self.kernel.layouts:
            if isinstance(pinned.layout, LoopLayout):
                self.fix(pinned.buffer, digits(pinned.layout, self.kernel.threads), pinned.span)
        while True:
            before = len(self.known)
            for stmt in stmts:
                self.spread(stmt)
            if len(self.known) > before:
                continue
            for stmt in stmts:
                if isinstance(stmt, Parallel):
                    self.rows(stmt)
            if len(self.known) > before:
                continue
            unknown = [b for b in fragments if b.name not in self.known]
            if not unknown:
                return {name: layout for name, (layout, _) in self.known.items()}
            # The tile with the most dimensions fixes those that are its projections.
            first = max(unknown, key=lambda b: len(b.shape))
            vector = VECTOR_BYTES // self.memory_bytes(first)
            self.fix(first, row_major(first.shape, self.kernel.threads, vector), first.span)

    def memory_bytes(self, fragment: Buffer) -> int:
        """The size of the widest element that is copied between the fragment and memory."""
        sizes = [0]
        for stmt in walk(self.kernel.body):
            if (
                isinstance(stmt, TileOp)
                and stmt.name in ("copy", "atomic")
                and any(r.buffer == fragment for r in stmt.regions)
            ):
                sizes += [r.buffer.dtype.bytes for r in stmt.regions if r.buffer.scope != "fragment"]
        return max(sizes) or fragment.dtype.bytes

    def fix(self, buffer: Buffer, layout: Fragment, span: Span) -> None:
        if buffer.name not in self.known:
            self.known[buffer.name] = (layout, span)
            return
        other, where = self.known[buffer.name]
        if other.canonical() != layout.canonical():
            fail(
                "layout-conflict",
                f"two statements need {buffer.name} in different registers",
                span,
                "this one needs another layout",
                secondary=(Label(where, "the layout comes from here"),),
                help="copy through a tile made by T.alloc_shared in between",
            )

    def get(self, buffer: Buffer) -> Fragment | None:
        found = self.known.get(buffer.name)
        return found[0] if found else None

    def spread(self, stmt: Stmt) -> None:
        match stmt:
            case TileOp(name="gemm"):
                a, _, c = (r.buffer for r in stmt.regions)
                accumulator = self.accumulator(stmt)
                self.fix(c, accumulator, stmt.span)
                if a.scope == "fragment":
                    self.fix(a, operand_a(accumulator, a.shape[1], a.dtype.bytes), stmt.span)
            case TileOp(name="reduce"):
                source = self.get(stmt.regions[0].buffer)
                if source is not None:
                    self.fix(stmt.regions[1].buffer, self.reduced(stmt, source), stmt.span)
            case TileOp(name="copy"):
                self.copy(stmt.regions[0], stmt.regions[1], stmt.span)
            case Parallel():
                self.nest(stmt)
            case _:
                pass

    def accumulator(self, op: TileOp) -> Fragment:
        m, n = op.regions[2].buffer.shape
        if op.attr("via") == "wgmma":
            groups = wgmma_groups(op, self.kernel.threads)
            assert groups is not None
            return wgmma_accumulator((m, n), *groups)
        warps = mma_warps(op, self.kernel.threads)
        assert warps is not None
        return mma_accumulator((m, n), *warps)

    def reduced(self, op: TileOp, source: Fragment) -> Fragment:
        dim = op.attr("dim")
        assert isinstance(dim, int)
        keep = tuple(d for d in range(len(source.shape)) if d != dim)
        layout = source.project(keep)
        shape = op.regions[1].buffer.shape
        if len(shape) == len(source.shape):  # the dimension is kept with extent 1
            layout = _spread(layout, shape, keep)
        return layout

    def copy(self, source: Region, destination: Region, span: Span) -> None:
        if source.buffer.scope == destination.buffer.scope == "fragment":
            a, b = self.get(source.buffer), self.get(destination.buffer)
            if a is not None:
                self.fix(destination.buffer, a, span)
            elif b is not None:
                self.fix(source.buffer, b, span)

    def nest(self, nest: Parallel) -> None:
        uses = list(fragment_uses(nest))
        everything = tuple(range(len(nest.vars)))
        whole = next(
            (self.known[b.name][0] for b, dims, _ in uses if dims == everything and b.name in self.known), None
        )
        if nest.layout is not None:
            whole = digits(nest.layout, self.kernel.threads)
        if whole is None:
            return
        for buffer, dims, span in uses:
            if dims != tuple(sorted(dims)):
                fail(
                    "fragment-index",
                    f"the fragment {buffer.name} is indexed in another order than the loop",
                    span,
                    "its rows would have to move between threads",
                    help="transpose through a tile made by T.alloc_shared",
                )
            self.fix(buffer, _with_unit_dims(whole.project(dims), buffer.shape), span)

    def rows(self, nest: Parallel) -> None:
        """A nest that only has fragments of fewer dimensions than its own: the first that is known decides which
        thread has which of the others."""
        uses = list(fragment_uses(nest))
        known = [(dims, self.known[b.name][0]) for b, dims in deciding_uses(nest) if b.name in self.known]
        if not known or any(len(dims) == len(nest.vars) for _, dims, _ in uses):
            return
        swept = [_extended(layout, dims, nest.extents) for dims, layout in known]
        whole = next((s for s in swept if all(_holds(s, *use) for use in known)), swept[0])
        for buffer, dims, span in uses:
            self.fix(buffer, _with_unit_dims(whole.project(dims), buffer.shape), span)


def _extended(layout: Fragment, dims: tuple[int, ...], extents: tuple[int, ...]) -> Fragment:
    """A layout of `extents` whose dimensions `dims` lie as in this one; each thread has all of the others."""
    wide = _spread(_without_unit_dims(layout, len(dims)), extents, dims)
    more = tuple(Axis(extents[d], d, 1) for d in reversed(range(len(extents))) if d not in dims)
    return Fragment(extents, wide.threads, more + wide.registers)


def _shared_out(dims: tuple[int, ...], layout: Fragment, extents: tuple[int, ...], vector: int) -> Fragment | None:
    """A layout of `extents` whose dimensions `dims` lie as in this one, and whose last is shared out among the threads
    that repeat each other: in runs of at most `vector`, neighbouring threads next to each other. None where their
    number does not divide it."""
    last = len(extents) - 1
    known = _without_unit_dims(layout, len(dims))
    repeating = math.prod(a.size for a in known.threads if a.dim < 0)
    if last in dims or repeating == 1 or extents[last] % repeating:
        return None
    run = math.gcd(extents[last] // repeating, vector)
    wide, stride = _extended(layout, dims, extents), run
    threads: list[Axis] = []
    for axis in wide.threads:
        threads.append(axis if axis.dim >= 0 else Axis(axis.size, last, stride))
        stride *= axis.size if axis.dim < 0 else 1
    others = tuple(a for a in wide.registers if a.dim != last)
    return Fragment(extents, tuple(threads), (Axis(run, last, 1), Axis(extents[last] // stride, last, stride), *others))


def _holds(whole: Fragment, dims: tuple[int, ...], layout: Fragment) -> bool:
    """Whether a tile of this layout, indexed with the dimensions `dims` of the other, lies in the same threads."""
    return whole.project(dims).canonical() == _without_unit_dims(layout, len(dims)).canonical()


def _without_unit_dims(layout: Fragment, count: int) -> Fragment:
    """Drop dimensions of extent 1 that the indices skip, where there are more than `count`."""
    if len(layout.shape) == count:
        return layout
    return layout.project(tuple(d for d, extent in enumerate(layout.shape) if extent != 1))


def _with_unit_dims(layout: Fragment, shape: tuple[int, ...]) -> Fragment:
    """Put back dimensions of extent 1 that the indices skip."""
    if len(layout.shape) == len(shape):
        return layout
    kept = [d for d, extent in enumerate(shape) if extent != 1]
    kept = kept if len(kept) == len(layout.shape) else list(range(len(layout.shape)))
    return _spread(layout, shape, tuple(kept))


def _spread(layout: Fragment, shape: tuple[int, ...], dims: tuple[int, ...]) -> Fragment:
    """The layout with its dimensions at the places `dims` of a larger shape."""

    def moved(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.size, dims[a.dim] if a.dim >= 0 else -1, a.stride) for a in axes)

    return Fragment(shape, moved(layout.threads), moved(layout.registers))
