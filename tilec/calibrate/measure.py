"""Runs the probes on a device and collects their figures: the cycles of one operation, run by run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np

from tilec.calibrate import arithmetic, copies, shared, tensor, thread_barriers
from tilec.calibrate.probe import Array, Probe, Run
from tilec.host import runtime
from tilec.support import readers, schema
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.target.table import Target

PROBES: tuple[Probe, ...] = (
    *arithmetic.build_arithmetic_probes(), *tensor.build_tensor_probes(), *shared.build_shared_probes(),
    *thread_barriers.build_barrier_probes(), *copies.build_copy_probes(),
)  # fmt: skip
SCHEMA = 1
REPEATS = 15
PATIENCE_SECONDS = 60
"""The time limit of a probe's process, which normally takes about two seconds."""


def select_probes(target: Target) -> tuple[Probe, ...]:
    """Return the probes whose instructions the target supports, in the order of PROBES."""
    return tuple(probe for probe in PROBES if all(target.has(feature) for feature in probe.features))


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a figure: the median, and the tenth and ninetieth percentile of its runs."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Return half the distance from low to high divided by the median; 0 if the median is 0."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """`figures`: by name, the time of one operation in each pair of runs, in cycles or, where the name says so, in
    nanoseconds. `faults`: by probe, the reason why it has no figures."""

    target: str
    gpu: str
    driver: str
    date: str
    sms: Annotated[int, schema.Range(1, 1 << 16)]
    figures: Mapping[str, Annotated[tuple[float, ...], schema.Constraint(bool, "figures of at least one run")]]
    faults: Mapping[str, str]

    def spread(self, name: str) -> Spread:
        """Return the median, tenth and ninetieth percentile of the figure's runs; raise KeyError if it was not
        measured.
        """
        ordered = sorted(self.figures[name])
        tenth = len(ordered) // 10
        return Spread(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])


def to_json(measurement: Measurement) -> str:
    return json.dumps({"schema": SCHEMA, **schema.to_plain(measurement)}, indent=1) + "\n"


def from_json(text: str, path: str) -> Measurement:
    """Parse a measurement that `to_json` wrote; raise `bad-measurements`, naming `path`, for any other text."""
    try:
        read = schema.read_record(Measurement, schema.check_schema_version(readers.parse_json(text), SCHEMA), "")
    except ValueError as error:
        raise_error(
            "bad-measurements",
            f"{path} does not hold measurements: {error}",
            help="'tilec calibrate --json FILE' writes them, where there is a GPU",
        )
    # A driver's answer is padded with NULs, and files of earlier versions have them.
    return replace(read, gpu=read.gpu.partition("\0")[0])


class Kernel(Protocol):
    """A loaded probe."""

    def run(self, tensors: Mapping[str, Array], scalars: Mapping[str, int | float]) -> None: ...


Slopes = list[list[float]]
"""For each pair of a short and a long run, the time of one operation in each reading of the probe."""


class ProbeFault(Exception):
    """The reason why a probe has no figures."""


class Device(Protocol):
    """A device that runs probes: this machine's GPU, or a test's stand-in."""

    gpu: str
    driver: str
    sms: int

    def run(self, probe: Probe, cubin: bytes, repeats: int) -> Slopes:
        """Return the time of one operation per pair of runs and reading; raise `ProbeFault` if the probe fails."""


class Gpu:
    """The first GPU of this machine. Each probe has a process, since a fault destroys a process's context."""

    def __init__(self) -> None:
        known = runtime.describe_gpu()
        self.gpu, self.driver, self.sms = known.name, known.driver, known.sms

    def run(self, probe: Probe, cubin: bytes, repeats: int) -> Slopes:
        """Return the probe's slopes, measured in a process of its own; raise `ProbeFault` if it fails or takes a
        minute.
        """
        arguments = (probe.name, str(repeats), str(self.sms))
        command, patience = [sys.executable, "-m", "tilec.calibrate.measure", *arguments], PATIENCE_SECONDS
        environment = _build_child_environment()
        try:
            # Through a pipe, so that an interrupted run leaves no file.
            child = subprocess.run(
                command, input=cubin, capture_output=True, timeout=patience, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            raise ProbeFault(f"it took more than {patience} s") from None
        if child.returncode:
            errors = child.stderr.decode(errors="replace").strip().splitlines()
            raise ProbeFault(errors[-1] if errors else f"its process ended with code {child.returncode}")
        slopes: Slopes = json.loads(child.stdout.splitlines()[-1])
        return slopes


def _build_child_environment() -> dict[str, str]:
    """Return this process's environment with this tilec's folder first in PYTHONPATH."""
    here = str(Path(__file__).parents[2])
    paths = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{paths}" if paths else here}


def can_run_code(capability: tuple[int, int], target: Target) -> bool:
    """Return whether a GPU of this compute capability runs the target's code: sm_90a on 9.0 only, sm_80 on any 8.x."""
    digits = target.ptx_target.removeprefix("sm_").rstrip("af")
    wanted = int(digits[:-1]), int(digits[-1])
    if target.ptx_target[-1] == "a":
        return capability == wanted
    return capability[0] == wanted[0] and capability[1] >= wanted[1]


def find_gpu(target: Target) -> Gpu:
    """Return this machine's GPU; raise `no-gpu` if there is none, `wrong-gpu` if it cannot run the target's code."""
    if not runtime.has_gpu():
        raise_error(
            "no-gpu",
            "there is no GPU here, or no driver for it",
            help="write the probes with --emit DIR, run them on a machine with a GPU, and read the file of --json "
            "with --results",
        )
    major, minor = runtime.compute_capability()
    if not can_run_code((major, minor), target):
        raise_error(
            "wrong-gpu", f"the GPU here has compute capability {major}.{minor}, which does not run {target.name} code"
        )
    return Gpu()


def measure_target(
    device: Device,
    target: Target,
    cubin_of: Callable[[Probe], bytes],
    date: str,
    repeats: int = REPEATS,
    note: Callable[[Probe], None] = lambda probe: None,
    keep: Callable[[Measurement], None] = lambda measurement: None,
) -> Measurement:
    """Run every probe that the target supports, and return the times, and the reason for each probe that failed.
    `cubin_of` returns a probe's cubin. `note` is called with each probe. `keep` receives the results so far before each
    probe, in case a run never ends.
    """
    figures: dict[str, tuple[float, ...]] = {}
    faults: dict[str, str] = {}

    def results_so_far() -> Measurement:
        """Return a measurement of the probes that have run up to now."""
        return Measurement(target.name, device.gpu, device.driver, date, device.sms, dict(figures), dict(faults))

    for probe in select_probes(target):
        keep(results_so_far())
        note(probe)
        try:
            found = device.run(probe, cubin_of(probe), repeats)
        except ProbeFault as fault:
            faults[probe.name] = str(fault)
            continue
        figures |= {name: tuple(run[i] for run in found) for i, name in enumerate(probe.figures)}
    return results_so_far()


def measure_slopes(probe: Probe, kernel: Kernel, sms: int, repeats: int) -> Iterator[list[float]]:
    """Yield, for each of `repeats` pairs of a short and a long run, the time of one operation in each reading.

    A first pair warms up. Raises `ProbeFault` where the threads leave wrong words.
    """
    short, long = probe.trip_count
    for repeat in range(-1, repeats):
        few, many = _take_readings(probe, kernel, short, sms), _take_readings(probe, kernel, long, sms)
        if repeat >= 0:
            operations = (long - short) * probe.operations
            yield [float(later - sooner) / operations for sooner, later in zip(few, many, strict=True)]


def _take_readings(probe: Probe, kernel: Kernel, trip_count: int, sms: int) -> list[int]:
    """Launch the probe once and return its largest readings over the blocks; raise `ProbeFault` for wrong words."""
    blocks = sms if probe.fills_chip else 1
    times = np.full((blocks, len(probe.readings)), -1, np.int64)
    result = np.full((blocks, probe.threads), 0xDEADBEEF, np.uint32)
    rows = {"rows": probe.rows} if probe.rows else {}
    kernel.run({"times": times, "result": result}, {"trips": trip_count, "blocks": blocks, **rows})
    # The memory is zero at first, and words outside the given ones count as zero.
    wrong = find_wrong_word(probe, Run(trip_count, blocks, np.zeros(1, np.uint32)), result)
    if wrong:
        raise ProbeFault(wrong)
    return [int(reading) for reading in times.max(axis=0)]


def find_wrong_word(probe: Probe, run: Run, result: Array) -> str:
    """Return a sentence on the first thread whose word differs from the expected one; empty if none does."""
    wanted = probe.expected(run)
    found: Array = result.view(wanted.dtype)
    close: Any = found == wanted
    if wanted.dtype.kind == "f":
        close = np.isclose(found, wanted, rtol=probe.tolerance, atol=0)
    if close.all():
        return ""
    block, thread = np.argwhere(~close)[0]
    return f"thread {thread} of block {block} left {found[block, thread]}, not {wanted[block, thread]}"


def main(cubin: bytes, name: str, repeats: str, sms: str) -> int:
    """Measure the named probe of a cubin and print its slopes as JSON; return 1 and say why if it fails."""
    (probe,) = (one for one in PROBES if one.name == name)
    try:
        with runtime.hold_primary_context(), closing(runtime.Kernel(cubin)) as kernel:
            print(json.dumps(list(measure_slopes(probe, kernel, int(sms), int(repeats)))))
    except (runtime.GpuError, ProbeFault) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.stdin.buffer.read(), *sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips the interpreter's shutdown, in which a lost context only raises errors
