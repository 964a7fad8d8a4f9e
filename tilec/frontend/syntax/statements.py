"""Conversion of parse trees to statements of the syntax tree."""

from __future__ import annotations

from typing import Literal

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.expressions import BINARY_OPERATORS, check_assignable, convert_expression, convert_optional
from tilec.frontend.syntax.lalr import MAX_DEPTH, Branch, Child, Token, token_span, token_text, tree_span
from tilec.support.diagnostics import raise_error
from tilec.support.source import Span


def _convert_block(tree: Child, depth: int) -> tuple[ast.Stmt, ...]:
    """Convert the parse tree of a block to its statements, one level deeper."""
    assert isinstance(tree, Branch)
    return tuple(convert_statement(c, depth + 1) for c in tree.children if isinstance(c, Branch))


def _check_depth(depth: int, span: Span) -> None:
    """Raise `too-deep` if blocks are nested more than `MAX_DEPTH` deep."""
    if depth > MAX_DEPTH:
        raise_error("too-deep", f"blocks are nested more than {MAX_DEPTH} deep", span)


def convert_statement(tree: Branch, depth: int) -> ast.Stmt:
    """Convert the parse tree of a statement by its grammar rule; raise `too-deep` for blocks nested too deep."""
    parts, span = tree.children, tree_span(tree)
    _check_depth(depth, span)
    match str(tree.data):
        case "assign":
            targets = tuple(check_assignable(convert_expression(c)) for c in parts[:-1])
            return ast.Assign(targets, convert_expression(parts[-1]), span=span)
        case "annotated":
            target = check_assignable(convert_expression(parts[0]))
            return ast.AnnotatedAssign(target, convert_expression(parts[1]), convert_optional(parts[2]), span=span)
        case "augmented":
            target = check_assignable(convert_expression(parts[0]))
            op = token_text(parts[1])[:-1]
            return ast.AugmentedAssign(target, BINARY_OPERATORS[op], convert_expression(parts[2]), span=span)
        case "evaluate":
            return ast.Evaluate(convert_expression(parts[0]), span=span)
        case "pass_stmt":
            return ast.Pass(span=span)
        case "break_stmt":
            return ast.Break(span=span)
        case "continue_stmt":
            return ast.Continue(span=span)
        case "return_stmt":
            return ast.Return(convert_optional(parts[0]), span=span)
        case "raise_stmt":
            return ast.Raise(convert_optional(parts[0]), span=span)
        case "assert_stmt":
            return ast.Assert(convert_expression(parts[0]), convert_optional(parts[1]), span=span)
        case "import_name":
            return ast.Import(tuple(_convert_alias(c) for c in parts), None, span=span)
        case "import_from":
            return ast.Import(tuple(_convert_alias(c) for c in parts[1:]), _convert_module_path(parts[0]), span=span)
        case _:
            return _convert_compound(tree, depth)


def _convert_compound(tree: Branch, depth: int) -> ast.Stmt:
    """Convert the parse tree of an `if`, loop, `with` or function, whose span ends with its last statement."""
    parts = tree.children
    # The tree ends at the start of the next line; the node ends with its last statement.
    start = tree_span(tree)
    match str(tree.data):
        case "if_stmt" | "elif_part":
            then = _convert_block(parts[1], depth)
            orelse: tuple[ast.Stmt, ...] = ()
            if len(parts) > 2:
                rest = parts[2]
                assert isinstance(rest, Branch)
                # A chain of elif nests one level per link.
                is_elif = rest.data == "elif_part"
                orelse = (convert_statement(rest, depth + 1),) if is_elif else _convert_block(rest.children[0], depth)
            return ast.If(convert_expression(parts[0]), then, orelse, span=start.to((orelse or then)[-1].span))
        case "for_stmt":
            body = _convert_block(parts[2], depth)
            target = check_assignable(convert_expression(parts[0]))
            return ast.For(target, convert_expression(parts[1]), body, span=start.to(body[-1].span))
        case "while_stmt":
            body = _convert_block(parts[1], depth)
            return ast.While(convert_expression(parts[0]), body, span=start.to(body[-1].span))
        case "with_stmt":
            return _convert_with(parts[:-1], parts[-1], start, depth)
        case "function":
            decorators = [c for c in parts if isinstance(c, Branch) and c.data == "decorator"]
            name, params, returns, block = parts[len(decorators) :]
            assert isinstance(name, Token)
            assert isinstance(params, Branch)
            body = _convert_block(block, depth)
            return ast.Function(
                str(name),
                tuple(_convert_parameter(c) for c in params.children),
                body,
                tuple(convert_expression(c.children[1]) for c in decorators),
                convert_optional(returns),
                token_span(name),
                span=start.to(body[-1].span),
            )
        case other:
            raise AssertionError(f"no node for grammar rule {other}")


def _convert_with(items: list[Child], block: Child, start: Span, depth: int) -> ast.With:
    """Convert a `with` of several items, in brackets or not, to nested ones; refuse starred items."""
    entered: list[tuple[Child, Child]] = []
    for item in items:
        assert isinstance(item, Branch)
        if item.data == "starred":
            raise_error("syntax", "a starred value cannot be used in a `with`", tree_span(item), help="list the values")
        is_named = item.data in ("with_item", "with_named")
        entered.append((item.children[0], item.children[1]) if is_named else (item, None))
    if len(entered) == 1 and (listed := _list_entered_items(*entered[0])):
        entered = [(context, None) for context in listed]
    deepest = depth + len(entered) - 1
    _check_depth(deepest, start)
    body = _convert_block(block, deepest)
    end = body[-1].span
    for context, target in reversed(entered[1:]):
        body = (_make_with(context, target, body, None, end),)
    return _make_with(*entered[0], body, start, end)


def _make_with(context: Child, target: Child, body: tuple[ast.Stmt, ...], start: Span | None, end: Span) -> ast.With:
    """Make a `with` node of one item around a body; its span begins at the item, unless `start` is given."""
    entry = convert_expression(context)
    bound = None if target is None else check_assignable(convert_expression(target))
    return ast.With(entry, bound, body, span=(start or entry.span).to(end))


def _list_entered_items(context: Child, target: Child) -> list[Child]:
    """Return the items of `with (a, b):`, whose brackets make no tuple; an empty list for any other `with`."""
    if target is not None or not isinstance(context, Branch) or context.data != "tuple" or not context.children:
        return []
    (bare,) = context.children
    assert isinstance(bare, Branch)
    is_starred = any(isinstance(item, Branch) and item.data == "starred" for item in bare.children)
    return [] if is_starred else bare.children


def _convert_parameter(child: Child) -> ast.Parameter:
    """Convert a parameter of a function, with its annotation and default, or its star or stars."""
    assert isinstance(child, Branch)
    if child.data == "starred_parameter":
        stars, starred, collected = child.children
        kind: Literal["*", "**"] = "*" if token_text(stars) == "*" else "**"
        shown = "" if starred is None else token_text(starred)
        return ast.Parameter(shown, convert_optional(collected), None, kind, span=tree_span(child))
    name, annotation, value = child.children
    default = convert_optional(value)
    return ast.Parameter(token_text(name), convert_optional(annotation), default, span=tree_span(child))


def _convert_module_path(child: Child) -> str:
    """Return an import's module path as text, with the leading dots of a relative one."""
    assert isinstance(child, Branch)
    return "".join(_join_dotted(c) if isinstance(c, Branch) else token_text(c) for c in child.children)


def _convert_alias(child: Child) -> ast.Alias:
    """Convert one name of an import, with its alias if it has one; a star import has the name `*`."""
    assert isinstance(child, Branch)
    if child.data == "import_all":
        return ast.Alias("*", None, span=tree_span(child))
    name, alias = child.children
    return ast.Alias(_join_dotted(name), None if alias is None else token_text(alias), span=tree_span(child))


def _join_dotted(child: Child) -> str:
    """Return the names of a dotted path joined by dots."""
    assert isinstance(child, Branch)
    return ".".join(token_text(c) for c in child.children)
