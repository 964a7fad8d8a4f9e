"""For each tile that a loop loads and uses: whether the loads run ahead of the uses, and why or why not.

Global to shared memory, these are the rings of pipelined loops. Shared memory to registers, they are copies to
fragments, and the operands that products of `mma` read by ldmatrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.ir.tile import For, Stmt, TileOp, bodies
from tilec.passes import rings
from tilec.passes.ahead import AHEAD, OF, is_first, is_loaded_ahead
from tilec.passes.depend import Scheduled
from tilec.passes.layout import Laid
from tilec.passes.load_use import why_not_pipelined
from tilec.passes.register_level import is_made
from tilec.passes.rings import is_load, is_pipelined
from tilec.records import dataclass
from tilec.target import Target

Memory = Literal["global → shared", "shared → registers"]
_BY = {"tma": "TMA", "cp_async": "cp.async"}


@dataclass(frozen=True, slots=True)
class LoadedTile:
    """A tile that the statement at `line` loads from `source`, in the loop at line `loop` (None: in none). `versions`
    is how many there are of it: with one, nothing runs ahead. `why` says what makes it so."""

    tile: str
    source: str
    memory: Memory
    line: int
    loop: int | None
    versions: int
    why: str


def loaded_tiles(laid: Laid, schedules: Sequence[Scheduled], target: Target) -> tuple[LoadedTile, ...]:
    """In program order."""
    decided = {id(one.loop.loop): one for one in schedules}
    return tuple(
        found
        for one in laid.kernels
        for stmt, loops in _statements(one.kernel.body, ())
        for found in _of_statement(one, stmt, loops, decided, target, by_hand=bool(laid.parts))
    )


def _statements(body: Sequence[Stmt], loops: tuple[For, ...]) -> Iterator[tuple[TileOp, tuple[For, ...]]]:
    """With the loops around each, the innermost last."""
    for stmt in body:
        if isinstance(stmt, TileOp):
            yield stmt, loops
        for inner in bodies(stmt):
            yield from _statements(inner, (*loops, stmt) if isinstance(stmt, For) else loops)


def _of_statement(
    laid: Laid, op: TileOp, loops: tuple[For, ...], decided: dict[int, Scheduled], target: Target, by_hand: bool
) -> Iterator[LoadedTile]:
    loop = loops[-1] if loops else None
    line = loop.span.line if loop is not None else None
    if is_load(op):
        source, tile = (region.buffer.name for region in op.regions)
        versions, why = _shared(laid, op, loops, decided, target, by_hand)
        yield LoadedTile(tile, source, "global → shared", op.span.line, line, versions, why)
    elif op.name == "copy" and [r.buffer.scope for r in op.regions] == ["shared", "fragment"]:
        source, tile = (region.buffer.name for region in op.regions)
        if is_loaded_ahead(op):
            if is_first(op):
                yield LoadedTile(str(op.attr(OF)), source, "shared → registers", op.span.line, line, *_ahead(op))
            return
        why = "a copy by the threads that use it: the assembler starts it as early as its barrier lets it"
        yield LoadedTile(tile, source, "shared → registers", op.span.line, line, 1, why)
    elif op.name == "gemm":
        via = dict(op.attrs).get("via")
        for operand in dict.fromkeys(r.buffer.name for r in op.regions[:2] if r.buffer.scope == "shared"):
            if via == "mma":
                why = "its steps are written out, and the assembler reads a step ahead by ldmatrix within a trip"
                yield LoadedTile(f"operand of {op.regions[2].buffer.name}", operand, "shared → registers",
                                 op.span.line, line, 2, why)  # fmt: skip
            else:
                why = f"{via} reads shared memory itself"
                yield LoadedTile("none", operand, "shared → registers", op.span.line, line, 1, why)


def _ahead(op: TileOp) -> tuple[int, str]:
    """The versions of a fragment with stages, and why."""
    ahead = op.attr(AHEAD)
    assert isinstance(ahead, int)
    steps = "a step" if ahead == 1 else f"{ahead} steps"
    if is_made(str(op.attr(OF))):
        return ahead + 1, f"loaded {steps} before its use, across trips too: see below"
    return ahead + 1, f"as asked for; loaded {steps} before its use, of the next trip's first steps in this trip's last"


def _shared(
    laid: Laid, op: TileOp, loops: tuple[For, ...], decided: dict[int, Scheduled], target: Target, by_hand: bool
) -> tuple[int, str]:
    """How many versions of the tile there are, and why."""
    if not loops:
        return 1, "no loop loads it again"
    if by_hand:
        return 1, "the kernel orders its roles by barriers: it has the versions that it makes itself"
    tile, loop = op.regions[1].buffer, loops[-1]
    known = next((decided[id(one)] for one in reversed(loops) if id(one) in decided), None)
    if known is None:
        return 1, _why_serial(laid, loop, target)
    if known.loop.loop is not loop:
        inside = f"the loop at line {loop.span.line} in it" if is_pipelined(known.loop.loop) else "a loop in it"
        return 1, f"{inside} is a statement of the pipelined loop at line {known.loop.loop.span.line}"
    for plan, depth in zip(known.loop.rings, known.schedule.depth, strict=True):
        if tile in plan.buffers:
            return depth, _why_versions(op, tile.bytes, depth, loop)
    return 1, rings.body(laid.kernel, loop).why_not_versioned(tile) or "it has no version of its own in each trip"


def _why_versions(op: TileOp, size: int, depth: int, loop: For) -> str:
    via = dict(op.attrs).get("via")
    by = (
        f"asynchronous, by {_BY[str(via)]}" if via in _BY else "by the threads, through registers: no asynchronous copy"
    )
    if depth > 1:
        return f"{by}; {depth} × {size:,} bytes"
    if loop.num_stages == 1:
        return f"{by}; one version, as the loop says"
    return f"{by}; one version, and another one would not let the loop run faster"


def _why_serial(laid: Laid, loop: For, target: Target) -> str:
    if is_pipelined(loop):
        return "pipelined loops run serially with this strategy"
    return why_not_pipelined(laid.kernel, loop, target) or "the loop runs as it is written: see the decisions"
