"""Verifier of synchronised warp programs: it runs their control flow and their waits, but none of their arithmetic.

1. In each section, roles partition the threads of the block, whole warps each; warpgroup operations run in whole
   warpgroups, and roles that share a warpgroup ask for the same registers. Each section but the last ends with a
   barrier of the block, and no role of it waits at another barrier of that number.
2. Shared tiles have unique names, lie inside the dynamic shared memory asked for, and overlap neither the barriers nor
   one another, except that tiles over the rings may reuse the memory of tiles in rings, and a tile in no ring that of
   the tiles that it `reuses`.
3. A tile with several versions is only touched through a cursor of its ring. A cursor that moves to the position of
   another one moves by one version.
4. Barriers: a producer acquires a version before it fills it, and a consumer waits for it before it reads it. Every
   full barrier that is waited for is filled, and every release meets its acquire, each with the arrivals that the
   barrier counts. No role waits for ever, and no version is filled while consumers hold it. A producer that uses
   ordinary writes has written every tile of the version when it hands it on, and does not touch it afterwards. A role
   fences its own writes before it passes the version to another role, and its reads of cluster launch control
   responses.
5. The result of an asynchronous operation is read or awaited, and its source overwritten, only after a wait that covers
   it.
6. Warpgroups in ping-pong wait for their turn and pass it on, alternately; in between they take part in no barrier of
   the role, and at the end the turn is the first warpgroup's again.
7. Two operations of one role that touch the same version of a shared tile, or a tensor, one of them writing and not
   both atomically, have a barrier between them, and a proxy fence where ordinary writes meet the asynchronous proxy. A
   tensor needs none where each thread reaches its own elements only, nor where the two reach different parts of it.
8. Of a tile that warpgroups store in separate parts, each reaches its own rows only, and of a tile with copies its own
   copy; so a barrier of each warpgroup is enough there.
9. Where a program begins early, each role waits for the grid before it, on every path, until it reaches a tensor; and
   some role always waits.
10. A tile over the rings is touched only after the tiles whose memory it reuses: all versions that were acquired have
    been released, only this role and their producers have touched them, and its threads have had a barrier since. A
    barrier of each warpgroup is enough where it has only read the memory of its own rows. From then on nobody fills or
    touches these tiles. Of two tiles in no ring that share memory, one is touched after the other only by an operation
    that does not read it, in the role that alone has touched the other, after its accesses are complete and a barrier
    has followed them, and a proxy fence where this operation is of the asynchronous proxy.
11. Two accesses to one version of a shared tile, or of an accumulator in tensor memory, by different roles, by TMA or
    by the tensor cores, one of them writing, are ordered by barriers: somebody signals when the first is complete, and
    the role of the second has waited for that, directly or through others. Where the asynchronous proxy then reads or
    writes what threads have written, these have fenced before they signalled.
12. Such accesses, and those of one role, come in the order of the loop's text.
13. The threads that hold parts of a row can reduce it: in each warp they are a lane and all lanes whose numbers differ
    from it in certain bits, the same bits for all rows.
14. Addresses given to TMA, a tensor core, ldmatrix or stmatrix are aligned as it demands (`warp_alignment`).
15. Where several threads hold a copy of each element of a sweep, of which one stores to memory, no sweep both sets
    registers of all of them and reads that memory.
16. Threads fence their accesses to tensor memory before they signal a barrier, and fence after they wait at one before
    they touch tensor memory: at the barriers of rings in tensor memory, and at all barriers of explicit roles, and at
    the one of a cluster at their end.
17. The boxes that TMA copies begin at multiples of 16 bytes of a row of their tensor, for all launch parameters
    (`warp_boxes`).
18. No box that TMA stores or reduces begins below 0 in its tensor (`warp_signs`).
19. All warps of a role, or of each warpgroup with a copy, transpose equally many blocks of a tile by matrices.

Not checked here: the kernel's own barriers (`explicit_roles.protocol` runs them on the same machine,
`ir.warp_verify.barrier_machine`, which explains why; the emulator finds what neither can know); that a cursor points at
the iteration that the schedule means (the emulator's comparison with numpy finds that); and races between blocks on
global memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import Literal

from tilec.ir import warp
from tilec.ir.multicast import multicast_ranks_of_any
from tilec.ir.warp import Operation, Program, Ring, Role
from tilec.ir.warp_verify.alignment import check_alignment
from tilec.ir.warp_verify.barrier_machine import run_together
from tilec.ir.warp_verify.boxes import check_box_starts, check_tma_boxes
from tilec.ir.warp_verify.conflicts import Conflicts, TensorFences
from tilec.ir.warp_verify.effects import atomic_buffers, op_name, operation_effects
from tilec.ir.warp_verify.order import AccessOrder, PastAccess
from tilec.ir.warp_verify.regions import TensorParts, are_always_disjoint
from tilec.ir.warp_verify.run_state import Access, Reached, RingVersion, RoleState
from tilec.ir.warp_verify.scenarios import Execution, Scenario, build_scenarios
from tilec.ir.warp_verify.structure import (
    Overlaps,
    check_early_start,
    check_partition,
    check_reductions,
    check_replicas,
    check_sections,
    check_shared_memory,
    check_tensor_memory_end,
    check_transpositions,
    check_warpgroup_copies,
    check_warpgroup_parts,
    find_overlaps,
)
from tilec.support import records
from tilec.support.identity import cache_by_identity

MAX_STEPS = 20_000  # operations executed per role: enough for every shape of pipeline, whatever the trip count
MAX_STEPS_OF_ALL_SCENARIOS = 200_000  # the budget of all scenarios together, shared equally where there are many


@records.dataclass(frozen=True, slots=True)
class SplitRole:
    """A role that is cut short before this operation: nothing after it is verified."""

    role: str
    at: Operation
    steps: int


def program_violations(program: Program) -> Iterator[str]:
    """Yield a sentence for each rule of warp IR that a program breaks; none where it may become code."""
    return iter(verify_program(program)[0])


@cache_by_identity(4)
def verify_program(program: Program) -> tuple[tuple[str, ...], tuple[SplitRole, ...]]:
    """Return a program's violations, and for each role that ran too many steps the operation before which it was cut
    short. The result is cached."""
    skips: dict[str, SplitRole] = {}
    return tuple(_find_violations(program, skips)), tuple(skips.values())


def _find_violations(program: Program, skips: dict[str, SplitRole]) -> Iterator[str]:
    """Yield the violations of a program: static checks, then runs of all scenarios up to the first that breaks a rule.
    The sections are verified one after the other. A run without skipped iterations has to confirm a violation. The
    roles that were cut short are recorded in `skips`.
    """
    yield from check_tensor_memory_end(program)
    if len(program.sections) > 1:
        yield from check_sections(program)
        yield from check_early_start(program)
        for roles in program.sections:
            yield from _find_violations(replace(program.isolate_section(roles), begins_early=False), skips)
        return
    yield from check_partition(program)
    yield from check_shared_memory(program)
    yield from check_alignment(program)
    yield from check_tma_boxes(program)
    yield from check_box_starts(program)
    yield from check_warpgroup_parts(program)
    yield from check_warpgroup_copies(program)
    yield from check_transpositions(program)
    yield from check_reductions(program)
    yield from check_replicas(program)
    yield from check_early_start(program)
    overlaps, parts = find_overlaps(program), TensorParts(program)
    same_for_all_iterations: set[tuple[tuple[str, int], ...]] = set()
    cases = list(build_scenarios(program))
    steps = min(MAX_STEPS, MAX_STEPS_OF_ALL_SCENARIOS // len(cases))
    for scenario in cases:
        known = tuple(scenario.values.items())
        if known in same_for_all_iterations and scenario.taken is None:
            continue
        run = _VerifierRun(program, scenario, overlaps, parts, steps, whole=False)
        is_broken = any(run.find_violations())
        for divided_role in run.skips:
            skips.setdefault(divided_role.role, divided_role)
        if is_broken:
            yield from _VerifierRun(program, scenario, overlaps, parts, steps, whole=True).find_violations()
            return
        if not any(execution.asked for execution in run.executions):
            same_for_all_iterations.add(known)


class _RuleViolation(Exception):
    """A rule is violated, as `message` describes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# ---- rings -----------------------------------------------------------------------------------------------------------


class _VerifierRun:
    """One run of all roles together, each until it must wait, and for `steps` operations at most. Unless it is the
    `whole` run, loops skip iterations that repeat earlier ones; the whole run has to confirm a violation found this
    way."""

    def __init__(
        self, program: Program, scenario: Scenario, overlaps: Overlaps, parts: TensorParts, steps: int, whole: bool
    ) -> None:
        self.program, self.parts, self.steps = program, parts, steps
        self.rings = {r.name: r for r in program.rings}
        self.ring_of: dict[str, Ring] = {b: r for r in program.rings for b in r.buffers}
        self.conflicts, self.tensor_fences = Conflicts(program, parts), TensorFences(program)
        self.of_pairs = {  # roles that run in the first block of a pair only
            role.name
            for role in program.roles
            if any(isinstance(op, warp.TensorMma) and op.paired for op in warp.walk_operations(role.body))
        }
        self.versions = {(r.name, v): RingVersion.of(r) for r in program.rings for v in range(r.depth)}
        self.next_in_ping_pong = 0  # the warpgroup that has the turn
        period = 0 if whole else lcm(*(r.depth for r in program.rings))
        skips: dict[tuple[str, int], int] = {}
        numbered = [(n, part) for role in program.roles for n, part in enumerate(_split_ping_pong(role))]
        self.executions = [Execution(scenario, period, skips, parts.loops) for _ in numbered]
        self.roles = [
            RoleState(part, execution.run(part.body, dict(scenario.values)), number=number, index=index)
            for index, ((number, part), execution) in enumerate(zip(numbered, self.executions, strict=True))
        ]
        # Roles that the kernel makes are ordered by its own barriers, which are not followed here.
        self.order = AccessOrder(
            program, ["" if program.explicit_roles else part.name.split()[0] for _, part in numbered]
        )
        for state in self.roles:
            barrier = state.role.ping_pong_barrier
            same = (s for s in self.roles if s is not state and s.role.ping_pong_barrier == barrier is not None)
            state.mates = tuple(same)
        self.overlaps = overlaps
        self.skips: list[SplitRole] = []
        self.covered: dict[str, str] = {}  # tiles whose memory another tile reuses, and that tile
        self.latest: dict[frozenset[str], str] = {}  # of two tiles that share memory, the one touched last

    def find_violations(self) -> Iterator[str]:
        """Run all roles together, and yield the violation that stops them, a deadlock, or what is left over at the
        end."""
        try:
            how = run_together(
                self.roles, self.advance_role, lambda state: state.done, lambda state: state.executed > self.steps
            )
        except _RuleViolation as broken:
            yield broken.message
            return
        if how == "stuck":
            for state in self.roles:
                if state.waiting is not None:
                    place = f"{op_name(state.waiting)}, line {state.waiting.span.line}"
                    yield f"role {state.role.name} waits for ever at {place}"
        elif how == "done":
            yield from self.find_leftovers()

    def advance_role(self, state: RoleState) -> bool:
        """Run a role until it must wait, ends or exceeds its steps; return whether it made progress. Raises
        `_RuleViolation`."""
        has_moved = False
        while not state.done:
            op = state.waiting or next(state.steps, None)
            if op is None or state.executed > self.steps:
                if op is not None:
                    self.skips.append(SplitRole(state.role.name, op, state.executed))
                state.done = True
                return True
            state.waiting = None
            behind = any(mate.interval < state.interval and not mate.done for mate in state.mates)
            message = None if behind else self.execute(state, op)
            if message is None:
                state.waiting = op
                return has_moved
            state.executed += 1
            state.has_released = isinstance(op, warp.ClusterArrive) and not op.relaxed
            if message:
                raise _RuleViolation(message)
            has_moved = True
        return has_moved

    def execute(self, state: RoleState, op: Operation) -> str | None:
        """Execute one operation of a role: return a violation, "" if there is none, None if the operation has to
        wait."""
        if message := self.tensor_fences.missing(state, op):
            return message
        match op:
            case warp.RingAcquire(cursor=cursor):
                _, version, phase = self.find_position(state, cursor)
                if version.empty.phase < phase:
                    return None
                self.record_wait(state, cursor, "empty", phase)
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
                # With a leader it is ordered by the kernel's own barriers.
                return self.issue_product(state, op) if op.leader is None else ""
            case warp.TmaLoad(destination=tile) | warp.TryCancel(answer=tile):
                return self.fill_by_tma(state, op, tile.name) if op.barrier is None else ""  # as above
            case warp.TensorCopy():
                return ""  # as above
            case warp.RingWait(cursor=cursor):
                _, version, phase = self.find_position(state, cursor)
                if version.full.phase <= phase:
                    return None
                self.record_wait(state, cursor, "full", phase + 1)
                position = state.positions.get(cursor.name, 0)
                state.waited[cursor.ring] = max(state.waited.get(cursor.ring, 0), position + 1)
                return ""
            case warp.RingFill(cursor=cursor):
                return self.fill_by_writes(state, op, cursor)
            case warp.RingRelease(cursor=cursor):
                return self.release_version(state, op, cursor)
            case warp.Advance(cursor=cursor, behind=behind):
                following = state.positions.get(cursor.name, 0) + 1
                if behind is not None and state.positions.get(behind.name, 0) != following:
                    return f"line {op.span.line}: {behind.name} is not one version before {cursor.name}"
                state.positions[cursor.name] = following
                return ""
            case warp.RingDrain(cursor=cursor):
                ring = self.rings[cursor.ring]
                left = (self.versions[(ring.name, v)] for v in range(ring.depth))
                return "" if all(version.full.phase == version.empty.phase for version in left) else None
            case warp.BarSync() | warp.ClusterWait() | warp.GridSync():
                if state.has_tensor_cores:
                    return f"line {op.span.line}: a warpgroup waits at a barrier of the role during its ping-pong turn"
                if isinstance(op, warp.ClusterWait) and not state.has_released:
                    return ""
                state.interval += 1
                state.part += 1
                return ""
            case warp.WarpgroupSync(first=first):
                taken = {self.program.named_barrier(number) for number in range(len(self.program.roles))}
                taken |= {barrier for role in self.program.roles for barrier in role.ping_pong_barriers}
                mine = range(first, first + state.role.warps // 4)
                if state.role.warps % 4 or mine.stop > 16 or not taken.isdisjoint(mine):
                    return f"line {op.span.line}: the warpgroups' barriers are taken by another role, or do not exist"
                state.part += 1
                return ""
            case warp.PingPongWait():
                if state.role.ping_pong_barrier is None or state.has_tensor_cores:
                    return (
                        f"line {op.span.line}: a warpgroup waits for a ping-pong turn that it has already, or "
                        "that no warpgroup passes to it"
                    )
                if self.next_in_ping_pong != state.number:
                    return None
                state.has_tensor_cores = True
                return ""
            case warp.PingPongPass():
                if not state.has_tensor_cores:
                    return f"line {op.span.line}: a warpgroup passes on a ping-pong turn that it does not have"
                state.has_tensor_cores = False
                self.next_in_ping_pong = (state.number + 1) % sum(
                    s.role.ping_pong_barrier == state.role.ping_pong_barrier for s in self.roles
                )
                return ""
            case warp.ProxyFence():
                self.order.fence(state.index)
                for access in self.list_all_accesses(state):
                    access.fenced |= access.group == 0
                return ""
            case warp.CpAsyncWait(pending=pending):
                return self.wait_for_groups(state, "cp.async", pending)
            case warp.WgmmaWait(pending=pending):
                return self.wait_for_groups(state, "wgmma", pending)
            case warp.BulkWait(pending=pending):
                return self.wait_for_groups(state, "bulk", pending)
            case warp.TensorWait(what=what):
                return self.wait_for_groups(state, {"load": "tcgen05.ld", "store": "tcgen05.st"}[what], 0)
            case warp.CopiesArrive():
                for accesses in state.accesses.values():  # a wait for the barrier covers these copies
                    accesses[:] = [a for a in accesses if not (a.queue == "cp.async" and a.group and a.write)]
                return ""
            case warp.CpAsyncCommit():
                state.groups["cp.async"] = state.groups.get("cp.async", 0) + 1
                return ""
            case warp.Await():
                return self.check_await(state, op)
            case _:
                return self.access_buffers(state, op)

    def find_position(self, state: RoleState, cursor: warp.Cursor) -> tuple[Ring, RingVersion, int]:
        """Return the ring of a cursor, the version at the cursor's position, and how often the position has wrapped
        around."""
        ring = self.rings[cursor.ring]
        phase, slot = divmod(state.positions.get(cursor.name, 0), ring.depth)
        return ring, self.versions[(ring.name, slot)], phase

    def fill_by_tma(self, state: RoleState, op: Operation, buffer: str) -> str:
        """Record that TMA fills a tile of an acquired version; the last tile completes its barrier; return a violation
        or ""."""
        ring, cursor = self.ring_of[buffer], self.find_cursor(op, buffer)
        position = None if cursor is None else state.positions.get(cursor.name, 0)
        if position is None or position >= state.acquired.get(ring.name, 0):
            return f"line {op.span.line}: {buffer} is filled before its version is acquired"
        missing = state.missing.get((ring.name, position), set())
        if buffer not in missing:
            return f"line {op.span.line}: {buffer} is filled twice"
        missing.remove(buffer)
        place = (ring.name, position % ring.depth)
        version = self.versions[place]
        if message := self.order.load(state.index, op, buffer, place, position, version.full.phase):
            return message
        if not missing:
            # The barrier counts all bytes of a version: the last copy completes it.
            version.full.fill()
        return ""

    def record_wait(self, state: RoleState, cursor: warp.Cursor, which: Literal["full", "empty"], phases: int) -> None:
        """Record in the order of accesses that the role has waited for `phases` phases of a barrier of the cursor's
        version."""
        ring, slot = self.rings[cursor.ring], state.positions.get(cursor.name, 0) % self.rings[cursor.ring].depth
        self.order.wait(state.index, (ring.name, slot, which), phases)

    def arrive_at_barrier(
        self, state: RoleState, op: warp.RingFill | warp.RingRelease, which: Literal["full", "empty"], arrivals: int
    ) -> str:
        """Count arrivals of a role, or the tensor cores for it, at a version's barrier; return a violation if too many,
        else ""."""
        ring, version, _ = self.find_position(state, op.cursor)
        barrier = version.full if which == "full" else version.empty
        slot = state.positions.get(op.cursor.name, 0) % ring.depth
        self.order.signal(state.index, (ring.name, slot, which), barrier.phase, op.by_tensor_cores)
        if (come := barrier.arrived + arrivals) > barrier.count:
            does = "fill" if which == "full" else "release"
            return f"line {op.span.line}: {come} {ring.by}s {does} {ring.name}, its barrier counts {barrier.count}"
        barrier.arrive(arrivals)
        return ""

    def issue_product(self, state: RoleState, op: warp.TensorMma) -> str:
        """Record that the tensor cores hold the versions of a product's tiles until they signal; return a violation or
        "". Products into one accumulator stay in order."""
        slots: dict[str, tuple[int, int]] = {}
        for tile in (op.a, op.b, op.c):
            slot = self.find_slot(state, op, tile.name)
            if isinstance(slot, str):
                return slot
            ring = self.ring_of.get(tile.name)
            if ring is None or not ring.has_barriers:
                return f"line {op.span.line}: the tensor cores touch {tile.name}, which is in no ring with barriers"
            cursor = next(c for c in op.cursors if c.ring == ring.name)
            position = state.positions.get(cursor.name, 0)
            state.missing.get((ring.name, position), set()).discard(tile.name)
            state.given.add((ring.name, position))
            slots[tile.name] = (slot, position)
        return self.order.multiply(state.index, op, slots)

    def check_handover(self, state: RoleState, op: warp.RingFill | warp.RingRelease) -> str:
        """Return a violation if a thread commits or releases a version that the tensor cores hold, else ""."""
        ring = op.cursor.ring
        is_given = (ring, state.positions.get(op.cursor.name, 0)) in state.given
        if is_given and not op.by_tensor_cores:
            return f"line {op.span.line}: {ring} is committed while the tensor cores use it"
        return ""

    def fill_by_writes(self, state: RoleState, op: warp.RingFill, cursor: warp.Cursor) -> str:
        """Commit a version that a role has acquired and written: arrive at its full barrier; return a violation or
        ""."""
        ring, position = self.rings[cursor.ring], state.positions.get(cursor.name, 0)
        if position >= state.acquired.get(ring.name, 0):
            return f"line {op.span.line}: {ring.name} is committed before its version is acquired"
        if position < state.left.get(ring.name, 0):
            return f"line {op.span.line}: {ring.name} is committed twice"
        if message := self.check_handover(state, op):
            return message
        if (missing := state.missing.get((ring.name, position))) and not op.by_tensor_cores:
            return f"line {op.span.line}: {ring.name} is committed before {min(missing)} is written"
        if not op.keeps and (message := self.give_up_version(state, op, ring, position, "committed")):
            return message
        return self.arrive_at_barrier(state, op, "full", state.role.arrivals(ring.by))

    def give_up_version(self, state: RoleState, op: Operation, ring: Ring, position: int, how: str) -> str:
        """Drop a role's accesses to a ring version; return a violation if one is in flight or unfenced, else "".
        Another role may then touch the version by either proxy. Of a released version they are kept in `state.spent`.
        """
        slot = position % ring.depth
        for buffer in ring.buffers:
            for access in state.accesses.get((buffer, slot), ()):
                if access.group:
                    return f"line {op.span.line}: {ring.name} is {how} while {access.op} still reads it"
                if (access.write or ring.heard_by) and not access.fenced:
                    return f"line {op.span.line}: {ring.name} is {how} with no proxy fence after {access.op}"
            # A role that has waited for the other role comes after these accesses.
            if (done := state.accesses.pop((buffer, slot), None)) and how == "released":
                state.spent[(buffer, slot)] = done
        state.left[ring.name] = max(state.left.get(ring.name, 0), position + 1)
        return ""

    def release_version(self, state: RoleState, op: warp.RingRelease, cursor: warp.Cursor) -> str:
        """Release a filled version: give it up and arrive at its empty barrier, for all blocks; return a violation or
        ""."""
        ring, version, phase = self.find_position(state, cursor)
        if message := self.check_handover(state, op):
            return message
        if message := self.give_up_version(state, op, ring, state.positions.get(cursor.name, 0), "released"):
            return message
        if version.full.phase <= phase:
            return f"line {op.span.line}: {ring.name} is released before it was filled"
        # Blocks that share tiles run alike: as many blocks release this version as this block releases it to.
        blocks = len(multicast_ranks_of_any(self.program.cluster, ring.shared))
        if ring.paired and not op.by_tensor_cores:
            blocks = 2
        if ring.heard_by:
            blocks = ring.heard_by // 2 if state.role.name in self.of_pairs else ring.heard_by
        return self.arrive_at_barrier(state, op, "empty", state.role.arrivals(ring.by) * blocks)

    def wait_for_groups(self, state: RoleState, queue: str, pending: int) -> str:
        """Mark a role's accesses in all but the `pending` newest groups of a queue as complete in the current interval;
        return ""."""
        done = state.groups.get(queue, 0) - pending
        self.order.complete(state.index, queue, done)
        for access in self.list_all_accesses(state):
            if access.queue == queue and 0 < access.group <= done:
                access.group, access.interval, access.part = 0, state.interval, state.part
        return ""

    def list_all_accesses(self, state: RoleState) -> Iterator[Access]:
        """Yield a role's recorded accesses to all versions of all buffers."""
        for accesses in state.accesses.values():
            yield from accesses

    def access_buffers(self, state: RoleState, op: Operation) -> str:
        """Check all of an operation's accesses against earlier ones, then record them; return the first violation or
        ""."""
        reads, writes, queue, async_reads = operation_effects(op)
        group = 0
        if queue is not None:
            group = state.groups.get(queue, 0) + 1
            if queue != "cp.async":  # whose groups are closed by commits
                state.groups[queue] = group
        accesses = [*((n, False) for n in sorted(reads)), *((n, True) for n in sorted(writes))]
        kept_of = {}
        atomic = atomic_buffers(op)
        # Check all conflicts before recording: an operation may read and write one tile without waiting for itself.
        for name, write in accesses:
            slot = self.find_slot(state, op, name)
            if isinstance(slot, str):
                return slot
            if message := self.check_reused_memory(state, op, name):
                return message
            if message := self.check_sharing(state, op, name):
                return message
            kept_of[name] = state.accesses.setdefault((name, slot), [])
            for earlier in kept_of[name]:
                if earlier.atomic and name in atomic and earlier.queue == queue:
                    continue  # in any order
                message = self.conflicts.after(state, op, name, earlier, write, queue, name in async_reads)
                if message and not are_always_disjoint(earlier.reached, self.find_reached(state, op, name, write)):
                    return message
        for name, write in accesses:
            through = self.find_cursor(op, name)
            number = None if through is None else state.positions.get(through.name, 0)
            slot = 0 if number is None else number % self.ring_of[name].depth
            past = PastAccess(op, write, name in async_reads, number, name in atomic, queue, group)
            if message := self.order.touch(state.index, name, slot, past):
                return message
        for name, write in accesses:
            kept = kept_of[name]
            if name in self.parts.tensors:
                self.parts.keep(state, op, kept)
            else:
                if write and queue is None:
                    kept.clear()
                kept[:] = kept[-8:]
            if write and (ring := self.ring_of.get(name)) is not None:
                through = self.find_cursor(op, name)
                position = 0 if through is None else state.positions.get(through.name, 0)
                state.missing.get((ring.name, position), set()).discard(name)
            now = state.interval, state.part
            own_rows = name in self.overlaps.own_rows(op)
            access = Access(op, write, name in async_reads, queue, group, *now, name in atomic, own_rows)
            access.reached = self.find_reached(state, op, name, write)
            kept.append(access)
        return ""

    def find_reached(self, state: RoleState, op: Operation, name: str, write: bool) -> Reached:
        """Return the boxes of a tensor that an operation reads or writes with the variables' current values."""
        return self.parts.reached(op, name, write, self.executions[state.index].values)

    def find_cursor(self, op: warp.Operation, name: str) -> warp.Cursor | None:
        """Return the operation's cursor in the ring of a tile; None for a tile in no ring, or an operation without
        one."""
        ring = self.ring_of.get(name)
        return next((c for c in op.cursors if ring is not None and c.ring == ring.name), None)

    def find_slot(self, state: RoleState, op: warp.Operation, name: str) -> int | str:
        """Return the slot of the version that an operation touches; a violation, as text, if the role does not hold the
        version."""
        if over := self.covered.get(name):
            return f"line {op.span.line}: {op_name(op)} touches {name} while {over} has its memory"
        ring = self.ring_of.get(name)
        if ring is None or (ring.depth == 1 and not ring.has_barriers):
            return 0
        cursor = self.find_cursor(op, name)
        if cursor is None:
            return f"line {op.span.line}: {op_name(op)} touches {name} without a version"
        position = state.positions.get(cursor.name, 0)
        # Nobody else may touch a version while TMA fills it.
        filling = 0 if ring.bytes else state.acquired.get(ring.name, 0)
        if ring.has_barriers and position >= max(state.waited.get(ring.name, 0), filling):
            return f"line {op.span.line}: {op_name(op)} touches {name} before it has waited for the version"
        if ring.has_barriers and position < state.left.get(ring.name, 0):
            return f"line {op.span.line}: {op_name(op)} touches {name} after it has passed the version on"
        return position % ring.depth

    def check_reused_memory(self, state: RoleState, op: warp.Operation, name: str) -> str:
        """Mark ring tiles whose memory a tile takes as covered; return a violation if they are still in use, else ""
        (rule 10)."""
        for tile, rows_alike in self.overlaps.beneath.get(name, ()):
            ring = self.ring_of[tile]
            begun = max(other.acquired.get(ring.name, 0) for other in self.roles)
            for version in range(ring.depth):
                done = self.versions[(ring.name, version)]
                times = len(range(version, begun, ring.depth))
                if ring.has_barriers and not times == done.full.phase == done.empty.phase:
                    return f"line {op.span.line}: {name} reuses the memory of {ring.name}, which is not released yet"
                for other in self.roles:
                    place = (tile, version)
                    for earlier in (*other.accesses.get(place, ()), *other.spent.get(place, ())):
                        if other is not state and other not in state.mates:
                            return (
                                f"line {op.span.line}: {name} reuses the memory of {tile}, which "
                                f"{other.role.name} also uses"
                            )
                        per_warpgroup = rows_alike and name in self.conflicts.per_warpgroup and earlier.own_rows
                        if per_warpgroup and not earlier.group and earlier.part < state.part:
                            continue
                        if message := self.conflicts.after(state, op, tile, earlier, True, None, False, by_all=True):
                            return f"{message}, and {name} reuses its memory"
            self.covered[tile] = name
        return ""

    def check_sharing(self, state: RoleState, op: warp.Operation, name: str) -> str:
        """Record a tile as the latest user of shared memory; return a violation if another tile still uses it, else ""
        (rule 10). Both are in no ring."""
        beside = self.overlaps.beside.get(name)
        if not beside:
            return ""
        reads, _, _, by_async = operation_effects(op)
        for other in beside:
            pair = frozenset((name, other))
            if self.latest.get(pair, name) == name:
                self.latest[pair] = name
                continue
            where = f"line {op.span.line}: {name}"
            if name in reads:
                return f"{where} is read while {other} has its memory"
            for role in self.roles:
                for earlier in role.accesses.get((other, 0), ()):
                    if role is not state and role not in state.mates:
                        return f"{where} reuses the memory of {other}, which {role.role.name} also uses"
                    if message := self.conflicts.after(
                        state, op, other, earlier, True, None, name in by_async, by_all=True
                    ):
                        return f"{message}, and {name} reuses its memory"
            self.latest[pair] = name
        return ""

    def check_await(self, state: RoleState, op: warp.Await) -> str:
        """Return a violation if an asynchronous operation on the tiles of an `Await` is pending, else "". With
        `rendezvous` it is one too if an access of the role has no barrier or fence after it. With `readers` an
        overwrite follows, so that earlier reads count too."""
        for name in op.tiles:
            slot = self.find_slot(state, op, name)
            if isinstance(slot, str):
                return slot
            for earlier in state.accesses.get((name, slot), ()):
                if op.rendezvous and (
                    message := self.conflicts.after(state, op, name, earlier, op.readers, None, False)
                ):
                    return message
                if earlier.group and (earlier.write or op.readers):
                    return f"line {op.span.line}: {name} is awaited while {earlier.op} is pending"
        return ""

    def find_leftovers(self) -> Iterator[str]:
        """Yield violations at the end of a run: a turn not passed back, work in flight except cp.async, unreleased
        versions.
        """
        if self.next_in_ping_pong or any(state.has_tensor_cores for state in self.roles):
            yield f"the last ping-pong turn is passed to warpgroup {self.next_in_ping_pong}, not to the first one"
        for state in self.roles:
            for access in self.list_all_accesses(state):
                if access.group and access.queue in ("bulk", "wgmma", "tcgen05.ld", "tcgen05.st"):
                    yield f"role {state.role.name} ends while {access.op} is in flight"
                    return
        for (name, slot), version in self.versions.items():
            filled, released = version.full.phase, version.empty.phase
            if self.rings[name].has_barriers and filled != released:
                yield f"version {slot} of {name} is filled {filled} times and released {released} times"


def _split_ping_pong(role: Role) -> tuple[Role, ...]:
    """Return the parts of a role that run independently: its warpgroups, as roles, in ping-pong; else the role
    itself."""
    if role.ping_pong_barrier is None:
        return (role,)
    return tuple(
        replace(role, name=f"{role.name} {number + 1}", first_warp=role.first_warp + 4 * number, warps=4)
        for number in range(len(role.ping_pong_barriers))
    )
