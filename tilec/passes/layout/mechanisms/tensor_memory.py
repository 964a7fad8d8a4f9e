"""Accumulators in tensor memory: the products that tcgen05.mma does, and the columns of their sums.

A fragment that is cleared, summed up in a pipelined loop by products alone, and read behind it, need not be in
registers meanwhile. The products of the loop add to a tile in tensor memory instead, the first of each sum overwrites
it, and behind the loop the sum is loaded:

    T.clear(C)                              C_tmem = 0 in the first iteration
    for k in T.Pipelined(…):                for k in T.Pipelined(…):
        T.gemm(A, B, C)                         T.gemm(A, B, C_tmem)
    …                                       T.copy(C_tmem, C)

All other statements stay as they are. Other products keep their instruction."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from tilec.analysis.rings import find_pipelined_loops, find_sharing_loops, is_pipelined, plan_rings as ring_plans
from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile, warp
from tilec.ir.affine import affine_form, reads_elements
from tilec.ir.groups import TENSOR_LANES
from tilec.ir.layout import Fragment, tensor_accumulator
from tilec.ir.rewrite import map_nested_bodies
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT32
from tilec.ops.copies.copy import Copy, refuse_scopes
from tilec.ops.fill import Fill
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.fragments.convert_layouts import cover_buffer
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target

TENSOR_SUFFIX = ".tmem"
_K_BYTES = 32  # along K, of a tcgen05.mma of any kind


def count_columns(tensor: tile.Buffer, is_factor: bool = False) -> int:
    """Return how many columns of tensor memory a tile takes, all versions together; factors of products are packed. A
    column holds 128 rows; an element of a sum takes 32 bits of any type, elements of a factor are packed (PTX ISA,
    tcgen05 "Data Path Layout Organization"). Leading dimensions number versions."""
    *versions, rows, width = tensor.shape
    packed = count_elements_per_column(tensor) if is_factor else 1
    return math.prod(versions) * -(-rows // TENSOR_LANES) * width // packed


def count_elements_per_column(tensor: tile.Buffer) -> int:
    """Return how many elements of a factor share one 32-bit column of tensor memory."""
    return 32 // tensor.dtype.bits


def find_factors(kernel: tile.Kernel) -> frozenset[tile.Buffer]:
    """Return the tiles in tensor memory that are operand A of a product."""
    products = (s for s in tile.walk_statements(kernel.body) if isinstance(s, Gemm))
    return frozenset(p.regions[0].buffer for p in products if p.regions[0].buffer.scope == "tmem")


def move_sums_to_tmem(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """Return the kernel with the sums of its pipelined loops moved to tensor memory, as far as its columns reach. The
    kernel has its mechanisms selected, and a producer for its loads."""
    return _move_sums(kernel, target, target.limit("tmem_columns"))[0]


def _move_sums(
    kernel: tile.Kernel, target: Target, room: int | None
) -> tuple[tile.Kernel, list[tile.Buffer], set[Span]]:
    """Return the kernel with sums in tensor memory, these sums, and the loops that keep theirs as threads share
    their tiles. `room` is in columns; None: any number."""
    kept: set[Span] = set()
    while True:
        rewriter = _SumRewriter(kernel, target, room, kept)
        body = rewriter.rewrite_body(kernel.body)
        if not rewriter.tiles:
            return kernel, [], kept
        rewritten = replace(kernel, body=body, buffers=(*kernel.buffers, *rewriter.tiles))
        uneven = set(_find_unevenly_released_loops(rewritten)) & rewriter.loops
        if not uneven:
            return rewritten, rewriter.tiles, kept
        kept |= uneven


def _find_unevenly_released_loops(kernel: tile.Kernel) -> Iterator[Span]:
    """Yield the spans of loops that share a ring with a loop where not the same kind of reader releases a tile."""
    for loop in find_pipelined_loops(kernel.body):
        for name, others in find_sharing_loops(kernel, loop).items():
            if any(_find_reader_kinds(loop, name) != _find_reader_kinds(other, name) for other in others):
                yield loop.span


def _find_reader_kinds(loop: tile.For, tensor: str) -> set[bool]:
    """Return the kinds of a tile's readers directly in the loop: True for tensor cores, False for threads."""
    readers = (s for s in loop.body if any(b.name == tensor for b in find_reads(s)))
    return {isinstance(s, tile.TileOp) and s.via == "tcgen05" for s in readers}


def find_crowded_out_sums(kernel: tile.Kernel, target: Target) -> tuple[tile.Buffer, ...]:
    """Return the sums that could be in tensor memory with any number of columns, under their own names."""
    _, tiles, _ = _move_sums(kernel, target, None)
    return tuple(replace(t, name=t.name.removesuffix(TENSOR_SUFFIX)) for t in tiles)


def find_loops_sharing_tiles(kernel: tile.Kernel, target: Target) -> set[Span]:
    """Return the spans of loops that keep sums in registers because another loop shares their tiles with threads."""
    _, _, kept = _move_sums(kernel, target, None)
    return kept


def allocate_tensor_tiles(
    kernel: tile.Kernel, target: Target, versions: Mapping[str, int]
) -> tuple[warp.TensorTile, ...]:
    """Return the place of each tile in tensor memory; loop sums that are made repeatedly get two versions if all fit.
    So one is read while the next begins. Other tiles have the versions that the kernel names, or one."""
    tiles = [b for b in kernel.buffers if b.scope == "tmem"]
    if not tiles:
        return ()
    multiplied = find_factors(kernel)
    around = (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.For | tile.While))
    repeated = {b.name for s in around for inner in tile.walk_statements(s.body) for b in find_loop_sums(inner)}
    needed = {t: count_columns(t, t in multiplied) for t in tiles}
    twice = sum(needed[t] * (2 if t.name in repeated else 1) for t in tiles) <= target.limit("tmem_columns")
    placed, offset = [], 0
    for tensor in tiles:
        depth = versions.get(tensor.name, 2 if twice and tensor.name in repeated else 1)
        placed.append(warp.TensorTile(tensor, needed[tensor], depth, offset))
        offset += placed[-1].columns * placed[-1].depth
    return tuple(placed)


def find_loop_sums(loop: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return the tensor-memory tiles that products directly in a pipelined loop add to; () for other statements."""
    if not isinstance(loop, tile.For) or not is_pipelined(loop):
        return ()
    products = (s for s in loop.body if isinstance(s, Gemm))
    return tuple(dict.fromkeys(p.regions[2].buffer for p in products if p.regions[2].buffer.scope == "tmem"))


def why_sums_stay(loop: tile.For) -> tuple[str, str] | None:
    """Return why a pipelined loop keeps its sums in registers, whatever its products, and the remedy; else None."""
    if find_pipelined_loops(loop.body):
        return "its loop contains another pipelined loop", "make the outer loop serial"
    if loop.stage is not None or loop.scheduling_hints is not None:
        return "its loop has a manual schedule", "remove stage=, order= and the other hints"
    if reads_elements(loop.start):
        return "the start of its loop is read from memory", "start the loop at 0, and add the start to the indices"
    if any(isinstance(s, tile.Break) for s in tile.walk_statements(loop.body)):
        return "its loop may end early, by `break`", "run all its iterations"
    return None


class _SumRewriter:
    """Moves sums to tensor memory. `room` counts the free columns (None: any number). Loops in `kept` stay."""

    def __init__(self, kernel: tile.Kernel, target: Target, room: int | None, kept: Collection[Span] = ()) -> None:
        self.kernel, self.target, self.room, self.kept = kernel, target, room, kept
        self.tiles: list[tile.Buffer] = []
        self.loops: set[Span] = set()
        """The loops whose sums are in tensor memory."""

    def rewrite_body(self, stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        """Return the statements with sums of their loops in tensor memory where possible, and record these tiles and
        loops."""
        new: list[tile.Stmt] = []
        for stmt in stmts:
            match stmt:
                case tile.For() if sums := self.find_movable_sums(stmt, new):
                    new = self.move_sums(stmt, sums, new)
                case _:
                    new.append(map_nested_bodies(stmt, self.rewrite_body))
        return tuple(new)

    # ---- what can be there ----

    def find_movable_sums(self, loop: tile.For, before: list[tile.Stmt]) -> dict[tile.Buffer, int]:
        """Return the sums of a loop that can be, and fit, in tensor memory, each with the index of its clearing in
        `before`."""
        if not is_pipelined(loop) or loop.span in self.kept or get_static_trip_count(loop) == 0:
            return {}
        if why_sums_stay(loop) is not None:
            return {}
        fed = {b for ring in ring_plans(self.kernel, loop) for b in ring.buffers}
        found: dict[tile.Buffer, int] = {}
        for op in loop.body:
            if not isinstance(op, Gemm) or op.regions[2].buffer in found:
                continue
            tensor = op.regions[2].buffer
            users = [s for s in loop.body if tensor in find_reads(s) or tensor in find_writes(s)]
            if not all(isinstance(s, tile.TileOp) and self.can_add_to_sum(s, tensor, fed) for s in users):
                continue
            place = _find_clearing(tensor, before)
            needed = count_columns(tensor) + sum(map(count_columns, (*self.tiles, *found)))
            if place is not None and (self.room is None or needed <= self.room):
                found[tensor] = place
        return found

    def can_add_to_sum(self, op: tile.TileOp, tensor: tile.Buffer, fed: set[tile.Buffer]) -> bool:
        """Return True if an operation only adds a product that tcgen05.mma can do to the sum, with both factors in
        rings."""
        if (
            not isinstance(op, Gemm)
            or op.regions[2].buffer != tensor
            or tensor.scope == "tmem"
            or op.clear_accum
            or op.wait == "later"
        ):
            return False
        return is_tensor_product(op, self.kernel.threads, self.target) and {r.buffer for r in op.regions[:2]} <= fed

    # ---- and how ----

    def move_sums(self, loop: tile.For, sums: dict[tile.Buffer, int], before: list[tile.Stmt]) -> list[tile.Stmt]:
        """Return the statements before the loop, without clearings if it surely runs, the loop on tensor memory, and
        sum copies. Records the tiles and the loop. If the loop may have no iteration, all but the statements before
        it is under an `if`."""
        tiles = {f: tile.Buffer(f.name + TENSOR_SUFFIX, f.extents, f.dtype, "tmem", f.span) for f in sums}
        taken = {b.name for b in (*self.kernel.buffers, *self.tiles)}
        for number, (fragment, tensor) in enumerate(tiles.items()):
            if tensor.name in taken:  # another loop has one of this name
                tiles[fragment] = replace(tensor, name=f"{tensor.name}.{len(self.tiles) + number}")
        self.tiles += tiles.values()
        self.loops.add(loop.span)
        first = tile.Binary("eq", loop.var, loop.start, BOOL)
        begun: set[tile.Buffer] = set()
        body: list[tile.Stmt] = []
        for stmt in loop.body:
            if isinstance(stmt, Gemm) and (fragment := stmt.regions[2].buffer) in tiles:
                initialises = tile.Const(False, BOOL) if fragment in begun else first
                stmt = replace(stmt, c=replace(stmt.c, buffer=tiles[fragment]), via="tcgen05", clear_when=initialises)
                begun.add(fragment)
            body.append(stmt)
        loads = tuple(
            Copy(cover_buffer(tensor, loop.span), cover_buffer(fragment, loop.span), via="tcgen05", span=loop.span)
            for fragment, tensor in tiles.items()
        )
        summed_loop: tuple[tile.Stmt, ...] = (replace(loop, body=tuple(body)), *loads)
        if get_static_trip_count(loop):
            return [*(s for i, s in enumerate(before) if i not in sums.values()), *summed_loop]
        some = tile.Binary("lt", loop.start, loop.stop, BOOL)
        return [*before, tile.If(some, summed_loop, (), loop.span)]


def _find_clearing(tensor: tile.Buffer, before: list[tile.Stmt]) -> int | None:
    """Return the index of the last statement that touches the tile, if that fills all of it with 0; else None."""
    for place in reversed(range(len(before))):
        stmt = before[place]
        if tensor in find_writes(stmt) or tensor in find_reads(stmt):
            if isinstance(stmt, Fill) and stmt.regions[0].is_whole and isinstance(stmt.value, tile.Const):
                return place if stmt.value.value == 0 else None
            return None
    return None


def build_copied_layout(op: Copy, threads: int) -> Fragment | None:
    """Return the fragment layout that a copy to or from tensor memory needs; None where the threads cannot share it."""
    tensor, fragment = sorted((r.buffer for r in op.regions), key=lambda buffer: buffer.scope != "tmem")
    rows, width = fragment.shape
    at_once = max(count_elements_per_column(tensor), 2) if op.factor is not None else 2
    return tensor_accumulator((rows, width), threads, at_once)


def refuse_tensor_copy(op: Copy) -> NoReturn:
    """Raise the error for a copy to or from tensor memory whose other side is no fragment of the same shape and
    type."""
    needs = "a copy to or from tensor memory needs a fragment of the same shape and type, and all rows"
    refuse_scopes(op, needs, help="T.copy it to such a fragment first, and copy the fragment")


def check_tensor_copy(op: Copy, threads: int) -> None:
    """Refuse a copy between tensor memory and registers unless it is a whole fragment, aligned, that the warps can
    share."""
    registers, part = op.regions if op.regions[1].buffer.scope == "tmem" else op.regions[::-1]
    fragment, tensor = registers.buffer, part.buffer
    fits = fragment.scope == "fragment" and registers.is_whole and part.extent == fragment.extents
    fits &= len(fragment.extents) == 2 and fragment.dtype == tensor.dtype and part.extent[0] == tensor.shape[0]
    if not fits or affine_form(part.start[-1]).divisor % (2 * count_elements_per_column(tensor)):
        refuse_tensor_copy(op)
    rows, width = fragment.shape
    if build_copied_layout(op, threads) is None:
        raise_error(
            "unsupported-shape",
            f"{threads} threads cannot share {rows} × {width} elements of tensor memory",
            op.span,
            f"each warp reaches 32 of the {TENSOR_LANES} lanes",
            secondary=(Label(tensor.span, "allocated here"),),
            help=f"copy it by whole warpgroups: 64 or {TENSOR_LANES} rows together, or {TENSOR_LANES} each",
        )


def is_tensor_product(op: Gemm, threads: int, target: Target) -> bool:
    """Return True if tcgen05.mma can do this product, and the block's warps can read its sum."""
    rows, width = op.regions[2].buffer.shape
    return why_no_tensor_product(op, target) is None and tensor_accumulator((rows, width), threads) is not None


def why_no_tensor_product(op: Gemm, target: Target) -> str | None:
    """Return why tcgen05.mma cannot do this product: parts, types or sizes of its tiles; None if it can."""
    if len(op.regions) > 3 or op.nibbles is not None:
        return "it needs dense operands of 8, 16 or 32 bits"
    if part := next((r for r in op.regions if not r.is_whole), None):
        return f"it needs whole tiles, and this is a part of {part.buffer.name}: T.copy it to a tile of its own first"
    a, b, c = (r.buffer for r in op.regions)
    rows, width = c.shape
    k = a.shape[0] if op.transpose_A else a.shape[1]
    if a.scope not in ("shared", "tmem") or b.scope != "shared":
        return "A and B must be shared tiles"
    if a.scope == "tmem" and op.transpose_A:
        return "A in tensor memory cannot be transposed"
    if a.dtype.bits not in (8, 16, 32) or a.dtype.per_byte > 1 or c.dtype not in (FLOAT16, FLOAT32, INT32):
        return f"it has no products of {a.dtype} in {c.dtype}"
    if not a.dtype.is_float and not target.has("tcgen05.i8"):
        return f"{target.name} has no integer products in tensor memory"
    if c.dtype == FLOAT16 and a.dtype == FLOAT32:
        return f"it has no products of {a.dtype} in {c.dtype}"
    if k * a.dtype.bytes % _K_BYTES:
        return f"K must be a multiple of {_K_BYTES} bytes"
    if a.dtype.bits == 32 and (op.transpose_A or not op.transpose_B):
        # Otherwise a swizzle of atoms of 32 bytes is needed, which the TMA maps here lack.
        return "tiles of a 32-bit type must be stored along K"
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in (a, b) if t.scope == "shared"):
        return "no bank swizzle fits rows that are not a multiple of 32 bytes"
    if rows != 64 and rows % TENSOR_LANES:
        return f"C has {rows} rows, not 64 or a multiple of {TENSOR_LANES}"
    if width % 16 or (width > 256 and width % 256):
        return f"C has {width} columns, not a multiple of 16 up to 256 or one of 256"
    return None


# ---- sums that a kernel wants there (`explicit_roles.convert_sums_to_fragments`) -------------------------------------


def find_held_products(body: tuple[tile.Stmt, ...]) -> Iterator[Gemm]:
    """Yield the products whose sum the kernel's author puts in tensor memory, leaving its order to the compiler."""
    return (s for s in tile.walk_statements(body) if isinstance(s, Gemm) and s.held is not None)


def check_tensor_sums(kernel: tile.Kernel, target: Target, unfed: str | None) -> None:
    """Refuse a sum that the author puts in tensor memory and that the compiler has left in a fragment. `unfed` is the
    reason why no role loads the tiles of the kernel's loops. Errors: `unsupported-operand`."""
    for op in find_held_products(kernel.body):
        tensor = op.regions[2].buffer
        if tensor.scope == "fragment":
            raise_error(
                "unsupported-operand",
                "the accumulator of this T.gemm cannot be in tensor memory",
                op.span,
                _why_not_in_tmem(op, kernel, target, unfed),
                help="use T.gemm into a fragment: tilec chooses the instruction",
            )


def _why_not_in_tmem(op: Gemm, kernel: tile.Kernel, target: Target, unfed: str | None) -> str:
    """Return why the sum of a product, put in tensor memory by the author, cannot be there, as text for an error."""
    tensor = op.regions[2].buffer
    rows, width = tensor.shape
    if not target.has("tcgen05"):
        return f"{target.name} has no tensor memory"
    if reason := why_no_tensor_product(op, target):
        return reason
    if tensor_accumulator((rows, width), kernel.threads) is None:
        return f"{kernel.threads} threads cannot share {rows} × {width} elements of tensor memory"
    if unfed is not None:
        return f"the tiles must be loaded by TMA, but {unfed}"
    if tensor.name in {t.name for t in find_crowded_out_sums(kernel, target)}:
        return f"the accumulators together take more than {target.limit('tmem_columns')} columns"
    return (
        "C must be cleared before a T.Pipelined loop, and only products of tiles loaded by TMA in that loop may use C"
    )
