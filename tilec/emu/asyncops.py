"""mbarrier and cp.async: what is asynchronous happens at the latest moment that the waits of the kernel allow.

A copy takes its destination when it is issued and writes it when somebody's wait needs it, reading its source only
then. A kernel that reads too early therefore always faults, and one that overwrites a source too early computes
nonsense, where hardware would be right most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.decode import Form, Place, Step, semantics
from tilec.emu.fault import Fault
from tilec.emu.memory import BARRIER, GUARD, IN_FLIGHT, SHARED_WINDOW, VALID, WINDOW_SHIFT
from tilec.emu.numbers import Array

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Group, Threads


@dataclass(slots=True, eq=False)
class Copy:
    """A bulk copy that a barrier will report: `finish` writes its bytes."""

    size: int
    line: int
    finish: Callable[[], None]


@dataclass(slots=True, eq=False)
class Barrier:
    """An mbarrier. `version` changes with every event, so that waiters know when to look again."""

    address: int
    expected: int
    pending: int
    tx: int = 0
    phase: int = 0
    version: int = 0
    copies: list[Copy] = field(default_factory=list)
    deferred: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """Arrivals that `cp.async` copies will make: how many, and how to finish the copies."""

    def arrive(self, count: int) -> None:
        """`count` arrivals at once, all of one phase."""
        if self.pending < count:
            self.settle()
        if self.pending < count:
            message = f"{count} arrivals on the mbarrier at {self.address:#x}, whose phase {self.phase} awaits"
            raise Fault("barrier-overflow", f"{message} {self.pending} more of {self.expected}{self._bytes()}")
        self.pending -= count
        self.version += 1
        if self.pending == 0 and self.tx == 0:
            self._flip()

    def expect(self, size: int) -> None:
        self.tx += size
        self.version += 1
        if self.tx > 0xFFFFF:
            raise Fault(
                "barrier-overflow", f"{self.tx} bytes expected by one phase of the mbarrier at {self.address:#x}"
            )

    def add(self, copy: Copy) -> None:
        self.copies.append(copy)
        self.version += 1

    def settle(self) -> None:
        """Finish the operations in flight that complete the phase, if they do."""
        if self.deferred and sum(count for count, _ in self.deferred) >= self.pending:
            deferred, self.deferred = self.deferred, []
            for count, finish in deferred:
                finish()
                self.pending -= count
            self.version += 1
        if self.pending == 0 and sum(copy.size for copy in self.copies) >= self.tx:
            while self.tx > 0:
                copy = self.copies.pop(0)
                copy.finish()
                self.tx -= copy.size
                self.version += 1
            if self.tx == 0:
                self._flip()

    def _flip(self) -> None:
        self.phase += 1
        self.pending = self.expected
        self.version += 1

    def _bytes(self) -> str:
        if not self.tx:
            return ""
        return f" and {self.tx} bytes, {sum(copy.size for copy in self.copies)} of them in flight"

    def state(self) -> str:
        """What the current phase still awaits."""
        return f"phase {self.phase} awaits {self.pending} of {self.expected} arrivals{self._bytes()}"


@dataclass(slots=True, eq=False)
class ThreadCopies:
    """One `cp.async` of many threads. Arrays are over all threads of the block; `active` says whose copy is pending."""

    line: int
    width: int
    active: Array
    destination: Array
    source: Array
    source_bytes: Array
    batch: Array
    sequence: int


@dataclass(slots=True)
class BulkGroups:
    """The bulk stores of one thread: those not yet committed, and the committed groups, oldest first."""

    open: list[BulkStore] = field(default_factory=list)
    committed: list[list[BulkStore]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class BulkStore:
    """A copy out of shared memory: `read` takes the bytes, `write` puts them where they go."""

    line: int
    read: Callable[[], None]
    write: Callable[[], None]
    is_read: bool = False
    is_written: bool = False


class RegisterOwner:
    """Owns registers while it is pending: an issued `wgmma`."""

    line: int
    accumulators: frozenset[Place]
    inputs: frozenset[Place]


class AsyncState:
    """What is in flight in one block."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: dict[int, Barrier] = {}
        self.copies: list[ThreadCopies] = []
        self.committed = np.zeros(cta.thread_count, np.int64)
        self.sequence = 0
        self.bulk: dict[int, BulkGroups] = {}
        self.regions: list[tuple[Array, int, str]] = []
        """The shared rows that bulk copies own, with the line that issued them."""
        self.matrix: dict[int, Any] = {}
        """What `wgmma` has pending, by warpgroup."""
        self.owned: list[tuple[int, RegisterOwner]] = []
        self.owned_registers: set[Place] = set()

    # -- faults --------------------------------------------------------------------------------------------------------

    def explain(self, address: int) -> str:
        """Which operation in flight owns a shared address, as the end of a sentence."""
        for copies in self.copies:
            inside = copies.active & (copies.destination <= address) & (address < copies.destination + copies.width)
            if inside.any():
                return f" before cp.async of PTX line {copies.line} was waited for"
        for rows, line, what in self.regions:
            if (rows == (address - self.cta.shared.base) // 16).any():
                return f" before {what} of PTX line {line} was waited for"
        return ""

    def own(self, warpgroup: int, owner: RegisterOwner) -> None:
        self.owned.append((warpgroup, owner))
        self.owned_registers |= owner.accumulators | owner.inputs

    def disown(self, finished: list[RegisterOwner]) -> None:
        self.owned = [(warpgroup, owner) for warpgroup, owner in self.owned if owner not in finished]
        self.owned_registers = set().union(*(owner.accumulators | owner.inputs for _, owner in self.owned))

    def require_registers(self, step: Step, group: Group) -> None:
        """An ordinary instruction must keep off the registers of a pending `wgmma`."""
        if step.stem == "wgmma.mma_async":
            return
        warpgroups = set((group.indices // 128).tolist())
        for warpgroup, owner in self.owned:
            taken = (owner.accumulators | owner.inputs) & step.registers
            if taken and warpgroup in warpgroups:
                names = "an accumulator" if taken & owner.accumulators else "an A register"
                message = f"touches {names} of the wgmma of PTX line {owner.line}"
                raise Fault("unarrived-read", f"{message}, which has not been waited for (wgmma.wait_group)")

    def finish(self) -> None:
        """The block has ended."""
        for thread, groups in sorted(self.bulk.items()):
            stores = [*groups.open, *(store for batch in groups.committed for store in batch)]
            for store in stores:
                if not store.is_read:
                    message = f"thread {thread} ends before its bulk store of PTX line {store.line} has read its source"
                    raise Fault("exit-before-read", f"{message} (cp.async.bulk.wait_group.read)", store.line)
                if not store.is_written:
                    self.cta.launch.late_stores.append(store.write)

    # -- cp.async ------------------------------------------------------------------------------------------------------

    def finish_copies(self, limit: Array, sequence: int = 1 << 62) -> None:
        """Deliver every thread's copies of batches below its `limit` that are older than `sequence`."""
        remaining = []
        for copies in self.copies:
            if copies.sequence < sequence:
                due = copies.active & (copies.batch < limit)
                if due.any():
                    self._deliver(copies, due)
                    copies.active &= ~due
            if copies.active.any():
                remaining.append(copies)
        self.copies = remaining

    def _deliver(self, copies: ThreadCopies, due: Array) -> None:
        width = copies.width
        source, count = copies.source[due], copies.source_bytes[due]
        data = np.zeros((len(source), width), np.uint8)
        whole = count == width
        memory = self.cta.launch.memory
        if whole.any():
            data[whole] = memory.load(source[whole], width).reshape(int(whole.sum()), -1).view(np.uint8)
        for index in np.flatnonzero(~whole & (count > 0)).tolist():
            addresses = source[index] + np.arange(count[index])
            data[index, : count[index]] = memory.load(addresses, 1)
        self.cta.shared.deliver(copies.destination[due], width, data)

    # -- mbarrier ------------------------------------------------------------------------------------------------------

    def barrier(self, address: int) -> Barrier:
        found = self.barriers.get(address)
        if found is None:
            raise Fault("bad-barrier", f"no mbarrier was initialised at shared address {address:#x}")
        return found


def shared_address(address: int) -> int:
    """A generic address of shared memory, or a shared address, as a shared address."""
    if address >> WINDOW_SHIFT == SHARED_WINDOW >> WINDOW_SHIFT:
        return address - SHARED_WINDOW
    return address


def barrier_at(cta: Cta, address: int) -> Barrier:
    """The mbarrier at an address, of this block or of another one of the cluster."""
    owner, local = cta.peer(shared_address(address))
    return owner.asynchronous.barrier(local)


def _by_address(addresses: Array) -> Iterator[tuple[int, Array]]:
    """Each different address and which threads name it."""
    first = int(addresses[0])
    same = addresses == first
    if same.all():
        yield first, same
        return
    for address in np.unique(addresses).tolist():
        yield int(address), addresses == address


# -- cp.async ----------------------------------------------------------------------------------------------------------


@semantics("cp.async")
def _cp_async(form: Form) -> None:
    destination, source = form.address(form.operands[0]), form.address(form.operands[1])
    width = form.integer(form.operands[2])
    if width not in (4, 8, 16) or (form.has("cg") and width != 16):
        raise form.unsupported(f"a copy of {width} bytes")
    # After the size comes the number of bytes to read, or, as the last operand, a cache policy.
    rest = form.operands[3:]
    has_policy = form.has("L2::cache_hint")
    sizes = rest[: len(rest) - has_policy]
    size_slot = form.read(sizes[0], "u32") if sizes else -1
    line = form.step.instruction.line

    def run(cta: Cta, threads: Threads) -> None:
        state = cta.asynchronous
        to, source_at = destination(cta, threads), source(cta, threads)
        count = np.full(len(to), width) if size_slot < 0 else cta.views[size_slot][threads].astype(np.int64)
        if (count > width).any():
            raise Fault("out-of-bounds", f"cp.async reads {int(count.max())} bytes for a copy of {width}")
        cta.shared.claim(to, width)
        read = source_at[count > 0]
        if len(read):
            cta.launch.memory.load(read, width if size_slot < 0 else 1)
            if size_slot >= 0 and (read & (width - 1)).any():
                raise Fault("misaligned", f"a source of cp.async is not a multiple of {width}")
        active = np.zeros(cta.thread_count, np.bool_)
        active[threads] = True
        destinations, sources, counts = (np.zeros(cta.thread_count, np.int64) for _ in range(3))
        destinations[threads], sources[threads], counts[threads] = to, source_at, count
        state.sequence += 1
        batch = state.committed.copy()
        state.copies.append(ThreadCopies(line, width, active, destinations, sources, counts, batch, state.sequence))

    form.step.run = run


@semantics("cp.async.commit_group")
def _cp_async_commit(form: Form) -> None:
    def run(cta: Cta, threads: Threads) -> None:
        cta.asynchronous.committed[threads] += 1

    form.step.run = run


def _waiting_run(groups_left: int | None) -> Callable[[Cta, Threads], None]:
    def run(cta: Cta, threads: Threads) -> None:
        state = cta.asynchronous
        limit = np.full(cta.thread_count, -1, np.int64)
        if groups_left is None:
            limit[threads] = 1 << 60
        else:
            limit[threads] = state.committed[threads] - groups_left
        state.finish_copies(limit)

    return run


@semantics("cp.async.wait_group")
def _cp_async_wait(form: Form) -> None:
    form.step.run = _waiting_run(form.integer(form.operands[0]))


@semantics("cp.async.wait_all")
def _cp_async_wait_all(form: Form) -> None:
    form.step.run = _waiting_run(None)


@semantics("cp.async.mbarrier.arrive")
def _cp_async_arrive(form: Form) -> None:
    pointer = form.address(form.operands[0])
    is_counted = form.has("noinc")

    def run(cta: Cta, threads: Threads) -> None:
        state = cta.asynchronous
        members = cta.thread_ids[threads]
        for address, chosen in _by_address(pointer(cta, threads)):
            barrier = barrier_at(cta, address)
            limit = np.full(cta.thread_count, -1, np.int64)
            limit[members[chosen]] = 1 << 60
            count = int(chosen.sum())
            if not is_counted:
                barrier.pending += count
            sequence = state.sequence + 1

            def finish(limit: Array = limit, sequence: int = sequence) -> None:
                state.finish_copies(limit, sequence)

            barrier.deferred.append((count, finish))
            barrier.version += 1

    form.step.run = run


# -- mbarrier ----------------------------------------------------------------------------------------------------------


@semantics("mbarrier.init")
def _init(form: Form) -> None:
    pointer = form.address(form.operands[0])
    count_slot = form.read(form.operands[1], "u32")

    def run(cta: Cta, threads: Threads) -> None:
        counts = cta.views[count_slot][threads]
        for address, chosen in _by_address(pointer(cta, threads)):
            address = shared_address(address)
            count = int(counts[chosen][0])
            if address % 8:
                raise Fault("misaligned", f"an mbarrier at {address:#x}, which is not a multiple of 8")
            if not 0 < count < 1 << 20:
                raise Fault("bad-barrier", f"an mbarrier for {count} arrivals")
            shadow = cta.shared.shadow
            if address + 8 > len(shadow) or (shadow[address : address + 8] & GUARD).any():
                raise Fault("out-of-bounds", f"an mbarrier at {address:#x}, outside of shared memory")
            if (shadow[address : address + 8] & IN_FLIGHT).any():
                raise Fault("unarrived-write", f"an mbarrier at {address:#x}{cta.asynchronous.explain(address)}")
            shadow[address : address + 8] = VALID | BARRIER
            cta.asynchronous.barriers[address] = Barrier(address, count, count)

    form.step.run = run


@semantics("mbarrier.inval")
def _inval(form: Form) -> None:
    pointer = form.address(form.operands[0])

    def run(cta: Cta, threads: Threads) -> None:
        for address, _ in _by_address(pointer(cta, threads)):
            address = shared_address(address)
            cta.asynchronous.barrier(address)
            del cta.asynchronous.barriers[address]
            cta.shared.shadow[address : address + 8] = 0

    form.step.run = run


@semantics("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(form: Form) -> None:
    pointer = form.address(form.operands[1])
    state_slot = form.write(form.operands[0], "u64")
    is_expecting, is_dropping = form.has("expect_tx"), form.stem == "mbarrier.arrive_drop"
    if form.has("noComplete"):
        raise form.unsupported("noComplete")
    amount_slot = form.read(form.operands[2], "u32") if len(form.operands) > 2 else -1

    def run(cta: Cta, threads: Threads) -> None:
        addresses = pointer(cta, threads)
        states = np.zeros(len(addresses), np.uint64)
        for address, chosen in _by_address(addresses):
            barrier = barrier_at(cta, address)
            states[chosen] = barrier.phase
            count = amount = int(chosen.sum())
            if amount_slot >= 0:
                amount = int(cta.views[amount_slot][threads][chosen].astype(np.int64).sum())
            if is_expecting:
                # The expectation belongs to the phase that this arrival belongs to.
                if barrier.pending == 0:
                    barrier.settle()
                barrier.expect(amount)
            else:
                count = amount
            if is_dropping:
                barrier.expected -= count
            barrier.arrive(count)
        cta.views[state_slot][threads] = states

    form.step.run = run


@semantics("mbarrier.expect_tx", "mbarrier.complete_tx")
def _expect(form: Form) -> None:
    pointer = form.address(form.operands[0])
    size_slot = form.read(form.operands[1], "u32")
    sign = 1 if form.stem == "mbarrier.expect_tx" else -1

    def run(cta: Cta, threads: Threads) -> None:
        sizes = cta.views[size_slot][threads].astype(np.int64)
        for address, chosen in _by_address(pointer(cta, threads)):
            barrier = barrier_at(cta, address)
            if barrier.pending == 0 and sign > 0:
                barrier.settle()
            barrier.expect(sign * int(sizes[chosen].sum()))
            if sign < 0:
                barrier.settle()

    form.step.run = run


@semantics("mbarrier.try_wait", "mbarrier.test_wait")
def _wait(form: Form) -> None:
    result_slot = form.write(form.operands[0], "pred")
    pointer = form.address(form.operands[1])
    by_parity = form.has("parity")
    wanted_slot = form.read(form.operands[2], "u32" if by_parity else "u64")
    is_blocking = form.stem == "mbarrier.try_wait"

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        addresses = pointer(cta, threads)
        wanted = cta.views[wanted_slot][threads]
        done = np.zeros(len(addresses), np.bool_)
        watched: list[tuple[Barrier, int]] = []
        for address, chosen in _by_address(addresses):
            barrier = barrier_at(cta, address)
            for value in set(wanted[chosen].tolist()):
                if not _is_complete(barrier, value, by_parity):
                    barrier.settle()
                if _is_complete(barrier, value, by_parity):
                    done |= chosen & (wanted == value)
                else:
                    watched.append((barrier, barrier.version))
        if not watched or group.is_told_no:
            group.is_told_no = False
            group.polls = 0 if not watched else group.polls
            cta.views[result_slot][threads] = done
            group.pc += 1
            return True

        def reason() -> str:
            return "; ".join(f"the mbarrier at {b.address:#x}, whose {b.state()}" for b, _ in watched)

        def ready() -> bool:
            return any(barrier.version != version for barrier, version in watched)

        members = cta.thread_ids[threads]
        if len(members) < len(group.indices) or done.any():
            # Some of the group need not wait: the others wait here in a group of their own.
            waiting = members[~done]
            cta.views[result_slot][members[done]] = True
            here = group.pc
            cta.split(group, waiting, here)
            parked = cta.groups[-1]
            parked.polls = 0 if is_blocking else group.polls + 1
            parked.park(reason, ready)
            group.pc = here + 1
            return True
        if not is_blocking:
            group.polls += 1
        return group.park(reason, ready)

    form.step.control = control


def _is_complete(barrier: Barrier, wanted: int, by_parity: bool) -> bool:
    if by_parity:
        return (barrier.phase & 1) != (wanted & 1)
    return barrier.phase > wanted
