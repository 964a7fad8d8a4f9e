"""Functions of float32 that name their instruction: approximations, and IEEE operations with a rounding mode."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder
from tilec.codegen.mathematics import MathFunctions
from tilec.ptx.module import Operand, Reg

_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "fmaf": "fma", "frcp": "rcp", "fsqrt": "sqrt", "fdiv": "div"}
_ROUNDING_MODES = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}
_ROUND_TO_FLOAT32 = "cvt.rn.f32.f64"


def is_intrinsic(fn: str) -> bool:
    return fn.startswith(("fast_", "ieee_"))


def emit_intrinsic(fn: str, args: Sequence[Reg], builder: Builder) -> Reg:
    """Emit a function of float32."""
    if fn == "fast_rcp":
        return builder.create("f32", "rcp.approx.ftz.f32", *args)
    if fn.startswith("fast_"):
        return MathFunctions(builder, False, True)(fn.removeprefix("fast_"), args)
    _, name, mode = fn.split("_")
    if name == "frsqrt":
        return _emit_rsqrt(args[0], builder)
    operands: tuple[Operand, ...] = tuple(args)
    return builder.create("f32", f"{_OPCODES[name]}.{_ROUNDING_MODES[mode]}.f32", *operands)


def _emit_rsqrt(x: Reg, builder: Builder) -> Reg:
    """Emit a correctly rounded 1 / sqrt(x), in float64: there is no such instruction of float32."""
    wide = builder.create("f64", "cvt.f64.f32", x)
    root = builder.create("f64", "sqrt.rn.f64", wide)
    return builder.create("f32", _ROUND_TO_FLOAT32, builder.create("f64", "rcp.rn.f64", root))
