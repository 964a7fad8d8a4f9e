"""Files that a run of tilec leaves for the next one, in a cache folder: whole and undamaged, or as if not there."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_SEAL = 4  # bytes of the sum


def kept(path: Path) -> bytes:
    """What `keep` has written. A file that is no longer what was written is a `ValueError`: what is in it is taken at
    its word, and damage would be found anywhere in the parser, or nowhere."""
    whole = path.read_bytes()
    if whole != sealed(whole[_SEAL:]):
        raise ValueError("it is not what was written")
    return whole[_SEAL:]


def sealed(data: bytes) -> bytes:
    """The data, and a sum by which damage to it is found."""
    return zlib.crc32(data).to_bytes(_SEAL, "little") + data


def keep(path: Path, data: bytes) -> None:
    """Write beside the destination and rename: another process may be reading or writing the same file."""
    import tempfile  # which takes as long to import as the parser's tables to load

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(sealed(data))
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError:
        # A cache that cannot be written costs time, nothing else.
        return
