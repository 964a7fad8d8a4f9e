"""Operands of products that tensor cores cannot read where they lie: they are copied to a shared tile before.

These are a transposed A in a fragment, B of T.gemm_sp in a fragment, and a transposed E of T.gemm_sp.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ops.language.signature import Argument, Call

Step = tuple[str, list[Argument], dict[str, Argument]]
"""An operation by its name, with its arguments."""


def list_product_steps(context: Context, path: str, call: Call) -> Iterator[Step]:
    """Yield the copies of the operands, then the product, or nothing where the product needs no copy."""
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
            yield from _copy_operand(context, call, "E", changed, transposes=True)
            changed["transpose_E"] = Argument(False, call["transpose_E"].span)
    if changed:
        yield path, [], {name: value for name, value in call.arguments.items() if call.is_given(name)} | changed


def _is_whole(call: Call, name: str, scope: tile.Scope) -> bool:
    """Return whether an operand is a whole matrix in this memory, of elements of at least a byte."""
    value = call[name].value
    return isinstance(value, tile.Buffer) and value.scope == scope and len(value.extents) == 2 and value.dtype.bits >= 8


def _copy_operand(
    context: Context, call: Call, name: str, changed: dict[str, Argument], transposes: bool = False
) -> Iterator[Step]:
    """Yield the copy of an operand to a shared tile, which takes its place in `changed`."""
    source, span = call[name].value, call[name].span
    assert isinstance(source, tile.Buffer)
    shape = source.shape[::-1] if transposes else source.shape
    suffix = "transposed" if transposes else "shared"
    copied = tile.Buffer(context.unique.take(f"{source.name}_{suffix}"), shape, source.dtype, "shared", span)
    context.buffers.append(copied)
    changed[name] = Argument(copied, span)
    yield "T.transpose" if transposes else "T.copy", [call[name], changed[name]], {}
