"""Accumulators that leave in chunks: right on every machine that the emulator can be, and in as little memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import SAMPLES, built

from tilec.driver.build import Build, Observer, Plan, build_kernel, plan_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.passes.memory.split_staged_stores import StagedStore, find_staged_stores
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL = Path(__file__).parent / "staged_store.tl"
CHUNK = 128  # bytes of a row


def agrees(adversary: int | None, **defines: Value) -> Build:
    _, made = built(KERNEL, "sm_90a", **defines)
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))
    return made


def staged(**defines: Value) -> StagedStore:
    (found,) = find_staged_stores(planned(KERNEL, **defines).assignment)
    return found


def planned(path: Path, **defines: Value) -> Plan:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    return plan_kernel(source, CompileOptions(target="sm_90a", defines=tuple(defines.items())), Observer())


def consumer(made: Build) -> list[warp.Operation]:
    return list(warp.walk_operations(made.program.roles[0].body))


FORMS: list[dict[str, Value]] = [
    {},
    {"out": "float32", "num_stages": 2},
    {"out": "bfloat16", "dtype": "bfloat16", "epilogue": "bias"},
    {"dtype": "int8", "accumulator": "int32", "out": "int8", "bK": 128, "epilogue": "cast"},
    {"dtype": "float8_e4m3fn", "out": "float8_e4m3fn", "bK": 128},
    {"accumulator": "float16", "epilogue": "bias"},
    {"epilogue": "cast"},
    {"threads": 128, "bM": 64, "M": 64, "num_stages": 5},
    {"threads": 384, "bM": 192, "M": 192, "num_stages": 3},
    {"bM": 256, "M": 256, "bN": 128, "N": 256},  # blocks of rows go to the warpgroups in turn
    {"M": 100, "N": 440},  # tiles hang over
    {"M": 200, "N": 424, "bN": 192, "out": "float32"},
    {"bN": 96, "N": 192},  # rows that no chunk fits
]


@pytest.mark.parametrize("adversary", [None, 1, 2])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(f"{k}={v}" for k, v in form.items()) or "plain")
def test_equals_the_reference(form: dict[str, Value], adversary: int | None) -> None:
    made = agrees(adversary, **form)
    assert list(program_violations(made.program)) == []
    operations = consumer(made)
    assert any(isinstance(op, warp.TmaStore) for op in operations)
    (entry,) = made.entries
    assert (entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("form", "chunks", "buffers"),
    [
        ({}, 4, 2),  # 4 versions of 48 KiB leave 32 KiB
        ({"num_stages": 3}, 4, 4),
        ({"out": "float32", "num_stages": 4}, 8, 2),
        ({"out": "float32", "num_stages": 3}, 8, 5),
        ({"bN": 128}, 2, 2),
        ({"bN": 96, "N": 192}, 1, 1),
        ({"num_stages": 9}, 4, 2),  # there is no room for nine: as many as can be
        ({"threads": 128, "bM": 64, "M": 64, "num_stages": 5}, 4, 3),
    ],
)
def test_as_many_buffers_as_the_versions_leave_room_for(form: dict[str, Value], chunks: int, buffers: int) -> None:
    made = staged(**form)
    assert (made.chunks, made.buffers) == (chunks, buffers)
    assert made.parts == int(form.get("threads", 256)) // 128


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_tile_of_256_columns_has_four_stages(dtype: str) -> None:
    """And each chunk a buffer of its own, where the stages are done with."""
    made = planned(SAMPLES / "gemm.tl", block_N=256, num_stages=4, dtype=dtype)
    (loop,) = made.loops
    assert loop.solution.schedule.depth == (4,)
    (store,) = json.loads(made.trace)["tilec"]["stores"]
    assert store == {
        "source": "C_local", "destination": "C", "chunks": 4, "buffers": 4, "buffer_bytes": 128 * CHUNK, "parts": 2,
    }  # fmt: skip


def test_a_loop_that_says_nothing_gets_what_it_needs() -> None:
    text = (SAMPLES / "gemm.tl").read_text(encoding="utf-8").replace(", num_stages=num_stages", "")
    made = plan_kernel(SourceFile("k.tl", text), CompileOptions(target="sm_90a"), Observer())
    assert made.loops[0].solution.schedule.depth == (4,)  # as many as its lifetime has intervals


def test_warpgroups_wait_for_none_but_themselves() -> None:
    """From the last product to the last store; and the store before is only waited for where its buffer is needed."""
    operations = consumer(built(KERNEL, "sm_90a")[1])
    assert not any(isinstance(op, warp.BarSync) for op in operations)
    assert {op.parts for op in operations if isinstance(op, warp.TmaStore)} == {2}
    waits = [op.pending for op in operations if isinstance(op, warp.BulkWait)]
    assert waits == [1, 1, 1, 1, 0]  # in a tile, from tile to tile, and at the end


def test_chunks_with_buffers_of_their_own_wait_for_nothing() -> None:
    operations = consumer(built(KERNEL, "sm_90a", tiles=1, N=256, num_stages=3)[1])
    assert [op.pending for op in operations if isinstance(op, warp.BulkWait)] == [0]


def test_what_the_source_stages_itself_stays_as_it_says() -> None:
    made = agrees(None, epilogue="explicit", num_stages=2)
    stores = [op for op in consumer(made) if isinstance(op, warp.StoreMatrix | warp.TmaStore)]
    assert [type(op).__name__ for op in stores] == ["StoreMatrix", "TmaStore"]
    assert [op.parts for op in stores if isinstance(op, warp.TmaStore)] == [1]
    assert [tile.buffer.name for tile in made.program.shared] == ["A_s", "B_s", "C_s"]


def test_one_accumulator_is_stored_in_two_types() -> None:
    """In two chunks of floats and one of halves: all tiles have names of their own."""
    text = KERNEL.read_text(encoding="utf-8")
    text = text.replace(
        "    C: T.Tensor((M, N), out),\n", "    C: T.Tensor((M, N), out),\n    D: T.Tensor((M, N), dtype),\n"
    )
    text += "                T.copy(C_l, D[by * bM, column])\n"
    defines = {"out": "float32", "threads": 128, "M": 64, "bM": 64, "N": 128, "bN": 64, "num_stages": 2}
    made = build_kernel(SourceFile("k.tl", text), CompileOptions(defines=tuple(defines.items())), Observer())
    names = [tile.buffer.name for tile in made.program.shared]
    assert len(names) == len(set(names)) == 5
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=1))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("epilogue", ["none", "cast"])
def test_halves_go_by_stmatrix(epilogue: str) -> None:
    made = built(KERNEL, "sm_90a", epilogue=epilogue, tiles=1, N=256)[1]
    assert sum(isinstance(op, warp.StoreMatrix) for op in consumer(made)) == 4


def test_accumulators_of_warpgroups_side_by_side_are_stored_together() -> None:
    """64 rows for two warpgroups: each has half of the columns, so that none has a chunk of its own."""
    made = staged(bM=64, M=64, num_stages=2)
    assert (made.chunks, made.buffers, made.parts) == (1, 1, 1)
    agrees(1, bM=64, M=64, num_stages=2)


@pytest.mark.parametrize("adversary", [None, 1])
def test_stmatrix_has_its_switch(adversary: int | None) -> None:
    path = SAMPLES / "gemm.tl"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    asked = CompileOptions(defines=(("M", 128), ("N", 256), ("K", 128)), stmatrix=False)
    made = build_kernel(source, asked, Observer())
    assert "stmatrix" not in made.ptx and "cp.async.bulk.tensor.2d.global" in made.ptx
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))
