"""Names of modules that TileLang's files import beside the language: `torch.float16`, `tvm.DataType`, `tilelang.cdiv`.

Some are synonyms of names of the language, and a few are evaluated from the target. Any other name belongs to host
programs, and is a mistake where a kernel uses it.
"""

from __future__ import annotations

from tilec.frontend.sema.context import CallEvaluator, Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.syntax import ast
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops.functions.scalar import FUNCTIONS, convert_to_dtype
from tilec.ops.language.signature import Argument, Parameter, Signature, as_dtype, as_expr
from tilec.ops.language.values import Member, Value

_FP8_TYPE_NAME = "tilelang.fp8.determine_fp8_type"
_SYNONYMS = {
    "tilelang.cdiv": "T.ceildiv", "tilelang.math.cdiv": "T.ceildiv", "triton.cdiv": "T.ceildiv",
    "tvm.DataType": "T.dtype", "tilelang.DataType": "T.dtype", "T.DataType": "T.dtype",
    **dict.fromkeys(("T.fp8.determine_fp8_type", "T.fp8.determine_torch_fp8_type"), _FP8_TYPE_NAME),
    "tilelang.next_power_of_2": "tilelang.math.next_power_of_2", "triton.next_power_of_2":
    "tilelang.math.next_power_of_2",
    **{
        f"{module}.{name}": f"T.{name}"
        for module in (
            "tilelang.cuda.intrinsics", "tilelang.cuda.intrinsics.macro",
            "tilelang.cuda.intrinsics.macro.mma_macro_generator", "tilelang.cuda.intrinsics.layout.mma_layout",
            "tilelang.cuda.language.intrinsics", "tilelang.cuda.language", "tilelang.intrinsics",
            "tilelang.intrinsics.mma_macro_generator", "tilelang.intrinsics.mma_layout",
            "bitblas.tl.mma_macro_generator",
        )
        for name in ("TensorCoreIntrinEmitter", "get_swizzle_layout")
    },
    "tilelang.layout.Layout": "T.Layout", "tilelang.layout.Fragment": "T.Fragment",
}  # fmt: skip
"""By other spelling: the name in the tables of calls."""

_SWIZZLE = "T.get_swizzle_layout"
_EARLY_SWIZZLE = "bitblas.tl.utils.get_swizzle_layout"
"""The function of BitBLAS that T.get_swizzle_layout comes from."""
_EARLY_SWIZZLE_SIGNATURE = Signature(
    "get_swizzle_layout", tuple(map(Parameter, ("row_idx", "col_idx", "row_size", "dtype")))
)
_SWIZZLED_BITS = 128 * 8
"""The bits of a part of a row."""
_EXPRESSION_MODULES = ("tvm.tirx.", "tvm.tir.")
"""The modules of TVM whose expression functions the language has as well."""
_CONST_NAME = "tvm.tirx.const"
_TVM_SYNONYMS = {"Min": "T.min", "Max": "T.max", "const": _CONST_NAME}
_CONSTANTS: dict[str, Value] = {"torch.version.hip": None, "torch.backends.mps": None}
_NEXT_POWER_SIGNATURE = Signature("next_power_of_2", (Parameter("n"),))
_FP8_TYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
_FP8_TYPE_SIGNATURE = Signature("determine_fp8_type", (Parameter("fp8_format", "e4m3"),))
_SPARSE_LAYOUT = "tilelang.cuda.intrinsics.sparse_layout."
_E_FACTOR_SIGNATURE = Signature("get_e_factor", (Parameter("a_dtype"), Parameter("meta_dtype")))
_E_REPLICATION_SIGNATURE = Signature("get_e_replicate_factor", (Parameter("a_dtype"),))
_METADATA_BITS = 4
"""The bits of metadata of a group of a 2:4 sparse matrix."""

PROFILER = "tilelang.tools.cuda.iket."
"""The module whose marks a profiler shows. They change nothing that a kernel computes."""
PROFILER_MARKS = tuple(f"{PROFILER}{name}" for name in ("mark", "range_push", "range_pop", "range_start", "range_end"))
PROFILER_RANGE = f"{PROFILER}range"

_CONST_SIGNATURE = Signature(
    "const", (Parameter("value"), Parameter("dtype", "int32"), Parameter("span", None, supported=False))
)


def resolve_host_name(path: str) -> Value:
    """Return the value, dtype or language name that a dotted host name, as `torch.float16`, stands for. Any other name
    stays a member of its module.
    """
    path = path.removeprefix("tilelang.") if path.startswith("tilelang.tvm") else path
    name = path.rpartition(".")[2]
    if path in _CONSTANTS:
        return _CONSTANTS[path]
    if path == f"torch.{name}" and name in TYPES_BY_NAME:
        return TYPES_BY_NAME[name]
    if path.startswith(_EXPRESSION_MODULES) and path.count(".") == 2:
        same = _TVM_SYNONYMS.get(name, f"T.{name}")
        return Member(same if same in FUNCTIONS or same == _CONST_NAME else path)
    return Member(_SYNONYMS.get(path, path))


def _evaluate_next_power(context: Context, path: str, node: ast.Call) -> Value:
    """Return the smallest power of two that is at least `n`, known at compile time."""
    call = evaluate.bind_operands(context, _NEXT_POWER_SIGNATURE, node)
    return 1 << max(call.read_integer("n") - 1, 0).bit_length()


def _evaluate_const(context: Context, path: str, node: ast.Call) -> Value:
    """Evaluate TVM's `const(value, dtype)` to a number of the dtype; refuse a value known only at run time."""
    call = evaluate.bind_operands(context, _CONST_SIGNATURE, node)
    if not isinstance(call["value"].value, int | float):
        call.refuse("value", "a number known at compile time")
    return convert_to_dtype(call["value"], as_dtype(call["dtype"]))


def _evaluate_fp8_type(context: Context, path: str, node: ast.Call) -> Value:
    """Return the dtype for `determine_fp8_type("e5m2")`: float8_e4m3fn or float8_e5m2; refuse other formats."""
    call = evaluate.bind_operands(context, _FP8_TYPE_SIGNATURE, node)
    found = call["fp8_format"].value
    if not isinstance(found, str) or found not in _FP8_TYPES:
        call.refuse("fp8_format", " or ".join(f'"{each}"' for each in _FP8_TYPES))
    return TYPES_BY_NAME[_FP8_TYPES[found]]


def _evaluate_e_factor(context: Context, path: str, node: ast.Call) -> Value:
    """Return the number of elements of A that one T.gemm_sp metadata element describes, for `get_e_factor`."""
    call = evaluate.bind_operands(context, _E_FACTOR_SIGNATURE, node)
    group = 2 if as_dtype(call["a_dtype"]).bits == 32 else 4
    return as_dtype(call["meta_dtype"]).bits // _METADATA_BITS * group


def _evaluate_e_replication(context: Context, path: str, node: ast.Call) -> Value:
    """Return 1 for A of at most 8 bits, else 2: the neighbouring threads that hold the same T.gemm_sp metadata."""
    call = evaluate.bind_operands(context, _E_REPLICATION_SIGNATURE, node)
    return 1 if as_dtype(call["a_dtype"]).bits <= 8 else 2


def _evaluate_early_swizzle(context: Context, path: str, node: ast.Call) -> Value:
    """Return the row and column of an element in a swizzled tile, for a call of BitBLAS's get_swizzle_layout."""
    call = evaluate.bind_call(context, _EARLY_SWIZZLE_SIGNATURE, node)
    place = context.dispatch.values[_SWIZZLE](context, _SWIZZLE, node)
    assert isinstance(place, tuple)
    part, row, column = (as_expr(Argument(each, node.span)) for each in place)
    part_size = _SWIZZLED_BITS // call.read_dtype("dtype").bits
    return row, add_exprs(column, scale_expr(part, part_size))


def resolve_attribute(context: Context, path: str) -> Value:
    """Resolve a dotted host name, with PyTorch's device properties taken from the target's GPU."""
    if path.startswith("torch.cuda.get_device_properties()."):
        (major, minor), count = context.machine.capability(), context.machine.multiprocessors()
        properties: dict[str, Value] = {"multi_processor_count": count, "major": major, "minor": minor}
        name = path.rpartition(".")[2]
        if name in properties:
            return properties[name]
    return resolve_host_name(path)


HOST_CALLS: dict[str, CallEvaluator] = {
    "tilelang.math.next_power_of_2": _evaluate_next_power,
    _CONST_NAME: _evaluate_const,
    _EARLY_SWIZZLE: _evaluate_early_swizzle,
    _FP8_TYPE_NAME: _evaluate_fp8_type,
    f"{_SPARSE_LAYOUT}get_e_factor": _evaluate_e_factor,
    f"{_SPARSE_LAYOUT}get_e_replicate_factor": _evaluate_e_replication,
    "torch.cuda.get_device_capability": lambda context, path, node: context.machine.capability(),
    "torch.cuda.is_available": lambda context, path, node: True,
    "torch.cuda.get_device_properties": lambda context, path, node: Member(f"{path}()"),
}
"""By dotted name: the functions that can be called."""
