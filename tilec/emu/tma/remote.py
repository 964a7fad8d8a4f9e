"""Writes and reductions into the shared memory of a cluster that an mbarrier there reports: `st.async`, `red.async` and
the reducing bulk copy. The bytes arrive when a wait on that barrier needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import PendingCopy, describe_barrier, find_barrier, record_event, to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.access import WORD_TYPES
from tilec.emu.memory.atomics import select_atomic_function
from tilec.emu.memory.memory import Memory
from tilec.emu.numbers import Array
from tilec.emu.tma.moments import AsyncEffect
from tilec.emu.tma.tensormap import combine_elements
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

_BULK_TYPES = {"u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "b32": "uint32", "b64": "uint64"}


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
    """Add a write of some bytes to a barrier, which must lie in the same block as the destination. `announce` is called
    with the barrier's clock column and the issuing step when a wait needs the bytes."""
    if cta.find_peer(to_shared_address(bar))[0] is not cta.find_peer(to_shared_address(place))[0]:
        raise Fault("bad-barrier", f"the mbarrier of {what} is in another block than its destination")
    effect, step = AsyncEffect(write), cta.launch.events.pc

    def finish_write(column: int) -> None:
        effect.do()
        announce(column, step)

    barrier = find_barrier(cta, bar, cta.actors[thread : thread + 1])
    record_event(cta, np.array([thread]), "issue", f"{what} for {describe_barrier(barrier)}", line)
    barrier.add_copy(PendingCopy(size, line, finish_write))
    cta.launch.effect_scheduler.schedule_effects(effect)


@register_decoder("st.async", accepts="weak shared::cluster")
def _decode_st_async(form: Form) -> None:
    view = form.parse_type()
    value: Operand = form.operands[1]
    items = value.items if isinstance(value, Vector) else (value,)
    if len(items) != {"v2": 2, "v4": 4}.get(form.find_modifier("v2", "v4"), 1) or not form.has(
        "mbarrier::complete_tx::bytes"
    ):
        raise form.unsupported("this form")
    pointer, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[2])
    slots = [form.read(item, f"b{view.bits}") for item in items]
    width, line = view.bits // 8, form.step.instruction.line

    def run_step(cta: Cta, threads: Threads) -> None:
        values = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
        bars, members = barrier(cta, threads).tolist(), cta.thread_ids[threads].tolist()
        for thread, place, bar, row in zip(members, pointer(cta, threads).tolist(), bars, values, strict=True):
            target, address = cta.find_peer(to_shared_address(place))
            if address % (width * len(row)):
                raise Fault("misaligned", f"st.async to {address:#x}, which is not a multiple of {width * len(row)}")
            memory, places = target.shared, address + width * np.arange(len(row), dtype=np.int64)
            memory.claim(places, width, np.repeat(cta.actors[thread], len(row)))
            data = np.ascontiguousarray(row).view(np.uint8).reshape(-1, width)

            def write_bytes(memory: Memory = memory, places: Array = places, data: Array = data) -> None:
                memory.fill(places, width, data)

            def announce_arrival(column: int, step: int, memory: Memory = memory, places: Array = places) -> None:
                memory.arrive(places, width, np.array([column]), step)

            _attach_to_barrier(
                cta, thread, place, bar, "st.async", width * len(row), line, write_bytes, announce_arrival
            )

    form.step.run = run_step


@register_decoder("red.async", accepts="relaxed cluster shared::cluster mbarrier::complete_tx::bytes")
def _decode_red_async(form: Form) -> None:
    view = form.parse_type()
    operation = form.find_modifier("add", "min", "max", "and", "or", "xor", "inc", "dec")
    if not operation or view.bits not in (32, 64):
        raise form.unsupported("this reduction")
    pointer, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[2])
    slot = form.read(form.operands[1], view.name)
    function = select_atomic_function(operation, view)
    width, line = view.bits // 8, form.step.instruction.line

    def run_step(cta: Cta, threads: Threads) -> None:
        values = cta.views[slot][threads]
        bars, members = barrier(cta, threads).tolist(), cta.thread_ids[threads].tolist()
        for index, (thread, place, bar) in enumerate(zip(members, pointer(cta, threads).tolist(), bars, strict=True)):
            target, address = cta.find_peer(to_shared_address(place))
            memory, operand, where = target.shared, values[index : index + 1].copy(), np.array([address])

            def write_result(memory: Memory = memory, where: Array = where, operand: Array = operand) -> None:
                old = memory.load(where, width).view(view.dtype)
                new = np.ascontiguousarray(function(old, operand, operand), dtype=view.dtype)
                memory.store(where, width, new.view(WORD_TYPES[width]))

            def announce_arrival(column: int, step: int, memory: Memory = memory, where: Array = where) -> None:
                memory.arrive(where, width, np.array([column]), step)

            _attach_to_barrier(cta, thread, place, bar, "red.async", width, line, write_result, announce_arrival)

    form.step.run = run_step


@register_decoder("cp.reduce.async.bulk.shared::cluster", accepts="shared::cta mbarrier::complete_tx::bytes")
def _decode_reduce_bulk(form: Form) -> None:
    operation, element = form.find_modifier("add", "min", "max", "and", "or", "xor", "inc", "dec"), form.modifiers[-1]
    if not operation or element not in _BULK_TYPES:
        raise form.unsupported("this reduction")
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    size_slot = form.read(form.operands[2], "u32")
    barrier = form.build_address(form.operands[3])
    name = _BULK_TYPES[element]
    word, line = np.dtype(name).str.replace("i", "u"), form.step.instruction.line

    def run_step(cta: Cta, threads: Threads) -> None:
        sizes, bars = cta.views[size_slot][threads].tolist(), barrier(cta, threads).tolist()
        places, origins = destination(cta, threads).tolist(), source(cta, threads).tolist()
        members = cta.thread_ids[threads].tolist()
        for thread, place, origin, size, bar in zip(members, places, origins, sizes, bars, strict=True):
            target, address = cta.find_peer(to_shared_address(place))
            start = to_shared_address(origin)
            if address % 16 or start % 16 or size % 16:
                raise Fault(
                    "misaligned", f"a bulk reduction of {size} bytes at {address:#x}: multiples of 16 are needed"
                )
            cta.shared.find_offset(start, size, "the bulk reduction")
            target.shared.find_offset(address, size, "the bulk reduction")
            rows, targets = np.arange(start, start + size, 16) // 16, np.arange(address, address + size, 16) // 16
            memory, source_memory = target.shared, cta.shared
            source_memory.require_async_readable(rows, "the bulk reduction")
            memory.require_async_readable(targets, "the bulk reduction")
            release = cta.asynchronous.begin_reading(rows, line, "the bulk reduction")

            def write_result(
                memory: Memory = memory,
                source_memory: Memory = source_memory,
                address: int = address,
                start: int = start,
                size: int = size,
            ) -> None:
                old = memory.bytes[address : address + size].view(word)
                new = source_memory.bytes[start : start + size].view(word)
                memory.bytes[address : address + size] = combine_elements(name, operation, old, new).view(np.uint8)

            def announce_arrival(
                column: int,
                step: int,
                memory: Memory = memory,
                targets: Array = targets,
                release: Callable[[], None] = release,
            ) -> None:
                memory.arrive_rows(targets, column, step, -1)
                release()

            _attach_to_barrier(cta, thread, place, bar, "a bulk reduction", size, line, write_result, announce_arrival)

    form.step.run = run_step


@register_decoder("st.bulk", accepts="weak shared::cta")
def _decode_st_bulk(form: Form) -> None:
    """Decode a fill of the block's own shared memory with zeros."""
    pointer, size_slot = form.build_address(form.operands[0]), form.read(form.operands[1], "u64")
    if form.parse_constant(form.operands[2]) != 0:
        raise form.unsupported("a value other than 0")

    def run_step(cta: Cta, threads: Threads) -> None:
        sizes, actors = cta.views[size_slot][threads].tolist(), cta.actors[threads]
        for index, (place, size) in enumerate(zip(pointer(cta, threads).tolist(), sizes, strict=True)):
            address = to_shared_address(place)
            if address % 8 or size % 8:
                raise Fault("misaligned", f"st.bulk of {size} bytes at {address:#x}: multiples of 8 are needed")
            words = np.arange(address, address + size, 8, dtype=np.int64)
            if len(words):
                cta.shared.store(words, 8, np.zeros(len(words), np.uint64), np.repeat(actors[index], len(words)))

    form.step.run = run_step
