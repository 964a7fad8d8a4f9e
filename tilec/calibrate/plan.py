"""Which rows of a target file follow from which probes, and by what formula.

A row is what the file says of one instruction or one limit. The parts that no probe measures stay as they are, and the
row's source says which these are. Times to and from memory are not the multiprocessor's own: they are taken to the
clock of the file, which is the one that the chip holds under load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilec.calibrate import copies, shared, tensor
from tilec.calibrate.measure import Measurement
from tilec.calibrate.probe import ROW_BYTES
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass

Value = int | str
"""Of a cell: a whole number, or a formula."""
CLOCK = "clock_mhz"


@dataclass(frozen=True, slots=True)
class Row:
    """`table` is the header that it stands under in the file, `cells` are what is to stand at each of its keys, and
    `where` is the text of its source. A limit's only key is its name. `uses.X` is the cycles of slot X."""

    table: str
    cells: Mapping[str, Value]
    where: str


class Figures:
    """The medians, by name; it remembers which were asked for."""

    def __init__(self, measurement: Measurement) -> None:
        self._of = measurement
        self.used: dict[str, float] = {}
        self.sms = measurement.sms

    def __getitem__(self, name: str) -> float:
        spread = self._of.spread(name)
        self.used[name] = spread.relative
        return spread.median

    @property
    def sm_mhz(self) -> float:
        """Of a multiprocessor that works alone."""
        return 1000 * self["clock of one SM"] / self["clock of one SM ns"]

    @property
    def mhz(self) -> int:
        """Of the file: what the chip holds with every tensor core at work; else that of one multiprocessor."""
        if "clock under load" not in self._of.figures:
            return round(self.sm_mhz)
        return round(1000 * self["clock under load"] / self["clock under load ns"])

    def far(self, name: str) -> float:
        """A time to memory, in cycles of the file's clock."""
        return self[name] * self.mhz / self.sm_mhz

    def bytes_per_cycle(self, moved: int, name: str) -> float:
        """Of the whole chip, where each multiprocessor moves so many bytes an operation."""
        return moved * self.sms * 1000 / (self[f"{name} ns"] * self.mhz)


def rows(measurement: Measurement) -> tuple[Row, ...]:
    """All that the measurement has figures for. Figures that no machine can have are refused as `bad-measurements`."""
    return tuple(_rows(measurement))


def _rows(measurement: Measurement) -> Iterator[Row]:
    for table, says, formulas in TABLES:
        figures = Figures(measurement)
        try:
            cells = formulas(figures)
            mhz = figures.mhz
        except KeyError:
            continue
        except (ArithmeticError, ValueError) as error:
            used = ", ".join(f"{name} {measurement.spread(name).median:.4g}" for name in figures.used)
            fail("bad-measurements", f"nothing follows for [{table}] from {used}: {error}",
                 help="measure again, on a GPU that does nothing else")  # fmt: skip
        spread = max(figures.used.values())
        machine = f"{measurement.gpu}, driver {measurement.driver}, {measurement.date}"
        where = f"tilec calibrate on {machine}, {mhz} MHz, spread {spread:.1%}: {says}"
        yield Row(table, cells, where)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _line(points: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, by least squares."""
    slope, intercept = np.polyfit(list(points), list(points.values()), 1)
    return float(intercept), float(slope)


def _port(figures: Figures, name: str) -> float:
    """Bytes a cycle to or from shared memory."""
    return shared.SM_BYTES / figures[f"{name} throughput"]


# ---- the formulas ----------------------------------------------------------------------------------------------------


def _clock(figures: Figures) -> dict[str, Value]:
    return {CLOCK: round(1000 * figures["clock under load"] / figures["clock under load ns"])}


def _l2(figures: Figures) -> dict[str, Value]:
    box = copies.LARGE * ROW_BYTES
    return {"l2_bytes_per_cycle": round(figures.bytes_per_cycle(box, "l2 throughput, all SMs"))}


def _dram(figures: Figures) -> dict[str, Value]:
    return {"dram_bytes_per_cycle": round(figures.bytes_per_cycle(2 * copies.COPY_BYTES, "copy, all SMs"))}


def _alu(figures: Figures) -> dict[str, Value]:
    return {"alu": round(figures["fma latency"])}


def _tma(figures: Figures, name: str, latency: Callable[[int], float], path: str) -> dict[str, Value]:
    small, large = (
        figures[f"{name} throughput, boxes of {box * ROW_BYTES} bytes"] for box in (copies.SMALL, copies.LARGE)
    )
    intercept, slope = _line({box * ROW_BYTES: latency(box * ROW_BYTES) for box in copies.BOXES})
    # The path is two units of half the rate.
    rate = copies.LARGE * ROW_BYTES / large / 2
    return {
        "uses.tma": f"max({_number(small)}, bytes / 128)",
        f"uses.{path}": f"bytes / {_number(rate)}",
        "latency": f"{_number(intercept)} + {_number(slope * 1024)} * bytes / 1024",
    }


def _tma_load(figures: Figures) -> dict[str, Value]:
    cells = _tma(figures, "tma.load", lambda size: figures.far(f"tma.load {size} bytes from dram"), "tp_gnic_rd")
    return {**cells, "issue": math.ceil(figures[f"tma.load {copies.LARGE * ROW_BYTES} bytes issue"])}


def _tma_store(figures: Figures) -> dict[str, Value]:
    return _tma(figures, "tma.store", lambda size: figures[f"tma.store {size} bytes until read"], "tp_gnic_wr")


def _cp_async(figures: Figures) -> dict[str, Value]:
    return {"latency": f"{_number(figures.far('cp.async of 2048 bytes from dram') - 2048 / 64)} + bytes / 64"}


def _ld_global(figures: Figures) -> dict[str, Value]:
    return {"latency": f"{_number(figures.far('ld.global latency from dram'))} + bytes / 64"}


def _shared(figures: Figures, name: str, port: str, chain_bytes: int = 0) -> dict[str, Value]:
    rate = _number(_port(figures, name))
    cells: dict[str, Value] = {"uses.lsu": f"bytes / {rate}", f"uses.{port}": f"bytes / {rate}"}
    if chain_bytes:
        fixed = figures[f"{name} latency"] - chain_bytes / float(rate)
        cells["latency"] = f"{_number(fixed)} + bytes / {rate}"
    return cells


def _issue(figures: Figures) -> str:
    few, many = figures[f"wgmma issue {tensor.FEW}"], figures[f"wgmma issue {tensor.MANY}"]
    more = max((many - few) / (tensor.MANY - tensor.FEW), 0.0)
    return f"{_number(max(few - more * tensor.FEW, 0.0))} + {_number(more)} * count"


def _drain(figures: Figures, form: str) -> str:
    """What passes from the end of the last product until its sums may be read."""
    return f"occupancy + {_number(figures[f'wgmma.{form} alone n128'] - figures[f'wgmma.{form} bf16 n128'])}"


def _wgmma_ss(figures: Figures) -> dict[str, Value]:
    rate = 256 / figures["wgmma.ss bf16 n256"]
    # Narrow products wait for their operands: 64 rows of A and n of B, 32 bytes each.
    port = np.median([(64 + n) * 32 / figures[f"wgmma.ss bf16 n{n}"] for n in (8, 16, 32)])
    return {
        "uses.tc_and_mma": f"count * max(n / {_number(rate)}, (64 + n) * k_bytes / {_number(float(port))})",
        "issue": _issue(figures),
        "latency": _drain(figures, "ss"),
    }


def _wgmma_rs(figures: Figures) -> dict[str, Value]:
    rate, floor = 128 / figures["wgmma.rs bf16 n128"], _number(figures["wgmma.rs bf16 n8"])
    return {
        "uses.tc_and_mma": f"count * max(n / {_number(rate)}, {floor})",
        "uses.tp_mma": f"count * {floor}",
        "issue": _issue(figures),
        "latency": _drain(figures, "rs"),
    }


def _mma(figures: Figures) -> dict[str, Value]:
    each = figures["mma.sync bf16 throughput"]
    taken = f"count * {_number(each)} / min(4, warps)"
    latency = f"occupancy + {_number(figures['mma.sync bf16 latency'] - each)}"
    return {"uses.tc_and_mma": taken, "issue": taken, "latency": latency}


def _mufu(figures: Figures) -> dict[str, Value]:
    each = figures["ex2 throughput"]
    taken = f"elements * {_number(each)} / 128"
    # Each link of the chain changes the sign first, which takes what a multiply-add takes.
    latency = figures["ex2 latency"] - figures["fma latency"] - each
    return {"uses.xu": taken, "issue": taken, "latency": f"occupancy + {_number(latency)}"}


def _reduce(figures: Figures) -> dict[str, Value]:
    return {"latency": f"occupancy + 5 * {_number(figures['shuffle and maximum latency'])}"}


def _barrier(figures: Figures) -> dict[str, Value]:
    return {"latency": math.ceil(figures["named barrier one way"])}


def _mbarrier(figures: Figures) -> dict[str, Value]:
    return {"latency": math.ceil(figures["mbarrier one way"])}


def _silicon(kind: str) -> str:
    return f'timing."{kind}".silicon'


TABLES: tuple[tuple[str, str, Callable[[Any], dict[str, Value]]], ...] = (
    ("limits", "every tensor core at work on numbers like random ones", _clock),
    ("limits", "boxes of 16 KiB, 8 in flight an SM, all SMs around in 32 MiB", _l2),
    ("limits", "copy of half a GiB, bytes read and bytes written", _dram),
    ("calibrations.silicon.families", "chain of fp32 multiply-adds", _alu),
    (_silicon("tma.load"), "from DRAM, boxes of 1 to 32 KiB; rate of one SM from L2; the term of 128 bytes a cycle and "
     "tp_smem_wr are port widths", _tma_load),
    (_silicon("tma.store"), "until shared memory may be written again, boxes of 1 to 32 KiB; rate of one SM; the term "
     "of 128 bytes a cycle and tp_smem_rd are port widths, the issue is a guess", _tma_store),
    (_silicon("cp.async"), "latency from DRAM, 128 threads of 16 bytes; the rates are port widths", _cp_async),
    (_silicon("ld.global"), "latency from DRAM, a chain of loads and additions of 64 bits; the rates are port widths",
     _ld_global),
    (_silicon("ld.shared"), "chain of loads; 8 warps of 16 bytes a lane",
     lambda figures: _shared(figures, "ld.shared", "tp_smem_rd", 128)),
    (_silicon("st.shared"), "rate of 8 warps of 16 bytes a lane; latency derived from ld.shared",
     lambda figures: _shared(figures, "st.shared", "tp_smem_wr")),
    (_silicon("ldmatrix"), "chain of .x4; rate of 8 warps",
     lambda figures: _shared(figures, "ldmatrix", "tp_smem_rd", 512)),
    (_silicon("wgmma.ss"), "bf16, one warpgroup; wide products by n256, narrow ones by n8 to n32; drain and issue at "
     "n128; tp_smem_rd is a port width", _wgmma_ss),
    (_silicon("wgmma.rs"), "bf16, one warpgroup; wide products by n128, the floor by n8; issue of wgmma.ss; tp_smem_rd "
     "is a port width", _wgmma_rs),
    (_silicon("mma.sync"), "bf16 m16n8k16, 4 warps of 8 sums; chain on one sum", _mma),
    (_silicon("mufu"), "ex2.approx.ftz, 8 warps of 4 chains; chain of one warp", _mufu),
    (_silicon("reduce"), "latency of a shuffle and a maximum; one operation an element is derived", _reduce),
    (_silicon("barrier"), "named barrier between two warps, one way; issue is a guess", _barrier),
    (_silicon("mbarrier"), "arrival of one warp until another has seen it; issue is a guess", _mbarrier),
)  # fmt: skip
"""Table, what the source says of the measurement, and the cells."""
