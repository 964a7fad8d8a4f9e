"""Turn the `stage=` and `order=` lists of T.Pipelined into a schedule, or say which dependence they break."""

from __future__ import annotations

from tilec.diag import Label, fail
from tilec.passes.depend import LoopProblem
from tilec.sched.problem import Edge
from tilec.sched.schedule import Schedule


def given_schedule(loop: LoopProblem) -> Schedule | None:
    """The person's schedule; None where the loop leaves it to the solver.

    Within an interval the statements issue in the given order, each as soon as its predecessors in that order and the
    dependences within the interval allow; the interval is long enough for everything else.
    """
    stages, order = loop.loop.stage, loop.loop.order
    if stages is None or order is None:
        return None
    problem = loop.problem
    sequence = sorted(range(len(stages)), key=lambda i: order[i])
    place = {op: k for k, op in enumerate(sequence)}
    for edge in problem.edges:
        _check(loop, edge, stages, place)
    phase = [0] * len(stages)
    free = 0  # the cycle from which the next statement may issue
    for op in sequence:
        within = (e for e in problem.edges if e.dst == op and stages[op] + e.distance == stages[e.src] and e.src != op)
        phase[op] = max([free, *(phase[e.src] + e.latency for e in within)])
        free = phase[op] + max([problem.ops[op].issue, *(u.offset + u.cycles for u in problem.ops[op].uses)])
    ii = free
    for e in problem.edges:
        crossed = stages[e.dst] + e.distance - stages[e.src]
        if crossed > 0:
            ii = max(ii, -(-(phase[e.src] + e.latency - phase[e.dst]) // crossed))
    start = tuple(s * ii + p for s, p in zip(stages, phase, strict=True))
    depth = []
    for ring in problem.rings:
        first = min(start[p] for p in ring.producers)
        last = max(start[c] + problem.ops[c].latency for c in ring.consumers)
        depth.append(max(-(-(last - first) // ii), max(stages) + 1))
    return Schedule(ii, start, tuple(sequence), tuple(depth), "given")


def _check(loop: LoopProblem, edge: Edge, stages: tuple[int, ...], place: dict[int, int]) -> None:
    crossed = stages[edge.dst] + edge.distance - stages[edge.src]
    if crossed > 0 or (crossed == 0 and (place[edge.src] < place[edge.dst] or edge.src == edge.dst)):
        return
    source, destination = loop.statements[edge.src], loop.statements[edge.dst]
    kind, name = edge.why.split(maxsplit=1)
    needs = {"data": "reads", "anti": "overwrites", "output": "overwrites"}[kind]
    fail(
        "schedule-order",
        f"stage= and order= put a statement before one that it depends on through {name}",
        destination.span,
        f"{needs} {name}: stage {stages[edge.dst]}, place {place[edge.dst]} in the order",
        secondary=(Label(source.span, f"must come first: stage {stages[edge.src]}, place {place[edge.src]}"),),
        help="give the statement that comes first a lower stage, or the same stage and a lower order",
    )
