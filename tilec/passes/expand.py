"""Turn a kernel and the verified schedules of its loops into warp IR: roles, rings, and for each role the prologue,
steady state and epilogue of its part of every pipelined loop.

The role's statements of stage s work s iterations behind those of stage 0. At time step t, statement of stage s
runs iteration t − s; steps 0 … S−1 are the prologue, S … n−1 the steady state, n … n+S−1 the epilogue, where n is
the trip count and S the last stage of the role. Ring positions are cursors, one per ring and stage, advanced each
step that they are live.

A pipelined loop in another one is a statement of it, of which each role runs its part, with a prologue and an epilogue
in each iteration around. Its rings go on where the iteration before has left them; those of the loop around stand still
meanwhile, and its statements reach their tiles through the cursors that they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.diag import InternalError
from tilec.ir import warp
from tilec.ir.affine import add, scale
from tilec.ir.groups import WARPGROUP_WARPS
from tilec.ir.layout import plain
from tilec.ir.multicast import mates_by_any
from tilec.ir.text import show_expr
from tilec.ir.tile import (
    Binary,
    Bind,
    Break,
    Buffer,
    Expr,
    For,
    If,
    Load,
    Parallel,
    Print,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    integer,
    substitute,
    walk,
    walk_expr,
)
from tilec.ir.types import BOOL, INT8, INT32
from tilec.ops import registry
from tilec.ops.barriers import barrier_of, counts_of
from tilec.ops.lowering import Context
from tilec.options import Arrivals
from tilec.passes import handed_out
from tilec.passes.binds import replayed, scheduled
from tilec.passes.clears import set_by_products
from tilec.passes.cuts import first_step, flights, others_registers
from tilec.passes.depend import Scheduled
from tilec.passes.fetched import Fetch, fetches, is_fetched, versions_of
from tilec.passes.layout import Laid
from tilec.passes.multicast import shared_axes
from tilec.passes.overlays import over_rings
from tilec.passes.paired import is_paired
from tilec.passes.pools import shared_out
from tilec.passes.releases import adding, given_back
from tilec.passes.rings import accesses, pipelined_loops
from tilec.passes.roles import EVERY, LOADS, MMA, STORE, Passing, is_bulk_load, passing, role_of, runners
from tilec.passes.tensor_memory import summed, tensor_tiles
from tilec.passes.trips import static_trips, trip_count
from tilec.passes.usage import reads, writes
from tilec.passes.versions import named_versions
from tilec.records import dataclass
from tilec.source import Span
from tilec.target import Target

MAX_UNROLL = 64  # trips; a T.unroll of more stays a loop

BY_TMA = ("producer", LOADS)
"""Who fills rings with copies that complete by themselves."""

Cursors = tuple[warp.Cursor, ...]


def expand(laid: Laid, scheduled: Sequence[Scheduled], target: Target, arrivals: Arrivals = "warp") -> warp.Program:
    """`arrivals`: who arrives at the barriers of rings that a block has to itself."""
    program = _by_hand(laid, target) if laid.parts else _Expander(laid, scheduled, target, arrivals).program()
    return set_by_products(program)


def _by_hand(laid: Laid, target: Target) -> warp.Program:
    """The program of a kernel that shares its work out itself: each role runs what its own kernel says."""
    whole = _Expander(laid, (), target)
    for name, depth in laid.versions:
        whole.ring_of[name] = whole.rings[name] = warp.Ring(name, depth, (name,))
    roles = []
    for part in laid.parts:
        expander = _Expander(part.laid, (), target)
        expander.share(whole)
        threads = part.laid.kernel.threads
        body = expander.body(part.laid.kernel.body, "all")
        if part.is_common:  # each role finds what all have done
            body = (*body, warp.NamedBarrier(0, threads, True))
        roles.append(warp.Role(part.name, part.first_warp, threads // 32, body))
    common = [role for role, part in zip(roles, laid.parts, strict=True) if part.is_common]
    made = whole.program_of(tuple(role for role in roles if role not in common))
    barriers = (s for s in walk(laid.kernel.body) if isinstance(s, TileOp) and s.name == "alloc_barrier")
    declared = tuple(warp.Barriers(barrier_of(s).name, counts_of(s), s.span) for s in barriers)
    return replace(made, barriers=declared, common=common[0] if common else None, by_hand=True)


class _Expander:
    def __init__(self, laid: Laid, scheduled: Sequence[Scheduled], target: Target, arriving: Arrivals = "warp") -> None:
        self.laid, self.kernel, self.target, self.arriving = laid, laid.kernel, target, arriving
        self.loops = {id(s.loop.loop): s for s in scheduled}
        self.trips = {id(n): static_trips(n) for s in scheduled for n in pipelined_loops(s.loop.loop.body)}
        self.specialised = laid.form == "warp_specialised"
        self.maps: dict[tuple[str, tuple[int, ...], int, warp.Corners | None], warp.TensorMap] = {}
        self.scratch_tiles: dict[tuple[Span, int], Buffer] = {}
        self.ring_of: dict[str, warp.Ring] = {}
        self.rings: dict[str, warp.Ring] = {}
        self.passes: dict[str, Passing] = {}
        self.renamed = 0
        self.tensor = tensor_tiles(laid.kernel, target, dict(laid.versions))
        for held in self.tensor if self.specialised else ():  # else the kernel itself hands them over
            self.add_tensor_ring(held)
        for s in scheduled:
            self.add_rings(s)
        for tile, versions in versions_of(self.kernel).items():
            size, by = self.laid.shared[tile].bytes, self.arriving
            made = warp.Ring(tile, versions, (tile,), size, self.arrivals("consumer", by), by=by)
            self.rings[tile] = self.ring_of[tile] = made
        self.walk = handed_out.walk_of(self.kernel)
        if self.walk is not None:
            made = handed_out.ring_of(self.walk, self.kernel, self.arriving)
            self.rings[made.name] = self.ring_of[made.name] = made
        passed = [name for s in scheduled for name in dict.fromkeys(r.name for r in s.loop.problem.rings)]
        self.shared = frozenset(name for name in passed if passed.count(name) > 1)
        self.most_cursors: dict[tuple[str, str], int] = {}
        for s in scheduled if self.shared else ():
            for role in ("producer", "consumer", MMA) if self.specialised else ("all",):
                for side, stages in _Pipeline(self, s, role, ()).cursor_stages().items():
                    self.most_cursors[side] = max(self.most_cursors.get(side, 0), len(stages))

    def add_rings(self, s: Scheduled) -> None:
        for plan, ring, depth in zip(s.loop.rings, s.loop.problem.rings, s.schedule.depth, strict=True):
            who = self.passes[ring.name] = passing(plan, s.roles, s.loop.statements)
            size = sum(self.laid.shared[b.name].bytes for b in plan.buffers) if who.filler in BY_TMA else 0
            shared = tuple(dict.fromkeys(a for p in plan.producers if (a := shared_axes(s.loop.statements[p]))))
            blocks = len(mates_by_any(self.kernel.cluster.extents, shared))
            by = "warp" if shared else self.arriving  # a warp has a lane for each block
            arrivals = sum(self.arrivals(reader, by) for reader in who.readers) * blocks
            fills = self.arrivals(who.filler, by)
            paired = any(is_paired(s.loop.statements[reader]) for reader in plan.consumers)
            size *= 2 if paired else 1
            if ring.name in self.rings:  # another loop has begun it, with at least as many versions
                depth = max(depth, self.rings[ring.name].depth)
            names = tuple(b.name for b in plan.buffers)
            made = warp.Ring(ring.name, depth, names, size, arrivals, fills, shared, by, paired)
            self.rings[ring.name] = made
            for b in plan.buffers:
                self.ring_of[b.name] = made

    def add_tensor_ring(self, tile: warp.TensorTile) -> None:
        """A sum in tensor memory is a ring: the tensor cores fill it, the consumers read it."""
        name, by = tile.buffer.name, self.arriving
        arrivals, fills = self.arrivals("consumer", by), self.arrivals(MMA, by)
        paired = any(is_paired(s) and tile.buffer in writes(s) for s in walk(self.kernel.body))
        arrivals *= 2 if paired else 1
        made = warp.Ring(name, tile.depth, (name,), 0, arrivals, fills, by=by, paired=paired)
        self.ring_of[name] = self.rings[name] = made

    def arrivals(self, role: str, by: Arrivals) -> int:
        """How often a role arrives at a barrier to say one thing."""
        return 1 if role in (*BY_TMA, STORE, MMA) else warp.arrivals_of(self.kernel.threads // 32, by)

    # ---- the program ----

    def program(self) -> warp.Program:
        kernel = self.kernel
        warps = kernel.threads // 32
        if self.specialised:
            few, many = shared_out(self.laid, self.target)
            taken = any(s.turns for s in self.loops.values())
            first_barrier = warp.FIRST_TURN if taken else None
            consumer = warp.Role("consumer", 0, warps, self.body(kernel.body, "consumer"), many, turns_at=first_barrier)
            loads = _drained(self.body(kernel.body, "producer"), self.rings)
            producer = warp.Role("producer", warps, WARPGROUP_WARPS, loads, few, True)
            # The others that are one thread have another warp of the producer's warpgroup each.
            more = [MMA] if self.tensor else []
            more += [STORE] if any(STORE in s.roles for s in self.loops.values()) else []
            alone = [producer]
            for name in more:
                alone[-1] = replace(alone[-1], warps=1)
                rest = WARPGROUP_WARPS - len(alone)
                work = _drained(self.body(kernel.body, name), self.rings)
                alone.append(warp.Role(name, warps + len(alone), rest, work, few, True))
            roles: tuple[warp.Role, ...] = (consumer, *alone)
        else:
            roles = (warp.Role("all", 0, warps, self.body(kernel.body, "all")),)
        return self.program_of(roles)

    def program_of(self, roles: tuple[warp.Role, ...]) -> warp.Program:
        kernel = self.kernel
        grid = (*kernel.grid, 1, 1)[:3]
        return warp.Program(
            kernel.name,
            (*kernel.params, *kernel.workspaces),
            tuple(self.maps.values()),
            (grid[0], grid[1], grid[2]),
            kernel.block_vars,
            roles,
            tuple(self.shared_tiles()),
            tuple((b, self.laid.fragments[b.name]) for b in kernel.buffers if b.in_registers),
            tuple(handed_out.counted(ring, roles) if ring.heard_by else ring for ring in self.rings.values()),
            span=kernel.span,
            cluster=kernel.cluster.extents,
            tensor=self.tensor,
        )

    def share(self, other: _Expander) -> None:
        """Roles of one program have its maps, tiles and versions in common."""
        self.maps, self.scratch_tiles = other.maps, other.scratch_tiles
        self.ring_of, self.rings = other.ring_of, other.rings

    def shared_tiles(self) -> Iterator[warp.SharedTile]:
        late = frozenset() if self.laid.parts else over_rings(self.kernel)
        for buffer in self.kernel.buffers:
            if buffer.scope == "shared":
                ring, layout = self.ring_of.get(buffer.name), self.laid.shared[buffer.name]
                yield warp.SharedTile(buffer, layout, ring.depth if ring else 1, over_rings=buffer.name in late)
        for buffer in self.scratch_tiles.values():
            yield warp.SharedTile(buffer, plain(buffer.shape, 1))
        if self.walk is not None:
            yield handed_out.tile_of(self.walk)

    def tensor_map(
        self, tensor: Buffer, box: tuple[int, ...], swizzle: int, corners: warp.Corners | None
    ) -> warp.TensorMap:
        key = (tensor.name, box, swizzle, corners)
        if key not in self.maps:
            taken = sum(k[0] == tensor.name for k in self.maps)
            self.maps[key] = warp.TensorMap(f"{tensor.name}_map{taken or ''}", tensor, box, swizzle, corners)
        return self.maps[key]

    def scratch(self, size: int, span: Span) -> Buffer:
        return self.scratch_tiles.setdefault(
            (span, size), Buffer(f"scratch.{len(self.scratch_tiles)}", (size,), INT8, "shared", span)
        )

    def fresh(self, var: Var) -> Var:
        """Another variable for the same bind, which is evaluated in several places."""
        self.renamed += 1
        return Var(f"{var.name}.{self.renamed}", var.dtype)

    # ---- statements ----

    def body(self, stmts: Sequence[Stmt], role: str, cursors: Cursors = ()) -> tuple[warp.Operation, ...]:
        fetched = [fetch for fetch in fetches(tuple(stmts)) if is_fetched(stmts[fetch.copy])]
        return tuple(op for at in range(len(stmts)) for op in self.among(stmts, at, role, cursors, fetched))

    def among(
        self, stmts: Sequence[Stmt], at: int, role: str, cursors: Cursors, fetched: Sequence[Fetch]
    ) -> Iterator[warp.Operation]:
        """A statement of a list, with what hands over the tiles that the producer fetches for it."""
        stmt = stmts[at]
        filled = [fetch for fetch in fetched if role in ("producer", "all") and fetch.copy == at]
        read = [fetch for fetch in fetched if role in ("consumer", "all") and fetch.tile in reads(stmt)]
        side = LOADS if role == "all" and filled else role
        own = {fetch: warp.Cursor(f"{fetch.tile.name}.{side}", fetch.tile.name) for fetch in (*filled, *read)}
        done = [fetch for fetch in read if fetch.last == at]
        for fetch in filled:
            yield warp.RingAcquire(own[fetch], span=stmt.span)
        for fetch in read:
            if fetch.first == at:
                yield warp.RingWait(own[fetch], span=stmt.span)
        yield from self.stmt(stmt, role, (*cursors, *own.values()))
        for fetch in done:
            yield warp.RingRelease(own[fetch], span=stmt.span)
        for fetch in (*filled, *done):
            yield warp.Advance(own[fetch], span=stmt.span)

    def stmt(self, stmt: Stmt, role: str, cursors: Cursors = ()) -> tuple[warp.Operation, ...]:
        """The role's part of a statement, on the versions that `cursors` point at."""
        match stmt:
            case For() if id(stmt) in self.loops:
                sums = tuple(self.sum_cursor(tile.name, role) for tile in summed(stmt)) if role == MMA else ()
                acquired = tuple(warp.RingAcquire(c, span=stmt.span) for c in sums)
                done = tuple(op for c in sums for op in self.handed_on(warp.RingFill(c, True, span=stmt.span)))
                return *acquired, *_Pipeline(self, self.loops[id(stmt)], role, (*cursors, *sums)).operations(), *done
            case For(kind="unroll"):
                return tuple(self.unrolled(stmt, role, cursors))
            case For(handed_out=True):
                body = self.body(stmt.body, role, cursors)
                return (handed_out.walked(stmt, body, role, self.kernel.cluster.extents),) if body else ()
            case For():
                body = self.body(stmt.body, role, cursors)
                return (self.loop(stmt, stmt.start, stmt.stop, stmt.step, body, cursors),) if body else ()
            case If():
                then, orelse = self.body(stmt.then, role, cursors), self.body(stmt.orelse, role, cursors)
                branch = warp.Branch(stmt.condition, then, orelse, cursors=cursors, span=stmt.span)
                return (branch,) if then or orelse else ()
            case While():
                inner = self.body(stmt.body, role, cursors)
                return (self.forever(stmt, inner, cursors),) if inner else ()
            case Break():
                return (warp.Break(span=stmt.span),)
            case Bind():
                return (warp.Let(stmt.var, stmt.value, cursors=cursors, span=stmt.span),)
            case TileOp(name="copy", regions=(source, _)) if self.is_handed_sum(source.buffer):
                if role_of(stmt, self.laid) != role:
                    return ()
                cursor = self.sum_cursor(source.buffer.name, role)
                load = self.lower(stmt, (*cursors, cursor))
                read = self.handed_on(warp.RingRelease(cursor, span=stmt.span))
                return warp.RingWait(cursor, span=stmt.span), *load, *read
            case _:
                return self.lower(stmt, cursors) if role_of(stmt, self.laid) in (role, EVERY) else ()

    def is_handed_sum(self, tile: Buffer) -> bool:
        """Whether the tensor cores hand it on as a ring; else the kernel itself orders who reads it."""
        return tile.scope == "tmem" and tile.name in self.ring_of and self.ring_of[tile.name].has_barriers

    def sum_cursor(self, tile: str, role: str) -> warp.Cursor:
        return warp.Cursor(f"{tile}.{role}", tile)

    def handed_on(self, op: warp.RingFill | warp.RingRelease) -> tuple[warp.Operation, ...]:
        """A version in tensor memory passes to the other role, and this one goes on to the next."""
        return op, warp.Advance(op.cursor, span=op.span)

    def loop(
        self, loop: For, start: Expr, stop: Expr, step: int, body: tuple[warp.Operation, ...], cursors: Cursors
    ) -> warp.Loop:
        return warp.Loop(loop.var, start, stop, step, body, cursors=cursors, span=loop.span)

    def unrolled(self, loop: For, role: str, cursors: Cursors) -> Iterator[warp.Operation]:
        """As many trips written out as `factor` says, in a loop of their own if there are more; the rest after it."""
        trips = static_trips(loop)
        factor = loop.factor
        if factor is None:
            factor = trips if trips is not None and trips <= MAX_UNROLL else 1
        if trips is not None and trips <= factor:
            for i in range(trips):
                yield from self.body(self.at(loop, add(loop.start, integer(i * loop.step))), role, cursors)
            return
        whole: Expr = scale(Binary("floordiv", trip_count(loop), integer(factor), INT32), factor * loop.step)
        if trips is not None:
            whole = integer(trips // factor * factor * loop.step)
        middle = add(loop.start, whole)
        copies = (self.at(loop, add(loop.var, integer(i * loop.step))) for i in range(factor))
        body = tuple(op for copy in copies for op in self.body(copy, role, cursors))
        if not body:
            return
        yield self.loop(loop, loop.start, middle, loop.step * factor, body, cursors)
        if factor > 1 and (trips is None or trips % factor):
            rest = self.body(self.at(loop, loop.var), role, cursors)
            yield self.loop(loop, middle, loop.stop, loop.step, rest, cursors)

    def forever(self, loop: While, body: tuple[warp.Operation, ...], cursors: Cursors) -> warp.Forever:
        """The condition is a branch at the start of each trip, so that what it reads is waited for there."""
        leave = (warp.Break(span=loop.span),)
        return warp.Forever(
            (warp.Branch(loop.condition, body, leave, cursors=cursors, span=loop.span),), span=loop.span
        )

    def at(self, loop: For, value: Expr) -> tuple[Stmt, ...]:
        """The loop's body in one iteration."""
        values: dict[Var, Expr] = {loop.var: value}
        for stmt in walk(loop.body):
            if isinstance(stmt, Bind):  # each copy has its own
                values[stmt.var] = self.fresh(stmt.var)
        return tuple(self.copy(s, values) for s in loop.body)

    def copy(self, stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
        """The statement with variables replaced. The pipelined loops in it keep their schedules, and whether their
        trips are counted at run time, for which the copies in all roles must have one answer."""
        copied = substitute_stmt(stmt, values)
        for old, new in zip(walk((stmt,)), walk((copied,)), strict=True):
            if id(old) in self.loops and isinstance(new, For):
                again = self.loops[id(old)]
                self.loops[id(new)] = replace(again, loop=replace(again.loop, loop=new, statements=scheduled(new)))
                if id(old) in self.trips:
                    self.trips[id(new)] = self.trips[id(old)]
        return copied

    def lower(self, stmt: Stmt, cursors: Cursors) -> tuple[warp.Operation, ...]:
        """One statement as operations of the role that runs it."""
        stmt, named = named_versions(stmt)
        own = (warp.Cursor(f"{name}[{show_expr(index)}]", name, index) for name, index in named.items())
        cursors = (*cursors, *own)
        match stmt:
            case TileOp():
                context = Context(
                    *(self.kernel.threads, self.laid.fragments, self.laid.shared, cursors),
                    *(self.tensor_map, self.scratch, self.kernel.cluster.extents),
                )
                operations: tuple[warp.Operation, ...] = registry.get(stmt.name).lower(stmt, context)
                return operations
            case Parallel():
                return (warp.Elementwise(stmt, self.laid.nest_layout(stmt), cursors=cursors, span=stmt.span),)
            case _:
                raise InternalError("a store outside T.Parallel")


@dataclass(frozen=True, slots=True)
class _Step:
    """A statement of the role, or the release of a ring, at its place in the pipeline."""

    stage: int
    phase: int
    position: int
    statement: Stmt | None
    rings: tuple[str, ...]  # whose versions it uses
    side: str  # in whose name it does: the role's, or `LOADS`
    acquires: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    hands_on: tuple[str, ...] = ()
    releases: str = ""
    group: int = -1  # of copies that are committed together
    turn: tuple[int, int] | None = None  # at the tensor cores: which of the role's, and its place in that
    completes: tuple[str, ...] = ()  # registers of a product that is waited for at the end of the trip


class _Pipeline:
    """One role's part of one pipelined loop. `around` are the cursors of the loops that it is in."""

    def __init__(self, expander: _Expander, scheduled: Scheduled, role: str, around: Cursors) -> None:
        self.expander, self.role, self.around = expander, role, around
        loop = scheduled.loop.loop
        self.trips = expander.trips.get(id(loop), static_trips(loop))
        self.loop, self.bounds = _fixed_bounds(loop, around)
        self.scheduled = scheduled
        self.binds = replayed(self.loop)
        steps = self.from_the_first(sorted(self.steps(), key=lambda s: (s.phase, s.position)))
        lowest = min((s.stage for s in steps), default=0)
        self.steps_in_order = [replace(s, stage=s.stage - lowest) for s in steps]
        self.last_stage = max((s.stage for s in self.steps_in_order), default=0)
        self.stages_of = self.cursor_stages()

    def cursor_stages(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """The stages in which each ring is used that other loops use too, by side."""
        found: dict[tuple[str, str], set[int]] = {}
        for step in self.steps_in_order:
            for name in step.rings:
                if name in self.expander.shared:
                    found.setdefault((name, step.side), set()).add(step.stage)
        return {side: tuple(sorted(stages)) for side, stages in found.items()}

    # ---- what this role does, in order of issue ----

    def steps(self) -> Iterator[_Step]:
        problem, schedule = self.scheduled.loop.problem, self.scheduled.schedule
        rings = {ring.name: plan for ring, plan in zip(problem.rings, self.scheduled.loop.rings, strict=True)}
        place = {op: k for k, op in enumerate(schedule.order)}
        roles = self.scheduled.roles
        runs = [self.runs(i, role) for i, role in enumerate(roles)]
        mine = [i for i in self.scheduled.loop.own if runs[i]]
        groups = (self.loop.wishes and self.loop.wishes.groups) or (-1,) * len(roles)
        # The rings that one role fills for others: there is something to wait for, and something to give back.
        fed = {name: ring for name, ring in rings.items() if self.expander.rings[name].has_barriers}
        begins = LOADS if self.role == "all" else self.role
        filled = {name: ring for name, ring in fed.items() if self.expander.passes[name].filler == begins}
        read = {name: ring for name, ring in fed.items() if self.role in self.expander.passes[name].readers}
        turns = self.scheduled.turns if self.role == "consumer" else ()
        for i in mine:
            used = accesses(self.scheduled.loop.statements[i]).all
            touched = tuple(
                n
                for n, r in rings.items()
                if (n in filled and i in r.producers if self.role == "producer" else used & {b.name for b in r.buffers})
            )
            acquires = tuple(n for n, r in filled.items() if self.first(r.producers) == i)
            waits = tuple(n for n, r in read.items() if self.first([c for c in r.consumers if runs[c]]) == i)
            hands_on = tuple(
                n
                for n, r in filled.items()
                # What TMA copies completes by itself.
                if begins not in BY_TMA and self.last([u for u in (*r.producers, *r.consumers) if runs[u]]) == i
            )
            yield _Step(
                schedule.start[i] // schedule.ii,
                schedule.start[i] % schedule.ii,
                place[i],
                self.scheduled.loop.statements[i],
                touched,
                begins if is_bulk_load(self.scheduled.loop.statements[i]) else self.role,
                acquires,
                waits,
                hands_on,
                group=groups[i],
                turn=next(((number, run.index(i)) for number, run in enumerate(turns) if i in run), None),
            )
        # Nothing that the filling role waits for may stand behind a statement that waits for that role.
        is_shared = EVERY in roles
        freely = adding(self.scheduled.loop.statements, () if is_shared or turns else mine)
        computes = any(i not in freely for i in mine)
        for name, ring in read.items():
            readers = [c for c in ring.consumers if c in mine]
            depth = self.expander.rings[name].depth
            if self.role == MMA:  # The tensor cores give back themselves what they have read: they are asked at once.
                done = max(schedule.start[reader] for reader in readers)
            else:
                done = given_back(problem, schedule, ring, readers, freely, depth, computes)
            if name in filled:  # who waits for it here is who gives it back
                done = min(done, schedule.start[self.first(ring.producers)] + depth * schedule.ii)
            position = -1 if is_shared or name in filled else len(problem.ops)
            yield _Step(done // schedule.ii, done % schedule.ii, position, None, (name,), self.role, releases=name)

    def runs(self, statement: int, role: str) -> bool:
        """Whether a statement, which is given to `role`, has a part for this one."""
        if role != EVERY:
            return role == self.role
        return self.role in runners(self.scheduled.loop.statements[statement], self.expander.laid)

    def from_the_first(self, steps: list[_Step]) -> list[_Step]:
        """The steps in the order of a trip that no turn, and if possible no product, goes on beyond. Products that have
        completed there, though nothing has waited for them, are waited for."""
        if not steps:
            return steps
        statements = [s.statement for s in steps]
        versioned, interval = frozenset(self.expander.ring_of), self.scheduled.schedule.ii
        cycles = [self.latency(s) for s in statements]
        in_flight = tuple(flights(statements, versioned, [s.phase for s in steps], cycles, interval))
        at = first_step([s.stage for s in steps], [s.turn for s in steps], in_flight)
        computed = [s for s in statements if s is not None]
        for flight in in_flight:
            product = statements[flight.issued]
            if product and flight.goes_on(at, len(steps)) and not flight.runs_on(at, len(steps)):
                completes = tuple(sorted(others_registers(product, computed)))
                steps[flight.issued] = replace(steps[flight.issued], completes=completes)
        return [*steps[at:], *(replace(s, stage=s.stage - 1) for s in steps[:at])]

    def latency(self, statement: Stmt | None) -> int:
        loop = self.scheduled.loop
        found = (op.latency for op, s in zip(loop.problem.ops, loop.statements, strict=True) if s is statement)
        return next(found, 0)

    def first(self, statements: Sequence[int]) -> int:
        """The one that issues first."""
        return min(statements, key=self.issued)

    def last(self, statements: Sequence[int]) -> int:
        return max(statements, key=self.issued)

    def issued(self, statement: int) -> tuple[int, int]:
        schedule = self.scheduled.schedule
        return schedule.start[statement], schedule.order.index(statement)

    # ---- prologue, steady state, epilogue ----

    def operations(self) -> Iterator[warp.Operation]:
        if not self.steps_in_order:
            return
        pieces = self.pieces()
        if self.trips is not None:
            yield from pieces
        else:
            yield from self.bounds
            yield warp.Pipeline(self.loop.var, self.last_stage, tuple(pieces), span=self.loop.span)

    def pieces(self) -> Iterator[warp.Operation]:
        loop, last, trips = self.loop, self.last_stage, self.trips
        stages = sorted({s.stage for s in self.steps_in_order})
        if trips is not None and trips <= last:
            for t in range(trips + last):
                moment = warp.Moment("prologue" if t < trips else "epilogue", t if t < trips else t - trips, loop.var)
                yield from self.time_step({s: self.iteration(t - s) for s in stages if 0 <= t - s < trips}, moment)
            return
        for t in range(last):
            moment = warp.Moment("prologue", t, loop.var)
            body = tuple(self.time_step({s: self.iteration(t - s) for s in stages if s <= t}, moment))
            if trips is None:
                begun = Binary("lt", self.iteration(t), loop.stop, BOOL)
                yield warp.Branch(begun, body, part="guard", least=t + 1, moment=moment, span=loop.span)
            else:
                yield from body
        moment = warp.Moment("steady", 0, loop.var)
        steady = tuple(self.time_step({s: add(loop.var, integer(-s * loop.step)) for s in stages}, moment))
        start = self.iteration(last)
        yield warp.Loop(loop.var, start, loop.stop, loop.step, steady, "steady", moment=moment, span=loop.span)
        for e in range(last):
            live = [s for s in stages if e < s]
            if trips is not None:
                moment = warp.Moment("epilogue", e, loop.var)
                yield from self.time_step({s: self.iteration(trips + e - s) for s in live}, moment)
            else:
                yield from self.guarded_epilogue(e, live)

    def guarded_epilogue(self, e: int, live: list[int]) -> Iterator[warp.Operation]:
        """With fewer iterations than stages, some of these never began."""
        end = add(self.loop.start, scale(trip_count(self.loop), self.loop.step))
        moment = warp.Moment("epilogue", e, self.loop.var)
        for stage in reversed(live):
            value = add(end, integer((e - stage) * self.loop.step))
            begun = Binary("le", self.loop.start, value, BOOL)
            body = tuple(self.time_step({stage: value}, moment))
            yield warp.Branch(begun, body, part="guard", least=stage - e, moment=moment, span=self.loop.span)

    def iteration(self, k: int) -> Expr:
        """The loop variable's value in iteration k."""
        return add(self.loop.start, integer(k * self.loop.step))

    def time_step(self, values: Mapping[int, Expr], moment: warp.Moment) -> Iterator[warp.Operation]:
        """The steps of the stages in `values`, each with that value of the loop variable; then the cursors move on."""
        stamps = {stage: replace(moment, iteration=value) for stage, value in values.items()}
        for step, operation in _committed_together(list(self.operations_of(values))):
            yield _stamped(operation, moment if step is None else stamps[step.stage])

    def operations_of(self, values: Mapping[int, Expr]) -> Iterator[tuple[_Step | None, warp.Operation]]:
        cursors: dict[tuple[str, str, int], warp.Cursor] = {}
        live = [step for step in self.steps_in_order if step.stage in values]
        begins, ends = _ends_of_turns(live)
        bound: dict[Var, Expr] = {}  # what the scheduled binds of this step are called
        for step in live:
            mine = tuple(c for name in step.rings if (c := self.cursor(name, step.side, step.stage)) is not None)
            cursors |= {(c.ring, step.side, step.stage): c for c in mine}
            by_ring = {c.ring: c for c in mine}
            for name in step.acquires:
                yield step, warp.RingAcquire(by_ring[name], span=self.loop.span)
            for name in step.waits:
                yield step, warp.RingWait(by_ring[name], span=self.loop.span)
            if step in begins:
                yield step, warp.TurnWait(span=step.statement.span if step.statement else self.loop.span)
            if step.statement is not None:
                stmt = self.shifted(step.statement, {self.loop.var: values[step.stage], **bound})
                if isinstance(stmt, Bind):
                    stmt = replace(stmt, var=self.expander.fresh(stmt.var))
                    bound[step.statement.var] = stmt.var  # type: ignore[union-attr]
                here = (*mine, *self.reached(stmt))
                # What it is given by choice, it would not run by rule.
                is_chosen = self.role == STORE
                run = self.expander.lower(stmt, here) if is_chosen else self.expander.stmt(stmt, self.role, here)
                for operation in run:
                    yield step, operation
            if step in ends:
                yield step, warp.TurnPass(span=step.statement.span if step.statement else self.loop.span)
            for name in step.hands_on:
                yield step, warp.RingFill(by_ring[name], self.role == MMA, span=self.loop.span)
            if step.releases:
                yield step, warp.RingRelease(by_ring[step.releases], self.role == MMA, span=self.loop.span)
        for step in live:
            if step.completes:
                yield step, warp.Await(step.completes, readers=True, span=self.loop.span)
        # Before who is ahead has moved on.
        for (ring, side, stage), cursor in sorted(cursors.items(), key=lambda c: -c[0][2]):
            behind = cursors.get((ring, side, stage - 1))
            yield None, warp.Advance(cursor, behind, span=self.loop.span)
            for spare in self.spare_cursors(ring, side, stage):
                yield None, warp.Advance(spare, span=self.loop.span)

    def cursor(self, ring: str, side: str, stage: int) -> warp.Cursor | None:
        """A ring of one version without barriers needs no position."""
        made = self.expander.rings[ring]
        if made.depth == 1 and not made.has_barriers:
            return None
        number = self.stages_of[ring, side].index(stage) if (ring, side) in self.stages_of else stage
        return warp.Cursor(f"{ring}.{side}.{number}", ring)

    def spare_cursors(self, ring: str, side: str, stage: int) -> tuple[warp.Cursor, ...]:
        """Those that only other loops use: they go along with the last of this one's, so that all stand together at its
        end."""
        mine = self.stages_of.get((ring, side), ())
        if not mine or stage != mine[-1]:
            return ()
        most = self.expander.most_cursors[ring, side]
        return tuple(warp.Cursor(f"{ring}.{side}.{n}", ring) for n in range(len(mine), most))

    def reached(self, stmt: Stmt) -> Cursors:
        """The cursors of the loops around through which the statement, binds replayed, reaches its tiles."""
        used = accesses(stmt).all if self.around else frozenset()
        return tuple(c for c in self.around if used & set(self.expander.rings[c.ring].buffers))

    def shifted(self, stmt: Stmt, values: dict[Var, Expr]) -> Stmt:
        """The statement in the iteration in which the loop variable has its value there, binds replayed."""
        for bind in self.binds:
            values[bind.var] = substitute(bind.value, values)
        return self.expander.copy(stmt, values)


def _drained(body: tuple[warp.Operation, ...], rings: Mapping[str, warp.Ring]) -> tuple[warp.Operation, ...]:
    """A role's operations, and at their end a wait for the other blocks that still signal its barriers."""
    acquired = {op.cursor.ring: op for op in warp.walk(body) if isinstance(op, warp.RingAcquire)}
    return *body, *(warp.RingDrain(op.cursor, span=op.span) for n, op in acquired.items() if rings[n].crosses_blocks)


def _committed_together(
    operations: list[tuple[_Step | None, warp.Operation]],
) -> Iterator[tuple[_Step | None, warp.Operation]]:
    """One commit for the copies of a group, behind the last of them."""
    commits = {
        step.group: at
        for at, (step, op) in enumerate(operations)
        if step is not None and step.group >= 0 and isinstance(op, warp.CpAsyncCommit)
    }
    for at, (step, op) in enumerate(operations):
        grouped = step is not None and step.group in commits and isinstance(op, warp.CpAsyncCommit)
        if not grouped or step is None or commits[step.group] == at:
            yield step, op


def _ends_of_turns(steps: Sequence[_Step]) -> tuple[list[_Step], list[_Step]]:
    """The first and the last step of each turn."""
    of: dict[int, list[_Step]] = {}
    for step in steps:
        if step.turn is not None:
            of.setdefault(step.turn[0], []).append(step)
    return [run[0] for run in of.values()], [run[-1] for run in of.values()]


def _stamped(op: warp.Operation, moment: warp.Moment) -> warp.Operation:
    """The operation, with all that is inside it, at this moment; what has one in a loop inside is at both."""
    match op:
        case warp.Loop() | warp.Forever() | warp.Pipeline():
            op = replace(op, body=tuple(_stamped(inner, moment) for inner in op.body))
        case warp.Branch():
            then = tuple(_stamped(inner, moment) for inner in op.then)
            op = replace(op, then=then, orelse=tuple(_stamped(inner, moment) for inner in op.orelse))
        case _:
            pass
    return replace(op, moment=moment if op.moment is None else op.moment.within(moment))


def _fixed_bounds(loop: For, cursors: Cursors) -> tuple[For, tuple[warp.Let, ...]]:
    """The loop with bounds that its own statements cannot change, and what to define for it before."""
    lets: list[warp.Let] = []

    def fixed(bound: Expr, name: str) -> Expr:
        if not any(isinstance(e, Load) for e in walk_expr(bound)):
            return bound
        lets.append(warp.Let(Var(f"{loop.var.name}.{name}"), bound, cursors=cursors, span=loop.span))
        return lets[-1].var

    loop = replace(loop, start=fixed(loop.start, "start"), stop=fixed(loop.stop, "stop"))
    return loop, tuple(lets)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """The statement with variables replaced in every expression."""
    match stmt:
        case TileOp():
            regions = tuple(replace(r, start=tuple(substitute(s, values) for s in r.start)) for r in stmt.regions)
            attrs = tuple(
                (k, v if v is None or isinstance(v, int | float | bool | str) else substitute(v, values))
                for k, v in stmt.attrs
            )
            return replace(stmt, regions=regions, attrs=attrs)
        case Store():
            indices = tuple(substitute(i, values) for i in stmt.indices)
            return replace(stmt, indices=indices, value=substitute(stmt.value, values))
        case Print():
            return replace(stmt, values=tuple(substitute(v, values) for v in stmt.values))
        case Bind():
            var = values.get(stmt.var, stmt.var)
            assert isinstance(var, Var), "a bind keeps a name of its own"
            return replace(stmt, var=var, value=substitute(stmt.value, values))
        case Parallel():
            return replace(stmt, body=tuple(substitute_stmt(s, values) for s in stmt.body))
        case While():
            return replace(
                stmt,
                condition=substitute(stmt.condition, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case Break():
            return stmt
        case For():
            return replace(
                stmt,
                start=substitute(stmt.start, values),
                stop=substitute(stmt.stop, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case If():
            return replace(
                stmt,
                condition=substitute(stmt.condition, values),
                then=tuple(substitute_stmt(s, values) for s in stmt.then),
                orelse=tuple(substitute_stmt(s, values) for s in stmt.orelse),
            )
