"""Figures of a simulation under Nsight Compute's names: as they are counted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate import counters
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

ROOT = Path(__file__).parents[2]


def found(sample: str, target: str = "sm_90a", **defines: int) -> dict[str, float]:
    options = CompileOptions(target=target, defines=defines)
    build = driver.build_kernel(read_source(str(ROOT / "samples" / sample)), options, driver.Observer())
    return {
        each.name: each.value for each in counters.compute_counters(simulate.simulate_build(build, load_target(target)))
    }


def test_a_product_has_the_instructions_and_bytes_of_its_shape() -> None:
    """M = N = 256, K = 512, tiles of 128 × 128 × 64: 4 blocks, 8 iterations, in each 2 warpgroups with 4 wgmma."""
    values = found("gemm.tl", M=256, N=256, K=512)
    assert values["launch__grid_size"] == 4
    assert values["sm__inst_executed_pipe_tensor_op_gmma.sum"] == 4 * 8 * 2 * 4 * 4
    assert values["dram__bytes_read.sum"] == 2 * 256 * 512 * 2
    assert values["lts__t_sectors_op_read.sum"] == 2 * 2 * 256 * 512 * 2 / 32
    assert values["lts__t_sectors_op_write.sum"] == 256 * 256 * 2 / 32
    # The sums go to shared memory as halves, and from there by TMA.
    assert values["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == 256 * 256 * 2 / 128
    assert values["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"] == 0
    assert values["sm__inst_executed_pipe_tensor_op_hmma.sum"] == 0


def test_mma_sync_counts_as_hmma() -> None:
    values = found("gemm.tl", "sm_80", M=256, N=256, K=512)
    assert values["sm__inst_executed_pipe_tensor_op_hmma.sum"] == 256 * 256 * 512 / (16 * 8 * 16)
    assert values["sm__inst_executed_pipe_tensor_op_gmma.sum"] == 0


def test_sectors_and_requests_of_plain_loads() -> None:
    values = found("vector_add.tl", N=4096)
    assert values["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 2 * 4096 * 4 / 32
    assert values["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4096 * 4 / 32
    requests = values["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    assert requests in {2 * 4096 / 32 / width for width in (1, 2, 4)}


def test_the_parts_of_warps_time_are_all_of_it() -> None:
    values = found("gemm.tl", M=256, N=256, K=512)
    parts = [value for name, value in values.items() if name.endswith("per_warp_active.pct")]
    assert 90 < sum(parts) < 100.1
    issued = values["smsp__warp_issue_stalled_selected_per_warp_active.pct"]
    for reason in ("long_scoreboard", "barrier", "wait"):
        part = values[f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"]
        ratio = values[f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"]
        assert ratio == pytest.approx(part / issued)


def test_bank_conflicts_are_those_of_the_addresses(tmp_path: Path) -> None:
    """Rows of 32 floats, a column read by a warp: 32 transactions instead of one."""
    kernel = tmp_path / "column.tl"
    kernel.write_text(
        "import tilelang.language as T\n\n\n@T.prim_func\n"
        'def column(A: T.Tensor((32, 32), "float32"), B: T.Tensor((32,), "float32")):\n'
        "    with T.Kernel(1, threads=32) as bx:\n"
        '        s = T.alloc_shared((32, 32), "float32")\n'
        "        T.annotate_layout({s: T.Layout((32, 32), lambda i, j: i * 32 + j)})\n"
        "        T.copy(A, s)\n"
        "        t = T.get_thread_binding()\n"
        "        B[t] = s[t, 3]\n"
    )
    build = driver.build_kernel(read_source(str(kernel)), CompileOptions(target="sm_90a"), driver.Observer())
    values = {
        each.name: each.value
        for each in counters.compute_counters(simulate.simulate_build(build, load_target("sm_90a")))
    }
    assert values["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 32
    assert values["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] == 31


def test_the_page_names_every_counter() -> None:
    page = (ROOT / "docs" / "nsight.md").read_text(encoding="utf-8")
    told = {*re.findall(r"`([a-z]\w+__[\w.]+)`", page)}
    reasons = {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}
    stalls = re.compile(r"stalled_(\w+)_per_(?:issue|warp)_active")
    for name in counters.list_counter_names():
        stall = stalls.search(name)
        assert stall[1] in reasons if stall else name in told, name
    assert {name for name in told if not stalls.search(name)} <= {*counters.list_counter_names()}
