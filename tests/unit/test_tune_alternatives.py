"""What the compiler could have decided otherwise is tried by a search, for every choice of the pipeline alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver.build import Observer, Plan, plan_kernel
from tilec.driver.pipeline import PIPELINE, Choice
from tilec.sched.decision import Alternative, Decision
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.tune import knobs
from tilec.tune.knobs import list_alternative_points
from tilec.tune.space import Point, Value

SAMPLES = Path(__file__).parents[2] / "samples"
LARGE: tuple[tuple[str, Value], ...] = (("M", 4096), ("N", 4096), ("K", 4096))


def planned(target: str, *, ping_pong: bool = True, point: Point = ()) -> Plan:
    base = CompileOptions(target=target, defines=LARGE, ping_pong=ping_pong)
    return plan_kernel(read_source(str(SAMPLES / "gemm.tl")), knobs.apply_point(point, base), Observer())


def test_every_switch_of_a_choice_is_a_knob() -> None:
    for row in PIPELINE:
        for switch in row.switches if isinstance(row, Choice) else ():
            name = switch.removeprefix("--")
            assert name in knobs.KNOBS or name.removeprefix("no-") in knobs.KNOBS


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sm_80", {(("--register-stages", 1),), (("--rasterisation", "none"),)}),
        (
            "sm_90a",
            {
                (("--persistent", False),),
                (("--cluster", "2x1"),),
                (("--cluster", "1x2"),),
                (("--rasterisation", "none"),),
                (("--pipeline-strategy", "unspecialize"),),
                (("--overlap", False),),
                (("--pdl", False),),
            },
        ),
    ],
)
def test_each_alternative_is_a_variant_that_can_be_planned(target: str, expected: set[Point]) -> None:
    found = list_alternative_points(planned(target).decisions, (), CompileOptions(target=target, defines=LARGE))
    assert expected <= set(found)
    changed = {"--cluster": "cluster", "--rasterisation": "rasterisation", "--persistent": "persistent grid"}
    for point in found:
        ((name, _),) = point
        made = planned(target, point=point)
        if name in changed:
            (decision,) = (d for d in made.decisions if d.what == changed[name])
            assert decision.by == "the command line"


def test_what_is_asked_for_anyhow_is_no_variant() -> None:
    said = (
        Alternative("yes", 1, "cycles", "--stmatrix"),
        Alternative("no", 2, "cycles", "--no-stmatrix"),
        Alternative("at most", 3, "cycles", "--register-stages 2"),
        Alternative("else", None, None),
    )
    decisions = (Decision("it", "else", "the compiler", "", said), Decision("again", "else", "the compiler", "", said))
    written = (("block_M", 64),)
    base = CompileOptions(register_stages=2)
    assert list_alternative_points(decisions, written, base) == ((("--stmatrix", False), ("block_M", 64)),)
    with pytest.raises(ValueError, match="--nonsense is not an option of any choice"):
        list_alternative_points(
            (Decision("it", "", "the compiler", "", (Alternative("x", None, None, "--nonsense"),)),), (), base
        )
