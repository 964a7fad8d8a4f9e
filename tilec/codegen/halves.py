"""Native arithmetic of float16 and bfloat16, on single values or on pairs in a word, the first in the lower half. Each
instruction rounds once, with the same result as float32 arithmetic rounded afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder, Class, half_bits
from tilec.ir.types import BFLOAT16, FLOAT16, DType
from tilec.ptx.module import Imm, Operand, Reg

SPELLED = {FLOAT16: "f16", BFLOAT16: "bf16"}
OPERATIONS = frozenset({"add", "sub", "mul", "min", "max"})


def emit_half(op: str, operands: Sequence[Operand], dtype: DType, builder: Builder, *, pairs: bool = False) -> Reg:
    """Emit one of `OPERATIONS`, or `fma`. Before sm_90 bfloat16 has no add, sub and mul: an fma does them, with the
    factor ±1 or the addend -0."""
    cls: Class = "b32" if pairs else "b16"
    spelled = f"{SPELLED[dtype]}x2" if pairs else SPELLED[dtype]
    if op in ("min", "max"):
        return builder.into(cls, f"{op}.{spelled}", *operands)
    if op == "fma":
        return builder.into(cls, f"fma.rn.{spelled}", *operands)
    if dtype == FLOAT16:
        return builder.into(cls, f"{op}.rn.{spelled}", *operands)
    x, y = operands
    if op == "mul":
        return builder.into(cls, f"fma.rn.{spelled}", x, y, constant(-0.0, dtype, builder, pairs=pairs))
    one = constant(1.0 if op == "add" else -1.0, dtype, builder, pairs=pairs)
    return builder.into(cls, f"fma.rn.{spelled}", y, one, x)


def constant(value: float, dtype: DType, builder: Builder, *, pairs: bool = False) -> Reg:
    bits = half_bits(value, dtype)
    return (
        builder.into("b32", "mov.b32", Imm(bits << 16 | bits)) if pairs else builder.into("b16", "mov.b16", Imm(bits))
    )
