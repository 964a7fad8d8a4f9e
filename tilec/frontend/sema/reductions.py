"""Reductions whose result has another type than their source, split into steps that convert.

The reduction runs in the wider of both types: the source is converted first, or the result last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.frontend.sema.context import Context
from tilec.ir.tile import Buffer
from tilec.ir.types import DType
from tilec.ops.reduce import REDUCE, get_kept_extents
from tilec.ops.signature import Argument, Call
from tilec.support.records import dataclass
from tilec.support.source import Span

_REDUCTION_NAMES = {spelling.signature.name for spelling in REDUCE.spellings}


@dataclass(frozen=True, slots=True)
class ReductionStep:
    """An operation by its name, with its arguments."""

    name: str
    positional: tuple[Argument, ...]
    keywords: Mapping[str, Argument]


def list_reduction_steps(context: Context, path: str, call: Call) -> Iterator[ReductionStep]:
    """Yield the steps of a reduction between two types, and none for any other operation."""
    if path not in _REDUCTION_NAMES:
        return
    source, result = call.buffer("buffer"), call.buffer("out")
    if source is None or result is None:
        return
    is_of_numbers = "bool" not in (source.dtype.kind, result.dtype.kind)
    if source.dtype == result.dtype or "global" in (source.scope, result.scope) or not is_of_numbers:
        return
    others = {key: call[key] for key in ("dim", "clear") if key in call.arguments}
    if result.dtype.bits >= source.dtype.bits:
        given = _allocate_fragment(context, call, "buffer", result.dtype)
        yield ReductionStep("T.copy", (call["buffer"], given), {})
        yield ReductionStep(path, (given, call["out"]), others)
        return
    made = _allocate_fragment(context, call, "out", source.dtype)
    if "clear" in call.arguments and not call.read_boolean("clear"):
        yield ReductionStep("T.copy", (call["out"], made), {})
    yield ReductionStep(path, (call["buffer"], made), others)
    yield ReductionStep("T.copy", (made, call["out"]), {})


def _allocate_fragment(context: Context, call: Call, name: str, dtype: DType) -> Argument:
    """Allocate a fragment with the shape of an argument and another type."""
    region = call.read_region(name)
    span: Span = call[name].span
    made = Buffer(
        context.unique.take(f"{region.buffer.name}_{dtype}"), get_kept_extents(region), dtype, "fragment", span
    )
    context.buffers.append(made)
    return Argument(made, span)
