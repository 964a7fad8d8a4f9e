"""Clusters of two that the compiler chooses on sm_100a, so that the tensor cores of both blocks multiply together:
where the model says that it pays, with right results, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import HERE, SAMPLES

from tilec.driver.build import Build, Observer, Plan, build_kernel, plan_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

GEMM = SAMPLES / "gemm.tl"
TENSOR = HERE / "tensor_gemm.tl"
LARGE = {"M": 8192, "N": 8192, "K": 8192}
AT_ONCE = 8


def options(asked: dict[str, object], defines: dict[str, object]) -> CompileOptions:
    return CompileOptions(target="sm_100a", defines=tuple(defines.items()), **asked)


def source(path: Path) -> SourceFile:
    return SourceFile(path.name, path.read_text(encoding="utf-8"))


def planned(asked: dict[str, object] | None = None, path: Path = GEMM, **defines: object) -> Plan:
    return plan_kernel(source(path), options(asked or {}, defines), Observer())


def rows(made: Plan) -> dict[str, Decision]:
    return {decision.what: decision for decision in made.decisions}


def interval(made: Plan) -> int:
    (loop,) = made.loops
    return loop.solution.schedule.ii


# ---- which decisions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "kib"), [(128, "8 KiB instead of 16"), (256, "16 KiB instead of 32")])
def test_a_large_product(columns: int, kib: str) -> None:
    """The reasons say what the schedules of both confirm: they are no shorter than that."""
    tile = {**LARGE, "block_N": columns}
    made = planned(**tile)
    found = rows(made)
    assert (found["cluster"].chosen, found["cluster"].by) == ("1x2", "the compiler")
    assert found["CTA pairs"].chosen == "blocks along y, each with half of B_shared"
    assert "multicast" not in found and found["persistent grid"].chosen.startswith("148 blocks walk")
    assert kib in found["cluster"].why
    together, alone = map(int, re.findall(r"(\d+) cycles instead of (\d+)", found["cluster"].why)[0])
    without = interval(planned({"cluster": (1, 1, 1)}, **tile))
    assert together <= interval(made) < alone <= without


def test_it_is_what_the_command_line_can_ask_for() -> None:
    chosen, asked = planned(**LARGE), planned({"cluster": (1, 2, 1)}, **LARGE)
    assert chosen.assignment == asked.assignment and [p.solution for p in chosen.loops] == [
        p.solution for p in asked.loops
    ]


def test_columns_along_x() -> None:
    """Where x counts the rows of tiles, blocks side by side have the same columns."""
    text = GEMM.read_text(encoding="utf-8")
    text = text.replace("T.ceildiv(N, block_N), T.ceildiv(M, block_M)", "T.ceildiv(M, block_M), T.ceildiv(N, block_N)")
    transposed = SourceFile("turned.tl", text.replace("(bx, by)", "(by, bx)"))
    found = rows(plan_kernel(transposed, options({}, dict(LARGE)), Observer()))
    assert found["cluster"].chosen == "2x1" and "along x" in found["CTA pairs"].chosen


@pytest.mark.parametrize(
    ("asked", "defines", "because"),
    [
        ({"cta_pairs": False}, {}, "--no-cta-pairs"),
        ({"opt_level": 2}, {}, "-O3"),
        ({"persistent": False}, {}, "persistent"),
        ({}, {"M": 1024, "N": 1024}, "persistent"),  # 64 blocks run at once
        ({}, {"M": 128 * 65}, "the extent of the grid along y is not even"),
        ({}, {"block_M": 256, "block_N": 256}, "at least 1029 cycles, without 1029"),  # the products take longest
        ({}, {"block_M": 64}, "64 rows of C_local"),
        ({}, {"block_N": 64}, "does not start on a swizzle boundary"),
    ],
)
def test_left_alone(asked: dict[str, object], defines: dict[str, object], because: str) -> None:
    found = rows(planned(asked, **{**LARGE, **defines}))
    assert (found["cluster"].chosen, found["cluster"].by) == ("none", "the compiler")
    assert because in found["cluster"].why and "CTA pairs" not in found


def test_what_is_said_is_done() -> None:
    found = rows(planned({"cluster": (1, 1, 1)}, **LARGE))
    assert (found["cluster"].chosen, found["cluster"].by) == ("none", "the command line") and "CTA pairs" not in found
    found = rows(planned({"cluster": (2, 1, 1)}, **LARGE))
    assert found["cluster"].chosen == "2x1" and "need the same columns" in found["CTA pairs"].why


def test_without_multicast() -> None:
    """Nothing is sent to both blocks: the tensor cores read what the other one has."""
    assert rows(planned({"multicast": False}, **LARGE))["cluster"].chosen == "1x2"


# ---- right results ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs eight blocks at once."""

    def at_once(_: object, cluster: int) -> int:
        return AT_ONCE // cluster * cluster

    for name in ("choose_persistent_grid", "choose_tile_scheduler", "choose_rasterisation"):
        monkeypatch.setattr(f"tilec.passes.choices.{name}.blocks_at_once", at_once)
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)


def is_right(made: Build, seed: int | None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed or 0)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=seed))
    emulate.run_reference(made.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(
    ("path", "defines"),
    [
        (GEMM, {"M": 512, "N": 384, "K": 192}),
        (GEMM, {"M": 500, "N": 360, "K": 72}),  # tiles that hang over; fewer iterations than versions
        (TENSOR, {"M": 512, "N": 640, "K": 128, "bN": 128, "threads": 256, "num_stages": 4, "tA": True}),
        (TENSOR, {"M": 512, "N": 640, "K": 256, "bN": 128, "bK": 128, "dtype": "int8", "other": "int8",
                  "accumulator": "int32", "out": "int32", "threads": 256, "num_stages": 4}),
    ],
    ids=["divides", "hangs over", "transposed", "int8"],
)  # fmt: skip
def test_two_waves(path: Path, defines: dict[str, object], seed: int | None) -> None:
    """Of which the last is not full."""
    made = build_kernel(source(path), options({"tile_scheduler": "static"}, defines), Observer())
    assert made.manifest.cluster == (1, 2, 1) and made.manifest.grid == (4, 2, 1)
    assert set(re.findall(r"tcgen05\S*cta_group::(\d)", made.ptx)) == {"2"}
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    assert is_right(made, seed)
