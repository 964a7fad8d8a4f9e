"""Every `T.*` operation. Importing this package registers all of them, with all their facets."""

from tilec.ops import (
    atomic,
    barriers,
    bits,
    block_scaled,
    copy,
    device_assert,
    fill,
    gemm,
    im2col,
    intrinsics,
    logical,
    meet,
    reduce,
    reducer,
    refused,
    scan,
    sync,
    tcgen05,
    transpose,
    warpgroups,
)
from tilec.ops.copy import cluster as copy_cluster
from tilec.ops.copy import lower as copy_lower
from tilec.ops.gemm import lower as gemm_lower

__all__ = [
    "atomic",
    "barriers",
    "bits",
    "block_scaled",
    "copy",
    "copy_cluster",
    "copy_lower",
    "device_assert",
    "fill",
    "gemm",
    "gemm_lower",
    "im2col",
    "intrinsics",
    "logical",
    "meet",
    "reduce",
    "reducer",
    "refused",
    "scan",
    "sync",
    "tcgen05",
    "transpose",
    "warpgroups",
]
