"""The number of stages by the roofline: what a person would take without a scheduler, to hold beside the solved one."""

from __future__ import annotations

from tilec.sched.objective import topological
from tilec.sched.problem import Problem
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """Cycles of the heaviest chain of loads and of the busiest unit of the compute, and the stages they ask for."""

    memory_cycles: int
    compute_cycles: int
    stages: int


def stage_count(memory_cycles: int, compute_cycles: int) -> int:
    """⌈memory_cycles / compute_cycles⌉, at least 1: so many iterations cover the way of the data with compute."""
    return max(1, -(-memory_cycles // compute_cycles))


def roofline(problem: Problem) -> Roofline | None:
    """Loads are the ops that fill rings; they follow one another where one fills the ring that the next reads. None for
    a loop without loads or without anything else."""
    loads = {op for ring in problem.rings for op in ring.producers}
    compute = max(
        sum(use.cycles for at, op in enumerate(problem.ops) if at not in loads for use in op.uses if use.slot == slot)
        for slot in range(len(problem.slots) or 1)
    )
    if not loads or compute == 0:
        return None
    arrival = [0] * len(problem.ops)
    for op in topological(problem):
        if op in loads:
            before = (arrival[e.src] for e in problem.edges if e.dst == op and e.distance == 0 and e.src in loads)
            arrival[op] = max(before, default=0) + problem.ops[op].latency
    return Roofline(max(arrival), compute, stage_count(max(arrival), compute))
