"""Change the number of computing warpgroups of a kernel (`--consumer-warpgroups`).

Operations on tiles are divided among any number of threads, so their number is free, except where the kernel says which
thread does what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilec.analysis.usage import list_expressions
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.products.gemm import Gemm
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def set_consumer_warpgroups(kernel: tile.Kernel, consumer_warpgroups: int) -> tile.Kernel:
    """Set the number of computing warpgroups; refuse it if a statement or a product's shape depends on the number.

    Errors: `bad-consumer-warpgroups`."""
    groups = consumer_warpgroups
    threads = groups * WARPGROUP_THREADS
    if threads == kernel.threads:
        return kernel
    for span, reason in _find_thread_dependences(kernel):
        raise_error(
            "bad-consumer-warpgroups",
            f"--consumer-warpgroups {groups} is not possible: this kernel depends on its {kernel.threads} threads",
            span,
            reason,
            secondary=(Label(kernel.span, "the kernel"),),
            help=f"write threads={threads} in the kernel, and adapt the statements that depend on it",
        )
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, Gemm) and not _can_share(stmt, groups):
            rows, columns = stmt.regions[2].shape
            raise_error(
                "bad-consumer-warpgroups",
                f"{groups} warpgroups cannot share a {rows} × {columns} accumulator",
                stmt.span,
                f"{rows / 64:g} times 64 rows, {columns / 64:g} times 64 columns",
                help=f"choose a tile of {64 * groups} rows, or another number for --consumer-warpgroups",
            )
    return replace(kernel, threads=threads)


def _can_share(product: tile.TileOp, groups: int) -> bool:
    """Return whether warpgroups can divide a product's sum evenly by 64 rows, and by 64 columns where rows are
    shared."""
    rows, columns = product.regions[2].shape
    sharing_rows = groups // math.gcd(groups, rows // 64)
    return rows % 64 == 0 and (sharing_rows == 1 or columns % (64 * sharing_rows) == 0)


def _find_thread_dependences(kernel: tile.Kernel) -> Iterator[tuple[Span, str]]:
    """Yield span and description of each statement, layout or barrier that names single threads or counts them."""
    for pinned in kernel.layouts:
        if isinstance(pinned.layout, tile.LoopLayout):
            yield pinned.span, f"a layout assigns elements of {pinned.buffer.name} to threads"
    for buffer in kernel.buffers:
        if buffer.scope == "barrier":
            yield buffer.span, f"{buffer.name} counts the threads that arrive"
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.Parallel) and (stmt.is_per_thread or stmt.layout is not None):
            yield stmt.span, "this assigns work to threads"
        elif any(
            part in (tile.THREAD, tile.WARPGROUP, tile.BLOCK_WARP)
            for expr in list_expressions(stmt)
            for part in tile.walk_expr(expr)
        ):
            yield stmt.span, "this reads the thread index"
