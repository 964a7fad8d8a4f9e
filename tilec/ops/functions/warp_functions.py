"""Functions that the threads of a warp, or of the block, compute together: shuffles, reductions, votes. One row each.

Every thread computes every call (`sema.statements.per_thread`), so that a warp is always complete and every mask is the
full one. Under a condition on the thread, votes and reductions are over the threads for which it holds. Inside
T.Parallel the lanes are 32 neighbours of the last dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilec.ir import tile
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32, UINT16, UINT32, UINT64, DType
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call as Arguments, Parameter, Signature, as_expr
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

FULL_MASK = 0xFFFFFFFF
Builder = Callable[[Arguments, tile.Expr | None], tile.Expr]
"""Builds the value of a call, given the condition under which threads make it (None: all do)."""


@dataclass(frozen=True, slots=True)
class WarpFunction:
    """A function that the threads of a warp, or of the block, compute together."""

    signature: Signature
    doc: str
    build: Builder
    is_block_wide: bool = False


# ---- arguments -------------------------------------------------------------------------------------------------------


def _check_full_mask(call: Arguments) -> None:
    """Refuse a `mask` argument other than the full mask, -1 or None."""
    mask = call["mask"].value if "mask" in call.arguments else None
    if (mask.value if isinstance(mask, tile.Const) else mask) not in (None, FULL_MASK, -1):
        call.refuse("mask", "0xFFFFFFFF: all threads of a warp take part")


def _read_predicate(call: Arguments, running: tile.Expr | None, otherwise: bool) -> tile.Expr:
    """Return `predicate` as a bool expression that is `otherwise` in threads where `running` (None: always true) is
    false.
    """
    value = arithmetic.as_condition(call["predicate"])
    holds = tile.Const(value, BOOL) if isinstance(value, bool) else as_expr(Argument(value, call.span))
    if running is None:
        return holds
    if otherwise:
        return tile.Binary("or", holds, tile.Unary("not", running, BOOL), BOOL)
    return tile.Binary("and", holds, running, BOOL)


def _read_number(call: Arguments) -> tile.Expr:
    """Return the argument `value` as an expression; refuses a truth value."""
    value = as_expr(call["value"])
    if value.dtype == BOOL:
        call.refuse("value", "a number")
    return value


# ---- shuffles --------------------------------------------------------------------------------------------------------


def _move_in_words(value: tile.Expr, move: Callable[[tile.Expr], tile.Expr]) -> tile.Expr:
    """Return the value that results when `move` is applied to its bits in 32-bit words; a bool or small integer as an
    int32."""
    dtype = value.dtype
    if dtype == BOOL:
        return cast_expr(move(cast_expr(value, INT32)), BOOL)
    if dtype.bits == 32:
        return move(value)
    if not dtype.is_float and dtype.bits < 32:
        return cast_expr(move(cast_expr(value, INT32)), dtype)
    raw = _UNSIGNED[dtype.bits]
    bits = value if value.dtype == raw else tile.Call("reinterpret", (value,), raw)
    if dtype.bits < 32:
        moved: tile.Expr = cast_expr(move(cast_expr(bits, UINT32)), raw)
    else:
        high = move(cast_expr(tile.Binary("shr", bits, make_constant(32, UINT64), UINT64), UINT32))
        low = move(cast_expr(bits, UINT32))
        wide = tile.Binary("shl", cast_expr(high, UINT64), make_constant(32, UINT64), UINT64)
        moved = tile.Binary("bitor", wide, cast_expr(low, UINT64), UINT64)
    return moved if dtype == raw else tile.Call("reinterpret", (moved,), dtype)


_UNSIGNED: dict[int, DType] = {16: UINT16, 64: UINT64}


def _make_shuffle(fn: str, lane: str) -> Builder:
    """Make a function that builds the shuffle `fn` from a call; `lane` names the parameter that selects the lane."""

    def build_shuffle(call: Arguments, _: tile.Expr | None) -> tile.Expr:
        """Build a shuffle of the value's 32-bit words; refuses a partial mask, widths other than 2 to 32, and 8-bit
        floats.
        """
        _check_full_mask(call)
        width = call["width"].value
        if width not in (2, 4, 8, 16, 32):
            call.refuse("width", "2, 4, 8, 16 or 32")
        assert isinstance(width, int)
        by = cast_expr(as_expr(call[lane], INT32), INT32)
        value = as_expr(call["value"])
        if value.dtype.is_float and value.dtype.bits == 8:
            call.refuse("value", "a number of 16 bits at least, or an integer")
        return _move_in_words(value, lambda word: tile.Call(fn, (word, by, tile.int32_const(width)), word.dtype))

    return build_shuffle


# ---- reductions and votes --------------------------------------------------------------------------------------------


def _make_reduction(fn: str, kind: str, integers_only: bool = False) -> Builder:
    """Make a function that builds the warp's reduction `fn`, with `kind`'s identity; `integers_only` refuses floats."""

    def build_reduction(call: Arguments, running: tile.Expr | None) -> tile.Expr:
        """Build the reduction of a 32-bit number, with the identity in threads not running; raises an error for other
        types."""
        value = _read_number(call)
        if integers_only and value.dtype.is_float:
            raise_error("wrong-dtype", f"{call.name} needs integers", call["value"].span, f"this is {value.dtype}")
        if value.dtype.bits != 32:
            raise_error(
                "wrong-dtype",
                f"{call.name} works on 32 bits",
                call["value"].span,
                f"this is {value.dtype}",
                help="convert it with T.cast",
            )
        if running is not None:
            value = tile.Select(running, value, arithmetic.make_identity(kind, value.dtype), value.dtype)
        return tile.Call(fn, (value,), value.dtype)

    return build_reduction


def _make_vote(fn: str, dtype: DType, otherwise: bool, result: DType) -> Builder:
    """Make a function that builds the vote `fn` from a call; threads that do not make the call vote `otherwise`."""

    def build_vote(call: Arguments, running: tile.Expr | None) -> tile.Expr:
        """Build the vote on the call's predicate, converted to `result`; refuses a partial mask."""
        _check_full_mask(call)
        return cast_expr(tile.Call(fn, (_read_predicate(call, running, otherwise),), dtype), result)

    return build_vote


def _build_active_mask(call: Arguments, running: tile.Expr | None) -> tile.Expr:
    """Build T.activemask: as uint64, a bit for each lane whose thread makes the call."""
    return cast_expr(tile.Call("ballot", (tile.Const(True, BOOL) if running is None else running,), UINT32), UINT64)


def _make_match(fn: str) -> Builder:
    """Make a function that builds the comparison `fn` of values among the lanes of a warp from a call."""

    def build_match(call: Arguments, _: tile.Expr | None) -> tile.Expr:
        """Build the uint32 match of the value's bits, of 32 or 64; refuses a partial mask and smaller floats."""
        _check_full_mask(call)
        value = _read_number(call)
        if value.dtype.bits not in (32, 64):
            value = cast_expr(value, INT32) if not value.dtype.is_float else value
        if value.dtype.bits not in (32, 64):
            call.refuse("value", "a number of 32 or 64 bits, or an integer")
        if value.dtype.is_float:
            value = tile.Call("reinterpret", (value,), UINT32 if value.dtype.bits == 32 else UINT64)
        return tile.Call(fn, (value,), UINT32)

    return build_match


_VALUE, _PREDICATE, _MASK = Parameter("value"), Parameter("predicate"), Parameter("mask", FULL_MASK)
_SHUFFLED = (Parameter("width", WARP_THREADS), _MASK)
_WARP_SIZE = Parameter("warp_size", WARP_THREADS)
"""A parameter of TVM's shuffles, which changes nothing on NVIDIA's GPUs."""


def _make_row(
    name: str, parameters: tuple[Parameter, ...], doc: str, build: Builder, is_block_wide: bool = False
) -> WarpFunction:
    """Return a row of the table of warp functions."""
    return WarpFunction(Signature(name, parameters), doc, build, is_block_wide)


WARP_FUNCTIONS: dict[str, WarpFunction] = {
    f.signature.name: f
    for f in (
        _make_row("T.shfl_xor", (_VALUE, Parameter("delta"), *_SHUFFLED), "the value of lane ^ delta",
             _make_shuffle("shfl_xor", "delta")),
        _make_row("T.shfl_up", (_VALUE, Parameter("delta"), *_SHUFFLED),
             "the value of lane - delta; its own value for lanes below delta", _make_shuffle("shfl_up", "delta")),
        _make_row("T.shfl_down", (_VALUE, Parameter("delta"), *_SHUFFLED),
             "the value of lane + delta; its own value beyond `width`", _make_shuffle("shfl_down", "delta")),
        _make_row("T.shfl_sync", (_VALUE, Parameter("srcLane"), *_SHUFFLED),
             "the value of lane srcLane, of each `width` lanes", _make_shuffle("shfl_sync", "srcLane")),
        *(_make_row(f"T.tvm_warp_{name}", (Parameter("mask"), _VALUE, Parameter(by), Parameter("width"), _WARP_SIZE),
             f"TVM's spelling of T.{fn}(value, {by}, width)", _make_shuffle(fn, by))
          for name, fn, by in (("shuffle", "shfl_sync", "warp_id"), ("shuffle_up", "shfl_up", "offset"),
                               ("shuffle_down", "shfl_down", "offset"))),
        _make_row("T.warp_reduce_sum", (_VALUE,), "the sum over the warp", _make_reduction("warp_sum", "sum")),
        _make_row("T.warp_reduce_max", (_VALUE,), "the largest in the warp", _make_reduction("warp_max", "max")),
        _make_row("T.warp_reduce_min", (_VALUE,), "the smallest in the warp", _make_reduction("warp_min", "min")),
        _make_row("T.warp_reduce_bitand", (_VALUE,), "the bits set in all lanes",
             _make_reduction("warp_and", "bitand", True)),
        _make_row("T.warp_reduce_bitor", (_VALUE,), "the bits set in some lane",
             _make_reduction("warp_or", "bitor", True)),
        _make_row("T.any_sync", (_PREDICATE, _MASK), "1 if it holds in some lane, else 0",
             _make_vote("vote_any", BOOL, False, INT32)),
        _make_row("T.all_sync", (_PREDICATE, _MASK), "1 if it holds in all lanes, else 0",
             _make_vote("vote_all", BOOL, True, INT32)),
        _make_row("T.ballot_sync", (_PREDICATE, _MASK), "a bit for each lane in which it holds",
             _make_vote("ballot", UINT32, False, UINT64)),
        _make_row("T.ballot", (_PREDICATE,), "a bit for each lane in which it holds",
             _make_vote("ballot", UINT32, False, UINT64)),
        _make_row("T.activemask", (), "a bit for each lane that runs this", _build_active_mask),
        _make_row("T.match_any_sync", (_VALUE, _MASK), "a bit for each lane with the same value",
             _make_match("match_any")),
        _make_row("T.match_all_sync", (_VALUE, _MASK), "all bits if all lanes have the same value, else 0",
             _make_match("match_all")),
        _make_row("T.syncthreads_count", (_PREDICATE,), "the number of threads of the block in which it holds",
             _make_vote("block_count", INT32, False, INT32), True),
        _make_row("T.syncthreads_and", (_PREDICATE,), "1 if it holds in all threads of the block, else 0",
             _make_vote("block_and", BOOL, True, INT32), True),
        _make_row("T.syncthreads_or", (_PREDICATE,), "1 if it holds in some thread of the block, else 0",
             _make_vote("block_or", BOOL, False, INT32), True),
    )
}  # fmt: skip


# ---- references: arrays with the threads along the first dimension ---------------------------------------------------


def _split_into_warps(values: Any) -> Any:
    """Return the values with one row for each warp of 32 threads."""
    return values.reshape(-1, WARP_THREADS)


def _make_shuffle_reference(partner: Callable[[Any, Any, int], Any]) -> Callable[..., Any]:
    """Make the numpy reference of a shuffle; `partner` returns the lane that each lane reads."""

    def compute_shuffle(value: Any, by: Any, width: Any) -> Any:
        """Return for each thread the value of its partner lane; its own where that lies outside its `width` lanes."""
        import numpy as np

        lane = np.arange(WARP_THREADS)
        size = int(np.asarray(width).reshape(-1)[0])
        source = partner(lane, _split_into_warps(by) & 31, size)
        inside = (source >= 0) & (source < WARP_THREADS) & (source // size == lane // size)
        chosen = np.where(inside, source, lane)
        return np.take_along_axis(_split_into_warps(value), chosen, 1).reshape(value.shape)

    return compute_shuffle


def _make_butterfly_reference(combine: str) -> Callable[[Any], Any]:
    """Make the numpy reference of a warp reduction by the numpy function of this name."""

    def compute_butterfly(value: Any) -> Any:
        """Return for each thread the reduction over its warp, combined in a butterfly's order."""
        import numpy as np

        held, function = _split_into_warps(value), getattr(np, combine)
        for by in (16, 8, 4, 2, 1):
            held = function(held, held[:, np.arange(WARP_THREADS) ^ by]).astype(value.dtype)
        return held.reshape(value.shape)

    return compute_butterfly


def _make_warp_reference(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make the numpy reference of a function with one result for each warp, given to all its threads."""

    def compute_each_warp(value: Any) -> Any:
        """Return the function's result for each warp, repeated for its 32 threads."""
        import numpy as np

        return np.repeat(function(_split_into_warps(value)), WARP_THREADS).reshape(value.shape)

    return compute_each_warp


def _pack_lane_bits(lanes: Any) -> Any:
    """Return the truth values of 32 lanes as the bits of a uint32, lane 0 lowest."""
    import numpy as np

    return (lanes.astype(np.uint64) << np.arange(WARP_THREADS, dtype=np.uint64)).sum(-1).astype(np.uint32)


def _match_lanes(value: Any) -> Any:
    """Return for each thread a uint32 with a bit for each lane of its warp that has the same value."""
    held = _split_into_warps(value)
    return _pack_lane_bits(held[:, :, None] == held[:, None, :]).reshape(value.shape)


def _make_block_reference(function: str) -> Callable[[Any], Any]:
    """Make the numpy reference of a vote of the whole block by the numpy function of this name."""

    def compute_block(value: Any) -> Any:
        """Return the one result of the function on the values of all threads."""
        import numpy as np

        return np.asarray(getattr(np, function)(value))

    return compute_block


REFERENCES: dict[str, Callable[..., Any]] = {
    "shfl_xor": _make_shuffle_reference(lambda lane, by, _: lane ^ by),
    "shfl_up": _make_shuffle_reference(lambda lane, by, _: lane - by),
    "shfl_down": _make_shuffle_reference(lambda lane, by, _: lane + by),
    "shfl_sync": _make_shuffle_reference(lambda lane, by, width: lane // width * width + by % width),
    "warp_sum": _make_butterfly_reference("add"),
    "warp_max": _make_butterfly_reference("fmax"),
    "warp_min": _make_butterfly_reference("fmin"),
    "warp_and": _make_butterfly_reference("bitwise_and"),
    "warp_or": _make_butterfly_reference("bitwise_or"),
    "vote_any": _make_warp_reference(lambda lanes: lanes.any(-1)),
    "vote_all": _make_warp_reference(lambda lanes: lanes.all(-1)),
    "ballot": _make_warp_reference(_pack_lane_bits),
    "match_any": _match_lanes,
    "match_all": _make_warp_reference(lambda lanes: FULL_MASK * (lanes == lanes[:, :1]).all(-1)),
    "block_count": _make_block_reference("count_nonzero"),
    "block_and": _make_block_reference("all"),
    "block_or": _make_block_reference("any"),
}
"""The references, by the name of the call in tile IR."""
