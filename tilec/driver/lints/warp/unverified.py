"""not-verified: the verifier of warp programs has followed a role no further than to some place."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import WARP, warns
from tilec.driver.work import Work
from tilec.ir.warp_verify import verify_program
from tilec.support.diagnostics import Diagnostic, Label


@warns(WARP)
def unverified(work: Work) -> Iterator[Diagnostic]:
    """Said to who has asked for thorough verification; the program is no other for it."""
    if not work.options.verify:
        return
    for one in verify_program(work.program)[1]:
        yield Diagnostic(
            "not-verified",
            f"the waits and barriers of role {one.role} are verified for its first {one.steps} operations only",
            Label(one.at.span if one.at.span.line else work.source_kernel.span, "followed up to here"),
            help="verify a copy of the kernel whose loops run fewer times: what they wait for is the same",
            severity="warning",
        )
