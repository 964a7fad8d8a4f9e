"""assembled-at-lower-level: the assembler runs below --opt-level, as it would otherwise take minutes."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import ASSEMBLER, register_warning
from tilec.passes.state import FileState
from tilec.ptx.assembler_level import choose_assembler_level, count_consecutive_waits
from tilec.support.diagnostics import Diagnostic


@register_warning(ASSEMBLER)
def find_lower_level(file: FileState) -> Iterator[Diagnostic]:
    """Yield the warning, which is about the whole file: all of its kernels are assembled at once."""
    wanted, forced = file.options.opt_level, file.options.assembler_level
    level = choose_assembler_level(file.ptx, wanted, forced)
    if forced is None and level < wanted:
        yield Diagnostic(
            "assembled-at-lower-level",
            f"the assembler optimised at -O{level} instead of -O{wanted}, which would take minutes",
            notes=(f"{count_consecutive_waits(file.ptx)} wgmma products are in straight-line code, each with a wait",),
            help=f"put them in a T.serial loop; or wait, with --assembler-level {wanted}",
            severity="warning",
        )
