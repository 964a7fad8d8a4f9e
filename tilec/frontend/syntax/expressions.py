"""Conversion of parse trees to expressions of the syntax tree."""

from __future__ import annotations

import ast as python
import warnings
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.fstring import split
from tilec.frontend.syntax.tables import read
from tilec.frontend.syntax.tree import MAX_DEPTH, Branch, Child, Token, token_text, tree_span
from tilec.support.diagnostics import CompileError, fail
from tilec.support.source import Span

BINARY: Mapping[str, ast.BinaryOp] = {op: op for op in get_args(ast.BinaryOp)}
"""The binary operators by their spelling, all that the grammar has."""
_UNARY: Mapping[str, ast.UnaryOp] = {op: op for op in get_args(ast.UnaryOp)}
_COMPARISONS: Mapping[str, ast.CompareOp] = {op: op for op in get_args(ast.CompareOp)}


def assignable(target: ast.Expr) -> ast.Expr:
    match target:
        case ast.Name() | ast.Subscript() | ast.Attribute():
            described = ""
        case ast.Tuple(items=items) | ast.List(items=items):
            described = ""
            for item in items:
                if isinstance(item, ast.Starred):
                    fail("syntax", "`*` cannot be assigned to", item.span, help="name the items one by one")
                assignable(item)
        case ast.Call():
            described = "a call"
        case _:
            described = "an expression"
    if described:
        fail("bad-target", f"{described} cannot be assigned to", target.span, "names and elements of buffers can")
    return target


def optional(child: Child, depth: int = 0) -> ast.Expr | None:
    return None if child is None else expression(child, depth)


def expression(child: Child, depth: int = 0) -> ast.Expr:
    assert isinstance(child, Branch)
    if depth > MAX_DEPTH:
        fail(
            "too-deep",
            f"the expression is nested more than {MAX_DEPTH} deep",
            tree_span(child),
            help="bind parts to names",
        )
    return _EXPRESSIONS[str(child.data)](child, depth + 1)


def _exprs(children: list[Child], depth: int) -> tuple[ast.Expr, ...]:
    return tuple(expression(c, depth) for c in children)


def _items(children: list[Child], depth: int) -> tuple[ast.Expr | ast.Starred, ...]:
    return tuple(_item(c, depth) for c in children)


def _item(child: Child, depth: int) -> ast.Expr | ast.Starred:
    if isinstance(child, Branch) and child.data == "starred":
        return ast.Starred(expression(child.children[-1], depth), tree_span(child))
    return expression(child, depth)


_LONGEST_INTEGER = 1000
"""The most characters of an integer literal, 4,000 bits in hexadecimal, so that messages can show the number."""


def _int(tree: Branch, depth: int) -> ast.Expr:
    text = token_text(tree.children[0])
    if len(text) > _LONGEST_INTEGER:
        fail(
            "static-arithmetic",
            "the number is too large",
            tree_span(tree),
            f"it has {len(text)} characters, {_LONGEST_INTEGER} are the most",
        )
    try:
        return ast.Number(int(text, 0), tree_span(tree))
    except ValueError:
        fail(
            "syntax",
            "not a number Python would read",
            tree_span(tree),
            help="leading zeros and stray underscores are not allowed",
        )


def _float(tree: Branch, depth: int) -> ast.Expr:
    try:
        return ast.Number(float(token_text(tree.children[0])), tree_span(tree))
    except ValueError:
        fail("syntax", "not a number Python would read", tree_span(tree), help="stray underscores are not allowed")


def _string(tree: Branch, depth: int) -> ast.Expr:
    span = tree_span(tree)
    parts: list[ast.String | ast.Formatted] = []
    for token in tree.children:
        text = token_text(token)
        prefix = text[: min(text.index(quote) for quote in "\"'" if quote in text)]
        if "f" not in prefix.lower():
            parts.append(ast.String(_literal(text, span), span))
            continue
        for piece in split(text, prefix, span):
            if isinstance(piece, str):
                parts.append(ast.String(_literal(piece, span), span))
            else:
                value = _embedded(piece.expression, span)
                if piece.shown:
                    parts.append(ast.String(piece.shown, span))
                parts.append(ast.Formatted(value, piece.conversion, piece.spec, span))
    merged_parts: list[ast.String | ast.Formatted] = []
    for part in parts:
        if isinstance(part, ast.String) and merged_parts and isinstance(before := merged_parts[-1], ast.String):
            merged_parts.pop()
            part = ast.String(before.value + part.value, span)
        merged_parts.append(part)
    if all(isinstance(part, ast.String) for part in merged_parts) and not _is_joined(tree):
        return ast.String("".join(p.value for p in merged_parts if isinstance(p, ast.String)), span)
    return ast.JoinedString(tuple(p for p in merged_parts if not isinstance(p, ast.String) or p.value), span)


def _embedded(text: str, span: Span) -> ast.Expr:
    """Parse the expression in the braces of an f-string. Its nodes get the span of the string."""
    try:
        # In brackets, line feeds do not end the expression.
        (statement,) = read(f"({text})").children
    except CompileError as error:
        first = error.diagnostics[0]
        fail(first.code, f"in the f-string: {first.title}", span, help=first.help)
    assert isinstance(statement, Branch)
    value = expression(statement.children[0])
    ast.respan(value, lambda _: span)
    return value


def _is_joined(tree: Branch) -> bool:
    """Return whether one of the concatenated strings is an f-string, even one without braces."""
    return any("f" in token_text(token).split("'")[0].split('"')[0].lower() for token in tree.children)


def _literal(text: str, span: Span) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            piece = python.literal_eval(text)
    except (SyntaxError, ValueError):
        fail("syntax", "the string holds a broken escape", span, help='write the backslash twice, or r"…"')
    if not isinstance(piece, str):
        fail("syntax", "bytes are not part of the kernel language", span)
    for char in piece:
        if char == "\0" or 0xD800 <= ord(char) <= 0xDFFF:  # printf stops at NUL; UTF-8 cannot encode surrogates
            fail("syntax", f"the string holds {char!r}, which no text of a kernel can hold", span)
    return piece


def _call(tree: Branch, depth: int) -> ast.Expr:
    function = expression(tree.children[0], depth)
    args: list[ast.Expr | ast.Starred] = []
    keywords: list[ast.Keyword] = []
    for child in tree.children[1:]:
        assert isinstance(child, Branch)
        if child.data == "keyword":
            name, value = child.children
            if any(k.name == name for k in keywords):
                fail("syntax", f"keyword `{name}` is given twice", tree_span(child))
            keywords.append(ast.Keyword(token_text(name), expression(value, depth), tree_span(child)))
        elif child.data == "keywords":
            keywords.append(ast.Keyword("**", expression(child.children[-1], depth), tree_span(child)))
        elif child.data == "comprehension":
            args.append(_comprehension("generator", child, depth))
        elif keywords:
            fail("syntax", "a positional argument follows a keyword argument", tree_span(child))
        else:
            args.append(_item(child, depth))
    return ast.Call(function, tuple(args), tuple(keywords), tree_span(tree))


def _subscript(tree: Branch, depth: int) -> ast.Expr:
    indices: list[ast.Expr | ast.Slice] = []
    for child in tree.children[1:]:
        assert isinstance(child, Branch)
        if child.data == "slice":
            lower, _, upper, step = child.children
            step_value = None
            if isinstance(step, Branch):
                step_value = optional(step.children[0], depth)
            indices.append(ast.Slice(optional(lower, depth), optional(upper, depth), step_value, tree_span(child)))
        else:
            indices.append(expression(child, depth))
    return ast.Subscript(expression(tree.children[0], depth), tuple(indices), tree_span(tree))


def _compare(tree: Branch, depth: int) -> ast.Expr:
    ops: tuple[ast.CompareOp, ...] = tuple(_comparator(c) for c in tree.children[1::2])
    rest = tuple(expression(c, depth) for c in tree.children[2::2])
    return ast.Compare(expression(tree.children[0], depth), ops, rest, tree_span(tree))


def _comparator(child: Child) -> ast.CompareOp:
    assert isinstance(child, Branch)
    return _COMPARISONS[" ".join(map(token_text, child.children))]


def _binary(tree: Branch, depth: int) -> ast.Expr:
    left, op, right = tree.children
    return ast.Binary(BINARY[token_text(op)], expression(left, depth), expression(right, depth), tree_span(tree))


def _unary(tree: Branch, depth: int) -> ast.Expr:
    symbol = token_text(tree.children[0])
    return ast.Unary(_UNARY[symbol], expression(tree.children[1], depth), tree_span(tree))


def _tuple(tree: Branch, depth: int) -> ast.Expr:
    inner = tree.children[0] if tree.children else None
    if isinstance(inner, Branch) and inner.data == "tuple_bare":
        return ast.Tuple(_items(inner.children, depth), tree_span(tree))
    return ast.Tuple(_items(tree.children, depth), tree_span(tree))


def _group(tree: Branch, depth: int) -> ast.Expr:
    (inner,) = tree.children
    if isinstance(inner, Branch) and inner.data == "comprehension":
        return _comprehension("generator", inner, depth)
    return expression(inner, depth)


def _list_of(tree: Branch, depth: int) -> ast.Expr:
    (inner,) = tree.children
    assert isinstance(inner, Branch)
    return _comprehension("list", inner, depth, tree_span(tree))


def _dict_of(tree: Branch, depth: int) -> ast.Expr:
    key, value, *clauses = tree.children
    made = tuple(_clause(c, depth) for c in clauses)
    return ast.Comprehension("dict", expression(key, depth), expression(value, depth), made, tree_span(tree))


def _comprehension(
    kind: Literal["list", "generator"], tree: Branch, depth: int, span: Span | None = None
) -> ast.Comprehension:
    element, *clauses = tree.children
    made = tuple(_clause(c, depth) for c in clauses)
    return ast.Comprehension(kind, expression(element, depth), None, made, span or tree_span(tree))


def _clause(child: Child, depth: int) -> ast.Clause:
    assert isinstance(child, Branch)
    target, iterable, *conditions = child.children
    return ast.Clause(
        assignable(expression(target, depth)), expression(iterable, depth), _exprs(conditions, depth), tree_span(child)
    )


def _conditional(tree: Branch, depth: int) -> ast.Expr:
    then, condition, orelse = _exprs(tree.children, depth)
    return ast.Conditional(condition, then, orelse, tree_span(tree))


def _lambda(tree: Branch, depth: int) -> ast.Expr:
    *params, _, body = tree.children
    named = tuple(_lambda_parameter(p, depth) for p in params if p is not None and not isinstance(p, Token))
    return ast.Lambda(named, expression(body, depth), tree_span(tree))


def _lambda_parameter(tree: Branch, depth: int) -> ast.Parameter:
    name, default = tree.children
    value = None if default is None else expression(default, depth)
    return ast.Parameter(token_text(name), default=value, span=tree_span(tree))


def _dict(tree: Branch, depth: int) -> ast.Expr:
    flat = _exprs(tree.children, depth)  # keys and values in turn
    return ast.Dict(tuple(zip(flat[::2], flat[1::2], strict=True)), tree_span(tree))


_EXPRESSIONS: dict[str, Callable[[Branch, int], ast.Expr]] = {
    "name": lambda t, d: ast.Name(token_text(t.children[0]), tree_span(t)),
    "int": _int,
    "float": _float,
    "string": _string,
    "true": lambda t, d: ast.Constant("True", tree_span(t)),
    "false": lambda t, d: ast.Constant("False", tree_span(t)),
    "none": lambda t, d: ast.Constant("None", tree_span(t)),
    "ellipsis": lambda t, d: ast.Constant("...", tree_span(t)),
    "group": _group,
    "tuple": _tuple,
    "tuple_bare": _tuple,
    "list": lambda t, d: ast.List(_items(t.children, d), tree_span(t)),
    "list_of": _list_of,
    "dict": _dict,
    "dict_of": _dict_of,
    "attribute": lambda t, d: ast.Attribute(expression(t.children[0], d), token_text(t.children[1]), tree_span(t)),
    "call": _call,
    "subscript": _subscript,
    "compare": _compare,
    "and_expr": lambda t, d: ast.Boolean(
        "and", expression(t.children[0], d), expression(t.children[1], d), tree_span(t)
    ),
    "or_expr": lambda t, d: ast.Boolean("or", expression(t.children[0], d), expression(t.children[1], d), tree_span(t)),
    "not_expr": lambda t, d: ast.Unary("not", expression(t.children[0], d), tree_span(t)),
    "binary": _binary,
    "unary": _unary,
    "conditional": _conditional,
    "lambda_expr": _lambda,
}
