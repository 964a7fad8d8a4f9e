"""The options of a compilation, drawn from those that there are: a switch that is new is drawn too."""

from __future__ import annotations

import random
from typing import Any

from tilec.support.options import ARRIVALS, NO_SWITCHES, SCHEDULERS, STRATEGIES, TILE_SCHEDULERS, CompileOptions

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_86", "sm_87", "sm_89", "sm_103a", "sm_110a", "sm_120a")
VALUES: dict[str, tuple[Any, ...]] = {
    "opt_level": (2, 3),
    "pipeline_strategy": STRATEGIES,
    "scheduler": SCHEDULERS,
    "tile_scheduler": TILE_SCHEDULERS,
    "arrivals": ARRIVALS,
    "calibration": ("silicon", "book"),
    "register_stages": (None, 1, 2),
    "rasterisation": (None, 0, 2),
    "consumer_warpgroups": (None, 1, 2),
    "subtile": (None, 1, 2),
    "cluster": (None, (1, 1, 1), (2, 1, 1)),
    "max_scheduled_ii": (None, 0, 100),
}
"""Of what is no switch."""

NOT_DRAWN = {
    "target": "each kernel has one",
    "gpu": "numbers of the target's file, which tests/unit/test_target.py replaces",
    "defines": "drawn kernels have their numbers in them",
    "entry": "said where there are several kernels",
    "schedule": "tests/kernels/test_pipeline_property.py draws schedules",
    "cache_dir": "not about code",
    "solve_afresh": "not about code",
    "lint": "not about code",
    "refuse_inline_ptx": "not about code",
    "silenced": "not about code",
    "errors": "not about code",
    "warnings_are_errors": "not about code",
    "verify": "tests verify everything anyhow",
    "tuned_for": "what tuning writes",
    "assembler_level": "not about PTX",
    "search_budget": "tests/sched/test_budget.py ends searches early",
}


def switches() -> list[str]:
    """The options that are on or off."""
    default = CompileOptions()
    names = CompileOptions.__match_args__
    return [n for n in names if isinstance(getattr(default, n), bool) and n not in NOT_DRAWN]


def drawn_options(rng: random.Random, target: str) -> dict[str, Any]:
    """Most of them as they are usually."""
    options: dict[str, Any] = {"target": target, "scheduler": "heuristic" if rng.random() < 0.85 else "exact"}
    default = CompileOptions()
    for name in rng.sample(switches(), rng.choice((0, 0, 0, 1, 2, 3))):
        options[name] = not getattr(default, name)
    names = [name for name in VALUES if name != "scheduler"]
    for name in rng.sample(names, rng.choice((0, 0, 1, 1, 2, 3))):
        value = VALUES[name][rng.randrange(len(VALUES[name]))]
        if value is not None:
            options[name] = value
    if rng.random() < 0.08:
        name = rng.choice([n for n in type(NO_SWITCHES).__match_args__ if n != "unlimited_smem"])
        options["switches"] = {name: not getattr(NO_SWITCHES, name)}
    return options
