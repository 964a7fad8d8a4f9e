"""Derives the rows of a target file from the figures of probes, by formulas.

A row describes one instruction or one limit. Cells that no probe measures stay as they are, and the row's source names
them. Times to and from memory do not depend on the multiprocessor's clock: they are converted to the clock of the file,
which the chip holds under load.

A formula is refused, with a reason, where it gives 0 or less or is off by more than a factor of `MAX_DEVIATION` from
one of its own figures: no machine is like that, so the probe measured something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilec.calibrate import copies, shared, tensor
from tilec.calibrate.measure import Measurement
from tilec.calibrate.probe import ROW_BYTES
from tilec.support.records import dataclass
from tilec.target.table import evaluate_formula

Value = int | str
"""The value of a cell: a whole number, or a formula."""
CLOCK = "clock_mhz"
MAX_DEVIATION = 1.5
"""The largest factor between a formula and one of its figures."""
LARGEST = 1 << 40
"""A bound on the numbers of a row; its reciprocal bounds them from below."""


@dataclass(frozen=True, slots=True)
class Row:
    """`table` is its header in the file, `cells` are the values by key, and `where` is the text of its source. A
    limit's only key is its name. `uses.X` is the cycles of slot X."""

    table: str
    cells: Mapping[str, Value]
    where: str


@dataclass(frozen=True, slots=True)
class Check:
    """A figure that the formula at `key` must agree with: for the parameters `at`, it was measured as `took`.
    `is_limit`: the formula may be below it. `figure` is the figure's name, for the reason of a refusal."""

    key: str
    figure: str
    took: float
    at: Mapping[str, float]
    is_limit: bool = False


class Figures:
    """The medians, by name. It records which were read, and the checks of the formulas derived from them."""

    def __init__(self, measurement: Measurement, file_mhz: int | None) -> None:
        self._of = measurement
        self._file_mhz = file_mhz
        self.used: dict[str, float] = {}
        self.checks: list[Check] = []
        self.doubts: dict[str, str] = {}
        self.sms = measurement.sms

    def check(self, key: str, figure: str, took: float, *, is_limit: bool = False, **at: float) -> None:
        """Record a check for later: the formula at `key`, for parameters `at`, must be near `took`, or below it if
        `is_limit`.
        """
        self.checks.append(Check(key, figure, took, at, is_limit))

    def __getitem__(self, name: str) -> float:
        """Return the median of a figure, and record that it was read, with its spread; raise KeyError if it was not
        measured.
        """
        spread = self._of.spread(name)
        self.used[name] = spread.relative
        return spread.median

    @property
    def sm_mhz(self) -> float:
        """Return the measured clock, in MHz, of one multiprocessor that works alone."""
        return 1000 * self["clock of one SM"] / self["clock of one SM ns"]

    @property
    def mhz(self) -> int:
        """Return the clock in MHz for new rows: under load if measured and not idle, else the file's, else that of one
        SM.
        """
        if "clock under load" in self._of.figures and not self.explain_idle():
            return round(1000 * self["clock under load"] / self["clock under load ns"])
        return self._file_mhz or round(self.sm_mhz)

    def explain_idle(self) -> str:
        """Return why the clock under load is refused: the tensor cores idled meanwhile; empty if busy, or wgmma is
        unmeasured.
        """
        if "wgmma.ss bf16 n256" not in self._of.figures:
            return ""
        took, products = self["clock under load"], tensor.IN_FLIGHT * self["wgmma.ss bf16 n256"]
        if 1 / MAX_DEVIATION <= took / products <= MAX_DEVIATION:
            return ""
        return f"an iteration took {took:.4g} cycles, and its products take {products:.4g}"

    def memory_cycles(self, name: str) -> float:
        """Return a measured time to memory, converted from cycles of one SM's clock to cycles of the file's."""
        return self[name] * self.mhz / self.sm_mhz

    def bytes_per_cycle(self, moved: int, name: str) -> float:
        """Return the whole chip's bytes a cycle, if each multiprocessor moves `moved` bytes an operation of `name`."""
        return moved * self.sms * 1000 / (self[f"{name} ns"] * self.mhz)


@dataclass(frozen=True, slots=True)
class DerivedRows:
    """The rows that the figures support, and the reasons why others were refused, by table (and cell)."""

    rows: tuple[Row, ...]
    refused: Mapping[str, str]


def derive_checked_rows(measurement: Measurement, file_mhz: int | None = None) -> DerivedRows:
    """Return a row for each table with all figures measured and a cell left, and the reasons for refused cells or
    tables.

    `file_mhz` is the file's clock, which stays where none is measured under load.
    """
    found: list[Row] = []
    refused: dict[str, str] = {}
    for table, says, formulas in TABLES:
        figures = Figures(measurement, file_mhz)
        try:
            cells = formulas(figures)
            mhz = figures.mhz
        except KeyError:
            continue
        except (ArithmeticError, ValueError) as error:
            used = ", ".join(f"{name} {measurement.spread(name).median:.4g}" for name in figures.used)
            refused[f"[{table}], {says}"] = f"nothing follows from {used}: {error}"
            continue
        faults = {key: fault for key, value in cells.items() if (fault := _find_fault(key, value, figures))}
        refused |= {f"[{table}] {key}": fault for key, fault in faults.items()}
        kept = {key: value for key, value in cells.items() if key not in faults}
        if not kept:
            continue
        spread = max(figures.used.values())
        machine = f"{measurement.gpu}, driver {measurement.driver}, {measurement.date}"
        where = f"tilec calibrate on {machine}, {mhz} MHz, spread {spread:.1%}: {says}"
        where += f"; {', '.join(faults)} as before" if faults else ""
        found.append(Row(table, kept, where))
    return DerivedRows(tuple(found), refused)


def _find_fault(key: str, value: Value, figures: Figures) -> str:
    """Return why a cell's formula is refused: doubted, out of range, or far from a checked figure; else empty."""
    if key in figures.doubts:
        return figures.doubts[key]
    numbers = [float(text) for text in re.findall(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)", str(value))]
    if not all(1 / LARGEST < number < LARGEST for number in numbers):
        return f"the formula gives {value}"
    for check in figures.checks:
        if check.key != key:
            continue
        if not 0 < check.took < math.inf:
            return f"{check.figure} was measured as {check.took:.4g}"
        try:
            says = evaluate_formula(str(value), check.at)
        except ValueError as error:
            return f"the formula gives {value}: {error}"
        off = says / check.took
        if not (off <= MAX_DEVIATION and (check.is_limit or off >= 1 / MAX_DEVIATION)):
            at = ", ".join(f"{name} = {number:.4g}" for name, number in check.at.items())
            return f"{value} is {says:.4g} where {at}, and {check.figure} took {check.took:.4g}"
    return ""


def _as_text(value: float) -> str:
    """Return a number as text with four significant digits."""
    return f"{value:.4g}"


def _clock_cells(figures: Figures) -> dict[str, Value]:
    """Return the cell of the clock under load, in MHz; raise ValueError if the tensor cores were idle meanwhile."""
    if reason := figures.explain_idle():
        raise ValueError(reason)
    return {CLOCK: round(1000 * figures["clock under load"] / figures["clock under load ns"])}


def _alu_cells(figures: Figures) -> dict[str, Value]:
    """Return the cell of the multiply-add's latency, and record its check."""
    latency = figures["fma latency"]
    figures.check("alu", "fma latency", latency)
    return {"alu": round(latency)}


def _tma_cells(figures: Figures, name: str, latency: Callable[[int], float], alone: str, path: str) -> dict[str, Value]:
    """Return a TMA instruction's occupancy and latency formulas in bytes, fitted to boxes, and record their checks.
    `latency` returns the cycles for a number of bytes, `path` is the slot of the transfer, and `alone` is the figure of
    a box with nothing else in flight.
    """
    small, large = (
        figures[f"{name} throughput, boxes of {box * ROW_BYTES} bytes"] for box in (copies.SMALL, copies.LARGE)
    )
    points = {box * ROW_BYTES: latency(box * ROW_BYTES) for box in copies.BOXES}
    slope, intercept = map(float, np.polyfit(list(points), list(points.values()), 1))  # least squares
    for size, took in points.items():
        figures.check("latency", f"{name} of {size} bytes", took, bytes=size)
    figures.check("uses.tma", f"{name} throughput, boxes of {copies.SMALL * ROW_BYTES} bytes", small,
                  bytes=copies.SMALL * ROW_BYTES)  # fmt: skip
    # The path is two units of half the rate. A single box occupies one of them for at most its own time.
    rate = copies.LARGE * ROW_BYTES / large / 2
    figures.check(f"uses.{path}", alone, figures[alone], is_limit=True, bytes=copies.LARGE * ROW_BYTES)
    return {
        "uses.tma": f"max({_as_text(small)}, bytes / 128)",
        f"uses.{path}": f"bytes / {_as_text(rate)}",
        "latency": f"{_as_text(intercept)} + {_as_text(slope * 1024)} * bytes / 1024",
    }


def _tma_load_cells(figures: Figures) -> dict[str, Value]:
    """Return the cells of a tensor load and record their checks; doubt its rate if the issuing thread was the limit."""
    alone = f"tma.load {copies.LARGE * ROW_BYTES} bytes from l2"
    cells = _tma_cells(
        figures, "tma.load", lambda size: figures.memory_cycles(f"tma.load {size} bytes from dram"), alone, "tp_gnic_rd"
    )
    issue = figures[f"tma.load {copies.LARGE * ROW_BYTES} bytes issue"]
    small, wait = figures[SMALL_LOADS], figures["mbarrier arrive and wait"]
    if small < MAX_DEVIATION * (issue + wait):
        thread = f"the thread that issues it and waits for it {issue + wait:.4g}"
        figures.doubts["uses.tma"] = f"a small box takes {small:.4g}, and {thread}"
    return {**cells, "issue": math.ceil(issue)}


SMALL_LOADS = f"tma.load throughput, boxes of {copies.SMALL * ROW_BYTES} bytes"


def _tma_store_cells(figures: Figures) -> dict[str, Value]:
    """Return the cells of a tensor store, whose latency ends once shared memory was read; record their checks."""
    alone = f"tma.store {copies.LARGE * ROW_BYTES} bytes until read"
    return _tma_cells(
        figures, "tma.store", lambda size: figures[f"tma.store {size} bytes until read"], alone, "tp_gnic_wr"
    )


def _cp_async_cells(figures: Figures) -> dict[str, Value]:
    """Return the latency formula of cp.async in bytes, from the measured copy from DRAM, and record its check."""
    took = figures.memory_cycles("cp.async of 2048 bytes from dram")
    figures.check("latency", "cp.async of 2048 bytes from dram", took, bytes=2048)
    return {"latency": f"{_as_text(took - 2048 / 64)} + bytes / 64"}


def _ld_global_cells(figures: Figures) -> dict[str, Value]:
    """Return the latency formula of a global load in bytes, from a measured chain of loads, and record its check."""
    took = figures.memory_cycles("ld.global latency from dram")
    figures.check("latency", "ld.global latency from dram", took, bytes=4)
    return {"latency": f"{_as_text(took)} + bytes / 64"}


def _build_shared_cells(figures: Figures, name: str, port: str, chain_bytes: int = 0) -> dict[str, Value]:
    """Return formulas of a shared access's occupancy and, unless `chain_bytes` is 0, latency; record their checks.
    `name` is the access, `port` the slot of its port.
    """
    rate = _as_text(shared.SM_BYTES / figures[f"{name} throughput"])
    cells: dict[str, Value] = {"uses.lsu": f"bytes / {rate}", f"uses.{port}": f"bytes / {rate}"}
    for key in cells:
        figures.check(key, f"{name} throughput", figures[f"{name} throughput"], bytes=shared.SM_BYTES)
    if chain_bytes:
        took = figures[f"{name} latency"]
        cells["latency"] = f"{_as_text(took - chain_bytes / float(rate))} + bytes / {rate}"
        figures.check("latency", f"{name} latency", took, bytes=chain_bytes)
    return cells


def _issue_formula(figures: Figures) -> str:
    """Return the formula, linear in `count`, of the cycles to issue wgmma products, no negative constant; record
    checks.
    """
    few, many = figures[f"wgmma issue {tensor.FEW}"], figures[f"wgmma issue {tensor.MANY}"]
    for count, took in ((tensor.FEW, few), (tensor.MANY, many)):
        figures.check("issue", f"wgmma issue {count}", took, count=count)
    each = (many - few) / (tensor.MANY - tensor.FEW)
    fixed = few - each * tensor.FEW
    # The first product may cost less than the others; a negative constant is left out.
    return f"{_as_text(fixed)} + {_as_text(each)} * count" if fixed > 0 else f"{_as_text(each)} * count"


def _drain_formula(figures: Figures, form: str) -> str:
    """Return the formula of wgmma's latency, occupancy plus measured cycles to drain, and record its check."""
    each, alone = figures[f"wgmma.{form} bf16 n128"], figures[f"wgmma.{form} alone n128"]
    figures.check("latency", f"wgmma.{form} alone n128", alone, occupancy=each)
    return f"occupancy + {_as_text(alone - each)}"


def _wgmma_ss_cells(figures: Figures) -> dict[str, Value]:
    """Return occupancy, issue and latency formulas of wgmma with A in shared memory; record their checks.

    Shared memory limits narrow products.
    """
    rate = 256 / figures["wgmma.ss bf16 n256"]
    # Narrow products wait for their operands: 64 rows of A and n of B, 32 bytes each.
    port = np.median([(64 + n) * 32 / figures[f"wgmma.ss bf16 n{n}"] for n in (8, 16, 32)])
    for n in (8, 16, 32, 256):
        took = figures[f"wgmma.ss bf16 n{n}"]
        figures.check("uses.tc_and_mma", f"wgmma.ss bf16 n{n}", took, count=1, n=n, k_bytes=32)
    return {
        "uses.tc_and_mma": f"count * max(n / {_as_text(rate)}, (64 + n) * k_bytes / {_as_text(float(port))})",
        "issue": _issue_formula(figures),
        "latency": _drain_formula(figures, "ss"),
    }


def _wgmma_rs_cells(figures: Figures) -> dict[str, Value]:
    """Return occupancy, issue and latency formulas of wgmma with A in registers; record their checks.

    The transfer of A limits narrow products.
    """
    rate, floor = 128 / figures["wgmma.rs bf16 n128"], _as_text(figures["wgmma.rs bf16 n8"])
    for n in (8, 128):
        figures.check("uses.tc_and_mma", f"wgmma.rs bf16 n{n}", figures[f"wgmma.rs bf16 n{n}"], count=1, n=n)
    return {
        "uses.tc_and_mma": f"count * max(n / {_as_text(rate)}, {floor})",
        "uses.tp_mma": f"count * {floor}",
        "issue": _issue_formula(figures),
        "latency": _drain_formula(figures, "rs"),
    }


def _mma_cells(figures: Figures) -> dict[str, Value]:
    """Return occupancy, issue and latency formulas of mma.sync from measured figures, and record their checks."""
    each, chain = figures["mma.sync bf16 throughput"], figures["mma.sync bf16 latency"]
    taken = f"count * {_as_text(each)} / min(4, warps)"
    for key in ("uses.tc_and_mma", "issue"):
        figures.check(key, "mma.sync bf16 throughput", each, count=1, warps=1)
    figures.check("latency", "mma.sync bf16 latency", chain, occupancy=each)
    return {"uses.tc_and_mma": taken, "issue": taken, "latency": f"occupancy + {_as_text(chain - each)}"}


def _mufu_cells(figures: Figures) -> dict[str, Value]:
    """Return occupancy, issue and latency formulas of transcendental functions, measured on ex2; record checks."""
    each = figures["ex2 throughput"]
    taken = f"elements * {_as_text(each)} / 128"
    # Each link of the chain changes the sign first, which takes what a multiply-add takes.
    link = figures["ex2 latency"] - figures["fma latency"]
    for key in ("uses.xu", "issue"):
        figures.check(key, "ex2 throughput", each, elements=128)
    figures.check("latency", "ex2 latency without its addition", link, occupancy=each)
    return {"uses.xu": taken, "issue": taken, "latency": f"occupancy + {_as_text(link - each)}"}


def _row_key(kind: str) -> str:
    """Return the header of a timing row of the target file: its kind, in the calibration `silicon`."""
    return f'timing."{kind}".silicon'


TABLES: tuple[tuple[str, str, Callable[[Any], dict[str, Value]]], ...] = (
    ("limits", "every tensor core at work on numbers like random ones", _clock_cells),
    ("limits", "boxes of 16 KiB, 8 in flight an SM, all SMs around in 32 MiB", lambda figures: {
        "l2_bytes_per_cycle": round(figures.bytes_per_cycle(copies.LARGE * ROW_BYTES, "l2 throughput, all SMs"))}),
    ("limits", "copy of half a GiB, bytes read and bytes written", lambda figures: {
        "dram_bytes_per_cycle": round(figures.bytes_per_cycle(2 * copies.COPY_BYTES, "copy, all SMs"))}),
    ("calibrations.silicon.families", "chain of fp32 multiply-adds", _alu_cells),
    (_row_key("tma.load"), "from DRAM, boxes of 1 to 32 KiB; rate of one SM from L2; the term of 128 bytes a cycle and "
     "tp_smem_wr are port widths", _tma_load_cells),
    (_row_key("tma.store"), "until shared memory may be written again, boxes of 1 to 32 KiB; rate of one SM; the term "
     "of 128 bytes a cycle and tp_smem_rd are port widths, the issue is a guess", _tma_store_cells),
    (_row_key("cp.async"), "latency from DRAM, 128 threads of 16 bytes; the rates are port widths", _cp_async_cells),
    (_row_key("ld.global"), "latency from DRAM, a chain of loads and additions of 64 bits; the rates are port widths",
     _ld_global_cells),
    (_row_key("ld.shared"), "chain of loads; 8 warps of 16 bytes a lane",
     lambda figures: _build_shared_cells(figures, "ld.shared", "tp_smem_rd", 128)),
    (_row_key("st.shared"), "rate of 8 warps of 16 bytes a lane; latency derived from ld.shared",
     lambda figures: _build_shared_cells(figures, "st.shared", "tp_smem_wr")),
    (_row_key("ldmatrix"), "chain of .x4; rate of 8 warps",
     lambda figures: _build_shared_cells(figures, "ldmatrix", "tp_smem_rd", 512)),
    (_row_key("wgmma.ss"), "bf16, one warpgroup; wide products by n256, narrow ones by n8 to n32; drain and issue at "
     "n128; tp_smem_rd is a port width", _wgmma_ss_cells),
    (_row_key("wgmma.rs"), "bf16, one warpgroup; wide products by n128, the floor by n8; issue of wgmma.ss; tp_smem_rd "
     "is a port width", _wgmma_rs_cells),
    (_row_key("mma.sync"), "bf16 m16n8k16, 4 warps of 8 sums; chain on one sum", _mma_cells),
    (_row_key("mufu"), "ex2.approx.ftz, 8 warps of 4 chains; chain of one warp", _mufu_cells),
    (_row_key("reduce"), "latency of a shuffle and a maximum; one operation an element is derived",
     lambda figures: {"latency": f"occupancy + 5 * {_as_text(figures['shuffle and maximum latency'])}"}),
    (_row_key("barrier"), "named barrier between two warps, one way; issue is a guess",
     lambda figures: {"latency": math.ceil(figures["named barrier one way"])}),
    (_row_key("mbarrier"), "arrival of one warp until another has seen it; issue is a guess",
     lambda figures: {"latency": math.ceil(figures["mbarrier one way"])}),
)  # fmt: skip
"""The table, the description of the measurement in its source, and the function that makes its cells."""
