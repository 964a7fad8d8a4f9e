"""Vector loads of neighbouring elements, and packing and unpacking of small elements in 32-bit words."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.codegen.builder import Builder, RegisterClass, get_register_class, make_f32
from tilec.codegen.scalar.scalar import FLOAT_NAMES, Scalars
from tilec.ir.tile import Buffer
from tilec.ir.types import FLOAT32, DType
from tilec.ptx.module import Address, FloatImm, Imm, Operand, Reg, Vector
from tilec.support.records import dataclass

ZERO: dict[RegisterClass, Operand] = {"f32": make_f32(0.0), "f64": FloatImm(0, 64)}


@dataclass(frozen=True, slots=True)
class WordPart:
    """A small integer in a 32-bit word, from bit `first` on; it is extracted where it is used by itself."""

    word: Reg
    first: int
    dtype: DType


def extract_part(value: Operand | WordPart, scalars: Scalars) -> Operand:
    """Return a loaded value as an operand; a part of a word is extracted, once in a scope."""
    if not isinstance(value, WordPart):
        return value
    opcode = f"bfe.{'s' if value.dtype.kind == 'int' else 'u'}32"
    operands = (value.word, Imm(value.first), Imm(value.dtype.bits))
    return scalars.create_once((opcode, *operands), opcode, *operands)


def get_word_format(dtype: DType, width: int) -> tuple[RegisterClass, str, int, int]:
    """Return how `width` neighbours move: register class, PTX type, number of words, and elements per word."""
    if width * dtype.bytes >= 4 and dtype.bytes < 4:
        return "b32", "b32", width * dtype.bytes // 4, 4 // dtype.bytes
    if dtype.bytes == 1:
        return "b32", "s8" if dtype.kind == "int" else "u8", width, 1
    if dtype.bytes == 2 and not dtype.is_float:
        return "b32", "s16" if dtype.kind == "int" else "u16", width, 1
    cls = get_register_class(dtype)
    return cls, cls, width, 1


def load_element(
    builder: Builder, buffer: Buffer, address: Address, guard: Reg | None, written: frozenset[str] = frozenset()
) -> Operand:
    """Emit the load of one element, and return it; zero where the guard fails. Kernels write the tensors `written`."""
    (value,) = load_vector(builder, buffer, address, 1, guard, buffer.name not in written)
    assert not isinstance(value, WordPart), "an element by itself has a register of its own"
    return value


def load_vector(
    builder: Builder, buffer: Buffer, address: Address, width: int, guard: Reg | None, read_only: bool
) -> list[Operand | WordPart]:
    """Emit one load of `width` neighbours, and return them, small integers as parts of words; zeros where the guard
    fails.

    `read_only`: no kernel writes the tensor.
    """
    dtype = buffer.dtype
    cls, spelled, count, per_word = get_word_format(dtype, width)
    words = builder.new_registers(cls, count)
    if guard is not None:
        for word in words:
            builder.emit(f"mov.{cls}", word, ZERO.get(cls, Imm(0)))
    space = "global.nc" if buffer.scope == "global" and read_only else buffer.scope
    vector = f".v{count}" if count > 1 else ""
    target = words[0] if count == 1 else Vector(words)
    builder.emit(f"ld.{space}{vector}.{spelled}", target, address, guard=guard)
    if dtype.kind == "bool":
        return [builder.create("pred", "setp.ne.b32", w, Imm(0)) for w in words]
    if per_word == 1:
        return list(words)
    return [part for word in words for part in unpack_word(builder, word, dtype, per_word)]


def unpack_word(builder: Builder, word: Reg, dtype: DType, per_word: int) -> Iterator[Operand | WordPart]:
    """Yield the elements of a 32-bit word, lowest first: halves as registers, integers as parts of the word."""
    if dtype.bits == 16 and dtype.is_float:
        halves = builder.new_registers("b16", 2)
        builder.emit("mov.b32", Vector(halves), word)
        yield from halves
        return
    for i in range(per_word):
        yield WordPart(word, i * dtype.bits, dtype)


def pack_word(builder: Builder, parts: list[Reg], dtype: DType) -> Reg:
    """Emit and return a 32-bit word with the elements packed, the first lowest."""
    if dtype.bits == 16 and dtype.is_float:
        return builder.create("b32", "mov.b32", Vector(tuple(parts)))
    word = parts[0]
    for i, part in enumerate(parts[1:], 1):
        word = builder.create("b32", "bfi.b32", part, word, Imm(i * dtype.bits), Imm(dtype.bits))
    return word


def pack_saturated(builder: Builder, dtype: DType, integers: list[Operand]) -> Reg:
    """Emit and return a word of two 16-bit or four 8-bit integers, each an integer of 32 bits or the end of the type's
    range next to it, the first lowest."""
    opcode = f"cvt.pack.sat.{'s' if dtype.kind == 'int' else 'u'}{dtype.bits}.s32"
    if dtype.bits == 16:
        return builder.create("b32", opcode, integers[1], integers[0])
    upper = builder.create("b32", f"{opcode}.b32", integers[3], integers[2], Imm(0))
    return builder.create("b32", f"{opcode}.b32", integers[1], integers[0], upper)


def pack_f32(scalars: Scalars, dtype: DType, *values: Operand) -> Reg:
    """Emit and return a word of two 16-bit or four 8-bit floats, converted from float32 values, the first lowest."""
    registers = [scalars.ensure_register(v, FLOAT32) for v in values]
    if dtype.bits == 16:
        return scalars.builder.create("b32", f"cvt.rn.{FLOAT_NAMES[dtype]}x2.f32", registers[1], registers[0])
    if not scalars.converts_fp8:
        return pack_word(scalars.builder, [scalars.narrow(r, dtype) for r in registers], dtype)
    opcode = f"cvt.rn.satfinite.{FLOAT_NAMES[dtype]}x2.f32"
    halves = [scalars.builder.create("b16", opcode, registers[i + 1], registers[i]) for i in (0, 2)]
    return scalars.builder.create("b32", "mov.b32", Vector(tuple(halves)))
