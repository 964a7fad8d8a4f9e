"""Functions of float32 that name their instruction: approximations, and IEEE operations with a rounding mode."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder
from tilec.codegen.mathematics import Functions
from tilec.ptx.module import Operand, Reg

_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "fmaf": "fma", "frcp": "rcp", "fsqrt": "sqrt", "fdiv": "div"}
_MODES = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}
_ROUND = "cvt.rn.f32.f64"


def is_intrinsic(fn: str) -> bool:
    return fn.startswith(("fast_", "ieee_"))


def emit_intrinsic(fn: str, args: Sequence[Reg], builder: Builder) -> Reg:
    """Emit a function of float32."""
    if fn == "fast_rcp":
        return builder.into("f32", "rcp.approx.ftz.f32", *args)
    if fn.startswith("fast_"):
        return Functions(builder, False, True)(fn.removeprefix("fast_"), args)
    _, name, mode = fn.split("_")
    if name == "frsqrt":
        return _rsqrt(args[0], builder)
    operands: tuple[Operand, ...] = tuple(args)
    return builder.into("f32", f"{_OPCODES[name]}.{_MODES[mode]}.f32", *operands)


def _rsqrt(x: Reg, builder: Builder) -> Reg:
    """Emit a correctly rounded 1 / sqrt(x), in float64: there is no such instruction of float32."""
    wide = builder.into("f64", "cvt.f64.f32", x)
    root = builder.into("f64", "sqrt.rn.f64", wide)
    return builder.into("f32", _ROUND, builder.into("f64", "rcp.rn.f64", root))
