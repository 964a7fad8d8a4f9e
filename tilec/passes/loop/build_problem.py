"""Scheduling problems of pipelined loops: priced statements, dependences with their distances, rings with their
lifetimes. Inner loops are solved first, and are statements of the outer loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.multicast import SWIZZLE_BYTES
from tilec.ops.gemm import Gemm
from tilec.passes.analysis.compound import Cost, cost, is_compound
from tilec.passes.analysis.fragment_prefetch import (
    begun_beside,
    check_order,
    fragment_prefetches,
    is_by_wgmma,
    is_fragment_prefetch,
)
from tilec.passes.analysis.likely_branch import in_most_iterations
from tilec.passes.analysis.ordering import orders
from tilec.passes.analysis.rings import (
    RingPlan,
    accesses,
    all_sharing,
    body,
    is_load,
    pipelined_loops,
    requested_versions,
    rings as ring_plans,
    touched_outside,
    used_outside,
)
from tilec.passes.analysis.scalar_definitions import replayed, scheduled, users_of_binds
from tilec.passes.analysis.tensor_regions import Regions
from tilec.passes.analysis.usage import never_read
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.tensor_memory import tensor_tiles
from tilec.passes.loop import pools
from tilec.passes.loop.assign_roles import (
    STORE,
    Stores,
    consumer_groups,
    is_bulk_load,
    is_bulk_store,
    is_product,
    repeat,
    role_of,
    runners,
    stores,
)
from tilec.passes.loop.describe import describe
from tilec.passes.loop.dynamic_tile_scheduler import RING_BYTES, walk_of
from tilec.passes.loop.ping_pong import tensor_core_runs
from tilec.passes.loop.product_steps import product_steps, waiting, with_loads_between
from tilec.passes.loop.ring_links import links, read_before_handed_on
from tilec.passes.loop.statement_price import demands, price
from tilec.passes.memory.prefetch import versions_of
from tilec.passes.memory.privatise import own_tiles, with_private_copies
from tilec.passes.memory.shared_limits import refuse_tiles, refuse_versions
from tilec.passes.memory.shared_reuse import over_rings
from tilec.sched.problem import UNLIMITED, Edge, Op, Pool, Problem, Ring, Role, Slot, Use
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import AT_ONCE, Mistakes
from tilec.support.records import dataclass
from tilec.target.table import Target

MOST_VERSIONS = 16  # of a tile, by default; each of them is an iteration of prologue
BARRIER_BYTES = 16  # one full and one empty mbarrier per version


@dataclass(frozen=True, slots=True)
class LoopProblem:
    """A pipelined loop and its scheduling problem. `statements` are the scheduled ones in source order (see
    `analysis.scalar_definitions`), followed by those of the consumers once more for each further warpgroup that runs
    independently. `roles` run them by rule; a schedule may choose others. `rings` parallel the problem's. `kept` are
    statements that only the rule's role can run, each with the reason. `single` are shared tiles that the loop fills
    and that have one version: name, reason, and a statement outside the loop that causes it."""

    loop: tile.For
    statements: tuple[tile.Stmt, ...]
    roles: tuple[str, ...]
    rings: tuple[RingPlan, ...]
    problem: Problem
    kept: tuple[tuple[int, str], ...] = ()
    single: tuple[tuple[str, str, tile.Stmt | None], ...] = ()
    own_tiles: frozenset[str] = frozenset()
    """The tiles with a private copy for each independent warpgroup (`memory.privatise`)."""

    @property
    def groups(self) -> int:
        """The number of consumer warpgroups that run independently."""
        return len(self.problem.copies[0]) if self.problem.copies else 1

    @property
    def own(self) -> tuple[int, ...]:
        """The ops of the statements as written, without the copies for further warpgroups."""
        repeated = {op for copies in self.problem.copies for op in copies[1:]}
        return tuple(op for op in range(len(self.problem.ops)) if op not in repeated)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A pipelined loop with its chosen schedule."""

    loop: LoopProblem
    schedule: Schedule

    @property
    def roles(self) -> tuple[str, ...]:
        """The role that runs each statement."""
        chosen = self.schedule.role or (None,) * len(self.loop.roles)
        problem_roles = self.loop.problem.roles
        return tuple(
            rule if at is None else problem_roles[at].name for rule, at in zip(self.loop.roles, chosen, strict=True)
        )

    @property
    def tensor_core_runs(self) -> tuple[tuple[int, ...], ...]:
        """The runs of products that each warpgroup issues in an interval."""
        products = [op for op in self.loop.own if is_product(self.loop.statements[op])]
        return tensor_core_runs(self.loop.problem, self.schedule, products)


def loops_to_schedule(assignment: LayoutAssignment) -> tuple[tile.For, ...]:
    """Return the pipelined loops in program order; none in a serial kernel."""
    return () if assignment.form == "serial" else pipelined_loops(assignment.kernel.body)


def problems(
    assignment: LayoutAssignment,
    target: Target,
    decided: Sequence[Scheduled] = (),
    *,
    unlimited_smem: bool = False,
    overlap: bool = True,
    store_role: bool = True,
    divided: Sequence[LoopProblem] = (),
    mistakes: Mistakes = AT_ONCE,
) -> tuple[LoopProblem, ...]:
    """Return the problems that can be solved now, in program order: of undecided loops whose inner loops are all
    decided. An outer loop gets the shared memory that its inner loops have left. `divided` are the problems of loops
    for which the number of independent warpgroups is decided; in all other loops the warpgroups stay together. Without
    `overlap` a role computes one iteration after the other, but loads still run early. `store_role` leaves it open
    which role stores to global memory."""
    known = {s.loop.loop.var: s for s in decided}
    divided_problems = {one.loop.var: one for one in divided}
    sharing = tuple(all_sharing(assignment.kernel).values())
    found = []
    for loop in loops_to_schedule(assignment):
        earlier = tuple(_sharing_before(sharing, loop))
        inside = pipelined_loops(loop.body)
        if loop.var in known or not all(one.var in known for one in (*inside, *earlier)):
            continue
        problem = divided_problems.get(loop.var)
        if problem is None or earlier:  # the decisions of earlier loops are part of the problem
            groups = 1 if problem is None else problem.groups
            private = assignment if groups == 1 else with_private_copies(assignment, ((loop, groups),))
            builder = _Builder(private, target, loop, known, unlimited_smem, overlap, groups, mistakes)
            problem = builder.build()
        found.append(problem if store_role else _by_rule(problem))
    return tuple(found)


def _by_rule(loop: LoopProblem) -> LoopProblem:
    """Return the problem with the roles by rule as the only ones."""
    ops = tuple(replace(op, roles=op.roles[:1]) for op in loop.problem.ops)
    return replace(loop, problem=replace(loop.problem, ops=ops))


@dataclass(frozen=True, slots=True)
class Division:
    """A loop that `groups` warpgroups could run independently: its problem with the warpgroups `together`, and with
    them `ping_ponging`, None where their private tiles do not fit."""

    together: LoopProblem
    groups: int
    ping_ponging: LoopProblem | None


def divisions(
    assignment: LayoutAssignment,
    target: Target,
    *,
    unlimited_smem: bool = False,
    overlap: bool = True,
    store_role: bool = True,
) -> Iterator[tuple[tile.For, int, Callable[[], Division]]]:
    """Yield each loop whose warpgroups could run independently, their number, and a function that builds both
    problems."""
    loops = loops_to_schedule(assignment)
    inner = {inside.var for loop in loops for inside in pipelined_loops(loop.body)}
    for loop in loops:
        groups = 1 if loop.var in inner else consumer_groups(assignment, loop, target)
        if groups > 1:
            yield (
                loop,
                groups,
                partial(_division, assignment, target, loop, groups, unlimited_smem, overlap, store_role),
            )


def _division(
    assignment: LayoutAssignment,
    target: Target,
    loop: tile.For,
    groups: int,
    unlimited_smem: bool,
    overlap: bool,
    store_role: bool,
) -> Division:
    together = _Builder(assignment, target, loop, {}, unlimited_smem, overlap).build()
    private = with_private_copies(assignment, ((loop, groups),))
    builder = _Builder(private, target, loop, {}, unlimited_smem, overlap, groups)
    ping_ponging = builder.build() if private is assignment or builder.least <= builder.smem_bytes else None
    if store_role:
        return Division(together, groups, ping_ponging)
    return Division(_by_rule(together), groups, None if ping_ponging is None else _by_rule(ping_ponging))


def _sharing_before(sharing: Sequence[tuple[tile.For, ...]], loop: tile.For) -> Iterator[tile.For]:
    """Yield the earlier loops whose rings this loop continues: they decide the number of versions."""
    for loops in sharing:
        place = next((at for at, one in enumerate(loops) if one is loop), 0)
        yield from loops[:place]


class _Builder:
    """Builds the problem of one loop, in which `groups` consumer warpgroups run independently."""

    def __init__(
        self,
        assignment: LayoutAssignment,
        target: Target,
        loop: tile.For,
        decided: dict[tile.Var, Scheduled],
        unlimited_smem: bool,
        overlap: bool,
        groups: int = 1,
        mistakes: Mistakes = AT_ONCE,
    ) -> None:
        self.overlap, self.mistakes = overlap, mistakes
        self.assignment, self.target, self.loop, self.decided, self.groups = assignment, target, loop, decided, groups
        self.smem_bytes = UNLIMITED if unlimited_smem else target.limit("smem_bytes_per_cta")
        self.statements = scheduled(loop)
        self.accesses = tuple(accesses(s) for s in self.statements)
        self.roles = tuple(role_of(s, assignment) for s in self.statements)
        self.plans = ring_plans(assignment.kernel, loop)
        # Statements with an open role, grouped if one role must run them; and its candidates, that by rule first.
        self.stores = stores(assignment, loop, self.plans) if overlap else Stores()
        self.open = frozenset(i for of in self.stores.together for i in of)
        self.candidates = ("consumer", STORE) if self.open else ()
        running = (name for s in self.statements for name in runners(s, assignment))
        role_names = tuple(dict.fromkeys([*running, *self.candidates]))
        self.tensor = tensor_tiles(assignment.kernel, target, dict(assignment.versions))
        self.unread = never_read(assignment.kernel) if loop.stage is not None else frozenset()
        self.issue_slot = {role: len(target.slots) + i for i, role in enumerate(role_names)}
        self.slots = (*target.slots, *(Slot(f"issue ({role})") for role in role_names))

    def build(self) -> LoopProblem:
        rings = self.plans
        ops = with_loads_between(tuple(self.op(i) for i in range(len(self.statements))), self.statements, self.target)
        pool = Pool("smem", self.smem_bytes, self.reserved(rings))
        if self.least > pool.capacity:
            with self.mistakes.caught():
                self.overflow(pool.capacity)
        name = f"{self.assignment.kernel.name}.{self.loop.var.name}"
        outside = touched_outside(self.assignment.kernel, self.loop)
        passed_rings = [p for p in rings if self.open & {*p.consumers} or self.is_loaded(p)]
        values = pools.held(
            self.assignment, self.target, self.accesses, outside, passed_rings, self.loop.stage is not None, self.groups
        )
        values = pools.with_tensor_memory(values, self.tensor, self.target, self.accesses)
        problem = Problem(
            name,
            ops,
            tuple(self.edges(ops, rings)),
            self.slots,
            (pool, *values.pools),
            tuple(self.ring(r, self.begun(r)) for r in rings),
            values=values.values,
            roles=tuple(
                Role(name, self.issue_slot[name], 1 if name == STORE else self.assignment.kernel.threads // 32)
                for name in self.candidates
            ),
            tied=tuple(of for of in self.stores.together if len(of) > 1),
            same_stage=tuple(self.same_stage()),
        )
        own = own_tiles(self.assignment, self.loop)
        if self.groups == 1:
            single = tuple(self.single()) if self.loop.stage is not None else ()
            kept = self.stores.kept
            return LoopProblem(self.loop, self.statements, self.roles, rings, problem, kept, single, own)
        repeated = [s for s, role in zip(self.statements, self.roles, strict=True) if role == "consumer"]
        return LoopProblem(
            self.loop,
            (*self.statements, *repeated * (self.groups - 1)),
            (*self.roles, *("consumer",) * (len(repeated) * (self.groups - 1))),
            rings,
            repeat(problem, self.groups),
            own_tiles=own,
        )

    def single(self) -> Iterator[tuple[str, str, tile.Stmt | None]]:
        """Yield the shared tiles that the loop fills and that have one version: see `LoopProblem.single`."""
        inside, kernel = body(self.assignment.kernel, self.loop), self.assignment.kernel
        for buffer in (b for b in kernel.buffers if b.scope == "shared"):
            if any(buffer.name in touched.writes for touched in self.accesses):
                reason = inside.why_not_versioned(buffer)
                blamed = used_outside(kernel, self.loop, buffer.name) if buffer.name in inside.outside else None
                if reason is not None:
                    yield buffer.name, reason, blamed

    @property
    def least(self) -> int:
        """The least shared memory that the kernel takes, in bytes: one version of each tile."""
        begun_here = (r for r in self.plans if self.begun(r) is None)
        return self.reserved(self.plans) + sum(_version_bytes(self.assignment, r) for r in begun_here)

    def overflow(self, capacity: int) -> NoReturn:
        """Refuse the manual schedule of another loop if its versions are too many, else the tiles."""
        manual_rings = [(loop, plan) for loop in self.manual_loops for plan in ring_plans(self.assignment.kernel, loop)]
        sizes = [(requested_versions(loop, plan), _version_bytes(self.assignment, plan)) for loop, plan in manual_rings]
        left = capacity - self.least + sum(versions * size for versions, size in sizes)
        if sizes and left >= sum(size for _, size in sizes):
            (versions, size), (loop, plan) = max(
                zip(sizes, manual_rings, strict=True), key=lambda each: each[0][0] * each[0][1]
            )
            left -= sum(v * s for v, s in sizes) - versions * size
            span = loop.scheduling_hints.span if loop.scheduling_hints is not None else loop.span
            refuse_versions(versions, plan.buffers, size, left, span)
        refuse_tiles(self.assignment, self.target, self.least, self.least_sizes())

    def least_sizes(self) -> dict[str, int]:
        """Return the bytes of each tile in `least`, by name."""
        versions, _ = self.reserved_versions(self.plans)
        for plan in self.plans:
            if self.begun(plan) is None:
                versions |= {b.name: 1 for b in plan.buffers}
        late = over_rings(self.assignment.kernel)
        layouts = self.assignment.shared.items()
        return {name: layout.bytes * versions.get(name, 1) for name, layout in layouts if name not in late}

    def is_loaded(self, plan: RingPlan) -> bool:
        return all(is_bulk_load(self.statements[i]) for i in plan.producers)

    def ring(self, plan: RingPlan, fixed: int | None) -> Ring:
        """Build a ring. The versions of a ring that an earlier loop has begun are reserved, and take no bytes here."""
        most = self.loop.num_stages or (MOST_VERSIONS if self.loop.stage is None else None)
        name = "+".join(b.name for b in plan.buffers)
        if fixed is not None:
            return Ring(name, plan.producers, plan.consumers, 0, 0, min(fixed, most or fixed))
        return Ring(name, plan.producers, plan.consumers, _version_bytes(self.assignment, plan), 0, most)

    def begun(self, plan: RingPlan) -> int | None:
        """Return the number of versions that earlier loops or manual schedules fix for a ring; None where this loop
        decides."""
        depths = [
            depth
            for known in self.decided.values()
            for other, depth in zip(known.loop.rings, known.schedule.depth, strict=True)
            if other.buffers == plan.buffers
        ]
        depths += [
            requested_versions(loop, other)
            for loop in self.manual_loops
            for other in ring_plans(self.assignment.kernel, loop)
            if other.buffers == plan.buffers
        ]
        here = requested_versions(self.loop, plan)
        return max(depths) if depths and (not here or here < max(depths)) else None

    @property
    def manual_loops(self) -> tuple[tile.For, ...]:
        """The other loops with manual schedules."""
        loops = loops_to_schedule(self.assignment)
        return tuple(other for other in loops if other is not self.loop and other.stage is not None)

    # ---- shared memory ----

    def reserved(self, rings: tuple[RingPlan, ...]) -> int:
        """Return the bytes of shared memory beside this loop's rings: other tiles, scratch, barriers."""
        versions, barriers = self.reserved_versions(rings)
        late = over_rings(self.assignment.kernel)  # they lie over the rings
        beside = ((name, layout) for name, layout in self.assignment.shared.items() if name not in late)
        tiles = sum(_aligned(layout.bytes) * versions.get(name, 1) for name, layout in beside)
        if walk_of(self.assignment.kernel) is not None:
            tiles += _aligned(RING_BYTES)
        return tiles + _aligned(barriers * BARRIER_BYTES)

    def reserved_versions(self, rings: tuple[RingPlan, ...]) -> tuple[dict[str, int], int]:
        """Return the reserved versions of tiles by name, where these are not one, and the number of barriers. The tiles
        of other loops count with the versions that are decided or written in a manual schedule, else with one."""
        versions = versions_of(self.assignment.kernel)
        signals = len(rings) + sum(len(links("", ring, self.roles, self.statements)) for ring in rings)
        barriers = (self.loop.num_stages or MOST_VERSIONS) * max(signals, 1) + sum(versions.values())
        manual_loops = {loop.var for loop in self.manual_loops}
        for loop in loops_to_schedule(self.assignment):
            depths: list[tuple[RingPlan, int]] = []
            if loop.var in self.decided:
                known = self.decided[loop.var]
                depths = list(zip(known.loop.rings, known.schedule.depth, strict=True))
            elif loop.var in manual_loops:
                depths = [(plan, requested_versions(loop, plan)) for plan in ring_plans(self.assignment.kernel, loop)]
            elif loop is not self.loop and self.loop in pipelined_loops(loop.body):
                around = ring_plans(self.assignment.kernel, loop)
                versions |= {b.name: 1 for plan in around for b in plan.buffers}
                barriers += (loop.num_stages or MOST_VERSIONS) * len(around)
            for plan, depth in depths:
                versions |= {b.name: max(depth, versions.get(b.name, 0)) for b in plan.buffers}
                barriers += depth
        for plan in rings:
            versions |= dict.fromkeys((b.name for b in plan.buffers), self.begun(plan) or 0)
        return versions, barriers

    # ---- costs ----

    def op(self, index: int) -> Op:
        stmt = self.statements[index]
        if is_compound(stmt):
            return self.compound(index)
        groups = self.groups if self.roles[index] == "consumer" else 1
        issue, latency, uses = price(
            in_most_iterations(stmt, self.loop, self.assignment.kernel),
            self.assignment,
            self.target,
            groups,
            replayed(self.loop),
        )
        roles: tuple[int, ...] = ()
        if self.roles[index] in self.candidates:
            roles = tuple(range(len(self.candidates))) if index in self.open else (0,)
        else:
            uses[self.issue_slot[self.roles[index]]] = (issue, 0)
        built = Op(
            describe(stmt),
            tuple(Use(slot, cycles, offset) for slot, (cycles, offset) in sorted(uses.items()) if cycles),
            issue,
            latency,
            self.roles[index],
            stmt.span.line,
            roles,
            self.barrier_cycles() if index in self.open else 0,
            file=stmt.span.file,
        )
        operand_demands = (
            demands(stmt, self.assignment)
            if [i for i, s in enumerate(self.statements) if not _loads(s)] == [index]
            else ()
        )
        steps = product_steps(stmt, operand_demands, self.target)
        return built if steps is None else waiting(built, steps, operand_demands, self.target)

    def barrier_cycles(self) -> int:
        """Return the cycles for which all warps wait at the barrier before one of them issues a store. A second
        barrier, before the tile is overwritten, costs nothing extra: they would wait at the ring's mbarrier instead."""
        barrier = self.target.price("barrier")
        return barrier.issue + barrier.latency

    def flat(self, stmt: tile.Stmt) -> Cost:
        _, latency, uses = price(stmt, self.assignment, self.target, replays=replayed(self.loop))
        return Cost(latency, {slot: cycles for slot, (cycles, _) in uses.items()})

    def compound(self, index: int) -> Op:
        """Build the op of a compound statement. It holds its units at its end, where they least disturb earlier
        statements."""
        stmt, role = self.statements[index], self.roles[index]
        decided = {known: (s.loop.problem, s.schedule) for known, s in self.decided.items()}
        whole = cost(stmt, decided, self.flat)
        cycles = max(whole.cycles, 1)
        uses = [Use(self.issue_slot[name], cycles) for name in runners(stmt, self.assignment)]
        for slot, held in sorted(whole.held.items()):
            if held and slot < len(self.target.slots):
                uses.append(Use(slot, min(held, cycles), cycles - min(held, cycles)))
        ordered = tuple(sorted(uses, key=lambda u: u.slot))
        return Op(describe(stmt), ordered, cycles, cycles, role, stmt.span.line, file=stmt.span.file)

    # ---- dependences ----

    def edges(self, ops: tuple[Op, ...], rings: tuple[RingPlan, ...]) -> list[Edge]:
        versioned = frozenset(b.name for r in rings for b in r.buffers)
        tensor_core_runs = {t.buffer.name: t.depth for t in self.tensor}
        found: dict[tuple[int, int, int], Edge] = {}

        def add(src: int, dst: int, latency: int, distance: int, why: str) -> None:
            key = (src, dst, distance)
            if key not in found or found[key].latency < latency:
                found[key] = Edge(src, dst, latency, distance, why)

        regions = Regions(self.loop)
        touched = [regions.of(stmt) for stmt in self.statements]
        n = len(ops)
        for i in range(n):
            for j in range(n):
                if i == j and is_bulk_store(self.statements[i]):
                    continue  # iterations write different elements, or add in any order (`analysis.tensor_order`)
                # j runs in the iteration of i, if later in the text, else in the next one, which has its own versions.
                distance = 0 if i < j else 1
                renamed = versioned if distance else frozenset()
                a, b = self.accesses[i], self.accesses[j]
                for kind, names, first, then in (
                    ("data", a.writes & b.reads, touched[i].writes, touched[j].reads),
                    ("anti", a.reads & b.writes, touched[i].reads, touched[j].writes),
                    ("output", (a.writes & b.writes) - self.unread, touched[i].writes, touched[j].writes),
                ):
                    for name in sorted(names - renamed):
                        # A sum in tensor memory cycles through its versions, and is overwritten as a whole.
                        iterations_between: int | None = (
                            tensor_core_runs.get(name, 1) if distance and i != j else distance
                        )
                        if name in first and name in then:  # the first iteration that accesses these elements
                            iterations_between = regions.distance(first[name], then[name], distance)
                        if iterations_between is None:
                            continue
                        # A load may fill registers as soon as the instructions that read them have issued.
                        is_read = kind == "anti" and is_fragment_prefetch(self.statements[j])
                        is_read &= not is_by_wgmma(self.statements[i])
                        if not (kind == "data" and iterations_between > 1 and name in tensor_core_runs):
                            latency = ops[i].issue if is_read else self.hand_over(ops, i, j)
                            add(i, j, latency, iterations_between, f"{kind} {name}")
        if not self.overlap and self.loop.stage is None:
            computing = [i for i, s in enumerate(self.statements) if not _loads(s)]
            for i, j in product(computing, repeat=2):
                add(i, j, self.hand_over(ops, i, j), 1, "no overlap")
        for bind, users in users_of_binds(self.loop.body):
            bound = self.statements[bind]
            assert isinstance(bound, tile.Bind)
            for user in users:
                add(bind, user, ops[bind].latency, 0, f"data {bound.var.name}")
        for load, use, iterations, name in fragment_prefetches(self.statements):
            add(load, use, ops[load].issue, iterations, f"{name} is prefetched")
        for use, load, iterations, name in begun_beside(self.statements):
            add(use, load, ops[use].issue, iterations, f"{name} is loaded beside a product")
        for order in orders(self.statements, rings):
            latency = ops[order.src].issue if order.begun else self.hand_over(ops, order.src, order.dst)
            add(order.src, order.dst, latency, order.distance, order.why)
        for ring in rings:
            for own, other in read_before_handed_on(ring, self.roles, self.statements):
                name = ring.buffers[0].name
                add(own, other, self.hand_over(ops, own, other), 0, f"{name} is handed on when its role has read it")
        check_order(self.statements, tuple(found.values()))
        return [self.handed_over(edge) for edge in found.values()]

    def handed_over(self, edge: Edge) -> Edge:
        """Add the latency of a ring's mbarrier to an edge whose tile may change roles."""
        if edge.dst not in self.open or self.roles[edge.src] not in self.candidates:
            return edge
        return replace(edge, hand_over=self.target.price("mbarrier").latency)

    def same_stage(self) -> Iterator[tuple[int, ...]]:
        """Yield each scheduled bind with its users: it has one value at a time, so they share its stage."""
        for bind, users in users_of_binds(self.loop.body):
            if users:
                yield (bind, *users)

    def hand_over(self, ops: tuple[Op, ...], i: int, j: int) -> int:
        """Return the cycles from the issue of i until j may issue. Products into one accumulator leave no gap."""
        a, b = self.statements[i], self.statements[j]
        if _accumulator(a) is not None and _accumulator(a) == _accumulator(b):
            return max(use.cycles for use in ops[i].uses)
        return ops[i].latency


def _loads(stmt: tile.Stmt) -> bool:
    return is_fragment_prefetch(stmt) or (isinstance(stmt, tile.TileOp) and is_load(stmt))


def _accumulator(stmt: tile.Stmt) -> tile.Buffer | None:
    return stmt.regions[2].buffer if isinstance(stmt, Gemm) else None


def _aligned(size: int) -> int:
    return -(-size // SWIZZLE_BYTES) * SWIZZLE_BYTES


def _version_bytes(assignment: LayoutAssignment, ring: RingPlan) -> int:
    return sum(_aligned(assignment.shared[b.name].bytes) for b in ring.buffers)
