"""Attention backward in the tiles of the samples: roles, what the machine code holds, and numbers with heads of 128."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SAMPLES, agrees, built
from sass import disassembled

from tilec.driver.build import Build
from tilec.ir import warp
from tilec.support.options import Value

FOLDER = SAMPLES / "attention"
Shape = dict[str, Value]

WIDE: dict[str, Shape] = {
    "backward_dkdv": {"D": 128},
    "backward_dq": {"D": 128},
    "backward_atomic": {"D": 128},
}
"""Heads of 128, for which there are registers and shared memory."""


@pytest.mark.parametrize("name", WIDE)
def test_a_producer_loads(name: str) -> None:
    _, made = built(FOLDER / f"{name}.tl", "sm_90a", "warp-specialize")
    stores = ["store"] if name == "backward_atomic" else []  # a warp adds to dQ while the others compute
    assert [role.name for role in made.program.roles] == ["consumer", "producer", *stores]
    assert [w.code for w in made.warnings if w.code not in ("assembled-interval", "too-few-stages")] == []


def test_groups_take_turns() -> None:
    """The softmax of one runs under the products of the other, unless the assembler then serialises these."""
    _, made = built(FOLDER / "backward_dkdv.tl", "sm_90a", D=64)
    assert made.program.roles[0].ping_pong_barrier is not None
    _, wide = built(FOLDER / "backward_dkdv.tl", "sm_90a", **WIDE["backward_dkdv"])
    assert wide.program.roles[0].ping_pong_barrier is None


@pytest.mark.parametrize("name", WIDE)
def test_heads_of_128(name: str, tmp_path: Path) -> None:
    """Nothing spills, the assembler serialises nothing, and two products or more are under way at a time."""
    _, made = built(FOLDER / f"{name}.tl", "sm_90a", **WIDE[name])
    assert made.warnings == ()
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    (tmp_path / "kernel.cubin").write_bytes(made.cubin)
    loop = disassembled(tmp_path / "kernel.cubin").around("HGMMA")
    assert not {i.stem for i in loop} & {"LDL", "STL"}
    assert products_in_flight(made) > 1


def products_in_flight(made: Build) -> int:
    """At most, between two waits of the consumers' main loop."""
    most = now = 0
    for op in next(
        op.body for op in warp.walk_operations(made.program.roles[0].body) if isinstance(op, warp.Loop) and op.part
    ):
        now = now + 1 if isinstance(op, warp.Wgmma) else min(now, op.pending) if isinstance(op, warp.WgmmaWait) else now
        most = max(most, now)
    return most


@pytest.mark.weekly
@pytest.mark.parametrize("name", WIDE)
def test_heads_of_128_agree(name: str) -> None:
    agrees(FOLDER / f"{name}.tl", "sm_90a", batch=1, heads=1, S=200, dtype="bfloat16", **WIDE[name])


@pytest.mark.weekly
def test_what_has_completed_is_waited_for_at_the_end_of_an_iteration() -> None:
    """Some product is in flight wherever an iteration may end; there the schedule has it completed."""
    _, made = built(FOLDER / "backward_dq.tl", "sm_90a", D=128)
    consumer = made.program.roles[0]
    loop = next(op for op in warp.walk_operations(consumer.body) if isinstance(op, warp.Loop) and op.part == "steady")
    last = max(at for at, op in enumerate(loop.body) if isinstance(op, warp.WgmmaWait))
    assert loop.body[last].pending == 0
    assert not any(isinstance(op, warp.Wgmma | warp.Elementwise) for op in loop.body[last:])
