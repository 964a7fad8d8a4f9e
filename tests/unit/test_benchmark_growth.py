"""The kernels by which growth is measured are compiled, and exponents are those of the lines."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import growth
import pytest

from tilec.driver.build import Observer, build_library
from tilec.support.diagnostics import CompileError
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


def _calls(text: str, folder: Path) -> int:
    """How many functions are called to compile a text, or to say what is wrong with it."""
    profile = cProfile.Profile()
    options = CompileOptions(target="sm_90a", cache_dir=str(folder))
    with profile, suppress(CompileError):
        build_library(SourceFile("kernel.tl", text), options, Observer())
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    ("make", "size"),
    [(growth.tensors, 32), (growth.macros_used, 15), (growth.macros, 250), (growth.unknown_names, 100)],
)
def test_twice_as_much_takes_twice_as_many_calls(make: Callable[[int], str], size: int, tmp_path: Path) -> None:
    """From the second size to the third are twice as many as from the first to the second; four times if each part
    looks at each other one."""
    _calls(make(1), tmp_path)  # what is read once for all
    first, second, third = (_calls(make(size * times), tmp_path / str(times)) for times in (1, 2, 4))
    assert third - second < 2.3 * (second - first)


@pytest.mark.parametrize("dimension", growth.DIMENSIONS, ids=lambda dimension: dimension.name)
def test_the_smallest_is_compiled(dimension: growth.Dimension, tmp_path: Path) -> None:
    options = CompileOptions(target="sm_90a", cache_dir=str(tmp_path))
    text = SourceFile("kernel.tl", dimension.make(dimension.sizes[0]))
    if dimension.is_mistaken:
        with pytest.raises(CompileError):
            build_library(text, options, Observer())
        return
    assert ".entry kernel" in build_library(text, options, Observer()).ptx
