"""Attention whose products are asked for by one role, weighed by two and corrected by one: right whatever the machine
does, and every piece of what orders the roles needed."""

from __future__ import annotations

import re

import pytest
from harness import SAMPLES, built
from test_tensor_gemm import check
from test_tensor_roles import faulty

from tilec.driver.build import Build

SAMPLE = SAMPLES / "attention" / "flash_attention_sm100.tl"
SMALL = {"batch": 1, "heads": 1, "S": 192, "D": 32}


def attention() -> Build:
    return built(SAMPLE, "sm_100a", **SMALL)[1]


def test_what_lies_in_tensor_memory() -> None:
    made = built(SAMPLE, "sm_100a")[1]
    assert {tile.buffer.name: tile.columns for tile in made.program.tensor} == {
        "S_0": 64, "S_1": 64, "P_0": 32, "P_1": 32, "O_0": 128, "O_1": 128
    }  # fmt: skip
    assert [role.registers for role in made.program.roles] == [None] * 5  # the kernel asks for them
    left = re.findall(r"tcgen05\.mma\S+ \[\S+\], (\S)", made.ptx)
    assert {form: left.count(form) for form in "%["} == {"%": 2 * 128 // 16, "[": 2 * 64 // 16}
    assert "ex2.approx" in made.ptx and "mma.sync" not in made.ptx


@pytest.mark.parametrize("adversary", [0, 1, 2])
def test_right_on_every_machine(adversary: int) -> None:
    check(attention(), adversary)


@pytest.mark.weekly
@pytest.mark.parametrize(
    "pattern",
    [r"tcgen05\.commit", r"tcgen05\.wait::st", r"tcgen05\.st\.", r"tcgen05\.dealloc", r"mbarrier\.arrive\.shared"],
)
def test_each_piece_is_needed(pattern: str) -> None:
    """The last of each in every role. (A wait for stores is for all that came before it.)"""
    made = attention()
    assert not faulty(made, made.ptx)
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    labels = [place for place, line in enumerate(lines) if re.match(r"\$L\d+_warpgroup_\d+:", line)]
    ends = {max(place for place in places if place < end) for end in (*labels, len(lines)) if places[0] < end}
    for place in sorted(ends):
        assert faulty(made, "\n".join([*lines[:place], "", *lines[place + 1 :]])), lines[place]


@pytest.mark.weekly
@pytest.mark.parametrize("fence", ["before", "after"])
def test_fences_stand_between_roles(fence: str) -> None:
    """All of one kind: which of them serves depends on how far the roles have come."""
    made = attention()
    assert not faulty(made, made.ptx)
    text = re.sub(rf"tcgen05\.fence::{fence}_thread_sync;", "", made.ptx)
    assert faulty(made, text)
