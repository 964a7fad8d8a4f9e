"""The picture of a replay: what is drawn where, and that it is what the replay found."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate.grid import Simulation
from tilec.simulate.picture import build_rows, choose_window, draw_picture
from tilec.support import files
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

SAMPLES = Path(__file__).parents[2] / "samples"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(sample: str, **sizes: int) -> Simulation:
    defines = tuple(sizes.items())
    build = driver.build_kernel(
        files.read_source(str(SAMPLES / sample)), CompileOptions(defines=defines), driver.Observer()
    )
    return simulate.simulate_build(build, load_target("sm_90a"), draws=True)


@pytest.fixture(scope="module")
def gemm() -> Simulation:
    return drawn("gemm.tl", M=256, N=256, K=512)


def test_a_short_replay_is_drawn_whole(gemm: Simulation) -> None:
    shown = choose_window(gemm)
    assert shown.start == 0
    assert shown.end == pytest.approx(gemm.first.cycles, rel=0.05)
    # Eight tiles of 64 along K, one pass each.
    assert len(shown.passes) in (7, 8)


def test_rows_are_what_the_replay_found(gemm: Simulation) -> None:
    made = {row.title: row for row in build_rows(gemm, choose_window(gemm))}
    assert set(made) == {"copies", "stores", "tensor cores", "warp 0", "warp 4", "warp 8"}
    held = sum(end - start for start, end, _ in made["tensor cores"].pieces)
    assert held == pytest.approx(gemm.first.held["tensor"], rel=0.02)
    waits = sum(end - start for start, end, kind in made["warp 0"].pieces if kind == "mbarrier")
    lost = sum(c for (warp, _, cause), c in gemm.first.stalls.items() if warp == 0 and cause.startswith("mbarrier"))
    assert waits == pytest.approx(lost, rel=0.02)
    for row in made.values():
        ends = [0.0, *(end for _, end, _ in row.pieces)]
        assert all(start >= end for (start, _, _), end in zip(row.pieces, ends, strict=False))


def test_of_a_long_loop_a_few_passes_are_drawn() -> None:
    found = drawn("gemm.tl", M=128, N=128, K=4096)
    shown = choose_window(found)
    assert len(shown.passes) == 5
    assert (shown.start, shown.end) == (shown.passes[0], shown.passes[-1])


def test_it_is_well_formed_and_lies_inside(gemm: Simulation) -> None:
    root = ET.fromstring(draw_picture(gemm, "a<b>&c"))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert "a<b>&c" in root.attrib["aria-label"]
    boxes = root.findall(f"{SVG}rect")
    assert boxes
    for box in boxes:
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.5
        assert 0 <= y <= y + h <= height
