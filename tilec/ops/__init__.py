"""Every `T.*` operation. Importing this package registers all of them, with all their facets."""

from tilec.ops import atomic, device_assert, fill, placeholder  # noqa: F401  (imported to register themselves)
from tilec.ops.copies import copy, copy_cluster, copy_lower, four_rows, im2col, transpose  # noqa: F401
from tilec.ops.functions import bits, intrinsics, logical  # noqa: F401
from tilec.ops.products import block_scaled, gemm, gemm_lower, tcgen05  # noqa: F401
from tilec.ops.reductions import reduce, reducer, scan  # noqa: F401
from tilec.ops.synchronisation import barriers, cluster_launch, rendezvous, sync, warpgroups  # noqa: F401
