"""8-bit floats from and to float32: by instructions where there are some, else by the same numbers in bits.

Both ways are exact, and round to nearest even; what is too large becomes the largest number, a NaN 0x7F.
"""

from __future__ import annotations

import struct

from tilec.codegen.builder import Builder, f32
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.types import FLOAT8_E4M3, FLOAT8_E5M2, DType
from tilec.ptx.module import Imm, Reg, Vector

SHORT = {FLOAT8_E4M3: "e4m3", FLOAT8_E5M2: "e5m2"}
"""What PTX calls them."""


def widened(builder: Builder, byte: Reg, dtype: DType, instructions: bool) -> Reg:
    """The float32 that the low byte of a register stands for."""
    into = builder.into
    if instructions:
        pair = into("b32", f"cvt.rn.f16x2.{SHORT[dtype]}x2", into("b16", "cvt.u16.u32", byte))
        halves = builder.many("b16", 2)
        builder.emit("mov.b32", Vector(halves), pair)
        return into("f32", "cvt.f32.f16", halves[0])
    if dtype == FLOAT8_E5M2:  # the upper half of a float16
        return into("f32", "cvt.f32.f16", into("b16", "cvt.u16.u32", into("b32", "shl.b32", byte, Imm(8))))
    # Exponent and fraction where float16 has them are 2⁻⁸ times the number, subnormal or not.
    size = into("b32", "and.b32", byte, Imm(0x7F))
    sign = into("b32", "shl.b32", into("b32", "and.b32", byte, Imm(0x80)), Imm(8))
    half = into("b32", "or.b32", sign, into("b32", "shl.b32", size, Imm(7)))
    small = into("f32", "cvt.f32.f16", into("b16", "cvt.u16.u32", half))
    number = into("f32", "mul.rn.f32", small, f32(256.0))
    return into("f32", "selp.f32", f32(float("nan")), number, into("pred", "setp.eq.u32", size, Imm(0x7F)))


def narrowed(builder: Builder, value: Reg, dtype: DType, instructions: bool) -> Reg:
    """A float32 as an 8-bit float, in the low byte of a register."""
    into = builder.into
    if instructions:
        pair = into("b16", f"cvt.rn.satfinite.{SHORT[dtype]}x2.f32", f32(0.0), value)
        return into("b32", "cvt.u32.u16", pair)
    form = SMALL_FLOATS[dtype]
    bits = into("b32", "mov.b32", value)
    size = into("b32", "and.b32", bits, Imm(0x7FFFFFFF))
    held = into("b32", "min.u32", size, Imm(_bits(form.largest)))
    # A carry out of the fraction moves on into the exponent by itself, of which the bias then becomes the smaller one.
    dropped = 23 - form.fraction
    odd = into("b32", "bfe.u32", held, Imm(dropped), Imm(1))
    up = into("b32", "add.u32", into("b32", "add.u32", held, odd), Imm((1 << dropped - 1) - 1))
    normal = into("b32", "sub.u32", into("b32", "shr.u32", up, Imm(dropped)), Imm(126 + form.lowest << form.fraction))
    # Added to a number whose last bit is a subnormal's, float32 rounds to those by itself.
    steps = into("f32", "add.rn.f32", into("f32", "mov.b32", held), f32(2.0 ** (form.lowest - form.fraction + 23)))
    subnormal = into("b32", "and.b32", into("b32", "mov.b32", steps), Imm((2 << form.fraction) - 1))
    is_normal = into("pred", "setp.ge.u32", held, Imm(_bits(2.0**form.lowest)))
    code = into("b32", "selp.b32", normal, subnormal, is_normal)
    sign = into("b32", "and.b32", into("b32", "shr.u32", bits, Imm(24)), Imm(0x80))
    is_nan = into("pred", "setp.gt.u32", size, Imm(0x7F800000))
    return into("b32", "selp.b32", Imm(0x7F), into("b32", "or.b32", code, sign), is_nan)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")
