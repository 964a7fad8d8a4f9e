"""When a pass of the pipeline runs, as far as options and target tell, and on which kernels: a condition gives the
reason why it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilec.support.options import CompileOptions

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.target.features import Feature
    from tilec.target.table import Target

Condition = Callable[[CompileOptions, "Target"], str | None]
"""Why a pass is off, or None where it runs."""
KernelCondition = Callable[["Kernel"], str | None]
"""Likewise for a kernel."""


def always(options: CompileOptions, target: Target) -> str | None:
    """It runs for every kernel."""
    return None


def every_kernel(kernel: Kernel) -> str | None:
    """It runs for every kernel."""
    return None


def with_roles(kernel: Kernel) -> str | None:
    """It runs where the kernel itself shares its work out among roles."""
    from tilec.passes.explicit_roles.split_roles import has_explicit_roles

    return None if has_explicit_roles(kernel) else "no explicit roles"


def only_with(switch: str, is_given: Callable[[CompileOptions], bool]) -> Condition:
    """It runs where `switch` is given."""

    def condition(options: CompileOptions, target: Target) -> str | None:
        return None if is_given(options) else f"only with {switch}"

    return condition


def at_level(level: int, switch: str, needs: Feature | None = None, **fields: Any) -> Condition:
    """It runs from -O`level` on where these `fields` of the options have these values, which `switch` changes, and
    where the target has what it `needs`."""

    def condition(options: CompileOptions, target: Target) -> str | None:
        if options.opt_level < level:
            return f"from -O{level} on"
        for name, value in fields.items():
            if getattr(options, name) != value:
                return "--schedule" if name == "schedule" else switch
        if needs is not None and not target.has(needs):
            return f"{target.name} has no {needs}"
        return None

    return condition
