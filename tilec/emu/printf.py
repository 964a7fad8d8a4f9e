"""`vprintf`, the function behind printf in kernels.

Its arguments are the addresses of a format and of a buffer, in which every value lies at the next multiple of its size:
integers of 4 or 8 bytes, floats as 8, strings as addresses (CUDA C++ Programming Guide, formatted output).
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.access import load_anywhere
from tilec.emu.fault import Fault
from tilec.emu.numbers import Array

if TYPE_CHECKING:
    from tilec.emu.machine import Cta

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXcfFeEgGaAsp%])")
_LONG = ("ll", "l", "j", "z", "t")
_LONGEST = 1 << 16
"""The number of bytes in which a string must end."""
_WITHOUT_SIGN = str.maketrans("", "", "+ ")
_SIGNED, _UNSIGNED = {4: "<i", 8: "<q"}, {4: "<I", 8: "<Q"}


def write(cta: Cta, members: Array, formats: Array, arguments: Array) -> None:
    """Print for one thread after the other; `formats` and `arguments` hold an address for each."""
    for thread, address, buffer in zip(members.tolist(), formats.tolist(), arguments.tolist(), strict=True):
        reader = _Reader(cta, thread, buffer)
        cta.launch.printed.append((cta.cluster.number, _CONVERSION.sub(reader.converted, reader.string(address))))


def _unsigned(spelled: str, kind: str, value: int) -> str:
    if kind == "o" and "#" in spelled:  # Python begins it with 0o
        return f"{spelled.replace('#', '')}s" % f"0{value:o}"
    return f"{spelled}{'d' if kind == 'u' else kind}" % value


class _Reader:
    """Reads one thread's values from its buffer, in order."""

    def __init__(self, cta: Cta, thread: int, buffer: int) -> None:
        self.cta, self.thread, self.at = cta, np.array([thread]), buffer

    def converted(self, match: re.Match[str]) -> str:
        """Format one conversion. Python spells conversions as C does, except for the length modifiers."""
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(self.number(4)) if width == "*" else width or ""
        precision = str(self.number(4)) if precision == "*" else precision
        spelled = f"%{flags}{width}" + ("" if precision is None else f".{precision or 0}")
        match kind:
            case "d" | "i":
                return f"{spelled}d" % self.number(8 if length in _LONG else 4)
            case "o" | "u" | "x" | "X":
                value = self.number(8 if length in _LONG else 4, signed=False)
                return _unsigned(spelled.translate(_WITHOUT_SIGN), kind, value)
            case "c":
                return f"{spelled}c" % (self.number(4) & 0xFF)
            case "s":
                return f"{spelled}s" % self.string(self.number(8, signed=False))
            case "p":
                return f"{spelled}s" % f"{self.number(8, signed=False):#x}"
            case "a" | "A":
                return f"%{flags}{width}s" % self.float().hex()
            case _:
                return f"{spelled}{kind}" % self.float()

    def number(self, size: int, signed: bool = True) -> int:
        value: int = struct.unpack((_SIGNED if signed else _UNSIGNED)[size], self.take(size))[0]
        return value

    def float(self) -> float:
        value: float = struct.unpack("<d", self.take(8))[0]
        return value

    def take(self, size: int) -> bytes:
        self.at = -(-self.at // size) * size
        data = self.bytes(self.at, size)
        self.at += size
        return data

    def bytes(self, address: int, size: int) -> bytes:
        return load_anywhere(self.cta, self.thread, np.array([address]), size).tobytes()

    def string(self, address: int) -> str:
        found = bytearray()
        while len(found) < _LONGEST:
            (byte,) = self.bytes(address + len(found), 1)
            if not byte:
                return found.decode(errors="replace")
            found.append(byte)
        raise Fault("out-of-bounds", f"the string at {address:#x} has no end")
