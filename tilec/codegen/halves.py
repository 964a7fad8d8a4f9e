"""Native arithmetic of float16 and bfloat16, on single values or on pairs in a word, the first in the lower half. Each
instruction rounds once, with the same result as float32 arithmetic rounded afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder, RegisterClass, encode_half
from tilec.ir.types import BFLOAT16, FLOAT16, DType
from tilec.ptx.module import Imm, Operand, Reg

HALF_NAMES = {FLOAT16: "f16", BFLOAT16: "bf16"}
HALF_OPERATIONS = frozenset({"add", "sub", "mul", "min", "max"})


def emit_half(op: str, operands: Sequence[Operand], dtype: DType, builder: Builder, *, pairs: bool = False) -> Reg:
    """Emit one of `OPERATIONS`, or `fma`. Before sm_90 bfloat16 has no add, sub and mul: an fma does them, with the
    factor ±1 or the addend -0."""
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
    bits = encode_half(value, dtype)
    return (
        builder.create("b32", "mov.b32", Imm(bits << 16 | bits))
        if pairs
        else builder.create("b16", "mov.b16", Imm(bits))
    )
