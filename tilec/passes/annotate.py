"""Turn the `stage=` and `order=` lists of T.Pipelined into a schedule, or say which dependence they break."""

from __future__ import annotations

from tilec.diag import Label, fail
from tilec.ir.tile import Stmt
from tilec.passes.depend import LoopProblem, versions_asked
from tilec.passes.usage import reads, writes
from tilec.sched.problem import Edge
from tilec.sched.schedule import Schedule


def given_schedule(loop: LoopProblem) -> Schedule | None:
    """The person's schedule; None where the loop leaves it to the solver.

    Within an interval the statements issue in the given order, each as soon as its predecessors in that order and the
    dependences within the interval allow; the interval is long enough for everything else. Every tile has as many
    versions as num_stages says, else max(stage) + 1.
    """
    stages, order = loop.loop.stage, loop.loop.order
    if stages is None or order is None:
        return None
    problem = loop.problem
    versions = versions_asked(loop.loop) or 1
    _check_memory(loop, versions)
    sequence = sorted(range(len(stages)), key=lambda i: order[i])
    place = {op: k for k, op in enumerate(sequence)}
    reuses = [
        Edge(consumer, producer, problem.ops[consumer].latency, versions, f"anti {ring.name}")
        for ring in problem.rings
        for producer in ring.producers
        for consumer in ring.consumers
    ]
    for edge in (*problem.edges, *reuses):
        _check(loop, edge, stages, place, versions)
    edges = (*problem.edges, *reuses)
    phase = [0] * len(stages)
    free = 0  # the cycle from which the next statement may issue
    for op in sequence:
        within = (e for e in edges if e.dst == op and stages[op] + e.distance == stages[e.src] and e.src != op)
        phase[op] = max([free, *(phase[e.src] + e.latency for e in within)])
        free = phase[op] + max([problem.ops[op].issue, *(u.offset + u.cycles for u in problem.ops[op].uses)])
    ii = free
    for e in edges:
        crossed = stages[e.dst] + e.distance - stages[e.src]
        if crossed > 0:
            ii = max(ii, -(-(phase[e.src] + e.latency - phase[e.dst]) // crossed))
    start = tuple(s * ii + p for s, p in zip(stages, phase, strict=True))
    return Schedule(ii, start, tuple(sequence), (versions,) * len(problem.rings), "given")


def _asked(loop: LoopProblem, text: str) -> Label:
    wishes = loop.loop.wishes
    return Label(wishes.span if wishes is not None else loop.loop.span, text)


def _check(loop: LoopProblem, edge: Edge, stages: tuple[int, ...], place: dict[int, int], versions: int) -> None:
    crossed = stages[edge.dst] + edge.distance - stages[edge.src]
    if crossed > 0 or (crossed == 0 and (place[edge.src] < place[edge.dst] or edge.src == edge.dst)):
        return
    source, destination = loop.statements[edge.src], loop.statements[edge.dst]
    kind, name = edge.why.split(maxsplit=1)
    needs = {"data": "reads", "anti": "overwrites", "output": "overwrites"}[kind]
    first = Label(source.span, f"must come first: stage {stages[edge.src]}, place {place[edge.src]}")
    if edge.distance > 1 or (kind == "anti" and any(r.name == name for r in loop.problem.rings)):
        fail(
            "schedule-depth",
            f"{versions} version{'s' * (versions != 1)} of {name} are too few for this schedule",
            destination.span,
            f"fills {name} in stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
            secondary=(
                Label(source.span, f"still reads it: stage {stages[edge.src]}, place {place[edge.src]}"),
                _asked(loop, "the schedule"),
            ),
            help="leave num_stages out, or raise it",
        )
    later = " of the iteration before" if edge.distance else ""
    fail(
        "schedule-order",
        f"stage= and order= put a statement before one{later} that it depends on through {name}",
        destination.span,
        f"{needs} {name}: stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
        secondary=(first, _asked(loop, "the schedule")),
        help=_way_out(source, destination, name, carried=edge.distance > 0 and kind != "data"),
    )


def _way_out(source: Stmt, destination: Stmt, name: str, carried: bool) -> str:
    """What to do where one statement must come before another; `carried`: before it overwrites what is still needed."""
    if not carried:
        return "give the statement that comes first a lower stage, or the same stage and a lower order"
    touched = (*reads(source), *writes(source), *reads(destination), *writes(destination))
    scope = next((b.scope for b in touched if b.name == name), "global")
    first = "give both one stage, the one that comes first the lower order"
    if scope == "fragment":
        return f"{name} lies in registers, which have one version: {first}, or hand the value on in shared memory"
    return f"{name} has one version in this loop: {first}" if scope == "shared" else first


def _check_memory(loop: LoopProblem, versions: int) -> None:
    """All versions of all rings have their place beside what else lies in shared memory."""
    problem = loop.problem
    for number, pool in enumerate(problem.pools):
        rings = [r for r in problem.rings if r.pool == number]
        left = pool.capacity - pool.reserved
        version = sum(r.bytes for r in rings)
        if not rings or version * versions <= left:
            continue
        tiles = [buffer for plan in loop.rings for buffer in plan.buffers]
        names = ", ".join(b.name for b in tiles)
        fail(
            "shared-memory-overflow",
            f"{versions} versions of {names} take {version * versions:,} bytes, {left:,} of shared memory are left",
            _asked(loop, "").span,
            f"asks for {versions} versions of {version:,} bytes",
            secondary=tuple(Label(b.span, f"{b.bytes:,} bytes each") for b in tiles),
            help=f"{left // version} versions fit: use fewer stages, or smaller tiles"
            if left >= version
            else "use smaller tiles",
        )
