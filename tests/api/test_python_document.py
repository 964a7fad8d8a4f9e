"""The code of docs/python.md: the first example runs; the operator runs where PyTorch is, and its kernel everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilec

ROOT = Path(__file__).parents[2]
FIRST, OPERATOR = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def test_the_first_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(FIRST, "python.md", "exec"), {})
    assert (
        capsys.readouterr().out
        == "<tilec kernel gemm(A: float16[128, 128], B: float16[128, 128], C: float16[128, 128]) for sm_90a> 128.0\n"
    )


def test_the_kernel_of_the_operator() -> None:
    compile(OPERATOR, "python.md", "exec")
    constants = (node.value for node in ast.walk(ast.parse(OPERATOR)) if isinstance(node, ast.Constant))
    (text,) = (value for value in constants if "T.Kernel" in str(value))
    (call,) = (node for node in ast.walk(ast.parse(OPERATOR)) if ast.unparse(node).startswith("tilec.compile(")
               and isinstance(node, ast.Call))  # fmt: skip
    (device,) = (word.value for word in call.keywords if word.arg == "device")
    for is_there, named in ((True, "cuda"), (False, "emulator")):
        torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda is_there=is_there: is_there))
        assert eval(ast.unparse(device), {"torch": torch}) == named
    kernel = tilec.compile(text, device="emulator")
    x, y = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    kernel(x, y, 3.0)
    np.testing.assert_array_equal(y, x * 3)


def test_the_operator_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, in the emulator: what PyTorch does with an operator is the same."""
    torch = pytest.importorskip("torch")
    names: dict[str, object] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exec(compile(OPERATOR, "python.md", "exec"), names)
    x = torch.arange(300, dtype=torch.float32, requires_grad=True)
    y = torch.ops.tilec.scale(x, 3.0)
    assert torch.equal(y, x * 3)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((300,), 3.0))
