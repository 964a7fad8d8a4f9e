"""Expand a kernel and the verified schedules of its loops into warp IR: roles, rings, and each role's part of the
statements. `role_pipeline` expands its part of a pipelined loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Literal

from tilec.analysis.rings import find_pipelined_loops
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.trip_count import MAX_UNROLL, build_trip_count, get_static_trip_count
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile, warp
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.groups import WARPGROUP_WARPS
from tilec.ir.layout import Fragment, unswizzled_layout
from tilec.ir.multicast import multicast_ranks_of_any
from tilec.ir.text import show_expr
from tilec.ir.types import INT8, INT32, DType
from tilec.ops import registry
from tilec.ops.copies.copy import Copy
from tilec.ops.lowering import LoweringContext
from tilec.ops.synchronisation.barriers import AllocBarrier, get_barrier
from tilec.passes.grid.cta_pair_products import is_paired
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.mechanisms.tensor_memory import allocate_tensor_tiles, find_loop_sums
from tilec.passes.layout.shared.named_versions import get_named_versions
from tilec.passes.loop import assign_roles, dynamic_tile_scheduler
from tilec.passes.loop.build_problem import PlannedLoop, ScheduledLoop
from tilec.passes.loop.pools import choose_register_split
from tilec.passes.loop.ring_links import RingLink, find_ring_links
from tilec.passes.lower.accumulator_initialisation import initialise_by_products
from tilec.passes.lower.nests import build_gathered_copy, build_thread_copy, split_replicated_nest
from tilec.passes.lower.role_pipeline import TMA_FILLERS, Cursors, RolePipeline
from tilec.passes.memory.live_ranges import find_ring_tiles, plan_reuse
from tilec.passes.memory.multicast import get_multicast_axes
from tilec.passes.memory.prefetch_tiles import TileLoad, count_prefetched_versions, find_tile_loads, is_prefetched
from tilec.passes.memory.privatise import add_private_copies
from tilec.passes.memory.shared_reuse import find_tiles_over_rings
from tilec.rewriting.fold_constants import fold_statement
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.diagnostics import InternalError
from tilec.support.options import Arrivals
from tilec.support.source import Span
from tilec.target.table import Target


def expand_schedules(
    assignment: LayoutAssignment, loops: Sequence[PlannedLoop], target: Target, arrivals: Arrivals
) -> warp.Program:
    """Expand a kernel and its loops' schedules into a warp program: rings, and each role's operations.

    `arrivals`: the threads that arrive at the barriers of a block's own rings."""
    scheduled = [planned.scheduled for planned in loops]
    if assignment.roles:
        return initialise_by_products(_expand_explicit_roles(assignment, target))
    return initialise_by_products(Expander(assignment, scheduled, target, arrivals).expand_program())


def _expand_explicit_roles(assignment: LayoutAssignment, target: Target) -> warp.Program:
    """Return the program of a kernel with explicit roles, each of which runs the statements of its own kernel."""
    whole = Expander(assignment, (), target)
    for name, depth in assignment.versions:
        whole.ring_of[name] = whole.rings[name] = warp.Ring(name, depth, (name,))
    sections: list[tuple[warp.Role, ...]] = []
    for _, parts in groupby(assignment.roles, lambda part: part.section):
        roles = []
        for part in parts:
            expander = Expander(part.assignment, (), target)
            expander.share_state(whole)
            body = expander.expand_body(part.kernel.body, "all")
            roles.append(warp.Role(part.name, part.first_warp, part.kernel.threads // 32, body))
        sections.append(tuple(roles))
    threads = assignment.kernel.threads
    sections[:-1] = [_end_section(roles, threads) for roles in sections[:-1]]
    common = sections.pop(0)[0] if len(sections) > 1 and len(sections[0]) == 1 else None
    made = whole.build_program(sections[0])
    barriers = (s for s in tile.walk_statements(assignment.kernel.body) if isinstance(s, AllocBarrier))
    declared = tuple(warp.BarrierArray(get_barrier(s).name, s.counts, s.span) for s in barriers)
    return replace(made, barriers=declared, common=common, later=tuple(sections[1:]), explicit_roles=True)


def _end_section(roles: tuple[warp.Role, ...], threads: int) -> tuple[warp.Role, ...]:
    """Return the roles of a section with a barrier of the whole block at their ends: the next one sees their work
    complete."""
    taken = {op.id for role in roles for op in warp.walk_operations(role.body) if isinstance(op, warp.NamedBarrier)}
    number = next(number for number in (0, *range(15, 0, -1)) if number not in taken)
    barrier = warp.NamedBarrier(number, threads, True)
    return tuple(replace(role, body=(*role.body, barrier)) for role in roles)


class Expander:
    """Expands a kernel to its program: `role_pipeline.Expansion` says what its fields are."""

    def __init__(
        self,
        assignment: LayoutAssignment,
        scheduled: Sequence[ScheduledLoop],
        target: Target,
        arriving: Arrivals = "warp",
    ) -> None:
        assignment = add_private_copies(assignment, [(s.loop.loop, s.loop.groups) for s in scheduled])
        self.assignment, self.kernel, self.target, self.arriving = assignment, assignment.kernel, target, arriving
        self.loops = {s.loop.loop.var: s for s in scheduled}
        self.trip_count = {
            n.var: get_static_trip_count(n) for s in scheduled for n in find_pipelined_loops(s.loop.loop.body)
        }
        self.specialised = assignment.form == "warp_specialised"
        self.maps: dict[tuple[str, tuple[int, ...], int, warp.Im2colCorners | None], warp.TensorMap] = {}
        self.scratch_tiles: dict[tuple[Span, int] | str, tile.Buffer] = {}
        self.kept_fragments: list[tuple[tile.Buffer, Fragment]] = []
        self.ring_of: dict[str, warp.Ring] = {}
        self.rings: dict[str, warp.Ring] = {}
        self.passes: dict[str, assign_roles.RingRoles] = {}
        self.renamed = 0
        self.tensor = allocate_tensor_tiles(assignment.kernel, target, dict(assignment.versions))
        self.links: dict[tile.Var, dict[str, RingLink]] = {}  # of each loop, by name
        self.changed: set[str] = set()  # the rings whose versions several roles change in turn
        for tensor_tile in self.tensor if self.specialised else ():  # else the kernel itself orders their readers
            self.add_tensor_ring(tensor_tile)
        for s in scheduled:
            self.add_rings(s)
        for tile_name, versions in count_prefetched_versions(self.kernel).items():
            size, by = self.assignment.shared[tile_name].bytes, self.arriving
            made = warp.Ring(tile_name, versions, (tile_name,), size, self.count_arrivals("consumer", by), by=by)
            self.rings[tile_name] = self.ring_of[tile_name] = made
        self.walk = dynamic_tile_scheduler.find_dynamic_loop(self.kernel)
        if self.walk is not None:
            made = dynamic_tile_scheduler.build_answer_ring(self.walk, self.kernel, self.arriving)
            self.rings[made.name] = self.ring_of[made.name] = made
        passed = [name for s in scheduled for name in dict.fromkeys(r.name for r in s.loop.problem.rings)]
        self.shared = frozenset(name for name in passed if passed.count(name) > 1)
        self.most_cursors: dict[tuple[str, str], int] = {}
        for s in scheduled if self.shared else ():
            for role in ("producer", "consumer", assign_roles.MMA_ROLE) if self.specialised else ("all",):
                for side, stages in RolePipeline(self, s, role, ()).find_cursor_stages().items():
                    self.most_cursors[side] = max(self.most_cursors.get(side, 0), len(stages))

    def add_rings(self, s: ScheduledLoop) -> None:
        """Add the rings and links of a scheduled loop, with as many versions as its schedule has, and their
        arrivals."""
        for plan, ring, depth in zip(s.loop.rings, s.loop.problem.rings, s.schedule.depth, strict=True):
            ring_roles = self.passes[ring.name] = assign_roles.find_ring_roles(plan, s.roles, s.loop.statements)
            is_loaded = ring_roles.producer_role in TMA_FILLERS
            size = sum(self.assignment.shared[b.name].bytes for b in plan.buffers) if is_loaded else 0
            shared = tuple(dict.fromkeys(a for p in plan.producers if (a := get_multicast_axes(s.loop.statements[p]))))
            blocks = len(multicast_ranks_of_any(self.kernel.cluster.extents, shared))
            by = "warp" if shared else self.arriving  # a warp has a lane for each block
            arrivals = sum(self.count_arrivals(reader, by) for reader in ring_roles.readers) * blocks
            fills = self.count_arrivals(ring_roles.producer_role, by)
            paired = any(is_paired(s.loop.statements[reader]) for reader in plan.consumers)
            size *= 2 if paired else 1
            if ring.name in self.rings:  # another loop has begun it, with at least as many versions
                depth = max(depth, self.rings[ring.name].depth)
            names = tuple(b.name for b in plan.buffers)
            made = warp.Ring(ring.name, depth, names, size, arrivals, fills, shared, by, paired)
            self.rings[ring.name] = made
            for b in plan.buffers:
                self.ring_of[b.name] = made
            for link in find_ring_links(ring.name, plan, s.roles, s.loop.statements):
                self.add_link(s.loop.loop, depth, link)

    def add_link(self, loop: tile.For, depth: int, link: RingLink) -> None:
        """Add a ring without tiles, for a signal between roles that change the versions of `link.ring` in turn."""
        name, by = f"{link.ring}.for_{link.receiver}", self.arriving
        while name in self.rings:
            name += "_again"
        arrivals, fills = self.count_arrivals(link.receiver, by), self.count_arrivals(link.sender, by)
        self.rings[name] = warp.Ring(name, depth, (), 0, arrivals, fills, by=by)
        self.links.setdefault(loop.var, {})[name] = link
        self.changed.add(link.ring)

    def add_tensor_ring(self, tensor: warp.TensorTile) -> None:
        """Add the ring of a sum in tensor memory, which the tensor cores fill and the consumers release."""
        name, by = tensor.buffer.name, self.arriving
        arrivals, fills = self.count_arrivals("consumer", by), self.count_arrivals(assign_roles.MMA_ROLE, by)
        paired = any(is_paired(s) and tensor.buffer in find_writes(s) for s in tile.walk_statements(self.kernel.body))
        arrivals *= 2 if paired else 1
        made = warp.Ring(name, tensor.depth, (name,), 0, arrivals, fills, by=by, paired=paired)
        self.ring_of[name] = self.rings[name] = made

    def count_arrivals(self, role: str, by: Arrivals) -> int:
        """Return how often a role arrives at a barrier for one signal: once, or by warps or threads of the
        consumers."""
        return (
            1
            if role in (*TMA_FILLERS, assign_roles.STORE_ROLE, assign_roles.MMA_ROLE)
            else warp.count_arrivals(self.kernel.threads // 32, by)
        )

    # ---- the program ----

    def expand_program(self) -> warp.Program:
        """Return the program: consumer, producer and other one-thread roles if specialised, else one role."""
        kernel, warps = self.kernel, self.kernel.threads // 32
        if self.specialised:
            producer_registers, consumer_registers = choose_register_split(self.assignment, self.target)
            has_ping_pong = any(s.ping_pong_runs for s in self.loops.values())
            first_barrier = warp.FIRST_PING_PONG if has_ping_pong else None
            body = self.expand_body(kernel.body, "consumer")
            consumer = warp.Role("consumer", 0, warps, body, consumer_registers, ping_pong_barrier=first_barrier)
            loads = _drain_rings(self.expand_body(kernel.body, "producer"), self.rings)
            producer = warp.Role("producer", warps, WARPGROUP_WARPS, loads, producer_registers, True)
            # Other roles of one thread get a warp of the producer's warpgroup each.
            names = [assign_roles.MMA_ROLE] if self.tensor else []
            names += (
                [assign_roles.STORE_ROLE]
                if any(assign_roles.STORE_ROLE in s.roles for s in self.loops.values())
                else []
            )
            single_roles = [producer]
            for name in names:
                single_roles[-1] = replace(single_roles[-1], warps=1)
                warps_left = WARPGROUP_WARPS - len(single_roles)
                work = _drain_rings(self.expand_body(kernel.body, name), self.rings)
                single_roles.append(
                    warp.Role(name, warps + len(single_roles), warps_left, work, producer_registers, True)
                )
            roles: tuple[warp.Role, ...] = (consumer, *single_roles)
        else:
            roles = (warp.Role("all", 0, warps, self.expand_body(kernel.body, "all")),)
        return self.build_program(roles)

    def build_program(self, roles: tuple[warp.Role, ...]) -> warp.Program:
        """Return the program of these roles, with the kernel's tiles, tensor maps, fragments and rings."""
        kernel = self.kernel
        grid = (*kernel.grid, 1, 1)[:3]
        return warp.Program(
            kernel.name,
            (*kernel.params, *kernel.workspaces),
            tuple(self.maps.values()),
            (grid[0], grid[1], grid[2]),
            kernel.block_vars,
            roles,
            tuple(self.list_shared_tiles()),
            (*((b, self.assignment.fragments[b.name]) for b in kernel.buffers if b.in_registers), *self.kept_fragments),
            tuple(
                dynamic_tile_scheduler.set_ring_arrivals(ring, roles) if ring.heard_by else ring
                for ring in self.rings.values()
            ),
            span=kernel.span,
            cluster=kernel.cluster.extents,
            tensor=self.tensor,
        )

    def share_state(self, other: Expander) -> None:
        """Use another expander's tensor maps, tiles and rings as this one's own, for roles of one program."""
        self.maps, self.scratch_tiles = other.maps, other.scratch_tiles
        self.kept_fragments = other.kept_fragments
        self.ring_of, self.rings = other.ring_of, other.rings

    def list_shared_tiles(self) -> Iterator[warp.SharedTile]:
        """Yield the program's shared tiles with layouts and versions: the kernel's, scratch, and scheduler answers."""
        reused = plan_reuse(self.assignment, self.target)
        if self.assignment.roles:
            from tilec.passes.explicit_roles.share_section_tiles import plan_section_reuse

            reused = plan_section_reuse(self.assignment, self.target)
        late = frozenset() if self.assignment.roles or reused else find_tiles_over_rings(self.kernel)
        is_planned = reused and not self.assignment.roles
        never = self.ring_of.keys() - find_ring_tiles(self.kernel) if is_planned else frozenset()  # rings nobody saw
        for buffer in self.kernel.buffers:
            if buffer.scope == "shared":
                ring, layout = self.ring_of.get(buffer.name), self.assignment.shared[buffer.name]
                others = () if ring else tuple(sorted(reused.get(buffer.name, frozenset()) - never))
                depth, is_late = ring.depth if ring else 1, buffer.name in late
                yield warp.SharedTile(buffer, layout, depth, over_rings=is_late, reuses=others)
        for buffer in self.scratch_tiles.values():
            yield warp.SharedTile(buffer, unswizzled_layout(buffer.shape, buffer.dtype.bytes))
        if self.walk is not None:
            yield dynamic_tile_scheduler.build_answer_tile(self.walk)

    def get_tensor_map(
        self, tensor: tile.Buffer, box: tuple[int, ...], swizzle: int, corners: warp.Im2colCorners | None
    ) -> warp.TensorMap:
        """Return the program's tensor map for a tensor, box and swizzle, added under a new name at its first use."""
        key = (tensor.name, box, swizzle, corners)
        if key not in self.maps:
            taken = sum(k[0] == tensor.name for k in self.maps)
            others = {p.name for p in self.kernel.params} | {made.name for made in self.maps.values()}
            while (name := f"{tensor.name}_map{taken or ''}") in others:
                taken += 1
            self.maps[key] = warp.TensorMap(name, tensor, box, swizzle, corners)
        return self.maps[key]

    def get_scratch_tile(self, size: int, span: Span) -> tile.Buffer:
        """Return the scratch tile for a statement's span and size, made at first use and shared by its copies."""
        made = tile.Buffer(f"scratch.{len(self.scratch_tiles)}", (size,), INT8, "shared", span)
        return self.scratch_tiles.setdefault((span, size), made)

    def add_kept_tile(
        self, nest: tile.Parallel, layout: Fragment, name: str, dtype: DType, scope: Literal["fragment", "shared"]
    ) -> tile.Buffer:
        """Return a new fragment or shared tile with an element for each iteration of a nest, added to the program."""
        number = len(self.kept_fragments) + len(self.scratch_tiles)
        made = tile.Buffer(f"kept.{name}.{number}", nest.extents, dtype, scope, nest.span)
        if scope == "shared":
            self.scratch_tiles[made.name] = made
        else:
            self.kept_fragments.append((made, layout))
        return made

    def copy_variable(self, var: tile.Var) -> tile.Var:
        """Return a new variable named after this one, with a number."""
        self.renamed += 1
        return tile.Var(f"{var.name}.{self.renamed}", var.dtype)

    # ---- statements ----

    def expand_body(self, stmts: Sequence[tile.Stmt], role: str, cursors: Cursors = ()) -> tuple[warp.Operation, ...]:
        """Return the role's operations for a list of statements, with waits for the tiles that are prefetched."""
        prefetched = [fetch for fetch in find_tile_loads(tuple(stmts)) if is_prefetched(stmts[fetch.copy])]
        return tuple(op for at in range(len(stmts)) for op in self.expand_in_list(stmts, at, role, cursors, prefetched))

    def expand_in_list(
        self, stmts: Sequence[tile.Stmt], at: int, role: str, cursors: Cursors, prefetched: Sequence[TileLoad]
    ) -> Iterator[warp.Operation]:
        """Yield a role's operations for statement `at`, within ring waits and releases for tiles prefetched for it."""
        stmt = stmts[at]
        filled = [fetch for fetch in prefetched if role in ("producer", "all") and fetch.copy == at]
        read = [fetch for fetch in prefetched if role in ("consumer", "all") and fetch.buffer in find_reads(stmt)]
        side = assign_roles.LOADING_THREAD if role == "all" and filled else role
        own = {fetch: warp.Cursor(f"{fetch.buffer.name}.{side}", fetch.buffer.name) for fetch in (*filled, *read)}
        done = [fetch for fetch in read if fetch.last == at]
        for fetch in filled:
            yield warp.RingAcquire(own[fetch], span=stmt.span)
        for fetch in read:
            if fetch.first == at:
                yield warp.RingWait(own[fetch], span=stmt.span)
        yield from self.expand_statement(stmt, role, (*cursors, *own.values()))
        for fetch in done:
            yield warp.RingRelease(own[fetch], span=stmt.span)
        for fetch in (*filled, *done):
            yield warp.Advance(own[fetch], span=stmt.span)

    def expand_statement(self, stmt: tile.Stmt, role: str, cursors: Cursors = ()) -> tuple[warp.Operation, ...]:
        """Return the role's operations for a statement, on the versions that `cursors` point at; () if it has none."""
        match stmt:
            case tile.For() if stmt.var in self.loops:
                found = find_loop_sums(stmt) if role == assign_roles.MMA_ROLE else ()
                sums = tuple(self.build_sum_cursor(tensor.name, role) for tensor in found)
                acquired = tuple(warp.RingAcquire(c, span=stmt.span) for c in sums)
                done = tuple(op for c in sums for op in self.pass_version(warp.RingFill(c, True, span=stmt.span)))
                pipeline = RolePipeline(self, self.find_schedule(stmt), role, (*cursors, *sums))
                return *acquired, *pipeline.expand_operations(), *done
            case tile.For(kind="unroll"):
                return tuple(self.unroll_loop(stmt, role, cursors))
            case tile.For():
                body = self.expand_body(stmt.body, role, cursors)
                if stmt.dynamically_scheduled:
                    made = dynamic_tile_scheduler.build_scheduler_loop(stmt, body, role, self.kernel.cluster.extents)
                else:
                    made = warp.Loop(stmt.var, stmt.start, stmt.stop, stmt.step, body, cursors=cursors, span=stmt.span)
                return (made,) if body else ()
            case tile.If():
                then, orelse = self.expand_body(stmt.then, role, cursors), self.expand_body(stmt.orelse, role, cursors)
                branch = warp.Branch(stmt.condition, then, orelse, cursors=cursors, span=stmt.span)
                return (branch,) if then or orelse else ()
            case tile.While():
                inner = self.expand_body(stmt.body, role, cursors)
                return (self.build_endless_loop(stmt, inner, cursors),) if inner else ()
            case tile.Break():
                return (warp.Break(span=stmt.span),)
            case tile.Bind():
                return (warp.Let(stmt.var, stmt.value, cursors=cursors, span=stmt.span),)
            case Copy(regions=(source, _)) if self.is_handed_sum(source.buffer):
                if assign_roles.assign_role(stmt, self.assignment) != role:
                    return ()
                cursor = self.build_sum_cursor(source.buffer.name, role)
                load = self.lower_statement(stmt, (*cursors, cursor))
                read = self.pass_version(warp.RingRelease(cursor, span=stmt.span))
                return warp.RingWait(cursor, span=stmt.span), *load, *read
            case _:
                is_own = assign_roles.assign_role(stmt, self.assignment) in (role, assign_roles.EVERY_ROLE)
                return self.lower_statement(stmt, cursors) if is_own else ()

    def is_handed_sum(self, tensor: tile.Buffer) -> bool:
        """Return True if the tile is a tensor-memory sum that a ring with barriers passes between roles."""
        return tensor.scope == "tmem" and tensor.name in self.ring_of and self.ring_of[tensor.name].has_barriers

    def build_sum_cursor(self, tile_name: str, role: str) -> warp.Cursor:
        return warp.Cursor(f"{tile_name}.{role}", tile_name)

    def pass_version(self, op: warp.RingFill | warp.RingRelease) -> tuple[warp.Operation, ...]:
        """Return the fill or release of a ring's version, and the advance of its cursor."""
        return op, warp.Advance(op.cursor, span=op.span)

    def unroll_loop(self, loop: tile.For, role: str, cursors: Cursors) -> Iterator[warp.Operation]:
        """Yield a loop's operations unrolled by its factor, and a loop of the remaining iterations. Without a factor,
        up to 64 iterations are unrolled in full, and a longer loop not at all."""
        iterations = get_static_trip_count(loop)
        factor = loop.factor
        if factor is None:
            factor = iterations if iterations is not None and iterations <= MAX_UNROLL else 1
        if iterations is not None and iterations <= factor:
            for i in range(iterations):
                value = add_exprs(loop.start, tile.int32_const(i * loop.step))
                yield from self.expand_body(self.instantiate_body(loop, value), role, cursors)
            return
        if iterations is not None:
            whole: tile.Expr = tile.int32_const(iterations // factor * factor * loop.step)
        else:
            count = tile.Binary("floordiv", build_trip_count(loop), tile.int32_const(factor), INT32)
            whole = scale_expr(count, factor * loop.step)
        middle, span = add_exprs(loop.start, whole), loop.span
        copies = (
            self.instantiate_body(loop, add_exprs(loop.var, tile.int32_const(i * loop.step))) for i in range(factor)
        )
        body = tuple(op for copy in copies for op in self.expand_body(copy, role, cursors))
        if not body:
            return
        yield warp.Loop(loop.var, loop.start, middle, loop.step * factor, body, cursors=cursors, span=span)
        if factor > 1 and (iterations is None or iterations % factor):
            rest = self.expand_body(self.instantiate_body(loop, loop.var), role, cursors)
            yield warp.Loop(loop.var, middle, loop.stop, loop.step, rest, cursors=cursors, span=span)

    def build_endless_loop(self, loop: tile.While, body: tuple[warp.Operation, ...], cursors: Cursors) -> warp.Forever:
        """Return a `while` as an endless loop of one branch: its body where the condition holds, else a break. Its
        condition is a branch in each iteration: its reads are waited for there."""
        leave = (warp.Break(span=loop.span),)
        branch = warp.Branch(loop.condition, body, leave, cursors=cursors, span=loop.span)
        return warp.Forever((branch,), span=loop.span)

    def instantiate_body(self, loop: tile.For, value: tile.Expr) -> tuple[tile.Stmt, ...]:
        """Return the loop's body for this value of its variable, folded, with new variables for its binds.

        A bind that is constant in this copy is dropped, and its value stands where its variable stood: so it may say
        which register of a local array is meant.
        """
        values: dict[tile.Var, tile.Expr] = {loop.var: value}
        for stmt in tile.walk_statements(loop.body):
            if isinstance(stmt, tile.Bind):  # each copy has its own
                values[stmt.var] = self.copy_variable(stmt.var)
        made: list[tile.Stmt] = []
        for stmt in loop.body:
            copy = fold_statement(substitute_stmt(stmt, values))
            if isinstance(stmt, tile.Bind) and isinstance(copy, tile.Bind) and isinstance(copy.value, tile.Const):
                values[stmt.var] = copy.value
            else:
                made.append(copy)
        return tuple(made)

    def find_schedule(self, loop: tile.For) -> ScheduledLoop:
        """Return a pipelined loop with its schedule; an unrolled copy gets the schedule of the loop as written.
        Unrolled outer loops have several copies of it, with the same variable: they share one schedule, and one answer
        whether the trip count is known."""
        known = self.loops[loop.var]
        if known.loop.loop is loop:
            return known
        return replace(known, loop=replace(known.loop, loop=loop, statements=find_scheduled_statements(loop)))

    def lower_statement(self, stmt: tile.Stmt, cursors: Cursors) -> tuple[warp.Operation, ...]:
        """Return the warp operations of an operation or nest, on the versions that it names and `cursors` point at."""
        named = get_named_versions(stmt).items()
        own = (warp.Cursor(f"{name}[{show_expr(index)}]", name, index) for name, index in named)
        cursors = (*cursors, *own)
        match stmt:
            case tile.TileOp():
                context = LoweringContext(
                    self.kernel.threads,
                    self.assignment.fragments,
                    self.assignment.shared,
                    cursors,
                    self.get_tensor_map,
                    self.get_scratch_tile,
                    self.kernel.cluster.extents,
                )
                operations: tuple[warp.Operation, ...] = registry.get_operation(stmt.name).lower(stmt, context)
                return operations
            case tile.Parallel(asynchronous=True) if (
                stmt.is_per_thread and (by_threads := build_thread_copy(stmt, self.assignment, cursors)) is not None
            ):
                return by_threads, warp.CpAsyncCommit(span=stmt.span)
            case tile.Parallel(asynchronous=True) if (
                not stmt.is_per_thread and (copied := build_gathered_copy(stmt, self.assignment, cursors)) is not None
            ):
                return copied, warp.CpAsyncCommit(span=stmt.span)
            case tile.Parallel():
                layout = self.assignment.nest_layout(stmt)
                nests = split_replicated_nest(stmt, layout, partial(self.add_kept_tile, stmt, layout))
                return tuple(warp.Elementwise(nest, layout, cursors=cursors, span=stmt.span) for nest in nests)
            case _:
                raise InternalError("a store outside T.Parallel")


def _drain_rings(body: tuple[warp.Operation, ...], rings: Mapping[str, warp.Ring]) -> tuple[warp.Operation, ...]:
    """Return the operations, followed by waits for other blocks that still signal barriers of rings acquired here."""
    acquired = {op.cursor.ring: op for op in warp.walk_operations(body) if isinstance(op, warp.RingAcquire)}
    return *body, *(warp.RingDrain(op.cursor, span=op.span) for n, op in acquired.items() if rings[n].crosses_blocks)
