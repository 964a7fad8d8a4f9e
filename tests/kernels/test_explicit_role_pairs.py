"""Products that two blocks do together in roles of the kernel's own, on sm_100a: samples/gemm/gemm_2cta.tl."""

from __future__ import annotations

import re

import pytest
from harness import SAMPLES
from pieces import is_right, not_missed
from test_paired_gemm import check, is_by_pairs

from tilec.driver.build import Build, Observer, build_kernel
from tilec.ir.warp_text import show_program
from tilec.passes.explicit_roles import check_barriers
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

TEXT = (SAMPLES / "gemm" / "gemm_2cta.tl").read_text(encoding="utf-8")
SMALL: dict[str, Value] = {"M": 768, "N": 64, "K": 192, "block_N": 64, "stages": 2, "pairs": 1}
"""Three tiles for one pair, in two sums; three steps each, in two versions of the factors."""


def made_of(text: str = TEXT, **sizes: Value) -> Build:
    options = CompileOptions(target="sm_100a", defines=tuple({**SMALL, **sizes}.items()))
    return build_kernel(SourceFile("k.tl", text), options, Observer())


@pytest.fixture(scope="module")
def made() -> Build:
    return made_of()


@pytest.mark.parametrize(
    "sizes",
    [
        {"M": 256, "K": 64},
        {"M": 512, "N": 256, "K": 128, "pairs": 3, "stages": 3},
        {"K": 104, "N": 32},
        {"M": 512, "block_K": 32},
        {"N": 256, "block_N": 256, "dtype": "float16"},
    ],
)
def test_shapes(sizes: dict[str, Value]) -> None:
    made = made_of(**sizes)
    assert is_by_pairs(made)
    check(made, None, 1)


def test_right_on_every_machine(made: Build) -> None:
    check(made, *range(4))


def test_the_roles_as_text(made: Build) -> None:
    """They say who hears of what."""
    text = show_program(made.program)
    assert all(said in text for said in ("by a pair of blocks", "of both blocks", "of block 0"))


def test_a_condition_on_thread_and_block() -> None:
    """TileLang's way to say which warpgroup of which block has a role."""
    role = "        with T.ws(1):\n            if cta == 0:\n"
    text = TEXT.replace(role, "        if 128 <= tx < 256 and cta == 0:\n            if K > 0:\n")
    text = text.replace("        m_pairs =", "        tx = T.get_thread_binding()\n        m_pairs =")
    assert text.count("tx") == 2
    check(made_of(text), None, 1)


# ---- each piece is needed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        r"tcgen05\.(alloc|dealloc|commit)",
        r"tcgen05\.wait::ld",
        r"mbarrier\.arrive",
        r"mbarrier\.expect_tx",
    ],
)
def test_nothing_can_be_left_out(made: Build, pattern: str) -> None:
    assert not_missed(made, pattern) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"(commit\S*)\.multicast::cluster(\S* \S*), %h\d+;", r"\1\2;"),  # the block alone that asks hears it
        (r"(mov\.u32 %r\d+|cvt\.u16\.u32 %h\d+), 3;", r"\1, 1;"),  # or the mask says so
        (r"(complete_tx::bytes)\.cta_group::2", r"\1"),  # tiles signal a barrier of their own block
        (r"(expect_tx.*), 16384;", r"\1, 8192;"),  # half of the bytes
    ],
)
def test_what_makes_it_a_pair_is_needed(made: Build, old: str, new: str) -> None:
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(old, line)]
    assert places
    for place in places:
        assert not is_right(made, [*lines[:place], re.sub(old, new, lines[place]), *lines[place + 1 :]]), lines[place]


def test_one_block_alone_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the check of barriers does not know, it is for the emulator to find."""
    monkeypatch.setattr(check_barriers, "check_barriers", lambda: None)
    made = made_of(TEXT.replace("if cta == 0:", "if cta >= 0:"))
    assert not is_right(made, made.ptx.split("\n"))


def test_the_check_of_barriers_runs_both_blocks() -> None:
    """An arrival at the own block's barrier, one too many at the first one's, and one that the second does not hear."""
    for old, new in [
        ("T.mbarrier_arrive(loaded[i % stages], 0)", "T.mbarrier_arrive(loaded[i % stages])"),
        ("[2 * 128] * stages", "[128] * stages"),
        ("arrive_2cta=True", "arrive_2cta=False"),
    ]:
        with pytest.raises(CompileError) as error:
            made_of(TEXT.replace(old, new))
        assert error.value.diagnostics[0].code in ("barrier-deadlock", "transaction-bytes")
