"""Operands of products that tensor cores cannot read where they lie: they are copied to a shared tile before.

These are a transposed A in a fragment, B of T.gemm_sp in a fragment, and a transposed E of T.gemm_sp. A reduction whose
result has another type than its source runs in the wider of both: the source is converted first, or the result last.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.types import DType
from tilec.ops.language.signature import Argument, Call
from tilec.ops.reductions.reduce import REDUCE, get_kept_extents

Step = tuple[str, list[Argument], dict[str, Argument]]
"""An operation by its name, with its arguments."""


def list_product_steps(context: Context, path: str, call: Call) -> Iterator[Step]:
    """Yield the copies that a product's operands need, then the product with the copies; nothing if none is needed. The
    copies are new shared tiles.
    """
    changed: dict[str, Argument] = {}
    if path == "T.gemm" and call["wg_wait"].value != -1 and _is_whole(call, "C", "fragment"):
        if call["transpose_A"].value is True and _is_whole(call, "A", "fragment"):
            yield from _copy_operand(context, call, "A", changed)
    elif path == "T.gemm_sp":
        if call["transpose_A"].value is True and _is_whole(call, "A_sparse", "fragment"):
            yield from _copy_operand(context, call, "A_sparse", changed)
        if _is_whole(call, "B", "fragment"):
            yield from _copy_operand(context, call, "B", changed)
        if call["transpose_E"].value is True and _is_whole(call, "E", "shared"):
            yield from _copy_operand(context, call, "E", changed, "T.transpose")
            changed["transpose_E"] = Argument(False, call["transpose_E"].span)
    if changed:
        yield path, [], {name: value for name, value in call.arguments.items() if call.is_given(name)} | changed


def _is_whole(call: Call, name: str, scope: tile.Scope) -> bool:
    """Return whether an operand is a whole two-dimensional tile in this scope, with elements of at least a byte."""
    value = call[name].value
    return isinstance(value, tile.Buffer) and value.scope == scope and len(value.extents) == 2 and value.dtype.bits >= 8


def _copy_operand(
    context: Context, call: Call, name: str, changed: dict[str, Argument], by: str = "T.copy"
) -> Iterator[Step]:
    """Yield the copy of an operand to a new shared tile, which is put into `changed` in its place. `by` is T.copy or
    T.transpose.
    """
    source, span = call[name].value, call[name].span
    assert isinstance(source, tile.Buffer)
    is_transposed = by == "T.transpose"
    shape = source.shape[::-1] if is_transposed else source.shape
    suffix = "transposed" if is_transposed else "shared"
    copied = context.allocate_buffer(f"{source.name}_{suffix}", shape, source.dtype, "shared", span)
    changed[name] = Argument(copied, span)
    yield by, [call[name], changed[name]], {}


_REDUCTION_NAMES = {spelling.signature.name for spelling in REDUCE.spellings}


def list_reduction_steps(context: Context, path: str, call: Call) -> Iterator[Step]:
    """Yield copies and a reduction, in the wider type, for a tile of numbers reduced to another dtype; nothing
    otherwise.
    """
    if path not in _REDUCTION_NAMES:
        return
    source, result = call.buffer("buffer"), call.buffer("out")
    if source is None or result is None:
        return
    is_of_numbers = "bool" not in (source.dtype.kind, result.dtype.kind)
    if source.dtype == result.dtype or "global" in (source.scope, result.scope) or not is_of_numbers:
        return
    others = {key: call[key] for key in ("dim", "clear", "nan_propagate") if key in call.arguments}
    if result.dtype.bits >= source.dtype.bits:
        given = _allocate_fragment(context, call, "buffer", result.dtype)
        yield "T.copy", [call["buffer"], given], {}
        yield path, [given, call["out"]], others
        return
    made = _allocate_fragment(context, call, "out", source.dtype)
    if "clear" in call.arguments and not call.read_boolean("clear"):
        yield "T.copy", [call["out"], made], {}
    yield path, [call["buffer"], made], others
    yield "T.copy", [made, call["out"]], {}


def _allocate_fragment(context: Context, call: Call, name: str, dtype: DType) -> Argument:
    """Allocate a fragment of this dtype with the extents of an argument's region, and return it as an argument."""
    region, span = call.read_region(name), call[name].span
    name, extents = f"{region.buffer.name}_{dtype}", get_kept_extents(region)
    return Argument(context.allocate_buffer(name, extents, dtype, "fragment", span), span)
