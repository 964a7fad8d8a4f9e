"""Several cubins in one file, of which the driver takes the one for its GPU; by nvFatbin, which only this imports."""

from __future__ import annotations

from collections.abc import Mapping


def fatbin(cubins: Mapping[str, bytes], name: str) -> bytes:
    """The cubins of each target (`sm_90a`), as `cuModuleLoadData` takes them too. `name` is what tools call each."""
    from cuda.bindings import nvfatbin

    options = ["-64", "-host=linux"]
    handle = nvfatbin.create(options, len(options))
    try:
        for target, cubin in cubins.items():
            nvfatbin.add_cubin(handle, cubin, len(cubin), target.removeprefix("sm_"), name)
        data = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, data)
    finally:
        nvfatbin.destroy(handle)
    return bytes(data)
