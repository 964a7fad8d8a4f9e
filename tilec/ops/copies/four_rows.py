"""T.tma_gather4 and T.tma_scatter4: TMA copies of four rows of a matrix, each with its own index, from and to a tile.

The operation's region of the tensor is any one row, from column `col` on. The four indices are the attributes `row0` to
`row3`. Outside the tensor TMA reads 0 and writes nothing (PTX ISA, "Tiled::gather4/scatter4" modes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Literal, NoReturn

from tilec.ir import tile, warp
from tilec.ir.affine import add_exprs, affine_form, scale_expr
from tilec.ir.expr import cast_expr
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.types import INT32
from tilec.ops.form import UNKNOWN_LEADER, Announces, Barrier, Global, Index, Leader, Shared, verify_same_dtype
from tilec.ops.language.signature import ANNOTATIONS, EVICTION_POLICY, Argument, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import describe_value, show_shape
from tilec.ops.lowering import LoweringContext, make_demand, make_tensor_map
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.ops.synchronisation.barriers import as_barrier, get_barrier
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

ROWS = 4


@dataclass(frozen=True, slots=True)
class Gather4(tile.TileOp):
    """Copies four rows of a tensor, of which `source` is any one, to a tile; the bytes complete on `barrier`."""

    name = "gather4"
    moves = True
    signals_barrier = True
    copies_from_tensor = True
    done_by = "one thread"
    source: Global
    destination: Shared
    announces: Announces
    barrier: Barrier
    leader: Leader
    row0: Index
    row1: Index
    row2: Index
    row3: Index
    block: tile.Expr | None = field(default=None, metadata=BY_PASSES)
    via: Literal["tma"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def rows(self) -> tuple[tile.Expr, ...]:
        """Return the four row indices, in order."""
        return self.row0, self.row1, self.row2, self.row3


@dataclass(frozen=True, slots=True)
class Scatter4(tile.TileOp):
    """Copies four rows of a tile to rows of a tensor, of which `destination` is any one."""

    name = "scatter4"
    moves = True
    reaches_regions = False
    source: Shared
    destination: Global
    row0: Index
    row1: Index
    row2: Index
    row3: Index
    via: Literal["tma_store"] | None = field(default=None, metadata=BY_PASSES)
    wait: Literal["at once"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def rows(self) -> tuple[tile.Expr, ...]:
        """Return the four row indices, in order."""
        return self.row0, self.row1, self.row2, self.row3


FourRows = Gather4 | Scatter4


def _check_gather(call: Call) -> tile.TileOp:
    """Return the gather of a call of T.tma_gather4, from checked arguments; its leader is still unknown."""
    tensor, region = _read_tensor(call, "src"), _read_tile(call, "dst")
    line, rows = _read_row_region(call, tensor, region), _read_rows(call)
    barrier = as_barrier(call["barrier"], call.name)
    return Gather4(line, region, True, barrier, UNKNOWN_LEADER, *rows, span=call.span)


def _check_scatter(call: Call) -> tile.TileOp:
    """Return the scatter of a call of T.tma_scatter4, from checked arguments."""
    tensor, region = _read_tensor(call, "dst"), _read_tile(call, "src")
    return Scatter4(region, _read_row_region(call, tensor, region), *_read_rows(call), span=call.span)


def _read_row_region(call: Call, tensor: tile.Buffer, region: tile.Region) -> tile.Region:
    """Return a region of the tensor's row 0 that stands for all four rows; raises an error for another dtype than the
    tile's. It begins at column `col` and is as long as a row of the tile."""
    if tensor.dtype != region.buffer.dtype:
        raise_error(
            "dtype-mismatch",
            f"{call.name} does not convert elements",
            call.span,
            f"{tensor.name} is {tensor.dtype}, {region.buffer.name} is {region.buffer.dtype}",
            secondary=(Label(region.buffer.span, "from here"),),
            help=f"allocate {region.buffer.name} as {tensor.dtype}",
        )
    return tile.Region(tensor, (tile.int32_const(0), _read_index(call, call["col"])), (1, region.extent[-1]), call.span)


def _read_tensor(call: Call, name: str) -> tile.Buffer:
    """Return an argument that is a whole matrix in global memory; refuses any other."""
    value = call[name].value
    if not isinstance(value, tile.Buffer) or value.scope != "global" or len(value.extents) != 2:
        call.refuse(name, "a whole tensor of two dimensions")
    return value


def _read_tile(call: Call, name: str) -> tile.Region:
    """Return the region of four whole rows of a shared tile that begin at a multiple of four; raises an error for
    others. At such a multiple the swizzle pattern is in phase."""
    region = call.read_region(name)
    if region.buffer.scope != "shared":
        _refuse_tile(call, name, region, f"{region.buffer.name} is in {region.buffer.scope} memory")
    if region.shape[:-1] != (ROWS,) or region.extent[-1] != region.buffer.shape[-1]:
        _refuse_tile(call, name, region, f"this has shape {show_shape(region.extent)}")
    if affine_form(region.start[region.extent.index(ROWS)]).divisor % ROWS:
        _refuse_tile(call, name, region, "it does not begin at a multiple of four")
    return region


def _refuse_tile(call: Call, name: str, region: tile.Region, label: str) -> NoReturn:
    """Raise the error that an argument is not four whole rows of a shared tile, with this label."""
    raise_error(
        "wrong-argument",
        f"{call.name}: `{name}` must be four whole rows of a shared tile",
        call[name].span,
        label,
        secondary=(Label(region.buffer.span, "from here"),),
        help="allocate (4, columns), or write `tile[4 * i : 4 * i + 4, :]`",
    )


def _read_rows(call: Call) -> tuple[tile.Expr, tile.Expr, tile.Expr, tile.Expr]:
    """Return the four row indices of a call as int32 expressions; refuses another number of them."""
    rows = call["rows"]
    if not isinstance(rows.value, tuple) or len(rows.value) != ROWS:
        call.refuse("rows", "a list of four indices")
    first, second, third, fourth = (_read_index(call, Argument(row, rows.span)) for row in rows.value)
    return first, second, third, fourth


def _read_index(call: Call, argument: Argument) -> tile.Expr:
    """Return an integer argument as an int32 expression; raises an error for other types."""
    index = as_expr(argument)
    if index.dtype.kind not in ("int", "uint"):
        raise_error(
            "wrong-argument", f"{call.name}: an index must be an integer", argument.span, describe_value(argument.value)
        )
    return cast_expr(index, INT32)


def _evaluate_four_rows(op: FourRows, env: Environment) -> None:
    """Copy the four rows in numpy, each from or to the tensor row of its index."""
    source, destination = op.regions
    for number, index in enumerate(op.rows):
        row = int(env.scalar(index))
        here, there = _select_row(source, row, number), _select_row(destination, row, number)
        env.write(there, env.read(here).reshape(there.extent))


def _select_row(region: tile.Region, row: int, number: int) -> tile.Region:
    """Return row `row` of a tensor, or row `number` of a tile's four rows, as a region."""
    if region.buffer.scope == "global":
        return replace(region, start=(tile.int32_const(row), region.start[1]))
    dim = region.extent.index(ROWS)
    first, extent = add_exprs(region.start[dim], tile.int32_const(number)), list(region.extent)
    extent[dim] = 1
    return replace(region, start=(*region.start[:dim], first, *region.start[dim + 1 :]), extent=tuple(extent))


_COMMON = (
    Parameter("swizzle", None, keyword_only=True, hint="tilec chooses the layout of a tile from all its accesses"),
    EVICTION_POLICY,
    ANNOTATIONS,
)
_OPERANDS = tuple(map(Parameter, ("src", "dst", "col", "rows")))

define_operation(
    Gather4,
    list_move_effects,
    _evaluate_four_rows,
    Spelling(
        Signature("T.tma_gather4", (*_OPERANDS, Parameter("barrier", keyword_only=True), *_COMMON)),
        """Begin a copy of four rows of a matrix to a shared tile by TMA, and announce their bytes to `barrier`.

        `src` is a tensor of two dimensions; `rows` are four independent row indices, and `col` the first column
        of each row. `dst` is a tile of four rows, or four whole rows of one, `tile[4 * i : 4 * i + 4, :]`.
        Elements outside the tensor read as 0. One thread issues it and the barrier completes when it is done,
        as with T.tma_copy. It needs sm_100a.
        """,
        _check_gather,
    ),
    demand=lambda op, context: (make_demand("tma.load", bytes=_count_bytes(op.destination)),),
)

define_operation(
    Scatter4,
    list_move_effects,
    _evaluate_four_rows,
    Spelling(
        Signature("T.tma_scatter4", (*_OPERANDS, *_COMMON)),
        """Copy four rows of a shared tile to four rows of a matrix by TMA, each to its own index.

        `dst` is a tensor of two dimensions; `rows` are the indices of its rows and `col` the first column of
        each. `src` is a tile of four rows, or four whole rows of one, `tile[4 * i : 4 * i + 4, :]`. Elements
        outside the tensor are not written. Copies of this kind to one row have no order. It needs sm_100a.
        """,
        _check_scatter,
    ),
    demand=lambda op, context: (make_demand("tma.store", bytes=_count_bytes(op.source)),),
)


# ---- by TMA ----------------------------------------------------------------------------------------------------------


def _build_four_rows(op: FourRows, region: tile.Region) -> warp.FourRows:
    """Return the four row indices, with the first of the tile's four rows counted over all its leading dimensions."""
    at: tile.Expr = tile.int32_const(0)
    for start, extent in zip(region.start[:-1], region.buffer.shape[:-1], strict=True):
        at = add_exprs(scale_expr(at, extent), start)
    return warp.FourRows(op.rows, at)


@attach_facet(Gather4, "lower")
def lower_gather(op: Gather4, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower T.tma_gather4 to one TMA load of four rows that signals the kernel's barrier."""
    source, destination = op.regions
    load = warp.TmaLoad(
        make_tensor_map(source, destination.buffer, context), source.start, destination.buffer,
        barrier=get_barrier(op), leader=op.leader, announces=op.announces,
        four=_build_four_rows(op, destination), cursors=context.cursors, span=op.span,
    )  # fmt: skip
    return (load,)


@attach_facet(Scatter4, "lower")
def lower_scatter(op: Scatter4, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower T.tma_scatter4 to one TMA store of four rows, followed by a wait for it if it waits at once."""
    source, destination = op.regions
    store = warp.TmaStore(
        make_tensor_map(destination, source.buffer, context), destination.start, source.buffer,
        four=_build_four_rows(op, source), cursors=context.cursors, span=op.span,
    )  # fmt: skip
    return (store, warp.BulkWait(0, span=op.span)) if op.wait == "at once" else (store,)


def _count_bytes(region: tile.Region) -> int:
    """Return the bytes of four rows of a tile."""
    return ROWS * region.extent[-1] * region.buffer.dtype.bytes


def verify_four_rows(op: FourRows) -> Iterator[str]:
    """Yield a message where tensor and tile rows differ in length or type, or the tile is not four whole aligned
    rows."""
    tensor, region = op.regions if isinstance(op, Gather4) else op.regions[::-1]
    if len(tensor.extent) != 2 or tensor.extent != (1, region.extent[-1]):
        yield f"{tensor.buffer.name} {show_shape(tensor.extent)} stands for a row of {region.extent[-1]} elements"
    if region.shape[:-1] != (ROWS,) or region.extent[-1] != region.buffer.shape[-1]:
        yield f"{region.buffer.name} {show_shape(region.extent)} is not four whole rows"
    elif affine_form(region.start[region.extent.index(ROWS)]).divisor % ROWS:
        yield f"the rows of {region.buffer.name} do not begin at a multiple of four"
    yield from verify_same_dtype(tensor, region)


for _operation in (Gather4, Scatter4):
    attach_facet(_operation, "agrees")(verify_four_rows)
