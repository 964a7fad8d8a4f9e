"""Explanations of refused placements: the binding slot, pool, ring or ceiling, the II, the op's footprint, the window
that its dependences leave it, and its source line.

All of it follows from the problem and the start times alone. `sched.verify` decides; this explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Op, Problem, Value
from tilec.sched.schedule import Schedule
from tilec.support.records import dataclass
from tilec.target.table import Limit

Constraint = Literal["dependence", "slot", "ring", "pool", "ceiling"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A violated constraint. `name` names it, `ops` are the ops involved with the refused one first, and `text`
    explains."""

    constraint: Constraint
    name: str
    ops: tuple[int, ...]
    text: str


def find_refusals(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield each violated constraint of a schedule, with an explanation; nothing if its form does not fit. The schedule
    has a start for each op."""
    if len(schedule.start) != len(problem.ops) or len(schedule.depth) != len(problem.rings) or schedule.ii < 1:
        return
    yield from _check_dependences(problem, schedule)
    yield from _check_slots(problem, schedule)
    yield from _check_rings(problem, schedule)
    yield from _check_pools(problem, schedule)
    yield from _check_values(problem, schedule)


def describe_placement(problem: Problem, schedule: Schedule, op: int) -> str:
    """Return one line about an op: its start, the slots it holds, and the cycles that its dependences allow."""
    low, high = find_window(problem, schedule, op)
    spec = problem.ops[op]
    bounds = f"[{'0' if low is None else max(low, 0)}, {'∞' if high is None else high}]"
    return (
        f"{spec.place}: {spec.name} starts in cycle {schedule.start[op]} at II {schedule.ii}; "
        f"it holds {describe_footprint(problem, spec)}; its dependences allow cycles {bounds}"
    )


def describe_footprint(problem: Problem, op: Op) -> str:
    """Return an op's use of slots as text: `tma for 128, tp_smem_wr for 128 from 4 on`."""
    parts = [
        f"{problem.slots[use.slot].name} for {use.cycles}" + (f" from {use.offset} on" if use.offset else "")
        for use in op.uses
        if use.cycles
    ]
    return ", ".join(parts) or "no slot"


def find_window(problem: Problem, schedule: Schedule, op: int) -> tuple[int | None, int | None]:
    """Return the first and last cycle in which the op may start if all others stay; None where unbounded."""
    ii, start = schedule.ii, schedule.start
    after = [start[e.src] + e.latency - e.distance * ii for e in problem.edges if e.dst == op != e.src]
    before = [start[e.dst] + e.distance * ii - e.latency for e in problem.edges if e.src == op != e.dst]
    return max(after, default=None), min(before, default=None)


def _check_dependences(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield a refusal for each dependence whose second op starts before the first is ready."""
    for edge in problem.edges:
        ready = schedule.start[edge.src] + edge.latency
        issues = schedule.start[edge.dst] + edge.distance * schedule.ii
        if issues < ready:
            name = edge.why or f"{problem.ops[edge.src].name} → {problem.ops[edge.dst].name}"
            text = (
                f"dependence {name} needs {edge.latency} cycles over {edge.distance} iterations, "
                f"{ready - issues} more than it has"
            )
            yield Refusal("dependence", name, (edge.dst, edge.src), text)


def _check_slots(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield a refusal for each slot that more ops hold in one row than its width allows."""
    ii = schedule.ii
    for index, slot in enumerate(problem.slots):
        uses = [(op, u) for op, spec in enumerate(problem.ops) for u in spec.uses if u.slot == index and u.cycles]
        # A row can only overflow where a use begins.
        for op, use in uses:
            row = (schedule.start[op] + use.offset) % ii
            held = [(o, u, (row - schedule.start[o] - u.offset) % ii) for o, u in uses]
            holders = [o for o, u, since in held for _ in range(u.cycles // ii + (since < u.cycles % ii))]
            if len(holders) > slot.width:
                others = tuple(dict.fromkeys(o for o in holders if o != op))
                names = ", ".join(problem.ops[o].name for o in others) or "itself, in the previous iteration"
                text = f"slot {slot.name} of width {slot.width} is full in row {row} of {ii}, held by {names}"
                yield Refusal("slot", slot.name, (op, *others), text)
                break


def _check_rings(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield a refusal for each ring whose version is live longer than its depth allows."""
    for ring, depth in zip(problem.rings, schedule.depth, strict=True):
        last = max(ring.consumers, key=lambda op: schedule.start[op] + problem.ops[op].latency, default=None)
        first = min(ring.producers, key=lambda op: schedule.start[op], default=None)
        if last is None or first is None:
            continue
        life = schedule.start[last] + problem.ops[last].latency - schedule.start[first]
        if life > depth * schedule.ii:
            text = (
                f"ring {ring.name} of depth {depth} keeps a version for {depth * schedule.ii} cycles, and it is "
                f"live for {life}"
            )
            yield Refusal("ring", ring.name, (last, first), text)


def _check_pools(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield a refusal for each pool that the ring versions in it overflow."""
    for index, pool in enumerate(problem.pools):
        inside = [(r, d) for r, d in zip(problem.rings, schedule.depth, strict=True) if r.pool == index]
        held = pool.reserved + sum(ring.bytes * depth for ring, depth in inside)
        if held > pool.capacity and inside:
            ring, depth = max(inside, key=lambda part: part[0].bytes * part[1])
            text = f"pool {pool.name} would hold {held} of {pool.capacity}, {depth} × {ring.bytes} of them {ring.name}"
            yield Refusal("pool", pool.name, (*ring.producers, *ring.consumers), text)


def _check_values(problem: Problem, schedule: Schedule) -> Iterator[Refusal]:
    """Yield a refusal for each pool that values overflow, at one time or from one interval to the next."""
    ii = schedule.ii
    for index, pool in enumerate(problem.pools):
        depths = zip(problem.rings, schedule.depth, strict=True)
        versions = sum(ring.bytes * depth for ring, depth in depths if ring.pool == index)
        lives = [(*_find_lifetime(problem, schedule, value), value) for value in problem.values if value.pool == index]
        worst: tuple[int, list[tuple[Value, int]]] = (pool.capacity, [])
        for now, _, _ in lives:
            alive = [(value, (now - begin) // ii - (now - end) // ii) for begin, end, value in lives]
            held = pool.reserved + versions + sum(value.amount * copies for value, copies in alive)
            worst = max(worst, (held, [part for part in alive if part[1]]), key=lambda found: found[0])
        if worst[1]:
            parts = ", ".join(_describe_copies(value, copies) for value, copies in worst[1])
            besides = f" beside {pool.reserved + versions} others" if pool.reserved + versions else ""
            text = f"pool {pool.name} would hold {worst[0]} of {pool.capacity} at once: {parts}{besides}"
            yield Refusal("pool", pool.name, _list_users(value for value, _ in worst[1]), text)
        crossing = [(value, max(0, (end - 1) // ii - begin // ii)) for begin, end, value in lives]
        carried = sum(value.amount * copies for value, copies in crossing)
        if pool.carried is not None and carried > pool.carried:
            parts = ", ".join(_describe_copies(value, copies) for value, copies in crossing if copies)
            text = f"pool {pool.name} would carry {carried} of {pool.carried} from one interval to the next: {parts}"
            yield Refusal("pool", pool.name, _list_users(value for value, copies in crossing if copies), text)


def _find_lifetime(problem: Problem, schedule: Schedule, value: Value) -> tuple[int, int]:
    """Return the first cycle of a value's producers, and the cycle in which its last consumer is done."""
    begin = min(schedule.start[op] for op in value.producers)
    return begin, max([begin, *(schedule.start[op] + problem.ops[op].latency for op in value.consumers)])


def _describe_copies(value: Value, copies: int) -> str:
    return f"{value.amount} {value.name}" if copies == 1 else f"{copies} × {value.amount} {value.name}"


def _list_users(values: Iterable[Value]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(op for value in values for op in (*value.producers, *value.consumers)))


# ---- no schedule at all ----------------------------------------------------------------------------------------------


def describe_binding(problem: Problem, refusal: Unschedulable) -> tuple[str, ...]:
    """Return notes on an unschedulable loop: the binding constraint, and each involved op with its resources."""
    ops = (
        f"{problem.ops[op].place}: {problem.ops[op].name} holds {_describe_resources(problem, op)}"
        for op in refusal.ops
    )
    return (f"binding: {refusal.kind} {refusal.name}, at every II", *ops)


def _describe_resources(problem: Problem, op: int) -> str:
    """Return an op's slots, latency, ring bytes and pool amounts as text."""
    spec = problem.ops[op]
    rings = [f"{ring.bytes} bytes a version of {ring.name}" for ring in problem.rings if op in ring.producers]
    values = [
        f"{value.amount} of pool {problem.pools[value.pool].name} with {value.name}"
        for value in problem.values
        if op in value.producers
    ]
    return ", ".join(
        [describe_footprint(problem, spec), f"its result is ready after {spec.latency} cycles", *rings, *values]
    )


def find_exceeded_ceiling(problem: Problem, ceilings: Sequence[Limit]) -> Refusal | None:
    """Return a refusal if the longest dependence chain of an iteration exceeds the lowest ceiling, else None."""
    if not ceilings:
        return None
    lowest = min(ceilings, key=lambda ceiling: ceiling.value)
    chain = _find_longest_chain(problem)
    cycles = sum(latency for _, latency in chain)
    if cycles <= lowest.value:
        return None
    names = " → ".join(problem.ops[op].name for op, _ in chain)
    text = f"ceiling {lowest.name} allows {lowest.value} cycles for a chain of dependences, and {names} takes {cycles}"
    return Refusal("ceiling", lowest.name, tuple(op for op, _ in chain), text)


def _find_longest_chain(problem: Problem) -> list[tuple[int, int]]:
    """Return the longest dependence path within one iteration: its ops, each with the cycles that it adds. Edges of
    distance 0 form no cycle."""
    inside = [edge for edge in problem.edges if edge.distance == 0]
    longest: dict[int, list[tuple[int, int]]] = {}

    def sum_latencies(chain: list[tuple[int, int]]) -> int:
        return sum(latency for _, latency in chain)

    def find_chain_from(op: int) -> list[tuple[int, int]]:
        """Return the longest path that begins with this op, cached."""
        if op not in longest:
            chains = [[(op, edge.latency), *find_chain_from(edge.dst)] for edge in inside if edge.src == op]
            longest[op] = max([[(op, problem.ops[op].latency)], *chains], key=sum_latencies)
        return longest[op]

    return max((find_chain_from(op) for op in range(len(problem.ops))), key=sum_latencies, default=[])
