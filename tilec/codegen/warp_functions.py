"""Shuffles, reductions over a warp, and votes. All threads of the warp, or of the block, are here together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilec.codegen.builder import register_class
from tilec.ir.tile import BLOCK_WIDE, Const, Expr
from tilec.ir.types import DType
from tilec.ptx.module import Imm, Operand, Pair, Reg
from tilec.support.diagnostics import InternalError

if TYPE_CHECKING:
    from tilec.codegen.scalar import ReadElement, Scalars

_ALL = Imm(-1)
_SHUFFLES = {"shfl_xor": "bfly", "shfl_up": "up", "shfl_down": "down", "shfl_sync": "idx"}
_VOTES = {"vote_any": "vote.sync.any.pred", "vote_all": "vote.sync.all.pred", "ballot": "vote.sync.ballot.b32"}
_BLOCK = {"block_count": "bar.red.popc.u32", "block_and": "bar.red.and.pred", "block_or": "bar.red.or.pred"}
_INTEGERS = {"warp_sum": "add", "warp_max": "max", "warp_min": "min", "warp_and": "and", "warp_or": "or"}
_FLOATS = {"warp_sum": "add", "warp_max": "max", "warp_min": "min"}


def emit_warp_function(fn: str, args: Sequence[Expr], dtype: DType, scalars: Scalars, read: ReadElement | None) -> Reg:
    builder = scalars.builder
    cls = register_class(dtype)
    value = scalars.register(args[0], read)
    if fn in _SHUFFLES:
        assert isinstance(args[2], Const)
        # The lanes of a segment, and where the lane may come from at most (PTX ISA, shfl.sync).
        clamp = Imm((32 - int(args[2].value)) << 8 | (0 if fn == "shfl_up" else 31))
        return _shuffle(scalars, _SHUFFLES[fn], cls == "f32", value, scalars.value(args[1], read), clamp)
    if fn in _VOTES:
        return builder.into(cls, _VOTES[fn], value, _ALL)
    if fn in BLOCK_WIDE:
        return builder.into(cls, _BLOCK[fn], Imm(0), value)
    if fn == "match_any":
        return builder.into(cls, f"match.any.sync.b{args[0].dtype.bits}", value, _ALL)
    if fn == "match_all":
        found = builder.new(cls)
        builder.emit(f"match.all.sync.b{args[0].dtype.bits}", Pair(found, Reg("_")), value, _ALL)
        return found
    if fn not in _INTEGERS:
        raise InternalError(f"no code for {fn}")
    if not dtype.is_float:
        kind = "b32" if fn in ("warp_and", "warp_or") else "u32" if dtype.kind == "uint" else "s32"
        return builder.into(cls, f"redux.sync.{_INTEGERS[fn]}.{kind}", value, _ALL)
    for by in (16, 8, 4, 2, 1):
        other = _shuffle(scalars, "bfly", True, value, Imm(by), Imm(31))
        value = scalars.float_operation(_FLOATS[fn], value, other, "f32")
    return value


def _shuffle(scalars: Scalars, mode: str, is_float: bool, value: Reg, by: Operand, clamp: Operand) -> Reg:
    builder = scalars.builder
    word = builder.into("b32", "mov.b32", value) if is_float else value
    moved = builder.into("b32", f"shfl.sync.{mode}.b32", word, by, clamp, _ALL)
    return builder.into("f32", "mov.b32", moved) if is_float else moved
