"""Schedules from the `stage=` and `order=` lists of T.Pipelined, and the errors where they break a dependence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from tilec.analysis.rings import count_ring_versions
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir.tile import Stmt
from tilec.ops.synchronisation.sync import is_ordering_statement
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.memory.shared_limits import refuse_versions
from tilec.sched.model.roles import has_roles, resolve_roles
from tilec.sched.problem import Edge
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, Label, raise_error


def build_manual_schedule(loop: LoopProblem, mistakes: ErrorCollector = RAISE_FIRST) -> Schedule | None:
    """Return the schedule that `stage=` and `order=` state, recording broken dependences; None without these lists.
    Within an interval the statements issue in the given order, each as soon as its predecessors in that order and the
    dependences within the interval allow. The interval is as long as everything else needs. Every tile has num_stages
    versions, by default max(stage) + 1; a tile that one role fills and reads within one stage has one. Copies to global
    memory that a store role may issue, it issues."""
    stages, order = loop.loop.stage, loop.loop.order
    if stages is None or order is None:
        return None
    problem = loop.problem
    blamed = set(_check_groups(loop, stages, mistakes))
    versions = tuple(count_ring_versions(loop.loop, plan) for plan in loop.rings)
    with mistakes.caught():
        _check_shared_memory(loop, versions)
    sequence = sorted(range(len(stages)), key=lambda i: order[i])
    place = {op: k for k, op in enumerate(sequence)}
    reuses = [
        Edge(consumer, producer, problem.ops[consumer].latency, depth, f"anti {ring.name}")
        for ring, depth in zip(problem.rings, versions, strict=True)
        for producer in ring.producers
        for consumer in ring.consumers
    ]
    edges = (*problem.edges, *reuses)
    for edge in edges:
        # A misplaced statement breaks several dependences: each statement is reported once.
        if _is_edge_kept(edge, stages, place) or blamed & {edge.src, edge.dst}:
            continue
        blamed |= {edge.src, edge.dst}
        with mistakes.caught():
            _refuse_order(loop, edge, stages, place)
    role = tuple(op.roles[-1] if op.roles else None for op in problem.ops) if has_roles(problem) else ()
    resolved = resolve_roles(problem, role)
    ops, edges = resolved.ops, (*resolved.edges, *reuses)
    phase = [0] * len(stages)
    next_free = 0  # the cycle from which the next statement may issue
    for op in sequence:
        same_interval = (e for e in edges if e.dst == op and stages[op] + e.distance == stages[e.src] and e.src != op)
        begun = min([0, *(use.offset for use in ops[op].uses)])  # what waits before it issues holds its slot as long
        phase[op] = max([next_free - begun, *(phase[e.src] + e.latency for e in same_interval)])
        next_free = phase[op] + max([ops[op].issue, *(u.offset + u.cycles for u in ops[op].uses)])
    ii = next_free
    for e in edges:
        crossed = stages[e.dst] + e.distance - stages[e.src]
        if crossed > 0:
            ii = max(ii, -(-(phase[e.src] + e.latency - phase[e.dst]) // crossed))
    start = tuple(s * ii + p for s, p in zip(stages, phase, strict=True))
    return Schedule(ii, start, tuple(sequence), versions, "given", role)


def _hints_label(loop: LoopProblem, text: str) -> Label:
    """Return a label with this text at the loop's scheduling hints, or at the loop if it has none."""
    scheduling_hints = loop.loop.scheduling_hints
    return Label(scheduling_hints.span if scheduling_hints is not None else loop.loop.span, text)


def _is_edge_kept(edge: Edge, stages: tuple[int, ...], place: dict[int, int]) -> bool:
    """Return True if the stages and order of the statements respect the dependence."""
    crossed = stages[edge.dst] + edge.distance - stages[edge.src]
    return crossed > 0 or (crossed == 0 and (place[edge.src] < place[edge.dst] or edge.src == edge.dst))


def _refuse_order(loop: LoopProblem, edge: Edge, stages: tuple[int, ...], place: dict[int, int]) -> NoReturn:
    """Raise the error that `stage=` and `order=` break a dependence, or leave too few versions of a tile. Errors:
    `schedule-order`, `schedule-depth`."""
    source, destination = loop.statements[edge.src], loop.statements[edge.dst]
    kind, name = edge.why.split(maxsplit=1)
    if kind == "order":
        _refuse_explicit_order(loop, edge, stages, place, name)
    needs = {"data": "reads", "anti": "overwrites", "output": "overwrites"}[kind]
    if is_ordering_statement(destination):
        needs = "waits for"
    first = Label(source.span, f"must come first: stage {stages[edge.src]}, place {place[edge.src]}")
    if edge.distance and kind == "anti" and any(r.name == name for r in loop.problem.rings):
        raise_error(
            "schedule-depth",
            f"{edge.distance} version{'s' * (edge.distance != 1)} of {name} are too few for this schedule",
            destination.span,
            f"fills {name} in stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
            secondary=(
                Label(source.span, f"still reads it: stage {stages[edge.src]}, place {place[edge.src]}"),
                _hints_label(loop, "the schedule"),
            ),
            help="remove num_stages, or raise it",
        )
    later = _iteration_suffix(edge)
    is_carried = edge.distance > 0 and kind != "data"
    single = next((entry for entry in loop.single if entry[0] == name and is_carried), None)
    blamed = single[2] if single is not None else None
    outside = () if blamed is None else (Label(blamed.span, f"also uses {name}"),)
    raise_error(
        "schedule-order",
        f"stage= and order= break a dependence through {name}: this statement needs one{later} that comes later in "
        "the schedule",
        destination.span,
        f"{needs} {name}: stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
        secondary=(first, _hints_label(loop, "the schedule"), *outside),
        notes=() if single is None else (f"{name} has one version in this loop: {single[1]}",),
        help=_suggest_fix(source, destination, name, is_carried),
    )


def _iteration_suffix(edge: Edge) -> str:
    """Return the words by which an error names an edge's earlier iteration; "" for the same iteration."""
    near = ("", " of the iteration before")
    return near[edge.distance] if edge.distance < 2 else f" of the iteration {edge.distance} before"


def _refuse_explicit_order(
    loop: LoopProblem, edge: Edge, stages: tuple[int, ...], place: dict[int, int], name: str
) -> NoReturn:
    """Raise the error that a manual schedule breaks the order that a barrier, wait or `sync` list requires."""
    source, destination = loop.statements[edge.src], loop.statements[edge.dst]
    later = _iteration_suffix(edge)
    raise_error(
        "schedule-order",
        f"stage= and order= break the order that {name} requires",
        destination.span,
        f"runs too early: stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
        secondary=(
            Label(source.span, f"must come first{later}: stage {stages[edge.src]}, place {place[edge.src]}"),
            _hints_label(loop, "the schedule"),
        ),
        help="give the statement that comes first a lower stage, or the same stage and a lower order",
    )


def _check_groups(loop: LoopProblem, stages: tuple[int, ...], mistakes: ErrorCollector) -> Iterator[int]:
    """Yield the statements, by index, of hint groups that cannot share a ring, and record the error of each group. Each
    statement of a group must fill a whole tile, all in one stage, before any of these tiles is read."""
    groups = (loop.loop.scheduling_hints and loop.loop.scheduling_hints.groups) or ()
    for number in sorted({g for g in groups if g >= 0}):
        members = [i for i, g in enumerate(groups) if g == number]
        if not any(b.scope == "shared" for i in members for b in find_writes(loop.statements[i])):
            continue  # they fill no tile that could share a ring, as in group=[[0, 1], [2]] with a product last
        known = mistakes.met
        with mistakes.caught():
            _check_group(loop, stages, members)
        if mistakes.met > known:
            yield from members


def _check_group(loop: LoopProblem, stages: tuple[int, ...], members: list[int]) -> None:
    """Refuse a group's first statement that fills no ring, or in another role or stage, or after a read of the ring."""
    separate_groups = "put them in different groups"
    first = loop.statements[members[0]]
    for i in members:
        ring = next((r for r in loop.rings if i in r.producers), None)
        if ring is None:
            _refuse_group(loop, i, "fills no tile that can have several versions", "remove it from the group")
        if loop.roles[i] != loop.roles[members[0]]:
            first_label = Label(first.span, "the first of the group")
            _refuse_group(loop, i, "is run by other warps", separate_groups, first_label)
        if stages[i] != stages[members[0]]:
            first_label = Label(first.span, f"the first of the group is in stage {stages[members[0]]}")
            _refuse_group(loop, i, f"is in stage {stages[i]}", "give them the same stage", first_label)
        if ring.consumers[0] < i:
            reader = Label(loop.statements[ring.consumers[0]].span, "reads it")
            if reader.span == loop.statements[i].span:  # the reader is a wait in front of this statement
                filling = (loop.statements[p].span for p in ring.producers if p < ring.consumers[0])
                awaited = tuple(Label(span, "it waits for this one") for span in dict.fromkeys(filling))
                why = "waits, by `sync`, for another statement of its group"
                _refuse_group(loop, i, why, "remove that from `sync`: a wait for a group is for all of it", *awaited)
            why = "fills its tile after another tile of the group has been read"
            _refuse_group(loop, i, why, separate_groups, reader)


def _refuse_group(loop: LoopProblem, member: int, why: str, way_out: str, *others: Label) -> NoReturn:
    """Raise the error that a statement cannot share a ring with the others of its group, with reason and remedy.
    Errors: `group-impossible`."""
    raise_error(
        "group-impossible",
        "this statement cannot share a ring with the others of its group",
        loop.statements[member].span,
        why,
        secondary=(*others, _hints_label(loop, "the schedule")),
        help=way_out,
    )


def _suggest_fix(source: Stmt, destination: Stmt, name: str, carried: bool) -> str:
    """Return the help text for a broken dependence; `carried`: the later statement overwrites a value still in use."""
    if not carried:
        return "give the statement that comes first a lower stage, or the same stage and a lower order"
    touched = (*find_reads(source), *find_writes(source), *find_reads(destination), *find_writes(destination))
    scope = next((b.scope for b in touched if b.name == name), "global")
    first = "give both the same stage, and the one that comes first the lower order"
    if scope == "fragment":
        return f"{name} is in registers, which have one version: {first}, or pass the value through shared memory"
    return first


def _check_shared_memory(loop: LoopProblem, versions: tuple[int, ...]) -> None:
    """Refuse a manual schedule whose versions of ring tiles do not fit into shared memory beside the other tiles."""
    problem, most = loop.problem, max(versions, default=1)
    for number, pool in enumerate(problem.pools):
        every = zip(problem.rings, loop.rings, versions, strict=True)
        rings = [(r, plan, v) for r, plan, v in every if r.pool == number]
        left = pool.capacity - pool.reserved - sum(r.bytes * v for r, _, v in rings if v < most)
        many = [(r, plan) for r, plan, v in rings if v == most and r.bytes]  # another loop counts rings of 0 bytes
        size = sum(r.bytes for r, _ in many)
        if size * most > left and many:
            tiles = [buffer for _, plan in many for buffer in plan.buffers]
            refuse_versions(most, tiles, size, left, _hints_label(loop, "").span)
