"""Writes and reductions into the shared memory of a cluster that an mbarrier there reports: `st.async`, `red.async` and
the reducing bulk copy. The bytes arrive when a wait on that barrier needs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import PendingCopy, describe_barrier, find_barrier, record_event, to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import build_thread_step
from tilec.emu.memory.atomics import select_atomic_function
from tilec.emu.memory.memory import WORD_TYPES
from tilec.emu.numbers import REDUCTIONS
from tilec.emu.tma.asyncops import AsyncEffect
from tilec.emu.tma.tensormap import INTEGER_ELEMENTS, combine_elements
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta


def _attach_to_barrier(
    cta: Cta,
    thread: int,
    place: int,
    bar: int,
    what: str,
    size: int,
    line: int,
    write: Callable[[], None],
    announce: Callable[[int, int], None],
) -> None:
    """Add an asynchronous write to an mbarrier that reports it; fault unless both lie in the same block. `announce` is
    called with the barrier's clock column and the issuing step when a wait needs the bytes."""
    if cta.find_peer(to_shared_address(bar))[0] is not cta.find_peer(to_shared_address(place))[0]:
        raise Fault("bad-barrier", f"the mbarrier of {what} is in another block than its destination")
    effect, step = AsyncEffect(write), cta.launch.events.pc

    def finish_write(column: int) -> None:
        """Write the bytes, unless that has happened, and announce their arrival."""
        effect.do()
        announce(column, step)

    barrier = find_barrier(cta, bar, cta.actors[thread : thread + 1])
    record_event(cta, np.array([thread]), "issue", f"{what} for {describe_barrier(barrier)}", line)
    barrier.add_copy(PendingCopy(size, line, finish_write))
    cta.launch.effect_scheduler.schedule_effects(effect)


@register_decoder("st.async", accepts="weak shared::cluster")
def _decode_st_async(form: Form) -> None:
    """Decode `st.async`, reported by an mbarrier, into a step that stores to the cluster's shared memory; refuse other
    forms."""
    view = form.parse_type()
    value: Operand = form.operands[1]
    items = value.items if isinstance(value, Vector) else (value,)
    count = {"v2": 2, "v4": 4}.get(form.find_modifier("v2", "v4"), 1)
    if len(items) != count or not form.has("mbarrier::complete_tx::bytes"):
        raise form.unsupported("this form")
    pointer, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[2])
    slots = [form.read(item, f"b{view.bits}") for item in items]
    width, line = view.bits // 8, form.line
    size = width * len(slots)

    def issue_store(cta: Cta, thread: int, place: int, bar: int) -> None:
        """Claim the destination of one thread's store, and attach the bytes to the mbarrier; fault if misaligned."""
        target, address = cta.find_peer(to_shared_address(place))
        if address % size:
            raise Fault("misaligned", f"st.async to {address:#x}, which is not a multiple of {size}")
        memory, places = target.shared, address + width * np.arange(len(slots), dtype=np.int64)
        memory.claim(places, width, np.repeat(cta.actors[thread], len(slots)))
        data = np.stack([cta.views[slot][thread] for slot in slots]).view(np.uint8).reshape(-1, width)

        def announce_arrival(column: int, step: int) -> None:
            """Mark the stored bytes as arrived, known by the mbarrier's clock column."""
            memory.arrive(places, width, np.array([column]), step)

        write_bytes = partial(memory.fill, places, width, data)
        _attach_to_barrier(cta, thread, place, bar, "st.async", size, line, write_bytes, announce_arrival)

    form.step.run = build_thread_step(issue_store, pointer, barrier)


@register_decoder("red.async", accepts="relaxed cluster shared::cluster mbarrier::complete_tx::bytes")
def _decode_red_async(form: Form) -> None:
    """Decode `red.async` of 32 or 64 bits into an atomic update of the cluster's shared memory, reported by an
    mbarrier."""
    view = form.parse_type()
    operation = form.find_modifier(*REDUCTIONS)
    if not operation or view.bits not in (32, 64):
        raise form.unsupported("this reduction")
    pointer, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[2])
    slot = form.read(form.operands[1], view.name)
    function = select_atomic_function(operation, view)
    width, line = view.bits // 8, form.line

    def issue_reduction(cta: Cta, thread: int, place: int, bar: int) -> None:
        """Attach one thread's atomic operation to the mbarrier, with the operand that it has now."""
        target, address = cta.find_peer(to_shared_address(place))
        memory, operand, where = target.shared, cta.views[slot][thread : thread + 1].copy(), np.array([address])

        def write_result() -> None:
            """Combine the operand with the value in memory, and store the result."""
            old = memory.load(where, width).view(view.dtype)
            new = np.ascontiguousarray(function(old, operand, operand), dtype=view.dtype)
            memory.store(where, width, new.view(WORD_TYPES[width]))

        def announce_arrival(column: int, step: int) -> None:
            """Mark the result as arrived, known by the mbarrier's clock column."""
            memory.arrive(where, width, np.array([column]), step)

        _attach_to_barrier(cta, thread, place, bar, "red.async", width, line, write_result, announce_arrival)

    form.step.run = build_thread_step(issue_reduction, pointer, barrier)


@register_decoder("cp.reduce.async.bulk.shared::cluster", accepts="shared::cta mbarrier::complete_tx::bytes")
def _decode_reduce_bulk(form: Form) -> None:
    """Decode `cp.reduce.async.bulk` of integers to the cluster's shared memory into a step, reported by an mbarrier."""
    operation, element = form.find_modifier(*REDUCTIONS), form.modifiers[-1]
    if not operation or element not in INTEGER_ELEMENTS:
        raise form.unsupported("this reduction")
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    size_slot = form.read(form.operands[2], "u32")
    barrier = form.build_address(form.operands[3])
    name = INTEGER_ELEMENTS[element]
    word, line = np.dtype(name).str.replace("i", "u"), form.line

    def issue_reduction(cta: Cta, thread: int, place: int, origin: int, size: int, bar: int) -> None:
        """Attach one thread's bulk reduction to the mbarrier; misaligned, unallocated or unready bytes are a fault."""
        target, address = cta.find_peer(to_shared_address(place))
        start = to_shared_address(origin)
        if address % 16 or start % 16 or size % 16:
            raise Fault("misaligned", f"a bulk reduction of {size} bytes at {address:#x}: multiples of 16 are needed")
        cta.shared.find_offset(start, size, "the bulk reduction")
        target.shared.find_offset(address, size, "the bulk reduction")
        rows, targets = np.arange(start, start + size, 16) // 16, np.arange(address, address + size, 16) // 16
        memory = target.shared
        cta.shared.require_async_readable(rows, "the bulk reduction")
        memory.require_async_readable(targets, "the bulk reduction")
        release = cta.asynchronous.begin_reading(rows, line, "the bulk reduction")

        def write_result() -> None:
            """Combine the source bytes with those at the destination, and write the result there."""
            old = memory.bytes[address : address + size].view(word)
            new = cta.shared.bytes[start : start + size].view(word)
            memory.bytes[address : address + size] = combine_elements(name, operation, old, new).view(np.uint8)

        def announce_arrival(column: int, step: int) -> None:
            """Mark the destination rows as arrived, and end the read of the source."""
            memory.arrive_rows(targets, column, step, -1)
            release()

        _attach_to_barrier(cta, thread, place, bar, "a bulk reduction", size, line, write_result, announce_arrival)

    form.step.run = build_thread_step(issue_reduction, destination, source, size_slot, barrier)


@register_decoder("st.bulk", accepts="weak shared::cta")
def _decode_st_bulk(form: Form) -> None:
    """Decode `st.bulk` into a step that fills the block's own shared memory with zeros; other values are
    unsupported."""
    pointer, size_slot = form.build_address(form.operands[0]), form.read(form.operands[1], "u64")
    if form.parse_constant(form.operands[2]) != 0:
        raise form.unsupported("a value other than 0")

    def fill_with_zeros(cta: Cta, thread: int, place: int, size: int) -> None:
        """Store zeros to a thread's byte range; fault unless address and size are multiples of 8."""
        address = to_shared_address(place)
        if address % 8 or size % 8:
            raise Fault("misaligned", f"st.bulk of {size} bytes at {address:#x}: multiples of 8 are needed")
        words = np.arange(address, address + size, 8, dtype=np.int64)
        if len(words):
            cta.shared.store(words, 8, np.zeros(len(words), np.uint64), np.repeat(cta.actors[thread], len(words)))

    form.step.run = build_thread_step(fill_with_zeros, pointer, size_slot)
