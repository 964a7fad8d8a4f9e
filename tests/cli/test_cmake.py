"""A C++ project with kernels, configured and built with CMake and Ninja; and the documents about builds."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from command import GEMM, SAMPLES, VECTOR_ADD, tilec
from native import CUDA, STRICT, TOOLS, needs_cmake, ran

pytestmark = pytest.mark.weekly

ROOT = Path(__file__).parents[2]
MAIN = """\
#include "doubled.h"
#include "vector_add.h"
int main() {
    doubled_kernel kernel;
    return doubled_load(&kernel) == CUDA_SUCCESS ? 0 : 1;
}
"""
KERNEL = """\
import tilelang.language as T
from .parts.factor import FACTOR
N = 256
@T.prim_func
def doubled(A: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(N):
            A[i] = A[i] * FACTOR
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(program CXX)
find_package(Tilec 0.1 REQUIRED)
add_executable(program main.cpp)
tilec_add_kernels(program SOURCES kernels/doubled.tl vector_add.tl TARGETS sm_80 sm_90a DEFINES N=2048 OPTIONS -Werror)
"""


def configured(tmp_path: Path, program: Path, library: Path, project: str = PROJECT, code: int = 0) -> str:
    (tmp_path / "kernels" / "parts").mkdir(parents=True)
    (tmp_path / "kernels" / "parts" / "factor.tl").write_text("FACTOR = 2.0\n")
    (tmp_path / "kernels" / "doubled.tl").write_text(KERNEL)
    shutil.copy(VECTOR_ADD, tmp_path)
    (tmp_path / "main.cpp").write_text(MAIN)
    (tmp_path / "CMakeLists.txt").write_text(project)
    modules = ran([str(program), "--cmake-dir"], tmp_path).strip()
    settings = [
        f"-DCMAKE_MODULE_PATH={modules}",
        f"-DTilec_EXECUTABLE={program}",
        f"-DTilec_CUDA_INCLUDE={CUDA}",
        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror",
        f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath,{library}",
        f"-DCMAKE_MAKE_PROGRAM={TOOLS['ninja']}",
    ]
    return ran([TOOLS["cmake"], "-G", "Ninja", "-S", ".", "-B", "out", *settings], tmp_path, code)


@needs_cmake
def test_a_project_with_kernels(tilec_program: Path, driver_library: Path, tmp_path: Path) -> None:
    configured(tmp_path, tilec_program, driver_library)
    build = [TOOLS["cmake"], "--build", "out"]
    assert "Compiling tile kernel kernels/doubled.tl" in ran(build, tmp_path)
    assert '"doubled"' in ran(["out/program"], tmp_path)
    assert "no work to do" in ran(build, tmp_path)
    assert "grid[3] = {2, 1, 1}" in (tmp_path / "out" / "program.kernels" / "vector_add.h").read_text(), "-DN=2048"
    (tmp_path / "kernels" / "parts" / "factor.tl").write_text("FACTOR = 3.0\n")
    said = ran(build, tmp_path)
    assert "doubled.tl" in said
    assert "vector_add.tl" not in said
    assert "no work to do" in ran(build, tmp_path)


@needs_cmake
def test_a_wrong_kernel_fails_the_build(tilec_program: Path, driver_library: Path, tmp_path: Path) -> None:
    configured(tmp_path, tilec_program, driver_library)
    (tmp_path / "kernels" / "doubled.tl").write_text(KERNEL.replace("* FACTOR", "* nowhere"))
    assert re.search(r"error\[[a-z-]+\].*nowhere", ran([TOOLS["cmake"], "--build", "out"], tmp_path, 1))


@needs_cmake
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("tilec_add_kernels(nobody SOURCES a.tl TARGETS sm_80)", "there is no target nobody"),
        ("tilec_add_kernels(program SOURCES a.tl)", "TARGETS are missing"),
        ("tilec_add_kernels(program a.tl TARGETS sm_80)", "a.tl is behind none of SOURCES"),
        ("find_package(Tilec 99 REQUIRED)", 'required is at least "99"'),
        (
            "tilec_add_kernels(program SOURCES vector_add.tl kernels/vector_add.tl TARGETS sm_80)",
            "two SOURCES of program would both be vector_add.h",
        ),
    ],
)
def test_calls_that_say_too_little(
    call: str, said: str, tilec_program: Path, driver_library: Path, tmp_path: Path
) -> None:  # fmt: skip
    before = PROJECT.split("tilec_add_kernels")[0]
    assert said in " ".join(configured(tmp_path, tilec_program, driver_library, f"{before}{call}\n", 1).split())


@needs_cmake
def test_lists_may_be_variables(tilec_program: Path, driver_library: Path, tmp_path: Path) -> None:
    before = PROJECT.split("tilec_add_kernels")[0]
    lists = "set(files kernels/doubled.tl vector_add.tl)\nset(machines sm_80 sm_90a)\n"
    call = 'tilec_add_kernels(program SOURCES "${files}" TARGETS "${machines}")\n'
    configured(tmp_path, tilec_program, driver_library, before + lists + call)
    rules = (tmp_path / "out" / "build.ninja").read_text()
    assert all(f"{name}.tl --target sm_80,sm_90a " in rules for name in ("kernels/doubled", "vector_add"))


# ---- documents -------------------------------------------------------------------------------------------------------


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def in_a_folder_of_kernels(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "out").mkdir()
    for kernel in (GEMM, str(SAMPLES / "softmax.tl")):
        shutil.copy(kernel, tmp_path)
        shutil.copy(kernel, tmp_path / "kernels")


def test_the_call_of_the_document(tmp_path: Path) -> None:
    in_a_folder_of_kernels(tmp_path)
    (call,) = (block for block in blocks("building.md", "sh") if block.startswith("tilec "))
    assert tilec(*call.split()[1:]) == 0
    made = sorted(p.name for p in (tmp_path / "out").iterdir())
    suffixes = ("d", "fatbin", "sm_80.cubin", "sm_80.json", "sm_90a.cubin", "sm_90a.json")
    assert made == [f"{name}.{suffix}" for name in ("gemm", "softmax") for suffix in suffixes]


def test_the_calls_of_the_workflow(tmp_path: Path) -> None:
    in_a_folder_of_kernels(tmp_path)
    (workflow,) = (block for block in blocks("building.md", "yaml") if "runs-on" in block)
    calls = re.findall(r"run: (?:.*&& )?tilec (.*)", workflow)
    assert len(calls) == 2
    for call in calls:
        words = [w for word in call.split() for w in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
        assert tilec(*words) == 0
    assert (tmp_path / "out" / "gemm.fatbin").exists()


def test_the_pre_commit_hook_of_the_document_exists() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    (used,) = (block for block in blocks("building.md", "yaml") if "hooks:" in block)
    (name,) = re.findall(r"- id: (\S+)", used)
    assert f"- id: {name}\n" in hooks
    (entry,) = re.findall(r"entry: tilec (.*)", hooks)
    (arguments,) = re.findall(r"args: \[(.*)\]", used)
    Path("parts.tl").write_text("N = 2048\n")
    assert tilec(*entry.split(), *arguments.split(", "), GEMM, "parts.tl", VECTOR_ADD) == 0
    assert tilec("check", "parts.tl") == 1
    Path("parts.tl").write_text("N = 2048 +\n")
    assert tilec(*entry.split(), "parts.tl") == 1


@pytest.mark.parametrize("tool", ["make", "ninja"])
def test_the_rules_of_the_document(
    tool: str, tilec_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if TOOLS[tool] is None:
        pytest.skip(f"no {tool} here")
    monkeypatch.setenv("PATH", f"{tilec_program.parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copy(GEMM, tmp_path)
    if tool == "make":
        (tmp_path / "Makefile").write_text(blocks("building.md", "make")[0])
    else:
        (tmp_path / "build.ninja").write_text(blocks("building.md", "ninja")[0] + "build gemm.cubin: tilec gemm.tl\n")
    ran([TOOLS[tool]], tmp_path)
    assert (tmp_path / "gemm.cubin").exists()
    assert re.search("no work to do|up to date", ran([TOOLS[tool]], tmp_path))
    os.utime(tmp_path / "gemm.tl")
    assert "gemm.tl" in ran([TOOLS[tool], *(["-v"] if tool == "ninja" else [])], tmp_path)


@pytest.mark.skipif(CUDA is None, reason="no cuda.h")
def test_the_program_of_the_document_runs(driver_library: Path, tmp_path: Path) -> None:
    assert tilec(GEMM, "--target", "sm_80,sm_90a", "--emit", "header") == 0
    program, _ = blocks("cpp.md", "c")  # the other one is of several source files
    for name, compiler in (("main.c", ["gcc", "-std=c11"]), ("main.cpp", ["g++", "-std=c++11"])):
        (tmp_path / name).write_text(program)
        ran([*compiler, *STRICT, name, "-o", "main"], tmp_path)
        said = ran(["env", f"LD_LIBRARY_PATH={driver_library}", "FAKE_PARAMETERS=3", "./main"], tmp_path)
        assert '"call": "launch"' in said
        assert "no error" in said


def test_the_project_of_the_document_is_the_one_that_is_built() -> None:
    """Its calls, with what only differs in names."""
    (project,) = blocks("cpp.md", "cmake")
    pattern = r"^(?:cmake_minimum_required|project|find_package|add_executable)\(.*\)$"
    assert re.findall(pattern, project, re.MULTILINE) == re.findall(pattern, PROJECT, re.MULTILINE)
    call = re.compile(r"tilec_add_kernels\(program ([A-Z]+) .* ([A-Z]+) .* ([A-Z]+) .* ([A-Z]+) .*\)")
    matches = [call.search(text) for text in (project, PROJECT)]
    assert matches[0] and matches[1] and matches[0].groups() == matches[1].groups()
