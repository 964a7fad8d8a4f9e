"""Explicit roles as blocks of one kernel: every warp has one in each section, and the kernel is still tile IR."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tilec.driver.build import Observer, load_kernels
from tilec.ir.groups import WARP_THREADS, WARPGROUP_WARPS, guarded_warps
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Kernel
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.passes.explicit_roles.split_roles import find_split_roles, has_explicit_roles, split_roles
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

ROOT = Path(__file__).parents[2]
FILES = ("tests/kernels/roles.tl", "tests/kernels/pipeline_objects.tl", "samples/attention/warp_specialised.tl")
OF_WARPS = "tests/kernels/warp_roles.tl"


def kernels(file: str) -> list[Kernel]:
    found = load_kernels(read_source(str(ROOT / file)), CompileOptions(target="sm_90a"), Observer())
    return [kernel for kernel in found if has_explicit_roles(kernel)]


@pytest.mark.parametrize("file", FILES)
def test_blocks_partition_the_warpgroups(file: str) -> None:
    for kernel in kernels(file):
        apart = split_roles(kernel)
        blocks = [warps for stmt in apart.body if (warps := guarded_warps(stmt)) is not None]
        if not blocks:  # one role alone
            assert apart is kernel and [role.name for role in find_split_roles(apart)] == ["all"]
            continue
        ends = [0, *(warps.stop for warps in blocks)]
        assert [warps.start for warps in blocks] == ends[:-1]
        assert ends[-1] * WARP_THREADS == kernel.threads
        assert all(before < after for before, after in pairwise(ends))
        named = [role.name for role in find_split_roles(apart) if not role.is_common]
        assert named == [f"warpgroup_{warps.start // WARPGROUP_WARPS}" for warps in blocks]


def test_each_section_has_all_warps() -> None:
    for kernel in kernels(OF_WARPS):
        found = find_split_roles(split_roles(kernel))
        for section in range(found[-1].section + 1):
            warps = [warp for role in found if role.section == section for warp in role.warps]
            assert warps == list(range(kernel.threads // WARP_THREADS))
        assert len({role.name for role in found}) == len(found)


@pytest.mark.parametrize("file", [*FILES, OF_WARPS])
def test_they_are_tile_ir(file: str) -> None:
    for kernel in kernels(file):
        apart = split_roles(kernel)
        assert list(verify_tile(apart)) == []
        assert print_kernel(read_kernel(print_kernel(apart))) == print_kernel(apart)


@pytest.mark.parametrize("file", FILES)
def test_nobody_makes_barriers_but_the_kernel(file: str) -> None:
    for kernel in kernels(file):
        assert not any(
            isinstance(s, AllocBarrier) for role in find_split_roles(split_roles(kernel)) for s in role.kernel.body
        )
