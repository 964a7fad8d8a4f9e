"""T.TensorCoreIntrinEmitter: the object that TileLang's kernels of single mma instructions make, and its attributes.

It is known at compile time. Its methods are statements on tiles, of `operations.emitter_methods`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import FLOAT16
from tilec.ops.language.signature import Call, Parameter, Signature, find_nearest_name
from tilec.ops.language.values import Method, MmaEmitter, Value
from tilec.support.diagnostics import raise_error, suggest_replacement

EMITTER_SIGNATURE = Signature("T.TensorCoreIntrinEmitter", (
    *(Parameter(name, FLOAT16) for name in ("a_dtype", "b_dtype", "accum_dtype")),
    Parameter("a_transposed", False), Parameter("b_transposed", False),
    Parameter("block_row_warps", 2), Parameter("block_col_warps", 2),
    Parameter("warp_row_tiles", 8), Parameter("warp_col_tiles", 8), Parameter("chunk", 16),
    Parameter("reduce_k", 1, supported=False), Parameter("num_elems_per_byte", 1, supported=False),
    Parameter("is_m_first", False), Parameter("thread_var", None, supported=False),
))  # fmt: skip

_THREAD = Parameter("thread_bindings", None, keyword_only=True)
"""The thread index that earlier versions of TileLang passed. tilec knows it."""
METHOD_SIGNATURES = {
    "ldmatrix_a": Signature(
        ".ldmatrix_a", (*map(Parameter, ("A_local_buf", "A_shared_buf", "ki")), Parameter("rk", 0), _THREAD)
    ),
    "ldmatrix_b": Signature(
        ".ldmatrix_b", (*map(Parameter, ("B_local_buf", "B_shared_buf", "ki")), Parameter("rk", 0), _THREAD)
    ),
    "mma": Signature(".mma", (*map(Parameter, ("A_local_buf", "B_local_buf", "C_local_buf")), Parameter("k_inner", 0))),
    "stmatrix": Signature(
        ".stmatrix",
        (*map(Parameter, ("C_local_buf", "C_buf")), Parameter("pid_m", None), Parameter("pid_n", None), _THREAD),
    ),
}
"""The methods. mma takes `k_inner` for operands with all slices, which an array of T.alloc_local is not."""


def make_emitter(context: Context, call: Call) -> MmaEmitter:
    """Build a T.TensorCoreIntrinEmitter; refuse tiles of a warp that are not whole mma instructions. Errors: a size
    that is not positive, A of less than 8 bits.
    """
    sizes = ("block_row_warps", "block_col_warps", "warp_row_tiles", "warp_col_tiles", "chunk")
    for name in sizes:
        if call.read_integer(name) < 1:
            call.refuse(name, "a positive integer")
    a, b, c = (call.read_dtype(name) for name in ("a_dtype", "b_dtype", "accum_dtype"))
    transposed_a, transposed_b = (call.read_boolean(name) for name in ("a_transposed", "b_transposed"))
    made = MmaEmitter(a, b, c, transposed_a, transposed_b, *map(call.read_integer, sizes))
    if made.a_dtype.bits < 8:
        call.refuse("a_dtype", "a type of at least 8 bits")
    rows, _, depth = made.micro_shape
    if made.warp_row_tiles % rows:
        call.refuse("warp_row_tiles", f"a multiple of {rows}, the rows of one instruction")
    if made.warp_col_tiles % 8:
        call.refuse("warp_col_tiles", "a multiple of 8, the columns of one instruction")
    if made.chunk < depth:
        call.refuse("chunk", f"at least {depth}, the elements of {made.a_dtype} along K that one instruction takes")
    return made


def resolve_attribute(emitter: MmaEmitter, node: ast.Attribute) -> Value:
    """Return the value of `emitter.name`: a number, type or method of TileLang's class; refuse other names."""
    if node.name in METHOD_SIGNATURES:
        return Method(emitter, node.name)
    if node.name not in _ATTRIBUTES:
        title = f"T.TensorCoreIntrinEmitter has no `{node.name}` here"
        near = find_nearest_name(node.name, (*METHOD_SIGNATURES, *_ATTRIBUTES))
        way_out = f"did you mean `{near}`?" if near else "its methods are " + ", ".join(METHOD_SIGNATURES)
        raise_error("unknown-attribute", title, node.span, help=way_out, fix=suggest_replacement(node.name, near))
    return _ATTRIBUTES[node.name](emitter)


def _make_field_reader(name: str) -> Callable[[MmaEmitter], Value]:
    """Return a function that reads the field with this name from an emitter."""

    def read_field(emitter: MmaEmitter) -> Value:
        """Return an emitter's field `name`."""
        value: Value = getattr(emitter, name)
        return value

    return read_field


def _count_registers(first: int, second: int) -> Callable[[MmaEmitter], Value]:
    """Return a function that counts one thread's elements of an emitter's micro tile along two axes of (M, N, K)."""
    return lambda emitter: emitter.micro_shape[first] * emitter.micro_shape[second] // WARP_THREADS


_ATTRIBUTES: dict[str, Callable[[MmaEmitter], Value]] = {
    **{
        name: _make_field_reader(name)
        for name in (
            "a_dtype", "b_dtype", "accum_dtype", "a_transposed", "b_transposed", "block_row_warps", "block_col_warps",
            "warp_row_tiles", "warp_col_tiles", "chunk",
        )
    },
    "threads": lambda emitter: emitter.thread_count,
    "WARP_SIZE": lambda emitter: WARP_THREADS,
    **dict.fromkeys(("micro_size_x", "M_DIM"), lambda emitter: emitter.micro_shape[0]),
    **dict.fromkeys(("micro_size_y", "n_dim"), lambda emitter: emitter.micro_shape[1]),
    **dict.fromkeys(("micro_size_k", "k_dim"), lambda emitter: emitter.micro_shape[2]),
    "warp_rows": lambda emitter: emitter.warp_row_tiles // emitter.micro_shape[0],
    "warp_cols": lambda emitter: emitter.warp_col_tiles // emitter.micro_shape[1],
    "local_size_a": _count_registers(0, 2),
    "local_size_b": _count_registers(1, 2),
    "local_size_out": _count_registers(0, 1),
    "reduce_k": lambda emitter: 1,
    "num_elems_per_byte": lambda emitter: 1,
}  # fmt: skip
"""By the names of TileLang."""
