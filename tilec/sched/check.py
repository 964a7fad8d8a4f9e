"""Checks a problem before it is solved.

Promises, each checked:
- every id of a slot, op, ring or pool is an index that exists
- every number is in the range that its type declares
- no two roles hold the same slot, and no op uses a role's slot
- a ring has producers and consumers
- every value has a producer
- all copies of statements have the same number of ops, no op is in two, and there is one lag per group
- every cycle of dependences crosses into a later iteration
- ops that share a stage are distinct ops of the problem
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.sched.objective import sort_topologically
from tilec.sched.problem import MAX_CYCLES, Problem
from tilec.support import schema


def find_problem_faults(problem: Problem) -> Iterator[str]:
    """Yield a sentence for every broken promise of the problem, such as an id that does not exist."""
    ops, slots, pools = range(len(problem.ops)), range(len(problem.slots)), range(len(problem.pools))
    yield from schema.find_faults(problem, "problem")
    for op in problem.ops:
        for use in op.uses:
            if use.slot not in slots:
                yield f"op {op.name} uses slot {use.slot}, there are {len(slots)}"
        longest = max((op.issue, op.latency, *(use.offset + use.cycles for use in op.uses)))
        if longest > MAX_CYCLES:
            yield f"op {op.name} takes {longest:,} cycles; at most {MAX_CYCLES:,} can be scheduled"
    for index, edge in enumerate(problem.edges):
        if edge.src not in ops or edge.dst not in ops:
            yield f"edge {index} goes from op {edge.src} to op {edge.dst}, there are {len(ops)} ops"
    for ring in problem.rings:
        if not ring.producers or not ring.consumers:
            yield f"ring {ring.name} has {len(ring.producers)} producers and {len(ring.consumers)} consumers"
        for op_id in (*ring.producers, *ring.consumers):
            if op_id not in ops:
                yield f"ring {ring.name} names op {op_id}, there are {len(ops)}"
        if ring.pool not in pools:
            yield f"ring {ring.name} lives in pool {ring.pool}, there are {len(pools)}"
    yield from _check_roles_and_values(problem)
    yield from _check_copies(problem)
    if all(edge.src in ops and edge.dst in ops for edge in problem.edges):
        yield from _check_cycles(problem)


def _check_roles_and_values(problem: Problem) -> Iterator[str]:
    """Yield a sentence for each wrong id or slot in roles, values, tied ops and shared stages."""
    ops, slots, pools = range(len(problem.ops)), range(len(problem.slots)), range(len(problem.pools))
    for role in problem.roles:
        if role.slot not in slots:
            yield f"role {role.name} has slot {role.slot}, there are {len(slots)}"
    held = [role.slot for role in problem.roles]
    if len({*held}) < len(held) or any(use.slot in held for op in problem.ops for use in op.uses):
        yield f"roles hold slots {held}: each role needs a slot of its own that no op uses"
    for op in problem.ops:
        if not all(role in range(len(problem.roles)) for role in op.roles):
            yield f"op {op.name} may have roles {list(op.roles)}, there are {len(problem.roles)}"
    for value in problem.values:
        if not value.producers or any(op not in ops for op in (*value.producers, *value.consumers)):
            yield f"value {value.name} names producers {list(value.producers)} and consumers {list(value.consumers)}"
        if value.pool not in pools:
            yield f"value {value.name} lives in pool {value.pool}, there are {len(pools)}"
    for tied in problem.tied:
        if any(op not in ops for op in tied):
            yield f"tied ops {list(tied)}, there are {len(ops)} ops"
    for group in problem.same_stage:
        if any(op not in ops for op in group) or len(set(group)) < len(group):
            yield f"ops {list(group)} are to share a stage, there are {len(ops)} ops"
    if problem.registers is not None and problem.registers not in pools:
        yield f"registers are pool {problem.registers}, there are {len(pools)}"


def _check_copies(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the copies of statements for groups of warps, or the groups' lags, do not match."""
    named = [op for copies in problem.copies for op in copies]
    if len({len(copies) for copies in problem.copies}) > 1 or any(len(copies) < 2 for copies in problem.copies):
        yield "every entry of copies must name one op for each of the same two or more groups of warps"
    if len({*named}) < len(named) or any(op not in range(len(problem.ops)) for op in named):
        yield f"copies of statements name ops {named}, there are {len(problem.ops)}"
    if problem.lags and (not problem.copies or len(problem.lags) != len(problem.copies[0]) or problem.lags[0]):
        yield f"the groups of warps have lags {list(problem.lags)}"


def _check_cycles(problem: Problem) -> Iterator[str]:
    """Yield a sentence if a cycle of dependences does not cross into a later iteration."""
    remaining = {*range(len(problem.ops))} - {*sort_topologically(problem)}
    if remaining:
        names = ", ".join(problem.ops[op].name for op in sorted(remaining))
        yield f"a cycle of dependences lies within one iteration, in or before these ops: {names}"
    elif any(edge.distance < 0 for edge in problem.edges) and _has_nonpositive_cycle(problem):
        yield "a cycle of dependences has a total distance of 0 or less"


def _has_nonpositive_cycle(problem: Problem) -> bool:
    """Return whether some cycle of edges has a total distance of 0 or less.

    A cycle has at most as many edges as there are ops, so it has one if the sum of distance · (ops + 1) − 1 over its
    edges is negative (Bellman and Ford).
    """
    count = len(problem.ops)
    least = [0] * count
    for _ in range(count + 1):
        before = list(least)
        for edge in problem.edges:
            least[edge.dst] = min(least[edge.dst], least[edge.src] + edge.distance * (count + 1) - 1)
        if least == before:
            return False
    return True
