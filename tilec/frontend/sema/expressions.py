"""Evaluation of expressions: to Python values where all is known, to typed expressions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import assert_never

from tilec.frontend.sema import evaluate, host_names, layout_maps, per_thread, pipelines, reading, tile_scheduler
from tilec.frontend.sema.calls import call
from tilec.frontend.sema.context import Context, ReadsExpression
from tilec.frontend.sema.functions import bind_target, defined
from tilec.frontend.sema.scope import Scope
from tilec.frontend.sema.vocabulary import DIALECT, instead_of_foreign, is_supported, refuse_name
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BY_NAME, DType
from tilec.ops import arithmetic, python
from tilec.ops.other_languages import MODULES, dtype_instead_of, instead_of_method
from tilec.ops.signature import Argument, as_expr, vector_type
from tilec.ops.values import (
    EXPR_TYPES,
    Access,
    Dictionary,
    Entry,
    Function,
    Handle,
    Held,
    Listed,
    Member,
    Method,
    Namespace,
    Pipeline,
    Policy,
    Reference,
    Stage,
    StageTile,
    TileScheduler,
    Value,
    VectorType,
    WarpPolicy,
    describe,
)
from tilec.ops.views import DATA
from tilec.support.diagnostics import fail
from tilec.support.source import Span


def _literal(context: Context, node: ast.Number | ast.String) -> Value:
    return node.value


def _constant(context: Context, node: ast.Constant) -> Value:
    if node.name == "...":
        fail("unsupported-syntax", "`...` is no value", node.span)
    return {"True": True, "False": False, "None": None}[node.name]


def _name(context: Context, node: ast.Name) -> Value:
    return _variable(context, context.scope.read(node.id, node.span), node.span)


def _variable(context: Context, value: Value, span: Span) -> Value:
    """Return the value of a variable here: loaded in the statement, or before it where `context.is_held`."""
    if isinstance(value, Held):
        value = value.read()
    pipelines.read(context, value, span)
    if not (isinstance(value, tile.Buffer) and value.name in context.mutable):
        return value.access if isinstance(value, Reference) else value
    load = tile.Load(value, (tile.integer(0),))
    if context.is_parallel or not context.is_held:
        return load
    if value.scope == "local":
        return per_thread.frozen(context, load, span)
    snapshot = tile.Var(context.unique.take(f"{value.name}_now"), value.dtype)
    context.out.append(tile.Bind(snapshot, load, span))
    return snapshot


def _joined(context: Context, node: ast.JoinedString) -> Value:
    return python.joined([_text(context, p) for p in node.parts], node.span)


def _text(context: Context, part: ast.String | ast.Formatted) -> str:
    """Evaluate one part of an f-string."""
    if isinstance(part, ast.String):
        return part.value
    return python.formatted(evaluate.operand(context, part.value), part.conversion, part.spec)


def _tuple(context: Context, node: ast.Tuple) -> Value:
    return _looked_at(context, tuple(pipelines.kept(a) for a in evaluate.listed(context, node.items)), node.span)


def _list(context: Context, node: ast.List) -> Value:
    return _looked_at(context, Listed(pipelines.kept(a) for a in evaluate.listed(context, node.items)), node.span)


def _dict(context: Context, node: ast.Dict) -> Value:
    pairs = ((key, value, key.span.to(value.span)) for key, value in node.items)
    keys, values = [], evaluate.InOrder(context)
    for key, value, span in pairs:
        keys.append((context.value(key), span))
        values.add(Argument(pipelines.kept(evaluate.argument(context, value)), value.span))
    entries = (Entry(key, v.value, span) for (key, span), v in zip(keys, values.values(), strict=True))
    return _looked_at(context, Dictionary(tuple(entries)), node.span)


def _comprehension(context: Context, node: ast.Comprehension) -> Value:
    context.budget.comprehension(node.span)
    with context.reading_in(Scope(context.scope, "the comprehension", is_function=True)):
        if node.kind == "generator":
            way_out = "write a list: `[…]` is evaluated to its end, a generator perhaps not"
            with reading.only_reading(context, "an item of this generator", node.span, way_out):
                entries = _entries(context, node)
        else:
            entries = _entries(context, node)
    result = python.dictionary(entries) if node.kind == "dict" else Listed(e.value for e in entries)
    return _looked_at(context, result, node.span)


def _entries(context: Context, node: ast.Comprehension) -> list[Entry]:
    """Evaluate the entries of a comprehension in order, each with the values of its own moment."""
    entries, values = [], evaluate.InOrder(context)
    for entry in _runs(context, node, node.clauses):
        entries.append(entry)
        values.add(Argument(entry.value, entry.span))
    return [replace(entry, value=v.value) for entry, v in zip(entries, values.values(), strict=True)]


def _runs(context: Context, node: ast.Comprehension, clauses: tuple[ast.Clause, ...]) -> Iterator[Entry]:
    """Yield an entry for each item that the clauses run over. Entries of a list have no key."""
    if not clauses:
        key = pipelines.kept(evaluate.argument(context, node.element))
        yield Entry(None, key, node.span) if node.value is None else Entry(key, context.value(node.value), node.span)
        return
    first, *rest = clauses
    iterable = evaluate.operand(context, first.iterable)
    iterable = Argument(reading.held(context, iterable.value, iterable.span), iterable.span)
    for item in python.items(iterable.value, iterable.span):
        context.budget.step(first.span)
        bind_target(context.scope, first.target, Argument(item, iterable.span))
        if all(evaluate.decided(context, c) for c in first.conditions):
            yield from _runs(context, node, tuple(rest))


def _lambda(context: Context, node: ast.Lambda) -> Value:
    return defined(context, node)


def _grown(context: Context, value: Value, span: Span) -> Value:
    context.budget.grow(value, span)
    return value


def _looked_at(context: Context, value: Value, span: Span) -> Value:
    """Count the parts of a new value, all of which were looked at."""
    context.budget.look(value, span)
    return value


# ---- names with dots -------------------------------------------------------------------------------------------------


def _attribute(context: Context, node: ast.Attribute) -> Value:
    _refuse_foreign(context, node)
    owner = context.value(node.value)
    if isinstance(owner, Member):
        return _member(context, owner.path, node)
    if isinstance(owner, Namespace):
        value: Value = owner.scope.attribute(owner.path, node.name, node.span)
        return value
    if isinstance(owner, TileScheduler):
        return tile_scheduler.attribute(owner, node)
    if isinstance(owner, Pipeline | Handle | Stage | StageTile):
        return pipelines.attribute(context, owner, node)
    if node.name in python.methods(owner):
        return Method(owner, node.name)
    if isinstance(owner, Function):
        fail("foreign-call", f"{describe(owner)} has no `{node.name}`", node.span, "what a program does with it")
    if isinstance(owner, tile.Buffer) and node.name in ("pipeline", DATA):
        return Method(owner, node.name)
    if isinstance(owner, tile.LoopLayout) and node.name in layout_maps.METHODS:
        return Method(owner, node.name)
    if isinstance(owner, DType) and node.name in _OF_DTYPES:
        return _OF_DTYPES[node.name](owner)
    if isinstance(owner, (*EXPR_TYPES, Access)) and (found := _of_element(owner, node.name)) is not None:
        return found
    if not isinstance(owner, tile.Buffer) or node.name not in ("shape", "dtype"):
        fail(
            "unknown-attribute",
            f"there is no attribute `{node.name}` here",
            node.span,
            f"of {describe(owner)}",
            help=_instead_of_attribute(owner, node.name),
        )
    if owner.lanes > 1:
        return owner.extents[:-1] if node.name == "shape" else VectorType(owner.dtype, owner.lanes)
    return owner.extents if node.name == "shape" else owner.dtype


_OF_DTYPES: dict[str, Callable[[DType], Value]] = {
    "bits": lambda dtype: dtype.bits,
    "lanes": lambda dtype: 1,
    "bytes": lambda dtype: dtype.bytes,
    "itemsize": lambda dtype: dtype.bytes,
    "is_floating_point": lambda dtype: dtype.is_float,
}
"""By the names of TileLang, TVM and PyTorch."""


def _of_element(owner: tile.Expr | Access, name: str) -> Value:
    """Evaluate `x.dtype` or `x.astype` of an element, or of an expression."""
    if name == python.CONVERTS:
        return Method(owner, name)
    if name != "dtype":
        return None
    if not isinstance(owner, Access):
        return owner.dtype
    return VectorType(owner.buffer.dtype, owner.buffer.lanes) if owner.buffer.lanes > 1 else owner.buffer.dtype


def _instead_of_attribute(owner: Value, name: str) -> str | None:
    """Return what to write in place of an attribute or a method that a tile, or a part of one, does not have."""
    buffer = owner.buffer if isinstance(owner, Access) else owner
    if not isinstance(buffer, tile.Buffer):
        return None
    known = None if owner is not buffer else f"write {buffer.name}.shape[0] or {buffer.name}.dtype"
    return instead_of_method(name, buffer.name, len(buffer.extents)) or known


def _refuse_foreign(context: Context, node: ast.Attribute) -> None:
    """Refuse `np.sum` and `tl.dot` in a file that imports no such module."""
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id in MODULES and context.scope.find(owner.id) is None:
        if node.name in BY_NAME or node.name in ("inf", "infty"):
            infinity = 'T.infinity("float32"), with the dtype of what it is stored in'
            help_text = f'write "{node.name}"' if node.name in BY_NAME else f"write {infinity}"
            fail("foreign-call", f"{owner.id}.{node.name} is not known in a kernel", node.span, help=help_text)
        help_text = instead_of_foreign(node.name) or "kernels are written with T.*: `tilec explain foreign-call`"
        fail("foreign-call", f"{owner.id}.{node.name} is nothing that a kernel can call", node.span, help=help_text)


def _member(context: Context, owner: str, node: ast.Attribute) -> Value:
    path = f"{owner}.{node.name}"
    if owner == "tilelang" and node.name == "language":
        return Member("T")
    if path in python.MATH_CONSTANTS:
        return float(python.MATH_CONSTANTS[path])
    if owner == "T" and node.name in BY_NAME:
        return BY_NAME[node.name]
    if owner == "T" and (vector := vector_type(node.name)) is not None:
        return vector
    if path == DIALECT:
        return "cuda"
    if owner == "T.GemmWarpPolicy":
        if node.name not in Policy:
            fail(
                "unknown-attribute",
                f"there is no warp policy `{node.name}`",
                node.span,
                f"known: {', '.join(Policy)}",
            )
        return WarpPolicy(Policy[node.name])
    value = host_names.attribute(context, path)
    is_dtype = dtype_instead_of(node.name) is not None  # whoever needs a dtype names the right one
    if owner == "T" and isinstance(value, Member) and not is_dtype and not is_supported(path):
        refuse_name(path, node.span)
    return value


# ---- operators -------------------------------------------------------------------------------------------------------


def _unary(context: Context, node: ast.Unary) -> Value:
    operand = evaluate.operand(context, node.operand)
    result: Value
    match node.op:
        case "-":
            result = arithmetic.negate(operand)
        case "+":
            result = operand.value if isinstance(operand.value, int | float) else as_expr(operand)
        case "~":
            result = arithmetic.invert(operand)
        case "not":
            result = arithmetic.logical_not(operand)
        case _:
            assert_never(node.op)
    return _grown(context, result, node.span)


def _binary(context: Context, node: ast.Binary) -> Value:
    left = evaluate.operand(context, node.left)
    moment = reading.now(context)
    right = evaluate.operand(context, node.right)
    operands = reading.settled(context, left, moment), right
    return _looked_at(context, _grown(context, arithmetic.binary(node.op, *operands, node.span), node.span), node.span)


def _compare(context: Context, node: ast.Compare) -> Value:
    result: Value = True
    left = evaluate.operand(context, node.first)
    for op, right_node in zip(node.ops, node.rest, strict=True):
        if result is False:
            break  # as in Python, the others are not evaluated
        moment = reading.now(context)
        if result is True:
            right = evaluate.operand(context, right_node)
        else:
            way_out = "compare by an `if` of its own inside an `if` for the others"
            with reading.only_reading(context, "an operand of this chain", right_node.span, way_out):
                right = evaluate.operand(context, right_node)
        left = reading.settled(context, left, moment)
        link = _link(context, op, left, right)
        result = arithmetic.logical("and", result, link)
        left = right
    return _grown(context, result, node.span)


def _link(context: Context, op: ast.CompareOp, left: Argument, right: Argument) -> Value:
    for side in (left, right):
        if not isinstance(side.value, range):
            context.budget.look(side.value, side.span)
    if op == "in" or op == "not in":
        return python.contains(right, left) == (op == "in")
    if op == "is" or op == "is not":
        same = type(left.value) is type(right.value) and left.value == right.value
        return same == (op == "is")
    return arithmetic.binary(op, left, right, left.span.to(right.span))


def _boolean(context: Context, node: ast.Boolean) -> Value:
    left = arithmetic.condition(evaluate.operand(context, node.left))
    if isinstance(left, bool) and left == (node.op == "or"):
        # As in Python, the other side is not evaluated.
        return left
    way_out = f"write an `if` for what stands before `{node.op}`, and in it an `if` for this"
    if node.op == "or":
        way_out = "write an `if` for what stands before `or`, and in its `else` an `if` for this"
    with reading.only_reading(context, f"what stands behind `{node.op}`", node.right.span, way_out):
        right = arithmetic.condition(evaluate.operand(context, node.right))
    return _grown(context, arithmetic.logical(node.op, left, right), node.span)


def _conditional(context: Context, node: ast.Conditional) -> Value:
    test = evaluate.operand(context, node.condition)
    decided = arithmetic.condition(test)
    if isinstance(decided, bool):
        return _grown(context, context.value(node.then if decided else node.orelse), node.span)
    way_out = "write `if` and `else` around statements that do it"
    sides = []
    for side in (node.then, node.orelse):
        with reading.only_reading(context, "one side of this expression", side.span, way_out):
            sides.append(evaluate.operand(context, side))
    then, orelse = sides
    return _grown(context, arithmetic.select(test, then, orelse, node.span), node.span)


# ---- subscripts ------------------------------------------------------------------------------------------------------


def _subscript(context: Context, node: ast.Subscript) -> Value:
    owner = context.value(node.value)
    if isinstance(owner, StageTile):
        return pipelines.part(context, owner, node)
    if isinstance(owner, Stage):
        owner = pipelines.tiles(context, owner, node.span)
    if isinstance(owner, tuple | str | range | Dictionary):
        return _item(context, owner, node)
    if not isinstance(owner, tile.Buffer):
        fail("not-a-buffer", "this cannot be indexed", node.value.span, f"this is {describe(owner)}")
    return evaluate.access(context, owner, node)


def _item(context: Context, owner: tuple[Value, ...] | str | range | Dictionary, node: ast.Subscript) -> Value:
    if len(node.indices) != 1:
        fail("wrong-argument", "a tuple is indexed by one number known at compile time", node.span)
    (index,) = node.indices
    if not isinstance(index, ast.Slice):
        return python.subscript(owner, context.value(index), node.span)
    lower, upper, step = (None if b is None else context.value(b) for b in (index.lower, index.upper, index.step))
    return python.part(owner, (lower, upper, step), node.span)


EXPRESSIONS: dict[type[ast.Expr], ReadsExpression] = {
    ast.Number: _literal,
    ast.String: _literal,
    ast.Constant: _constant,
    ast.Name: _name,
    ast.JoinedString: _joined,
    ast.Tuple: _tuple,
    ast.List: _list,
    ast.Dict: _dict,
    ast.Comprehension: _comprehension,
    ast.Lambda: _lambda,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Unary: _unary,
    ast.Binary: _binary,
    ast.Compare: _compare,
    ast.Boolean: _boolean,
    ast.Conditional: _conditional,
    ast.Call: call,
}
"""By kind of expression."""
