"""Choose the hardware mechanism of each copy and gemm, and the form of the kernel: one role or several.

Afterwards every copy and gemm has an attribute `via`:
copy: "tma" | "cp_async" | "registers" | "tma_store" | "stmatrix"; gemm: "wgmma" | "mma".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from tilec.diag import AT_ONCE, CompileError, Label, Mistakes, fail
from tilec.ir.affine import affine, divisor
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.tile import (
    BLOCK_WIDE,
    THREAD,
    WARP_WIDE,
    Bind,
    Buffer,
    Call,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Parallel,
    Region,
    Stmt,
    TileOp,
    Var,
    While,
    bodies,
    integer,
    substitute,
    walk,
    walk_expr,
    with_attr,
)
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64, UINT32, UINT64
from tilec.ops.fill import masked
from tilec.ops.reduce import kept_extents
from tilec.ops.refused import refused
from tilec.ops.scan import expansion
from tilec.options import NO_SWITCHES, Switches
from tilec.passes.able import check_arithmetic
from tilec.passes.rings import is_load, why_not_fed
from tilec.passes.usage import expressions, reads, writes
from tilec.passes.wishes import asynchronous, awaited, expanded, honoured
from tilec.records import dataclass
from tilec.target import Target, Weights

Form = Literal["serial", "unspecialised", "warp_specialised"]
Strategy = Literal["auto", "none", "unspecialize", "warp-specialize"]

TMA_ALIGNMENT = 16  # bytes: global address, row strides, inner box (cuTensorMapEncodeTiled)
MAX_BOX = 256  # elements along any dimension of a TMA box
WARPGROUP = 128  # threads
_WHILE = Var("while")  # stands for the trips of a while, which have no number
TMA_REDUCTIONS = {
    "add": (FLOAT16, BFLOAT16, FLOAT32, INT32, UINT32, UINT64),
    "min": (INT32, UINT32, INT64, UINT64),
    "max": (INT32, UINT32, INT64, UINT64),
}
"""What cp.reduce.async.bulk.tensor combines (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The kernel with mechanisms chosen, and what its layouts are to be chosen by."""

    kernel: Kernel
    form: Form
    weights: Weights
    always_swizzle: bool = False


def is_variable(buffer: Buffer) -> bool:
    """Whether every thread has a copy of it, as of what T.alloc_var makes."""
    return buffer.scope == "fragment" and buffer.shape == (1,)


def is_per_thread(expr: Expr) -> bool:
    """Whether it names the thread, or something that every thread has of its own."""
    return any(
        e == THREAD
        or (isinstance(e, Load) and e.buffer.scope == "local")
        or (isinstance(e, Call) and (e.fn in WARP_WIDE or e.fn in BLOCK_WIDE))
        for e in walk_expr(expr)
    )


def select(
    kernel: Kernel,
    target: Target,
    strategy: Strategy,
    switches: Switches = NO_SWITCHES,
    mistakes: Mistakes = AT_ONCE,
) -> Selected:
    check_arithmetic(kernel.body, target, mistakes)
    form: Form = "unspecialised"
    with mistakes.caught():
        form = _form(kernel, target, strategy)
    selector = _Selector(kernel, target, form, switches, mistakes)
    body = selector.body(kernel.body)
    kernel = replace(kernel, body=body, buffers=kernel.buffers + tuple(selector.staging))
    return Selected(kernel, form, target.weights, switches.always_swizzle)


def is_pipelined(loop: For) -> bool:
    """`num_stages=0` switches pipelining off. A loop around a pipelined one of which nothing is said is pipelined only
    if it loads tiles itself: else there is nothing to start ahead."""
    if loop.kind != "pipelined" or loop.num_stages == 0:
        return False
    if loop.stage is not None or loop.num_stages is not None:
        return True
    return any(isinstance(s, TileOp) and is_load(s) for s in loop.body) or not pipelined_loops(loop.body)


def pipelined_loops(body: tuple[Stmt, ...]) -> tuple[For, ...]:
    """In program order: a loop before those in it."""
    return tuple(s for s in walk(body) if isinstance(s, For) and is_pipelined(s))


def _form(kernel: Kernel, target: Target, strategy: Strategy) -> Form:
    loops = pipelined_loops(kernel.body)
    if strategy == "none" or not loops:
        return "serial"
    able = target.has("tma") and target.has("setmaxnreg")
    if strategy == "warp-specialize":
        refusal = _why_not_specialised(kernel, loops) if able else f"{target.name} has no TMA"
        if refusal:
            fail(
                "strategy-impossible",
                f"this kernel cannot be warp-specialised: {refusal}",
                loops[0].span,
                "the pipelined loop",
                help="leave --pipeline-strategy at auto",
            )
        return "warp_specialised"
    if strategy == "auto" and able and _why_not_specialised(kernel, loops) is None:
        return "warp_specialised"
    return "unspecialised"


def _why_not_specialised(kernel: Kernel, loops: tuple[For, ...]) -> str | None:
    """A producer warp can feed a loop only by TMA, and only unconditionally. What it cannot load of a loop around a
    pipelined one, the consumers load themselves: little of the time goes there."""
    if kernel.threads % WARPGROUP or kernel.threads > 3 * WARPGROUP:
        return f"{kernel.threads} threads are not one to three warpgroups of {WARPGROUP}"
    fed = 0
    ordered = ordered_tensors(kernel)
    tiles = {b.name for b in kernel.buffers}
    if steering := _scalar_reads(kernel.body) & (ordered | tiles):
        return f"the kernel computes {min(steering)}, which decides what is copied"
    if own := next((s for s in walk(kernel.body) if isinstance(s, Bind) and is_per_thread(s.value)), None):
        return f"in {own.span.place}, each thread reads for itself"
    for loop in loops:
        if pipelined_loops(loop.body):
            continue
        for stmt, wish, waits in zip(loop.body, asynchronous(loop), awaited(kernel, loop), strict=True):
            if wish is False and isinstance(stmt, TileOp) and is_load(stmt):
                return f"the copy in {stmt.span.place} is to be synchronous"
            if waits and isinstance(stmt, TileOp) and is_load(stmt):
                return f"`sync` lets the copy in {stmt.span.place} wait for others"
            inner = [s for s in walk((stmt,)) if isinstance(s, TileOp) and is_load(s)]
            for copy in inner:
                if copy is not stmt:
                    return f"the copy in {copy.span.place} is conditional or in a loop of its own"
                reason = _why_not_tma(copy)
                if copy.regions[0].buffer.name in ordered:
                    reason = f"the kernel also writes {copy.regions[0].buffer.name}"
                if reason:
                    return f"the copy in {copy.span.place} cannot use TMA, {reason}"
                fed += 1
        reason = why_not_fed(kernel, loop)
        if reason:
            return reason
    return None if fed else "no copy from global to shared memory in a pipelined loop"


def ordered_tensors(kernel: Kernel) -> frozenset[str]:
    """Tensors whose accesses must keep their order: written in one place and touched in another, or again and again in
    the same place. TMA would have to be waited for in full, so they are left to ordinary accesses and barriers."""
    places: dict[str, int] = {}
    written: set[str] = set()

    def visit(body: tuple[Stmt, ...], loops: tuple[Var, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, For | If | While):
                more = (stmt.var,) if isinstance(stmt, For) else (_WHILE,) if isinstance(stmt, While) else ()
                for nested in bodies(stmt):
                    visit(nested, (*loops, *more))
                continue
            moving = {e for region in getattr(stmt, "regions", ()) for s in region.start for e in walk_expr(s)}
            again = not isinstance(stmt, TileOp) or any(v not in moving for v in loops)
            touched: tuple[Buffer, ...] = (*reads(stmt), *writes(stmt))
            if isinstance(stmt, TileOp) and stmt.name == "atomic":
                # Additions to one place may come in any order.
                again, touched = False, tuple(dict.fromkeys(touched))
            for b in touched:
                places[b.name] = places.get(b.name, 0) + 1
            for b in writes(stmt):
                written.add(b.name)
                places[b.name] += bool(loops) and again

    visit(kernel.body, ())
    return frozenset(
        p.name
        for p in (*kernel.params, *kernel.workspaces)
        if isinstance(p, Buffer) and p.name in written and places[p.name] > 1
    )


def _scalar_reads(body: tuple[Stmt, ...]) -> frozenset[str]:
    """Tensors and tiles whose elements are indices, conditions or bounds outside elementwise nests."""
    found: set[str] = set()
    for stmt in body:
        if not isinstance(stmt, Parallel):
            found |= {e.buffer.name for x in expressions(stmt) for e in walk_expr(x) if isinstance(e, Load)}
            for nested in bodies(stmt):
                found |= _scalar_reads(nested)
    return frozenset(found)


def _why_not_tma(op: TileOp) -> str | None:
    source, destination = op.regions
    if _without_tma(op):
        return "by disable_tma"
    if not destination.is_whole:
        return "it fills a part of a tile"
    return why_no_tensor_map(source, destination.buffer)


def _without_tma(op: TileOp) -> bool:
    return ("tma", False) in op.attrs


def why_no_tensor_map(outside: Region, tile: Buffer) -> str | None:
    """Why TMA cannot move between this region of a tensor and the tile, or None."""
    tensor = outside.buffer
    if tensor.dtype != tile.dtype:
        return f"it converts {tensor.dtype} to {tile.dtype}"
    if len(tile.shape) < 2 or len(tensor.extents) > 5:
        return f"the tile has {len(tile.shape)} dimension(s) and the tensor {len(tensor.extents)}"
    size = tensor.dtype.bytes
    if outside.extent[-1] != tile.shape[-1] or outside.shape != _squeeze(tile.shape):
        return "the region has another shape than the tile"
    row = size * divisor(tensor.extents[-1])
    if len(tensor.extents) > 1 and row % TMA_ALIGNMENT:
        length = f"{row} bytes, not" if isinstance(tensor.extents[-1], int) else "perhaps not, known only at launch,"
        return f"{tensor.name}'s rows are {length} a multiple of {TMA_ALIGNMENT}"
    if tile.shape[-1] * size % TMA_ALIGNMENT:
        return f"a tile row is {tile.shape[-1] * size} bytes, not a multiple of {TMA_ALIGNMENT}"
    if any(e > MAX_BOX for e in outside.extent[:-1]):
        return f"a box has at most {MAX_BOX} rows"
    if tile.shape[-1] > MAX_BOX and tile.shape[-1] * size % 32:
        return f"a box has at most {MAX_BOX} columns"
    return None


def _squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(e for e in shape if e != 1) or (1,)


def _becoming_a(kernel: Kernel) -> frozenset[str]:
    """Fragments that a T.gemm takes as A, and those from which they are computed element by element: whole rows of them
    should lie in one warp, as A's must."""
    statements = list(walk(kernel.body))
    found = {s.regions[0].buffer for s in statements if isinstance(s, TileOp) and s.name == "gemm"}
    found = {b for b in found if b.scope == "fragment"}
    steps = [s for s in statements if isinstance(s, Parallel) or (isinstance(s, TileOp) and s.name == "copy")]
    while True:
        more = {
            b
            for s in steps
            if any(w in found for w in writes(s))
            for b in reads(s)
            if b.scope == "fragment" and any(b.shape == w.shape for w in writes(s) if w in found)
        }
        if more <= found:
            return frozenset(b.name for b in found)
        found |= more


class _Selector:
    def __init__(self, kernel: Kernel, target: Target, form: Form, switches: Switches, mistakes: Mistakes) -> None:
        self.kernel, self.target, self.form, self.switches, self.mistakes = kernel, target, form, switches, mistakes
        self.staging: list[Buffer] = []
        self.values: dict[Var, Expr] = {}  # of the integer binds that have been met
        self.fed: set[int] = set()  # the copies that are left to a producer role
        self.ordered = ordered_tensors(kernel)
        self.becoming_a = _becoming_a(kernel)
        self.accumulators = {
            s.regions[2].buffer.name for s in walk(kernel.body) if isinstance(s, TileOp) and s.name == "gemm"
        }

    def body(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in stmts for new in self.stmt(stmt))

    def stmt(self, stmt: Stmt) -> tuple[Stmt, ...]:
        try:
            return self.selected(stmt)
        except CompileError as error:
            self.mistakes.add(error)
            return (refused(reads(stmt), writes(stmt), stmt.span),)

    def selected(self, stmt: Stmt) -> tuple[Stmt, ...]:
        match stmt:
            case For():
                return (self.loop(stmt),)
            case If():
                return (replace(stmt, then=self.body(stmt.then), orelse=self.body(stmt.orelse)),)
            case While():
                return (replace(stmt, body=self.body(stmt.body)),)
            case Bind(var=var, value=value):
                if var.dtype.kind == "int" and not any(isinstance(e, Load) for e in walk_expr(value)):
                    self.values[var] = substitute(value, self.values)
                return (stmt,)
            case TileOp(name="copy"):
                return self.copy(stmt, is_fed=id(stmt) in self.fed)
            case TileOp(name="gemm"):
                if stmt.attr("policy") == "square" and stmt.regions[2].buffer.name in self.becoming_a:
                    stmt = with_attr(stmt, "policy", "full_row")
                return (with_attr(stmt, "via", self.gemm(stmt)),)
            case TileOp(name="atomic"):
                return self.atomic(stmt)
            case TileOp(name="reduce"):
                return self.reduce(stmt)
            case TileOp(name="fill", regions=(part,)) if part.buffer.scope == "fragment" and not part.is_whole:
                return (masked(stmt),)
            case TileOp(name="scan"):
                return expansion(stmt, self.scan_tile)
            case TileOp(name="fence") if not self.target.has("tma"):
                return (with_attr(stmt, "via", "nothing"),)  # there is no asynchronous proxy
            case _:
                return (stmt,)

    def loop(self, loop: For) -> For:
        """A statement that becomes two leaves both in its place of a manual schedule."""
        if self.form == "warp_specialised" and is_pipelined(loop):
            self.fed |= {id(s) for s in self.for_a_producer(loop)}
        parts = [self.stmt(s) for s in loop.body]
        if loop.stage is not None and is_pipelined(loop):
            waits = zip(asynchronous(loop), awaited(self.kernel, loop), strict=True)
            parts = [(*wait, *self.honoured(part, wish)) for part, (wish, wait) in zip(parts, waits, strict=True)]
        return expanded(loop, parts)

    def honoured(self, part: tuple[Stmt, ...], wish: Label | bool | None) -> tuple[Stmt, ...]:
        """A wish that cannot be granted is a mistake, and goes no further."""
        try:
            return honoured(part, wish)
        except CompileError as error:
            self.mistakes.add(error)
            return part

    def for_a_producer(self, loop: For) -> Iterator[TileOp]:
        """The copies of a pipelined loop by which a producer role can feed it."""
        for stmt, wish, waits in zip(loop.body, asynchronous(loop), awaited(self.kernel, loop), strict=True):
            if not isinstance(stmt, TileOp) or not is_load(stmt) or wish is False or waits:
                continue
            is_ordered = stmt.regions[0].buffer.name in self.ordered
            if not is_ordered and _why_not_tma(stmt) is None and why_not_fed(self.kernel, loop, stmt) is None:
                yield stmt

    def copy(self, op: TileOp, is_fed: bool) -> tuple[Stmt, ...]:
        # What an index is aligned to shows only when the names in it are looked through.
        op = replace(op, regions=tuple(self.resolved(r) for r in op.regions))
        source, destination = op.regions
        scopes = (source.buffer.scope, destination.buffer.scope)
        if scopes == ("global", "shared"):
            if is_fed:
                return (with_attr(op, "via", "tma"),)
            return (with_attr(op, "via", "cp_async" if cp_async_width(op, self.target) else "registers"),)
        tma_store = (
            self.target.has("tma")
            and not _without_tma(op)
            and destination.buffer.scope == "global"
            and destination.buffer.name not in self.ordered
        )
        if tma_store and source.is_whole:
            if scopes[0] == "shared" and why_no_tensor_map(destination, source.buffer) is None:
                return (self.tma_store(op),)
            if scopes[0] == "fragment" and (staged := self.staged_store(op)):
                return staged
        if scopes == ("fragment", "shared") and self.takes_stmatrix(source, destination):
            return (with_attr(op, "via", "stmatrix"),)
        return (with_attr(op, "via", "registers"),)

    def tma_store(self, op: TileOp) -> TileOp:
        """Its wait stands where something needs the tile again, unless the environment wants it right behind."""
        stored = with_attr(op, "via", "tma_store")
        return stored if self.switches.delay_tma_store_wait else with_attr(stored, "wait", "at once")

    def atomic(self, op: TileOp) -> tuple[Stmt, ...]:
        """By TMA where the hardware combines so and a store could go that way; else by the threads."""
        source = op.regions[0]
        reason = self.why_no_tma_reduction(op)
        if reason is None and source.buffer.scope == "shared":
            return (self.tma_store(op),)
        if reason is None and (staged := self.staged_store(op)):
            return staged
        if op.attr("use_tma"):
            with self.mistakes.caught():
                fail(
                    "unsupported-operand",
                    f"this T.atomic_{op.attr('kind')} cannot go by TMA",
                    op.span,
                    reason or f"{source.buffer.name} is a fragment that no T.gemm adds to",
                    help="leave out use_tma, or put the values in a shared tile",
                )
        return (with_attr(op, "via", "registers"),)

    def why_no_tma_reduction(self, op: TileOp) -> str | None:
        source, destination = op.regions
        dtype, kind = destination.buffer.dtype, str(op.attr("kind"))
        if not self.target.has("tma"):
            return f"{self.target.name} has no TMA"
        if dtype not in TMA_REDUCTIONS.get(kind, ()):
            return f"TMA has no {kind} of {dtype}"
        if op.attr("order") != "relaxed":
            return "TMA reductions are relaxed"
        if destination.buffer.scope != "global" or destination.buffer.name in self.ordered:
            return f"the kernel touches {destination.buffer.name} elsewhere too"
        if not source.is_whole:
            return f"a part of {source.buffer.name} is taken"
        if source.buffer.scope == "shared":
            return why_no_tensor_map(destination, source.buffer)
        return None

    def resolved(self, region: Region) -> Region:
        return replace(region, start=tuple(substitute(s, self.values) for s in region.start))

    def staged_store(self, op: TileOp) -> tuple[Stmt, ...] | None:
        """An accumulator lies scattered over lanes: through shared memory it leaves as whole rows, by TMA."""
        source, destination = op.regions
        if source.buffer.name not in self.accumulators and not self.switches.prefer_tma:
            return None
        name = f"{source.buffer.name}.staging"
        taken = sum(s.name.startswith(name) for s in self.staging)
        tile = Buffer(
            name + (f".{taken}" if taken else ""), source.buffer.shape, destination.buffer.dtype, "shared", op.span
        )
        if why_no_tensor_map(destination, tile) is not None:
            return None
        reuse = next((s for s in self.staging if replace(s, name=name) == replace(tile, name=name)), None)
        if reuse is None:
            self.staging.append(tile)
        else:
            tile = reuse
        whole = Region(tile, source.start, source.extent, op.span)
        into = TileOp("copy", (source, whole), (), op.span)
        out = replace(op, regions=(whole, destination))
        via = "stmatrix" if self.takes_stmatrix(source, whole) else "registers"
        return with_attr(into, "via", via), self.tma_store(out)

    def reduce(self, op: TileOp) -> tuple[Stmt, ...]:
        """In registers; shared tiles pass through fragments of their own."""
        before: list[Stmt] = []
        after: list[Stmt] = []
        regions = []
        for i, region in enumerate(op.regions):
            if region.buffer.scope == "fragment":
                if not region.is_whole:
                    fail(
                        "unsupported-operand",
                        "T.reduce_* works on whole fragments",
                        region.span,
                        f"a part of {region.buffer.name}",
                        secondary=(Label(region.buffer.span, "allocated here"),),
                        help="use a tile made by T.alloc_shared where parts are reduced",
                    )
                regions.append(region)
                continue
            name = f"{region.buffer.name}.{'result' if i else 'values'}{len(self.staging)}"
            extents = kept_extents(region)
            held = Buffer(name, extents, region.buffer.dtype, "fragment", op.span)
            self.staging.append(held)
            whole = Region(held, tuple(integer(0) for _ in extents), extents, op.span)
            regions.append(whole)
            via = (("via", "registers"),)
            if i == 0 or not op.attr("clear"):
                before.append(TileOp("copy", (region, whole), via, op.span))
            if i == 1:
                after.append(TileOp("copy", (whole, region), via, op.span))
        return *before, replace(op, regions=tuple(regions)), *after

    def scan_tile(self, wanted: Buffer) -> Buffer:
        """A shared tile for a scan, the same one for all scans of a shape and type."""
        name = f"{wanted.name}.{wanted.dtype}.{'x'.join(map(str, wanted.shape))}"
        tile = replace(wanted, name=name)
        if tile not in self.staging:
            self.staging.append(tile)
        return tile

    def takes_stmatrix(self, source: Region, destination: Region) -> bool:
        return (
            self.target.has("stmatrix")
            and source.buffer.name in self.accumulators
            and source.is_whole
            and destination.is_whole
            and source.buffer.dtype == FLOAT32
            and destination.buffer.dtype in (FLOAT16, BFLOAT16)
            and destination.buffer.shape[-1] % 16 == 0
        )

    def gemm(self, op: TileOp) -> str:
        a, _, c = (r.buffer for r in op.regions)
        for region in op.regions:
            if not region.is_whole:
                fail(
                    "unsupported-operand",
                    "T.gemm takes whole tiles",
                    region.span,
                    f"a part of {region.buffer.name}, which is {' × '.join(map(str, region.buffer.shape))}",
                    help="copy the part to a tile of its own first",
                )
        if a.dtype in SMALL_FLOATS and not self.target.has("fp8"):
            fail(
                "unsupported-type",
                f"{self.target.name} has no tensor-core products of 8-bit floats",
                op.span,
                f"A is {a.dtype}",
                secondary=(Label(a.span, "allocated here"),),
                help="use float16 operands, or a target that has them, as sm_90a",
            )
        if self.target.has("wgmma") and wgmma_groups(op, self.kernel.threads):
            return "wgmma"
        if a.dtype in SMALL_FLOATS and c.dtype == FLOAT16:
            fail(
                "unsupported-type",
                f"T.gemm of {a.dtype} accumulates in float16 only by wgmma",
                op.span,
                "which takes A as (M, K), B as (N, K) and whole warpgroups of 64 rows",
                help="allocate the accumulator as float32",
            )
        if mma_warps(op, self.kernel.threads) is None:
            m, n = c.shape
            fail(
                "unsupported-shape",
                f"{self.kernel.threads} threads cannot share a {m} × {n} accumulator",
                op.span,
                f"{self.kernel.threads // 32} warps, blocks of 16 × 8",
                help="use tile sizes that are multiples of 16, or other threads=",
            )
        return "mma"


def cp_async_width(op: TileOp, target: Target) -> int | None:
    """The largest chunk, in bytes, by which cp.async can make this copy: both sides aligned, never across the tensor's
    edge.
    """
    source, destination = op.regions
    if not target.has("cp.async") or source.buffer.dtype != destination.buffer.dtype or not destination.is_whole:
        return None
    size = source.buffer.dtype.bytes
    edge = divisor(source.buffer.extents[-1]) * size
    row = edge if len(source.buffer.extents) > 1 else 0
    first = affine(source.start[-1]).divisor * size
    inner = source.extent[-1] * size
    for width in (16, 8, 4):
        if all(v % width == 0 for v in (row, first, inner, edge)):
            return width
    return None


def wgmma_groups(op: TileOp, threads: int) -> tuple[int, int] | None:
    """How the warpgroups share the accumulator, (along M, along N), or None where wgmma cannot do this gemm."""
    a, b, c = (r.buffer for r in op.regions)
    m, n = c.shape
    k = a.shape[0] if op.attr("transpose_A") else a.shape[1]
    if a.dtype.bytes == 8 or threads % WARPGROUP or m % 64 or k * a.dtype.bytes % 32:
        return None
    if a.dtype.bits != 16 and (op.attr("transpose_A") or not op.attr("transpose_B")):
        return None  # other types must be stored along K
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in (a, b) if t.scope == "shared"):
        return None  # no bank swizzle fits the rows
    groups = threads // WARPGROUP
    across_m = {"full_row": groups, "full_col": 1}.get(str(op.attr("policy")), math.gcd(groups, m // 64))
    across_n = groups // across_m
    if across_m * across_n != groups or (m // 64) % across_m or n % (8 * across_n) or n // across_n > 256:
        return None
    columns = n // across_n
    if not a.dtype.is_float and columns % 16 and columns not in (8, 24):
        return None  # PTX ISA, wgmma: the shapes of integers
    b_panel = min(64, 32 * (b.shape[-1] // 32) or 16)
    if not op.attr("transpose_B") and across_n > 1 and (n // across_n) % b_panel:
        return None
    return across_m, across_n


def mma_warps(op: TileOp, threads: int) -> tuple[int, int] | None:
    """How the warps share the accumulator, (along M, along N): as square as the policy allows, blocks of 16 × 16 at
    least.
    """
    a, _, c = (r.buffer for r in op.regions)
    m, n = c.shape
    k = a.shape[0] if op.attr("transpose_A") else a.shape[1]
    if threads % 32 or m % 16 or n % 8 or k * a.dtype.bytes % 32:
        return None
    warps = threads // 32
    splits = [(i, warps // i) for i in range(1, warps + 1) if warps % i == 0]
    fitting = [(i, j) for i, j in splits if m % (16 * i) == 0 and n % (8 * j) == 0]
    policy = op.attr("policy")
    if policy == "full_row" or (a.scope == "fragment" and policy == "square"):
        # A in registers is best not held twice: then a product's accumulator can be the next one's A as it lies.
        fitting = [s for s in fitting if s[1] == 1] or fitting
    elif policy == "full_col":
        fitting = [s for s in fitting if s[0] == 1] or fitting
    # Shared-memory traffic is proportional to the perimeter of a warp's block.
    return min(fitting, key=lambda s: (m // s[0] + n // s[1], s), default=None)
