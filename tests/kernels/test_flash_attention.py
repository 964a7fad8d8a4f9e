"""Attention forward with two consumer warpgroups: overlapped as experts write it by hand, and right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import HERE, SAMPLES, built

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.ir import warp
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

FLASH = SAMPLES / "flash_attention.tl"
SMALL: dict[str, Value] = {"heads": 1}


def consumer(made: Build) -> warp.Role:
    return next(role for role in made.program.roles if role.name == "consumer")


def steady(made: Build) -> tuple[warp.Operation, ...]:
    return next(
        op.body for op in warp.walk_operations(consumer(made).body) if isinstance(op, warp.Loop) and op.part == "steady"
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_on_hostile_machines(seed: int) -> None:
    """No spill, no serialised wgmma, a proven schedule (see `agrees`), and the numbers."""
    _, made = built(FLASH, "sm_90a", S=512, **SMALL)
    assert not made.warnings
    found = emulate.draw_arguments(made.kernel, made.manifest, seed)
    expected = found.copy()
    m = made.manifest
    arguments = emulate.build_launch_arguments(m, found)
    launch(made.ptx, m.entry, m.grid, m.block, arguments, dynamic_smem=m.dynamic_smem, adversary=seed)
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, m, found, expected))


def test_the_next_scores_before_these_weights() -> None:
    """In each iteration: the product of the next block's scores, then that of this block's weights, in one turn; then
    the softmax of the next block, under the products of the other warpgroup."""
    _, made = built(FLASH, "sm_90a")
    body = steady(made)
    of_turn = [op for op in body if isinstance(op, warp.PingPongWait | warp.Wgmma | warp.PingPongPass)]
    first, scores, output, last = of_turn
    assert isinstance(first, warp.PingPongWait) and isinstance(last, warp.PingPongPass)
    assert isinstance(scores, warp.Wgmma) and scores.c.name == "scores"
    assert isinstance(output, warp.Wgmma) and output.c.name == "output"
    assert scores.moment and output.moment
    begun, done = str(scores.moment.iteration), str(output.moment.iteration)
    assert begun != done
    after = body[body.index(last) :]
    exponentials = [op for op in after if isinstance(op, warp.Elementwise) and "exp2" in str(op.nest)]
    assert exponentials
    waits = [op.pending for op in after if isinstance(op, warp.WgmmaWait)]
    assert waits == [1, 0]  # the scores first; the output is in flight under the softmax


def products_of_an_interval(made: Build) -> list[tuple[int, str]]:
    """Return when the steady loop's products start, modulo the interval and counted from consumer 1's scores."""
    loop = json.loads(made.trace)["tilec"]["loops"][0]
    starts = {f"{op['name'].split()[-1]} {op['role'][-1]}": op["start"] for op in loop["ops"] if "gemm" in op["name"]}
    return sorted(((start - starts["scores 1"]) % loop["ii"], product) for product, start in starts.items())


def test_the_order_of_products_of_the_sample() -> None:
    """A group's two products stand together. An H200 runs this order 3 % faster than others of the same interval."""
    _, made = built(FLASH, "sm_90a")
    wanted = [(0, "scores 1"), (512, "output 1"), (1024, "scores 2"), (1536, "output 2")]
    assert products_of_an_interval(made) == wanted


def test_the_order_of_products_of_the_causal_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both groups' scores stand together. The simulator finds an order with outputs between them 9 % slower."""
    for cycles in ("PING_PONG_CYCLES", "UNORDERED_CYCLES"):
        monkeypatch.setattr(f"tilec.passes.choices.choose_ping_pong.{cycles}", 0)
    _, made = built(SAMPLES / "attention" / "causal.tl", "sm_90a", block_N=64)
    products = [product for _, product in products_of_an_interval(made)]
    assert products == ["scores 1", "scores 2", "output 1", "output 2"]


def test_turns_in_the_ptx() -> None:
    """The same order in what the assembler is given."""
    _, made = built(FLASH, "sm_90a")
    consumers = made.ptx[: made.ptx.index("$producer")] if "$producer" in made.ptx else made.ptx
    assert re.search(r"bar\.sync %r\d+, 256", consumers) and re.search(r"bar\.arrive %r\d+, 256", consumers)
    # Outside the loop: the last group gives the first turn away, and the first group takes the last one.
    assert len(re.findall(r"bar\.arrive 3, 256", made.ptx)) == 1
    assert len(re.findall(r"bar\.sync 3, 256", made.ptx)) == 1


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_weights_are_converted_in_pairs(dtype: str, kind: str) -> None:
    """They are the first factor of a product and nothing else: 32 registers a thread, not 64 and as many again."""
    _, made = built(FLASH, "sm_90a", dtype=dtype)
    assert made.ptx.count(f"cvt.rn.{kind}x2.f32") >= 128 * 128 // 256 // 2
    assert f"cvt.rn.{kind}.f32" not in made.ptx


def test_the_schedule_has_both_groups() -> None:
    _, made = built(FLASH, "sm_90a")
    (schedule,) = made.schedules
    assert (schedule.ii, schedule.status) == (2048, "optimal")  # the tensor cores never rest


def test_without_ping_pong() -> None:
    source = SourceFile(FLASH.name, FLASH.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(ping_pong=False, subtile=1), Observer())
    assert consumer(made).ping_pong_barrier is None
    assert made.schedules[0].ii > 2800
    light = build_kernel(source, CompileOptions(max_scheduled_ii=0), Observer())
    assert consumer(light).ping_pong_barrier is None


@pytest.mark.weekly
def test_guards_leave_no_wgmma_in_flight() -> None:
    """Else the assembler serialises them all: it takes a wait in a guard for one that may not come."""
    source = SourceFile(FLASH.name, FLASH.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(ping_pong=False, defines=(("causal", True),)), Observer())
    assert "wgmma-serialised" not in [w.code for w in made.warnings]


def test_scores_from_the_iteration_before() -> None:
    """One warpgroup issues the next scores at the end of an iteration: the wait in the next one is for all that is in
    flight, or the assembler serialises."""
    _, made = built(FLASH, "sm_90a", causal=True, block_M=64, block_N=64, threads=128)
    assert [w.title for w in made.warnings] == []


@pytest.mark.weekly
def test_without_overlap() -> None:
    """A warp issues all of an iteration, then all of the next; the loads still run ahead."""
    source = SourceFile(FLASH.name, FLASH.read_text(encoding="utf-8"))
    ii = []
    for overlap in (True, False):
        options = CompileOptions(defines=(("S", 512), ("heads", 1)), ping_pong=False, overlap=overlap)
        made = build_kernel(source, options, Observer())
        (schedule,) = made.schedules
        (loop,) = json.loads(made.trace)["tilec"]["loops"]
        computing = [op["start"] for op in loop["ops"] if op["role"] == "consumer"]
        assert (max(computing) - min(computing) < schedule.ii) == (not overlap)
        assert schedule.status == "optimal" and loop["stages"] > 1
        ii.append(schedule.ii)
    assert ii[0] < ii[1]
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("pattern", [r"bar\.arrive %r", r"bar\.sync %r", r"bar\.arrive 3, 256"])
def test_who_misses_a_turn_is_found_out(pattern: str) -> None:
    _, made = built(FLASH, "sm_90a", S=256, **SMALL)
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    mutant = "\n".join(line for place, line in enumerate(lines) if place != places[0])
    m = made.manifest
    with pytest.raises(Fault):
        launch(
            mutant, m.entry, (1, 1, 1), m.block, emulate.build_launch_arguments(m, found), dynamic_smem=m.dynamic_smem
        )


@pytest.mark.parametrize("path", [SAMPLES / "gemm.tl", HERE / "attention.tl"])
def test_who_has_nothing_to_overlap_takes_no_turns(path: Path) -> None:
    """A GEMM has products only; this attention passes its weights through shared memory, and has one warpgroup."""
    _, made = built(path, "sm_90a")
    assert all(role.ping_pong_barrier is None for role in made.program.roles)


@pytest.mark.parametrize("name", ["attention", "flash", "nested_attention"])
def test_products_overlap_in_one_role_too(name: str) -> None:
    """Scores are in flight while the output is added to, but nothing where an iteration ends: the assembler could not
    follow it there."""
    _, made = built(HERE / f"{name}.tl", "sm_90a", "unspecialize")
    assert "wgmma-serialised" not in [w.code for w in made.warnings]
    (role,) = made.program.roles
    waits = {op.pending for op in warp.walk_operations(role.body) if isinstance(op, warp.WgmmaWait)}
    assert waits == {0, 1}
