"""`tilec new NAME`: what it makes compiles, runs in the emulator and builds; it replaces nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import tilec
from native import CUDA, STRICT, TOOLS, needs_cmake, ran

from tilec.cli.commands.new import TEMPLATES
from tilec.support import files
from tilec.support.diagnostics import raise_error

MADE = ["CMakeLists.txt", "README.md", "main.cpp", "mine.tl", "reference.py"]


def code(capfd: pytest.CaptureFixture[str]) -> str:
    (found,) = re.findall(r"^error\[(.*?)\]", capfd.readouterr().err, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_commands_of_its_readme(
    template: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tilec("new", "mine", "--template", template) == 0
    assert sorted(path.name for path in Path("mine").iterdir()) == MADE
    monkeypatch.chdir("mine")
    readme = Path("README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^tilec (.+)", readme, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert tilec(*shlex.split(command), "-Werror", "--lint=error") == 0
    assert Path("mine.cubin").exists()
    assert ": matches reference.py:mine\n" in capfd.readouterr().out
    assert not any("@" in Path(file).read_text(encoding="utf-8").replace("@T.", "").replace(" @ ", "") for file in MADE)


SMALL = {
    "gemm": {"M = 1024": "M = 128", "N = 1024": "N = 128", "K = 1024": "K = 64"},
    "attention": {"S = 4096": "S = 128", "heads = 16": "heads = 2"},
    "elementwise": {"N = 1048576": "N = 2048"},
}
"""Constants, as both the kernel and the program write them, and smaller ones."""


@pytest.mark.skipif(CUDA is None or TOOLS["g++"] is None, reason="no cuda.h, or no compiler")
@pytest.mark.parametrize("template", TEMPLATES)
def test_its_program_compares_with_a_reference(
    template: str, driver_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's reference is compared with numpy's: the stand-in of the driver gives back what numpy computes."""
    assert tilec("new", "mine", "--template", template) == 0
    monkeypatch.chdir("mine")
    program = Path("main.cpp").read_text(encoding="utf-8")
    constants = [change.partition(" = ") for change in SMALL[template].values()]
    for large, small in SMALL[template].items():
        assert large in program
        program = program.replace(large, small)
    Path("main.cpp").write_text(program, encoding="utf-8")
    defines = [f"-D{name}={value}" for name, _, value in constants]
    assert tilec("mine.tl", "--target", "sm_90a", "--emit", "header,json", *defines) == 0
    ran(["g++", "-std=c++11", *STRICT, f"-Wl,-rpath,{driver_library}", "main.cpp", "-o", "main"], Path())
    parameters = len(json.loads(Path("mine.json").read_text())[0]["params"])
    monkeypatch.setenv("FAKE_PARAMETERS", str(parameters))
    monkeypatch.setenv("FAKE_COPIES", str(Path().absolute()))
    assert re.search(r"mine: \d+ elements compared, [1-9]", ran(["./main"], Path(), 1)), "nothing has been computed"

    (tensors,) = (one["tensors"] for one in json.loads(Path("mine.json").read_text()))
    given = [
        np.fromfile(str(i), tensor["dtype"]).reshape(tensor["shape"])
        for i, tensor in enumerate(tensors)
        if tensor["role"] == "in"
    ]
    names: dict[str, Any] = {}
    exec(Path("reference.py").read_text(encoding="utf-8"), names)
    names["mine"](*given).astype(tensors[-1]["dtype"]).tofile("result")
    assert re.search(r"mine: \d+ elements compared, 0 wrong", ran(["./main"], Path()))


def build_project(folder: Path, program: Path, cuda: object) -> str:
    """What CMake says as it configures the project, and builds it."""
    settings = [
        f"-DTilec_EXECUTABLE={program}", f"-DTilec_CUDA_INCLUDE={cuda}", f"-DCMAKE_MAKE_PROGRAM={TOOLS['ninja']}"
    ]  # fmt: skip
    said = ran([TOOLS["cmake"], "-G", "Ninja", "-B", "build", *settings], folder)
    return said + ran([TOOLS["cmake"], "--build", "build"], folder)


def run_tests(folder: Path, code: int = 0) -> str:
    # ctest lies beside cmake.
    test = [str(Path(str(TOOLS["cmake"])).with_name("ctest")), "--test-dir", "build", "--output-on-failure"]
    return ran(test, folder, code)


@pytest.mark.weekly
@needs_cmake
def test_its_project_builds_and_its_tests_run(
    tilec_program: Path, driver_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tilec("new", "mine", "--template", "elementwise") == 0
    folder = tmp_path / "mine"
    assert "cuda.h" not in build_project(folder, tilec_program, CUDA)
    (tmp_path / "libcuda.so.1").write_text("none")  # as where there is no driver
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = run_tests(folder)
    assert re.search("100% tests passed.* out of 2", said)
    assert "Skipped" in said
    done = subprocess.run(["build/program"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (77, "no NVIDIA driver on this machine\n")
    kernel = folder / "mine.tl"
    kernel.write_text(kernel.read_text().replace("A[bx", "nowhere[bx"))
    assert "nowhere" in run_tests(folder, 1)


@needs_cmake
def test_its_project_leaves_the_program_out_without_cuda_h(tilec_program: Path, tmp_path: Path) -> None:
    assert tilec("new", "mine", "--template", "elementwise") == 0
    folder = tmp_path / "mine"
    said = " ".join(build_project(folder, tilec_program, "").split())
    assert "program is left out, for there is no cuda.h" in said
    assert "pip install nvidia-cuda-runtime" in said
    assert re.search("100% tests passed.* out of 1", run_tests(folder))


@pytest.mark.parametrize("name", ["", ".", "a/b", "../a", "9lives", "Upper", "a-b", "while", "scale", "é", "a\n"])
def test_names_that_no_kernel_can_have(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("new", name, "--template", "attention") == 1
    assert code(capfd) == "bad-project-name"
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_there_stays(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "mine"
    if kind == "link":
        there.symlink_to("nowhere")
    else:
        there.mkdir() if kind == "folder" else there.write_text("mine")
    assert tilec("new", "mine") == 1
    assert code(capfd) == "folder-exists"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["mine"]


def test_a_folder_that_cannot_be_filled_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "write_all", lambda contents: raise_error("unwritable-output", "no room"))
    assert tilec("new", "mine") == 1
    assert list(Path().iterdir()) == []
