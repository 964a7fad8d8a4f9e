"""Evaluation of arguments, operands, indices, and conditions known at compile time."""

from __future__ import annotations

from tilec.frontend.sema import reading
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.indices import as_index
from tilec.frontend.sema.reading import read as read
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ir.types import BOOL, INT32
from tilec.ops import arithmetic, python
from tilec.ops.signature import Argument, as_expr
from tilec.ops.values import Access, Dictionary, Member, Range, describe, show_shape
from tilec.support.diagnostics import Label, fail
from tilec.support.source import Span

_MOST_SPELLED_OUT = 200
"""The most operations of an index whose variables are replaced by their definitions."""


def argument(context: Context, node: ast.Expr) -> Argument:
    """Evaluate a value as it is: an indexed buffer may still become a box of a copy."""
    return Argument(context.value(node), node.span, _place_of_string(context, node))


def _place_of_string(context: Context, node: ast.Expr) -> Span | None:
    """Return where the file defines the string that a name stands for: a mistake in it is one, however often the name
    is used."""
    binding = context.scope.find(node.id) if isinstance(node, ast.Name) else None
    return binding.written if binding is not None and isinstance(binding.value, str) else None


def operand(context: Context, node: ast.Expr) -> Argument:
    """Evaluate a value to compute with: an indexed buffer is read as one of its elements."""
    return read(context, argument(context, node))


class InOrder:
    """Values that are evaluated one after another, and used once the last one is known."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.pending: list[tuple[Argument, reading.Moment]] = []

    def add(self, argument: Argument) -> None:
        self.pending.append((argument, reading.now(self.context)))

    def values(self) -> list[Argument]:
        """Return all values, each as it was when it was evaluated."""
        return [reading.settled_argument(self.context, argument, moment) for argument, moment in self.pending]


def listed(context: Context, nodes: tuple[ast.Expr | ast.Starred, ...]) -> list[Argument]:
    """Evaluate a row of values, in which `*value` stands for its items."""
    values = InOrder(context)
    for node in nodes:
        _list(context, node, values)
    return values.values()


def _list(context: Context, node: ast.Expr | ast.Starred, values: InOrder) -> None:
    if not isinstance(node, ast.Starred):
        values.add(argument(context, node))
        return
    starred = argument(context, node.value)
    context.budget.look(starred.value, starred.span)
    for item in python.items(starred.value, starred.span):
        values.add(Argument(item, node.span))


def arguments(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate positional and keyword arguments. The span of a keyword argument includes its name."""
    values = InOrder(context)
    for arg in node.args:
        _list(context, arg, values)
    count = len(values.pending)
    names: list[str] = []
    for keyword in node.keywords:
        value = context.value(keyword.value)
        if keyword.name != "**":
            names.append(keyword.name)
            values.add(Argument(value, keyword.span, _place_of_string(context, keyword.value)))
            continue
        if not isinstance(value, Dictionary):
            fail("wrong-argument", "`**` needs a dictionary", keyword.span, f"this is {describe(value)}")
        for entry in value.entries:
            names.append(str(entry.key))
            values.add(Argument(entry.value, keyword.span))
    evaluated = values.values()
    return evaluated[:count], dict(zip(names, evaluated[count:], strict=True))


def operands(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate positional and keyword arguments to compute with."""
    positional, keywords = arguments(context, node)
    return [read(context, a) for a in positional], {k: read(context, a) for k, a in keywords.items()}


def callee(context: Context, node: ast.Call) -> str | None:
    """Return the dotted name of the callee, if it is a name of the language."""
    function = context.value(node.function)
    return function.path if isinstance(function, Member) else None


def decided(context: Context, node: ast.Expr) -> bool:
    """Evaluate a condition that is known at compile time. Errors: `not-a-constant`."""
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
    """Evaluate `buffer[...]`, with as many indices as dimensions."""
    indices = node.indices
    if len(indices) == 1 and isinstance(indices[0], ast.Tuple):
        indices = tuple(i for i in indices[0].items if not isinstance(i, ast.Starred))
    rank = len(buffer.extents) - (buffer.lanes > 1)
    if len(indices) != rank:
        shape_text = f"{buffer.name} has shape {show_shape(buffer.extents)}"
        has_none = any(isinstance(i, ast.Constant) and i.name == "None" for i in indices)
        count = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
        fail(
            "wrong-rank",
            f"{count} for {rank} dimension{'s' * (rank != 1)}",
            node.span,
            shape_text,
            secondary=(Label(buffer.span, "from here"),),
            help="leave None out: tiles are not broadcast; each element is indexed inside T.Parallel"
            if has_none
            else None,
        )
    lanes = (Range(tile.integer(0), buffer.lanes),) if buffer.lanes > 1 else ()
    places: list[tuple[tile.Expr | Range, reading.Moment]] = []
    for dim, i in enumerate(indices):
        places.append((_index(context, i, buffer, dim), reading.now(context)))
    begin = places[0][1] if places else reading.now(context)
    if not reading.since(context, begin):
        return Access(buffer, (*(place for place, _ in places), *lanes))
    # A later index changes something that an earlier one may read.
    settled = (
        reading.settled_place(context, Access(buffer, (place,)), moment, node.span).indices[0]
        for place, moment in places
    )
    return Access(buffer, (*settled, *lanes))


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
    """Replace variables of the expression by their definitions."""
    while definitions := {
        v: context.definitions[v] for v in tile.walk_expr(expr) if isinstance(v, tile.Var) and v in context.definitions
    }:
        expr = tile.substitute(expr, definitions)
        if sum(1 for _ in tile.walk_expr(expr)) > _MOST_SPELLED_OUT:
            break
    return expr


def index(context: Context, node: ast.Expr) -> tile.Expr:
    """Evaluate an integer index, as int32."""
    expr = as_expr(operand(context, node))
    if expr.dtype.is_float or expr.dtype == BOOL:
        fail("wrong-dtype", "an index must be an integer", node.span, f"this is {expr.dtype}")
    return as_index(expr, context.ranges)
