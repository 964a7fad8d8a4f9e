"""`vprintf`, the function behind printf in kernels.

Its arguments are the addresses of a format and of a buffer, in which every value lies at the next multiple of its size:
integers of 4 or 8 bytes, floats as 8, strings as addresses (CUDA C++ Programming Guide, formatted output).
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.memory.access import load_generic
from tilec.emu.numbers import Array

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXcfFeEgGaAsp%])")
_LONG_LENGTHS = ("ll", "l", "j", "z", "t")
_MAX_STRING_BYTES = 1 << 16
"""The number of bytes in which a string must end."""
_DROP_SIGN_FLAGS = str.maketrans("", "", "+ ")
_SIGNED, _UNSIGNED = {4: "<i", 8: "<q"}, {4: "<I", 8: "<Q"}


def print_for_threads(cta: Cta, members: Array, formats: Array, arguments: Array) -> None:
    """Format each thread's `vprintf` text and append it to the launch's printed text, thread after thread. `formats`
    and `arguments` hold an address for each."""
    for thread, address, buffer in zip(members.tolist(), formats.tolist(), arguments.tolist(), strict=True):
        reader = _ArgumentReader(cta, thread, buffer)
        text = _CONVERSION.sub(reader.format_conversion, reader.load_string(address))
        cta.launch.printed.append((cta.cluster.number, text))


def _format_unsigned(spelled: str, kind: str, value: int) -> str:
    """Format an unsigned number as `%o`, `%u`, `%x` or `%X`; `spelled` is the conversion up to its letter."""
    if kind == "o" and "#" in spelled:  # Python begins it with 0o
        return f"{spelled.replace('#', '')}s" % f"0{value:o}"
    return f"{spelled}{'d' if kind == 'u' else kind}" % value


class _ArgumentReader:
    """Reads one thread's values from its buffer, in order."""

    def __init__(self, cta: Cta, thread: int, buffer: int) -> None:
        self.cta, self.thread, self.at = cta, np.array([thread]), buffer

    def format_conversion(self, match: re.Match[str]) -> str:
        """Return the text of one conversion, taking its value, width and precision from the buffer. Python spells
        conversions as C does, except for the length modifiers."""
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(self.read_integer(4)) if width == "*" else width or ""
        precision = str(self.read_integer(4)) if precision == "*" else precision
        spelled = f"%{flags}{width}" + ("" if precision is None else f".{precision or 0}")
        match kind:
            case "d" | "i":
                return f"{spelled}d" % self.read_integer(8 if length in _LONG_LENGTHS else 4)
            case "o" | "u" | "x" | "X":
                value = self.read_integer(8 if length in _LONG_LENGTHS else 4, signed=False)
                return _format_unsigned(spelled.translate(_DROP_SIGN_FLAGS), kind, value)
            case "c":
                return f"{spelled}c" % (self.read_integer(4) & 0xFF)
            case "s":
                return f"{spelled}s" % self.load_string(self.read_integer(8, signed=False))
            case "p":
                return f"{spelled}s" % f"{self.read_integer(8, signed=False):#x}"
            case "a" | "A":
                return f"%{flags}{width}s" % self.read_float().hex()
            case _:
                return f"{spelled}{kind}" % self.read_float()

    def read_integer(self, size: int, signed: bool = True) -> int:
        """Return the next integer of 4 or 8 bytes of the buffer, signed or not, and advance past it."""
        value: int = struct.unpack((_SIGNED if signed else _UNSIGNED)[size], self.take_bytes(size))[0]
        return value

    def read_float(self) -> float:
        """Return the next f64 of the buffer, and advance past it."""
        value: float = struct.unpack("<d", self.take_bytes(8))[0]
        return value

    def take_bytes(self, size: int) -> bytes:
        """Return the next `size` bytes of the buffer, from the next multiple of `size`, and advance past them."""
        self.at = -(-self.at // size) * size
        data = self.load_bytes(self.at, size)
        self.at += size
        return data

    def load_bytes(self, address: int, size: int) -> bytes:
        """Return bytes at a generic address, as this thread reads them."""
        return load_generic(self.cta, self.thread, np.array([address]), size).tobytes()

    def load_string(self, address: int) -> str:
        """Return the zero-terminated string at a generic address; fault if it has no end within the limit."""
        found = bytearray()
        while len(found) < _MAX_STRING_BYTES:
            (byte,) = self.load_bytes(address + len(found), 1)
            if not byte:
                return found.decode(errors="replace")
            found.append(byte)
        raise Fault("out-of-bounds", f"the string at {address:#x} has no end")
