"""Prints a syntax tree as text in one canonical spelling: `parse_file` of the text gives the same tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import assert_never

from tilec.frontend.syntax import ast

_LAMBDA = 0
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE = 1, 2, 3, 4, 5
_BINARY_PRECEDENCE: dict[ast.BinaryOp, int] = {
    "|": 6, "^": 7, "&": 8, "<<": 9, ">>": 9, "+": 10, "-": 10, "*": 11, "/": 11, "//": 11, "%": 11, "@": 11, "**": 13,
}  # fmt: skip
_UNARY, _POWER, _PRIMARY, _ATOM = 12, 13, 14, 15


def unparse_module(module: ast.Module) -> str:
    """Return a module as canonical kernel text, with four spaces per block and no more brackets than needed."""
    return "".join(f"{line}\n" for statement in module.body for line in _unparse_statement(statement))


_SimpleStatement = (
    ast.Import | ast.Assign | ast.AnnotatedAssign | ast.AugmentedAssign | ast.Evaluate | ast.Pass | ast.Break
    | ast.Continue | ast.Return | ast.Raise | ast.Assert
)  # fmt: skip


# ---- statements ------------------------------------------------------------------------------------------------------


def _unparse_statement(node: ast.Stmt) -> Iterator[str]:
    """Yield the lines of a statement as text, with its blocks indented."""
    match node:
        case ast.If():
            yield from _unparse_if(node, "if")
        case ast.For(target=target, iterable=iterable, body=body):
            yield f"for {_unparse_bare(target)} in {_unparse_bare(iterable)}:"
            yield from _unparse_block(body)
        case ast.While(condition=condition, body=body):
            yield f"while {unparse_expr(condition)}:"
            yield from _unparse_block(body)
        case ast.With(context=context, target=target, body=body):
            bound = "" if target is None else f" as {_unparse_operand(target, _PRIMARY)}"
            entered = unparse_expr(context)
            if isinstance(context, ast.Tuple) and target is None:
                entered = f"({entered})"  # one pair of brackets would make a list of items
            yield f"with {entered}{bound}:"
            yield from _unparse_block(body)
        case ast.Function():
            yield from (f"@{unparse_expr(d)}" for d in node.decorators)
            returns = "" if node.returns is None else f" -> {unparse_expr(node.returns)}"
            yield f"def {node.name}({', '.join(map(_unparse_parameter, node.params))}){returns}:"
            yield from _unparse_block(node.body)
        case ast.Foreign(text=text):
            yield from text.split("\n")
        case _:
            yield _unparse_simple(node)


def _unparse_simple(node: _SimpleStatement) -> str:
    """Return a statement that has no block as one line of text."""
    match node:
        case ast.Import(names=names, module=module):
            listed = ", ".join(n.name if n.alias is None else f"{n.name} as {n.alias}" for n in names)
            return f"import {listed}" if module is None else f"from {module} import {listed}"
        case ast.Assign(targets=targets, value=value):
            return " = ".join(map(_unparse_bare, (*targets, value)))
        case ast.AnnotatedAssign(target=target, annotation=annotation, value=value):
            head = f"{unparse_expr(target)}: {unparse_expr(annotation)}"
            return head if value is None else f"{head} = {_unparse_bare(value)}"
        case ast.AugmentedAssign(target=target, op=op, value=value):
            return f"{_unparse_bare(target)} {op}= {_unparse_bare(value)}"
        case ast.Evaluate(value=value):
            return _unparse_bare(value)
        case ast.Pass() | ast.Break() | ast.Continue():
            return type(node).__name__.lower()
        case ast.Return(value=value):
            return "return" if value is None else f"return {_unparse_bare(value)}"
        case ast.Raise(error=error):
            return "raise" if error is None else f"raise {unparse_expr(error)}"
        case ast.Assert(condition=condition, message=message):
            return f"assert {', '.join(unparse_expr(e) for e in (condition, message) if e is not None)}"
        case _:
            assert_never(node)


def _unparse_if(node: ast.If, word: str) -> Iterator[str]:
    """Yield the lines of an `if` or `elif`, with the `elif`s and the `else` after it."""
    yield f"{word} {unparse_expr(node.condition)}:"
    yield from _unparse_block(node.then)
    if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        yield from _unparse_if(node.orelse[0], "elif")
    elif node.orelse:
        yield "else:"
        yield from _unparse_block(node.orelse)


def _unparse_block(body: Sequence[ast.Stmt]) -> Iterator[str]:
    """Yield the lines of a block's statements, indented by four spaces."""
    for statement in body:
        for line in _unparse_statement(statement):
            yield f"    {line}"


def _unparse_parameter(node: ast.Parameter) -> str:
    """Return a function's parameter as text, with stars, annotation and default; "*" alone for a bare star."""
    if node.kind and not node.name:
        return "*"
    annotation = "" if node.annotation is None else f": {unparse_expr(node.annotation)}"
    return node.kind + node.name + annotation + ("" if node.default is None else f" = {unparse_expr(node.default)}")


# ---- expressions -----------------------------------------------------------------------------------------------------


def unparse_expr(node: ast.Expr) -> str:
    return _unparse_with_precedence(node)[0]


def _unparse_bare(node: ast.Expr) -> str:
    """Return an expression as text, a non-empty tuple without its brackets."""
    if isinstance(node, ast.Tuple) and node.items:
        return _unparse_items(node.items)
    return unparse_expr(node)


def _unparse_items(items: tuple[ast.Expr | ast.Starred, ...]) -> str:
    """Return the items of a tuple as text, with a comma after a single one."""
    listed = ", ".join(map(_unparse_item, items))
    return f"{listed}," if len(items) == 1 else listed


def _unparse_item(node: ast.Expr | ast.Starred) -> str:
    return f"*{unparse_expr(node.value)}" if isinstance(node, ast.Starred) else unparse_expr(node)


def _unparse_keyword(node: ast.Keyword) -> str:
    return f"{node.name}{'' if node.name == '**' else '='}{unparse_expr(node.value)}"


def _unparse_operand(node: ast.Expr, binds: int) -> str:
    """Return an expression as text, in brackets if its operator binds less than `binds`."""
    text, own = _unparse_with_precedence(node)
    return text if own >= binds else f"({text})"


def _unparse_with_precedence(node: ast.Expr) -> tuple[str, int]:
    """Return the text of an expression, and the precedence of its outermost operator (`_ATOM` without one)."""
    match node:
        case ast.Number(value=value):
            return ("1e999" if value == math.inf else repr(value)), _ATOM
        case ast.String(value=value):
            return repr(value), _ATOM
        case ast.JoinedString(parts=parts):
            return _unparse_fstring(parts), _ATOM
        case ast.Comprehension():
            return _unparse_comprehension(node), _ATOM
        case ast.Constant(name=name) | ast.Name(id=name):
            return name, _ATOM
        case ast.Tuple(items=items):
            return f"({_unparse_items(items)})", _ATOM
        case ast.List(items=items):
            return f"[{', '.join(map(_unparse_item, items))}]", _ATOM
        case ast.Dict(items=items):
            return f"{{{', '.join(f'{unparse_expr(k)}: {unparse_expr(v)}' for k, v in items)}}}", _ATOM
        case ast.Attribute(value=ast.Number() as value, name=name):
            # Without brackets it would read as a float.
            return f"({unparse_expr(value)}).{name}", _PRIMARY
        case ast.Attribute(value=value, name=name):
            return f"{_unparse_operand(value, _PRIMARY)}.{name}", _PRIMARY
        case ast.Call(function=function, args=args, keywords=keywords):
            given = [*map(_unparse_item, args), *map(_unparse_keyword, keywords)]
            return f"{_unparse_operand(function, _PRIMARY)}({', '.join(given)})", _PRIMARY
        case ast.Subscript(value=value, indices=indices):
            return f"{_unparse_operand(value, _PRIMARY)}[{', '.join(map(_unparse_index, indices))}]", _PRIMARY
        case _:
            return _unparse_operator(node)


def _unparse_index(node: ast.Expr | ast.Slice) -> str:
    """Return an index as text, or a slice as `lower:upper:step`."""
    if not isinstance(node, ast.Slice):
        return unparse_expr(node)
    lower, upper, step = ("" if e is None else unparse_expr(e) for e in (node.lower, node.upper, node.step))
    return f"{lower}:{upper}" + (f":{step}" if step else "")


def _unparse_fstring(parts: tuple[ast.String | ast.Formatted, ...]) -> str:
    """Return an f-string as text, in quotes that none of its expressions contains, if there are such."""
    expressions = [_unparse_operand(p.value, _CONDITIONAL) for p in parts if isinstance(p, ast.Formatted)]
    quote = next((q for q in ("'", '"', "'''", '"""') if not any(q[0] in e for e in expressions)), "'''")
    shown = []
    for part in parts:
        if isinstance(part, ast.String):
            # Drop the quotes that `repr` chose, and escape the one chosen here.
            text = repr('"' + part.value)[2:-1].replace("\\'", "'").replace(quote[0], f"\\{quote[0]}")
            shown.append(text.replace("{", "{{").replace("}", "}}"))
        else:
            value = _unparse_operand(part.value, _CONDITIONAL)
            conversion = f"!{part.conversion}" if part.conversion else ""
            spec = f":{part.spec}" if part.spec else ""
            shown.append(f"{{{' ' if value.startswith('{') else ''}{value}{conversion}{spec}}}")
    return f"f{quote}{''.join(shown)}{quote}"


def _unparse_comprehension(node: ast.Comprehension) -> str:
    """Return a list or dictionary comprehension or a generator as text, in its brackets."""
    element = unparse_expr(node.element)
    if node.value is not None:
        element = f"{element}: {unparse_expr(node.value)}"
    clauses = "".join(
        f" for {_unparse_bare(c.target)} in {_unparse_operand(c.iterable, _OR)}"
        + "".join(f" if {_unparse_operand(i, _OR)}" for i in c.conditions)
        for c in node.clauses
    )
    opening, closing = {"list": ("[", "]"), "generator": ("(", ")"), "dict": ("{", "}")}[node.kind]
    return f"{opening}{element}{clauses}{closing}"


def _unparse_operator(
    node: ast.Unary | ast.Binary | ast.Compare | ast.Boolean | ast.Conditional | ast.Lambda,
) -> tuple[str, int]:
    """Return an operator's expression as text, with brackets only where operands need them, and its precedence."""
    match node:
        case ast.Unary(op="not", operand=operand):
            return f"not {_unparse_operand(operand, _NOT)}", _NOT
        case ast.Unary(op=op, operand=operand):
            return f"{op}{_unparse_operand(operand, _UNARY)}", _UNARY
        case ast.Binary(op="**", left=left, right=right):
            return f"{_unparse_operand(left, _PRIMARY)} ** {_unparse_operand(right, _UNARY)}", _POWER
        case ast.Binary(op=op, left=left, right=right):
            binds = _BINARY_PRECEDENCE[op]
            return f"{_unparse_operand(left, binds)} {op} {_unparse_operand(right, binds + 1)}", binds
        case ast.Compare(first=first, ops=ops, rest=rest):
            tail = (f" {op} {_unparse_operand(e, _COMPARE + 1)}" for op, e in zip(ops, rest, strict=True))
            return _unparse_operand(first, _COMPARE + 1) + "".join(tail), _COMPARE
        case ast.Boolean(op=op, left=left, right=right):
            binds = _AND if op == "and" else _OR
            return f"{_unparse_operand(left, binds)} {op} {_unparse_operand(right, binds + 1)}", binds
        case ast.Conditional(condition=condition, then=then, orelse=orelse):
            sides = f"{_unparse_operand(then, _OR)} if {_unparse_operand(condition, _OR)}"
            return f"{sides} else {_unparse_operand(orelse, _CONDITIONAL)}", _CONDITIONAL
        case ast.Lambda(params=params, body=body):
            defaults = ("" if p.default is None else f"={_unparse_operand(p.default, _LAMBDA)}" for p in params)
            named = (p.kind + p.name + default for p, default in zip(params, defaults, strict=True))
            head = f"lambda {', '.join(named)}" if params else "lambda"
            return f"{head}: {_unparse_operand(body, _LAMBDA)}", _LAMBDA
        case _:
            assert_never(node)
