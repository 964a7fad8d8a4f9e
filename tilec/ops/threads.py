"""The index of the thread and of the block: functions whose values the launch decides."""

from __future__ import annotations

from tilec.ops.signature import Parameter, Signature
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class LaunchValue:
    """A `T.*` function that gives an index or an extent of the launch."""

    signature: Signature
    doc: str


_DIM = Parameter("dim", 0)
_WARP_SIZE = Parameter("warp_size", None)
BINDING = Signature(
    "T.thread_binding",
    (
        Parameter("start"),
        Parameter("stop", None),
        Parameter("thread", None),
        Parameter("annotations", None, supported=False, keyword_only=True),
    ),
)


def _make_launch_value(name: str, doc: str, *parameters: Parameter) -> LaunchValue:
    return LaunchValue(Signature(name, parameters), doc)


LAUNCH_VALUES: dict[str, LaunchValue] = {
    p.signature.name: p
    for p in (
        _make_launch_value("T.get_thread_binding", "the thread's index, along x, y or z of `threads=`", _DIM),
        _make_launch_value("T.get_thread_bindings", "all three of them"),
        _make_launch_value("T.get_thread_extent", "the number of threads of a block along x, y or z", _DIM),
        _make_launch_value("T.get_thread_extents", "all three of them"),
        _make_launch_value("T.get_block_binding", "the block's index, along x, y or z of the grid", _DIM),
        _make_launch_value("T.get_block_bindings", "one for each extent of the grid"),
        _make_launch_value("T.get_block_extent", "the number of blocks of the grid along x, y or z", _DIM),
        _make_launch_value("T.get_block_extents", "one for each extent of the grid"),
        _make_launch_value("T.get_lane_idx", "the thread's index in its warp", _WARP_SIZE),
        _make_launch_value("T.get_warp_idx", "the index of the thread's warp", _WARP_SIZE),
        _make_launch_value("T.get_warp_idx_sync", "the index of the thread's warp", _WARP_SIZE),
        _make_launch_value(
            "T.get_warp_group_idx",
            "the index of the thread's warpgroup",
            _WARP_SIZE,
            Parameter("warps_per_group", None),
        ),
        _make_launch_value(
            "T.block_rank_in_cluster", "the block's number in its cluster, x counted fastest; without clusters 0"
        ),
        _make_launch_value("T.get_cluster_block_nums", "the number of blocks of a cluster"),
        _make_launch_value(
            "T.shuffle_elect",
            "True if the thread is the first of `thread_extent` threads, or with 0 the first of the block",
            Parameter("thread_extent"),
        ),
        LaunchValue(BINDING, "the thread's index along `thread`, such as threadIdx.x; also as a loop of one iteration"),
    )
}
