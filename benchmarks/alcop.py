"""What pipelining is predicted to be worth for ALCOP's 22 kernels, next to what its paper measured.

    python benchmarks/alcop.py [--only PATTERN] [--target NAME] [--json FILE]

Each kernel of samples/alcop/kernels.toml, for each tile of a small space and each way to pipeline it, is given the
cycles that the levels of its loop take (`tilec.tune`); the best tile of each way counts. Ways: no pipelining; double
buffering, two stages of shared memory; as many as fit and pay; and those with fragments read ahead across iterations,
too. Without that, fragments are read ahead within an iteration, as an assembler does where its steps are written out.
`solved` is what tilec makes of the last way's best tile: with the stages that its scheduler chooses, and fragments read
ahead across iterations where it decides so. Nothing here is measured.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.driver import build as driver, engine
from tilec.ir.tile import Buffer, TileOp, walk_statements
from tilec.passes.cost.estimate import OTHER_REGISTERS, REGISTERS_FOR_PREFETCH, count_step_registers
from tilec.passes.cost.kernel import (
    BlockWalk,
    LoopNest,
    build_loop_nest,
    build_machine,
    count_tensor_bytes,
    find_innermost_loops,
    read_occupancy_limits,
)
from tilec.passes.cost.model import Launch, count_ctas_per_sm, predict_blocks, predict_level_times
from tilec.passes.cost.report import count_versions_under_way
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import Target, load_target

FOLDER = Path(__file__).parents[1] / "samples" / "alcop"
MOST_STAGES = 6  # of shared memory, as in ALCOP's own space

SPACE: dict[str, dict[str, tuple[int, ...]]] = {
    name: {"block_M": (64, 128), "block_N": (64, 128), "block_K": (32, 64), "threads": (128, 256)}
    for name in ("matmul", "bmm", "conv2d", "conv3d")
}

PAPER = {"mean": 1.23, "max": 1.73, "without multi-stage": 1.01, "without multi-level": 1.13}
"""Speed-ups over TVM without pipelining, on an A100 (seed 004: the paper's own slides)."""
WAYS = ("none", "double", "multi-stage", "+ registers", "solved")


@dataclass(frozen=True)
class Row:
    """Predicted cycles of one kernel each way, and the best tile with the stages that were solved for it, in shared
    memory and of fragments."""

    name: str
    cycles: dict[str, int]
    tile: dict[str, int]
    stages: int
    register_stages: int

    def speedup(self, way: str) -> float:
        return self.cycles["none"] / self.cycles[way]


@dataclass(frozen=True)
class Shape:
    """A kernel with one tile: what an iteration of its loop takes, and what surrounds that."""

    nest: LoopNest
    around: int
    ctas: int
    l2_bytes: int
    dram_bytes: int
    tile_bytes: int
    other_bytes: int
    sums: int
    fragments: int
    threads: int


def shape(row: Mapping[str, Any], tile: Mapping[str, int], target: Target) -> Shape:
    """Before anything is solved: layouts are enough."""
    assignment = assignment_of(row, tile, target)
    kernel, blocks = assignment.kernel, BlockWalk(assignment, target, find_innermost_loops(assignment))
    block = blocks.walk_block((0, 0, 0))
    ((loop, trip_count, _),) = block.loops
    ctas = math.prod(int(extent) for extent in kernel.grid if isinstance(extent, int))
    moved = sum(count_tensor_bytes(p) for p in kernel.params if isinstance(p, Buffer))
    machine = build_machine(target, block.loaded * ctas, moved)
    levels = build_loop_nest(blocks, loop, trip_count, 1, min(target.limit("sms"), ctas), machine)
    loaded = {s.regions[1].buffer.name for s in loop.body if getattr(s, "name", "") in ("copy", "im2col")
              and s.regions[0].buffer.scope == "global"}  # fmt: skip
    sizes = {name: layout.bytes for name, layout in assignment.shared.items()}
    sums = sum(b.bytes for b in kernel.buffers if b.scope == "fragment") // 4 // kernel.threads
    fragments = max(
        count_step_registers(s, assignment, target) for s in walk_statements(kernel.body) if isinstance(s, TileOp)
    )
    return Shape(
        levels,
        block.around,
        ctas,
        block.loaded * ctas,
        sum(count_tensor_bytes(p) for p in kernel.params if isinstance(p, Buffer)),
        sum(sizes[name] for name in loaded),
        sum(size for name, size in sizes.items() if name not in loaded),
        sums,
        fragments,
        kernel.threads,
    )


def assignment_of(row: Mapping[str, Any], tile: Mapping[str, int], target: Target) -> LayoutAssignment:
    source, options = asked(row, tile, target)
    file = engine.read_file(source, replace(options, split_loops=False), driver.Observer(), is_single=True)
    (work,) = engine.advance_kernels(file, driver.Observer(), last="split-staged-stores").kernels
    return work.assignment


def asked(row: Mapping[str, Any], tile: Mapping[str, int], target: Target) -> tuple[SourceFile, CompileOptions]:
    path = FOLDER / f"{row['sample']}.tl"
    defines = {**{key: value for key, value in row.items() if key != "sample"}, **tile, "num_stages": MOST_STAGES}
    return (
        SourceFile(path.name, path.read_text(encoding="utf-8")),
        CompileOptions(target=target.name, defines=tuple(defines.items())),
    )


def cycles(one: Shape, stages: int, carried: bool, target: Target) -> int | None:
    """With so many stages of shared memory, and fragments read ahead across iterations or not; None where that does not
    fit a multiprocessor."""
    registers = one.sums + 2 * one.fragments + OTHER_REGISTERS + (REGISTERS_FOR_PREFETCH if carried else 0)
    if registers > target.limit("registers_per_thread"):
        return None
    smem = one.tile_bytes * stages + one.other_bytes
    if smem > target.limit("smem_bytes_per_cta"):
        return None
    together = count_ctas_per_sm(smem, registers, one.threads, read_occupancy_limits(target))
    if not together:
        return None
    outer, *inner = one.nest.levels
    levels = (replace(outer, stages=stages), *(replace(level, carried=carried) for level in inner))

    def block(neighbours: int) -> int:
        return one.around + predict_level_times(levels, one.nest.use, neighbours, one.nest.own)[0].cycles

    launch = Launch(one.ctas, together, one.l2_bytes, one.dram_bytes)
    return predict_blocks([block], launch, build_machine(target, one.l2_bytes, one.dram_bytes)).cycles


def tiles(sample: str) -> Iterator[dict[str, int]]:
    space = SPACE[sample]
    for values in product(*space.values()):
        yield dict(zip(space, values, strict=True))


def predicted(name: str, row: Mapping[str, Any], target: Target) -> Row:
    every = range(1, MOST_STAGES + 1)
    allowed = {
        "none": ([1], False),
        "double": ([2], False),
        "multi-stage": (every, False),
        "+ registers": (every, True),
    }
    last = list(allowed)[-1]
    best: dict[str, int] = {}
    chosen: dict[str, int] = {}
    shapes = [(tile, shape(row, tile, target)) for tile in tiles(str(row["sample"]))]
    for way, (shared, carried) in allowed.items():
        found = [
            (taken, at)
            for at, (_, one) in enumerate(shapes)
            for stages in shared
            if (taken := cycles(one, stages, carried, target)) is not None
        ]
        best[way], at = min(found)
        if way == last:
            chosen, one = shapes[at]
    source, options = asked(row, chosen, target)
    plan = driver.plan_kernel(source, options, driver.Observer())
    (planned,) = plan.loops
    depth = count_versions_under_way(ScheduledLoop(planned.loop, planned.solution.schedule))
    ahead = any(map(is_fragment_prefetch, walk_statements(plan.assignment.kernel.body)))
    solved = cycles(one, depth, ahead, target)
    assert solved is not None, "what the scheduler chooses fits"
    return Row(name, {**best, "solved": solved}, chosen, depth, 2 if ahead else 1)


# ---- the table -------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], target: Target) -> list[str]:
    head = f"{'kernel':14} {'none, us':>10} {'double':>7} {'multi':>7} {'+ regs':>7} {'solved':>7}"
    lines = [f"{head}  tile, stages, of fragments"]
    for row in rows:
        micro = row.cycles["none"] / target.limit("clock_mhz")
        ratios = " ".join(f"{row.speedup(way):6.2f}x" for way in WAYS[1:])
        tile = " ".join(f"{name.removeprefix('block_')}={value}" for name, value in row.tile.items())
        lines.append(f"{row.name:14} {micro:10,.1f} {ratios}  {tile}, {row.stages}, {row.register_stages}")
    for what, of in (("geomean", statistics.geometric_mean), ("max", max)):
        ratios = " ".join(f"{of([row.speedup(way) for row in rows]):6.2f}x" for way in WAYS[1:])
        lines.append(f"{what:14} {'':>10} {ratios}")
    lines.append(
        "all predicted by the model, nothing measured; the paper measured, on an A100: mean "
        f"{PAPER['mean']}x, max {PAPER['max']}x, {PAPER['without multi-stage']}x with two stages only, "
        f"{PAPER['without multi-level']}x with shared memory only"
    )
    return lines


def arguments(purpose: str | None) -> argparse.Namespace:
    """`only`, `target` and `json` of the command line of a table."""
    parser = argparse.ArgumentParser(description=(purpose or "").split("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--target", default="sm_80", metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def write(file: Path | None, rows: Sequence[Any]) -> None:
    """The rows as JSON, if that is asked for."""
    if file is not None:
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def main() -> None:
    given = arguments(__doc__)
    target = load_target(given.target)
    kernels = tomllib.loads((FOLDER / "kernels.toml").read_text(encoding="utf-8"))
    rows = [predicted(name, row, target) for name, row in kernels.items() if fnmatch.fnmatch(name, given.only)]
    write(given.json, rows)
    print("\n".join(table(rows, target)))


if __name__ == "__main__":
    main()
