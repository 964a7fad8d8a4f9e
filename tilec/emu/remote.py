"""Writes and reductions into the shared memory of a cluster that an mbarrier there reports: `st.async`, `red.async` and
the reducing bulk copy. The bytes arrive when somebody's wait on that barrier needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.access import WORD
from tilec.emu.asyncops import Copy, barrier_at, shared_address
from tilec.emu.atomics import combination
from tilec.emu.decode import Form, semantics
from tilec.emu.fault import Fault
from tilec.emu.memory import Memory
from tilec.emu.numbers import Array
from tilec.emu.tensormap import combine
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

_BULK_TYPES = {"u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "b32": "uint32", "b64": "uint64"}


def _hang(cta: Cta, place: int, bar: int, what: str, copy: Copy) -> None:
    """Hang a copy on a barrier, which must lie in the block that the copy writes to."""
    if cta.peer(shared_address(bar))[0] is not cta.peer(shared_address(place))[0]:
        raise Fault("bad-barrier", f"the mbarrier of {what} lies in another block than its destination")
    barrier_at(cta, bar).add(copy)


def _delivery(memory: Memory, address: int, width: int, data: Array) -> Callable[[], None]:
    places = address + width * np.arange(len(data), dtype=np.int64)
    return lambda: memory.deliver(places, width, np.ascontiguousarray(data).view(np.uint8).reshape(-1, width))


@semantics("st.async")
def _st_async(form: Form) -> None:
    view = form.type()
    value: Operand = form.operands[1]
    items = value.items if isinstance(value, Vector) else (value,)
    if len(items) != {"v2": 2, "v4": 4}.get(form.first("v2", "v4"), 1) or not form.has("mbarrier::complete_tx::bytes"):
        raise form.unsupported("this form")
    pointer, barrier = form.address(form.operands[0]), form.address(form.operands[2])
    slots = [form.read(item, f"b{view.bits}") for item in items]
    width, line = view.bits // 8, form.step.instruction.line

    def run(cta: Cta, threads: Threads) -> None:
        values = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
        bars = barrier(cta, threads).tolist()
        for place, bar, row in zip(pointer(cta, threads).tolist(), bars, values, strict=True):
            target, address = cta.peer(shared_address(place))
            if address % (width * len(row)):
                raise Fault("misaligned", f"st.async to {address:#x}, which is not a multiple of {width * len(row)}")
            target.shared.claim(address + width * np.arange(len(row), dtype=np.int64), width)
            finish = _delivery(target.shared, address, width, row)
            _hang(cta, place, bar, "st.async", Copy(width * len(row), line, finish))

    form.step.run = run


@semantics("red.async")
def _red_async(form: Form) -> None:
    view = form.type()
    operation = form.first("add", "min", "max", "and", "or", "xor", "inc", "dec")
    if not operation or view.bits not in (32, 64):
        raise form.unsupported("this reduction")
    pointer, barrier = form.address(form.operands[0]), form.address(form.operands[2])
    slot = form.read(form.operands[1], view.name)
    function = combination(operation, view)
    width, line = view.bits // 8, form.step.instruction.line

    def run(cta: Cta, threads: Threads) -> None:
        values = cta.views[slot][threads]
        bars = barrier(cta, threads).tolist()
        for index, (place, bar) in enumerate(zip(pointer(cta, threads).tolist(), bars, strict=True)):
            target, address = cta.peer(shared_address(place))
            memory, operand = target.shared, values[index : index + 1].copy()

            def finish(memory: Memory = memory, address: int = address, operand: Array = operand) -> None:
                where = np.array([address])
                old = memory.load(where, width).view(view.dtype)
                new = np.ascontiguousarray(function(old, operand, operand), dtype=view.dtype)
                memory.store(where, width, new.view(WORD[width]))

            _hang(cta, place, bar, "red.async", Copy(width, line, finish))

    form.step.run = run


@semantics("cp.reduce.async.bulk.shared::cluster")
def _reduce_bulk(form: Form) -> None:
    operation, element = form.first("add", "min", "max", "and", "or", "xor", "inc", "dec"), form.modifiers[-1]
    if operation in ("", "inc", "dec") or element not in _BULK_TYPES:
        raise form.unsupported("this reduction")
    destination, source = form.address(form.operands[0]), form.address(form.operands[1])
    size_slot = form.read(form.operands[2], "u32")
    barrier = form.address(form.operands[3])
    name = _BULK_TYPES[element]
    word, line = np.dtype(name).str.replace("i", "u"), form.step.instruction.line

    def run(cta: Cta, threads: Threads) -> None:
        sizes, bars = cta.views[size_slot][threads].tolist(), barrier(cta, threads).tolist()
        places, origins = destination(cta, threads).tolist(), source(cta, threads).tolist()
        for place, origin, size, bar in zip(places, origins, sizes, bars, strict=True):
            target, address = cta.peer(shared_address(place))
            start = shared_address(origin)
            if address % 16 or start % 16 or size % 16:
                raise Fault(
                    "misaligned", f"a bulk reduction of {size} bytes at {address:#x}: multiples of 16 are needed"
                )
            cta.shared.offset(start, size, "the bulk reduction")
            target.shared.offset(address, size, "the bulk reduction")
            rows = np.arange(start, start + size, 16) // 16
            memory, mine = target.shared, cta.shared
            mine.require_async_readable(rows, "the bulk reduction")
            memory.require_async_readable(np.arange(address, address + size, 16) // 16, "the bulk reduction")

            def finish(
                memory: Memory = memory,
                mine: Memory = mine,
                address: int = address,
                start: int = start,
                size: int = size,
            ) -> None:
                old = memory.bytes[address : address + size].view(word)
                new = mine.bytes[start : start + size].view(word)
                memory.bytes[address : address + size] = combine(name, operation, old, new).view(np.uint8)

            _hang(cta, place, bar, "a bulk reduction", Copy(size, line, finish))

    form.step.run = run
