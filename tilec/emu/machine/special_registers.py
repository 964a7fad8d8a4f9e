"""The special registers of PTX and their register classes."""

from __future__ import annotations

SPECIAL_REGISTERS = {
    **{f"%{name}.{axis}": "32" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{f"%{name}.{axis}": "32" for name in ("clusterid", "nclusterid") for axis in "xyz"},
    **{f"%cluster_{name}.{axis}": "32" for name in ("ctaid", "nctaid") for axis in "xyz"},
    **dict.fromkeys(("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid"), "32"),
    **{f"%lanemask_{relation}": "32" for relation in ("eq", "lt", "le", "gt", "ge")},
    **dict.fromkeys(("%cluster_ctarank", "%cluster_nctarank", "%dynamic_smem_size", "%total_smem_size"), "32"),
    **dict.fromkeys(("%aggr_smem_size", "%reserved_smem_offset_begin", "%reserved_smem_offset_end"), "32"),
    **dict.fromkeys((f"%envreg{index}" for index in range(32)), "32"),
    "%is_explicit_cluster": "pred",
    **dict.fromkeys(("%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"), "32"),
    **dict.fromkeys(("%clock64", "%globaltimer", "%gridid", "%current_graph_exec"), "64"),
}
"""Register class by special register."""
