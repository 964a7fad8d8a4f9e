"""Shuffles, reductions over a warp, and votes. All threads of the warp, or of the block, execute them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.builder import Builder, get_register_class
from tilec.ir.tile import BLOCK_WIDE
from tilec.ir.types import DType
from tilec.ptx.module import Imm, Operand, Pair, Reg
from tilec.support.diagnostics import InternalError

_FULL_MASK = Imm(-1)
_SHUFFLES = {"shfl_xor": "bfly", "shfl_up": "up", "shfl_down": "down", "shfl_sync": "idx"}
_VOTES = {"vote_any": "vote.sync.any.pred", "vote_all": "vote.sync.all.pred", "ballot": "vote.sync.ballot.b32"}
_BLOCK_REDUCTIONS = {"block_count": "bar.red.popc.u32", "block_and": "bar.red.and.pred", "block_or": "bar.red.or.pred"}
_INTEGERS = {"warp_sum": "add", "warp_max": "max", "warp_min": "min", "warp_and": "and", "warp_or": "or"}
_FLOATS = {"warp_sum": "add", "warp_max": "max", "warp_min": "min"}


def emit_warp_function(
    fn: str,
    value: Reg,
    others: Sequence[Operand],
    types: tuple[DType, DType],
    builder: Builder,
    combine: Callable[[str, Operand, Operand, str], Reg],
) -> Reg:
    """Emit a shuffle, vote, match or reduction over the warp or block, and return its result.

    For a shuffle `others` are the lane and the width of a segment. `types` are those of the value and of the result.
    `combine(op, a, b, class)` emits an operation on floats.
    """
    source, dtype = types
    cls = get_register_class(dtype)
    if fn in _SHUFFLES:
        lane, lanes = others
        assert isinstance(lanes, Imm)
        # The mask of a segment's lanes, and the last lane that a source may have (PTX ISA, shfl.sync).
        clamp = Imm((32 - int(lanes.value)) << 8 | (0 if fn == "shfl_up" else 31))
        return _emit_shuffle(builder, _SHUFFLES[fn], cls == "f32", value, lane, clamp)
    if fn in _VOTES:
        return builder.create(cls, _VOTES[fn], value, _FULL_MASK)
    if fn in BLOCK_WIDE:
        return builder.create(cls, _BLOCK_REDUCTIONS[fn], Imm(0), value)
    if fn == "match_any":
        return builder.create(cls, f"match.any.sync.b{source.bits}", value, _FULL_MASK)
    if fn == "match_all":
        found = builder.new_register(cls)
        builder.emit(f"match.all.sync.b{source.bits}", Pair(found, Reg("_")), value, _FULL_MASK)
        return found
    if fn not in _INTEGERS:
        raise InternalError(f"no code for {fn}")
    if not dtype.is_float:
        kind = "b32" if fn in ("warp_and", "warp_or") else "u32" if dtype.kind == "uint" else "s32"
        return builder.create(cls, f"redux.sync.{_INTEGERS[fn]}.{kind}", value, _FULL_MASK)
    for by in (16, 8, 4, 2, 1):
        other = _emit_shuffle(builder, "bfly", True, value, Imm(by), Imm(31))
        value = combine(_FLOATS[fn], value, other, "f32")
    return value


def _emit_shuffle(builder: Builder, mode: str, is_float: bool, value: Reg, by: Operand, clamp: Operand) -> Reg:
    """Emit a shuffle of a 32-bit value and return the value received; a float is moved as bits."""
    word = builder.create("b32", "mov.b32", value) if is_float else value
    moved = builder.create("b32", f"shfl.sync.{mode}.b32", word, by, clamp, _FULL_MASK)
    return builder.create("f32", "mov.b32", moved) if is_float else moved
