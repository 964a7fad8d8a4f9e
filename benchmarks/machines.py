"""Every sample on every machine: whether it compiles and computes what numpy does, and what the model predicts.

    python benchmarks/machines.py [--only gemm/] [--target sm_89 …] [--json FILE] [--page docs/machines.md]
    python benchmarks/machines.py --predict-again OLD --json FILE --page docs/machines.md

A cell of the table is the share of the roofline that `tilec report` predicts for the sizes of the file, where the
emulator has run the sample, on the small sizes of tests/samples, and numpy agreed. With --json the cells that are in
FILE already are taken from there, so a run that was interrupted goes on. --predict-again takes the emulator's verdicts
from an earlier such file and asks the model only. --page writes the table there, and one of the schedules of two
samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "samples"))

from references import SAMPLES, Sample
from test_every_sample import FOLDER, OTHER_SIZES, TARGETS, equals_numpy
from test_other_machines import ALIKE, tiles

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

MACHINES = tuple(sorted((*TARGETS, *ALIKE), key=lambda name: (len(name.rstrip("a")), name)))
READ = {"gemm": {"M": 4096, "N": 4096, "K": 4096}, "flash_attention": {}}
"""Samples whose schedules the page reads, and what `-D` says for them."""


def samples() -> list[Sample]:
    """Those that tests/samples compares with numpy, and attention, whose tests are its own: one head for each of K."""
    (grouped,) = (known for known in SAMPLES if known.path == "attention/gqa")
    constants = {name: value for name, value in grouped.constants.items() if name != "kv_heads"}
    return [*SAMPLES, replace(grouped, path="flash_attention", constants={**constants, "heads": 2})]


@dataclass(frozen=True)
class Cell:
    """Of a sample on a machine. `share` is of the roofline, for `microseconds`; `agrees` that numpy has found the
    emulated results right; `tile` is what `-D` says; `refused` why there is nothing."""

    sample: str
    target: str
    share: float = 0.0
    microseconds: float = 0.0
    bound: str = ""
    agrees: bool = False
    tile: str = ""
    refused: str = ""


def of(known: Sample, target: str, has_agreed: bool = False) -> Cell:
    """Build a sample, run it in the emulator unless that `has_agreed` already, and predict its time."""
    if known.feature is not None and not load_target(target).has(known.feature):
        return Cell(known.path, target, refused=f"needs {known.feature}")
    other = tiles(known.path, target) if target in ALIKE else OTHER_SIZES.get((known.path, target), {})
    said = " ".join(f"-D {name}={value}" for name, value in other.items())
    source = SourceFile(known.path, (FOLDER / f"{known.path}.tl").read_text(encoding="utf-8"))
    try:
        options = CompileOptions(target=target, defines=tuple(other.items()))
        (report,) = driver.build_reports(driver.build_library(source, options, driver.Observer()))
    except CompileError as error:
        return Cell(known.path, target, tile=said, refused=error.diagnostics[0].title)
    if not has_agreed:
        small = other if known.path == "gemm/pipeline_objects" else {}
        equals_numpy(known, {**known.constants, **small}, target)
    time = report.at(report.predicted)
    return Cell(known.path, target, round(report.achieved, 4), round(time, 2), report.bound, True, said)


def cells(
    only: str,
    targets: tuple[str, ...],
    known: Mapping[tuple[str, str], Cell],
    emulated: Mapping[tuple[str, str], Cell],
) -> Iterator[Cell]:
    """Yield the cells that are `known`, and make the others; those that were `emulated` are not emulated again."""
    for sample in samples():
        for target in targets:
            key = sample.path, target
            if only in sample.path:
                yield known.get(key) or of(sample, target, key in emulated and emulated[key].agrees)


def read_cells(path: Path | None) -> dict[tuple[str, str], Cell]:
    """Return the cells that a file has, a line each."""
    if path is None or not path.exists():
        return {}
    found = (Cell(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {(cell.sample, cell.target): cell for cell in found}


def table(found: Mapping[tuple[str, str], Cell], targets: tuple[str, ...]) -> str:
    lines = [f"| sample | {' | '.join(targets)} |", f"| --- |{' ---: |' * len(targets)}"]
    for name in dict.fromkeys(sample for sample, _ in found):
        row = [found.get((name, target)) for target in targets]
        lines.append(f"| [{name}](../samples/{name}.tl) | {' | '.join(map(shown, row))} |")
    tiled = [cell for cell in found.values() if cell.tile and not cell.refused]
    lines += ["", "With other tiles than those of the file:", ""]
    for said, of_it in sorted({(cell.sample, cell.tile) for cell in tiled}):
        machines = ", ".join(cell.target for cell in tiled if (cell.sample, cell.tile) == (said, of_it))
        lines.append(f"* {said} on {machines}: `{of_it}`")
    return "\n".join(lines) + "\n"


def schedules(targets: tuple[str, ...]) -> str:
    lines = ["| | machine | interval | stages | versions of tiles | shared memory | what binds |"]
    lines.append("| --- | --- | ---: | ---: | --- | ---: | --- |")
    for name, defines in READ.items():
        source = SourceFile(name, (FOLDER / f"{name}.tl").read_text(encoding="utf-8"))
        for target in targets:
            options = CompileOptions(target=target, defines=tuple(defines.items()))
            made = driver.build_kernel(source, options, driver.Observer())
            (loop,) = json.loads(made.trace)["tilec"]["loops"]
            rings = ", ".join(f"{ring['depth']} {ring['name']}" for ring in loop["rings"])
            (memory,) = (pool["peak"] for pool in loop["pools"] if pool["name"] == "smem")
            binds = "; ".join(bound["name"] for bound in loop["bounds"] if bound["binds"] and bound["kind"] == "slot")
            size = f"{loop['ii']:,} | {loop['stages']} | {rings} | {memory / 1024:.0f} KiB"
            lines.append(f"| {name} | {target} | {size} | {binds or 'dependences'} |")
    return "\n".join(lines) + "\n"


def shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return cell.refused or f"{cell.share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="samples whose path has this in it")
    parser.add_argument("--target", action="append", choices=MACHINES, help="these machines (default: all)")
    parser.add_argument("--json", type=Path, help="where cells are kept, one a line")
    parser.add_argument("--predict-again", type=Path, metavar="OLD", help="cells whose emulated results are right")
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced")
    asked = parser.parse_args()
    kept, emulated = read_cells(asked.json), read_cells(asked.predict_again)
    targets = tuple(asked.target or MACHINES)
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells(asked.only, targets, kept, emulated):
        found[cell.sample, cell.target] = cell
        if asked.json is not None and (cell.sample, cell.target) not in kept:
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(cell)) + "\n")
        print(f"{cell.sample:32} {cell.target:8} {shown(cell)}", flush=True)
    if asked.page is not None:
        text = replaced(asked.page.read_text(encoding="utf-8"), "samples", table(found, targets))
        asked.page.write_text(replaced(text, "schedules", schedules(targets)), encoding="utf-8")


def replaced(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- begin: {name}, made by benchmarks/machines.py -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    assert found and ended, f"the page has no place for {name}"
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    main()
