"""Run prebuilt kernels on the GPU of this machine: is each right, and how fast beside cuBLAS and Triton?

    python benchmarks/gpu.py FOLDER [--only PATTERN] [--repeat 50] [--json FILE]

`gpu_cases.py` makes the folder. Here are needed numpy, PyTorch and cuda-python's bindings, and Triton if it is to be
compared with. Nothing is compiled, and nothing of tilec but what loads and launches a cubin is imported.

Right: a sample gives what numpy computed when the folder was made. A matrix product of fresh random numbers, into an
output of NaN (integers: of two different fillings), is within the rounding of its type of the same product in float64,
and the same twice. Fast: kernels take turns on the same inputs, timed with events, over as many copies of the operands
as the L2 cache cannot hold; the median, and the spread from the tenth to the ninetieth percentile.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from tilec import runtime  # noqa: E402
from tilec.elements import values_of  # noqa: E402
from tilec.ir.types import BY_NAME  # noqa: E402

# Relative to a value, one rounding of its type.
STEP = {"float8_e4m3fn": 2.0**-3, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21}
MOST_ERROR = {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-4, "int32": 0.0}
"""Of a product: ‖C − reference‖ / ‖reference‖, by the type of C."""
L2_BYTES = 64 << 20


@dataclass(frozen=True)
class Case:
    """`kind`: "sample" or "matmul". A product is of `shape` (M, N, K), from `dtype` to `out_dtype`, of B or its
    transpose. A sample has `dtypes` by tensor, and may differ from its reference as tests/samples says."""

    name: str
    kind: str
    file: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    out_dtype: str = ""
    trans_b: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    steps: float = 0.0
    noise: float = 0.0
    sha256: str = ""

    def of(self, **changes: Any) -> Case:
        return replace(self, **changes)


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the tenth and ninetieth percentile."""

    median: float
    low: float
    high: float


def loaded(folder: Path, case: Case) -> runtime.Kernel:
    cubin = (folder / f"{case.file}.cubin").read_bytes()
    if hashlib.sha256(cubin).hexdigest() != case.sha256:
        raise ValueError(f"{case.file}.cubin is not the one that cases.json speaks of")
    return runtime.Kernel(cubin)


# ---- samples ---------------------------------------------------------------------------------------------------------


def sample_fault(folder: Path, case: Case) -> str:
    """What is wrong with a sample's results; nothing if they are right."""
    with np.load(folder / f"{case.file}.npz") as held:
        tensors = {name[3:]: held[name] for name in held.files if name.startswith("in_")}
        expected = {name[4:]: held[name] for name in held.files if name.startswith("out_")}
    kernel = loaded(folder, case)
    try:
        kernel.run(tensors, case.scalars)
    finally:
        kernel.close()
    return "; ".join(filter(None, (_differs(case, name, tensors[name], wanted) for name, wanted in expected.items())))


def _differs(case: Case, name: str, array: Any, wanted: Any) -> str:
    dtype = BY_NAME[case.dtypes[name]]
    found = values_of(array, dtype)
    if not dtype.is_float:
        wrong = int((found.astype(np.int64) != wanted).sum())
        return f"{name}: {wrong} of {wanted.size} differ" if wrong else ""
    found = found.astype(np.float64)
    slack = case.noise * np.abs(wanted[np.isfinite(wanted)]).max() + STEP[dtype.name] * case.steps * np.abs(wanted)
    close = np.isclose(found, wanted, rtol=0, atol=0, equal_nan=True) | (np.abs(found - wanted) <= slack)
    return "" if close.all() else f"{name}: {int((~close).sum())} of {wanted.size} differ"


# ---- matrix products -------------------------------------------------------------------------------------------------


class Products:
    """The contenders for one product, on operands that take turns so that none is in the L2 cache."""

    def __init__(self, folder: Path, case: Case, torch: Any) -> None:
        self.case, self.torch = case, torch
        self.kernel = loaded(folder, case)
        m, n, k = case.shape
        self.out_type = getattr(torch, case.out_dtype)
        self.one = torch.ones((), device="cuda")
        one = (m * k + k * n) * BY_NAME[case.dtype].bytes + m * n * BY_NAME[case.out_dtype].bytes
        self.copies = max(2, -(-2 * L2_BYTES // one))
        self.sets = [
            (self.random(m, k), self.random(*((n, k) if case.trans_b else (k, n)))) for _ in range(self.copies)
        ]
        self.outs = [torch.empty((m, n), dtype=self.out_type, device="cuda") for _ in range(self.copies)]

    def random(self, rows: int, columns: int) -> Any:
        torch, dtype = self.torch, self.case.dtype
        if dtype == "int8":
            return torch.randint(-8, 8, (rows, columns), dtype=torch.int8, device="cuda")
        return torch.randn((rows, columns), device="cuda").to(getattr(torch, dtype))

    def ours(self, i: int) -> None:
        a, b = self.sets[i]
        addresses = {"A": a.data_ptr(), "B": b.data_ptr(), "C": self.outs[i].data_ptr()}
        self.kernel.launch(addresses, {}, self.torch.cuda.current_stream().cuda_stream)

    def cublas(self, i: int) -> None:
        torch, (a, b) = self.torch, self.sets[i]
        b = b.t() if self.case.trans_b else b
        if self.case.dtype == "int8":
            torch._int_mm(a, b)
        elif self.case.dtype.startswith("float8"):
            torch._scaled_mm(a, b, self.one, self.one, out_dtype=self.out_type)
        else:
            torch.matmul(a, b, out=self.outs[i])

    def contenders(self) -> dict[str, Callable[[int], None]]:
        found: dict[str, Callable[[int], None]] = {"tilec": self.ours, "cuBLAS": self.cublas}
        if self.case.dtype in ("bfloat16", "float16"):
            try:
                from peers.triton_matmul import matmul
            except ImportError:
                return found
            found["Triton"] = lambda i: matmul(*self.sets[i], self.outs[i])
        return found

    def fault(self) -> str:
        """What is wrong with our product; nothing if it is right."""
        torch = self.torch
        a, b = self.sets[0]
        wanted = a.double() @ (b.t() if self.case.trans_b else b).double()
        runs = []
        for filling in (float("nan"), float("-inf")) if self.out_type.is_floating_point else (-77, 1 << 30):
            self.outs[0].fill_(filling)
            self.ours(0)
            runs.append(self.outs[0].clone())
        torch.cuda.synchronize()
        if not torch.equal(*runs):
            return "two runs differ"
        error = float((runs[0].double() - wanted).norm() / wanted.norm())
        return "" if error <= MOST_ERROR[self.case.out_dtype] else f"error {error:.2e}"  # NaN never passes

    def times(self, repeat: int) -> dict[str, Timing]:
        contenders = self.contenders()
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(-5, repeat):  # the first ones warm up
            for name, run in contenders.items():
                milliseconds = self.timed(run, turn % self.copies)
                if turn >= 0:
                    taken[name].append(milliseconds)
        return {name: summary(all_of) for name, all_of in taken.items()}

    def timed(self, run: Callable[[int], None], i: int) -> float:
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(100_000)  # so that the launch is queued before the first event passes
        begin.record()
        run(i)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def close(self) -> None:
        self.kernel.close()


def summary(milliseconds: list[float]) -> Timing:
    ordered = sorted(milliseconds)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])


# ---- the report ------------------------------------------------------------------------------------------------------


def rate(case: Case, timing: Timing) -> float:
    """TFLOP/s."""
    m, n, k = case.shape
    return 2 * m * n * k / timing.median / 1e9


def table(results: list[tuple[Case, dict[str, Timing]]]) -> list[str]:
    """Rates, our share of the best peer's, and of the best that any contender reached with that type in this run."""
    best = {
        case.dtype: max(rate(c, t) for c, times in results if c.dtype == case.dtype for t in times.values())
        for case, _ in results
    }
    lines = [f"{'product':36} {'tilec':>9} {'cuBLAS':>9} {'Triton':>9} {'ratio':>6} {'of best':>8}   TFLOP/s (spread)"]
    for case, times in results:
        ours = rate(case, times["tilec"])
        cells = [f"{rate(case, times[name]):9.1f}" if name in times else f"{'–':>9}" for name in ("cuBLAS", "Triton")]
        peers = max((rate(case, t) for name, t in times.items() if name != "tilec"), default=float("nan"))
        spread = (times["tilec"].high - times["tilec"].low) / times["tilec"].median
        shares = f"{ours / peers:6.2f} {ours / best[case.dtype]:8.1%}"
        lines.append(f"{case.name:36} {ours:9.1f} {' '.join(cells)} {shares}   ±{spread / 2:.1%}")
    return lines


def machine(torch: Any) -> dict[str, Any]:
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    said = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    fields = [part.strip() for part in said.stdout.splitlines()[0].split(",")] if said.stdout else []
    return {
        "date": datetime.date.today().isoformat(),
        **dict(zip(query.split(","), fields, strict=False)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose name matches, such as 'sample *'")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", metavar="FILE", help="also write all there is to know here")
    asked = parser.parse_args()
    import torch

    cases = [Case(**entry) for entry in json.loads((asked.folder / "cases.json").read_text())]
    chosen = [case for case in cases if fnmatch.fnmatch(case.name, asked.only)]
    faults: dict[str, str] = {}
    results: list[tuple[Case, dict[str, Timing]]] = []
    for case in chosen:
        try:
            if case.kind == "sample":
                faults[case.name] = sample_fault(asked.folder, case)
                continue
            products = Products(asked.folder, case, torch)
            faults[case.name] = products.fault()
            if not faults[case.name]:
                results.append((case, products.times(asked.repeat)))
            products.close()
        except Exception as error:  # one kernel's fault must not hide the others' results
            faults[case.name] = f"{type(error).__name__}: {error}"
    wrong = {name: fault for name, fault in faults.items() if fault}
    if asked.json:
        record = {
            "machine": machine(torch),
            "repeat": asked.repeat,
            "cases": [{"name": case.name, "sha256": case.sha256, "fault": faults[case.name]} for case in chosen],
            "milliseconds": {case.name: {name: vars(t) for name, t in times.items()} for case, times in results},
        }
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(f"WRONG {name}: {fault}" for name, fault in wrong.items()))
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} right")
    if results:
        print("\n".join(table(results)))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
