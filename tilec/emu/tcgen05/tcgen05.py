"""tcgen05 except the matrix product: loads, stores, copies, shifts, commits, waits and fences.

Layouts of fragments are those of "Data Movement Shape" and of "Optional Decompression" in the PTX manual; where only
its figures specify them, `copy_traits_sm100.hpp` of CUTLASS spells them out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import DeferredArrivals, find_barrier, record_event, to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import RegisterIndex, Step, build_thread_step
from tilec.emu.memory.memory import SHARED_RANK_SHIFT
from tilec.emu.numbers import Array
from tilec.emu.races.order import WARPGROUP
from tilec.emu.tcgen05 import tmem
from tilec.emu.tcgen05.tmem import TensorOperation
from tilec.emu.tma.asyncops import AsyncEffect, AsyncState, RegisterOwner
from tilec.emu.warp.matrix import list_registers
from tilec.emu.wgmma.descriptors import (
    decode_tensor_descriptor,
    find_matrix_rows,
    require_matching_swizzle,
)
from tilec.ptx.module import Reg

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

_WARP = 32


def read_cta_group(form: Form) -> int:
    """Return the opcode's number of blocks, 1 or 2; fault unless all tcgen05 instructions of the kernel share it."""
    group = form.find_modifier("cta_group::1", "cta_group::2")
    if not group:
        raise form.unsupported("no .cta_group")
    program = form.program
    if program.cta_group not in ("", group):
        raise form.unsupported(f".{group} where other instructions of the kernel have .{program.cta_group},")
    program.cta_group = group
    return int(group[-1])


def find_group_blocks(cta: Cta, group: int) -> list[Cta]:
    """Return the blocks whose tensor memory is accessed: this one, or its pair, the even rank first; fault without a
    peer."""
    if group == 1:
        return [cta]
    if cta.rank ^ 1 >= len(cta.cluster.ctas):
        raise Fault("bad-tmem-allocation", "cta_group::2 in a block that has no peer in its cluster")
    return [cta.cluster.ctas[cta.rank & ~1], cta.cluster.ctas[cta.rank | 1]]


def require_running_blocks(cta: Cta, group: int, name: str) -> list[Cta]:
    """Return the blocks of an operation that one thread issues to the tensor cores; fault if one has ended. The rule is
    "Issue Granularity" in the PTX manual."""
    blocks = find_group_blocks(cta, group)
    for block in blocks:
        if block.is_done:
            raise Fault("ended-block", f"{name} for a pair of blocks, of which block {block.position} has ended")
    return blocks


def split_into_warps(cta: Cta, threads: Threads, name: str) -> list[Array]:
    """Return the threads of each warp that runs an instruction; fault unless the warps are whole."""
    members = cta.thread_ids[threads]
    warps = members // _WARP
    if len(members) % _WARP or (warps != warps[::_WARP].repeat(_WARP)).any():
        raise Fault("divergent-warp", f"{name} is run by {len(members)} threads, which are not whole warps")
    return list(members.reshape(-1, _WARP))


def require_uniform(values: Array, what: str) -> int:
    """Return the value that all lanes of a warp have; fault if they differ."""
    if not (values == values[0]).all():
        raise Fault("divergent-warp", f"{what} differs between the lanes of a warp")
    return int(values[0])


def slice_warp(warp: Array) -> slice:
    """Return a warp's threads as a slice."""
    return slice(int(warp[0]), int(warp[0]) + _WARP)


def split_address(address: int) -> tuple[int, int]:
    """Return the lane and the column of an address in tensor memory."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


# -- loads and stores --------------------------------------------------------------------------------------------------

_PER_REPEAT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Registers of a thread per repeat, by shape."""


@lru_cache(maxsize=64)
def locate_fragment(shape: str, count: int, split: int, is_packed: bool) -> tuple[Array, Array]:
    """Return lane and column, relative to the address, of each [thread of the warp, register] of a load or store.
    Packed registers hold the lower halves of this column and the next."""
    thread, register = np.arange(_WARP)[:, None], np.arange(count)[None, :]
    wide = 2 if is_packed else 1
    zero = np.zeros((_WARP, count), np.int64)
    if shape == "32x32b":
        return thread + zero, register * wide + zero
    if shape == "16x32bx2":
        return thread % 16 + zero, register * wide + thread // 16 * split
    row = thread // 4
    if shape == "16x64b":
        return row + 8 * (thread & 1) + zero, (2 * register + (thread >> 1 & 1)) * wide
    if shape == "16x128b":
        return row + 8 * (register % 2), (4 * (register // 2) + thread % 4) * wide
    return row + 8 * (register // 2 % 2), (8 * (register // 4) + 2 * (thread % 4) + register % 2) * wide


class TensorLoad(RegisterOwner):
    """A `tcgen05.ld` of one warp. A read of its registers waits for it implicitly ("Register dependencies" in the PTX
    manual); a write of them may come before the load and faults."""

    size = _WARP

    def __init__(self, line: int, places: frozenset[RegisterIndex], state: AsyncState, effect: AsyncEffect) -> None:
        self.line = line
        self.accumulators = places
        self.inputs = frozenset()
        self._state = state
        self._effect = effect

    def check_access(self, step: Step) -> None:
        """Complete the load, since an instruction reads its registers; a write of them is a fault."""
        if not step.written.isdisjoint(self.accumulators):
            message = f"overwrites a register that tcgen05.ld of PTX line {self.line} loads"
            raise Fault("missing-tcgen05-wait", f"{message}, which no tcgen05.wait::ld has waited for")
        self._effect.do()
        self.end()

    def end(self) -> None:
        """Take back the ownership of the load's registers."""
        self._state.release_registers([self])


def _decode_fragment(
    form: Form, operand_index: int, split_index: int
) -> tuple[tuple[Array, Array], list[int], bool, int]:
    """Return a load's or store's relative cells, register slots, whether packed, and lane alignment; fault on a bad
    shape."""
    shape = form.find_modifier(*_PER_REPEAT)
    found = form.match(r"x\d+")
    repeat = found[0] if found else ""
    if not shape or not repeat or form.has("red") or not form.has("b32"):
        raise form.unsupported("this shape or type")
    count = int(repeat[1:]) * _PER_REPEAT[shape]
    if count > 128 or count % _PER_REPEAT[shape] or int(repeat[1:]) & (int(repeat[1:]) - 1):
        raise form.unsupported(f".{repeat} of .{shape}")
    has_split = shape == "16x32bx2"
    if has_split != (len(form.operands) > 2):
        raise form.unsupported("the offset of the second half")
    split = form.parse_constant(form.operands[split_index]) if has_split else 0
    is_packed = form.has("pack::16b", "unpack::16b")
    items = list_registers(form, form.operands[operand_index], count)
    is_load = form.stem == "tcgen05.ld"
    slots = [form.write(item, "b32") if is_load else form.read(item, "b32") for item in items]
    return locate_fragment(shape, count, split, is_packed), slots, is_packed, 32 if shape == "32x32b" else 16


def _locate_region(
    cells: tuple[Array, Array], warp: Array, address: int, unit: int, is_packed: bool, name: str
) -> tmem.CellRegion:
    """Return the cells of one warp's access; fault unless they lie in the warp's quarter of the lanes and are
    aligned."""
    lane, column = split_address(address)
    quarter = int(warp[0]) // _WARP % 4
    if lane // 32 != quarter:
        message = f"{name} of threads {int(warp[0])}-{int(warp[-1])} starts at lane {lane} of tensor memory"
        raise Fault("foreign-lanes", f"{message}; this warp may touch lanes {32 * quarter} to {32 * quarter + 31}")
    if lane % unit:
        raise Fault("misaligned", f"{name} at lane {lane} of tensor memory, which is not a multiple of {unit}")
    lanes, columns = lane + cells[0], column + cells[1]
    if is_packed:
        return tmem.CellRegion(np.stack([lanes, lanes], -1), np.stack([columns, columns + 1], -1))
    return tmem.CellRegion(lanes, columns)


@register_decoder("tcgen05.ld")
def _decode_ld(form: Form) -> None:
    """Decode `tcgen05.ld` into a step that issues asynchronous loads of tensor memory into each warp's registers."""
    form.step.gather = _WARP
    cells, slots, is_packed, unit = _decode_fragment(form, 0, 2)
    places = frozenset(
        form.find_register(item) for item in list_registers(form, form.operands[0], len(slots)) if item != Reg("_")
    )
    pointer = form.build_address(form.operands[1])

    @form.set_run
    def run_ld(cta: Cta, threads: Threads) -> None:
        """Issue a load for each warp, which owns its registers until it is waited for."""
        memory = tmem.get_tensor_memory(cta)
        for warp in split_into_warps(cta, threads, "tcgen05.ld"):
            own_threads = slice_warp(warp)
            address = require_uniform(pointer(cta, own_threads), "the address")
            region = _locate_region(cells, warp, address, unit, is_packed, "tcgen05.ld")
            load = tmem.start_operation(cta, memory, "tcgen05.ld", form.line, cta.actors[warp])
            memory.record_read(load, region, "tcgen05.ld")

            def read_cells(own_threads: slice = own_threads, region: tmem.CellRegion = region) -> None:
                """Copy the cells to the warp's registers, two halves to a register if packed."""
                data = memory.words[region.lanes, region.columns]
                if is_packed:
                    data = data[..., 0] & np.uint32(0xFFFF) | data[..., 1] << np.uint32(16)
                for position, slot in enumerate(slots):
                    cta.views[slot][own_threads] = data[:, position]

            effect = AsyncEffect(read_cells)
            owner = TensorLoad(form.line, places, cta.asynchronous, effect)
            cta.asynchronous.own_registers(int(warp[0]) // _WARP, owner)
            load.ends.append(owner.end)
            memory.issue(load, effect)


@register_decoder("tcgen05.st")
def _decode_st(form: Form) -> None:
    """Decode `tcgen05.st` into a step that issues asynchronous stores of each warp's registers to tensor memory."""
    form.step.gather = _WARP
    # The offset of the second half comes before the registers.
    values_index = len(form.operands) - 1
    cells, slots, is_packed, unit = _decode_fragment(form, values_index, 1)
    pointer = form.build_address(form.operands[0])

    @form.set_run
    def run_st(cta: Cta, threads: Threads) -> None:
        """Issue a store for each warp, of the values that its registers have now."""
        memory = tmem.get_tensor_memory(cta)
        for warp in split_into_warps(cta, threads, "tcgen05.st"):
            own_threads = slice_warp(warp)
            address = require_uniform(pointer(cta, own_threads), "the address")
            region = _locate_region(cells, warp, address, unit, is_packed, "tcgen05.st")
            values = np.stack([cta.views[slot][own_threads] for slot in slots], axis=1)
            if is_packed:
                values = np.stack([values & np.uint32(0xFFFF), values >> np.uint32(16)], -1)
            store = tmem.start_operation(cta, memory, "tcgen05.st", form.line, cta.actors[warp])
            memory.record_write(store, region, "tcgen05.st")

            def write_cells(region: tmem.CellRegion = region, values: Array = values) -> None:
                """Copy the values that the warp's registers had at issue to the cells."""
                memory.words[region.lanes, region.columns] = values

            memory.issue(store, AsyncEffect(write_cells))


@register_decoder("tcgen05.wait::ld", "tcgen05.wait::st")
def _decode_wait(form: Form) -> None:
    """Decode `tcgen05.wait::ld` and `wait::st` into a step that completes each warp's pending loads or stores."""
    form.step.gather = _WARP
    name = f"tcgen05.{form.stem[-2:]}"

    @form.set_run
    def run_wait(cta: Cta, threads: Threads) -> None:
        """Complete the pending loads, or stores, of each of these warps."""
        memory = tmem.get_tensor_memory(cta)
        for warp in split_into_warps(cta, threads, form.stem):
            first = int(cta.actors[warp[0]])
            memory.complete_operations([op for op in memory.pending if op.name == name and int(op.actors[0]) == first])


@register_decoder("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def _decode_fence(form: Form) -> None:
    """Decode the two `tcgen05.fence` into a step that publishes these threads' operations, or updates what they
    know."""
    is_before = form.stem.endswith("before_thread_sync")

    @form.set_run
    def run_fence(cta: Cta, threads: Threads) -> None:
        """Publish these threads' operations on tensor memory, or let what they know of others count for their next
        ones."""
        memory = tmem.get_tensor_memory(cta)
        (memory.fence_before if is_before else memory.fence_after)(cta.actors[threads])


# -- copies and shifts -------------------------------------------------------------------------------------------------


def claim_shared_operand(
    cta: Cta, user: TensorOperation, bits: int, extent: int, k: int, element_bytes: int, is_mn_major: bool, what: str
) -> Array:
    """Return an operand's 16-byte shared rows, read by `user` until its commit is waited for; fault if unready or out
    of bounds. Rows that TMA swizzled otherwise are a fault too (see `find_matrix_rows`)."""
    descriptor = decode_tensor_descriptor(bits)
    rows = find_matrix_rows(descriptor, extent, k, element_bytes, is_mn_major)
    memory = cta.shared
    if int(rows.max()) >= len(memory.rows):
        raise Fault("out-of-bounds", f"{what} reaches shared address {int(rows.max()) * 16:#x}, past the end")
    memory.require_async_readable(rows, what, if_copied=True)
    require_matching_swizzle(memory, descriptor, rows, what)
    order, detector = cta.order, memory.race_detector
    if order is not None and detector is not None:
        detector.require_known(order.clock_of_any(user.actors), rows, what)
    user.ends.append(cta.asynchronous.begin_reading(rows, user.line, user.name))
    user.rows.append((cta, rows.reshape(-1)))
    return rows


_COPIES = {"128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16), "4x256b": (4, 32)}
"""Rows of the source, and bytes per row, by shape."""
_MULTICASTS = {"64x128b": ("warpx2::02_13", "warpx2::01_23"), "32x128b": ("warpx4",)}


def _map_lanes_to_rows(shape: str, multicast: str) -> Array:
    """Return the source row that each lane of a `tcgen05.cp` receives, by shape and multicast."""
    lane = np.arange(tmem.LANES)
    if multicast == "warpx4":
        return lane % 32
    if multicast == "warpx2::02_13":
        return lane % 64
    if multicast == "warpx2::01_23":
        return lane // 64 * 32 + lane % 32
    return np.arange(_COPIES[shape][0])


def unpack_codes(chunks: Array, bits: int) -> Array:
    """Unpack 16 codes of 4 or 6 bits from each [.., 16 bytes] to a byte each, [.., 16]; the rest of the bytes is
    padding."""
    if bits == 4:
        low = chunks[..., :8]
        return np.stack([low & np.uint8(0xF), low >> np.uint8(4)], -1).reshape(chunks.shape)
    triples = chunks[..., :12].reshape(*chunks.shape[:-1], 4, 3).astype(np.uint32)
    words = triples[..., 0] | triples[..., 1] << np.uint32(8) | triples[..., 2] << np.uint32(16)
    fields = words[..., None] >> np.array([0, 6, 12, 18], np.uint32) & np.uint32(0x3F)
    sixes: Array = fields.astype(np.uint8).reshape(chunks.shape)
    return sixes


def _decompress_chunks(chunks: Array, source_format: str) -> Array:
    """Return 16-byte chunks with packed codes of 4 or 6 bits spread to a byte each, unchanged without such a format."""
    if source_format == "b4x16_p64":
        # A 4-bit float lies in bits 5:2 of its container.
        return np.left_shift(unpack_codes(chunks, 4), np.uint8(2))
    return unpack_codes(chunks, 6) if source_format == "b6x16_p32" else chunks


@register_decoder("tcgen05.cp")
def _decode_cp(form: Form) -> None:
    """Decode `tcgen05.cp` into a step that issues asynchronous copies from shared to tensor memory; refuse unknown
    shapes."""
    group_size = read_cta_group(form)
    shape = form.find_modifier(*_COPIES)
    multicast = form.find_modifier("warpx2::02_13", "warpx2::01_23", "warpx4")
    if not shape or (multicast not in _MULTICASTS[shape] if shape in _MULTICASTS else multicast):
        raise form.unsupported("this shape or multicast")
    source_format = form.find_modifier("b4x16_p64", "b6x16_p32")
    if form.has("b8x16") != bool(source_format):
        raise form.unsupported("this decompression")
    pointer = form.build_address(form.operands[0])
    descriptor_slot = form.read(form.operands[1], "b64")
    source_rows, width = _COPIES[shape]
    row_of = _map_lanes_to_rows(shape, multicast)

    def issue_copy(cta: Cta, thread: int, place: int, bits: int) -> None:
        """Claim source and destination of one thread's copy in each block, and queue it as asynchronous; fault if
        misaligned."""
        lane, column = split_address(place)
        if (lane and shape != "4x256b") or lane >= 32:
            raise Fault("misaligned", f"tcgen05.cp of .{shape} to lane {lane} of tensor memory")
        lanes = lane + np.arange(4) * 32 if shape == "4x256b" else np.arange(tmem.LANES)
        home = tmem.get_tensor_memory(cta)
        copy = tmem.start_operation(cta, home, "tcgen05.cp", form.line, cta.actors[thread : thread + 1], (shape,))
        copied: list[tuple[Cta, Array]] = []
        for block in require_running_blocks(cta, group_size, "tcgen05.cp"):
            rows = claim_shared_operand(block, copy, bits, source_rows, width, 1, False, "the source of tcgen05.cp")
            tmem.get_tensor_memory(block).record_write(
                copy, tmem.make_rectangle(lanes, column, width // 4), "tcgen05.cp"
            )
            copied.append((block, rows))

        def copy_rows() -> None:
            """Copy the source rows, decompressed, to the lanes of each block."""
            for block, rows in copied:
                data = _decompress_chunks(block.shared.rows[rows], source_format)
                words = np.ascontiguousarray(data.reshape(source_rows, width)).view(np.uint32)
                tmem.get_tensor_memory(block).words[lanes, column : column + width // 4] = words[row_of]

        home.issue(copy, AsyncEffect(copy_rows))

    form.step.run = build_thread_step(issue_copy, pointer, descriptor_slot)


@register_decoder("tcgen05.shift")
def _decode_shift(form: Form) -> None:
    """Decode `tcgen05.shift.down` into a step that issues asynchronous moves of 32 lanes by one; refuse other
    directions."""
    group_size = read_cta_group(form)
    if not form.has("down"):
        raise form.unsupported("this direction")
    pointer = form.build_address(form.operands[0])

    def issue_shift(cta: Cta, thread: int, place: int) -> None:
        """Queue one thread's shift of eight columns in each block as asynchronous; fault at a lane that is no multiple
        of 32."""
        lane, column = split_address(place)
        if lane % 32:
            raise Fault("misaligned", f"tcgen05.shift at lane {lane}, which is not a multiple of 32")
        home = tmem.get_tensor_memory(cta)
        shift = tmem.start_operation(cta, home, "tcgen05.shift", form.line, cta.actors[thread : thread + 1])
        memories = [tmem.get_tensor_memory(block) for block in require_running_blocks(cta, group_size, "tcgen05.shift")]
        region = tmem.make_rectangle(np.arange(lane, lane + 32), column, 8)
        for memory in memories:
            memory.record_read(shift, region, "tcgen05.shift")
            memory.record_write(shift, region, "tcgen05.shift")

        def shift_lanes() -> None:
            """Copy each of the 32 lanes, except the last, to the next one, in eight columns of each block."""
            for memory in memories:
                part = memory.words[lane : lane + 32, column : column + 8]
                part[1:] = part[:-1].copy()

        home.issue(shift, AsyncEffect(shift_lanes))

    form.step.run = build_thread_step(issue_shift, pointer)


# -- commit ------------------------------------------------------------------------------------------------------------


def _commit_clock(cta: Cta, actor: int) -> Array | None:
    """Return what a committing thread knows of other actors, without its own events; None if races are not watched. A
    commit publishes this, such as the arrival of the operands."""
    if cta.order is None:
        return None
    clock: Array = cta.order.know[actor].copy()
    clock[actor] = 0
    return clock


@register_decoder("tcgen05.commit", accepts="shared::cluster b64 mbarrier::arrive::one")
def _decode_commit(form: Form) -> None:
    """Decode `tcgen05.commit` into a step whose arrivals at mbarriers await the thread's operations; refuse other
    completions."""
    group_size = read_cta_group(form)
    if not form.has("mbarrier::arrive::one"):
        raise form.unsupported("this completion mechanism")
    pointer = form.build_address(form.operands[0])
    is_multicast = form.has("multicast::cluster")
    if is_multicast != (len(form.operands) == 2):
        raise form.unsupported("a mask needs .multicast::cluster, and .multicast::cluster a mask,")
    mask_slots = [form.read(form.operands[1], "u16")] if is_multicast else []

    def commit_operations(cta: Cta, thread: int, address: int, mask: int | None = None) -> None:
        """Add an arrival that awaits the thread's pending operations to its mbarrier, or that of each block of `mask`
        if given. A block that the cluster does not have is a fault."""
        memory = tmem.get_tensor_memory(cta)
        require_running_blocks(cta, group_size, "tcgen05.commit")
        actors = cta.actors[thread : thread + 1]
        actor = int(actors[0])
        tracked = [op for op in memory.pending if not op.is_warps and int(op.actors[0]) == actor]
        memory.fence_before_commit(tracked)
        before = memory.finished.get(actor, 0)  # all prior operations are tracked, those that are over too
        targets = [address]
        if mask is not None:
            local = cta.find_peer(to_shared_address(address))[1]
            ranks = [rank for rank in range(16) if mask >> rank & 1]
            if ranks and ranks[-1] >= len(cta.cluster.ctas):
                raise Fault("out-of-bounds", f"a commit to blocks {ranks}, which the cluster does not have")
            targets = [(rank + 1 << SHARED_RANK_SHIFT) + local for rank in ranks]
        knowledge = _commit_clock(cta, actor)

        def finish_commit() -> Array | None:
            """Complete the tracked operations and return the clock that a wait acquires, None if races are not
            watched."""
            until = max(before, memory.complete_operations(tracked))
            if knowledge is not None and cta.order is not None:
                knowledge[cta.order.threads + actor // WARPGROUP] = until
            return knowledge

        for target in targets:
            barrier = find_barrier(cta, target, actors)
            if sum(deferred.count for deferred in barrier.deferred) >= barrier.pending:
                # The phase that earlier commits complete is over before this one arrives.
                barrier.try_complete_phase()
            record_event(cta, np.array([thread]), "arrive", f"mbarrier {barrier.address:#x} by commit", form.line)
            step = cta.launch.events.pc
            barrier.sources[step] = barrier.sources.get(step, 0) + 1
            barrier.deferred.append(DeferredArrivals(1, actors, finish_commit))
            barrier.version += 1

    form.step.run = build_thread_step(commit_operations, pointer, *mask_slots)
