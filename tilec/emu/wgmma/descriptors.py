"""Descriptors of matrices in shared memory for wgmma and tcgen05: the location of each 16 bytes of an operand.

The canonical layouts are those of "Strides" and "Canonical layouts" in the PTX manual; the two families differ only in
how they pack the fields into 64 bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.numbers import Array
from tilec.emu.tma.tensormap import ATOM_32, apply_swizzle
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.memory.memory import Memory

_WARPGROUP_SWIZZLES = (0, 128, 64, 32)
_WARPGROUP_RESERVED = (0b11 << 14) | (0b11 << 30) | (0b111 << 46) | (0x3FF << 52)
_TENSOR_SWIZZLES = {0: 0, 1: ATOM_32, 2: 128, 4: 64, 6: 32}
_TENSOR_RESERVED = (0b11 << 14) | (0b11 << 30) | (0xFF << 53)
_TENSOR_VERSION = 0b001


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """The fields of a matrix descriptor, in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int


def decode_warpgroup_descriptor(bits: int) -> MatrixDescriptor:
    """Return the fields of a 64-bit matrix descriptor of wgmma; fault on reserved bits."""
    if bits & _WARPGROUP_RESERVED:
        raise Fault("bad-descriptor", f"matrix descriptor {bits:#018x} has bits set that must be zero")
    return _build_descriptor(bits, _WARPGROUP_SWIZZLES[bits >> 62])


def decode_tensor_descriptor(bits: int) -> MatrixDescriptor:
    """Return the fields of a 64-bit shared memory descriptor of tcgen05; fault on reserved bits and unknown
    swizzles."""
    message = f"shared memory descriptor {bits:#018x}"
    if bits >> 46 & 0b111 != _TENSOR_VERSION:
        raise Fault("bad-descriptor", f"{message} has {bits >> 46 & 0b111:#05b} in bits 48:46, which must be 0b001")
    if bits & _TENSOR_RESERVED:
        raise Fault("bad-descriptor", f"{message} has bits set that must be zero")
    if bits >> 52 & 1:
        raise Fault("bad-descriptor", f"{message} asks for an absolute leading dimension, which only sm_103a supports")
    code = bits >> 61
    if code not in _TENSOR_SWIZZLES:
        raise Fault("bad-descriptor", f"{message} has swizzle {code}; there are 0, 1, 2, 4 and 6")
    return _build_descriptor(bits, _TENSOR_SWIZZLES[code])


def _build_descriptor(bits: int, swizzle: int) -> MatrixDescriptor:
    """Return a descriptor with this swizzle and the fields that wgmma and tcgen05 have in common, in bytes."""
    start, leading, stride = ((bits >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    return MatrixDescriptor(start, leading, stride, base_offset=bits >> 49 & 7, swizzle=swizzle)


@lru_cache(maxsize=4096)
def find_matrix_rows(descriptor: MatrixDescriptor, extent: int, k: int, element_bytes: int, is_mn_major: bool) -> Array:
    """Return the 16-byte shared rows, by chunk, of `extent` rows of M or N and `k` columns; fault on `ATOM_32` if
    K-major.

    K-major: [extent, chunk of k]. MN-major: [k, chunk of extent]. A chunk is 16 bytes.
    """
    width = 128 if descriptor.swizzle == ATOM_32 else descriptor.swizzle or 16
    per_chunk = 16 // element_bytes
    if is_mn_major:
        column = np.arange(k)[:, None]
        chunk = np.arange(extent // per_chunk)[None, :]
        inner = width // 16
        # Without a swizzle the two offsets trade places: the leading one steps over k, the stride over MN.
        over_mn, over_k = descriptor.leading, descriptor.stride
        if not descriptor.swizzle:
            over_mn, over_k = over_k, over_mn
        depth = 4 if descriptor.swizzle == ATOM_32 else 8
        offsets = chunk % inner * 16 + chunk // inner * over_mn + column % depth * width + column // depth * over_k
    else:
        if descriptor.swizzle == ATOM_32:
            raise Fault("bad-descriptor", "the swizzle with atoms of 32 bytes is for MN-major operands only")
        row = np.arange(extent)[:, None]
        chunk = np.arange(k // per_chunk)[None, :]
        step = 16 if descriptor.swizzle else descriptor.leading
        offsets = row % 8 * width + row // 8 * descriptor.stride + chunk * step
    addresses = descriptor.start + offsets
    # The swizzle pattern begins at the base offset, not at a multiple of its size.
    phase = descriptor.base_offset << 7
    return (apply_swizzle(addresses - phase, descriptor.swizzle) + phase) // 16


def require_matching_swizzle(memory: Memory, descriptor: MatrixDescriptor, rows: Array, what: str) -> None:
    """Fault where TMA wrote rows with a swizzle that would place them elsewhere; rows with other writes pass. A start
    inside a swizzle pattern without its base offset is a fault too."""
    swizzle = descriptor.swizzle
    # 1024 bytes for a swizzle of 128, 256 for 32: see the base offset of the matrix descriptor in the PTX manual.
    repeat = 512 if swizzle == ATOM_32 else 8 * swizzle
    if swizzle and descriptor.start >> 7 & repeat // 128 - 1 != descriptor.base_offset & repeat // 128 - 1:
        message = f"{what} starts at shared address {descriptor.start:#x}, inside a pattern of {repeat} bytes,"
        raise Fault("bad-descriptor", f"{message} with base offset {descriptor.base_offset}")
    written = memory.swizzles[rows]
    if (written == swizzle).all() or (written < 0).all():
        return
    addresses = rows * 16
    for other in sorted(set(written.reshape(-1).tolist()) - {-1, swizzle}):
        differs = (written == other) & (apply_swizzle(addresses, other) != apply_swizzle(addresses, swizzle))
        if differs.any():
            at = f"shared address {int(addresses[differs][0]):#x}"
            message = f"{what} reads {at} with a swizzle of {_describe_swizzle(swizzle)}"
            raise Fault("swizzle-mismatch", f"{message}, where TMA wrote with a swizzle of {_describe_swizzle(other)}")


def _describe_swizzle(swizzle: int) -> str:
    """Return a swizzle's size in words, for a fault."""
    return "128 bytes in atoms of 32" if swizzle == ATOM_32 else f"{swizzle} bytes"
