"""Bytes that a kernel announces to its pipeline stages, computed once it is known which copies go by TMA.

`tiles.expect_bytes()` stands for the bytes that TMA brings. Where the kernel says T.copy, the compiler chooses whether
TMA copies a tile of a stage: not if the machine has no TMA, nor if the tile does not suit it. Threads announce nothing,
they arrive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.groups import guarded_warpgroups
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.synchronisation.barriers import ExpectTx
from tilec.support.diagnostics import raise_error
from tilec.target.table import Target

Filled = Mapping[tile.Expr, tuple[tile.Buffer, ...]]
"""The tiles that TMA fills, by the barrier that it signals."""


def compute_expected_bytes(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """Set the expected bytes of pipeline stages to the bytes that TMA brings.

    Roles are split, and copies have mechanisms. Errors: `unsupported-operand`."""
    blocks = [stmt for stmt in kernel.body if isinstance(stmt, tile.If) and guarded_warpgroups(stmt) is not None]
    common = tuple(stmt for stmt in kernel.body if guarded_warpgroups(stmt) is None)
    roles = [common, *(block.then for block in blocks)]
    filled = [_find_filled_tiles(body) for body in roles]
    made = [
        tuple(_rewrite_announcements(body, filled[number], filled[:number] + filled[number + 1 :], target))
        for number, body in enumerate(roles)
    ]
    split = (replace(block, then=body) for block, body in zip(blocks, made[1:], strict=True))
    return replace(kernel, body=(*made[0], *split))


def _find_filled_tiles(body: tuple[tile.Stmt, ...]) -> Filled:
    found: dict[tile.Expr, tuple[tile.Buffer, ...]] = {}
    for op in tile.walk_statements(body):
        if isinstance(op, tile.TileOp) and op.signals_barrier:
            element = _find_signalled_barrier(op)
            found[element] = (*found.get(element, ()), op.regions[-1].buffer)
    return found


def _find_signalled_barrier(op: tile.TileOp) -> tile.Load:
    element = op.barrier
    assert isinstance(element, tile.Load)
    return element


def _rewrite_announcements(
    body: tuple[tile.Stmt, ...], own_tiles: Filled, other_tiles: Sequence[Filled], target: Target
) -> tuple[tile.Stmt, ...]:
    def rewrite_announcement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        return tuple(_build_announcement(stmt, own_tiles, other_tiles, target)) if isinstance(stmt, ExpectTx) else stmt

    return rewrite_statements(body, rewrite_announcement)


def _build_announcement(
    op: ExpectTx, own_tiles: Filled, other_tiles: Sequence[Filled], target: Target
) -> Iterator[tile.TileOp]:
    """Yield the announcement, if TMA copies into this stage, or other roles copy into a stage of its pipeline."""
    element = _find_signalled_barrier(op)
    match op.of_stage:
        case None:
            if not target.has("tma"):
                raise_error(
                    "unsupported-operand",
                    f"{target.name} has no TMA, and only TMA copies complete announced bytes",
                    op.span,
                    help="write T.barrier_arrive: copies by threads are complete when the threads arrive"
                    if op.arrives
                    else "remove it: copies by threads are complete when the threads arrive",
                )
            yield op
        case "payload":
            elsewhere = [tiles for f in other_tiles for e, tiles in f.items() if _is_same_barrier_array(e, element)]
            tiles = dict.fromkeys(buffer for filled in (own_tiles.get(element, ()), *elsewhere) for buffer in filled)
            if tiles:
                yield replace(op, bytes=sum(math.prod(t.shape) * t.dtype.bits // 8 for t in tiles))
        case _:
            if own_tiles.get(element) or any(_is_same_barrier_array(e, element) for f in other_tiles for e in f):
                yield op


def _is_same_barrier_array(element: tile.Expr, other: tile.Load) -> bool:
    return isinstance(element, tile.Load) and element.buffer == other.buffer
