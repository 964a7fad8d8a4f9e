"""What the scheduler's numbers predict for the timed kernels, and how far off that is.

    python benchmarks/model.py [--only PATTERN] [--results FILE] [--json FILE]

A block takes, for each pipelined loop, the cycles of one iteration and an interval for each further iteration, and what
the statements around it take one after the other. Blocks run in waves; those that share a multiprocessor share its
slots. What the loops load over the L2's rate, and every tensor once over the memory's, put a roof over the kernel.
Several kernels of one case run one after the other.

FILE is of `gpu.py`: measured milliseconds become cycles at the clock that was read beside them, or else at the target
file's. Left out: launches, L2 hits, and what else the target file does not say.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_cases

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.driver import build as driver
from tilec.ir.tile import Buffer
from tilec.passes.cost.kernel import Block, Walk, machine, occupancy_limits, places, schedule_cost, tensor_bytes
from tilec.passes.cost.model import Launch, cta_cycles, ctas_per_sm, predict_blocks
from tilec.passes.loop.build_problem import Scheduled
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load


@dataclass(frozen=True)
class Prediction:
    """Cycles of one case of a workload: the larger of `compute` and `memory` of each kernel, in turn."""

    name: str
    kind: str
    compute: int
    memory: int
    cycles: int

    def milliseconds(self, mhz: int) -> float:
        return self.cycles / mhz / 1000


def of_kernel(kernel: gpu_cases.Kernel) -> tuple[int, int]:
    """The cycles that computing takes, and those that memory takes."""
    source = SourceFile(kernel.file.name, kernel.file.read_text(encoding="utf-8"))
    options = CompileOptions(target=gpu_cases.TARGET, defines=tuple(kernel.constants.items()), **kernel.options)
    built, planned = driver.build(source, options, driver.Observer()), driver.plan(source, options, driver.Observer())
    manifest, target = built.manifest, planned.target
    decided = {id(p.loop.loop): Scheduled(p.loop, p.solution.schedule) for p in planned.loops}
    walk = Walk(planned.assignment, target, (p.loop.loop for p in planned.loops))
    grid = manifest.blocks({})
    (entry,) = built.entries
    together = ctas_per_sm(manifest.dynamic_smem, entry.registers, math.prod(manifest.block), occupancy_limits(target))
    blocks = [walk.block(place) for place in places(grid)]
    launch = Launch(
        math.prod(grid),
        max(together, 1),
        sum(block.loaded for block in blocks) * math.prod(grid) // len(blocks),
        sum(tensor_bytes(p) for p in planned.kernel.params if isinstance(p, Buffer)),
    )

    def cycles(block: Block, neighbours: int) -> int:
        loops = [
            schedule_cost(decided[id(loop)], trip_count)
            for loop, trip_count, times in block.loops
            for _ in range(times)
        ]
        return cta_cycles(loops, neighbours) + block.around

    predicted = predict_blocks([partial(cycles, block) for block in blocks], launch, machine(target))
    return predicted.compute, predicted.memory


def predictions(pattern: str) -> Iterator[tuple[Prediction, gpu_cases.Plan]]:
    for plan in gpu_cases.plans():
        if plan.kernels and fnmatch.fnmatch(plan.case.name, pattern):
            pairs = [of_kernel(kernel) for kernel in plan.kernels]
            compute, memory = (sum(pair[i] for pair in pairs) for i in (0, 1))
            yield Prediction(plan.case.name, plan.case.kind, compute, memory, sum(map(max, pairs))), plan


# ---- against what was measured ---------------------------------------------------------------------------------------


def measured_cycles(results: Mapping[str, Any], mhz: int) -> dict[str, float]:
    """By case: our median, at the clock read with it or else at this one. Of cases that were right."""
    return {
        case["name"]: case["milliseconds"]["tilec"]["median"] * 1000 * case.get("sm_mhz", mhz)
        for case in results["cases"]
        if not case["fault"] and "tilec" in case.get("milliseconds", {})
    }


def errors(predicted: Sequence[Prediction], measured: Mapping[str, float]) -> dict[str, float]:
    """By case: (predicted − measured) / measured."""
    return {one.name: one.cycles / measured[one.name] - 1 for one in predicted if one.name in measured}


def table(predicted: Sequence[Prediction], measured: Mapping[str, float], mhz: int) -> list[str]:
    off = errors(predicted, measured)
    width = max((len(one.name) for one in predicted), default=0)
    lines = [
        f"{'case':{width}} {'compute':>11} {'memory':>11} {'predicted':>11} {'ms':>8} {'measured':>12} {'error':>7}"
    ]
    for one in predicted:
        found = f"{measured[one.name]:12,.0f} {off[one.name]:+7.1%}" if one.name in off else "not measured"
        numbers = f"{one.compute:11,} {one.memory:11,} {one.cycles:11,} {one.milliseconds(mhz):8.3f}"
        lines.append(f"{one.name:{width}} {numbers} {found}")
    if off:
        lines.append("mean absolute error")
        for kind in dict.fromkeys(one.kind for one in predicted if one.name in off):
            lines.append(_mean(kind, [off[one.name] for one in predicted if one.kind == kind and one.name in off]))
        lines.append(_mean("all", list(off.values())))
    else:
        lines.append(
            "not measured: --results FILE, of benchmarks/gpu.py on a GPU, puts the measured cycles beside these"
        )
    return lines


def _mean(kind: str, off: Sequence[float]) -> str:
    return f"  {kind:10} {statistics.mean(map(abs, off)):6.1%} over {len(off)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what gpu.py wrote with --json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="predictions, measured cycles and errors")
    asked = parser.parse_args()
    mhz = load(gpu_cases.TARGET).limit("clock_mhz")
    measured = {}
    if asked.results is not None:
        measured = measured_cycles(json.loads(asked.results.read_text(encoding="utf-8")), mhz)
    predicted = [one for one, _ in predictions(asked.only)]
    if asked.json is not None:
        record = {
            "clock_mhz": mhz,
            "predicted": [asdict(one) for one in predicted],
            "measured_cycles": measured,
            "errors": errors(predicted, measured),
        }
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(predicted, measured, mhz)))


if __name__ == "__main__":
    main()
