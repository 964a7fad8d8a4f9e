"""Decides whether a schedule is valid. Shares no code with the bounds, the model or the solver.

Promises, each checked:
- the schedule has one start per op, one depth per ring, and non-negative starts
- every edge: start[dst] + distance·II ≥ start[src] + latency
- no cycle of the reservation table holds more units of a slot than it has
- every ring is deep enough for its lifetime, and within its limit
- every pool has room for its rings and what is reserved
- `order` is a permutation of the ops and agrees with start mod II
- there are no more stages than allowed, and ops that must share one do
- every op with candidate roles has one of them, tied ops the same, and the roles' registers fit in their file
- a role runs one op at a time, with the waits before it, and a hand-over between roles takes its time
- all ops of a group of warps have the same lag behind the first group, less than an interval
- the values that live at once, or across the end of an interval, fit in their pools

Not checked: that the schedule is a good one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule


def find_violations(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for every broken promise of a schedule; none if it is valid.

    One of the wrong shape is checked for its shape only.
    """
    misfits = list(_check_shape(problem, schedule))
    if misfits:
        yield from misfits
        return
    yield from _check_dependences(problem, schedule)
    yield from _check_slots(problem, schedule)
    yield from _check_rings(problem, schedule)
    yield from _check_pools(problem, schedule)
    yield from _check_order(problem, schedule)
    yield from _check_stages(problem, schedule)
    yield from _check_same_stage(problem, schedule)
    yield from _check_roles(problem, schedule)
    yield from _check_lags(problem, schedule)
    yield from _check_values(problem, schedule)


def _check_shape(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence where II, starts, depths, order or roles do not fit the number of ops and rings."""
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
    if len(schedule.role) != len(problem.ops) and (schedule.role or any(op.roles for op in problem.ops)):
        yield f"there are {len(schedule.role)} roles for {len(problem.ops)} ops"


def _check_dependences(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each edge whose destination issues before its source is ready."""
    for edge in problem.edges:
        passes = schedule.role and None not in (schedule.role[edge.src], schedule.role[edge.dst])
        crosses_roles = passes and schedule.role[edge.src] != schedule.role[edge.dst]
        ready = schedule.start[edge.src] + edge.latency + (edge.hand_over if crosses_roles else 0)
        issues = schedule.start[edge.dst] + edge.distance * schedule.ii
        if issues < ready:
            src, dst = problem.ops[edge.src].name, problem.ops[edge.dst].name
            why = f" ({edge.why})" if edge.why else ""
            why += ", passed to another role" if crosses_roles and edge.hand_over else ""
            later = f", {edge.distance} iteration{'s' * (edge.distance > 1)} later," if edge.distance else ""
            yield f"op {dst}{later} issues in cycle {issues}, {ready - issues} before op {src} is ready{why}"


def _check_slots(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each slot with more holders than units in some cycle of the interval."""
    ii, roles = schedule.ii, schedule.role or (None,) * len(problem.ops)
    for index, slot in enumerate(problem.slots):
        # The cycles of the table that each op holds, wrapped around its end: (name, first cycle, cycle after the last).
        pieces: list[tuple[str, int, int]] = []
        for op, start, role in zip(problem.ops, schedule.start, roles, strict=True):
            held = [(start + u.offset, u.cycles) for u in op.uses if u.slot == index]
            if role in op.roles and role is not None and problem.roles[role].slot == index:
                held.append((start - op.wait, op.wait + op.issue))
            for first, cycles in held:
                pieces += ((op.name, begin, end) for begin, end in _wrap_cycles(first % ii, cycles, ii))
        # Between two of these cycles the holders do not change.
        changes = sorted({cycle for _, begin, end in pieces for cycle in (begin, end)})
        over = [
            (begin, end)
            for begin, end in pairwise(changes)
            if sum(first <= begin < last for _, first, last in pieces) > slot.width
        ]
        if over:
            cycle = over[0][0]
            names = [name for name, first, last in pieces if first <= cycle < last]
            yield (
                f"slot {slot.name} of width {slot.width} is held {len(names)} times in cycle {cycle} of the interval"
                f", by {', '.join(names)}; cycles over: {sum(end - begin for begin, end in over)}"
            )


def _wrap_cycles(first: int, cycles: int, ii: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a table of `ii` cycles that are held from cycle `first` of it, for `cycles` cycles."""
    while cycles > 0:
        end = min(ii, first + cycles)
        yield first, end
        first, cycles = 0, cycles - (end - first)


def _check_rings(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each ring whose depth is beyond its limit or too small for its lifetime."""
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


def _check_pools(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each pool that the versions of its rings exceed."""
    for index, pool in enumerate(problem.pools):
        rings = [(r, d) for r, d in zip(problem.rings, schedule.depth, strict=True) if r.pool == index]
        held = pool.reserved + sum(ring.bytes * depth for ring, depth in rings)
        if held > pool.capacity:
            parts = [f"{pool.reserved} reserved", *(f"{d} × {r.bytes} {r.name}" for r, d in rings)]
            yield f"pool {pool.name} holds {held} of {pool.capacity}: {' + '.join(parts)}"


def _check_order(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each two neighbours of the recorded order whose starts modulo II are the other way round."""
    for before, after in zip(schedule.order, schedule.order[1:], strict=False):
        first, second = schedule.start[before] % schedule.ii, schedule.start[after] % schedule.ii
        if first > second:
            yield (
                f"order puts op {problem.ops[before].name} (cycle {first} of the interval) before op "
                f"{problem.ops[after].name} (cycle {second})"
            )


def _check_stages(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each op that issues in a later stage than allowed."""
    if problem.max_stages is None:
        return
    for op, start in zip(problem.ops, schedule.start, strict=True):
        if start // schedule.ii >= problem.max_stages:
            yield f"op {op.name} issues in stage {start // schedule.ii}, only {problem.max_stages} stages are allowed"


def _check_same_stage(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each op that does not issue in the stage that it must share."""
    for group in problem.same_stage:
        stages = [schedule.start[op] // schedule.ii for op in group]
        for op, stage in zip(group, stages, strict=True):
            if stage != stages[0]:
                first, other = problem.ops[group[0]].name, problem.ops[op].name
                yield f"op {other} issues in stage {stage}, it must share stage {stages[0]} with op {first}"


def _check_roles(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each op without a permitted role, tied ops of several, and registers beyond limits."""
    names = [role.name for role in problem.roles]
    for spec, chosen in zip(problem.ops, schedule.role, strict=False):
        if spec.roles and chosen not in spec.roles:
            called = dict(enumerate(names))
            found = "no role" if chosen is None else f"role {called.get(chosen, chosen)}"
            yield f"op {spec.name} has {found}, it may have {', '.join(names[role] for role in spec.roles)}"
    if not schedule.role:
        return
    for tied in problem.tied:
        for op in tied[1:]:
            if schedule.role[op] != schedule.role[tied[0]]:
                one, other = problem.ops[tied[0]].name, problem.ops[op].name
                yield f"ops {one} and {other} carry a value in registers between iterations, so one role must run both"
    if problem.register_file is None:
        return
    total = 0
    for index, role in enumerate(problem.roles):
        if index not in schedule.role:
            continue
        registers = role.registers
        for value in problem.values:
            if value.pool == problem.registers:
                registers += value.amount * any(schedule.role[op] == index for op in value.producers + value.consumers)
        if registers > 248:
            yield f"role {role.name} needs {registers} registers a thread, setmaxnreg allows at most 248"
        total += (registers + 7) // 8 * 8 * 32 * role.warps
    if total > problem.register_file:
        yield f"the roles need {total} registers, there are {problem.register_file}"


def _check_lags(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each op whose lag differs from its group's, or is not within an interval or as decided."""
    for group in range(1, max((len(copies) for copies in problem.copies), default=0)):
        lags = [schedule.start[copies[group]] - schedule.start[copies[0]] for copies in problem.copies]
        for copies, lag in zip(problem.copies, lags, strict=True):
            lag_text = (
                f"op {problem.ops[copies[group]].name} of group {group + 1} issues {lag} cycles after the first group's"
            )
            if lag != lags[0]:
                other = problem.ops[problem.copies[0][group]].name
                yield f"{lag_text}, op {other} {lags[0]}: they run the same code"
            elif not 0 <= lag < schedule.ii:
                yield f"{lag_text}, II is {schedule.ii}"
            elif problem.lags and lag != problem.lags[group]:
                yield f"{lag_text}, not {problem.lags[group]}"


def _check_values(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each pool that live values exceed, at some start or across the ends of intervals."""
    for index, pool in enumerate(problem.pools):
        lives = []
        for value in problem.values:
            if value.pool == index:
                begin = min(schedule.start[op] for op in value.producers)
                end = max([begin, *(schedule.start[op] + problem.ops[op].latency for op in value.consumers)])
                lives.append((begin, end, value))
        versions = sum(r.bytes * d for r, d in zip(problem.rings, schedule.depth, strict=True) if r.pool == index)
        for now, _, first in lives:
            held = pool.reserved + versions
            for begin, end, value in lives:
                # The copy of every iteration that has begun by now and has not ended.
                iterations = range((now - end) // schedule.ii, (now - begin) // schedule.ii + 1)
                held += value.amount * sum(begin <= now - k * schedule.ii < end for k in iterations)
            if held > pool.capacity:
                yield f"pool {pool.name} would hold {held} of {pool.capacity} as {first.name} begins"
        if pool.carried is None:
            continue
        carried = 0
        for begin, end, value in lives:
            carried += value.amount * sum(
                begin < border < end for border in range(end + 1) if border % schedule.ii == 0
            )
        if carried > pool.carried:
            yield f"pool {pool.name} carries {carried} across the end of an interval, {pool.carried} are allowed"
