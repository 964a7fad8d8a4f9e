"""`tilec new NAME`: what it makes compiles, runs in the emulator and builds; it replaces nothing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command import tilec
from native import CUDA, TOOLS, needs_cmake, ran

from tilec.cli.new import TEMPLATES
from tilec.support import files
from tilec.support.diagnostics import fail

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


@pytest.mark.weekly
@needs_cmake
def test_its_project_builds_and_its_test_runs(tilec_program: Path, driver_library: Path, tmp_path: Path) -> None:
    assert tilec("new", "mine", "--template", "elementwise") == 0
    folder = tmp_path / "mine"
    settings = [
        f"-DTilec_EXECUTABLE={tilec_program}",
        f"-DCUDA_INCLUDE={CUDA}",
        f"-DCUDA_DRIVER={driver_library / 'libcuda.so'}",
        f"-DCMAKE_MAKE_PROGRAM={TOOLS['ninja']}",
    ]
    ran([TOOLS["cmake"], "-G", "Ninja", "-B", "build", *settings], folder)
    ran([TOOLS["cmake"], "--build", "build"], folder)
    assert '"mine"' in ran(["build/program"], folder)
    # ctest lies beside cmake.
    test = [str(Path(str(TOOLS["cmake"])).with_name("ctest")), "--test-dir", "build", "--output-on-failure"]
    assert re.search("100% tests passed.* out of 1", ran(test, folder))
    kernel = folder / "mine.tl"
    kernel.write_text(kernel.read_text().replace("A[bx", "nowhere[bx"))
    assert "nowhere" in ran(test, folder, 1)


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
    monkeypatch.setattr(files, "write_all", lambda contents: fail("unwritable-output", "no room"))
    assert tilec("new", "mine") == 1
    assert list(Path().iterdir()) == []
