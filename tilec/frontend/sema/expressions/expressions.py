"""Evaluation of expressions: to Python values where all is known, to typed expressions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilec.frontend.sema.compile_time.functions import bind_target, make_function
from tilec.frontend.sema.context import Context, ExpressionEvaluator
from tilec.frontend.sema.expressions import emitters, evaluate, host_names, layout_maps, reading
from tilec.frontend.sema.expressions.calls import evaluate_call
from tilec.frontend.sema.launch import pointers
from tilec.frontend.sema.launch.schedule_descriptions import SCHEDULE_CONSTANTS
from tilec.frontend.sema.loops import tile_scheduler
from tilec.frontend.sema.roles import pipelines
from tilec.frontend.sema.scope import Scope
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.vocabulary import DIALECT_NAME, is_supported, refuse_name, suggest_for_foreign
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import TYPES_BY_NAME, DType
from tilec.ops.functions import python
from tilec.ops.functions.signatures import DATA
from tilec.ops.language import arithmetic
from tilec.ops.language.other_languages import MODULES, suggest_dtype, suggest_method_replacement
from tilec.ops.language.signature import Argument, as_expr, parse_vector_type
from tilec.ops.language.values import (
    EXPR_TYPES,
    WARP_POLICIES,
    Access,
    AddressTable,
    Dictionary,
    DictionaryEntry,
    ElementReference,
    Function,
    ListValue,
    Member,
    Method,
    MmaEmitter,
    Namespace,
    Pipeline,
    PipelineHandle,
    PipelineStage,
    SnapshotExpr,
    StageTile,
    TableEntry,
    TileScheduler,
    Value,
    VectorType,
    WarpPolicy,
    describe_value,
)
from tilec.support.diagnostics import raise_error


def _evaluate_constant(context: Context, node: ast.Constant) -> Value:
    """Return True, False or None for their names, and refuse `...`."""
    if node.name == "...":
        raise_error("unsupported-syntax", "`...` is no value", node.span)
    return {"True": True, "False": False, "None": None}[node.name]


def _evaluate_name(context: Context, node: ast.Name) -> Value:
    """Return a name's value; a T.alloc_var variable becomes a load, kept in a new variable if `context.is_held`; refuse
    others. Refused are unknown names, and tiles of a pipeline that are named without their stage.
    """
    value, span = context.scope.read(node.id, node.span), node.span
    if isinstance(value, SnapshotExpr):
        value = value.read()
    pipelines.check_tile_read(context, value, span)
    if not (isinstance(value, tile.Buffer) and value.name in context.variable_names):
        return value.access if isinstance(value, ElementReference) else value
    load = tile.Load(value, (tile.int32_const(0),))
    if context.is_parallel or not context.is_held:
        return load
    if value.scope == "local":
        return per_thread.freeze_value(context, load, span)
    return context.bind_value(f"{value.name}_now", load, span)


def _evaluate_joined_string(context: Context, node: ast.JoinedString) -> Value:
    """Evaluate an f-string, whose parts must be known at compile time, to a string."""
    return python.join_text([_format_part(context, p) for p in node.parts], node.span)


def _format_part(context: Context, part: ast.String | ast.Formatted) -> str:
    """Return the text of one part of an f-string: its literal text, or its value formatted as Python does."""
    if isinstance(part, ast.String):
        return part.value
    return python.format_value(evaluate.evaluate_operand(context, part.value), part.conversion, part.spec)


def _evaluate_sequence(context: Context, node: ast.Tuple | ast.List) -> Value:
    """Evaluate a tuple or list display to a Python tuple or `ListValue`, and charge the budget; refuse pipeline stages
    in it.
    """
    items = (pipelines.check_container_item(a) for a in evaluate.evaluate_items(context, node.items))
    return context.budget.look(ListValue(items) if isinstance(node, ast.List) else tuple(items), node.span)


def _evaluate_dict(context: Context, node: ast.Dict) -> Value:
    """Evaluate `{key: value, …}` to a `Dictionary`, entries in the order of the text; refuse pipeline stages as
    values.
    """
    pairs = ((key, value, key.span.to(value.span)) for key, value in node.items)
    keys, values = [], evaluate.PendingValues(context)
    for key, value, span in pairs:
        keys.append((context.value(key), span))
        values.add(Argument(pipelines.check_container_item(evaluate.evaluate_argument(context, value)), value.span))
    entries = (DictionaryEntry(key, v.value, span) for (key, span), v in zip(keys, values.values(), strict=True))
    return context.budget.look(Dictionary(tuple(entries)), node.span)


def _evaluate_comprehension(context: Context, node: ast.Comprehension) -> Value:
    """Evaluate a comprehension to a list or dictionary, a generator to a list; refuse side effects in a generator's
    items.
    """
    context.budget.count_comprehension(node.span)
    with context.enter_scope(Scope(context.scope, "the comprehension", is_function=True)):
        if node.kind == "generator":
            way_out = "write a list: `[…]` is evaluated to its end, a generator perhaps not"
            with reading.refuse_side_effects(context, "an item of this generator", node.span, way_out):
                entries = _evaluate_entries(context, node)
        else:
            entries = _evaluate_entries(context, node)
    result = python.make_dictionary(entries) if node.kind == "dict" else ListValue(e.value for e in entries)
    return context.budget.look(result, node.span)


def _evaluate_entries(context: Context, node: ast.Comprehension) -> list[DictionaryEntry]:
    """Return the entries of a comprehension in order, each value as it was when its iteration evaluated it."""
    entries, values = [], evaluate.PendingValues(context)
    for entry in _iterate_clauses(context, node, node.clauses):
        entries.append(entry)
        values.add(Argument(entry.value, entry.span))
    return [replace(entry, value=v.value) for entry, v in zip(entries, values.values(), strict=True)]


def _iterate_clauses(
    context: Context, node: ast.Comprehension, clauses: tuple[ast.Clause, ...]
) -> Iterator[DictionaryEntry]:
    """Yield the entry of each combination of items that a comprehension's clauses let through; refuse pipeline stages.
    Entries of a list have no key.
    """
    if not clauses:
        element = pipelines.check_container_item(evaluate.evaluate_argument(context, node.element))
        key, value = (None, element) if node.value is None else (element, context.value(node.value))
        yield DictionaryEntry(key, value, node.span)
        return
    first, *rest = clauses
    iterable = evaluate.evaluate_operand(context, first.iterable)
    iterable = Argument(reading.snapshot_lazily(context, iterable.value, iterable.span), iterable.span)
    for item in python.list_items(iterable.value, iterable.span):
        context.budget.step(first.span)
        bind_target(context.scope, first.target, Argument(item, iterable.span))
        if all(evaluate.decide_condition(context, c) for c in first.conditions):
            yield from _iterate_clauses(context, node, tuple(rest))


# ---- names with dots -------------------------------------------------------------------------------------------------


def _evaluate_attribute(context: Context, node: ast.Attribute) -> Value:
    """Evaluate `owner.name` by the kind of owner: a module, value with methods, dtype, buffer, element, stage; refuse
    others. Errors: `unknown-attribute`, `foreign-call`.
    """
    _refuse_foreign(context, node)
    owner = context.value(node.value)
    if isinstance(owner, AddressTable) and node.name == "shape":
        return owner.buffer.extents
    if isinstance(owner, Member):
        return _evaluate_member(context, owner.path, node)
    if isinstance(owner, Namespace):
        value: Value = owner.scope.read_attribute(owner.path, node.name, node.span)
        return value
    if isinstance(owner, TileScheduler):
        return tile_scheduler.resolve_attribute(owner, node)
    if isinstance(owner, MmaEmitter):
        return emitters.resolve_attribute(owner, node)
    if isinstance(owner, Pipeline | PipelineHandle | PipelineStage | StageTile):
        return pipelines.resolve_attribute(context, owner, node)
    if node.name in python.list_methods(owner):
        return Method(owner, node.name)
    if isinstance(owner, Function):
        title = f"{describe_value(owner)} has no `{node.name}`"
        raise_error("foreign-call", title, node.span, "only a host program can call this")
    methods = ("pipeline", DATA) if isinstance(owner, tile.Buffer) else layout_maps.LAYOUT_METHODS
    if isinstance(owner, tile.Buffer | tile.LoopLayout) and node.name in methods:
        return Method(owner, node.name)
    if isinstance(owner, DType) and node.name in _DTYPE_ATTRIBUTES:
        return _DTYPE_ATTRIBUTES[node.name](owner)
    if isinstance(owner, DType) and node.name == "as_torch":
        title = f"{describe_value(owner)} cannot become one of PyTorch in a kernel"
        raise_error("foreign-call", title, node.span, "only a host program can call this")
    found = _evaluate_element_attribute(owner, node.name) if isinstance(owner, (*EXPR_TYPES, Access)) else None
    if found is not None:
        return found
    if not isinstance(owner, tile.Buffer) or node.name not in ("shape", "dtype"):
        title = f"there is no attribute `{node.name}` here"
        note = f"of {describe_value(owner)}"
        raise_error("unknown-attribute", title, node.span, note, help=_suggest_instead_of_attribute(owner, node.name))
    if owner.lanes > 1:
        return owner.extents[:-1] if node.name == "shape" else VectorType(owner.dtype, owner.lanes)
    return owner.extents if node.name == "shape" else owner.dtype


_DTYPE_ATTRIBUTES: dict[str, Callable[[DType], Value]] = {
    "bits": lambda dtype: dtype.bits,
    "lanes": lambda dtype: 1,
    "bytes": lambda dtype: dtype.bytes,
    "itemsize": lambda dtype: dtype.bytes,
    "is_floating_point": lambda dtype: dtype.is_float,
}
"""By the names of TileLang, TVM and PyTorch."""


def _evaluate_element_attribute(owner: tile.Expr | Access, name: str) -> Value:
    """Return the dtype or the `astype` method of an element or expression, or None for any other attribute."""
    if name == python.CONVERSION_METHOD:
        return Method(owner, name)
    if name != "dtype":
        return None
    if not isinstance(owner, Access):
        return owner.dtype
    return VectorType(owner.buffer.dtype, owner.buffer.lanes) if owner.buffer.lanes > 1 else owner.buffer.dtype


def _suggest_instead_of_attribute(owner: Value, name: str) -> str | None:
    """Return what to write instead of an unknown attribute of a tile or a part of one; None for other owners."""
    buffer = owner.buffer if isinstance(owner, Access) else owner
    if not isinstance(buffer, tile.Buffer):
        return None
    known = None if owner is not buffer else f"write {buffer.name}.shape[0] or {buffer.name}.dtype"
    return suggest_method_replacement(name, buffer.name, len(buffer.extents)) or known


def _refuse_foreign(context: Context, node: ast.Attribute) -> None:
    """Raise an error for an attribute of a known module, as `np.sum`, that the file has not imported."""
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id in MODULES and context.scope.find(owner.id) is None:
        if (dtype := TYPES_BY_NAME.get(node.name)) is not None:
            by_import = "import torch, or " if owner.id == "torch" else ""
            raise_error("unknown-name", f"`{owner.id}` is not defined", node.span, help=f'{by_import}write "{dtype}"')
        if node.name in ("inf", "infty"):
            help_text = 'write T.infinity("float32"), with the dtype of its destination'
            raise_error("foreign-call", f"{owner.id}.{node.name} is not known in a kernel", node.span, help=help_text)
        help_text = suggest_for_foreign(node.name) or "kernels are written with T.*: `tilec explain foreign-call`"
        raise_error("foreign-call", f"{owner.id}.{node.name} cannot be called in a kernel", node.span, help=help_text)


def _evaluate_member(context: Context, owner: str, node: ast.Attribute) -> Value:
    """Evaluate a dotted name of a module to a constant, dtype, vector type, warp policy or callable name; refuse
    others.
    """
    path = f"{owner}.{node.name}"
    if owner == "tilelang" and node.name == "language":
        return Member("T")
    if path in python.MATH_CONSTANTS:
        return float(python.MATH_CONSTANTS[path])
    if owner == "T" and node.name in TYPES_BY_NAME:
        return TYPES_BY_NAME[node.name]
    if owner == "T" and (vector := parse_vector_type(node.name)) is not None:
        return vector
    if path == DIALECT_NAME:
        return "cuda"
    if path in SCHEDULE_CONSTANTS:
        return SCHEDULE_CONSTANTS[path]
    if owner == "T.GemmWarpPolicy":
        if node.name not in WARP_POLICIES:
            title = f"there is no warp policy `{node.name}`"
            raise_error("unknown-attribute", title, node.span, f"known: {', '.join(WARP_POLICIES)}")
        return WarpPolicy(WARP_POLICIES[node.name])
    value = host_names.resolve_attribute(context, path)
    is_dtype = suggest_dtype(node.name) is not None  # whoever needs a dtype names the right one
    if owner == "T" and isinstance(value, Member) and not is_dtype and not is_supported(path):
        refuse_name(path, node.span)
    return value


# ---- operators -------------------------------------------------------------------------------------------------------


def _evaluate_unary(context: Context, node: ast.Unary) -> Value:
    """Evaluate a unary operator on an element or Python value, and check the size of the result."""
    operand = evaluate.evaluate_operand(context, node.operand)
    return context.budget.check_expression_size(_UNARY_OPERATORS[node.op](operand), node.span)


_UNARY_OPERATORS: dict[ast.UnaryOp, Callable[[Argument], Value]] = {
    "-": arithmetic.apply_negation,
    "+": lambda operand: operand.value if isinstance(operand.value, int | float) else as_expr(operand),
    "~": arithmetic.apply_inversion,
    "not": arithmetic.apply_not,
}


def _evaluate_binary(context: Context, node: ast.Binary) -> Value:
    """Evaluate `left op right`, keeping the left value if evaluating the right one changes it; refuse too large
    results.
    """
    left = evaluate.evaluate_operand(context, node.left)
    moment = reading.mark_moment(context)
    right = evaluate.evaluate_operand(context, node.right)
    operands = reading.read_if_changed_since(context, left, moment), right
    value = arithmetic.apply_binary(node.op, *operands, node.span)
    return context.budget.look(context.budget.check_expression_size(value, node.span), node.span)


def _evaluate_compare(context: Context, node: ast.Compare) -> Value:
    """Evaluate a chain of comparisons, as `0 <= i < n`, up to the first false at compile time; refuse side effects
    after it. Operands that run only if the earlier comparisons hold may have none.
    """
    result: Value = True
    left = evaluate.evaluate_operand(context, node.first)
    for op, right_node in zip(node.ops, node.rest, strict=True):
        if result is False:
            break  # as in Python, the others are not evaluated
        moment = reading.mark_moment(context)
        if result is True:
            right = evaluate.evaluate_operand(context, right_node)
        else:
            way_out = "nest two `if` statements, one for each comparison"
            with reading.refuse_side_effects(context, "an operand of this chain", right_node.span, way_out):
                right = evaluate.evaluate_operand(context, right_node)
        left = reading.read_if_changed_since(context, left, moment)
        link = _compare_pair(context, op, left, right)
        result = arithmetic.apply_logical("and", result, link)
        left = right
    return context.budget.check_expression_size(result, node.span)


def _compare_pair(context: Context, op: ast.CompareOp, left: Argument, right: Argument) -> Value:
    """Return the result of one comparison, also by `in` and `not in`; `is` holds for equal values of the same type."""
    for side in (left, right):
        if isinstance(side.value, AddressTable | TableEntry):
            way_out = "pass which entries there are in a tensor of int32"
            note = f"this is {describe_value(side.value)}"
            raise_error("not-a-scalar", "addresses are not compared", side.span, note, help=way_out)
        if not isinstance(side.value, range):
            context.budget.look(side.value, side.span)
    if op == "in" or op == "not in":
        return python.contains_item(right, left) == (op == "in")
    if op == "is" or op == "is not":
        same = type(left.value) is type(right.value) and left.value == right.value
        return same == (op == "is")
    return arithmetic.apply_binary(op, left, right, left.span.to(right.span))


def _evaluate_boolean(context: Context, node: ast.Boolean) -> Value:
    """Evaluate `and` or `or`, skipping the right side if the left one decides; refuse side effects in it at run
    time.
    """
    left = arithmetic.as_condition(evaluate.evaluate_operand(context, node.left))
    if isinstance(left, bool) and left == (node.op == "or"):
        # As in Python, the other side is not evaluated.
        return left
    way_out = f"write an `if` for the left side of `{node.op}`, and inside it an `if` for this"
    if node.op == "or":
        way_out = "write an `if` for the left side of `or`, and in its `else` an `if` for this"
    with reading.refuse_side_effects(context, f"the right side of `{node.op}`", node.right.span, way_out):
        right = arithmetic.as_condition(evaluate.evaluate_operand(context, node.right))
    return context.budget.check_expression_size(arithmetic.apply_logical(node.op, left, right), node.span)


def _evaluate_conditional(context: Context, node: ast.Conditional) -> Value:
    """Evaluate `then if condition else orelse`: one side at compile time, else a run-time select; refuse its side
    effects.
    """
    test = evaluate.evaluate_operand(context, node.condition)
    decided = arithmetic.as_condition(test)
    if isinstance(decided, bool):
        return context.budget.check_expression_size(context.value(node.then if decided else node.orelse), node.span)
    way_out = "use `if` and `else` statements instead"
    sides = []
    for side in (node.then, node.orelse):
        with reading.refuse_side_effects(context, "one side of this expression", side.span, way_out):
            sides.append(evaluate.evaluate_operand(context, side))
    then, orelse = sides
    return context.budget.check_expression_size(arithmetic.apply_select(test, then, orelse, node.span), node.span)


# ---- subscripts ------------------------------------------------------------------------------------------------------


def _evaluate_subscript(context: Context, node: ast.Subscript) -> Value:
    """Evaluate `owner[…]` to a buffer access, or to an item or slice of a Python value; refuse other owners."""
    owner = context.value(node.value)
    if isinstance(owner, StageTile):
        return pipelines.access_stage_tile(context, owner, node)
    if isinstance(owner, AddressTable):
        return pointers.evaluate_entry(context, owner, node)
    if isinstance(owner, PipelineStage):
        owner = pipelines.unpack_stage(context, owner, node.span)
    if isinstance(owner, tuple | str | range | Dictionary):
        return _evaluate_item(context, owner, node)
    if not isinstance(owner, tile.Buffer):
        raise_error("not-a-buffer", "this cannot be indexed", node.value.span, f"this is {describe_value(owner)}")
    return evaluate.evaluate_access(context, owner, node)


def _evaluate_item(context: Context, owner: tuple[Value, ...] | str | range | Dictionary, node: ast.Subscript) -> Value:
    """Return an item or slice of a tuple, string, range or dictionary at a compile-time index; refuse several
    indices.
    """
    if len(node.indices) != 1:
        raise_error("wrong-argument", "a tuple is indexed by one number known at compile time", node.span)
    (index,) = node.indices
    if not isinstance(index, ast.Slice):
        return python.get_item(owner, context.value(index), node.span)
    lower, upper, step = (None if b is None else context.value(b) for b in (index.lower, index.upper, index.step))
    return python.get_slice(owner, (lower, upper, step), node.span)


EXPRESSION_EVALUATORS: dict[type[ast.Expr], ExpressionEvaluator] = {
    ast.Number: lambda context, node: node.value,
    ast.String: lambda context, node: node.value,
    ast.Constant: _evaluate_constant,
    ast.Name: _evaluate_name,
    ast.JoinedString: _evaluate_joined_string,
    ast.Tuple: _evaluate_sequence,
    ast.List: _evaluate_sequence,
    ast.Dict: _evaluate_dict,
    ast.Comprehension: _evaluate_comprehension,
    ast.Lambda: make_function,
    ast.Attribute: _evaluate_attribute,
    ast.Subscript: _evaluate_subscript,
    ast.Unary: _evaluate_unary,
    ast.Binary: _evaluate_binary,
    ast.Compare: _evaluate_compare,
    ast.Boolean: _evaluate_boolean,
    ast.Conditional: _evaluate_conditional,
    ast.Call: evaluate_call,
}
"""By kind of expression."""
