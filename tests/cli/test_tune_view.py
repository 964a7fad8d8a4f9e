"""The table of `tilec tune`: the file as written first, equal trials in one row, 80 columns; what is left out."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tilec.cli.commands.tune_view import make_best_table
from tilec.frontend.syntax.parse import parse_file
from tilec.support.source import SourceFile
from tilec.tune.auto import find_literal_stages
from tilec.tune.outcome import Outcome
from tilec.tune.space import Point

WRITTEN: Point = (("block_M", 128), ("num_stages", 4))
LONG: Point = (*WRITTEN, ("--consumer-warpgroups", 2), ("--register-stages", 2), ("--epilogue-warp", True))


def drawn(trials: list[tuple[Point, Outcome]], baseline: Point = WRITTEN, gpu: str = "") -> list[str]:
    built = sorted(trials, key=lambda trial: trial[1].rank(gpu))
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(make_best_table(built, gpu, 1000, baseline))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_file_as_written_is_the_first_row() -> None:
    fast = (("block_M", 64), ("num_stages", 4))
    _, heads, first, rest, second = drawn([(fast, Outcome(by_levels=900)), (WRITTEN, Outcome(by_levels=2000))])
    assert heads.split() == ["predicted", "II", "registers", "spilled", "what", "it", "changes"]
    assert first.startswith("   2.0 µs") and first.endswith("the file as written: block_M=128,")
    assert rest.strip() == "num_stages=4"
    assert second.startswith("   0.9 µs") and second.endswith("0  block_M=64")


def test_trials_that_a_switch_does_not_change_share_a_row() -> None:
    same = Outcome(by_levels=2000, intervals=(512,))
    others = [((*WRITTEN, ("--overlap", False)), same), ((*WRITTEN, ("--tma-loads", True)), Outcome(by_levels=1900))]
    rows = drawn([*others, (WRITTEN, same)])[2:]
    assert len(rows) == 4
    assert rows[2].strip() == "the same with --overlap=False"
    assert rows[3].endswith("--tma-loads=True")


def test_trials_of_other_constants_are_told_apart_where_they_come_to_the_same() -> None:
    same = Outcome(by_levels=2000)
    assert len(drawn([((("block_M", 64), ("num_stages", 4)), same), (WRITTEN, same)])) == 5


def test_measured_trials_with_many_options_fit_a_terminal() -> None:
    outcome = Outcome(by_levels=10**7, intervals=(1024,), registers=168, milliseconds=1.0)
    lines = drawn([(LONG, outcome)], gpu="H200")
    assert max(map(len, lines)) <= 80
    assert "--consumer-warpgroups=2" in " ".join(lines)


def test_a_number_of_stages_in_the_kernel_is_found() -> None:
    loop = "    for k in T.Pipelined(8, num_stages={}):\n        pass\n"
    text = f"def f():\n{loop.format(4)}{loop.format('n')}"
    assert find_literal_stages(parse_file(SourceFile("k.tl", text))) == [(2, 4)]
