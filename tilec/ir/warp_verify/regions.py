"""Bounds of the parts of tensors that accesses reach, computed with the values of the loops' variables: the verifier of
warp programs asks whether two accesses reach different elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from tilec.ir import tile, warp
from tilec.ir.placement import NotArithmetic, evaluate_index
from tilec.ir.warp_verify.effects import operation_effects
from tilec.ir.warp_verify.owners import SAMPLES, are_disjoint, list_accessed_elements
from tilec.ir.warp_verify.run_state import Access, Range, Reached, RoleState
from tilec.ir.warp_verify.scenarios import ITERATION_DISTANCES
from tilec.support.identity import IdentityKey

MAX_PLACES = 1 << 14
"""The most places of an access in a dimension that are kept one by one, to bound time and memory."""


class TensorParts:
    """The parts of tensors that the operations of a program reach. `tensors` are those of which threads may reach one
    another's elements, `loops` the variables of the outermost loops that do so."""

    def __init__(self, program: warp.Program) -> None:
        self.fixed = (*program.block_vars, *(p for p in program.params if isinstance(p, tile.Var)))
        self.tensors = frozenset(_find_shared_tensors(program, self.fixed))
        self.loops = frozenset(_find_loop_variables(program, self.tensors)) if self.tensors else frozenset()

    def reached(self, op: warp.Operation, tensor: str, write: bool, values: Mapping[str, int]) -> Reached:
        """Return, per sample of the fixed variables, the boxes of a tensor that an operation reads or writes; () if
        unshared. `values` are those of the loops' variables."""
        if tensor not in self.tensors:
            return ()
        used = tuple((name, values[name]) for name in _find_index_variables(op, tensor, write) if name in values)
        return tuple(_compute_boxes(op, used, tensor, write, self.fixed, sample) for sample in SAMPLES)

    def keep(self, state: RoleState, op: warp.Operation, kept: list[Access]) -> None:
        """Drop from `kept` the completed accesses of earlier barrier intervals, and merge an operation's oldest
        executions. They become one access, with boxes around all of theirs."""
        kept[:] = [a for a in kept if a.group or a.interval >= state.interval]
        for write in (False, True):
            mine = [a for a in kept if a.by is op and a.write == write]
            merged = mine[: max(0, len(mine) - ITERATION_DISTANCES + 1)]
            for old, newer in itertools.pairwise(merged):
                newer.reached = _merge_boxes(old.reached, newer.reached)
            gone = {IdentityKey(old) for old in merged[:-1]}
            kept[:] = [a for a in kept if IdentityKey(a) not in gone]


@lru_cache(maxsize=1024)
def _find_index_variables(op: warp.Operation, tensor: str, write: bool) -> tuple[str, ...]:
    """Return the names of variables in the indices by which an operation reads or writes a tensor."""
    exprs = (index for _, indices, _, _ in _list_accesses(op, tensor, write) for index in indices)
    return tuple(dict.fromkeys(e.name for expr in exprs for e in tile.walk_expr(expr) if isinstance(e, tile.Var)))


def _find_shared_tensors(program: warp.Program, fixed: tuple[tile.Var, ...]) -> Iterator[str]:
    """Yield the names of tensors that are read and written, written by several operations, or by one from several
    threads, and of shared tiles that threads write each for itself. The last of these tensors is one whose iterations
    do not give each element to one thread. `fixed` are the block indices and scalar parameters."""
    yield from _find_tiles_of_threads(program)
    tensors = {p.name for p in program.params if isinstance(p, tile.Buffer)}
    readers: set[str] = set()
    writers: dict[str, list[warp.Operation]] = {}
    for op in program.operations():
        reads, writes, _, _ = operation_effects(op)
        readers |= reads & tensors
        for name in writes & tensors:
            writers.setdefault(name, []).append(op)
    for name, ops in writers.items():
        if name in readers or len(ops) > 1 or not are_disjoint(ops[0], ops[0], name, (True, True), fixed):
            yield name


def _find_tiles_of_threads(program: warp.Program) -> Iterator[str]:
    """Yield the names of shared tiles to which nests store in which each thread acts for itself."""
    for op in program.operations():
        if isinstance(op, warp.Elementwise) and op.nest.is_per_thread:
            stores = (s for s in tile.walk_statements(op.nest.body) if isinstance(s, tile.Store))
            yield from (s.buffer.name for s in stores if s.buffer.scope == "shared")


def _find_loop_variables(program: warp.Program, tensors: frozenset[str]) -> Iterator[str]:
    """Yield the variables of the outermost loops that contain an operation on one of these tensors."""
    for role in program.roles:
        for loop in _find_outermost_loops(role.body):
            inner = (operation_effects(op) for op in warp.walk_operations(loop.body))
            if any(not tensors.isdisjoint(reads | writes) for reads, writes, _, _ in inner):
                yield loop.var.name


def _find_outermost_loops(body: tuple[warp.Operation, ...]) -> Iterator[warp.Loop]:
    """Yield the loops of a body that are inside no other loop; none inside an endless loop."""
    for op in body:
        if isinstance(op, warp.Loop):
            yield op
        elif not isinstance(op, warp.Forever):
            for inner in warp.nested_bodies(op):
                yield from _find_outermost_loops(inner)


def are_always_disjoint(one: Reached, other: Reached) -> bool:
    """Return whether all boxes of one access are disjoint from the other's, in every sample; False if either is
    unknown."""
    return bool(one and other) and all(
        boxes and others and all(_are_disjoint(a, b) for a in boxes for b in others)
        for boxes, others in zip(one, other, strict=True)
    )


def _merge_boxes(one: Reached, other: Reached) -> Reached:
    """Return the smallest boxes that contain those of two executions of one operation, pair by pair."""
    return tuple(
        tuple(tuple(map(_merge_ranges, a, b)) for a, b in zip(boxes, others, strict=True))
        for boxes, others in zip(one, other, strict=True)
    )


def _merge_ranges(one: Range | None, other: Range | None) -> Range | None:
    """Return the range around two ranges, with the first's variables; None if either is unknown."""
    return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]), one[2], None)


def _are_disjoint(one: tuple[Range | None, ...], other: tuple[Range | None, ...]) -> bool:
    """Return whether two boxes are proven disjoint along a dimension whose ranges depend on the same fixed variables.
    Unknown ranges, None, prove nothing.
    """
    for a, b in zip(one, other, strict=True) if len(one) == len(other) else ():
        # Ranges that depend on different fixed variables cannot be compared.
        if a is not None and b is not None and a[2] == b[2] and (a[1] < b[0] or b[1] < a[0] or _are_interleaved(a, b)):
            return True
    return False


def _are_interleaved(one: Range, other: Range) -> bool:
    """Return whether two ranges have no place in common although one lies within the other."""
    return one[3] is not None and other[3] is not None and one[3].isdisjoint(other[3])


@lru_cache(maxsize=1024)
def _compute_boxes(
    op: warp.Operation,
    values: tuple[tuple[str, int], ...],
    tensor: str,
    write: bool,
    fixed: tuple[tile.Var, ...],
    sample: int,
) -> tuple[tuple[Range | None, ...], ...]:
    """Return the box of each read, or with `write` store, of a tensor by an operation, None for an unknown dimension.
    It is empty for strided tensors. The same for vectors, and elements of fewer than 8 bits.
    """
    known = dict(values) | {var.name: sample * (n + 1) for n, var in enumerate(fixed)}
    found = []
    for buffer, indices, extents, over in _list_accesses(op, tensor, write):
        if buffer.strides is not None or buffer.lanes != 1 or buffer.dtype.bits < 8:
            return ()
        box = []
        for index, extent in zip(indices, extents, strict=True):
            places = _list_index_values(index, known, over)
            depends = frozenset(e for e in tile.walk_expr(index) if isinstance(e, tile.Var) and e in fixed)
            box.append(None if places is None else _make_range(places, extent, depends))
        found.append(tuple(box))
    return tuple(found)


def _make_range(places: list[int], extent: int, depends: frozenset[tile.Var]) -> Range:
    """Return the range of an access that begins at these places; with all places if they are few."""
    few = len(places) * extent <= MAX_PLACES
    each = frozenset(place + n for place in set(places) for n in range(extent)) if few else None
    return min(places), max(places) + extent - 1, depends, each


_Access = tuple[tile.Buffer, Sequence[tile.Expr], Sequence[int], Mapping[tile.Var, int]]


def _list_accesses(op: warp.Operation, tensor: str, write: bool) -> Iterator[_Access]:
    """Yield buffer, first index, extents, and own variables' extents, of each access of a nest or cp.async to a tensor.
    Of a nest these are the stores if `write`, else the loads. Nothing is yielded where atomics or scalars reach it.
    """
    if tensor in warp.scalar_reads(op):
        return
    match op:
        case warp.CpAsync(source=tile.Region(buffer=buffer, start=start, extent=extent)) if buffer.name == tensor:
            yield buffer, start, extent, {}
        case warp.CpAsync(source=warp.Gather(buffer=buffer) as gather, destination=into) if buffer.name == tensor:
            if len(gather.variables) == len(into.extent):
                over = dict(zip(gather.variables, into.extent, strict=True))
                yield buffer, gather.indices, (1,) * len(gather.indices), over
        case warp.Elementwise(nest=nest, block=None):
            stores = [
                s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store) and s.buffer.name == tensor
            ]
            if not any(s.atomic is not None for s in stores):
                over = dict(zip(nest.vars, nest.extents, strict=True))
                for buffer, indices in list_accessed_elements(op, tensor, write):
                    yield buffer, indices, (1,) * len(indices), over
        case _:
            pass


def _list_index_values(index: tile.Expr, known: Mapping[str, int], over: Mapping[tile.Var, int]) -> list[int] | None:
    """Return the values of an index over all values of the operation's own variables; None if it depends on others."""
    mine = [e for e in dict.fromkeys(tile.walk_expr(index)) if isinstance(e, tile.Var)]
    own = [var for var in mine if var in over]
    values: dict[tile.Var, tile.Expr] = {
        var: tile.int32_const(known[var.name]) for var in mine if var not in over and var.name in known
    }
    try:
        return evaluate_index(tile.substitute_variables(index, values), tuple(over[var] for var in own), tuple(own))
    except NotArithmetic:
        return None
