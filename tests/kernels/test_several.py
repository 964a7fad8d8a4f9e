"""All the kernels of a file in one cubin: each is launched as if it were alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from harness import HERE, built

from tilec.cli.main import main
from tilec.driver.build import Observer, build_library
from tilec.driver.emulation import emulate
from tilec.ir.manifest import extract_from_cubin
from tilec.support.files import read_source
from tilec.support.options import CompileOptions, Value

SEVERAL = HERE / "files" / "several.tl"
DEFINES: dict[str, dict[str, Value]] = {"copy": {}, "product": {"M": 64}, "increment": {"by": 3}, "negate": {"M": 64}}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_one_cubin(target: str) -> None:
    options = CompileOptions(target=target, defines=(("M", 64), ("by", 3)))
    made = build_library(read_source(str(SEVERAL)), options, Observer())
    assert [m.entry for m in made.manifests] == list(DEFINES)
    assert sorted(m.entry for m in extract_from_cubin(made.cubin)) == sorted(DEFINES)
    assert {m.entry: m.outputs for m in made.manifests if m.outputs} == {
        "product": ("C",), "increment": ("B",), "negate": ("B",),
    }  # fmt: skip
    for manifest in made.manifests:
        _, alone = built(SEVERAL, target, entry=manifest.entry, **DEFINES[manifest.entry])
        assert alone.manifest == manifest
        found = emulate.draw_arguments(alone.kernel, manifest, 0)
        expected = found.copy()
        emulate.emulate_build(dataclasses.replace(alone, ptx=made.ptx), found)
        emulate.run_reference(alone.kernel, expected)
        assert all(r.matches for r in emulate.compare_arguments(alone.kernel, manifest, found, expected)), (
            manifest.entry
        )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "all.cubin")
    assert main([str(SEVERAL), "-D", "M=64", "-o", out, "--dump-ir", str(tmp_path / "ir")]) == 0
    assert main(["inspect", out]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.split("\n") if " for sm_90a" in line] == sorted(DEFINES)
    assert {p.name for p in (tmp_path / "ir").iterdir()} >= {*DEFINES, "01-parse-file.ast"}
    assert (tmp_path / "ir" / "product" / "05-fold-constants.tile").exists()
    assert main(["check", str(SEVERAL), "-D", "M=64"]) == 0
    again = str(tmp_path / "one.cubin")
    assert main([str(SEVERAL), "-D", "M=64", "--entry", "negate", "-o", again]) == 0
    assert [m.entry for m in extract_from_cubin(Path(again).read_bytes())] == ["negate"]


def test_an_imported_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part.tl").write_text("N = 32\n", encoding="utf-8")
    kernel = "@T.prim_func\ndef k(A: T.Tensor((N,), 'float32')):\n    with T.Kernel(1):\n        A[0] = 1.0\n"
    (tmp_path / "k.tl").write_text(f"import tilelang.language as T\nfrom .part import N\n{kernel}", encoding="utf-8")
    assert main([str(tmp_path / "k.tl"), "-o", str(tmp_path / "part.tl"), "--emit", "cubin"]) == 1
    assert "error[unwritable-output]" in capsys.readouterr().err
    assert (tmp_path / "part.tl").read_text(encoding="utf-8") == "N = 32\n"


def test_what_only_one_kernel_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(tmp_path / "t.json")
    assert main([str(SEVERAL), "-D", "M=64", "-o", str(tmp_path / "a.cubin"), "--schedule-trace-file", trace]) == 1
    error = capsys.readouterr().err
    assert "error[ambiguous-entry]: the file has 4 kernels, each with its own schedule" in error
    assert list(tmp_path.iterdir()) == []
