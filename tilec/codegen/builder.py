"""Collects PTX items, and hands out virtual registers and labels."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tilec.ir.expr import SMALL_FLOATS, round_to
from tilec.ir.tile import Const
from tilec.ir.types import FLOAT16, FLOAT32, DType
from tilec.ptx.module import FloatImm, Guard, Imm, Instruction, Item, Label, Loc, Operand, Reg, RegDecl
from tilec.support.diagnostics import raise_error
from tilec.support.source import NOWHERE, Span

RegisterClass = Literal["pred", "b16", "b32", "f32", "b64", "f64", "b128"]
REGISTER_PREFIXES: dict[RegisterClass, str] = {
    "pred": "%p", "b16": "%h", "b32": "%r", "f32": "%f", "b64": "%rd", "f64": "%fd", "b128": "%rq",
}  # fmt: skip
_FLOATS: dict[int, RegisterClass] = {8: "b32", 16: "b16", 32: "f32", 64: "f64"}


def get_register_class(dtype: DType) -> RegisterClass:
    """Return the PTX register class that holds values of a type.

    16-bit floats are held as their bits, 8-bit ones in the low byte of 32 bits, and small integers extended to 32 bits.
    """
    if dtype.kind == "bool":
        return "pred"
    if dtype.is_float:
        return _FLOATS[dtype.bits]
    return "b64" if dtype.bits == 64 else "b32"


MAX_INSTRUCTIONS = 65_536
"""The limit of a kernel. Loops over a tile's elements are unrolled for each thread, and the assembler's effort grows
faster than the code: this many instructions take it 10 seconds and half a gigabyte where few registers are live."""


class Builder:
    """The PTX items of one entry. `imported` are the files that spans may name besides the kernel's own."""

    def __init__(self, imported: tuple[str, ...] = ()) -> None:
        self.items: list[Item] = []
        self.counts: dict[RegisterClass, int] = {}
        self.labels = 0
        self.formats: dict[str, None] = {}  # of printf, in order
        self.printed_bytes = 0
        self.files = ("", *imported)
        self.line = ("", 0)
        self.span = NOWHERE
        self.begun = 0

    def mark_hoist_place(self) -> None:
        """Mark the current end of the code as the place where hoisted code is inserted."""
        self.begun = len(self.items)

    @contextmanager
    def hoist_code(self) -> Iterator[None]:
        """Insert the code emitted inside at the marked hoist place, before all code since."""
        later, self.items = self.items[self.begun :], self.items[: self.begun]
        yield
        self.mark_hoist_place()
        self.items += later

    def new_register(self, cls: RegisterClass) -> Reg:
        """Return a new virtual register of this class."""
        count = self.counts.get(cls, 0)
        self.counts[cls] = count + 1
        return Reg(f"{REGISTER_PREFIXES[cls]}{count}")

    def new_registers(self, cls: RegisterClass, count: int) -> tuple[Reg, ...]:
        return tuple(self.new_register(cls) for _ in range(count))

    def emit(self, opcode: str, *operands: Operand, guard: Guard | Reg | None = None) -> None:
        """Append an instruction, with an optional guard; raise an error if the kernel becomes too long."""
        self.items.append(Instruction(opcode, operands, Guard(guard) if isinstance(guard, Reg) else guard))
        if len(self.items) > MAX_INSTRUCTIONS:
            self.check_room(0)

    def check_room(self, instructions: int) -> None:
        """Raise `too-many-instructions` if this many further instructions would make the kernel too long."""
        if len(self.items) + instructions > MAX_INSTRUCTIONS:
            raise_error(
                "too-many-instructions",
                "the kernel becomes too long",
                self.span if self.span.line else None,
                f"it has more than {MAX_INSTRUCTIONS} instructions, the limit for one kernel",
                help="compute with a smaller tile in a T.serial loop: the elements of each thread are unrolled",
            )

    def create(self, cls: RegisterClass, opcode: str, *operands: Operand, guard: Guard | Reg | None = None) -> Reg:
        """Emit an instruction with a new destination register of this class, and return the register."""
        result = self.new_register(cls)
        self.emit(opcode, result, *operands, guard=guard)
        return result

    def new_label(self, stem: str) -> str:
        """Return a new label name that ends in `stem`."""
        self.labels += 1
        return f"$L{self.labels}_{stem}"

    def place_label(self, name: str) -> None:
        self.items.append(Label(name))

    def set_location(self, span: Span) -> None:
        """Set the source place of the following instructions and of error messages; a span without line changes
        neither.
        """
        self.span = span if span.line else self.span
        self.locate(span)

    def locate(self, span: Span) -> None:
        """Set the source line of the following instructions, not of error messages; ignore a span without a line."""
        line = (span.file, span.line)
        if not span.line or line == self.line:
            return
        self.line = line
        if self.items and isinstance(self.items[-1], Loc):
            self.items.pop()  # nothing has come from there
        self.items.append(Loc(1 + self.files.index(span.file), span.line, span.column))

    def list_declarations(self) -> tuple[RegDecl, ...]:
        return tuple(RegDecl(cls, REGISTER_PREFIXES[cls], n) for cls, n in self.counts.items() if n)


def make_immediate(const: Const) -> Operand:
    """Return a constant as an immediate operand of its type; 16- and 8-bit floats are given as their bits."""
    value, dtype = const.value, const.dtype
    if dtype.is_float:
        if dtype.bits == 64:
            return FloatImm(int.from_bytes(struct.pack(">d", float(value)), "big"), 64)
        if dtype.bits == 32:
            return make_f32(float(value))
        if dtype.bits == 8:
            return Imm(encode_small_float(float(value), dtype))
        return Imm(encode_half(float(value), dtype))
    return Imm(int(value))


def make_f32(value: float) -> FloatImm:
    return FloatImm(int.from_bytes(struct.pack(">f", round_to(value, FLOAT32)), "big"), 32)


def invert_power_of_two(value: FloatImm) -> FloatImm | None:
    """Return the reciprocal of a power of two, if neither is subnormal; None of other numbers."""
    mantissa_bits, bias = (52, 1023) if value.width == 64 else (23, 127)
    exponent, mantissa = value.bits >> mantissa_bits, value.bits & (1 << mantissa_bits) - 1
    sign = exponent & (bias + 1) << 1
    inverse = 2 * bias - (exponent - sign)
    if mantissa or not 0 < exponent - sign <= 2 * bias or inverse <= 0:
        return None
    return FloatImm((inverse + sign) << mantissa_bits, value.width)


def encode_half(value: float, dtype: DType) -> int:
    """Return the bits of a constant as float16 or bfloat16, rounded to nearest even; infinity beyond the range."""
    rounded = round_to(value, dtype)
    if dtype == FLOAT16:
        return int.from_bytes(struct.pack(">e", rounded), "big")
    return 0x7FC0 if math.isnan(value) else make_f32(rounded).bits >> 16


def encode_small_float(value: float, dtype: DType) -> int:
    """Return the bits of a constant rounded to an 8-bit float: the largest beyond its range, 0x7F for NaN."""
    form = SMALL_FLOATS[dtype]
    if value != value:
        return 0x7F
    value = round_to(value, dtype)
    exponent = max(math.frexp(value)[1] - 1, form.lowest) if value else form.lowest
    steps = int(abs(value) / 2.0 ** (exponent - form.fraction))
    return steps + (exponent - form.lowest << form.fraction) | (0x80 if math.copysign(1.0, value) < 0 else 0)
