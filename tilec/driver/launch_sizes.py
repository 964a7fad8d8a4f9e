"""Says which sizes a kernel is launched with, from the shapes of its arrays and from what a person gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.support.diagnostics import raise_error
from tilec.support.sizes import SizeError, UnknownSize

if TYPE_CHECKING:
    from tilec.ir.manifest import Manifest


def launch_sizes(
    manifest: Manifest, arrays: Mapping[str, tuple[int, ...]], given: Mapping[str, int | float], path: str = ""
) -> dict[str, int]:
    """Return the sizes that the kernel learns at launch, given or from arrays' shapes; raise an error if they misfit.

    An unknown name, a missing size and contradicting sizes are errors.
    """
    where = f"{path}: " if path else ""
    for name in given:
        if name not in {s.name for s in manifest.scalars}:
            known = ", ".join(manifest.size_scalars())
            raise_error("bad-inputs", f"{manifest.entry} has no size {name}", help=f"it has {known}" if known else None)
    try:
        values = manifest.sizes(arrays, given)
        manifest.blocks(values)
        return values
    except UnknownSize as error:
        raise_error("missing-input", f"{where}{error}", help=f"give {' '.join(f'--size {n}=…' for n in error.names)}")
    except SizeError as error:
        raise_error("wrong-input", f"{where}{error}")
