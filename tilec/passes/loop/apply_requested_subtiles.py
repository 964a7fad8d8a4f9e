"""Tiles in the parts that T.annotate_subtile or a schedule file asks for (`loop.subtile`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import tile
from tilec.ops.placeholder import is_refused
from tilec.passes.loop.subtile import Indivisible, split_dimension
from tilec.sched.decision import Decider, Decision
from tilec.support.diagnostics import raise_error
from tilec.support.options import CompileOptions


def show_subtile(cut: tile.Subtile) -> str:
    """Return a subtile as text, as the trace has it: `scores (1, 2)`."""
    return f"{cut.buffer.name} ({', '.join(map(str, cut.parts))})"


def apply_requested_subtiles(kernel: tile.Kernel, options: CompileOptions) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """Split tiles into the parts that the kernel or its schedule's trace asks for, and record that decision."""
    by: Decider = "the kernel"
    requested, why = kernel.subtiles, "T.annotate_subtile"
    if not requested and options.schedule is not None:
        by, requested, why = "the command line", tuple(_read_trace_subtiles(kernel, options.schedule)), "--schedule"
    whole = replace(kernel, subtiles=()) if kernel.subtiles else kernel
    if any(map(is_refused, tile.walk_statements(kernel.body))):
        return whole, ()  # what is split together with a tile is not known
    for cut in requested:
        whole = _apply_subtile(whole, cut)
    chosen = ", ".join(show_subtile(cut) for cut in requested if max(cut.parts) > 1) or "none"
    return whole, (Decision("subtile", chosen, by, why),) if requested else ()


def _read_trace_subtiles(kernel: tile.Kernel, trace: str) -> Iterator[tile.Subtile]:
    """Yield the subtiles that a trace's text records for tiles of this kernel; none from any other text. The reader of
    its schedule reports a text that is no trace."""
    recorded = re.search(r'"what": "subtile",\s*"chosen": "(.*?)"', trace)
    for name, parts in re.findall(r"(\S+) \(([\d, ]+)\)", recorded[1] if recorded else ""):
        buffer = next((b for b in kernel.buffers if b.name == name), None)
        if buffer is not None:
            yield tile.Subtile(buffer, tuple(map(int, parts.split(", "))), kernel.span)


def _apply_subtile(kernel: tile.Kernel, cut: tile.Subtile) -> tile.Kernel:
    """Return the kernel with a tile split along its dimension of most parts, or raise the error why it cannot be.
    Errors: `bad-subtile`."""
    parts = max(cut.parts)
    if parts == 1:
        return kernel
    try:
        if cut.buffer not in kernel.buffers:
            raise Indivisible("it is already split, together with another tile")
        return split_dimension(kernel, cut.buffer, cut.parts.index(parts), parts)
    except Indivisible as reason:
        raise_error(
            "bad-subtile",
            f"{cut.buffer.name} cannot be split into {parts} parts",
            cut.span,
            str(reason),
            help="remove T.annotate_subtile: the compiler splits tiles where it can and where that pays",
        )
