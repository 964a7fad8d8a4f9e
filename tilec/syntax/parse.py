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

import lark
from lark.grammar import Rule
from lark.lark import PostLex

from tilec.diag import CompileError, Label, fail
from tilec.resources import grammar, tables_folder
from tilec.source import SourceFile, Span
from tilec.syntax import ast
from tilec.syntax.explain import BRACKETS, explain_character, explain_token

Branch = lark.Tree[lark.Token]
Child = Branch | lark.Token | None

MAX_DEPTH = 100
"""Deeper nesting is refused, so that no later stage meets the interpreter's recursion limit."""

_TAB_WIDTH = 8
_COMPOUND = {"if_stmt", "elif_part", "for_stmt", "while_stmt", "with_stmt", "function"}


def parse(source: SourceFile, cache_dir: Path | None = None) -> ast.Module:
    """The syntax tree of a file, or a `CompileError` that says what was expected instead."""
    parser = _parser(cache_dir)
    # Every line, also the last, ends in a line feed: the grammar counts on it.
    text = source.text + "\n"
    try:
        tree = parser.parse(text)
    except lark.UnexpectedCharacters as error:
        explain_character(text, error)
    except lark.UnexpectedToken as error:
        explain_token(error, _tokens(parser, text[: error.pos_in_stream or 0]))
    return _module(tree, source)


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


@lru_cache(maxsize=4)
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


def _module(tree: Branch, source: SourceFile) -> ast.Module:
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    return ast.Module(tuple(_statement(c, 0) for c in tree.children if isinstance(c, lark.Tree)), whole)


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
        case "assert_stmt":
            return ast.Assert(_expr(parts[0]), _optional(parts[1]), span)
        case "import_name":
            return ast.Import(tuple(_alias(c) for c in parts), None, span)
        case "import_from":
            return ast.Import(tuple(_alias(c) for c in parts[1:]), _dotted(parts[0]), span)
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
    name, annotation, default = child.children
    return ast.Parameter(_text(name), _optional(annotation), _optional(default), _span(child))


def _alias(child: Child) -> ast.Alias:
    assert isinstance(child, lark.Tree)
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
    pieces = []
    for token in tree.children:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                piece = python.literal_eval(_text(token))
        except (SyntaxError, ValueError):
            fail("syntax", "the string holds a broken escape", _span(tree), help='write the backslash twice, or r"…"')
        if not isinstance(piece, str):
            fail("syntax", "bytes are not part of the kernel language", _span(tree))
        pieces.append(piece)
    return ast.String("".join(pieces), _span(tree))


def _call(tree: Branch, depth: int) -> ast.Expr:
    function = _expr(tree.children[0], depth)
    args: list[ast.Expr] = []
    keywords: list[ast.Keyword] = []
    for child in tree.children[1:]:
        assert isinstance(child, lark.Tree)
        if child.data == "keyword":
            name, value = child.children
            if any(k.name == name for k in keywords):
                fail("syntax", f"keyword `{name}` is given twice", _span(child))
            keywords.append(ast.Keyword(_text(name), _expr(value, depth), _span(child)))
        elif keywords:
            fail("syntax", "a positional argument follows a keyword argument", _span(child))
        else:
            args.append(_expr(child, depth))
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
    ops: tuple[ast.CompareOp, ...] = tuple(_text(c) for c in tree.children[1::2])  # type: ignore[misc]
    rest = tuple(_expr(c, depth) for c in tree.children[2::2])
    return ast.Compare(_expr(tree.children[0], depth), ops, rest, _span(tree))


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
        return ast.Tuple(_exprs(inner.children, depth), _span(tree))
    return ast.Tuple(_exprs(tree.children, depth), _span(tree))


def _conditional(tree: Branch, depth: int) -> ast.Expr:
    then, condition, orelse = _exprs(tree.children, depth)
    return ast.Conditional(condition, then, orelse, _span(tree))


def _lambda(tree: Branch, depth: int) -> ast.Expr:
    *params, _, body = tree.children
    names = tuple(_text(p) for p in params if p is not None)
    return ast.Lambda(names, _expr(body, depth), _span(tree))


def _dict(tree: Branch, depth: int) -> ast.Expr:
    flat = _exprs(tree.children, depth)
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
    "group": lambda t, d: _expr(t.children[0], d),
    "tuple": _tuple,
    "tuple_bare": _tuple,
    "list": lambda t, d: ast.List(_exprs(t.children, d), _span(t)),
    "dict": _dict,
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
