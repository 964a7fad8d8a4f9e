"""assembled-at-lower-level: the assembler was asked for less than --opt-level says, since it would take minutes."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import ASSEMBLER, warns
from tilec.driver.work import File
from tilec.ptx.assembler_level import choose_assembler_level, count_consecutive_waits
from tilec.support.diagnostics import Diagnostic


@warns(ASSEMBLER)
def lower_level(file: File) -> Iterator[Diagnostic]:
    """It is about the file: the assembler gets all of its kernels at once."""
    wanted, asked = file.options.opt_level, file.options.assembler_level
    level = choose_assembler_level(file.ptx, wanted, asked)
    if asked is None and level < wanted:
        yield Diagnostic(
            "assembled-at-lower-level",
            f"the assembler optimised at -O{level} instead of -O{wanted}, which would take it minutes",
            notes=(
                f"{count_consecutive_waits(file.ptx)} products by wgmma stand in a straight line, each with a wait",
            ),
            help=f"put them in a T.serial loop; or wait, with --assembler-level {wanted}",
            severity="warning",
        )
