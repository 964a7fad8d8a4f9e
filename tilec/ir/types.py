"""Element types: a name, a width and a kind. How one is held in a register is the emitter's business."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name in kernels, its size in bits, and the kind of number it holds."""

    name: str
    bits: int
    kind: Kind

    @property
    def bytes(self) -> int:
        """Return the size of an element in memory; 1 for a bool, and for a pair of four-bit elements."""
        return max(self.bits // 8, 1)

    @property
    def per_byte(self) -> int:
        """Return how many elements share a byte in memory, the first in its lowest bits: 2 for four-bit types, else
        1."""
        return 2 if self.bits == 4 else 1

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    def __str__(self) -> str:
        """Return the type's name."""
        return self.name


FLOAT4_E2M1 = DType("float4_e2m1fn", 4, "float")
FLOAT8_E8M0 = DType("float8_e8m0fnu", 8, "float")
FLOAT8_E4M3 = DType("float8_e4m3fn", 8, "float")
FLOAT8_E5M2 = DType("float8_e5m2", 8, "float")
FLOAT16 = DType("float16", 16, "float")
BFLOAT16 = DType("bfloat16", 16, "float")
FLOAT32 = DType("float32", 32, "float")
FLOAT64 = DType("float64", 64, "float")
INT4 = DType("int4", 4, "int")
INT8 = DType("int8", 8, "int")
INT16 = DType("int16", 16, "int")
INT32 = DType("int32", 32, "int")
INT64 = DType("int64", 64, "int")
UINT4 = DType("uint4", 4, "uint")
UINT8 = DType("uint8", 8, "uint")
UINT16 = DType("uint16", 16, "uint")
UINT32 = DType("uint32", 32, "uint")
UINT64 = DType("uint64", 64, "uint")
BOOL = DType("bool", 1, "bool")

TYPES_BY_NAME: dict[str, DType] = {
    t.name: t
    for t in (
        FLOAT4_E2M1, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT8_E8M0, FLOAT16, BFLOAT16, FLOAT32, FLOAT64,
        INT4, INT8, INT16, INT32, INT64, UINT4, UINT8, UINT16, UINT32, UINT64, BOOL,
    )
} | {
    "float": FLOAT32, "half": FLOAT16, "double": FLOAT64, "float8_e4m3": FLOAT8_E4M3,
    "float4_e2m1": FLOAT4_E2M1, "float8_e8m0": FLOAT8_E8M0, "tfloat32": FLOAT32, "tf32": FLOAT32,
    "int": INT32, "short": INT16, "long": INT64, "uint": UINT32,
}  # fmt: skip
"""tfloat32 is float32 in memory: tensor cores take from it what they use."""

NARROW_TYPES = (INT4, UINT4, FLOAT4_E2M1, FLOAT8_E8M0)
"""Types without arithmetic instructions on these machines: stored as they are, computed with as wider types."""
