"""A machine is one file: machines that nobody sells, described in a folder of the test, get schedules and code that fit
them, and compute what the tile programs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import SAMPLES, agrees, built

from tilec.cli.main import main
from tilec.driver.build import Observer, build_library
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.support.resources import target_names, target_text
from tilec.target.names import UNIVERSAL_FEATURES
from tilec.target.table import load_target

KIB = 1024


def changed(text: str, **numbers: int) -> str:
    """With other numbers in the rows of these names, each of which is there."""
    for name, value in numbers.items():
        text, found = re.subn(rf"(?m)^({name} = {{ value = )\d+", rf"\g<1>{value}", text)
        assert found, name
    return text


def without(text: str, *features: str) -> str:
    for feature in features:
        assert f'"{feature}"' in text
        text = re.sub(rf'"{re.escape(feature)}"(, )?', "", text, count=1)
    return text


def workshop() -> str:
    """A small chip with little shared memory and slow tensor cores, that copies without `cp.async`."""
    text = without(target_text("sm_89"), "fp8", "cp.async")
    return changed(text, sms=6, smem_bytes_per_cta=48 * KIB, smem_bytes_per_sm=52 * KIB, mma=64)


def atelier() -> str:
    """TMA and barriers in shared memory, but neither wgmma nor clusters, with 64 KiB a block."""
    text = without(target_text("sm_90a"), "wgmma", "cluster", "dependent_launch")
    return changed(text, sms=24, smem_bytes_per_cta=64 * KIB, smem_bytes_per_sm=68 * KIB)


MACHINES = {"workshop": (workshop, 48), "atelier": (atelier, 64)}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    describe, _ = MACHINES[request.param]
    path = tmp_path / f"{request.param}.toml"
    path.write_text(re.sub('(?m)^name = ".*"', f'name = "{request.param}"', describe()), encoding="utf-8")
    return path


KERNELS = {
    "gemm.tl": {"M": 128, "N": 128, "K": 192, "num_stages": 3, "block_K": 32},
    "softmax.tl": {},
    "flash_attention.tl": {"heads": 1, "S": 128, "D": 64, "block_M": 64, "block_N": 32},
    "gemm_bias_relu.tl": {"M": 128, "N": 128, "K": 128, "num_stages": 2, "block_K": 32},
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compute_the_same(kernel: str, machine: Path) -> None:
    given = KERNELS[kernel]
    made = agrees(SAMPLES / kernel, str(machine), strict=False, **given)
    _, kib = MACHINES[machine.stem]
    assert made.manifest.dynamic_smem <= kib * KIB


def interval(target: str) -> int:
    source = read_source(str(SAMPLES / "gemm.tl"))
    (plan,) = build_library(source, CompileOptions(target=target, scheduler="heuristic"), Observer()).plans
    return plan.loops[0].solution.schedule.ii


def test_slower_tensor_cores_have_longer_intervals(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(changed(target_text("sm_89"), mma=64), encoding="utf-8")
    assert interval(str(path)) >= 1.8 * interval("sm_89")


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workshop.toml"
    path.write_text(workshop().replace('name = "sm_89"', 'name = "workshop"'), encoding="utf-8")
    folder = tmp_path / "out"
    gemm, sizes = str(SAMPLES / "gemm.tl"), ["-D", "M=128", "-D", "N=128", "-D", "K=128", "-D", "num_stages=2"]
    made = [gemm, "--target-file", str(path), *sizes, "-o", f"{folder}/gemm.cubin", "-MF", f"{folder}/gemm.d"]
    assert main(made) == 0
    assert str(path) in (folder / "gemm.d").read_text(encoding="utf-8"), "a change of the machine is a reason to build"
    assert main(["schedule", gemm, "--target-file", str(path), *sizes]) == 0
    assert "workshop has no TMA" in capfd.readouterr().out
    assert main(["emulate", gemm, "--target-file", str(path), *sizes]) == 0
    assert "matches the kernel run by numpy" in capfd.readouterr().out
    assert main(["targets", str(path)]) == 0
    assert "49,152" in capfd.readouterr().out


REMOVED = [
    (name, feature)
    for name in target_names()
    for feature in load_target(name).features
    if feature not in UNIVERSAL_FEATURES and name not in ("sm_103a", "sm_110a")
]


@pytest.mark.parametrize(("name", "feature"), REMOVED)
def test_each_feature_is_asked_for(name: str, feature: str, tmp_path: Path) -> None:
    """Without it there is other code, or the same, but none that the assembler refuses or that is wrong."""
    path = tmp_path / "less.toml"
    path.write_text(without(target_text(name), feature), encoding="utf-8")
    agrees(SAMPLES / "gemm.tl", str(path), strict=False, M=128, N=128, K=192)


@pytest.mark.weekly
def test_what_is_removed_is_not_used(tmp_path: Path) -> None:
    for name, feature, words in (
        ("sm_80", "cp.async", "cp.async."),
        ("sm_90a", "tma", "cp.async.bulk.tensor"),
        ("sm_90a", "wgmma", "wgmma."),
        ("sm_90a", "stmatrix", "stmatrix."),
        ("sm_100a", "tcgen05", "tcgen05."),
    ):
        path = tmp_path / f"{name}_without_{feature}.toml"
        path.write_text(without(target_text(name), feature), encoding="utf-8")
        _, whole = built(SAMPLES / "gemm.tl", name)
        _, less = built(SAMPLES / "gemm.tl", str(path))
        assert words in whole.ptx, (name, feature)
        assert words not in less.ptx, (name, feature)
