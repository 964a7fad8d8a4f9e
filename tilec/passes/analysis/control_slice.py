"""What decides which way a kernel goes and which tiles it copies: scalars outside the elementwise nests.

A warp that loads ahead of the others has to know them. What follows from the block and from tensors that the kernel
only reads, as where the rows of its group begin, each role works out for itself: nothing has to be handed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile
from tilec.passes.analysis.rings import is_pipelined
from tilec.passes.analysis.usage import expressions, writes


def is_variable(buffer: tile.Buffer) -> bool:
    """Whether every thread has a copy of it, as of what T.alloc_var makes."""
    return buffer.scope == "fragment" and buffer.shape == (1,)


def is_per_thread(expr: tile.Expr) -> bool:
    """Whether it names the thread, or something that every thread has of its own."""
    return any(
        e == tile.THREAD
        or (isinstance(e, tile.Load) and e.buffer.scope == "local")
        or (isinstance(e, tile.Call) and (e.fn in tile.WARP_WIDE or e.fn in tile.BLOCK_WIDE))
        for e in tile.walk_expr(expr)
    )


def scalar_reads(body: tuple[tile.Stmt, ...]) -> frozenset[str]:
    """Tensors and tiles whose elements are indices, conditions or bounds outside elementwise nests."""
    found: set[str] = set()
    for stmt in body:
        if not isinstance(stmt, tile.Parallel):
            found |= _loaded(stmt)
            for nested in tile.bodies(stmt):
                found |= scalar_reads(nested)
    return frozenset(found)


def is_kept_by_every_role(stmt: tile.Stmt, kernel: tile.Kernel) -> bool:
    """Whether the statement sets nothing but variables that every role has to have, and can work out for itself."""
    if not isinstance(stmt, tile.Parallel) or not all(is_variable(b) for b in writes(stmt)):
        return False
    return {b.name for b in writes(stmt)} <= kept_by_every_role(kernel)


def kept_by_every_role(kernel: tile.Kernel) -> frozenset[str]:
    """The variables that decide what is copied, and those that they are computed from, if all that they follow from is
    known to every role from the beginning."""
    made: dict[str, set[str]] = {b.name: set() for b in kernel.buffers if is_variable(b)}
    for stmt, needed in _settings(kernel.body, frozenset(), in_pipeline=False):
        for buffer in writes(stmt):
            if buffer.name in made:
                made[buffer.name] |= needed
    read_only = {p.name for p in kernel.params if isinstance(p, tile.Buffer)} - {
        b.name for s in kernel.body for b in writes(s)
    }
    kept = set(made)
    while lost := {name for name in kept if not made[name] <= kept | read_only}:
        kept -= lost
    wanted = scalar_reads(kernel.body) & kept
    while more := {name for one in wanted for name in made[one] & kept} - wanted:
        wanted |= more
    return frozenset(wanted)


NOWHERE_KNOWN = "?"  # in place of a tensor's name: what a role could not work out by itself


def _settings(
    body: tuple[tile.Stmt, ...], around: frozenset[str], in_pipeline: bool
) -> Iterator[tuple[tile.Stmt, frozenset[str]]]:
    """The statements that write, each with the names of all tensors and tiles that decide what it does."""
    for stmt in body:
        match stmt:
            case tile.For() | tile.If() | tile.While():
                inside = in_pipeline or (isinstance(stmt, tile.For) and is_pipelined(stmt))
                # Where a loop may be left, all that steers it decides how often each of its statements runs.
                may_end = any(isinstance(s, tile.Break) for s in tile.walk((stmt,))) and not isinstance(stmt, tile.If)
                steered = around | (scalar_reads((stmt,)) if may_end else _loaded(stmt))
                for nested in tile.bodies(stmt):
                    yield from _settings(nested, steered, inside)
            case tile.Parallel():
                inner = tuple(tile.walk(stmt.body))
                plain = all(isinstance(s, tile.Bind) or (isinstance(s, tile.Store) and s.atomic is None) for s in inner)
                alone = all(is_variable(b) for b in writes(stmt)) and not any(
                    is_per_thread(e) for s in inner for e in expressions(s)
                )
                odd = {NOWHERE_KNOWN} if in_pipeline or stmt.is_per_thread or not (plain and alone) else set()
                yield stmt, frozenset((around | odd).union(*map(_loaded, inner)))
            case _:
                yield stmt, frozenset({NOWHERE_KNOWN})


def _loaded(stmt: tile.Stmt) -> frozenset[str]:
    """What the statement's own expressions load."""
    return frozenset(e.buffer.name for x in expressions(stmt) for e in tile.walk_expr(x) if isinstance(e, tile.Load))
