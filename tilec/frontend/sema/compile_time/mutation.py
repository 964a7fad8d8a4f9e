"""Mutation at compile time, as `d[key] = value` and `items.append(value)`: the name is rebound to the changed value.

Values are never changed in place, so another name of the same list would not see the change. It is refused where such
a name may exist: for an argument of a function, for a list of an outer scope, and for a list within another one.
"""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ops.functions import python
from tilec.ops.language import values
from tilec.ops.language.signature import Argument
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

_MUTATING_METHODS = ("append", "extend", "insert", "update")


def assign_item(context: Context, target: ast.Expr, argument: Argument) -> None:
    """Rebind a list or dictionary's name to a copy with one item set; refuse all targets but `name[index]`."""
    match target:
        case ast.Subscript(value=ast.Name() as owner, indices=(index,)) if not isinstance(index, ast.Slice):
            changed = _set_item(_evaluate_owner(context, owner), context.value(index), argument, target.span)
            _rebind_name(context, owner, changed)
        case ast.Subscript(value=owner) | ast.Attribute(value=owner):
            _evaluate_owner(context, owner)
            title = "this cannot be assigned to"
            raise_error("bad-target", title, target.span, "at compile time, names and their items can")
        case _:
            raise_error("bad-target", "this cannot be assigned to", target.span, "a constant has a plain name")


def try_mutating_call(context: Context, call: ast.Call) -> bool:
    """Rebind the name of `name.append(…)`, `extend`, `insert` or `update`; return False for any other call."""
    match call.function:
        case ast.Attribute(value=ast.Name() as owner, name=name) if name in _MUTATING_METHODS:
            value = context.value(owner)
        case _:
            return False
    if not isinstance(value, values.Dictionary if name == "update" else tuple):
        return False
    positional, keywords = evaluate.evaluate_operands(context, call)
    positional = [Argument(reading.snapshot_value(context, a.value, a.span), a.span) for a in positional]
    _rebind_name(context, owner, _call_mutator(name, value, positional, keywords, call.span))
    return True


def _evaluate_owner(context: Context, node: ast.Expr) -> values.Value:
    """Return the value of the list or dictionary to be changed; refuse functions, imported files and host programs'
    values.
    """
    value = context.value(node)
    if isinstance(value, values.Member | values.ForeignValue | values.Function | values.Namespace):
        title = f"{values.describe_value(value)} cannot be changed in a kernel file"
        raise_error("foreign-call", title, node.span, "only a host program can do this")
    return value


def _set_item(owner: values.Value, key: values.Value, argument: Argument, span: Span) -> values.Value:
    """Return a copy of a list or dictionary with one item set; refuse other values and an index out of range."""
    if isinstance(owner, values.Dictionary):
        return python.make_dictionary((*owner.entries, values.DictionaryEntry(key, argument.value, argument.span)))
    if not isinstance(owner, tuple):
        raise_error("bad-target", "this cannot be assigned to", span, f"this is {values.describe_value(owner)}")
    if not isinstance(key, int) or not -len(owner) <= key < len(owner):
        raise_error("out-of-range", "the index is out of range", span, f"the list has {len(owner)} items")
    listed = list(owner)
    listed[key] = argument.value
    return values.ListValue(listed)


def _rebind_name(context: Context, node: ast.Name, changed: values.Value) -> None:
    """Bind a name to its changed value; refuse arguments, outer names, aliases and loops over the old value. Errors:
    `bad-target`.
    """
    before = context.value(node)
    binding = context.scope.names.get(node.id)
    if binding is None or context.scope.is_given(node.id):
        title = f"`{node.id}` may only be changed in the scope that made it"
        raise_error("bad-target", title, node.span, help="return a new object")
    other = next((n for n in _find_holders(context.scope, before) if n != node.id), None)
    if other is not None:
        title = f"`{other}` holds the same object, so `{node.id}` cannot be changed in place"
        place = Label(binding.span, "made here")
        raise_error("bad-target", title, node.span, secondary=(place,), help="make a new object")
    if any(value is before for value in context.scope.iterated):
        raise_error("bad-target", f"`{node.id}` is changed in a loop over it", node.span, help="loop over a copy")
    context.budget.look(changed, node.span)
    context.scope.bind(node.id, changed, node.span)


def _find_holders(scope: Scope, value: values.Value) -> list[str]:
    """Return the names, in this scope and outer ones, whose value is this very object or contains it."""
    return [n for around in scope.walk_outwards() for n, b in around.names.items() if _has_value(b.value, value)]


def _has_value(container: values.Value, value: values.Value) -> bool:
    """Return whether a value is this very object, or a tuple or dictionary that contains it at any depth."""
    if container is value:
        return True
    parts = container if isinstance(container, tuple) else ()
    if isinstance(container, values.Dictionary):
        parts = tuple(e.value for e in container.entries)
    return any(_has_value(p, value) for p in parts if isinstance(p, tuple | values.Dictionary))


def _call_mutator(
    name: str, owner: values.Value, positional: list[Argument], keywords: dict[str, Argument], span: Span
) -> values.Value:
    """Return the new list or dictionary that `append`, `extend`, `insert` or `update` gives, with arguments checked."""
    if name == "update":
        return python.call_builtin("dict", [Argument(owner, span), *positional], keywords, span)
    count = 2 if name == "insert" else 1
    if len(positional) != count or keywords:
        raise_error("wrong-argument", f"expected {count} argument{'s' * (count != 1)}", span)
    assert isinstance(owner, tuple)
    at, given = positional[0], positional[-1]
    match name:
        case "append":
            return values.ListValue((*owner, given.value))
        case "extend":
            return values.ListValue((*owner, *python.list_items(given.value, given.span)))
        case _:
            if not isinstance(at.value, int):
                note = f"this is {values.describe_value(at.value)}"
                raise_error("wrong-argument", "a position in a list is an integer", at.span, note)
            listed = list(owner)
            listed.insert(at.value, given.value)
            return values.ListValue(listed)
