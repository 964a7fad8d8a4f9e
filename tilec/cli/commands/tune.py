"""`tilec tune`: search for the constants and options that make a kernel fastest."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilec import __version__
from tilec.cli.console import fail_usage, report_mistakes, show_diagnostics, show_tables
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options
from tilec.support import files
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.options import SCHEDULERS
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.support.options import CompileOptions
    from tilec.support.source import SourceFile
    from tilec.target.table import Target
    from tilec.tune.dask_engine import DaskEngine
    from tilec.tune.engines import Engine
    from tilec.tune.ray_engine import RayEngine
    from tilec.tune.search import SearchResult, TrialWork
    from tilec.tune.space import Point, Space

ENGINES = ("local", "dask", "ray")
ADDRESSES = {"dask": "tcp://host:8786", "ray": "host:6379"}
"""Examples of scheduler addresses on other machines."""


@click.command(cls=GroupedCommand)
@click.argument("kernel", metavar="FILE.tl")
@click.option(
    "--space",
    "space_file",
    default="auto",
    show_default=True,
    metavar="FILE.toml",
    help="The variants to try. auto: tiles, stages and threads, found from the uses of the kernel's constants, and "
    "the alternatives of the compiler's decisions.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=32, show_default=True, help="Maximum number of variants to compile."
)
@click.option(
    "--trial-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop a trial that takes longer, and continue without it.",
)
@click.option(
    "--jobs", "-j", type=click.IntRange(1), default=os.cpu_count() or 1, help="Number of trials at a time.  [as CPUs]"
)
@click.option("--journal", "journal_file", metavar="FILE", help="The record of every trial.  [KERNEL.tune.sqlite]")
@click.option("--output", "-o", metavar="FILE", help="The file of the best variant, for --tuned.  [KERNEL.tuned.json]")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="Where trials run: in processes of this machine, on the workers of a dask scheduler, or on a Ray cluster.",
)
@add_kernel_options
def tune(
    kernel: str,
    space_file: str,
    trials: int,
    trial_limit: float | None,
    jobs: int,
    journal_file: str | None,
    output: str | None,
    engine: str,
    verbose: bool,
    **given: Any,
) -> None:
    """Search for the constants and options that make a kernel fastest.

    Every variant of the space is ranked by the analytical model, the most promising are compiled, each batch chosen by
    what was learnt from those before (with scikit-learn: pip install '.[tune]'), and measured where there is a GPU
    that runs them; without one the model ranks them, and their solved intervals. Ctrl-C loses nothing: the same command
    goes on from the journal. Compile with what was found: tilec --tuned KERNEL.tuned.json FILE.tl.
    """
    if given["schedule"] is not None or given["tuned"] is not None:
        fail_usage("tilec tune finds schedules itself, so it takes neither --schedule nor --tuned")
    address, given["scheduler"] = _split_scheduler(engine, given["scheduler"])
    with report_mistakes(None):
        source = files.read_source(kernel)
        base = make_compile_options(given)
        journal_file = journal_file or f"{Path(kernel).stem}.tune.sqlite"
        output = output or f"{Path(kernel).stem}.tuned.json"
        named = [space_file] if space_file != "auto" else []
        files.check_outputs([journal_file, output], [*list_input_files([kernel], given), *named])
    with report_mistakes(source):
        space = _build_space(source, base, space_file)
    with report_mistakes(source):
        request = SearchRequest(source, base, *space, trials, trial_limit)
        found, work = _run_search(request, journal_file, engine, jobs if address is None else address)
        _report_search(request, found, work, output)


class _SchedulerParam(click.ParamType[str]):
    """The type of `--scheduler`: a scheduler of pipelines, or the address of an engine's scheduler."""

    name = "scheduler"

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Return the value of --scheduler if it is a scheduler of pipelines or an address; else fail."""
        if value not in SCHEDULERS and not _is_address(value):
            words = ", ".join(SCHEDULERS)
            examples = " or ".join(ADDRESSES.values())
            self.fail(f"{value!r} is not one of {words}, or an address such as {examples}", param, context)
        return value


for _option in tune.params:
    if isinstance(_option, click.Option) and _option.name == "scheduler":
        _option.type, _option.metavar = _SchedulerParam(), "WORD|ADDRESS"
        _option.help = f"{_option.help} Or the address of the engine: {', '.join(ADDRESSES.values())}."


def _is_address(word: str) -> bool:
    """Return whether a value of --scheduler is the address of an engine: it has a colon, or is `auto`."""
    return ":" in word or word == "auto"


def _split_scheduler(engine: str, given: str) -> tuple[str | None, str]:
    """Return engine address or None, and the scheduler of pipelines, the default beside an address; fail if they clash.

    An address needs an engine, and an engine an address.
    """
    if not _is_address(given):
        if engine in ADDRESSES:
            fail_usage(f"--engine {engine} needs the address of its scheduler: --scheduler {ADDRESSES[engine]}")
        return None, given
    if engine not in ADDRESSES:
        fail_usage(f"--scheduler gives an address, which needs --engine {' or '.join(ADDRESSES)}")
    return given, SCHEDULERS[0]


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The search to run. `stages` are constants that only limit the number of stages; `baseline` is the file as
    written; `left_out` names stage counts that the search cannot change."""

    source: SourceFile
    base: CompileOptions
    space: Space
    stages: tuple[str, ...]
    baseline: Point
    left_out: tuple[str, ...]
    trials: int
    seconds: float | None


def _build_space(
    source: SourceFile, base: CompileOptions, space_file: str
) -> tuple[Space, tuple[str, ...], Point, tuple[str, ...]]:
    """Return the space, stage constants, the file as a point and what is left out; raise an error if empty or huge.

    The stage constants are those that count stages. The source learns its imports.
    """
    from tilec.driver.observer import Observer
    from tilec.frontend.imports import read_imports
    from tilec.frontend.syntax.parse import parse_file
    from tilec.tune import auto, knobs, space_file as reader
    from tilec.tune.space import MAX_POINTS

    folder = Path(base.cache_dir) if base.cache_dir else None
    module = parse_file(source, folder)
    read_imports(module, source, folder)
    if space_file == "auto":
        found = auto.build_auto_space(module)
    else:
        observer = Observer()
        written = files.read_text(space_file)
        constants = list(auto.find_constants(module))
        found = reader.read_space(written, space_file, constants, lambda warning: observer.warn(warning, base))
        show_diagnostics(observer.warnings, None)
    if found.size > MAX_POINTS:
        advice = f"take values out until at most {MAX_POINTS:,} are left"
        raise_error("bad-space", f"{space_file} has {found.size:,} variants, too many to predict each", help=advice)
    stages = tuple(name for name, role in auto.find_tunable_roles(module).items() if role == "stages")
    left_out = tuple(
        f"line {line}: num_stages={number} is a number in the kernel, so the search does not change it; "
        f"write num_stages = {number} above the kernel and num_stages=num_stages here to search it"
        for line, number in auto.find_literal_stages(module)
    )
    baseline = knobs.find_written_point(found, auto.find_constants(module), base)
    if space_file == "auto":
        found = replace(found, others=_list_alternatives(source, base, baseline))
        if not found.size:
            title = f"{source.path} has no constants for tiles, stages or threads, and there is nothing to decide"
            raise_error("bad-space", title, notes=left_out, help="list the variants in a file, with --space space.toml")
    return found, stages, baseline, left_out


def _list_alternatives(source: SourceFile, base: CompileOptions, written: Point) -> tuple[Point, ...]:
    """Return points for the file as written with one decision of the compiler changed; none if it has errors."""
    from tilec.driver import build as driver
    from tilec.tune.knobs import list_alternative_points

    try:
        plan = driver.plan_kernel(source, base, driver.Observer())
    except CompileError:  # the first trial reports the errors
        return ()
    return list_alternative_points(plan.decisions, written, base)


def _describe_inputs(request: SearchRequest) -> dict[str, str]:
    """Return as texts all inputs that trials of all points share: tilec's version, kernel, target and options."""
    from tilec.sched.cache import ORTOOLS, SOLVER

    rest = replace(request.base, cache_dir=None, solve_afresh=False, silenced=(), errors=(), target="", calibration="")
    return {
        "version of tilec": f"{__version__}, scheduler {SOLVER}, ortools {ORTOOLS}",
        "kernel": request.source.digest(),
        "target": f"{request.base.target}, {request.base.calibration}",
        "set of options": sha256(repr(rest).encode()).hexdigest(),
    }


def _run_search(
    request: SearchRequest, journal_file: str, engine_name: str, workers: int | str
) -> tuple[SearchResult, TrialWork]:
    """Run the search on so many local processes or on the engine at an address; return its result and functions."""
    from tilec.cli.commands.tune_view import watch_search
    from tilec.target.table import load_target
    from tilec.tune import trial
    from tilec.tune.journal import Journal
    from tilec.tune.knobs import apply_point
    from tilec.tune.search import TrialWork, propose_by_model, propose_by_surrogate, search_space
    from tilec.tune.surrogate import is_installed

    target = load_target(request.base.target, request.base.calibration, request.base.gpu)
    journal = Journal(journal_file, _describe_inputs(request))
    engine, gpu = _make_engine(engine_name, workers, target)

    def make_variant(point: Point) -> trial.Variant:
        """Return the task of a trial: the kernel, compiled with this point's constants and options."""
        path, text, options = request.source.path, request.source.text, apply_point(point, request.base)
        return trial.Variant(path, text, options, bool(gpu), request.seconds)

    lost = "" if request.seconds is None else f": it may have taken more than {request.seconds:g} s"
    work = TrialWork(trial.predict_variant, trial.try_variant, make_variant, gpu, lost)
    proposer = propose_by_surrogate if is_installed() else propose_by_model
    try:
        with watch_search(gpu, target.limit("clock_mhz")) as watcher:
            written = request.stages, request.baseline
            found = search_space(request.space, request.trials, work, engine, journal, watcher, proposer, *written)
    except KeyboardInterrupt:
        done = len(journal.outcomes())
        print(f"stopped: {journal_file} has {done} trials, and the same command goes on from there", file=sys.stderr)
        raise
    finally:
        engine.close()
        journal.close()
    return found, work


def _make_engine(name: str, workers: int | str, target: Target) -> tuple[Engine, str]:
    """Return the engine for trials, and the name of the GPU that all its machines have, else "".

    Trials are measured on that GPU.
    """
    from tilec.tune.measure import find_gpu_for

    if isinstance(workers, int):
        from tilec.tune.engines import LocalEngine

        return LocalEngine(workers), find_gpu_for(target)
    engine = _connect_engine(name, workers)
    gpus = set(engine.everywhere(partial(find_gpu_for, target)))
    return engine, gpus.pop() if len(gpus) == 1 else ""


def _connect_engine(engine: str, address: str) -> DaskEngine | RayEngine:
    """Return the Ray or dask engine at this address, whose workers may be on other machines."""
    if engine == "ray":
        from tilec.tune.ray_engine import RayEngine

        return RayEngine(address)
    from tilec.tune.dask_engine import DaskEngine

    return DaskEngine(address)


def _count_variants(request: SearchRequest, found: SearchResult) -> int:
    """Return the number of points in the space, plus one if the file as written is none of them."""
    return request.space.size + (found.baseline not in {tuple(sorted(point)) for point in request.space.points()})


def _report_search(request: SearchRequest, found: SearchResult, work: TrialWork, output: str) -> None:
    """Write the best trial to the output file, and print the best trials; raise an error if no variant can be built."""
    from tilec.cli.commands.tune_view import compare_with_baseline, format_microseconds, list_refusals, make_best_table
    from tilec.driver import build as driver
    from tilec.target.table import load_target
    from tilec.tune import knobs, tuned
    from tilec.tune.surrogate import is_installed

    built = found.built(work.gpu)
    if not built:
        title = f"none of the {_count_variants(request, found)} variants can be built"
        advice = "try smaller tiles or fewer stages, in a file with --space"
        raise_error("no-variant", title, notes=tuple(list_refusals(found)), help=advice)
    point, outcome = built[0]
    options = knobs.apply_point(point, request.base)
    plan = driver.plan_kernel(request.source, options, driver.Observer())
    clock = load_target(request.base.target, request.base.calibration, request.base.gpu).limit("clock_mhz")
    basis = f"measured on {work.gpu}" if work.gpu else "modelled, not measured"
    best_time = f"{format_microseconds(outcome, work.gpu, clock)}, {basis}"
    defines = tuple(sorted(dict(options.defines).items()))
    chosen = (*defines, *((name, value) for name, value in point if name.startswith(knobs.OPTION_PREFIX)))
    best = tuned.TunedVariant(request.source.digest(), options.target, plan.kernel.name, chosen, best_time, plan.trace)
    files.write_all({output: tuned.write_tuned(best).encode()})
    show_tables([make_best_table(built, work.gpu, clock, found.baseline)])
    for line in (*request.left_out, *list_refusals(found)):
        print(line)
    print(f"{len(found.trials)} of {_count_variants(request, found)} variants tried; the best: {best_time}")
    print(compare_with_baseline(found, outcome, work.gpu, clock))
    if not is_installed():
        print("scikit-learn is not installed: only the model chose the variants (pip install '.[tune]')")
    if not work.gpu:
        print(f"no GPU here runs {options.target} code: variants are ranked by the model and their solved intervals")
    print(f"tilec --tuned {output} --target {options.target} {request.source.path}")
