"""A kernel in notebooks: its signature, parameters and launch, and the schedule of each loop as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tilec.ir.manifest import Manifest

_PARAMETERS = ("parameter", "type", "role")
_LAUNCH = ("grid", "threads", "bytes of shared memory")
_STATEMENTS = ("statement", "role", "line", "stage", "start", "issue", "latency")
_RINGS = ("ring", "in", "versions", "bytes of one", "lifetime")


def kernel_html(
    signature: str, manifest: Manifest, parameters: Sequence[tuple[str, str, str]], loops: Sequence[Mapping[str, Any]]
) -> str:
    """Return HTML of a kernel: its signature, tables of parameters and launch, and the schedule of each loop.
    `parameters` have name, type and role; `loops` are the pipelined loops of the kernel's schedule trace
    (docs/trace.md).
    """
    launch = (" × ".join(map(str, manifest.grid)), " × ".join(map(str, manifest.block)), manifest.dynamic_smem)
    parts = [
        f"<b>{escape(signature)}</b> for {escape(manifest.target)}",
        _render_table(_PARAMETERS, parameters),
        _render_table(_LAUNCH, [launch]),
        *map(_render_loop, loops),
    ]
    return f"<div>{''.join(parts)}</div>"


def _render_loop(loop: Mapping[str, Any]) -> str:
    """Return HTML of one pipelined loop: interval, status and limiting bound, then tables of statements and rings."""
    binding = "; ".join(bound["culprit"] for bound in loop["bounds"] if bound["binds"])
    summary = f"{loop['name']}: an interval of {loop['ii']} cycles, {loop['status']}, in {loop['stages']} stages"
    statements = ([op["name"], *(op[each] for each in _STATEMENTS[1:])] for op in loop["ops"])
    rings = ([ring[each] for each in ("name", "pool", "depth", "bytes", "lifetime")] for ring in loop["rings"])
    return (
        f"<p>{escape(summary)}{escape(f': {binding}' if binding else '')}</p>"
        f"{_render_table(_STATEMENTS, statements)}{_render_table(_RINGS, rings)}"
    )


def _render_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with these heads and rows, or "" without rows."""
    body = "".join(f"<tr>{''.join(f'<td>{escape(_format_cell(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{body}</table>" if body else ""


def _format_cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else "" if cell is None else str(cell)
