"""T.im2col: the elements under the filter of a convolution at some positions, as the rows of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Literal

from tilec.ir import tile, warp
from tilec.ir.affine import add_exprs, row_divisor, scale_expr
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.layout import row_major_fragment
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.placement import contiguous_run
from tilec.ir.types import BOOL, INT32
from tilec.ops.form import Global, Index, Positive, Shared, verify_same_dtype, verify_whole_buffer
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import TMA_ALIGNMENT, VECTOR_BYTES, Demand, LoweringContext, make_demand
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support import schema
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_PIXELS = 1024  # of one copy (cuTensorMapEncodeIm2col)
MAX_STRIDE = 8
CORNER_RANGES = {4: (-128, 127), 5: (-16, 15)}  # by the rank of the tensor
MAX_TAP_OFFSET = {4: 255, 5: 31}  # of a tap, by the rank of the tensor: all of them share 16 bits


@dataclass(frozen=True, slots=True)
class FilterGeometry:
    """A square filter of `kernel` taps a side, `dilation` pixels apart, over images or volumes with `pad` pixels of
    zeros around them. It moves by `stride` pixels. `sides` are the extents of an image, the width last. Row r of the
    matrix is position r of the filter: along the width first, then height, depth and image. Column c is channel
    c % channels of tap c // channels; taps count along the width first."""

    sides: tuple[int, ...]
    channels: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    @property
    def reach(self) -> int:
        """Return the distance in pixels from the first tap along a side to the last."""
        return self.dilation * (self.kernel - 1)

    @property
    def columns(self) -> int:
        """Return the number of columns of the im2col matrix: taps times channels."""
        return math.prod([self.kernel] * len(self.sides)) * self.channels

    @property
    def places(self) -> tuple[int, ...]:
        """Return the number of positions of the filter along each side."""
        return tuple((size + 2 * self.pad - self.reach - 1) // self.stride + 1 for size in self.sides)


@dataclass(frozen=True, slots=True)
class Im2col(tile.TileOp):
    """Copies a tile of the im2col matrix of `images`, from this `row` and `column` of it on, to `matrix`."""

    name = "im2col"
    by_warpgroups = True
    moves = True
    order_is_known = True
    reaches_regions = False
    is_load = True
    images: Global
    matrix: Shared
    column: Index
    dilation: Annotated[int, schema.Range(1, 1 << 16)]
    kernel: Annotated[int, schema.Range(1, 1 << 16)]
    pad: Annotated[int, schema.Range(0, 1 << 16)]
    row: Index
    stride: Annotated[int, schema.Range(1, 1 << 16)]
    tma: Literal[False] | None = None
    prefetched: Positive | None = field(default=None, metadata=BY_PASSES)
    via: Literal["tma", "cp_async", "registers"] | None = field(default=None, metadata=BY_PASSES)


def get_geometry(op: Im2col) -> FilterGeometry:
    """Return the filter and image sizes of an im2col operation."""
    _, *sides, channels = op.regions[0].extent
    return FilterGeometry(tuple(sides), channels, op.kernel, op.stride, op.dilation, op.pad)


def _check_im2col(call: Call) -> tile.TileOp:
    """Return the operation of a call of T.im2col; raises an error for wrong memories, types or numbers, or too large a
    filter."""
    img, col = call.read_region("img"), call.read_region("col")
    if img.buffer.scope != "global" or len(img.extent) not in CORNER_RANGES or not img.is_whole:
        _refuse_operand(call, "img", img, "a whole tensor of images, (images, [depth,] height, width, channels)")
    if col.buffer.scope != "shared" or len(col.extent) != 2 or not col.is_whole:
        _refuse_operand(call, "col", col, "a whole shared tile, (places, columns)")
    if img.buffer.dtype != col.buffer.dtype or img.buffer.dtype.bits < 8:
        raise_error(
            "dtype-mismatch",
            f"{call.name} needs elements of 8 bits or more, and does not convert them",
            call.span,
            f"from {img.buffer.dtype} to {col.buffer.dtype}",
            secondary=(Label(col.buffer.span, "from here"),),
            help=f"allocate {col.buffer.name} as {img.buffer.dtype}",
        )
    numbers = {name: call.read_integer(name) for name in ("kernel", "stride", "dilation", "pad")}
    for name, number in numbers.items():
        if number < (name != "pad"):
            call.refuse(name, "0 or more" if name == "pad" else "1 or more")
    op = Im2col(
        img,
        col,
        row=scale_expr(_read_step(call, "nhw_step"), col.extent[0]),
        column=scale_expr(_read_step(call, "c_step"), col.extent[1]),
        kernel=numbers["kernel"],
        stride=numbers["stride"],
        dilation=numbers["dilation"],
        pad=numbers["pad"],
        span=call.span,
    )
    conv = get_geometry(op)
    if min(conv.places) < 1:
        image = " × ".join(map(str, conv.sides))
        raise_error(
            "shape-mismatch",
            f"{call.name}: the filter is larger than the images",
            call.span,
            f"it spans {conv.reach + 1} pixels, an image {image} and {conv.pad} on each side",
            secondary=(Label(img.buffer.span, f"shape {show_shape(img.extent)}"),),
            help="pad more, or use a smaller kernel or dilation",
        )
    return op


def _refuse_operand(call: Call, name: str, region: tile.Region, wanted: str) -> None:
    """Raise the error that an operand is in the wrong memory or of the wrong shape."""
    raise_error(
        "wrong-scope",
        f"{call.name}: `{name}` must be {wanted}",
        call[name].span,
        f"{region.buffer.name} is in {region.buffer.scope} memory, this has shape {show_shape(region.extent)}",
        secondary=(Label(region.buffer.span, "from here"),),
    )


def _read_step(call: Call, name: str) -> tile.Expr:
    """Return an integer argument that numbers a tile of rows or columns, as an int32 expression; refuses other
    types."""
    step = as_expr(call[name])
    if step.dtype.kind not in ("int", "uint"):
        call.refuse(name, "an integer")
    return cast_expr(step, INT32)


def _evaluate_im2col(op: Im2col, env: Environment) -> None:
    """Write the tile of the im2col matrix in numpy: each element from its image, 0 outside the images or the matrix."""
    import numpy as np

    img, col = op.regions
    conv, images = get_geometry(op), env.read(img)
    first_row, first_column = (env.scalar(index) for index in (op.row, op.column))
    row = int(first_row) + np.arange(col.extent[0])[:, None]
    column = int(first_column) + np.arange(col.extent[1])[None, :]
    rest, tap = row + 0 * column, column // conv.channels
    inside = (column >= 0) & (column < conv.columns)
    at: list[NDArray[np.int64]] = []
    for side, places in zip(reversed(conv.sides), reversed(conv.places), strict=True):
        pixel = rest % places * conv.stride + tap % conv.kernel * conv.dilation - conv.pad
        inside = inside & (pixel >= 0) & (pixel < side)
        at.insert(0, pixel)
        rest, tap = rest // places, tap // conv.kernel
    inside &= (rest >= 0) & (rest < img.extent[0])
    indices = tuple(np.where(inside, index, 0) for index in (rest, *at, column % conv.channels))
    env.write(col, np.where(inside, images[indices], 0).astype(images.dtype))


_PARAMETERS = tuple(map(Parameter, ("img", "col", "nhw_step", "c_step", "kernel", "stride", "dilation", "pad")))
_EVICTION_POLICY = Parameter("eviction_policy", None, hint="tilec chooses it from the operands")

define_operation(
    Im2col,
    list_move_effects,
    _evaluate_im2col,
    Spelling(
        Signature("T.im2col", _PARAMETERS),
        """Fill the shared tile `col` with a tile of the im2col matrix.

        A row stands for a position of a square filter. `img` is (images, height, width, channels). Rows are
        counted along the width of the result, then down, then from image to image; a column is a tap of the
        filter and a channel, counted along the channels, then the width of the filter, then its height. `col`
        is tile `nhw_step` of the rows and tile `c_step` of the columns of that matrix. The filter has `kernel`
        × `kernel` taps, `dilation` pixels apart, and moves by `stride`; each image has a border of `pad` pixels
        of 0. Elements outside the matrix are 0. Volumes are (images, depth, height, width, channels), their
        filters cubes, and depth is counted after the height. Where TMA feeds a pipeline and the tile's columns
        divide the channels, it is one copy in TMA's im2col mode.
        """,
        _check_im2col,
    ),
    Spelling(
        Signature("T.c2d_im2col", (*_PARAMETERS, _EVICTION_POLICY, ANNOTATIONS)),
        """T.im2col by its old name.""",
        _check_im2col,
    ),
)


# ---- by TMA, by cp.async, by ordinary accesses -----------------------------------------------------------------------


def find_tma_obstacle(op: Im2col) -> str | None:
    """Return the reason why TMA's im2col mode cannot fill the tile; None if it can. One copy takes pixels of one tap of
    the filter."""
    image, buffer = (r.buffer for r in op.regions)
    conv, size = get_geometry(op), image.dtype.bytes
    rows, columns = buffer.shape
    if conv.channels % columns:
        return f"its {columns} columns do not divide {conv.channels} channels"
    if conv.channels * size % TMA_ALIGNMENT or columns * size % TMA_ALIGNMENT:
        return f"a pixel has {conv.channels * size} bytes and a row {columns * size}, not multiples of {TMA_ALIGNMENT}"
    if row_divisor(image) * size % TMA_ALIGNMENT:
        return f"its strides are not multiples of {TMA_ALIGNMENT} bytes"
    if rows > MAX_PIXELS:
        return f"a copy has at most {MAX_PIXELS} rows"
    if conv.stride > MAX_STRIDE:
        return f"a stride is at most {MAX_STRIDE}"
    rank = len(image.shape)
    corners, (least, most) = (-conv.pad, conv.pad - conv.reach), CORNER_RANGES[rank]
    if not least <= min(corners) <= max(corners) <= most:
        return "the filter extends too far beyond the image"
    if conv.reach > MAX_TAP_OFFSET[rank]:
        return f"its last tap is {conv.reach} pixels from the first; the limit is {MAX_TAP_OFFSET[rank]}"
    return None


def select_cp_async_width(op: Im2col) -> int | None:
    """Return the bytes of one cp.async, 16, 8 or 4, whose elements are channels of one pixel; None for fewer than 4."""
    image, buffer = (r.buffer for r in op.regions)
    together = math.gcd(row_divisor(image), buffer.shape[-1]) * image.dtype.bytes
    return next((width for width in (16, 8, 4) if together % width == 0), None)


@attach_facet(Im2col, "lower")
def lower_im2col(op: Im2col, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to a TMA load in im2col mode, to a gather by cp.async, or to an elementwise nest, by `via`."""
    buffer = op.regions[1].buffer
    match op.via:
        case "tma":
            return (_build_tma_load(op, context),)
        case "cp_async":
            width, placement = select_cp_async_width(op), context.shared[buffer.name].placement
            assert width is not None
            if placement is not None:  # the kernel annotates the tile's layout
                width = min(width, contiguous_run(placement) * buffer.dtype.bytes)
            layout = row_major_fragment(buffer.shape, context.threads, width // buffer.dtype.bytes)
            copy = warp.CpAsync(_build_gather(op), op.regions[1], layout, width, cursors=context.cursors, span=op.span)
            return copy, warp.CpAsyncCommit(span=op.span)
        case _:
            gathered = _build_gather(op)
            element, nothing = tile.Load(gathered.buffer, gathered.indices), make_constant(0, buffer.dtype)
            value = tile.Select(gathered.condition, element, nothing, buffer.dtype)
            store = tile.Store(buffer, gathered.variables, value, op.span)
            nest = tile.Parallel(gathered.variables, buffer.shape, (store,), op.span)
            layout = row_major_fragment(buffer.shape, context.threads, VECTOR_BYTES // buffer.dtype.bytes)
            return (warp.Elementwise(nest, layout, cursors=context.cursors, span=op.span),)


def _build_tma_load(op: Im2col, context: LoweringContext) -> warp.TmaLoad:
    """Build the TMA load in im2col mode: it starts at the pixel under the first tap, plus an offset for the column's
    tap. All pixels share that offset."""
    image, buffer = (r.buffer for r in op.regions)
    conv, layout = get_geometry(op), context.shared[buffer.name]
    row, column = op.row, op.column
    corners = warp.Im2colCorners(-conv.pad, conv.pad - conv.reach, conv.stride)
    tensor_map = context.tensor_map(image, (buffer.shape[0], layout.panel), layout.swizzle, corners)
    which, places = _split_digits(row, conv.places)
    channel = _divide_index("floormod", column, conv.channels)
    first = (
        which,
        *(_locate_pixel(place, conv.stride, -conv.pad) for place in places),
        # Columns after the last tap are zero: read them after the last channel, outside the tensor.
        tile.Select(_build_less_than(column, conv.columns), channel, tile.int32_const(conv.channels), INT32),
    )
    offsets = tuple(scale_expr(tap, conv.dilation) for tap in _locate_tap(column, conv))
    return warp.TmaLoad(tensor_map, first, buffer, offsets, cursors=context.cursors, span=op.span)


def _build_gather(op: Im2col) -> warp.Gather:
    """Return the tensor index of each element of the tile, with the condition that its column exists. An index outside
    an image is outside the tensor too."""
    conv = get_geometry(op)
    i, j = tile.Var("%e0"), tile.Var("%e1")
    row, column = add_exprs(op.row, i), add_exprs(op.column, j)
    image, places = _split_digits(row, conv.places)
    pixels = (
        add_exprs(_locate_pixel(place, conv.stride, -conv.pad), scale_expr(tap, conv.dilation))
        for place, tap in zip(places, _locate_tap(column, conv), strict=True)
    )
    indices = (image, *pixels, _divide_index("floormod", column, conv.channels))
    return warp.Gather(op.regions[0].buffer, (i, j), indices, _build_less_than(column, conv.columns))


def _split_digits(number: tile.Expr, extents: Sequence[int]) -> tuple[tile.Expr, tuple[tile.Expr, ...]]:
    """Return the quotient and the digits of a number split by these extents, the last digit fastest."""
    digits: list[tile.Expr] = []
    before = 1
    for extent in reversed(extents):
        digits.insert(0, _divide_index("floormod", _divide_index("floordiv", number, before), extent))
        before *= extent
    return _divide_index("floordiv", number, before), tuple(digits)


def _locate_tap(column: tile.Expr, conv: FilterGeometry) -> tuple[tile.Expr, ...]:
    """Return the index of a column's tap along each side of the filter, the width last."""
    number = _divide_index("floordiv", column, conv.channels)
    first, others = _split_digits(number, (conv.kernel,) * (len(conv.sides) - 1))
    return first, *others


def _locate_pixel(place: tile.Expr, stride: int, first: int) -> tile.Expr:
    """Return the pixel of a filter position: position · stride + first."""
    return add_exprs(scale_expr(place, stride), tile.int32_const(first))


def _divide_index(op: tile.BinaryOp, a: tile.Expr, b: int) -> tile.Expr:
    """Return the quotient or remainder of an int32 index by a constant; by 1, the index itself or 0."""
    if b == 1:
        return a if op == "floordiv" else tile.int32_const(0)
    return tile.Binary(op, a, tile.int32_const(b), INT32)


def _build_less_than(a: tile.Expr, b: int) -> tile.Expr:
    """Return the bool expression a < b of an int32 expression and a number."""
    return tile.Binary("lt", a, tile.int32_const(b), BOOL)


@attach_facet(Im2col, "demand")
def list_im2col_demands(op: Im2col, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of filling the tile by the mechanism in `via`: its bytes by TMA, cp.async, or loads and
    stores."""
    size = op.regions[1].buffer.bytes
    match op.via:
        case "tma":
            return (make_demand("tma.load", bytes=size),)
        case "cp_async":
            return (make_demand("cp.async", bytes=size, threads=context.threads),)
        case _:
            each = {"bytes": size, "threads": context.threads}
            return (make_demand("ld.global", **each), make_demand("st.shared", **each))


@attach_facet(Im2col, "agrees")
def verify_im2col(op: Im2col) -> Iterator[str]:
    """Yield a message where images or matrix are not whole, of wrong rank or type, or the filter is larger than the
    images."""
    images, matrix = op.regions
    for region in op.regions:
        yield from verify_whole_buffer(region)
    if len(images.extent) not in CORNER_RANGES or len(matrix.extent) != 2:
        yield "images have 4 or 5 dimensions, their im2col matrix has 2"
        return
    if images.buffer.dtype.bits < 8:
        yield f"elements of {images.buffer.dtype} cannot be copied without conversion"
    yield from verify_same_dtype(images, matrix)
    if min(get_geometry(op).places) < 1:
        yield "the filter is larger than the images"
