"""Runs cases of `gpu.py` in a process of its own: a kernel that breaks the context costs no other its result.

Takes a JSON object on standard input: folder, names of cases, repeats, seed, whether peers are left out, and variants
that are. Answers with a line of JSON behind MARK when it begins a case and when it is done with one. With `--once
FOLDER NAME` it launches the kernels of that case once, for a profiler.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpu_variants
import numpy as np
from gpu_case import MARK, Case, Timing, cubins, read_cases, summary
from gpu_workloads import WORKLOADS, Tensors, Workload

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.host import runtime
from tilec.ir.elements import decode_values
from tilec.ir.manifest import TensorInfo
from tilec.ir.types import TYPES_BY_NAME, DType
from tilec.support.sizes import evaluate_shape

# Relative to a value, one rounding of its type.
STEP = {"float8_e4m3fn": 2.0**-3, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21}
L2_BYTES = 64 << 20
WARM_UPS = 5
AHEAD_CYCLES = 2_000_000
"""The GPU waits about a millisecond before the first event: by then even a slow host has queued what is timed."""


# ---- samples ---------------------------------------------------------------------------------------------------------


def sample_fault(folder: Path, case: Case) -> str:
    """What is wrong with the results of a sample or of a drawn kernel; nothing if they are right."""
    (cubin,) = cubins(folder, case)
    with np.load(folder / case.arrays) as held:
        arrays = {name: held[name] for name in held.files}
    tensors, expected, allowed = (
        {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
        for kind in ("in_", "out_", "allowed_")
    )
    kept = {name: array.copy() for name, array in tensors.items() if case.kind == "drawn" and name not in expected}
    with closing(runtime.Kernel(cubin)) as kernel:
        kernel.run(tensors, case.parameters)
    told = []
    for name, before in kept.items():
        if changed := different(tensors[name], before, 0):
            told.append(f"{name}: {changed} of {before.size} were written")
    for name, wanted in expected.items():
        dtype = TYPES_BY_NAME[case.dtypes[name]]
        found = decode_values(tensors[name], dtype).reshape(wanted.shape)
        slack = _slack(case, dtype, wanted) if name not in allowed else allowed[name] * 1.001
        wrong = different(found, wanted, slack)
        if wrong:
            told.append(f"{name}: {wrong} of {wanted.size} differ")
    return "; ".join(told)


def different(found: Any, wanted: Any, slack: Any) -> int:
    """Count the elements that are farther from what is wanted than `slack`; one NaN is as good as another."""
    with np.errstate(all="ignore"):
        right = (found == wanted) | ((found != found) & (wanted != wanted)) | (_apart(found, wanted) <= slack)
    return int((~right).sum())


def _slack(case: Case, dtype: DType, wanted: Any) -> Any:
    """How far from a sample's reference each element may lie."""
    if not dtype.is_float:
        return 0
    return case.noise * np.abs(wanted[np.isfinite(wanted)]).max(initial=0) + STEP[dtype.name] * case.steps * np.abs(
        wanted
    )


def _apart(found: Any, wanted: Any) -> Any:
    """The distance, as float64; never less than it is for integers, whose difference may not fit in their type."""
    if found.dtype.kind in "iu" and wanted.dtype.kind in "iu":
        return np.where(found > wanted, found - wanted, wanted - found).astype(np.uint64).astype(np.float64)
    return np.abs(found.astype(np.float64) - wanted.astype(np.float64))


# ---- workloads -------------------------------------------------------------------------------------------------------


class Contest:
    """The contenders for one workload, on operands that take turns so that none is in the L2 cache."""

    def __init__(self, workload: Workload, kernels: list[runtime.Kernel], torch: Any, is_alone: bool = False) -> None:
        self.workload, self.kernels, self.torch = workload, kernels, torch
        first = self.operands()
        size = sum(t.numel() * t.element_size() for held in first for t in held.values())
        self.sets = [first] + [self.operands() for _ in range(max(2, -(-2 * L2_BYTES // size)) - 1)]
        self.ours = [self.bound(given, made) for given, made in self.sets]
        self.peers = {} if is_alone else workload.peers()

    def operands(self) -> tuple[Tensors, Tensors]:
        return self.workload.inputs(), self.workload.outputs()

    def bound(self, given: Tensors, made: Tensors) -> list[Callable[[int], None]]:
        """What to call, each with a stream, for our result: launches, and zeros where a launch needs them first."""
        tensors = {**given, **made, **self.workload.between()}
        return [call for kernel in self.kernels for call in self.of_kernel(kernel, tensors)]

    def of_kernel(self, kernel: runtime.Kernel, tensors: Tensors) -> Iterator[Callable[[int], None]]:
        known, scalars = dict(tensors), self.workload.scalars()
        for tensor in kernel.manifest.tensors:
            if tensor.role in ("workspace", "zeroed"):
                known[tensor.name] = self.workspace(tensor)
                if tensor.role == "zeroed":
                    yield lambda stream, own=known[tensor.name]: own.zero_()
        addresses = {tensor.name: known[tensor.name].data_ptr() for tensor in kernel.manifest.tensors}
        yield _Kept(kernel.bound(addresses, scalars), known)

    def workspace(self, tensor: TensorInfo) -> Any:
        size = int(np.prod(evaluate_shape(tensor.shape, {}))) * TYPES_BY_NAME[tensor.dtype].bytes
        return self.torch.empty(max(size, runtime.EMPTY_BYTES), dtype=self.torch.uint8, device="cuda")

    def run_ours(self, i: int) -> None:
        stream = self.torch.cuda.current_stream().cuda_stream
        for call in self.ours[i]:
            call(stream)

    def fault(self) -> str:
        """What is wrong with our result; nothing if it is right. Computed twice, over two different fillings."""
        torch, (given, made) = self.torch, self.sets[0]
        wanted, runs = self.workload.wanted(given), []
        for filling in (float("nan"), float("-inf")):
            self.workload.poison(made, filling)
            self.run_ours(0)
            runs.append({name: tensor.clone() for name, tensor in made.items()})
        torch.cuda.synchronize()
        if self.workload.repeats_exactly:
            for name in made:
                # As bytes: NaN is not equal to itself.
                if not torch.equal(*(run[name].view(torch.uint8) for run in runs)):
                    return f"{name}: two runs differ"
        return "; ".join(filter(None, (self.differs(name, runs[0][name], wanted[name]) for name in made)))

    def differs(self, name: str, found: Any, wanted: Any) -> str:
        error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
        return "" if error <= self.workload.most_error[str(found.dtype)] else f"{name}: error {error:.2e}"  # never NaN

    def times(self, repeat: int) -> dict[str, Timing]:
        """Of those that run at all: a library may lack a type or a shape."""
        contenders: dict[str, Callable[[int], Any]] = {"tilec": self.run_ours} if self.kernels else {}
        for name, peer in self.peers.items():
            contenders[name] = lambda i, peer=peer: peer(*self.sets[i])
            try:
                contenders[name](0)
            except Exception as error:
                print(f"{name} does not take part: {type(error).__name__}: {error}", file=sys.stderr)
                del contenders[name]
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for round_number in range(-WARM_UPS, repeat):
            for name, run in contenders.items():
                milliseconds = self.timed(run, round_number % len(self.sets))
                if round_number >= 0:
                    taken[name].append(milliseconds)
        return {name: summary(all_of) for name, all_of in taken.items()}

    def timed(self, run: Callable[[int], Any], i: int) -> float:
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(AHEAD_CYCLES)
        begin.record()
        run(i)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


class _Kept:
    """A launch, and the tensors whose addresses it holds."""

    def __init__(self, launch: Callable[[int], None], tensors: Tensors) -> None:
        self.launch, self.tensors = launch, tensors

    def __call__(self, stream: int) -> None:
        self.launch(stream)


def workload_result(folder: Path, case: Case, repeat: int, is_alone: bool) -> dict[str, Any]:
    import torch

    workload = WORKLOADS[case.kind](torch, case.parameters)
    with ExitStack() as opened:
        kernels = [opened.enter_context(closing(runtime.Kernel(cubin))) for cubin in cubins(folder, case)]
        contest = Contest(workload, kernels, torch, is_alone)
        fault = contest.fault() if kernels else ""
        found: dict[str, Any] = {"fault": fault, "work": workload.work, "unit": workload.unit}
        found["ceiling"] = workload.ceiling
        if not fault:
            found["milliseconds"] = {name: asdict(timing) for name, timing in contest.times(repeat).items()}
            with suppress(Exception):  # where NVML is not there
                found["sm_mhz"] = torch.cuda.clock_rate()
        return found


# ---- the process -----------------------------------------------------------------------------------------------------


def result(
    folder: Path, case: Case, asked: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    if case.kind in ("sample", "drawn"):
        return {"fault": sample_fault(folder, case)}
    if case.kind == "variants":
        skipped = asked.get("skipped", {}).get(case.name, {})
        return gpu_variants.result(folder, case, asked["repeat"], skipped, say)
    return workload_result(folder, case, asked["repeat"], asked["alone"])


def is_lost() -> bool:
    """Whether an error took the context with it, in which every later call fails too."""
    try:
        runtime.wait_for_gpu()
    except runtime.GpuError:
        return True
    return False


def run(asked: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]) -> int:
    """The exit code: 1 where the process is of no more use, and what it has not spoken of is still to be done."""
    folder = Path(asked["folder"])
    cases = {case.name: case for case in read_cases(folder)}
    if any(cases[name].kind not in ("sample", "drawn") for name in asked["names"]):
        import torch

        torch.manual_seed(asked["seed"])
        say({"torch": torch.__version__, "cuda": torch.version.cuda})
    for name in asked["names"]:
        say({"begins": name})
        try:
            found = result(folder, cases[name], asked, say)
        except gpu_variants.ContextLost as lost:
            say({"lost": str(lost)})
            return 1
        except Exception as error:  # whatever a kernel or a library does: the next case is another one's
            say({"name": name, "fault": f"{type(error).__name__}: {error}"})
            if is_lost():
                return 1
            continue
        say({"name": name, **found})
    return 0


def once(folder: Path, name: str) -> None:
    """Launch the kernels of a case once."""
    (case,) = (case for case in read_cases(folder) if case.name == name)
    if case.kind == "variants":
        gpu_variants.once(folder, case)
        return
    import torch

    with ExitStack() as opened:
        kernels = [opened.enter_context(closing(runtime.Kernel(cubin))) for cubin in cubins(folder, case)]
        Contest(WORKLOADS[case.kind](torch, case.parameters), kernels, torch, is_alone=True).run_ours(0)
        torch.cuda.synchronize()


def main() -> None:
    if sys.argv[1:2] == ["--once"]:
        with runtime.hold_primary_context():
            once(Path(sys.argv[2]), sys.argv[3])
        return

    def say(what: Mapping[str, Any]) -> None:
        # On a line of its own, whatever a kernel has printed.
        sys.stdout.write(f"\n{MARK}{json.dumps(what)}\n")
        sys.stdout.flush()

    with runtime.hold_primary_context():
        say({"gpu": asdict(runtime.describe_gpu())})
        code = run(json.load(sys.stdin), say)
        # Not through the interpreter's end: what is left of a lost context only complains.
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
