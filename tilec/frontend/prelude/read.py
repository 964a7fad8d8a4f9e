"""The functions of the prelude. A file is parsed at the first use of one of its names."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import parse_file
from tilec.ops.language.signature import Parameter, Signature
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

NAMES_BY_FILE: dict[str, tuple[str, ...]] = {
    "integers": (
        "T.floordiv", "T.floormod", "T.truncdiv", "T.truncmod", "T.align_up", "T.bitwise_and",
        "T.bitwise_or", "T.bitwise_xor", "T.bitwise_not", "T.shift_left", "T.shift_right",
    ),
    "numbers": ("T.clamp",),
    "indices": ("T.index_to_coordinates", "T.linear_index", "T.get_swizzle_layout"),
}  # fmt: skip
"""The names by the file that defines them. In the files they have no `T.`."""
FILE_BY_NAME: dict[str, str] = {name: file for file, names in NAMES_BY_FILE.items() for name in names}
"""The files by name."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function of the prelude. `parameters` names its arguments in `body`, with one name for all if variadic."""

    signature: Signature
    doc: str
    parameters: tuple[str, ...]
    body: tuple[ast.Stmt, ...]


def find_definition(name: str) -> Definition:
    """Return the definition of a prelude function by its `T.` name, parsing its file at first use."""
    return _read_definitions(FILE_BY_NAME[name])[name]


@cache
def _read_definitions(file: str) -> dict[str, Definition]:
    """Parse a file of the prelude, once, and return its definitions by `T.` name."""
    path = Path(__file__).with_name(f"{file}.tl")
    module = parse_file(SourceFile(path.name, path.read_text(encoding="utf-8")))
    functions = {node.name: node for node in module.body if isinstance(node, ast.Function)}
    return {name: _make_definition(name, functions[name.removeprefix("T.")]) for name in NAMES_BY_FILE[file]}


def _make_definition(name: str, function: ast.Function) -> Definition:
    """Build a prelude function's definition from its syntax: signature, docstring and body; raise an error without
    docstring. A parameter with a default is None where it is not given.
    """
    parameters = tuple(p.name for p in function.params)
    is_variadic = [p.kind for p in function.params] == ["*"]
    bound = (Parameter(p.name) if p.default is None else Parameter(p.name, None) for p in function.params)
    signature = Signature(name, () if is_variadic else tuple(bound), is_variadic)
    match function.body:
        case (ast.Evaluate(value=ast.String(value=doc)), *body):
            return Definition(signature, doc, parameters, tuple(body))
        case _:
            raise InternalError(f"{name} has no doc in the prelude")
