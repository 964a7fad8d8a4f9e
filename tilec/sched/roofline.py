"""The number of stages by the roofline model, to compare with the solved schedule."""

from __future__ import annotations

from tilec.sched.objective import sort_topologically
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
    """Estimate the stages of a loop; None if it has no loads or no compute. Loads are the ops that produce rings. A
    load that reads the ring of another load follows it."""
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
