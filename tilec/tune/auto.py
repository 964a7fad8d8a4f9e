"""Finds the tunable constants of a kernel's text: whole numbers, by their use in the kernel.

A constant in `num_stages=`, or as the value of a buffer in `T.annotate_pipeline`, is a number of stages. In `threads=`
it is a number of threads. A constant that alone is an extent of an allocation is the edge of a tile. Constants that the
shape of a tensor depends on define the problem and are not tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.frontend.syntax import ast
from tilec.tune.space import Space, Value, space

Role = Literal["tile", "stages", "threads"]

STAGES = (2, 3, 4, 6)
THREADS = (128, 256)
LEAST_EDGE, MOST_EDGE = 16, 256
"""Edges of tiles: a tensor-core instruction has 16 elements along K, and at most 256 along N."""
_TENSORS = ("Tensor", "StridedTensor", "Buffer", "empty", "const")


def constants(module: ast.Module) -> dict[str, Value | None]:
    """Return the constants that `-D` can set, in the order of the file: assigned at its top level, or parameters of
    functions. The value is None if none is written as a literal."""
    found: dict[str, Value | None] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    found |= _assigned(target, value)
            case ast.AnnotatedAssign(target=target, value=value) if value is not None:
                found |= _assigned(target, value)
            case ast.Function(params=params):
                found |= {p.name: None if p.default is None else _literal(p.default) for p in params if p.name}
    return found


def roles(module: ast.Module) -> dict[str, Role]:
    """Return the role of each tunable whole number, in the order of the file."""
    used: dict[str, Role] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for name, role in _roles_in(node):
                used.setdefault(name, role)
    problem = _of_the_problem(module)
    whole = [name for name, value in constants(module).items() if type(value) is int and value > 0]
    return {name: used[name] for name in whole if name in used and name not in problem}


def auto(module: ast.Module) -> Space:
    """Return the space of half and twice every tile edge, and a few numbers of stages and threads."""
    written = constants(module)
    return space([(name, _values(role, written[name])) for name, role in roles(module).items()])


def literal_stages(module: ast.Module) -> list[tuple[int, int]]:
    """Return (line, number) of each literal `num_stages=4`, which no constant makes tunable."""
    return [
        (keyword.value.span.line, keyword.value.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.name == "num_stages" and isinstance(keyword.value, ast.Number) and type(keyword.value.value) is int
    ]


def _values(role: Role, written: Value | None) -> Sequence[int]:
    assert isinstance(written, int), "only whole numbers have roles"
    match role:
        case "stages":
            return sorted({*STAGES, written})
        case "threads":
            return sorted({*THREADS, written})
        case "tile":
            tried = (written // 2, written, written * 2)
            return [edge for edge in tried if edge == written or LEAST_EDGE <= edge <= MOST_EDGE]


def _roles_in(call: ast.Call) -> Iterator[tuple[str, Role]]:
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name):
            if keyword.name in ("num_stages", "stage"):
                yield keyword.value.id, "stages"
            elif keyword.name == "threads":
                yield keyword.value.id, "threads"
    callee = _last(call.function)
    if callee == "annotate_pipeline":
        for argument in call.args:
            for _, value in argument.items if isinstance(argument, ast.Dict) else ():
                if isinstance(value, ast.Name):
                    yield value.id, "stages"
    elif callee.startswith("alloc_") and call.args and isinstance(call.args[0], ast.Tuple | ast.List):
        for item in call.args[0].items:
            if isinstance(item, ast.Name):
                yield item.id, "tile"


def _of_the_problem(module: ast.Module) -> set[str]:
    """Return the names that shapes of tensors depend on."""
    depends: dict[str, set[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in _names(target):
                    depends.setdefault(name, set()).update(_names(node.value))
    found: set[str] = set()
    new = {name for node in ast.walk(module) if isinstance(node, ast.Call | ast.Subscript) for name in _shape(node)}
    while new:
        found |= new
        new = {other for name in new for other in depends.get(name, ())} - found
    return found


def _shape(node: ast.Call | ast.Subscript) -> set[str]:
    """Return the names in the shape of a tensor: `T.Tensor((M, N), dtype)` or `T.Tensor[[M, N], dtype]`."""
    callee = node.function if isinstance(node, ast.Call) else node.value
    if _last(callee) not in _TENSORS:
        return set()
    arguments: Sequence[ast.Node] = node.args if isinstance(node, ast.Call) else node.indices
    return {name for part in arguments for name in _names(part)}


def _names(node: ast.Node) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _last(callee: ast.Expr) -> str:
    match callee:
        case ast.Attribute(name=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _assigned(target: ast.Expr, value: ast.Expr) -> dict[str, Value | None]:
    match target, value:
        case ast.Name(id=name), _:
            return {name: _literal(value)}
        case (ast.Tuple(items=targets), ast.Tuple(items=values)) if len(targets) == len(values):
            pairs = zip(targets, values, strict=True)
            return {n.id: _literal(v) for n, v in pairs if isinstance(n, ast.Name) and not isinstance(v, ast.Starred)}
        case _:
            return dict.fromkeys(sorted(_names(target)))


def _literal(value: ast.Expr) -> Value | None:
    match value:
        case ast.Number(value=number) | ast.String(value=number):
            return number
        case ast.Constant(name="True" | "False" as name):
            return name == "True"
        case _:
            return None
