"""Replays the warps of blocks on multiprocessors, in cycles: issue, held units, waits.

Events are warps ready to issue and arrivals at barriers, in the order of their times; of several ready warps the oldest
comes first. A warp issues one instruction at a time, in order, when

* the registers that it reads and writes are ready (scoreboard),
* its quarter's scheduler (one instruction a cycle) and the pipe it needs are free,
* and the event it waits for has occurred: an mbarrier's phase, a named barrier, a group of copies or products.

Transfers queue at the ports of the multiprocessor in the order of issue, and at its share of L2 and DRAM. Data arrives
after the latency of an undisturbed transfer or when the last port has passed it, whichever is later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from typing import Any

from tilec.simulate import state
from tilec.simulate.costs import InstructionCosts, TransferCost
from tilec.simulate.instructions import Instruction
from tilec.simulate.record import INACTIVE, BlockTrace
from tilec.support.diagnostics import InternalError

_WARPGROUP = 4
_PARKED = inf
"""When a warp goes on that waits for an arrival."""
_HELD_BY_PRODUCTS = 1.0
"""Cycles that an instruction issues for longer while a wgmma reads and writes its sums in the registers of the same
quarter. Nsight Compute counts 0.98 and 0.94 such stalls (dispatch_stall) an instruction, of the time that tensor cores
are busy, in flash_attention with heads of 128 and of 64 on an H200 of 2026-11-26."""
_LENT_CYCLES = 2000.0
"""How long multiprocessors lend each other their shares of DRAM, as they are not in step: two latencies of it, and
no more than this part of the time since the start, when they are."""
_LENT_PART = 0.02
_SHARED_READS = "tp_smem_rd"
_SHARED_WRITES = "tp_smem_wr"
_CYCLES_OF_WRITES = 0.5
"""Shared memory reads 128 bytes in a cycle or writes 256; the target's file prices both at 128."""
_MOST_WAITING_WRITES = 256.0
"""Cycles of writes that wait until products leave shared memory to them; further ones delay the products. They are 64
KiB, two tiles or more: copies that far ahead of their use hold up nobody."""
_L2_PATHS = ("tp_gnic_rd", "tp_gnic_wr")
_GLOBAL_LOADS = ("ld.global", "cp.async", "tma.load")
_GLOBAL_STORES = ("st.global", "tma.store")


class _SteadyStateReached(Exception):
    """Ends a replay that has seen enough passes of a loop."""


class Engine:
    """Replays clusters of blocks. A cluster is a list of its blocks; queued clusters start as resident ones end."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        costs: InstructionCosts,
        shares: state.MemoryShares,
        *,
        loops: frozenset[int] = frozenset(),
        draws: bool = False,
    ) -> None:
        self.instructions = instructions
        self.costs = costs
        self.shares = shares
        self.loops = loops
        self.draws = draws
        self.products_hold_registers = any(each.deed == "wgmma" for each in instructions)
        self.result = state.ReplayResult()
        self._registers = 1 + max((n for i in instructions for n in (*i.reads, *i.writes)), default=0)
        self._heap: list[tuple[float, int, Any]] = []
        self._ages = count(1)
        self._numbers = count()
        self._calls = count(1)
        self._sms: list[state.Sm] = []
        self._alive: dict[int, state.Warp] = {}
        self._queue: list[list[BlockTrace]] = []
        self._stop_after: tuple[int, int, int] | None = None
        self._deeds: dict[str, Callable[[state.Warp, Instruction, Any, float], float | None]] = {
            "load": self._load, "store": self._store, "copy": self._copy,
            "copy.wait": self._copy_wait, "copy.arrive": self._copy_arrive, "bulk.load": self._bulk_load,
            "bulk.store": self._bulk_store, "bulk.wait": self._bulk_wait,
            "wgmma": self._wgmma, "wgmma.wait": self._wgmma_wait,
            "mbarrier.init": self._init_mbarriers, "mbarrier.arrive": self._arrive, "mbarrier.expect": self._expect,
            "mbarrier.wait": self._wait, "barrier": self._barrier, "cluster.arrive": self._cluster_arrive,
            "cluster.wait": self._cluster_wait, "tcgen05.mma": self._product, "tcgen05.commit": self._product_commit,
            "copy.commit": lambda warp, *_: warp.copy_groups.append(warp.copies),
            "bulk.commit": lambda warp, *_: warp.bulk_groups.append(warp.bulk),
            "wgmma.commit": lambda warp, *_: warp.product_groups.append(warp.products),
            "tcgen05.wait": lambda warp, *_: max(warp.want, warp.moved),
        }  # fmt: skip

    def run(
        self, clusters: Sequence[Sequence[BlockTrace]], resident: int, until: tuple[int, int, int] | None = None
    ) -> state.ReplayResult:
        """Replay clusters, `resident` at a time, on a multiprocessor per block of one, to the end or `until`; return
        the result. `until` (warp, pc, times) stops once a warp of the first block has passed a back branch so many
        times. A warp that never stops waiting is an `InternalError`."""
        self._stop_after = until
        self._sms = [state.Sm() for _ in clusters[0]]
        self._queue = [list(cluster) for cluster in clusters]
        for _ in range(min(resident, len(self._queue))):
            self._start_cluster(0.0)
        heap = self._heap
        try:
            while heap:
                time, age, item = heappop(heap)
                if age < 0:
                    item(time)
                else:
                    self._issue_from(item, time)
        except _SteadyStateReached:
            assert until is not None
            self.result.cycles = self.result.marks[until[:2]][-1]
            for warp in self._alive.values():
                self._add_lifetime(warp, self.result.cycles)
        if until is None and len(self.result.ends) != len(clusters):
            raise InternalError("a warp of the simulated block never stops waiting")
        for sm in self._sms:
            for name, cycles in sm.held.items():
                self.result.held[name] += cycles / len(self._sms)
        return self.result

    def _start_cluster(self, time: float) -> None:
        """Start the next queued cluster, if there is one: a block on each multiprocessor, its warps ready to issue."""
        if not self._queue:
            return
        cluster = state.ClusterRun(number=next(self._numbers))
        blocks = self._queue.pop(0)
        cluster.left = len(blocks)
        for rank, block in enumerate(blocks):
            sm = self._sms[rank]
            running = state.ResidentBlock(sm, block, cluster, rank, len(block.warps), time, time)
            cluster.blocks.append(running)
            cluster.warps += len(block.warps)
            for number, trace in enumerate(block.warps):
                quarter = sm.warps % state.SCHEDULERS
                sm.warps += 1
                registers = [0.0] * self._registers
                warp = state.Warp(running, number, next(self._ages), quarter, trace, registers, [""] * self._registers)
                warp.want = time
                self._alive[warp.age] = warp
                heappush(self._heap, (time, warp.age, warp))

    # -- issuing -------------------------------------------------------------------------------------------------------

    def _issue_from(self, warp: state.Warp, time: float) -> None:
        """Issue a warp's instructions from cycle `time` on; queue it again, park it until an arrival, or end it. It
        stops where another event comes first. Raise `_SteadyStateReached` after the last pass that is wanted."""
        trace, instructions, heap = warp.trace, self.instructions, self._heap
        sm, quarter = warp.home.sm, warp.quarter
        result = self.result
        length = len(trace)
        while warp.at < length:
            pc, detail = trace[warp.at]
            instruction = instructions[pc]
            pipe = instruction.pipe
            start = max(time, sm.issue[quarter])
            cause = "scheduler"
            if pipe is not None:
                free = sm.pipes[pipe.name][quarter]
                if free > start:
                    start, cause = free, _PIPES.get(pipe.name, pipe.name)
            if start > time:
                warp.held_by = cause
                heappush(heap, (start, warp.age, warp))
                return
            if time > warp.want:
                self._charge_stall(warp, pc, warp.held_by or "scheduler", time - warp.want)
            issue, spacing = instruction.issue, max(instruction.issue, instruction.spacing)
            if self.products_hold_registers and instruction.deed == "plain" and time < sm.ports["tensor"]:
                held = issue * _HELD_BY_PRODUCTS
                issue, spacing = issue + held, spacing + held
            sm.issue[quarter] = time + issue
            result.issued[warp.number] += instruction.issue
            result.instructions += 1
            warp.want = time + spacing
            if spacing > instruction.issue:
                self._charge_stall(warp, pc, "the assembler's schedule", spacing - instruction.issue)
            if pc in self.loops and warp.home.cluster.number == 0 and warp.home.rank == 0:
                marks = result.marks.setdefault((warp.number, pc), [])
                marks.append(time)
                if self._stop_after == (warp.number, pc, len(marks)):
                    raise _SteadyStateReached
            if detail != INACTIVE:
                if pipe is not None:
                    sm.pipes[pipe.name][quarter] = time + pipe.cycles
                    sm.held[pipe.name] += pipe.cycles / state.SCHEDULERS
                    self._set_ready_time(
                        warp, instruction.writes, time + pipe.latency, _PIPES.get(pipe.name, pipe.name)
                    )
                    if self.draws and pipe.name in ("tensor", "xu"):
                        self._draw_unit(sm, pipe.name, instruction, time, time + pipe.cycles)
                elif instruction.deed != "plain":
                    resumed = self._deeds[instruction.deed](warp, instruction, detail, time) or warp.want
                    if resumed == _PARKED:
                        return  # until an arrival resumes it
                    if resumed > warp.want:
                        self._charge_and_draw(warp, instruction, _WAITS[instruction.deed], resumed)
                        warp.want = resumed
            warp.at += 1
            if warp.at >= length:
                break
            time = self._find_ready_time(warp)
            if heap and (heap[0][0], heap[0][1]) < (time, warp.age):
                heappush(heap, (time, warp.age, warp))
                return
        self._end_warp(warp)

    def _find_ready_time(self, warp: state.Warp) -> float:
        """Return the cycle at which the registers of a warp's next instruction are ready, and note what holds it up."""
        instruction = self.instructions[warp.trace[warp.at][0]]
        registers = warp.registers
        time = warp.want
        for number in chain(instruction.reads, instruction.writes):
            if registers[number] > time:
                time = registers[number]
                warp.held_by = warp.causes[number]
        return time

    def _resume_warp(self, warp: state.Warp, time: float) -> None:
        """Move a parked warp past its instruction and queue it from cycle `time` on; end it after its last one."""
        warp.want = max(warp.want, time)
        warp.at += 1
        if warp.at >= len(warp.trace):
            self._end_warp(warp)
            return
        heappush(self._heap, (self._find_ready_time(warp), warp.age, warp))

    def _end_warp(self, warp: state.Warp) -> None:
        """End a warp, release barriers of all threads that waited for it, and with a cluster's last warp start the next
        cluster."""
        home = warp.home
        self._add_lifetime(warp, warp.want)
        del self._alive[warp.age]
        home.last = max(home.last, warp.want, warp.products, warp.copies)
        home.alive -= 1
        if home.alive:
            for number, barrier in home.barriers.items():
                # A barrier of all threads does not wait for exited ones.
                if barrier.is_of_all and barrier.arrived and barrier.arrived == home.alive:
                    self._release_barrier(barrier, number, warp.want)
            return
        home.cluster.left -= 1
        if home.cluster.left:
            return
        done = max(each.last for each in home.cluster.blocks)
        self.result.ends.append(done)
        self.result.cycles = max(self.result.cycles, done)
        self._queue_call(done, self._start_cluster)

    def _add_lifetime(self, warp: state.Warp, until: float) -> None:
        """Add the cycles from the start of a warp's block to `until` to the life of the warps with its number."""
        self.result.lifetime[warp.number] = self.result.lifetime[warp.number] + until - warp.home.start

    def _queue_call(self, time: float, act: Callable[[float], None]) -> None:
        """Queue a function to be called at cycle `time`, before the instructions of that cycle."""
        # Arrivals precede instructions of the same cycle, in their order of creation.
        heappush(self._heap, (time, -(1 << 60) + next(self._calls), act))

    # -- accounts ------------------------------------------------------------------------------------------------------

    def _set_ready_time(self, warp: state.Warp, writes: tuple[int, ...], time: float, cause: state.Cause) -> None:
        """Set the cycle when these registers of a warp are ready, and the cause of waits until then."""
        for number in writes:
            warp.registers[number] = time
            warp.causes[number] = cause

    def _charge_stall(self, warp: state.Warp, pc: int, cause: state.Cause, cycles: float) -> None:
        """Add lost cycles to the stalls of a warp's number at a step, by cause."""
        self.result.stalls[warp.number, pc, cause] += cycles

    def _charge_and_draw(self, warp: state.Warp, instruction: Instruction, cause: state.Cause, until: float) -> None:
        """Charge a warp's wait from when it could issue until cycle `until`, if that is later, and draw it in the
        timeline."""
        if until > warp.want:
            self._charge_stall(warp, instruction.pc, cause, until - warp.want)
            if self.draws:
                self._draw_wait(warp, instruction, cause, warp.want, until)

    def _draw_unit(self, sm: state.Sm, track: str, instruction: Instruction, start: float, end: float) -> None:
        """Add an activity of a multiprocessor's unit to the timeline."""
        number = next(index for index, each in enumerate(self._sms) if each is sm)
        self.result.slices.append(state.TimelineSlice(number, track, instruction.text, start, end, instruction.line))

    def _draw_wait(
        self, warp: state.Warp, instruction: Instruction, cause: state.Cause, start: float, end: float
    ) -> None:
        """Add a warp's wait to the timeline, if the warp is of the first cluster."""
        if warp.home.cluster.number:
            return
        self.result.slices.append(
            state.TimelineSlice(warp.home.rank, f"warp {warp.number}", cause, start, end, instruction.line)
        )

    # -- transfers -----------------------------------------------------------------------------------------------------

    def _transfer_data(
        self, warp: state.Warp, instruction: Instruction, size: int, time: float, moved: int | None = None
    ) -> tuple[float, float]:
        """Occupy the ports of a transfer, L2 and DRAM; return when the last has passed it and when the data has
        arrived. `moved` of its bytes pass L2 (None: all), the others are filled in."""
        kind = instruction.move
        assert kind is not None
        move: TransferCost = self.costs.move(kind, size)
        sm = warp.home.sm
        through = time
        moved = size if moved is None else moved
        for port, cycles in move.ports:
            if port in _L2_PATHS:
                cycles *= moved / max(size, 1)
            through = max(through, self._occupy_port(sm, port, time, cycles))
            if port == _SHARED_READS and time < sm.ports["tensor"]:
                sm.read_under_products += cycles
            if port == _SHARED_WRITES and time < sm.ports["tensor"]:
                sm.waiting_writes += cycles * _CYCLES_OF_WRITES
        first = time if not move.ports else max(time, sm.ports[move.ports[0][0]] - move.ports[0][1])
        if kind in _GLOBAL_LOADS or kind in _GLOBAL_STORES:
            shares = self.shares
            rate = min(shares.l2, shares.l2_to_threads) if kind == "cp.async" else shares.l2
            through = max(through, self._occupy_port(sm, "l2", time, moved / rate))
            is_load = kind in _GLOBAL_LOADS
            fraction = shares.missing_by_step.get(instruction.pc, shares.missing) if is_load else shares.written
            price = 1.0 if is_load else shares.write_price
            through = max(through, self._occupy_dram(sm, time, moved * fraction * price / shares.dram))
        if self.draws and kind in ("tma.load", "tma.store"):
            self._draw_unit(sm, "copies" if kind == "tma.load" else "stores", instruction, first, through)
        return through, max(time + move.latency, through + move.base)

    def _occupy_port(self, sm: state.Sm, port: str, time: float, cycles: float) -> float:
        """Occupy a port of a multiprocessor for some cycles from when it is free, and return when they end."""
        start = max(time, sm.ports[port])
        sm.ports[port] = start + cycles
        sm.held[port] += cycles
        return start + cycles

    def _occupy_dram(self, sm: state.Sm, time: float, cycles: float) -> float:
        """Occupy a multiprocessor's share of DRAM, and return when the bytes have passed it. What it has lately left of
        its share to others, these leave to it now; at the start, when all are in step, that is nothing."""
        free = sm.ports["dram"]
        lent = min(_LENT_CYCLES, time * _LENT_PART) if free else 0.0
        start = max(time - lent, free)
        sm.ports["dram"] = start + cycles
        sm.held["dram"] += cycles
        return max(time, start + cycles)

    def _load(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start the transfer of a load; the registers it writes are ready when the bytes arrive."""
        _, arrival = self._transfer_data(warp, instruction, detail, time)
        self._set_ready_time(warp, instruction.writes, arrival, _MEMORIES.get(instruction.move or "", "memory"))
        if instruction.move == "tcgen05.ld":
            warp.moved = max(warp.moved, arrival)

    def _store(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start the transfer of a store, and let the block last until the last port has passed it."""
        through, arrival = self._transfer_data(warp, instruction, detail, time)
        if instruction.move == "tcgen05.st":
            warp.moved = max(warp.moved, arrival)
        warp.home.last = max(warp.home.last, through)
        self._set_ready_time(warp, instruction.writes, arrival, _MEMORIES.get(instruction.move or "", "memory"))

    def _copy(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start the transfer of a cp.async, and let the warp's copies last until its bytes arrive."""
        warp.copies = max(warp.copies, self._transfer_data(warp, instruction, detail, time)[1])

    def _copy_wait(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Return when the groups of cp.async copies that may no longer be in flight have arrived."""
        due = warp.copy_groups[: len(warp.copy_groups) - instruction.number]
        if instruction.text.endswith("wait_all"):
            due = [warp.copies]
        return max([warp.want, *due])

    def _copy_arrive(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Queue the arrivals of lanes at mbarriers for when the warp's earlier cp.async copies have landed."""
        for rank, address, lanes, _ in detail:
            barrier = self._get_mbarrier(warp, rank, address)
            if not instruction.flag:
                barrier.pending += lanes
            arrival = max(time + self.costs.mbarrier, warp.copies)
            self._queue_call(arrival, partial(self._complete_arrivals, barrier, lanes, instruction))

    def _bulk_load(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start bulk copies to one or several blocks, and queue their completion on mbarriers for when the bytes
        arrive."""
        for size, inside, places in detail:
            _, arrival = self._transfer_data(warp, instruction, size, time, inside)
            for rank, holder, address in places:
                if rank != warp.home.rank:
                    # Another block receives its copy of a multicast through its own ports.
                    arrival = max(arrival, self._receive_multicast(warp, rank, instruction, size, time))
                barrier = self._get_mbarrier(warp, holder, address)
                self._queue_call(arrival, partial(self._complete_copy, barrier, size, instruction))

    def _receive_multicast(
        self, warp: state.Warp, rank: int, instruction: Instruction, size: int, time: float
    ) -> float:
        """Occupy another block's ports, all but the first, for its copy of a multicast, and return when that has
        arrived."""
        assert instruction.move is not None
        move = self.costs.move(instruction.move, size)
        sm = warp.home.cluster.blocks[rank].sm
        through = max((self._occupy_port(sm, port, time, cycles) for port, cycles in move.ports[1:]), default=time)
        return max(time + move.latency, through + move.base)

    def _bulk_store(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start bulk stores, and note on the warp when shared memory has been read and the data written."""
        read, written = warp.bulk
        for size, inside, _ in detail:
            through, arrival = self._transfer_data(warp, instruction, size, time, inside)
            read, written = max(read, through), max(written, arrival)
        warp.bulk = read, written
        warp.home.last = max(warp.home.last, written)

    def _bulk_wait(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Return when the groups of bulk stores that may no longer be in flight have been written, or only read."""
        due = warp.bulk_groups[: len(warp.bulk_groups) - instruction.number]
        return max([warp.want, *(read if instruction.flag else written for read, written in due)])

    # -- products ------------------------------------------------------------------------------------------------------

    def _wgmma(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Park a warp at a product, or as its warpgroup's last start it and resume the others; return when it goes on,
        or infinity."""
        home = warp.home
        group = home.warpgroups.setdefault(warp.number // _WARPGROUP, state.WarpGathering())
        group.waiting.append((warp, time))
        if len(group.waiting) < _WARPGROUP:
            return _PARKED
        cost = self.costs.wgmma(instruction.number, 32, instruction.flag)
        sm = home.sm
        start = max(time, sm.ports["tensor"])
        # Shared-memory reads of warps during a product delay it: its own reads give way to them. Writes wait for it.
        busy = cost.reading + sm.read_under_products
        through = start + max(cost.cycles, busy)
        sm.waiting_writes -= min(sm.waiting_writes, max(cost.cycles - busy, 0.0))
        late = max(sm.waiting_writes - _MOST_WAITING_WRITES, 0.0)
        through, sm.waiting_writes, sm.read_under_products = through + late, sm.waiting_writes - late, 0.0
        sm.held[_SHARED_READS] += cost.reading
        sm.ports["tensor"] = through
        sm.held["tensor"] += cost.cycles
        done = through + cost.latency - cost.cycles
        if self.draws:
            self._draw_unit(sm, "tensor", instruction, start, through)
        waiting, group.waiting = group.waiting, []
        for each, arrived in waiting:
            each.products = done
            resumed = max(time, arrived) + cost.issue
            if time > arrived:
                self._charge_stall(each, instruction.pc, "the other warps of its warpgroup", time - arrived)
            if each is not warp:
                self._resume_warp(each, resumed)
        return time + cost.issue

    def _wgmma_wait(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Return when the groups of products that may no longer be in flight have ended."""
        due = warp.product_groups[: len(warp.product_groups) - instruction.number]
        return max(warp.want, due[-1]) if due else warp.want

    def _product(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Start a tcgen05 product once the tensor cores of its block, or pair of blocks, are free, and note when it
        ends."""
        m, n, is_pair, from_tensor_memory = detail
        cost = self.costs.tcgen05(m, n, is_pair, from_tensor_memory)
        cluster = warp.home.cluster
        ranks = sorted({warp.home.rank, warp.home.rank ^ 1}) if is_pair else [warp.home.rank]
        start = max([time, *(cluster.blocks[rank].sm.ports["tensor"] for rank in ranks)])
        for rank in ranks:
            sm = cluster.blocks[rank].sm
            sm.ports["tensor"] = start + cost.cycles
            sm.held["tensor"] += cost.cycles
            if self.draws:
                self._draw_unit(sm, "tensor", instruction, start, start + cost.cycles)
        warp.home.products = start + cost.latency

    def _product_commit(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Queue arrivals at mbarriers, of several blocks for multicast, for when the block's products end."""
        arrival = max(time + self.costs.mbarrier, warp.home.products)
        for rank, address, _, mask in detail:
            is_multicast = "multicast" in instruction.text
            ranks = [r for r in range(len(warp.home.cluster.blocks)) if mask >> r & 1] if is_multicast else [rank]
            for each in ranks:
                barrier = self._get_mbarrier(warp, each, address)
                self._queue_call(arrival, partial(self._complete_arrivals, barrier, 1, instruction))

    # -- mbarriers -----------------------------------------------------------------------------------------------------

    def _get_mbarrier(self, warp: state.Warp, rank: int, address: int) -> state.Mbarrier:
        """Return the mbarrier at an address of the block with this rank in the warp's cluster."""
        return warp.home.cluster.blocks[rank].mbarriers[address]

    def _init_mbarriers(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Create the mbarriers that a step initialises, with their arrival counts."""
        for rank, address, lanes, total in detail:
            expected = total // lanes
            warp.home.cluster.blocks[rank].mbarriers[address] = state.Mbarrier(expected, expected)

    def _arrive(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Queue the lanes' arrivals at their mbarriers, and add the bytes that they expect at once."""
        arrival = time + self.costs.mbarrier
        for rank, address, lanes, total in detail:
            barrier = self._get_mbarrier(warp, rank, address)
            if instruction.flag:
                barrier.tx += total
            arrivals = lanes if instruction.flag or not total else total
            if "arrive_drop" in instruction.text:
                barrier.expected -= arrivals
            self._queue_call(arrival, partial(self._complete_arrivals, barrier, arrivals, instruction))
        self._set_ready_time(warp, instruction.writes, arrival, "mbarrier")

    def _expect(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Add bytes to an mbarrier's expected count, or take them off, and end its phase if nothing is pending."""
        for rank, address, _, total in detail:
            barrier = self._get_mbarrier(warp, rank, address)
            barrier.tx += total * instruction.number
            self._flip_if_due(barrier, time)

    def _complete_arrivals(self, barrier: state.Mbarrier, arrivals: int, instruction: Instruction, time: float) -> None:
        """Count arrivals at an mbarrier, and end its phase if nothing more is pending."""
        barrier.pending -= arrivals
        barrier.by = f"mbarrier: {_ARRIVALS.get(instruction.deed, 'arrival')} of {instruction.place}"
        self._flip_if_due(barrier, time)

    def _complete_copy(self, barrier: state.Mbarrier, size: int, instruction: Instruction, time: float) -> None:
        """Count the bytes of a copy at an mbarrier, and end its phase if nothing more is pending."""
        barrier.tx -= size
        barrier.by = f"mbarrier: copy of {instruction.place}"
        self._flip_if_due(barrier, time)

    def _flip_if_due(self, barrier: state.Mbarrier, time: float) -> None:
        """End the phase of an mbarrier if nothing is pending, and resume the warps that wait for that phase."""
        if barrier.pending > 0 or barrier.tx != 0:
            return
        barrier.phase += 1
        barrier.pending += barrier.expected
        waiters, barrier.waiters = barrier.waiters, []
        for warp, wanted, by_parity, since in waiters:
            if not _is_phase_over(barrier, wanted, by_parity):
                barrier.waiters.append((warp, wanted, by_parity, since))
                continue
            instruction = self.instructions[warp.trace[warp.at][0]]
            resumed = max(since + self.costs.try_wait, time)
            self._charge_and_draw(warp, instruction, barrier.by, resumed)
            self._resume_warp(warp, resumed)

    def _wait(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Set a wait's result and return None if the mbarrier's phase is over; else queue the warp and return infinity:
        parked."""
        ((rank, address, _, wanted),) = detail
        barrier = self._get_mbarrier(warp, rank, address)
        wanted &= 0xFFFFFFFF
        if _is_phase_over(barrier, wanted, instruction.flag):
            self._set_ready_time(warp, instruction.writes, time + self.costs.try_wait, "mbarrier")
            return None
        barrier.waiters.append((warp, wanted, instruction.flag, time))
        return _PARKED

    # -- barriers of threads -------------------------------------------------------------------------------------------

    def _barrier(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Count a warp at a named barrier, and release that after the last one; return infinity (parked) if it waits,
        else None."""
        number, threads = detail
        home = warp.home
        key = number if threads != 32 else -1 - warp.number
        barrier = home.barriers.setdefault(key, state.WarpGathering())
        barrier.arrived += 1
        barrier.is_of_all = not threads
        if instruction.flag:
            barrier.waiting.append((warp, time))
        if barrier.arrived >= (threads // 32 or home.alive):
            self._release_barrier(barrier, number, time)
        return _PARKED if instruction.flag else None

    def _release_barrier(self, barrier: state.WarpGathering, number: int, time: float) -> None:
        """Resume the warps that wait at a named barrier, after its latency, and charge their waits."""
        resumed = time + self.costs.barrier
        waiting, barrier.waiting, barrier.arrived = barrier.waiting, [], 0
        for warp, _ in waiting:
            instruction = self.instructions[warp.trace[warp.at][0]]
            self._charge_and_draw(warp, instruction, f"barrier {number}", resumed)
            self._resume_warp(warp, resumed)

    def _cluster_arrive(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> None:
        """Count a warp at the cluster's barrier; after the last one its release is queued."""
        cluster = warp.home.cluster
        warp.arrived_at = cluster.generation
        cluster.barrier.arrived += 1
        if cluster.barrier.arrived == cluster.warps:
            self._queue_call(time + self.costs.mbarrier, lambda at: self._release_cluster(cluster, at))

    def _release_cluster(self, cluster: state.ClusterRun, time: float) -> None:
        """Begin the next generation of the cluster's barrier, and resume the warps that wait at it."""
        cluster.generation += 1
        cluster.barrier.arrived = 0
        waiting, cluster.barrier.waiting = cluster.barrier.waiting, []
        for warp, _ in waiting:
            pc = warp.trace[warp.at][0]
            if time > warp.want:
                self._charge_stall(warp, pc, "cluster barrier", time - warp.want)
            self._resume_warp(warp, time)

    def _cluster_wait(self, warp: state.Warp, instruction: Instruction, detail: Any, time: float) -> float | None:
        """Return None if the barrier's generation at which the warp arrived is over, or else infinity, and park it
        until it is."""
        cluster = warp.home.cluster
        if cluster.generation > warp.arrived_at:
            return None
        cluster.barrier.waiting.append((warp, time))
        return _PARKED


def _is_phase_over(barrier: state.Mbarrier, wanted: int, by_parity: bool) -> bool:
    """Return whether an mbarrier's phase is over, given by its parity or its number."""
    if by_parity:
        return (barrier.phase & 1) != (wanted & 1)
    return barrier.phase > wanted


_PIPES = {"alu_or_fmaheavy": "fp32 arithmetic", "dual_alu": "integer arithmetic", "xu": "special functions",
          "tensor": "tensor cores"}  # fmt: skip
_MEMORIES = {"ld.shared": "shared memory", "st.shared": "shared memory", "ldmatrix": "shared memory",
             "ld.global": "global memory", "st.global": "global memory", "tcgen05.ld": "tensor memory",
             "tcgen05.st": "tensor memory"}  # fmt: skip
_ARRIVALS = {"tcgen05.commit": "products", "copy.arrive": "copies"}
_WAITS = {"copy.wait": "copies (cp.async)", "bulk.wait": "bulk stores", "wgmma": "tensor cores",
          "wgmma.wait": "tensor cores", "tcgen05.wait": "tensor memory"}  # fmt: skip
