"""Kernel text to syntax tree. `grammar/tile.lark` says what is legal; this file makes indentation and nodes of it.

Building the LALR tables takes a quarter of a second, loading them ten milliseconds: a `cache_dir` keeps them there.
"""

from __future__ import annotations

import ast as python
import hashlib
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Literal

import lark
from lark.grammar import Rule
from lark.lark import PostLex

from tilec.diag import CompileError, Diagnostic, Label, fail
from tilec.resources import grammar, tables_folder
from tilec.source import SourceFile, Span
from tilec.syntax import ast
from tilec.syntax.explain import BRACKETS, explain_character, explain_token
from tilec.syntax.foreign import Piece, foreign_name, top_level
from tilec.syntax.fstring import split

Branch = lark.Tree[lark.Token]
Child = Branch | lark.Token | None

MAX_DEPTH = 100
"""Deeper nesting is refused, so that no later stage meets the interpreter's recursion limit."""

_TAB_WIDTH = 8
_COMPOUND = {"if_stmt", "elif_part", "for_stmt", "while_stmt", "with_stmt", "function"}


def parse(source: SourceFile, cache_dir: Path | None = None) -> ast.Module:
    """The syntax tree of a file, or a `CompileError` that says what was expected instead.

    Tests and references around the kernels may be any Python: where the file as a whole is not in the language, its
    definitions are read one by one, and mistakes in several of them are all reported.
    """
    parser = _parser(cache_dir)
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        body = _statements(parser, source.text)
    except CompileError:
        pieces = tuple(top_level(source.text))
        if len(pieces) < 2:
            raise
        body = _piecewise(parser, pieces)
    return ast.Module(body, whole)


def parse_expression(text: str, span: Span) -> ast.Expr:
    """The expression in the braces of an f-string, which stands at `span`."""
    try:
        # Brackets keep line feeds from ending it.
        (statement,) = _statements(_parser(None), f"({text})")
    except CompileError as error:
        first = error.diagnostics[0]
        fail(first.code, f"in the f-string: {first.title}", span, help=first.help)
    assert isinstance(statement, ast.Evaluate)
    ast.respan(statement, lambda _: span)
    return statement.value


def _piecewise(parser: lark.Lark, pieces: tuple[Piece, ...]) -> tuple[ast.Stmt, ...]:
    body: list[ast.Stmt] = []
    mistakes: list[Diagnostic] = []
    for number, piece in enumerate(pieces):
        try:
            # Line feeds in front keep the numbers of the lines.
            body.extend(_statements(parser, "\n" * (piece.line - 1) + piece.text))
        except CompileError as found:
            if (name := foreign_name(piece)) is not None:
                end = Span(piece.line, 1, piece.line, len(piece.text.split("\n", 1)[0]) + 1)
                body.append(ast.Foreign(name, piece.text.rstrip(), found.diagnostics[0], end))
            else:
                mistakes += _mistakes(parser, piece.line, "".join(p.text for p in pieces[number:]))
    if mistakes:
        raise CompileError(*mistakes)
    return tuple(body)


def _mistakes(parser: lark.Lark, line: int, text: str) -> tuple[Diagnostic, ...]:
    """What is wrong where a statement begins, said with what follows it in sight."""
    try:
        _statements(parser, "\n" * (line - 1) + text)
    except CompileError as found:
        return found.diagnostics
    return ()


def _statements(parser: lark.Lark, text: str) -> tuple[ast.Stmt, ...]:
    # Every line, also the last, ends in a line feed: the grammar counts on it.
    text += "\n"
    try:
        tree = parser.parse(text)
    except lark.UnexpectedCharacters as error:
        explain_character(text, error)
    except lark.UnexpectedToken as error:
        explain_token(error, _tokens(parser, text[: error.pos_in_stream or 0]))
    return tuple(_statement(c, 0) for c in tree.children if isinstance(c, lark.Tree))


def _tokens(parser: lark.Lark, text: str) -> list[lark.Token]:
    tokens: list[lark.Token] = []
    try:
        for token in parser.lex(text):
            tokens.append(token)
    except CompileError:
        # The text stops inside a bracket; what came before is all that is wanted.
        return tokens
    return tokens


# ---- the parser and its cache ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _parser(cache_dir: Path | None) -> lark.Lark:
    """From the tables that the wheel carries, or those of an earlier run; else made now and left for the next run."""
    text = grammar("tile.lark")
    name = _tables_name(text)
    for folder in (tables_folder(), cache_dir):
        if folder is None:
            continue
        try:
            with (folder / name).open("rb") as file:
                return _direct(lark.Lark.load(file))
        except (
            OSError,
            pickle.UnpicklingError,
            EOFError,
            LookupError,
            AttributeError,
            ImportError,
            TypeError,
            ValueError,
        ):
            continue  # absent, or not whole
    parser = _build(text)
    if cache_dir is not None:
        _keep(parser, cache_dir / name)
    return _direct(parser)


def _direct(parser: lark.Lark) -> lark.Lark:
    """Let the levels of an expression that have one operand hand it on as it is. Lark would look at its position again
    at each of fifteen levels, which is half of the time that parsing takes."""
    callbacks = parser.parser.parser.parser.callbacks
    for rule in callbacks:
        if isinstance(rule, Rule) and rule.options.expand1 and rule.alias is None and len(rule.expansion) == 1:
            symbol = rule.expansion[0]
            if not symbol.is_term and not symbol.name.startswith("_"):
                callbacks[rule] = itemgetter(0)
    return parser


def _tables_name(text: str) -> str:
    """Tables hold for one grammar, one release of Lark and one of Python."""
    version = f"{lark.__version__} {sys.version_info[:2]} {_Lines.__module__}.{_Lines.__qualname__}\n"
    return f"tile-{hashlib.sha256((version + text).encode()).hexdigest()[:24]}.tables"


def write_tables(folder: Path) -> Path:
    """Make the tables and save them in `folder`, as the build of the wheel does."""
    text = grammar("tile.lark")
    path = folder / _tables_name(text)
    with path.open("wb") as file:
        _build(text).save(file)
    return path


def _build(text: str) -> lark.Lark:
    return lark.Lark(text, parser="lalr", lexer="basic", start="module", postlex=_Lines(), propagate_positions=True)


def _keep(parser: lark.Lark, path: Path) -> None:
    """Write beside the destination and rename: another process may be reading or writing the same file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                parser.save(file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
    except OSError:
        # A cache that cannot be written costs time, nothing else.
        return


class _Lines(PostLex):
    """Turns line feeds into INDENT and DEDENT outside brackets, and drops them inside. Holds no state between files."""

    always_accept = ("_NEWLINE",)

    def process(self, stream: Iterator[lark.Token]) -> Iterator[lark.Token]:
        indents = [0]
        opened: list[lark.Token] = []
        last: lark.Token | None = None
        for token in stream:
            if last is None and token.type != "_NEWLINE" and token.column != 1:
                fail("syntax", "unexpected indentation", Span(1, 1, 1, token.column or 1), "no block was opened above")
            last = token
            if token.type == "_NEWLINE":
                if not opened:
                    yield token
                    yield from _indentation(token, indents)
                continue
            if token.type in BRACKETS:
                opened.append(token)
            elif token.type in BRACKETS.values():
                _close(token, opened)
            yield token
        if opened:
            fail("syntax", f"`{opened[-1]}` is never closed", _token_span(opened[-1]), "opened here")
        for _ in indents[1:]:
            assert last is not None
            yield lark.Token.new_borrow_pos("_DEDENT", "", last)


def _indentation(newline: lark.Token, indents: list[int]) -> Iterator[lark.Token]:
    white = newline.rsplit("\n", 1)[1]
    column = white.count(" ") + white.count("\t") * _TAB_WIDTH
    if column > indents[-1]:
        indents.append(column)
        yield lark.Token.new_borrow_pos("_INDENT", white, newline)
        return
    while column < indents[-1]:
        indents.pop()
        yield lark.Token.new_borrow_pos("_DEDENT", white, newline)
    if column != indents[-1]:
        line = newline.end_line or 1
        fail(
            "syntax",
            "indentation matches no enclosing block",
            Span(line, 1, line, len(white) + 1),
            f"indented by {column}, the enclosing blocks by {', '.join(map(str, indents))}",
        )


def _close(token: lark.Token, opened: list[lark.Token]) -> None:
    if not opened:
        fail("syntax", f"`{token}` closes nothing", _token_span(token), "no bracket is open here")
    opener = opened.pop()
    if BRACKETS[opener.type] != token.type:
        label = Label(_token_span(opener), "opened here")
        fail("syntax", f"`{token}` does not close `{opener}`", _token_span(token), secondary=(label,))


# ---- tree to nodes ---------------------------------------------------------------------------------------------------


def _token_span(token: lark.Token) -> Span:
    return Span(token.line or 1, token.column or 1, token.end_line or 1, token.end_column or 1)


def _span(tree: Branch) -> Span:
    return Span(tree.meta.line, tree.meta.column, tree.meta.end_line, tree.meta.end_column)


def _text(child: Child) -> str:
    assert isinstance(child, lark.Token)
    return str(child)


def _block(tree: Child, depth: int) -> tuple[ast.Stmt, ...]:
    assert isinstance(tree, lark.Tree)
    return tuple(_statement(c, depth + 1) for c in tree.children if isinstance(c, lark.Tree))


def _statement(tree: Branch, depth: int) -> ast.Stmt:
    if depth > MAX_DEPTH:
        fail("too-deep", f"blocks are nested more than {MAX_DEPTH} deep", _span(tree))
    parts = tree.children
    if tree.data in _COMPOUND:
        return _compound(tree, depth)
    span = _span(tree)
    match str(tree.data):
        case "assign":
            targets = tuple(_target(_expr(c)) for c in parts[:-1])
            return ast.Assign(targets, _expr(parts[-1]), span)
        case "annotated":
            target = _target(_expr(parts[0]))
            return ast.AnnotatedAssign(target, _expr(parts[1]), _optional(parts[2]), span)
        case "augmented":
            target = _target(_expr(parts[0]))
            op: ast.BinaryOp = _text(parts[1])[:-1]  # type: ignore[assignment]  # the grammar's AUGMENTED lists them
            return ast.AugmentedAssign(target, op, _expr(parts[2]), span)
        case "evaluate":
            return ast.Evaluate(_expr(parts[0]), span)
        case "pass_stmt":
            return ast.Pass(span)
        case "break_stmt":
            return ast.Break(span)
        case "continue_stmt":
            return ast.Continue(span)
        case "return_stmt":
            return ast.Return(_optional(parts[0]), span)
        case "raise_stmt":
            return ast.Raise(_optional(parts[0]), span)
        case "assert_stmt":
            return ast.Assert(_expr(parts[0]), _optional(parts[1]), span)
        case "import_name":
            return ast.Import(tuple(_alias(c) for c in parts), None, span)
        case "import_from":
            return ast.Import(tuple(_alias(c) for c in parts[1:]), _origin(parts[0]), span)
        case other:
            raise AssertionError(f"no node for grammar rule {other}")


def _compound(tree: Branch, depth: int) -> ast.Stmt:
    parts = tree.children
    # The tree ends where the next line begins; the node ends with its last statement.
    start = _span(tree)
    match str(tree.data):
        case "if_stmt" | "elif_part":
            then = _block(parts[1], depth)
            orelse: tuple[ast.Stmt, ...] = ()
            if len(parts) > 2:
                rest = parts[2]
                assert isinstance(rest, lark.Tree)
                # A chain of elif nests one level per link.
                orelse = (_statement(rest, depth + 1),) if rest.data == "elif_part" else _block(rest.children[0], depth)
            return ast.If(_expr(parts[0]), then, orelse, start.to((orelse or then)[-1].span))
        case "for_stmt":
            body = _block(parts[2], depth)
            return ast.For(_target(_expr(parts[0])), _expr(parts[1]), body, start.to(body[-1].span))
        case "while_stmt":
            body = _block(parts[1], depth)
            return ast.While(_expr(parts[0]), body, start.to(body[-1].span))
        case "with_stmt":
            body = _block(parts[2], depth)
            target = None if parts[1] is None else _target(_expr(parts[1]))
            return ast.With(_expr(parts[0]), target, body, start.to(body[-1].span))
        case "function":
            decorators = [c for c in parts if isinstance(c, lark.Tree) and c.data == "decorator"]
            name, params, returns, block = parts[len(decorators) :]
            assert isinstance(name, lark.Token)
            assert isinstance(params, lark.Tree)
            body = _block(block, depth)
            return ast.Function(
                str(name),
                tuple(_parameter(c) for c in params.children),
                body,
                tuple(_expr(c.children[0]) for c in decorators),
                _optional(returns),
                _token_span(name),
                start.to(body[-1].span),
            )
        case other:
            raise AssertionError(f"no node for grammar rule {other}")


def _parameter(child: Child) -> ast.Parameter:
    assert isinstance(child, lark.Tree)
    if child.data == "starred_parameter":
        stars, starred, collected = child.children
        kind: Literal["*", "**"] = _text(stars)  # type: ignore[assignment]  # the grammar lists them
        return ast.Parameter("" if starred is None else _text(starred), _optional(collected), None, kind, _span(child))
    name, annotation, default = child.children
    return ast.Parameter(_text(name), _optional(annotation), _optional(default), "", _span(child))


def _origin(child: Child) -> str:
    """`a.b`, with the dots in front of a relative one."""
    assert isinstance(child, lark.Tree)
    return "".join(_dotted(c) if isinstance(c, lark.Tree) else _text(c) for c in child.children)


def _alias(child: Child) -> ast.Alias:
    assert isinstance(child, lark.Tree)
    if child.data == "import_all":
        return ast.Alias("*", None, _span(child))
    name, alias = child.children
    return ast.Alias(_dotted(name), None if alias is None else _text(alias), _span(child))


def _dotted(child: Child) -> str:
    assert isinstance(child, lark.Tree)
    return ".".join(_text(c) for c in child.children)


def _target(target: ast.Expr) -> ast.Expr:
    match target:
        case ast.Name() | ast.Subscript():
            what = ""
        case ast.Tuple(items=items) | ast.List(items=items):
            what = ""
            for item in items:
                if isinstance(item, ast.Starred):
                    fail("syntax", "`*` cannot be assigned to", item.span, help="name the items one by one")
                _target(item)
        case ast.Call():
            what = "a call"
        case ast.Attribute():
            what = "an attribute"
        case _:
            what = "an expression"
    if what:
        fail("bad-target", f"{what} cannot be assigned to", target.span, "names and elements of buffers can")
    return target


def _optional(child: Child, depth: int = 0) -> ast.Expr | None:
    return None if child is None else _expr(child, depth)


def _expr(child: Child, depth: int = 0) -> ast.Expr:
    assert isinstance(child, lark.Tree)
    if depth > MAX_DEPTH:
        fail(
            "too-deep", f"the expression is nested more than {MAX_DEPTH} deep", _span(child), help="bind parts to names"
        )
    return _EXPRESSIONS[str(child.data)](child, depth + 1)


def _exprs(children: list[Branch | lark.Token], depth: int) -> tuple[ast.Expr, ...]:
    return tuple(_expr(c, depth) for c in children)


def _items(children: list[Branch | lark.Token], depth: int) -> tuple[ast.Expr | ast.Starred, ...]:
    return tuple(_item(c, depth) for c in children)


def _item(child: Child, depth: int) -> ast.Expr | ast.Starred:
    if isinstance(child, lark.Tree) and child.data == "starred":
        return ast.Starred(_expr(child.children[-1], depth), _span(child))
    return _expr(child, depth)


def _int(tree: Branch, depth: int) -> ast.Expr:
    text = _text(tree.children[0])
    try:
        return ast.Number(int(text, 0), _span(tree))
    except ValueError:
        fail(
            "syntax",
            "not a number Python would read",
            _span(tree),
            help="leading zeros and stray underscores are not allowed",
        )


def _float(tree: Branch, depth: int) -> ast.Expr:
    try:
        return ast.Number(float(_text(tree.children[0])), _span(tree))
    except ValueError:
        fail("syntax", "not a number Python would read", _span(tree), help="stray underscores are not allowed")


def _string(tree: Branch, depth: int) -> ast.Expr:
    span = _span(tree)
    parts: list[ast.String | ast.Formatted] = []
    for token in tree.children:
        text = _text(token)
        prefix = text[: min(text.index(quote) for quote in "\"'" if quote in text)]
        if "f" not in prefix.lower():
            parts.append(ast.String(_literal(text, span), span))
            continue
        for piece in split(text, prefix, span):
            if isinstance(piece, str):
                parts.append(ast.String(_literal(piece, span), span))
            else:
                value = parse_expression(piece.expression, span)
                if piece.shown:
                    parts.append(ast.String(piece.shown, span))
                parts.append(ast.Formatted(value, piece.conversion, piece.spec, span))
    merged: list[ast.String | ast.Formatted] = []
    for part in parts:
        if isinstance(part, ast.String) and merged and isinstance(merged[-1], ast.String):
            part = ast.String(merged.pop().value + part.value, span)  # type: ignore[operator]  # a string, as said
        merged.append(part)
    if all(isinstance(part, ast.String) for part in merged) and not _is_joined(tree):
        return ast.String("".join(p.value for p in merged if isinstance(p, ast.String)), span)
    return ast.JoinedString(tuple(p for p in merged if not isinstance(p, ast.String) or p.value), span)


def _is_joined(tree: Branch) -> bool:
    """Whether one of the strings is an f-string, be it one without braces."""
    return any("f" in _text(token).split("'")[0].split('"')[0].lower() for token in tree.children)


def _literal(text: str, span: Span) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            piece = python.literal_eval(text)
    except (SyntaxError, ValueError):
        fail("syntax", "the string holds a broken escape", span, help='write the backslash twice, or r"…"')
    if not isinstance(piece, str):
        fail("syntax", "bytes are not part of the kernel language", span)
    return piece


def _call(tree: Branch, depth: int) -> ast.Expr:
    function = _expr(tree.children[0], depth)
    args: list[ast.Expr | ast.Starred] = []
    keywords: list[ast.Keyword] = []
    for child in tree.children[1:]:
        assert isinstance(child, lark.Tree)
        if child.data == "keyword":
            name, value = child.children
            if any(k.name == name for k in keywords):
                fail("syntax", f"keyword `{name}` is given twice", _span(child))
            keywords.append(ast.Keyword(_text(name), _expr(value, depth), _span(child)))
        elif child.data == "keywords":
            keywords.append(ast.Keyword("**", _expr(child.children[-1], depth), _span(child)))
        elif child.data == "comprehension":
            args.append(_comprehension("generator", child, depth))
        elif keywords:
            fail("syntax", "a positional argument follows a keyword argument", _span(child))
        else:
            args.append(_item(child, depth))
    return ast.Call(function, tuple(args), tuple(keywords), _span(tree))


def _subscript(tree: Branch, depth: int) -> ast.Expr:
    indices: list[ast.Expr | ast.Slice] = []
    for child in tree.children[1:]:
        assert isinstance(child, lark.Tree)
        if child.data == "slice":
            lower, _, upper, step = child.children
            step_value = None
            if isinstance(step, lark.Tree):
                step_value = _optional(step.children[0], depth)
            indices.append(ast.Slice(_optional(lower, depth), _optional(upper, depth), step_value, _span(child)))
        else:
            indices.append(_expr(child, depth))
    return ast.Subscript(_expr(tree.children[0], depth), tuple(indices), _span(tree))


def _compare(tree: Branch, depth: int) -> ast.Expr:
    ops: tuple[ast.CompareOp, ...] = tuple(_comparator(c) for c in tree.children[1::2])
    rest = tuple(_expr(c, depth) for c in tree.children[2::2])
    return ast.Compare(_expr(tree.children[0], depth), ops, rest, _span(tree))


def _comparator(child: Child) -> ast.CompareOp:
    assert isinstance(child, lark.Tree)
    return " ".join(map(_text, child.children))  # type: ignore[return-value]  # the grammar lists them


def _binary(tree: Branch, depth: int) -> ast.Expr:
    left, op, right = tree.children
    symbol: ast.BinaryOp = _text(op)  # type: ignore[assignment]  # the grammar lists them
    return ast.Binary(symbol, _expr(left, depth), _expr(right, depth), _span(tree))


def _unary(tree: Branch, depth: int) -> ast.Expr:
    symbol: ast.UnaryOp = _text(tree.children[0])  # type: ignore[assignment]  # the grammar lists them
    return ast.Unary(symbol, _expr(tree.children[1], depth), _span(tree))


def _tuple(tree: Branch, depth: int) -> ast.Expr:
    inner = tree.children[0] if tree.children else None
    if isinstance(inner, lark.Tree) and inner.data == "tuple_bare":
        return ast.Tuple(_items(inner.children, depth), _span(tree))
    return ast.Tuple(_items(tree.children, depth), _span(tree))


def _group(tree: Branch, depth: int) -> ast.Expr:
    (inner,) = tree.children
    if isinstance(inner, lark.Tree) and inner.data == "comprehension":
        return _comprehension("generator", inner, depth)
    return _expr(inner, depth)


def _list_of(tree: Branch, depth: int) -> ast.Expr:
    (inner,) = tree.children
    assert isinstance(inner, lark.Tree)
    return _comprehension("list", inner, depth, _span(tree))


def _dict_of(tree: Branch, depth: int) -> ast.Expr:
    key, value, *clauses = tree.children
    made = tuple(_clause(c, depth) for c in clauses)
    return ast.Comprehension("dict", _expr(key, depth), _expr(value, depth), made, _span(tree))


def _comprehension(
    kind: Literal["list", "generator"], tree: Branch, depth: int, span: Span | None = None
) -> ast.Comprehension:
    element, *clauses = tree.children
    made = tuple(_clause(c, depth) for c in clauses)
    return ast.Comprehension(kind, _expr(element, depth), None, made, span or _span(tree))


def _clause(child: Child, depth: int) -> ast.Clause:
    assert isinstance(child, lark.Tree)
    target, iterable, *conditions = child.children
    return ast.Clause(_target(_expr(target, depth)), _expr(iterable, depth), _exprs(conditions, depth), _span(child))


def _conditional(tree: Branch, depth: int) -> ast.Expr:
    then, condition, orelse = _exprs(tree.children, depth)
    return ast.Conditional(condition, then, orelse, _span(tree))


def _lambda(tree: Branch, depth: int) -> ast.Expr:
    *params, _, body = tree.children
    names = tuple(_text(p) for p in params if p is not None)
    return ast.Lambda(names, _expr(body, depth), _span(tree))


def _dict(tree: Branch, depth: int) -> ast.Expr:
    flat = _exprs(tree.children, depth)  # keys and values in turn
    return ast.Dict(tuple(zip(flat[::2], flat[1::2], strict=True)), _span(tree))


_EXPRESSIONS: dict[str, Callable[[Branch, int], ast.Expr]] = {
    "name": lambda t, d: ast.Name(_text(t.children[0]), _span(t)),
    "int": _int,
    "float": _float,
    "string": _string,
    "true": lambda t, d: ast.Constant("True", _span(t)),
    "false": lambda t, d: ast.Constant("False", _span(t)),
    "none": lambda t, d: ast.Constant("None", _span(t)),
    "ellipsis": lambda t, d: ast.Constant("...", _span(t)),
    "group": _group,
    "tuple": _tuple,
    "tuple_bare": _tuple,
    "list": lambda t, d: ast.List(_items(t.children, d), _span(t)),
    "list_of": _list_of,
    "dict": _dict,
    "dict_of": _dict_of,
    "attribute": lambda t, d: ast.Attribute(_expr(t.children[0], d), _text(t.children[1]), _span(t)),
    "call": _call,
    "subscript": _subscript,
    "compare": _compare,
    "and_expr": lambda t, d: ast.Boolean("and", _expr(t.children[0], d), _expr(t.children[1], d), _span(t)),
    "or_expr": lambda t, d: ast.Boolean("or", _expr(t.children[0], d), _expr(t.children[1], d), _span(t)),
    "not_expr": lambda t, d: ast.Unary("not", _expr(t.children[0], d), _span(t)),
    "binary": _binary,
    "unary": _unary,
    "conditional": _conditional,
    "lambda_expr": _lambda,
}
