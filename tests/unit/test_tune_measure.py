"""How the tuner measures, with a GPU that a test makes up: what it launches and says, and what becomes of faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.driver import build as driver
from tilec.host import runtime
from tilec.ir.manifest import extract_from_cubin
from tilec.support.options import CompileOptions
from tilec.target.table import load_target
from tilec.tune import measure, trial

SAMPLES = Path(__file__).parents[2] / "samples"
VARIANT = trial.Variant(
    "matmul.tl",
    (SAMPLES / "alcop" / "matmul.tl").read_text(encoding="utf-8"),
    CompileOptions(target="sm_80", defines=(("M", 128), ("N", 128), ("K", 128))),
    is_measured=True,
)


def cubin() -> bytes:
    return driver.build_kernel(VARIANT.source(), VARIANT.options, driver.Observer()).cubin


class FakeKernel:
    def __init__(self, cubin: bytes) -> None:
        (self.manifest,) = extract_from_cubin(cubin)

    def bound(self, addresses: Mapping[str, int], scalars: Mapping[str, int]) -> Callable[[int], None]:
        assert set(addresses) == {tensor.name for tensor in self.manifest.tensors}
        return lambda stream: launched.append(tuple(addresses.values()))

    def close(self) -> None: ...


launched: list[tuple[int, ...]] = []
copied: list[Any] = []


@contextmanager
def fake_gpu(patched: pytest.MonkeyPatch) -> Iterator[None]:
    """Whose launches take as many milliseconds as there were before."""

    @contextmanager
    def context() -> Iterator[None]:
        yield

    def on_gpu(data: Any) -> int:
        copied.append(data)
        return 4096 * len(copied)

    def milliseconds(launch: Callable[[int], None]) -> float:
        launch(0)
        return float(len(launched))

    launched.clear()
    copied.clear()
    for name, fake in {
        "hold_primary_context": context,
        "Kernel": FakeKernel,
        "copy_to_gpu": on_gpu,
        "time_launch": milliseconds,
        "describe_gpu": lambda: runtime.GpuDescription("a GPU", "1", 108),
    }.items():
        patched.setattr(runtime, name, fake)
    yield


def test_launches_take_turns_on_operands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_gpu(monkeypatch):
        measure.main(cubin())
    # The three tensors are small: as many copies as there may be, each launched before the first is launched again.
    assert len(copied) == 3 * measure.MAX_COPIES
    runs = measure.WARM_UPS + measure.REPEATS
    assert len(launched) == len(set(launched)) == runs < measure.MAX_COPIES
    milliseconds, gpu = json.loads(capsys.readouterr().out)
    assert (milliseconds, gpu) == (float(np.median(range(measure.WARM_UPS + 1, runs + 1))), "a GPU")
    assert copied[0].dtype == np.float16 and copied[0].size == 128 * 128 and copied[0].std() > 0.5


def test_contents_of_each_type() -> None:
    assert measure._make_contents("bfloat16", (4, 4)).dtype == np.uint16
    assert not measure._make_contents("int32", (4, 4)).any() and measure._make_contents("int32", (4, 4)).nbytes == 64
    assert measure._make_contents("float4_e2m1fn", (3, 3)).nbytes == 5


def test_a_process_that_fails_is_a_trial_that_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho starting >&2\necho 'GpuError: CUDA_ERROR_LAUNCH_FAILED' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert trial.try_variant(VARIANT).refusal == "on the GPU: GpuError: CUDA_ERROR_LAUNCH_FAILED"


def test_a_measurement_leaves_no_file_whatever_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine code goes through a pipe: while it is measured there is nothing that would have to be removed."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\ncat > {tmp_path}/given\nls -A {tmp_path}/temporary > {tmp_path}/seen\necho '[1, \"\"]'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    measure.measure_cubin(b"machine code")
    assert (tmp_path / "given").read_bytes() == b"machine code"
    assert (tmp_path / "seen").read_text() == "tilec-measures.lock\n"


def test_what_a_process_says_is_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'printed by the kernel'\necho '[0.125, \"a GPU\"]'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found = trial.try_variant(VARIANT)
    assert (found.milliseconds, found.gpu, found.cost("a GPU")) == (0.125, "a GPU", 0.125)
    assert found.cycles > 0


@pytest.mark.parametrize(
    ("capability", "target", "name"),
    [((9, 0), "sm_90a", "a GPU"), ((10, 0), "sm_90a", ""), ((8, 6), "sm_80", "a GPU"), ((9, 0), "sm_80", "")],
)
def test_only_a_gpu_that_runs_the_code(
    capability: tuple[int, int], target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_gpu(monkeypatch):
        monkeypatch.setattr(runtime, "has_gpu", lambda: True)
        monkeypatch.setattr(runtime, "compute_capability", lambda: capability)
        assert measure.find_gpu_for(load_target(target)) == name
        monkeypatch.setattr(runtime, "has_gpu", lambda: False)
        assert measure.find_gpu_for(load_target(target)) == ""


def test_the_lock_of_measurements_follows_no_link_and_writes_nothing(tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / "lock"
    precious.write_bytes(b"old")
    lock.symlink_to(precious)
    with pytest.raises(OSError), measure.hold_machine_lock(lock):
        pass
    assert precious.read_bytes() == b"old"
    lock.unlink()
    for _ in range(2):
        with measure.hold_machine_lock(lock):
            assert lock.read_bytes() == b""
