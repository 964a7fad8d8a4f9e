"""Hints of a kernel: the order of blocks, layouts and stages of tiles, promises, options of the compiler.

Hints that tilec follows are kept for the kernel. For others a warning says that it decides by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import NoReturn

from tilec.frontend.sema.launch.configs import read_pass_configs
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import Dictionary, DictionaryEntry, IndexMap, Swizzle, Value, describe_value, show_shape
from tilec.passes.layout.fragments.loop_layout import why_irregular
from tilec.passes.layout.shared.atoms import list_swizzle_widths
from tilec.passes.layout.shared.placements import build_placement, check_tensor_map
from tilec.passes.loop.stages.requested_stages import StageRequest
from tilec.support.diagnostics import Label, Warn, make_warning, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(slots=True)
class Hints:
    """The hints of a kernel so far. `raster` is the order of the blocks; `tensors` maps the elements of tensors with a
    layout to their places, `out_of_bounds_fill` has the values outside tensors; `subtiles` splits tiles into parts;
    `asks` are options of the compiler, `stages` those of the loads of tiles; `min_blocks` blocks are to share a
    multiprocessor. `views` maps the kernel's views, by name, to their buffers; a block has so many `threads`."""

    raster: tile.Raster | None = None
    layouts: dict[tile.Buffer, tile.LayoutAnnotation] = field(default_factory=dict)
    tensors: dict[str, IndexMap] = field(default_factory=dict)
    out_of_bounds_fill: dict[tile.Buffer, tile.Expr] = field(default_factory=dict)
    subtiles: dict[tile.Buffer, tile.Subtile] = field(default_factory=dict)
    asks: list[tile.KernelOption] = field(default_factory=list)
    stages: list[StageRequest] = field(default_factory=list)
    min_blocks: tile.MinBlocks | None = None
    views: Mapping[str, tile.Buffer] = field(default_factory=dict)
    threads: int = 1024


MAX_RESIDENT_THREADS, MIN_BLOCK_THREADS = 2048, 64
"""The most threads of a multiprocessor on any target, and the fewest of a block with which all of them are in use: a
multiprocessor has at most 32 blocks."""
HintKeeper = Callable[[Hints, Call, Warn], None]


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint: its signature, its documentation, and the function that keeps its arguments."""

    signature: Signature
    doc: str
    keep: HintKeeper


def _use_swizzle(hints: Hints, call: Call, warn: Warn) -> None:
    """Record the order of blocks that T.use_swizzle gives in `hints.raster`; refuse a second one."""
    size, order = call.read_integer("panel_size"), call["order"].value
    if size < 1:
        call.refuse("panel_size", "at least 1")
    if order not in ("row", "column", "col"):
        call.refuse("order", '"row" or "column"')
    if hints.raster is not None:
        first = Label(hints.raster.span, "first here")
        raise_error("duplicate-argument", "T.use_swizzle is given twice", call.span, secondary=(first,))
    hints.raster = tile.Raster(size if call.read_boolean("enable") else 0, order == "row", call.span)


def read_buffer_entries(hints: Hints, call: Call, name: str) -> Iterator[tuple[tile.Buffer, DictionaryEntry]]:
    """Yield each buffer and entry of a hint's dictionary; refuse keys that are no buffers or are views of tiles."""
    value = call[name].value
    if not isinstance(value, Dictionary):
        call.refuse(name, "a dictionary from buffers, as in {A_shared: …}")
    for entry in value.entries:
        if not isinstance(entry.key, tile.Buffer):
            title = f"{call.name}: a buffer is needed here"
            raise_error("wrong-argument", title, entry.span, f"this is {describe_value(entry.key)}")
        if entry.key.scope != "global" and (source := hints.views.get(entry.key.name)) is not None:
            title = f"{call.name}: a view cannot have hints of its own"
            note = f"this is a view of {source.name}"
            place = Label(entry.key.span, "the view")
            way_out = f"annotate {source.name} instead"
            raise_error("wrong-argument", title, entry.span, note, secondary=(place,), help=way_out)
        yield entry.key, entry


def _annotate_layout(hints: Hints, call: Call, warn: Warn) -> None:
    """Record layouts of T.annotate_layout in `hints.layouts`, those of tensors in `hints.tensors`; refuse a second of a
    tile.
    """
    for buffer, entry in read_buffer_entries(hints, call, "layout_map"):
        if buffer in hints.layouts:
            first = Label(hints.layouts[buffer].span, "first here")
            raise_error("duplicate-argument", f"{buffer.name} is given two layouts", entry.span, secondary=(first,))
        layout = _read_layout(hints, buffer, entry, warn)
        if layout is not None:
            hints.layouts[buffer] = tile.LayoutAnnotation(buffer, layout, entry.span)


def _read_layout(
    hints: Hints, buffer: tile.Buffer, entry: DictionaryEntry, warn: Warn
) -> tile.LoopLayout | tile.Placement | int | None:
    """Return a tile's layout, placement or swizzle width; None for a tensor's, kept in `hints.tensors`; refuse wrong
    ones. A fragment's irregular layout gives None, with a warning. Errors: a layout of the wrong kind or shape.
    """
    layout = entry.value
    if buffer.scope == "fragment" and isinstance(layout, tile.LoopLayout):
        _check_layout_shape(buffer, layout.shape, entry)
        _check_fragment_size(buffer, layout, hints.threads)
        if (reason := why_irregular(layout)) is not None:
            title = f"this layout of {buffer.name} is not used"
            way_out = "remove it and leave the layout to tilec; results are the same"
            warn(make_warning("hint-not-used", title, entry.span, reason, help=way_out))
            return None
        return layout
    if buffer.scope == "global" and isinstance(layout, IndexMap) and not buffer.is_dynamic:
        _check_layout_shape(buffer, layout.shape, entry)
        hints.tensors[buffer.name] = check_tensor_map(buffer, layout, entry.span)
        return None
    if buffer.scope == "shared" and isinstance(layout, Swizzle):
        return _read_swizzle_width(buffer, layout, entry)
    if buffer.scope == "shared" and isinstance(layout, IndexMap):
        _check_layout_shape(buffer, layout.shape, entry)
        return build_placement(buffer, layout, entry.span)
    return _refuse_layout(buffer, entry)


def _check_fragment_size(buffer: tile.Buffer, layout: tile.LoopLayout, threads: int) -> None:
    """Raise `fragment-overflow` if a fragment with this layout takes more registers of a thread than can be spilled."""
    from tilec.passes.layout.check_registers import MAX_REGISTERS  # a cycle: that module imports the choice of layouts

    registers = -(-math.prod(buffer.shape) * layout.copies * buffer.dtype.bits // (32 * threads))
    if registers > MAX_REGISTERS:
        title = f"{buffer.name} takes {registers} registers of a thread, "
        title += f"which has 255: up to {MAX_REGISTERS} are spilled, more are refused"
        way_out = "use smaller tiles, or more threads to share them"
        place = Label(layout.span, "with this layout")
        raise_error("fragment-overflow", title, buffer.span, secondary=(place,), help=way_out)


def _refuse_layout(buffer: tile.Buffer, entry: DictionaryEntry) -> NoReturn:
    """Raise `wrong-argument` for a layout of the wrong kind for its buffer, and suggest the kind that fits."""
    forms = {
        "fragment": "T.Fragment(shape, forward_fn=lambda i, j: (thread, index))",
        "shared": "tilelang.layout.make_swizzled_layout(tile) or T.Layout(shape, lambda i, j: place)",
        "global": "T.Layout(shape, lambda i, j: place)",
    }
    form = None if buffer.is_dynamic else forms.get(buffer.scope)
    title = f"T.annotate_layout: this is not a layout for {buffer.name}"
    note = f"{describe_value(entry.value)} for {describe_value(buffer)}"
    way_out = "give layouts to shared tiles and fragments" if form is None else f"write {form}"
    place = Label(buffer.span, "from here")
    raise_error("wrong-argument", title, entry.span, note, secondary=(place,), help=way_out)


def _check_layout_shape(buffer: tile.Buffer, shape: tuple[int, ...], entry: DictionaryEntry) -> None:
    """Raise `shape-mismatch` if a layout's shape is not that of its tensor or tile."""
    if shape != buffer.shape:
        title = f"the layout of {buffer.name} has another shape"
        note = f"{show_shape(shape)} for {show_shape(buffer.shape)}"
        raise_error("shape-mismatch", title, entry.span, note, secondary=(Label(buffer.span, "from here"),))


def _read_swizzle_width(buffer: tile.Buffer, swizzle: Swizzle, entry: DictionaryEntry) -> int:
    """Return a tile's swizzle width in bytes, 0 for none: the requested one, refused if rows do not fit, or the
    widest.
    """
    possible = (*list_swizzle_widths(buffer), 0)
    if swizzle.width is None:
        return possible[0]
    if swizzle.width not in possible:
        row = buffer.shape[-1] * buffer.dtype.bytes // buffer.dtype.per_byte
        title = f"{buffer.name} cannot be swizzled by {swizzle.width} bytes"
        note = f"a row has {row} bytes, which is not a multiple"
        place = Label(buffer.span, "from here")
        way_out = "use tilelang.layout.make_swizzled_layout, which takes the widest that fits"
        raise_error("wrong-argument", title, entry.span, note, secondary=(place,), help=way_out)
    return swizzle.width


def _fill_out_of_bounds(hints: Hints, call: Call, warn: Warn) -> None:
    """Record in `hints` the values that T.annotate_safe_value gives for reads outside tensors; refuse tiles."""
    for buffer, entry in read_buffer_entries(hints, call, "values"):
        if buffer.scope != "global":
            title = f"{call.name} is for tensors"
            note = f"{buffer.name} is a tile, which has no elements outside"
            raise_error("wrong-scope", title, entry.span, note, secondary=(Label(buffer.span, "from here"),))
        hints.out_of_bounds_fill[buffer] = cast_expr(as_expr(Argument(entry.value, entry.span)), buffer.dtype)


def _annotate_subtile(hints: Hints, call: Call, warn: Warn) -> None:
    """Record in `hints` how many parts T.annotate_subtile splits each tile into; refuse more than one split
    dimension.
    """
    for buffer, entry in read_buffer_entries(hints, call, "subtile_map"):
        counts = entry.value
        parts = counts if isinstance(counts, tuple) else (counts,)
        if buffer.scope == "global" or len(parts) != len(buffer.extents):
            title = f"{call.name}: a number of parts is needed for each dimension of {buffer.name}"
            note = f"{describe_value(counts)} for {describe_value(buffer)}"
            place = Label(buffer.span, "from here")
            way_out = "give one number for each dimension, as in {scores: (1, 2)}"
            raise_error("wrong-argument", title, entry.span, note, secondary=(place,), help=way_out)
        numbers = tuple(n for n in parts if isinstance(n, int) and not isinstance(n, bool) and n >= 1)
        if len(numbers) != len(parts) or sum(n != 1 for n in numbers) > 1:
            title = f"{call.name}: a tile is split along one dimension only"
            way_out = "give 1 for the other dimensions, or for all of them to keep the tile whole"
            raise_error("wrong-argument", title, entry.span, f"this is {describe_value(counts)}", help=way_out)
        hints.subtiles[buffer] = tile.Subtile(buffer, numbers, entry.span)


def _check_assumption(hints: Hints, call: Call, warn: Warn) -> None:
    """Refuse a T.assume whose promise is false or no condition; the hints themselves stay unchanged."""
    value = call["condition"].value
    if value is False:
        raise_error("assertion-failed", "this promise is false", call["condition"].span)
    if not isinstance(value, bool | int):
        as_expr(call["condition"])


def _annotate_pass_configs(hints: Hints, call: Call, warn: Warn) -> None:
    """Add the compiler options of T.annotate_pass_configs to the kernel's."""
    hints.asks += read_pass_configs(call["configs"], warn)


def _annotate_min_blocks(hints: Hints, call: Call, warn: Warn) -> None:
    """Record the number of blocks of T.annotate_min_blocks_per_sm; refuse a second one, and more than fit threads."""
    count, most = call.read_integer("n"), MAX_RESIDENT_THREADS // max(hints.threads, MIN_BLOCK_THREADS)
    if not 1 <= count <= max(most, 1):
        call.refuse("n", f"from 1 to {max(most, 1)}: so many blocks of {hints.threads} threads fit a multiprocessor")
    if hints.min_blocks is not None:
        first = Label(hints.min_blocks.span, "first here")
        raise_error("duplicate-argument", f"{call.name} is given twice", call.span, secondary=(first,))
    hints.min_blocks = tile.MinBlocks(count, call.span)


PIPELINE_METHOD = Signature(".pipeline", (Parameter("stage"),))
"""`tile.pipeline(stage=3)`."""


def keep_pipeline_method(hints: Hints, buffer: tile.Buffer, call: Call) -> None:
    """Record in `hints` the number of stages that `tile.pipeline(stage=…)` gives a tile."""
    _add_stage_request(hints, buffer, call["stage"].value, call.span, ".pipeline")


def _annotate_pipeline(hints: Hints, call: Call, warn: Warn) -> None:
    """Record in `hints` the number of stages that T.annotate_pipeline gives each tile."""
    for buffer, entry in read_buffer_entries(hints, call, "stages"):
        _add_stage_request(hints, buffer, entry.value, entry.span, call.name)


def _add_stage_request(hints: Hints, buffer: tile.Buffer, stages: Value, span: Span, name: str) -> None:
    """Append a tile's number of stages to the hints; refuse a number below 1 and a second request for the tile. `name`
    is the call in the text, for errors.
    """
    if not isinstance(stages, int) or isinstance(stages, bool) or stages < 1:
        title = f"{name}: a tile has a number of stages, at least 1, known at compile time"
        raise_error("wrong-argument", title, span, f"this is {describe_value(stages)}", help="give a number, such as 3")
    for before in hints.stages:
        if before.tile == buffer:
            first = Label(before.span, "first here")
            raise_error("duplicate-argument", f"{buffer.name} is given stages twice", span, secondary=(first,))
    hints.stages.append(StageRequest(buffer, stages, span))


def _ignore_hint(instead: str) -> HintKeeper:
    """Make a hint's `keep` function that does nothing but warn that the hint has no effect, with this reason."""

    def warn_of_no_effect(hints: Hints, call: Call, warn: Warn) -> None:
        """Warn that the hint of this call has no effect."""
        warn(make_warning("hint-not-used", f"{call.name} has no effect", call.span, instead))

    return warn_of_no_effect


def _make_hint(name: str, parameters: tuple[Parameter, ...], doc: str, keep: HintKeeper) -> Hint:
    return Hint(Signature(f"T.{name}", parameters), doc, keep)


_P = Parameter
_REGISTERS = _ignore_hint("tilec sets the registers of each role from its live values")
_ROLES = _ignore_hint("tilec schedules the statements and makes the roles itself")

HINTS: dict[str, Hint] = {
    hint.signature.name: hint
    for hint in (
        _make_hint("use_swizzle", (_P("panel_size"), _P("order", "row"), _P("enable", True)),
              "Run the blocks of the grid in panels, which share rows and columns in the L2 cache; with enable=False "
              "in the order of their numbers. Without this the compiler chooses.", _use_swizzle),
        _make_hint("annotate_layout",
              (_P("layout_map"), _P("allow_reannotation", False), _P("allow_buffer_region", False)),
              "Give layouts: a T.Fragment to a fragment, a swizzle or T.Layout to a shared tile, and a T.Layout to a "
              "tensor, whose elements then have other indices, for the caller of the kernel too.",
              _annotate_layout),
        _make_hint("annotate_pipeline", (_P("stages"),),
              "Give shared tiles stages, as in {A_shared: 3}: the loops that load them are pipelined, with as many "
              "versions of them. Fragments that an inner loop loads from these have their own, {A_reg: 2}. "
              "tile.pipeline(stage=3) is the same for one tile.", _annotate_pipeline),
        _make_hint("annotate_subtile", (_P("subtile_map"),),
              "Split a tile into parts along one dimension, {scores: (1, 2)} for two halves of its columns; the tiles "
              "used with it are split too. Parts overlap: one computes while another multiplies. (1, 1) keeps it "
              "whole. Without this the compiler chooses.", _annotate_subtile),
        _make_hint("annotate_safe_value", (_P("values"),),
              "Set the value that is read for elements outside a tensor; the default is 0. Threads then do each copy "
              "that may leave the tensor, without TMA.", _fill_out_of_bounds),
        _make_hint("annotate_padding", (_P("values"),),
              "The same as T.annotate_safe_value.", _fill_out_of_bounds),
        _make_hint("assume", (_P("condition"),),
              "Promise that a condition holds. `T.assume(x % 8 == 0)` and `T.assume(x >= 0)`, before the uses of the "
              "variable x, may allow copies by TMA there: its boxes begin at multiples of 16 bytes of a row, and its "
              "stores at no negative index. Other conditions have no effect yet. Where a promise does not hold, "
              "results are undefined.", _check_assumption),
        _make_hint("annotate_l2_hit_ratio", (_P("l2_hit_ratio_map"),),
              "Set the share of a tensor that stays in the L2 cache.",
              _ignore_hint("the launch sets the L2 policy, not the kernel")),
        _make_hint("annotate_min_blocks_per_sm", (_P("n"),),
              "Set the number of blocks that should fit a multiprocessor: a thread gets no more registers than that "
              "leaves it, and the assembler spills what is beyond. Without this the compiler chooses. It has no effect "
              "where warps hand registers to others: a block then takes the multiprocessor whole.",
              _annotate_min_blocks),
        _make_hint("annotate_restrict_buffers", (_P("buffers"),),
              "Name tensors that may overlap.",
              _ignore_hint("tilec assumes that a tensor that is written overlaps no other")),
        _make_hint("annotate_compile_flags", (_P("flags"),),
              "Options of the CUDA compiler.", _ignore_hint("there is no CUDA compiler; see tilec --help")),
        _make_hint("annotate_pass_configs", (_P("configs"),),
              "Options of TileLang's passes: fast math, no warp specialisation, no TMA.", _annotate_pass_configs),
        _make_hint("func_attr", (_P("attrs"),),
              "Attributes of the function.", _ignore_hint("tilec reads no attributes")),
        _make_hint("sync_warp", (_P("mask", None),),
              "Synchronise a warp. tilec places the barriers that are needed: nothing is added.", lambda *_: None),
        _make_hint("tma_store_arrive", (), "A store by TMA is a group of its own: nothing is added.", lambda *_: None),
        _make_hint("tma_store_wait", (_P("count", 0), _P("read", True)),
              "Wait for stores by TMA. tilec waits where their tile is reused or passed on: nothing is added.",
              lambda *_: None),
        _make_hint("disable_warp_group_reg_alloc", (), "Keep the registers of the launch.", _REGISTERS),
        _make_hint("no_set_max_nreg", (), "Keep the registers of the launch.", _REGISTERS),
        _make_hint("annotate_producer_reg_dealloc", (_P("n", 24),), "Registers of a producer's thread.", _REGISTERS),
        _make_hint("annotate_consumer_reg_alloc", (_P("n", 240),), "Registers of a consumer's thread.", _REGISTERS),
        _make_hint("annotate_ws_schedule", (_P("schedule"),), "A schedule with roles.", _ROLES),
    )
}  # fmt: skip
"""By dotted name. They stand as statements, before or after the use of their subject."""
