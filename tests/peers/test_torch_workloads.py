"""What benchmarks/gpu.py takes for right, against PyTorch's own functions, on the CPU of an interpreter that has it.

The interpreter is the one that TILEC_TORCH_PYTHON names, or this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from typing import Any

import pytest
from peers import HERE


@lru_cache(maxsize=1)
def torch_python() -> str | None:
    for python in (os.environ.get("TILEC_TORCH_PYTHON"), sys.executable):
        if python and subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    return None


pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(torch_python() is None, reason="no interpreter here imports torch"),
]


@pytest.fixture(scope="module")
def said() -> Any:
    python = torch_python()
    assert python is not None
    done = subprocess.run([python, str(HERE / "torch_workloads.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_references_are_what_pytorch_computes(said: Any) -> None:
    for one in said["workloads"]:
        assert one["shapes"] and one["work"] > 0, one
        assert all(error <= one["allowed"][name] for name, error in one["errors"].items()), one


def test_a_contest_tells_right_from_wrong(said: Any) -> None:
    found = said["contests"]
    assert found["whole"] == ""
    assert found["short"] == "Y: two runs differ"  # the row that nobody wrote has what it was filled with
    assert found["counting"] == "Y: two runs differ"


def test_contenders_take_turns_over_more_than_the_cache_holds(said: Any) -> None:
    assert said["contests"]["sets"] == 6  # of 6 KiB each, twice 16 KiB
    assert said["contests"]["timed"] == {"tilec": True, "copy": True}
