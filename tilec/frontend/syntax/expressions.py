"""Conversion of parse trees to expressions of the syntax tree, f-strings too."""

from __future__ import annotations

import ast as python
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.lalr import MAX_DEPTH, Branch, Child, token_text, tree_span
from tilec.frontend.syntax.tables import parse_text
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

BINARY_OPERATORS: Mapping[str, ast.BinaryOp] = {op: op for op in get_args(ast.BinaryOp)}
"""The binary operators by their spelling, all that the grammar has."""
_UNARY_OPERATORS: Mapping[str, ast.UnaryOp] = {op: op for op in get_args(ast.UnaryOp)}
_COMPARE_OPERATORS: Mapping[str, ast.CompareOp] = {op: op for op in get_args(ast.CompareOp)}


def check_assignable(target: ast.Expr) -> ast.Expr:
    """Return an assignment's target unchanged; refuse anything but a name, item, attribute or a tuple of these. Errors:
    `bad-target`, and `syntax` for a starred item.
    """
    match target:
        case ast.Name() | ast.Subscript() | ast.Attribute():
            pass
        case ast.Tuple(items=items) | ast.List(items=items):
            for item in items:
                if isinstance(item, ast.Starred):
                    raise_error("syntax", "`*` cannot be assigned to", item.span, help="name the items one by one")
                check_assignable(item)
        case _:
            title = f"{'a call' if isinstance(target, ast.Call) else 'an expression'} cannot be assigned to"
            raise_error("bad-target", title, target.span, "names and elements of buffers can")
    return target


def convert_optional(child: Child, depth: int = 0) -> ast.Expr | None:
    """Convert a parse tree to an expression, or return None for an absent one."""
    return None if child is None else convert_expression(child, depth)


def convert_expression(child: Child, depth: int = 0) -> ast.Expr:
    """Convert a parse tree to an expression by its grammar rule; raise `too-deep` below `MAX_DEPTH` levels."""
    assert isinstance(child, Branch)
    if depth > MAX_DEPTH:
        title = f"the expression is nested more than {MAX_DEPTH} deep"
        raise_error("too-deep", title, tree_span(child), help="bind parts to names")
    return _EXPRESSION_CONVERTERS[str(child.data)](child, depth + 1)


def _convert_all(children: list[Child], depth: int) -> tuple[ast.Expr, ...]:
    return tuple(convert_expression(c, depth) for c in children)


def _convert_items(children: list[Child], depth: int) -> tuple[ast.Expr | ast.Starred, ...]:
    return tuple(_convert_item(c, depth) for c in children)


def _convert_item(child: Child, depth: int) -> ast.Expr | ast.Starred:
    """Convert an item of a call, tuple or list to an expression, or to a `Starred` for `*value`."""
    if isinstance(child, Branch) and child.data == "starred":
        return ast.Starred(convert_expression(child.children[-1], depth), span=tree_span(child))
    return convert_expression(child, depth)


_MAX_INTEGER_CHARACTERS = 1000
"""The most characters of an integer literal, 4,000 bits in hexadecimal, so that messages can show the number."""


def _convert_int(tree: Branch, depth: int) -> ast.Expr:
    """Convert an integer literal to a number; refuse one that is too long or not spelled as in Python."""
    text = token_text(tree.children[0])
    if len(text) > _MAX_INTEGER_CHARACTERS:
        note = f"it has {len(text)} characters; the limit is {_MAX_INTEGER_CHARACTERS}"
        raise_error("static-arithmetic", "the number is too large", tree_span(tree), note)
    try:
        return ast.Number(int(text, 0), span=tree_span(tree))
    except ValueError:
        title = "this is not a number of Python"
        raise_error("syntax", title, tree_span(tree), help="leading zeros and stray underscores are not allowed")


def _convert_float(tree: Branch, depth: int) -> ast.Expr:
    """Convert a float literal to a number; refuse one that is not spelled as in Python."""
    try:
        return ast.Number(float(token_text(tree.children[0])), span=tree_span(tree))
    except ValueError:
        title = "this is not a number of Python"
        raise_error("syntax", title, tree_span(tree), help="stray underscores are not allowed")


def _convert_string(tree: Branch, depth: int) -> ast.Expr:
    """Convert adjacent string literals to one string, or to one f-string if any of them is one."""
    span = tree_span(tree)
    parts: list[ast.String | ast.Formatted] = []
    for token in tree.children:
        text = token_text(token)
        prefix = text[: min(text.index(quote) for quote in "\"'" if quote in text)]
        if "f" not in prefix.lower():
            parts.append(ast.String(_evaluate_literal(text, span), span=span))
            continue
        for piece in split_fstring(text, prefix, span):
            if isinstance(piece, str):
                parts.append(ast.String(_evaluate_literal(piece, span), span=span))
            else:
                value = _parse_embedded(piece.expression, span)
                if piece.shown:
                    parts.append(ast.String(piece.shown, span=span))
                parts.append(ast.Formatted(value, piece.conversion, piece.spec, span=span))
    merged_parts: list[ast.String | ast.Formatted] = []
    for part in parts:
        if isinstance(part, ast.String) and merged_parts and isinstance(before := merged_parts[-1], ast.String):
            merged_parts.pop()
            part = ast.String(before.value + part.value, span=span)
        merged_parts.append(part)
    if all(isinstance(part, ast.String) for part in merged_parts) and not _has_fstring(tree):
        return ast.String("".join(p.value for p in merged_parts if isinstance(p, ast.String)), span=span)
    return ast.JoinedString(tuple(p for p in merged_parts if not isinstance(p, ast.String) or p.value), span=span)


def _parse_embedded(text: str, span: Span) -> ast.Expr:
    """Parse the expression in an f-string's braces, giving its nodes the string's span; errors point at the string."""
    try:
        # In brackets, line feeds do not end the expression.
        (statement,) = parse_text(f"({text})").children
    except CompileError as error:
        first = error.diagnostics[0]
        raise_error(first.code, f"in the f-string: {first.title}", span, help=first.help)
    assert isinstance(statement, Branch)
    value = convert_expression(statement.children[0])
    ast.set_spans(value, lambda _: span)
    return value


def _has_fstring(tree: Branch) -> bool:
    """Return whether one of the adjacent string literals has the prefix `f`, even one without braces."""
    return any("f" in token_text(token).split("'")[0].split('"')[0].lower() for token in tree.children)


def _evaluate_literal(text: str, span: Span) -> str:
    """Return the text of a string literal; refuse invalid escapes, bytes, NUL and surrogates."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            piece = python.literal_eval(text)
    except (SyntaxError, ValueError):
        raise_error("syntax", "the string has an invalid escape", span, help='write the backslash twice, or r"…"')
    if not isinstance(piece, str):
        raise_error("syntax", "bytes are not part of the kernel language", span)
    for char in piece:
        if char == "\0" or 0xD800 <= ord(char) <= 0xDFFF:  # printf stops at NUL; UTF-8 cannot encode surrogates
            raise_error("syntax", f"the string has {char!r}, which a kernel file cannot contain", span)
    return piece


def _convert_call(tree: Branch, depth: int) -> ast.Expr:
    """Convert a call with its positional, starred and keyword arguments; refuse a repeated keyword. Errors: a
    positional argument after keywords, too.
    """
    function = convert_expression(tree.children[0], depth)
    args: list[ast.Expr | ast.Starred] = []
    keywords: list[ast.Keyword] = []
    for child in tree.children[1:]:
        assert isinstance(child, Branch)
        if child.data == "keyword":
            name, value = child.children
            if any(k.name == name for k in keywords):
                raise_error("syntax", f"keyword `{name}` is given twice", tree_span(child))
            keywords.append(ast.Keyword(token_text(name), convert_expression(value, depth), span=tree_span(child)))
        elif child.data == "keywords":
            keywords.append(ast.Keyword("**", convert_expression(child.children[-1], depth), span=tree_span(child)))
        elif child.data == "comprehension":
            args.append(_convert_comprehension("generator", child, depth))
        elif keywords:
            raise_error("syntax", "a positional argument follows a keyword argument", tree_span(child))
        else:
            args.append(_convert_item(child, depth))
    return ast.Call(function, tuple(args), tuple(keywords), span=tree_span(tree))


def _convert_subscript(tree: Branch, depth: int) -> ast.Expr:
    """Convert `value[…]` to a subscript whose indices are expressions or slices."""
    indices: list[ast.Expr | ast.Slice] = []
    for child in tree.children[1:]:
        assert isinstance(child, Branch)
        if child.data != "slice":
            indices.append(convert_expression(child, depth))
            continue
        span, (lower, _, upper, step) = tree_span(child), child.children
        step_value = convert_optional(step.children[0], depth) if isinstance(step, Branch) else None
        indices.append(ast.Slice(convert_optional(lower, depth), convert_optional(upper, depth), step_value, span=span))
    return ast.Subscript(convert_expression(tree.children[0], depth), tuple(indices), span=tree_span(tree))


def _convert_compare(tree: Branch, depth: int) -> ast.Expr:
    """Convert a chain of comparisons to one node with its operators and operands."""
    ops: tuple[ast.CompareOp, ...] = tuple(_convert_comparator(c) for c in tree.children[1::2])
    rest = tuple(convert_expression(c, depth) for c in tree.children[2::2])
    return ast.Compare(convert_expression(tree.children[0], depth), ops, rest, span=tree_span(tree))


def _convert_comparator(child: Child) -> ast.CompareOp:
    """Return the comparison operator that a parse tree spells, as "not in" of two tokens."""
    assert isinstance(child, Branch)
    return _COMPARE_OPERATORS[" ".join(map(token_text, child.children))]


def _convert_binary(tree: Branch, depth: int) -> ast.Expr:
    """Convert `left op right` to a binary node."""
    left, right = (convert_expression(side, depth) for side in tree.children[::2])
    return ast.Binary(BINARY_OPERATORS[token_text(tree.children[1])], left, right, span=tree_span(tree))


def _convert_unary(tree: Branch, depth: int) -> ast.Expr:
    """Convert `op operand` to a unary node."""
    symbol = token_text(tree.children[0])
    return ast.Unary(_UNARY_OPERATORS[symbol], convert_expression(tree.children[1], depth), span=tree_span(tree))


def _convert_tuple(tree: Branch, depth: int) -> ast.Expr:
    """Convert a tuple, with or without its brackets, to a tuple node."""
    inner = tree.children[0] if tree.children else None
    items = inner.children if isinstance(inner, Branch) and inner.data == "tuple_bare" else tree.children
    return ast.Tuple(_convert_items(items, depth), span=tree_span(tree))


def _convert_group(tree: Branch, depth: int) -> ast.Expr:
    """Convert the contents of round brackets: the expression in them, or a generator."""
    (inner,) = tree.children
    if isinstance(inner, Branch) and inner.data == "comprehension":
        return _convert_comprehension("generator", inner, depth)
    return convert_expression(inner, depth)


def _convert_list_comprehension(tree: Branch, depth: int) -> ast.Expr:
    """Convert `[element for …]` to a comprehension of kind "list", with the span of its brackets."""
    (inner,) = tree.children
    assert isinstance(inner, Branch)
    return _convert_comprehension("list", inner, depth, tree_span(tree))


def _convert_dict_comprehension(tree: Branch, depth: int) -> ast.Expr:
    """Convert `{key: value for …}` to a comprehension of kind "dict"."""
    key, value = (convert_expression(side, depth) for side in tree.children[:2])
    clauses = tuple(_convert_clause(c, depth) for c in tree.children[2:])
    return ast.Comprehension("dict", key, value, clauses, span=tree_span(tree))


def _convert_comprehension(
    kind: Literal["list", "generator"], tree: Branch, depth: int, span: Span | None = None
) -> ast.Comprehension:
    """Convert `element for …` to a comprehension of kind "list" or "generator"."""
    element, *clauses = tree.children
    made = tuple(_convert_clause(c, depth) for c in clauses)
    return ast.Comprehension(kind, convert_expression(element, depth), None, made, span=span or tree_span(tree))


def _convert_clause(child: Child, depth: int) -> ast.Clause:
    """Convert `for target in iterable if …` to a clause; refuse a target that cannot be assigned to."""
    assert isinstance(child, Branch)
    target, iterable, *conditions = _convert_all(child.children, depth)
    return ast.Clause(check_assignable(target), iterable, tuple(conditions), span=tree_span(child))


def _convert_conditional(tree: Branch, depth: int) -> ast.Expr:
    """Convert `then if condition else orelse` to a conditional node."""
    then, condition, orelse = _convert_all(tree.children, depth)
    return ast.Conditional(condition, then, orelse, span=tree_span(tree))


def _convert_lambda(tree: Branch, depth: int) -> ast.Expr:
    """Convert a lambda, whose parameters have names, defaults and stars, but no annotations."""
    *params, _, body = tree.children
    named = tuple(_convert_lambda_parameter(p, depth) for p in params if isinstance(p, Branch))
    return ast.Lambda(named, convert_expression(body, depth), span=tree_span(tree))


def _convert_lambda_parameter(tree: Branch, depth: int) -> ast.Parameter:
    """Convert one parameter of a lambda: its name and, if given, its default or its star."""
    if tree.data == "starred_lambda_parameter":
        _, starred = tree.children
        return ast.Parameter(token_text(starred), kind="*", span=tree_span(tree))
    name, default = tree.children
    return ast.Parameter(token_text(name), default=convert_optional(default, depth), span=tree_span(tree))


def _convert_dict(tree: Branch, depth: int) -> ast.Expr:
    """Convert a dictionary display to a node with its key and value pairs."""
    flat = _convert_all(tree.children, depth)  # keys and values in turn
    return ast.Dict(tuple(zip(flat[::2], flat[1::2], strict=True)), span=tree_span(tree))


_EXPRESSION_CONVERTERS: dict[str, Callable[[Branch, int], ast.Expr]] = {
    "name": lambda t, d: ast.Name(token_text(t.children[0]), span=tree_span(t)),
    "int": _convert_int,
    "float": _convert_float,
    "string": _convert_string,
    "true": lambda t, d: ast.Constant("True", span=tree_span(t)),
    "false": lambda t, d: ast.Constant("False", span=tree_span(t)),
    "none": lambda t, d: ast.Constant("None", span=tree_span(t)),
    "ellipsis": lambda t, d: ast.Constant("...", span=tree_span(t)),
    "group": _convert_group,
    "tuple": _convert_tuple,
    "tuple_bare": _convert_tuple,
    "list": lambda t, d: ast.List(_convert_items(t.children, d), span=tree_span(t)),
    "list_of": _convert_list_comprehension,
    "dict": _convert_dict,
    "dict_of": _convert_dict_comprehension,
    "attribute": lambda t, d: ast.Attribute(
        convert_expression(t.children[0], d), token_text(t.children[1]), span=tree_span(t)
    ),
    "call": _convert_call,
    "subscript": _convert_subscript,
    "compare": _convert_compare,
    "and_expr": lambda t, d: ast.Boolean("and", *_convert_all(t.children, d), span=tree_span(t)),
    "or_expr": lambda t, d: ast.Boolean("or", *_convert_all(t.children, d), span=tree_span(t)),
    "not_expr": lambda t, d: ast.Unary("not", convert_expression(t.children[0], d), span=tree_span(t)),
    "binary": _convert_binary,
    "unary": _convert_unary,
    "conditional": _convert_conditional,
    "lambda_expr": _convert_lambda,
}


Conversion = Literal["", "r", "s", "a"]
_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class ReplacementField:
    """`{expression!conversion:spec}`. `shown` is the text of `{expression=}`, or empty."""

    expression: str
    shown: str
    conversion: Conversion
    spec: str


def split_fstring(text: str, prefix: str, span: Span) -> Iterator[str | ReplacementField]:
    """Yield an f-string's parts in order: text as string literals, and replacement fields; refuse a single `}` and bad
    fields.
    """
    body = text[len(prefix) :]
    quote = body[:3] if body[:3] in ('"""', "'''") else body[0]
    body = body[len(quote) : -len(quote)]
    head = prefix.replace("f", "").replace("F", "")
    literal, at = "", 0
    while at < len(body):
        character = body[at]
        if body[at : at + 2] in ("{{", "}}"):
            literal, at = literal + character, at + 2
        elif character == "\\" and "r" not in head.lower():
            literal, at = literal + body[at : at + 2], at + 2
        elif character == "}":
            raise_error("syntax", "a single `}` in an f-string", span, help="write `}}` for the character itself")
        elif character == "{":
            if literal:
                yield f"{head}{quote}{literal}{quote}"
            piece, at = _parse_field(body, at + 1, span)
            literal = ""
            yield piece
        else:
            literal, at = literal + character, at + 1
    if literal:
        yield f"{head}{quote}{literal}{quote}"


def _parse_field(body: str, start: int, span: Span) -> tuple[ReplacementField, int]:
    """Parse the f-string field whose brace opens before `start`; return it and the index after its end; refuse bad
    fields. Errors: empty braces, an unknown conversion, braces in the format, no closing brace.
    """
    end = _find_expression_end(body, start, span)
    expression, shown = body[start:end], ""
    if body[end] == "=":
        shown, end = body[start : end + 1], end + 1
        while body[end : end + 1].isspace():
            shown, end = shown + body[end], end + 1
    if not expression.strip():
        raise_error("syntax", "an f-string has empty braces", span, help="write `{{}}` for the characters themselves")
    conversion: Conversion = ""
    if body[end : end + 1] == "!":
        match body[end + 1 : end + 2]:
            case "r" | "s" | "a" as letter:
                conversion, end = letter, end + 2
            case _:
                raise_error("syntax", "an f-string has no such conversion", span, help="write !r, !s or !a")
    spec = ""
    if body[end : end + 1] == ":":
        close = body.find("}", end)
        spec, end = body[end + 1 : close], close
        if "{" in spec:
            raise_error("syntax", "an f-string's format contains braces", span, help="write the format without braces")
    if body[end : end + 1] != "}":
        raise_error("syntax", "a brace of the f-string is never closed", span)
    if shown and not (conversion or spec):
        conversion = "r"
    return ReplacementField(expression, shown, conversion, spec), end + 1


def _find_expression_end(body: str, start: int, span: Span) -> int:
    """Return the index of the `}`, `!`, `:` or `=` that ends an f-string field's expression; refuse an open brace."""
    opened: list[str] = []
    at = start
    while at < len(body):
        character = body[at]
        if character in "\"'":
            quote = body[at : at + 3] if body[at : at + 3] in ('"""', "'''") else character
            at += len(quote)
            while at < len(body) and not body.startswith(quote, at):
                at += 2 if body[at] == "\\" else 1
            at += len(quote)
            continue
        if not opened:
            if character in "}:" or (character == "!" and body[at + 1 : at + 2] != "="):
                return at
            if character == "=" and body[at + 1 : at + 2] != "=" and body[at - 1] not in "=!<>":
                return at
        if character in _CLOSING_BRACKETS:
            opened.append(_CLOSING_BRACKETS[character])
        elif opened and character == opened[-1]:
            opened.pop()
        at += 1
    return raise_error("syntax", "a brace of the f-string is never closed", span)
