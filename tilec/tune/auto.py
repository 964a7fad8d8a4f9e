"""Finds the tunable constants of a kernel's text: whole numbers, by their use in the kernel.

A constant in `num_stages=`, or as the value of a buffer in `T.annotate_pipeline`, is a number of stages. In `threads=`
it is a number of threads. A constant that alone is an extent of an allocation is the edge of a tile. Constants that the
shape of a tensor depends on define the problem and are not tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.frontend.syntax import ast
from tilec.tune.space import Space, Value, build_space

ConstantRole = Literal["tile", "stages", "threads"]
STAGE_COUNTS = (2, 3, 4, 6)
THREAD_COUNTS = (128, 256)
MIN_TILE_EDGE, MAX_TILE_EDGE = 16, 256
"""Edges of tiles: a tensor-core instruction has 16 elements along K, and at most 256 along N."""
_TENSOR_CALLS = ("Tensor", "StridedTensor", "Buffer", "empty", "const")


def find_constants(module: ast.Module) -> dict[str, Value | None]:
    """Return the constants that -D can set, with their literal values (None without), in the order of the file.

    They are assigned at the file's top level, or are parameters of functions.
    """
    found: dict[str, Value | None] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    found |= _read_assignment(target, value)
            case ast.AnnotatedAssign(target=target, value=value) if value is not None:
                found |= _read_assignment(target, value)
            case ast.Function(params=params):
                found |= {p.name: None if p.default is None else _read_literal(p.default) for p in params if p.name}
    return found


def find_tunable_roles(module: ast.Module) -> dict[str, ConstantRole]:
    """Return the role, by first use, of each tunable positive whole constant (tile, stages or threads), in file order.

    Constants that tensor shapes depend on are not tunable.
    """
    used: dict[str, ConstantRole] = {}
    for node in ast.walk_nodes(module):
        if isinstance(node, ast.Call):
            for name, role in _find_roles_in_call(node):
                used.setdefault(name, role)
    problem = _find_problem_names(module)
    whole = [name for name, value in find_constants(module).items() if type(value) is int and value > 0]
    return {name: used[name] for name in whole if name in used and name not in problem}


def build_auto_space(module: ast.Module) -> Space:
    """Return the search space of half and twice every tile edge, and a few numbers of stages and threads."""
    written = find_constants(module)
    return build_space([(name, _list_values(role, written[name])) for name, role in find_tunable_roles(module).items()])


def find_literal_stages(module: ast.Module) -> list[tuple[int, int]]:
    """Return (line, number) of each literal such as `num_stages=4`, which no constant makes tunable."""
    return [
        (keyword.value.span.line, keyword.value.value)
        for node in ast.walk_nodes(module)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.name == "num_stages" and isinstance(keyword.value, ast.Number) and type(keyword.value.value) is int
    ]


def _list_values(role: ConstantRole, written: Value | None) -> Sequence[int]:
    """Return the values to try for a constant of this role, the written one among them."""
    assert isinstance(written, int), "only whole numbers have roles"
    match role:
        case "stages":
            return sorted({*STAGE_COUNTS, written})
        case "threads":
            return sorted({*THREAD_COUNTS, written})
        case "tile":
            tried = (written // 2, written, written * 2)
            return [edge for edge in tried if edge == written or MIN_TILE_EDGE <= edge <= MAX_TILE_EDGE]


def _find_roles_in_call(call: ast.Call) -> Iterator[tuple[str, ConstantRole]]:
    """Yield the names among a call's arguments, each with the role that its place gives it."""
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name):
            if keyword.name in ("num_stages", "stage"):
                yield keyword.value.id, "stages"
            elif keyword.name == "threads":
                yield keyword.value.id, "threads"
    callee = _get_callee_name(call.function)
    if callee == "annotate_pipeline":
        for argument in call.args:
            for _, value in argument.items if isinstance(argument, ast.Dict) else ():
                if isinstance(value, ast.Name):
                    yield value.id, "stages"
    elif callee.startswith("alloc_") and call.args and isinstance(call.args[0], ast.Tuple | ast.List):
        for item in call.args[0].items:
            if isinstance(item, ast.Name):
                yield item.id, "tile"


def _find_problem_names(module: ast.Module) -> set[str]:
    """Return the names that tensor shapes depend on, directly or through assignments."""
    depends: dict[str, set[str]] = {}
    for node in ast.walk_nodes(module):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in _collect_names(target):
                    depends.setdefault(name, set()).update(_collect_names(node.value))
    found: set[str] = set()
    new = {
        name
        for node in ast.walk_nodes(module)
        if isinstance(node, ast.Call | ast.Subscript)
        for name in _find_shape_names(node)
    }
    while new:
        found |= new
        new = {other for name in new for other in depends.get(name, ())} - found
    return found


def _find_shape_names(node: ast.Call | ast.Subscript) -> set[str]:
    """Return the names in a tensor's shape, as in `T.Tensor((M, N), dtype)`; none for another node."""
    callee = node.function if isinstance(node, ast.Call) else node.value
    if _get_callee_name(callee) not in _TENSOR_CALLS:
        return set()
    arguments: Sequence[ast.Node] = node.args if isinstance(node, ast.Call) else node.indices
    return {name for part in arguments for name in _collect_names(part)}


def _collect_names(node: ast.Node) -> set[str]:
    """Return all names that occur in a syntax node."""
    return {part.id for part in ast.walk_nodes(node) if isinstance(part, ast.Name)}


def _get_callee_name(callee: ast.Expr) -> str:
    """Return the last name of a callee, `gemm` of `T.gemm`; empty if it is no name."""
    match callee:
        case ast.Attribute(name=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _read_assignment(target: ast.Expr, value: ast.Expr) -> dict[str, Value | None]:
    """Return the names that an assignment binds, each with its literal value or None."""
    match target, value:
        case ast.Name(id=name), _:
            return {name: _read_literal(value)}
        case (ast.Tuple(items=targets), ast.Tuple(items=values)) if len(targets) == len(values):
            named = ((n.id, v) for n, v in zip(targets, values, strict=True) if isinstance(n, ast.Name))
            return {name: _read_literal(v) for name, v in named if not isinstance(v, ast.Starred)}
        case _:
            return dict.fromkeys(sorted(_collect_names(target)))


def _read_literal(value: ast.Expr) -> Value | None:
    """Return the value of a literal; None for any other expression."""
    match value:
        case ast.Number(value=number) | ast.String(value=number):
            return number
        case ast.Constant(name="True" | "False" as name):
            return name == "True"
        case _:
            return None
