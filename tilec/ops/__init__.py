"""Every `T.*` operation. Importing this package registers all of them, with all their facets."""

from tilec.ops import atomic, device_assert, fill, placeholder
from tilec.ops.copies import copy, copy_cluster, copy_lower, four_rows, im2col, transpose
from tilec.ops.functions import bits, intrinsics, logical
from tilec.ops.products import block_scaled, gemm, gemm_lower, tcgen05
from tilec.ops.reductions import reduce, reducer, scan
from tilec.ops.synchronisation import barriers, cluster_launch, rendezvous, sync, warpgroups

__all__ = [
    "atomic",
    "barriers",
    "bits",
    "block_scaled",
    "cluster_launch",
    "copy",
    "copy_cluster",
    "copy_lower",
    "device_assert",
    "fill",
    "four_rows",
    "gemm",
    "gemm_lower",
    "im2col",
    "intrinsics",
    "logical",
    "placeholder",
    "reduce",
    "reducer",
    "rendezvous",
    "scan",
    "sync",
    "tcgen05",
    "transpose",
    "warpgroups",
]
