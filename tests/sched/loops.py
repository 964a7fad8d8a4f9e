"""Loops for the scheduler's tests: small ones from elsewhere with known answers, a GEMM, and random ones with an oracle
that enumerates."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Role, Slot, Use, Value

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


def crowded_rings(reserved: int) -> Problem:
    """Three rings, each filled by an op of 3 cycles on one unit and emptied by one on another; the pool holds five
    versions, or fewer with what is reserved.

    In an interval of 9 the ops of a unit are a multiple of 3 apart. One version does for a ring only if it is emptied
    exactly 8, 7 or 6 cycles after it was filled, and no two of these differ by a multiple of 3. So there are 5 versions
    or more, though each ring alone needs one."""
    fill = [Op(f"fill {n}", (Use(0, 3),), 1, apart) for n, apart in enumerate((8, 7, 6))]
    empty = [Op(f"empty {n}", (Use(1, 3),), 1, 9 - apart) for n, apart in enumerate((8, 7, 6))]
    edges = tuple(Edge(n, n + 3, op.latency) for n, op in enumerate(fill))
    rings = tuple(Ring(f"ring {n}", (n,), (n + 3,), 40, 0) for n in range(3))
    pools = (Pool("smem", 200, reserved),)
    return Problem("rings", (*fill, *empty), edges, (Slot("x"), Slot("y")), pools, rings)


def random_problem(seed: int) -> Problem:
    """Up to six ops with carried edges, offsets, wide slots, rings and pools: everything a problem may have."""
    draw = random.Random(seed)
    slots = tuple(Slot(f"s{i}", draw.choice((1, 1, 2))) for i in range(draw.randint(1, 2)))
    count = draw.randint(1, 6)
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


def valued_problem(seed: int) -> Problem:
    """A random problem whose ops also write values, for the levels that count what is held."""
    problem = random_problem(seed)
    draw = random.Random(seed)
    count = len(problem.ops)
    values = tuple(
        Value(f"v{at}", (draw.randrange(count),), (draw.randrange(count),), draw.randint(1, 9), 1)
        for at in range(draw.randint(1, 3))
    )
    return replace(problem, pools=(*problem.pools, Pool("registers", 1 << 20)), values=values)


def staged_problem(seed: int) -> Problem:
    """A random problem with ops that must share a stage."""
    problem = random_problem(seed)
    draw = random.Random(seed)
    ops = range(len(problem.ops))
    groups = [tuple(sorted(draw.sample(ops, draw.randint(2, min(3, len(ops)))))) for _ in range(draw.randint(1, 2))]
    return replace(problem, same_stage=tuple(dict.fromkeys(groups)))


def tight_problem(seed: int) -> Problem:
    """A random problem whose values have to fit in what a pool has, some in the one that its rings are in, some with a
    limit on what is carried from one interval to the next."""
    problem = valued_problem(seed)
    draw = random.Random(seed)
    ops = problem.ops[:4]
    edges = tuple(edge for edge in problem.edges if max(edge.src, edge.dst) < 4)
    rings = tuple(ring for ring in problem.rings if max(*ring.producers, *ring.consumers) < 4)
    values = tuple(
        replace(value, producers=(value.producers[0] % len(ops),), consumers=(value.consumers[0] % len(ops),))
        for value in problem.values
    )
    tight = Pool("registers", draw.randint(6, 20), draw.choice((0, 2)), draw.choice((None, None, 0, 5)))
    pools = (*problem.pools, tight)
    if draw.random() < 0.3:
        values = tuple(replace(value, pool=0) for value in values)
        pools = (replace(problem.pools[0], capacity=draw.choice((20, 30, 40))), tight)
    return replace(problem, ops=ops, edges=edges, rings=rings, values=values, pools=pools[:1] + pools[-1:])


def banked_problem(seed: int) -> Problem:
    """Two to four ops that read and write one or two memories, some of them both, on ports of one unit or two."""
    draw = random.Random(seed)
    ports = [("rd", "shared memory"), ("wr", "shared memory"), ("in", "tensor memory"), ("out", "tensor memory")]
    slots = (*(Slot(name, draw.choice((1, 1, 1, 2)), banks) for name, banks in ports), Slot("unit"))
    ops = tuple(
        Op(
            f"op{at}",
            tuple(
                Use(slot, draw.randint(1, 4), draw.choice((0, 0, 2)))
                for slot in draw.sample(range(5), draw.randint(1, 2))
            ),
            1,
            draw.randint(0, 4),
            draw.choice(("all", "other")),
        )
        for at in range(draw.randint(2, 4))
    )
    edges = tuple(
        Edge(src, dst, draw.randint(0, 4), 0 if src < dst else draw.randint(1, 2))
        for src, dst in itertools.product(range(len(ops)), repeat=2)
        if src != dst and draw.random() < 0.3
    )
    values = (Value("v", (0,), (len(ops) - 1,), 1, 0),) if draw.random() < 0.5 else ()
    return Problem(f"banked {seed}", ops, edges, slots, (Pool("registers", 1 << 20),), (), 3, values)


def early_problem(seed: int) -> Problem:
    """A tight problem with latencies below zero: an op may begin some cycles before the one that it depends on."""
    problem = tight_problem(seed)
    draw = random.Random(seed)
    edges = tuple(replace(edge, latency=edge.latency - draw.choice((0, 0, 3, 8))) for edge in problem.edges)
    return replace(problem, edges=edges)


def carrying_problem(seed: int) -> Problem:
    """Two to four ops on slots of few units, with values of which only so much may be held from one interval to the
    next, others of which less is better, a ring now and then, and now and then ops that share a stage."""
    draw = random.Random(seed)
    count = draw.choice((2, 3, 3, 4))
    slots = tuple(Slot(f"s{at}", draw.choice((1, 1, 2))) for at in range(2))
    ops = tuple(
        Op(
            f"op{at}",
            tuple(
                Use(draw.randrange(2), draw.randint(1, 3), draw.choice((0, 0, 1))) for _ in range(draw.randint(0, 1))
            ),
            1,
            draw.randint(0, 5),
            draw.choice(("all", "all", "other")),
        )
        for at in range(count)
    )
    pairs = [(src, dst) for src in range(count) for dst in range(count) if draw.random() < (0.5 if src < dst else 0.15)]
    edges = tuple(
        Edge(src, dst, max(0, ops[src].latency - draw.choice((0, 0, 2))), 0 if src < dst else draw.randint(1, 2))
        for src, dst in pairs
    )
    values = []
    for at in range(draw.randint(1, 3)):
        ends = sorted(draw.sample(range(count), 2))
        consumers = (ends[1],) if draw.random() < 0.7 else tuple(dict.fromkeys((ends[1], count - 1)))
        producers = (ends[0],) if draw.random() < 0.8 else tuple(dict.fromkeys((0, ends[0])))
        values.append(Value(f"v{at}", producers, consumers, draw.randint(1, 3), draw.choice((0, 0, 1))))
    limited = Pool("barriers", draw.choice((8, 16)), 1, draw.choice((0, 1, 1, 2, 3)), spare=False)
    spare = Pool("registers", draw.choice((8, 1 << 20)))
    rings = (Ring("ring", (0,), (count - 1,), 1, 0, draw.choice((None, 1, 2))),) if draw.random() < 0.3 else ()
    shared = (tuple(sorted(draw.sample(range(count), 2))),) if draw.random() < 0.2 else ()
    stages = draw.choice((None, None, 2, 3))
    return Problem(
        f"carrying {seed}", ops, edges, slots, (limited, spare), rings, stages, tuple(values), same_stage=shared
    )


def attention(register_file: int | None = None) -> Problem:
    """Attention forward with its queries in two halves, a and b: for each a product, a softmax and a second product,
    which two warp groups may run. A producer warp loads keys and values. Scores are renamed from tile to tile, or
    no product could begin before the softmax of the last one is through."""
    slots = (Slot("port"), Slot("tensor"), Slot("producer"), Slot("first"), Slot("second"))
    roles = (Role("producer", 2, 1), Role("first", 3), Role("second", 4))
    ops = [Op(f"load {tile}", (Use(0, 256),), 20, 1100, roles=(0,)) for tile in "KV"]
    edges: list[Edge] = []
    values = []
    for half in "ab":
        scores, softmax, output = range(len(ops), len(ops) + 3)
        ops += [
            Op(f"scores {half}", (Use(1, 192),), 32, 264, roles=(1, 2)),
            Op(f"softmax {half}", (), 480, 520, roles=(1, 2)),
            Op(f"output {half}", (Use(1, 192),), 32, 264, roles=(1, 2)),
        ]
        edges += [
            Edge(0, scores, 1100, 0, "data K"),
            Edge(1, output, 1100, 0, "data V"),
            Edge(scores, softmax, 264, 0, f"data S{half}", hand_over=300),
            Edge(softmax, output, 520, 0, f"data P{half}", hand_over=300),
            Edge(output, output, 192, 1, f"data O{half}"),
        ]
        values += [
            Value(f"S{half}", (scores,), (softmax,), 64, 1),
            Value(f"P{half}", (softmax,), (output,), 32, 1),
            Value(f"O{half}", (output,), (output,), 64, 1),
        ]
    rings = (Ring("K", (0,), (2, 5), 16384, 0), Ring("V", (1,), (4, 7), 16384, 0))
    pools = (Pool("smem", 200_000), Pool("registers", 1 << 20))
    return Problem(
        "attention",
        tuple(ops),
        tuple(edges),
        slots,
        pools,
        rings,
        values=tuple(values),
        roles=roles,
        registers=1,
        register_file=register_file,
    )


def joint_problem(seed: int) -> Problem:
    """A small random problem with two roles, one slot besides theirs, values to hand over, and ops tied together."""
    draw = random.Random(seed)
    slots = (Slot("unit"), Slot("left"), Slot("right"))
    roles = (Role("left", 1), Role("right", 2))
    count = draw.randint(2, 4)
    ops = tuple(
        Op(
            f"op{i}",
            (Use(0, draw.randint(1, 2)),) if draw.random() < 0.4 else (),
            draw.randint(1, 3),
            draw.randint(1, 4),
            roles=draw.choice(((0,), (1,), (0, 1), (0, 1), (1, 0))),
            wait=draw.choice((0, 0, 1)),
        )
        for i in range(count)
    )
    edges = tuple(
        Edge(src, dst, draw.randint(0, 3), 0 if src < dst else 1, hand_over=draw.choice((0, 0, 2, 3)))
        for src, dst in itertools.product(range(count), repeat=2)
        if draw.random() < 0.35
    )
    both = [i for i, op in enumerate(ops) if len(op.roles) == 2]
    tied = (tuple(both[:2]),) if len(both) > 1 and draw.random() < 0.4 else ()
    return Problem(f"joint {seed}", ops, edges, slots, roles=roles, tied=tied)


# --- the oracle ---


def divisions(problem: Problem) -> Iterator[tuple[tuple[int, ...], Problem]]:
    """Every division of the ops among the roles, and the problem that is left once it is made."""
    for role in itertools.product(*(op.roles for op in problem.ops)):
        if any(len({role[op] for op in tied}) > 1 for tied in problem.tied):
            continue
        # The wait before an op is a use that begins earlier: here, one of the turn before.
        ops = tuple(
            replace(op, uses=(*op.uses, Use(problem.roles[r].slot, op.issue + op.wait, -op.wait)), roles=(), wait=0)
            for op, r in zip(problem.ops, role, strict=True)
        )
        edges = tuple(
            replace(e, latency=e.latency + (e.hand_over if role[e.src] != role[e.dst] else 0), hand_over=0)
            for e in problem.edges
        )
        yield role, replace(problem, ops=ops, edges=edges, roles=(), tied=())


def has_schedule(problem: Problem, ii: int) -> bool:
    """Whether there is a schedule at this II, by enumeration of phases and depths. Knows nothing of the solver's way of
    looking at things."""
    depths = list(itertools.product(*(range(1, (ring.max_depth or 4) + 1) for ring in problem.rings)))
    for phases in _phases(problem, ii):
        for depth in depths:
            held = sum(d * ring.bytes for d, ring in zip(depth, problem.rings, strict=True))
            if any(pool.reserved + held > pool.capacity for pool in problem.pools if problem.rings):
                continue
            start = _least(problem, ii, phases, depth)
            if start is not None and (problem.max_stages is None or max(start) // ii < problem.max_stages):
                return True
    return False


def best(problem: Problem, ii: int, stages: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(levels, starts) of the best schedule at this II that has no more stages than these, by enumeration of every
    start, wherever in the first interval the first op issues; None if there is none."""
    found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for start in _starts(problem, ii, stages):
        depth = _depth(problem, ii, start)
        held = sum(d * ring.bytes for d, ring in zip(depth, problem.rings, strict=True))
        if min(start) >= ii or not _in_pools(problem, ii, start, depth):
            continue
        if any(ring.max_depth is not None and d > ring.max_depth for d, ring in zip(depth, problem.rings, strict=True)):
            continue
        if any(len({start[op] // ii for op in group}) > 1 for group in problem.same_stage):
            continue
        met = sum(sum(collisions(problem, ii, start, banks)) for banks in {slot.banks for slot in problem.slots} - {""})
        levels = (max(start) // ii + 1, _reach(problem, start), held, *_most_held(problem, ii, start), met)
        pairs = itertools.combinations(range(len(start)), 2)
        swapped = sum(start[i] % ii > start[j] % ii for i, j in pairs if problem.ops[i].role == problem.ops[j].role)
        candidate = (*levels, swapped), start
        found = candidate if found is None else min(found, candidate)
    return found


def collisions(problem: Problem, ii: int, start: tuple[int, ...], banks: str) -> tuple[int, int]:
    """How many pairs of accesses to these banks, of different ops, share a cycle: in one iteration, and in two."""

    def cycles(op: int, use: Use, iteration: int) -> set[int]:
        begin = start[op] + use.offset + iteration * ii
        return set(range(begin, begin + use.cycles))

    accesses = [
        (op, use) for op, spec in enumerate(problem.ops) for use in spec.uses if problem.slots[use.slot].banks == banks
    ]
    far = 2 + max(max(start) + use.offset + use.cycles for _, use in accesses) // ii if accesses else 0
    within = across = 0
    for (op, use), (other, later) in itertools.combinations(accesses, 2):
        for iteration in range(-far, far + 1):
            if op != other and cycles(op, use, 0) & cycles(other, later, iteration):
                within, across = within + (iteration == 0), across + (iteration != 0)
    return within, across


def _starts(problem: Problem, ii: int, stages: int, start: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All starts that the edges and the table allow, op by op."""
    count = len(start)
    if count == len(problem.ops):
        yield start
        return
    for at in range(stages * ii):
        longer = (*start, at)
        known = (e for e in problem.edges if max(e.src, e.dst) == count)
        is_late_enough = all(longer[e.dst] + e.distance * ii >= longer[e.src] + e.latency for e in known)
        if is_late_enough and _fits(problem, ii, tuple(s % ii for s in longer)):
            yield from _starts(problem, ii, stages, longer)


def _phases(problem: Problem, ii: int, phases: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(phases) == len(problem.ops):
        yield phases
        return
    for phase in range(ii):
        if _fits(problem, ii, (*phases, phase)):
            yield from _phases(problem, ii, (*phases, phase))


def _fits(problem: Problem, ii: int, phases: tuple[int, ...]) -> bool:
    held: dict[tuple[int, int], int] = {}
    for op, phase in zip(problem.ops, phases, strict=False):
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
    for group in problem.same_stage:
        arcs += [(a, b, phases[b] - phases[a]) for a in group for b in group]
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


def _depth(problem: Problem, ii: int, start: tuple[int, ...]) -> tuple[int, ...]:
    ends = [at + op.latency for at, op in zip(start, problem.ops, strict=True)]
    lives = (max(ends[c] for c in ring.consumers) - min(start[p] for p in ring.producers) for ring in problem.rings)
    return tuple(max(1, math.ceil(life / ii)) for life in lives)


def _reach(problem: Problem, start: tuple[int, ...]) -> int:
    """The largest distance from an op to one that waits for it, directly or not, in the same iteration."""
    waits = {(e.src, e.dst) for e in problem.edges if e.distance == 0}
    while more := {(a, d) for a, b in waits for c, d in waits if b == c} - waits:
        waits |= more
    return max((0, *(start[b] - start[a] for a, b in waits)))


def _in_pools(problem: Problem, ii: int, start: tuple[int, ...], depth: tuple[int, ...]) -> bool:
    for at, pool in enumerate(problem.pools):
        rings = sum(d * ring.bytes for d, ring in zip(depth, problem.rings, strict=True) if ring.pool == at)
        most, crossing = _held(problem, ii, start, at)
        if (rings or most) and pool.reserved + rings + most > pool.capacity:
            return False
        if pool.carried is not None and crossing > pool.carried:
            return False
    return True


def _most_held(problem: Problem, ii: int, start: tuple[int, ...]) -> tuple[int, int]:
    by_pool = [_held(problem, ii, start, at) for at, pool in enumerate(problem.pools) if pool.spare]
    return max((most for most, _ in by_pool), default=0), max((crossing for _, crossing in by_pool), default=0)


def _held(problem: Problem, ii: int, start: tuple[int, ...], pool: int) -> tuple[int, int]:
    """(the most that values hold in any cycle of an interval, the most they hold from one interval into the next)."""
    rows = [0] * ii
    crossing = 0
    for value in (value for value in problem.values if value.pool == pool):
        begin = min(start[p] for p in value.producers)
        for cycle in range(begin, max(start[c] + problem.ops[c].latency for c in value.consumers)):
            rows[cycle % ii] += value.amount
            last = max(start[c] + problem.ops[c].latency for c in value.consumers) - 1
            crossing += value.amount * (cycle % ii == ii - 1 and cycle < last)
    return max(rows), crossing
