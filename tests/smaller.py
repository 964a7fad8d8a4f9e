"""The smallest source for which something is still found: statements are left out, loops and branches become their
bodies, and expressions one of their parts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def smallest(source: str, is_found: Callable[[str], bool], most: int = 250) -> str:
    """Return the smallest kernel that is still found, after at most so many trials."""
    best, candidates, at, since = source, list(_smaller(source)), 0, 0
    while candidates and since < len(candidates) and most > 0:
        candidate = candidates[at % len(candidates)]
        is_shorter = len(candidate) < len(best)
        most -= is_shorter
        if is_shorter and is_found(candidate):
            best, since = candidate, 0
            candidates = list(_smaller(best))  # what has been tried in vain comes last
        else:
            at, since = at + 1, since + 1
    return best


def _smaller(source: str) -> Iterator[str]:
    """The kernel without one of its statements, parameters or operands, from the last to the first."""
    count = sum(1 for _ in _blocks(ast.parse(source)))
    for number in reversed(range(count)):
        length = len(_nth(ast.parse(source), number))
        for at in reversed(range(length)):
            tree = ast.parse(source)
            block = _nth(tree, number)
            removed = block.pop(at)
            if block:
                yield _text(tree)
            if isinstance(removed, ast.If | ast.For) and removed.body:
                block[at:at] = removed.body
                yield _text(tree)
    for at in range(len(_functions(ast.parse(source)))):
        for number in range(len(_functions(ast.parse(source))[at].args.args)):
            tree = ast.parse(source)
            _functions(tree)[at].args.args.pop(number)
            yield _text(tree)
    operands = sum(1 for _ in _operands(ast.parse(source)))
    for number in range(operands):
        for side in range(3):
            tree = ast.parse(source)
            if _narrowed(tree, number, side):
                yield _text(tree)


def _text(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [s for s in tree.body if isinstance(s, ast.FunctionDef)]


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _nth(tree: ast.AST, number: int) -> list[ast.stmt]:
    return list(_blocks(tree))[number]


def _operands(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Where an expression stands that is made of others."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.BinOp | ast.Call | ast.IfExp | ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield node, name


def _narrowed(tree: ast.AST, number: int, side: int) -> bool:
    """One such expression becomes one of those that it is made of."""
    node, name = list(_operands(tree))[number]
    parts = [child for child in ast.iter_child_nodes(getattr(node, name)) if isinstance(child, ast.expr)]
    if isinstance(getattr(node, name), ast.Call):
        parts = getattr(node, name).args
    if side >= len(parts):
        return False
    setattr(node, name, parts[side])
    return True
