"""Whatever rewrites the kernel of a sample, what comes out keeps the promises of tile IR: names, types, visibility, and
the forms of its operations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tilec.driver import planning
from tilec.driver.front import check_all
from tilec.driver.observer import Observer
from tilec.driver.verifiers import rewritten_violations, verified
from tilec.ir.tile import Kernel
from tilec.passes.layout.assign_layouts import Laid
from tilec.passes.loop.choose_subtile import candidates
from tilec.passes.loop.subtile import Indivisible, divided
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

FOLDER = Path(__file__).parents[2] / "samples"
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.tl"))
TARGETS = ("sm_80", "sm_90a", "sm_100a")

# What `driver.planning` calls, one after the other.
REWRITING = (
    ("passes.loop.eliminate_masks", "unmasked"),
    ("passes.explicit_roles.tensor_sums", "with_sums_as_fragments"),
    ("passes.loop.choose_subtile", "as_asked"),
    ("passes.loop.detect_pipelines", "with_detected"),
    ("passes.layout.legalise_types", "widened"),
    ("passes.explicit_roles.role_layouts", "laid_out"),
    ("passes.grid.blocks", "arranged"),
    ("passes.choices.register_stages", "as_pays"),
    ("passes.grid.cta_pair_products", "with_pairs"),
    ("passes.memory.multicast", "with_multicast"),
)


def _violations(made: object) -> Iterator[str]:
    """Of all kernels in what a pass gives."""
    match made:
        case Kernel():
            yield from rewritten_violations(made)
        case Laid():
            yield from verified("layout", made)
        case tuple():
            for part in made:
                yield from _violations(part)
        case _:
            return


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What any of these passes breaks, as it is run."""
    found: list[str] = []

    def watched(name: str, rewrite: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **asked: Any) -> Any:
            made = rewrite(*args, **asked)
            found.extend(f"{name}: {said}" for said in _violations(made))
            return made

        return run

    for module, name in REWRITING:
        home = importlib.import_module(f"tilec.{module}")
        monkeypatch.setattr(home, name, watched(name, getattr(home, name)))
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_rewriting_keeps_the_promises(name: str, target: str, broken: list[str]) -> None:
    source = SourceFile(f"{name}.tl", (FOLDER / f"{name}.tl").read_text(encoding="utf-8"))
    options = CompileOptions(target=target)
    try:
        kernels = check_all(source, options, Observer())
    except CompileError:
        return  # not for this target
    for kernel in kernels:
        try:
            begun = planning.begin(kernel, options)
        except CompileError:
            continue
        for way in candidates(begun.kernel, begun.laid, options):
            try:
                cut = divided(begun.kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
                planning.in_place(cut, begun.target, options)
            except (Indivisible, CompileError):
                continue
    assert not broken, "\n".join(dict.fromkeys(broken))
