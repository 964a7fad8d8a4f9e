"""The work of a kernel's blocks, read from its tile IR in the terms of the model: iterations of pipelined loops, cycles
around them, bytes loaded, memory levels at which a loop loads and uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from tilec.analysis.fragment_prefetch import is_fragment_prefetch, is_interleaved_load
from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.thresholds import select_likely_branch
from tilec.analysis.trip_count import estimate_trip_count
from tilec.analysis.usage import find_tensor_directions
from tilec.ir import tile
from tilec.ir.expr import extent_to_size
from tilec.ir.multicast import count_multicast_blocks
from tilec.ops.copies.copy import Copy
from tilec.passes.cost.known_values import (
    Contents,
    KnownValues,
    assigns_scalars,
    assume_contents,
    find_scalar_store,
)
from tilec.passes.cost.model import Clock, Level, LoopCost, Machine, OccupancyLimits, predict_level_times
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop, loops_to_schedule
from tilec.passes.loop.price.product_steps import price_product_steps
from tilec.passes.loop.price.statement_price import count_demands, is_asynchronous
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.sizes import evaluate_size
from tilec.target.table import Target

MAX_SAMPLED_BLOCKS = 4096
"""The most blocks of a grid that are walked: enough that the short and the long ones of a causal kernel count alike,
and that most grids of unlike blocks are walked whole, in order."""
UNLIMITED = 1 << 30
MAX_WALKED_ITERATIONS = 1 << 12
"""The most iterations of a loop that are looked at, spread over all."""
MAX_STEPS = 1 << 17
"""The most iterations that are walked one by one, of loops that assign scalars, in all blocks: some seconds."""
GOLDEN_RATIO = (5**0.5 - 1) / 2
TENSOR_SLOT = "tc_and_mma"
SMEM_PORT = "shared memory port"
"""What all accesses to shared memory hold together: 128 bytes a cycle that are read, or 256 that are written. On an
H200 a SwiGLU product by tiles of 64 columns, whose operands take all 128, has an iteration in 646 cycles, where reads
alone take 512 and writes at the same rate would make it 768 (benchmarks/results/h200-2026-11-27, with five
stages); products of 64 columns beside copies that were waited for moved 147 bytes a cycle (port.json there)."""
SMEM_READS, SMEM_WRITES = "tp_smem_rd", "tp_smem_wr"
COMPUTE_SLOTS = (TENSOR_SLOT, "alu_or_fmaheavy", "dual_alu", "xu")
"""The slots that compute; all others bring operands."""
PIPES = "pipes of the schedulers"
"""What the instructions of machine code hold of each scheduler's busiest pipe; nothing before a kernel is assembled."""
SHARED_SLOTS = (*COMPUTE_SLOTS, SMEM_PORT, PIPES)
"""The slots that the blocks of a multiprocessor share, and that no wait of one leaves to the others."""
_LOAD_KINDS = ("tma.load", "cp.async", "ld.global")
_TRANSFER_SLOTS = ("tp_gnic_rd",)


@dataclass(slots=True)
class BlockCost:
    """The work of one block, or of a loop in it: its pipelined loops with their iterations, and how often each runs;
    the cycles of all else; the bytes that it reads from L2; the cycles for which it holds each slot, divided by the
    slot's width; and the iterations of its other loops, all runs of one together."""

    visits: dict[tuple[IdentityKey[tile.For], int], tuple[tile.For, int, int]] = field(default_factory=dict)
    around: int = 0
    loaded: int = 0
    held: dict[str, int] = field(default_factory=dict)
    iterations: dict[IdentityKey[tile.For], int] = field(default_factory=dict)

    @property
    def loops(self) -> list[tuple[tile.For, int, int]]:
        """The pipelined loops, their iterations, and how often each runs with that many."""
        return list(self.visits.values())

    def visit(self, loop: tile.For, trip_count: int, times: int = 1) -> None:
        _, _, before = self.visits.get((IdentityKey(loop), trip_count), (loop, trip_count, 0))
        self.visits[IdentityKey(loop), trip_count] = loop, trip_count, before + times

    def add(self, other: BlockCost, times: int) -> None:
        """Add the work of the other block, `times` over."""
        for loop, trip_count, each in other.visits.values():
            self.visit(loop, trip_count, each * times)
        self.around += other.around * times
        self.loaded += other.loaded * times
        for slot, cycles in other.held.items():
            self.held[slot] = self.held.get(slot, 0) + cycles * times
        for key, iterations in other.iterations.items():
            self.iterations[key] = self.iterations.get(key, 0) + iterations * times


@dataclass(frozen=True, slots=True)
class StatementPrice:
    """The price of a statement: cycles until its result is there, cycles until its warps go on, bytes that it loads,
    and cycles of each slot."""

    cycles: int
    issue: int
    loaded: int
    held: Mapping[str, int]

    @property
    def busy(self) -> int:
        """The cycles from one such statement to the next if others hide its latency."""
        return max(self.issue, *self.held.values(), 0)


class BlockWalk:
    """A walk of a block through a kernel. Of the loops in `whole` it counts the iterations, and walks one. Any other
    loop is walked once for each set of values that decides its control flow, so that nested loops do not multiply the
    time."""

    def __init__(
        self,
        assignment: LayoutAssignment,
        target: Target,
        whole: Iterable[tile.For],
        sizes: Mapping[str, int] | None = None,
        contents: Contents | None = None,
    ) -> None:
        """`sizes` are those that the kernel learns at launch, and `contents` those of tensors that decide how often
        loops run, where they are known: others are assumed."""
        self.assignment, self.target = assignment, target
        params = (p for p in assignment.kernel.params if isinstance(p, tile.Var))
        self.sizes = {p: sizes[p.name] for p in params if p.name in sizes} if sizes else {}
        self.given = contents or {}
        self.assumed = assume_contents(assignment.kernel, self.sizes, self.given)
        self.steps_left = MAX_STEPS
        # A statement that waits for what it loads itself meets a path that is not full.
        self.load_wait = target.find_limit("tma_latency_cycles") or UNLIMITED
        self.whole = {IdentityKey(loop) for loop in whole}
        self.prices: dict[IdentityKey[tile.Stmt], StatementPrice] = {}
        self.iteration_costs: dict[IdentityKey[tile.For], BlockCost] = {}
        self.deciding: dict[IdentityKey[tile.For], tuple[frozenset[tile.Var], frozenset[tile.Var]]] = {}
        self.outcomes: dict[object, BlockCost] = {}
        self.blocks: dict[object, BlockCost] = {}
        self.mentioned: dict[IdentityKey[tile.For], frozenset[tile.Var]] = {}
        self.walked: dict[object, tuple[BlockCost, dict[str, int]]] = {}

    def walk_block(self, place: Sequence[int]) -> BlockCost:
        """Return the work of a block. Explicit roles run side by side: the block takes as long as the longest."""
        if self.assignment.roles:
            roles = [walk.walk_block(place) for walk in self.role_walks]
            path: object = tuple(map(IdentityKey, roles))
            if path not in self.blocks:
                self.blocks[path] = _join_roles(roles)
            return self.blocks[path]
        kernel = self.assignment.kernel
        at_block = {**self.sizes, **dict(zip(kernel.block_vars, place, strict=False))}
        known = KnownValues({**self.assumed, **self.given}, at_block)
        for bind in self.leading_binds:
            known.bind(bind)
        path = frozenset((var, at) for var, at in known.variables.items() if var in self.deciding_variables)
        if path not in self.blocks:
            self.blocks[path] = BlockCost()
            self.walk_body(kernel.body[len(_list_leading_binds(kernel.body)) :], known, self.blocks[path])
        return self.blocks[path]

    @cached_property
    def loads_together(self) -> bool:
        """Return whether the blocks of a cluster load tiles together."""
        cluster = self.assignment.kernel.cluster
        statements = tile.walk_statements(self.assignment.kernel.body) if cluster.blocks > 1 else ()
        return any(self.count_loading_blocks(stmt) > 1 for stmt in statements)

    @cached_property
    def role_walks(self) -> list[BlockWalk]:
        """The walks through the roles of the kernel's author."""
        sizes = {var.name: size for var, size in self.sizes.items()}
        return [RoleWalk(part.assignment, self.target, (), sizes, self.given) for part in self.assignment.roles]

    @cached_property
    def deciding_variables(self) -> frozenset[tile.Var]:
        """The variables on which the control flow of a block depends behind the definitions that it begins with; also
        through scalars, which are followed where contents are given."""
        body = self.assignment.kernel.body
        behind = body[len(_list_leading_binds(body)) :]
        stores = map(find_scalar_store, tile.walk_statements(behind) if self.given else ())
        by_scalars = [tile.find_variables(store.value) for store in stores if store is not None]
        return _find_deciding_variables(behind).union(*by_scalars)

    @cached_property
    def leading_binds(self) -> list[tile.Bind]:
        """The definitions that a block begins with and on which its control flow depends."""
        needed = set(self.deciding_variables)
        found = []
        for bind in reversed(_list_leading_binds(self.assignment.kernel.body)):
            if bind.var in needed:
                needed |= tile.find_variables(bind.value)
                found.append(bind)
        return found[::-1]

    def walk_body(self, body: tuple[tile.Stmt, ...], known: KnownValues, found: BlockCost) -> None:
        """Add the work of the statements of a body to what was `found`, and update what is `known` behind them. Loads
        that follow each other are in flight together."""
        waiting = 0
        for stmt in body:
            is_begun = is_asynchronous(stmt) and isinstance(stmt, tile.TileOp) and is_load(stmt)
            if not is_begun:
                found.around += waiting
                waiting = 0
            store = find_scalar_store(stmt) if self.given else None
            if store is not None:
                known.assign(store)
            elif isinstance(stmt, tile.Parallel | tile.TileOp | tile.Store):
                known.forget((stmt,))
            match stmt:
                case tile.Bind():
                    known.bind(stmt)
                case tile.For() if IdentityKey(stmt) in self.whole:
                    trip_count = len(_find_iterations(stmt, known))
                    found.visit(stmt, trip_count)
                    found.add(self.price_iteration(stmt), trip_count)
                    known.forget(stmt.body)
                case tile.For() if self.given and self.steps_left > 0 and assigns_scalars(stmt):
                    self.walk_iterations(stmt, known, found)
                case tile.For():
                    known.forget(stmt.body)
                    found.add(self.walk_loop(stmt, known), 1)
                case tile.If(condition=condition, then=then, orelse=orelse):
                    is_true = known.evaluate(condition)
                    if is_true is not None:
                        self.walk_body(then if is_true else orelse, known, found)
                    else:
                        self.walk_body(then, known.copy(), found)
                        known.forget((stmt,))
                case tile.While(body=inside):
                    known.forget((stmt,))
                    self.walk_body(inside, known.copy(), found)
                case _:
                    price = self.price_statement(stmt)
                    cycles = self.count_cycles(stmt, price)
                    begun = min(price.busy, cycles) if is_begun else cycles
                    waiting = max(waiting - begun, cycles - begun)
                    found.around += begun
                    self.add_price(price, 1, found)
        found.around += waiting

    def walk_iterations(self, loop: tile.For, known: KnownValues, found: BlockCost) -> None:
        """Add the work of a loop that assigns scalars to what was `found`, and update what is `known` of these.

        Its iterations are walked one by one, once for each set of values that it mentions; once too many have been
        walked, the rest count as the last one.
        """
        if IdentityKey(loop) not in self.mentioned:
            expressions = (expr for stmt in tile.walk_statements((loop,)) for expr in tile.list_expressions(stmt))
            self.mentioned[IdentityKey(loop)] = frozenset().union(*map(tile.find_variables, expressions))
        mentioned = {var: at for var, at in known.variables.items() if var in self.mentioned[IdentityKey(loop)]}
        before = IdentityKey(loop), frozenset(mentioned.items()), frozenset(known.scalars.items())
        if before not in self.walked:
            self.walked[before] = self._walk_iterations(loop, known.copy())
        work, scalars = self.walked[before]
        found.add(work, 1)
        known.scalars.clear()
        known.scalars.update(scalars)

    def _walk_iterations(self, loop: tile.For, known: KnownValues) -> tuple[BlockCost, dict[str, int]]:
        """Return the work of a loop and the scalars behind it, walked anew; `known` changes."""
        found, iterations = BlockCost(), _find_iterations(loop, known)
        found.iterations[IdentityKey(loop)] = len(iterations)
        for at in iterations:
            known.variables[loop.var] = at
            self.steps_left -= 1
            if self.steps_left > 0:
                self.walk_body(loop.body, known, found)
                continue
            last = BlockCost()
            self.walk_body(loop.body, known, last)
            found.add(last, len(range(at, iterations.stop, iterations.step)))
            known.forget(loop.body)
            break
        return found, known.scalars

    def walk_loop(self, loop: tile.For, known: KnownValues) -> BlockCost:
        """Return the work of a loop that is not in `whole`."""
        deciding, of_paths = self.find_deciding_variables(loop)
        scalars = frozenset(known.scalars.items())
        before = IdentityKey(loop), frozenset((v, at) for v, at in known.variables.items() if v in deciding), scalars
        if before in self.outcomes:
            return self.outcomes[before]
        found = self.outcomes[before] = BlockCost()
        iterations = _find_iterations(loop, known)
        found.iterations[IdentityKey(loop)] = len(iterations)
        # By the values that decide a path: those of one of its iterations, and how many take it. A persistent block
        # runs many tiles, whose loops have few lengths.
        paths: dict[frozenset[tuple[tile.Var, int]], tuple[KnownValues, int]] = {}
        step = max(len(iterations) // MAX_WALKED_ITERATIONS, 1)
        walked = iterations[::step] if loop.var in deciding else iterations[:1]
        for at in walked:
            inside = known.copy()
            inside.variables[loop.var] = at
            for bind in _list_leading_binds(loop.body):
                inside.bind(bind)
            path = frozenset((var, inside.variables[var]) for var in of_paths if var in inside.variables)
            first, count = paths.get(path, (inside, 0))
            paths[path] = first, count + 1
        for path, (inside, count) in paths.items():
            if (IdentityKey(loop.body), path, scalars) not in self.outcomes:
                work = self.outcomes[IdentityKey(loop.body), path, scalars] = BlockCost()
                self.walk_body(loop.body, inside, work)
            times = count * len(iterations) // len(walked)
            found.add(self.outcomes[IdentityKey(loop.body), path, scalars], times)
        return found

    def find_deciding_variables(self, loop: tile.For) -> tuple[frozenset[tile.Var], frozenset[tile.Var]]:
        """Return the variables on which the control flow of a loop depends, and those on which the path of an iteration
        depends behind the definitions that it begins with."""
        if IdentityKey(loop) not in self.deciding:
            behind = loop.body[len(_list_leading_binds(loop.body)) :]
            self.deciding[IdentityKey(loop)] = _find_deciding_variables((loop,)), _find_deciding_variables(behind)
        return self.deciding[IdentityKey(loop)]

    def add_price(self, price: StatementPrice, times: int, found: BlockCost) -> None:
        """Add the loaded bytes and held slots of a statement that runs so many times to what was `found`; no cycles."""
        found.loaded += times * price.loaded
        for slot, cycles in price.held.items():
            found.held[slot] = found.held.get(slot, 0) + times * cycles

    def price_iteration(self, loop: tile.For) -> BlockCost:
        """Return the loaded bytes and held slots of an iteration of a pipelined loop; no cycles."""
        if IdentityKey(loop) not in self.iteration_costs:
            found = self.iteration_costs[IdentityKey(loop)] = BlockCost()
            for inner in loop.body:
                self.add_price(self.price_statement(inner, loop), 1, found)
        return self.iteration_costs[IdentityKey(loop)]

    def price_statement(self, stmt: tile.Stmt, loop: tile.For | None = None) -> StatementPrice:
        """Return the price of a statement, in a pipelined loop of the form that it has in most iterations."""
        if IdentityKey(stmt) not in self.prices:
            likely = stmt if loop is None else select_likely_branch(stmt, loop, self.assignment.kernel)
            self.prices[IdentityKey(stmt)] = self._price_statement(likely)
        return self.prices[IdentityKey(stmt)]

    def _price_statement(self, stmt: tile.Stmt) -> StatementPrice:
        """Return the price of a statement, computed anew."""
        cycles = issue = loaded = after = 0
        begun = is_asynchronous(stmt)
        total: dict[str, int] = {}
        for demand in count_demands(stmt, self.assignment):
            parameters = dict(demand.parameters)
            timing = self.target.price(demand.kind, **parameters)
            held = max((cycles for _, cycles, _ in timing.uses), default=0)
            cycles += max(held, timing.issue) * demand.times
            issue += timing.issue * demand.times
            wait = timing.latency - held
            after = max(after, min(wait, self.load_wait) if demand.kind == "tma.load" else wait)
            loaded += parameters.get("bytes", 0) * demand.times if demand.kind in _LOAD_KINDS else 0
            for slot, busy, _ in timing.uses:
                total[slot] = total.get(slot, 0) + -(-busy // self.target.slot(slot).width) * demand.times
        if port := total.get(SMEM_READS, 0) + total.get(SMEM_WRITES, 0) // 2:
            total[SMEM_PORT] = port
        # Warps go on after issuing an asynchronous statement; otherwise when the slowest unit is done.
        issue = issue if begun or not total else max(total.values())
        together = self.count_loading_blocks(stmt)
        return StatementPrice(cycles + after, issue, loaded * (3 * together + 1) // (4 * together), total)

    def count_cycles(self, stmt: tile.Stmt, price: StatementPrice) -> int:
        """Return the cycles from the beginning of a statement to that of the next one: until its result is there."""
        return price.cycles

    def count_loading_blocks(self, stmt: tile.Stmt) -> int:
        """Return how many blocks load the tile together. Each reads its share, but every byte still goes to each of
        them: on an H200 pairs are worth about a quarter of the reads that they save."""
        axes = stmt.multicast if isinstance(stmt, Copy) else ""
        return count_multicast_blocks(self.assignment.kernel.cluster.extents, axes)


class RoleWalk(BlockWalk):
    """A walk through one of the roles of a kernel's author: it runs beside others, and waits for them by barriers, not
    for the results of what it starts."""

    def count_cycles(self, stmt: tile.Stmt, price: StatementPrice) -> int:
        """Return the cycles from the beginning of a statement to that of the next one."""
        return price.busy if is_asynchronous(stmt) else price.cycles


def _join_roles(roles: Sequence[BlockCost]) -> BlockCost:
    """Return the work of a block whose roles run side by side."""
    slots = dict.fromkeys(slot for role in roles for slot in role.held)
    held = {slot: sum(role.held.get(slot, 0) for role in roles) for slot in slots}
    return BlockCost({}, max(role.around for role in roles), sum(role.loaded for role in roles), held)


def _list_leading_binds(body: tuple[tile.Stmt, ...]) -> list[tile.Bind]:
    """List the definitions that a body begins with."""
    binds: list[tile.Bind] = []
    for stmt in body:
        if not isinstance(stmt, tile.Bind):
            break
        binds.append(stmt)
    return binds


def _find_deciding_variables(statements: tuple[tile.Stmt, ...]) -> frozenset[tile.Var]:
    """Return the variables on which the bounds and conditions in these statements depend, also through definitions."""
    deciding: set[tile.Var] = set()
    binds: list[tile.Bind] = []
    for stmt in tile.walk_control_flow(statements):
        match stmt:
            case tile.For(start=start, stop=stop):
                deciding |= tile.find_variables(start) | tile.find_variables(stop)
            case tile.If(condition=condition):
                deciding |= tile.find_variables(condition)
            case tile.Bind():
                binds.append(stmt)
            case _:
                pass
    for bind in reversed(binds):
        if bind.var in deciding:
            deciding |= tile.find_variables(bind.value)
    return frozenset(deciding)


def _find_iterations(loop: tile.For, known: KnownValues) -> range:
    """Return the iterations of a loop; a likely number where only data say it."""
    start, stop = known.evaluate(loop.start), known.evaluate(loop.stop)
    if start is None or stop is None:
        return range(0, estimate_trip_count(loop) * loop.step, loop.step)
    return range(start, stop, loop.step)


def sample_blocks(grid: tuple[int, int, int], most: int = MAX_SAMPLED_BLOCKS) -> Iterator[tuple[int, int, int]]:
    """Yield the indices of all blocks, x fastest, or of `most` that are spread over the grid."""
    count = math.prod(grid)
    for index in range(min(count, most)):
        # Multiples of the golden ratio are spread evenly; equal distances would be the same few indices of an axis.
        at = index if count <= most else math.floor(index * GOLDEN_RATIO % 1 * count)
        yield at % grid[0], at // grid[0] % grid[1], at // grid[0] // grid[1]


# ---- loops -----------------------------------------------------------------------------------------------------------


def build_loop_cost(scheduled_loop: ScheduledLoop, trip_count: int, target: Target) -> LoopCost:
    """Return a loop's interval, the length of an iteration and the trip count by its schedule, and the cycles for which
    an iteration holds the busiest slot that the blocks of a multiprocessor share. Each block has its own warps, whose
    slots come behind these."""
    problem, schedule = scheduled_loop.loop.problem, scheduled_loop.schedule
    length = max((s + op.latency for op, s in zip(problem.ops, schedule.start, strict=True)), default=0)
    held = count_held_by_slot(scheduled_loop)
    port = held.get(SMEM_READS, 0) + held.get(SMEM_WRITES, 0) // 2
    shared = problem.slots[: len(target.slots)]
    busy = max((-(-held.get(slot.name, 0) // slot.width) for slot in shared), default=0)
    return LoopCost(schedule.ii, length, trip_count, max(busy, port))


def count_held_by_slot(scheduled_loop: ScheduledLoop) -> dict[str, int]:
    """Return the cycles for which an iteration of a loop holds each slot, by the slots' names."""
    problem = scheduled_loop.loop.problem
    held: dict[str, int] = {}
    for use in (use for op in problem.ops for use in op.uses):
        name = problem.slots[use.slot].name
        held[name] = held.get(name, 0) + use.cycles
    return held


@dataclass(frozen=True, slots=True)
class LoopNest:
    """The memory levels at which a pipelined loop loads and uses, the outermost first. An iteration of the innermost
    level holds the busiest slot for `use` cycles, and takes a block `own` cycles: as long as its warps are busy, if
    later iterations hide their waits."""

    levels: tuple[Level, ...]
    use: int
    own: int

    def of(self, trip_count: int) -> LoopNest:
        """Return the same loop with this many iterations."""
        outer, *inner = self.levels
        return replace(self, levels=(replace(outer, trip_count=trip_count), *inner))

    def count_busy_cycles(self) -> int:
        """Return the cycles for which all iterations hold the busiest slot, or the path of their loads."""
        outer, *inner = self.levels
        use = self.use * math.prod(level.trip_count for level in inner)
        return outer.trip_count * max(use, outer.transfer)

    def count_waiting_cycles(self, neighbours: int) -> int:
        """Return the cycles of all iterations if each round of the ring waits for loads that `neighbours` blocks share
        the path of."""
        outer, *inner = self.levels
        load = outer.latency + neighbours * outer.transfer
        use = self.own * math.prod(level.trip_count for level in inner) + outer.issue
        return outer.trip_count * (load + use) // outer.stages


def find_innermost_loops(assignment: LayoutAssignment) -> tuple[tile.For, ...]:
    """Return the pipelined loops with no pipelined loop in them."""
    return tuple(loop for loop in loops_to_schedule(assignment) if not find_pipelined_loops(loop.body))


def build_loop_nest(
    walk: BlockWalk, loop: tile.For, trip_count: int, stages: int, sms: int, machine: Machine
) -> LoopNest:
    """Build the levels of a pipelined loop whose tiles have `stages` versions, while `sms` multiprocessors load: from
    global to shared memory and, where products read operands by ldmatrix, from shared memory to registers."""
    target = walk.target
    statements = find_scheduled_statements(loop)
    loads = [s for s in statements if isinstance(s, tile.TileOp) and is_load(s)]
    uses = [s for s in statements if s not in loads]
    multiplies = any(TENSOR_SLOT in walk.price_statement(use, loop).held for use in uses)
    # Cycles are the multiprocessors', whose clock falls when tensor cores are busy; L2 has a clock of its own.
    clock = read_clock(target)
    l2_rate = machine.l2_bytes_per_cycle * clock.nominal // clock.under_load(multiplies)
    latency = transfer = issue = 0
    for load in loads:
        price = walk.price_statement(load)
        held = sum(price.held.get(slot, 0) for slot in _TRANSFER_SLOTS)
        share = price.loaded * sms // l2_rate
        transfer += max(held, share)
        for demand in count_demands(load, walk.assignment):
            timing = target.price(demand.kind, **dict(demand.parameters))
            widths = ((target.slot(slot).width, cycles) for slot, cycles, _ in timing.uses if slot in _TRANSFER_SLOTS)
            busy = max((-(-cycles // width) for width, cycles in widths), default=0)
            latency = max(latency, timing.latency - busy)
            issue += timing.issue if demand.kind != "tma.load" else 0
    if (inner := _build_register_level(walk, uses)) is not None:
        level, use = inner
        outer = Level("global → shared", latency, transfer, trip_count, stages, issue=issue)
        return LoopNest((outer, level), use, use)
    slots = {SMEM_PORT: sum(walk.price_statement(load).held.get(SMEM_PORT, 0) for load in loads)}
    own = 0
    for stmt in uses:
        price = walk.price_statement(stmt, loop)
        own += price.issue
        for slot, cycles in price.held.items():
            slots[slot] = slots.get(slot, 0) + cycles
    outer = Level("global → shared", latency, transfer, trip_count, stages, issue=issue)
    use = max(slots.values(), default=0)
    return LoopNest((outer,), use, max(use, own))


def count_nest_cycles(loop_nest: LoopNest, neighbours: int) -> int:
    return predict_level_times(loop_nest.levels, loop_nest.use, neighbours, loop_nest.own)[0].cycles


def _build_register_level(walk: BlockWalk, uses: Sequence[tile.Stmt]) -> tuple[Level, int] | None:
    """Return the level of fragments, and the cycles of a product's step; None if there is none. It exists where a loop
    is one product that ldmatrix feeds, 32 bytes of each row at a time, one step early; where it is the unrolled steps
    of one, with prefetches; or where it is an inner loop of the text that loads in the step itself."""
    parts = max(walk.assignment.kernel.threads // 128, 1)
    if len(uses) == 1 and isinstance(loop := uses[0], tile.For):
        return _build_written_level(walk, loop, parts)
    loads = [(at, s) for at, s in enumerate(uses) if isinstance(s, tile.TileOp) and is_fragment_prefetch(s)]
    if not loads and len(uses) == 1:
        steps = price_product_steps(uses[0], count_demands(uses[0], walk.assignment), walk.target)
        if steps is None:
            return None
        return Level("shared → registers", steps.latency, steps.transfer, steps.count, 2, parts), steps.use
    if not loads or not all(is_interleaved_load(uses, at) for at, _ in loads):
        return None
    products = [s for s in uses if not is_fragment_prefetch(s)]
    if {d.kind for s in products for d in count_demands(s, walk.assignment)} != {"mma.sync"}:
        return None
    reads = [
        walk.target.price(d.kind, **dict(d.parameters)) for _, s in loads for d in count_demands(s, walk.assignment)
    ]
    held = [max((cycles for _, cycles, _ in read.uses), default=0) for read in reads]
    latency = max(read.latency - cycles for read, cycles in zip(reads, held, strict=True))
    computing = sum(walk.price_statement(s).issue for s in products)
    stages = 1 + min(load.prefetch_distance or 0 for _, load in loads)
    count = len(products)
    level = Level("shared → registers", latency, -(-sum(held) // count), count, stages, parts, carried=stages > 1)
    return level, -(-computing // count)


def _build_written_level(walk: BlockWalk, loop: tile.For, parts: int) -> tuple[Level, int] | None:
    """Return the same of a loop of the text in which ldmatrix loads fragments that mma.sync multiplies."""
    prices = [(d, walk.target.price(d.kind, **dict(d.parameters))) for d in count_demands(loop, walk.assignment)]
    if {d.kind for d, _ in prices} != {"ldmatrix", "mma.sync"} or len({d.times for d, _ in prices}) != 1:
        return None
    held = {IdentityKey(price): max((cycles for _, cycles, _ in price.uses), default=0) for _, price in prices}
    reads = [price for d, price in prices if d.kind == "ldmatrix"]
    use = sum(held[IdentityKey(price)] for d, price in prices if d.kind == "mma.sync")
    latency = max(read.latency - held[IdentityKey(read)] for read in reads)
    trip_count = prices[0][0].times
    return Level(
        "shared → registers", latency, sum(held[IdentityKey(read)] for read in reads), trip_count, 1, parts
    ), use


# ---- machines --------------------------------------------------------------------------------------------------------


REREAD = 2
"""How often the blocks of a grid read each byte of its tensors, at least, if they are taken to read the same tiles at
the same time."""


def build_machine(target: Target, loaded: int = 0, tensor_bytes: int = 1) -> Machine:
    """Return the limits of a target for a grid that loads so many bytes of tensors with so many (0: unknown). By
    default each block reads bytes of its own.

    L2 delivers more bytes a cycle where blocks read the same ones: these come from the nearer half of the cache."""
    l2_rate = target.limit("l2_bytes_per_cycle")
    if loaded >= REREAD * tensor_bytes:
        l2_rate = max(target.find_limit("l2_shared_bytes_per_cycle"), l2_rate)
    rates = l2_rate, target.find_limit("dram_bytes_per_cycle")
    return Machine(target.limit("sms"), *rates, target.find_limit("launch_cycles"))


def read_occupancy_limits(target: Target) -> OccupancyLimits:
    """Return the target's limits on the blocks of a multiprocessor."""
    return OccupancyLimits(
        smem_bytes=target.limit("smem_bytes_per_sm"),
        smem_reserved_bytes_per_cta=target.limit("smem_reserved_bytes_per_cta"),
        smem_allocation_bytes=target.limit("smem_allocation_bytes"),
        registers=target.limit("registers_per_sm"),
        registers_allocation_per_warp=target.limit("registers_allocation_per_warp"),
        threads=target.limit("threads_per_sm"),
        ctas=target.limit("ctas_per_sm"),
    )


def count_moved_bytes(kernel: tile.Kernel, loaded: int, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes between DRAM and the chip if each byte of a tensor passes once: those that are read, but no more
    than the blocks load, and those that are written. Tensors whose sizes are unknown do not count."""
    tensors = {p.name: p for p in kernel.params if isinstance(p, tile.Buffer) and (sizes or not p.is_dynamic)}
    directions = find_tensor_directions(kernel)
    read, written = (
        sum(count_tensor_bytes(tensor, sizes) for name, tensor in tensors.items() if directions[name] in kinds)
        for kinds in (("in", "inout"), ("out", "inout"))
    )
    return min(read, loaded) + written


def count_tensor_bytes(buffer: tile.Buffer, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes of a tensor; `sizes` are those that the kernel learns at launch."""
    extents = (extent_to_size(extent) for extent in buffer.extents)
    shape = (max(evaluate_size(extent, sizes or {}), 0) for extent in extents if extent is not None)
    return math.prod(shape) * buffer.dtype.bits // 8


def read_clock(target: Target) -> Clock:
    """Return the clocks that a target's file gives."""
    load = target.limit("clock_mhz"), target.limit("tensor_clock_mhz")
    return Clock(*load, target.find_limit("light_clock_mhz"), target.find_limit("free_clock_mhz"))
