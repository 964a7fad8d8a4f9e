"""Report on each tile that a loop loads and uses: whether its loads are software-pipelined, and why.

From global to shared memory these are the rings of pipelined loops, and tiles that nests fill. From shared memory to
registers they are copies to fragments, and operands of `mma` that ldmatrix reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.analysis import rings
from tilec.analysis.fragment_prefetch import is_first_step, is_fragment_prefetch
from tilec.analysis.rings import is_load, is_pipelined
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir.tile import Buffer, For, Parallel, Stmt, TileOp, Var, While, nested_bodies
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.fragments.convert_layouts import CONVERSION_PREFIX
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.passes.loop.stages.detect_pipelines import find_loads, why_not_pipelined
from tilec.support.records import dataclass
from tilec.target.table import Target

Memory = Literal["global → shared", "shared → registers"]
_MECHANISM_NAMES = {"tma": "TMA", "cp_async": "cp.async"}
_BY_THREADS = "by the threads, through registers: no asynchronous copy"

Loops = tuple[For | While, ...]
"""The loops around a statement, the innermost last."""


@dataclass(frozen=True, slots=True)
class LoadedTile:
    """A tile that the statement at `line` loads from `source`, in the loop at line `loop` (None: in no loop).
    `versions` is the number of buffers; with one, loads do not overlap uses. `why` is the reason for that number."""

    tile: str
    source: str
    memory: Memory
    line: int
    loop: int | None
    versions: int
    why: str


def find_loaded_tiles(
    assignment: LayoutAssignment, schedules: Sequence[ScheduledLoop], target: Target
) -> tuple[LoadedTile, ...]:
    """Return each tile that the kernel loads, with its number of versions and the reason, in program order."""
    decided = {one.loop.loop.var: one for one in schedules}
    found: dict[LoadedTile, None] = {}
    for one in assignment.kernels:
        finder = _LoadFinder(one, decided, target, bool(assignment.roles))
        for stmt, loops in _walk_statements(one.kernel.body, ()):
            found |= dict.fromkeys(finder.find_loads(stmt, loops))
    return tuple(found)


def _walk_statements(body: Sequence[Stmt], loops: Loops) -> Iterator[tuple[TileOp | Parallel, Loops]]:
    """Yield the operations and nests in program order, each with the loops around it, the innermost last."""
    for stmt in body:
        if isinstance(stmt, TileOp | Parallel):
            yield stmt, loops
        for inner in nested_bodies(stmt):
            yield from _walk_statements(inner, (*loops, stmt) if isinstance(stmt, For | While) else loops)


@dataclass(frozen=True, slots=True)
class _LoadFinder:
    """Finds the loads of a kernel, or of a role of one with `explicit_roles`. `decided` are the scheduled loops."""

    assignment: LayoutAssignment
    decided: dict[Var, ScheduledLoop]
    target: Target
    explicit_roles: bool

    def find_loads(self, op: TileOp | Parallel, loops: Loops) -> Iterator[LoadedTile]:
        """Yield the tiles that an operation or nest loads, with reasons; none by layout conversions, one for all
        prefetch steps."""
        loop = loops[-1] if loops else None
        line = loop.span.line if loop is not None else None
        if isinstance(op, Parallel):
            sources = [buffer.name for buffer in find_reads(op) if buffer.scope == "global"]
            for tile in (buffer for buffer in find_writes(op) if buffer.scope == "shared" and sources):
                how = self.count_versions(tile, _BY_THREADS, loops)
                yield LoadedTile(tile.name, ", ".join(sources), "global → shared", op.span.line, line, *how)
        elif is_load(op):
            source, tile = (region.buffer for region in op.regions)
            by = f"asynchronous, by {_MECHANISM_NAMES[str(op.via)]}" if op.via in _MECHANISM_NAMES else _BY_THREADS
            how = self.count_versions(tile, by, loops)
            yield LoadedTile(tile.name, source.name, "global → shared", op.span.line, line, *how)
        elif isinstance(op, Copy) and [r.buffer.scope for r in op.regions] == ["shared", "fragment"]:
            source, tile = (region.buffer for region in op.regions)
            if is_fragment_prefetch(op):
                if is_first_step(op):
                    how = _describe_prefetch(op)
                    yield LoadedTile(str(op.of), source.name, "shared → registers", op.span.line, line, *how)
                return
            if source.name.startswith(CONVERSION_PREFIX):
                return
            why = "copied by the threads that use it: the assembler starts the copy as early as its barrier allows"
            yield LoadedTile(tile.name, source.name, "shared → registers", op.span.line, line, 1, why)
        elif isinstance(op, Gemm):
            name, how = "none", (1, f"{op.via} reads shared memory itself")
            if op.via == "mma":
                why = "its steps are unrolled, and within an iteration the assembler issues ldmatrix one step early"
                name, how = f"operand of {op.regions[2].buffer.name}", (2, why)
            for operand in dict.fromkeys(r.buffer.name for r in op.regions[:2] if r.buffer.scope == "shared"):
                yield LoadedTile(name, operand, "shared → registers", op.span.line, line, *how)

    def count_versions(self, tile: Buffer, by: str, loops: Loops) -> tuple[int, str]:
        """Return the number of versions of a loaded shared tile, and the reason for it."""
        if not loops:
            return 1, "no loop loads it again"
        if self.explicit_roles:
            return 1, "the kernel has explicit roles: it declares its own versions"
        loop = loops[-1]
        if isinstance(loop, While):
            return 1, "a `while` has no trip count, and runs as written"
        counted = (one for one in reversed(loops) if isinstance(one, For))
        known = next((self.decided[one.var] for one in counted if one.var in self.decided), None)
        if known is None:
            return 1, _explain_serial(self.assignment, loop, by, self.target)
        if known.loop.loop is not loop:
            inside = f"the inner loop at line {loop.span.line}" if is_pipelined(known.loop.loop) else "an inner loop"
            return 1, f"{inside} is a statement of the pipelined loop at line {known.loop.loop.span.line}"
        for at, (plan, depth) in enumerate(zip(known.loop.rings, known.schedule.depth, strict=True)):
            if tile in plan.buffers:
                return depth, f"{by}; {_explain_versions(tile.bytes, depth, loop, has_room=_has_room(known, at))}"
        why = rings.analyse_loop_body(self.assignment.kernel, loop).why_not_versioned(tile)
        return 1, why or "it does not have a version for each iteration"


def _describe_prefetch(op: Copy) -> tuple[int, str]:
    """Return the number of versions of a prefetched fragment, and words for how early its loads are."""
    distance = op.prefetch_distance
    assert distance is not None
    when = f"prefetched {'a step' if distance == 1 else f'{distance} steps'} before its use"
    return distance + 1, f"{when}; the last steps of an iteration load for the first steps of the next"


def _has_room(scheduled_loop: ScheduledLoop, ring: int) -> bool:
    """Return whether one more version of the ring would fit into shared memory."""
    problem, depths = scheduled_loop.loop.problem, scheduled_loop.schedule.depth
    own = problem.rings[ring]
    pool = problem.pools[own.pool]
    ring_bytes = sum(other.bytes * n for other, n in zip(problem.rings, depths, strict=True) if other.pool == own.pool)
    return pool.reserved + ring_bytes + own.bytes <= pool.capacity


def _explain_versions(size: int, depth: int, loop: For, *, has_room: bool) -> str:
    """Return words for how many versions a tile has, and why there are no more."""
    most = loop.num_stages
    if most == 1:
        return "one version, as the loop requests"
    count = f"{depth} × {size:,} bytes" if depth > 1 else "one version"
    if depth == most or (depth > 1 and most is None):
        return count
    why = "another one would not make the loop faster" if has_room else "shared memory has no room for another one"
    return f"{count} of at most {most}: {why}" if most is not None else f"{count}, and {why}"


def _explain_serial(assignment: LayoutAssignment, loop: For, by: str, target: Target) -> str:
    """Return the reason that a loop is not pipelined and runs as written."""
    if is_pipelined(loop):
        return "pipelined loops run serially with this strategy"
    if by == _BY_THREADS and not any(find_loads(loop)):
        return f"{by}; only T.Pipelined pipelines such a loop"
    return why_not_pipelined(assignment.kernel, loop, target) or "the loop runs as written: see the decisions"
