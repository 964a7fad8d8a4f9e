"""Turn each pipelined loop into a scheduling problem: statements priced, dependences with their distances, rings with
their lifetimes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.diag import InternalError, Label, fail
from tilec.ir.tile import (
    Binary,
    Bind,
    Break,
    Buffer,
    Call,
    Cast,
    For,
    If,
    Load,
    Parallel,
    Select,
    Stmt,
    Store,
    TileOp,
    Unary,
    While,
    bodies,
    walk,
    walk_expr,
)
from tilec.ops import registry
from tilec.ops.lowering import Context, Demand, demand
from tilec.passes import pools
from tilec.passes.binds import scheduled, scheduled_binds, variables
from tilec.passes.layout import Laid
from tilec.passes.rings import RingPlan, accesses, touched_outside
from tilec.passes.rings import rings as ring_plans
from tilec.passes.select import is_pipelined
from tilec.passes.usage import expressions
from tilec.records import dataclass
from tilec.sched.problem import UNLIMITED, Edge, Op, Pool, Problem, Ring, Slot, Use
from tilec.target import Target, Timing

BARRIER_BYTES = 16  # one full and one empty mbarrier per version
TILE_ALIGNMENT = 1024  # the 128-byte swizzle repeats after this many bytes


@dataclass(frozen=True, slots=True)
class LoopProblem:
    """`statements` are the scheduled ones, in source order (see `passes.binds`); `rings` parallel the problem's."""

    loop: For
    statements: tuple[Stmt, ...]
    roles: tuple[str, ...]
    rings: tuple[RingPlan, ...]
    problem: Problem


def problems(laid: Laid, target: Target, *, unlimited_smem: bool = False) -> tuple[LoopProblem, ...]:
    """One problem per pipelined loop, in program order; none in a serial kernel."""
    if laid.form == "serial":
        return ()
    loops = [s for s in walk(laid.kernel.body) if isinstance(s, For) and is_pipelined(s)]
    return tuple(_Builder(laid, target, loop, unlimited_smem).build() for loop in loops)


def is_producer(stmt: Stmt, laid: Laid) -> bool:
    """Whether a statement of a pipelined loop belongs to the producer role."""
    return (
        laid.form == "warp_specialised"
        and isinstance(stmt, TileOp)
        and stmt.name == "copy"
        and stmt.attr("via") == "tma"
    )


class _Builder:
    def __init__(self, laid: Laid, target: Target, loop: For, unlimited_smem: bool) -> None:
        self.laid, self.target, self.loop = laid, target, loop
        self.smem_bytes = UNLIMITED if unlimited_smem else target.limit("smem_bytes_per_cta")
        self.statements = scheduled(loop)
        self.accesses = tuple(accesses(s) for s in self.statements)
        self.roles = tuple(
            "all" if laid.form != "warp_specialised" else "producer" if is_producer(s, laid) else "consumer"
            for s in self.statements
        )
        role_names = tuple(dict.fromkeys(self.roles))
        self.issue_slot = {role: len(target.slots) + i for i, role in enumerate(role_names)}
        self.slots = (*target.slots, *(Slot(f"issue ({role})") for role in role_names))
        self.slot_ids = {slot.name: i for i, slot in enumerate(target.slots)}

    def build(self) -> LoopProblem:
        rings = ring_plans(self.laid.kernel, self.loop)
        ops = tuple(self.op(i) for i in range(len(self.statements)))
        pool = Pool("smem", self.smem_bytes, self.reserved(rings))
        needed = pool.reserved + sum(_version_bytes(self.laid, r) for r in rings)
        if needed > pool.capacity:
            self.overflow(needed, pool.capacity, rings)
        name = f"{self.laid.kernel.name}.{self.loop.var.name}"
        outside = touched_outside(self.laid.kernel, self.loop)
        fed = [plan for plan in rings if all(self.roles[p] == "producer" for p in plan.producers)]
        held = pools.held(self.laid, self.target, self.accesses, outside, fed, self.loop.stage is not None)
        problem = Problem(
            name,
            ops,
            tuple(self.edges(ops, {b.name for r in rings for b in r.buffers})),
            self.slots,
            (pool, *held.pools),
            tuple(
                Ring(
                    "+".join(b.name for b in r.buffers),
                    r.producers,
                    r.consumers,
                    _version_bytes(self.laid, r),
                    0,
                    self.loop.num_stages,
                )
                for r in rings
            ),
            values=held.values,
        )
        return LoopProblem(self.loop, self.statements, self.roles, rings, problem)

    def overflow(self, needed: int, capacity: int, rings: tuple[RingPlan, ...]) -> None:
        tiles = sorted((b for b in self.laid.kernel.buffers if b.scope == "shared"), key=lambda b: -b.bytes)
        fail(
            "shared-memory-overflow",
            f"the tiles take {needed:,} bytes of shared memory, {self.target.name} has {capacity:,} for a block",
            tiles[0].span,
            f"{tiles[0].name} alone is {self.laid.shared[tiles[0].name].bytes:,} bytes",
            secondary=tuple(Label(b.span, f"{self.laid.shared[b.name].bytes:,} bytes") for b in tiles[1:3]),
            help="use smaller tiles",
        )

    # ---- shared memory ----

    def reserved(self, rings: tuple[RingPlan, ...]) -> int:
        """Shared memory that is not this loop's rings: other tiles, scratch, barriers."""
        ours = {b.name for r in rings for b in r.buffers}
        others = sum(_aligned(layout.bytes) for name, layout in self.laid.shared.items() if name not in ours)
        depth = self.loop.num_stages or 16
        return others + _aligned(depth * BARRIER_BYTES * max(len(rings), 1))

    # ---- costs ----

    def op(self, index: int) -> Op:
        stmt = self.statements[index]
        timings = [self.target.price(d.kind, **dict(d.parameters)) for d in demands(stmt, self.laid)]
        # The parts of a tile operation overlap, warp by warp; those of a nest wait for one another.
        together = max if isinstance(stmt, TileOp) else sum
        issue = max(together(self.busy(t, stmt) for t in timings), 1)
        latency = together(t.latency for t in timings)
        uses: dict[int, tuple[int, int]] = {}
        for timing in timings:
            for slot, cycles, offset in timing.uses:
                held, first = uses.get(self.slot_ids[slot], (0, offset))
                uses[self.slot_ids[slot]] = (held + cycles, min(first, offset))
        uses[self.issue_slot[self.roles[index]]] = (issue, 0)
        return Op(
            describe(stmt),
            tuple(Use(slot, cycles, offset) for slot, (cycles, offset) in sorted(uses.items()) if cycles),
            issue,
            max(latency, issue, 1),
            self.roles[index],
            stmt.span.line,
        )

    def busy(self, timing: Timing, stmt: Stmt) -> int:
        """Cycles in which the role's warps issue nothing else. What is not asynchronous they do themselves: they are
        busy until the last of the units is through."""
        if is_asynchronous(stmt):
            return timing.issue
        return max([timing.issue, *(offset + cycles for _, cycles, offset in timing.uses)])

    # ---- dependences ----

    def edges(self, ops: tuple[Op, ...], versioned: set[str]) -> list[Edge]:
        found: dict[tuple[int, int, int], Edge] = {}

        def add(src: int, dst: int, latency: int, distance: int, why: str) -> None:
            key = (src, dst, distance)
            if key not in found or found[key].latency < latency:
                found[key] = Edge(src, dst, latency, distance, why)

        n = len(ops)
        for i in range(n):
            for j in range(n):
                # i in one iteration, j in the same one (if later in the text) or in the next.
                distance = 0 if i < j else 1
                for name in sorted(self.accesses[i].writes & self.accesses[j].reads):
                    if distance == 0 or name not in versioned:
                        add(i, j, self.hand_over(ops, i, j), distance, f"data {name}")
                for name in sorted((self.accesses[i].reads & self.accesses[j].writes) - versioned):
                    add(i, j, self.hand_over(ops, i, j), distance, f"anti {name}")
                for name in sorted((self.accesses[i].writes & self.accesses[j].writes) - versioned):
                    add(i, j, self.hand_over(ops, i, j), distance, f"output {name}")
        places = {id(s): i for i, s in enumerate(self.statements)}
        needed = variables(self.loop.body)
        for bind in scheduled_binds(self.loop.body):
            for place, stmt in enumerate(self.loop.body):
                if bind.var in needed[place] and id(stmt) in places:
                    i = places[id(bind)]
                    add(i, places[id(stmt)], ops[i].latency, 0, f"data {bind.var.name}")
        return list(found.values())

    def hand_over(self, ops: tuple[Op, ...], i: int, j: int) -> int:
        """Cycles from the issue of i until j may issue. Products into one accumulator leave no gap."""
        a, b = self.statements[i], self.statements[j]
        if _accumulator(a) is not None and _accumulator(a) == _accumulator(b):
            return max(use.cycles for use in ops[i].uses)
        return ops[i].latency


def is_asynchronous(stmt: Stmt) -> bool:
    """Whether the statement only starts something that a wait completes."""
    return isinstance(stmt, TileOp) and dict(stmt.attrs).get("via") in ("tma", "tma_store", "cp_async", "wgmma")


def _accumulator(stmt: Stmt) -> Buffer | None:
    """What a gemm adds to."""
    return stmt.regions[2].buffer if isinstance(stmt, TileOp) and stmt.name == "gemm" else None


def describe(stmt: Stmt) -> str:
    """A short name for messages and traces: `copy A → A_shared`."""
    match stmt:
        case TileOp(name="copy", regions=(source, destination)):
            return f"copy {source.buffer.name} → {destination.buffer.name}"
        case TileOp(name=name, regions=regions):
            return f"{name} {', '.join(r.buffer.name for r in regions)}"
        case Parallel():
            written = dict.fromkeys(s.buffer.name for s in walk(stmt.body) if isinstance(s, Store))
            return f"parallel {', '.join(written)}"
        case For(var=var):
            return f"for {var.name}"
        case If():
            return "if"
        case While():
            return "while"
        case Break():
            return "break"
        case Store(buffer=buffer):
            return f"store {buffer.name}"
        case Bind(var=var):
            return f"bind {var.name}"


def demands(stmt: Stmt, laid: Laid) -> tuple[Demand, ...]:
    """What a statement, with all that is nested in it, asks of the machine."""
    context = pricing_context(laid)
    total: list[Demand] = []
    for s in _outside_nests(stmt):
        if isinstance(s, TileOp):
            total += registry.get(s.name).demand(s, context)
        elif isinstance(s, Parallel):
            total += _nest_demands(s, laid.kernel.threads)
        elif isinstance(s, Bind):
            loads = (e.buffer for e in walk_expr(s.value) if isinstance(e, Load))
            reads = [b for b in loads if b.scope != "fragment"]
            threads = laid.kernel.threads
            total += [demand(f"ld.{b.scope}", bytes=threads * b.dtype.bytes, threads=threads) for b in reads]
    return tuple(total) or (demand("elementwise", ops=1, elements=1, threads=laid.kernel.threads),)


def _outside_nests(stmt: Stmt) -> Iterator[Stmt]:
    """The statement and all that is nested in it, elementwise nests as a whole."""
    yield stmt
    if not isinstance(stmt, Parallel):
        for body in bodies(stmt):
            for inner in body:
                yield from _outside_nests(inner)


def pricing_context(laid: Laid) -> Context:
    """A context for prices only: nothing may be registered through it."""

    def refuse(*_: object) -> object:
        raise InternalError("prices need no resources")

    return Context(laid.kernel.threads, laid.fragments, laid.shared, (), refuse, refuse)  # type: ignore[arg-type]


TRANSCENDENTAL = frozenset(
    {
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "pow",
        "erf",
        "exp10",
        "log10",
    }
)


def _nest_demands(nest: Parallel, threads: int) -> list[Demand]:
    elements = math.prod(nest.extents)
    found: list[Demand] = []
    operations = special = 0
    for stmt in walk(nest.body):
        for expr in expressions(stmt):
            for e in walk_expr(expr):
                match e:
                    case Load(buffer=buffer) if buffer.scope != "fragment":
                        found.append(demand(f"ld.{buffer.scope}", bytes=elements * buffer.dtype.bytes, threads=threads))
                    case Call(fn=fn) if fn in TRANSCENDENTAL:
                        special += 1
                    case Unary() | Binary() | Cast() | Select() | Call():
                        operations += 1
                    case _:
                        pass
        if isinstance(stmt, Store) and stmt.buffer.scope != "fragment":
            found.append(demand(f"st.{stmt.buffer.scope}", bytes=elements * stmt.buffer.dtype.bytes, threads=threads))
    if special:
        found.append(demand("mufu", elements=elements * special))
    found.append(demand("elementwise", ops=max(operations, 1), elements=elements, threads=threads))
    return found


def _aligned(size: int) -> int:
    return -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT


def _version_bytes(laid: Laid, ring: RingPlan) -> int:
    return sum(_aligned(laid.shared[b.name].bytes) for b in ring.buffers)
