"""Fat binaries: several cubins in one file, of which the driver takes the one for its GPU. The only module that imports
nvFatbin."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tilec.support.diagnostics import raise_error

_MAGIC = 0xBA55ED50
_ELF = 2
"""The kind of a member that is a cubin."""


def build_fatbin(cubins: Mapping[str, bytes], ptx: Mapping[str, bytes], name: str) -> bytes:
    """Return a fat binary of the cubins by target, and of PTX for newer GPUs, that the driver can load. Tools show the
    members as `name`.
    """
    from cuda.bindings import nvfatbin

    options = ["-64", "-host=linux"]
    handle = nvfatbin.create(options, len(options))
    try:
        for target, cubin in cubins.items():
            nvfatbin.add_cubin(handle, cubin, len(cubin), target.removeprefix("sm_"), name)
        for target, text in ptx.items():
            nvfatbin.add_ptx(handle, text, len(text), target.removeprefix("sm_"), name, "")
        data = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, data)
    finally:
        nvfatbin.destroy(handle)
    return bytes(data)


def is_fatbin(data: bytes) -> bool:
    """Return whether the data begins with the magic number of a fat binary."""
    return data[:4] == struct.pack("<I", _MAGIC)


def extract_cubins(data: bytes) -> list[bytes]:
    """Return the uncompressed cubins in a fat binary, in order; raise `not-a-cubin` if the data is cut short."""
    found: list[bytes] = []
    try:
        _, _, place, size = struct.unpack_from("<IHHQ", data)
        end = min(place + size, len(data))
        while place < end:
            kind, _, header, length = struct.unpack_from("<HHIQ", data, place)
            member = data[place + header : place + header + length]
            if kind == _ELF and member.startswith(b"\x7fELF"):
                found.append(member)
            if header + length == 0:
                break
            place += header + length
    except struct.error as error:
        raise_error("not-a-cubin", f"this is not a whole fatbin: {error}")
    return found
