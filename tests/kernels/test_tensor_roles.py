"""Tensor memory by a kernel's own roles and barriers, in TileLang's spelling."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from harness import built
from test_adversary import compute
from test_tensor_gemm import check

from tilec.driver.build import Build, Observer, build_kernel
from tilec.emu import Fault
from tilec.ir.text import print_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = Path(__file__).parent / "tensor_roles.tl"
TARGET = "sm_100a"


@pytest.mark.parametrize("trip_count", [1, 2, 3, 4])
@pytest.mark.parametrize("tiles", [1, 3])
def test_three_roles(trip_count: int, tiles: int) -> None:
    _, made = built(KERNEL, TARGET, entry="three_roles", M=128 * tiles)
    assert [(role.name, role.warps) for role in made.program.roles] == [(f"warpgroup_{i}", 4) for i in range(3)]
    for adversary in range(2):
        check(made, adversary, sizes={"k": 64 * trip_count})


@pytest.mark.parametrize(("rows", "dtype", "depth"), [(64, "float16", 64), (128, "bfloat16", 32), (128, "int8", 64)])
def test_one_role(rows: int, dtype: str, depth: int) -> None:
    text = KERNEL.read_text(encoding="utf-8")
    if dtype == "int8":
        text = text.replace('"float32"', '"int32"')
    sizes = (("M", rows), ("BM", rows), ("dtype", dtype), ("BK", depth))
    made = build_kernel(
        SourceFile("k.tl", text), CompileOptions(target=TARGET, entry="one_role", defines=sizes), Observer()
    )
    for adversary in range(2):
        check(made, adversary)


def faulty(made: Build, mutant: str) -> bool:
    with suppress(Fault):
        return not all(compute(made, mutant, adversary) for adversary in (None, 1, 2))
    return True


@pytest.mark.parametrize(
    "pattern",
    [
        r"tcgen05\.alloc",
        r"tcgen05\.dealloc",
        r"tcgen05\.commit",
        r"tcgen05\.wait::ld",
        r"mbarrier\.try_wait",
        r"mbarrier\.arrive\.shared",
        r"cp\.async\.wait_group",
        r"fence\.proxy\.async",
    ],
)
def test_each_piece_is_needed(pattern: str) -> None:
    _, made = built(KERNEL, TARGET, entry="one_role", K=192)
    text = KERNEL.read_text(encoding="utf-8")
    roles = build_kernel(
        SourceFile("k.tl", text.replace('T.dynamic("k")', "192")),
        CompileOptions(target=TARGET, entry="three_roles", defines=(("M", 256),)),
        Observer(),
    )
    found = False
    for kernel in (made, roles):
        assert not faulty(kernel, kernel.ptx)
        lines = kernel.ptx.split("\n")
        for place, line in enumerate(lines):
            if re.search(pattern, line):
                found = True
                assert faulty(kernel, "\n".join([*lines[:place], "", *lines[place + 1 :]])), line
    assert found


def test_fences_stand_where_threads_meet() -> None:
    """All those behind waits, and those before arrivals, together: some of them serve only in other orders."""
    _, made = built(KERNEL, TARGET, entry="one_role", K=192)
    assert not faulty(made, made.ptx)
    assert faulty(made, re.sub(r"tcgen05\.fence::after_thread_sync;", "", made.ptx))
    text = KERNEL.read_text(encoding="utf-8").replace('T.dynamic("k")', "192")
    options = CompileOptions(target=TARGET, entry="three_roles", defines=(("M", 256),))
    made = build_kernel(SourceFile("k.tl", text), options, Observer())
    for fence in ("before", "after"):
        some = [m.start() for m in re.finditer(rf"tcgen05\.fence::{fence}_thread_sync;", made.ptx)]
        assert any(faulty(made, made.ptx[:at] + made.ptx[made.ptx.index(";", at) + 1 :]) for at in some)


def test_tile_ir(golden: Callable[[str, str, str], None]) -> None:
    """What the kernel says of tensor memory: who asks for a product, when it clears, where its end is signalled."""
    _, made = built(KERNEL, TARGET, entry="three_roles")
    golden("tile", "tensor_roles", print_kernel(made.kernel))
