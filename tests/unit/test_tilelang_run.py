"""`python -m tilec.tilelang_run`: scripts of TileLang run with no GPU, and with no TileLang."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import tilec
from tilec.tilelang_run import capture, modules, symbols
from tilec.tilelang_run.torch_without_gpu import answer_for_gpu, list_answers, move_to_cpu

SCRIPT = """
import sys

import numpy as np
import tilelang
import tilelang.language as T
from tilelang.autotuner import autotune

BLOCK = int(sys.argv[1])  # what Python computes is a constant of the kernel


def shift(x):
    return x + 1


def choose_configs():
    return [dict(block=32), dict(block=64)]


@autotune(configs=choose_configs(), warmup=1)
@tilelang.jit(out_idx=[-1])
def affine(M, N, dtype=T.float32, factors=(1.0,), block=128):
    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block), M, threads=32) as (bx, row):
            for i in T.Parallel(block):
                B[row, bx * block + i] = shift(A[row, bx * block + i] * factors[0])

    return main


@tilelang.jit
def add(A, B, block, rest: int = 0):
    M = T.const("M")
    A: T.Tensor((M,), T.float16)
    B: T.Tensor((M,), T.float16)
    C = T.empty((M,), T.float16)
    with T.Kernel(T.ceildiv(M, block), threads=32) as bx:
        for i in T.Parallel(block):
            C[bx * block + i] = A[bx * block + i] + B[bx * block + i] + rest
    return C


def plain(n):
    half = n // 2

    @T.prim_func
    def fill(A: T.Tensor((n,), "int32"), C: T.Tensor((n,), T.int32)):
        with T.Kernel(1, threads=32) as bx:
            for i in T.Parallel(BLOCK):
                C[i] = T.if_then_else(i < half, A[i], -A[i])

    return fill


def main():
    a = np.arange(120, dtype=np.float32).reshape(2, 60)
    kernel = affine(2, 60, factors=(3.0, 4.0))
    np.testing.assert_array_equal(kernel(a), a * 3 + 1)
    assert ".visible .entry main" in kernel.get_kernel_source() and kernel.out_idx == [1]
    assert np.isnan(kernel.get_profiler().do_bench())
    kernel.get_profiler(tilelang.TensorSupplyType.Integer).assert_allclose(lambda a: a * 3 + 1, rtol=0, atol=0)

    x = np.ones(50, np.float16)
    np.testing.assert_array_equal(add(x, x, block=BLOCK), np.full(50, 2))
    np.testing.assert_array_equal(add.compile(M=40, block=BLOCK, rest=2)(x[:40], x[:40]), np.full(40, 4))

    whole = tilelang.compile(plain(32), out_idx=-1, target="cuda")(np.arange(32, dtype=np.int32))
    np.testing.assert_array_equal(whole, [i if i < 16 else -i for i in range(32)])
    assert (tilelang.cdiv(7, 2), T.ceildiv(9, 4), T.float16.bits, str(T.float)) == (4, 3, 16, "float32")
    print("all as expected", __name__)


if __name__ == "__main__":
    main()
"""


def run_script(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tilec.__file__).parents[1])}
    command = [sys.executable, "-m", "tilec.tilelang_run", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    ran = run_script(path, "32")
    assert (ran.returncode, ran.stdout) == (0, "all as expected __main__\n"), ran.stderr
    assert ran.stderr.splitlines() == [
        "tilec: nothing was tuned: the first of 2 configurations is taken",
        "tilec: nothing was measured, so every time is nan",
    ]


@pytest.fixture
def served() -> Any:
    """The modules that a script imports."""
    with modules.serve_modules():
        yield
    assert "tilelang" not in sys.modules


def load_functions(path: Path, text: str) -> dict[str, Any]:
    """Return the names of a script's text, written to a file that Python can show."""
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, str(path), "exec"), names)
    return names


BROKEN = """import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[1])
def broken(n):

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32) as bx:
            for i in T.Parallel(n):
                B[i] = A[i, 0]

    return main
"""


@pytest.mark.usefixtures("served")
def test_a_mistake_in_a_kernel_is_shown_at_its_line(tmp_path: Path) -> None:
    names = load_functions(tmp_path / "broken.py", BROKEN)
    with pytest.raises(tilec.CompileError) as raised:
        names["broken"](64)
    assert "broken.py:12:" in str(raised.value) and "B[i] = A[i, 0]" in str(raised.value)


@pytest.mark.usefixtures("served")
def test_what_a_kernel_cannot_be_given_is_named(tmp_path: Path) -> None:
    names = load_functions(tmp_path / "broken.py", BROKEN)
    with pytest.raises(TypeError, match="broken: `n` is a value that a kernel cannot be given \\(object\\)"):
        names["broken"](object())
    with pytest.raises(ValueError, match="tilec compiles for NVIDIA GPUs only"):
        sys.modules["tilelang"].compile(None, target="hip")
    with pytest.raises(AttributeError, match=r"tilelang\.tools is not served by tilec"):
        _ = sys.modules["tilelang"].tools


NESTED = """import tilelang.language as T
from tilelang import cdiv, jit
from tilelang.language import prim_func
from tvm import DataType
from torch_free import helper


def outer(n, dtype):
    m = T.dynamic("m")
    scale = n / 2

    @T.macro
    def double(x):
        return x * 2

    @prim_func
    def main(A: T.Tensor((m, n), dtype)):
        with T.Kernel(m, threads=cdiv(DataType(dtype).bits, 16) * 32) as bx:
            for i in T.Parallel(n):
                A[bx, i] = double(A[bx, i]) * helper(scale)
    return main
"""


@pytest.mark.usefixtures("served")
def test_the_text_of_a_kernel_has_what_the_script_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_free.py").write_text("def helper(x):\n    return x + 0.5\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names = load_functions(tmp_path / "nested.py", NESTED)
    kernel = names["outer"](32, symbols.make_element_type("half"))
    text = capture.write_kernel(kernel.source, {}).text
    head, *lines = text.splitlines()
    for each in ("n = 32", "dtype = T.float16", "scale = 16.0", "m = T.dynamic('m', 'int32')"):
        assert each in head.split("; ")
    own = [line.strip() if 12 <= number <= 20 else "" for number, line in enumerate(NESTED.splitlines(), 1)]
    assert [line.strip() for line in lines] == [*own[1:20], "", "def helper(x):", "return x + 0.5"]
    compiled = kernel.compile()
    assert compiled.parameters() == ("A",)


SHAPES = """import tilelang
import tilelang.language as T
from tilelang.carver.arch import driver
from tilelang.contrib import nvcc
from tilelang.language.fp8 import determine_fp8_type
from tvm import tirx

found = nvcc.get_target_compute_version(), determine_fp8_type("e5m2")


def keep_low_bits(x):
    return x & tirx.const(15, T.uint8)


@tilelang.jit
def mask(A):
    M, N = T.const("M, N")
    rows, columns = M, N
    shape = (rows, columns)
    blocks = min(driver.get_num_sms(), M)
    A: T.Tensor(shape, T.uint8)
    B = T.empty(shape, T.uint8)
    with T.Kernel(blocks, threads=32) as bx:
        for i in T.Parallel(N):
            B[bx, i] = keep_low_bits(A[bx, i])
    return B
"""


@pytest.mark.usefixtures("served")
def test_a_shape_with_a_name_gives_the_sizes(tmp_path: Path) -> None:
    """Check sizes from a list of extents with a name, other names of sizes, and what a kernel asks its modules."""
    names = load_functions(tmp_path / "shapes.py", SHAPES)
    function = names["mask"]
    assert (names["found"][0], str(names["found"][1])) == ("9.0", "float8_e5m2")
    array = np.zeros((3, 40), np.uint8)
    assert function._deduce_sizes({"A": array}) == {"M": 3, "N": 40}
    assert function.compile(array).parameters() == ("A", "B")


@pytest.mark.usefixtures("served")
def test_other_packages_find_the_served_modules() -> None:
    """Check what a package does that asks whether TVM is installed."""
    found = importlib.util.find_spec("tvm")
    assert found is not None and found.name == "tvm"


def test_values_as_text() -> None:
    assert capture.write_value({"a": [1, (2.5,)], "b": symbols.make_element_type("float")}) == (
        "{'a': [1, (2.5,)], 'b': T.float32}"
    )
    assert capture.write_value(float("-inf")) == 'float("-inf")'
    assert capture.write_value(object()) is None
    size = symbols.make_dynamic_sizes("n")
    assert repr(symbols.ceildiv(2 * size + 1, 8)) == "T.ceildiv(((2 * T.dynamic('n', 'int32')) + 1), 8)"


# ---- torch -----------------------------------------------------------------------------------------------------------


def test_calls_stay_on_the_cpu() -> None:
    device = type("device", (), {"type": "cuda"})()
    assert move_to_cpu((3, "cuda:1"), {"device": device, "dtype": "x"}) == ((3, "cpu"), {"device": "cpu", "dtype": "x"})
    assert move_to_cpu((), {"device": 0, "pin_memory": True}) == ((), {"device": "cpu", "pin_memory": False})
    assert move_to_cpu(("cuda_name",), {"device": "cpu"}) == (("cuda_name",), {"device": "cpu"})


class _Mode:
    """Stands for torch's function mode; `current` is the one in force."""

    current: ClassVar[list[Any]] = []

    def __enter__(self) -> None:
        self.current.append(self)

    def __exit__(self, *_: object) -> None:
        self.current.pop()


class _Tensor:
    is_cuda = property(lambda self: False)

    def cuda(self) -> str:
        return "moved"


def test_each_name_of_torch_has_a_function_of_its_own() -> None:
    """Check what torch's compiler asserts when a script imports it."""
    functions = [value for value in list_answers((9, 0)).values() if isinstance(value, FunctionType)]
    assert len(set(functions)) == len(functions) > 10


def test_torch_answers_for_a_gpu_only_while_the_script_runs() -> None:
    cuda = SimpleNamespace(is_available=lambda: False, get_device_capability=None)
    torch = SimpleNamespace(cuda=cuda, Tensor=_Tensor, overrides=SimpleNamespace(TorchFunctionMode=_Mode))
    before = dict(cuda.__dict__)
    with answer_for_gpu(torch, (9, 0)):
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        (mode,) = _Mode.current
        tensor = _Tensor()
        assert mode.__torch_function__(_Tensor.cuda, (), (tensor,)) is tensor
        assert mode.__torch_function__(dict, (), (), {"device": "cuda"}) == {"device": "cpu"}
    assert cuda.__dict__ == before and _Mode.current == []
