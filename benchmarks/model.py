"""What the scheduler's numbers predict for the timed kernels, and how far off that is.

    python benchmarks/model.py [--only PATTERN] [--results FILE] [--json FILE]

A block takes, for each pipelined loop, the cycles of one iteration and an interval for each further trip, and what the
statements around it take one after the other. Blocks run in waves; those that share a multiprocessor share its slots.
What the loops load over the L2's rate, and every tensor once over the memory's, put a roof over the kernel. Several
kernels of one case run one after the other.

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
from pathlib import Path
from typing import Any

import gpu_cases

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec import driver
from tilec.ir.multicast import number
from tilec.ir.placement import NotArithmetic, evaluated
from tilec.ir.tile import Bind, Buffer, Expr, For, If, Stmt, TileOp, Var, While, integer, substitute
from tilec.ir.types import INT32
from tilec.options import CompileOptions
from tilec.passes.depend import demands
from tilec.source import SourceFile
from tilec.target import Target, load
from tilec.tune.model import LoopCost, Residence, cta_cycles, ctas_per_sm

MOST_BLOCKS = 1024
"""Of a grid, that are looked at: its blocks at equal distances, so that those of a causal kernel count alike."""
NOBODY = Var("nobody", INT32)
LOADS = ("tma.load", "cp.async", "ld.global")


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


@dataclass
class Block:
    """What one block does: its pipelined loops, the cycles of all else, and the bytes that it asks L2 for."""

    loops: list[LoopCost]
    around: int = 0
    loaded: int = 0

    def cycles(self, neighbours: int) -> int:
        return cta_cycles(self.loops, neighbours) + self.around


class _Walk:
    """One block's way through a kernel whose loops are scheduled."""

    def __init__(self, planned: driver.Plan) -> None:
        self.planned, self.target = planned, planned.target
        self.decided = {id(one.loop.loop): one for one in planned.loops}
        self.flat: dict[int, tuple[int, int]] = {}

    def block(self, place: Sequence[int]) -> Block:
        kernel = self.planned.laid.kernel
        found = Block([])
        self.body(kernel.body, dict(zip(kernel.block_vars, place, strict=False)), found)
        return found

    def body(self, body: Sequence[Stmt], values: dict[Var, int], found: Block) -> None:
        for stmt in body:
            match stmt:
                case Bind(var=var, value=value):
                    if (known := _value(value, values)) is not None:
                        values[var] = known
                case For() if id(stmt) in self.decided:
                    self.pipelined(stmt, values, found)
                case For(var=var, body=inner):
                    for at in _range(stmt, values):
                        self.body(inner, {**values, var: at}, found)
                case If(condition=condition, then=then, orelse=orelse):
                    known = _value(condition, values)
                    self.body(then if known is None or known else orelse, dict(values), found)
                case While(body=inner):
                    self.body(inner, dict(values), found)
                case _:
                    cycles, loaded = self.price(stmt)
                    found.around += cycles
                    found.loaded += loaded

    def pipelined(self, loop: For, values: dict[Var, int], found: Block) -> None:
        one = self.decided[id(loop)]
        problem, schedule = one.loop.problem, one.solution.schedule
        trips = len(_range(loop, values))
        length = max((s + op.latency for op, s in zip(problem.ops, schedule.start, strict=True)), default=0)
        held: dict[int, int] = {}
        for op in problem.ops:
            for use in op.uses:
                held[use.slot] = held.get(use.slot, 0) + use.cycles
        busy = max((-(-cycles // problem.slots[slot].width) for slot, cycles in held.items()), default=0)
        found.loops.append(LoopCost(schedule.ii, length, trips, busy))
        found.loaded += trips * sum(self.price(stmt)[1] for stmt in loop.body)

    def price(self, stmt: Stmt) -> tuple[int, int]:
        """Of a statement on its own: the cycles until its result is there, and the bytes that it loads."""
        if id(stmt) not in self.flat:
            cycles = loaded = 0
            after = 0
            for demand in demands(stmt, self.planned.laid):
                parameters = dict(demand.parameters)
                timing = self.target.price(demand.kind, **parameters)
                held = max((cycles for _, cycles, _ in timing.uses), default=0)
                cycles += max(held, timing.issue)
                after = max(after, timing.latency - held)
                loaded += parameters.get("bytes", 0) if demand.kind in LOADS else 0
            self.flat[id(stmt)] = (cycles + after, loaded // self.mates(stmt))
        return self.flat[id(stmt)]

    def mates(self, stmt: Stmt) -> int:
        """How many blocks load it together: each asks L2 for its share."""
        axes = str(dict(stmt.attrs).get("multicast", "")) if isinstance(stmt, TileOp) else ""
        return number(self.planned.laid.kernel.cluster.extents, axes)


def _value(expr: Expr, values: Mapping[Var, int]) -> int | None:
    """Where it follows from the block and the loops around; None where only the data say it."""
    try:
        return int(evaluated(substitute(expr, {var: integer(at) for var, at in values.items()}), (1,), (NOBODY,))[0])
    except NotArithmetic:
        return None


def _range(loop: For, values: Mapping[Var, int]) -> range:
    """Its trips; one where only the data say how many there are."""
    start, stop = _value(loop.start, values), _value(loop.stop, values)
    return range(1) if start is None or stop is None else range(start, stop, loop.step)


def of_kernel(kernel: gpu_cases.Kernel) -> tuple[int, int]:
    """The cycles that computing takes, and those that memory takes."""
    source = SourceFile(kernel.file.name, kernel.file.read_text(encoding="utf-8"))
    options = CompileOptions(target=gpu_cases.TARGET, defines=tuple(kernel.constants.items()), **kernel.options)
    built, planned = driver.build(source, options, driver.Observer()), driver.plan(source, options, driver.Observer())
    manifest, target, walk = built.manifest, planned.target, _Walk(planned)
    grid = manifest.blocks({})
    (entry,) = built.entries
    together = ctas_per_sm(manifest.dynamic_smem, entry.registers, math.prod(manifest.block), residence(target))
    blocks = [walk.block(place) for place in _places(grid)]
    count = math.prod(grid)
    compute = _waves(blocks, count, target.limit("sms"), max(together, 1))
    loaded = sum(block.loaded for block in blocks) * count // len(blocks)
    moved = sum(_bytes(p) for p in planned.kernel.params if isinstance(p, Buffer))
    memory = max(loaded // target.limit("l2_bytes_per_cycle"), moved // target.limit("dram_bytes_per_cycle"))
    return compute, memory


def _places(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Of at most MOST_BLOCKS blocks, x fastest."""
    count = math.prod(grid)
    for index in range(min(count, MOST_BLOCKS)):
        at = index * count // min(count, MOST_BLOCKS)
        yield at % grid[0], at // grid[0] % grid[1], at // grid[0] // grid[1]


def _waves(blocks: Sequence[Block], count: int, sms: int, together: int) -> int:
    """Every wave as long as its longest block; the last one shares each multiprocessor among as few as there are."""
    at_once = sms * together
    full, rest = divmod(count, at_once)
    if not full:
        return max(block.cycles(-(-rest // sms)) for block in blocks)
    cycles = sorted((block.cycles(together) for block in blocks), reverse=True)
    # A long grid of unequal blocks evens out: each multiprocessor takes the next block as soon as it is free.
    mean = statistics.mean(cycles)
    last = max(block.cycles(-(-rest // sms)) for block in blocks) if rest else 0
    return max(round(full * mean) + last, cycles[0])


def _bytes(buffer: Buffer) -> int:
    return math.prod(int(extent) for extent in buffer.shape) * buffer.dtype.bits // 8


def residence(target: Target) -> Residence:
    return Residence(
        smem_bytes=target.limit("smem_bytes_per_sm"),
        smem_reserved_bytes_per_cta=target.limit("smem_reserved_bytes_per_cta"),
        smem_allocation_bytes=target.limit("smem_allocation_bytes"),
        registers=target.limit("registers_per_sm"),
        registers_allocation_per_warp=target.limit("registers_allocation_per_warp"),
        threads=target.limit("threads_per_sm"),
        ctas=target.limit("ctas_per_sm"),
    )


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
