"""Files in a cache folder that a run of tilec leaves for the next one: whole and undamaged, or treated as absent.

An entry is sealed with the version of tilec that wrote it and its key, so that an entry copied to another name is not
used there. A seal is no secret: readers still check the content of an entry, and nothing in it is ever executed.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG

from tilec import __version__
from tilec.support.staging import open_staging

LARGEST_ENTRY = 1 << 26
"""The largest size of an entry in bytes; tilec's own have some hundred thousand."""
_SEAL = 65  # a hash in hexadecimal digits, and a line feed


def read_entry(path: Path, key: str) -> bytes:
    """Return the data that `write_entry` wrote for this key. Raises `ValueError` for anything else, without reading
    files that are not regular or too large."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not S_ISREG(found.st_mode) or found.st_size > LARGEST_ENTRY:
            raise ValueError("it is not an entry of a cache")
        whole = file.read(LARGEST_ENTRY + 1)
    data = whole[_SEAL:]
    if whole[:_SEAL] != _make_seal(data, key):
        raise ValueError("its contents have changed")
    return data


def add_seal(data: bytes, key: str) -> bytes:
    """Return the data after a seal: a hash of it, the key, and the version of tilec."""
    return _make_seal(data, key) + data


def _make_seal(data: bytes, key: str) -> bytes:
    return sha256(repr((__version__, key)).encode() + b"\n" + data).hexdigest().encode() + b"\n"


def write_entry(path: Path, key: str, data: bytes) -> None:
    """Write an entry, which other processes may be reading or writing. Errors are ignored: a cache that cannot be
    written only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_staging(path.parent) as staged:
            staged.place(staged.write(add_seal(data, key), path.name), path.name)
    except OSError:
        return
