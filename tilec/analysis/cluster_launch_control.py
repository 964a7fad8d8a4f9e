"""Kernels that take over the work of blocks that have not begun (T.clc_try_cancel)."""

from __future__ import annotations

from tilec.ir.tile import Kernel, TileOp, walk_statements
from tilec.ops.synchronisation.cluster_launch import is_try_cancel
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.support.diagnostics import raise_error
from tilec.target.table import Target


def has_block_requests(kernel: Kernel) -> bool:
    """Return True if blocks of the kernel do so: then each keeps the machine's number, and is in no cluster."""
    return any(map(is_try_cancel, walk_statements(kernel.body)))


def check_block_request(op: TileOp, kernel: Kernel, target: Target) -> None:
    """Refuse a request that the target or the kernel does not allow. Errors: `unsupported-operand`."""
    reason = _why_not_supported(kernel, target)
    if reason is not None:
        title, help_ = reason
        raise_error("unsupported-operand", "this T.clc_try_cancel is not possible", op.span, title, help=help_)


def _why_not_supported(kernel: Kernel, target: Target) -> tuple[str, str] | None:
    if not target.has("cluster.launch_control"):
        return f"{target.name} has no cluster launch control", "let each block do its own work, or use T.Persistent"
    if kernel.cluster.blocks > 1:
        return f"it would cancel a whole cluster of {kernel.cluster.blocks} blocks", "remove cluster_dims"
    if kernel.raster is not None:
        help_ = "remove T.use_swizzle, and reorder the indices that T.clc_get_first_ctaid_x gives"
        return "it gives block indices in hardware order, and T.use_swizzle changes that order", help_
    if any(isinstance(s, Rendezvous) for s in walk_statements(kernel.body)):
        return "T.sync_grid waits for all blocks, and cancelled blocks never run", "remove T.sync_grid"
    return None
