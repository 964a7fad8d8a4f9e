"""Scheduling problems of pipelined loops: priced statements, dependences with their distances, rings with their
lifetimes. Inner loops are solved first, and are statements of the outer loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NoReturn

from tilec.analysis import fragment_prefetch
from tilec.analysis.ordering import find_order_constraints
from tilec.analysis.rings import (
    RingPlan,
    analyse_loop_body,
    count_ring_versions,
    find_accesses,
    find_outside_use,
    find_pipelined_loops,
    find_shared_ring_tiles,
    find_touched_outside,
    is_load,
    plan_rings as ring_plans,
)
from tilec.analysis.scalar_definitions import find_bind_users, find_replayed_binds, find_scheduled_statements
from tilec.analysis.tensor_regions import RegionAnalysis
from tilec.analysis.thresholds import select_likely_branch
from tilec.analysis.usage import find_unread_tiles
from tilec.ir import tile
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.mechanisms.tensor_memory import allocate_tensor_tiles
from tilec.passes.loop import assign_roles, pools
from tilec.passes.loop.describe import describe_statement
from tilec.passes.loop.dynamic_tile_scheduler import RING_BYTES, find_dynamic_loop
from tilec.passes.loop.ping_pong import find_contending_ops, find_ping_pong_runs
from tilec.passes.loop.price.compound import CompoundCost, compute_compound_cost, is_compound
from tilec.passes.loop.price.product_steps import add_first_step_wait, move_loads_into_products, price_product_steps
from tilec.passes.loop.price.statement_price import count_demands, price_statement
from tilec.passes.loop.ring_links import find_ring_links, producer_reads_before_commit
from tilec.passes.memory.live_ranges import align_bytes, count_tile_bytes, list_counted_tiles
from tilec.passes.memory.prefetch_tiles import count_prefetched_versions
from tilec.passes.memory.privatise import add_private_copies, find_private_tiles
from tilec.passes.memory.shared_limits import refuse_tiles, refuse_versions
from tilec.sched.problem import UNLIMITED, Edge, Op, Pool, Problem, Ring, Role, Slot, Use
from tilec.sched.schedule import Schedule
from tilec.sched.solution import Solution
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector
from tilec.support.records import dataclass
from tilec.target.table import Target

MAX_VERSIONS = 16  # of a tile, by default; each of them is an iteration of prologue
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
        """Return the number of consumer warpgroups that run the loop independently."""
        return len(self.problem.copies[0]) if self.problem.copies else 1

    @property
    def own(self) -> tuple[int, ...]:
        """Return the ops of the statements as written, without the copies for further warpgroups."""
        repeated = {op for copies in self.problem.copies for op in copies[1:]}
        return tuple(op for op in range(len(self.problem.ops)) if op not in repeated)


@dataclass(frozen=True, slots=True)
class ScheduledLoop:
    """A pipelined loop with its chosen schedule."""

    loop: LoopProblem
    schedule: Schedule

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the role that runs each statement: the one that the schedule chose, else the one by rule."""
        chosen = self.schedule.role or (None,) * len(self.loop.roles)
        problem_roles = self.loop.problem.roles
        return tuple(
            rule if at is None else problem_roles[at].name for rule, at in zip(self.loop.roles, chosen, strict=True)
        )

    @property
    def ping_pong_runs(self) -> tuple[tuple[int, ...], ...]:
        """Return the runs of ops that each warpgroup issues in its turns of an interval."""
        return find_ping_pong_runs(self.loop.problem, self.schedule, find_contending_ops(self.loop.problem))


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """A pipelined loop with the solution of its scheduling problem."""

    loop: LoopProblem
    solution: Solution

    @property
    def scheduled(self) -> ScheduledLoop:
        """Return the loop with the solution's schedule."""
        return ScheduledLoop(self.loop, self.solution.schedule)


def loops_to_schedule(assignment: LayoutAssignment) -> tuple[tile.For, ...]:
    """Return the pipelined loops in program order; () in a kernel of serial form."""
    return () if assignment.form == "serial" else find_pipelined_loops(assignment.kernel.body)


def build_ready_problems(
    assignment: LayoutAssignment,
    target: Target,
    decided: Sequence[ScheduledLoop] = (),
    *,
    unlimited_smem: bool = False,
    overlap: bool = True,
    store_role: bool = True,
    divided: Sequence[LoopProblem] = (),
    mistakes: ErrorCollector = RAISE_FIRST,
) -> tuple[LoopProblem, ...]:
    """Return the problems of undecided loops, in program order, whose inner and earlier sharing loops are decided. An
    outer loop gets the shared memory that its inner loops have left. `divided` are the problems of loops for which the
    number of independent warpgroups is decided; in all other loops the warpgroups stay together. Without `overlap` a
    role computes one iteration after the other, but loads still run early. `store_role` leaves it open which role
    stores to global memory."""
    known = {s.loop.loop.var: s for s in decided}
    divided_problems = {one.loop.var: one for one in divided}
    sharing = tuple(find_shared_ring_tiles(assignment.kernel).values())
    found = []
    for loop in loops_to_schedule(assignment):
        earlier = tuple(_find_earlier_sharing_loops(sharing, loop))
        inside = find_pipelined_loops(loop.body)
        if loop.var in known or not all(one.var in known for one in (*inside, *earlier)):
            continue
        problem = divided_problems.get(loop.var)
        if problem is None or earlier:  # the decisions of earlier loops are part of the problem
            groups = 1 if problem is None else problem.groups
            private = assignment if groups == 1 else add_private_copies(assignment, ((loop, groups),))
            builder = _ProblemBuilder(private, target, loop, known, unlimited_smem, overlap, groups, mistakes)
            problem = builder.build_problem()
        found.append(problem if store_role else _restrict_to_rule_roles(problem))
    return tuple(found)


def _restrict_to_rule_roles(loop: LoopProblem) -> LoopProblem:
    """Return the problem in which each op may have only the role by rule."""
    ops = tuple(replace(op, roles=op.roles[:1]) for op in loop.problem.ops)
    return replace(loop, problem=replace(loop.problem, ops=ops))


@dataclass(frozen=True, slots=True)
class PingPongVariants:
    """A loop that `groups` warpgroups could run independently: its problem with the warpgroups `together`, and with
    them `ping_ponging`, None where their private tiles do not fit."""

    together: LoopProblem
    groups: int
    ping_ponging: LoopProblem | None


def find_ping_pong_loops(
    assignment: LayoutAssignment,
    target: Target,
    *,
    unlimited_smem: bool = False,
    overlap: bool = True,
    store_role: bool = True,
) -> Iterator[tuple[tile.For, int, Callable[[], PingPongVariants]]]:
    """Yield loops inside no other whose warpgroups could run independently, their number, and a function for both
    problems."""
    loops = loops_to_schedule(assignment)
    inner = {inside.var for loop in loops for inside in find_pipelined_loops(loop.body)}
    for loop in loops:
        groups = 1 if loop.var in inner else assign_roles.count_consumer_groups(assignment, loop, target)
        if groups > 1:
            limits = unlimited_smem, overlap, store_role
            yield loop, groups, partial(_build_ping_pong_variants, assignment, target, loop, groups, *limits)


def _build_ping_pong_variants(
    assignment: LayoutAssignment,
    target: Target,
    loop: tile.For,
    groups: int,
    unlimited_smem: bool,
    overlap: bool,
    store_role: bool,
) -> PingPongVariants:
    """Return a loop's problems with its warpgroups together and independent, the latter None if tiles do not fit."""
    together = _ProblemBuilder(assignment, target, loop, {}, unlimited_smem, overlap).build_problem()
    private = add_private_copies(assignment, ((loop, groups),))
    builder = _ProblemBuilder(private, target, loop, {}, unlimited_smem, overlap, groups)
    ping_ponging = builder.build_problem() if private is assignment or builder.least <= builder.smem_bytes else None
    if not store_role:
        together = _restrict_to_rule_roles(together)
        ping_ponging = None if ping_ponging is None else _restrict_to_rule_roles(ping_ponging)
    return PingPongVariants(together, groups, ping_ponging)


def _find_earlier_sharing_loops(sharing: Sequence[tuple[tile.For, ...]], loop: tile.For) -> Iterator[tile.For]:
    """Yield the earlier loops that share a ring with this loop, and so decide its number of versions."""
    for loops in sharing:
        place = next((at for at, one in enumerate(loops) if one is loop), 0)
        yield from loops[:place]


class _ProblemBuilder:
    """Builds the problem of one loop, in which `groups` consumer warpgroups run independently."""

    def __init__(
        self,
        assignment: LayoutAssignment,
        target: Target,
        loop: tile.For,
        decided: dict[tile.Var, ScheduledLoop],
        unlimited_smem: bool,
        overlap: bool,
        groups: int = 1,
        mistakes: ErrorCollector = RAISE_FIRST,
    ) -> None:
        self.overlap, self.mistakes = overlap, mistakes
        self.assignment, self.target, self.loop, self.decided, self.groups = assignment, target, loop, decided, groups
        self.smem_bytes = UNLIMITED if unlimited_smem else target.limit("smem_bytes_per_cta")
        self.statements = find_scheduled_statements(loop)
        self.accesses = tuple(find_accesses(s) for s in self.statements)
        self.roles = tuple(assign_roles.assign_role(s, assignment) for s in self.statements)
        self.plans = ring_plans(assignment.kernel, loop)
        # Statements with an open role, grouped if one role must run them; and its candidates, that by rule first.
        self.stores = (
            assign_roles.find_store_candidates(assignment, loop, self.plans)
            if overlap
            else assign_roles.StoreCandidates()
        )
        self.open = frozenset(i for of in self.stores.together for i in of)
        self.candidates = ("consumer", assign_roles.STORE_ROLE) if self.open else ()
        running = (name for s in self.statements for name in assign_roles.find_running_roles(s, assignment))
        role_names = tuple(dict.fromkeys([*running, *self.candidates]))
        self.tensor = allocate_tensor_tiles(assignment.kernel, target, dict(assignment.versions))
        self.unread = find_unread_tiles(assignment.kernel) if loop.stage is not None else frozenset()
        self.issue_slot = {role: len(target.slots) + i for i, role in enumerate(role_names)}
        self.slots = (*target.slots, *(Slot(f"issue ({role})") for role in role_names))

    def build_problem(self) -> LoopProblem:
        """Return the loop's scheduling problem; record an error where shared memory is too small for one version.
        Errors: `shared-memory-overflow`."""
        rings = self.plans
        ops = tuple(self.build_op(i) for i in range(len(self.statements)))
        ops = move_loads_into_products(ops, self.statements, self.target)
        pool = Pool("smem", self.smem_bytes, self.count_reserved_bytes(rings))
        if self.least > pool.capacity:
            with self.mistakes.caught():
                self.report_smem_overflow(pool.capacity)
        name = f"{self.assignment.kernel.name}.{self.loop.var.name}"
        outside = find_touched_outside(self.assignment.kernel, self.loop)
        passed_rings = [p for p in rings if self.open & {*p.consumers} or self.is_loaded(p)]
        values = pools.build_pools(
            self.assignment, self.target, self.accesses, outside, passed_rings, self.loop.stage is not None, self.groups
        )
        values = pools.add_tensor_memory_pools(values, self.tensor, self.target, self.accesses)
        problem = Problem(
            name,
            ops,
            tuple(self.build_edges(ops, rings)),
            self.slots,
            (pool, *values.pools),
            tuple(self.build_ring(r, self.count_fixed_versions(r)) for r in rings),
            values=values.values,
            roles=tuple(
                Role(
                    name,
                    self.issue_slot[name],
                    1 if name == assign_roles.STORE_ROLE else self.assignment.kernel.threads // 32,
                )
                for name in self.candidates
            ),
            tied=tuple(of for of in self.stores.together if len(of) > 1),
            # A scheduled bind has one value at a time: its users share its stage.
            same_stage=tuple((bind, *users) for bind, users in find_bind_users(self.loop.body) if users),
        )
        own = find_private_tiles(self.assignment, self.loop)
        if self.groups == 1:
            single = tuple(self.find_single_versions()) if self.loop.stage is not None else ()
            return LoopProblem(self.loop, self.statements, self.roles, rings, problem, self.stores.kept, single, own)
        repeated = [s for s, role in zip(self.statements, self.roles, strict=True) if role == "consumer"]
        return LoopProblem(
            self.loop,
            (*self.statements, *repeated * (self.groups - 1)),
            (*self.roles, *("consumer",) * (len(repeated) * (self.groups - 1))),
            rings,
            assign_roles.repeat_for_warpgroups(problem, self.groups),
            own_tiles=own,
        )

    def find_single_versions(self) -> Iterator[tuple[str, str, tile.Stmt | None]]:
        """Yield the shared tiles written in the loop that have one version: name, reason, and an outside use of the
        tile."""
        inside, kernel = analyse_loop_body(self.assignment.kernel, self.loop), self.assignment.kernel
        for buffer in (b for b in kernel.buffers if b.scope == "shared"):
            if any(buffer.name in touched.writes for touched in self.accesses):
                reason = inside.why_not_versioned(buffer)
                blamed = find_outside_use(kernel, self.loop, buffer.name) if buffer.name in inside.outside else None
                if reason is not None:
                    yield buffer.name, reason, blamed

    @property
    def least(self) -> int:
        """Return the least bytes of shared memory that the kernel takes, with one version of each of the loop's
        tiles."""
        begun_here = (r for r in self.plans if self.count_fixed_versions(r) is None)
        return self.count_reserved_bytes(self.plans) + sum(_count_version_bytes(self.assignment, r) for r in begun_here)

    def report_smem_overflow(self, capacity: int) -> NoReturn:
        """Raise the error that the tiles exceed shared memory, blaming another loop's manual schedule where that
        helps. If one version of each would fit, it blames the largest ring of another loop's manual schedule, else
        the tiles."""
        manual_rings = [(loop, plan) for loop in self.manual_loops for plan in ring_plans(self.assignment.kernel, loop)]
        sizes = [
            (count_ring_versions(lp, plan), _count_version_bytes(self.assignment, plan)) for lp, plan in manual_rings
        ]
        left = capacity - self.least + sum(versions * size for versions, size in sizes)
        if sizes and left >= sum(size for _, size in sizes):
            largest = max(zip(sizes, manual_rings, strict=True), key=lambda each: each[0][0] * each[0][1])
            (versions, size), (loop, plan) = largest
            left -= sum(v * s for v, s in sizes) - versions * size
            span = loop.scheduling_hints.span if loop.scheduling_hints is not None else loop.span
            refuse_versions(versions, plan.buffers, size, left, span)
        refuse_tiles(self.assignment, self.target, self.least, self.compute_least_sizes())

    def compute_least_sizes(self) -> dict[str, int]:
        """Return the bytes of each tile that counts in shared memory, by name, with the fewest versions that the kernel
        needs."""
        versions, _ = self.count_reserved_versions(self.plans)
        for plan in self.plans:
            if self.count_fixed_versions(plan) is None:
                versions |= {b.name: 1 for b in plan.buffers}
        counted = list_counted_tiles(self.assignment, self.target)
        return {name: self.assignment.shared[name].bytes * versions.get(name, 1) for name in counted}

    def is_loaded(self, plan: RingPlan) -> bool:
        """Return True if all producers of the ring are TMA loads."""
        return all(assign_roles.is_bulk_load(self.statements[i]) for i in plan.producers)

    def build_ring(self, plan: RingPlan, fixed: int | None) -> Ring:
        """Return a plan's ring, at most num_stages deep; `fixed` versions of another loop limit it, and take no bytes.

        The versions of a ring that an earlier loop has begun are reserved by that loop.
        """
        most = self.loop.num_stages or (MAX_VERSIONS if self.loop.stage is None else None)
        name = "+".join(b.name for b in plan.buffers)
        if fixed is not None:
            return Ring(name, plan.producers, plan.consumers, 0, 0, min(fixed, most or fixed))
        return Ring(name, plan.producers, plan.consumers, _count_version_bytes(self.assignment, plan), 0, most)

    def count_fixed_versions(self, plan: RingPlan) -> int | None:
        """Return the most versions that other loops' schedules give a ring; None if none does or this loop has as
        many itself. This loop has some itself where its schedule is manual."""
        decided = (each for s in self.decided.values() for each in zip(s.loop.rings, s.schedule.depth, strict=True))
        depths = [depth for other, depth in decided if other.buffers == plan.buffers]
        manual = ((loop, other) for loop in self.manual_loops for other in ring_plans(self.assignment.kernel, loop))
        depths += [count_ring_versions(*each) for each in manual if each[1].buffers == plan.buffers]
        here = count_ring_versions(self.loop, plan)
        return max(depths) if depths and (not here or here < max(depths)) else None

    @property
    def manual_loops(self) -> tuple[tile.For, ...]:
        """Return the kernel's other loops that have manual schedules."""
        loops = loops_to_schedule(self.assignment)
        return tuple(other for other in loops if other is not self.loop and other.stage is not None)

    # ---- shared memory ----

    def count_reserved_bytes(self, rings: tuple[RingPlan, ...]) -> int:
        """Return the bytes of shared memory taken by all but this loop's rings: other tiles, scratch and barriers."""
        versions, barriers = self.count_reserved_versions(rings)
        tiles = count_tile_bytes(self.assignment, self.target, versions)
        if find_dynamic_loop(self.assignment.kernel) is not None:
            tiles += align_bytes(RING_BYTES)
        return tiles + align_bytes(barriers * BARRIER_BYTES)

    def count_reserved_versions(self, rings: tuple[RingPlan, ...]) -> tuple[dict[str, int], int]:
        """Return how many versions to reserve of each tile, 0 where this loop decides, and how many barriers in the
        whole kernel. Tiles that are left out have one version. The tiles of other loops count with the versions that
        are decided or written in a manual schedule, else with one; the barriers of this loop are counted for its most
        versions."""
        versions = count_prefetched_versions(self.assignment.kernel)
        signals = len(rings) + sum(len(find_ring_links("", ring, self.roles, self.statements)) for ring in rings)
        barriers = (self.loop.num_stages or MAX_VERSIONS) * max(signals, 1) + sum(versions.values())
        manual_loops = {loop.var for loop in self.manual_loops}
        for loop in loops_to_schedule(self.assignment):
            depths: list[tuple[RingPlan, int]] = []
            if loop.var in self.decided:
                known = self.decided[loop.var]
                depths = list(zip(known.loop.rings, known.schedule.depth, strict=True))
            elif loop.var in manual_loops:
                depths = [(plan, count_ring_versions(loop, plan)) for plan in ring_plans(self.assignment.kernel, loop)]
            elif loop is not self.loop and self.loop in find_pipelined_loops(loop.body):
                around = ring_plans(self.assignment.kernel, loop)
                versions |= {b.name: 1 for plan in around for b in plan.buffers}
                barriers += (loop.num_stages or MAX_VERSIONS) * len(around)
            for plan, depth in depths:
                versions |= {b.name: max(depth, versions.get(b.name, 0)) for b in plan.buffers}
                barriers += depth
        for plan in rings:
            versions |= dict.fromkeys((b.name for b in plan.buffers), self.count_fixed_versions(plan) or 0)
        return versions, barriers

    # ---- costs ----

    def build_op(self, index: int) -> Op:
        """Return the op of a statement: its issue cycles, latency and units, and its candidate roles if several."""
        stmt = self.statements[index]
        if is_compound(stmt):
            return self.build_compound_op(index)
        groups = self.groups if self.roles[index] == "consumer" else 1
        likely, replays = select_likely_branch(stmt, self.loop, self.assignment.kernel), find_replayed_binds(self.loop)
        issue, latency, uses = price_statement(likely, self.assignment, self.target, groups, replays)
        roles: tuple[int, ...] = ()
        if self.roles[index] in self.candidates:
            roles = tuple(range(len(self.candidates))) if index in self.open else (0,)
        else:
            uses[self.issue_slot[self.roles[index]]] = (issue, 0)
        barrier_cycles = 0
        if index in self.open:
            # Before one warp issues a store, all wait at a barrier. A second one, before the tile is overwritten,
            # costs nothing extra: they would wait at the ring's mbarrier instead.
            barrier = self.target.price("barrier")
            barrier_cycles = barrier.issue + barrier.latency
        built = Op(
            describe_statement(stmt),
            tuple(Use(slot, cycles, offset) for slot, (cycles, offset) in sorted(uses.items()) if cycles),
            issue,
            latency,
            self.roles[index],
            stmt.span.line,
            roles,
            barrier_cycles,
            file=stmt.span.file,
        )
        is_only = [i for i, s in enumerate(self.statements) if not _is_tile_load(s)] == [index]
        operand_demands = count_demands(stmt, self.assignment) if is_only else ()
        steps = price_product_steps(stmt, operand_demands, self.target)
        return built if steps is None else add_first_step_wait(built, steps, operand_demands, self.target)

    def price_flat(self, stmt: tile.Stmt) -> CompoundCost:
        """Return the cost of a statement without inner loops: its latency and the cycles that it holds each unit."""
        _, latency, uses = price_statement(stmt, self.assignment, self.target, replays=find_replayed_binds(self.loop))
        return CompoundCost(latency, {slot: cycles for slot, (cycles, _) in uses.items()})

    def build_compound_op(self, index: int) -> Op:
        """Return the op of a statement with inner loops, which holds its units at its end, where they disturb least."""
        stmt, role = self.statements[index], self.roles[index]
        decided = {known: (s.loop.problem, s.schedule) for known, s in self.decided.items()}
        whole = compute_compound_cost(stmt, decided, self.price_flat)
        cycles = max(whole.cycles, 1)
        uses = [Use(self.issue_slot[name], cycles) for name in assign_roles.find_running_roles(stmt, self.assignment)]
        for slot, held in sorted(whole.held.items()):
            if held and slot < len(self.target.slots):
                uses.append(Use(slot, min(held, cycles), cycles - min(held, cycles)))
        ordered = tuple(sorted(uses, key=lambda u: u.slot))
        return Op(describe_statement(stmt), ordered, cycles, cycles, role, stmt.span.line, file=stmt.span.file)

    # ---- dependences ----

    def build_edges(self, ops: tuple[Op, ...], rings: tuple[RingPlan, ...]) -> list[Edge]:
        """Return the dependences between the ops; of several with the same ops and distance, the longest."""
        versioned = frozenset(b.name for r in rings for b in r.buffers)
        tensor_core_runs = {t.buffer.name: t.depth for t in self.tensor}
        found: dict[tuple[int, int, int], Edge] = {}

        def add_edge(src: int, dst: int, latency: int, distance: int, why: str) -> None:
            """Record a dependence, unless one of the same ops and distance is at least as long."""
            key = (src, dst, distance)
            if key not in found or found[key].latency < latency:
                found[key] = Edge(src, dst, latency, distance, why)

        regions = RegionAnalysis(self.loop)
        touched = [regions.find_touched(stmt) for stmt in self.statements]
        n = len(ops)
        for i in range(n):
            for j in range(n):
                if i == j and assign_roles.is_bulk_store(self.statements[i]):
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
                        between: int | None = tensor_core_runs.get(name, 1) if distance and i != j else distance
                        if name in first and name in then:  # the first iteration that accesses these elements
                            between = regions.find_distance(first[name], then[name], distance)
                        if between is None:
                            continue
                        # A load may fill registers as soon as the instructions that read them have issued.
                        is_read = kind == "anti" and fragment_prefetch.is_fragment_prefetch(self.statements[j])
                        is_read &= not fragment_prefetch.is_wgmma_operation(self.statements[i])
                        if not (kind == "data" and between > 1 and name in tensor_core_runs):
                            latency = ops[i].issue if is_read else self.count_dependence_latency(ops, i, j)
                            add_edge(i, j, latency, between, f"{kind} {name}")
        if not self.overlap and self.loop.stage is None:
            computing = [i for i, s in enumerate(self.statements) if not _is_tile_load(s)]
            for i, j in product(computing, repeat=2):
                add_edge(i, j, self.count_dependence_latency(ops, i, j), 1, "no overlap")
        for bind, users in find_bind_users(self.loop.body):
            bound = self.statements[bind]
            assert isinstance(bound, tile.Bind)
            for user in users:
                add_edge(bind, user, ops[bind].latency, 0, f"data {bound.var.name}")
        for load, use, iterations, name in fragment_prefetch.find_fragment_prefetches(self.statements):
            add_edge(load, use, ops[load].issue, iterations, f"{name} is prefetched")
        for use, load, iterations, name in fragment_prefetch.find_overlapped_products(self.statements):
            add_edge(use, load, ops[use].issue, iterations, f"{name} is loaded beside a product")
        for order in find_order_constraints(self.statements, rings):
            latency = ops[order.src].issue if order.begun else self.count_dependence_latency(ops, order.src, order.dst)
            add_edge(order.src, order.dst, latency, order.distance, order.why)
        for ring in rings:
            for own, other in producer_reads_before_commit(ring, self.roles, self.statements):
                why = f"{ring.buffers[0].name} is handed on when its role has read it"
                add_edge(own, other, self.count_dependence_latency(ops, own, other), 0, why)
        fragment_prefetch.check_prefetch_order(self.statements, tuple(found.values()))
        return [self.add_barrier_latency(edge) for edge in found.values()]

    def add_barrier_latency(self, edge: Edge) -> Edge:
        """Return the edge with an mbarrier's latency if its destination may run in another role; else as it is."""
        if edge.dst not in self.open or self.roles[edge.src] not in self.candidates:
            return edge
        return replace(edge, hand_over=self.target.price("mbarrier").latency)

    def count_dependence_latency(self, ops: tuple[Op, ...], i: int, j: int) -> int:
        """Return the cycles from the issue of op i until op j may issue; products into one accumulator leave no gap."""
        a, b = self.statements[i], self.statements[j]
        if _find_accumulator(a) is not None and _find_accumulator(a) == _find_accumulator(b):
            return max(use.cycles for use in ops[i].uses)
        return ops[i].latency


def _is_tile_load(stmt: tile.Stmt) -> bool:
    """Return True if the statement is a copy from a tensor to a shared tile, or a fragment prefetch."""
    return fragment_prefetch.is_fragment_prefetch(stmt) or (isinstance(stmt, tile.TileOp) and is_load(stmt))


def _find_accumulator(stmt: tile.Stmt) -> tile.Buffer | None:
    """Return the accumulator of a product; None for another statement."""
    return stmt.regions[2].buffer if isinstance(stmt, Gemm) else None


def _count_version_bytes(assignment: LayoutAssignment, ring: RingPlan) -> int:
    """Return the aligned bytes of one version of all tiles of the ring."""
    return sum(align_bytes(assignment.shared[b.name].bytes) for b in ring.buffers)
