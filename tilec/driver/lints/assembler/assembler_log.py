"""register-spill, wgmma-serialised, inserted-wait, setmaxnreg-ignored: remarks in the assembler's log.

`.loc` directives map a PTX line to its source line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.driver.lints.registry import ASSEMBLER, register_lint
from tilec.passes.state import FileState
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import NOWHERE, SourceFile, Span

if TYPE_CHECKING:
    from tilec.ptx.assemble import Remark, RemarkKind

_TITLES: dict[RemarkKind, str] = {
    "register-spill": "registers spill to local memory",
    "wgmma-serialised": "the assembler serialises the wgmma instructions",
    "inserted-wait": "the assembler injects waits between wgmma instructions",
    "setmaxnreg-ignored": "the assembler ignores setmaxnreg",
    "assembler-warning": "the assembler warns",
}
_HELP: dict[RemarkKind, str] = {
    "register-spill": "use a smaller tile, or more threads to share it",
    "wgmma-serialised": "use accumulators and operand registers only after the loop, or use a smaller tile",
    "inserted-wait": "move other uses of the accumulator out of the loop, or directly after the product",
    "setmaxnreg-ignored": "use more threads, or --pipeline-strategy unspecialize",
}

_MAX_NOTES = 3


@register_lint(ASSEMBLER, "register-spill", "wgmma-serialised", "inserted-wait", "setmaxnreg-ignored")
def find_assembler_remarks(file: FileState) -> Iterator[Diagnostic]:
    yield from group_remarks(file.cubin.remarks, file.ptx, file.source, file.kernels[0].source_kernel.span)


def group_remarks(remarks: Iterable[Remark], ptx: str, source: SourceFile, kernel: Span) -> list[Diagnostic]:
    """Return one warning per kind and source line. A remark without a PTX line is about the whole kernel."""
    lines = ptx.split("\n")
    names = ("", *source.imported)  # as `.file` counts them
    grouped: dict[tuple[RemarkKind, Span], list[Remark]] = {}
    for remark in remarks:
        place = find_source_line(lines, remark.ptx_line) if remark.ptx_line is not None else None
        file, line = place or (1, kernel.line)
        span = source.whole_line(line, names[file - 1]) or NOWHERE
        grouped.setdefault((remark.kind, span), []).append(remark)
    return [_build_warning(kind, span, group, lines) for (kind, span), group in grouped.items()]


def find_source_line(ptx: list[str], line: int) -> tuple[int, int] | None:
    """Return file and line of the last `.loc` above a PTX line; None if the entry has none above it."""
    for text in reversed(ptx[: min(line, len(ptx))]):
        words = text.split()
        if words[:1] == [".loc"]:
            return (int(words[1]), int(words[2])) if int(words[2]) else None
        if text.startswith(".visible .entry"):
            return None
    return None


def _build_warning(kind: RemarkKind, span: Span, group: list[Remark], ptx: list[str]) -> Diagnostic:
    notes = []
    for remark in group[:_MAX_NOTES]:
        notes.append(remark.text if remark.code in ("spill", "warning") else f"{remark.code}: {remark.text}")
        if remark.ptx_line is not None and 0 < remark.ptx_line <= len(ptx):
            notes.append(f"PTX line {remark.ptx_line}: {ptx[remark.ptx_line - 1].strip()}")
    if len(group) > _MAX_NOTES:
        notes.append(f"and {len(group) - _MAX_NOTES} more like this")
    primary = None if span == NOWHERE else Label(span)
    return Diagnostic(kind, _TITLES[kind], primary, (), tuple(notes), _HELP.get(kind), "warning")
