"""2:4 sparsity as tensor cores know it: of each four neighbours along K two are kept (of float32, one of each two), and
four bits of metadata say where they stood.

A row of metadata is a string of bits, the first four elements in the lowest ones of its first element, whatever integer
that is. Of each four bits the lower two are the place of the first element that is kept, the upper two that of the
second, further one. Of float32 they are 0100 where the first of two is kept, and 1110 where the second is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.ir.types import FLOAT32, INT8, INT16, INT32, UINT8, UINT16, UINT32, DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METADATA = (INT8, UINT8, INT16, UINT16, INT32, UINT32)
"""What may hold it."""

SPARSE = ("float16", "bfloat16", "float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
"""What the instructions multiply."""


def metadata_columns(kept: int, dtype: DType, metadata: DType) -> int:
    """Elements of a row of metadata for `kept` elements of a row of A."""
    return (4 if dtype == FLOAT32 else 2) * kept // metadata.bits


def random_metadata(
    shape: tuple[int, ...], stored: DType, dtype: DType, generator: np.random.Generator
) -> NDArray[np.generic]:
    """Some that is legal, of integers `stored`, for rows of `dtype`."""
    import numpy as np

    fields = np.array([0b0100, 0b1110] if dtype == FLOAT32 else [4, 8, 12, 9, 13, 14], np.uint8)
    octets = generator.choice(fields, (*shape[:-1], shape[-1] * stored.bytes, 2))
    joined: NDArray[np.generic] = (octets[..., 0] | octets[..., 1] << 4).view(stored.name)
    return joined


def expanded(kept: NDArray[np.floating], metadata: NDArray[np.generic], dtype: DType) -> NDArray[np.floating]:
    """The rows of A with their zeros; `metadata` as the integers of its type."""
    import numpy as np

    octets = np.ascontiguousarray(metadata).view(np.uint8)
    fields = np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(kept), -1)
    # Of float32 the places are those of two halves.
    places = (fields & 3)[..., None] >> 1 if dtype == FLOAT32 else np.stack((fields & 3, fields >> 2), axis=-1)
    group = 2 * places.shape[-1]
    dense = np.zeros((*fields.shape, group), kept.dtype)
    np.put_along_axis(dense, places.astype(np.int64), kept.reshape(places.shape), axis=-1)
    return dense.reshape(len(kept), -1)
