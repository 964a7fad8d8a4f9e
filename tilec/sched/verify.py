"""Decides whether a schedule holds. Shares no code with the bounds, the model or the solver.

Promises, each checked:
- the schedule has one start per op, one depth per ring, and non-negative starts
- every edge: start[dst] + distance·II ≥ start[src] + latency
- no cycle of the reservation table holds more units of a slot than it has
- every ring is deep enough for its lifetime, and within its limit
- every pool holds its rings and what is reserved
- `order` is a permutation of the ops and agrees with start mod II
- there are no more stages than allowed

Not checked: that the schedule is a good one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule


def violations(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Every broken promise in one sentence; none for a schedule that holds."""
    misfits = list(_shape(problem, schedule))
    if misfits:
        yield from misfits
        return
    yield from _dependences(problem, schedule)
    yield from _rows(problem, schedule)
    yield from _rings(problem, schedule)
    yield from _pools(problem, schedule)
    yield from _order(problem, schedule)
    yield from _stages(problem, schedule)


def _shape(problem: Problem, schedule: Schedule) -> Iterator[str]:
    if schedule.ii < 1:
        yield f"II is {schedule.ii}, it must be at least 1"
    if len(schedule.start) != len(problem.ops):
        yield f"there are {len(schedule.start)} start times for {len(problem.ops)} ops"
    if len(schedule.depth) != len(problem.rings):
        yield f"there are {len(schedule.depth)} depths for {len(problem.rings)} rings"
    for op, start in zip(problem.ops, schedule.start, strict=False):
        if start < 0:
            yield f"op {op.name} starts in cycle {start}, before its iteration does"
    if sorted(schedule.order) != list(range(len(problem.ops))):
        yield f"order {list(schedule.order)} does not list each of the {len(problem.ops)} ops once"


def _dependences(problem: Problem, schedule: Schedule) -> Iterator[str]:
    for edge in problem.edges:
        ready = schedule.start[edge.src] + edge.latency
        issues = schedule.start[edge.dst] + edge.distance * schedule.ii
        if issues < ready:
            src, dst = problem.ops[edge.src].name, problem.ops[edge.dst].name
            why = f" ({edge.why})" if edge.why else ""
            later = f", {edge.distance} iteration{'s' * (edge.distance > 1)} later," if edge.distance else ""
            yield f"op {dst}{later} issues in cycle {issues}, {ready - issues} before op {src} is ready{why}"


def _rows(problem: Problem, schedule: Schedule) -> Iterator[str]:
    for index, slot in enumerate(problem.slots):
        # Holders of each cycle of the table: filled one cycle at a time on purpose, it is hard to get wrong.
        table: dict[int, list[str]] = {}
        for op, start in zip(problem.ops, schedule.start, strict=True):
            for use in op.uses:
                if use.slot == index:
                    for cycle in range(start + use.offset, start + use.offset + use.cycles):
                        table.setdefault(cycle % schedule.ii, []).append(op.name)
        over = [cycle for cycle, held in sorted(table.items()) if len(held) > slot.width]
        if over:
            held = table[over[0]]
            yield (
                f"slot {slot.name} of width {slot.width} is held {len(held)} times in cycle {over[0]} of the interval, "
                f"by {', '.join(held)}; cycles over: {len(over)}"
            )


def _rings(problem: Problem, schedule: Schedule) -> Iterator[str]:
    for ring, depth in zip(problem.rings, schedule.depth, strict=True):
        if depth < 1:
            yield f"ring {ring.name} has depth {depth}, it must be at least 1"
        if ring.max_depth is not None and depth > ring.max_depth:
            yield f"ring {ring.name} has depth {depth}, at most {ring.max_depth} is allowed"
        if not ring.producers or not ring.consumers:
            continue
        written = min(schedule.start[op] for op in ring.producers)
        done = max(schedule.start[op] + problem.ops[op].latency for op in ring.consumers)
        if depth * schedule.ii < done - written:
            needed = -(-(done - written) // schedule.ii)
            yield (
                f"ring {ring.name} has depth {depth} but needs {needed}: a version lives {done - written} cycles, "
                f"from {written} to {done}, at II {schedule.ii}"
            )


def _pools(problem: Problem, schedule: Schedule) -> Iterator[str]:
    for index, pool in enumerate(problem.pools):
        inside = [(r, d) for r, d in zip(problem.rings, schedule.depth, strict=True) if r.pool == index]
        held = pool.reserved + sum(ring.bytes * depth for ring, depth in inside)
        if held > pool.capacity:
            parts = [f"{pool.reserved} reserved", *(f"{d} × {r.bytes} {r.name}" for r, d in inside)]
            yield f"pool {pool.name} holds {held} of {pool.capacity}: {' + '.join(parts)}"


def _order(problem: Problem, schedule: Schedule) -> Iterator[str]:
    for before, after in zip(schedule.order, schedule.order[1:], strict=False):
        first, second = schedule.start[before] % schedule.ii, schedule.start[after] % schedule.ii
        if first > second:
            yield (
                f"order puts op {problem.ops[before].name} (cycle {first} of the interval) before op "
                f"{problem.ops[after].name} (cycle {second})"
            )


def _stages(problem: Problem, schedule: Schedule) -> Iterator[str]:
    if problem.max_stages is None:
        return
    for op, start in zip(problem.ops, schedule.start, strict=True):
        if start // schedule.ii >= problem.max_stages:
            yield f"op {op.name} issues in stage {start // schedule.ii}, only {problem.max_stages} stages are allowed"
