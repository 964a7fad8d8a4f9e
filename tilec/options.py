"""What a compilation is asked to do. Nothing else in tilec reads environment variables."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tilec.diag import fail
from tilec.records import dataclass

Strategy = Literal["auto", "none", "unspecialize", "warp-specialize"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

Scheduler = Literal["exact", "heuristic"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)

Stage = Literal["ast", "tile", "layout", "problem", "schedule", "warp", "ptx", "cubin"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Value = int | float | bool | str
"""What `-D NAME=VALUE` can give a module constant."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`schedule` is the text of a trace to use in place of the solver. `scheduler` says who solves. A warp-specialised
    loop whose II must be larger than `rrt_size_threshold` is divided among its roles but not scheduled (None: every
    loop is). `cache_dir` keeps parser tables and solved schedules (None: nothing is kept); `solve_afresh` leaves the
    schedules in it alone. `unlimited_smem` lifts the shared-memory limit, to see what a tile that does not fit would
    have become."""

    target: str = "sm_90a"
    opt_level: int = 3
    defines: tuple[tuple[str, Value], ...] = ()
    entry: str | None = None
    pipeline_strategy: Strategy = "auto"
    schedule: str | None = None
    scheduler: Scheduler = "exact"
    rrt_size_threshold: int | None = None
    cache_dir: str | None = None
    solve_afresh: bool = False
    unlimited_smem: bool = False

    @property
    def strategy(self) -> Strategy:
        """How pipelined loops are to be run: below -O2 they are not, at -O2 `auto` does not specialise warps."""
        if self.opt_level < 2:
            return "none"
        if self.opt_level == 2 and self.pipeline_strategy == "auto":
            return "unspecialize"
        return self.pipeline_strategy

    @property
    def assembler_level(self) -> int:
        return 0 if self.opt_level == 0 else 3


def parse_define(text: str) -> tuple[str, Value]:
    """`NAME=VALUE`: an integer, a float, True or False, else a string (quotes are optional)."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        fail("bad-define", f"-D {text} does not define anything", help="write -D NAME=VALUE, as in -D M=4096")
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
    return name, literal if isinstance(literal, int | float | bool | str) else value


def cache_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Where solved schedules are kept: $TILEC_CACHE_DIR, else tilec/ in the user's cache folder."""
    if chosen := environment.get("TILEC_CACHE_DIR"):
        return chosen
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "tilec")


def wants_unlimited_smem(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get("TILE_AS_DEBUG_UNLIMITED_SMEM", "") == "1"
