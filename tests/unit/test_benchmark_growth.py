"""The kernels by which growth is measured are compiled, and exponents are those of the lines."""

from __future__ import annotations

from pathlib import Path

import growth
import pytest

from tilec.driver.build import Observer, build_all
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def test_slopes() -> None:
    assert growth.slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert growth.slope([1, 2, 4], [0.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert growth.slope([1, 2], [0.01, 1.0]) is None


def test_the_pass_that_grew_most_at_the_end() -> None:
    dimension = growth.Dimension("nests", (4, 8, 16, 32), str)
    costs = {
        4: growth.Cost(0.5, {"parse": 0.1, "solve": 0.1}),
        8: growth.Cost(0.7, {"parse": 0.2, "solve": 0.2}),
        16: growth.Cost(1.5, {"parse": 0.4, "solve": 0.8}),
        32: None,
    }
    found = growth.grown(dimension, costs, growth.Cost(0.3, {}))
    assert (found.steepest, found.steepest_exponent) == ("solve", pytest.approx(2.0))
    assert found.last == pytest.approx(1.585, abs=0.001) and found.cpu[32] is None


def test_what_passes_take_is_read() -> None:
    said = "parse                 16.2 ms\nexploring: subtile  1,116.2 ms\ntotal               2,644.9 ms\n"
    assert growth.taken(said) == {"parse": pytest.approx(0.0162), "exploring: subtile": pytest.approx(1.1162)}


@pytest.mark.parametrize("dimension", growth.DIMENSIONS, ids=lambda dimension: dimension.name)
def test_the_smallest_is_compiled(dimension: growth.Dimension, tmp_path: Path) -> None:
    options = CompileOptions(target="sm_90a", cache_dir=str(tmp_path))
    made = build_all(SourceFile("kernel.tl", dimension.make(dimension.sizes[0])), options, Observer())
    assert ".entry kernel" in made.ptx
