"""Kernels that begin while the one before them ends, though their text says nothing about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import SAMPLES
from sass import disassembled
from stages import emitted

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.emu import Fault, launch
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.ptx.text import print_module
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SMALL = (("M", 128), ("N", 128), ("K", 192))


def made(name: str = "gemm", text: str = "", **options: Any) -> Build:
    text = text or (SAMPLES / f"{name}.tl").read_text(encoding="utf-8")
    asked = CompileOptions(**{"target": "sm_90a", **options})
    return build_kernel(SourceFile(f"{name}.tl", text), asked, Observer())


def controls(of: Build) -> dict[str, list[str]]:
    return {
        role.name: [op.what for op in warp.walk_operations(role.body) if isinstance(op, warp.GridControl)]
        for role in of.program.roles
    }


def test_each_role_waits_and_the_producer_lets_the_next_kernel_begin() -> None:
    found = made(defines=SMALL)
    assert controls(found) == {"consumer": ["wait"], "producer": ["wait", "launch_dependents"]}
    assert found.program.begins_early and found.manifest.attributes == ("dependent",)
    producer = [type(op).__name__ for op in found.program.roles[1].body]
    assert producer == ["GridControl", "Loop", "GridControl"]  # all loads have been begun
    before, _, after = found.ptx.partition("griddepcontrol.wait")
    assert "mbarrier.init" in before and "prefetch.tensormap" in before
    assert "cp.async" not in before and "cp.async.bulk.tensor" in after


@pytest.mark.parametrize("adversary", [None, 1, 2])
@pytest.mark.parametrize("name", ["gemm", "gemm_bias_relu", "gemm/fp8_row_scaled", "gemm/split_k"])
def test_no_thread_reaches_a_tensor_before_it_may(name: str, adversary: int | None) -> None:
    """The emulator takes all of global memory for the kernel's before, as long as nobody has waited for that."""
    found = made(name, defines=(("M", 128), ("N", 128), ("K", 256)))
    assert found.program.begins_early
    arguments = emulate.draw_arguments(found.kernel, found.manifest, seed=1)
    expected = arguments.copy()
    emulate.emulate_build(found, arguments, options=RunOptions(adversary=adversary))
    emulate.run_reference(found.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(found.kernel, found.manifest, arguments, expected))


def test_machines_without_clusters_have_it_too() -> None:
    found = made(target="sm_120a", defines=SMALL)
    assert found.program.begins_early and "griddepcontrol.wait" in found.ptx


def without_waits(program: warp.Program) -> Iterator[tuple[str, warp.Program]]:
    for number, role in enumerate(program.roles):
        for at, op in enumerate(role.body):
            if isinstance(op, warp.GridControl) and op.what == "wait":
                less = replace(role, body=(*role.body[:at], *role.body[at + 1 :]))
                yield role.name, replace(program, roles=(*program.roles[:number], less, *program.roles[number + 1 :]))


def fault(of: Build, program: warp.Program) -> str:
    """What the emulator finds in another program of the same kernel."""
    ptx = print_module(emitted(of.kernel, program, "sm_90a"))
    manifest = of.manifest
    arguments = emulate.build_launch_arguments(manifest, emulate.draw_arguments(of.kernel, manifest, seed=1))
    shape: dict[str, Any] = {"cluster": manifest.cluster, "dynamic_smem": manifest.dynamic_smem}
    assert isinstance(manifest.grid, tuple)
    try:
        launch(ptx, manifest.entry, manifest.grid, manifest.block, arguments, begins_early=True, **shape)
    except Fault as found:
        return found.kind
    return ""


def test_a_missing_wait_is_found() -> None:
    """The consumers of a plain product store what the producer, which has waited, has loaded: that orders them too.
    Those that begin with what is in C read that before."""
    plain = (SAMPLES / "gemm.tl").read_text(encoding="utf-8")
    clears, reads = "        T.clear(C_local)\n", "C_local[i, j] = C[by * block_M + i, bx * block_N + j]\n"
    assert clears in plain
    adding = plain.replace(clears, f"        for i, j in T.Parallel(block_M, block_N):\n            {reads}")
    for text, faults in (
        (plain, {"consumer": "", "producer": "missing-grid-wait"}),
        (adding, {"consumer": "missing-grid-wait", "producer": "missing-grid-wait"}),
    ):
        found = made("gemm", text, defines=SMALL)
        assert fault(found, found.program) == ""
        changed = dict(without_waits(found.program))
        assert {role: fault(found, program) for role, program in changed.items()} == faults
        for program in changed.values():
            assert any("does not wait for the previous grid" in said for said in program_violations(program))


def test_a_wait_in_a_loop_is_none() -> None:
    """The loop may run no iteration at all."""
    program = made(defines=SMALL).program
    consumer, producer = program.roles
    wait, loop, word = producer.body
    assert isinstance(loop, warp.Loop)
    inside = replace(producer, body=(replace(loop, body=(wait, *loop.body)), word))
    found = list(program_violations(replace(program, roles=(consumer, inside))))
    assert found and all("does not wait for the previous grid" in said for said in found)


def test_who_waits_for_nobody_may_not_begin_early() -> None:
    program = made(defines=SMALL).program
    nothing = tuple(replace(role, body=()) for role in program.roles)
    assert "the grid begins early, and no role waits for the grid before it" in list(
        program_violations(replace(program, roles=nothing))
    )


@pytest.mark.parametrize(
    "options", [{"pdl": False}, {"opt_level": 2}, {"target": "sm_80"}], ids=["switch", "O2", "sm_80"]
)
def test_where_kernels_stay_one_after_the_other(options: dict[str, object]) -> None:
    found = made(defines=SMALL, **options)
    assert not any(controls(found).values()) and found.manifest.attributes == ()
    assert "griddepcontrol" not in found.ptx and not found.program.begins_early


@pytest.mark.parametrize("statement", ["T.pdl_sync()", "T.pdl_trigger()"])
def test_a_kernel_that_says_something_is_left_alone(statement: str) -> None:
    text = (SAMPLES / "gemm.tl").read_text(encoding="utf-8")
    text = text.replace("        T.clear(C_local)\n", f"        {statement}\n        T.clear(C_local)\n")
    found = made(text=text, defines=SMALL)
    assert not found.program.begins_early
    assert found.ptx.count("griddepcontrol") == sum(map(len, controls(found).values())) > 0


def test_a_kernel_without_barriers_only_lets_the_next_one_begin() -> None:
    """It has nothing to do before its first load, which stays on the read-only path."""
    found = made("softmax", defines=(("M", 8), ("N", 256)))
    assert controls(found) == {"all": ["launch_dependents"]}
    assert found.manifest.attributes == () and not found.program.begins_early
    assert "ld.global.nc" in found.ptx


def test_what_the_kernel_before_may_write_is_not_read_as_constant() -> None:
    small = (("M", 128), ("N", 128), ("K", 256))
    assert ".nc" not in made("gemm/fp8_row_scaled", defines=small).ptx
    assert "ld.global.nc" in made("gemm/fp8_row_scaled", defines=small, pdl=False).ptx


def test_a_cooperative_grid_is_left_alone() -> None:
    found = made("rows/batch_norm", defines=(("M", 128), ("N", 128)))
    assert "cooperative" in found.manifest.attributes and "griddepcontrol" not in found.ptx


PRODUCTS = ["gemm", "gemm_bias_relu", "gemm/batched", "gemm/swiglu", "models/conv2d_im2col", "flash_attention"]


@pytest.mark.parametrize("strategy", ["auto", "none"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_tensor_map_is_fetched_once_at_the_start(name: str, strategy: str) -> None:
    """By one thread, before it initialises barriers; in kernels without those too."""
    found = made(name, pipeline_strategy=strategy)
    maps = len(found.program.maps)
    assert maps and found.ptx.count("prefetch.tensormap") == maps
    first, _, _ = found.ptx.partition("cp.async")
    assert first.count("prefetch.tensormap") == maps
    assert all(
        first.rindex("prefetch.tensormap") < first.index(op) for op in ("mbarrier.init", "bar.sync") if op in first
    )


@pytest.mark.weekly
@pytest.mark.parametrize("name", ["models/warp_specialised_gemm", "attention/warp_specialised"])
def test_roles_by_hand_wait_too(name: str) -> None:
    found = made(name)
    assert found.program.explicit_roles and found.program.begins_early and list(program_violations(found.program)) == []
    assert all("wait" in what for what in controls(found).values())
    emulate.emulate_build(
        found, emulate.draw_arguments(found.kernel, found.manifest, seed=1), options=RunOptions(sample=1)
    )


REACHES_MEMORY = {"LDG", "LDGSTS", "STG", "RED", "ATOMG", "UTMALDG", "UTMASTG", "UTMAREDG"}


@pytest.mark.parametrize("name", ["gemm", "gemm/fp8_row_scaled", "gemm/bias_gelu"])
def test_the_assembler_moves_nothing_in_front_of_a_wait(name: str, tmp_path: Path) -> None:
    """Each of the two roles, one behind the other in the code, has a wait before all that it does in memory."""
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made(name).cubin)
    stems = [i.stem for i in disassembled(cubin).instructions]
    consumer, producer = (at for at, stem in enumerate(stems) if stem == "ACQBULK")
    assert not REACHES_MEMORY & set(stems[:consumer])
    assert "UTMALDG" not in stems[:producer] and "UTMALDG" in stems[producer:]
    assert stems.count("UTMACCTL") == len(made(name).program.maps)
