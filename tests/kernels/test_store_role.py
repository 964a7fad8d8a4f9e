"""A thread of its own that copies tiles to global memory: chosen where that makes the interval smaller, and right."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import HERE, SAMPLES, built
from test_adversary import compute

from tilec.cli.main import main
from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.ir import warp
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

PATH = HERE / "streaming.tl"
ADVERSARIES = (None, 0, 1, 2, 3)

FORMS: dict[str, dict[str, Value]] = {
    "plain": {},
    "two warpgroups": {"threads": 256},
    "through registers": {"by_registers": True},
    "added up": {"add": True},
    "stored twice": {"twice": True},
    "short of versions": {"versions": 8},
}


def compiled(**options: Any) -> Build:
    source = SourceFile(PATH.name, PATH.read_text(encoding="utf-8"))
    return build_kernel(source, CompileOptions(**options), Observer())


def roles(made: Build) -> list[str]:
    return [role.name for role in made.program.roles]


def loop_record(made: Build) -> dict[str, Any]:
    import json

    (loop,) = json.loads(made.trace)["tilec"]["loops"]
    assert isinstance(loop, dict)
    return loop


# ---- what it computes ------------------------------------------------------------------------------------------------


@cache
def at_run_time() -> Build:
    return built(PATH, "sm_90a", dynamic=True)[1]


def depths() -> dict[str, int]:
    return {ring.name: ring.depth for ring in at_run_time().program.rings}


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=str)
@pytest.mark.parametrize("ring", ["x", "y"])
def test_every_trip_count(ring: str, adversary: int | None) -> None:
    """Built once: the number of tiles is that of the tensors."""
    made = at_run_time()
    assert roles(made) == ["consumer", "producer", "store"]
    depth = depths()[ring]
    for trips in (0, 1, 2, depth - 1, depth, depth + 1, 2 * depth + 1):
        x = np.random.default_rng(trips).standard_normal((32 * trips, 128)).astype(np.float16)
        y, z, sums = np.full_like(x, np.nan), np.full_like(x, np.nan), np.zeros((2, 32), np.float32)
        arguments = emulate.KernelArguments({"X": x, "Y": y, "Z": z, "sums": sums}, {})
        emulate.emulate_build(made, arguments, options=emulate.RunOptions(adversary=adversary))
        np.testing.assert_array_equal(arguments.tensors["Y"], x * np.float16(2) + np.float16(1))


@pytest.mark.parametrize("stages", [[0, 0, 0], [0, 1, 1], [0, 1, 2]], ids=str)
def test_a_schedule_by_hand_leaves_the_role_open(stages: list[int]) -> None:
    """Stage and order say when a copy is issued, not by which warp."""
    text = PATH.read_text(encoding="utf-8")
    by_hand = text.replace("num_stages=versions", f"stage={stages}, order=[0, 1, 2]")
    assert by_hand != text

    def compile_by_hand(**options: Any) -> Build:
        return build_kernel(SourceFile(PATH.name, by_hand), CompileOptions(**options), Observer())

    assert roles(compile_by_hand(epilogue_warp=False)) == ["consumer", "producer"]
    made = compile_by_hand(defines=(("dynamic", True),))
    assert roles(made) == ["consumer", "producer", "store"]
    depth = max(ring.depth for ring in made.program.rings)
    for trips in sorted({0, 1, 2, depth - 1, depth, depth + 1}):
        x = np.random.default_rng(trips).standard_normal((32 * trips, 128)).astype(np.float16)
        y, z, sums = np.full_like(x, np.nan), np.full_like(x, np.nan), np.zeros((2, 32), np.float32)
        for adversary in (None, 0, 1):
            arguments = emulate.KernelArguments({"X": x, "Y": y, "Z": z, "sums": sums}, {})
            emulate.emulate_build(made, arguments, options=emulate.RunOptions(adversary=adversary))
            np.testing.assert_array_equal(arguments.tensors["Y"], x * np.float16(2) + np.float16(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trips", [1, 3, 15])
def test_every_form(form: str, trips: int) -> None:
    _, made = built(PATH, "sm_90a", trips=trips, **FORMS[form])
    assert roles(made) == ["consumer", "producer", "store"]
    assert not made.warnings
    assert all(compute(made, made.ptx, adversary) for adversary in (None, 0, 1))


PLACES: dict[str, dict[str, Value]] = {
    "in a loop": {"rounds": 3},
    "trips learnt at launch, in a loop": {"rounds": 2, "trips": None},
    "changed once computed": {"changed": True, "trips": 9},
    "loaded and stored as it is": {"passed_on": True, "trips": 9},
    "loaded, read and stored": {"itself": True, "trips": 9},
    "a product of two warpgroups": {"product": True, "threads": 256},
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_tile_comes_from(place: str) -> None:
    """Of two blocks one goes by: its stores have nothing to wait for."""
    chosen = PLACES[place]
    _, made = built(HERE / "streaming_forms.tl", "sm_90a", **chosen)
    assert roles(made) == ["consumer", "producer", "store"]
    rounds, trips = int(chosen.get("rounds", 1)), chosen.get("trips", 5)
    w = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float16)
    for count, adversary in [(c, a) for c in ((0, 1, 4) if trips is None else (int(trips),)) for a in (None, 0, 1)]:
        x = np.random.default_rng(count).standard_normal((64 * count, 64)).astype(np.float16)
        y, z = (np.full((rounds, 64 * count, 64), np.nan, np.float16) for _ in range(2))
        arguments = emulate.KernelArguments({"X": x, "W": w, "Y": y, "Z": z}, {"n": 1})
        emulate.emulate_build(made, arguments, options=emulate.RunOptions(adversary=adversary))
        expected = x.astype(np.float32) @ w.astype(np.float32) if "product" in chosen else x * 2.0 + 1.0
        expected = np.maximum(expected, 0) if "changed" in chosen else expected
        np.testing.assert_allclose(arguments.tensors["Y"], np.tile(expected, (rounds, 1, 1)), rtol=1e-2, atol=1e-2)
        if "passed_on" in chosen or "itself" in chosen:
            np.testing.assert_array_equal(arguments.tensors["Z"], np.tile(x, (rounds, 1, 1)))


def test_copies_of_what_is_loaded_and_of_what_is_computed_may_share_the_role() -> None:
    """One tile comes from the loads and goes out as it is; the other is what the consumers fill a ring with, who have
    no time to store: what they compute with they wait for."""
    _, made = built(HERE / "streaming_forms.tl", "sm_90a", passed_on=True, trips=9)
    record = loop_record(made)
    operations = {role.name: {type(op) for op in warp.walk_operations(role.body)} for role in made.program.roles}
    assert [operations[name] >= {warp.TmaStore} for name in ("consumer", "producer", "store")] == [False, False, True]
    assert record["roles"] == [None, 0, 1, None, 1]
    assert warp.RingFill in operations["consumer"]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"fence\.proxy\.async", 1),
        (r"mbarrier\.arrive\.shared", 2),
        (r"cp\.async\.bulk\.wait_group\.read", 1),
        (r"mbarrier\.try_wait", 3),
    ],
)
def test_each_part_of_the_protocol_is_needed(pattern: str, count: int) -> None:
    """In the steady state. A wait is taken away with the branch that repeats it."""
    made = at_run_time()
    lines = made.ptx.split("\n")
    places = [place for place in in_loops(lines) if re.search(pattern, lines[place])]
    assert len(places) >= count
    trips = 3 * max(depths().values())
    for place in places:
        behind = place + 2 if "try_wait" in pattern else place + 1
        mutant = "\n".join([*lines[:place], "", *lines[behind:]])
        assert not is_right(made, mutant, trips), lines[place]


def in_loops(lines: list[str]) -> list[int]:
    found, inside = [], False
    for place, line in enumerate(lines):
        if re.fullmatch(r"\$L\d+_(loop|done):", line):
            inside = line.endswith("_loop:")
        elif inside:
            found.append(place)
    return found


def is_right(made: Build, ptx: str, trips: int) -> bool:
    x = np.random.default_rng(trips).standard_normal((32 * trips, 128)).astype(np.float16)
    y, sums = np.full_like(x, np.nan), np.zeros((2, 32), np.float32)
    given = emulate.KernelArguments({"X": x, "Y": y, "Z": x.copy(), "sums": sums}, {"k": 32 * trips})
    manifest = made.manifest
    values = emulate.build_launch_arguments(manifest, given)
    for adversary in ADVERSARIES:
        try:
            launch(
                ptx,
                manifest.entry,
                manifest.blocks({"k": 32 * trips}),
                manifest.block,
                values,
                dynamic_smem=manifest.dynamic_smem,
                adversary=adversary,
            )
        except Fault:
            return False
        if not np.array_equal(given.tensors["Y"], x * np.float16(2) + np.float16(1)):
            return False
    return True


# ---- when it is chosen -----------------------------------------------------------------------------------------------


def test_it_makes_the_interval_smaller() -> None:
    chosen, kept = compiled(), compiled(epilogue_warp=False)
    assert roles(chosen) == ["consumer", "producer", "store"]
    assert roles(kept) == ["consumer", "producer"]
    (with_it,), (without,) = chosen.schedules, kept.schedules
    # The consumers do nothing but compute.
    assert with_it.ii == 102 < without.ii
    assert (with_it.status, without.status) == ("optimal", "optimal")
    assert with_it.ii < loop_record(chosen)["ii_by_rule"] <= without.ii
    assert loop_record(chosen)["roles"] == [None, 0, 1]
    assert loop_record(kept)["roles"] == [None, 0, 0]


def test_where_it_gains_nothing_the_consumers_store() -> None:
    """Two versions of what is loaded bound the interval."""
    made = compiled(defines=(("versions", 2),))
    assert roles(made) == ["consumer", "producer"]
    record = loop_record(made)
    assert record["ii"] == record["ii_by_rule"]


@pytest.mark.parametrize(
    "options",
    [{"epilogue_warp": False}, {"max_scheduled_ii": 0}, {"overlap": False}, {"pipeline_strategy": "unspecialize"}],
    ids=str,
)
def test_what_switches_it_off(options: dict[str, object]) -> None:
    made = compiled(**options)
    assert "store" not in roles(made)
    assert all(compute(made, made.ptx, adversary) for adversary in (None, 0))


def test_a_heuristic_chooses_too() -> None:
    made = compiled(scheduler="heuristic")
    assert roles(made) == ["consumer", "producer", "store"]
    assert compute(made, made.ptx, None)


def test_a_tile_that_the_consumers_also_read_stays_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    made = compiled(defines=(("also_read", True),))
    assert roles(made) == ["consumer", "producer"]
    assert "ii_by_rule" not in loop_record(made)
    assert main(["schedule", str(PATH), "-D", "also_read=True"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    lines = PATH.read_text(encoding="utf-8").split("\n")
    (line,) = (number for number, text in enumerate(lines, 1) if "T.copy(y, values)" in text)
    assert f"2 copy y → Y is run by consumer: line {line} also reads y" in shown


def test_a_sample_that_it_does_not_help_is_as_before() -> None:
    _, made = built(SAMPLES / "models/linear_attention.tl", "sm_90a")
    assert roles(made) == ["consumer", "producer"]


# ---- what the program looks like -------------------------------------------------------------------------------------


def test_it_takes_no_threads() -> None:
    """It is a warp of the producer's warpgroup, all of which would change its number of registers at once."""
    chosen, kept = compiled(), compiled(epilogue_warp=False)
    assert chosen.manifest.block == kept.manifest.block == (256, 1, 1)
    assert not any(role.registers for made in (chosen, kept) for role in made.program.roles)
    consumer, producer, store = chosen.program.roles
    assert [(r.first_warp, r.warps, r.single_thread) for r in (producer, store)] == [(4, 1, True), (5, 3, True)]
    assert not any(isinstance(op, warp.BarSync) for op in warp.walk_operations(consumer.body))


def test_the_ring_between_them() -> None:
    rings = {ring.name: ring for ring in compiled().program.rings}
    assert (rings["x"].bytes, rings["x"].fills, rings["x"].arrivals) == (4096, 1, 4)
    assert (rings["y"].bytes, rings["y"].fills, rings["y"].arrivals) == (0, 4, 1)


def test_the_schedule_is_read_back() -> None:
    made = compiled()
    assert compiled(schedule=made.trace).ptx == made.ptx
    with pytest.raises(CompileError, match="bad-schedule") as refused:
        compiled(schedule=made.trace, epilogue_warp=False)
    assert "has role store, it may have consumer" in str(refused.value.diagnostics[0].notes)


def test_the_display_names_the_role_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> str:
        assert main(["schedule", str(PATH), *options]) == 0
        return " ".join(capsys.readouterr().out.split())

    # The consumers would load and compute for 102 cycles, meet for 29 and issue for 20.
    because = "2 copy y → Y is run by store, not consumer: II 102, at least 151 with the roles by rule"
    assert because in shown()
    kept = "2 copy y → Y is run by consumer, not store: no smaller II with store"
    assert kept in shown("-D", "versions=2")
    assert "is run by" not in shown("--no-epilogue-warp")
