"""What holds of a synchronised warp program, checked by running its control flow and its waits, but none of its
arithmetic.

1. Roles partition the threads of the block, whole warps each; warpgroup operations run in whole warpgroups, and roles
   that share a warpgroup ask for the same registers.
2. Shared tiles have names of their own, lie inside the dynamic shared memory asked for, and overlap neither the
   barriers nor one another, but for those over the rings, which may have the memory of tiles in rings.
3. A tile with several versions is only touched through a cursor of its ring. A cursor that moves to where another one
   stands moves by one version.
4. Barriers: a version is filled by a role that has acquired it, and nobody reads one that it has not waited for; every
   full barrier that is waited for is filled, every release meets its acquire, each with the arrivals that the barrier
   counts; no role waits for ever, and no version is filled while its readers have it. Who fills by ordinary writes
   has written every tile of the version, and is done with it when it hands it on. What a role has written itself is
   fenced before it passes the version to another one.
5. What an asynchronous operation writes is read or awaited, and what it reads is overwritten, only after a wait that
   covers it.
6. Warpgroups that take turns each wait for their turn and pass it on, in this order; meanwhile they meet nobody at a
   barrier of the role, and at the end the turn is the first one's again.
7. Two operations of one role that touch the same version of a shared tile, one of them writing and not both
   atomically, have a barrier between them, and a proxy fence where ordinary writes meet the asynchronous proxy.
8. Of a tile that warpgroups store apart, each reaches its own rows only; so a barrier of each warpgroup will do there.
9. Where a program begins early, each role waits for the grid before it, whatever path it takes, until it reaches a
   tensor; and some role does at all events.
10. A tile over the rings is touched only when the tiles whose memory it has are done with: all versions that were begun
   to be filled have been released, nobody but this role has touched them besides who filled them, and its threads have
   had a barrier since they did: one of each warpgroup will do where it has only read what lies beneath its own rows.
   From then on nobody fills or touches these tiles.

Not checked here: the barriers that a kernel itself arrives at and waits for (`passes.protocol` runs them, the emulator
finds what that cannot know); that a cursor points at the iteration that the schedule means (the emulator's comparison
with numpy finds that), and global memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import lcm

from tilec.ir import warp
from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS
from tilec.ir.layout import Fragment
from tilec.ir.multicast import mates_by_any
from tilec.ir.tile import Binary, Call, Cast, Const, Expr, Load, Select, Store, Unary, Var, walk_expr
from tilec.ir.tile import walk as walk_tile
from tilec.ir.warp import Operation, Program, Ring, Role

MAX_STEPS = 20_000  # operations executed per role: enough for every shape of pipeline, whatever the trip count


def program_violations(program: Program) -> Iterator[str]:
    if program.common is not None:
        yield from program_violations(replace(program, roles=(program.common,), common=None, begins_early=False))
    yield from _partition(program)
    yield from _memory(program)
    yield from _parts(program)
    yield from _early(program)
    overlaps = _overlaps(program)
    same_for_all_trips: set[tuple[tuple[str, int], ...]] = set()
    for scenario in _scenarios(program):
        known = tuple(scenario.values.items())
        if known in same_for_all_trips and scenario.taken is None:
            continue
        run = _Run(program, scenario, overlaps)
        if any(run.violations()):
            yield from _Run(program, scenario, overlaps, whole=True).violations()
            return
        if not any(execution.asked for execution in run.executions):
            same_for_all_trips.add(known)


def _partition(program: Program) -> Iterator[str]:
    next_warp = 0
    for role in program.roles:
        if role.first_warp != next_warp:
            yield f"role {role.name} starts at warp {role.first_warp}, the one before ends at {next_warp}"
        next_warp = role.first_warp + role.warps
        if role.warps % 4 and any(isinstance(op, warp.Wgmma) for op in warp.walk(role.body)):
            yield f"role {role.name} has {role.warps} warps, not whole warpgroups"
    asked: dict[int, Role] = {}  # who says how many registers each warpgroup has
    for role in program.roles:
        for group in range(role.first_warp // 4, -(-(role.first_warp + role.warps) // 4)):
            other = asked.setdefault(group, role)
            if other.registers != role.registers:
                yield (
                    f"roles {other.name} and {role.name} share a warpgroup and ask for {other.registers} and "
                    f"{role.registers} registers"
                )
    last = program.roles[-1]
    if last.registers and (last.first_warp + last.warps) % 4:
        yield f"role {last.name} has {last.warps} warps, not whole warpgroups"


def _memory(program: Program) -> Iterator[str]:
    names = [t.buffer.name for t in program.shared]
    yield from (f"two shared tiles are called {name}" for name in dict.fromkeys(names) if names.count(name) > 1)
    in_rings = {name for ring in program.rings for name in ring.buffers}
    for first, second in combinations(sorted(program.shared, key=lambda t: (t.offset, t.buffer.name)), 2):
        over = [t for t in (first, second) if t.over_rings and t.buffer.name not in in_rings]
        if first.meets(second) and (len(over) != 1 or {first.buffer.name, second.buffer.name}.isdisjoint(in_rings)):
            yield (
                f"{first.buffer.name} ends at byte {first.offset + first.bytes} of shared memory, "
                f"{second.buffer.name} starts at {second.offset}"
            )
    last = max(program.shared, key=lambda t: t.offset + t.bytes, default=None)
    end = 0 if last is None else last.offset + last.bytes
    barriers_end = program.barriers_at + program.barrier_bytes
    if last is not None and program.barrier_bytes and program.barriers_at < end:
        yield f"{last.buffer.name} ends at byte {end} of shared memory, the barriers starts at {program.barriers_at}"
    if max(end, barriers_end) > program.smem_bytes:
        name = "the barriers" if last is None or barriers_end > end else last.buffer.name
        yield f"{name} ends at byte {max(end, barriers_end)} of {program.smem_bytes}"


def _parts(program: Program) -> Iterator[str]:
    """Promise 8."""
    layouts = {b.name: layout for b, layout in program.fragments}
    for role in program.roles:
        operations = list(warp.walk(role.body))
        parts = {op.source.name: op.parts for op in operations if isinstance(op, warp.TmaStore) and op.parts > 1}
        ours = [(op, name) for op in operations for name in _reached(op) if name in parts]
        for op, name in ours:
            where = f"line {op.span.line}: {_name(op)} on {name}, which is stored by {parts[name]} warpgroups,"
            match op:
                case warp.TmaStore(parts=by):
                    if by != parts[name] or role.threads != by * WARPGROUP_THREADS or role.single_thread:
                        yield f"{where} is by {by}, of {role.threads} threads"
                case warp.StoreMatrix(source=source):
                    if not _keeps_rows(layouts[source.name], parts[name]):
                        yield f"{where} writes rows of other warpgroups"
                case warp.Elementwise(nest=nest, layout=layout):
                    indices = {
                        s.indices for s in walk_tile(nest.body) if isinstance(s, Store) and s.buffer.name == name
                    }
                    if indices != {nest.vars} or not _keeps_rows(layout, parts[name]):
                        yield f"{where} reaches rows of other warpgroups"
                case _:
                    yield f"{where} reaches all of it"
        for other in program.roles:
            if other is not role and any(name in parts for op in warp.walk(other.body) for name in _reached(op)):
                yield f"role {other.name} reaches what the warpgroups of role {role.name} store apart"


def _early(program: Program) -> Iterator[str]:
    """Promise 9."""
    if not program.begins_early:
        return
    tensors = {p.name for p in program.params if not isinstance(p, Var)}
    waiting = False
    for role in program.roles if program.common is None else (program.common, *program.roles):
        # Only what stands in no loop and under no condition is sure to be run first.
        waits = [at for at, op in enumerate(role.body) if isinstance(op, warp.GridControl) and op.what == "wait"]
        waiting |= bool(waits)
        for op in role.body[: waits[0]] if waits else role.body:
            for inner in warp.walk((op,)):
                is_copy = isinstance(inner, warp.TmaLoad | warp.TmaStore)
                if is_copy or not tensors.isdisjoint(_reached(inner) | set(warp.scalar_reads(inner))):
                    yield f"line {inner.span.line}: {_name(inner)} does not wait for the grid before"
    if not waiting:
        yield "the grid begins early and waits for nobody"


def _reached(op: Operation) -> set[str]:
    reads, writes, _, _ = _own_effects(op)
    return reads | writes


def _keeps_rows(layout: Fragment, parts: int) -> bool:
    """Whether each warpgroup has every so many-th block of rows, the first one the first."""
    moved = {layout.register_offset(register)[0] for register in range(layout.register_count)}
    return layout.thread_count == parts * WARPGROUP_THREADS and all(
        (layout.thread_offset(thread)[0] + row) // warp.PART_ROWS % parts == thread // WARPGROUP_THREADS
        for thread in range(layout.thread_count)
        for row in moved
    )


@dataclass(frozen=True, slots=True)
class _Scenario:
    """How control flow goes where it is not fixed: block indices and scalars; the trip counts of a pipeline when a role
    enters it for the first time, the second time and so on in turn; whether run-time branches are taken (None: as the
    values say, and taken where they do not)."""

    values: dict[str, int]
    trips: tuple[int, ...]
    taken: bool | None


def _scenarios(program: Program) -> Iterator[_Scenario]:
    """The first and the last block, each trip count up to one more than the stages and a long one, two in turn, with
    branches taken and not. One scenario where nothing depends on run-time values."""
    operations = [op for role in program.roles for op in warp.walk(role.body)]
    stages = [op.stages for op in operations if isinstance(op, warp.Pipeline)]
    loops = any(isinstance(op, warp.Loop) and not _is_fixed(op) for op in operations)
    branches = any(isinstance(op, warp.Branch) and op.part == "" for op in operations)
    long = max(stages, default=0) + 2 * max((r.depth for r in program.rings), default=1) + 1
    counts = [*range(max(stages, default=0) + 2), long] if stages or loops else [long]
    for last in (False, True) if loops or branches else (False,):
        values = {p.name: 3 if last else 0 for p in program.params if isinstance(p, Var)}
        for var, extent in zip(program.block_vars, program.grid, strict=False):
            values[var.name] = (extent if isinstance(extent, int) else 4) - 1 if last else 0
        for n, following in zip(counts, (*counts[1:], counts[0]), strict=True):
            for taken in (None, True, False) if branches else (None,):
                yield _Scenario(values, (n, following), taken)


def _is_fixed(loop: warp.Loop) -> bool:
    return isinstance(loop.start, Const) and isinstance(loop.stop, Const)


# ---- a role's run, one operation at a time ---------------------------------------------------------------------------


class _Unknown(Exception):
    """The control flow depends on data."""


def _evaluate(expr: Expr, values: dict[str, int]) -> int:
    match expr:
        case Const(value=value):
            return int(value)
        case Var(name=name):
            if name not in values:
                raise _Unknown
            return values[name]
        case Unary(op=op, a=a):
            value = _evaluate(a, values)
            return -value if op == "neg" else int(not value)
        case Cast(a=a):
            return _evaluate(a, values)
        case Select(condition=c, then=a, orelse=b):
            return _evaluate(a if _evaluate(c, values) else b, values)
        case Binary(op=op, a=a, b=b):
            left, right = _evaluate(a, values), _evaluate(b, values)
            if right == 0 and op in ("floordiv", "floormod"):
                raise _Unknown  # the machine computes something, which nobody uses
            return _apply(op, left, right)
        case Call() | Load():
            raise _Unknown


def _apply(op: str, a: int, b: int) -> int:
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // b
        case "floormod":
            return a % b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "lt":
            return int(a < b)
        case "le":
            return int(a <= b)
        case "gt":
            return int(a > b)
        case "ge":
            return int(a >= b)
        case "eq":
            return int(a == b)
        case "ne":
            return int(a != b)
        case "and" | "bitand":
            return a & b
        case "or" | "bitor":
            return a | b
        case _:
            raise _Unknown


class _Execution:
    """The operations of one role in the order in which a scenario executes them. Long loops are cut by whole
    `period`s, all roles' alike: `cuts` has by how many trips when a role enters the loop for the first time, the second
    time and so on. `asked`: for something that only the scenario knows."""

    def __init__(self, scenario: _Scenario, period: int, cuts: dict[tuple[str, int], int]) -> None:
        self.scenario = scenario
        self.period = period
        self.cuts = cuts
        self.asked = False
        self.entered: dict[str, int] = {}  # each pipeline, how often
        self.looped: dict[str, int] = {}  # each loop, likewise
        self.trips = 0  # of the innermost pipeline that is under way
        self.stages = 0
        self.steady: Var | None = None  # its variable
        self.left = False  # the innermost loop, by a break

    def run(self, body: tuple[Operation, ...], values: dict[str, int]) -> Iterator[Operation]:
        for op in body:
            if self.leaving():
                return
            if isinstance(op, warp.Let | warp.Loop | warp.Branch) and warp.scalar_reads(op):
                yield op
            match op:
                case warp.Pipeline(var=var, stages=stages, body=inner):
                    entered = self.entered.get(var.name, 0)
                    self.entered[var.name] = entered + 1
                    around = self.trips, self.stages, self.steady
                    self.asked = True
                    self.trips = self.scenario.trips[entered % len(self.scenario.trips)]
                    self.stages, self.steady = stages, var
                    yield from self.run(inner, values)
                    self.trips, self.stages, self.steady = around
                case warp.Loop(var=var, step=step, body=inner):
                    start, count = self.count(op, values)
                    for k in self.told_apart(var.name, count):
                        yield from self.run(inner, {**values, var.name: start + k * step})
                        if self.leaving():
                            break
                    self.left = False
                case warp.Forever(body=inner):
                    self.asked = True
                    for _ in range(self.scenario.trips[0] + 1):
                        yield from self.run(inner, values)
                        if self.leaving():
                            break
                    self.left = False
                case warp.Break():
                    self.left = True
                case warp.Branch(part="guard", least=least, then=then):
                    if self.trips >= least:
                        yield from self.run(then, values)
                case warp.Branch(then=then, orelse=orelse):
                    yield from self.run(then if self.decide(op, values) else orelse, values)
                case warp.Let(var=var, value=value):
                    try:
                        values[var.name] = _evaluate(value, values)
                    except _Unknown:
                        values.pop(var.name, None)
                case _:
                    yield op

    def told_apart(self, var: str, trips: int) -> Iterator[int]:
        """The first trips of a loop and the last ones. Those between do what the ones before them did."""
        if not self.period:
            yield from range(trips)
            return
        place = var, self.looped.get(var, 0)
        self.looped[var] = place[1] + 1
        cut = self.cuts.setdefault(place, max(0, trips - 4 * self.period) // self.period * self.period)
        for k in range(trips - cut):
            yield k if k < 2 * self.period else k + cut

    def leaving(self) -> bool:
        return self.left

    def count(self, op: warp.Loop, values: dict[str, int]) -> tuple[int, int]:
        """The first value of the loop variable, and the number of trips."""
        if op.part == "steady" and op.var == self.steady:
            return 0, max(0, self.trips - self.stages)
        try:
            trips = range(_evaluate(op.start, values), _evaluate(op.stop, values), op.step)
            return trips.start, len(trips)
        except _Unknown:
            self.asked = True
            return 0, min(self.scenario.trips[0], 2)

    def decide(self, op: warp.Branch, values: dict[str, int]) -> bool:
        if self.scenario.taken is not None:
            return self.scenario.taken
        try:
            return bool(_evaluate(op.condition, values))
        except _Unknown:
            return True


# ---- rings -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Version:
    """`fills` and `frees` count completed phases of the full and the empty barrier, `handed_on` and `released` the
    arrivals in the phase under way."""

    fills: int = 0
    frees: int = 0
    handed_on: int = 0
    released: int = 0


@dataclass(slots=True)
class _Access:
    """Who touched a version of a shared tile: in which barrier interval it was complete, or in which group it still
    is. `part` counts the barriers of each warpgroup too.
    """

    op: str
    write: bool
    async_proxy: bool
    queue: str | None
    group: int
    interval: int
    part: int
    atomic: bool = False
    own_rows: bool = False  # whether each warpgroup reaches those of its part of the product alone
    fenced: bool = False


@dataclass(slots=True)
class _RoleState:
    role: Role
    steps: Iterator[Operation]
    waiting: Operation | None = None
    done: bool = False
    executed: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    acquired: dict[str, int] = field(default_factory=dict)  # how many versions of each ring
    waited: dict[str, int] = field(default_factory=dict)  # likewise
    left: dict[str, int] = field(default_factory=dict)  # likewise, those handed on or released
    missing: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # tiles of an acquired version, to be filled
    given: set[tuple[str, int]] = field(default_factory=set)  # versions of rings that the tensor cores work on
    groups: dict[str, int] = field(default_factory=dict)
    number: int = 0  # of the warpgroup, where the role's take turns
    has_turn: bool = False
    interval: int = 0
    part: int = 0
    accesses: dict[tuple[str, int], list[_Access]] = field(default_factory=dict)
    spent: dict[tuple[str, int], list[_Access]] = field(default_factory=dict)  # those of versions since released
    mates: tuple[_RoleState, ...] = ()  # the other warpgroups of the role, where they go on by themselves


class _Run:
    """All roles together, each until it must wait. Unless it is the `whole` run, loops are cut where nothing new is
    expected: what that finds, the whole run has to confirm."""

    def __init__(self, program: Program, scenario: _Scenario, overlaps: _Overlaps, whole: bool = False) -> None:
        self.program = program
        self.rings = {r.name: r for r in program.rings}
        self.ring_of: dict[str, Ring] = {b: r for r in program.rings for b in r.buffers}
        self.fragments = {b.name for b, _ in program.fragments}
        self.apart = {op.source.name for op in program.operations() if isinstance(op, warp.TmaStore) and op.parts > 1}
        self.tensor = {tile.buffer.name for tile in program.tensor}
        self.versions = {(r.name, v): _Version() for r in program.rings for v in range(r.depth)}
        self.turn = 0  # the warpgroup whose turn it is
        period = 0 if whole else lcm(*(r.depth for r in program.rings))
        cuts: dict[tuple[str, int], int] = {}
        numbered = [(n, part) for role in program.roles for n, part in enumerate(_warpgroups(role))]
        self.executions = [_Execution(scenario, period, cuts) for _ in numbered]
        self.roles = [
            _RoleState(part, execution.run(part.body, dict(scenario.values)), number=number)
            for (number, part), execution in zip(numbered, self.executions, strict=True)
        ]
        for state in self.roles:
            same = (other for other in self.roles if other.role.turns_at == state.role.turns_at is not None)
            state.mates = tuple(other for other in same if other is not state)
        self.overlaps = overlaps
        self.covered: dict[str, str] = {}  # the tiles whose memory another tile has, and which

    def violations(self) -> Iterator[str]:
        while True:
            moved = False
            for state in self.roles:
                for message in self.advance(state):
                    if message:
                        yield message
                        return
                    moved = True
            # Who waits for a role that is followed no further is not at fault, nor is what such a role leaves.
            was_cut = any(s.executed > MAX_STEPS for s in self.roles)
            if all(s.done for s in self.roles):
                break
            if not moved:
                if was_cut:
                    return
                for state in self.roles:
                    if state.waiting is not None:
                        place = f"{_name(state.waiting)}, line {state.waiting.span.line}"
                        yield f"role {state.role.name} waits for ever at {place}"
                return
        if not was_cut:
            yield from self.leftovers()

    def advance(self, state: _RoleState) -> Iterator[str]:
        """Run until a wait; one empty string per operation that was executed."""
        while not state.done:
            op = state.waiting or next(state.steps, None)
            if op is None or state.executed > MAX_STEPS:
                state.done = True
                return
            state.waiting = None
            behind = any(mate.interval < state.interval and not mate.done for mate in state.mates)
            message = None if behind else self.step(state, op)
            if message is None:
                state.waiting = op
                return
            state.executed += 1
            yield message

    def step(self, state: _RoleState, op: Operation) -> str | None:
        """Execute one operation: a violation, "" if all is well, None if it cannot go on yet."""
        match op:
            case warp.RingAcquire(cursor=cursor):
                _, version, turn = self.position(state, cursor)
                if version.frees < turn:
                    return None
                place = (cursor.ring, state.positions.get(cursor.name, 0))
                for tile in self.rings[cursor.ring].buffers:
                    if over := self.covered.get(tile):
                        return f"line {op.span.line}: {cursor.ring} is acquired again while {over} has its memory"
                if state.missing.get(place):
                    return f"line {op.span.line}: {cursor.ring} is acquired again before all its tiles are filled"
                state.acquired[cursor.ring] = state.acquired.get(cursor.ring, 0) + 1
                state.missing[place] = set(self.rings[cursor.ring].buffers)
                return ""
            case warp.TensorMma():
                return self.multiply(state, op) if op.leader is None else ""  # else by barriers of the kernel's own
            case warp.TmaLoad(destination=destination):
                return "" if op.barrier is not None else self.load(state, op, destination.name)
            case warp.RingWait(cursor=cursor):
                _, version, turn = self.position(state, cursor)
                if version.fills <= turn:
                    return None
                position = state.positions.get(cursor.name, 0)
                state.waited[cursor.ring] = max(state.waited.get(cursor.ring, 0), position + 1)
                return ""
            case warp.RingFill(cursor=cursor):
                return self.fill(state, op, cursor)
            case warp.RingRelease(cursor=cursor):
                return self.release(state, op, cursor)
            case warp.Advance(cursor=cursor, behind=behind):
                following = state.positions.get(cursor.name, 0) + 1
                if behind is not None and state.positions.get(behind.name, 0) != following:
                    return f"line {op.span.line}: {behind.name} is not one version before {cursor.name}"
                state.positions[cursor.name] = following
                return ""
            case warp.RingDrain(cursor=cursor):
                ring = self.rings[cursor.ring]
                left = (self.versions[(ring.name, v)] for v in range(ring.depth))
                return "" if all(version.fills == version.frees for version in left) else None
            case warp.BarSync() | warp.ClusterWait() | warp.GridSync():
                if state.has_turn:
                    return f"line {op.span.line}: a warpgroup meets the others at a barrier while it has its turn"
                state.interval += 1
                state.part += 1
                return ""
            case warp.WarpgroupSync(first=first):
                taken = {self.program.named_barrier(number) for number in range(len(self.program.roles))}
                taken |= {barrier for role in self.program.roles for barrier in role.turn_barriers}
                mine = range(first, first + state.role.warps // 4)
                if state.role.warps % 4 or mine.stop > 16 or not taken.isdisjoint(mine):
                    return f"line {op.span.line}: warpgroups meet at barriers that are not theirs"
                state.part += 1
                return ""
            case warp.TurnWait():
                if state.role.turns_at is None or state.has_turn:
                    return f"line {op.span.line}: a warpgroup waits for a turn that it has, or that nobody gives it"
                if self.turn != state.number:
                    return None
                state.has_turn = True
                return ""
            case warp.TurnPass():
                if not state.has_turn:
                    return f"line {op.span.line}: a warpgroup passes on a turn that it has not"
                state.has_turn = False
                self.turn = (state.number + 1) % sum(s.role.turns_at == state.role.turns_at for s in self.roles)
                return ""
            case warp.ProxyFence():
                for access in self.all_accesses(state):
                    access.fenced |= access.group == 0
                return ""
            case warp.CpAsyncWait(pending=pending):
                return self.wait(state, "cp.async", pending)
            case warp.WgmmaWait(pending=pending):
                return self.wait(state, "wgmma", pending)
            case warp.BulkWait(pending=pending):
                return self.wait(state, "bulk", pending)
            case warp.CopiesArrive():
                for accesses in state.accesses.values():  # whoever waits for the barrier waits for them
                    accesses[:] = [a for a in accesses if not (a.queue == "cp.async" and a.group and a.write)]
                return ""
            case warp.CpAsyncCommit():
                state.groups["cp.async"] = state.groups.get("cp.async", 0) + 1
                return ""
            case warp.Await():
                return self.await_(state, op)
            case _:
                return self.touch(state, op)

    def position(self, state: _RoleState, cursor: warp.Cursor) -> tuple[Ring, _Version, int]:
        ring = self.rings[cursor.ring]
        turn, slot = divmod(state.positions.get(cursor.name, 0), ring.depth)
        return ring, self.versions[(ring.name, slot)], turn

    def load(self, state: _RoleState, op: Operation, buffer: str) -> str:
        ring = self.ring_of[buffer]
        cursor = next((c for c in op.cursors if c.ring == ring.name), None)
        if cursor is None or state.positions.get(cursor.name, 0) >= state.acquired.get(ring.name, 0):
            return f"line {op.span.line}: {buffer} is filled before its version is acquired"
        missing = state.missing.get((ring.name, state.positions.get(cursor.name, 0)), set())
        if buffer not in missing:
            return f"line {op.span.line}: {buffer} is filled twice"
        missing.remove(buffer)
        if not missing:
            # The barrier counts all bytes of a version: it completes with the last copy, as soon as anybody looks.
            self.position(state, cursor)[1].fills += 1
        return ""

    def multiply(self, state: _RoleState, op: warp.TensorMma) -> str:
        """The tensor cores keep the products of one sum in order; nobody else has the versions until they say so."""
        for tile in (op.a, op.b, op.c):
            slot = self.version(state, op, tile.name)
            if isinstance(slot, str):
                return slot
            ring = self.ring_of.get(tile.name)
            if ring is None or not ring.has_barriers:
                return f"line {op.span.line}: the tensor cores touch {tile.name}, which nobody hands over"
            cursor = next(c for c in op.cursors if c.ring == ring.name)
            position = state.positions.get(cursor.name, 0)
            state.missing.get((ring.name, position), set()).discard(tile.name)
            state.given.add((ring.name, position))
        return ""

    def given(self, state: _RoleState, op: warp.RingFill | warp.RingRelease) -> str:
        """A version that the tensor cores have been given is theirs to hand on, and only such a one."""
        ring = op.cursor.ring
        is_given = (ring, state.positions.get(op.cursor.name, 0)) in state.given
        if is_given and not op.by_tensor_cores:
            return f"line {op.span.line}: {ring} is handed on while the tensor cores have it"
        return ""

    def fill(self, state: _RoleState, op: warp.RingFill, cursor: warp.Cursor) -> str:
        """By ordinary writes: the role's warps or threads arrive, each when it is done."""
        ring, version, _ = self.position(state, cursor)
        position = state.positions.get(cursor.name, 0)
        if position >= state.acquired.get(ring.name, 0):
            return f"line {op.span.line}: {ring.name} is handed on before its version is acquired"
        if position < state.left.get(ring.name, 0):
            return f"line {op.span.line}: {ring.name} is handed on twice"
        if message := self.given(state, op):
            return message
        if (missing := state.missing.get((ring.name, position))) and not op.by_tensor_cores:
            return f"line {op.span.line}: {ring.name} is handed on with nothing in {min(missing)}"
        if message := self.leave(state, op, ring, position, "handed on"):
            return message
        version.handed_on += state.role.arrivals(ring.by)
        if version.handed_on > ring.fills:
            fills = f"{version.handed_on} {ring.by}s fill"
            return f"line {op.span.line}: {fills} {ring.name}, its barrier counts {ring.fills}"
        if version.handed_on == ring.fills:
            version.handed_on = 0
            version.fills += 1
        return ""

    def leave(self, state: _RoleState, op: Operation, ring: Ring, position: int, how: str) -> str:
        """Another role may have the version from here on, by whatever proxy."""
        slot = position % ring.depth
        for buffer in ring.buffers:
            for access in state.accesses.get((buffer, slot), ()):
                if access.group:
                    return f"line {op.span.line}: {ring.name} is {how} while {access.op} still reads it"
                if access.write and not access.fenced:
                    return f"line {op.span.line}: {ring.name} is {how} with no proxy fence after {access.op}"
            # Whoever has waited for the other role comes after them.
            if (done := state.accesses.pop((buffer, slot), None)) and how == "released":
                state.spent[(buffer, slot)] = done
        state.left[ring.name] = max(state.left.get(ring.name, 0), position + 1)
        return ""

    def release(self, state: _RoleState, op: warp.RingRelease, cursor: warp.Cursor) -> str:
        ring, version, turn = self.position(state, cursor)
        if message := self.given(state, op):
            return message
        if message := self.leave(state, op, ring, state.positions.get(cursor.name, 0), "released"):
            return message
        if version.fills <= turn:
            return f"line {op.span.line}: {ring.name} is released before it was filled"
        # Blocks that share tiles do the same: as many release this version as it is released to.
        version.released += state.role.arrivals(ring.by) * len(mates_by_any(self.program.cluster, ring.shared))
        if version.released > ring.arrivals:
            releases = f"{version.released} {ring.by}s release"
            return f"line {op.span.line}: {releases} {ring.name}, its barrier counts {ring.arrivals}"
        if version.released == ring.arrivals:
            version.released = 0
            version.frees += 1
        return ""

    def wait(self, state: _RoleState, queue: str, pending: int) -> str:
        done = state.groups.get(queue, 0) - pending
        for access in self.all_accesses(state):
            if access.queue == queue and 0 < access.group <= done:
                access.group, access.interval, access.part = 0, state.interval, state.part
        return ""

    def all_accesses(self, state: _RoleState) -> Iterator[_Access]:
        for accesses in state.accesses.values():
            yield from accesses

    def touch(self, state: _RoleState, op: Operation) -> str:
        reads, writes, queue, async_reads = _effects(op)
        group = 0
        if queue is not None:
            group = state.groups.get(queue, 0) + 1
            if queue != "cp.async":  # whose groups are closed by commits
                state.groups[queue] = group
        accesses = [*((n, False) for n in sorted(reads)), *((n, True) for n in sorted(writes))]
        kept_of = {}
        combined = _combined(op)
        # All conflicts before any record: an operation may read and write one tile, and does not wait for itself.
        for name, write in accesses:
            slot = self.version(state, op, name)
            if isinstance(slot, str):
                return slot
            if message := self.moves_in(state, op, name):
                return message
            kept_of[name] = state.accesses.setdefault((name, slot), [])
            for earlier in kept_of[name]:
                if earlier.atomic and name in combined:
                    continue  # in any order
                message = self.conflict(state, op, name, earlier, write, queue, name in async_reads)
                if message:
                    return message
        for name, write in accesses:
            kept = kept_of[name]
            if write and queue is None:
                kept.clear()
            if write and (ring := self.ring_of.get(name)) is not None:
                cursor = next((c.name for c in op.cursors if c.ring == ring.name), "")
                state.missing.get((ring.name, state.positions.get(cursor, 0)), set()).discard(name)
            kept[:] = kept[-8:]
            now = state.interval, state.part
            own_rows = name in self.overlaps.own_rows(op)
            kept.append(_Access(_name(op), write, name in async_reads, queue, group, *now, name in combined, own_rows))
        return ""

    def version(self, state: _RoleState, op: warp.Operation, name: str) -> int | str:
        """Which version of a tile an operation touches, or what is wrong with that."""
        if over := self.covered.get(name):
            return f"line {op.span.line}: {_name(op)} touches {name} while {over} has its memory"
        ring = self.ring_of.get(name)
        if ring is None or (ring.depth == 1 and not ring.has_barriers):
            return 0
        cursor = next((c for c in op.cursors if c.ring == ring.name), None)
        if cursor is None:
            return f"line {op.span.line}: {_name(op)} touches {name} without saying which version"
        position = state.positions.get(cursor.name, 0)
        filling = 0 if ring.bytes else state.acquired.get(ring.name, 0)  # what TMA fills is nobody else's meanwhile
        if ring.has_barriers and position >= max(state.waited.get(ring.name, 0), filling):
            return f"line {op.span.line}: {_name(op)} touches {name} before it has waited for the version"
        if ring.has_barriers and position < state.left.get(ring.name, 0):
            return f"line {op.span.line}: {_name(op)} touches {name} after it has passed the version on"
        return position % ring.depth

    def moves_in(self, state: _RoleState, op: warp.Operation, name: str) -> str:
        """Promise 10, where a tile over the rings is touched."""
        for tile, rows_alike in self.overlaps.beneath.get(name, ()):
            ring = self.ring_of[tile]
            begun = max(other.acquired.get(ring.name, 0) for other in self.roles)
            for version in range(ring.depth):
                done = self.versions[(ring.name, version)]
                if ring.has_barriers and not len(range(version, begun, ring.depth)) == done.fills == done.frees:
                    return f"line {op.span.line}: {name} has the memory of {ring.name}, which is not done with"
                for other in self.roles:
                    place = (tile, version)
                    for earlier in (*other.accesses.get(place, ()), *other.spent.get(place, ())):
                        if other is not state and other not in state.mates:
                            return f"line {op.span.line}: {name} has the memory of {tile}, of {other.role.name} too"
                        apart = rows_alike and name in self.apart and earlier.own_rows
                        if apart and not earlier.group and earlier.part < state.part:
                            continue
                        if message := self.conflict(state, op, tile, earlier, True, None, False):
                            return f"{message}, and {name} has its memory"
            self.covered[tile] = name
        return ""

    def await_(self, state: _RoleState, op: warp.Await) -> str:
        """As if it read the tiles, or overwrote them; without `meet`, what the thread itself has under way counts
        alone."""
        for name in op.tiles:
            slot = self.version(state, op, name)
            if isinstance(slot, str):
                return slot
            for earlier in state.accesses.get((name, slot), ()):
                if op.meet and (message := self.conflict(state, op, name, earlier, op.readers, None, False)):
                    return message
                if earlier.group and (earlier.write or op.readers):
                    return f"line {op.span.line}: {name} is awaited while {earlier.op} is under way"
        return ""

    def conflict(
        self,
        state: _RoleState,
        op: Operation,
        name: str,
        earlier: _Access,
        write: bool,
        queue: str | None,
        by_async: bool,
    ) -> str:
        if not (earlier.write or write):
            return ""
        where = f"line {op.span.line}: {_name(op)} on {name}"
        if earlier.group and not (name in self.fragments and earlier.queue == queue == "wgmma"):
            return f"{where} does not wait for {earlier.op}"
        if name in self.fragments:
            return ""
        moves = {_name(op), earlier.op} <= {"TensorLoad", "TensorStore"}
        if moves and name in self.tensor and state.role.warps == WARPGROUP_WARPS:
            return ""  # in tensor memory each warp of a warpgroup has lanes of its own
        has_met = earlier.part < state.part if name in self.apart else earlier.interval < state.interval
        if not has_met:
            return f"{where} has no barrier after {earlier.op}"
        if by_async and earlier.write and not earlier.async_proxy and not earlier.fenced:
            return f"{where} has no proxy fence after {earlier.op}"
        return ""

    def leftovers(self) -> Iterator[str]:
        if self.turn or any(state.has_turn for state in self.roles):
            yield f"the turn ends with warpgroup {self.turn}, not with the first one"
        for state in self.roles:
            for access in self.all_accesses(state):
                if access.group and access.queue in ("bulk", "wgmma"):
                    yield f"role {state.role.name} ends while {access.op} is in flight"
                    return
        for (name, slot), version in self.versions.items():
            if self.rings[name].has_barriers and version.fills != version.frees:
                yield f"version {slot} of {name} is filled {version.fills} times and released {version.frees} times"


def _warpgroups(role: Role) -> tuple[Role, ...]:
    """The parts of a role that go on by themselves: its warpgroups where they take turns, else all of it."""
    if role.turns_at is None:
        return (role,)
    return tuple(
        replace(role, name=f"{role.name} {number + 1}", first_warp=role.first_warp + 4 * number, warps=4)
        for number in range(len(role.turn_barriers))
    )


@dataclass(frozen=True, slots=True)
class _Overlaps:
    """For each tile over the rings those whose memory it has, and whether, where both have a row, that belongs to the
    same warpgroup's part of them. `by_rows` are the sums of which each warpgroup has such a part."""

    beneath: dict[str, tuple[tuple[str, bool], ...]]
    by_rows: frozenset[str]

    def own_rows(self, op: Operation) -> tuple[str, ...]:
        """The tiles of which each warpgroup reads only the rows of its part."""
        return warp.own_rows(op) if isinstance(op, warp.Wgmma) and op.c.name in self.by_rows else ()


def _overlaps(program: Program) -> _Overlaps:
    over = [tile for tile in program.shared if tile.over_rings]
    if not over:
        return _Overlaps({}, frozenset())
    in_rings = [t for t in program.shared if any(t.buffer.name in ring.buffers for ring in program.rings)]
    parts = {op.source.name: op.parts for op in program.operations() if isinstance(op, warp.TmaStore)}
    beneath = {
        tile.buffer.name: tuple(
            (other.buffer.name, _rows_alike(tile, other, parts.get(tile.buffer.name, 1)))
            for other in in_rings
            if other.meets(tile)
        )
        for tile in over
    }
    by_rows = {b.name for b, layout in program.fragments if _keeps_rows(layout, max(parts.values(), default=1))}
    return _Overlaps(beneath, frozenset(by_rows))


def _rows_alike(tile: warp.SharedTile, other: warp.SharedTile, parts: int) -> bool:
    """Row by row: their first bytes are the same, and so is whose they are."""
    if tile.layout.row_bytes != other.layout.row_bytes:
        return False
    mine, others = (_row_owners(t, parts) for t in (tile, other))
    within = [at for at in mine if other.offset <= at < other.offset + other.bytes]
    return (
        all(mine[at] == others.get(at) for at in within) and (tile.offset - other.offset) % tile.layout.row_bytes == 0
    )


def _row_owners(tile: warp.SharedTile, parts: int) -> dict[int, int]:
    """Where each row of a panel begins, and which warpgroup's it is."""
    layout = tile.layout
    begins = (
        tile.offset + v * tile.stride + p * layout.panel_bytes for v in range(tile.depth) for p in range(layout.panels)
    )
    rows = range(layout.rows)
    return {begin + row * layout.row_bytes: row // warp.PART_ROWS % parts for begin in begins for row in rows}


def _name(op: Operation) -> str:
    return type(op).__name__


def _effects(op: Operation) -> tuple[set[str], set[str], str | None, set[str]]:
    """Names read, names written, the queue in which the operation completes, and what the asynchronous proxy reads."""
    reads, writes, queue, by_async = _own_effects(op)
    return reads | set(warp.scalar_reads(op)), writes, queue, by_async


def _combined(op: Operation) -> set[str]:
    """Buffers that the operation touches by atomics alone."""
    if not isinstance(op, warp.Elementwise):
        return set()
    stores = [s for s in walk_tile(op.nest.body) if isinstance(s, Store)]
    plain = {s.buffer.name for s in stores if s.atomic is None} | _own_effects(op)[0]
    return {s.buffer.name for s in stores} - plain


def _own_effects(op: Operation) -> tuple[set[str], set[str], str | None, set[str]]:
    match op:
        case warp.Elementwise(nest=nest):
            stores = [s for s in walk_tile(nest.body) if isinstance(s, Store)]
            exprs = [e for s in stores for e in (s.value, *s.indices)]
            exprs += [v for s in walk_tile(nest.body) for v in (getattr(s, "condition", None),) if v is not None]
            reads = {e.buffer.name for x in exprs for e in walk_expr(x) if isinstance(e, Load)}
            return reads, {s.buffer.name for s in stores}, None, set()
        case warp.CpAsync(source=s, destination=into):
            return {s.buffer.name}, {into.buffer.name}, "cp.async", set()
        case warp.TmaStore(source=s):
            return {s.name}, set(), "bulk", {s.name}
        case warp.StoreMatrix(source=s, destination=d):
            return {s.name}, {d.name}, None, set()
        case warp.Mma(a=a, b=b, c=c, metadata=e):
            return {a.name, b.name, *([e.name] if e else [])}, {c.name}, None, set()
        case warp.Wgmma(a=a, b=b, c=c, metadata=e):
            return {a.name, b.name, *([e.name] if e else [])}, {c.name}, "wgmma", {a.name, b.name}
        case warp.TensorLoad(source=s, destination=d) | warp.TensorStore(source=s, destination=d):
            return {s.name}, {d.name}, None, set()
        case warp.Reduce(source=s, destination=d, scratch=scratch):
            return {s.name}, {d.name} | ({scratch.name} if scratch else set()), None, set()
        case _:
            return set(), set(), None, set()
