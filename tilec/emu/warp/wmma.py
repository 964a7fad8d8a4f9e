"""wmma: matrices of a warp in registers, in a layout that PTX leaves to the machine.

Here lane l holds the elements l·c to l·c + c - 1 of a matrix in row-major order, with c elements to a lane. A and B of
f16 have twice the registers that they need: the second half of the lanes repeats the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.access import select_load, select_store
from tilec.emu.numbers import TYPES, Array
from tilec.emu.warp.matrix import list_registers
from tilec.emu.warp.mma import ELEMENT_BITS, multiply_matrices, to_s32, unpack_elements
from tilec.ptx.module import Operand
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

UnitAddresses = Callable[["Cta", "Threads"], list[Array]]
_BITS = {**ELEMENT_BITS, "f32": 32, "s32": 32}


@dataclass(frozen=True, slots=True)
class WmmaFragment:
    """A matrix of `rows` x `columns` elements of a kind, in `registers` registers of each lane."""

    kind: str
    rows: int
    columns: int
    registers: int
    view: str

    @property
    def unit_bits(self) -> int:
        """Return the bits of an addressable unit: an element, or a byte where elements are smaller."""
        return max(_BITS[self.kind], 8)

    @property
    def units(self) -> int:
        """Return the number of addressable units of the matrix."""
        return self.rows * self.columns * _BITS[self.kind] // self.unit_bits

    @property
    def units_per_row(self) -> int:
        """Return the number of addressable units in a row."""
        return self.columns * _BITS[self.kind] // self.unit_bits


def _build_fragment(form: Form, which: str, kind: str) -> WmmaFragment:
    """Return the matrix of operand `which`, "a" to "d", of the opcode's shape; fault on a shape or type that wmma
    lacks."""
    match = form.match(r"m(\d+)n(\d+)k(\d+)")
    if match is None:
        raise form.unsupported("no shape")
    m, n, k = map(int, match.groups())
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[which]
    view = "b64" if kind == "f64" else "b32"
    needed = rows * columns * _BITS[kind] // (32 * TYPES[view].bits)
    doubled = kind == "f16" and which in "ab" and needed < 8
    if not needed or (kind == "b1" and which == "b" and k != 128):
        raise form.unsupported("this shape or type")
    # B of bits and nibbles lies column by column only, so it is kept transposed.
    if _BITS[kind] < 8 and which == "b":
        rows, columns = columns, rows
    return WmmaFragment(kind, rows, columns, 8 if doubled else needed, view)


def _read_matrix(cta: Cta, threads: Threads, slots: list[int], fragment: WmmaFragment) -> Array:
    """Return the matrices that lanes hold in a fragment's registers, as numbers [warp, row, column]."""
    words = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
    lanes = np.ascontiguousarray(words).reshape(-1, 32 * len(slots))
    needed = fragment.rows * fragment.columns * _BITS[fragment.kind] // TYPES[fragment.view].bits
    kept = np.ascontiguousarray(lanes[:, :needed])
    if fragment.kind in ("f32", "s32"):
        values = kept.view(np.float32) if fragment.kind == "f32" else kept.view(np.int32).astype(np.float64)
    else:
        values = unpack_elements(kept, fragment.kind)
    return values.reshape(-1, fragment.rows, fragment.columns)


def _write_matrix(cta: Cta, threads: Threads, slots: list[int], matrix: Array) -> None:
    """Write matrices [warp, row, column] to the registers of the lanes that hold them."""
    word = np.uint64 if matrix.dtype == np.float64 else np.uint32
    lanes = np.ascontiguousarray(matrix).reshape(len(matrix), -1).view(word).reshape(-1, len(slots))
    for position, slot in enumerate(slots):
        cta.views[slot][threads] = lanes[:, position]


def _find_unit_offsets(fragment: WmmaFragment, is_column_major: bool) -> tuple[Array, Array]:
    """Return the offset of each [lane, unit] of a fragment in memory, as numbers of strides and of units."""
    per_lane = fragment.registers * TYPES[fragment.view].bits // fragment.unit_bits
    unit = np.arange(32 * per_lane).reshape(32, per_lane) % fragment.units
    row, column = np.divmod(unit, fragment.units_per_row)
    return (column, row) if is_column_major else (row, column)


def _decode_addresses(
    form: Form, which: str, pointer: Operand, strides: tuple[Operand, ...]
) -> tuple[WmmaFragment, UnitAddresses]:
    """Return the fragment of a load or store, and a function that lists its units' addresses; fault on a bad type or
    layout."""
    kinds = form.find_modifiers(*_BITS)
    if not kinds:
        raise form.unsupported("no type")
    fragment = _build_fragment(form, which, kinds[-1])
    is_column_major = form.has("col")
    if _BITS[fragment.kind] < 8:
        if is_column_major != (which == "b"):
            raise form.unsupported("this layout")
        is_column_major = False
    form.step.gather = 32
    stride_slot = form.read(strides[0], "u32") if strides else -1
    base = form.build_address(pointer)
    rows, units = _find_unit_offsets(fragment, is_column_major)
    size = fragment.unit_bits // 8

    def list_addresses(cta: Cta, threads: Threads) -> list[Array]:
        """Return, for each unit of a lane, the addresses of these threads."""
        lane = cta.thread_ids[threads] & 31
        stride = _find_stride(cta, threads, stride_slot, fragment, is_column_major)
        first = base(cta, threads)
        return [first + rows[lane, index] * stride + units[lane, index] * size for index in range(rows.shape[1])]

    return fragment, list_addresses


def _find_stride(cta: Cta, threads: Threads, slot: int, fragment: WmmaFragment, is_column_major: bool) -> Array:
    """Return for each thread the bytes from one row, or column if column-major, to the next: the operand's, or a dense
    matrix's."""
    if slot < 0:
        default = fragment.rows if is_column_major else fragment.columns
        return np.full(len(cta.thread_ids[threads]), default * _BITS[fragment.kind] // 8)
    strides: Array = cta.views[slot][threads].astype(np.int64) * _BITS[fragment.kind] // 8
    return strides


@register_decoder("wmma.load", accepts="row")
def _decode_load(form: Form) -> None:
    """Decode `wmma.load` into a step that loads A, B or C into the lanes' registers."""
    which = form.find_modifier("a", "b", "c")
    fragment, list_addresses = _decode_addresses(form, which, form.operands[1], form.operands[2:])
    slots = [form.write(item, fragment.view) for item in list_registers(form, form.operands[0], fragment.registers)]
    load = select_load(form)
    size = fragment.unit_bits // 8

    @form.set_run
    def run_load(cta: Cta, threads: Threads) -> None:
        """Load each lane's elements from their addresses and write them to its registers."""
        units = [load(cta, threads, addresses, size) for addresses in list_addresses(cta, threads)]
        words = np.stack(units, axis=1).view(np.dtype(f"u{TYPES[fragment.view].bits // 8}"))
        for position, slot in enumerate(slots):
            cta.views[slot][threads] = words[:, position]


@register_decoder("wmma.store", accepts="d row")
def _decode_store(form: Form) -> None:
    """Decode `wmma.store` into a step that stores D from the lanes' registers."""
    fragment, list_addresses = _decode_addresses(form, "d", form.operands[0], form.operands[2:])
    slots = [form.read(item, fragment.view) for item in list_registers(form, form.operands[1], fragment.registers)]
    store = select_store(form)
    size = fragment.unit_bits // 8

    @form.set_run
    def run_store(cta: Cta, threads: Threads) -> None:
        """Store the elements in each lane's registers at their addresses."""
        words = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
        data = np.ascontiguousarray(words).view(np.dtype(f"u{size}"))
        for index, addresses in enumerate(list_addresses(cta, threads)):
            store(cta, threads, addresses, size, np.ascontiguousarray(data[:, index]))


@register_decoder("wmma.mma", accepts="popc row col rn")
def _decode_mma(form: Form) -> None:
    """Decode `wmma.mma` into a step that multiplies and adds each warp's matrices; fault unless it names 2 or 4
    types."""
    kinds = form.find_modifiers(*_BITS)
    if len(kinds) == 2:
        # Only f16 leaves the types of A and B out.
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4:
        raise form.unsupported("these types")
    form.step.gather = 32
    fragments = [_build_fragment(form, which, kind) for which, kind in zip("dabc", kinds, strict=True)]
    d_registers = list_registers(form, form.operands[0], fragments[0].registers)
    d_slots = [form.write(item, fragments[0].view) for item in d_registers]
    slots = []
    for operand, fragment in zip(form.operands[1:], fragments[1:], strict=True):
        registers = list_registers(form, operand, fragment.registers)
        slots.append([form.read(item, fragment.view) for item in registers])
    operation = form.find_modifier("and", "xor", default="xor")
    saturates = form.has("satfinite")
    result = kinds[0]

    @form.set_run
    def run_mma(cta: Cta, threads: Threads) -> None:
        """Multiply A and B of each warp, add C, and write D in its type."""
        parts = zip(slots, fragments[1:], strict=True)
        a, b, c = (_read_matrix(cta, threads, part, fragment) for part, fragment in parts)
        if _BITS[kinds[2]] < 8:
            b = b.transpose(0, 2, 1)
        total = multiply_matrices(a, b, (kinds[1], kinds[2]), operation) + c
        if result == "s32":
            total = to_s32(total, saturates)
        elif result != "f64":
            total = total.astype(np.float16 if result == "f16" else np.float32)
        _write_matrix(cta, threads, d_slots, total)
