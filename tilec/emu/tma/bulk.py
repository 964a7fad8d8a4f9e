"""Bulk copies: `cp.async.bulk` and its tensor form (TMA), between global and shared memory.

A load owns its destination from its issue until a wait on its mbarrier needs the bytes. A store has read shared memory
when `wait_group.read` (or `wait_group`) returns, and written global memory at `wait_group` or at the end of the kernel.
`EffectScheduler` chooses the time in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import PendingCopy, describe_barrier, find_barrier, record_event, to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import StepFunction, build_thread_step
from tilec.emu.memory.memory import PARAM_WINDOW, SHARED_RANK_SHIFT, WINDOW_SHIFT
from tilec.emu.numbers import REDUCTIONS, Array
from tilec.emu.tma.asyncops import AsyncEffect, BulkStore
from tilec.emu.tma.tensormap import (
    INTEGER_ELEMENTS,
    MAP_BYTES,
    FourRows,
    Im2colBox,
    MapLayout,
    TileBox,
    combine_elements,
    decode_map,
    find_box_rows,
)
from tilec.ptx.module import Operand, TensorAddress, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

ReadFunction = Callable[[], Array]
WriteFunction = Callable[[Array], None]
GranuleFunction = Callable[[int], Array]
"""Returns the granules, of a given size, of global memory that a copy accesses."""
ROW_BYTES = 16
"""TMA addresses global memory in rows of this size."""
_RANKS = {f"{rank}d": rank for rank in range(1, 6)}
_EXTREMES = ("uint32", "int32", "uint64", "int64", "float16", "bfloat16")
_BITS = ("uint32", "int32", "float32", "uint64", "int64", "float64")
_REDUCTION_TYPES: dict[str, tuple[str, ...]] = {
    "add": ("uint32", "int32", "uint64", "float32", "float16", "bfloat16"),
    **dict.fromkeys(("min", "max"), _EXTREMES),
    **dict.fromkeys(("and", "or", "xor"), _BITS),
    **dict.fromkeys(("inc", "dec"), ("uint32",)),
}
"""The element types of tensors by the reduction (PTX ISA, cp.reduce.async.bulk.tensor)."""


def read_tensor_map(cta: Cta, thread: int, address: int) -> MapLayout:
    """Return the tensor map at a global or parameter address that thread `thread` uses; fault if misaligned, unfenced
    or out of bounds."""
    in_params = address >> WINDOW_SHIFT == PARAM_WINDOW >> WINDOW_SHIFT
    memory = cta.launch.params if in_params else cta.launch.memory
    if address % 64:
        raise Fault("misaligned", f"a tensor map at {address:#x}, which is not a multiple of 64")
    start = memory.find_offset(address, MAP_BYTES, "the tensor map")
    if memory.race_detector is not None:
        memory.race_detector.require_fenced_map(int(cta.actors[thread]), start, MAP_BYTES)
    return decode_map(memory.bytes[start : start + MAP_BYTES].tobytes())


def _find_shared_rows(cta: Cta, address: int, size: int, swizzle: int, what: str) -> Array:
    """Return the 16-byte shared rows of a copy, swizzled; fault unless its bytes lie inside one allocation."""
    cta.shared.find_offset(address, size, what)
    return find_box_rows(address, size, swizzle)


def issue_load(
    form: Form,
    cta: Cta,
    thread: int,
    target: Cta,
    address: int,
    rows: Array,
    holder: Cta,
    bar: int,
    read: ReadFunction,
    swizzle: int = -1,
    release: Callable[[], None] = lambda: None,
    places: GranuleFunction | None = None,
) -> None:
    """Issue a copy by a thread of `cta` into shared rows of `target`, which the mbarrier `bar` of block `holder` will
    report. The rows are claimed until then; `read` returns their bytes, `release` ends the read of a source in shared
    memory."""
    memory = target.shared
    state = target.asynchronous
    actor = int(cta.actors[thread])
    step = cta.launch.events.pc
    memory.claim_rows(rows, actor)
    region = (rows, form.line, "the bulk copy")
    state.regions.append(region)

    def write_rows() -> None:
        """Write the copy's bytes to the destination rows."""
        memory.rows[rows] = read()

    effect = AsyncEffect(write_rows)

    def finish_load(column: int) -> None:
        """Write the bytes, mark the rows as arrived and end the claim; `column` is the mbarrier's clock column."""
        effect.do()
        memory.arrive_rows(rows, column, step, swizzle)
        release()
        state.regions[:] = [other for other in state.regions if other is not region]
        timeline = cta.launch.timeline
        if timeline is not None:
            timeline.add(target.position, -1, "", "done", f"copy to {address:#x}", form.line)

    barrier = find_barrier(cta, _to_cluster_address(holder, bar), np.array([actor]))
    detector = cta.launch.memory.race_detector
    if detector is not None and places is not None:
        detector.start_bulk_load(actor, places(detector.granule), barrier.column, "the bulk copy")
    record_event(cta, np.array([thread]), "issue", f"copy to {address:#x} for {describe_barrier(barrier)}", form.line)
    barrier.add_copy(PendingCopy(len(rows) * 16, form.line, finish_load))
    cta.launch.effect_scheduler.schedule_effects(effect)


def _to_cluster_address(target: Cta, address: int) -> int:
    """Return the `shared::cluster` address of an address in the shared memory of `target`."""
    return (target.rank + 1 << SHARED_RANK_SHIFT) + address


def _issue_store(form: Form, cta: Cta, thread: int, rows: Array, write: WriteFunction, places: GranuleFunction) -> None:
    """Issue a bulk store of shared rows to the thread's open group; rows are read-only until it has read; fault if
    unready. `write` puts the bytes at the destination, with the granules `places`."""
    memory = cta.shared
    memory.require_async_readable(rows, "the bulk store")
    actor, step = int(cta.actors[thread]), cta.launch.events.pc
    order, detector = cta.order, memory.race_detector
    if detector is not None and order is not None:
        detector.require_known(order.clock_of_any(slice(actor, actor + 1)), rows, f"the bulk store of thread {thread}")
    end = cta.asynchronous.begin_reading(rows, form.line, "the bulk store")
    data: list[Array] = []
    reading = AsyncEffect(lambda: data.append(memory.rows[rows]))

    def write_data() -> None:
        """Take the bytes, if that has not happened, and write them to the destination."""
        reading.do()
        write(data[0])

    def release_rows() -> None:
        """End the read of the source rows and tell the race detector."""
        end()
        if detector is not None:
            detector.read_by_engine(actor, rows, step)

    writing = AsyncEffect(write_data)
    record_event(cta, np.array([thread]), "issue", f"store from {int(rows[0]) * 16:#x}", form.line)
    cta.launch.effect_scheduler.schedule_effects(reading, writing)
    store = BulkStore(form.line, reading, writing, release_rows)
    global_detector = cta.launch.memory.race_detector
    if global_detector is not None:
        is_reduction, granules = form.stem.startswith("cp.reduce"), places(global_detector.granule)
        what = "the bulk reduction" if is_reduction else "the bulk store"
        store.arrive = global_detector.start_bulk_store(actor, granules, what, is_reduction=is_reduction)
    cta.asynchronous.bulk[thread].open.append(store)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _read_tensor_rank(form: Form) -> int:
    """Return the rank, 1 to 5, that the opcode names."""
    return next(_RANKS[part] for part in form.stem.split(".") if part in _RANKS)


def _parse_coordinates(form: Form, operand: Operand) -> tuple[Callable[[Cta, Threads], Array], list[int]]:
    """Return the address function of a tensor map, and the slots of the coordinates; fault on another number of
    coordinates."""
    rank = _read_tensor_rank(form)
    if not isinstance(operand, TensorAddress):
        raise form.unsupported(f"{operand} where a tensor address belongs")
    is_rows = form.has("tile::gather4", "tile::scatter4")
    if is_rows and rank != 2:
        raise form.unsupported("four rows of other than a matrix")
    if len(operand.coordinates) != (5 if is_rows else rank):
        raise form.unsupported(f"{len(operand.coordinates)} coordinates of a {rank}d tensor")
    return form.build_pointer(operand.map), [form.read(coordinate, "s32") for coordinate in operand.coordinates]


def _list_im2col_offsets(form: Form, operand: Operand) -> tuple[Operand, ...]:
    """Return the offset operands of an im2col load, one for each axis but images and channels; fault on another
    number."""
    wanted = _read_tensor_rank(form) - 2
    if not isinstance(operand, Vector) or len(operand.items) != wanted or wanted < 1:
        raise form.unsupported(f"im2col offsets other than {wanted}")
    return operand.items


def _read_copy_layout(cta: Cta, thread: int, address: int, rank: int, point: list[int]) -> MapLayout:
    """Return the tensor map of a copy of this rank whose box begins at `point`; fault on another rank or a misaligned
    start."""
    layout = read_tensor_map(cta, thread, address)
    if len(layout.sizes) != rank:
        raise Fault("bad-descriptor", f"a {rank}d copy through a tensor map of rank {len(layout.sizes)}")
    if point[0] * layout.element_bytes % ROW_BYTES:
        # An H200 reports an illegal instruction. The PTX manual does not state the rule; Triton does.
        message = f"a box that begins at element {point[0]} of a row, elements of {layout.element_bytes} bytes"
        raise Fault("misaligned", f"{message}: its first coordinate must be a multiple of {ROW_BYTES} bytes")
    return layout


def _list_multicast_targets(cta: Cta, mask: int) -> list[Cta]:
    """Return the blocks of the cluster that a multicast mask names; fault if it is 0 or names others."""
    blocks = cta.cluster.ctas
    if not 0 < mask < 1 << len(blocks):
        raise Fault("out-of-bounds", f"a multicast to blocks {mask:#b} of a cluster of {len(blocks)}")
    return [peer for rank, peer in enumerate(blocks) if mask >> rank & 1]


def _find_destination(form: Form, cta: Cta, place: int) -> tuple[Cta, int]:
    """Return the block that a copy's destination lies in and the address there; fault if `.shared::cta` names another
    block."""
    target, address = cta.find_peer(to_shared_address(place))
    if target is not cta and form.stem.endswith(".shared::cta"):
        message = f"a copy to .shared::cta has a destination in block {target.position}"
        raise Fault("out-of-bounds", f"{message}; use .shared::cluster to copy to another block")
    return target, address


@register_decoder(
    *(f"cp.async.bulk.tensor.{rank}.{space}" for rank in _RANKS for space in ("shared::cluster", "shared::cta")),
    accepts="global tile mbarrier::complete_tx::bytes",
)
def _decode_tensor_load(form: Form) -> None:
    """Decode a tensor load, `cp.async.bulk.tensor` to shared memory, into a step that issues it, in any of its
    modes."""
    is_gather = form.has("tile::gather4")
    destination = form.build_address(form.operands[0])
    map_pointer, coordinate_slots = _parse_coordinates(form, form.operands[1])
    barrier = form.build_address(form.operands[2])
    # After the barrier come the offsets of an im2col copy, then the mask of a multicast.
    rest = list(form.operands[3:])
    offsets = _list_im2col_offsets(form, rest.pop(0)) if form.has("im2col") else ()
    offset_slots = [form.read(item, "u16") for item in offsets]
    mask_slot = form.read(rest[0], "u16") if form.has("multicast::cluster") else -1
    is_paired = form.has("cta_group::2")
    rank = _read_tensor_rank(form)

    def issue_box_load(cta: Cta, thread: int, place: int, map_address: int, bar: int, position: list[int]) -> None:
        """Issue one thread's box load to a block, or all of a mask, each with its mbarrier; fault on a misplaced box or
        mbarrier."""
        mask = int(cta.views[mask_slot][thread]) if mask_slot >= 0 else None
        point, offsets = position[: len(coordinate_slots)], position[len(coordinate_slots) :]
        layout = _read_copy_layout(cta, thread, map_address, rank, point)
        first, address = _find_destination(form, cta, place)
        targets = [first] if mask is None else _list_multicast_targets(cta, mask)
        if address % 128:
            raise Fault("misaligned", f"a box at shared address {address:#x}, which is not a multiple of 128")
        box: TileBox | Im2colBox | FourRows
        if offsets:
            box = Im2colBox(layout, point, offsets, cta.launch.memory)
        else:
            box = (FourRows if is_gather else TileBox)(layout, point, cta.launch.memory)
        size = layout.box_bytes * (4 if is_gather else 1)
        rows = _find_shared_rows(cta, address, size, layout.swizzle, "the box")
        bar_owner, bar_address = cta.find_peer(to_shared_address(bar))
        if not is_paired and mask is None and bar_owner is not first:
            message = "the mbarrier of a tensor load is in another block than its destination"
            raise Fault("bad-barrier", f"{message}; that needs .cta_group::2")
        for target in targets:
            # With .cta_group::2 the barrier may be the peer's: of each pair the block of the same parity.
            holder = cta.cluster.ctas[target.rank & ~1 | bar_owner.rank & 1] if is_paired else target
            copy = (address, rows, holder, bar_address, box.load)
            issue_load(form, cta, thread, target, *copy, layout.swizzle, places=box.find_granules)

    position_slots = [*coordinate_slots, *offset_slots]
    form.step.run = build_thread_step(issue_box_load, destination, map_pointer, barrier, position_slots)


def build_arrival_only_step(form: Form) -> StepFunction:
    """Return a step that arrives at the mbarriers of a tensor load, without moving its bytes. A kernel whose control
    flow depends on no loaded data runs the same."""
    map_pointer, _ = _parse_coordinates(form, form.operands[1])
    destination, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[2])
    mask_slots = [form.read(form.operands[-1], "u16")] if form.has("multicast::cluster") else []
    is_gather, is_paired = form.has("tile::gather4"), form.has("cta_group::2")

    def arrive_at_barriers(
        cta: Cta, thread: int, map_address: int, place: int, bar: int, mask: int | None = None
    ) -> None:
        """Add one thread's box size to the mbarrier of each block of `mask`, with None the destination's, as an empty
        copy."""
        size = read_tensor_map(cta, thread, map_address).box_bytes * (4 if is_gather else 1)
        first, _ = cta.find_peer(to_shared_address(place))
        owner, address = cta.find_peer(to_shared_address(bar))
        for target in cta.cluster.ctas:
            if target is first if mask is None else mask >> target.rank & 1:
                holder = cta.cluster.ctas[target.rank & ~1 | owner.rank & 1] if is_paired else target
                actors = cta.actors[thread : thread + 1]
                found_barrier = find_barrier(cta, _to_cluster_address(holder, address), actors)
                found_barrier.add_copy(PendingCopy(size, form.line, lambda column: None))

    return build_thread_step(arrive_at_barriers, map_pointer, destination, barrier, *mask_slots)


@register_decoder(
    *(f"cp{kind}.async.bulk.tensor.{rank}.global" for kind in ("", ".reduce") for rank in _RANKS),
    accepts="shared::cta tile bulk_group",
)
def _decode_tensor_store(form: Form) -> None:
    """Decode a tensor store or reduction into a step that issues it for each thread; refuse unknown modes and
    reductions."""
    is_scatter = form.has("tile::scatter4")
    if form.has("im2col_no_offs", "tile::scatter4") and form.stem.startswith("cp.reduce"):
        raise form.unsupported("this mode")
    no_offsets = [0] * (_read_tensor_rank(form) - 2) if form.has("im2col_no_offs") else None
    map_pointer, coordinate_slots = _parse_coordinates(form, form.operands[0])
    source = form.build_address(form.operands[1])
    operation = form.find_modifier(*REDUCTIONS) if form.stem.startswith("cp.reduce") else ""
    if form.stem.startswith("cp.reduce") and not operation:
        raise form.unsupported("this reduction")
    rank = _read_tensor_rank(form)

    def issue_box_store(cta: Cta, thread: int, place: int, map_address: int, point: list[int]) -> None:
        """Issue one thread's store or reduction of a box; a negative coordinate or misaligned source is a fault."""
        layout = _read_copy_layout(cta, thread, map_address, rank, point)
        address = to_shared_address(place)
        if min(point) < 0:
            raise Fault("out-of-bounds", f"a store of a box that begins at {point}: no coordinate may be negative")
        if operation and layout.element not in _REDUCTION_TYPES[operation]:
            raise Fault("bad-descriptor", f"the reduction .{operation} is not defined for tensors of {layout.element}")
        if address % 128:
            raise Fault("misaligned", f"a box at shared address {address:#x}, which is not a multiple of 128")
        size = layout.box_bytes * (4 if is_scatter else 1)
        rows = _find_shared_rows(cta, address, size, layout.swizzle, "the box")
        box: TileBox | Im2colBox | FourRows
        if no_offsets is None:
            box = (FourRows if is_scatter else TileBox)(layout, point, cta.launch.memory)
        else:
            _check_im2col_corners(layout)
            box = Im2colBox(layout, point, no_offsets, cta.launch.memory)
        write = partial(box.reduce, operation=operation) if operation and isinstance(box, TileBox) else box.store
        _issue_store(form, cta, thread, rows, write, box.find_granules)

    form.step.run = build_thread_step(issue_box_store, source, map_pointer, coordinate_slots)


def _check_im2col_corners(layout: MapLayout) -> None:
    """Fault unless the corners of an im2col store's map lie inside the tensor. The rule is PTX ISA, "Restriction on
    Tensor Copy instructions"."""
    columns = layout.columns
    if columns is not None and (min(columns.lower) < 0 or max(columns.upper) > 0):
        corners = f"the corners {list(columns.lower)} and {list(columns.upper)} of its map"
        message = f"an im2col store by {corners}, which lie outside of the tensor"
        raise Fault("out-of-bounds", f"{message}: lower ones may not be negative, upper ones not positive")


@register_decoder(*(f"cp.async.bulk.prefetch.tensor.{rank}" for rank in _RANKS), accepts="global tile im2col L2")
def _decode_tensor_prefetch(form: Form) -> None:
    """Decode a tensor prefetch into a step that only checks the tensor map and coordinates."""
    map_pointer, coordinate_slots = _parse_coordinates(form, form.operands[0])
    rank = _read_tensor_rank(form)

    def check_copy(cta: Cta, thread: int, map_address: int, point: list[int]) -> None:
        """Fault if the tensor map does not fit the prefetch."""
        _read_copy_layout(cta, thread, map_address, rank, point)

    form.step.run = build_thread_step(check_copy, map_pointer, coordinate_slots)


@register_decoder("cp.async.bulk.prefetch", accepts="global L2")
def _decode_prefetch(form: Form) -> None:
    """Decode `cp.async.bulk.prefetch` into a step that only checks the alignment of its range."""
    source, size_slot = form.build_address(form.operands[0]), form.read(form.operands[1], "u32")
    form.step.run = build_thread_step(
        lambda cta, thread, origin, size: _check_range_alignment(origin, size), source, size_slot
    )


# -- plain ranges of bytes ---------------------------------------------------------------------------------------------


def _make_granule_lister(start: int, size: int) -> GranuleFunction:
    """Return a function from a granule size to the numbers of the granules that a byte range touches."""
    return lambda granule: np.arange(start // granule, -(-(start + size) // granule))


def _check_range_alignment(address: int, size: int) -> None:
    """Fault unless the address and size of a bulk copy are multiples of 16."""
    if address % 16 or size % 16:
        raise Fault("misaligned", f"a bulk copy of {size} bytes at {address:#x}: both must be multiples of 16")


@register_decoder(
    "cp.async.bulk.shared::cluster",
    "cp.async.bulk.shared::cta",
    accepts="global shared::cta mbarrier::complete_tx::bytes",
)
def _decode_range_load(form: Form) -> None:
    """Decode `cp.async.bulk` to shared memory into a step that issues a copy of a range, from global or this shared
    memory."""
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    size_slot = form.read(form.operands[2], "u32")
    barrier = form.build_address(form.operands[3])
    from_shared = form.modifiers[0] == "shared::cta"
    mask_slot = form.read(form.operands[4], "u16") if form.has("multicast::cluster") else -1

    def issue_range_load(cta: Cta, thread: int, place: int, origin: int, size: int, bar: int) -> None:
        """Issue one thread's range load to a block, or all of a mask, each with its mbarrier; fault on wrong ranges or
        mbarriers."""
        mask = int(cta.views[mask_slot][thread]) if mask_slot >= 0 else None
        target, address = _find_destination(form, cta, place)
        _check_range_alignment(address, size)
        _check_range_alignment(origin, size)
        rows = _find_shared_rows(target, address, size, 0, "the bulk copy")
        release: Callable[[], None] = lambda: None  # noqa: E731
        places: GranuleFunction | None = None
        if from_shared:
            memory = cta.shared
            start = memory.find_offset(to_shared_address(origin), size, "the bulk copy")
            taken = np.arange(start, start + size, 16) // 16
            memory.require_async_readable(taken, "the bulk copy")
            release = cta.asynchronous.begin_reading(taken, form.line, "the bulk copy")
        else:
            memory = cta.launch.memory
            start = memory.find_offset(origin, size, "the bulk copy")
            memory.read_range(start, size)
            places = _make_granule_lister(start, size)
        data = memory.bytes[start : start + size].reshape(-1, 16)
        bar_owner, bar_address = cta.find_peer(to_shared_address(bar))
        if bar_owner is not target:
            raise Fault("bad-barrier", "the mbarrier of a bulk copy is in another block than its destination")
        for receiver in [target] if mask is None else _list_multicast_targets(cta, mask):
            copy = (address, rows, receiver, bar_address, lambda: data)
            issue_load(form, cta, thread, receiver, *copy, release=release, places=places)

    form.step.run = build_thread_step(issue_range_load, destination, source, size_slot, barrier)


_BULK_ELEMENTS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", **INTEGER_ELEMENTS}


@register_decoder("cp.async.bulk.global", "cp.reduce.async.bulk", accepts="global shared::cta bulk_group noftz bf16")
def _decode_range_store(form: Form) -> None:
    """Decode `cp.async.bulk` and `cp.reduce.async.bulk` to global memory into a step; refuse an unknown reduction."""
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    size_slot = form.read(form.operands[2], "u32")
    operation, element = "", "uint8"
    if form.stem == "cp.reduce.async.bulk":
        if form.modifiers[0] != "global":
            raise form.unsupported("a reduction into shared memory")
        operation = form.find_modifier(*REDUCTIONS)
        element = _BULK_ELEMENTS.get(form.modifiers[-1], "")
        if not operation or not element:
            raise form.unsupported("this reduction")
    # The last operand may say which bytes of every sixteen are stored.
    mask_slots = [form.read(form.operands[-1], "b16")] if form.has("cp_mask") else []

    def issue_range_store(cta: Cta, thread: int, place: int, origin: int, size: int, mask: int = 0xFFFF) -> None:
        """Issue one thread's store or reduction of a byte range; misaligned or unallocated ranges are a fault."""
        origin = to_shared_address(origin)
        _check_range_alignment(place, size)
        _check_range_alignment(origin, size)
        rows = _find_shared_rows(cta, origin, size, 0, "the bulk store")
        memory = cta.launch.memory
        start = memory.find_offset(place, size, "the bulk store")
        target = memory.bytes[start : start + size]
        tag = memory.tag

        def write_range(data: Array) -> None:
            """Write the bytes that the mask names, or combine them with the old ones, and check for another cluster's
            access."""
            new = data.reshape(-1)
            if mask != 0xFFFF:
                new = np.where(mask >> np.arange(len(new)) % 16 & 1 == 1, new, target)
            memory.write_range(start, target if operation else new, tag)
            if operation:
                word = np.dtype(f"u{np.dtype(element if element != 'bfloat16' else 'uint16').itemsize}")
                new = combine_elements(element, operation, target.view(word), new.view(word)).view(np.uint8)
            target[:] = new

        _issue_store(form, cta, thread, rows, write_range, _make_granule_lister(start, size))

    form.step.run = build_thread_step(issue_range_store, destination, source, size_slot, *mask_slots)


# -- groups of stores --------------------------------------------------------------------------------------------------


@register_decoder("cp.async.bulk.commit_group")
def _decode_commit_group(form: Form) -> None:
    """Decode `cp.async.bulk.commit_group` into a step that closes each thread's group of bulk stores."""
    form.step.run = build_thread_step(lambda cta, thread: cta.asynchronous.bulk[thread].commit())


@register_decoder("cp.async.bulk.wait_group")
def _decode_wait_group(form: Form) -> None:
    """Decode `cp.async.bulk.wait_group` into a step that finishes all but the latest groups of stores, or their
    reads."""
    left = form.parse_constant(form.operands[0])
    only_read = form.has("read")

    def await_groups(cta: Cta, thread: int) -> None:
        """Finish the thread's committed stores, or their reads, except those of the latest groups that may stay in
        flight."""
        groups = cta.asynchronous.bulk[thread]
        due = groups.list_due(left)
        for store in itertools.chain.from_iterable(due):
            if only_read:
                store.finish_read()
            else:
                store.finish_write()
        if not only_read:
            groups.committed = groups.committed[len(due) :]

    form.step.run = build_thread_step(await_groups)
