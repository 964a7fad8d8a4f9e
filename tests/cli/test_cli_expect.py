"""`tilec emulate --expect`: a kernel beside what its author says that it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import SMALL, VECTOR_ADD, tilec

CODE = "bad-expectation"

REFERENCE = """
import numpy as np


def add(A, B):
    return A + B


def everything(**given):
    return {"C": given["A"] + given["B"]}


def another(A, B):
    return (A + B + 1,)


def of_none(A, X):
    return A


def of_a_row(A, B):
    return A[3:]


def two(A, B):
    return A, B


def failing(A, B):
    return A[3:] + B
"""


BOTH = """import tilelang.language as T


@T.prim_func
def both(A: T.Tensor((4, 32), "float32"), B: T.Tensor((4, 32), "float32"), C: T.Tensor((4, 32), "float32")):
    with T.Kernel(1, threads=128):
        for i, j in T.Parallel(4, 32):
            B[i, j] = A[i, j] + 1.0
            C[i, j] = A[i, j] - 1.0
"""


@pytest.fixture(autouse=True)
def reference(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(REFERENCE)


@pytest.mark.parametrize("function", ["add", "everything"])
def test_a_function(function: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--expect", f"ref.py:{function}") == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.endswith(f": matches ref.py:{function}")
    assert second.endswith(": matches the kernel run by numpy")
    assert [path.name for path in tmp_path.iterdir()] == ["ref.py"]


def test_what_the_author_means_is_not_what_the_kernel_says(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--no-compare", "--expect", "ref.py:another") == 1
    found = capfd.readouterr()
    assert found.out.endswith(": MISMATCH with ref.py:another\n")
    assert "error[emulation-mismatch]: output C of the emulated kernel differs from ref.py:another" in found.err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_numbers_of_any_type(dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = Path(VECTOR_ADD).read_text()
    (tmp_path / "add.tl").write_text(kernel)
    assert tilec("emulate", "add.tl", *SMALL, "-D", f"dtype={dtype}", "--expect", "ref.py:add") == 0, capfd.readouterr()


@pytest.mark.parametrize("is_right", [True, False])
def test_arrays_of_a_file(is_right: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = np.arange(2048, dtype=np.float32), np.ones(2048, np.float32)
    np.savez(tmp_path / "in.npz", A=a, B=b)
    np.savez(tmp_path / "ref.npz", C=a + (b if is_right else a))
    given = ("--inputs", "in.npz", "--expect", "ref.npz")
    assert tilec("emulate", VECTOR_ADD, *SMALL, *given) == (0 if is_right else 1)
    assert capfd.readouterr().out.endswith("matches ref.npz\n" if is_right else "MISMATCH with ref.npz\n")


def test_an_output_that_the_reference_does_not_have_is_not_said_to_match(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "both.tl").write_text(BOTH)
    (tmp_path / "first.py").write_text("def first(A):\n    return {'B': A + 1}\n")
    assert tilec("emulate", "both.tl", "--no-compare", "--expect", "first.py:first") == 0
    assert capfd.readouterr().out.splitlines() == [
        "C: first.py:first has no such array: not compared",
        "B: 4 × 32 elements of the emulated PTX, worst error 0, 3.12e-07 allowed there: matches first.py:first",
    ]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ref.py:of_none", "ref.py:of_none takes 'X', which is not a parameter of vector_add"),
        ("ref.py:of_a_row", "ref.py:of_a_row: C is float32 [2045], expected float32 [2048]"),
        ("ref.py:two", "ref.py:two returns 2 arrays, but vector_add has 1 outputs"),
        ("ref.py:failing", "ref.py:30: ValueError: operands could not be broadcast"),
        ("ref.py:absent", "ref.py has no function absent"),
        ("broken.py:add", "broken.py:1: SyntaxError"),
        ("strays.npz", "strays.npz has 'A', which is not an output of vector_add"),
        ("none.npz", "none.npz has no array"),
        ("numbers", "numbers does not name a reference"),
    ],
)
def test_what_cannot_be_compared_with(named: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("def add(:\n")
    np.savez(tmp_path / "strays.npz", A=np.zeros(3))
    np.savez(tmp_path / "none.npz")
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--expect", named) == 1
    found = capfd.readouterr().err
    assert found.startswith(f"error[{CODE}]")
    assert said in found
