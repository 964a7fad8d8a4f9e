"""Floats of 16 and 8 bits: native arithmetic of float16 and bfloat16, on single values or on pairs in a word, the first
in the lower half; and conversions of 8-bit floats from and to float32, by instructions if the target has them, else
by bit operations.

Both ways give the same bits. Rounding is to nearest even; too large numbers become the largest one, NaN becomes 0x7F.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder, RegisterClass, encode_half, make_f32
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.types import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, DType
from tilec.ptx.module import Imm, Operand, Reg, Vector

HALF_NAMES = {FLOAT16: "f16", BFLOAT16: "bf16"}
HALF_OPERATIONS = frozenset({"add", "sub", "mul", "min", "max"})


def emit_half(op: str, operands: Sequence[Operand], dtype: DType, builder: Builder, *, pairs: bool = False) -> Reg:
    """Emit an operation of float16 or bfloat16, on single values or on pairs in a word, and return the result.

    Before sm_90 bfloat16 has no add, sub and mul: an fma does them, with the factor ±1 or the addend -0.
    """
    cls: RegisterClass = "b32" if pairs else "b16"
    spelled = f"{HALF_NAMES[dtype]}x2" if pairs else HALF_NAMES[dtype]
    if op in ("min", "max"):
        return builder.create(cls, f"{op}.{spelled}", *operands)
    if op == "fma":
        return builder.create(cls, f"fma.rn.{spelled}", *operands)
    if dtype == FLOAT16:
        return builder.create(cls, f"{op}.rn.{spelled}", *operands)
    x, y = operands
    if op == "mul":
        return builder.create(cls, f"fma.rn.{spelled}", x, y, emit_half_constant(-0.0, dtype, builder, pairs=pairs))
    one = emit_half_constant(1.0 if op == "add" else -1.0, dtype, builder, pairs=pairs)
    return builder.create(cls, f"fma.rn.{spelled}", y, one, x)


def emit_half_constant(value: float, dtype: DType, builder: Builder, *, pairs: bool = False) -> Reg:
    """Emit a 16-bit float constant; with `pairs`, a 32-bit word with the constant twice."""
    bits = encode_half(value, dtype)
    if pairs:
        return builder.create("b32", "mov.b32", Imm(bits << 16 | bits))
    return builder.create("b16", "mov.b16", Imm(bits))


FLOAT8_NAMES = {FLOAT8_E4M3: "e4m3", FLOAT8_E5M2: "e5m2"}
"""The names of the types in PTX."""


def emit_widen(builder: Builder, byte: Reg, dtype: DType, instructions: bool) -> Reg:
    """Emit the conversion of the 8-bit float in a register's low byte to float32, by bits unless `instructions`."""
    create = builder.create
    if instructions:
        pair = create("b32", f"cvt.rn.f16x2.{FLOAT8_NAMES[dtype]}x2", create("b16", "cvt.u16.u32", byte))
        halves = builder.new_registers("b16", 2)
        builder.emit("mov.b32", Vector(halves), pair)
        return create("f32", "cvt.f32.f16", halves[0])
    if dtype == FLOAT8_E5M2:  # the upper half of a float16
        return create("f32", "cvt.f32.f16", create("b16", "cvt.u16.u32", create("b32", "shl.b32", byte, Imm(8))))
    # Exponent and fraction where float16 has them are 2⁻⁸ times the number, subnormal or not.
    size = create("b32", "and.b32", byte, Imm(0x7F))
    sign = create("b32", "shl.b32", create("b32", "and.b32", byte, Imm(0x80)), Imm(8))
    half = create("b32", "or.b32", sign, create("b32", "shl.b32", size, Imm(7)))
    small = create("f32", "cvt.f32.f16", create("b16", "cvt.u16.u32", half))
    number = create("f32", "mul.rn.f32", small, make_f32(256.0))
    return create("f32", "selp.f32", make_f32(float("nan")), number, create("pred", "setp.eq.u32", size, Imm(0x7F)))


def emit_narrow(builder: Builder, value: Reg, dtype: DType, instructions: bool) -> Reg:
    """Emit the rounding of a float32 to an 8-bit float in a register's low byte, by bits if not `instructions`."""
    create = builder.create
    if instructions:
        pair = create("b16", f"cvt.rn.satfinite.{FLOAT8_NAMES[dtype]}x2.f32", make_f32(0.0), value)
        return create("b32", "cvt.u32.u16", pair)
    form = SMALL_FLOATS[dtype]
    bits = create("b32", "mov.b32", value)
    size = create("b32", "and.b32", bits, Imm(0x7FFFFFFF))
    held = create("b32", "min.u32", size, Imm(make_f32(form.largest).bits))
    # A carry out of the fraction goes into the exponent by itself; the subtraction then adjusts the bias.
    dropped = 23 - form.fraction
    odd = create("b32", "bfe.u32", held, Imm(dropped), Imm(1))
    up = create("b32", "add.u32", create("b32", "add.u32", held, odd), Imm((1 << dropped - 1) - 1))
    bias = Imm(126 + form.lowest << form.fraction)
    normal = create("b32", "sub.u32", create("b32", "shr.u32", up, Imm(dropped)), bias)
    # Adding a number whose last bit is that of the subnormals makes float32 round to them.
    steps = create(
        "f32", "add.rn.f32", create("f32", "mov.b32", held), make_f32(2.0 ** (form.lowest - form.fraction + 23))
    )
    subnormal = create("b32", "and.b32", create("b32", "mov.b32", steps), Imm((2 << form.fraction) - 1))
    is_normal = create("pred", "setp.ge.u32", held, Imm(make_f32(2.0**form.lowest).bits))
    code = create("b32", "selp.b32", normal, subnormal, is_normal)
    sign = create("b32", "and.b32", create("b32", "shr.u32", bits, Imm(24)), Imm(0x80))
    is_nan = create("pred", "setp.gt.u32", size, Imm(0x7F800000))
    return create("b32", "selp.b32", Imm(0x7F), create("b32", "or.b32", code, sign), is_nan)
