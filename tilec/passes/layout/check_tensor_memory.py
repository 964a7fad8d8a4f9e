"""The room that the tiles of a kernel with explicit roles take in tensor memory."""

from __future__ import annotations

from tilec.ir import tile
from tilec.passes.layout.mechanisms.tensor_memory import count_columns, find_factors
from tilec.support.diagnostics import Label, raise_error
from tilec.target.table import Target


def check_tensor_memory(kernel: tile.Kernel, target: Target) -> None:
    """Refuse a kernel whose tiles need more columns of tensor memory than the target has.

    Errors: `tensor-memory-overflow`."""
    if not target.has("tcgen05"):
        return
    multiplied = find_factors(kernel)
    needed = {b: count_columns(b, b in multiplied) for b in kernel.buffers if b.scope == "tmem"}
    total, limit = sum(needed.values()), target.limit("tmem_columns") if needed else 0
    if total > limit:
        most = max(needed, key=lambda tensor: needed[tensor])
        raise_error(
            "tensor-memory-overflow",
            f"the tiles take {total} columns of tensor memory, {target.name} has {limit}",
            most.span,
            f"{most.name} alone takes {needed[most]}",
            secondary=tuple(Label(b.span, f"{each} columns") for b, each in needed.items() if b is not most),
            help="use smaller tiles: a column of 32 bits holds 128 rows, whatever the type",
        )
