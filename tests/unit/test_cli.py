"""The command line: what goes where, exit codes, and that nothing is written on a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilec import __version__
from tilec.cli import main
from tilec.explanations import EXPLANATIONS
from tilec.manifest import extract
from tilec.options import STAGES

SAMPLES = Path(__file__).parents[2] / "samples"
VECTOR_ADD = str(SAMPLES / "vector_add.tl")
GEMM = str(SAMPLES / "gemm.tl")
SMALL = ["-D", "N=2048"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test works in a folder of its own; parser tables and schedules are shared between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def tilec(*arguments: str) -> int:
    return main(list(arguments))


def test_compiles_to_the_current_folder(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD) == 0
    assert [m.entry for m in extract((tmp_path / "vector_add.cubin").read_bytes())] == ["vector_add"]
    assert [p.name for p in tmp_path.iterdir()] == ["vector_add.cubin"]


def test_prints_nothing_when_all_is_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin") == 0
    assert capfd.readouterr() == ("", "")


def test_several_kinds_share_a_name(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-o", "out.cubin", "--emit", "cubin,ptx,tile,warp") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.cubin", "out.ptx", "out.tile", "out.warp"]
    assert ".entry vector_add" in (tmp_path / "out.ptx").read_text()


def test_one_kind_goes_where_it_is_told(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-o", "anything.txt", "--emit", "ptx") == 0
    assert (tmp_path / "anything.txt").read_text().startswith(".version")


def test_dump_writes_every_stage(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--dump-ir", "dump") == 0
    assert [p.name.split(".")[0] for p in sorted((tmp_path / "dump").iterdir())] == [
        f"{i:02}-{stage}" for i, stage in enumerate(STAGES, 1)
    ]


def test_stop_after_prints_the_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "tile") == 0
    assert "vector_add" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_stop_after_with_an_output_writes_the_stage(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "ptx", "-o", "k.ptx") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["k.ptx"]


def test_defines_reach_the_kernel(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-D", "N=2048", "-D", "dtype=float16") == 0
    (manifest,) = extract((tmp_path / "vector_add.cubin").read_bytes())
    assert manifest.grid == (2, 1, 1)
    assert {t.dtype for t in manifest.tensors} == {"float16"}


def test_main_job(tmp_path: Path) -> None:
    assert tilec(GEMM, "--opt-level=3", "-o", "gemm.cubin", "--schedule-trace-file", "gemm.trace.json") == 0
    (manifest,) = extract((tmp_path / "gemm.cubin").read_bytes())
    assert manifest.target == "sm_90a"
    trace = json.loads((tmp_path / "gemm.trace.json").read_text())
    assert trace["traceEvents"]
    assert trace["tilec"]


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.tl"], "no-such-file"),
        (["emulat"], "no-such-file"),
        ([str(SAMPLES)], "not-a-file"),
        ([VECTOR_ADD, "-o", "absent/a.cubin"], "unwritable-output"),
        ([VECTOR_ADD, "-o", "."], "not-a-file"),
        ([VECTOR_ADD, "--schedule-trace-file", "absent/a.json"], "unwritable-output"),
        ([VECTOR_ADD, "--target", "sm_90"], "unknown-target"),
        ([VECTOR_ADD, "-D", "N"], "bad-define"),
        ([VECTOR_ADD, "-D", "Q=3"], "unknown-define"),
        ([VECTOR_ADD, "--entry", "other"], "unknown-entry"),
        ([VECTOR_ADD, "--schedule", "absent.json"], "no-such-file"),
        (["latin.tl"], "not-utf8"),
        (["check", "absent.tl"], "no-such-file"),
        (["inspect", VECTOR_ADD], "not-a-cubin"),
        (["explain", "no-such-code"], "unknown-code"),
        (["targets", "sm_91"], "unknown-target"),
        (["emulate", VECTOR_ADD, "--inputs", VECTOR_ADD], "bad-inputs"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_mistake_is_a_diagnostic(
    arguments: list[str], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.tl").write_bytes(b"# caf\xe9\n")
    assert tilec(*arguments) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error[{code}]: ")
    assert "Traceback" not in captured.err
    assert [p.name for p in tmp_path.iterdir()] == ["latin.tl"]


def test_a_mistake_leaves_old_outputs_alone(tmp_path: Path) -> None:
    (tmp_path / "wrong.tl").write_text("M = \n")
    (tmp_path / "wrong.cubin").write_bytes(b"old")
    assert tilec("wrong.tl", "-o", "wrong.cubin") == 1
    assert (tmp_path / "wrong.cubin").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wrong.cubin", "wrong.tl"]


def test_a_mistyped_command_is_met(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulat") == 1
    assert "did you mean 'tilec emulate'?" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [VECTOR_ADD, "--no-such-option"],
        [VECTOR_ADD, "-O", "4"],
        [VECTOR_ADD, "--emit", "llvm"],
        [VECTOR_ADD, "--stop-after", "tile", "--emit", "ptx"],
        [VECTOR_ADD, "--pipeline-strategy", "magic"],
        [VECTOR_ADD, "second.tl"],
        ["check"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str], tmp_path: Path) -> None:
    assert tilec(*arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bug_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from tilec import driver

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(driver, "build", broken)
    assert tilec(VECTOR_ADD) == 3
    quiet = capfd.readouterr().err
    assert "internal error: ZeroDivisionError: oh" in quiet
    assert f"tilec {VECTOR_ADD}" in quiet
    assert "Traceback" not in quiet
    assert tilec(VECTOR_ADD, "-v") == 3
    assert "Traceback" in capfd.readouterr().err


# ---- the smaller commands --------------------------------------------------------------------------------------------


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("--version") == 0
    assert capfd.readouterr().out == f"tilec {__version__}\n"


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    from tilec.cli_commands import COMMANDS

    assert tilec("--help") == 0
    shown = capfd.readouterr().out
    assert [name for name in COMMANDS if f"tilec {name}" not in shown] == []


def test_check_is_silent_about_a_good_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", GEMM) == 0
    assert capfd.readouterr() == ("", "")


def test_inspect(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin", *SMALL) == 0
    assert tilec("inspect", "a.cubin") == 0
    assert "pointer to A: 2048 float32, in" in capfd.readouterr().out
    assert tilec("inspect", "a.cubin", "--json") == 0
    assert json.loads(capfd.readouterr().out)["entry"] == "vector_add"


def test_explain(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "shape-mismatch") == 0
    assert EXPLANATIONS["shape-mismatch"] in capfd.readouterr().out
    assert tilec("explain", "[shape-mismatch]") == 0
    assert tilec("explain") == 0
    assert "shape-mismatch" in capfd.readouterr().out


def test_targets(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("targets") == 0
    shown = capfd.readouterr().out
    assert "sm_80" in shown
    assert "wgmma" in shown
    assert tilec("targets", "sm_90a") == 0
    assert "smem_bytes_per_cta" in capfd.readouterr().out


def test_schedule_shows_the_pipeline(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", GEMM) == 0
    shown = capfd.readouterr().out
    for part in ("II ", "optimal", "bounds", "stage", "rings", "A_shared", "reservation table"):
        assert part in shown
    assert tilec("schedule", VECTOR_ADD) == 0
    assert "no pipelined loop" in capfd.readouterr().out


# ---- emulate ---------------------------------------------------------------------------------------------------------


def test_emulate_compares_with_the_reference(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL) == 0
    assert capfd.readouterr().out.startswith("C: worst error 0, ")


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
    arrays: dict[str, np.ndarray], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--inputs", "in.npz", "--outputs", "out.npz") == 1
    assert f"error[{code}]" in capfd.readouterr().err
    assert not (tmp_path / "out.npz").exists()


# ---- whole processes -------------------------------------------------------------------------------------------------


def _process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tilec.cli", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, check=False
    )


def test_output_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        files = ("-o", f"{seed}.cubin", "--emit", "cubin,ptx", "--schedule-trace-file", f"{seed}.json", "--no-cache")
        done = _process(GEMM, *files, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr.decode()
    for suffix in (".cubin", ".ptx", ".json"):
        assert (tmp_path / f"1{suffix}").read_bytes() == (tmp_path / f"2{suffix}").read_bytes(), suffix


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m tilec.cli explain | head -n 1"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, check=False)
    assert done.stderr == b""


def test_what_start_up_loads() -> None:
    """numpy, pandas and rich cost more than a compilation; ortools is for schedules that are not cached."""
    assert tilec(GEMM, "-o", "a.cubin") == 0
    script = (
        "import sys; from tilec.cli import main; "
        f"code = main([{GEMM!r}, '-o', 'a.cubin']); "
        "print(code, *sorted({'numpy', 'pandas', 'rich', 'ortools', 'click'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "click"], done.stderr


def test_colour_only_on_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("absent.tl") == 1
    assert "\x1b[" not in capfd.readouterr().err


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
    assert "k.ptx:17" in capfd.readouterr().err
    assert tilec("emulate", str(ptx)) == 2
    assert tilec("emulate", VECTOR_ADD, "--grid", "1") == 2
