"""Messages of `tilec emulate` about the outputs of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.support.diagnostics import Diagnostic

if TYPE_CHECKING:
    from tilec.driver.emulate_compare import Comparison

BY_NUMPY = "the kernel run by numpy"
"""The reference: the kernel's text, operation by operation, which may not be what its author means."""


def describe_comparison(result: Comparison, by: str) -> str:
    """Return one line on an output: the number of elements compared with `by`, and the verdict."""
    if result.is_meaningless:
        return f"{result.name}: {result.not_finite:,} of {result.elements:,} elements are NaN or infinite: MISMATCH"
    if not result.compared:
        reason = "the blocks that ran wrote none of them" if result.is_nothing_compared else "there are none"
        return f"{result.name}: {_describe_share(result)} compared: {reason}"
    verdict = f"matches {by}" if result.matches else f"MISMATCH with {by}"
    error = f"worst error {result.error:.3g}, {result.allowed:.3g} allowed there"
    return f"{result.name}: {_describe_share(result)} of the emulated PTX, {error}: {verdict}"


def nothing_compared(kernel: str, ran: int, blocks: int) -> Diagnostic:
    """Return the error of a sample that says nothing: none of its blocks wrote an output."""
    return Diagnostic(
        "nothing-compared",
        f"the {ran} of {blocks} blocks of {kernel} that ran wrote no output, so nothing was compared",
        notes=("in a persistent grid a block may have no work for these sizes",),
        help="give a larger --grid-sample or another --seed, or remove --grid-sample to run every block",
    )


def _describe_share(result: Comparison) -> str:
    """Return how many elements were compared: `64 × 1,024 elements`, of a sample `2,048 of 64 × 1,024 elements`."""
    shape = " × ".join(f"{extent:,}" for extent in result.shape) or "1"
    total = math.prod(result.shape)
    noun = "element" if total == 1 else "elements"
    return f"{shape} {noun}" if result.compared == total else f"{result.compared:,} of {shape} {noun}"


def build_mismatch_diagnostic(result: Comparison, by: str, warnings: Iterable[Diagnostic]) -> Diagnostic:
    """Return the error for an output that does not match. `warnings` are the kernel's: an uninitialised tile explains
    NaN."""
    if not result.is_meaningless:
        where = f"{result.name}[{', '.join(map(str, result.worst))}]"
        return Diagnostic(
            "emulation-mismatch",
            f"output {result.name} of the emulated kernel differs from {by}",
            notes=(f"{where} is {result.found:.8g}, {by} has {result.expected:.8g}",),
        )
    causes = tuple(_find_causes(warnings))
    first = f"{result.name}[{', '.join(map(str, result.first))}]"
    return Diagnostic(
        "emulation-not-finite",
        f"{result.not_finite:,} of {result.elements:,} elements of {result.name} are NaN or infinite",
        notes=(f"the first is {first}; no input has such a value, so nothing was compared", *causes),
        help=None if causes else "use T.print in the kernel to find where the first one comes from",
    )


def _find_causes(warnings: Iterable[Diagnostic]) -> Iterator[str]:
    for found in warnings:
        if found.code == "uninitialised-read" and found.secondary:
            yield f"{found.title} (read in line {found.secondary[0].span.line})"


def build_unwritten_warnings(elements: Iterable[tuple[str, int, int]]) -> list[Diagnostic]:
    """Return a warning for each output that blocks left partly unwritten, with both counts."""
    return [
        Diagnostic(
            "unwritten-elements",
            f"no block wrote {count:,} of the {total:,} elements of {name}",
            help="check the grid and the indices of the stores",
            severity="warning",
        )
        for name, count, total in elements
    ]
