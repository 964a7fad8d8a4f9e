"""T.reshape and T.view: the elements of a tensor or tile under other indices."""

from __future__ import annotations

from tilec.ops.signature import Parameter, Signature
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class ViewFunction:
    signature: Signature
    doc: str


VIEWS: dict[str, ViewFunction] = {
    v.signature.name: v
    for v in (
        ViewFunction(
            Signature("T.reshape", (Parameter("src"), Parameter("shape"))),
            "the elements of a tensor, tile or array of each thread, row by row, in another shape",
        ),
        ViewFunction(
            Signature("T.view", (Parameter("src"), Parameter("shape", None), Parameter("dtype", None))),
            "the same, or the bits of each row as another type, or both; without `shape`, rows keep their bytes. "
            "A view with narrower elements cannot be written. T.Tensor(shape, dtype, tile.data) is the same",
        ),
    )
}

DATA = "data"
"""The attribute `tile.data`: the start of a tensor's or tile's elements, for a view of them."""
AT_DATA = {
    name: Signature(name, (Parameter("shape"), Parameter("dtype", "float32"), Parameter("data", None)))
    for name in ("T.Tensor", "T.Buffer")
}
"""`T.Tensor(shape, dtype, tile.data)` in a kernel is a T.view of the tile."""
