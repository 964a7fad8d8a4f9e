"""Draws faults at random: one operator, constant, condition or call of a function of `tilec/` is changed.

A drawn fault depends on its number and on the text of the tree, and on nothing else.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

from faults import Fault

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//", ast.LShift: ">>", ast.RShift: "<<",
    ast.BitAnd: "|", ast.BitOr: "&", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=",
    ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.And: "or", ast.Or: "and",
}  # fmt: skip
"""What is written in place of each operator."""

LEFT_OUT = ("tilec/lsp/", "tilec/serve/", "tilec/tune/dask_engine.py", "tilec/tune/ray_engine.py")
"""Files whose tests need programs that only the exhaustive tier starts."""


def draw_fault(number: int, root: Path) -> Fault:
    """Return the fault with this number: a random function of a random file, and a random place in it."""
    chance = random.Random(number)
    paths = [path for path in sorted((root / "tilec").rglob("*.py")) if path.stat().st_size > 600]
    while True:
        path = chance.choice(paths)
        name = path.relative_to(root).as_posix()
        if name.startswith(LEFT_OUT):
            continue
        text = path.read_text(encoding="utf-8")
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        if not functions:
            continue
        function = chance.choice(functions)
        changes = sorted(_list_changes(text, function))
        if not changes:
            continue
        kind = chance.choice(sorted({kind for _, _, _, kind in changes}))  # constants would outnumber conditions
        start, end, new, kind = chance.choice([change for change in changes if change[3] == kind])
        old, replaced = _widen(text, start, end, new)
        line = text.count("\n", 0, start) + 1
        return Fault(f"drawn-{number}-{kind}-{path.stem}-{function.name}-{line}", name, old, replaced)


def _list_changes(text: str, function: ast.FunctionDef) -> Iterator[tuple[int, int, str, str]]:
    """Yield changes of a function's body: where a piece of text begins and ends, what replaces it, and the kind."""
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        # Columns count bytes of UTF-8.
        assert node.end_lineno is not None and node.end_col_offset is not None
        lines = text.splitlines(keepends=True)
        first = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        last = len(lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode())
        return offsets[node.lineno - 1] + first, offsets[node.end_lineno - 1] + last

    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    for node in (inner for statement in body for inner in _walk_outside_f_strings(statement)):
        match node:
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                if type(op) in OPERATORS:
                    begin, end = span(left)[1], span(right)[0]
                    yield from _replace_operator(text, begin, end, OPERATORS[type(op)])
            case ast.BoolOp(op=op, values=[left, right]):
                begin, end = span(left)[1], span(right)[0]
                yield from _replace_operator(text, begin, end, OPERATORS[type(op)])
            case ast.Constant(value=bool(value)):
                yield *span(node), str(not value), "constant"
            case ast.Constant(value=int(value)):
                yield *span(node), str(value + 1), "constant"  # a pattern takes no sum
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                begin, end = span(test)
                yield begin, end, f"(not ({text[begin:end]}))", "condition"
            case ast.Expr(value=ast.Call() as call):
                yield *span(call), "None", "dropped-call"
            case _:
                pass


def _walk_outside_f_strings(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, except what formatted strings hold: before Python 3.12 it has no right place."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk_outside_f_strings(child)


def _replace_operator(text: str, begin: int, end: int, new: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the change of the operator that stands between two operands, unless brackets or comments stand there."""
    old = text[begin:end]
    if not any(letter in old for letter in "()#\n"):
        yield begin, end, f" {new} ", "operator"


def _widen(text: str, start: int, end: int, new: str) -> tuple[str, str]:
    """Return the piece of text and its replacement, with so much of its surroundings that it stands there once."""
    first, last = start, end
    while text.count(text[first:last]) != 1:
        first = text.rfind("\n", 0, max(first - 1, 0)) + 1
        following = text.find("\n", last + 1)
        last = following if following >= 0 else len(text)
    return text[first:last], text[first:start] + new + text[end:last]
