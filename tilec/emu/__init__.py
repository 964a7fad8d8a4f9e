"""Executes PTX text on the CPU, strictly: what the hardware does not promise is a `Fault`. See `launch`.

Modules that make up the machine name each other in types: a step is a function of the machine that runs it, and the
machine runs steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.emu.launcher import Columns, Fault, Report, SourceLocation, TensorMap, launch

__all__ = ["Columns", "Fault", "Report", "SourceLocation", "TensorMap", "launch"]


def __getattr__(name: str) -> Any:
    """numpy and the decoders are loaded by the first use."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from tilec.emu import launcher

    return getattr(launcher, name)
