"""Conditions of pass table rows. A condition returns the reason why its pass does not run, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilec.support.options import CompileOptions

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.target.names import Feature
    from tilec.target.table import Target

Condition = Callable[[CompileOptions, "Target"], str | None]
"""Returns why options and target turn a pass off, or None where it runs."""
KernelCondition = Callable[["Kernel"], str | None]
"""Returns why a pass does not apply to a kernel, or None where it does."""


def require_explicit_roles(kernel: Kernel) -> str | None:
    """Accept kernels that assign their work to roles explicitly."""
    from tilec.passes.explicit_roles.split_roles import has_explicit_roles

    return None if has_explicit_roles(kernel) else "no explicit roles"


def refuse_explicit_roles(kernel: Kernel) -> str | None:
    """Accept kernels whose work the compiler assigns to roles."""
    return None if require_explicit_roles(kernel) else "explicit roles"


def require_option(switch: str, is_given: Callable[[CompileOptions], bool]) -> Condition:
    """Return a condition that accepts options where `switch` is given."""

    def find_reason_off(options: CompileOptions, target: Target) -> str | None:
        return None if is_given(options) else f"only with {switch}"

    return find_reason_off


def require_level(level: int, switch: str, needs: Feature | None = None, **fields: Any) -> Condition:
    """Return a condition that accepts -O`level` and above, targets with feature `needs`, and options whose `fields`
    have these values; `switch` is named where they differ."""

    def find_reason_off(options: CompileOptions, target: Target) -> str | None:
        if options.opt_level < level:
            return f"from -O{level} on"
        for name, value in fields.items():
            if getattr(options, name) != value:
                return "--schedule" if name == "schedule" else switch
        if needs is not None and not target.has(needs):
            return f"{target.name} has no {needs}"
        return None

    return find_reason_off
