"""Families of constraints: what an explanation tells apart, beside the dependences."""

from __future__ import annotations

from tilec.sched.objective import limited
from tilec.sched.problem import Problem


def families(problem: Problem) -> tuple[str, ...]:
    """The constraints besides the dependences, as groups that can be left out of a model one by one. What cannot be in
    the way is not among them: a pool that no ring takes anything of, a slot that is used only once."""
    names = ["stages"] if problem.max_stages is not None else []
    names += ["rings"] if problem.rings else []
    taken = {ring.pool for ring in problem.rings if ring.bytes}
    names += [f"pool {pool.name}" for index, pool in enumerate(problem.pools) if index in taken]
    return (*names, *separable(problem))


def separable(problem: Problem) -> tuple[str, ...]:
    """The families whose constraints stand alone: nothing else is drawn from them, as the reach of starts is from
    stages, rings and the pools of rings."""
    used = [use.slot for op in problem.ops for use in op.uses if use.cycles]
    used += [problem.roles[role].slot for op in problem.ops for role in op.roles]
    slots = (f"slot {slot.name}" for index, slot in enumerate(problem.slots) if used.count(index) > 1)
    return (*(f"values in {problem.pools[pool].name}" for pool in limited(problem)), *slots)
