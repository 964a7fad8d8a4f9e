"""The names of the language, and diagnostics for names that cannot be used as they are."""

from __future__ import annotations

from typing import NoReturn

from tilec.frontend.prelude.read import FILE_BY_NAME as PRELUDE
from tilec.frontend.sema.launch.hints import HINTS
from tilec.frontend.sema.launch.schedule_descriptions import SCHEDULE_NAMES
from tilec.frontend.sema.roles.pipeline_records import PIPELINE_SIGNATURES
from tilec.frontend.syntax import ast
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops import registry
from tilec.ops.copies.thread_copy import ACCESS_PTR, THREAD_COPY
from tilec.ops.functions.scalar import FUNCTIONS
from tilec.ops.functions.signatures import DP4A, LAUNCH_VALUES, PTX, VIEWS
from tilec.ops.functions.warp_functions import WARP_FUNCTIONS
from tilec.ops.language.other_languages import find_equivalent
from tilec.ops.language.signature import Required, Signature, find_nearest_name
from tilec.ops.language.unavailable_names import REFUSED, refuse_unavailable
from tilec.ops.language.vectors import LDG, VECTOR_TYPES, WIDE_ACCESSES
from tilec.ops.reductions.reducer import ALLOCATE as ALLOCATE_REDUCER, UPDATE
from tilec.support.diagnostics import raise_error, suggest_replacement
from tilec.support.source import Span

ALLOCATION_NAMES = (
    "T.alloc_shared", "T.alloc_fragment", "T.alloc_var", "T.alloc_local", "T.alloc_global", "T.alloc_barrier",
    "T.alloc_cluster_barrier", "T.alloc_tmem",
    ALLOCATE_REDUCER.name, *PIPELINE_SIGNATURES,
)  # fmt: skip
LOOP_NAMES = (
    "T.serial", "T.Serial", "T.grid", "T.unroll", "T.Unroll", "T.Pipelined", "T.Parallel",
    "T.parallel", "T.vectorized", "T.Vectorized",
    "T.Persistent", "range",
)  # fmt: skip
EAGER_NAMES = ("T.const", "T.empty")
DIALECT_NAME = "T.__tilelang_dialect__"
"""The name of the constant with the dialect of the language, which is always CUDA."""
OTHER_NAMES = (
    "T.Fragment", "T.Layout", "T.Kernel", "T.ClusterKernel", "T.Tensor", "T.Buffer", "T.prim_func", "T.macro",
    "T.inline", "T.Ref", "T.Var", "T.PersistentTileScheduler", "T.SharedBuffer", "T.FragmentBuffer",
    "T.GemmWarpPolicy", "T.loop_break", "T.evaluate", "T.print", "T.rng_init", "T.rng_rand", "T.rng_rand_float",
    "T.ws", "T.WarpSpecialize", "T.StridedTensor", "T.ptr", "T.Ramp", "T.make_tensor", "T.make_tensor_from_addr",
    "T.TensorCoreIntrinEmitter", DIALECT_NAME, *EAGER_NAMES,
    *SCHEDULE_NAMES,
)  # fmt: skip


def list_supported_names() -> list[str]:
    """Return every supported `T.*` name: operations, functions, allocations, loops, hints, dtypes and others."""
    spellings = [f"T.{name}" for name in registry.list_spelling_names()]
    functions = [name for name in (*FUNCTIONS, *PRELUDE) if name.startswith("T.")]
    types = [f"T.{name}" for name in TYPES_BY_NAME]
    return [
        *spellings, *functions, *ALLOCATION_NAMES, *LOOP_NAMES, *OTHER_NAMES, *HINTS, *LAUNCH_VALUES, *WARP_FUNCTIONS,
        *VIEWS, DP4A.name, PTX.name, "T.tcgen05_sf_warp_transpose", UPDATE.name, *types, *VECTOR_TYPES, *WIDE_ACCESSES,
        LDG.name, THREAD_COPY.name, ACCESS_PTR.name,
    ]  # fmt: skip


def refuse_call(path: str, node: ast.Call) -> NoReturn:
    """Raise the error that says why this name cannot be called here for a value, and what to write instead."""
    span = node.span
    name = path.removeprefix("T.")
    if path.startswith("T.") and (spelling := registry.find_spelling(name)):
        raise_error("not-a-value", f"{path} gives no value", span, help=_suggest_statement(spelling.signature, node))
    if path in ALLOCATION_NAMES:
        raise_error("not-a-value", f"{path} needs a name", span, help=f"write `name = {path}(shape, dtype)`")
    if path in LOOP_NAMES:
        raise_error("not-a-value", f"{path} belongs in a for statement", span, help=f"write `for i in {path}(…):`")
    if path in HINTS or path in ("T.print", "T.rng_init") or (path in WIDE_ACCESSES and WIDE_ACCESSES[path].stores):
        raise_error("not-a-value", f"{path} gives no value", span, help="write it as a statement of its own")
    if path in EAGER_NAMES:
        title = f"{path} belongs in a function that is a kernel under @tilelang.jit"
        way_out = "in other kernels, sizes are constants or T.dynamic, and outputs are parameters"
        raise_error("misplaced-statement", title, span, help=way_out)
    if path in ("T.Kernel", "T.ClusterKernel"):
        raise_error("not-a-value", f"{path} belongs in a with statement", span, help=f"write `with {path}(…) as bx:`")
    if path in ("T.ws", "T.WarpSpecialize"):
        raise_error("not-a-value", f"{path} belongs in a with statement", span, help=f"write `with {path}(0):`")
    if not path.startswith("T."):
        help_text = suggest_for_foreign(path)
        raise_error("foreign-call", f"{path} cannot be called in a kernel", node.function.span, help=help_text)
    refuse_name(path, node.function.span)


def _suggest_statement(signature: Signature, node: ast.Call) -> str:
    """Return how to write an operation as a statement when it was used as a value, with missing tiles named. They are
    named as its parameters.
    """
    required = [p.name for p in signature.parameters if isinstance(p.default, Required)]
    given = {p.name: arg for p, arg in zip(signature.parameters, node.args, strict=False)}
    given |= {keyword.name: keyword.value for keyword in node.keywords if keyword.name}
    lacking = [name for name in required if name not in given or isinstance(given[name], ast.Number)]
    if not lacking or signature.variadic:
        return "write it as a statement of its own"
    names = (given.get(name) for name in required)
    shown = [arg.id if isinstance(arg, ast.Name) else name for name, arg in zip(required, names, strict=True)]
    shown += [f"{k.name}={k.value.value}" for k in node.keywords if isinstance(k.value, ast.Number)]
    return f"write {signature.name}({', '.join(shown)}) as a statement, which puts the result in `{lacking[-1]}`"


def suggest_for_foreign(path: str) -> str | None:
    """Return what to write for a name of another module: from the table, or `T.` and its last word; None if unknown."""
    name = f"T.{path.rpartition('.')[2]}"
    if name in list_supported_names():
        return find_equivalent(path) or f"write {name}"
    refused = REFUSED.get(name.removeprefix("T.")) if path.startswith("tvm.") else None
    return find_equivalent(path) or (None if refused is None else refused.help)


def is_supported(path: str) -> bool:
    """Return whether a dotted `T.` path is a supported name or the beginning of one."""
    return any(name == path or name.startswith(f"{path}.") for name in list_supported_names())


def refuse_name(path: str, span: Span) -> NoReturn:
    """Raise the error for a `T.` name that tilec does not support or that cannot be used here, with the nearest
    name.
    """
    if (help_text := find_equivalent(path)) is not None:
        raise_error("unsupported-operation", f"{path} is not supported", span, help=help_text)
    refuse_unavailable(path, span)
    if path in list_supported_names():
        use = f"write `for i in {path}(…):`" if path in LOOP_NAMES else f"`tilec explain {path}` shows its use"
        raise_error("misplaced-statement", f"{path} cannot be used here", span, help=use)
    near = find_nearest_name(path.removeprefix("T."), [n.removeprefix("T.") for n in list_supported_names()])
    title = f"{path} is not supported"
    way_out = f"did you mean T.{near}?" if near else None
    raise_error("unsupported-operation", title, span, help=way_out, fix=suggest_replacement(path, near and f"T.{near}"))
