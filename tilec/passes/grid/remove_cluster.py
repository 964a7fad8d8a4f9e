"""The cluster of a kernel whose blocks do not work together."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.clusters import is_grid_sync, uses_rank
from tilec.ir import tile
from tilec.ops.synchronisation.rendezvous import Rendezvous


def remove_cluster(kernel: tile.Kernel) -> tile.Kernel:
    """Remove the kernel's cluster unless it reaches other blocks, has a rendezvous other than T.sync_grid, or uses
    the rank."""
    operations = [s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.TileOp)]
    needs = any(s.reaches_blocks or (isinstance(s, Rendezvous) and not is_grid_sync(s)) for s in operations)
    return kernel if needs or uses_rank(kernel.body) else replace(kernel, cluster=tile.NO_CLUSTER)
