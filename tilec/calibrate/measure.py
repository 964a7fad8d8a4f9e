"""Runs the probes on a device and keeps what they say: for each figure the cycles of one operation, run by run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Annotated, Any, Protocol

import numpy as np

from tilec.calibrate import arithmetic, copies, shared, tensor, thread_barriers
from tilec.calibrate.probe import Array, Probe, Run
from tilec.host import runtime
from tilec.support import readers, schema
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass
from tilec.target.table import Target

PROBES: tuple[Probe, ...] = tuple(
    probe for family in (arithmetic, tensor, shared, thread_barriers, copies) for probe in family.probes()
)
SCHEMA = 1
REPEATS = 15


def probes_for(target: Target) -> tuple[Probe, ...]:
    """Those whose instructions the target has."""
    return tuple(probe for probe in PROBES if all(target.has(feature) for feature in probe.features))


# ---- what comes out --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure: the median, and the tenth and the ninetieth percentile of its runs."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Half the way from low to high, as a share of the median."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """`figures`: by name, what one operation took in each pair of runs, in cycles or, where the name says so, in
    nanoseconds. `faults`: by probe, why there is none."""

    target: str
    gpu: str
    driver: str
    date: str
    sms: Annotated[int, schema.Range(1, 1 << 16)]
    figures: Mapping[str, Annotated[tuple[float, ...], schema.Where(bool, "figures of one run at least")]]
    faults: Mapping[str, str]

    def spread(self, name: str) -> Spread:
        ordered = sorted(self.figures[name])
        tenth = len(ordered) // 10
        return Spread(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])


def to_json(measurement: Measurement) -> str:
    return json.dumps({"schema": SCHEMA, **schema.plain(measurement)}, indent=1) + "\n"


def from_json(text: str, path: str) -> Measurement:
    """The measurement that `to_json` wrote into the file at `path`, or `bad-measurements`."""
    try:
        return schema.record(Measurement, schema.versioned(readers.json_value(text), SCHEMA), "")
    except ValueError as error:
        fail(
            "bad-measurements",
            f"{path} does not hold measurements: {error}",
            help="'tilec calibrate --json FILE' writes them, where there is a GPU",
        )


# ---- devices ---------------------------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A loaded probe."""

    def run(self, tensors: Mapping[str, Array], scalars: Mapping[str, int | float]) -> None: ...


class Device(Protocol):
    """What runs cubins: the GPU of this machine, or a test's stand-in."""

    gpu: str
    driver: str
    sms: int

    def opened(self, cubin: bytes) -> AbstractContextManager[Kernel]: ...


class Gpu:
    """The first GPU of this machine."""

    def __init__(self) -> None:
        known = runtime.description()
        self.gpu, self.driver, self.sms = known.name, known.driver, known.sms

    def opened(self, cubin: bytes) -> AbstractContextManager[Kernel]:
        return closing(runtime.Kernel(cubin))


def runs_code(capability: tuple[int, int], target: Target) -> bool:
    """Whether a GPU of that compute capability does: code for sm_90a runs on 9.0 only, code for sm_80 on every 8.x."""
    digits = target.ptx_target.removeprefix("sm_").rstrip("af")
    wanted = int(digits[:-1]), int(digits[-1])
    if target.ptx_target[-1] == "a":
        return capability == wanted
    return capability[0] == wanted[0] and capability[1] >= wanted[1]


def gpu_for(target: Target) -> Gpu:
    """The GPU of this machine, if there is one that runs the target's code; else `no-gpu` or `wrong-gpu`."""
    if not runtime.has_gpu():
        fail(
            "no-gpu",
            "there is no GPU here, or no driver for it",
            help="write the probes with --emit DIR, carry them to a GPU, and bring back what --json writes there",
        )
    major, minor = runtime.compute_capability()
    if not runs_code((major, minor), target):
        fail("wrong-gpu", f"the GPU here has compute capability {major}.{minor}, which does not run {target.name} code")
    return Gpu()


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    device: Device,
    target: Target,
    cubin_of: Callable[[Probe], bytes],
    date: str,
    repeats: int = REPEATS,
    note: Callable[[Probe], None] = lambda probe: None,
) -> Measurement:
    """Runs every probe of the target. One that fails, or leaves wrong words, has no figures; nor have those after one
    that the driver has given up on, for its context is lost."""
    figures: dict[str, tuple[float, ...]] = {}
    faults: dict[str, str] = {}
    for probe in probes_for(target):
        note(probe)
        try:
            with device.opened(cubin_of(probe)) as kernel:
                found = list(_slopes(probe, kernel, device.sms, repeats))
        except (runtime.GpuError, WrongWords) as error:
            faults[probe.name] = str(error)
            continue
        figures |= {name: tuple(run[i] for run in found) for i, name in enumerate(probe.figures)}
    return Measurement(target.name, device.gpu, device.driver, date, device.sms, figures, faults)


class WrongWords(Exception):
    """The threads did not leave what the instructions mean."""


def _slopes(probe: Probe, kernel: Kernel, sms: int, repeats: int) -> Iterator[list[float]]:
    """For each pair of a short and a long run, what one operation takes in each reading. A first pair warms up."""
    short, long = probe.trip_count
    for repeat in range(-1, repeats):
        few, many = _readings(probe, kernel, short, sms), _readings(probe, kernel, long, sms)
        if repeat >= 0:
            operations = (long - short) * probe.operations
            yield [float(later - sooner) / operations for sooner, later in zip(few, many, strict=True)]


def _readings(probe: Probe, kernel: Kernel, trip_count: int, sms: int) -> list[int]:
    """Of the block that took longest."""
    blocks = sms if probe.fills_chip else 1
    times = np.full((blocks, len(probe.readings)), -1, np.int64)
    result = np.full((blocks, probe.threads), 0xDEADBEEF, np.uint32)
    rows = {"rows": probe.rows} if probe.rows else {}
    kernel.run({"times": times, "result": result}, {"trips": trip_count, "blocks": blocks, **rows})
    # The memory is zero at first, and what lies outside of the words known here counts as zero.
    wrong = wrong_words(probe, Run(trip_count, blocks, np.zeros(1, np.uint32)), result)
    if wrong:
        raise WrongWords(wrong)
    return [int(reading) for reading in times.max(axis=0)]


def wrong_words(probe: Probe, run: Run, result: Array) -> str:
    """What is wrong with the words that the threads left; nothing if they are right."""
    wanted = probe.expected(run)
    found: Array = result.view(wanted.dtype)
    close: Any = found == wanted
    if wanted.dtype.kind == "f":
        close = np.isclose(found, wanted, rtol=probe.tolerance, atol=0)
    if close.all():
        return ""
    block, thread = np.argwhere(~close)[0]
    return f"thread {thread} of block {block} left {found[block, thread]}, not {wanted[block, thread]}"
