"""What a compilation is asked to do. Nothing else in tilec reads environment variables."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tilec.support import files, readers
from tilec.support.diagnostics import fail
from tilec.support.option_fields import (
    AUTO,
    check_value,
    choices,
    option,
    options_of,
    parse_cluster,
    parse_rasterisation,
    parse_subtile,
    said,
)
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

Scheduler = Literal["exact", "heuristic"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)

Stage = Literal["ast", "tile", "alias", "layout", "problem", "schedule", "expand", "warp", "ptx", "cubin"]
STAGES: tuple[Stage, ...] = get_args(Stage)

LAST_STAGE: dict[int, Stage] = {0: "tile", 1: "alias"}
"""Where the optimisation levels end that make no code."""

Lint = Literal["warn", "error", "off"]
LINTS: tuple[Lint, ...] = get_args(Lint)

MAY_DECIDE = 3
"""From this optimisation level on the compiler decides what options with `decides` leave open."""

LARGEST_BITS = 4096
"""Of an integer that is known when the kernel is compiled: Python writes out no longer one."""

Value = int | float | bool | str
"""What `-D NAME=VALUE` can give a module constant."""


def parse_define(text: str) -> tuple[str, Value]:
    """`NAME=VALUE`: an integer, a float, True or False, else a string (quotes are optional)."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        fail("bad-define", f"-D {text} does not define anything", help="write -D NAME=VALUE, as in -D M=4096")
    try:
        literal = ast.literal_eval(readers.python_expression(value.strip(" \t")))
    except (ValueError, TypeError):
        return name, value
    if isinstance(literal, int) and literal.bit_length() > LARGEST_BITS:
        fail("bad-define", f"-D {name}: the number is too large", help=f"a number has at most {LARGEST_BITS} bits")
    return name, literal if isinstance(literal, int | float | bool | str) else value


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
    """What a compilation is asked to do. Each field is documented beneath it, and docs/options.md lists those that have
    a spelling on the command line; `option_fields.Option` says what their statements have.

    Nothing is checked when one is made: `check_fields` refuses values from Python, the command line those of people.
    """

    target: str = option("sm_90a", "--target", "Machine to compile for.", metavar="NAME,…", is_code=False)
    """The name of a machine that `tilec targets` lists, or the path of a target file, whose name ends in .toml; the
    command makes one of these for each that is named."""

    calibration: str = option(
        "silicon",
        "--calibration",
        "Cycles to schedule with: as measured, or the normalised ones of the tileiras book.",
        words=choices(*CALIBRATIONS),
        is_code=False,
    )
    """Which set of cycles of the target's file instructions and latencies are taken from."""

    gpu: str | None = option(
        None,
        "--gpu",
        "Which GPU of the target the model is about, and code is tuned to: its multiprocessors, clock and memory.",
        default_text="as the target's file says",
        metavar="NAME",
        is_code=False,
    )
    """The name of a GPU that `tilec targets NAME` lists (None: the limits at the head of the target's file)."""

    opt_level: int = option(
        3,
        "--opt-level",
        "0: verify only, and write tile IR (.tile), which reads back identically. 1: one step further, tile IR with "
        "its alias groups and dependences (.alias). 2: everything up to a cubin, the assembler at -O2. 3: what the "
        "source leaves open is decided too: {decides}; the assembler at -O3.",
        short=("-O",),
        bounds=(0, 3),
    )
    """`LAST_STAGE` has where 0 and 1 end; 3 decides what `decided` lists."""

    defines: tuple[tuple[str, Value], ...] = option(
        (), "--define", "Override a constant of the kernel.",
        short=("-D",), read=parse_define, many=True, metavar="NAME=VALUE", is_code=False,
    )  # fmt: skip
    """Constants of the kernel file, by name, with the values that they have instead; of two for one, the last."""

    entry: str | None = option(
        None, "--entry", "Which kernel, where the file has several.",
        default_text="all, in one cubin", metavar="NAME", is_code=False,
    )  # fmt: skip
    """The name of a kernel of the file. None: its only one, or all."""

    pipeline_strategy: Strategy = option(
        "auto",
        "--pipeline-strategy",
        "How pipelined loops run. auto: as pays best. none: serially. unspecialize: all warps alike. "
        "warp-specialize: loads in a warp of their own.",
        words=choices(*STRATEGIES),
        tuned=True,
    )
    """Of all pipelined loops that do not say themselves."""

    auto_pipeline: bool = option(
        True,
        "--auto-pipeline",
        "Whether loops may be pipelined that load tiles for products and are not said to be.",
        default_text="yes, at -O3",
        tuned=True,
        decides="which serial loops are pipelined",
        undecided=False,
    )
    """Of `T.serial` loops; `T.Pipelined` ones are in any case."""

    stages_by_occupancy: bool = option(
        True,
        "--stages-by-occupancy",
        "Whether loops may have fewer stages than a block alone would use, where more blocks then share a "
        "multiprocessor.",
        default_text="yes, at -O3",
        decides="which stages are given up for another block of a multiprocessor",
        undecided=False,
        former={"--fewer-stages": "--stages-by-occupancy", "--no-fewer-stages": "--no-stages-by-occupancy"},
    )
    """Versions of tiles are given up where the model says that the occupancy gained is worth more."""

    register_stages: int | None = option(
        None,
        "--register-stages",
        "Whether products by mma.sync load fragments for the next iteration of their loop. 1: no. 2: where they can. "
        "auto: at -O3, where it pays.",
        words={AUTO: None, "1": 1, "2": 2},
        tuned=True,
        decides="which fragments are loaded an iteration ahead",
        undecided=1,
    )
    """How many versions there are of fragments that products by mma.sync load from shared tiles (1: none is loaded in
    the iteration before; None: as pays)."""

    split_loops: bool = option(
        True,
        "--split-loops",
        "Whether iterations of a pipelined loop in which a mask changes nothing may go without it.",
        default_text="yes, at -O3",
        decides="in which iterations masks are tested",
        undecided=False,
    )
    """The loop is split where its masks begin or end to matter."""

    scheduler: Scheduler = option(
        "exact",
        "--scheduler",
        "Who schedules the pipelines. exact: a solver, with a proof. heuristic: list schedulers, faster.",
        words=choices(*SCHEDULERS),
        tuned=True,
    )
    """Who solves the modulo scheduling problem of a loop."""

    search_budget: int = option(
        3000,
        "--search-budget",
        "How much a kernel's schedules may be searched for, all of its candidates together, in units of one to five "
        "milliseconds that do not depend on the machine. When it is used up, the loops that are left get the first "
        "schedule that a heuristic finds.",
        bounds=(0, None),
        metavar="N",
    )
    """How much all of the solver's runs for a kernel may take together, in thousandths of CP-SAT's deterministic time
    (0: nothing is searched)."""

    assembler_level: int | None = option(
        None,
        "--assembler-level",
        "How far the assembler optimises. auto: as --opt-level says, and at 1 where it would take minutes, which a "
        "warning tells.",
        words={AUTO: None, "1": 1, "2": 2, "3": 3},
    )
    """The assembler's own -O (None: `opt_level`, unless `ptx.assembler_level` says that this takes too long)."""

    ping_pong: bool = option(
        True,
        "--ping-pong",
        "Whether warpgroups may run apart in a loop and take turns at the tensor cores.",
        default_text="yes, where it pays",
        tuned=True,
    )
    """Of the consumers' warpgroups of a warp-specialised loop."""

    overlap: bool = option(
        True,
        "--overlap",
        "Whether a warp may compute in an iteration before it is done with the last one.",
        default_text="yes",
        tuned=True,
    )
    """Of a role of a warp-specialised loop; without, its operations of two iterations do not mix."""

    persistent: bool = option(
        True,
        "--persistent",
        "Whether a block may run several blocks of a grid with more than there are multiprocessors, one after the "
        "other.",
        default_text="yes, where loads have a warp of their own, and blocks are not too unlike",
        tuned=True,
    )
    """`tile_scheduler` says who gives a block its next one."""

    tile_scheduler: TileScheduler = option(
        "auto",
        "--tile-scheduler",
        "How a block of such a grid goes on. static: by a fixed stride. launch-control: it asks for one that has not "
        "begun. Who says either wants such a grid. auto: launch-control, where the target has it.",
        words=choices(*TILE_SCHEDULERS),
        tuned=True,
    )
    """Of a persistent grid."""

    consumer_warpgroups: int | None = option(
        None,
        "--consumer-warpgroups",
        "Warpgroups that compute, as if the kernel said threads=128*N.",
        default_text="as the kernel says",
        words={AUTO: None},
        bounds=(1, 7),
        metavar="N",
        tuned=True,
        former={"--consumers": "--consumer-warpgroups"},
    )
    """Warpgroups of 128 threads that a block computes with, whatever the kernel says (None: as it says)."""

    cluster: tuple[int, int, int] | None = option(
        None,
        "--cluster",
        "Blocks of a cluster, for kernels that do not say: XxY, as in 2x1. none: no clusters, unless the kernel does "
        "something with them.",
        default_text="pairs, where it pays",
        former={"--no-cluster": "--cluster none"},
        words={AUTO: None, "none": (1, 1, 1)},
        read=parse_cluster,
        metavar="XxY",
        tuned=True,
        decides="clusters",
        undecided=(1, 1, 1),
    )
    """The blocks of a cluster along x, y and z, for kernels that do not say (1, 1, 1: each block on its own even if
    they do, where nothing else changes by that; None: as pays)."""

    rasterisation: int | None = option(
        None,
        "--rasterisation",
        "In which order blocks go over the grid, for kernels that do not say. auto: as ends soonest or touches least "
        "memory. none: x first. A number: in panels of as many rows, or columns.",
        words={AUTO: None, "none": 0},
        read=parse_rasterisation,
        metavar="N",
        tuned=True,
        decides="the order of blocks",
        undecided=0,
    )
    """The height or width, in blocks, of the panels that blocks go over the grid in, for kernels that do not say
    (0: x counts fastest; None: as pays)."""

    subtile: int | None = option(
        None,
        "--subtile",
        "In how many parts tiles are whose products are computed with, so that one part computes while another "
        "multiplies, for kernels that do not say. auto: as is fastest. none: whole. A number: so many.",
        words={AUTO: None, "none": 1},
        read=parse_subtile,
        metavar="N",
        tuned=True,
        decides="in which parts tiles are computed with",
        undecided=1,
    )
    """In how many parts the tiles of a loop are whose products are computed with, for kernels that do not say (1:
    none; None: as pays)."""

    multicast: bool = option(
        True,
        "--multicast",
        "Whether blocks of a cluster may load together what they have in common.",
        default_text="yes",
        tuned=True,
    )
    """By TMA loads with a mask of the blocks of the cluster."""

    cta_pairs: bool = option(
        True,
        "--cta-pairs",
        "Whether the tensor cores of a cluster of two blocks may multiply together (tcgen05, .cta_group::2).",
        default_text="yes",
        former={"--pairs": "--cta-pairs", "--no-pairs": "--no-cta-pairs"},
    )
    """Where one block alone multiplies with .cta_group::1."""

    epilogue_warp: bool = option(
        True,
        "--epilogue-warp",
        "Whether a thread of its own may begin copies to global memory, and wait for them.",
        default_text="yes, where it pays",
        tuned=True,
        former={"--store-role": "--epilogue-warp", "--no-store-role": "--no-epilogue-warp"},
    )
    """A role of a warp-specialised kernel beside producer and consumers."""

    stmatrix: bool = option(
        True,
        "--stmatrix",
        "Whether accumulators may go to shared memory by stmatrix.",
        default_text="yes, where it takes them",
        tuned=True,
    )
    """Where the target has it (PTX ISA, stmatrix: sm_90 and above)."""

    tma_loads: bool = option(
        True,
        "--tma-loads",
        "Whether loops without a producer warp may load by TMA.",
        default_text="yes, where wgmma takes the tiles",
        tuned=True,
    )
    """Without, such loops load by cp.async."""

    arrivals: Arrivals = option(
        "warp",
        "--arrivals",
        "Who arrives at a barrier when warps are done with a tile: one thread of each warp, or every thread.",
        words=choices(*ARRIVALS),
        tuned=True,
    )
    """At the barriers of rings; blocks that share a ring hear from one thread of each warp in any case."""

    pdl: bool = option(
        True,
        "--pdl",
        "Whether a kernel may begin while the one before it in the stream ends, and let the next one do so.",
        default_text="yes, at -O3, unless it says itself",
        tuned=True,
        decides="whether a kernel begins while the one before it ends",
        undecided=False,
        former={"--dependent-launch": "--pdl", "--no-dependent-launch": "--no-pdl"},
    )
    """By griddepcontrol, for kernels that do not say themselves what they wait for."""

    max_scheduled_ii: int | None = option(
        None,
        "--max-scheduled-ii",
        "Warp-specialised loops whose II must be larger get boundaries and barriers only, with roles by rule (0: all "
        "of them).",
        bounds=(0, None),
        metavar="CYCLES",
        former={"--rrt-size-threshold": "--max-scheduled-ii"},
    )
    """A warp-specialised loop whose initiation interval (cycles) must be larger is divided among its roles but not
    scheduled (None: every loop is)."""

    fma: bool = option(True, "--fma", "Whether a product that is added to something is one operation with the sum.")
    """A product and a sum in one expression by one fma, which rounds once, as other compilers for GPUs have it."""

    fast_math: bool = option(
        False, "--fast-math", "Approximate functions and division; products fused with sums across statements.",
    )  # fmt: skip
    """Functions by their .approx instructions, and products and sums such that the assembler may fuse them too."""

    schedule: str | None = option(
        None, "--schedule", "Take the schedule from this trace, after verifying it.",
        read=files.read_text, metavar="FILE", is_code=False,
    )  # fmt: skip
    """The text of a trace, whose schedule is taken in place of the solver's."""

    lint: Lint = option(
        "warn", "--lint", "What lints do: warn, fail the build, or nothing.", words=choices(*LINTS), is_code=False
    )
    """With "error" a lint ends the compilation."""

    solve_afresh: bool = option(
        False, "--no-cache", "Solve and assemble again, even where the result is cached.", is_code=False
    )
    """What is solved and assembled is written to the cache all the same; parser tables are taken from it."""

    refuse_inline_ptx: bool = option(
        False, "--no-inline-ptx", "Refuse T.ptx, for kernels of people that you do not trust.", is_code=False
    )
    """What T.ptx computes is checked all the same; machine code of strangers is then what tilec makes alone."""

    verify: bool = option(
        False,
        "--verify",
        "Verify thoroughly what every pass makes, also where that takes longer than the pass.",
        is_code=False,
    )
    """Without, what stages give is verified, by what is quick."""

    cache_dir: str | None = None
    """Where parser tables, solved schedules and assembled machine code are kept (None: nothing is)."""

    switches: Switches = NO_SWITCHES
    """What the environment asks for."""

    silenced: tuple[str, ...] = ()
    """Codes of warnings that nobody wants to see ("all": none of them)."""

    errors: tuple[str, ...] = ()
    """Codes of warnings that end the compilation, where they are not silenced."""

    warnings_are_errors: bool = False
    """A warning that is not silenced ends the compilation."""

    tuned_for: str | None = None
    """The digest of the only kernel text that the rest is meant for (None: any)."""


OPTIONS = options_of(CompileOptions)
"""By its field, how each option is spelled that people can give."""

DECIDED = {field: stated for field, stated in OPTIONS.items() if stated.decides}
"""What -O3 adds to -O2. With what `without` says of all of these both levels have the same schedules and grid."""


FORMER_NAMES = {
    old.removeprefix("--"): field
    for field, stated in OPTIONS.items()
    for old, new in stated.former.items()
    if new == stated.switch
}
"""By the names that options had in spaces, files of `tilec tune` and from Python: their fields now."""


def check_fields(given: Mapping[str, object]) -> None:
    """Raises `ValueError` where there is no such field of `CompileOptions`, or it has no such value."""
    default_text = CompileOptions()
    for name, value in given.items():
        if name not in CompileOptions.__match_args__:
            from difflib import get_close_matches  # rarely needed, and takes a while

            near = get_close_matches(name, CompileOptions.__match_args__, n=1)
            raise ValueError(f"there is no switch {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        if name in OPTIONS:
            check_value(name, OPTIONS[name], getattr(default_text, name), value)


def changed(options: CompileOptions) -> dict[str, str]:
    """Return what was asked for beside target and constants, where that is not what would be done anyway."""
    different = _different(options, CompileOptions())
    about_code = {name: said(value) for name, value in different.items() if name in OPTIONS and OPTIONS[name].is_code}
    environment = {name: said(value) for name, value in _different(options.switches, NO_SWITCHES).items()}
    given = {} if options.schedule is None else {"schedule": "given"}
    return {name.replace("_", "-"): value for name, value in (about_code | environment | given).items()}


def _different(record: CompileOptions | Switches, default_text: CompileOptions | Switches) -> dict[str, object]:
    """Return the fields that are not as usual."""
    names = type(record).__match_args__
    return {name: getattr(record, name) for name in names if getattr(record, name) != getattr(default_text, name)}


def cache_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return where results are kept for the next run: $TILEC_CACHE_DIR, else tilec/ in the user's cache folder."""
    if chosen := environment.get("TILEC_CACHE_DIR"):
        return chosen
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "tilec")


def verification(environment: Mapping[str, str] = os.environ) -> str:
    """Return what every compilation is to verify behind each pass: $TILEC_VERIFY is "all" for everything, "1" for all
    but warp programs that are not complete yet, which takes as long as a build; "" for what is complete alone."""
    return environment.get("TILEC_VERIFY", "")


_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}")


def switches(environment: Mapping[str, str] = os.environ) -> Switches:
    """TILE_AS_DEBUG_UNLIMITED_SMEM counts if it is exactly 1, TILEIR_PREFER_TMA_FOR_LOAD_STORE if it is exactly true,
    TILEIR_ALWAYS_SWIZZLE whatever it is, TILEIR_DELAY_TMA_STORE_WAIT as a decimal number: 0 switches the delay off."""
    delay = environment.get("TILEIR_DELAY_TMA_STORE_WAIT", "1")
    if not _DECIMAL.fullmatch(delay.strip()):
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
