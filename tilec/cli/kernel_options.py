"""The options of every command that compiles a kernel, and what their values ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from tilec.cli.arguments import response_files
from tilec.cli.console import set_format, usage
from tilec.cli.diagnostics import FORMATS
from tilec.cli.words import several_of
from tilec.support import files, options, resources
from tilec.support.diagnostics import fail
from tilec.support.options import CALIBRATIONS, DECIDED, LINTS, SCHEDULERS, STRATEGIES, CompileOptions

Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS = (
    "0: verify only, and write tile IR (.tile), which reads back identically. 1: one step further, tile IR with its "
    "alias groups and dependences (.alias). 2: everything up to a cubin, the assembler at -O2. 3: what the source "
    f"leaves open is decided too: {'; '.join(what for _, _, what in DECIDED.values())}; the assembler at -O3."
)


def kernel_options(command: Command) -> Command:
    """The options of every command that compiles a kernel."""
    decorators = [
        click.option(
            "--target",
            default="sm_90a",
            show_default=True,
            metavar="NAME,…",
            shell_complete=several_of(resources.target_names),
            help="Machine to compile for.",
        ),
        click.option(
            "--calibration",
            type=click.Choice(CALIBRATIONS),
            default=CALIBRATIONS[0],
            show_default=True,
            help="Cycles to schedule with: as measured, or the normalised ones of the tileiras book.",
        ),
        click.option("--opt-level", "-O", type=click.IntRange(0, 3), default=3, show_default=True, help=LEVELS),
        click.option("--define", "-D", multiple=True, metavar="NAME=VALUE", help="Override a constant of the kernel."),
        click.option("--entry", metavar="NAME", help="Which kernel, where the file has several.  [all, in one cubin]"),
        click.option(
            "--pipeline-strategy",
            type=click.Choice(STRATEGIES),
            default="auto",
            show_default=True,
            help="How pipelined loops run. auto: as pays best. none: serially. unspecialize: all warps alike. "
            "warp-specialize: loads in a warp of their own.",
        ),
        click.option(
            "--auto-pipeline/--no-auto-pipeline",
            default=True,
            help="Whether loops may be pipelined that load tiles for products and are not said to be.  [yes, at -O3]",
        ),
        click.option(
            "--fewer-stages/--no-fewer-stages",
            default=True,
            help="Whether loops may have fewer stages than a block alone would use, where more blocks then share a "
            "multiprocessor.  [yes, at -O3]",
        ),
        click.option(
            "--register-stages",
            type=click.Choice(options.REGISTER_STAGES),
            default="auto",
            show_default=True,
            help="Whether products by mma.sync load fragments for the next trip of their loop. 1: no. 2: where they "
            "can. auto: at -O3, where it pays.",
        ),
        click.option(
            "--split-loops/--no-split-loops",
            default=True,
            help="Whether trips of a pipelined loop in which a mask changes nothing may go without it.  [yes, at -O3]",
        ),
        click.option(
            "--scheduler",
            type=click.Choice(SCHEDULERS),
            default=SCHEDULERS[0],
            show_default=True,
            help="Who schedules the pipelines. exact: a solver, with a proof. heuristic: list schedulers, faster.",
        ),
        click.option(
            "--search-budget",
            type=click.IntRange(0),
            default=CompileOptions().search_budget,
            show_default=True,
            metavar="N",
            help="How much a kernel's schedules may be searched for, all of its candidates together, in units of one "
            "to five milliseconds that do not depend on the machine; then heuristics answer, and where they are asked "
            "the first answer that they have.",
        ),
        click.option(
            "--ping-pong/--no-ping-pong",
            default=True,
            help="Whether warpgroups may run apart in a loop and take turns at the tensor cores.  [yes, where it pays]",
        ),
        click.option(
            "--overlap/--no-overlap",
            default=True,
            help="Whether a warp may compute in an iteration before it is done with the last one.  [yes]",
        ),
        click.option(
            "--persistent/--no-persistent",
            default=True,
            help="Whether a block may run several blocks of a grid with more than there are multiprocessors, one after "
            "the other.  [yes, where loads have a warp of their own]",
        ),
        click.option(
            "--tile-scheduler",
            type=click.Choice(options.TILE_SCHEDULERS),
            default=options.TILE_SCHEDULERS[0],
            show_default=True,
            help="How a block of such a grid goes on. static: by a fixed stride. launch-control: it asks for one that "
            "has not begun. auto: launch-control, where the target has it.",
        ),
        click.option(
            "--consumers",
            type=click.IntRange(1, 7),
            metavar="N",
            help="Warpgroups that compute, as if the kernel said threads=128*N.  [as the kernel says]",
        ),
        click.option(
            "--cluster", metavar="XxY", help="Blocks of a cluster, for kernels that do not say.  [pairs, where it pays]"
        ),
        click.option("--no-cluster", is_flag=True, help="No clusters, unless the kernel does something with them."),
        click.option(
            "--rasterisation",
            default="auto",
            show_default=True,
            metavar="N",
            help="In which order blocks go over the grid, for kernels that do not say. auto: as touches least memory. "
            "none: x first. A number: in panels of as many rows, or columns.",
        ),
        click.option(
            "--subtile",
            default="auto",
            show_default=True,
            metavar="N",
            help="In how many parts tiles are whose products are computed with, so that one part computes while "
            "another multiplies, for kernels that do not say. auto: as is fastest. none: whole. A number: so many.",
        ),
        click.option(
            "--multicast/--no-multicast",
            default=True,
            help="Whether blocks of a cluster may load together what they have in common.  [yes]",
        ),
        click.option(
            "--pairs/--no-pairs",
            default=True,
            help="Whether the tensor cores of a cluster of two blocks may multiply together (tcgen05, .cta_group::2).  "
            "[yes]",
        ),
        click.option(
            "--store-role/--no-store-role",
            default=True,
            help="Whether a thread of its own may begin copies to global memory, and wait for them.  [yes, where it "
            "pays]",
        ),
        click.option(
            "--stmatrix/--no-stmatrix",
            default=True,
            help="Whether accumulators may go to shared memory by stmatrix.  [yes, where it takes them]",
        ),
        click.option(
            "--tma-loads/--no-tma-loads",
            default=True,
            help="Whether loops without a producer warp may load by TMA.  [yes, where wgmma takes the tiles]",
        ),
        click.option(
            "--arrivals",
            type=click.Choice(options.ARRIVALS),
            default=options.ARRIVALS[0],
            show_default=True,
            help="Who arrives at a barrier when warps are done with a tile: one thread of each warp, or every thread.",
        ),
        click.option(
            "--dependent-launch/--no-dependent-launch",
            default=True,
            help="Whether a kernel may begin while the one before it in the stream ends, and let the next one do so.  "
            "[yes, at -O3, unless it says itself]",
        ),
        click.option(
            "--rrt-size-threshold",
            type=click.IntRange(0),
            metavar="CYCLES",
            help="Warp-specialised loops whose II must be larger get boundaries and barriers only, with roles by rule "
            "(0: all of them).",
        ),
        click.option("--fast-math", is_flag=True, help="Approximate functions and division; products fused with sums."),
        click.option("--schedule", metavar="FILE", help="Take the schedule from this trace, after verifying it."),
        click.option("--tuned", metavar="FILE", help="Compile with what tilec tune found, after verifying it."),
        click.option(
            "--lint",
            type=click.Choice(LINTS),
            default=LINTS[0],
            show_default=True,
            help="What lints do: warn, fail the build, or nothing.",
        ),
        click.option("--no-cache", is_flag=True, help="Solve again, even where the schedule is cached."),
        click.option(
            "--warn",
            "-W",
            multiple=True,
            metavar="WORD",
            help="-Wno-CODE silences a warning, -Wno-all every one; -Werror makes them errors.",
        ),
        click.option(
            "--diagnostics-format",
            type=click.Choice(FORMATS),
            default=FORMATS[0],
            show_default=True,
            expose_value=False,
            is_eager=True,
            callback=set_format,
            help="How errors and warnings are written: for people, as JSON lines, as one SARIF log, or for GitHub to "
            "show beside the lines of a change.",
        ),
        click.option("--verbose", "-v", is_flag=True, help="Also say what the assembler reports; tracebacks for bugs."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _cluster(given: dict[str, Any]) -> tuple[int, int, int] | None:
    if given["no_cluster"]:
        return 1, 1, 1
    return None if given["cluster"] is None else options.parse_cluster(given["cluster"])


def compile_options(given: dict[str, Any]) -> CompileOptions:
    """The values of `kernel_options` as one value, of one target."""
    target, *others = target_names(given)
    if others:
        usage(f"--target {given['target']}: this is about one machine at a time, so name one")
    for word in given["warn"]:
        _check_warn(word)
    trace, tuned = given["schedule"], given["tuned"]
    if trace is not None and tuned is not None:
        usage("--schedule and --tuned exclude each other: both have a schedule")
    asked = CompileOptions(
        target=target,
        calibration=given["calibration"],
        opt_level=given["opt_level"],
        defines=tuple(options.parse_define(text) for text in given["define"]),
        entry=given["entry"],
        pipeline_strategy=given["pipeline_strategy"],
        scheduler=given["scheduler"],
        search_budget=given["search_budget"],
        rrt_size_threshold=given["rrt_size_threshold"],
        ping_pong=given["ping_pong"],
        overlap=given["overlap"],
        persistent=given["persistent"],
        tile_scheduler=given["tile_scheduler"],
        multicast=given["multicast"],
        pairs=given["pairs"],
        store_role=given["store_role"],
        dependent_launch=given["dependent_launch"],
        stmatrix=given["stmatrix"],
        arrivals=given["arrivals"],
        tma_loads=given["tma_loads"],
        auto_pipeline=given["auto_pipeline"],
        split_loops=given["split_loops"],
        fewer_stages=given["fewer_stages"],
        register_stages=options.parse_register_stages(given["register_stages"]),
        cluster=_cluster(given),
        consumers=given["consumers"],
        rasterisation=options.parse_rasterisation(given["rasterisation"]),
        subtile=options.parse_subtile(given["subtile"]),
        schedule=None if trace is None else files.read_text(trace),
        cache_dir=options.cache_folder(),
        solve_afresh=given["no_cache"],
        fast_math=given["fast_math"],
        lint=given["lint"],
        switches=options.switches(),
        silenced=tuple(w.removeprefix("no-") for w in given["warn"] if w != "error"),
        warnings_are_errors="error" in given["warn"],
    )
    if tuned is None:
        return asked
    from tilec.tune import tuned as tuned_file

    return tuned_file.applied(tuned_file.read(files.read_text(tuned), tuned), asked, tuned)


def _check_warn(word: str) -> None:
    from tilec.driver.explanations import EXPLANATIONS

    if word in ("error", "no-all") or (word.startswith("no-") and word.removeprefix("no-") in EXPLANATIONS):
        return
    fail("unknown-code", f"-W{word} is no warning option", help="write -Wno-CODE, -Wno-all or -Werror")


def target_names(given: dict[str, Any]) -> tuple[str, ...]:
    """The targets that the values of `kernel_options` name, each once, where a command takes several."""
    names = [name.strip() for name in given["target"].split(",")]
    if "" in names:
        usage(f"--target {given['target'] or repr('')} has an empty name: write --target sm_80,sm_90a")
    return tuple(dict.fromkeys(names))


def input_files(kernels: Sequence[str], given: dict[str, Any]) -> list[str]:
    """The files that the values of `kernel_options` make a command read, and those that these come from: none of them
    may be an output."""
    named = (given[name] for name in ("schedule", "tuned") if given[name] is not None)
    return [*kernels, *named, *response_files()]
