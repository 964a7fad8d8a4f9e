"""layout-conversion: a fragment goes through shared memory, since statements need it in different registers."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import LAYOUT, register_lint
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label


@register_lint(LAYOUT, "layout-conversion")
def find_conversions(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for every conversion of a fragment's layout, in the order of discovery."""
    for change in work.assignment.conversions:
        origin = () if change.origin == change.span else (Label(change.origin, "its layout comes from here"),)
        yield Diagnostic(
            "layout-conversion",
            f"{change.buffer.name} goes through shared memory, because this statement needs it in another layout",
            Label(change.span, f"{change.bytes:,} bytes are written and read again each time"),
            origin,
            help="use fragments of one layout together, or put values that all threads need in a shared tile",
            severity="warning",
        )
