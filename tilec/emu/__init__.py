"""The emulator: runs PTX text on the CPU with numpy and raises a `Fault` on whatever the hardware does not promise (see
`launch`). It reads `ptx` modules only, and knows no tiles, schedules or emitters.

The machine's modules name each other in types only: a step is a function of the machine that runs it, and the machine
runs steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.emu.launcher import AddressTable, Columns, Fault, Report, SourceLocation, TensorMap, launch

__all__ = ["AddressTable", "Columns", "Fault", "Report", "SourceLocation", "TensorMap", "launch"]


def __getattr__(name: str) -> Any:
    """Return a name of `launcher`, imported on first use since it loads numpy and every decoder; `AttributeError` for
    others."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from tilec.emu import launcher

    return getattr(launcher, name)
