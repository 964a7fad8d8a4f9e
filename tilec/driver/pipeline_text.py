"""The pipeline as text, for `tilec --print-pipeline` and for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilec.driver.pipeline import PIPELINE, Choice, FilePass, Pass
from tilec.support.options import LAST_STAGE, CompileOptions

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.target.table import Target


def describe_row(row: FilePass | Pass | Choice) -> str:
    """Return the first paragraph of the docstring of each of a row's functions, on one line."""
    texts = [(function.__doc__ or "").partition("\n\n")[0] for function in row.load_functions()]
    return " ".join(" ".join(texts).split())


def show_pipeline(options: CompileOptions, target: Target, kernels: Sequence[Kernel]) -> str:
    """Return the pass table as text: for each row if it runs on these kernels or why not, and its results."""
    lines = [f"the pipeline at -O{options.opt_level} for {target.name}:"]
    end: str | None = None
    for number, row in enumerate(PIPELINE, 1):
        why = end or _find_reason_off(row, options, target, kernels)
        state = "on" if why is None else f"off: {why}"
        lines.append(f"{number:2}  {row.name:26} {state:32} {_describe_results(row)}".rstrip())
        if row.gives is not None and row.gives == LAST_STAGE.get(options.opt_level):
            end = f"-O{options.opt_level} ends before"
    return "\n".join(lines) + "\n"


def _find_reason_off(
    row: FilePass | Pass | Choice, options: CompileOptions, target: Target, kernels: Sequence[Kernel]
) -> str | None:
    """Return the reason why a row runs on none of these kernels, or None if it runs on some."""
    if isinstance(row, FilePass):
        return None
    why = row.when(options, target) if row.when else None
    if why is not None or isinstance(row, Choice) or row.of is None:
        return why
    reasons = [row.of(kernel) for kernel in kernels]
    return reasons[0] if reasons and None not in reasons else None


def _describe_results(row: FilePass | Pass | Choice) -> str:
    """Return as text what a row gives and decides, and which options fix its decision."""
    parts = [f"gives {row.gives}"] if row.gives else []
    if isinstance(row, Choice | Pass) and row.decides:
        parts.append(f"decides {', '.join(row.decides)}")
    if isinstance(row, Choice):
        parts.append(f"fixed by {', '.join(row.switches)}")
    return "; ".join(parts)


def format_page() -> Iterator[str]:
    """Yield the lines of a Markdown table of all passes, for the documentation."""
    yield "| # | pass | what it does | gives | decides, unless fixed by |"
    yield "|---|---|---|---|---|"
    for number, row in enumerate(PIPELINE, 1):
        decides = ", ".join(row.decides) if isinstance(row, Choice | Pass) else ""
        fixed = f" ({', '.join(f'`{switch}`' for switch in row.switches)})" if isinstance(row, Choice) else ""
        yield f"| {number} | `{row.name}` | {describe_row(row)} | {row.gives or ''} | {decides}{fixed} |"
