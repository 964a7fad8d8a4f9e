"""One role's part of a pipelined loop: its prologue, steady state and epilogue.

The role's statements of stage s work s iterations behind those of stage 0. At time step t, statement of stage s
runs iteration t − s; steps 0 … S−1 are the prologue, S … n−1 the steady state, n … n+S−1 the epilogue, where n is
the trip count and S the last stage of the role. Ring positions are cursors, one per ring and stage, advanced each
step that they are live.

A pipelined loop in another one is a statement of it, of which each role runs its part, with a prologue and an epilogue
in each iteration around. Its rings go on where the iteration before has left them; those of the loop around stand still
meanwhile, and its statements reach their tiles through the cursors that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tilec.analysis.fragment_prefetch import find_first_overlapped_product, find_last_carried_use
from tilec.analysis.rings import find_accesses
from tilec.analysis.scalar_definitions import find_replayed_binds
from tilec.analysis.trip_count import build_trip_count, get_static_trip_count
from tilec.ir import tile, warp
from tilec.ir.affine import add_exprs, reads_elements, scale_expr
from tilec.ir.rewrite import map_nested_bodies
from tilec.ir.types import BOOL
from tilec.passes.loop import assign_roles, rotate_loop
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.passes.loop.ring_links import find_statements_before_commit
from tilec.passes.lower.releases import choose_release_cycle, find_independent_products
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.analysis.rings import RingPlan
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.loop.assign_roles import RingRoles
    from tilec.passes.loop.ring_links import RingLink

TMA_FILLERS = ("producer", assign_roles.LOADING_THREAD)
"""Roles that fill rings with copies that complete by themselves."""

Cursors = tuple[warp.Cursor, ...]


class Expansion(Protocol):
    """The program that a role's pipeline is a part of: an `Expander` of `lower.expand_schedules`. Loops are known by
    their variable, rings by name."""

    assignment: LayoutAssignment
    trip_count: dict[tile.Var, int | None]
    rings: dict[str, warp.Ring]
    ring_of: dict[str, warp.Ring]
    """By name of a tile."""
    passes: dict[str, RingRoles]
    links: dict[tile.Var, dict[str, RingLink]]
    shared: frozenset[str]
    """The rings that several loops use."""
    changed: set[str]
    """The rings whose versions several roles change in turn."""
    most_cursors: dict[tuple[str, str], int]
    """The most stages in which any loop uses a shared ring, by ring and side."""

    def copy_variable(self, var: tile.Var) -> tile.Var: ...

    def lower_statement(self, stmt: tile.Stmt, cursors: Cursors) -> tuple[warp.Operation, ...]: ...

    def expand_statement(self, stmt: tile.Stmt, role: str, cursors: Cursors) -> tuple[warp.Operation, ...]: ...


@dataclass(frozen=True, slots=True)
class _PipelineStep:
    """A statement of the role, or a release of a ring, at its place in the pipeline."""

    stage: int
    phase: int
    position: int
    statement: tile.Stmt | None
    rings: tuple[str, ...]  # whose versions it uses
    side: str  # the role of the ring cursors: its own, or `LOADS`
    acquires: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    passed_rings: tuple[str, ...] = ()
    releases: str = ""
    sent_links: tuple[tuple[str, str], ...] = ()  # each with the ring that it signals about
    returned_links: tuple[str, ...] = ()  # links whose signal has been received
    keeps: bool = False  # the versions that it passes on
    group: int = -1  # of copies that are committed together
    ping_pong_run: tuple[int, int] | None = None  # number of a ping-pong turn, and its place there
    completes: tuple[str, ...] = ()  # registers of a product that is waited for at the end of the iteration
    place: int | None = None  # of the statement in the loop body


_StepOperation = tuple[_PipelineStep | None, warp.Operation]
"""An operation with its step; None for the advance of a cursor."""


class RolePipeline:
    """A role's part of a pipelined loop. `around` are the cursors of the enclosing loops."""

    def __init__(self, expansion: Expansion, scheduled: ScheduledLoop, role: str, around: Cursors) -> None:
        self.expansion, self.role, self.around = expansion, role, around
        loop = scheduled.loop.loop
        self.trip_count = expansion.trip_count.get(loop.var, get_static_trip_count(loop))
        self.loop, self.bounds = _fix_bounds(loop, around)
        self.scheduled = scheduled
        self.binds = find_replayed_binds(self.loop)
        steps = self.rotate_steps(sorted(self.build_steps(), key=lambda s: (s.phase, s.position)))
        lowest = min((s.stage for s in steps), default=0)
        self.steps_in_order = [replace(s, stage=s.stage - lowest) for s in steps]
        self.last_stage = max((s.stage for s in self.steps_in_order), default=0)
        self.stages_of = self.find_cursor_stages()

    def find_cursor_stages(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Return the stages in which this role uses each ring that several loops share, by ring and side."""
        found: dict[tuple[str, str], set[int]] = {}
        for step in self.steps_in_order:
            for name in step.rings:
                if name in self.expansion.shared:
                    found.setdefault((name, step.side), set()).add(step.stage)
        return {side: tuple(sorted(stages)) for side, stages in found.items()}

    # ---- what this role does, in order of issue ----

    def build_steps(self) -> Iterator[_PipelineStep]:
        """Yield a step for each statement of the role, with its ring operations, and for each ring version it
        releases."""
        problem, schedule = self.scheduled.loop.problem, self.scheduled.schedule
        rings = {ring.name: plan for ring, plan in zip(problem.rings, self.scheduled.loop.rings, strict=True)}
        place = {op: k for k, op in enumerate(schedule.order)}
        roles = self.scheduled.roles
        runs = [self.has_part(i, role) for i, role in enumerate(roles)]
        own = [i for i in self.scheduled.loop.own if runs[i]]
        groups = (self.loop.scheduling_hints and self.loop.scheduling_hints.groups) or (-1,) * len(roles)
        # Rings that one role fills for others: they have waits and releases.
        fed = {name: ring for name, ring in rings.items() if self.expansion.rings[name].has_barriers}
        filling_role = assign_roles.LOADING_THREAD if self.role == "all" else self.role
        filled = {name: ring for name, ring in fed.items() if self.expansion.passes[name].producer_role == filling_role}
        read = {name: ring for name, ring in fed.items() if self.role in self.expansion.passes[name].readers}
        linked = self.expansion.links.get(self.scheduled.loop.loop.var, {})
        sent = {name: link for name, link in linked.items() if link.sender == self.role}
        received = {name: link for name, link in linked.items() if link.receiver == self.role}
        ping_pong_runs = self.scheduled.ping_pong_runs if self.role == "consumer" else ()
        for i in own:
            used = find_accesses(self.scheduled.loop.statements[i]).all_names
            touched = tuple(
                n
                for n, r in rings.items()
                if (n in filled and i in r.producers if self.role == "producer" else used & {b.name for b in r.buffers})
            )
            acquires = tuple(n for n, r in filled.items() if self.find_first(r.producers) == i)
            waits = tuple(n for n, r in read.items() if self.find_first([c for c in r.consumers if runs[c]]) == i)
            waits += tuple(n for n, link in received.items() if self.find_first(link.waiting_statements) == i)
            # TMA copies complete by themselves.
            handed = {} if filling_role in TMA_FILLERS else filled
            handing = {n: self.find_passing_statements(n, r, runs) for n, r in handed.items()}
            passed_rings = tuple(n for n, users in handing.items() if self.find_last(users) == i)
            sent_links = tuple((n, link.ring) for n, link in sent.items() if self.find_last(link.told) == i)
            returned_links = tuple(n for n, link in received.items() if self.find_last(link.waiting_statements) == i)
            links = (*(n for n in waits if n in received), *(n for n, _ in sent_links), *returned_links)
            touched += tuple(dict.fromkeys(links))
            stmt, (stage, phase) = self.scheduled.loop.statements[i], divmod(schedule.start[i], schedule.ii)
            side = filling_role if assign_roles.is_bulk_load(stmt) else self.role
            runs_of_step = ((number, run.index(i)) for number, run in enumerate(ping_pong_runs) if i in run)
            yield _PipelineStep(
                stage,
                phase,
                place[i],
                stmt,
                touched,
                side,
                acquires,
                waits,
                passed_rings,
                group=groups[i],
                ping_pong_run=next(runs_of_step, None),
                place=i,
                sent_links=sent_links,
                returned_links=returned_links,
                keeps=any(n in self.expansion.changed for n in passed_rings),
            )
        # A release that the filling role waits for must not be behind a statement that waits for that role.
        is_shared = assign_roles.EVERY_ROLE in roles
        candidates = () if is_shared or ping_pong_runs else own
        independent = find_independent_products(self.scheduled.loop.statements, candidates)
        computes = any(i not in independent for i in own)
        for name, ring in read.items():
            readers = [c for c in ring.consumers if c in own]
            depth = self.expansion.rings[name].depth
            if self.role == assign_roles.MMA_ROLE:  # tensor cores release after their reads (commit)
                done = max(schedule.start[reader] for reader in readers)
            else:
                done = choose_release_cycle(problem, schedule, ring, readers, independent, depth, computes)
            if name in filled:  # the role waits for its own release
                done = min(done, schedule.start[self.find_first(ring.producers)] + depth * schedule.ii)
            position = -1 if is_shared or name in filled else len(problem.ops)
            yield _PipelineStep(
                done // schedule.ii, done % schedule.ii, position, None, (name,), self.role, releases=name
            )

    def find_passing_statements(self, name: str, ring: RingPlan, runs: Sequence[bool]) -> list[int]:
        """Return the role's statements that use a ring's version before it passes that version to other roles."""
        if name in self.expansion.changed:
            return list(find_statements_before_commit(ring, self.scheduled.roles, self.scheduled.loop.statements))
        return [u for u in (*ring.producers, *ring.consumers) if runs[u]]

    def has_part(self, statement: int, role: str) -> bool:
        """Return True if this role runs the statement, or a part of it where every role does."""
        if role != assign_roles.EVERY_ROLE:
            return role == self.role
        return self.role in assign_roles.find_running_roles(
            self.scheduled.loop.statements[statement], self.expansion.assignment
        )

    def rotate_steps(self, steps: list[_PipelineStep]) -> list[_PipelineStep]:
        """Return the steps rotated so that no ping-pong turn and few products cross an iteration's end, and no bind
        is parted from its users. Products that have completed there, though nothing waited for them, are waited for
        (set in `steps` itself). With register stages, an iteration ends behind the last use of a carried stage, or
        begins with a wgmma product: the first that loads run beside, or the next behind that use."""
        if not steps:
            return steps
        statements = [s.statement for s in steps]
        versioned, interval = frozenset(self.expansion.ring_of), self.scheduled.schedule.ii
        cycles = [self.find_latency(s) for s in statements]
        in_flight = tuple(
            rotate_loop.find_in_flight_products(statements, versioned, [s.phase for s in steps], cycles, interval)
        )
        ping_pong_runs = [s.ping_pong_run for s in steps]
        same_stage = self.scheduled.loop.problem.same_stage
        groups = [[k for k, s in enumerate(steps) if s.place in group] for group in same_stage]
        groups = [group for group in groups if group]
        at = rotate_loop.choose_first_step([s.stage for s in steps], ping_pong_runs, in_flight, groups)
        better = () if in_flight else self.find_prefetching_starts(statements)
        kept = (k for k in better if rotate_loop.keeps_ping_pong(ping_pong_runs, k))
        at = next((k for k in kept if rotate_loop.keeps_groups(groups, k)), at)
        computed = [s for s in statements if s is not None]
        for flight in in_flight:
            product = statements[flight.issued]
            if product and flight.is_in_flight(at, len(steps)) and not flight.is_running(at, len(steps)):
                completes = tuple(sorted(rotate_loop.find_contended_registers(product, computed)))
                steps[flight.issued] = replace(steps[flight.issued], completes=completes)
        return [*steps[at:], *(replace(s, stage=s.stage - 1) for s in steps[:at])]

    def find_prefetching_starts(self, statements: Sequence[tile.Stmt | None]) -> Iterator[int]:
        """Yield the steps at which an iteration best begins so that fragment loads run beside products, best first."""
        if (first := find_first_overlapped_product(self.scheduled.loop.statements)) is not None:
            yield from (k for k, s in enumerate(statements) if s is first)
        if (last := find_last_carried_use(self.scheduled.loop.statements)) is not None:
            end = next((k + 1 for k, s in enumerate(statements) if s is last), None)
            if end is not None:
                behind = ((end + more) % len(statements) for more in range(len(statements)))
                yield next((k for k in behind if rotate_loop.find_wgmma_accumulator(statements[k]) is not None), end)

    def find_latency(self, statement: tile.Stmt | None) -> int:
        """Return the latency of a statement in the loop's problem; 0 for a release."""
        loop = self.scheduled.loop
        found = (op.latency for op, s in zip(loop.problem.ops, loop.statements, strict=True) if s is statement)
        return next(found, 0)

    def find_first(self, statements: Sequence[int]) -> int:
        """Return the index of the statement that issues first, by its start and the schedule's order."""
        return min(statements, key=self.get_issue_time)

    def find_last(self, statements: Sequence[int]) -> int:
        """Return the index of the statement that issues last, by its start and the schedule's order."""
        return max(statements, key=self.get_issue_time)

    def get_issue_time(self, statement: int) -> tuple[int, int]:
        """Return a statement's start cycle and its place in the schedule's order."""
        schedule = self.scheduled.schedule
        return schedule.start[statement], schedule.order.index(statement)

    # ---- prologue, steady state, epilogue ----

    def expand_operations(self) -> Iterator[warp.Operation]:
        """Yield the role's operations for the loop; inside a `Pipeline` if the trip count is unknown, none without
        steps."""
        if not self.steps_in_order:
            return
        pieces = self.build_pieces()
        if self.trip_count is not None:
            yield from pieces
        else:
            yield from self.bounds
            yield warp.Pipeline(self.loop.var, self.last_stage, tuple(pieces), span=self.loop.span)

    def build_pieces(self) -> Iterator[warp.Operation]:
        """Yield prologue, steady loop and epilogue; single time steps if there are fewer iterations than stages."""
        loop, last, trip_count = self.loop, self.last_stage, self.trip_count
        stages = sorted({s.stage for s in self.steps_in_order})
        if trip_count is not None and trip_count <= last:
            for t in range(trip_count + last):
                moment = warp.PipelinePosition(
                    "prologue" if t < trip_count else "epilogue", t if t < trip_count else t - trip_count, loop.var
                )
                yield from self.build_time_step(
                    {s: self.get_iteration_value(t - s) for s in stages if 0 <= t - s < trip_count}, moment
                )
            return
        for t in range(last):
            moment = warp.PipelinePosition("prologue", t, loop.var)
            body = tuple(self.build_time_step({s: self.get_iteration_value(t - s) for s in stages if s <= t}, moment))
            if trip_count is None:
                begun = tile.Binary("lt", self.get_iteration_value(t), loop.stop, BOOL)
                yield warp.Branch(begun, body, part="guard", least=t + 1, moment=moment, span=loop.span)
            else:
                yield from body
        moment = warp.PipelinePosition("steady", 0, loop.var)
        steady = tuple(
            self.build_time_step({s: add_exprs(loop.var, tile.int32_const(-s * loop.step)) for s in stages}, moment)
        )
        start = self.get_iteration_value(last)
        yield warp.Loop(loop.var, start, loop.stop, loop.step, steady, "steady", moment=moment, span=loop.span)
        for e in range(last):
            live = [s for s in stages if e < s]
            if trip_count is not None:
                moment = warp.PipelinePosition("epilogue", e, loop.var)
                yield from self.build_time_step({s: self.get_iteration_value(trip_count + e - s) for s in live}, moment)
            else:
                yield from self.build_guarded_epilogue(e, live)

    def build_guarded_epilogue(self, e: int, live: list[int]) -> Iterator[warp.Operation]:
        """Yield epilogue step `e`, each stage under a guard: with few iterations, some never began."""
        end = add_exprs(self.loop.start, scale_expr(build_trip_count(self.loop), self.loop.step))
        moment = warp.PipelinePosition("epilogue", e, self.loop.var)
        for stage in reversed(live):
            value = add_exprs(end, tile.int32_const((e - stage) * self.loop.step))
            begun = tile.Binary("le", self.loop.start, value, BOOL)
            body = tuple(self.build_time_step({stage: value}, moment))
            yield warp.Branch(begun, body, part="guard", least=stage - e, moment=moment, span=self.loop.span)

    def get_iteration_value(self, k: int) -> tile.Expr:
        """Return the loop variable's value in iteration k, as an expression."""
        return add_exprs(self.loop.start, tile.int32_const(k * self.loop.step))

    def build_time_step(
        self, values: Mapping[int, tile.Expr], moment: warp.PipelinePosition
    ) -> Iterator[warp.Operation]:
        """Yield one time step's operations: those of the stages in `values`, each stamped with its iteration, and
        advances."""
        stamps = {stage: replace(moment, iteration=value) for stage, value in values.items()}
        for step, operation in _merge_commits(list(self.expand_live_steps(values))):
            yield _stamp_moment(operation, moment if step is None else replace(stamps[step.stage], place=step.place))

    def expand_live_steps(self, values: Mapping[int, tile.Expr]) -> Iterator[_StepOperation]:
        """Yield the ring waits, statements and signals of these stages' steps, each with its step, then cursor
        advances."""
        cursors: dict[tuple[str, str, int], warp.Cursor] = {}
        live = [step for step in self.steps_in_order if step.stage in values]
        begins, ends = _find_run_ends(live)
        is_mma = self.role == assign_roles.MMA_ROLE
        bound: dict[tile.Var, tile.Expr] = {}  # the scheduled binds' variables in this step
        for step in live:
            found = (self.get_cursor(name, step.side, step.stage) for name in step.rings)
            own_cursors = tuple(c for c in found if c is not None)
            cursors |= {(c.ring, step.side, step.stage): c for c in own_cursors}
            by_ring = {c.ring: c for c in own_cursors}
            for name in step.acquires:
                yield step, warp.RingAcquire(by_ring[name], span=self.loop.span)
            for name in step.waits:
                yield step, warp.RingWait(by_ring[name], span=self.loop.span)
            if step in begins:
                yield step, warp.PingPongWait(span=step.statement.span if step.statement else self.loop.span)
            if step.statement is not None:
                stmt = self.shift_statement(step.statement, {self.loop.var: values[step.stage], **bound})
                if isinstance(stmt, tile.Bind) and isinstance(step.statement, tile.Bind):
                    stmt = replace(stmt, var=self.expansion.copy_variable(stmt.var))
                    bound[step.statement.var] = stmt.var
                here = (*own_cursors, *self.find_outer_cursors(stmt))
                if self.role == assign_roles.STORE_ROLE:  # it runs statements that the rules give to another role
                    run = self.expansion.lower_statement(stmt, here)
                else:
                    run = self.expansion.expand_statement(stmt, self.role, here)
                yield from ((step, operation) for operation in run)
            if step in ends:
                yield step, warp.PingPongPass(span=step.statement.span if step.statement else self.loop.span)
            for name, about in step.sent_links:
                yield step, warp.RingAcquire(by_ring[name], span=self.loop.span)
                meant = (by_ring[about],)
                yield step, warp.RingFill(by_ring[name], is_mma, True, cursors=meant, span=self.loop.span)
            for name in step.returned_links:
                yield step, warp.RingRelease(by_ring[name], is_mma, span=self.loop.span)
            for name in step.passed_rings:
                yield step, warp.RingFill(by_ring[name], is_mma, step.keeps, span=self.loop.span)
            if step.releases:
                yield step, warp.RingRelease(by_ring[step.releases], is_mma, span=self.loop.span)
        for step in live:
            if step.completes:
                yield step, warp.Await(step.completes, readers=True, span=self.loop.span)
        # Later stages first, before the cursors of earlier ones advance.
        for (ring, side, stage), cursor in sorted(cursors.items(), key=lambda c: -c[0][2]):
            behind = cursors.get((ring, side, stage - 1))
            yield None, warp.Advance(cursor, behind, span=self.loop.span)
            for spare in self.list_spare_cursors(ring, side, stage):
                yield None, warp.Advance(spare, span=self.loop.span)

    def get_cursor(self, ring: str, side: str, stage: int) -> warp.Cursor | None:
        """Return the cursor by which a stage reaches a ring; None for a ring of one version without barriers."""
        made = self.expansion.rings[ring]
        if made.depth == 1 and not made.has_barriers:
            return None
        number = self.stages_of[ring, side].index(stage) if (ring, side) in self.stages_of else stage
        return warp.Cursor(f"{ring}.{side}.{number}", ring)

    def list_spare_cursors(self, ring: str, side: str, stage: int) -> tuple[warp.Cursor, ...]:
        """Return the ring's cursors that only other loops use, if this stage is the last one and has to advance
        them."""
        own_stages = self.stages_of.get((ring, side), ())
        if not own_stages or stage != own_stages[-1]:
            return ()
        most = self.expansion.most_cursors[ring, side]
        return tuple(warp.Cursor(f"{ring}.{side}.{n}", ring) for n in range(len(own_stages), most))

    def find_outer_cursors(self, stmt: tile.Stmt) -> Cursors:
        """Return the cursors of enclosing loops that point at rings with tiles the statement accesses."""
        used = find_accesses(stmt).all_names if self.around else frozenset()
        return tuple(c for c in self.around if used & set(self.expansion.rings[c.ring].buffers))

    def shift_statement(self, stmt: tile.Stmt, values: dict[tile.Var, tile.Expr]) -> tile.Stmt:
        """Return the statement with variables replaced by `values`, to which the replayed binds are added."""
        for bind in self.binds:
            values[bind.var] = tile.substitute_variables(bind.value, values)
        return substitute_stmt(stmt, values)


def _merge_commits(operations: list[_StepOperation]) -> Iterator[_StepOperation]:
    """Yield the operations with one cp.async commit for each group of copies, the last; ungrouped ones stay."""
    commits = {
        step.group: at
        for at, (step, op) in enumerate(operations)
        if step is not None and step.group >= 0 and isinstance(op, warp.CpAsyncCommit)
    }
    for at, (step, op) in enumerate(operations):
        grouped = step is not None and step.group in commits and isinstance(op, warp.CpAsyncCommit)
        if not grouped or step is None or commits[step.group] == at:
            yield step, op


def _find_run_ends(steps: Sequence[_PipelineStep]) -> tuple[list[_PipelineStep], list[_PipelineStep]]:
    """Return the first steps and the last steps of all ping-pong turns among these steps."""
    of: dict[int, list[_PipelineStep]] = {}
    for step in steps:
        if step.ping_pong_run is not None:
            of.setdefault(step.ping_pong_run[0], []).append(step)
    return [run[0] for run in of.values()], [run[-1] for run in of.values()]


def _stamp_moment(op: warp.Operation, moment: warp.PipelinePosition) -> warp.Operation:
    """Return the operation, and all inside it, with this pipeline position; an inner loop's own is nested in it."""
    op = map_nested_bodies(op, lambda body: tuple(_stamp_moment(inner, moment) for inner in body))
    return replace(op, moment=moment if op.moment is None else op.moment.within(moment))


def _fix_bounds(loop: tile.For, cursors: Cursors) -> tuple[tile.For, tuple[warp.Let, ...]]:
    """Return the loop with loaded bounds replaced by new variables, and the definitions of these."""
    lets: list[warp.Let] = []

    def fix_bound(bound: tile.Expr, name: str) -> tile.Expr:
        """Return a bound, or a new variable with the value of one that loads."""
        if not reads_elements(bound):
            return bound
        lets.append(warp.Let(tile.Var(f"{loop.var.name}.{name}"), bound, cursors=cursors, span=loop.span))
        return lets[-1].var

    loop = replace(loop, start=fix_bound(loop.start, "start"), stop=fix_bound(loop.stop, "stop"))
    return loop, tuple(lets)
