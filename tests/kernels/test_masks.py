"""Masks are tested only in the iterations in which they matter, and the numbers are the same as everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import HERE, SAMPLES

from tilec.driver import build as driver
from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL = HERE / "masks.tl"
SOURCE = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))


def made(entry: str, target: str, subtile: int | None = None, **defines: Value) -> Build:
    options = CompileOptions(target=target, entry=entry, subtile=subtile, defines=tuple(defines.items()))
    return build_kernel(SOURCE, options, Observer())


def masks(entry: str, split_loops: bool = True, opt_level: int = 3, **defines: Value) -> list[Decision]:
    options = CompileOptions(entry=entry, split_loops=split_loops, opt_level=opt_level, defines=tuple(defines.items()))
    decisions = driver.plan_kernel(SOURCE, options, Observer()).decisions
    return [decision for decision in decisions if decision.what.startswith("mask")]


def agrees(built: Build, **scalars: int) -> None:
    found = emulate.draw_arguments(built.kernel, built.manifest, 5)
    found.scalars.update(scalars)
    expected = found.copy()
    emulate.emulate_build(built, found, options=emulate.RunOptions(adversary=2))
    emulate.run_reference(built.kernel, expected)
    for r in emulate.compare_arguments(built.kernel, built.manifest, found, expected):
        assert r.matches, f"{scalars}: {r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("S", "keys", "heads", "groups"), [(130, 130, 2, 2), (65, 161, 1, 1), (150, 70, 1, 1), (192, 192, 1, 1)]
)
def test_causal(S: int, keys: int, heads: int, groups: int, target: str) -> None:
    """Also where the iterations end before the mask begins to matter, and where there are none."""
    built = made("attention", target, S=S, keys=keys, heads=heads, groups=groups)
    for kind in (0, 1, 2, 3, 100) if heads == 1 else (100,):
        agrees(built, kind=kind)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("S", "window"), [(330, 140), (300, 40), (200, 64)])
def test_window(S: int, window: int, target: str) -> None:
    built = made("windowed", target, S=S, window=window)
    for begin in (0, 1, 3, 100):
        agrees(built, begin=begin)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("keys", [8, 32, 40, 96, 136, 264])
def test_padding(keys: int, target: str) -> None:
    agrees(made("padded", target, keys=keys))


@pytest.mark.parametrize("keys", [32, 40, 136])
def test_a_masked_value_may_have_a_name(keys: int) -> None:
    """As in samples/attention/backward_dq.tl."""
    value = "T.if_then_else(k * block_N + j < keys, a[i, j] + 1.0, 0.0)"
    inline = f"d[i, j] = 1.0 + {value}\n"
    assert inline in SOURCE.text
    named = SourceFile(KERNEL.name, SOURCE.text.replace(inline, f"v = {value}\n{' ' * 16}d[i, j] = 1.0 + v\n"))
    options = CompileOptions(target="sm_90a", entry="padded", defines=(("keys", keys),))
    decisions = driver.plan_kernel(named, options, Observer()).decisions
    (mask,) = (decision for decision in decisions if decision.what.startswith("mask"))
    assert mask.chosen == masks("padded", keys=keys)[0].chosen
    agrees(build_kernel(named, options, Observer()))


def consumer(built: Build) -> warp.Role:
    return next(role for role in built.program.roles if role.name == "consumer")


def split_loop(built: Build) -> warp.Loop:
    (loop,) = (
        op for op in warp.walk_operations(consumer(built).body) if isinstance(op, warp.Loop) and op.part == "steady"
    )
    return loop


def test_two_loops_in_the_same_rings() -> None:
    """The first without the mask, the second with it, neither with a test; one loop loads for both."""
    built = made("attention", "sm_90a")
    loop = split_loop(built)
    (phase,) = loop.phases
    assert not any(isinstance(op, warp.Branch) for body in loop.bodies for op in body)
    masked = [str(op.nest).count("Select") for body in loop.bodies for op in body if isinstance(op, warp.Elementwise)]
    assert masked.count(1) == 1
    assert "Select" not in str(phase.body)
    rings = [
        [op for op in body if isinstance(op, warp.RingWait | warp.RingRelease | warp.Advance)] for body in loop.bodies
    ]
    assert rings[0] == rings[1] and rings[0]
    producer = next(role for role in built.program.roles if role.name == "producer")
    assert not any(op.phases for op in warp.walk_operations(producer.body) if isinstance(op, warp.Loop))


def test_a_window_has_three() -> None:
    loop = split_loop(made("windowed", "sm_90a", subtile=1))
    assert len(loop.phases) == 2
    assert not any(isinstance(op, warp.Branch) for body in loop.bodies for op in body)


def test_the_verifier_runs_each_phase() -> None:
    built = made("attention", "sm_90a")
    loop = split_loop(built)
    (phase,) = loop.phases
    assert list(program_violations(built.program)) == []
    for at, op in enumerate(phase.body):
        if isinstance(op, warp.RingWait | warp.RingRelease | warp.WgmmaWait | warp.Advance):
            less = warp.Phase(phase.until, (*phase.body[:at], *phase.body[at + 1 :]))
            body = _with(consumer(built).body, loop, replace(loop, phases=(less,)))
            roles = tuple(replace(r, body=body) if r.name == "consumer" else r for r in built.program.roles)
            assert list(program_violations(replace(built.program, roles=roles))), f"without {op}"


def _with(body: tuple[warp.Operation, ...], old: warp.Loop, new: warp.Loop) -> tuple[warp.Operation, ...]:
    """The operations, with a loop replaced wherever it is."""
    made_of: list[warp.Operation] = []
    for op in body:
        if op is old:
            made_of.append(new)
        elif isinstance(op, warp.Loop | warp.Pipeline):
            made_of.append(replace(op, body=_with(op.body, old, new)))
        else:
            made_of.append(op)
    return tuple(made_of)


def test_what_is_decided() -> None:
    why = "in the others it holds for every element"
    (causal,) = masks("attention", S=128)
    assert (causal.chosen, causal.by, causal.why) == ("in iterations from k = bx * 2 on", "the compiler", why)
    (window,) = masks("windowed")
    assert (window.chosen, window.why) == ("in iterations with k >= bx or k < bx - 1", why)
    (padding,) = masks("padded", keys=130)
    assert (padding.chosen, padding.why) == ("in the last 1 of 5 iterations", why)


def test_two_branches_are_priced_as_one() -> None:
    """A nest with the mask and one without cost no more than that with it."""
    found = {
        split: driver.plan_kernel(SOURCE, CompileOptions(entry="attention", split_loops=split), Observer()).loops[0]
        for split in (False, True)
    }
    assert found[True].solution.schedule.ii == found[False].solution.schedule.ii


@pytest.mark.parametrize(("S", "is_masked"), [(128, True), (1024, False)])
def test_a_branch_costs_what_it_does_in_most_iterations(S: int, is_masked: bool) -> None:
    """The only iteration of the second of two blocks has the mask; of the block in the middle of 16 it is one in
    nine."""
    path = SAMPLES / "attention" / "causal.tl"
    sizes: dict[str, Value] = {"heads": 1, "S": S, "D": 32, "block_M": 64, "threads": 128}
    options = CompileOptions(subtile=1, defines=tuple(sizes.items()))
    (loop,) = driver.plan_kernel(SourceFile(path.name, path.read_text(encoding="utf-8")), options, Observer()).loops
    (branch,) = (op for op in loop.loop.problem.ops if op.name == "if")
    assert (branch.issue > 1) == is_masked


def test_what_holds_always_is_not_tested() -> None:
    (decision,) = masks("padded", keys=128)
    assert (decision.chosen, decision.why) == ("none", "its condition holds for every element")


def test_what_never_holds_is_left_alone() -> None:
    assert masks("padded", keys=24) == []


def test_the_text_can_be_followed_to_the_letter() -> None:
    (decision,) = masks("padded", split_loops=False)
    assert (decision.chosen, decision.by) == ("in every iteration", "the command line")
    assert masks("padded", opt_level=2) == []
