"""Names of modules that TileLang's files import beside the language: `torch.float16`, `tvm.DataType`, `tilelang.cdiv`.

Some are synonyms of names of the language, and a few are evaluated from the target. Any other name belongs to host
programs, and is a mistake where a kernel uses it.
"""

from __future__ import annotations

from tilec.frontend.sema import evaluate
from tilec.frontend.sema.context import Context, ReadsValue
from tilec.frontend.syntax import ast
from tilec.ir.types import BY_NAME
from tilec.ops.scalar import FUNCTIONS, convert
from tilec.ops.signature import Parameter, Signature, as_dtype, bind
from tilec.ops.values import Member, Value

_SAME = {
    "tilelang.cdiv": "T.ceildiv", "tilelang.math.cdiv": "T.ceildiv", "triton.cdiv": "T.ceildiv",
    "tvm.DataType": "T.dtype", "tilelang.DataType": "T.dtype", "T.DataType": "T.dtype",
    "tilelang.next_power_of_2": "tilelang.math.next_power_of_2", "triton.next_power_of_2":
    "tilelang.math.next_power_of_2",
}  # fmt: skip
"""By other spelling: the name in the tables of calls."""

_EXPRESSIONS = ("tvm.tirx.", "tvm.tir.")
"""The modules of TVM whose expression functions the language has as well."""
_CONST = "tvm.tirx.const"
_IN_TVM = {"Min": "T.min", "Max": "T.max", "const": _CONST}

_CONSTANTS: dict[str, Value] = {"torch.version.hip": None, "torch.backends.mps": None}
_NEXT_POWER = Signature("next_power_of_2", (Parameter("n"),))
_TYPED = Signature("const", (Parameter("value"), Parameter("dtype", "int32"), Parameter("span", None, supported=False)))


def meaning(path: str) -> Value:
    """Resolve a dotted name of a module to a name of the language, or to a value."""
    path = path.removeprefix("tilelang.") if path.startswith("tilelang.tvm") else path
    name = path.rpartition(".")[2]
    if path in _CONSTANTS:
        return _CONSTANTS[path]
    if path == f"torch.{name}" and name in BY_NAME:
        return BY_NAME[name]
    if path.startswith(_EXPRESSIONS) and path.count(".") == 2:
        same = _IN_TVM.get(name, f"T.{name}")
        return Member(same if same in FUNCTIONS or same == _CONST else path)
    return Member(_SAME.get(path, path))


def _next_power_of_2(context: Context, path: str, node: ast.Call) -> Value:
    call = bind(_NEXT_POWER, *evaluate.operands(context, node), node.span)
    return 1 << max(call.integer("n") - 1, 0).bit_length()


def _const(context: Context, path: str, node: ast.Call) -> Value:
    """Evaluate a typed constant."""
    call = bind(_TYPED, *evaluate.operands(context, node), node.span)
    if not isinstance(call["value"].value, int | float):
        call.refuse("value", "a number known at compile time")
    return convert(call["value"], as_dtype(call["dtype"]))


def _capability(context: Context, path: str, node: ast.Call) -> Value:
    return context.capability()


def _is_available(context: Context, path: str, node: ast.Call) -> Value:
    return True


def _properties(context: Context, path: str, node: ast.Call) -> Value:
    return Member(f"{path}()")


def attribute(context: Context, path: str) -> Value:
    """Resolve a dotted name that may depend on the target."""
    if path.startswith("torch.cuda.get_device_properties()."):
        major, minor = context.capability()
        properties: dict[str, Value] = {
            "multi_processor_count": context.multiprocessors(), "major": major, "minor": minor,
        }  # fmt: skip
        name = path.rpartition(".")[2]
        if name in properties:
            return properties[name]
    return meaning(path)


CALLS: dict[str, ReadsValue] = {
    "tilelang.math.next_power_of_2": _next_power_of_2,
    _CONST: _const,
    "torch.cuda.get_device_capability": _capability,
    "torch.cuda.is_available": _is_available,
    "torch.cuda.get_device_properties": _properties,
}
"""By dotted name: the functions that can be called."""
