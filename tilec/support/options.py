"""The options of a compilation. Nothing else in tilec reads environment variables."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tilec.support import files, readers
from tilec.support.diagnostics import raise_error
from tilec.support.option_fields import (
    AUTO,
    build_word_choices,
    check_value,
    collect_options,
    format_value,
    option_field,
    parse_cluster,
    parse_rasterisation,
    parse_subtile,
)
from tilec.support.records import dataclass

Strategy = Literal["auto", "none", "unspecialize", "warp-specialize"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CALIBRATIONS = ("silicon", "book")
"""The sets of cycles that every target file carries; the first is the default."""

Arrivals = Literal["warp", "thread"]
"""The threads that arrive at an mbarrier when a role of several warps is done with a tile: one of each warp, or every
thread. CUTLASS lets one thread of a warpgroup arrive, but PTX completes a wait for wgmma only for the threads that
wait, and says nothing of the warpgroup's other warps."""
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)

TileScheduler = Literal["auto", "static", "launch-control"]
"""The way in which a block of a persistent grid gets its next tile: by a fixed stride, or by asking the machine for the
work of a block that has not begun (cluster launch control)."""
TILE_SCHEDULERS: tuple[TileScheduler, ...] = get_args(TileScheduler)

Scheduler = Literal["exact", "heuristic"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)
Stage = Literal["ast", "tile", "alias", "layout", "problem", "schedule", "expand", "warp", "ptx", "cubin"]
STAGES: tuple[Stage, ...] = get_args(Stage)
LAST_STAGE: dict[int, Stage] = {0: "tile", 1: "alias"}
"""The last stages of the optimisation levels that make no code."""

Lint = Literal["warn", "error", "off"]
LINTS: tuple[Lint, ...] = get_args(Lint)

DECIDING_LEVEL = 3
"""The optimisation level from which the compiler decides what options with `decides` leave open."""

LARGEST_BITS = 4096
"""The bits of the largest integer constant: Python prints no longer ones."""

Value = int | float | bool | str
"""The values that `-D NAME=VALUE` can give a module constant."""


def parse_define(text: str) -> tuple[str, Value]:
    """Return name and value of `NAME=VALUE`: a number, True, False, or else a string; raise `bad-define` if wrong.

    Quotes around a string are optional.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise_error("bad-define", f"-D {text} does not define anything", help="write -D NAME=VALUE, as in -D M=4096")
    try:
        literal = ast.literal_eval(readers.parse_python_expression(value.strip(" \t")))
    except (ValueError, TypeError):
        return name, value
    if isinstance(literal, int) and literal.bit_length() > LARGEST_BITS:
        advice = f"a number has at most {LARGEST_BITS} bits"
        raise_error("bad-define", f"-D {name}: the number is too large", help=advice)
    return name, literal if isinstance(literal, int | float | bool | str) else value


@dataclass(frozen=True, slots=True)
class EnvironmentSwitches:
    """The settings from the environment, under the names that tileiras has for them.

    unlimited_smem        lift the shared-memory limit, to see what a tile that does not fit would have become
    prefer_tma            store every fragment through shared memory by TMA, where possible
    always_swizzle        use the widest legal bank swizzle, whatever the score of the layout
    delay_tma_store_wait  let TMA stores read shared memory until something needs it; else wait right after each
    """

    unlimited_smem: bool = False
    prefer_tma: bool = False
    always_swizzle: bool = False
    delay_tma_store_wait: bool = True


NO_SWITCHES = EnvironmentSwitches()


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options of a compilation. Each field is documented beneath it, and docs/options.md lists those that have a
    spelling on the command line, from their `option_fields.Option`.

    The constructor checks nothing: `check_fields` checks values from Python, and the command line those of users.
    """

    target: str = option_field("sm_90a", "--target", "Machine to compile for.", metavar="NAME,…", is_code=False)
    """The name of a machine that `tilec targets` lists, or the path of a target file, whose name ends in .toml. The
    command makes one set of options for each target given."""

    calibration: str = option_field(
        "silicon", "--calibration",
        "The cycles to schedule with: measured ones, or the normalised ones of the tileiras book.",
        words=build_word_choices(*CALIBRATIONS), is_code=False,
    )  # fmt: skip
    """The set of instruction and latency cycles in the target's file."""

    gpu: str | None = option_field(
        None, "--gpu",
        "The GPU of the target that the model assumes and the code is tuned to: its multiprocessors, clock and memory.",
        default_text="as in the target's file", metavar="NAME", is_code=False,
    )  # fmt: skip
    """The name of a GPU that `tilec targets NAME` lists (None: the limits at the head of the target's file)."""

    opt_level: int = option_field(
        3, "--opt-level",
        "0: verify only, and write tile IR (.tile), which reads back identically. 1: one step further, tile IR with "
        "its alias groups and dependences (.alias). 2: everything up to a cubin, the assembler at -O2. 3: what the "
        "source leaves open is decided too: {decides}; the assembler at -O3.", short=("-O",), bounds=(0, 3),
    )  # fmt: skip
    """`LAST_STAGE` has the last stages of 0 and 1; 3 makes the decisions of `DECISION_OPTIONS`."""

    defines: tuple[tuple[str, Value], ...] = option_field(
        (), "--define", "Override a constant of the kernel.", short=("-D",), read=parse_define, many=True,
        metavar="NAME=VALUE", is_code=False,
    )  # fmt: skip
    """Overridden constants of the kernel file, by name, with their values; the last of two for one name counts."""

    entry: str | None = option_field(
        None, "--entry", "The kernel, if the file has several.", default_text="all, in one cubin", metavar="NAME",
        is_code=False,
    )  # fmt: skip
    """The name of a kernel of the file. None: its only one, or all."""

    pipeline_strategy: Strategy = option_field(
        "auto", "--pipeline-strategy",
        "The form of pipelined loops. auto: the one that pays. none: serial. unspecialize: all warps alike. "
        "warp-specialize: a producer warp loads.", words=build_word_choices(*STRATEGIES), tuned=True,
    )  # fmt: skip
    """For all pipelined loops without a strategy of their own."""

    auto_pipeline: bool = option_field(
        True, "--auto-pipeline", "Pipeline serial loops that load tiles for products.", default_text="yes, at -O3",
        tuned=True, decides="which serial loops are pipelined", undecided=False,
    )  # fmt: skip
    """For `T.serial` loops; `T.Pipelined` ones are pipelined in any case."""

    stages_by_occupancy: bool = option_field(
        True, "--stages-by-occupancy",
        "Trade pipeline stages for occupancy: use fewer stages where another block then fits on the multiprocessor.",
        default_text="yes, at -O3", decides="pipeline depth against occupancy", undecided=False,
        former={"--fewer-stages": "--stages-by-occupancy", "--no-fewer-stages": "--no-stages-by-occupancy"},
    )  # fmt: skip
    """Stages are given up where the model says that the occupancy gained is worth more."""

    register_stages: int | None = option_field(
        None, "--register-stages",
        "Prefetch fragments of mma.sync products for the next iteration of their loop. 1: no. 2: where possible. "
        "auto: at -O3, where it pays.", words={AUTO: None, "1": 1, "2": 2}, tuned=True,
        decides="which fragments are prefetched into registers", undecided=1,
    )  # fmt: skip
    """The versions of fragments that products by mma.sync load from shared tiles (1: no prefetch into registers; None:
    chosen by the model)."""

    split_loops: bool = option_field(
        True, "--split-loops", "Split loops so that iterations without out-of-bounds elements run without masks.",
        default_text="yes, at -O3", decides="in which iterations masks are tested", undecided=False,
    )  # fmt: skip
    """The loop is split where its masks start or stop having an effect."""

    scheduler: Scheduler = option_field(
        "exact", "--scheduler",
        "The solver of the pipelines' modulo schedules. exact: a solver, with a proof. heuristic: list schedulers, "
        "faster.", words=build_word_choices(*SCHEDULERS), tuned=True,
    )  # fmt: skip
    """The solver of a loop's modulo scheduling problem."""

    search_budget: int = option_field(
        3000, "--search-budget",
        "The effort to search for a kernel's schedules, all of its candidates together, in units of one to five "
        "milliseconds that do not depend on the machine. When it is used up, the remaining loops get the first "
        "schedule that a heuristic finds.", bounds=(0, None), metavar="N",
    )  # fmt: skip
    """The limit for all of the solver's runs for a kernel together, in thousandths of CP-SAT's deterministic time (0:
    no search)."""

    assembler_level: int | None = option_field(
        None, "--assembler-level",
        "The optimisation level of the assembler. auto: as --opt-level, or 1 where that would take minutes, with a "
        "warning.", words={AUTO: None, "1": 1, "2": 2, "3": 3},
    )  # fmt: skip
    """The assembler's own -O (None: `opt_level`, unless `ptx.assembler_level` says that this takes too long)."""

    ping_pong: bool = option_field(
        True, "--ping-pong",
        "Let consumer warpgroups alternate on the tensor cores (ping-pong).",
        default_text="yes, where it pays", tuned=True,
    )  # fmt: skip
    """For the consumers' warpgroups of a warp-specialised loop."""

    overlap: bool = option_field(
        True, "--overlap", "Overlap consecutive iterations in a warp (software pipelining of the consumers).",
        default_text="yes", tuned=True,
    )  # fmt: skip
    """For each role of a warp-specialised loop; without it, operations of two iterations do not mix."""

    persistent: bool = option_field(
        True, "--persistent",
        "Use a persistent grid: at most as many blocks as run at once, each looping over blocks of the grid.",
        default_text="yes, where a producer warp loads, and blocks do not differ too much", tuned=True,
    )  # fmt: skip
    """`tile_scheduler` decides how a block gets its next tile."""

    tile_scheduler: TileScheduler = option_field(
        "auto", "--tile-scheduler",
        "How a persistent block gets its next tile. static: fixed stride. launch-control: cluster launch control. "
        "Either one implies --persistent. auto: launch-control, where the target has it.",
        words=build_word_choices(*TILE_SCHEDULERS), tuned=True,
    )  # fmt: skip
    """For persistent grids."""

    consumer_warpgroups: int | None = option_field(
        None, "--consumer-warpgroups", "Number of consumer warpgroups, as if the kernel had threads=128*N.",
        default_text="as in the kernel", words={AUTO: None}, bounds=(1, 7), metavar="N", tuned=True,
        former={"--consumers": "--consumer-warpgroups"},
    )  # fmt: skip
    """The warpgroups of 128 threads that a block computes with, overriding the kernel (None: as it says)."""

    cluster: tuple[int, int, int] | None = option_field(
        None, "--cluster",
        "Blocks of a cluster, for kernels that do not set it: XxY, as in 2x1. none: no clusters, unless the kernel "
        "uses them.", default_text="pairs, where it pays", former={"--no-cluster": "--cluster none"},
        words={AUTO: None, "none": (1, 1, 1)}, read=parse_cluster, metavar="XxY", tuned=True, decides="clusters",
        undecided=(1, 1, 1),
    )  # fmt: skip
    """The blocks of a cluster along x, y and z, for kernels that do not set it (None: chosen by the model). (1, 1, 1)
    also overrides a kernel that does, where nothing else changes by that."""

    rasterisation: int | None = option_field(
        None, "--rasterisation",
        "The order of blocks in the grid, for kernels that do not set it. auto: the one that ends soonest or touches "
        "least memory. none: x first. A number: panels of that many rows or columns.", words={AUTO: None, "none": 0},
        read=parse_rasterisation, metavar="N", tuned=True, decides="the order of blocks", undecided=0,
    )  # fmt: skip
    """The height or width, in blocks, of the panels in which blocks cover the grid, for kernels that do not set it (0:
    x fastest; None: chosen by the model)."""

    subtile: int | None = option_field(
        None, "--subtile",
        "Split accumulator tiles into parts, so that the epilogue of one overlaps the products of the next, for "
        "kernels that do not set it. auto: the fastest. none: whole. A number: that many parts.",
        words={AUTO: None, "none": 1}, read=parse_subtile, metavar="N", tuned=True,
        decides="how accumulator tiles are split", undecided=1,
    )  # fmt: skip
    """The number of parts of the tiles of a loop whose products are computed with, for kernels that do not set it (1:
    no split; None: chosen by the model)."""

    multicast: bool = option_field(
        True, "--multicast", "Load tiles that blocks of a cluster share by TMA multicast.", default_text="yes",
        tuned=True,
    )  # fmt: skip
    """By TMA loads with a mask of the blocks of the cluster."""

    cta_pairs: bool = option_field(
        True, "--cta-pairs",
        "Let the tensor cores of a cluster of two blocks multiply together (tcgen05, .cta_group::2).",
        default_text="yes", former={"--pairs": "--cta-pairs", "--no-pairs": "--no-cta-pairs"},
    )  # fmt: skip
    """Otherwise each block multiplies alone, with .cta_group::1."""

    epilogue_warp: bool = option_field(
        True, "--epilogue-warp", "Issue the epilogue's TMA stores from a warp of their own.",
        default_text="yes, where it pays", tuned=True,
        former={"--store-role": "--epilogue-warp", "--no-store-role": "--no-epilogue-warp"},
    )  # fmt: skip
    """A role of a warp-specialised kernel beside producer and consumers."""

    stmatrix: bool = option_field(
        True, "--stmatrix", "Store accumulators to shared memory by stmatrix.", default_text="yes, where possible",
        tuned=True,
    )  # fmt: skip
    """On targets with stmatrix (PTX ISA: sm_90 and above)."""

    tma_loads: bool = option_field(
        True, "--tma-loads", "Load by TMA in loops without a producer warp.",
        default_text="yes, where wgmma takes the tiles and it pays", tuned=True,
    )  # fmt: skip
    """Without, such loops load by cp.async."""

    arrivals: Arrivals = option_field(
        "warp", "--arrivals",
        "The threads that arrive when a role releases a tile: one thread of each warp, or every thread.",
        words=build_word_choices(*ARRIVALS), tuned=True,
    )  # fmt: skip
    """At the barriers of rings; in rings shared by blocks one thread of each warp arrives in any case."""

    pdl: bool = option_field(
        True, "--pdl",
        "Use programmatic dependent launch: start while the previous kernel of the stream ends, and let the next one "
        "do so.", default_text="yes, at -O3, unless the kernel sets it", tuned=True,
        decides="programmatic dependent launch", undecided=False,
        former={"--dependent-launch": "--pdl", "--no-dependent-launch": "--no-pdl"},
    )  # fmt: skip
    """By griddepcontrol, for kernels without a wait for other grids of their own."""

    max_scheduled_ii: int | None = option_field(
        None, "--max-scheduled-ii",
        "Warp-specialised loops with a larger II are not scheduled: roles by rule, barriers at their boundaries (0: "
        "all of them).", bounds=(0, None), metavar="CYCLES", former={"--rrt-size-threshold": "--max-scheduled-ii"},
    )  # fmt: skip
    """A warp-specialised loop with a larger minimal initiation interval (cycles) is divided into roles but not
    scheduled (None: every loop is)."""

    fma: bool = option_field(True, "--fma", "Fuse a product and the addition of its result into one operation.")
    """A product and a sum in one expression become one fma, which rounds once, as in other compilers for GPUs."""

    shared_reciprocals: bool = option_field(
        True, "--shared-reciprocals", "Multiply elements that share a divisor by its reciprocal."
    )
    """Where eight or more elements of a nest have the same divisor, it is inverted once and they are multiplied: the
    quotients are rounded twice."""

    fast_math: bool = option_field(
        False, "--fast-math", "Approximate functions and division; products fused with sums across statements.",
    )  # fmt: skip
    """Functions by their .approx instructions, and products and sums such that the assembler may fuse them too."""

    schedule: str | None = option_field(
        None, "--schedule", "Take the schedule from this trace, after verifying it.", read=files.read_text,
        metavar="FILE", is_code=False,
    )  # fmt: skip
    """The text of a trace, whose schedule replaces the solver's."""

    lint: Lint = option_field(
        "warn",
        "--lint",
        "What lints do: warn, fail the build, or nothing.",
        words=build_word_choices(*LINTS),
        is_code=False,
    )
    """With "error" a lint ends the compilation."""

    solve_afresh: bool = option_field(
        False, "--no-cache", "Solve and assemble again, even where the result is cached.", is_code=False
    )
    """Results are written to the cache all the same; parser tables are still read from it."""

    refuse_inline_ptx: bool = option_field(
        False, "--no-inline-ptx", "Refuse T.ptx, for kernels from people that you do not trust.", is_code=False
    )
    """T.ptx is checked in any case; with this, all machine code is generated by tilec alone."""

    verify: bool = option_field(
        False, "--verify", "Verify the result of every pass thoroughly, also where that takes longer than the pass.",
        is_code=False,
    )  # fmt: skip
    """Otherwise only the results of stages are verified, by quick checks."""

    cache_dir: str | None = None
    """The folder of cached parser tables, schedules and machine code (None: no cache)."""

    switches: EnvironmentSwitches = NO_SWITCHES
    """The settings from the environment."""

    silenced: tuple[str, ...] = ()
    """The codes of silenced warnings ("all": all of them)."""

    errors: tuple[str, ...] = ()
    """The codes of warnings that end the compilation, unless silenced."""

    warnings_are_errors: bool = False
    """Any warning that is not silenced ends the compilation."""

    tuned_for: str | None = None
    """The digest of the only kernel text that the other options are meant for (None: any)."""


OPTIONS = collect_options(CompileOptions)
"""The options that users can give, by field."""

DECISION_OPTIONS = {field: stated for field, stated in OPTIONS.items() if stated.decides}
"""The options that -O3 adds to -O2. With `spell_undecided` of all of these both levels have the same schedules and
grid."""

FORMER_NAMES = {
    old.removeprefix("--"): field
    for field, stated in OPTIONS.items()
    for old, new in stated.former.items()
    if new == stated.switch
}
"""The fields by former names of options, in spaces, files of `tilec tune` and from Python."""


def check_fields(given: Mapping[str, object]) -> None:
    """Raise ValueError if `CompileOptions` has no field of a given name, or the field does not take the value."""
    default_text = CompileOptions()
    for name, value in given.items():
        if name not in CompileOptions.__match_args__:
            from difflib import get_close_matches  # rarely needed, and takes a while

            near = get_close_matches(name, CompileOptions.__match_args__, n=1)
            raise ValueError(f"there is no switch {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        if name in OPTIONS:
            check_value(name, OPTIONS[name], getattr(default_text, name), value)


def describe_changes(options: CompileOptions) -> dict[str, str]:
    """Return, by name, the options on which code depends and that differ from the defaults, as text.

    Target and constants are left out; environment switches are included.
    """
    different = _find_changed_fields(options, CompileOptions())
    of_code = (name for name in different if name in OPTIONS and OPTIONS[name].is_code)
    about_code = {name: format_value(different[name]) for name in of_code}
    environment = {
        name: format_value(value) for name, value in _find_changed_fields(options.switches, NO_SWITCHES).items()
    }
    given = {} if options.schedule is None else {"schedule": "given"}
    return {name.replace("_", "-"): value for name, value in (about_code | environment | given).items()}


def _find_changed_fields(
    record: CompileOptions | EnvironmentSwitches, default_text: CompileOptions | EnvironmentSwitches
) -> dict[str, object]:
    """Return the fields, with values, in which a record differs from the default record."""
    names = type(record).__match_args__
    return {name: getattr(record, name) for name in names if getattr(record, name) != getattr(default_text, name)}


def cache_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return the folder of cached results: $TILEC_CACHE_DIR, else tilec/ in the user's cache folder."""
    if chosen := environment.get("TILEC_CACHE_DIR"):
        return chosen
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "tilec")


def requested_verification(environment: Mapping[str, str] = os.environ) -> str:
    """Return which verification $TILEC_VERIFY requests after each pass: "all", "1" or "".

    "all" is for everything; "1" for all but incomplete warp programs, which take as long as a build; "" for complete
    values only.
    """
    return environment.get("TILEC_VERIFY", "")


def documentation_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the documentation site's address, from $TILEC_DOCS_URL or the package's metadata; None without."""
    given = environment.get("TILEC_DOCS_URL", "")
    if _is_address(given):
        return given
    from importlib import metadata  # rarely needed, and takes a while

    try:
        urls = metadata.metadata("tilec").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    return dict(url.split(", ", 1) for url in urls).get("Documentation")


def check_documentation_url(environment: Mapping[str, str] = os.environ) -> None:
    """Raise `bad-environment` if $TILEC_DOCS_URL is set and no address."""
    given = environment.get("TILEC_DOCS_URL", "")
    if given and not _is_address(given):
        advice = "write all of it, as in https://docs.example.com/tilec, or unset it"
        raise_error("bad-environment", f"TILEC_DOCS_URL is '{given}', not an address", help=advice)


def _is_address(text: str) -> bool:
    return text.startswith(("https://", "http://", "file://"))


_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}")


def read_switches(environment: Mapping[str, str] = os.environ) -> EnvironmentSwitches:
    """Return the environment's debugging switches; raise `bad-environment` for a delay that is no number.

    TILE_AS_DEBUG_UNLIMITED_SMEM counts if it is exactly 1, TILEIR_PREFER_TMA_FOR_LOAD_STORE if it is exactly true,
    TILEIR_ALWAYS_SWIZZLE if it is set, TILEIR_DELAY_TMA_STORE_WAIT as a decimal number: 0 switches the delay off.
    """
    delay = environment.get("TILEIR_DELAY_TMA_STORE_WAIT", "1")
    if not _DECIMAL.fullmatch(delay.strip()):
        title = f"TILEIR_DELAY_TMA_STORE_WAIT is '{delay}', not a decimal number"
        raise_error("bad-environment", title, help="set it to 1 or 0, or unset it")
    return EnvironmentSwitches(
        unlimited_smem=environment.get("TILE_AS_DEBUG_UNLIMITED_SMEM") == "1",
        prefer_tma=environment.get("TILEIR_PREFER_TMA_FOR_LOAD_STORE") == "true",
        always_swizzle="TILEIR_ALWAYS_SWIZZLE" in environment,
        delay_tma_store_wait=int(delay) != 0,
    )
