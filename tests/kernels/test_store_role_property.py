"""Whoever stores, and whenever: any verified schedule with any division among the roles keeps the loop's meaning."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from harness import HERE
from scheduled import Moves, compiled

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.emu import launch
from tilec.ir.manifest import manifests_in_module
from tilec.ptx.parse import parse_module
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

PATH = HERE / "streaming_forms.tl"
FORMS: list[dict[str, Value]] = [
    {"M": 16, "rounds": 2},
    {"M": 16, "changed": True},
    {"M": 16, "passed_on": True, "changed": True, "rounds": 2},
    {"M": 16, "itself": True},
    {"product": True, "passed_on": True},
]
WALKS = 6


def walk(seed: int) -> Moves:
    """The first step of each also says who has the statement of its number."""
    drawn = np.random.default_rng(seed).integers(0, 16, (24, 3))
    return [(int(a), int(b), (1, 1, 0, -1, 2)[c % 5]) for a, b, c in drawn]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_any_division_and_any_schedule(form: dict[str, Value]) -> None:
    source = SourceFile(PATH.name, PATH.read_text(encoding="utf-8"))
    options = CompileOptions(defines=tuple({**form, "trips": None}.items()))
    kernel = driver.load_kernel(source, options, driver.Observer())
    seen: Counter[bool] = Counter()
    for number in range(WALKS):
        ptx, (scheduled,) = compiled(kernel, "sm_90a", "auto", walk(number), number % 3)
        seen["store" in scheduled.roles] += 1
        depth = max(scheduled.schedule.depth)
        for trips in (number % 2, depth + number % 3):
            assert right(ptx, form, trips, None if number % 3 else number), (number, trips, scheduled.schedule)
    assert seen[True] and seen[False]


def right(ptx: str, form: dict[str, Value], trips: int, adversary: int | None) -> bool:
    (manifest,) = manifests_in_module(parse_module(ptx))
    rounds, rows = int(form.get("rounds", 1)), int(form.get("M", 64))
    generator = np.random.default_rng(trips)
    x, w = (generator.integers(-3, 4, (n, 64)).astype(np.float16) for n in (rows * trips, 64))
    y, z = (np.full((rounds, rows * trips, 64), np.nan, np.float16) for _ in range(2))
    given = emulate.KernelArguments({"X": x, "W": w, "Y": y, "Z": z}, {"n": 1, "k": rows * trips})
    launch(
        ptx,
        manifest.entry,
        manifest.blocks({"k": rows * trips}),
        manifest.block,
        emulate.build_launch_arguments(manifest, given),
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    expected = x @ w if "product" in form else x * 2 + 1
    expected = np.maximum(expected, 0) if "changed" in form else expected
    is_right = np.array_equal(given.tensors["Y"], np.tile(expected, (rounds, 1, 1)))
    is_passed_on = "passed_on" in form or "itself" in form
    return is_right and (not is_passed_on or np.array_equal(given.tensors["Z"], np.tile(x, (rounds, 1, 1))))
