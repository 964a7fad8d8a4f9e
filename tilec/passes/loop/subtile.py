"""Subtiling: a dimension of tiles split into parts that are tiles of their own, with their own statements.

Statements that run one after the other on a whole tile can overlap on its parts: the softmax of one part is computed
while the tensor cores multiply for another. The parts are written into the text; the scheduler orders them.

A dimension is split together with related ones. Splitting the columns of an accumulator splits those of all tiles
computed from it element by element, the rows of its next factor, and the rows of the loads that fill them: the pass
follows operations from tile to tile. An operation that reduces the dimension, or sums products along it, continues in
its second part from the result of the first; all others do the same to each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.rewrite import map_declared_variables, map_expressions, map_nested_bodies
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.rewriting.fold_constants import fold_constants
from tilec.rewriting.make_names_unique import UniqueNames
from tilec.support.records import dataclass

Dimension = tuple[tile.Buffer, int]
"""One dimension of a tile."""


class Indivisible(Exception):
    """Raised for a dimension that cannot be split; its text tells the author of the kernel why."""


def split_dimension(kernel: tile.Kernel, subtiled: tile.Buffer, dim: int, parts: int) -> tile.Kernel:
    """Return the kernel with this dimension, and all related ones, split into `parts`; raise `Indivisible` if it cannot
    be."""
    return _KernelSplitter(kernel, find_related_dimensions(kernel, (subtiled, dim)), parts).build_kernel()


def find_related_dimensions(kernel: tile.Kernel, first: Dimension) -> dict[tile.Buffer, int]:
    """Return the dimension of each tile that must be split with the first; raise `Indivisible` if a tile has two."""
    groups = [
        {(stmt_tile, d) for stmt_tile, d in group if stmt_tile.scope != "global"}
        for stmt in tile.walk_statements(kernel.body)
        for group in _find_common_indices(stmt)
    ]
    found = {first}
    while more := {d for group in groups if found & group for d in group} - found:
        found |= more
    split: dict[tile.Buffer, int] = {}
    for buffer in kernel.buffers:
        dimensions = [d for subtiled, d in found if subtiled == buffer]
        if len(dimensions) > 1:
            raise Indivisible(f"two dimensions of {buffer.name} would be split")
        split.update((buffer, d) for d in dimensions)
    return split


def _find_common_indices(stmt: tile.Stmt) -> Iterator[set[Dimension]]:
    """Yield the sets of tile dimensions that one index or axis of a statement runs over, without nested statements."""
    match stmt:
        case tile.TileOp(regions=regions):
            for axis in stmt.axes:
                yield {(regions[r].buffer, d) for r, d in axis.at}
        case tile.Parallel(vars=variables):
            found = [access for _, access in find_element_accesses(stmt.body)]
            for var in variables:
                yield {(access.buffer, d) for access in found for d, i in enumerate(access.indices) if i == var}
        case _:
            return


class _KernelSplitter:
    """A kernel whose tiles are split along these dimensions."""

    def __init__(self, kernel: tile.Kernel, split: Mapping[tile.Buffer, int], parts: int) -> None:
        self.whole, self.split, self.parts = kernel, split, parts
        for pinned in kernel.layouts:
            if pinned.buffer in split:
                raise Indivisible(f"{pinned.buffer.name} has a given layout")
        for buffer, dim in split.items():
            if buffer.shape[dim] % parts or buffer.lanes != 1:
                elements = f"the {buffer.shape[dim]} elements of {buffer.name}"
                raise Indivisible(f"{elements} cannot be split into {parts} equal parts")
        named = (*kernel.params, *kernel.buffers, *kernel.block_vars, *_declared_variables(kernel.body))
        self.unique = UniqueNames({one.name for one in named})
        self.tiles = {buffer: tuple(self._build_part(buffer) for _ in range(parts)) for buffer in split}

    def _build_part(self, buffer: tile.Buffer) -> tile.Buffer:
        """Return a new tile of one part of the buffer, with a name of its own."""
        extents = tuple(e // self.parts if d == self.split[buffer] else e for d, e in enumerate(buffer.shape))
        return replace(buffer, name=self.unique.take(buffer.name), extents=extents)

    def build_kernel(self) -> tile.Kernel:
        """Return the kernel with split tiles and statements, folded; raise `Indivisible` where a statement cannot be
        split."""
        buffers = tuple(part for buffer in self.whole.buffers for part in self.tiles.get(buffer, (buffer,)))
        return fold_constants(replace(self.whole, buffers=buffers, body=self.rewrite_body(self.whole.body)))

    def rewrite_body(self, body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
        return tuple(new for stmt in body for new in self.rewrite_statement(stmt))

    def rewrite_statement(self, stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return a statement's parts, one for each part of its tiles; itself if no tile is split, or raise
        `Indivisible`."""
        if not self.touches(stmt):
            return (stmt,)
        match stmt:
            case tile.For(stage=stage) if stage is not None:
                raise Indivisible("the loop has a manual schedule")
            case tile.For() | tile.While():
                return (map_nested_bodies(stmt, self.rewrite_body),)
            case tile.If() if not self.is_about_one_part(stmt):
                return (map_nested_bodies(stmt, self.rewrite_body),)
            case tile.If() | tile.TileOp() | tile.Parallel():
                return tuple(_StatementPart(self, stmt, part).rewrite_statement(stmt) for part in range(self.parts))
            case _:
                raise Indivisible(f"line {stmt.span.line} accesses single elements of a tile")

    def touches(self, stmt: tile.Stmt) -> bool:
        return any(buffer in self.split for buffer in (*find_reads(stmt), *find_writes(stmt)))

    def is_about_one_part(self, guard: tile.If) -> bool:
        """Return whether each part can have its own copy of an `if`: all under it is split, and none sets its
        condition."""
        inside = [s for body in tile.nested_bodies(guard) for s in body if not isinstance(s, tile.Bind)]
        own = {b for s in inside for b in find_writes(s)}
        asked = {e.buffer for e in tile.walk_expr(guard.condition) if isinstance(e, tile.Load)}
        return not own & asked and all(isinstance(s, tile.TileOp | tile.Parallel) and self.touches(s) for s in inside)


class _StatementPart:
    """One part of a statement. All variables that it defines get new names."""

    def __init__(self, division: _KernelSplitter, stmt: tile.Stmt, part: int) -> None:
        self.of, self.part = division, part
        self.names = {var: replace(var, name=division.unique.take(var.name)) for var in _declared_variables((stmt,))}

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Return this part of an operation, nest, bind or `if`; raise `Indivisible` for others."""
        match stmt:
            case tile.TileOp():
                return self.rewrite_operation(stmt)
            case tile.Parallel():
                return self.rewrite_nest(stmt)
            case tile.Bind() | tile.If():
                named = map_expressions(map_declared_variables(stmt, self.names.__getitem__), self.rewrite_expression)
                return map_nested_bodies(named, lambda body: tuple(map(self.rewrite_statement, body)))
            case _:
                raise Indivisible(f"line {stmt.span.line} cannot be split into parts")

    def rewrite_expression(self, expr: tile.Expr) -> tile.Expr:
        """Return the expression with this part's new names of declared variables."""
        if isinstance(expr, tile.Var):
            return self.names.get(expr, expr)
        return map_expressions(expr, self.rewrite_expression)

    def rewrite_operation(self, op: tile.TileOp) -> tile.TileOp:
        """Return this part of an operation on split tiles; a later part of a reduction continues the earlier result.
        Raises `Indivisible` for an operation that cannot be split."""
        regions = [map_expressions(r, self.rewrite_expression) for r in op.regions]
        for axis in op.axes:
            if not any(self.of.split.get(op.regions[r].buffer) == d for r, d in axis.at):
                continue
            for r, d in axis.at:
                regions[r] = self.slice_region(op.regions[r], regions[r], d)
            if axis.folded and self.part:
                op = op.continued()
        if any(r.buffer in self.of.split for r in regions):
            raise Indivisible(f"T.{op.name} in line {op.span.line} cannot be split into parts")
        return op.with_regions(tuple(regions))

    def slice_region(self, whole: tile.Region, region: tile.Region, dim: int) -> tile.Region:
        """Return this part of a region: all of one part of a split tile, or a slice of a tensor. Raises
        `Indivisible` for a region that is only a part of a split tile."""
        size = whole.extent[dim] // self.of.parts
        extent = tuple(size if d == dim else e for d, e in enumerate(region.extent))
        if region.buffer in self.of.split:
            if whole.extent[dim] != region.buffer.shape[dim]:
                raise Indivisible(f"a statement uses only a part of {region.buffer.name}")
            return replace(region, buffer=self.of.tiles[region.buffer][self.part], extent=extent)
        offset = tile.int32_const(size * self.part)
        start = tuple(add_exprs(s, offset) if d == dim else s for d, s in enumerate(region.start))
        return replace(region, start=start, extent=extent)

    def rewrite_nest(self, nest: tile.Parallel) -> tile.Parallel:
        """Return the nest over this part of its split tiles; raise `Indivisible` if these have other indices than
        variables."""
        found = [access for _, access in find_element_accesses(nest.body) if access.buffer in self.of.split]
        split = {access.indices[self.of.split[access.buffer]] for access in found}
        var, extent = next((v for v in zip(nest.vars, nest.extents, strict=True) if v[0] in split), (None, 0))
        if var is None or len(split) > 1 or nest.layout is not None or nest.is_per_thread:
            raise Indivisible(f"line {nest.span.line} indexes tiles by something other than its loop variables")
        if any(access.buffer.shape[self.of.split[access.buffer]] != extent for access in found):
            raise Indivisible(f"line {nest.span.line} uses only some elements of a tile")
        size = extent // self.of.parts
        inside = _NestPart(self.of, self.part, self.names, var, size)
        return replace(
            nest,
            vars=tuple(self.names[v] for v in nest.vars),
            extents=tuple(size if v == var else e for v, e in zip(nest.vars, nest.extents, strict=True)),
            body=tuple(map(inside.rewrite_statement, nest.body)),
        )


@dataclass(frozen=True, slots=True)
class _NestPart:
    """The statements of a nest whose `var` runs over one part; other uses of `var` add the part's offset."""

    of: _KernelSplitter
    part: int
    names: Mapping[tile.Var, tile.Var]
    var: tile.Var
    size: int

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Return a store, bind, print or `if` of the nest on this part, with new variables; raise `Indivisible` for
        others."""
        named = map_declared_variables(stmt, self.names.__getitem__)
        match named:
            case tile.Store(buffer=buffer, indices=indices, value=value):
                into, at = self.locate_element(buffer, indices)
                return replace(named, buffer=into, indices=at, value=self.rewrite_expression(value))
            case tile.Bind() | tile.Print() | tile.If():
                return map_nested_bodies(
                    map_expressions(named, self.rewrite_expression),
                    lambda body: tuple(map(self.rewrite_statement, body)),
                )
            case _:
                raise Indivisible(f"line {stmt.span.line} cannot be split into parts")

    def locate_element(
        self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]
    ) -> tuple[tile.Buffer, tuple[tile.Expr, ...]]:
        """Return the buffer of this part, with the indices there; an unsplit buffer with rewritten indices."""
        if buffer not in self.of.split:
            return buffer, tuple(map(self.rewrite_expression, indices))
        dim = self.of.split[buffer]
        at = (self.names[self.var] if d == dim else self.rewrite_expression(i) for d, i in enumerate(indices))
        return self.of.tiles[buffer][self.part], tuple(at)

    def rewrite_expression(self, expr: tile.Expr) -> tile.Expr:
        """Return the expression with renamed variables and loads of this part; the split variable gets the part's
        offset."""
        if expr == self.var:
            return add_exprs(self.names[self.var], tile.int32_const(self.part * self.size))
        if isinstance(expr, tile.Var):
            return self.names.get(expr, expr)
        if isinstance(expr, tile.Load):
            buffer, indices = self.locate_element(expr.buffer, expr.indices)
            return tile.Load(buffer, indices)
        return map_expressions(expr, self.rewrite_expression)


def _declared_variables(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Var]:
    """Yield the variables that the statements and all nested in them declare."""
    for inner in tile.walk_statements(body):
        yield from tile.declared_variables(inner)
