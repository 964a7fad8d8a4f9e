"""Arguments and operands of calls and operators, indices, and conditions known at compile time."""

from __future__ import annotations

from tilec.frontend.sema import fragment_elements, vectors
from tilec.frontend.sema.bounds import check_access
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.indices import as_index
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ir.types import BOOL, INT32
from tilec.ops import arithmetic, python
from tilec.ops.signature import Argument, as_expr
from tilec.ops.values import Access, Dictionary, Member, Range, describe, show_shape
from tilec.support.diagnostics import Label, fail

_MOST_SPELLED_OUT = 200
"""Operations of an index, names in it replaced by what they were given."""


def argument(context: Context, node: ast.Expr) -> Argument:
    """A value as it is: an indexed buffer may still become a box of a copy."""
    return Argument(context.value(node), node.span)


def operand(context: Context, node: ast.Expr) -> Argument:
    """A value to compute with: an indexed buffer is one of its elements."""
    return read(context, argument(context, node))


def read(context: Context, argument: Argument) -> Argument:
    """An indexed buffer as one of its elements."""
    access = argument.value
    if isinstance(access, Access) and access.is_vector:
        return Argument(vectors.loaded(context, access, argument.span), argument.span)
    if not isinstance(access, Access) or access.has_extent:
        return argument
    if fragment_elements.is_spread(context, access):
        return Argument(fragment_elements.read(context, access, argument.span), argument.span)
    check_access(context, access, argument.span, "read")
    if access.buffer.scope == "barrier":
        fail("not-a-scalar", "a barrier has no value", argument.span, help="write T.barrier_wait(barrier, parity)")
    return Argument(as_expr(argument), argument.span)


def listed(context: Context, nodes: tuple[ast.Expr | ast.Starred, ...]) -> list[Argument]:
    """Values in a row; `*value` gives its items."""
    values = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            given = argument(context, node.value)
            context.budget.look(given.value, given.span)
            values += [Argument(v, node.span) for v in python.items(given.value, given.span)]
        else:
            values.append(argument(context, node))
    return values


def arguments(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Positional and keyword arguments; a keyword's text counts with its name."""
    return listed(context, node.args), _keywords(context, node)


def _keywords(context: Context, node: ast.Call) -> dict[str, Argument]:
    given: dict[str, Argument] = {}
    for keyword in node.keywords:
        value = context.value(keyword.value)
        if keyword.name != "**":
            given[keyword.name] = Argument(value, keyword.span)
            continue
        if not isinstance(value, Dictionary):
            fail("wrong-argument", "`**` needs a dictionary", keyword.span, f"this is {describe(value)}")
        given |= {str(e.key): Argument(e.value, keyword.span) for e in value.entries}
    return given


def operands(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Arguments to compute with."""
    keywords = _keywords(context, node)
    return [read(context, a) for a in listed(context, node.args)], {k: read(context, a) for k, a in keywords.items()}


def callee(context: Context, node: ast.Call) -> str | None:
    """The dotted name of what is called, where it is a name of the language."""
    function = context.value(node.function)
    return function.path if isinstance(function, Member) else None


def decided(context: Context, node: ast.Expr) -> bool:
    """A condition that is known at compile time."""
    condition = arithmetic.condition(operand(context, node))
    if not isinstance(condition, bool):
        fail(
            "not-a-constant",
            "this condition must be decidable at compile time",
            node.span,
            "known only at run time",
            help="write T.if_then_else for a value that depends on it",
        )
    return condition


def access(context: Context, buffer: tile.Buffer, node: ast.Subscript) -> Access:
    """`buffer[...]`, with as many indices as dimensions."""
    indices = node.indices
    if len(indices) == 1 and isinstance(indices[0], ast.Tuple):
        indices = tuple(i for i in indices[0].items if not isinstance(i, ast.Starred))
    rank = len(buffer.extents) - (buffer.lanes > 1)
    if len(indices) != rank:
        wanted = f"{buffer.name} has shape {show_shape(buffer.extents)}"
        count = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
        fail(
            "wrong-rank",
            f"{count} for {rank} dimension{'s' * (rank != 1)}",
            node.span,
            wanted,
            secondary=(Label(buffer.span, "from here"),),
        )
    whole = (Range(tile.integer(0), buffer.lanes),) if buffer.lanes > 1 else ()
    return Access(buffer, (*(_index(context, i, buffer, dim) for dim, i in enumerate(indices)), *whole))


def _index(context: Context, node: ast.Expr | ast.Slice, buffer: tile.Buffer, dim: int) -> tile.Expr | Range:
    if not isinstance(node, ast.Slice):
        return index(context, node)
    if node.step is not None and context.value(node.step) not in (None, 1):
        fail("unsupported-syntax", "slices have step 1", node.step.span)
    start = tile.integer(0) if node.lower is None else index(context, node.lower)
    stop = tile.extent_expr(buffer.extents[dim]) if node.upper is None else index(context, node.upper)
    form = affine(tile.Binary("sub", stop, start, INT32))
    if form.terms:
        form = affine(tile.Binary("sub", _spelled_out(context, stop), _spelled_out(context, start), INT32))
    if form.terms:
        fail(
            "dynamic-shape",
            "the extent of a slice must be known at compile time",
            node.span,
            "depends on a run-time value",
            help="go through the elements by `for i in T.Parallel(n):`, where n may be a run-time value",
        )
    if form.constant <= 0:
        fail("wrong-shape", "the slice is empty", node.span, f"its extent is {form.constant}")
    return Range(start, form.constant)


def _spelled_out(context: Context, expr: tile.Expr) -> tile.Expr:
    """The expression with what names in it were given."""
    while named := {
        v: context.definitions[v] for v in tile.walk_expr(expr) if isinstance(v, tile.Var) and v in context.definitions
    }:
        expr = tile.substitute(expr, named)
        if sum(1 for _ in tile.walk_expr(expr)) > _MOST_SPELLED_OUT:
            break
    return expr


def index(context: Context, node: ast.Expr) -> tile.Expr:
    """An integer that addresses something."""
    expr = as_expr(operand(context, node))
    if expr.dtype.is_float or expr.dtype == BOOL:
        fail("wrong-dtype", "an index must be an integer", node.span, f"this is {expr.dtype}")
    return as_index(expr, context.ranges)
