"""T.annotate_ws_schedule with its T.WSSchedule, against numpy: the statements compute what they do without it."""

from __future__ import annotations

import pytest
from snippets import HEAD, runs

from tilec.driver.build import Observer, check_file
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

COPIES = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((256, 64), "float16"), B: T.Tensor((256, 64), "float16")):
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        held = T.alloc_fragment((64, 64), "float16")
        bodies = {{
            "Load": [T.WSSync.producer_acquire("tiles"), "copy_in", T.WSSync.producer_commit("tiles", stage=0)],
            "Store": [T.WSSync.consumer_wait("tiles", stage=1), T.WSOpRef("copy_out")],
        }}
        roles = [T.WSRole("Load", warps_lo=0, warps_hi=1, max_nreg=40)]
        roles.append(T.WSRole("Store", warps_lo=4, warps_hi=8))
        scopes = [T.WSScope("rows", bodies)]
        scopes += [T.WSScope(T.WSScope.ROOT, {{"Load": ["rows"], "Store": ["rows"]}})]
        T.annotate_ws_schedule(
            T.WSSchedule(num_warps=8, roles=roles, pipelines=[T.WSPipeline("tiles", [tile], depth=2)], scopes=scopes)
        )
        LOOP
"""
PIPELINED = """for i in T.Pipelined(4, num_stages=2, annotations={T.WSID: "rows"}):
            T.copy(A[i * 64, 0], tile, annotations={T.WSID: "copy_in"})
            with T.ws_op("copy_out"):
                T.copy(tile, held)
                T.copy(held, B[i * 64, 0])"""
SCHEDULED = """order = T.PersistentTileScheduler(4, 1, num_workers=1)
        with T.ws_op("begin"):
            order.init(0)
        with T.ws_op("rows"):
            while order.valid():
                T.copy(A[order.m_idx * 64, 0], tile, annotations={T.WSID: "copy_in"})
                T.copy(tile, held)
                T.copy(held, B[order.m_idx * 64, 0])
                with T.ws_op("next"):
                    order.next_tile()"""


@pytest.mark.parametrize("loop", [PIPELINED, SCHEDULED], ids=["pipelined", "persistent"])
def test_statements_with_names_are_scheduled_as_those_without(loop: str) -> None:
    """Check the result on a target with roles of its own, and the warning that the schedule has no effect."""
    text = COPIES.replace("LOOP", loop)
    runs(text, "sm_90a")
    observer = Observer()
    check_file(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), observer)
    told = [warning.title for warning in observer.warnings]
    assert "T.annotate_ws_schedule has no effect" in told
    assert not any("annotation" in title and "unknown" in title for title in told)


def test_a_list_of_the_kernel_is_changed_in_its_own_block_only() -> None:
    """Check that `append` counts where a condition is known at compile time, and is refused in a branch at run time."""
    body = """
        sizes = [1]
        if True:
            sizes.append(2)
        for i in T.Parallel(64):
            B[i] = A[i] + len(sizes)
"""
    text = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64) as bx:{body}"""
    runs(text, "sm_80")
    with pytest.raises(Exception, match="only be changed in the scope that made it"):
        runs(text.replace("if True", "if A[0] > 0"), "sm_80")
