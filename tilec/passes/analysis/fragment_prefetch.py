"""Prefetches of fragments: loads issued some uses of other versions before their own use (`loop.register_stages`), and
their constraints on a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeGuard

from tilec.ir import tile
from tilec.ops.copy import Copy
from tilec.passes.analysis.usage import reads, writes
from tilec.sched.problem import Edge
from tilec.support.diagnostics import Label, fail


def is_fragment_prefetch(stmt: tile.Stmt) -> TypeGuard[Copy]:
    """Return True if the statement is such a load."""
    return isinstance(stmt, Copy) and stmt.prefetch_distance is not None


def is_first(load: Copy) -> bool:
    """Return True if the load is that of the first step."""
    return load.step == 0


def fragment_prefetches(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, int, int, str]]:
    """Yield, for each load of a fragment with stages: the load, the use of another version that it precedes, the
    iterations from the load to that use (0 or −1), and the fragment. Beside a running wgmma product a load begins
    behind its issue, so it precedes one use less."""
    for load, steps, step in _loads(statements):
        distance = _prefetch_distance(statements[load]) - _runs_on(statements, load)
        iteration, other = divmod(step - distance, len(steps))
        yield load, use_of(statements, steps[other]), iteration, _loaded(statements[load])


def begun_beside(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, int, int, str]]:
    """Yield, for each load that runs beside a wgmma product: that product, which is the last issued before it, the
    load, the iterations between them, and the fragment."""
    for load, steps, step in _loads(statements):
        iteration, other = divmod(step - _prefetch_distance(statements[load]), len(steps))
        if _runs_on(statements, load):
            yield last_use_of(statements, steps[other]), load, -iteration, _loaded(statements[load])


def _loads(statements: Sequence[tile.Stmt]) -> Iterator[tuple[int, list[int], int]]:
    """Yield each load of a fragment with stages, the loads of all its steps, and the number of its step."""
    families: dict[str, list[int]] = {}
    for at, stmt in enumerate(statements):
        if is_fragment_prefetch(stmt):
            families.setdefault(_loaded(stmt), []).append(at)
    for steps in families.values():
        yield from ((load, steps, step) for step, load in enumerate(steps))


def _loaded(load: tile.Stmt) -> str:
    assert isinstance(load, Copy) and load.of is not None
    return load.of


def _prefetch_distance(load: tile.Stmt) -> int:
    assert isinstance(load, Copy) and load.prefetch_distance is not None
    return load.prefetch_distance


def _runs_on(statements: Sequence[tile.Stmt], load: int) -> bool:
    """Return True if the fragment's last use is a wgmma product, which reads its registers until it is complete."""
    return is_by_wgmma(statements[last_use_of(statements, load)])


def is_by_wgmma(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and stmt.via == "wgmma"


def is_between(statements: Sequence[tile.Stmt], at: int) -> bool:
    """Return True if it is a prefetch whose instructions go between those of a product, and wait for nothing."""
    return is_fragment_prefetch(statements[at]) and not _runs_on(statements, at)


def use_of(statements: Sequence[tile.Stmt], load: int) -> int:
    """Return the first statement that reads what a load fills; the load itself where none does."""
    (buffer,) = writes(statements[load])
    return next((at for at in range(load + 1, len(statements)) if buffer in reads(statements[at])), load)


def last_use_of(statements: Sequence[tile.Stmt], load: int) -> int:
    """Return the last statement that reads what a load fills, before it is loaded again; the load itself where none
    does."""
    (buffer,) = writes(statements[load])
    behind = range(load + 1, len(statements))
    again = next(
        (at for at in behind if is_fragment_prefetch(statements[at]) and buffer in writes(statements[at])), None
    )
    return max(
        (at for at in range(load + 1, again or len(statements)) if buffer in reads(statements[at])), default=load
    )


def last_use(statements: Sequence[tile.Stmt]) -> tile.Stmt | None:
    """Return the last statement that loads of the next iteration precede."""
    carried = [use for _, use, iteration, _ in fragment_prefetches(statements) if iteration < 0]
    return statements[max(carried)] if carried else None


def first_product(statements: Sequence[tile.Stmt]) -> tile.Stmt | None:
    """Return the first wgmma product beside which fragments are loaded."""
    beside = [use for use, _, _, _ in begun_beside(statements)]
    return statements[min(beside)] if beside else None


def loaded_fragments(statements: Sequence[tile.Stmt]) -> frozenset[str]:
    """Return the versions of fragments that are prefetched, and of those that nests compute from them."""
    loaded = {buffer for stmt in statements if is_fragment_prefetch(stmt) for buffer in writes(stmt)}
    made = (made_anew(stmt) for stmt in statements if loaded & {*reads(stmt)})
    return frozenset(buffer.name for buffer in chain(loaded, *made))


def made_anew(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield the fragments of which a nest writes every element, and reads none."""
    if isinstance(stmt, tile.Parallel):
        for store in stmt.body:
            if isinstance(store, tile.Store) and store.atomic is None and store.buffer.scope == "fragment":
                is_whole = (store.indices, stmt.extents) == (stmt.vars, store.buffer.shape)
                if is_whole and store.buffer not in reads(stmt):
                    yield store.buffer


def check_order(statements: Sequence[tile.Stmt], edges: Sequence[Edge]) -> None:
    """Refuse a load that would have to wait for a use that it must precede. Errors: `pipeline-impossible`."""
    for load, use, iterations, name in fragment_prefetches(statements):
        behind = _iterations_behind(use, len(statements), edges).get(load)
        if behind is not None and behind + iterations <= 0:
            fail(
                "pipeline-impossible",
                f"{name} cannot be prefetched: what it is loaded from is known too late",
                statements[load].span,
                "this load would begin before the use of the step before",
                secondary=(Label(statements[use].span, "the use, for which the load has to wait"),),
                help=f"give {name} one stage",
            )


def _iterations_behind(first: int, count: int, edges: Sequence[Edge]) -> dict[int, int]:
    """Return, for each op that waits for op `first`, the least number of iterations by which it is behind."""
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
