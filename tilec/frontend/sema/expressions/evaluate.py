"""Evaluation of arguments, operands, indices, and conditions known at compile time.

Conversion of indices to 32 bits, in which kernels address elements.

An extent is at most 2³¹ - 1, so a 64-bit index that 32 bits do not hold is outside every tensor. It is clamped, and so
stays outside. A sum is computed in 32 bits only if it and both operands are known to fit: a clamped operand may come
back inside when the other one is added.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import reading
from tilec.frontend.sema.expressions.reading import read_element as read_element
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import Interval, affine_form, value_interval
from tilec.ir.expr import cast_expr, integer_range, make_constant
from tilec.ir.types import BOOL, INT32, UINT32
from tilec.ops.functions import python
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr, bind_arguments
from tilec.ops.language.values import Access, Dictionary, IndexRange, Member, describe_value, show_shape
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

_MAX_INLINED_OPERATIONS = 200
"""The most operations of an index whose variables are replaced by their definitions."""


def evaluate_argument(context: Context, node: ast.Expr) -> Argument:
    """Evaluate an expression, keeping an indexed buffer as an access instead of a load. It may still become a box of a
    copy.
    """
    return Argument(context.value(node), node.span, _find_string_place(context, node))


def _find_string_place(context: Context, node: ast.Expr) -> Span | None:
    """Return the span where the file writes the string that a name stands for, or None for anything else. A mistake in
    it is one, however often the name is used.
    """
    binding = context.scope.find(node.id) if isinstance(node, ast.Name) else None
    return binding.written if binding is not None and isinstance(binding.value, str) else None


def evaluate_operand(context: Context, node: ast.Expr) -> Argument:
    """Evaluate an expression to compute with: an indexed buffer becomes a load of the element."""
    return read_element(context, evaluate_argument(context, node))


class PendingValues:
    """Values that are evaluated one after another, and used once the last one is known."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.pending: list[tuple[Argument, reading.Moment]] = []

    def add(self, argument: Argument) -> None:
        """Add a value together with the moment of its evaluation."""
        self.pending.append((argument, reading.mark_moment(self.context)))

    def values(self) -> list[Argument]:
        """Return all values as they were when added, emitting binds for those that later statements change."""
        return [reading.settle_argument(self.context, argument, moment) for argument, moment in self.pending]


def evaluate_items(context: Context, nodes: tuple[ast.Expr | ast.Starred, ...]) -> list[Argument]:
    """Return the values of a row of expressions in order, with `*value` replaced by its items."""
    values = PendingValues(context)
    for node in nodes:
        _add_item(context, node, values)
    return values.values()


def _add_item(context: Context, node: ast.Expr | ast.Starred, values: PendingValues) -> None:
    """Evaluate one expression into `values`; for `*value`, add each of its items and charge the budget."""
    if not isinstance(node, ast.Starred):
        values.add(evaluate_argument(context, node))
        return
    starred = evaluate_argument(context, node.value)
    context.budget.look(starred.value, starred.span)
    for item in python.list_items(starred.value, starred.span):
        values.add(Argument(item, node.span))


def evaluate_arguments(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate a call's arguments, expanding `*` and `**`; indexed buffers stay accesses; refuse `**` of no dictionary.
    The span of a keyword argument includes its name.
    """
    values = PendingValues(context)
    for arg in node.args:
        _add_item(context, arg, values)
    count = len(values.pending)
    names: list[str] = []
    for keyword in node.keywords:
        value = context.value(keyword.value)
        if keyword.name != "**":
            names.append(keyword.name)
            values.add(Argument(value, keyword.span, _find_string_place(context, keyword.value)))
            continue
        if not isinstance(value, Dictionary):
            raise_error("wrong-argument", "`**` needs a dictionary", keyword.span, f"this is {describe_value(value)}")
        for entry in value.entries:
            names.append(str(entry.key))
            values.add(Argument(entry.value, keyword.span))
    evaluated = values.values()
    return evaluated[:count], dict(zip(names, evaluated[count:], strict=True))


def evaluate_operands(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate a call's positional and keyword arguments, with every indexed buffer read as an element."""
    positional, keywords = evaluate_arguments(context, node)
    return [read_element(context, a) for a in positional], {k: read_element(context, a) for k, a in keywords.items()}


def bind_call(context: Context, signature: Signature, node: ast.Call) -> Call:
    """Evaluate a call's arguments and bind them to a signature; indexed buffers stay accesses."""
    return bind_arguments(signature, *evaluate_arguments(context, node), node.span)


def bind_operands(context: Context, signature: Signature, node: ast.Call) -> Call:
    """Evaluate a call's arguments and bind them to a signature; indexed buffers are read as elements."""
    return bind_arguments(signature, *evaluate_operands(context, node), node.span)


def find_callee(context: Context, node: ast.Call) -> str | None:
    """Return the dotted name of a call's function, or None if it is no name of a module such as `T`."""
    function = context.value(node.function)
    return function.path if isinstance(function, Member) else None


def decide_condition(context: Context, node: ast.Expr) -> bool:
    """Return a condition's truth value at compile time; raise `not-a-constant` if it is known only at run time."""
    condition = arithmetic.as_condition(evaluate_operand(context, node))
    if not isinstance(condition, bool):
        title = "this condition must be known at compile time"
        note = "known only at run time"
        raise_error("not-a-constant", title, node.span, note, help="use T.if_then_else to select a value at run time")
    return condition


def evaluate_access(context: Context, buffer: tile.Buffer, node: ast.Subscript) -> Access:
    """Evaluate `buffer[…]` to an access with int32 indices or ranges; raise `wrong-rank` for a wrong number of them.
    Indices that later ones change are bound first.
    """
    indices = node.indices
    if len(indices) == 1 and isinstance(indices[0], ast.Tuple):
        indices = tuple(i for i in indices[0].items if not isinstance(i, ast.Starred))
    rank = len(buffer.extents) - (buffer.lanes > 1)
    if len(indices) != rank:
        shape_text = f"{buffer.name} has shape {show_shape(buffer.extents)}"
        has_none = any(isinstance(i, ast.Constant) and i.name == "None" for i in indices)
        count = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
        title = f"{count} for {rank} dimension{'s' * (rank != 1)}"
        way_out = "remove None: tiles are not broadcast; index the elements inside T.Parallel" if has_none else None
        raise_error(
            "wrong-rank", title, node.span, shape_text, secondary=(Label(buffer.span, "from here"),), help=way_out
        )
    lanes = (IndexRange(tile.int32_const(0), buffer.lanes),) if buffer.lanes > 1 else ()
    places: list[tuple[tile.Expr | IndexRange, reading.Moment]] = []
    for dim, i in enumerate(indices):
        places.append((_evaluate_index_or_slice(context, i, buffer, dim), reading.mark_moment(context)))
    begin = places[0][1] if places else reading.mark_moment(context)
    if not reading.list_statements_since(context, begin):
        return Access(buffer, (*(place for place, _ in places), *lanes))
    # A later index changes something that an earlier one may read.
    settled = (reading.settle_place(context, Access(buffer, (place,)), moment, node.span) for place, moment in places)
    return Access(buffer, (*(access.indices[0] for access in settled), *lanes))


def _evaluate_index_or_slice(
    context: Context, node: ast.Expr | ast.Slice, buffer: tile.Buffer, dim: int
) -> tile.Expr | IndexRange:
    """Evaluate one index to int32, or a slice to a range; a T.Ramp is one. Refuse empty slices, steps other than 1,
    run-time extents.
    """
    if not isinstance(node, ast.Slice):
        argument = evaluate_operand(context, node)
        return argument.value if isinstance(argument.value, IndexRange) else _convert_index(context, argument)
    if node.step is not None and context.value(node.step) not in (None, 1):
        raise_error("unsupported-syntax", "slices have step 1", node.step.span)
    start = tile.int32_const(0) if node.lower is None else evaluate_index(context, node.lower)
    stop = tile.extent_expr(buffer.extents[dim]) if node.upper is None else evaluate_index(context, node.upper)
    form = affine_form(tile.Binary("sub", stop, start, INT32))
    if form.terms:
        form = affine_form(
            tile.Binary("sub", _inline_definitions(context, stop), _inline_definitions(context, start), INT32)
        )
    if form.terms:
        title = "the extent of a slice must be known at compile time"
        way_out = "loop over the elements by `for i in T.Parallel(n):`, where n may be a run-time value"
        raise_error("dynamic-shape", title, node.span, "depends on a run-time value", help=way_out)
    if form.constant <= 0:
        raise_error("wrong-shape", "the slice is empty", node.span, f"its extent is {form.constant}")
    return IndexRange(start, form.constant)


RAMP_SIGNATURE = Signature("T.Ramp", (Parameter("base"), Parameter("stride"), Parameter("lanes")))


def evaluate_ramp(context: Context, call: Call) -> IndexRange:
    """Return `T.Ramp(base, stride, lanes)` as a range of `lanes` indices from `base`; refuse strides other than 1."""
    if call["stride"].value != 1:
        call.refuse("stride", "1: a slice has no gaps")
    lanes = call.read_integer("lanes")
    if lanes <= 0:
        call.refuse("lanes", "a positive number")
    base = as_expr(call["base"])
    if base.dtype.is_float or base.dtype == BOOL:
        call.refuse("base", "an integer")
    return IndexRange(as_index(base, context.ranges), lanes, is_ramp=True)


def _inline_definitions(context: Context, expr: tile.Expr) -> tile.Expr:
    """Replace variables in an expression by their definitions, repeatedly, until none is left or it is too large."""
    while definitions := {
        v: context.definitions[v] for v in tile.walk_expr(expr) if isinstance(v, tile.Var) and v in context.definitions
    }:
        expr = tile.substitute_variables(expr, definitions)
        if sum(1 for _ in tile.walk_expr(expr)) > _MAX_INLINED_OPERATIONS:
            break
    return expr


def evaluate_index(context: Context, node: ast.Expr) -> tile.Expr:
    """Evaluate an index and convert it to int32; raise `wrong-dtype` for a float or a truth value."""
    return _convert_index(context, evaluate_operand(context, node))


def _convert_index(context: Context, argument: Argument) -> tile.Expr:
    """Convert an index to int32; raise `wrong-dtype` for a float or a truth value."""
    expr = as_expr(argument)
    if expr.dtype.is_float or expr.dtype == BOOL:
        raise_error("wrong-dtype", "an index must be an integer", argument.span, f"this is {expr.dtype}")
    return as_index(expr, context.ranges)


_LOW, _HIGH = integer_range(INT32)


def as_index(expr: tile.Expr, ranges: Mapping[str, tuple[int, int]]) -> tile.Expr:
    """Convert an integer expression to int32, clamping a 64-bit value that may not fit, and fold constants. `ranges`
    are the smallest and largest values of variables, by name.
    """
    intervals: dict[tile.Var, Interval] = (
        {} if expr.dtype.bits < 64 else {tile.Var(name): ends for name, ends in ranges.items()}
    )
    return fold_expr(_narrow_index(expr, intervals))


def _narrow_index(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> tile.Expr:
    """Convert an integer expression to int32: computed in 32 bits where it must fit, else in 64 bits and clamped."""
    if expr.dtype.bits < 64:
        return cast_expr(expr, INT32)
    match expr:
        case tile.Const(value=value):
            return make_constant(min(max(int(value), _LOW), _HIGH), INT32)
        case tile.Cast(a=a) if a.dtype.kind != "float" and a.dtype.bits < 64:
            return cast_expr(a, INT32)
        case tile.Binary(op="add" | "sub" | "mul" | "floordiv" | "floormod" | "min" | "max", a=a, b=b) if all(
            _fits_int32(e, ranges) for e in (a, b, expr)
        ):
            return tile.Binary(expr.op, _narrow_index(a, ranges), _narrow_index(b, ranges), INT32)
        case _:
            clamped = tile.Binary("min", expr, make_constant(_HIGH, expr.dtype), expr.dtype)
            if expr.dtype.kind == "int":
                clamped = tile.Binary("max", clamped, make_constant(_LOW, expr.dtype), expr.dtype)
            return tile.Cast(clamped, INT32)


def _fits_int32(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> bool:
    """Return whether a 64-bit expression must fit int32: cast from a narrower integer but uint32, or by variables'
    ranges.
    """
    source = expr.a.dtype if isinstance(expr, tile.Cast) else None
    if source is not None and source.kind != "float" and source.bits < 64 and source != UINT32:
        return True
    low, high = value_interval(expr, ranges)
    return low >= _LOW and high <= _HIGH
