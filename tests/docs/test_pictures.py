"""The pictures of the documents are what `tilec simulate` draws now; `pytest tests/docs --bless` draws them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate.picture import draw_picture
from tilec.support import files
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

ROOT = Path(__file__).parents[2]
PICTURES = {"gemm": "gemm.tl", "causal": "attention/causal.tl", "rmsnorm": "rows/rmsnorm.tl"}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_it_is_drawn_now(name: str, request: pytest.FixtureRequest) -> None:
    source = files.read_source(str(ROOT / "samples" / PICTURES[name]))
    build = driver.build_kernel(source, CompileOptions(), driver.Observer())
    found = draw_picture(simulate.simulate_build(build, load_target("sm_90a"), draws=True), build.manifest.entry)
    path = ROOT / "docs" / "pictures" / f"{name}.svg"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found, f"{path.name}: `pytest tests/docs --bless` draws it anew"


def test_every_picture_is_shown_and_there() -> None:
    shown = {name for name in PICTURES if f"(pictures/{name}.svg)" in (ROOT / "docs" / "simulate.md").read_text()}
    others = {"model"}  # test_model_picture
    assert shown == set(PICTURES) == {path.stem for path in (ROOT / "docs" / "pictures").iterdir()} - others
