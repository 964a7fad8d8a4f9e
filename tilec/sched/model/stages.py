"""The number of stages: an upper bound, so that a model can leave out later ones, and that of the roofline model, for
comparison."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.sched.model.anchor import is_begin_constrained
from tilec.sched.objective import list_limited_pools, sort_topologically
from tilec.sched.problem import Problem
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """Cycles of the longest chain of loads and of the busiest compute slot, and the stages that follow from them."""

    memory_cycles: int
    compute_cycles: int
    stages: int


def count_roofline_stages(memory_cycles: int, compute_cycles: int) -> int:
    """Return ⌈memory_cycles / compute_cycles⌉, at least 1: the iterations whose compute hides the latency of a load."""
    return max(1, -(-memory_cycles // compute_cycles))


def estimate_roofline(problem: Problem) -> Roofline | None:
    """Return the roofline model's stages of a loop, from its loads and busiest slot; None without either.

    Loads are the ops that produce rings. A load that reads the ring of another load follows it.
    """
    loads = {op for ring in problem.rings for op in ring.producers}
    compute = max(
        sum(use.cycles for at, op in enumerate(problem.ops) if at not in loads for use in op.uses if use.slot == slot)
        for slot in range(len(problem.slots) or 1)
    )
    if not loads or compute == 0:
        return None
    arrival = [0] * len(problem.ops)
    for op in sort_topologically(problem):
        if op in loads:
            before = (arrival[e.src] for e in problem.edges if e.dst == op and e.distance == 0 and e.src in loads)
            arrival[op] = max(before, default=0) + problem.ops[op].latency
    return Roofline(max(arrival), compute, count_roofline_stages(max(arrival), compute))


_FEW_OPS = 48
"""Up to this size models are solved soon, and the stage limit decides which of equal schedules is found."""


def bound_stages(
    problem: Problem, ii: int, separation: Sequence[Sequence[int | None]] | None, without: frozenset[str]
) -> int:
    """Return an upper bound of the stages of some best schedule at this II, within `max_stages`.

    With phases and depths fixed, stages only have to satisfy difference constraints. The smallest solution is a longest
    path: at most one step per op, each no longer than the longest wait of that op.
    """
    waits = [0] * len(problem.ops)
    for edge in problem.edges:
        wait = -(-(edge.latency + edge.hand_over - ii * edge.distance + ii - 1) // ii)
        waits[edge.src] = max(waits[edge.src], wait)
    if "rings" not in without:
        for ring in problem.rings:
            for consumer in ring.consumers:
                wait = -(-(problem.ops[consumer].latency - 1) // ii)
                waits[consumer] = max(waits[consumer], wait)
    for op in (op for copies in problem.copies for op in copies):
        waits[op] = max(waits[op], 2)  # a lag is less than II
    # A value's lifetime is kept too, so its producers follow its consumers: by less where they also come first.
    before = {(edge.src, edge.dst) for edge in problem.edges if edge.distance == 0 and edge.latency >= 0}
    for value in problem.values if list_limited_pools(problem) else ():
        for consumer in value.consumers:
            latency = problem.ops[consumer].latency
            is_after_producers = latency > 0 and all((producer, consumer) in before for producer in value.producers)
            wait = -(-(latency - 1 + (0 if is_after_producers else ii)) // ii)
            waits[consumer] = max(waits[consumer], wait)
    stages = sum(waits) + 1
    if separation is not None and not any(least is None for row in separation for least in row):
        furthest = -min((least for row in separation for least in row if least is not None), default=0)
        stages = min(stages, furthest // ii + 1 + is_begin_constrained(problem))
    elif separation is not None and len(problem.ops) > _FEW_OPS:
        stages = min(stages, _bound_stages_by_components(ii, separation, waits))
    if problem.max_stages is not None and "stages" not in without:
        return min(stages, problem.max_stages)
    return stages


def _bound_stages_by_components(ii: int, separation: Sequence[Sequence[int | None]], waits: Sequence[int]) -> int:
    """Return an upper bound of the stages that counts each strongly connected component of ops once.

    Within a component a path is no longer than the largest distance between two of its ops; it leaves by one more step,
    no longer than that op's wait.
    """
    stages, seen = 1, [False] * len(waits)
    for op, row in enumerate(separation):
        if seen[op]:
            continue
        together = [other for other, least in enumerate(row) if least is not None and separation[other][op] is not None]
        furthest = 0
        for one in together:
            seen[one] = True
            furthest = max(furthest, *(-(separation[other][one] or 0) for other in together))
        stages += max(waits[one] for one in together) + (furthest // ii + 1 if len(together) > 1 else 0)
    return stages
