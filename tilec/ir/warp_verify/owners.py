"""The thread that reaches each element of a tensor, by enumeration of a nest's iterations. The verifier of warp
programs uses it where operations of one role touch a tensor without a barrier between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tilec.ir import tile, warp
from tilec.ir.layout import Fragment
from tilec.ir.placement import NotArithmetic, NoValue, evaluate_index
from tilec.support.identity import cache_by_identity

_Indices = tuple[tile.Expr, ...]
_Iterations = tuple[Any, Any]
"""Two arrays: the thread and the number of each iteration that some thread runs."""
_CACHED_NESTS = 64
"""The number of nests whose accesses are cached: they are needed for each tensor."""
SAMPLES = (0, 1, 1009, 4001)
"""Values of the variables that are the same throughout a block: of the first one, and its multiples for the next ones.
Accesses that are disjoint only if such values differ, or differ by much, are not so where all are 0 or neighbours."""


def are_disjoint(
    one: warp.Operation, other: warp.Operation, tensor: str, writes: tuple[bool, bool], fixed: tuple[tile.Var, ...]
) -> bool:
    """Return whether two nests, in any two iterations of loops around them, never reach an element from different
    threads. `writes` is whether the first and the second operation write; else they read. `fixed` are the variables
    that the block never changes. False for operations other than nests, and for nests that reach another block."""
    if not isinstance(one, warp.Elementwise) or not isinstance(other, warp.Elementwise):
        return False
    if one.block is not None or other.block is not None:
        return False
    return _are_always_disjoint(one, other, tensor, writes, fixed)


@lru_cache(maxsize=256)
def _are_always_disjoint(
    one: warp.Elementwise, other: warp.Elementwise, tensor: str, writes: tuple[bool, bool], fixed: tuple[tile.Var, ...]
) -> bool:
    """Return whether no two threads reach one element of the tensor by two nests, for each sample of the fixed
    variables."""
    ops = zip((one, other), writes, strict=True)
    sides = [(op, indices, write) for op, write in ops for _, indices in list_accessed_elements(op, tensor, write)]
    tried = 0
    for sample in SAMPLES:
        values: dict[tile.Var, tile.Expr] = {var: tile.int32_const(sample * (n + 1)) for n, var in enumerate(fixed)}
        try:
            places = [(op, [_evaluate_index_everywhere(op, i, values) for i in indices], w) for op, indices, w in sides]
        except NoValue:
            continue  # no launch has these values
        tried += 1
        known = [d for d in range(len(sides[0][1])) if all(found[d] is not None for _, found, _ in places)]
        if _is_any_element_shared(
            [(_list_iteration_threads(op, write), [found[d] or [] for d in known]) for op, found, write in places]
        ):
            return False
    return tried > 0


def list_accessed_elements(op: warp.Elementwise, tensor: str, write: bool) -> list[tuple[tile.Buffer, _Indices]]:
    """Return the buffer and indices of each access by which a nest writes, or else reads, a tensor."""
    return _group_accesses_by_tensor(op.nest).get((tensor, write), [])


@cache_by_identity(_CACHED_NESTS)
def _group_accesses_by_tensor(nest: tile.Parallel) -> dict[tuple[str, bool], list[tuple[tile.Buffer, _Indices]]]:
    """Return the buffer and indices of a nest's accesses, by the tensor's name and whether they write."""
    found: dict[tuple[str, bool], list[tuple[tile.Buffer, _Indices]]] = {}
    for stmt in tile.walk_statements(nest.body):
        for load in tile.walk_loads(stmt):
            found.setdefault((load.buffer.name, False), []).append((load.buffer, load.indices))
        if isinstance(stmt, tile.Store):
            found.setdefault((stmt.buffer.name, True), []).append((stmt.buffer, stmt.indices))
    return found


@cache_by_identity(_CACHED_NESTS)
def _touches_registers(nest: tile.Parallel) -> bool:
    """Return whether a nest reads or writes a buffer that lies in registers."""
    return any(buffer.in_registers for reached in _group_accesses_by_tensor(nest).values() for buffer, _ in reached)


def _evaluate_index_everywhere(
    op: warp.Elementwise, index: tile.Expr, values: dict[tile.Var, tile.Expr]
) -> list[int] | None:
    """Return the index's value in every iteration; None if it needs more than the nest's variables and `values`. Raises
    `NoValue` for a division by zero."""
    try:
        return evaluate_index(tile.substitute_variables(index, values), op.nest.extents, op.nest.vars)
    except NoValue:
        raise
    except NotArithmetic:
        return None


def _is_any_element_shared(places: Sequence[tuple[_Iterations, Sequence[list[int]]]]) -> bool:
    """Return whether two different threads reach one element, given each access's threads and indices by dimension.
    Each entry has a list of indices per dimension, by iteration."""
    import numpy as np

    thread = np.concatenate([threads for (threads, _), _ in places])
    element = np.zeros(len(thread), np.int64)
    for columns in zip(*(columns for _, columns in places), strict=True):
        column = np.concatenate(
            [np.asarray(c, np.int64)[iterations] for ((_, iterations), _), c in zip(places, columns, strict=True)]
        )
        # Renumber the elements densely, so that no product overflows.
        _, column = np.unique(column, return_inverse=True)
        _, element = np.unique(element * (len(thread) + 1) + column, return_inverse=True)
    order = np.lexsort((thread, element))
    element, thread = element[order], thread[order]
    return bool(((element[1:] == element[:-1]) & (thread[1:] != thread[:-1])).any())


def _list_iteration_threads(op: warp.Elementwise, write: bool) -> _Iterations:
    """Return the thread and number of each iteration of a nest, without replicas if it writes or keeps no registers. Of
    threads with the same iterations only the first writes; it alone reads too if no copies are kept."""
    return _enumerate_iterations(op.layout, op.nest.extents, write or not _touches_registers(op.nest))


@lru_cache(maxsize=64)
def _enumerate_iterations(layout: Fragment, extents: tuple[int, ...], first_only: bool) -> _Iterations:
    """Return two arrays, thread and row-major number of each iteration of a layout; with `first_only` without
    replicas."""
    import numpy as np

    threads = [thread for thread in range(layout.thread_count) if not (first_only and _is_replica(layout, thread))]
    first = np.array([layout.thread_offset(thread) for thread in threads], np.int64)
    registers = np.array([layout.register_offset(r) for r in range(layout.register_count)], np.int64)
    index = first[:, None, :] + registers[None, :, :]
    inside = (index < np.array(extents)).all(axis=2)
    number = np.zeros(inside.shape, np.int64)
    for dim, extent in enumerate(extents):
        number = number * extent + index[:, :, dim]
    return np.broadcast_to(np.array(threads)[:, None], inside.shape)[inside], number[inside]


def _is_replica(layout: Fragment, thread: int) -> bool:
    """Return whether an earlier thread of the layout runs the same iterations: it has a replicating digit that is not
    0."""
    digits = thread
    for axis in layout.threads:
        digits, digit = divmod(digits, axis.size)
        if axis.dim < 0 and digit:
            return True
    return False
