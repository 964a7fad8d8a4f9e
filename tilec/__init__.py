"""tilec: an ahead-of-time compiler from TileLang-syntax kernels to cubins. `compile` and `load` are for programs."""

from __future__ import annotations

TYPE_CHECKING = False  # to a type checker it is true; `typing` takes long to import

if TYPE_CHECKING:
    from typing import Any

    from tilec.host.api import CompileError as CompileError, Kernel as Kernel, compile as compile, load as load

__version__ = "0.1.0"
__all__ = ["CompileError", "Kernel", "compile", "load"]


def __getattr__(name: str) -> Any:
    """Import `compile`, `load`, `Kernel` or `CompileError` at its first use; other names are an AttributeError.

    Everything imports this file, so it must stay cheap.
    """
    if name not in __all__:
        raise AttributeError(f"module 'tilec' has no attribute {name!r}")
    if name == "CompileError":  # what comes from another process with one needs no more than this
        from tilec.support.diagnostics import CompileError

        return CompileError
    from tilec.host import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
