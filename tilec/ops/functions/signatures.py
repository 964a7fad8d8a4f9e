"""Functions without an operation of their own: T.dp4a, T.ptx, T.reshape and T.view, and the indices of threads and
blocks, whose values the launch decides.
"""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.expr import cast_expr
from tilec.ir.types import INT8, INT32, UINT8
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.language.values import EXPR_TYPES, Access
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

PTX = Signature("T.ptx", (Parameter("text"), Parameter("ins", ()), Parameter("dtype", None), Parameter("out", None)))
"""`text` has {0} for the result, of type `dtype`, and {1}, {2}, … for `ins`; a statement sets the element `out`."""


@dataclass(frozen=True, slots=True)
class DocumentedFunction:
    """A `T.*` function that the front end itself evaluates: a view, or an index or an extent of the launch."""

    signature: Signature
    doc: str


VIEWS: dict[str, DocumentedFunction] = {
    v.signature.name: v
    for v in (
        DocumentedFunction(
            Signature("T.reshape", (Parameter("src"), Parameter("shape"))),
            "the elements of a tensor, tile or array of each thread, row by row, in another shape",
        ),
        DocumentedFunction(
            Signature("T.view", (Parameter("src"), Parameter("shape", None), Parameter("dtype", None))),
            "the same, or the bits of each row as another type, or both; without `shape`, rows keep their bytes. "
            "A view with narrower elements cannot be written. T.Tensor(shape, dtype, tile.data) is the same",
        ),
    )
}

DATA = "data"
"""The attribute `tile.data`: the start of a tensor's or tile's elements, for a view of them."""
AT_DATA = {
    name: Signature(name, (Parameter("shape"), Parameter("dtype", "float32"), Parameter("data", None)))
    for name in ("T.Tensor", "T.Buffer")
}
"""`T.Tensor(shape, dtype, tile.data)` in a kernel is a T.view of the tile."""


_DIM = Parameter("dim", 0)
_WARP_SIZE = Parameter("warp_size", None)
BINDING = Signature(
    "T.thread_binding",
    (
        Parameter("start"),
        Parameter("stop", None),
        Parameter("thread", None),
        Parameter("annotations", None, supported=False, keyword_only=True),
    ),
)


def _make_launch_value(name: str, doc: str, *parameters: Parameter) -> DocumentedFunction:
    """Return the row for a launch index or extent of this name, with these parameters."""
    return DocumentedFunction(Signature(name, parameters), doc)


LAUNCH_VALUES: dict[str, DocumentedFunction] = {
    p.signature.name: p
    for p in (
        _make_launch_value("T.get_thread_binding", "the thread's index, along x, y or z of `threads=`", _DIM),
        _make_launch_value("T.get_thread_bindings", "all three of them"),
        _make_launch_value("T.get_thread_extent", "the number of threads of a block along x, y or z", _DIM),
        _make_launch_value("T.get_thread_extents", "all three of them"),
        _make_launch_value("T.get_block_binding", "the block's index, along x, y or z of the grid", _DIM),
        _make_launch_value("T.get_block_bindings", "one for each extent of the grid"),
        _make_launch_value("T.get_block_extent", "the number of blocks of the grid along x, y or z", _DIM),
        _make_launch_value("T.get_block_extents", "one for each extent of the grid"),
        _make_launch_value(
            "T.get_lane_idx", "the thread's index in its warp of `warp_size` threads, or 32", _WARP_SIZE
        ),
        _make_launch_value(
            "T.get_warp_idx", "the index of the thread's warp of `warp_size` threads, or 32", _WARP_SIZE
        ),
        _make_launch_value(
            "T.get_warp_idx_sync", "the index of the thread's warp of `warp_size` threads, or 32", _WARP_SIZE
        ),
        _make_launch_value(
            "T.get_warp_group_idx",
            "the index of the thread's warpgroup",
            _WARP_SIZE,
            Parameter("warps_per_group", None),
        ),
        _make_launch_value(
            "T.block_rank_in_cluster", "the block's number in its cluster, x counted fastest; without clusters 0"
        ),
        _make_launch_value("T.get_cluster_block_nums", "the number of blocks of a cluster"),
        _make_launch_value(
            "T.shuffle_elect",
            "True if the thread is the first of `thread_extent` threads, or with 0 the first of the block",
            Parameter("thread_extent"),
        ),
        DocumentedFunction(
            BINDING, "the thread's index along `thread`, such as threadIdx.x; also as a loop of one iteration"
        ),
    )
}


DP4A = Signature("T.dp4a", (Parameter("A"), Parameter("B"), Parameter("C")))
_LANES = 4


def build_dp4a(call: Call) -> tile.Store:
    """Build the store `C += A[0] * B[0] + … + A[3] * B[3]`, from the given elements on; raises an error for other
    types. Of a whole tile it begins at the first element."""
    (a, at_a), (b, at_b), (c, at_c) = (_read_first_element(call, name) for name in "ABC")
    for name, buffer, wanted in (("A", a, (INT8, UINT8)), ("B", b, (INT8, UINT8)), ("C", c, (INT32,))):
        if buffer.dtype not in wanted:
            expected = " or ".join(t.name for t in wanted)
            raise_error(
                "wrong-dtype", f"T.dp4a: `{name}` must be {expected}", call[name].span, f"this is {buffer.dtype}"
            )
    total: tile.Expr = tile.Load(c, at_c)
    for lane in range(_LANES):
        x, y = (tile.Load(t, (*i[:-1], add_exprs(i[-1], tile.int32_const(lane)))) for t, i in ((a, at_a), (b, at_b)))
        total = tile.Binary("add", total, tile.Binary("mul", cast_expr(x, INT32), cast_expr(y, INT32), INT32), INT32)
    return tile.Store(c, at_c, total, call.span)


def _read_first_element(call: Call, name: str) -> tuple[tile.Buffer, tuple[tile.Expr, ...]]:
    """Return buffer and indices of an argument that is one element, or of a whole tile's first element; refuses
    others."""
    value = call[name].value
    if isinstance(value, tile.Buffer):
        return value, tuple(tile.int32_const(0) for _ in value.extents)
    if not isinstance(value, Access) or value.has_extent:
        call.refuse(name, "a tile, or its first element")
    return value.buffer, tuple(i for i in value.indices if isinstance(i, EXPR_TYPES))
