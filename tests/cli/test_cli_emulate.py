"""`tilec emulate`: against the reference, on given arrays, on foreign PTX; and what it says of a mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec

from tilec.driver import build as driver
from tilec.driver.emulation import compare, emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def test_emulate_compares_with_the_reference(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL) == 0
    assert capfd.readouterr().out.startswith("C: 2,048 elements of the emulated PTX, worst error 0, ")


def test_emulate_on_a_hostile_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--adversary", "1", "--jobs", "2", "--timeline", "t.json") == 0
    assert capfd.readouterr().out.endswith(": matches the kernel run by numpy\n")
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ns"


def test_emulate_a_sample(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--grid-sample", "1", "--seed", "4") == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("1 blocks of ")
    assert second.startswith("C: 1,024 of 2,048 elements of the emulated PTX, ")
    assert second.endswith(": matches the kernel run by numpy")


FEW_WORK = """
import tilelang.language as T


@T.prim_func
def double(A: T.Tensor((40, 64), "float32"), B: T.Tensor((40, 64), "float32")):
    with T.Kernel(40, threads=64) as bx:
        if A[bx, 0] * 0.0 + bx > {limit}:
            for i in T.Parallel(64):
                B[bx, i] = A[bx, i] * 2.0
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sample_draws_blocks_that_have_work(jobs: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.tl").write_text(FEW_WORK.format(limit=37))
    assert tilec("emulate", "few.tl", "--grid-sample", "2", "--jobs", jobs) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert "some of them without work" in first
    assert second.startswith("B: 128 of 40 × 64 elements of the emulated PTX, ")
    assert second.endswith(": matches the kernel run by numpy")


def test_a_sample_that_wrote_nothing_does_not_match(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.tl").write_text(FEW_WORK.format(limit=50))
    assert tilec("emulate", "none.tl", "--grid-sample", "2") == 1
    found = capfd.readouterr()
    assert "B: 0 of 40 × 64 elements compared: the blocks that ran wrote none of them" in found.out
    assert "nothing-compared" in found.err
    assert "matches" not in found.out + found.err


def test_emulate_interrupted(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(build: object, arguments: object, progress: Callable[[int, int], None], options: object) -> None:
        progress(1, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr("tilec.driver.emulation.emulate.emulate_build", interrupted)
    assert tilec("emulate", VECTOR_ADD, *SMALL) == 130
    assert "interrupted after 1 of" in capfd.readouterr().err


def test_emulate_on_given_arrays(tmp_path: Path) -> None:
    a, b = np.arange(2048, dtype=np.float32), np.ones(2048, np.float32)
    np.savez(tmp_path / "in.npz", A=a, B=b)
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--inputs", "in.npz", "--outputs", "out.npz") == 0
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out.files) == ["A", "B", "C"]
        assert np.array_equal(out["C"], a + b)


def test_bfloat16_travels_as_raw_bits(tmp_path: Path) -> None:
    import ml_dtypes

    a = np.arange(2048).astype(ml_dtypes.bfloat16)
    # numpy stores ml_dtypes arrays as void of the same size.
    np.savez(tmp_path / "in.npz", A=a, B=a.view(np.uint16))
    assert (
        tilec("emulate", VECTOR_ADD, *SMALL, "-D", "dtype=bfloat16", "--inputs", "in.npz", "--outputs", "out.npz") == 0
    )
    with np.load(tmp_path / "out.npz") as out:
        assert out["C"].dtype == np.uint16
        assert np.array_equal(out["C"].view(ml_dtypes.bfloat16), a + a)


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"A": np.zeros(2048, np.float32)}, "missing-input"),
        ({"A": np.zeros(2048, np.float32), "B": np.zeros(2048, np.float64)}, "wrong-input"),
        ({"A": np.zeros(2048, np.float32), "B": np.zeros(2047, np.float32)}, "wrong-input"),
        ({"A": np.zeros(2048, np.float32), "b": np.zeros(2048, np.float32)}, "bad-inputs"),
    ],
    ids=["missing", "dtype", "shape", "unknown"],
)
def test_arrays_that_do_not_fit(
    arrays: dict[str, Any], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--inputs", "in.npz", "--outputs", "out.npz") == 1
    assert f"error[{code}]" in capfd.readouterr().err
    assert not (tmp_path / "out.npz").exists()


CHAIN = """
import tilelang.language as T

M, N, K = 64, 64, 256
between, after = 1.0, 1.0


@T.prim_func
def chain(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    D: T.Tensor((N, N), "float16"),
    H: T.Tensor((M, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((M, K), "float16")
        B_s = T.alloc_shared((K, N), "float16")
        D_s = T.alloc_shared((N, N), "float16")
        H_s = T.alloc_shared((M, N), "float16")
        h = T.alloc_fragment((M, N), "float32")
        c = T.alloc_fragment((M, N), "float32")
        T.clear(h)
        T.copy(A, A_s)
        T.copy(B, B_s)
        T.gemm(A_s, B_s, h)
        for i, j in T.Parallel(M, N):
            h[i, j] = T.exp2(h[i, j] * 0.1) * between
        T.copy(h, H)
        T.copy(H, H_s)
        T.copy(D, D_s)
        T.clear(c)
        T.gemm(H_s, D_s, c)
        for i, j in T.Parallel(M, N):
            c[i, j] *= after
        T.copy(c, C)
"""
"""A product of a tensor that the kernel itself has computed and rounded."""


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_rounding_on_the_way_is_allowed_for(seed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chain.tl").write_text(CHAIN)
    assert tilec("emulate", "chain.tl", "--seed", seed) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("defines", "wrong"),
    [({}, []), ({"between": 1.02}, ["H", "C"]), ({"after": 1.02}, ["C"]), ({"after": 0.98}, ["C"])],
)
def test_two_percent_is_not_rounding(defines: dict[str, float], wrong: list[str], tmp_path: Path) -> None:
    source = SourceFile("chain.tl", CHAIN)
    right = driver.build_kernel(source, CompileOptions(), driver.Observer())
    made = driver.build_kernel(source, CompileOptions(defines=tuple(defines.items())), driver.Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=0)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(right.kernel, expected)
    results = emulate.compare_arguments(right.kernel, right.manifest, found, expected)
    assert [result.name for result in results if not result.matches] == wrong


TF32_CHAIN = """
import tilelang.language as T

last = 1.0

@T.prim_func
def powers(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        A_s = T.alloc_shared((64, 64), "float32")
        P_s = T.alloc_shared((64, 64), "float32")
        p = T.alloc_fragment((64, 64), "float32")
        T.copy(A, A_s)
        T.copy(A, P_s)
        for _ in T.serial(3):
            T.clear(p)
            T.gemm(A_s, P_s, p)
            T.copy(p, P_s)
        for i, j in T.Parallel(64, 64):
            p[i, j] *= last
        T.copy(p, C)
"""
"""Products of computed float32, of which the tensor cores use the leading 19 bits."""


@pytest.mark.parametrize(("last", "matches"), [(1.0, True), (1.05, False)])
def test_a_step_of_tf32_is_allowed_for_in_computed_operands(last: float, matches: bool) -> None:
    """Check that a sum which lands on the other side of a step of tf32 is no mistake, while five percent are."""
    source = SourceFile("chain.tl", TF32_CHAIN)
    right = driver.build_kernel(source, CompileOptions(), driver.Observer())
    made = driver.build_kernel(source, CompileOptions(defines=(("last", last),)), driver.Observer())
    for seed in range(4):
        found = emulate.draw_arguments(made.kernel, made.manifest, seed)
        expected = found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(right.kernel, expected)
        (result,) = emulate.compare_arguments(right.kernel, right.manifest, found, expected)
        assert result.matches == matches


def test_what_only_comes_in_is_exact() -> None:
    """Rounding is allowed for where the kernel rounds: the operands of this product are inputs."""
    kernel = driver.load_kernel(SourceFile("gemm.tl", Path(GEMM).read_text()), CompileOptions(), driver.Observer())
    seen, summed = compare.find_roundings(kernel)
    assert ({buffer.name for buffer in seen}, summed) == ({"C_local", "C"}, 0.0)


ADD_ONE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u64 out, .param .f32 by)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    .reg .f32 %f<3>;
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    ld.param.f32 %f2, [by];
    mad.wide.u32 %rd3, %r1, 4, %rd1;
    mad.wide.u32 %rd4, %r1, 4, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f1, %f1, %f2;
    st.global.f32 [%rd4], %f1;
    ret;
}
"""


def test_emulate_runs_foreign_ptx(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx, inputs, outputs = tmp_path / "k.ptx", tmp_path / "in.npz", tmp_path / "out.npz"
    ptx.write_text(ADD_ONE)
    np.savez(inputs, A=np.arange(32, dtype=np.float32))
    launch = ["emulate", str(ptx), "--block", "32", "--arg", f"{inputs}:A"]
    assert tilec(*launch, "--arg", "zeros:float32:4x8", "--arg", "f32:1.5", "--outputs", str(outputs)) == 0
    assert capfd.readouterr().out.startswith("1 blocks, 10 warp instructions (")
    with np.load(outputs) as saved:
        np.testing.assert_array_equal(saved["arg1"].reshape(-1), saved["A"] + np.float32(1.5))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--arg", "zeros:float32:2", "--arg", "null", "--arg", "f32:1"], "emulation-fault"),
        (["--arg", "null"], "wrong-launch"),
        (["--arg", "f32:x"], "bad-argument"),
        (["--arg", "zeros:float31:2"], "bad-argument"),
        (["--arg", "bytes:0"], "bad-argument"),
        (["--arg", "nowhere.npz:A"], "no-such-file"),
        (["--arg", "what"], "bad-argument"),
        (["--grid", "0,1"], "bad-argument"),
    ],
)
def test_a_wrong_launch_of_foreign_ptx(
    arguments: list[str], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE)
    assert tilec("emulate", str(ptx), "--block", "32", *arguments) == 1
    assert capfd.readouterr().err.startswith(f"error[{code}]: ")


def test_what_is_not_ptx_is_shown_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE.replace("add.f32 %f1", "add.f32 % f1"))
    assert tilec("emulate", str(ptx), "--block", "32") == 1
    error = capfd.readouterr().err
    assert error.partition("]")[0].split("[") == ["error", "ptx-syntax"] and "k.ptx:17" in error
    assert tilec("emulate", str(ptx)) == 2
    assert tilec("emulate", VECTOR_ADD, "--grid", "1") == 2


SPIN = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "spin.cu"
.visible .entry spin(.param .u64 flag)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd0, [flag];
    mov.u32 %r1, 0;
again:
    .loc 1 12 3
    add.u32 %r1, %r1, STEP;
    ld.relaxed.gpu.global.u32 %r0, [%rd0];
    setp.eq.u32 %p, %r0, 0;
    @%p bra again;
    ret;
}
"""


def test_emulate_ptx_takes_the_options_of_the_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE)
    arrays = ["--arg", "zeros:float32:32", "--arg", "zeros:float32:32", "--arg", "f32:1.5"]
    options = ["--adversary", "3", "--jobs", "2", "--timeline", "t.json", "--grid-sample", "1", "--seed", "2"]
    assert tilec("emulate", str(ptx), "--block", "32", "--grid", "4", *arrays, *options) == 0
    assert capfd.readouterr().out.startswith("1 blocks, 10 warp instructions (")
    assert json.loads(Path("t.json").read_text())["displayTimeUnit"] == "ns"
    assert tilec("emulate", str(ptx), "--block", "32", *arrays, "--inputs", "in.npz") == 2
    np.savez("in.npz", A=np.zeros(32, np.float32))
    taken = ["--arg", "in.npz:A", *arrays[2:], "--outputs", "in.npz"]
    assert tilec("emulate", str(ptx), "--block", "32", *taken) == 1
    assert "it is the input in.npz" in capfd.readouterr().err


def test_emulate_shows_who_waits_for_what(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "spin.ptx"
    ptx.write_text(SPIN.replace("STEP", "0"))
    launch = ["emulate", str(ptx), "--block", "32", "--arg", "zeros:uint32:1"]
    assert tilec(*launch, "--timeline", "t.json", "--outputs", "out.npz") == 1
    error = capfd.readouterr().err
    assert error.startswith("error[emulation-fault]: ")
    assert "threads 0-31 loop over PTX lines 15 to 18 and poll address" in error
    assert "compiled from spin.cu:12" in error
    # What happened until then is there to be looked at; arrays of a run that did not end are not.
    assert Path("t.json").exists() and not Path("out.npz").exists()
    ptx.write_text(SPIN.replace("STEP", "1"))
    assert tilec(*launch, "--step-limit", "100000") == 1
    assert "the block runs more than 100,000 steps" in capfd.readouterr().err


def test_emulate_ends_cleanly_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ptx = tmp_path / "spin.ptx"
    ptx.write_text(SPIN.replace("STEP", "1"))

    def interrupted(cta: object, group: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilec.emu.machine.progress.check_for_spinning", interrupted)
    launch = ["emulate", str(ptx), "--block", "32", "--arg", "zeros:uint32:1"]
    assert tilec(*launch, "--outputs", "out.npz", "--timeline", "t.json") == 130
    captured = capfd.readouterr()
    assert captured.err == "interrupted after 0 of 1 blocks: nothing is compared, nothing written\n"
    assert captured.out == "" and not Path("out.npz").exists() and not Path("t.json").exists()
