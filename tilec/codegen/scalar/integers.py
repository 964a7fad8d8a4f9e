"""Integer functions that take several instructions or a special one, and involve no other thread."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.builder import Builder
from tilec.ops.functions.philox import FACTORS, ROUNDS, STEPS
from tilec.ptx.module import Imm, Reg, Vector
from tilec.support.diagnostics import InternalError


def find_reciprocal(divisor: int, most: int) -> tuple[int, int] | None:
    """Return a factor f of 32 bits and a shift s with x // divisor == (x * f >> 32) >> s for all x from 0 to `most`;
    None if there is none.

    f exceeds 2^(32 + s) / divisor by e / divisor, where e < divisor. So the product is too large by less than
    1 / divisor, and no quotient changes, where e * x < 2^(32 + s).
    """
    for shift in range(32):
        factor = -(-(1 << 32 + shift) // divisor)
        if factor >= 1 << 32:
            return None
        if (factor * divisor - (1 << 32 + shift)) * most < 1 << 32 + shift:
            return factor, shift
    return None


def emit_division_by_reciprocal(x: Reg, factor: int, shift: int, builder: Builder) -> Reg:
    """Emit an unsigned quotient by a constant, with what `find_reciprocal` returns for it. The assembler would divide
    as by any number, in some twenty instructions."""
    _, high = builder.new_registers("b32", 2)
    builder.emit("mov.b64", Vector((_, high)), builder.create("b64", "mul.wide.u32", x, Imm(factor)))
    return builder.create("b32", "shr.u32", high, Imm(shift)) if shift else high


def emit_integer_call(fn: str, arguments: Sequence[Reg], builder: Builder) -> Reg:
    """Emit an integer function by name: fns, philox, or a query of a clusterlaunchcontrol answer."""
    match fn:
        case "fns":
            return builder.create("b32", "fns.b32", *arguments)
        case "philox":
            key, sequence, position = arguments
            return _emit_philox(key, sequence, position, builder)
        case _ if fn.startswith("clc_"):
            return _emit_answer_query(fn, arguments, builder)
        case _:
            raise InternalError(f"no code for {fn}")


def _emit_philox(key: Reg, sequence: Reg, position: Reg, builder: Builder) -> Reg:
    """Emit the Philox 4x32-10 random word of a key, sequence and position, as `ops.functions.philox` computes it."""

    def split_halves(wide: Reg) -> tuple[Reg, Reg]:
        """Emit and return the low and the high word of a 64-bit register."""
        low, high = builder.new_registers("b32", 2)
        builder.emit("mov.b64", Vector((low, high)), wide)
        return low, high

    low_key, high_key = split_halves(key)
    x, y = split_halves(builder.create("b64", "shr.u64", position, Imm(2)))
    z, w = split_halves(sequence)
    for number in range(ROUNDS):
        first, second = (
            split_halves(builder.create("b64", "mul.wide.u32", part, Imm(factor)))
            for part, factor in zip((x, z), FACTORS, strict=True)
        )
        keys = [
            builder.create("b32", "add.u32", part, Imm(number * step & 0xFFFFFFFF)) if number else part
            for part, step in zip((low_key, high_key), STEPS, strict=True)
        ]
        x, y, z, w = (
            builder.create("b32", "xor.b32", builder.create("b32", "xor.b32", second[1], y), keys[0]),
            second[0],
            builder.create("b32", "xor.b32", builder.create("b32", "xor.b32", first[1], w), keys[1]),
            first[0],
        )
    which = builder.create("b32", "cvt.u32.u64", position)
    odd = builder.create("pred", "setp.ne.b32", builder.create("b32", "and.b32", which, Imm(1)), Imm(0))
    upper = builder.create("pred", "setp.ne.b32", builder.create("b32", "and.b32", which, Imm(2)), Imm(0))
    lower_one, upper_one = (builder.create("b32", "selp.b32", b, a, odd) for a, b in ((x, y), (z, w)))
    return builder.create("b32", "selp.b32", upper_one, lower_one, upper)


def _emit_answer_query(fn: str, words: Sequence[Reg], builder: Builder) -> Reg:
    """Emit `clc_is_canceled` (1 or 0), or a block index (0 if none was cancelled), from an answer's four words.

    The block's index may be queried only if a block was cancelled (PTX ISA, clusterlaunchcontrol.query_cancel).
    """
    halves = [builder.create("b64", "mov.b64", Vector(tuple(words[i : i + 2]))) for i in (0, 2)]
    answer = builder.create("b128", "mov.b128", Vector(tuple(halves)))
    is_given = builder.create("pred", "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", answer)
    if fn == "clc_is_canceled":
        return builder.create("b32", "selp.b32", Imm(1), Imm(0), is_given)
    index = builder.create("b32", "mov.b32", Imm(0))
    opcode = f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{fn[-1]}.b32.b128"
    builder.emit(opcode, index, answer, guard=is_given)
    return index
