"""Loops for the scheduler's tests: small ones from elsewhere with known answers, a GEMM, and random ones with an oracle
that enumerates."""

from __future__ import annotations

import itertools
import random

from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use

Arcs = tuple[tuple[int, int, int, int], ...]


def plain(name: str, slots: dict[str, int], ops: list[str | None], edges: Arcs) -> Problem:
    """A problem whose ops hold one slot for one cycle, or none; edges as (src, dst, latency, distance)."""
    names = list(slots)
    latency = [max((e[2] for e in edges if e[0] == op), default=0) for op in range(len(ops))]
    made = tuple(
        Op(f"op{i}", (Use(names.index(slot), 1),) if slot is not None else (), 0, latency[i])
        for i, slot in enumerate(ops)
    )
    return Problem(name, made, tuple(Edge(*e) for e in edges), tuple(Slot(n, w) for n, w in slots.items()))


# The first four are from the scheduling tests of CIRCT (Apache-2.0 with LLVM exception), with the II stated there. The
# last two are filters of the Origami set as HatScheT publishes it, with the II this solver proves.
KNOWN: tuple[tuple[Problem, int], ...] = (
    (
        plain(
            "canis14_fig2",
            {"r": 1},
            ["r", "r", None, "r", None],
            ((3, 0, 1, 1), (0, 2, 1, 0), (1, 2, 1, 0), (2, 3, 1, 0), (3, 4, 1, 0)),
        ),
        3,
    ),
    (
        plain(
            "minII_feasible",
            {"r": 1},
            [None, None, None, None, "r", "r", "r", None],
            (
                *((6, 1, 3, 5), (5, 2, 3, 3), (1, 3, 2, 0), (0, 3, 0, 0), (3, 4, 1, 0), (2, 4, 2, 0)),
                *((0, 5, 0, 0), (4, 5, 3, 0), (4, 6, 3, 0), (5, 6, 3, 0), (6, 7, 3, 0)),
            ),
        ),
        3,
    ),
    (
        plain(
            "minII_infeasible",
            {"r": 2},
            [None, None, "r", "r", "r", None, None],
            (
                *((0, 1, 1, 0), (5, 1, 1, 1), (1, 2, 1, 0), (1, 3, 1, 0), (1, 4, 1, 0)),
                *((2, 5, 1, 0), (3, 5, 1, 0), (4, 5, 1, 0), (5, 6, 1, 0)),
            ),
        ),
        4,
    ),
    (
        plain(
            "four_read_pipeline",
            {"r": 1},
            [None, None, "r", "r", "r", "r", None, None, None, None],
            (
                *((0, 1, 1, 0), (1, 2, 1, 0), (1, 3, 1, 0), (1, 4, 1, 0), (1, 5, 1, 0), (2, 6, 1, 0)),
                *((3, 6, 1, 0), (4, 7, 1, 0), (5, 7, 1, 0), (6, 8, 1, 0), (7, 8, 1, 0), (8, 9, 1, 0)),
            ),
        ),
        4,
    ),
    (
        plain(
            "iir_biqu",
            {"mul": 1, "add": 1},
            [*["mul", "mul", None, "mul", "add", "add", None, None, None, "mul", "add", "add", None, None]],
            (
                *((7, 9, 2, 0), (6, 0, 2, 0), (12, 3, 2, 0), (13, 1, 2, 0), (2, 10, 0, 0), (5, 10, 4, 0)),
                *((0, 5, 2, 0), (9, 5, 2, 0), (10, 4, 4, 0), (11, 4, 4, 0), (3, 11, 2, 0), (1, 11, 2, 0)),
                *((4, 8, 4, 0), (10, 9, 4, 1), (10, 0, 4, 2), (10, 3, 4, 1), (10, 1, 4, 2)),
            ),
        ),
        10,
    ),
    (
        plain(
            "fir_lms",
            {"mul": 1, "add": 1, "sub": 1},
            [
                *[None, None, "sub", "add", "add", None, "mul", "mul", "mul", "mul", "mul", "add"],
                *[None, None, None],
            ],
            (
                *((1, 2, 0, 0), (11, 2, 4, 0), (9, 3, 2, 0), (10, 4, 2, 0), (5, 6, 2, 0), (2, 6, 4, 0)),
                *((0, 7, 0, 0), (0, 9, 0, 0), (6, 9, 2, 0), (6, 10, 2, 0), (8, 11, 2, 0), (7, 11, 2, 0)),
                *((2, 14, 4, 0), (3, 3, 4, 1), (4, 4, 4, 1), (3, 7, 4, 1), (0, 8, 0, 1), (4, 8, 4, 1)),
                *((0, 10, 0, 1), (3, 12, 4, 1), (4, 13, 4, 1)),
            ),
        ),
        19,
    ),
)


def gemm(max_depth: int | None = None, capacity: int = 232448) -> Problem:
    """Two loads of 256 cycles on one port and a product of 512, as on a Hopper tile of 128 × 128 × 64."""
    slots = (Slot("port"), Slot("tensor"))
    ops = (
        Op("load A", (Use(0, 256),), 20, 1184, "producer", 5),
        Op("load B", (Use(0, 256),), 20, 1184, "producer", 6),
        Op("gemm", (Use(1, 512),), 48, 584, "consumer", 7),
    )
    edges = (Edge(0, 2, 1184, 0, "data A"), Edge(1, 2, 1184, 0, "data B"), Edge(2, 2, 512, 1, "output C"))
    rings = (Ring("A+B", (0, 1), (2,), 32768, 0, max_depth),)
    return Problem("gemm.k", ops, edges, slots, (Pool("smem", capacity, 1024),), rings)


def random_problem(seed: int) -> Problem:
    """Up to five ops with carried edges, offsets, wide slots, rings and pools: everything a problem may have."""
    draw = random.Random(seed)
    slots = tuple(Slot(f"s{i}", draw.choice((1, 1, 2))) for i in range(draw.randint(1, 2)))
    count = draw.randint(1, 5)
    ops = tuple(
        Op(
            f"op{i}",
            tuple(
                Use(slot, draw.randint(1, 3), draw.choice((0, 0, 1)))
                for slot in range(len(slots))
                if draw.random() < 0.6
            ),
            1,
            draw.randint(0, 4),
            draw.choice(("all", "all", "other")),
        )
        for i in range(count)
    )
    edges = []
    for src, dst in itertools.product(range(count), repeat=2):
        if draw.random() < 0.3:
            distance = draw.randint(0, 1) if src < dst else draw.randint(1, 2)
            edges.append(Edge(src, dst, draw.randint(0, 5), distance))
    rings: list[Ring] = []
    if count > 1 and draw.random() < 0.6:
        producer = draw.randrange(count - 1)
        consumers = (count - 1,) if draw.random() < 0.7 else (producer + 1, count - 1)
        depth = draw.choice((None, 1, 2))
        rings.append(Ring("ring", (producer,), tuple(dict.fromkeys(consumers)), 10, 0, depth))
        if draw.random() < 0.4:
            rings.append(Ring("other", (0,), (count - 1,), draw.choice((5, 10)), 0, draw.choice((None, 2))))
    pools = (Pool("pool", draw.choice((10, 20, 35)), draw.choice((0, 5)) if rings else 0),)
    stages = draw.choice((None, None, None, 1, 2, 3))
    return Problem(f"random {seed}", ops, tuple(edges), slots, pools, tuple(rings), stages)


# --- the oracle ---

Level = tuple[int, int, int, int, tuple[int, ...]]


def best(problem: Problem, ii: int) -> Level | None:
    """The best schedule at this II by enumeration of phases and depths, as (stages, length, ring bytes, inversions,
    starts); None if there is none. Knows nothing of the solver's way of looking at things."""
    found: Level | None = None
    depths = list(itertools.product(*(range(1, (ring.max_depth or 4) + 1) for ring in problem.rings)))
    for phases in itertools.product(range(ii), repeat=len(problem.ops)):
        if not _fits(problem, ii, phases):
            continue
        for depth in depths:
            held = sum(d * ring.bytes for d, ring in zip(depth, problem.rings, strict=True))
            if any(pool.reserved + held > pool.capacity for pool in problem.pools if problem.rings):
                continue
            start = _least(problem, ii, phases, depth)
            if start is None or (problem.max_stages is not None and max(start) // ii >= problem.max_stages):
                continue
            level = _level(problem, ii, start)
            found = level if found is None else min(found, level)
    return found


def _fits(problem: Problem, ii: int, phases: tuple[int, ...]) -> bool:
    held: dict[tuple[int, int], int] = {}
    for op, phase in zip(problem.ops, phases, strict=True):
        for use in op.uses:
            for cycle in range(use.cycles):
                row = (use.slot, (phase + use.offset + cycle) % ii)
                held[row] = held.get(row, 0) + 1
                if held[row] > problem.slots[use.slot].width:
                    return False
    return True


def _least(problem: Problem, ii: int, phases: tuple[int, ...], depth: tuple[int, ...]) -> tuple[int, ...] | None:
    arcs = [(e.src, e.dst, e.latency - ii * e.distance) for e in problem.edges]
    for ring, d in zip(problem.rings, depth, strict=True):
        arcs += [(c, p, problem.ops[c].latency - ii * d) for c in ring.consumers for p in ring.producers]
    start = list(phases)
    for _ in range(200):
        moved = False
        for src, dst, apart in arcs:
            while start[dst] < start[src] + apart:
                start[dst] += ii
                moved = True
                if start[dst] > 400:
                    return None
        if not moved:
            return tuple(start)
    return None


def _level(problem: Problem, ii: int, start: tuple[int, ...]) -> Level:
    ends = [at + op.latency for at, op in zip(start, problem.ops, strict=True)]
    held = 0
    for ring in problem.rings:
        life = max(ends[c] for c in ring.consumers) - min(start[p] for p in ring.producers)
        held += ring.bytes * max(1, -(-life // ii))
    pairs = itertools.combinations(range(len(start)), 2)
    swapped = sum(start[i] % ii > start[j] % ii for i, j in pairs if problem.ops[i].role == problem.ops[j].role)
    return max(start) // ii + 1, max(ends), held, swapped, start
