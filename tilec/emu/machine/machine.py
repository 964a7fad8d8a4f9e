"""Runs one thread block: registers, groups of threads, and the choice of the group that runs next.

A register is a numpy array over all threads of a block, and threads at the same step run it together. The group at the
lowest step runs first, so that threads that diverge at a branch converge where their paths join. Waiting parks a group;
a group that polls memory runs until its quantum is used up, and then others run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.calls.calls import CallStack
from tilec.emu.fault import Fault
from tilec.emu.machine import progress
from tilec.emu.machine.groups import Group, Threads, compact_threads, gather_threads, make_group
from tilec.emu.machine.steps import REGISTER_CLASSES, TIMER_REGISTERS, Step
from tilec.emu.memory.memory import SHARED_BASE, SHARED_RANK_SHIFT, Memory
from tilec.emu.numbers import Array
from tilec.emu.races.order import WARPGROUP
from tilec.emu.races.races import RaceDetector
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.cluster import Cluster
    from tilec.emu.machine.registers import RegisterPool
    from tilec.emu.tma.asyncops import AsyncState

__all__ = ["Cta", "Group", "Threads"]

_WARP = 32
_QUANTUM = 20_000
"""Steps after which a group lets others run, which a loop that polls memory may be waiting for."""
_NO_STEP = 1 << 60
_INITIAL_GARBAGE = {"pred": 0, "16": 0x7E1D, "32": 0x7FBADBAD, "64": 0x7FF7BADBADBADBAD}
"""Initial contents of registers: numbers that should resemble no address and no result."""


@dataclass(slots=True)
class NamedBarrier:
    """`bar.sync id, count`: arrivals so far and expected."""

    expected: int = 0
    arrived: int = 0
    generation: int = 0
    contributions: list[tuple[Group, Array]] = field(default_factory=list)
    results: dict[int, list[Array]] = field(default_factory=dict)
    clock: Array | None = None
    clocks: dict[int, Array | None] = field(default_factory=dict)
    """The clock of each generation, for the threads that waited for it."""


class Cta:
    """One thread block."""

    def __init__(self, cluster: Cluster, rank: int, position: tuple[int, int, int]) -> None:
        launch = cluster.launch
        program = launch.program
        self.cluster = cluster
        self.launch = launch
        self.program = program
        self.rank = rank
        self.position = position
        self.thread_count = launch.thread_count
        self.thread_ids = np.arange(self.thread_count)
        self.exited = np.zeros(self.thread_count, np.bool_)
        self.exited_count = 0
        self.shared = Memory("shared", 0, program.shared_bytes, is_shared=True)
        for name, start, size in program.shared:
            self.shared.allocate(name, start, size)
        self.local = np.zeros((self.thread_count, max(program.local_bytes, 1)), np.uint8)
        self.blocks = {name: self._make_registers(name, dtype) for name, dtype in REGISTER_CLASSES.items()}
        self._fill_constants()
        self.views: list[Any] = [self._make_view(place, view) for place, view in program.slots]
        self.calls = CallStack(self.thread_count, self.local.shape[1])
        self.groups: list[Group] = [make_group(program.start, np.arange(self.thread_count))]
        self.barriers: dict[int, NamedBarrier] = {}
        self.asynchronous: AsyncState = launch.make_async_state(self)
        self.shared.report_fault = launch.report_fault
        order = cluster.order
        self.order = order
        self.actors = self.thread_ids + rank * (-(-self.thread_count // WARPGROUP) * WARPGROUP)
        if order is not None:
            self.shared.race_detector = RaceDetector(self.shared, order, launch.accesses, keeps_readers=True)
        self.register_pool: RegisterPool | None = None
        self.knows_of_refusal = False  # of a request to cancel a cluster
        self.cluster_arrivals = np.zeros(self.thread_count, np.int64)
        self.steps_run = 0
        self.seen_states: dict[int, int | None] = {}
        """States of groups at the ends of their quanta, each with the state of memory; see `progress`."""

    def _make_registers(self, name: str, dtype: np.dtype[Any]) -> Array:
        """Return the registers of a class, [row, thread], with garbage in them: random under an adversary, except
        predicates."""
        shape = (max(self.program.rows[name], 1), self.thread_count)
        generator = self.launch.random
        if generator is not None and name != "pred":
            return np.frombuffer(generator.randbytes(shape[0] * shape[1] * dtype.itemsize), dtype).reshape(shape).copy()
        return np.full(shape, _INITIAL_GARBAGE[name], dtype)

    def _fill_constants(self) -> None:
        """Set the registers that hold constants and special registers; timers are left to the steps that read them."""
        for (_, value), (name, row) in self.program.constants.items():
            self.blocks[name][row] = value
        for name, (class_name, row) in self.program.specials.items():
            if name not in TIMER_REGISTERS:
                self.blocks[class_name][row] = self._compute_special(name)

    def _make_view(self, place: tuple[str, int], view: Any) -> Any:
        """Return a numpy view of one register over all threads, in a type: [thread], or [thread, lane] of a packed
        type."""
        name, row = place
        line = self.blocks[name][row]
        if name == "pred":
            return line
        seen = line.view(view.dtype)
        if view.lanes > 1:
            return seen.reshape(self.thread_count, -1)[:, : view.lanes]
        per_thread = seen.shape[0] // self.thread_count
        # A number narrower than its register is the register's low part: the machine is little-endian, as numpy is.
        return seen if per_thread == 1 else seen[::per_thread]

    def _compute_special(self, name: str) -> Any:
        """Return the value of a special register such as `%tid.x`, one for the block or one for each thread."""
        launch = self.launch
        stem, _, axis = name[1:].partition(".")
        index = "xyz".index(axis) if axis else 0
        ids = self.thread_ids
        x, y, _ = launch.block
        cluster_position = tuple(p // c for p, c in zip(self.position, launch.cluster, strict=True))
        lane = ids % _WARP
        bit = np.left_shift(np.int64(1), lane)
        values: dict[str, Callable[[], Any]] = {
            "tid": lambda: (ids % x, ids // x % y, ids // (x * y))[index],
            "ntid": lambda: launch.block[index],
            "ctaid": lambda: self.position[index],
            "nctaid": lambda: launch.grid[index],
            "clusterid": lambda: cluster_position[index],
            "nclusterid": lambda: launch.grid[index] // launch.cluster[index],
            "cluster_ctaid": lambda: self.position[index] % launch.cluster[index],
            "cluster_nctaid": lambda: launch.cluster[index],
            "laneid": lambda: lane,
            "warpid": lambda: ids // _WARP,
            "nwarpid": lambda: -(-self.thread_count // _WARP),
            "nsmid": lambda: 1,
            "lanemask_eq": lambda: bit,
            "lanemask_lt": lambda: bit - 1,
            "lanemask_le": lambda: bit * 2 - 1,
            "lanemask_gt": lambda: 0xFFFFFFFF - (bit * 2 - 1),
            "lanemask_ge": lambda: 0xFFFFFFFF - (bit - 1),
            "cluster_ctarank": lambda: self.rank,
            "cluster_nctarank": lambda: math.prod(launch.cluster),
            "dynamic_smem_size": lambda: launch.dynamic_smem,
            "aggr_smem_size": lambda: self.program.shared_bytes,
            "reserved_smem_offset_end": lambda: SHARED_BASE,
            "is_explicit_cluster": lambda: math.prod(launch.cluster) > 1,
            **dict.fromkeys(("smid", "gridid", "current_graph_exec", "reserved_smem_offset_begin"), lambda: 0),
            **{f"envreg{number}": lambda: 0 for number in range(32)},
            "total_smem_size": lambda: self.program.shared_bytes - SHARED_BASE,
        }
        return values[stem]()

    def find_peer(self, address: int) -> tuple[Cta, int]:
        """Return the block that a `shared::cluster` address names, and the address in it; fault if it has ended or is
        none."""
        rank = address >> SHARED_RANK_SHIFT
        if not rank:
            return self, address
        if rank > len(self.cluster.ctas):
            raise Fault("out-of-bounds", f"shared::cluster address {address:#x} names no block of the cluster")
        owner = self.cluster.ctas[rank - 1]
        if owner.is_done:
            raise Fault("ended-block", f"block {owner.position} has ended, and its shared memory with it")
        return owner, address & ((1 << SHARED_RANK_SHIFT) - 1)

    def find_clock_rows(self, threads: Threads) -> Threads:
        """Return the rows of the happens-before clocks that belong to these threads: their numbers in the cluster."""
        first = int(self.actors[0])
        return slice(threads.start + first, threads.stop + first) if isinstance(threads, slice) else threads + first

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run groups until all wait or have exited, or have used up a quantum each; return whether anything ran."""
        ran = False
        used_up = 0
        while used_up <= len(self.groups):
            group = self._next_group()
            if group is None:
                break
            ran = True
            if self.run_group(group):
                used_up += 1
                progress.check_for_spinning(self, group)
        return ran

    def _next_group(self) -> Group | None:
        """Return the group that runs next, merged with those at the same step; None if every group waits. The lowest
        time slice and then the lowest step goes first; an adversary draws one and lets asynchronous effects happen."""
        runnable = []
        for group in self.groups:
            if group.ready is not None:
                if not group.ready():
                    continue
                group.ready = None
            runnable.append(group)
        if not runnable:
            return None
        generator = self.launch.random
        if generator is not None:
            self.launch.effect_scheduler.run_some_effects()
            chosen = generator.choice(runnable)
        else:
            chosen = min(runnable, key=lambda group: (group.time_slice, group.pc))
        reconverging = [group for group in runnable if group.pc == chosen.pc]
        if len(reconverging) == 1:
            return chosen
        for group in reconverging:
            self.groups.remove(group)
        indices = np.sort(np.concatenate([group.indices for group in reconverging]))
        merged = make_group(chosen.pc, indices, max(group.time_slice for group in reconverging))
        self.groups.append(merged)
        return merged

    def run_group(self, group: Group) -> bool:
        """Run a group until it waits, splits, may merge or its quantum is used up, and return whether that is; locate
        its faults."""
        steps = self.program.steps
        counts = self.launch.counts
        reconvergence = self._reconvergence_point(group)
        generator = self.launch.random
        quantum = budget = _QUANTUM if generator is None else generator.randrange(1, 200)
        # A quantum ends at the start of an iteration, so that a loop that spins is found in the same state.
        last = -_QUANTUM if generator is None else 0
        warps = -(-len(group.indices) // _WARP)
        asynchronous = self.asynchronous
        recorder = self.launch.recorder
        events = self.launch.events
        pc, time_slice = group.pc, group.time_slice
        step: Step = steps[pc] if pc < len(steps) else self._fail_past_end()
        try:
            while True:
                threads: Threads = group.threads
                counts[pc] += warps
                if step.gather and not gather_threads(self, group, pc, step):
                    return False
                threads = group.threads
                if asynchronous.owned and not asynchronous.owned_registers.isdisjoint(step.registers):
                    asynchronous.require_registers(step, group)
                if step.guard >= 0:
                    chosen = self.views[step.guard][threads]
                    if step.negated:
                        chosen = ~chosen
                    if np.count_nonzero(chosen) < len(chosen):
                        active = group.indices[chosen]
                        if not len(active):
                            if recorder is not None:
                                recorder.note(self, group, pc, None)
                            pc += 1
                            budget -= 1
                            if pc >= reconvergence or budget <= last:
                                break
                            step = steps[pc] if pc < len(steps) else self._fail_past_end()
                            continue
                        threads = compact_threads(active)
                events.pc = pc
                if recorder is not None:
                    recorder.note(self, group, pc, threads)
                if step.written_matrix_registers and asynchronous.unfenced_registers:
                    asynchronous.note_unfenced_registers(step, group.indices)
                if step.run is not None:
                    step.run(self, threads)
                    pc += 1
                else:
                    group.pc = pc
                    assert step.control is not None
                    if not step.control(self, group, threads):
                        return group.time_slice != time_slice
                    if budget <= 0 and group.pc <= pc:
                        pc = group.pc
                        break
                    pc = group.pc
                    warps = -(-len(group.indices) // _WARP)
                    reconvergence = self._reconvergence_point(group)
                budget -= step.cost
                if pc >= reconvergence or budget <= last:
                    break
                step = steps[pc] if pc < len(steps) else self._fail_past_end()
        except Fault as fault:
            where = f"block {self.position}, {describe_threads(group.indices)}"
            raise fault.locate(step.instruction.line, step.text, step.location, where) from None
        finally:
            self.steps_run += quantum - budget
        group.pc = pc
        if budget <= 0:
            group.time_slice += 1
        return budget <= 0

    def _reconvergence_point(self, group: Group) -> int:
        """Return the lowest step of another runnable group of no later time slice; beyond all steps if none, or an
        adversary."""
        if self.launch.random is not None:
            return _NO_STEP
        time_slice = group.time_slice
        others = (g.pc for g in self.groups if g.ready is None and g.time_slice <= time_slice and g is not group)
        return min(others, default=_NO_STEP)

    def _fail_past_end(self) -> Step:
        """Raise the fault of a thread that runs past the end of the kernel."""
        raise Fault("unsupported", "a thread runs past the end of the kernel without ret or exit")

    # -- what control steps use ----------------------------------------------------------------------------------------

    def split(self, group: Group, threads: Threads, pc: int) -> None:
        """Move threads of the group into a new group at step `pc`; the rest stay."""
        leaving = self.thread_ids[threads]
        self.groups.append(make_group(pc, leaving, group.time_slice))
        group.set_threads(group.indices[~np.isin(group.indices, leaving)])

    def exit(self, group: Group, threads: Threads) -> bool:
        """Mark threads as exited and release barriers that waited only for them; return whether any of the group are
        left."""
        self.exited[threads] = True
        leaving = self.thread_ids[threads]
        self.exited_count += len(leaving)
        are_some_left = len(leaving) < len(group.indices)
        if are_some_left:
            group.set_threads(group.indices[~np.isin(group.indices, leaving)])
        else:
            self.groups.remove(group)
        # Barriers for all threads may have waited only for these.
        for barrier in self.barriers.values():
            if barrier.expected == 0 and 0 < barrier.arrived >= self.thread_count - self.exited_count:
                release_barrier(barrier)
        return are_some_left

    @property
    def is_done(self) -> bool:
        """Return whether every thread of the block has exited."""
        return not self.groups

    def describe_waiting(self) -> list[str]:
        """Return one line per parked group that says where and for what it waits, for a deadlock report."""
        lines = []
        for group in self.groups:
            if group.ready is not None:
                step = self.program.steps[group.pc]
                lines.append(f"{describe_threads(group.indices)} wait at {step.description} for {group.reason()}")
        return lines


def release_barrier(barrier: NamedBarrier) -> None:
    """Complete a generation of a barrier: keep its clock and results, and begin the next with no arrivals."""
    barrier.results[barrier.generation] = [values for _, values in barrier.contributions]
    barrier.clocks[barrier.generation] = barrier.clock
    barrier.clock = None
    barrier.contributions = []
    barrier.generation += 1
    barrier.arrived = barrier.expected = 0


def describe_threads(indices: Array) -> str:
    """Return `thread 5` or `threads 0-127`, or the count and the range where the threads are not neighbours."""
    first, last = int(indices[0]), int(indices[-1])
    if first == last:
        return f"thread {first}"
    if last - first + 1 == len(indices):
        return f"threads {first}-{last}"
    return f"{len(indices)} threads from {first} to {last}"
