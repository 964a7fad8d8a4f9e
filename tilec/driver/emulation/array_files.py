"""Read `.npz` files: headers at once, the data of an array only on request.

A caller can compare shape and type before anything is unpacked. An array never unpacks to more bytes than its header
says. Only what numpy writes is read: members that are stored or deflated, without Python objects.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import IO, Any, NoReturn

import numpy as np
from numpy.lib import format as npy

from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The shape and type of an array, and the byte length of the header in its archive member."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    length: int

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


class ArrayFile:
    """An `.npz` file whose `headers` have been read, by array name; `read` unpacks one array."""

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        if data.startswith(npy.MAGIC_PREFIX):
            help_text = "numpy.savez(file, A=…, B=…) gives arrays names"
            raise_error("bad-inputs", f"{self._description}: it is a single .npy array", help=help_text)
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise_error("bad-inputs", f"{self._description}: it is not a zip archive, or it is truncated")
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            self._members = {info.filename.removesuffix(".npy"): info for info in self._archive.infolist()}
            self.headers = {name: self._read_header(name) for name in self._members}
        except Exception as error:  # numpy, zipfile and zlib each raise their own errors
            self._fail_unreadable(error)

    def read(self, name: str) -> Array:
        """Return the data of one array; raise `bad-inputs` if it cannot be unpacked."""
        try:
            with self._archive.open(self._members[name]) as member:
                array: Array = npy.read_array(member, allow_pickle=False)
        except MemoryError:
            raise
        except Exception as error:  # numpy raises errors of many kinds for a damaged file
            self._fail_unreadable(error)
        return array

    @property
    def _description(self) -> str:
        return f"{self.path} is not an .npz file of arrays"

    def _read_header(self, name: str) -> ArrayHeader:
        """Return shape and type of an array without its data; raise ValueError where numpy would not write it."""
        info = self._members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"its member '{name}' is compressed by a method that numpy does not use")
        with self._archive.open(info) as member:
            if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                raise ValueError(f"its member '{name}' is not an array")
            member.seek(0)
            shape, dtype = _parse_header(member)
            header = ArrayHeader(shape, dtype, member.tell())
        if dtype.hasobject:
            raise ValueError(f"its member '{name}' holds Python objects")
        if header.length + header.size * dtype.itemsize > info.file_size:
            raise ValueError(f"its member '{name}' is shorter than its header says")
        return header

    def _fail_unreadable(self, error: BaseException) -> NoReturn:
        """Raise `bad-inputs`: the file is no `.npz` file of arrays, with the first line of the error."""
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise_error("bad-inputs", f"{self._description}: {reason}")


def _parse_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type from a .npy header, and leave the file positioned behind it; raise ValueError if bad."""
    version = npy.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(member)
    else:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy is not read")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, dtype
