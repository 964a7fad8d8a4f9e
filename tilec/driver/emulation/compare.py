"""Compare a run's outputs with the tile-level reference's, within tolerances for rounding and for the order of sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.emu import Report
from tilec.ir import tile
from tilec.ir.elements import Array, decode_values, is_poison
from tilec.ir.manifest import Manifest, ScalarParam
from tilec.ir.types import FLOAT32, DType
from tilec.ops.atomic import AtomicTile
from tilec.ops.copies.copy import Copy
from tilec.ops.fill import Fill
from tilec.ops.products.gemm import Gemm
from tilec.ops.reductions.reduce import Reduce
from tilec.support.records import dataclass

# Relative rounding of a result: two steps of the format, and for float32 the error of fast functions.
_RELATIVE_ROUNDING = {
    "float4_e2m1fn": 2.0**-1,
    "float8_e8m0fnu": 1.0,
    "float8_e4m3fn": 2.0**-2,
    "float8_e5m2": 2.0**-1,
    "float16": 2.0**-9,
    "bfloat16": 2.0**-6,
    "float32": 1e-5,
    "float64": 1e-13,
}
_TF32_STEP = 2.0**-10
"""Relative step of tf32, to which a product cuts float32: sums that are nearly equal may be a step apart."""


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """One array per tensor parameter, written in place by a run, and one number per scalar parameter."""

    tensors: dict[str, Array]
    scalars: dict[str, int | float]

    def copy(self) -> KernelArguments:
        return KernelArguments({name: array.copy() for name, array in self.tensors.items()}, dict(self.scalars))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against the reference. `compared` of the elements of its `shape` are; where none is, it matches only
    if it has none. `worst` is where the error is largest against what is allowed there.

    `elements` counts the elements that the run wrote, `not_finite` those of them that are NaN or infinite; `first` is
    the first such index. An output `is_meaningless`, and never matches, if more than half of them are not finite
    although all inputs are.
    """

    name: str
    matches: bool
    error: float = 0.0
    allowed: float = 0.0
    worst: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    elements: int = 0
    not_finite: int = 0
    first: tuple[int, ...] = ()
    is_meaningless: bool = False
    shape: tuple[int, ...] = ()
    compared: int = 0

    @property
    def is_nothing_compared(self) -> bool:
        """Return whether the output has elements of which none was compared: the blocks that ran wrote none."""
        return not self.compared and math.prod(self.shape) > 0


def merge_written_masks(manifest: Manifest, report: Report) -> dict[str, Array]:
    """Return the mask of the elements that the sampled blocks wrote, by tensor; tensors without a mask are left out."""
    masks: dict[str, Array] = {}
    for param, mask in zip(manifest.params, report.written, strict=True):
        if not isinstance(param, ScalarParam) and mask is not None:
            # A tensor may be passed as a pointer and as tensor maps.
            masks[param.tensor] = masks[param.tensor] | mask if param.tensor in masks else mask
    return masks


def compare_arguments(
    kernel: tile.Kernel,
    manifest: Manifest,
    found: KernelArguments,
    expected: KernelArguments,
    written: Mapping[str, Array] | None = None,
    *,
    are_inputs_finite: bool = False,
) -> list[Comparison]:
    """Compare every tensor that the kernel writes with the reference's, within tolerances; one result each.

    With `written`, only the elements marked there are compared. `are_inputs_finite` is the result of
    `has_finite_inputs`.
    """
    outputs = [p for p in kernel.params if isinstance(p, tile.Buffer) and manifest.tensor(p.name).role != "in"]
    reordered = bound_summing_error(kernel)
    seen, summed = find_roundings(kernel)
    compared = []
    for p in outputs:
        mask = None if written is None else np.repeat(written[p.name], p.dtype.per_byte, axis=-1)
        known = seen.get(p, 0.0)
        ours, theirs = found.tensors[p.name], expected.tensors[p.name]
        result = _compare_tensor(p, ours, theirs, reordered, known, summed, mask)
        if p.dtype.is_float and are_inputs_finite:
            result = _add_finiteness(result, p, ours, mask)
        compared.append(result)
    return compared


def has_finite_inputs(
    kernel: tile.Kernel, manifest: Manifest, tensors: Mapping[str, Array], scalars: Mapping[str, int | float]
) -> bool:
    """Return whether no input tensor or scalar is NaN or infinite, so that such results are the kernel's own doing."""
    inputs = [p for p in kernel.params if isinstance(p, tile.Buffer) and manifest.tensor(p.name).role != "out"]
    floats = (decode_values(tensors[p.name], p.dtype) for p in inputs if p.dtype.is_float)
    return all(map(math.isfinite, scalars.values())) and all(bool(np.isfinite(array).all()) for array in floats)


def shows_poison(dtype: DType) -> bool:
    """Return whether an element type has enough bits that a result is hardly ever the pattern of unwritten elements."""
    return dtype.bits >= (16 if dtype.is_float else 32)


def count_unwritten_elements(
    kernel: tile.Kernel, manifest: Manifest, found: Mapping[str, Array]
) -> list[tuple[str, int, int]]:
    """Return (name, unwritten, total) for each output in which some elements still have the poison pattern.

    Types in which the poison is a likely value are skipped.
    """
    counted = []
    for p in kernel.params:
        if isinstance(p, tile.Buffer) and shows_poison(p.dtype) and manifest.tensor(p.name).role == "out":
            count = int(np.count_nonzero(is_poison(found[p.name], p.dtype)))
            counted += [(p.name, count, found[p.name].size)] if count else []
    return counted


def _add_finiteness(result: Comparison, param: tile.Buffer, found: Array, mask: Array | None) -> Comparison:
    """Return the comparison with the NaN and infinite elements counted; it fails if over half of those written are."""
    written = ~is_poison(found, param.dtype)
    if mask is not None:
        written &= mask
    bad = ~np.isfinite(decode_values(found, param.dtype)) & written
    elements, count = int(np.count_nonzero(written)), int(np.count_nonzero(bad))
    if not count:
        return replace(result, elements=elements)
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    is_meaningless = 2 * count > elements
    matches = result.matches and not is_meaningless
    counted = replace(result, matches=matches, elements=elements, not_finite=count, first=first)
    return replace(counted, is_meaningless=is_meaningless)


def find_roundings(kernel: tile.Kernel) -> tuple[dict[tile.Buffer, float], float]:
    """Return the coarsest relative rounding on the way into each buffer, and that of the terms of any gemm or sum.

    Where terms cancel, the error is relative to a term, not to the sum. Buffers that only hold copies of inputs are
    left out, as both sides agree on them.
    """
    flow = _RoundingFlow({}, 0.0)
    flow.follow_body(kernel.body)
    return flow.seen, flow.summed


@dataclass(slots=True)
class _RoundingFlow:
    """Follows statements in order, so that a tensor read before it is written still counts as an input."""

    seen: dict[tile.Buffer, float]
    summed: float

    def follow_body(self, body: tuple[tile.Stmt, ...]) -> None:
        """Record the roundings into the buffers that statements write; a loop is followed until nothing changes."""
        for stmt in body:
            match stmt:
                case tile.For(body=inner) | tile.While(body=inner):
                    before = None
                    while before != self.seen:  # one iteration reads what the one before it wrote
                        before = dict(self.seen)
                        self.follow_body(inner)
                case tile.If(then=then, orelse=orelse):
                    self.follow_body((*then, *orelse))
                case tile.TileOp() | tile.Parallel() | tile.Store() | tile.Bind():
                    self._follow_leaf(stmt)
                case tile.Break() | tile.Print():
                    pass
                case _:
                    assert_never(stmt)

    def _follow_leaf(self, stmt: tile.Stmt) -> None:
        """Record the roundings of what a statement writes, and of summed terms; none for copies of unrounded values."""
        read = self._find_coarsest(find_reads(stmt))
        if isinstance(stmt, tile.TileOp):
            if isinstance(stmt, Gemm):
                self.summed = max(self.summed, *(self._find_operand_rounding(r.buffer) for r in stmt.regions[:2]))
            elif isinstance(stmt, Reduce) and stmt.kind == "sum":
                self.summed = max(self.summed, self._find_coarsest(r.buffer for r in stmt.regions[:-1]))
            if isinstance(stmt, Copy | Fill) and not read:
                return
        computed = max(read, *(_RELATIVE_ROUNDING.get(dtype.name, 0.0) for dtype in _list_computed_types(stmt)), 0.0)
        for buffer in find_writes(stmt):
            own = _RELATIVE_ROUNDING.get(buffer.dtype.name, 0.0)
            self.seen[buffer] = max(self.seen.get(buffer, 0.0), own, computed)

    def _find_operand_rounding(self, buffer: tile.Buffer) -> float:
        """Return the rounding of a factor of a product, 0 for copies of inputs: those are cut to tf32 alike."""
        rounding = self.seen.get(buffer, 0.0)
        return max(rounding, _TF32_STEP) if rounding and buffer.dtype == FLOAT32 else rounding

    def _find_coarsest(self, buffers: Iterable[tile.Buffer]) -> float:
        """Return the coarsest recorded rounding of these buffers, 0 if there is none."""
        return max((self.seen.get(buffer, 0.0) for buffer in buffers), default=0.0)


def _list_computed_types(stmt: tile.Stmt) -> Iterator[DType]:
    """Yield the types that the statement's expressions compute in."""
    expressions = (expr for inner in tile.walk_statements((stmt,)) for expr in list_expressions(inner))
    for part in (part for expr in expressions for part in tile.walk_expr(expr)):
        if not isinstance(part, tile.Const | tile.Var | tile.Load):
            yield part.dtype


def _compare_tensor(
    param: tile.Buffer, found: Array, expected: Array, reordered: float, seen: float, summed: float, mask: Array | None
) -> Comparison:
    """Compare an output with the reference's where `mask` is set (None: all), integers exactly, floats nearly."""
    # Double precision, except for integers, which need every bit.
    kind = np.float64 if param.dtype.is_float else np.object_ if param.dtype.bits == 64 else np.int64
    left: Any = decode_values(found, param.dtype).astype(kind)
    right: Any = decode_values(expected, param.dtype).astype(kind)
    if not param.dtype.is_float:
        error = np.abs(left - right).astype(np.float64)
        allowed: Array = np.zeros(right.shape)
    else:
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(left - right))
        error[np.isnan(error)] = np.inf
        finite = np.abs(right[np.isfinite(right)])
        # Reordering a sum changes it by rounding steps relative to the largest result.
        scale = float(finite.max()) if finite.size else 0.0
        relative = max(_RELATIVE_ROUNDING[param.dtype.name], seen)
        allowed = relative * np.abs(np.where(np.isfinite(right), right, 0.0)) + (reordered + summed) * scale
    excess = error - allowed
    if mask is not None:
        excess = np.where(mask, excess, -np.inf)
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape) if excess.size else ()
    index = tuple(int(i) for i in worst)
    compared = excess.size if mask is None else int(np.count_nonzero(mask))
    if not compared:
        return Comparison(param.name, not excess.size, shape=excess.shape)
    numbers = float(error[index]), float(allowed[index]), index, float(left[index]), float(right[index])
    return Comparison(param.name, bool(excess[index] <= 0), *numbers, shape=excess.shape, compared=compared)


def bound_summing_error(kernel: tile.Kernel) -> float:
    """Return an upper bound on the error by summation order, relative to the largest result.

    It counts the roundings of a result: trip counts times the longest reduced side, in rounding steps of the
    accumulator's type.
    """
    return max(_list_summing_errors(kernel.body, (), kernel), default=2.0**-24)


def _list_summing_errors(
    body: tuple[tile.Stmt, ...], loops: tuple[tile.For | tile.While, ...], kernel: tile.Kernel
) -> Iterator[float]:
    """Yield bounds on the relative rounding errors of the statements and their sums, repeated by the loops around."""
    trip_count = math.prod(_count_iterations(loop) for loop in loops)
    for stmt in body:
        inside = (*loops, stmt) if isinstance(stmt, tile.For | tile.While) else loops
        yield trip_count * 2.0**-24
        match stmt:
            case Gemm(regions=regions) | Reduce(regions=regions):
                longest = max(extent for region in regions for extent in region.extent)
                if isinstance(stmt, Gemm) and regions[0].buffer.dtype.bits == 8 and regions[0].buffer.dtype.is_float:
                    # Each of 32 products is truncated 13 bits below the largest: `tilec/emu/wgmma/wgmma.py`.
                    yield trip_count * -(-longest // 32) * 2 * 2.0**-13
                unit = _get_rounding_step(regions[2].buffer.dtype) if isinstance(stmt, Gemm) else 2.0**-24
                # The tensor core rounds once for every 16 products.
                yield trip_count * (longest if unit == 2.0**-24 else -(-longest // 16)) * unit
            case AtomicTile(regions=(_, destination)):
                yield _count_additions(destination.start, loops, kernel) * _get_rounding_step(destination.buffer.dtype)
            case tile.Parallel(vars=variables, extents=extents):
                for store in tile.walk_statements(stmt.body):
                    if isinstance(store, tile.Store) and store.atomic == "add":
                        sides = zip(variables, extents, strict=True)
                        still = math.prod(e for v, e in sides if not _is_indexed_by(v, store.indices))
                        additions = _count_additions(store.indices, loops, kernel) * still
                        yield additions * _get_rounding_step(store.buffer.dtype)
            case _:
                pass
        for nested in tile.nested_bodies(stmt) if not isinstance(stmt, tile.Parallel) else ():
            yield from _list_summing_errors(nested, inside, kernel)


def _count_additions(
    indices: tuple[tile.Expr, ...], loops: tuple[tile.For | tile.While, ...], kernel: tile.Kernel
) -> int:
    """Return how often blocks and iterations may add to one element: all whose variable its indices do not use."""
    grid = zip(kernel.block_vars, kernel.grid, strict=True)
    blocks = [e if isinstance(e, int) else UNKNOWN_TRIP_COUNT for v, e in grid if not _is_indexed_by(v, indices)]
    around = (loop for loop in loops if isinstance(loop, tile.While) or not _is_indexed_by(loop.var, indices))
    return math.prod(blocks) * math.prod(map(_count_iterations, around))


def _is_indexed_by(var: tile.Var, indices: tuple[tile.Expr, ...]) -> bool:
    return any(var in tile.walk_expr(index) for index in indices)


def _get_rounding_step(dtype: DType) -> float:
    """Return the relative rounding of one addition in this type."""
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name, 2.0**-24)


UNKNOWN_TRIP_COUNT = 64
"""Used where a trip count is known only at run time; it only affects the tolerance."""


def _count_iterations(loop: tile.For | tile.While) -> int:
    """Return the trip count of a loop, at least 1; UNKNOWN_TRIP_COUNT where it is not constant."""
    if isinstance(loop, tile.For) and isinstance(loop.start, tile.Const) and isinstance(loop.stop, tile.Const):
        return max(math.ceil((int(loop.stop.value) - int(loop.start.value)) / loop.step), 1)
    return UNKNOWN_TRIP_COUNT
