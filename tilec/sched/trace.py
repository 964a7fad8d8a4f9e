"""The schedule trace: one JSON value for two readers.

`traceEvents` draw overlapped iterations in Perfetto or chrome://tracing, with one cycle as one microsecond. The `tilec`
member records what was decided and why; `read_schedules` reads it back, edited or not. It holds only integers, strings,
booleans and null, so that equal solutions are equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any

from tilec.sched import text
from tilec.sched.collisions import count_collisions, list_access_pairs
from tilec.sched.decision import Decision
from tilec.sched.explain import explain_solution
from tilec.sched.model.lags import set_observed_lags
from tilec.sched.model.roles import resolve_roles
from tilec.sched.model.stages import estimate_roofline
from tilec.sched.objective import count_held_across, count_held_at_once
from tilec.sched.problem import UNLIMITED, Op, Problem
from tilec.sched.schedule import Schedule
from tilec.sched.solution import Attempt, Solution
from tilec.support import readers, schema
from tilec.support.display import whole_percent
from tilec.support.records import dataclass

SCHEMA = 1


_LAST_CYCLE = 1 << 31
"""Limit of start times and intervals."""
TraceError = schema.SchemaError
"""The text is no trace, or has no usable content; the message names the place."""


def build_trace(
    loops: Sequence[tuple[Problem, Solution]],
    kernel: str = "",
    target: str = "",
    calibration: str = "",
    decisions: Sequence[Decision] = (),
    stores: Sequence[Mapping[str, str | int]] = (),
    also: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the whole schedule trace of a kernel: events to draw, and the record of loops, each explained.

    Loops are in program order. `stores` are the stores that go through shared memory, with the bytes they leave to the
    rings. `also` are further members: what the kernel requested and decided itself.
    """
    explained_loops = [(problem, explain_solution(problem, solution)) for problem, solution in loops]
    return {
        # Must be the first key: viewers recognise the format by the beginning of the file.
        "traceEvents": [
            event for index, loop in enumerate(explained_loops) for event in _build_events(index + 1, *loop)
        ],
        "displayTimeUnit": "ns",
        "tilec": {
            "schema": SCHEMA,
            "kernel": kernel,
            "target": target,
            "calibration": calibration,
            "decisions": [text.encode_json(decision) for decision in decisions],
            "loops": [record_loop(problem, solution) for problem, solution in explained_loops],
            "stores": [dict(store) for store in stores],
            **also,
        },
    }


def dump_trace(value: dict[str, Any]) -> str:
    """Return a trace as JSON text: one event a line, the `tilec` member indented for people."""
    events = ",\n".join(json.dumps(event, ensure_ascii=False) for event in value["traceEvents"])
    rest = {name: member for name, member in value.items() if name != "traceEvents"}
    return f'{{"traceEvents": [\n{events}\n],\n{json.dumps(rest, indent=1, ensure_ascii=False)[2:]}\n'


def record_loop(problem: Problem, solution: Solution) -> dict[str, Any]:
    """Return a loop's record for the trace: schedule, bounds, attempts, resources, and edges with slack.

    It has as much explanation as the solution has.
    """
    # From here on the chosen roles are part of the ops.
    problem = resolve_roles(problem, solution.schedule.role)
    schedule, ii = solution.schedule, solution.schedule.ii
    return {
        "name": problem.name,
        "ii": ii,
        "mii": solution.bounds.mii,
        "status": schedule.status,
        "proof": _describe_proof(solution),
        "refutation": record_refutation(solution),
        "stages": max(schedule.stage, default=0) + 1,
        "roofline": text.encode_json(estimate_roofline(problem)),
        "order": list(schedule.order),
        **({"roles": list(schedule.role)} if schedule.role else {}),
        **({"ii_by_rule": solution.ii_by_rule} if solution.ii_by_rule is not None else {}),
        **_record_groups(problem, schedule),
        **({"same_stage": [list(group) for group in problem.same_stage]} if problem.same_stage else {}),
        "ops": [_record_op(problem, schedule, op) for op in range(len(problem.ops))],
        "rings": [_record_ring(problem, schedule, ring) for ring in range(len(problem.rings))],
        "pools": [record_pool(problem, schedule, pool) for pool in range(len(problem.pools))],
        "slots": [_record_slot(problem, ii, slot) for slot in range(len(problem.slots))],
        "collisions": text.encode_json(count_collisions(list_access_pairs(problem), ii, schedule.start)),
        "bounds": [
            {**text.encode_json(bound), "binds": bound.ii == solution.bounds.mii} for bound in solution.bounds.each
        ],
        "attempts": [_record_attempts(first, last, solution) for first, last in solution.ranges],
        "heuristics": text.encode_json(solution.trials),
        "objectives": text.encode_json(solution.objectives),
        "edges": [
            {
                **text.encode_json(edge),
                "slack": schedule.start[edge.dst] + edge.distance * ii - schedule.start[edge.src] - edge.latency,
            }
            for edge in problem.edges
        ],
    }


def _record_groups(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """Return the copies of statements that groups of warps run, and the groups' lags; empty without groups."""
    if not problem.copies:
        return {}
    lags = set_observed_lags(problem, schedule.start).lags
    return {"copies": [list(copies) for copies in problem.copies], "lags": list(lags)}


def _record_attempts(first: Attempt, last: Attempt, solution: Solution) -> dict[str, Any]:
    """Return the record of the attempts from `first` to `last`, of one outcome and reason: IIs and total effort."""
    efforts = (attempt.effort for attempt in solution.attempts if first.ii <= attempt.ii <= last.ii)
    return {"from": first.ii, **text.encode_json(last), "effort": sum(efforts)}


def _describe_proof(solution: Solution) -> str:
    """Return in words how the interval is known to be optimal, or why it is not."""
    match solution.schedule.status:
        case "optimal":
            return f"every II below {solution.schedule.ii} is refuted"
        case "feasible":
            return solution.warning or ""
        case "serial":
            least = f"no II below {solution.bounds.mii} is possible"
            return f"no search: serial execution was requested; {least}"
        case "given":
            return f"the schedule was given; no II below {solution.bounds.mii} is possible"


def record_refutation(solution: Solution) -> dict[str, Any] | None:
    """Return the record of why II − 1 is impossible, with its constraint families; None if it is not refuted."""
    ii = solution.schedule.ii - 1
    attempt = next((a for a in solution.attempts if a.ii == ii and a.outcome == "refuted"), None)
    if attempt is None:
        return None
    return {"ii": ii, "how": attempt.how, "families": list(attempt.families), "why": attempt.why}


def _record_source(op: Op) -> dict[str, Any]:
    """Return an op's line, and its file if that is an imported one, as members of its record."""
    return {"line": op.line} | ({"file": op.file} if op.file else {})


def _record_op(problem: Problem, schedule: Schedule, index: int) -> dict[str, Any]:
    """Return a statement's record: its place in the schedule, its cycles, and the table rows that it holds."""
    op, start = problem.ops[index], schedule.start[index]
    return {
        "id": index,
        "name": op.name,
        "role": op.role,
        **_record_source(op),
        "start": start,
        "stage": start // schedule.ii,
        "phase": start % schedule.ii,
        "order": schedule.order.index(index),
        "issue": op.issue,
        "latency": op.latency,
        "rows": [
            {"slot": problem.slots[use.slot].name, "rows": _split_rows(start + use.offset, use.cycles, schedule.ii)}
            for use in op.uses
            if use.cycles
        ],
    }


def _split_rows(start: int, cycles: int, ii: int) -> list[list[int]]:
    """Return the rows of the reservation table that a use holds, as half-open ranges; a full turn is one range."""
    wraps, rest = divmod(cycles, ii)
    first = start % ii
    rows = [[0, ii]] * wraps
    if first + rest <= ii:
        return rows + ([[first, first + rest]] if rest else [])
    return [*rows, [first, ii], [0, first + rest - ii]]


def _record_ring(problem: Problem, schedule: Schedule, index: int) -> dict[str, Any]:
    """Return a ring's record: its pool, depth and limit, bytes, lifetime, producers and consumers."""
    ring = problem.rings[index]
    written = min((schedule.start[op] for op in ring.producers), default=0)
    done = max((schedule.start[op] + problem.ops[op].latency for op in ring.consumers), default=0)
    return {
        "name": ring.name,
        "pool": problem.pools[ring.pool].name,
        "depth": schedule.depth[index],
        "max_depth": ring.max_depth,
        "bytes": ring.bytes,
        "total_bytes": schedule.depth[index] * ring.bytes,
        "lifetime": done - written,
        "producers": list(ring.producers),
        "consumers": list(ring.consumers),
    }


def record_pool(problem: Problem, schedule: Schedule, index: int) -> dict[str, Any]:
    """Return a pool's record: capacity, peak use by rings and values, and what values hold across intervals."""
    pool = problem.pools[index]
    depths = zip(problem.rings, schedule.depth, strict=True)
    rings = sum(ring.bytes * depth for ring, depth in depths if ring.pool == index)
    values = count_held_at_once(problem, schedule.ii, schedule.start, index)
    return {
        "name": pool.name,
        "capacity": pool.capacity,
        "reserved": pool.reserved,
        "rings": rings,
        "values": values,
        "peak": pool.reserved + rings + values,
        "carried": count_held_across(problem, schedule.ii, schedule.start, index),
        "most_carried": pool.carried,
    }


def _record_slot(problem: Problem, ii: int, index: int) -> dict[str, Any]:
    """Return a slot's record: the cycles and the percentage of the interval for which it is held."""
    slot = problem.slots[index]
    held = sum(use.cycles for op in problem.ops for use in op.uses if use.slot == index)
    return {"name": slot.name, "width": slot.width, "held": held, "percent": whole_percent(held / (slot.width * ii))}


def _build_events(process: int, problem: Problem, solution: Solution) -> list[dict[str, Any]]:
    """Return the trace events that draw a loop as one process: tracks for intervals, slots and ops.

    A track gets a second lane where iterations overlap on it, because slices of one track must nest.
    """
    problem, schedule, ii = resolve_roles(problem, solution.schedule.role), solution.schedule, solution.schedule.ii
    stages = max(schedule.stage, default=0) + 1
    iterations = stages + 2
    tracks = _Tracks(process)
    for interval in range(iterations + stages - 1):
        part = "prologue" if interval < stages - 1 else "steady state" if interval < iterations else "epilogue"
        tracks.slice("interval", f"interval {interval}: {part}", interval * ii, ii, {})
    for index, slot in enumerate(problem.slots):
        held = [
            (schedule.start[holder] + use.offset + iteration * ii, holder, iteration, use.cycles)
            for holder in range(len(problem.ops))
            for use in problem.ops[holder].uses
            if use.slot == index and use.cycles
            for iteration in range(iterations)
        ]
        for start, holder, iteration, cycles in sorted(held):
            about = {"iteration": iteration, **_record_source(problem.ops[holder])}
            tracks.slice(f"slot {slot.name}", problem.ops[holder].name, start, cycles, about)
    for index, op in enumerate(problem.ops):
        busy = max([op.latency, op.issue, 1, *(use.offset + use.cycles for use in op.uses)])
        for iteration in range(iterations):
            start = schedule.start[index] + iteration * ii
            about = {"iteration": iteration, "stage": schedule.stage[index], **_record_source(op)}
            track = tracks.slice(f"op {index} {op.name}", op.name, start, busy, about)
            if 0 < op.issue < busy:
                tracks.inside(track, "issue", start, op.issue)
    title = f"{problem.name or 'loop'}: II {ii}, {stages} stages, {schedule.status}"
    name = {"ph": "M", "pid": process, "name": "process_name", "args": {"name": title}}
    return [name, *tracks.names, *tracks.events]


class _Tracks:
    """Puts slices on the first free lane of their track."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.names: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._lanes: dict[str, list[tuple[int, int]]] = {}
        self._count = 0

    def slice(self, track: str, name: str, start: int, cycles: int, about: dict[str, int]) -> int:
        """Add a slice on the first free lane of its track, and return the lane's thread id.

        Slices of a track must arrive by rising start.
        """
        lanes = self._lanes.setdefault(track, [])
        for lane, (thread, free_from) in enumerate(lanes):
            if free_from <= start:
                lanes[lane] = thread, start + cycles
                break
        else:
            thread = self._thread(track, len(lanes))
            lanes.append((thread, start + cycles))
        self.inside(thread, name, start, cycles, about)
        return thread

    def inside(self, thread: int, name: str, start: int, cycles: int, about: dict[str, int] | None = None) -> None:
        """Append the event of a slice on a thread, without looking for a free lane."""
        event = {"ph": "X", "pid": self.process, "tid": thread, "name": name, "ts": start, "dur": cycles}
        self.events.append({**event, "args": about} if about else event)

    def _thread(self, track: str, lane: int) -> int:
        """Add the next lane of a track, with its name and place, and return its thread id."""
        self._count += 1
        name = track if lane == 0 else f"{track} ({lane + 1})"
        common = {"ph": "M", "pid": self.process, "tid": self._count}
        self.names.append({**common, "name": "thread_name", "args": {"name": name}})
        self.names.append({**common, "name": "thread_sort_index", "args": {"sort_index": self._count}})
        return self._count


@dataclass(frozen=True, slots=True)
class _TraceFile(text.OpenRecord):
    tilec: Mapping[str, Any]


def parse_trace(source: str) -> dict[str, Any]:
    """Return the `tilec` member of a trace's text; raise `TraceError` if it is none or of another version."""
    try:
        value = readers.parse_json(source)
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from error
    return schema.check_schema_version(schema.read_record(_TraceFile, value, "").tilec, SCHEMA)


def read_schedules(source: str) -> list[Schedule]:
    """Return the schedules in a trace's text, one a loop, unverified, their order by the recorded starts.

    Start times, II and depths are taken as they are. A person who edits a start need not edit the order; the recorded
    order only breaks ties of ops that issue in one cycle.
    """
    loops = schema.read_record(_LoopsRecord, parse_trace(source), "tilec").loops
    return [_build_schedule(loop, f"tilec.loops[{at}]") for at, loop in enumerate(loops)]


@dataclass(frozen=True, slots=True)
class RequestedTile(text.OpenRecord):
    """A tile that a kernel declares."""

    name: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelRequest(text.OpenRecord):
    """The constants, threads and tiles that a kernel and its options requested; None where the trace does not say."""

    constants: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    tiles: tuple[RequestedTile, ...] | None = None


def read_kernel_request(source: str) -> KernelRequest:
    """Return the constants, threads and tiles requested by a trace's kernel; raise `TraceError` for no trace."""
    return schema.read_record(KernelRequest, parse_trace(source), "tilec")


@dataclass(frozen=True, slots=True)
class _OpRecord(text.OpenRecord):
    start: Annotated[int, schema.Range(-_LAST_CYCLE, _LAST_CYCLE)]


@dataclass(frozen=True, slots=True)
class _RingRecord(text.OpenRecord):
    depth: Annotated[int, schema.Range(1, UNLIMITED)]


@dataclass(frozen=True, slots=True)
class _LoopRecord(text.OpenRecord):
    """The parts of a loop's record that are read back; the rest is for people."""

    ii: Annotated[int, schema.Range(1, _LAST_CYCLE)]
    ops: tuple[_OpRecord, ...]
    order: tuple[int, ...]
    rings: tuple[_RingRecord, ...]
    roles: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class _LoopsRecord(text.OpenRecord):
    loops: tuple[_LoopRecord, ...]


def _build_schedule(loop: _LoopRecord, place: str) -> Schedule:
    """Return the schedule in a loop's record, ordered by its starts; raise `TraceError` for a wrong order."""
    start = tuple(op.start for op in loop.ops)
    if sorted(loop.order) != list(range(len(start))):
        raise TraceError(f"{place}.order: expected each of the {len(start)} ops once")
    order = tuple(sorted(loop.order, key=lambda op: start[op] % loop.ii))
    return Schedule(loop.ii, start, order, tuple(ring.depth for ring in loop.rings), "given", loop.roles)
