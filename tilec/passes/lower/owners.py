"""The thread that reaches each element of a tensor: accesses with equal owners never meet in different threads, and
need no barrier.

An index that is a loop variable of the nest, times a number, plus what is the same throughout the block, determines the
variable from the element. Where that holds for all variables that are divided among threads, the element determines the
thread.
"""

from __future__ import annotations

from tilec.analysis.usage import list_expressions
from tilec.ir import tile, warp
from tilec.ir.affine import affine_form
from tilec.ir.layout import Axis
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """The distribution of threads. `indices` has the index behind each of their dimensions, `threads` the dimension of
    each of their digits."""

    threads: tuple[tuple[int, int, int], ...]  # size, stride, dimension of the tensor, or −1
    indices: tuple[tuple[int, int, int, frozenset[tuple[tile.Expr, int]]], ...]


def find_owners(op: warp.Operation, fixed: frozenset[tile.Var]) -> dict[tuple[str, bool], Owner]:
    """Return the owner of each tensor's elements in this operation, by name and by reading (False) or writing (True).
    Tensors whose elements do not determine the thread are left out. `fixed` are the variables that are constant in a
    block."""
    if not isinstance(op, warp.Elementwise) or op.block is not None:
        return {}
    stores = [s for s in tile.walk_statements(op.nest.body) if isinstance(s, tile.Store)]
    loads = [
        e
        for stmt in tile.walk_statements(op.nest.body)
        for expr in list_expressions(stmt)
        for e in tile.walk_expr(expr)
        if isinstance(e, tile.Load)
    ]
    groups: list[tuple[bool, list[tile.Store] | list[tile.Load]]] = [(False, loads), (True, stores)]
    if any(axis.dim < 0 and axis.size > 1 for axis in op.layout.threads):
        # Of threads with copies of an element one writes; the others read too where registers have copies.
        if any(s.buffer.scope == "shared" for s in stores):
            return {}
        if any(buffer.in_registers for buffer in (*(s.buffer for s in stores), *(e.buffer for e in loads))):
            groups = groups[1:]
    found: dict[tuple[str, bool], set[Owner | None]] = {}
    for write, accesses in groups:
        for access in accesses:
            known = _find_owner(op, access.indices, fixed) if access.buffer.scope == "global" else None
            found.setdefault((access.buffer.name, write), set()).add(known)
    return {
        key: known for key, several in found.items() if len(several) == 1 and (known := next(iter(several))) is not None
    }


def _find_owner(op: warp.Elementwise, indices: tuple[tile.Expr, ...], fixed: frozenset[tile.Var]) -> Owner | None:
    place = {var: dim for dim, var in enumerate(op.nest.vars)}
    by_dimension: dict[int, tuple[int, int, int, frozenset[tuple[tile.Expr, int]]]] = {}
    for dim, index in enumerate(indices):
        form = affine_form(index)
        moving = [(atom, factor) for atom, factor in form.terms if atom not in fixed]
        if len(moving) == 1 and isinstance(moving[0][0], tile.Var) and moving[0][0] in place:
            var, factor = moving[0]
            assert isinstance(var, tile.Var)
            rest = frozenset(term for term in form.terms if term[0] in fixed)
            by_dimension.setdefault(place[var], (dim, factor, form.constant, rest))
    needed = {axis.dim for axis in op.layout.threads if axis.dim >= 0 and axis.size > 1}
    if not needed <= by_dimension.keys():
        return None

    def build_digit(axis: Axis) -> tuple[int, int, int]:
        return (axis.size, axis.stride, by_dimension[axis.dim][0]) if axis.dim in needed else (axis.size, 0, -1)

    return Owner(
        tuple(build_digit(axis) for axis in op.layout.threads if axis.size > 1),
        tuple(by_dimension[dim] for dim in sorted(needed)),
    )
