"""Sparse operands: half of the elements of A, and metadata with their positions.

Of every four neighbours two are kept, of elements of four bits two pairs of every four pairs, of tf32 one of two. Two
bits of metadata give the position of each. The layouts are those of the figures of `mma.sp` in the PTX manual.
"""

from __future__ import annotations

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form
from tilec.emu.numbers import Array
from tilec.ptx.module import Operand
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class SparseSelection:
    """The metadata of a sparse operand: its register, and the selected lanes of each quad."""

    slot: int
    selector: int
    kind: str
    k: int

    @property
    def chunks(self) -> int:
        """Return the number of groups of neighbours in a row, each of which has four bits of metadata."""
        return self.k // {"tf32": 2, **dict.fromkeys(_FOUR_BIT_KINDS, 8)}.get(self.kind, 4)


_FOUR_BIT_KINDS = ("s4", "u4", "packed e2m1")


def decode_selection(form: Form, metadata: Operand, selector: int, kind: str, k: int) -> SparseSelection:
    """Return the metadata operand of a sparse product; fault if its selector is out of range. The fewer bits a row
    needs, the more sets of lanes can hold them."""
    chosen = SparseSelection(form.read(metadata, "b32"), selector, kind, k)
    sets = 64 // (4 * chosen.chunks)
    if not 0 <= selector < sets:
        raise form.unsupported(f"the sparsity selector {selector}, where there are 0 to {sets - 1},")
    return chosen


def _gather_row_metadata(words: Array, chosen: SparseSelection) -> Array:
    """Return the metadata bits of each row, [w, 16], from the words of the selected lanes, [w, g, t]."""
    wide, first = words.astype(np.uint64), chosen.selector
    half, low = np.uint64(16), np.uint64(0xFFFF)
    bits = 4 * chosen.chunks
    if bits == 16:
        # One lane of the quad: row g in the lower half, row g + 8 in the upper one.
        rows = (wide[..., first] & low, wide[..., first] >> half)
    elif bits == 32 and chosen.kind in ("f16", "bf16", "tf32"):
        # Two lanes, each with half of the columns of both rows.
        left, right = wide[..., 2 * first], wide[..., 2 * first + 1]
        rows = ((left & low) | (right & low) << half, (left >> half) | (right >> half) << half)
    elif bits == 32:
        rows = (wide[..., 2 * first], wide[..., 2 * first + 1])
    else:
        whole = np.uint64(32)
        rows = (wide[..., 0] | wide[..., 2] << whole, wide[..., 1] | wide[..., 3] << whole)
    return np.stack(rows, axis=1).reshape(len(words), 16)


def expand_sparse(compressed: Array, words: Array, chosen: SparseSelection) -> Array:
    """Return A [w, 16, k] with zeros filled in, from kept elements [w, 16, k/2] and metadata [w, g, t]; fault if
    meaningless."""
    chunks, kind = chosen.chunks, chosen.kind
    shifts = 4 * np.arange(chunks, dtype=np.uint64)
    fields = (_gather_row_metadata(words, chosen)[..., None] >> shifts & np.uint64(15)).astype(np.int64)
    if kind == "tf32":
        # 0100 keeps the first of two, 1110 the second.
        if not np.isin(fields, (0b0100, 0b1110)).all():
            raise Fault("bad-descriptor", "sparse metadata of tf32 other than 0100 and 1110")
        places = (fields & 3)[..., None] >> 1
    else:
        places = np.stack((fields & 3, fields >> 2), axis=-1)
        if (places[..., 0] == places[..., 1]).any():
            raise Fault("bad-descriptor", "sparse metadata gives two elements the same position")
    kept, together = places.shape[-1], 2 if kind in _FOUR_BIT_KINDS else 1
    parts = compressed.reshape(*places.shape, together)
    dense = np.zeros((*fields.shape, 2 * kept, together), compressed.dtype)
    np.put_along_axis(dense, np.broadcast_to(places[..., None], parts.shape), parts, axis=-2)
    return dense.reshape(len(words), 16, -1)
