"""Every fenced block of the documents is run, or is told by whom it is, or why nobody does.

A page has a folder of its own, with the samples in it. From top to bottom its titled blocks are written there as files,
its `tilec` commands run, and the output that is shown below them compared. `pytest tests/docs --bless` writes down what
the commands write now, except where `…` leaves lines out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fenced import ROOT, Block, blocks, pages

from tilec.cli.main import main
from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

# What a test of its own reads: by page and language.
ELSEWHERE = {
    ("README.md", "python"): "tests/unit/test_docs.py",
    ("docs/attention.md", "text"): "tests/unit/test_attention_document.py",
    ("docs/blocks.md", "text"): "tests/unit/test_docs.py",
    ("docs/building.md", "make"): "tests/cli/test_cmake.py",
    ("docs/building.md", "ninja"): "tests/cli/test_cmake.py",
    ("docs/building.md", "yaml"): "tests/cli/test_cmake.py",
    ("docs/cpp.md", "c"): "tests/cli/test_cmake.py",
    ("docs/cpp.md", "cmake"): "tests/cli/test_cmake.py",
    ("docs/cpp.md", "cpp"): "tests/cli/test_header.py",
    ("docs/loops.md", "python"): "tests/unit/test_docs.py",
    ("docs/loops.md", "text"): "tests/unit/test_docs.py",
    ("docs/manifest.md", "text"): "tests/unit/test_docs.py",
    ("docs/memory.md", "python"): "tests/kernels/test_memory_guide.py",
    ("docs/memory.md", "text"): "tests/kernels/test_memory_guide.py",
    ("docs/pipelines.md", "python"): "tests/unit/test_docs.py",
    ("docs/pipelines.md", "text"): "tests/unit/test_docs.py",
    ("docs/python.md", "python"): "tests/api/test_python_document.py",
    ("docs/roles.md", "python"): "tests/kernels/test_explicit_roles.py",
    ("docs/trace.md", "text"): "tests/unit/test_docs.py",
    ("docs/tuning.md", "text"): "tests/unit/test_tune_report.py",
    **{("docs/editors.md", language): "tests/lsp/test_vscode_extension.py" for language in ("lua", "toml", "lisp")},
}

# Commands of a shell that set something up, fetch something or go on for ever: everything else is tilec's.
SHELL = {"python3", "python", "ncu", "ruff", "mypy", "pip", ".", "eval", "dask"}

# What makes a command of tilec go on until somebody ends it: the tests of the watch and of both servers do.
ENDLESS = {"--watch", "lsp", "serve"}

# What would take long is done on something smaller.
SMALLER = {"--trials 24": "--space small.toml --trials 2", "-j8": "--trials 1", "-j4": "-j1"}
SPACE = "[constants]\nnum_stages = [3, 4]\n"

# Files that commands read and no block of the page writes.
COPIES = {"a.tl": "vector_add.tl", "b.tl": "softmax.tl", "gemm.tl": "gemm.tl", "softmax.tl": "softmax.tl"}
SEVERAL = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
    with T.Kernel(8, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i]

@T.prim_func
def twice(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
    with T.Kernel(8, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] * 2.0
"""


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would stand: beside the samples."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    for name in ("samples", "tests", "targets"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "small.toml").write_text(SPACE, encoding="utf-8")
    (tmp_path / "out").mkdir()
    return tmp_path


def commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """The words of each command of tilec, and the comment behind it."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in shlex.split(line, comments=True) and line.split(" && "):
            words = shlex.split(command, comments=True)
            name = words[0].removeprefix(".venv/bin/")
            if name == "tilec" and ENDLESS.intersection(words):
                continue
            if name == "tilec":
                yield words[1:], command.partition("  #")[2]
            else:
                assert name in SHELL, f"{block.where}: nothing runs {command!r}"


def given(words: list[str], folder: Path) -> None:
    """Makes what a command reads, if nothing did so yet."""
    text = " ".join(words)
    for name, sample in COPIES.items():
        if name in words and not (folder / name).exists():
            shutil.copy(ROOT / "samples" / sample, folder / name)
    if "several.tl" in words or "other.ptx" in words:
        (folder / "several.tl").write_text(SEVERAL, encoding="utf-8")
    if "other.ptx" in words:
        assert main(["several.tl", "--entry", "k", "--emit", "ptx", "-o", "other.ptx"]) == 0
    if "in.npz" in text:
        np.savez(folder / "in.npz", A=np.ones(1048576, np.float32), B=np.ones(1048576, np.float32))
    if "old.json" in words:
        for name, stages in (("old.json", "3"), ("new.json", "4")):
            assert main(["samples/gemm.tl", "-D", f"num_stages={stages}", "--schedule-trace-file", name]) == 0
    for name in ("p.json", "FILE.json"):
        if name in words:
            assert main(["samples/gemm.tl", "--emit", "problem", "-o", name]) == 0


def run(block: Block, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What the commands of a block write."""
    written = ""
    for words, comment in commands(block):
        for said, smaller in SMALLER.items():
            words = shlex.split(shlex.join(words).replace(said, smaller))
        if "*" in " ".join(words):
            words = [
                name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
            ]
        given(words, folder)
        capfd.readouterr()
        code = re.search(r"exit code (\d)", comment)
        status = main(words)
        out, err = capfd.readouterr()
        assert status == (int(code[1]) if code else 0), f"{block.where}: {shlex.join(words)}\n{err}"
        written += out + err
    return "".join(f"{line.rstrip()}\n" for line in written.rstrip().splitlines())


def python(file: Path) -> str:
    """What a program writes, in a process of its own: it may add to what tilec knows."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{file.name}:\n{done.stderr}"
    return done.stdout


def agrees(shown: str, written: str) -> bool:
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line) + "\n" for line in shown.splitlines())
    return re.fullmatch(pattern, written) is not None


def compiles(block: Block) -> None:
    """A kernel on its own; a small one is run as well."""
    source = SourceFile("kernel.tl", block.text)
    made = driver.build_kernel(source, CompileOptions(), driver.Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    if sum(array.nbytes for array in found.arrays.values()) < 1 << 18:
        reference = found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(made.kernel, reference)
        assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, reference)), (
            block.where
        )


@pytest.mark.some(4)
@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_the_blocks_of_a_page(
    page: str, folder: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    found = blocks(page)
    said = " ".join(block.text for block in found if block.language == "sh")
    fresh: list[tuple[Block, str]] = []
    written: str | None = None
    for block in reversed(found):  # a command may stand before the file; of a file in several forms the first counts
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    for block in found:
        if block.comment and block.comment.startswith("not run: "):
            written = None
            continue
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
            if re.search(rf"\b{re.escape(block.title)}\b", said):
                continue
        if block.language == "sh":
            written = run(block, folder, capfd)
            continue
        if (page, block.language) in ELSEWHERE:
            continue
        if block.language == "text" and written is not None:
            if not agrees(block.text, written):
                assert request.config.getoption("--bless") and "…" not in block.text, f"{block.where}:\n{written}"
                fresh.append((block, written))
            written = None
            continue
        assert block.language == "python", f"{block.where}: nothing runs this block, and no comment says why"
        if block.title and block.title.endswith(".py"):
            written = python(folder / block.title)
        else:
            compiles(block)
    if fresh:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block, now in reversed(fresh):
            text = text[: block.start] + now + text[block.end :]
        (ROOT / page).write_text(text, encoding="utf-8")


def test_what_is_said_to_be_tested_elsewhere_is() -> None:
    for (page, language), test in ELSEWHERE.items():
        assert any(block.language == language for block in blocks(page)), (page, language)
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), (page, test)
