"""The control slice: scalars outside elementwise nests that decide control flow and what is copied.

A warp that loads for others needs them. Each role computes for itself what follows from the block and from tensors that
the kernel only reads, as the first row of its group: nothing has to be passed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.rings import is_pipelined
from tilec.analysis.usage import find_writes, list_expressions
from tilec.ir import tile


def is_variable(buffer: tile.Buffer) -> bool:
    """Return True if the buffer is a fragment of one element, a copy of which is in each thread (T.alloc_var)."""
    return buffer.scope == "fragment" and buffer.shape == (1,)


def is_per_thread(expr: tile.Expr) -> bool:
    """Return True if the expression has the thread's number, a load of a local buffer, or a warp- or block-wide
    call."""
    return any(
        e == tile.THREAD
        or (isinstance(e, tile.Load) and e.buffer.scope == "local")
        or (isinstance(e, tile.Call) and (e.fn in tile.WARP_WIDE or e.fn in tile.BLOCK_WIDE))
        for e in tile.walk_expr(expr)
    )


def find_scalar_reads(body: tuple[tile.Stmt, ...]) -> frozenset[str]:
    """Return the names of buffers loaded outside elementwise nests: for indices, conditions, bounds and values of
    binds."""
    found: set[str] = set()
    for stmt in body:
        if not isinstance(stmt, tile.Parallel):
            found |= _find_loaded_names(stmt)
            for nested in tile.nested_bodies(stmt):
                found |= find_scalar_reads(nested)
    return frozenset(found)


def is_replicated_setting(stmt: tile.Stmt, kernel: tile.Kernel) -> bool:
    """Return True if a nest sets only variables that `find_replicated_variables` names: each role computes them."""
    if not isinstance(stmt, tile.Parallel) or not all(is_variable(b) for b in find_writes(stmt)):
        return False
    return {b.name for b in find_writes(stmt)} <= find_replicated_variables(kernel)


def find_replicated_variables(kernel: tile.Kernel) -> frozenset[str]:
    """Return the names of T.alloc_var variables that indices or conditions need and each role can compute by itself."""
    made: dict[str, set[str]] = {b.name: set() for b in kernel.buffers if is_variable(b)}
    for stmt, needed in _find_settings(kernel.body, frozenset(), in_pipeline=False):
        for buffer in find_writes(stmt):
            if buffer.name in made:
                made[buffer.name] |= needed
    read_only = {p.name for p in kernel.params if isinstance(p, tile.Buffer)} - {
        b.name for s in kernel.body for b in find_writes(s)
    }
    kept = set(made)
    while lost := {name for name in kept if not made[name] <= kept | read_only}:
        kept -= lost
    required = find_scalar_reads(kernel.body) & kept
    while more := {name for one in required for name in made[one] & kept} - required:
        required |= more
    return frozenset(required)


UNKNOWN_SOURCE = "?"  # instead of a tensor's name: a value that a role could not compute itself


def _find_settings(
    body: tuple[tile.Stmt, ...], outer_names: frozenset[str], in_pipeline: bool
) -> Iterator[tuple[tile.Stmt, frozenset[str]]]:
    """Yield each innermost statement with the names of buffers that decide its effect, "?" among them if unknown."""
    for stmt in body:
        match stmt:
            case tile.For() | tile.If() | tile.While():
                inside = in_pipeline or (isinstance(stmt, tile.For) and is_pipelined(stmt))
                # If a loop has a break, all that controls it decides how often each of its statements runs.
                may_end = any(isinstance(s, tile.Break) for s in tile.walk_statements((stmt,))) and not isinstance(
                    stmt, tile.If
                )
                deciding_names = outer_names | (find_scalar_reads((stmt,)) if may_end else _find_loaded_names(stmt))
                for nested in tile.nested_bodies(stmt):
                    yield from _find_settings(nested, deciding_names, inside)
            case tile.Parallel():
                inner = tuple(tile.walk_statements(stmt.body))
                plain = all(isinstance(s, tile.Bind) or (isinstance(s, tile.Store) and s.atomic is None) for s in inner)
                alone = all(is_variable(b) for b in find_writes(stmt)) and not any(
                    is_per_thread(e) for s in inner for e in list_expressions(s)
                )
                unknown = {UNKNOWN_SOURCE} if in_pipeline or stmt.is_per_thread or not (plain and alone) else set()
                yield stmt, frozenset((outer_names | unknown).union(*map(_find_loaded_names, inner)))
            case _:
                yield stmt, frozenset({UNKNOWN_SOURCE})


def _find_loaded_names(stmt: tile.Stmt) -> frozenset[str]:
    """Return the names of the buffers that the statement's own expressions load, without those of nested statements."""
    return frozenset(load.buffer.name for load in tile.walk_loads(stmt))
