"""Cluster launch control: blocks that take over others' work compute what numpy does, whoever is refused when."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.ir.text import print_kernel
from tilec.ir.warp_text import show_program
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNELS = HERE / "cluster_launch.tl"
TARGET = "sm_100a"
ADVERSARIES = (None, 1, 2, 3)  # which refuse one request of four, but for None
SMALL = {"M": 64, "N": 128}


def computed(made: Build, ptx: str, adversary: int | None) -> bool:
    """Whether the PTX gives what numpy does."""
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    wanted = found.tensors["A"] * np.float32(2) + np.float32(1)
    found.tensors["C"][:] = np.nan
    emulate.emulate_build(replace(made, ptx=ptx), found, options=emulate.RunOptions(adversary=adversary))
    return bool((found.tensors["C"] == wanted).all())


@pytest.mark.parametrize("entry", ["two_roles", "one_role"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (96, 128), (20, 300)])
def test_equals_numpy(entry: str, rows: int, columns: int) -> None:
    """One block, several, and tiles that overhang."""
    _, made = built(KERNELS, TARGET, entry=entry, M=rows, N=columns)
    assert all(computed(made, made.ptx, adversary) for adversary in ADVERSARIES)


@pytest.mark.weekly
@pytest.mark.parametrize(("rows", "columns", "depth"), [(128, 64, 64), (256, 192, 128), (256, 128, 192)])
def test_a_product_in_tensor_memory(rows: int, columns: int, depth: int) -> None:
    """Whose three roles all hear the answer; steps of a tile that are no multiple of the versions."""
    _, made = built(KERNELS, TARGET, entry="product", M=rows, N=columns, K=depth)
    for adversary in ADVERSARIES:
        found = emulate.draw_arguments(made.kernel, made.manifest, 0)
        a, b = (found.tensors[name].astype(np.float32) for name in "AB")
        found.tensors["C"][:] = np.nan
        emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
        np.testing.assert_allclose(found.tensors["C"], a @ b.T, rtol=1e-3, atol=1e-2)


def test_a_block_takes_over_several() -> None:
    """With no refusal but the last one the first block does all: it is the only one that stores."""
    _, made = built(KERNELS, TARGET, entry="two_roles", **SMALL)
    mine = re.sub(r"(%r\d+), %ctaid\.([xy])", r"\1, 0", made.ptx)  # all who run say that they are block 0
    assert mine != made.ptx
    assert computed(made, mine, None)
    assert not all(computed(made, mine, adversary) for adversary in ADVERSARIES)


# ---- each piece is needed --------------------------------------------------------------------------------------------


def is_caught(made: Build, ptx: str) -> bool:
    with suppress(Fault):
        return not all(computed(made, ptx, adversary) for adversary in ADVERSARIES)
    return True


@pytest.mark.parametrize(
    "pattern", [r"mbarrier\.try_wait", r"mbarrier\.arrive\.shared", r"expect_tx", r"try_cancel", r"is_canceled"]
)
def test_each_piece_is_needed(pattern: str) -> None:
    """What is waited for, handed back, announced, asked for, and looked at."""
    _, made = built(KERNELS, TARGET, entry="two_roles", **SMALL)
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(rf"^    (@%p\d+ )?\S*{pattern}", line)]
    assert places
    for place in places:
        assert is_caught(made, "\n".join([*lines[:place], "", *lines[place + 1 :]])), lines[place]


def test_which_block_is_asked_for_only_where_there_is_one() -> None:
    _, made = built(KERNELS, TARGET, entry="one_role", **SMALL)
    always = re.sub(r"@%p\d+ (\S+get_first_ctaid)", r"\1", made.ptx)
    assert always != made.ptx
    with pytest.raises(Fault, match="an answer that refuses"):
        computed(made, always, None)


def test_nobody_asks_again_after_a_refusal() -> None:
    text = KERNELS.read_text(encoding="utf-8").replace("more = T.clc_is_canceled(answer)", "more = 1")
    text = text.replace("parity = 1 - parity", "parity = 1 - parity + 0 * T.clc_is_canceled(answer)")
    options = CompileOptions(target=TARGET, entry="one_role", defines=tuple(SMALL.items()))
    made = build_kernel(SourceFile("k.tl", text), options, Observer())
    with pytest.raises(Fault, match="has observed that an earlier request was refused"):
        computed(made, made.ptx, None)


def test_what_roles_run(golden: Callable[[str, str, str], None]) -> None:
    """A fence stands between reading an answer and the next one, in front of the arrival that allows it."""
    _, made = built(KERNELS, TARGET, entry="two_roles")
    golden("warp", "launch_control", show_program(made.program))
    golden("tile", "launch_control", print_kernel(made.kernel))
    for role in show_program(made.program).split("\n  role ")[1:]:
        read, fence, handed = (role.rindex(what) for what in ("clc_", "fence to the asynchronous", "arrive at heard"))
        assert read < fence < handed


def test_a_single_role_fences_before_it_asks_again() -> None:
    _, made = built(KERNELS, TARGET, entry="one_role")
    assert re.search(r"fence to the asynchronous.*\n +barrier.*\n +try_cancel", show_program(made.program))


def test_blocks_keep_their_numbers() -> None:
    """No order but the machine's is given to them, even if one is asked for."""
    source = SourceFile("k.tl", KERNELS.read_text(encoding="utf-8"))
    plain, ordered = (
        build_kernel(source, CompileOptions(target=TARGET, entry="two_roles", rasterisation=order), Observer())
        for order in (None, 2)
    )
    assert plain.ptx == ordered.ptx
