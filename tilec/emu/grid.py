"""The clusters of a grid, generated on demand: memory does not grow with the grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import overload

BlockPositions = list[tuple[int, int, int]]
"""The positions in the grid of a cluster's blocks."""


class Clusters(Sequence[BlockPositions]):
    """The block positions of each cluster of a grid, x fastest, computed on access."""

    def __init__(self, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
        self.size = cluster
        self.find_common_axes = [extent // size for extent, size in zip(grid, cluster, strict=True)]
        z, y, x = (range(size) for size in reversed(cluster))
        self.inside = [(i, j, k) for k, j, i in itertools.product(z, y, x)]

    def __len__(self) -> int:
        return math.prod(self.find_common_axes)

    @overload
    def __getitem__(self, number: int) -> BlockPositions: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[BlockPositions]: ...
    def __getitem__(self, number: int | slice) -> BlockPositions | Sequence[BlockPositions]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        rest, x = divmod(number, self.find_common_axes[0])
        z, y = divmod(rest, self.find_common_axes[1])
        first = (x * self.size[0], y * self.size[1], z * self.size[2])
        return [(first[0] + i, first[1] + j, first[2] + k) for i, j, k in self.inside]


class ClusterQueue:
    """Clusters that have not begun, in order."""

    def __init__(self, clusters: Sequence[BlockPositions], numbers: range) -> None:
        self.clusters, self.numbers = clusters, numbers

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def take(self) -> tuple[int, BlockPositions]:
        """Remove the next cluster and return its number and block positions."""
        number, self.numbers = self.numbers[0], self.numbers[1:]
        return number, self.clusters[number]
