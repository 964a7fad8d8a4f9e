"""What a compilation is asked to do. Nothing else in tilec reads environment variables."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from tilec.support import readers
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass

Strategy = Literal["auto", "none", "unspecialize", "warp-specialize"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

CALIBRATIONS = ("silicon", "book")
"""The sets of cycles that every target file carries; the first is the default."""

Arrivals = Literal["warp", "thread"]
"""Who arrives at an mbarrier when a role of several warps is done with a tile: one thread of each warp, or every
thread. One for a warpgroup would do where CUTLASS lets it: PTX has a wait for wgmma end for the threads that wait, and
says nothing of the warpgroup's other warps."""
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)

TileScheduler = Literal["auto", "static", "launch-control"]
"""How a block of a persistent grid goes on to its next tile: by a fixed stride, or by asking the machine for the work
of a block that has not begun (cluster launch control)."""
TILE_SCHEDULERS: tuple[TileScheduler, ...] = get_args(TileScheduler)

REGISTER_STAGES = ("auto", "1", "2")
"""How many versions there may be of fragments that products load from shared tiles themselves."""

Scheduler = Literal["exact", "heuristic"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)

Stage = Literal["ast", "tile", "alias", "layout", "problem", "schedule", "expand", "warp", "ptx", "cubin"]
STAGES: tuple[Stage, ...] = get_args(Stage)

LAST_STAGE: dict[int, Stage] = {0: "tile", 1: "alias"}
"""Where the optimisation levels end that make no code."""

Lint = Literal["warn", "error", "off"]
LINTS: tuple[Lint, ...] = get_args(Lint)

Value = int | float | bool | str
"""What `-D NAME=VALUE` can give a module constant."""

MAY_DECIDE = 3
"""From this optimisation level on the compiler decides what `DECIDED` lists."""

DECIDED: dict[str, tuple[Any, str, str]] = {
    "auto_pipeline": (False, "--no-auto-pipeline", "which serial loops are pipelined"),
    "subtile": (1, "--subtile none", "in which parts tiles are computed with"),
    "fewer_stages": (False, "--no-fewer-stages", "which stages are given up for another block of a multiprocessor"),
    "register_stages": (1, "--register-stages 1", "which fragments are loaded a trip ahead"),
    "split_loops": (False, "--no-split-loops", "in which trips masks are tested"),
    "cluster": ((1, 1, 1), "--no-cluster", "clusters"),
    "rasterisation": (0, "--rasterisation none", "the order of blocks"),
    "dependent_launch": (False, "--no-dependent-launch", "whether a kernel begins while the one before it ends"),
}
"""What -O3 adds to -O2, by the field of `CompileOptions`: the value without it, the switch for that, and what it is.
With all of these switches both levels have the same schedules and the same grid."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What the environment asks for, under the names that tileiras has for it.

    unlimited_smem        lift the shared-memory limit, to see what a tile that does not fit would have become
    prefer_tma            store every fragment through shared memory by TMA, where it can be
    always_swizzle        take the widest bank swizzle that is legal, whatever the score of the layout
    delay_tma_store_wait  let TMA stores read shared memory until something needs it; else wait right behind each
    """

    unlimited_smem: bool = False
    prefer_tma: bool = False
    always_swizzle: bool = False
    delay_tma_store_wait: bool = True


NO_SWITCHES = Switches()


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`schedule` is the text of a trace to use in place of the solver. `scheduler` says who solves. A warp-specialised
    loop whose II must be larger than `rrt_size_threshold` is divided among its roles but not scheduled (None: every
    loop is). `ping_pong` lets the consumers' warpgroups of a loop run apart and take turns at the tensor cores, where
    that pays; `overlap` lets a role compute in one iteration before it is done with the last; `persistent` lets a block
    run several of the grid's, one after the other (`tile_scheduler` says who gives it these: "auto" is launch control,
    where the target has it); `multicast` lets blocks of a cluster load together what they have in common; `pairs` lets
    the tensor cores of two blocks multiply together; `store_role` lets a role of its own begin the copies to global
    memory, where that pays. `dependent_launch` lets a kernel begin while the one before it ends, where it does not say
    itself what it waits for. `auto_pipeline` lets loops be pipelined that load tiles for products and are not said to
    be. `split_loops` lets trips of a loop in which a mask leaves everything as it is go without it. `fewer_stages` lets
    loops have fewer versions of their tiles than a block alone would use, where more blocks then share a
    multiprocessor, and that pays. `register_stages` is how many versions there are of fragments that products by
    mma.sync load from shared tiles (1: none is loaded in the trip before; None: as pays). `stmatrix` lets warps write
    accumulators to shared memory by that instruction, where the target has it. `arrivals` says who arrives at the
    barriers of rings (blocks that share a ring hear from one thread of each warp in any case). `cluster` has the blocks
    of a cluster along x, y and z, for kernels that do not say (1, 1, 1: each block on its own even if they do, where
    nothing else changes by that; None: as pays). `rasterisation` is the height or width of the panels that blocks go
    over the grid in, for kernels that do not say (0: x counts fastest; None: as pays). `consumers` is how many
    warpgroups of 128 threads a block computes with, whatever the kernel says. `subtile` is in how many parts the tiles
    of a loop are whose products are computed with, for kernels that do not say (1: none; None: as pays). `tuned_for` is
    the digest of the only kernel text that the rest is meant for (None: any). `cache_dir` keeps parser tables and
    solved schedules (None: nothing is kept); `solve_afresh` leaves the schedules in it alone. `fast_math` allows
    approximate functions and fused products and sums. `lint` says what becomes of lints; with "error" they end the
    compilation. `silenced` are codes of warnings that nobody wants to see ("all": none of them). `search_budget` is how
    much all of the solver's runs for a kernel may take together, in thousandths of CP-SAT's deterministic time, of one
    to five milliseconds each (0: nothing is searched). `verify` lets every value that a pass makes be verified
    thoroughly, whatever that costs."""

    target: str = "sm_90a"
    calibration: str = "silicon"
    opt_level: int = 3
    defines: tuple[tuple[str, Value], ...] = ()
    entry: str | None = None
    pipeline_strategy: Strategy = "auto"
    schedule: str | None = None
    scheduler: Scheduler = "exact"
    search_budget: int = 5000
    rrt_size_threshold: int | None = None
    cache_dir: str | None = None
    solve_afresh: bool = False
    fast_math: bool = False
    lint: Lint = "warn"
    switches: Switches = NO_SWITCHES
    silenced: tuple[str, ...] = ()
    ping_pong: bool = True
    overlap: bool = True
    persistent: bool = True
    tile_scheduler: TileScheduler = "auto"
    multicast: bool = True
    pairs: bool = True
    store_role: bool = True
    dependent_launch: bool = True
    stmatrix: bool = True
    arrivals: Arrivals = "warp"
    tma_loads: bool = True
    auto_pipeline: bool = True
    split_loops: bool = True
    fewer_stages: bool = True
    register_stages: int | None = None
    cluster: tuple[int, int, int] | None = None
    rasterisation: int | None = None
    consumers: int | None = None
    subtile: int | None = None
    tuned_for: str | None = None
    warnings_are_errors: bool = False
    verify: bool = False


_VALUES: dict[str, tuple[object, ...]] = {
    "calibration": CALIBRATIONS,
    "opt_level": (0, 1, 2, 3),
    "pipeline_strategy": STRATEGIES,
    "scheduler": SCHEDULERS,
    "lint": LINTS,
    "tile_scheduler": TILE_SCHEDULERS,
    "arrivals": ARRIVALS,
}
"""Of the fields that have a few."""


def check_fields(given: Mapping[str, object]) -> None:
    """Raises `ValueError` where there is no such field of `CompileOptions`, or it has no such value."""
    usual = CompileOptions()
    for name, value in given.items():
        if name not in CompileOptions.__match_args__:
            from difflib import get_close_matches  # rarely needed, and takes a while

            near = get_close_matches(name, CompileOptions.__match_args__, n=1)
            raise ValueError(f"there is no switch {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        values = (False, True) if isinstance(getattr(usual, name), bool) else _VALUES.get(name)
        if values is not None and value not in values:
            raise ValueError(f"{name} is {' or '.join(map(repr, values))}, not {value!r}")


_NOT_ABOUT_CODE = {
    "target", "calibration", "defines", "entry", "schedule", "cache_dir", "solve_afresh", "lint", "switches",
    "silenced", "tuned_for", "warnings_are_errors", "verify",
}  # fmt: skip
"""Of these some have members of their own in a trace; no code depends on the others."""


def changed(options: CompileOptions) -> dict[str, str]:
    """What was asked for beside target and constants, where that is not what would be done anyway."""
    different = _different(options, CompileOptions()) | _different(options.switches, NO_SWITCHES)
    about_code = {name: _said(value) for name, value in different.items() if name not in _NOT_ABOUT_CODE}
    given = {} if options.schedule is None else {"schedule": "given"}
    return {name.replace("_", "-"): value for name, value in (about_code | given).items()}


def _different(record: CompileOptions | Switches, usual: CompileOptions | Switches) -> dict[str, object]:
    """The fields that are not as usual."""
    names = type(record).__match_args__
    return {name: getattr(record, name) for name in names if getattr(record, name) != getattr(usual, name)}


def _said(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def parse_cluster(text: str) -> tuple[int, int, int]:
    """`XxY` or `XxYxZ`, as in 2x1; commas do too."""
    parts = text.lower().replace(",", "x").split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) for part in parts):
        fail("bad-cluster", f"--cluster {text} is no number of blocks", help="write --cluster 2x1")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def parse_rasterisation(text: str) -> int | None:
    """`auto`, `none` or the rows of a panel."""
    if text == "auto":
        return None
    if text != "none" and not (text.isdecimal() and int(text)):
        fail(
            "bad-rasterisation",
            f"--rasterisation {text} is no order of blocks",
            help="write auto, none, or the rows of a panel, as in --rasterisation 8",
        )
    return 0 if text == "none" else int(text)


def parse_register_stages(text: str) -> int | None:
    """One of `REGISTER_STAGES`."""
    return None if text == "auto" else int(text)


def parse_subtile(text: str) -> int | None:
    """`auto`, `none` or a number of parts."""
    if text == "auto":
        return None
    if text != "none" and not (text.isdecimal() and int(text)):
        fail("bad-subtile", f"--subtile {text} is no number of parts", help="write auto, none, or --subtile 2")
    return 1 if text == "none" else int(text)


def parse_define(text: str) -> tuple[str, Value]:
    """`NAME=VALUE`: an integer, a float, True or False, else a string (quotes are optional)."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        fail("bad-define", f"-D {text} does not define anything", help="write -D NAME=VALUE, as in -D M=4096")
    try:
        literal = ast.literal_eval(readers.python_expression(value.strip(" \t")))
    except (ValueError, TypeError):
        return name, value
    return name, literal if isinstance(literal, int | float | bool | str) else value


def cache_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Where solved schedules are kept: $TILEC_CACHE_DIR, else tilec/ in the user's cache folder."""
    if chosen := environment.get("TILEC_CACHE_DIR"):
        return chosen
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "tilec")


def verifies_everything(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether every compilation is to verify all that it makes: where $TILEC_VERIFY is 1, as in tests."""
    return environment.get("TILEC_VERIFY") == "1"


def switches(environment: Mapping[str, str] = os.environ) -> Switches:
    """TILE_AS_DEBUG_UNLIMITED_SMEM counts if it is exactly 1, TILEIR_PREFER_TMA_FOR_LOAD_STORE if it is exactly true,
    TILEIR_ALWAYS_SWIZZLE whatever it is, TILEIR_DELAY_TMA_STORE_WAIT as a decimal number: 0 switches the delay off."""
    delay = environment.get("TILEIR_DELAY_TMA_STORE_WAIT", "1")
    if not delay.strip().lstrip("+-").isdecimal():
        fail(
            "bad-environment",
            f"TILEIR_DELAY_TMA_STORE_WAIT is '{delay}', not a decimal number",
            help="set it to 1 or 0, or unset it",
        )
    return Switches(
        unlimited_smem=environment.get("TILE_AS_DEBUG_UNLIMITED_SMEM") == "1",
        prefer_tma=environment.get("TILEIR_PREFER_TMA_FOR_LOAD_STORE") == "true",
        always_swizzle="TILEIR_ALWAYS_SWIZZLE" in environment,
        delay_tma_store_wait=int(delay) != 0,
    )
