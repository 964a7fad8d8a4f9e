"""Whatever rewrites the kernel of a sample, what comes out keeps the promises of tile IR and of its layouts: the engine
verifies behind every pass, in tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilec.driver import engine
from tilec.driver.observer import Observer
from tilec.ir.tile import Kernel
from tilec.passes.loop import eliminate_masks
from tilec.passes.choices.choose_subtile import find_subtile_candidates
from tilec.passes.loop.subtile import Indivisible, split_dimension
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

FOLDER = Path(__file__).parents[2] / "samples"
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.tl"))
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def source_of(name: str) -> SourceFile:
    return SourceFile(f"{name}.tl", (FOLDER / f"{name}.tl").read_text(encoding="utf-8"))


@pytest.mark.some(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_rewriting_keeps_the_promises(name: str, target: str) -> None:
    options = CompileOptions(target=target)
    try:
        file = engine.advance_kernels(
            engine.read_file(source_of(name), options, Observer()), Observer(), last="apply-requested-subtiles"
        )
    except CompileError:
        return  # not for this target
    for work in file.kernels:
        try:
            assignment = engine.advance_kernel(
                work, Observer(), behind="apply-requested-subtiles", last="check-registers"
            )
        except CompileError:
            continue
        for way in find_subtile_candidates(work.kernel, assignment.assignment, options):
            try:
                cut = split_dimension(work.kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
                engine.explore_kernel(replace(work, kernel=cut), "check-registers")
            except (Indivisible, CompileError):
                continue


def test_a_pass_that_breaks_a_promise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    without_masks = eliminate_masks.eliminate_masks

    def twice(*given: Any) -> tuple[Kernel, tuple[eliminate_masks.Mask, ...]]:
        kernel, masks = without_masks(*given)
        return replace(kernel, body=(*kernel.body, *kernel.body)), masks

    monkeypatch.setattr("tilec.passes.choices.choose_masked_iterations.eliminate_masks", twice)
    with pytest.raises(InternalError, match=r"what choose-masked-iterations makes does not verify:\n.*is used twice"):
        engine.advance_kernels(
            engine.read_file(source_of("attention/causal"), CompileOptions(), Observer()), Observer()
        )
