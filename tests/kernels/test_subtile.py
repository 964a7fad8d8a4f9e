"""Tiles in parts: which loops get them, the same results as with whole tiles, and machine code without spills."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from harness import HERE, SAMPLES, agrees
from test_attention_shapes import computed

from tilec.driver.build import Build, Observer, build_kernel
from tilec.passes.choices import choose_subtile
from tilec.sched import cache
from tilec.sched.model.levels import LevelSettler
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

FLASH = SAMPLES / "flash_attention.tl"

Shape = dict[str, Value]
ROWS: Shape = {"D": 64, "block_M": 128, "block_N": 64, "threads": 128}
KEYS: Shape = {"D": 128, "block_M": 64, "block_N": 128, "threads": 128}
BOTH_GROUPS: Shape = {"D": 64, "block_M": 128, "block_N": 128, "threads": 256}


@pytest.fixture(autouse=True)
def parts_that_pay_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are about parts, which the compiler takes of few kernels by itself."""
    monkeypatch.setattr(choose_subtile, "LEAST_GAIN", Fraction(1, 20))


def made(shape: Shape, subtile: int | None = None, text: str | None = None, **options: Any) -> Build:
    source = SourceFile(FLASH.name, text or FLASH.read_text(encoding="utf-8"))
    asked = CompileOptions(defines=tuple(shape.items()), subtile=subtile, **options)
    return build_kernel(source, asked, Observer())


def decision(built: Build) -> tuple[str, str]:
    decisions = json.loads(built.trace)["tilec"]["decisions"]
    return next(((d["chosen"], d["by"]) for d in decisions if d["what"] == "subtile"), ("", ""))


def is_clean(built: Build) -> bool:
    """No spill, nothing serialised, no bank conflict; how far the search for a schedule got is another matter,
    and so is what its products wait for."""
    (entry,) = built.entries
    faults = [w for w in built.warnings if w.code not in ("schedule-not-proven", "assembled-interval")]
    return not faults and not (entry.stack_bytes or entry.spill_store_bytes or entry.spill_load_bytes)


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("shape", "chosen", "least_gain"),
    [(ROWS, "scores (2, 1)", 0.19), (KEYS, "scores (1, 2)", 0.09), (BOTH_GROUPS, "scores (1, 2)", 0.08)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_chain_is_cut(shape: Shape, chosen: str, least_gain: float, causal: bool) -> None:
    """One warpgroup gains a fifth where its rows make two products, and less where their sums have to be folded."""
    whole, cut = made({**shape, "causal": causal}, 1), made({**shape, "causal": causal})
    assert decision(whole) == ("none", "the command line")
    assert decision(cut) == (chosen, "the compiler")
    assert cut.schedules[0].ii <= (1 - least_gain) * whole.schedules[0].ii
    assert is_clean(whole) and is_clean(cut)


@pytest.mark.weekly
def test_what_is_chosen_is_settled_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are compared by their intervals: the other levels of the objective are looked at for one of them, and
    its schedule is the one that is found where nothing is to be chosen."""
    settled = []

    def run(levels: LevelSettler) -> tuple[int, ...]:
        settled.append(levels.problem.name)
        return levels_run(levels)

    levels_run = LevelSettler.run
    monkeypatch.setattr(LevelSettler, "run", run)
    monkeypatch.setattr(cache, "solve_cached", lambda problem, solver, budget, **_: solver(problem, 1.0, budget))
    chosen = made(ROWS)
    assert decision(chosen)[0] != "none" and len(settled) == 1
    assert made(ROWS, 2).schedules == chosen.schedules
    assert made(ROWS, schedule=chosen.trace).ptx == chosen.ptx


@pytest.mark.weekly
def test_a_busy_unit_is_left_alone() -> None:
    """Two warpgroups in ping-pong keep the tensor cores busy in every cycle, three of a small head the exponentials."""
    for shape, unit in (({}, "tc_and_mma"), ({"D": 64, "block_M": 192, "threads": 384}, "xu")):
        built = made(dict(shape))
        assert decision(built) == ("none", "the compiler")
        (why,) = [d["why"] for d in json.loads(built.trace)["tilec"]["decisions"] if d["what"] == "subtile"]
        assert why.startswith(f"{unit} is held in ")


LENGTHS = [(64, 1, False), (130, 64, True), (100, 128, False), (129, 257, True), (64, 385, True), (200, 700, False)]


@pytest.mark.parametrize(("S", "keys", "causal"), LENGTHS)
@pytest.mark.parametrize("shape", [ROWS, KEYS, BOTH_GROUPS], ids=["rows", "keys", "both"])
def test_equals_numpy(shape: Shape, S: int, keys: int, causal: bool) -> None:
    """From one block of keys on, with ends inside a part, on a machine that delays what it may."""
    causal = causal and keys >= S
    built = made({**shape, "heads": 1, "S": S, "keys": keys, "causal": causal})
    assert decision(built)[0].startswith("scores")
    found, wanted = computed(built, S + keys, causal)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-9, atol=2.0**-8)


@pytest.mark.parametrize("parts", [2, 4])
def test_as_many_parts_as_asked(parts: int) -> None:
    # The best schedule of so many statements takes a minute, and this is about any.
    built = made({"heads": 1, "S": 128, "keys": 300}, parts, scheduler="exact" if parts == 2 else "heuristic")
    assert decision(built) == (f"scores (1, {parts})", "the command line")
    assert is_clean(built)
    found, wanted = computed(built, parts, causal=False)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-9, atol=2.0**-8)


def annotated(parts: str) -> str:
    text = FLASH.read_text(encoding="utf-8")
    place = "        # The blocks that see"
    assert place in text
    return text.replace(place, f"        T.annotate_subtile({{scores: {parts}}})\n{place}")


@pytest.mark.weekly
def test_the_kernel_has_its_way() -> None:
    """Against the compiler, and against the command line."""
    small: Shape = {"heads": 1, "S": 128, "keys": 300}
    cut = made(small, text=annotated("(1, 2)"))
    assert decision(cut) == ("scores (1, 2)", "the kernel")
    found, wanted = computed(cut, 5, causal=False)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-9, atol=2.0**-8)
    assert decision(made({**small, **KEYS}, 2, text=annotated("(1, 1)"))) == ("none", "the kernel")


@pytest.mark.weekly
def test_a_trace_says_how_tiles_were_cut() -> None:
    first = made(KEYS)
    again = made(KEYS, schedule=first.trace)
    assert decision(again) == ("scores (1, 2)", "the command line")
    assert again.ptx == first.ptx


def test_from_the_third_level_on() -> None:
    assert decision(made(KEYS, opt_level=2)) == ("", "")


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("attention/backward_dq", {"S": 192, "block_M": 64, "block_N": 64, "threads": 128}),
        ("models/retention", {"batch": 1, "S": 192, "block_M": 64, "threads": 128}),
    ],
)
def test_other_loops(name: str, lengths: Shape) -> None:
    built = agrees(SAMPLES / f"{name}.tl", "sm_90a", **{"heads": 1, **lengths})
    assert decision(built) == ("scores (1, 2)", "the compiler")


def test_warpgroups_that_run_apart_have_whole_tiles() -> None:
    built = agrees(SAMPLES / "attention/window_sink.tl", "sm_90a", heads=1, S=384, window=200, D=32)
    assert decision(built) == ("none", "the compiler")


def test_halves_by_hand_are_not_cut_again() -> None:
    assert decision(agrees(HERE / "attention_halves.tl", "sm_90a")) == ("none", "the compiler")
