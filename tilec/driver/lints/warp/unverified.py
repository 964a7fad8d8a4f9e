"""not-verified: the verifier of warp programs gave up on a role before its end."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import WARP, register_warning
from tilec.ir.warp_verify.verify import verify_program
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label


@register_warning(WARP)
def find_unverified_roles(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each such role, if the options ask for verification; the program is the same."""
    if not work.options.verify:
        return
    for one in verify_program(work.program)[1]:
        yield Diagnostic(
            "not-verified",
            f"the waits and barriers of role {one.role} are verified for its first {one.steps} operations only",
            Label(one.at.span if one.at.span.line else work.source_kernel.span, "verified up to here"),
            help="verify a copy of the kernel with fewer iterations: its waits are the same",
            severity="warning",
        )
