"""The instruction descriptor of tcgen05.mma: shapes and types in 32 bits ("Instruction descriptor" in the PTX
manual)."""

from __future__ import annotations

from functools import lru_cache

from tilec.emu.fault import Fault
from tilec.support.records import dataclass

BLOCK_SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
PRODUCT_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""The k of a dense product, by kind: always 32 bytes in shared memory, and 8 columns of tensor memory."""
_SMALL_FLOATS = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_ELEMENT_TYPES = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _SMALL_FLOATS,
    "mxf8f6f4": _SMALL_FLOATS,
    "i8": {0: "u8", 1: "s8"},
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
_RESULT_TYPES = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
_PLAIN_RESERVED = 1 << 6 | 1 << 23 | 1 << 29
_BLOCK_RESERVED = 0b11 | 1 << 3 | 1 << 6 | 0b111 << 24
_FOUR_BIT_RESERVED = _BLOCK_RESERVED | 1 << 12 | 0b11 << 15


@dataclass(frozen=True, slots=True)
class TensorProduct:
    """The product of a tcgen05.mma. `vector` is the number of scales along k; 0 where there are none."""

    kind: str
    m: int
    n: int
    k: int
    result: str
    a_kind: str
    b_kind: str
    sign: int
    a_is_mn_major: bool
    b_is_mn_major: bool
    saturates: bool
    vector: int = 0
    scale_kind: str = ""
    a_scale_id: int = 0
    b_scale_id: int = 0


def _descriptor_fault(bits: int, what: str) -> Fault:
    """Return a fault about an instruction descriptor; `what` completes the sentence."""
    return Fault("bad-descriptor", f"instruction descriptor {bits:#010x} {what}")


def _decode_element(bits: int, code: int, kind: str, name: str) -> str:
    """Return the element type that a code stands for in a kind of product; fault on an unknown code. `name` is the
    matrix."""
    found = _ELEMENT_TYPES[kind].get(code)
    if found is None:
        raise _descriptor_fault(bits, f"has type {code} for {name}, which .kind::{kind} does not know")
    return found


@lru_cache(maxsize=256)
def decode_product(bits: int, kind: str, group: int, is_stationary: bool, vector: int) -> TensorProduct:
    """Return the product that an instruction descriptor describes; fault on reserved bits, types or shapes not allowed.
    What is allowed depends on the kind, the number of blocks, and weight-stationary operation."""
    if kind in BLOCK_SCALED:
        product = _decode_block_scaled(bits, kind, vector)
    else:
        product = _decode_plain(bits, kind, is_stationary)
    if bits >> 2 & 1:
        raise _descriptor_fault(bits, "asks for a sparse A, which only tcgen05.mma.sp takes")
    _check_shape(bits, product, group, is_stationary)
    return product


def _decode_plain(bits: int, kind: str, is_stationary: bool) -> TensorProduct:
    """Return the product that a descriptor without scales describes; fault on reserved bits and unknown types."""
    if bits & _PLAIN_RESERVED or bits & 0b11 or (bits >> 30 and not is_stationary):
        raise _descriptor_fault(bits, "has bits set that must be zero")
    if kind == "i8" and bits >> 13 & 0b11:
        raise _descriptor_fault(bits, "negates an integer matrix")
    if kind != "i8" and bits >> 3 & 1:
        raise _descriptor_fault(bits, f"saturates, which .kind::{kind} cannot")
    a_kind, b_kind = _decode_element(bits, bits >> 7 & 7, kind, "A"), _decode_element(bits, bits >> 10 & 7, kind, "B")
    result = _RESULT_TYPES[kind].get(bits >> 4 & 3)
    if result is None or (result == "f16" and "bf16" in (a_kind, b_kind)):
        message = f"has type {bits >> 4 & 3} for D, which .kind::{kind} of {a_kind} and {b_kind} cannot give"
        raise _descriptor_fault(bits, message)
    return TensorProduct(
        kind=kind,
        m=(bits >> 24 & 0x1F) << 4,
        n=(bits >> 17 & 0x3F) << 3,
        k=PRODUCT_K[kind],
        result=result,
        a_kind=a_kind,
        b_kind=b_kind,
        sign=-1 if (bits >> 13 ^ bits >> 14) & 1 else 1,
        a_is_mn_major=bool(bits >> 15 & 1),
        b_is_mn_major=bool(bits >> 16 & 1),
        saturates=bool(bits >> 3 & 1),
    )


def _decode_block_scaled(bits: int, kind: str, vector: int) -> TensorProduct:
    """Return the product that a descriptor with `vector` scales along k describes; fault on reserved bits and bad
    scales."""
    is_four_bit = kind != "mxf8f6f4"
    if bits & (_FOUR_BIT_RESERVED if is_four_bit else _BLOCK_RESERVED):
        raise _descriptor_fault(bits, "has bits set that must be zero")
    if bits >> 31:
        message = "asks for K = 96, which sm_103a has" if is_four_bit else "has bits set that must be zero"
        raise _descriptor_fault(bits, message)
    scale_kind = "ue8m0" if bits >> 23 & 1 else "ue4m3"
    if scale_kind == "ue4m3" and (kind != "mxf4nvf4" or vector != 4):
        message = f"has scales of type ue4m3, which .kind::{kind} with {vector} of them along k does not know"
        raise _descriptor_fault(bits, message)
    a_scale_id, b_scale_id = bits >> 29 & 3, bits >> 4 & 3
    if any(place % vector for place in (a_scale_id, b_scale_id)):
        raise _descriptor_fault(bits, f"puts {vector} scales at bytes {a_scale_id} and {b_scale_id} of their words")
    return TensorProduct(
        kind=kind,
        m=(bits >> 27 & 3) << 7,
        n=(bits >> 17 & 0x3F) << 3,
        k=PRODUCT_K[kind],
        result="f32",
        a_kind=_decode_element(bits, bits >> 7 & 7, kind, "A"),
        b_kind=_decode_element(bits, bits >> 10 & 7, kind, "B"),
        sign=-1 if (bits >> 13 ^ bits >> 14) & 1 else 1,
        a_is_mn_major=bool(bits >> 15 & 1),
        b_is_mn_major=bool(bits >> 16 & 1),
        saturates=False,
        vector=vector,
        scale_kind=scale_kind,
        a_scale_id=a_scale_id,
        b_scale_id=b_scale_id,
    )


def _check_shape(bits: int, product: TensorProduct, group: int, is_stationary: bool) -> None:
    """Fault unless the kind allows a product's M and N, by the table "Various combinations of .kind and shapes"."""
    m, n, kind = product.m, product.n, product.kind
    if is_stationary:
        is_legal = m in (32, 64, 128) and n in (64, 128, 256)
    elif group == 2:
        is_legal = m in (128, 256) and n % (32 if kind == "i8" else 16) == 0
    else:
        step = 16 if kind == "i8" and n not in (8, 24) else 8
        is_legal = m in ((128,) if product.vector else (64, 128)) and n % step == 0
    if not is_legal or not 8 <= n <= 256:
        way = ".ws" if is_stationary else f".cta_group::{group}"
        raise _descriptor_fault(bits, f"has M = {m} and N = {n}, which .kind::{kind} with {way} does not know")
