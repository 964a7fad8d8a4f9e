"""Calls of integers that are more than an operator, and that no thread needs another one for."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder
from tilec.diag import InternalError
from tilec.ptx.module import Imm, Reg, Vector

_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
"""Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (2011): Philox 4x32."""


def emit_integer_call(fn: str, arguments: Sequence[Reg], builder: Builder) -> Reg:
    """A call of `tile.INTEGER_CALLS`."""
    match fn:
        case "fns":
            return builder.into("b32", "fns.b32", *arguments)
        case "philox":
            key, sequence, position = arguments
            return _philox(key, sequence, position, builder)
        case _:
            raise InternalError(f"no code for {fn}")


def _philox(key: Reg, sequence: Reg, position: Reg, builder: Builder) -> Reg:
    """Every counter gives four numbers: which one is said by the position's last two bits, the rest of it is the lower
    half of the counter, and the sequence the upper one, as in cuRAND."""

    def halves(wide: Reg) -> tuple[Reg, Reg]:
        low, high = builder.many("b32", 2)
        builder.emit("mov.b64", Vector((low, high)), wide)
        return low, high

    low_key, high_key = halves(key)
    x, y = halves(builder.into("b64", "shr.u64", position, Imm(2)))
    z, w = halves(sequence)
    for number in range(_ROUNDS):
        first, second = (
            halves(builder.into("b64", "mul.wide.u32", part, Imm(factor)))
            for part, factor in zip((x, z), _FACTORS, strict=True)
        )
        keys = [
            builder.into("b32", "add.u32", part, Imm(number * step & 0xFFFFFFFF)) if number else part
            for part, step in zip((low_key, high_key), _STEPS, strict=True)
        ]
        x, y, z, w = (
            builder.into("b32", "xor.b32", builder.into("b32", "xor.b32", second[1], y), keys[0]),
            second[0],
            builder.into("b32", "xor.b32", builder.into("b32", "xor.b32", first[1], w), keys[1]),
            first[0],
        )
    which = builder.into("b32", "cvt.u32.u64", position)
    odd = builder.into("pred", "setp.ne.b32", builder.into("b32", "and.b32", which, Imm(1)), Imm(0))
    upper = builder.into("pred", "setp.ne.b32", builder.into("b32", "and.b32", which, Imm(2)), Imm(0))
    pairs = (builder.into("b32", "selp.b32", b, a, odd) for a, b in ((x, y), (z, w)))
    lower_one, upper_one = pairs
    return builder.into("b32", "selp.b32", upper_one, lower_one, upper)
