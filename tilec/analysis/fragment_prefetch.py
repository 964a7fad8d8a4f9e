"""Prefetches of fragments: loads issued some uses of other versions before their own use
(`loop.stages.register_stages`), and their constraints on a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeGuard

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ops.copies.copy import Copy
from tilec.sched.problem import Edge
from tilec.support.diagnostics import Label, raise_error


def is_fragment_prefetch(stmt: tile.Stmt) -> TypeGuard[Copy]:
    """Return True if the statement is a copy that loads a fragment ahead of its use (it has a prefetch distance)."""
    return isinstance(stmt, Copy) and stmt.prefetch_distance is not None


def is_first_step(load: Copy) -> bool:
    """Return True if the prefetch loads its fragment for step 0 of the unrolled loop."""
    return load.step == 0


def find_fragment_prefetches(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, int, int, str]]:
    """Yield each fragment prefetch as (load, use it must precede, iterations between, fragment), by statement index.
    The iterations from load to use are 0 or −1. Beside a running wgmma product a load begins behind its issue, so it
    precedes one use less."""
    for load, steps, step in _find_loads(statements):
        distance = _get_prefetch_distance(statements[load]) - _has_running_product(statements, load)
        iteration, other = divmod(step - distance, len(steps))
        yield load, find_first_use(statements, steps[other]), iteration, _get_fragment_name(statements[load])


def find_overlapped_products(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, int, int, str]]:
    """Yield each fragment load beside a running wgmma product as (product, load, iterations between, fragment)."""
    for load, steps, step in _find_loads(statements):
        iteration, other = divmod(step - _get_prefetch_distance(statements[load]), len(steps))
        if _has_running_product(statements, load):
            yield find_last_use(statements, steps[other]), load, -iteration, _get_fragment_name(statements[load])


def _find_loads(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, list[int], int]]:
    """Yield each fragment prefetch by index, with the loads of all steps of that fragment and its own step number."""
    families: dict[str, list[int]] = {}
    for at, stmt in enumerate(statements):
        if is_fragment_prefetch(stmt):
            families.setdefault(_get_fragment_name(stmt), []).append(at)
    for steps in families.values():
        yield from ((load, steps, step) for step, load in enumerate(steps))


def _get_fragment_name(load: tile.Stmt) -> str:
    """Return the name of the fragment, without stage, that a prefetch loads."""
    assert isinstance(load, Copy) and load.of is not None
    return load.of


def _get_prefetch_distance(load: tile.Stmt) -> int:
    """Return by how many steps a prefetch precedes its use."""
    assert isinstance(load, Copy) and load.prefetch_distance is not None
    return load.prefetch_distance


def _has_running_product(statements: Sequence[tile.Stmt], load: int) -> bool:
    """Return True if the last use of what this load fills is a wgmma product, which reads registers while it runs."""
    return is_wgmma_operation(statements[find_last_use(statements, load)])


def is_wgmma_operation(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and stmt.via == "wgmma"


def is_interleaved_load(statements: Sequence[tile.Stmt], at: int) -> bool:
    """Return True if statement `at` is a fragment prefetch whose last use is no wgmma product: it waits for nothing."""
    return is_fragment_prefetch(statements[at]) and not _has_running_product(statements, at)


def find_first_use(statements: Sequence[tile.Stmt], load: int) -> int:
    """Return the index of the first later statement that reads the buffer a load fills; the load's own if none does."""
    (buffer,) = find_writes(statements[load])
    return next((at for at in range(load + 1, len(statements)) if buffer in find_reads(statements[at])), load)


def find_last_use(statements: Sequence[tile.Stmt], load: int) -> int:
    """Return the index of the last reader of the buffer a load fills, before its next prefetch; the load's own if
    none."""
    (buffer,) = find_writes(statements[load])
    behind = range(load + 1, len(statements))
    again = next(
        (at for at in behind if is_fragment_prefetch(statements[at]) and buffer in find_writes(statements[at])), None
    )
    return max(
        (at for at in range(load + 1, again or len(statements)) if buffer in find_reads(statements[at])), default=load
    )


def find_last_carried_use(statements: Sequence[tile.Stmt]) -> tile.Stmt | None:
    """Return the last statement that fragment loads for the next iteration must precede, or None if there is none."""
    carried = [use for _, use, iteration, _ in find_fragment_prefetches(statements) if iteration < 0]
    return statements[max(carried)] if carried else None


def find_first_overlapped_product(statements: Sequence[tile.Stmt]) -> tile.Stmt | None:
    """Return the first wgmma product during which fragments are loaded, or None if there is none."""
    beside = [use for use, _, _, _ in find_overlapped_products(statements)]
    return statements[min(beside)] if beside else None


def find_prefetched_fragments(statements: Sequence[tile.Stmt]) -> frozenset[str]:
    """Return the names of prefetched fragments, and of those that a nest which reads a prefetched one overwrites in
    full."""
    loaded = {buffer for stmt in statements if is_fragment_prefetch(stmt) for buffer in find_writes(stmt)}
    made = (find_rewritten_fragments(stmt) for stmt in statements if loaded & {*find_reads(stmt)})
    return frozenset(buffer.name for buffer in chain(loaded, *made))


def find_rewritten_fragments(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield the fragments whose every element an elementwise nest writes, and none of which it reads."""
    if isinstance(stmt, tile.Parallel):
        for store in stmt.body:
            if isinstance(store, tile.Store) and store.atomic is None and store.buffer.scope == "fragment":
                is_whole = (store.indices, stmt.extents) == (stmt.vars, store.buffer.shape)
                if is_whole and store.buffer not in find_reads(stmt):
                    yield store.buffer


def check_prefetch_order(statements: Sequence[tile.Stmt], edges: Sequence[Edge]) -> None:
    """Refuse a fragment load that dependences place behind the use that it must precede. Errors:
    `pipeline-impossible`."""
    for load, use, iterations, name in find_fragment_prefetches(statements):
        behind = _count_iterations_behind(use, len(statements), edges).get(load)
        if behind is not None and behind + iterations <= 0:
            raise_error(
                "pipeline-impossible",
                f"{name} cannot be prefetched: its source is ready too late",
                statements[load].span,
                "this load would begin before the use in the previous step",
                secondary=(Label(statements[use].span, "the use, for which the load has to wait"),),
                help=f"give {name} one stage",
            )


def _count_iterations_behind(first: int, count: int, edges: Sequence[Edge]) -> dict[int, int]:
    """Return, for `first` (0) and each operation that depends on it, at once or not, the fewest iterations it comes
    later."""
    least = {first: 0}
    for _ in range(count):
        before = dict(least)
        for edge in edges:
            if edge.src in least:
                reached = least[edge.src] + edge.distance
                least[edge.dst] = min(least.get(edge.dst, reached), reached)
        if least == before:
            break
    return least
