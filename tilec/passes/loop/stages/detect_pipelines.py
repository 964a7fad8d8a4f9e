"""Detection of loops that load and use tiles, and could be pipelined, whatever the text calls them.

A `T.serial` loop whose tiles are loaded and multiplied in each iteration is the same as a `T.Pipelined` loop without
further arguments. It is pipelined unless `why_not_pipelined` gives a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.analysis import rings
from tilec.analysis.rings import find_pipelined_loops, is_load, is_pipelined
from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.sched.decision import Decider
from tilec.support.options import DECIDING_LEVEL, CompileOptions, Strategy
from tilec.target.table import Target


def detect_pipelines(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """Return the kernel with each serial loop that loads and multiplies tiles made a pipelined one, where possible."""
    found = {loop.var for loop in find_serial_loops(kernel) if why_not_pipelined(kernel, loop, target) is None}

    def pipeline_loop(stmt: tile.Stmt) -> tile.Stmt:
        """Return a found loop as a pipelined one; any other statement as it is."""
        return replace(stmt, kind="pipelined") if isinstance(stmt, tile.For) and stmt.var in found else stmt

    return replace(kernel, body=rewrite_statements(kernel.body, pipeline_loop)) if found else kernel


def find_serial_loops(kernel: tile.Kernel) -> Iterator[tile.For]:
    """Yield the serial loops that copy from a tensor to a shared tile in each iteration, in program order."""
    for loop in tile.walk_statements(kernel.body):
        if isinstance(loop, tile.For) and loop.kind == "serial" and any(find_loads(loop)):
            yield loop


def find_loads(loop: tile.For) -> Iterator[tile.TileOp]:
    """Return the copies from tensors to shared tiles that stand directly in the loop's body."""
    return (stmt for stmt in loop.body if isinstance(stmt, tile.TileOp) and is_load(stmt))


def find_detected_loops(written: tile.Kernel, kernel: tile.Kernel) -> tuple[tile.For, ...]:
    """Return the pipelined loops of `kernel` that are not pipelined in the kernel as written."""
    written_spans = {loop.span for loop in find_pipelined_loops(written.body)}
    return tuple(loop for loop in find_pipelined_loops(kernel.body) if loop.span not in written_spans)


def has_asynchronous_loads(assignment: LayoutAssignment, loops: tuple[tile.For, ...]) -> bool:
    """Return whether each of these pipelined loops has a load by TMA or cp.async."""
    spans = {loop.span for loop in loops}
    detected_loops = [loop for loop in find_pipelined_loops(assignment.kernel.body) if loop.span in spans]
    return all(any(op.via in ("tma", "cp_async") for op in find_loads(loop)) for loop in detected_loops)


def why_not_detected(strategy: Strategy, options: CompileOptions) -> tuple[Decider, str] | None:
    """Return who decided, and why, that only loops marked in the text are pipelined; None if others may be."""
    if not options.auto_pipeline:
        return "the command line", "--no-auto-pipeline"
    if options.opt_level < DECIDING_LEVEL:
        return "the compiler", f"not at -O{options.opt_level}"
    return ("the command line", "--pipeline-strategy none") if strategy == "none" else None


def why_not_pipelined(kernel: tile.Kernel, loop: tile.For, target: Target) -> str | None:
    """Return why a loop that loads tiles runs as written; None if it is or can be pipelined."""
    if loop.kind == "pipelined":
        return None if is_pipelined(loop) else "the kernel sets it: num_stages=0, or one stage for its tiles"
    if loop.kind == "unroll":
        return "it is unrolled"
    if any(isinstance(s, AllocBarrier) for s in tile.walk_statements(kernel.body)):
        return "the kernel has explicit barriers"
    if (trip_count := get_static_trip_count(loop)) is not None and trip_count < 2:
        return f"it runs {trip_count} iteration{'s' * (trip_count != 1)}"
    if any(
        isinstance(s, tile.For) and (is_pipelined(s) or any(find_loads(s))) for s in tile.walk_statements(loop.body)
    ):
        return "an inner loop also loads, and is pipelined instead"
    if (odd := next((s for s in tile.walk_statements(loop.body) if _must_keep_order(s)), None)) is not None:
        return f"{odd.span.place} {_why_fixed_order(odd)}, so the loop keeps the order of the text"
    inside, tiles = rings.analyse_loop_body(kernel, loop), [load.regions[1].buffer for load in find_loads(loop)]
    if reason := next((why for why in map(inside.why_not_versioned, tiles) if why is not None), None):
        return reason
    if not _are_multiplied(tiles, loop):
        return "no product uses its tiles; only T.Pipelined pipelines such a loop"
    changed = {b.name for s in tile.walk_statements(kernel.body) for b in find_writes(s) if b.scope == "global"}
    if changed_load := next((load for load in find_loads(loop) if load.regions[0].buffer.name in changed), None):
        return f"the kernel also writes {changed_load.regions[0].buffer.name}"
    others = sum(b.bytes for b in kernel.buffers if b.scope == "shared" and b not in tiles)
    room, wanted = target.limit("smem_bytes_per_cta") - others, 2 * sum(buffer.bytes for buffer in tiles)
    if wanted > room:
        return f"two versions of its tiles take {wanted:,} bytes, and {room:,} are free"
    return None


def _are_multiplied(tiles: Sequence[tile.Buffer], loop: tile.For) -> bool:
    """Return whether a product of the loop has one of these tiles, or a tile computed from them, as an operand."""
    derived = {buffer.name for buffer in tiles}
    for stmt in tile.walk_statements(loop.body):
        if isinstance(stmt, Gemm):
            if any(operand.buffer.name in derived for operand in stmt.regions[:2]):
                return True
        elif isinstance(stmt, tile.TileOp | tile.Parallel) and any(b.name in derived for b in find_reads(stmt)):
            derived |= {b.name for b in find_writes(stmt)}
    return False


def _why_fixed_order(stmt: tile.Stmt) -> str:
    """Return the end of a sentence that says why the loop must run a statement in the text's order."""
    match stmt:
        case tile.If() if any(isinstance(s, tile.Break) for s in tile.walk_statements((stmt,))):
            return "may leave the loop"
        case tile.If():
            return "is conditional"
        case tile.While():
            return "has no trip count"
        case tile.Break():
            return "may leave the loop"
        case tile.Print():
            return "prints"
        case tile.Store():
            return "is atomic"
        case _:
            return "cannot be reordered"


def _must_keep_order(stmt: tile.Stmt) -> bool:
    """Return whether a statement forbids pipelining its loop: a branch, print, atomic, wait or unordered operation."""
    match stmt:
        case tile.TileOp():
            return not stmt.order_is_known or stmt.is_asynchronous or stmt.wait is not None
        case tile.Store(atomic=atomic):
            return atomic is not None
        case tile.Print() | tile.While() | tile.Break() | tile.If():
            return True
        case _:
            return False
