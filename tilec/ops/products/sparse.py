"""2:4 sparsity of tensor cores: of each four neighbours along K two are stored (of float32, one of each two), and four
bits of metadata give their positions.

A row of metadata is a string of bits, lowest first, independent of its integer type. Of each four bits the lower two
are the position of the first stored element, the upper two that of the second, which comes later. For float32 the four
bits are 0100 if the first of two is stored, and 1110 if the second is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.ir.types import FLOAT32, INT8, INT16, INT32, UINT8, UINT16, UINT32, DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METADATA_DTYPES = (INT8, UINT8, INT16, UINT16, INT32, UINT32)
"""The types of metadata tensors."""

SPARSE_DTYPES = ("float16", "bfloat16", "float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
"""The types of A and B that sparse instructions multiply."""


def count_metadata_columns(kept: int, dtype: DType, metadata: DType) -> int:
    """Return the number of metadata elements of a row of A with `kept` stored elements."""
    return (4 if dtype == FLOAT32 else 2) * kept // metadata.bits


def draw_metadata(
    shape: tuple[int, ...], stored: DType, dtype: DType, generator: np.random.Generator
) -> NDArray[np.generic]:
    """Return random legal metadata of this shape and type `stored`, for rows of elements of `dtype`."""
    import numpy as np

    fields = np.array([0b0100, 0b1110] if dtype == FLOAT32 else [4, 8, 12, 9, 13, 14], np.uint8)
    octets = generator.choice(fields, (*shape[:-1], shape[-1] * stored.bytes, 2))
    joined: NDArray[np.generic] = (octets[..., 0] | octets[..., 1] << 4).view(stored.name)
    return joined


def expand_rows(kept: NDArray[np.floating], metadata: NDArray[np.generic], dtype: DType) -> NDArray[np.floating]:
    """Return the dense rows of A: the kept elements at the positions that the metadata gives, zeros elsewhere."""
    import numpy as np

    octets = np.ascontiguousarray(metadata).view(np.uint8)
    fields = np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(kept), -1)
    # For float32 the bits give the positions of the element's two 16-bit halves.
    places = (fields & 3)[..., None] >> 1 if dtype == FLOAT32 else np.stack((fields & 3, fields >> 2), axis=-1)
    group = 2 * places.shape[-1]
    dense = np.zeros((*fields.shape, group), kept.dtype)
    np.put_along_axis(dense, places.astype(np.int64), kept.reshape(places.shape), axis=-1)
    return dense.reshape(len(kept), -1)
