"""Touches of each operation of a warp program, for placing waits: tiles, proxies, the queue in which it completes, and
the tiles that reuse their memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from tilec.ir import warp
from tilec.ir.tile import Buffer, Parallel, Store, walk_loads, walk_statements as walk_tile
from tilec.passes.lower.waits.scoreboard import TENSOR_CORE_ORDER, THREAD_COPY_ORDER, TMA_ORDER, Queue, Touch
from tilec.passes.memory.split_staged_stores import count_row_parts
from tilec.support.records import dataclass


def find_touches(
    op: warp.Operation, per_warpgroup: frozenset[str] = frozenset()
) -> tuple[tuple[Touch, ...], Queue | None]:
    """Return an operation's accesses to tiles and tensors, and the queue in which it completes (None: at once). Of the
    tiles in `per_warpgroup` each warpgroup has a part."""
    own_touches, queue = _find_own_touches(op)
    if per_warpgroup:
        own_touches = tuple(replace(t, per_warpgroup=True) if t.buffer in per_warpgroup else t for t in own_touches)
    return own_touches + tuple(Touch(name, False) for name in warp.scalar_reads(op)), queue


def _find_own_touches(op: warp.Operation) -> tuple[tuple[Touch, ...], Queue | None]:
    """Return an operation's accesses, without those of its scalar operands, and the queue in which it completes."""
    op = warp.as_known_operation(op)
    if isinstance(op, warp.TensorWait) and op.what == "load":
        return (Touch(op.fragment.name, True),), None
    if isinstance(op, UNTRACKED_OPERATIONS):
        return (), None
    match op:
        case warp.Elementwise(nest=nest) if op.copy_bytes:
            return tuple(_list_copy_touches(nest)), "cp_async"
        case warp.Elementwise(nest=nest):
            found: list[Touch] = []
            for stmt in walk_tile(nest.body):
                found += [Touch(load.buffer.name, False) for load in walk_loads(stmt)]
                if isinstance(stmt, Store):
                    found.append(Touch(stmt.buffer.name, True, atomic=_find_commuting_kind(stmt.atomic)))
            return tuple(dict.fromkeys(found)), None
        case warp.CpAsync(source=s, destination=into):
            return (Touch(s.buffer.name, False), Touch(into.buffer.name, True)), "cp_async"
        case warp.TmaLoad(destination=d, barrier=barrier):
            if barrier is None:
                return (), None  # ordered by its ring's barriers alone
            return (Touch(d.name, True, "async", TMA_ORDER),), None
        case warp.TryCancel(answer=answer, barrier=barrier):
            if barrier is None:
                return (), None  # as above
            return (Touch(answer.name, True, "async", TMA_ORDER),), None
        case warp.TmaStore(source=s):
            return (Touch(s.name, False, "async"),), "bulk"
        case warp.StoreMatrix(source=s, destination=d) | warp.TransposeMatrix(source=s, destination=d):
            return (Touch(s.name, False), Touch(d.name, True)), None
        case warp.LoadMatrix(source=region, destination=d):
            return (Touch(region.buffer.name, False), Touch(d.name, True)), None
        case warp.Mma(a=a, b=b, c=c, metadata=e):
            places = () if e is None else (Touch(e.name, False),)
            return (Touch(a.buffer.name, False), Touch(b.buffer.name, False), Touch(c.name, True), *places), None
        case warp.Wgmma(a=a, b=b, c=c, metadata=e):
            # A from a fragment is packed into registers anew each time: one group at a time may read them.
            packs = a.buffer.scope == "fragment"
            return (
                Touch(a.buffer.name, packs, "registers" if packs else "async"),
                Touch(b.buffer.name, False, "async"),
                Touch(c.name, True),
                *(() if e is None else (Touch(e.name, False), Touch(name_metadata_registers(e), True, "registers"))),
            ), "wgmma"
        case warp.TensorMma(a=a, b=b, c=c, leader=leader):
            if leader is None:
                return (), None  # ordered by the barriers of rings alone
            left = Touch(a.name, False, "async")
            if a.scope == "tmem":
                left = Touch(a.name, False, "tensor", TENSOR_CORE_ORDER)
            return (left, Touch(b.name, False, "async"), Touch(c.name, True, "tensor", TENSOR_CORE_ORDER)), None
        case warp.TensorCopy(source=s, destination=d):
            return (Touch(s.name, False, "async"), Touch(d.name, True, "tensor", TENSOR_CORE_ORDER)), None
        case warp.TensorLoad(source=s, destination=d):
            return (Touch(s.name, False, "tensor"), Touch(d.name, True)), None
        case warp.TensorStore(source=s, destination=d):
            return (Touch(s.name, False), Touch(d.name, True, "tensor")), None
        case (
            warp.Reduce(source=s, destination=d, scratch=scratch) | warp.Scan(source=s, destination=d, scratch=scratch)
        ):
            own = () if scratch is None else (Touch(scratch.name, True),)
            return (Touch(s.name, False), Touch(d.name, True), *own), None
        case _:
            assert_never(op)


def _list_copy_touches(nest: Parallel) -> Iterator[Touch]:
    """Yield what a nest of copies by single threads reads and writes, without the threads' own registers. Those are
    read when a copy is issued.
    """
    for stmt in walk_tile(nest.body):
        yield from (Touch(load.buffer.name, False) for load in walk_loads(stmt) if load.buffer.scope != "local")
        if isinstance(stmt, Store):
            yield Touch(stmt.buffer.name, True, atomic=THREAD_COPY_ORDER)


UNTRACKED_OPERATIONS = (
    warp.Let, warp.Loop, warp.Forever, warp.Break, warp.Trap, warp.Branch, warp.Pipeline,
    warp.Await, warp.BarSync, warp.WarpgroupSync, warp.CpAsyncCommit, warp.CpAsyncWait, warp.WgmmaWait, warp.BulkWait,
    warp.ProxyFence, warp.RingAcquire, warp.RingFill, warp.RingWait, warp.RingRelease, warp.RingDrain, warp.Advance,
    warp.ClusterArrive, warp.ClusterWait, warp.GridSync, warp.GridControl, warp.PingPongWait, warp.PingPongPass,
    warp.Arrive, warp.CopiesArrive, warp.TensorArrive, warp.ExpectBytes, warp.BarrierWait, warp.NamedBarrier,
    warp.SetRegisters, warp.TensorFence, warp.TensorWait,
)  # fmt: skip
"""Operations whose accesses need no waits placed, but for what they read by `warp.scalar_reads`."""


def name_metadata_registers(metadata: Buffer) -> str:
    """Return a name for the registers that hold a sparse operand's metadata for wgmma."""
    return f"{metadata.name} in registers"


def _find_commuting_kind(atomic: str | None) -> str:
    """Return the atomic operation's name if its order does not matter, "" for a store or none."""
    return "" if atomic in (None, "store") else atomic


def find_warpgroup_tiles(role: warp.Role, program: warp.Program) -> frozenset[str]:
    """Return the tiles that each warpgroup stores in its own part, or of which it has its own copy."""
    stored = {
        op.source.name for op in warp.walk_operations(role.body) if isinstance(op, warp.TmaStore) and op.parts > 1
    }
    return frozenset(stored | {tile.buffer.name for tile in program.shared if tile.layout.copies > 1})


def find_async_tiles(program: warp.Program) -> Iterator[str]:
    """Yield the names of tiles that TMA or tensor cores reach, except where a ring's barriers alone order that."""
    for op in program.operations():
        yield from (t.buffer for t in _find_own_touches(op)[0] if t.proxy == "async")


@dataclass(frozen=True, slots=True)
class ReusingTile:
    """A tile that reuses the memory of another one. `by_rows` are the sums whose products read that memory, each
    warpgroup the rows of its own part alone; empty where the two divide their rows in different ways."""

    tile: str
    by_rows: frozenset[str]


def find_reusing_tiles(program: warp.Program) -> dict[str, tuple[ReusingTile, ...]]:
    """Return, for each tile's name, the tiles that may reuse its memory later."""
    late = [tile for tile in program.shared if tile.over_rings]
    if not late:
        return _find_sharing_tiles(program)
    assert program.smem_bytes, "what lies over what is known when the tiles have been placed"
    layouts = {buffer.name: layout for buffer, layout in program.fragments}
    # With ping-pong, one warpgroup may be done with the rings while another is not.
    together = [role for role in program.roles if role.ping_pong_barrier is None]
    sums = dict.fromkeys(
        op.c.name for role in together for op in warp.walk_operations(role.body) if isinstance(op, warp.Wgmma)
    )
    parts = {name: count_row_parts(layouts[name], layouts[name].thread_count) for name in sums}
    found: dict[str, tuple[ReusingTile, ...]] = {}
    for ring_tile in (tile for tile in program.shared if not tile.over_rings):
        for tile in (tile for tile in late if tile.meets(ring_tile)):
            by_rows = frozenset(n for n, k in parts.items() if k > 1 and _has_same_row_parts(tile, ring_tile, k))
            name, reusing = ring_tile.buffer.name, ReusingTile(tile.buffer.name, by_rows)
            found[name] = (*found.get(name, ()), reusing)
    return found


def _find_sharing_tiles(program: warp.Program) -> dict[str, tuple[ReusingTile, ...]]:
    """Return, for each tile's name, the other tiles that share memory with it, before or after it. In a loop each may
    follow the other."""
    found: dict[str, tuple[ReusingTile, ...]] = {}
    for one, other in itertools.permutations(program.shared, 2):
        names = one.buffer.name, other.buffer.name
        if (one.reuses or other.reuses) and one.meets(other):
            assert names[0] in other.reuses or names[1] in one.reuses, f"{names[0]} and {names[1]} are live together"
            found[names[0]] = (*found.get(names[0], ()), ReusingTile(names[1], frozenset()))
    return found


def _has_same_row_parts(tile: warp.SharedTile, other: warp.SharedTile, parts: int) -> bool:
    """Return True if each common byte of two tiles is in rows of the same warpgroup's part in both."""
    row, period = tile.layout.row_bytes, tile.layout.row_bytes * warp.PART_ROWS * parts
    sizes = (tile.offset - other.offset, other.stride, tile.layout.panel_bytes, other.layout.panel_bytes)
    return other.layout.row_bytes == row and not any(size % period for size in sizes)


def build_early_touch(op: warp.Operation, touch: Touch, later: ReusingTile) -> Touch:
    """Return the touch as one of the tile that reuses its memory later."""
    by_rows = warp.tiles_read_by_own_rows(op) if isinstance(op, warp.Wgmma) and op.c.name in later.by_rows else ()
    return replace(touch, buffer=later.tile, per_warpgroup=touch.buffer in by_rows, atomic="", owner=None, area=None)
