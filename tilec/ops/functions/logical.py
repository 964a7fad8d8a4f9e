"""T.any_of and T.all_of: the disjunction and the conjunction of a box's elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Literal

from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.expr import make_constant
from tilec.ir.types import BOOL
from tilec.ops.functions.scalar import FUNCTIONS, ScalarFunction
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.language.values import Value
from tilec.support.diagnostics import Label, raise_error

LogicalOp = Literal["and", "or"]

MAX_ELEMENTS = 1024
"""The limit of a box: each element takes an instruction."""


def _make_fold(op: LogicalOp) -> Callable[[Call], Value]:
    """Make a function that builds T.any_of or T.all_of from a call."""

    def build_fold(call: Call) -> Value:
        """Build the disjunction or conjunction of a region's elements; raises an error for a fragment or over 1024
        elements."""
        region = call.read_region("buffer")
        if region.buffer.scope == "fragment":
            raise_error(
                "wrong-scope",
                f"{call.name} reads every element in each thread",
                call["buffer"].span,
                f"the threads hold different elements of {region.buffer.name}",
                secondary=(Label(region.buffer.span, "allocated here"),),
                help="T.copy it to a shared tile first",
            )
        if prod(region.extent) > MAX_ELEMENTS:
            call.refuse("buffer", f"of {MAX_ELEMENTS} elements at most")
        return _fold_terms(op, list(_list_truth_values(region)))

    return build_fold


def _list_truth_values(region: tile.Region) -> Iterator[tile.Expr]:
    """Yield for each element of a region, row-major, the bool expression that it is not 0."""
    for at in product(*map(range, region.extent)):
        load = tile.Load(
            region.buffer, tuple(add_exprs(s, tile.int32_const(i)) for s, i in zip(region.start, at, strict=True))
        )
        yield load if load.dtype == BOOL else tile.Binary("ne", load, make_constant(0, load.dtype), BOOL)


def _fold_terms(op: LogicalOp, terms: list[tile.Expr]) -> tile.Expr:
    """Return the terms joined by `and` or `or` as a balanced tree, so that recursion over it stays shallow."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return tile.Binary(op, _fold_terms(op, terms[:half]), _fold_terms(op, terms[half:]), BOOL)


_ROWS: tuple[tuple[str, LogicalOp, str], ...] = (
    ("any_of", "or", "True if some element of `buffer` is not 0; a tensor, shared tile, array or a box of one"),
    ("all_of", "and", "whether none of them is 0; outside a tensor they are"),
)
FUNCTIONS |= {
    f"T.{name}": ScalarFunction(Signature(f"T.{name}", (Parameter("buffer"),)), doc, _make_fold(op))
    for name, op, doc in _ROWS
}
