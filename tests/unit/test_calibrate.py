"""`tilec calibrate` without a GPU: a stand-in device with made-up cycles shows that figures, formulas, file agree."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.calibrate import plan
from tilec.calibrate.measure import (
    PROBES,
    Gpu,
    Measurement,
    ProbeFault,
    Slopes,
    find_gpu,
    from_json,
    measure_slopes,
    measure_target,
    select_probes,
    to_json,
)
from tilec.calibrate.probe import Probe, Run
from tilec.calibrate.rewrite import rewrite_rows
from tilec.cli.main import main
from tilec.host import runtime
from tilec.support import resources
from tilec.support.diagnostics import CompileError
from tilec.target import table as targets

DATE = "2026-01-02"
MACHINE = targets.load_target("sm_90a")

# Made up, for these tests only: what one operation takes, by the beginning of the figure's name.
MADE_UP: dict[str, float] = {
    "fma latency": 4.0,
    "clock of one SM ns": 0.5,  # for each cycle of 1: 2000 MHz
    "clock of one SM": 1.0,
    "clock under load ns": 800.0,  # for 1200 cycles: 1500 MHz
    "clock under load": 1200.0,
    "ex2 latency": 32.0,
    "ex2 throughput": 8.0,
    "shuffle": 27.0,
    "mma.sync bf16 throughput": 6.5,
    "mma.sync bf16 latency": 26.0,
    "wgmma issue 1": 20.0,
    "wgmma issue 5": 36.0,
    "wgmma.ss alone": 134.0,
    "wgmma.rs alone": 138.0,
    "ld.shared latency": 30.0,
    "ldmatrix latency": 36.0,
    "tma.load throughput, boxes of 1024": 25.0,
    "tma.load throughput, boxes of 16384": 320.0,
    "tma.store throughput, boxes of 16384": 256.0,
    "l2 throughput, all SMs ns": 512.0,
    "copy, all SMs ns": 4096.0,
    "cp.async of 2048 bytes from dram": 832.0,
    "ld.global latency from dram": 800.0,
    "named barrier": 21.5,
    "mbarrier one way": 47.25,
    "mbarrier arrive and wait": 4.0,
}


def made_up(figure: str) -> float:
    words = figure.split()
    if figure.startswith(("wgmma.ss bf16 n", "wgmma.rs bf16 n")):
        n = int(words[2][1:])
        return max(n / 2, (64 + n) / 4) if "ss" in words[0] else max(n / 2, 14)
    if words[0] in ("tma.load", "tma.store") and words[2] == "bytes":
        by = {"from dram": (800, 8), "until read": (120, 16), "issue": (12, 0)}.get(" ".join(words[3:]), (400, 2))
        return by[0] + by[1] * int(words[1]) / 1024
    if "shared throughput" in figure or figure in ("ldmatrix throughput", "stmatrix throughput"):
        return 256.0
    return next((value for name, value in MADE_UP.items() if figure.startswith(name)), 1000.0)


class StandIn:
    """Takes the made-up time for each operation and 5000 at each launch, and leaves the right words."""

    gpu, driver, sms = "Stand-in", "1.2.3", 4

    def fails(self, probe: Probe) -> bool:
        return False

    def scrambles(self, probe: Probe) -> bool:
        return False

    def run(self, probe: Probe, cubin: bytes, repeats: int) -> Slopes:
        assert probe.entry == self.entry(cubin)
        if self.fails(probe):
            raise ProbeFault("CUDA_ERROR_LAUNCH_FAILED")
        return list(measure_slopes(probe, StandInKernel(probe, self.scrambles(probe)), self.sms, repeats))

    def entry(self, cubin: bytes) -> str:
        return cubin.decode()


@dataclass
class StandInKernel:
    probe: Probe
    is_scrambled: bool

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, int | float]) -> None:
        probe, trips = self.probe, int(scalars["trips"])
        for i, figure in enumerate(probe.figures):
            tensors["times"][:, i] = round(5000 + made_up(figure) * probe.operations * trips)
        wanted = probe.expected(Run(trips, int(scalars["blocks"]), np.zeros(1, np.uint32)))
        tensors["result"][...] = wanted.view(np.uint32)
        if self.is_scrambled:
            tensors["result"][0, 3] += 1


@cache
def measured(device: StandIn | None = None) -> Measurement:
    return measure_target(device or StandIn(), MACHINE, lambda probe: probe.entry.encode(), DATE, repeats=3)


def cells(measurement: Measurement) -> dict[str, Any]:
    return {
        f"{row.table}/{key}": value
        for row in plan.derive_checked_rows(measurement).rows
        for key, value in row.cells.items()
    }


def test_a_figure_is_the_slope_between_two_runs() -> None:
    measurement = measured()
    assert measurement.faults == {}
    for probe in select_probes(MACHINE):
        for figure in probe.figures:
            spread = measurement.spread(figure)
            assert spread.median == pytest.approx(made_up(figure), rel=1e-3), figure
            assert spread.relative == 0


def test_rows_follow_from_figures() -> None:
    found = cells(measured())
    assert found["limits/clock_mhz"] == 1500
    # 16 KiB on each of 4 SMs in 512 ns, at 1500 MHz.
    assert found["limits/l2_bytes_per_cycle"] == round(4 * 16384 / 512 / 1.5)
    assert found["limits/dram_bytes_per_cycle"] == round(4 * 2 * 65536 / 4096 / 1.5)
    silicon = {key.removeprefix('timing."').replace('".silicon', ""): value for key, value in found.items()}
    assert silicon["wgmma.ss/uses.tc_and_mma"] == "count * max(n / 2, (64 + n) * k_bytes / 128)"
    assert silicon["wgmma.ss/issue"] == "16 + 4 * count"
    assert silicon["wgmma.ss/latency"] == "occupancy + 70"
    assert silicon["wgmma.rs/uses.tc_and_mma"] == "count * max(n / 2, 14)"
    assert silicon["wgmma.rs/uses.tp_mma"] == "count * 14"
    assert silicon["mma.sync/latency"] == "occupancy + 19.5"
    assert silicon["mufu/uses.xu"] == "elements * 8 / 128"
    assert silicon["mufu/latency"] == "occupancy + 20"
    assert silicon["ld.shared/latency"] == "29 + bytes / 128"
    assert silicon["ldmatrix/latency"] == "32 + bytes / 128"
    # To memory at the clock of the file, 1500 of the 2000 MHz that one SM has alone.
    assert silicon["tma.load/latency"] == "600 + 6 * bytes / 1024"
    assert silicon["tma.load/uses.tma"] == "max(25, bytes / 128)"
    assert silicon["tma.load/uses.tp_gnic_rd"] == "bytes / 25.6"
    assert silicon["tma.load/issue"] == 12
    assert silicon["tma.store/latency"] == "120 + 16 * bytes / 1024"
    assert silicon["cp.async/latency"] == "592 + bytes / 64"
    assert silicon["ld.global/latency"] == "600 + bytes / 64"
    assert silicon["barrier/latency"] == 22
    assert silicon["mbarrier/latency"] == 48


@pytest.mark.parametrize("name", resources.target_names())
def test_a_file_changes_in_the_measured_cells_only(name: str) -> None:
    before = resources.target_text(name)
    rows = plan.derive_checked_rows(measured()).rows
    after, changes = rewrite_rows(before, rows, f"{name}.toml")
    changed = [(a, b) for a, b in zip(before.split("\n"), after.split("\n"), strict=True) if a != b]
    assert changed and len(changed) <= len(changes)
    for old, new in changed:
        kept = old.split('cycles = "')[0] if "{ slot" in old else old.split("=")[0]
        assert new.startswith(kept)
        if "}" in old:
            assert old.split("}")[-1] == new.split("}")[-1]  # commas and comments
    read = targets.parse_target(after, f"{name}.toml")
    assert read.features == targets.load_target(name).features
    assert [kind.name for kind in read.kinds] == [kind.name for kind in targets.load_target(name).kinds]
    # Once more with the same figures: nothing new.
    assert rewrite_rows(after, rows, name)[0] == after


def test_the_source_says_where_and_when() -> None:
    text, _ = rewrite_rows(resources.target_text("sm_90a"), plan.derive_checked_rows(measured()).rows, "sm_90a.toml")
    kind = next(kind for kind in targets.parse_target(text, "sm_90a.toml").kinds if kind.name == "wgmma.ss")
    assert kind.source.kind == "measured"
    assert kind.source.where.startswith(
        f"tilec calibrate on Stand-in, driver 1.2.3, {DATE}, 1500 MHz, spread 0.0%: bf16"
    )


def test_a_fault_costs_its_own_rows_only() -> None:
    class Faulty(StandIn):
        def fails(self, probe: Probe) -> bool:
            return probe.name == "wgmma.ss bf16 n256"

        def scrambles(self, probe: Probe) -> bool:
            return probe.name == "mma.sync bf16 latency"

    measurement = measured(Faulty())
    assert set(measurement.faults) == {"wgmma.ss bf16 n256", "mma.sync bf16 latency"}
    assert "thread 3 of block 0 left" in measurement.faults["mma.sync bf16 latency"]
    tables = {row.table for row in plan.derive_checked_rows(measurement).rows}
    assert 'timing."wgmma.rs".silicon' in tables
    assert not tables & {'timing."wgmma.ss".silicon', 'timing."mma.sync".silicon'}


def test_every_probe_stands_behind_a_row_or_is_shown_beside_one() -> None:
    """Beside: other types and functions than the row's, and L2 where the row is DRAM."""
    used: set[str] = set()
    for _, _, formulas in plan.TABLES:
        figures = plan.Figures(measured(), None)
        formulas(figures)
        used |= set(figures.used)
    unused = {figure for probe in PROBES for figure in probe.figures} - used
    others = ("f16", "tf32", "e4m3", "s8", "rcp", "rsqrt", "tanh", "stmatrix", "from l2", "until written", "dram thr")
    others += ("barrier of 256", "mbarrier arrive", "issue", "throughput, all SMs", "copy, all SMs", "n64", "n96")
    others += ("n128", "n192", "rs bf16 n")
    assert [name for name in sorted(unused) if not any(word in name for word in others)] == []


def test_a_comment_stays() -> None:
    text = resources.target_text("sm_90a")
    marked = text.replace("latency = 168\n", "latency = 168 # a round trip\n")
    assert marked != text
    after, _ = rewrite_rows(marked, plan.derive_checked_rows(measured()).rows, "own.toml")
    assert "latency = 48 # a round trip\n" in after


def test_a_file_of_another_form_is_refused() -> None:
    text = resources.target_text("sm_90a").replace("issue = 20\nlatency = 168", "issue = 20")
    with pytest.raises(CompileError) as raised:
        rewrite_rows(text, plan.derive_checked_rows(measured()).rows, "own.toml")
    assert raised.value.diagnostics[0].code == "bad-target-file"
    assert "no line of its own for latency" in raised.value.diagnostics[0].title


@pytest.mark.some(2)
@pytest.mark.parametrize("value", [0.0, -1e308, 1e308, 1e-308])
def test_figures_of_which_nothing_follows(value: float) -> None:
    """Each by turns, as a broken clock or an edited file has it: what is made of it is refused, and the file stands."""
    refused: set[str] = set()
    for name in measured().figures:
        strange = replace(measured(), figures={**measured().figures, name: (value,) * 3})
        fits = plan.derive_checked_rows(strange)
        text, _ = rewrite_rows(resources.target_text("sm_90a"), fits.rows, "own.toml")
        targets.parse_target(text, "own.toml")
        refused |= {cell.split("]")[0].removeprefix("[") for cell in fits.refused}
    # What is no more than one figure, as it stands or in whole cycles, has nothing to contradict it but 0.
    assert refused >= {table for table, _, _ in plan.TABLES} - {BARRIER, MBARRIER, REDUCE} or value > 1


BARRIER, MBARRIER, REDUCE = (f'timing."{kind}".silicon' for kind in ("barrier", "mbarrier", "reduce"))


def test_a_fit_that_its_figures_contradict_is_refused() -> None:
    """As an H200's first figures had it: loads that take no time, and stores that hold their path for twice as long as
    they take."""
    assert plan.derive_checked_rows(measured()).refused == {}
    alone = "tma.store 16384 bytes until read"
    strange = {
        "ld.global latency from dram": (0.0,) * 3,
        "tma.store throughput, boxes of 16384 bytes": (2 * measured().spread(alone).median,) * 3,
        "wgmma issue 5": (10.0,) * 3,  # less than one alone
        "ex2 latency": (11.0,) * 3,  # less than addition and occupancy
        "mbarrier arrive and wait": (20.0,) * 3,  # with 12 for the issue more than a box of 1 KiB
    }
    fits = plan.derive_checked_rows(replace(measured(), figures={**measured().figures, **strange}))
    silicon = {key.removeprefix('[timing."').replace('".silicon]', ""): why for key, why in fits.refused.items()}
    assert silicon["ld.global latency"] == "the formula gives 0 + bytes / 64"
    assert silicon["tma.store uses.tp_gnic_wr"].endswith(f"where bytes = 1.638e+04, and {alone} took 376")
    assert silicon["wgmma.ss issue"].startswith("the formula gives 22.5 + -2.5")
    assert silicon["tma.load uses.tma"] == "a small box takes 25, and the thread that issues it and waits for it 32"
    assert silicon["mufu latency"].startswith("the formula gives occupancy + -1")
    (store,) = (row for row in fits.rows if row.table == 'timing."tma.store".silicon')
    assert set(store.cells) == {"uses.tma", "latency"} and store.where.endswith("; uses.tp_gnic_wr as before")
    assert 'timing."ld.global".silicon' not in {row.table for row in fits.rows}


def test_a_clock_without_load_is_refused_and_the_files_stays() -> None:
    """As when the assembler had left out three of four iterations."""
    lazy = replace(measured(), figures={**measured().figures, "clock under load": (282.0,) * 3})
    fits = plan.derive_checked_rows(lazy, 1600)
    (reason,) = fits.refused.values()
    assert next(iter(fits.refused)).startswith("[limits], every tensor core at work")
    assert reason.endswith("an iteration took 282 cycles, and its products take 1024")
    (load,) = (row for row in fits.rows if row.table == 'timing."tma.load".silicon')
    # 800 cycles of 2000 MHz are 640 of the file's 1600.
    assert load.cells["latency"] == "640 + 6.4 * bytes / 1024" and ", 1600 MHz, " in load.where


def test_a_fit_far_from_a_figure_is_refused() -> None:
    """A line through points that lie on none, and narrow products that neither rate describes."""
    figures = {**measured().figures, "wgmma.ss bf16 n16": (400.0,) * 3, "tma.load 32768 bytes from dram": (3400.0,) * 3}
    refused = plan.derive_checked_rows(replace(measured(), figures=figures)).refused
    assert "wgmma.ss bf16 n16 took 400" in refused['[timing."wgmma.ss".silicon] uses.tc_and_mma']
    assert "and tma.load of 1024 bytes took 606" in refused['[timing."tma.load".silicon] latency']


# ---- a process for each probe ---------------------------------------------------------------------------------------


def gpu_with(child: str, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU whose probes run in processes of this text, in place of `tilec.calibrate.measure`."""
    monkeypatch.setattr(runtime, "describe_gpu", lambda: runtime.GpuDescription("Stand-in", "1.2.3", 4))
    run = subprocess.run

    def stand_in(command: list[str], **rest: Any) -> Any:
        assert command[1:3] == ["-m", "tilec.calibrate.measure"] and rest["input"] == b"cubin"
        # Whoever hangs need not be waited for; the others have as long as a busy machine takes.
        seconds = 1 if "time.sleep" in child and "ex2 latency" in command else 600
        return run([command[0], "-c", child, *command[3:]], **rest | {"timeout": seconds})

    monkeypatch.setattr("tilec.calibrate.measure.subprocess.run", stand_in)
    monkeypatch.setattr("tilec.calibrate.measure.PATIENCE_SECONDS", 2)
    return Gpu()


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("print('CUDA_ERROR_MISALIGNED_ADDRESS', file=sys.stderr); sys.exit(1)", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("os._exit(139)", "its process ended with code 139"),
        ("time.sleep(60)", "it took more than 2 s"),
    ],
)
def test_a_fault_ends_its_own_process_only(ending: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = f"""import os, sys, time
if sys.argv[1] == "ex2 latency":
    {ending}
print("noise")
print([[4.0, 5.0]] * int(sys.argv[2]))
"""
    device = gpu_with(child, monkeypatch)
    monkeypatch.setattr("tilec.calibrate.measure.select_probes", lambda target: chosen)
    chosen = [probe for probe in PROBES if probe.name in ("fma latency", "ex2 latency", "clock of one SM")]
    measurement = measure_target(device, MACHINE, lambda probe: b"cubin", DATE, repeats=2)
    assert measurement.faults == {"ex2 latency": why}
    clock = {"clock of one SM": (4.0, 4.0), "clock of one SM ns": (5.0, 5.0)}
    assert measurement.figures == {"fma latency": (4.0, 4.0), **clock}


def test_a_process_without_a_gpu_says_so() -> None:
    device = object.__new__(Gpu)
    device.sms = 4
    with pytest.raises(ProbeFault) as raised:
        device.run(PROBES[0], b"cubin", 1)
    assert "cuda" in str(raised.value).lower() or "driver" in str(raised.value).lower()


# ---- files -----------------------------------------------------------------------------------------------------------


def test_measurements_read_back() -> None:
    measurement = measured()
    assert from_json(to_json(measurement), "m.json") == measurement


def test_the_name_of_a_device_ends_at_its_first_nul(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver returns it, and as a file of an earlier version has it."""
    from cuda.bindings import driver

    padded = b"NVIDIA H200".ljust(128, b"\0")
    monkeypatch.setattr(runtime, "_check_status", lambda result: result)
    monkeypatch.setattr(runtime, "_read_driver_version", lambda: "1.2.3")
    for name, answer in {"cuInit": 0, "cuDeviceGet": 0, "cuDeviceGetName": padded, "cuDeviceGetAttribute": 4}.items():
        monkeypatch.setattr(driver, name, lambda *_, answer=answer: answer)
    assert runtime.describe_gpu() == runtime.GpuDescription("NVIDIA H200", "1.2.3", 4)
    old = replace(measured(), gpu=padded.decode())
    assert from_json(to_json(old), "m.json").gpu == "NVIDIA H200"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 7}', '{"schema": 1, "figures": {"a": []}}'])
def test_other_files_are_no_measurements(text: str) -> None:
    with pytest.raises(CompileError) as raised:
        from_json(text, "m.json")
    assert raised.value.diagnostics[0].code == "bad-measurements"


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(runtime, "has_gpu", lambda: False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_needs_a_gpu(without_gpu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "no-gpu"
    assert main(["calibrate", "-o", "new.toml"]) == 1
    assert capfd.readouterr().err.startswith(f"error[{code}]: ")
    assert list(without_gpu.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False), ("sm_80", (8, 6), True), ("sm_80", (9, 0), False)],
)
def test_needs_the_right_gpu(
    target: str, capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(runtime, "compute_capability", lambda: capability)
    monkeypatch.setattr(runtime, "describe_gpu", lambda: runtime.GpuDescription("Stand-in", "1.2.3", 4))
    if runs:
        assert find_gpu(targets.load_target(target)).sms == 4
        return
    with pytest.raises(CompileError) as raised:
        find_gpu(targets.load_target(target))
    assert raised.value.diagnostics[0].code == "wrong-gpu"


@pytest.mark.parametrize(
    "arguments", [["--emit", "a", "--results", "b"], ["--emit", "a", "-o", "b"], ["--results", "a", "--json", "b"]]
)
def test_what_does_not_go_together(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) == 2


def test_results_rewrite_a_file(without_gpu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (without_gpu / "m.json").write_text(to_json(measured()))
    own = resources.target_text("sm_90a") + "# mine\n"
    (without_gpu / "own.toml").write_text(own)
    assert main(["calibrate", "--results", "m.json", "-o", "own.toml"]) == 0
    text = (without_gpu / "own.toml").read_text()
    assert text == rewrite_rows(own, plan.derive_checked_rows(measured()).rows, "own.toml")[0]
    assert text.endswith("# mine\n") and "clock_mhz = { value = 1500, " in text
    shown = capfd.readouterr().out
    assert "wgmma.ss bf16 n256" in shown and "128.00" in shown
    assert main(["calibrate", "--target", "sm_80", "--results", "m.json"]) == 1
    assert "was measured for sm_90a" in capfd.readouterr().err


BLOCKED = ("lark", "ortools", "torch", "triton", "ml_dtypes")


@pytest.mark.weekly
def test_emit_and_carry(without_gpu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What --emit writes is what --cubins takes, in a Python that has neither Lark nor OR-Tools."""
    assert main(["calibrate", "--emit", "probes", "--target", "sm_80"]) == 0
    listed = json.loads((without_gpu / "probes" / "plan.json").read_text())["probes"]
    assert [entry["probe"] for entry in listed] == [probe.name for probe in select_probes(targets.load_target("sm_80"))]
    program = f"""
import sys
for name in {BLOCKED}: sys.modules[name] = None
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import test_calibrate
from tilec.cli.main import main
from tilec.host import runtime
from tilec.calibrate import measure
class Device(test_calibrate.StandIn):
    def entry(self, cubin):
        from tilec.ir.manifest import extract_from_cubin
        return extract_from_cubin(cubin)[0].entry
measure.find_gpu = lambda target: Device()
sys.exit(main(["calibrate", "--target", "sm_80", "--cubins", "probes", "--repeats", "3", "--json", "m.json"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measurement = from_json((without_gpu / "m.json").read_text(), "m.json")
    assert measurement.faults == {} and measurement.figures["fma latency"] == (4.0, 4.0, 4.0)
    victim = without_gpu / "probes" / listed[0]["file"]
    victim.write_bytes(victim.read_bytes() + b"\0")
    program = program.replace("m.json", "other.json")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "error[bad-measurements]" in done.stderr
