"""Mistakes on the command line and in files: a diagnostic, the right exit code, and nothing written."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.cli.main import main

SAMPLES = Path(__file__).parents[2] / "samples"
VECTOR_ADD = str(SAMPLES / "vector_add.tl")
GEMM = str(SAMPLES / "gemm.tl")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test works in a folder of its own; parser tables and schedules are shared between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def tilec(*arguments: str) -> int:
    return main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.tl"], "no-such-file"),
        (["emulat"], "no-such-file"),
        ([str(SAMPLES)], "not-a-file"),
        ([VECTOR_ADD, "-o", f"{VECTOR_ADD}/a.cubin"], "unwritable-output"),
        ([VECTOR_ADD, "-o", "."], "not-a-file"),
        ([VECTOR_ADD, "--schedule-trace-file", f"{VECTOR_ADD}/a.json"], "unwritable-output"),
        ([VECTOR_ADD, "--target", "sm_90"], "unknown-target"),
        ([VECTOR_ADD, "--gpu", "H100"], "unknown-gpu"),
        ([VECTOR_ADD, "-D", "N"], "bad-define"),
        ([VECTOR_ADD, "-D", "Q=3"], "unknown-define"),
        ([VECTOR_ADD, "-D", "vector_add=3"], "unknown-define"),
        ([VECTOR_ADD, "-D", "T=3"], "unknown-define"),
        ([VECTOR_ADD, "--entry", "other"], "unknown-entry"),
        ([VECTOR_ADD, "--schedule", "absent.json"], "no-such-file"),
        (["latin.tl"], "not-utf8"),
        (["check", "absent.tl"], "no-such-file"),
        (["inspect", VECTOR_ADD], "not-a-cubin"),
        (["explain", "no-such-code"], "unknown-code"),
        (["targets", "sm_91"], "unknown-target"),
        (["emulate", VECTOR_ADD, "--inputs", VECTOR_ADD], "bad-inputs"),
        (["schedule", GEMM, "-O1"], "level-without-code"),
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


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x7fELF\x02\x01\x01", "machine code"),
        (b"\x50\xed\x55\xba\x01\x00", "a fatbin"),
        (b"PK\x03\x04\x00", "an archive"),
        (b"// made by tilec\n/* and\nso on */\n.version 8.0\n.target sm_90a\n", "PTX"),
        (b"#include <cuda.h>\n__global__ void k() {}\n", "CUDA C++"),
        (b"/* a header */\n#ifndef K_H\n", "C, C++ or CUDA"),
        (b'{\n "tilec": {"schema": 1}}\n', "JSON"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_files_of_other_kinds_are_told_by_one_error(
    data: bytes, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.tl").write_bytes(data)
    for command in (["check"], ["fmt", "--check"]):
        assert tilec(*command, "k.tl") == 1
        said = capfd.readouterr().err
        code = "not-a-kernel"
        assert said.startswith(f"error[{code}]: k.tl is {what}")
        assert said.count("error[") == 1


def test_a_kernel_may_begin_with_what_resembles_another_language(tmp_path: Path) -> None:
    comments = "# .version 8.0\n#include is a word\n# pragma once upon a time\n# /* {\n"
    (tmp_path / "k.tl").write_text(comments + Path(VECTOR_ADD).read_text(encoding="utf-8"))
    assert tilec("check", "k.tl") == 0


def test_targets_are_names_with_commas_between(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", VECTOR_ADD, "--target", "sm_80, sm_90a") == 0
    for text in ("sm_90a,", ",", "sm_80,,sm_90a", " "):
        assert tilec("check", VECTOR_ADD, "--target", text) == 2
        assert "has an empty name: write --target sm_80,sm_90a" in capfd.readouterr().err


def test_a_mistake_leaves_old_outputs_alone(tmp_path: Path) -> None:
    (tmp_path / "wrong.tl").write_text("M = \n")
    (tmp_path / "wrong.cubin").write_bytes(b"old")
    assert tilec("wrong.tl", "-o", "wrong.cubin") == 1
    assert (tmp_path / "wrong.cubin").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wrong.cubin", "wrong.tl"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["own.tl", "-o", "own.tl"],
        ["own.tl", "-o", "link.tl"],
        ["own.tl", "-o", "own.tl", "--emit", "ptx"],
        ["own.tl", "--schedule-trace-file", "./own.tl"],
        ["own.tl", "--stop-after", "tile", "-o", "own.tl"],
        ["own.tl", "--schedule", "old.json", "-o", "old.json"],
        ["emulate", "own.tl", "--outputs", "own.tl"],
        ["emulate", "own.tl", "--inputs", "in.npz", "--outputs", "./in.npz"],
        ["emulate", "own.tl", "--schedule", "old.json", "--outputs", "old.json"],
    ],
)
def test_what_is_read_is_not_overwritten(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.tl").write_bytes(Path(VECTOR_ADD).read_bytes())
    (tmp_path / "link.tl").symlink_to("own.tl")
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "in.npz").write_bytes(b"")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert tilec(*arguments) == 1
    assert capfd.readouterr().err.startswith("error[unwritable-output]: cannot write ")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert (tmp_path / "link.tl").is_symlink()


def test_a_kernel_whose_default_output_is_itself(tmp_path: Path) -> None:
    (tmp_path / "own.cubin").write_bytes(Path(VECTOR_ADD).read_bytes())
    assert tilec("own.cubin") == 1
    assert (tmp_path / "own.cubin").read_bytes() == Path(VECTOR_ADD).read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "a.cubin", "--schedule-trace-file", "a.cubin"],
        ["-o", "a.cubin", "--schedule-trace-file", "./a.cubin"],
        ["-o", "a", "--emit", "ptx,schedule", "--schedule-trace-file", "a.trace.json"],
    ],
)
def test_two_outputs_in_one_file_are_refused(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tilec(VECTOR_ADD, *arguments, "--dump-ir", "dump") == 1
    assert capfd.readouterr().err.startswith("error[unwritable-output]: cannot write ")
    assert list(tmp_path.iterdir()) == []


def test_only_constants_can_be_overridden(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", GEMM, "-D", "gemm=3") == 1
    said = capfd.readouterr().err
    assert "-D gemm is not a constant of the file" in said
    assert tilec("check", GEMM, "-D", "unlike_any=3") == 1
    listed = capfd.readouterr().err.partition("the constants are ")[2].split()[:12]
    assert "M," in listed
    assert "gemm" not in [name.strip(",") for name in listed]


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
        [VECTOR_ADD, "--stop-after", "tile", "--schedule-trace-file", "a.json"],
        [VECTOR_ADD, "--stop-after", "tile", "-o", "a.tile", "--schedule-trace-file", "a.json"],
        [VECTOR_ADD, "--pipeline-strategy", "magic"],
        ["emulate", VECTOR_ADD, "--seed", "-1"],
        [VECTOR_ADD, GEMM, "--stop-after", "tile"],
        ["check"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str], tmp_path: Path) -> None:
    assert tilec(*arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bug_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from tilec.driver import build as driver

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(driver, "build_library", broken)
    assert tilec(VECTOR_ADD) == 3
    quiet = capfd.readouterr().err
    assert "internal error: ZeroDivisionError: oh" in quiet
    assert f"tilec {VECTOR_ADD}" in quiet
    assert "Traceback" not in quiet
    assert tilec(VECTOR_ADD, "-v") == 3
    assert "Traceback" in capfd.readouterr().err


# ---- the arrays of `emulate` -----------------------------------------------------------------------------------------

SCALED = """
import tilelang.language as T

dtype = "float32"


@T.prim_func
def scaled(A: T.Tensor((128,), "float32"), s: dtype):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(128):
            A[i] = A[i] * T.cast(s, "float32")
"""


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


WHOLE = _npz(A=np.zeros(128, np.float32), s=np.float32(2))
NESTED = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 9000 + b"1,)}"
HUGE = (
    b"\x93NUMPY\x01\x00\x46\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}".ljust(69)
    + b"\n"
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P",
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(4),
        b"no zip at all",
        _npy(np.zeros(128, np.float32)),
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-1],
        _npz(A=np.array([{}], object), s=np.float32(2)),
        _zip({"A": b"not an array", "s.npy": _npy(np.float32(2))}),
        _zip({"A.npy": b"", "s.npy": _npy(np.float32(2))}),
        _zip({"A.npy": b"\x93NUMPY\x09\x09", "s.npy": _npy(np.float32(2))}),
        _zip({"A.npy": _npy(np.zeros(128, np.float32))[:200], "s.npy": _npy(np.float32(2))}),
        _zip({"A.npy": HUGE, "s.npy": _npy(np.float32(2))}),
        _zip({"A.npy": b"\x93NUMPY\x01\x00" + len(NESTED).to_bytes(2, "little") + NESTED}),
        _zip({"A.npy": HUGE.replace(b"(10", b"(-1")}),
        _zip({"A.npy": _npy(np.zeros(128, np.float32))}, zipfile.ZIP_BZIP2),
        _zip({"A.npy": _npy(np.zeros(128, np.float32))}, zipfile.ZIP_LZMA),
    ],
    # By name: a zip file carries its time, and the test processes must agree on what the tests are called.
    ids=[
        "empty",
        "one byte",
        "only a magic number",
        "cut end of directory",
        "no zip",
        "an npy file",
        "half",
        "last byte missing",
        "objects",
        "no suffix",
        "empty array",
        "unknown version",
        "cut array",
        "huge header",
        "header of signs",
        "negative extent",
        "bzip2",
        "lzma",
    ],
)
def test_a_file_that_holds_no_arrays(data: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.tl").write_text(SCALED)
    (tmp_path / "in.npz").write_bytes(data)
    assert tilec("emulate", "k.tl", "--inputs", "in.npz") == 1
    assert capfd.readouterr().err.startswith("error[bad-inputs]: in.npz is not an .npz file of arrays")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_file_of_arrays_is_no_bug(method: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Any byte may be wrong: it is noticed, or it did not matter."""
    from tilec.driver.build import Observer, build_kernel
    from tilec.driver.emulation import emulate
    from tilec.support.diagnostics import CompileError
    from tilec.support.options import CompileOptions
    from tilec.support.source import SourceFile

    made = build_kernel(SourceFile("k.tl", SCALED), CompileOptions(), Observer())
    members = {"A.npy": _npy(np.zeros(128, np.float32)), "s.npy": _npy(np.float32(2))}
    whole = _zip(members, method)
    emulate.read_arguments(whole, "in.npz", made.kernel, made.manifest)
    generator = np.random.default_rng(0)
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= int(generator.integers(1, 256))
        try:
            emulate.read_arguments(bytes(damaged), "in.npz", made.kernel, made.manifest)
        except CompileError as error:
            refused += 1
            assert error.diagnostics[0].code in ("bad-inputs", "missing-input", "wrong-input")
    assert refused > len(whole) // 2


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("int8", np.int64(300), "s is 300, expected int8: -128 to 127"),
        ("int8", np.int64(-129), "s is -129, expected int8: -128 to 127"),
        ("uint8", np.int64(-1), "s is -1, expected uint8: 0 to 255"),
        ("int64", np.uint64(2**64 - 1), "expected int64: -9223372036854775808 to 9223372036854775807"),
        ("float32", np.float64(1e300), "s is 1e+300, expected float32: at most 3.40282e+38 in size"),
        ("float32", np.float64(-1e300), "s is -1e+300, expected float32: at most 3.40282e+38 in size"),
        ("float16", np.int64(70000), "s is 70000, expected float16: at most 65504 in size"),
        ("bfloat16", np.float64(1e39), "s is 1e+39, expected bfloat16: at most 3.38953e+38 in size"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_scalar_out_of_range(
    dtype: str, value: Any, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.tl").write_text(SCALED)
    np.savez(tmp_path / "in.npz", A=np.ones(128, np.float32), s=value)
    assert tilec("emulate", "k.tl", "-D", f"dtype={dtype}", "--inputs", "in.npz") == 1
    said = capfd.readouterr().err
    assert said.startswith("error[wrong-input]: in.npz: s is ")
    assert says in said


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", np.int64(-128)),
        ("uint8", np.uint8(255)),
        ("int16", np.True_),
        ("float32", np.float64(np.nan)),
        ("float32", np.float64(-np.inf)),
        ("float16", np.float64(65504)),
        ("bfloat16", np.float32(np.inf)),
        ("float32", np.float64(1e-300)),
        ("float64", np.float64(3e38)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_scalar_at_the_end_of_its_range(dtype: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "k.tl").write_text(SCALED)
    np.savez(tmp_path / "in.npz", A=np.ones(128, np.float32), s=value)
    arguments = ["--inputs", "in.npz", "--outputs", "out.npz", "--compare"]
    assert tilec("emulate", "k.tl", "-D", f"dtype={dtype}", *arguments) == 0
    with np.load(tmp_path / "out.npz") as out:
        assert np.array_equal(out["A"], np.full(128, value).astype(np.float32), equal_nan=True)


# ---- a schedule changed by hand --------------------------------------------------------------------------------------

SMALL_GEMM = [GEMM, "-D", "M=128", "-D", "N=128", "-D", "K=512", "-D", "num_stages=5"]


def _edited_trace(path: Path, later: int) -> None:
    """The trace of the small gemm, with the product so many intervals later, or cycles where it is earlier."""
    assert tilec(*SMALL_GEMM, "-o", "/dev/null", "--schedule-trace-file", str(path)) == 0
    trace = json.loads(path.read_text())
    (loop,) = trace["tilec"]["loops"]
    (product,) = (op for op in loop["ops"] if op["name"].startswith("gemm"))
    product["start"] += later * (loop["ii"] if later > 0 else 1)
    path.write_text(json.dumps(trace))


def test_a_start_time_moved_by_an_interval_holds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "edited.json"
    _edited_trace(path, later=1)
    edited = json.loads(path.read_text())["tilec"]["loops"][0]
    again = tmp_path / "again.json"
    assert tilec(*SMALL_GEMM, "--schedule", str(path), "-o", "/dev/null", "--schedule-trace-file", str(again)) == 0
    used = json.loads(again.read_text())["tilec"]["loops"][0]
    assert [op["start"] for op in used["ops"]] == [op["start"] for op in edited["ops"]]
    assert used["status"] == "given"
    capfd.readouterr()
    assert tilec("emulate", *SMALL_GEMM, "--schedule", str(path)) == 0
    assert capfd.readouterr().out.endswith(": matches the kernel run by numpy\n")


@pytest.mark.parametrize(
    ("later", "rule"),
    [(-1, r"1 before op copy B → B_shared is ready \(data B_shared\)"), (2, "ring .* needs 6")],
)
def test_a_start_time_that_breaks_a_rule(
    later: int, rule: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _edited_trace(tmp_path / "edited.json", later)
    assert tilec(*SMALL_GEMM, "--schedule", "edited.json", "-o", "a.cubin") == 1
    said = capfd.readouterr().err
    assert said.startswith("error[bad-schedule]: the given schedule is not valid for this loop")
    assert re.search(rule, said)
    assert not (tmp_path / "a.cubin").exists()


PIPELINED = """\
import tilelang.language as T
M, block_M, block_K, num_threads = 1024, 64, 64, 128
@T.prim_func
def k(A: T.Tensor((M, 256), "float16"), B: T.Tensor((M, 256), "float16")):
    with T.Kernel(M // block_M, threads=num_threads) as bx:
        tile = T.alloc_shared((block_M, block_K), "float16")
        for j in T.Pipelined(256 // block_K, num_stages=2):
            T.copy(A[bx * block_M, j * block_K], tile)
            T.copy(tile, B[bx * block_M, j * block_K])
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], ["-D", "block_K=32"], "`tile` is 64 × 64 in the schedule file and 64 × 32 here"),
        ([], ["-D", "block_K=32"], "constant block_K is the kernel's own in the schedule file and 32 here"),
        ([], ["-D", "block_K=32"], "help: compile with no -D, as the schedule file was, or write a new one"),
        (["-D", "block_K=32"], ["-D", "block_K=128"], "constant block_K is 32 in the schedule file and 128 here"),
        (["-D", "block_K=32"], [], "help: compile with -D block_K=32, as the schedule file was"),
        ([], ["-D", "num_threads=256"], "a block has 128 threads in the schedule file and 256 here"),
        ([], ["-D", "M=256"], ""),
        ([], ["-D", "block_K=64"], ""),
    ],
)
def test_a_schedule_for_other_constants(
    before: list[str], after: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What changes no tile, as the size of the tensors, leaves a schedule as it is."""
    Path("k.tl").write_text(PIPELINED)
    target = ["k.tl", "--target", "sm_80", "--stop-after", "schedule"]
    assert tilec(*target, "-o", "k.trace.json", *before) == 0
    assert tilec(*target, "-o", "again.trace.json", "--schedule", "k.trace.json", *after) == (1 if said else 0)
    told = " ".join(capfd.readouterr().err.split())
    assert said in told
    if said:
        assert "error[bad-schedule]: the schedule file was written for other constants of this kernel" in told


@pytest.mark.parametrize(
    ("space", "code"),
    [
        ("[constants]\nblock = [256, 512]\n", "bad-space"),
        ("[constants]\nthreads = [2048, 4096]\n", "no-variant"),
    ],
)
def test_a_search_without_an_end(space: str, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.toml").write_text(space)
    assert tilec("tune", GEMM, "--space", "space.toml", "-j1", "-D", "block_K=7") == 1
    assert f"error[{code}]" in capfd.readouterr().err
    assert not (tmp_path / "gemm.tuned.json").exists()


def test_what_was_tuned_for_another_kernel(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = {"tuned": "", "kernel": "0", "target": "sm_90a", "entry": "gemm", "constants": {}, "options": {}}
    (tmp_path / "gemm.tuned.json").write_text(json.dumps({**record, "schedule": {}}))
    for target, code in (("sm_90a", "tuned-for-another"), ("sm_80", "tuned-for-another")):
        assert tilec("--tuned", "gemm.tuned.json", GEMM, "--target", target) == 1
        assert f"error[{code}]" in capfd.readouterr().err
    assert not (tmp_path / "gemm.cubin").exists()
