"""Resolution of explicit waits and barriers to the tiles that they wait for.

`T.ptx_wait_group(n)` counts groups of asynchronous copies in the order of the text, and a schedule changes that order.
So a wait is resolved here, before scheduling, to the tiles that all groups but the newest n fill. From here on it is a
statement that needs these tiles, in its own iteration; the number of groups to wait for follows from the schedule, as
for any other wait. A barrier needs the tiles that the statements above it in its list touch.

A tile that one of the newest groups fills too is not waited for: in a loop, that is the copy of the next iteration into
the same tile. Every access of a tile waits for it anyway; a warning says where the text has no wait before it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from tilec.analysis.ordering import is_asynchronous_copy, is_thread_copy
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ops.synchronisation import sync
from tilec.ops.synchronisation.barriers import CpAsyncArrive
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.support.diagnostics import (
    RAISE_FIRST,
    ErrorCollector,
    Label,
    Warn,
    ignore_warning,
    make_warning,
    raise_error,
)
from tilec.support.source import Span

CopyGroups = list[dict[tile.Buffer, Span]]
"""For each group of copies that may be pending, the newest last: its tiles, each with the place of the copy. The last
group is still open: the next commit closes it."""


def resolve_awaited_tiles(
    kernel: tile.Kernel, warn: Warn = ignore_warning, mistakes: ErrorCollector = RAISE_FIRST
) -> tile.Kernel:
    """Return the kernel with the tiles that each explicit wait and barrier waits for; warn of copies without a wait."""
    explicit = [s for s in tile.walk_statements(kernel.body) if sync.is_ordering_statement(s)]
    if not explicit and not any(is_asynchronous_copy(s) for s in tile.walk_statements(kernel.body)):
        return kernel
    for op in explicit:
        if isinstance(op, sync.BlockBarrier):
            with mistakes.caught():
                _check_thread_count(kernel, op)
    counts = [op.pending for op in explicit if isinstance(op, sync.WaitCopies) and op.pending is not None]
    walker = _CopyGroupWalker(warn, max(counts, default=0) + 1)
    return replace(kernel, body=walker.body(kernel.body, [{}]))


def _check_thread_count(kernel: tile.Kernel, op: sync.BlockBarrier) -> None:
    """Raise `divergent-barrier` if a T.sync_threads without an id counts other than all threads of the block."""
    threads = op.threads
    if op.id is not None:
        return  # threads of several roles (`sema.roles.explicit_roles`)
    if threads not in (None, kernel.threads):
        title = "T.sync_threads needs all threads of the block"
        raise_error("divergent-barrier", title, op.span, f"{threads} of {kernel.threads}", help="remove arrive_count")


class _CopyGroupWalker:
    """Walks the text with the groups that may be pending. Beyond `most` groups, the oldest are merged."""

    def __init__(self, warn: Warn, most: int) -> None:
        self.warn, self.most = warn, most
        self.warned: set[Span] = set()

    def body(self, stmts: tuple[tile.Stmt, ...], groups: CopyGroups) -> tuple[tile.Stmt, ...]:
        """Return statements whose waits and barriers list the tiles awaited, and update the pending copy `groups` in
        place.
        """
        above: dict[tile.Buffer, None] = {}  # the shared tiles touched in this list since a barrier
        new: list[tile.Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, sync.BlockBarrier | Rendezvous):
                pending = {buffer for group in groups for buffer in group}
                new.append(_with_awaited_tiles(stmt, [buffer for buffer in above if buffer not in pending]))
                above.clear()
                continue
            new.append(self.statement(stmt, groups))
            if not isinstance(stmt, tile.For | tile.While | tile.If):
                above |= dict.fromkeys(b for b in (*find_reads(stmt), *find_writes(stmt)) if b.scope == "shared")
        return tuple(new)

    def statement(self, stmt: tile.Stmt, groups: CopyGroups) -> tile.Stmt:
        """Return a statement with the waits in it resolved, and update the pending copy groups by what it does."""
        match stmt:
            case sync.WaitCopies():
                pending = stmt.pending
                assert isinstance(pending, int)
                newest = groups[-1 - pending :]
                refilled = {buffer for group in newest for buffer in group}
                older = groups[: len(groups) - len(newest)]
                groups[:] = newest
                return _with_awaited_tiles(
                    stmt, list(dict.fromkeys(t for group in older for t in group if t not in refilled))
                )
            case CpAsyncArrive():
                groups[:] = [{}]  # any access of the tiles waits for the barrier
            case sync.CommitCopies():
                self.close_group(groups)
            case tile.TileOp() if is_asynchronous_copy(stmt):
                groups[-1] = {**groups[-1], stmt.regions[1].buffer: stmt.span}
                self.close_group(groups)
            case tile.Parallel() if is_thread_copy(stmt):
                groups[-1] = {**groups[-1], **dict.fromkeys(find_writes(stmt), stmt.span)}
            case tile.For() | tile.While():
                self.remove_used_tiles(stmt, tuple(load.buffer for load in tile.walk_loads(stmt)), groups)
                return self.loop(stmt, groups)
            case tile.If():
                self.remove_used_tiles(stmt, tuple(load.buffer for load in tile.walk_loads(stmt)), groups)
                other = [dict(group) for group in groups]
                then, orelse = self.body(stmt.then, groups), self.body(stmt.orelse, other)
                groups[:] = _merge_groups(groups, other)
                return replace(stmt, then=then, orelse=orelse)
            case _:
                self.remove_used_tiles(stmt, (*find_reads(stmt), *find_writes(stmt)), groups)
        return stmt

    def loop(self, loop: tile.For | tile.While, groups: CopyGroups) -> tile.For | tile.While:
        """Return a loop with its waits resolved, walking its body until the pending `groups`, updated in place, stay
        the same.
        """
        while True:
            before = [dict(group) for group in groups]
            body = self.body(loop.body, groups)
            groups[:] = _merge_groups(before, groups)
            if [set(group) for group in groups] == [set(group) for group in before]:
                return replace(loop, body=body)

    def close_group(self, groups: CopyGroups) -> None:
        """Append an empty copy group, the open one, and merge the two oldest while more than `most` are closed."""
        groups.append({})
        while len(groups) > self.most + 1:
            groups[:2] = [groups[0] | groups[1]]

    def remove_used_tiles(self, stmt: tile.Stmt, buffers: tuple[tile.Buffer, ...], groups: CopyGroups) -> None:
        """Remove the tiles that a statement uses from the pending groups, with a warning: no wait stands before it."""
        for group in groups:
            for buffer in [buffer for buffer in group if buffer in buffers]:
                self.warn_of_unwaited_copy(group.pop(buffer), buffer, stmt)

    def warn_of_unwaited_copy(self, copy: Span, buffer: tile.Buffer, stmt: tile.Stmt) -> None:
        """Warn, once for each copy, that its tile is used before any T.ptx_wait_group waits for it."""
        if copy in self.warned:
            return
        self.warned.add(copy)
        title = f"no T.ptx_wait_group waits for this copy before {buffer.name} is used"
        note = "may still be pending there"
        place = Label(stmt.span, f"tilec adds a wait for {buffer.name} here")
        way_out = "put T.ptx_wait_group(0) before that statement, or write T.copy, which needs no wait"
        self.warn(make_warning("unwaited-copy", title, copy, note, secondary=(place,), help=way_out))


def _with_awaited_tiles(op: sync.BlockBarrier | Rendezvous | sync.WaitCopies, tiles: list[tile.Buffer]) -> tile.TileOp:
    """Return a wait or barrier that waits for the whole of these tiles."""
    return replace(op, awaited=tuple(sync.make_buffer_region(buffer, op.span) for buffer in tiles))


def _merge_groups(one: CopyGroups, other: CopyGroups) -> CopyGroups:
    """Return the union of two paths' pending copy groups, paired from the newest on."""
    nothing: dict[tile.Buffer, Span] = {}
    return [a | b for a, b in zip_longest(reversed(one), reversed(other), fillvalue=nothing)][::-1]
