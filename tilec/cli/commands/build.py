"""`tilec FILE…`: compile kernels for targets, and write each output to its file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilec.cli.completion import complete_one, complete_several
from tilec.cli.console import fail_usage, report_mistakes, report_results, show_entries, show_tables, show_times
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options, parse_target_names
from tilec.cli.limits import add_limit_options
from tilec.cli.names import COMMANDS
from tilec.cli.watch import run_and_watch, watch_option
from tilec.driver.stages import SUFFIX as STAGE_SUFFIX
from tilec.support import files, resources
from tilec.support.diagnostics import raise_error
from tilec.support.options import LAST_STAGE, STAGES
from tilec.support.records import dataclass
from tilec.support.resources import target_stem
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.batch import CompileJob, CompileResult
    from tilec.host.header import Style
    from tilec.ir.tile import Kernel

Kind = str
"""A kind of output: the text of a stage, the result of a pass, or a file made from cubins."""

FROM_CUBIN: tuple[Kind, ...] = ("json", "fatbin", "header")
KINDS: tuple[Kind, ...] = (*STAGES, *FROM_CUBIN)
SUFFIX: dict[str, str] = {"json": ".json", "fatbin": ".fatbin", "header": ".h", **dict(STAGE_SUFFIX.items())}
HEADER_STYLES = ("inline", "declarations")
STDOUT = "-"
"""The output name that means standard output."""

JOINED_KINDS: tuple[Kind, ...] = ("fatbin", "header")
"""Kinds that hold all targets in one file."""

JOINED_STAGES = ("ptx", "cubin")
"""Stages from which those are made: future GPUs translate the PTX."""


def _parse_kinds(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[Kind, ...] | None:
    """Return the kinds of output that --emit lists, each once, None without; raise a usage error for a bad one."""
    if value is None:
        return None
    wanted = dict.fromkeys(value.split(","))
    for name in wanted:
        if name not in KINDS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(KINDS)}", context, parameter)
    return tuple(wanted)


def _check_stop_after(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the value of --stop-after, None without it; raise a usage error if no stage or pass is called so."""
    if value is not None and value not in STAGES:
        from difflib import get_close_matches

        from tilec.driver.engine import list_stopping_points

        if value not in list_stopping_points():
            near = get_close_matches(value, list_stopping_points(), n=1)
            hint = f"stages are {', '.join(STAGES)}; --print-pipeline lists passes"
            hint = f"did you mean {near[0]!r}?" if near else hint
            raise click.BadParameter(f"{value!r} is neither a stage nor a pass: {hint}", context, parameter)
    return value


def _list_passes() -> tuple[str, ...]:
    """Return the names of stages and passes that --stop-after takes, for shell completion."""
    from tilec.driver.engine import list_stopping_points

    return list_stopping_points()


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the versions and end the command, if --version is given."""
    if is_asked and not context.resilient_parsing:
        from tilec.support.installed import format_versions

        print(format_versions())
        context.exit()


def _print_cmake_folder(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the folder of FindTilec.cmake and end the command, if --cmake-dir is given."""
    if is_asked and not context.resilient_parsing:
        print(resources.cmake_folder())
        context.exit()


@click.command("tilec", cls=GroupedCommand)
@click.argument("kernels", metavar="FILE.tl…", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="The file of the cubin; for several outputs, their common name; for several kernel files, or with a / at its "
    "end, the folder. - is standard output.",
)
@click.option(
    "--emit",
    callback=_parse_kinds,
    metavar="KIND,…",
    shell_complete=complete_several(lambda: KINDS),
    help=f"What to write: {', '.join(KINDS)}.  [cubin]",
)
@click.option("--schedule-trace-file", metavar="FILE", help="Write the schedule trace (JSON; opens in Perfetto).")
@click.option(
    "--dump-ir", metavar="DIR", help="Write the result of every pass into this folder, before it is verified."
)
@click.option(
    "--stop-after",
    metavar="PASS",
    shell_complete=complete_one(_list_passes),
    callback=_check_stop_after,
    help="Stop after this stage, and print it unless -o is given; or after this pass (--print-pipeline).",
)
@click.option("--print-pipeline", is_flag=True, help="List all passes, which of them run, and why the others do not.")
@click.option(
    "-MD", "depfile", is_flag=True, help="Also write the files that were read, as a rule of make, beside the outputs."
)
@click.option("-MF", "depfile_name", metavar="FILE", help="Like -MD, but into this file.")
@click.option(
    "--header-style",
    type=click.Choice(HEADER_STYLES),
    default=HEADER_STYLES[0],
    show_default=True,
    help="inline: a header for one source file. declarations: a header for many source files, one of which defines "
    "TILEC_DEFINITIONS before it includes the header.",
)
@click.option(
    "--namespace", metavar="NAME", help="Put the declarations of a header into this namespace of C++, as a or a::b."
)
@click.option(
    "--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Number of kernels compiled at a time."
)
@click.option("--time", "show_time", is_flag=True, help="Print the time of each pass.")
@click.option(
    "--report",
    is_flag=True,
    help="Write the outputs, and print the predicted time of the kernels, what bounds them, and how near their "
    "roofline that is. `tilec report` says it and writes nothing.",
)
@add_limit_options
@add_kernel_options
@watch_option
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option(
    "--cmake-dir",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_cmake_folder,
    help="Print the folder of FindTilec.cmake.",
)
def build(watch: bool, **given: Any) -> None:
    """Compile tile kernels to cubins whose software pipelines are solved and explained.

    With several targets, --target sm_80,sm_90a, each has its own cubin, and a fatbin has them all. @FILE stands for the
    options in that file.

    `tilec help` lists the other commands; --help-all, all options.
    """
    if not watch:
        _build_kernels(**given)
        return
    # Each build prints the report if it makes a cubin.
    has_cubin = given["stop_after"] is None and LAST_STAGE.get(given["opt_level"], STAGES[-1]) == STAGES[-1]
    run_and_watch(partial(_build_kernels, **{**given, "report": given["report"] or has_cubin}))


def _build_kernels(
    kernels: tuple[str, ...],
    output: str | None,
    emit: tuple[Kind, ...] | None,
    schedule_trace_file: str | None,
    dump_ir: str | None,
    stop_after: str | None,
    depfile: bool,
    depfile_name: str | None,
    header_style: str,
    namespace: str | None,
    jobs: int,
    show_time: bool,
    print_pipeline: bool,
    report: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Check options, raising an error if they clash, compile each kernel for each target, write files and print.

    --print-pipeline prints and compiles nothing.
    """
    from tilec.driver import batch

    began = time.perf_counter()
    targets = parse_target_names(given)
    if print_pipeline:
        _print_pipeline(kernels, targets, given)
        return
    if len(kernels) * len(targets) > 1:
        given_alone = {
            "--schedule-trace-file": schedule_trace_file is not None,
            "--schedule": given["schedule"] is not None,
            "--tuned": given["tuned"] is not None,
            "--stop-after without -o or --emit": stop_after is not None and output is None and emit is None,
        }
        for option in (name for name, is_given in given_alone.items() if is_given):
            fail_usage(f"{option} needs a single kernel file and a single target")
    if depfile_name is not None and len(kernels) > 1:
        fail_usage("-MF names one file: with several kernel files, -MD writes one for each")
    is_folder = len(kernels) > 1 or (output or "").endswith("/")
    plans = [
        _plan_outputs(kernel, is_folder, targets, output, emit, stop_after, given["opt_level"]) for kernel in kernels
    ]
    if schedule_trace_file is not None:
        plans[0] = plans[0].also("schedule", targets[0], schedule_trace_file)
    for plan in plans:
        _check_reachable(plan, stop_after, given["opt_level"], schedule_trace_file)
    has_depfiles = depfile or depfile_name is not None
    depfiles = {plan.kernel: depfile_name or f"{plan.base}.d" for plan in plans if has_depfiles}
    if report and (stop_after or LAST_STAGE.get(given["opt_level"], STAGES[-1])) != STAGES[-1]:
        fail_usage("--report needs a cubin: compile with -O2 or -O3, and without --stop-after")
    style = _make_header_style(plans, header_style, namespace)
    if depfiles and not all(plan.places for plan in plans):
        fail_usage("-MD and -MF need an output file: give -o or --emit")
    if output == STDOUT and (depfiles or not any(STDOUT in plan.paths() for plan in plans)):
        fail_usage("-o - is standard output, for one output without -MD: give -o a name")

    with report_mistakes(None):
        _check_distinct_paths(plans)
        work: list[CompileJob] = []
        for plan in plans:
            work += _make_jobs(plan, targets, stop_after, dump_ir, len(plans) > 1, report, given)
        outputs = [path for plan in plans for path in plan.paths() if path != STDOUT]
        files.check_outputs([*outputs, *depfiles.values()], list_input_files(kernels, given))
        if output is not None and not is_folder and emit is None and stop_after is None:
            _check_suffix(output)
        for folder in dict.fromkeys(job.dump_dir for job in work if job.dump_dir is not None):
            files.make_folder(folder)

    results = report_results(batch.compile_jobs(work, jobs))
    if stop_after is not None and not emit and any(stop_after not in result.texts for result in results):
        fail_usage(f"--stop-after {stop_after}: this pass does not run here; --print-pipeline says why")
    written: dict[str, bytes] = {}
    for place, plan in enumerate(plans):
        of_plan = results[place * len(targets) : (place + 1) * len(targets)]
        with report_mistakes(of_plan[0].source):
            written |= _build_contents(plan, dict(zip(targets, of_plan, strict=True)), style)
            if plan.kernel in depfiles:
                read = _list_dependencies(of_plan, targets, given)
                written[depfiles[plan.kernel]] = _format_make_rule(plan.paths(), read).encode()
    with report_mistakes(results[0].source):
        imported = [file.path for result in results for file in result.source.imported.values()]
        printed = written.pop(STDOUT, None)
        files.check_outputs(written, imported)
        files.write_all(written)
    if stop_after is not None and output is None and not outputs:
        printed = results[0].texts[stop_after]
    if printed is not None:
        sys.stdout.buffer.write(printed)
    for result in results if verbose else ():
        show_entries(result.entries, result.manifests, names_target=len(targets) > 1)
    if report:
        from tilec.cli.commands.report import make_loop_code_tables, make_report_tables

        for result in results:
            for said in result.reports:
                show_tables([*make_report_tables(said), *make_loop_code_tables(said.kernel, result.loop_codes)])
    if show_time:
        show_times([spent for result in results for spent in result.seconds], time.perf_counter() - began)


def _print_pipeline(paths: Sequence[str], targets: Sequence[str], given: dict[str, Any]) -> None:
    """Print the passes for each target: which run on these kernels, and why the others do not."""
    from tilec.driver.build import Observer, load_kernels
    from tilec.driver.pipeline_text import show_pipeline
    from tilec.target.table import load_target

    for target in targets:
        with report_mistakes(None):
            options = make_compile_options(given, target)
            machine = load_target(target, options.calibration, options.gpu)
            sources = [_read_kernel_file(path) for path in paths]
        found: list[Kernel] = []
        for source in sources:
            with report_mistakes(source):
                found += load_kernels(source, options, Observer())
        print(show_pipeline(options, machine, found), end="")


def _make_header_style(plans: Sequence[OutputPlan], name: str, namespace: str | None) -> Style:
    """Return the style of C++ headers; raise a usage error if it is given without a header, or the namespace is bad."""
    from tilec.host.header import Style, is_namespace

    option = "--header-style" if name != HEADER_STYLES[0] else "--namespace" if namespace is not None else None
    if option is not None and not any("header" in plan.kinds() for plan in plans):
        fail_usage(f"{option} needs --emit header")
    if namespace is not None and not is_namespace(namespace):
        fail_usage(f"--namespace {namespace}: this is not a namespace of C++; write a name such as kernels or a::b")
    return Style(name == "declarations", tuple(namespace.split("::")) if namespace else ())


# ---- what goes where -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The outputs of a kernel file: (kind, target, path), with target None for all targets. `base` is the common part
    of the paths."""

    kernel: str
    base: str
    places: tuple[tuple[Kind, str | None, str], ...]

    def also(self, kind: Kind, target: str | None, path: str) -> OutputPlan:
        """Return a copy of the plan with one more output: its kind, target and path."""
        return OutputPlan(self.kernel, self.base, (*self.places, (kind, target, path)))

    def paths(self) -> list[str]:
        """Return the paths of all outputs."""
        return [path for _, _, path in self.places]

    def kinds(self) -> list[Kind]:
        """Return the kinds of the outputs, each once."""
        return list(dict.fromkeys(kind for kind, _, _ in self.places))

    def stages(self) -> list[str]:
        """Return the compiler stages that these outputs are made from, each once."""
        stages: dict[str, None] = {}
        for kind in self.kinds():
            stages |= dict.fromkeys(JOINED_STAGES if kind in JOINED_KINDS else [_get_stage(kind)])
        return list(stages)


def _check_distinct_paths(plans: Sequence[OutputPlan]) -> None:
    """Raise `unwritable-output` if two kernel files would write the same path."""
    known: dict[str, str] = {}
    for plan in plans:
        for path in plan.paths():
            if (other := known.setdefault(path, plan.kernel)) != plan.kernel:
                title = f"cannot write {path}: another output has the same path"
                note = f"both {other} and {plan.kernel} write it"
                advice = "rename one of them, or compile them separately"
                raise_error("unwritable-output", title, notes=(note,), help=advice)


def _get_stage(kind: Kind) -> str:
    """Return the stage that a kind of output is made from: the cubin for JSON, fatbin and header, else itself."""
    return "cubin" if kind in FROM_CUBIN else kind


def _get_suffix(kind: Kind) -> str:
    """Return the file suffix of a kind of output; of a pass, the suffix of the stage whose form its result has."""
    if kind in SUFFIX:
        return SUFFIX[kind]
    from tilec.driver.engine import find_stage_form

    return SUFFIX[find_stage_form(kind)]


_UNAMBIGUOUS_KINDS = ("ptx", "cubin", "fatbin", "header")
"""Kinds with suffixes that mean nothing else to other programs."""


def _find_kind_by_suffix(output: str) -> Kind | None:
    """Return the kind of output with the longest suffix that the file name ends in, or None."""
    return next((kind for kind in sorted(SUFFIX, key=lambda k: -len(SUFFIX[k])) if output.endswith(SUFFIX[kind])), None)


def _check_suffix(output: str) -> None:
    """Raise a usage error if a file name has a suffix that no kind of output has."""
    suffix = Path(output).suffix
    if suffix and _find_kind_by_suffix(output) is None:
        known = ", ".join(dict.fromkeys(SUFFIX[kind] for kind in (*_UNAMBIGUOUS_KINDS, *SUFFIX)))
        advice = f"write one of {known}, or name the kind with --emit"
        fail_usage(f"-o {output}: no kind of output is called {suffix}; {advice}")


def _make_base_name(kernel: str, is_folder: bool, output: str | None) -> str:
    """Return the path of a kernel file's outputs without suffix; with `is_folder`, `output` is their folder."""
    if is_folder:
        return str(Path(output or "") / Path(kernel).stem)
    if output is None:
        return Path(kernel).stem
    return str(Path(output).with_suffix("")) if Path(output).name else output


def _plan_outputs(
    kernel: str,
    is_folder: bool,
    targets: Sequence[str],
    output: str | None,
    emit: tuple[Kind, ...] | None,
    stop_after: str | None,
    level: int,
) -> OutputPlan:
    """Return kind, target and path of each output of a kernel file; raise a usage error if -o names another kind.

    -o, --emit, --stop-after and -O decide. With `--stop-after` alone there are none: the stage is printed.
    """
    end = LAST_STAGE.get(level, "cubin")
    named_kind = None if is_folder or output is None else _find_kind_by_suffix(output)
    only_kind = stop_after if emit is None else emit[0] if len(emit) == 1 else None
    if named_kind in _UNAMBIGUOUS_KINDS and only_kind is not None and only_kind != named_kind:
        fail_usage(f"-o {output} names a {named_kind} file, but the output is a {only_kind}")
    is_default = named_kind == "cubin" and len(targets) > 1  # then a fatbin is made too
    if emit is None and stop_after is None and named_kind is not None and not is_default:
        emit = (named_kind,)
    if emit is None:
        last = stop_after or end
        several: tuple[Kind, ...] = ("cubin", "fatbin") if last == "cubin" and len(targets) > 1 else (last,)
        emit = () if stop_after is not None and output is None else several
    base = _make_base_name(kernel, is_folder, output)
    places: list[tuple[Kind, str | None, str]] = []
    for kind in emit:
        for target in (None,) if kind in JOINED_KINDS else targets:
            middle = f".{target_stem(target)}" if target is not None and len(targets) > 1 else ""
            places.append((kind, target, f"{base}{middle}{_get_suffix(kind)}"))
    if len(places) == 1 and output is not None and not is_folder:
        places = [(*places[0][:2], output)]
    return OutputPlan(kernel, base, tuple(places))


def _check_reachable(plan: OutputPlan, stop_after: str | None, level: int, trace: str | None) -> None:
    """Raise a usage error if an output needs a stage after --stop-after or beyond the optimisation level."""
    from tilec.driver.engine import find_position

    end = LAST_STAGE.get(level, "cubin")
    for kind in plan.kinds():
        if stop_after is not None and find_position(_get_stage(kind)) > find_position(stop_after):
            option = "--schedule-trace-file" if kind == "schedule" and trace is not None else f"--emit {kind}"
            fail_usage(f"--stop-after {stop_after} comes before {option}")
    wanted = [*plan.stages(), *([stop_after] if stop_after is not None else [])]
    if late := [stage for stage in wanted if find_position(stage) > find_position(end)]:
        fail_usage(f"-O{level} ends with stage {end}: there is no {max(late, key=find_position)}")


def _make_jobs(
    plan: OutputPlan,
    targets: Sequence[str],
    stop_after: str | None,
    dump_ir: str | None,
    of_several: bool,
    report: bool,
    given: dict[str, Any],
) -> Iterator[CompileJob]:
    """Yield one compile job of a kernel file per target, which ends at the last stage that an output needs."""
    from tilec.driver.batch import CompileJob
    from tilec.driver.engine import find_position

    source = _read_kernel_file(plan.kernel)
    for target in targets:
        options = make_compile_options(given, target)
        keep = plan.stages() or ([stop_after] if stop_after is not None else [])
        # Stop at the last wanted stage; a dump wants all of them.
        end = LAST_STAGE.get(options.opt_level)
        last = stop_after or (end if dump_ir is not None or report else max(keep, key=find_position))
        names = (of_several, Path(plan.kernel).stem), (len(targets) > 1, target_stem(target))
        inner = ".".join(name for is_needed, name in names if is_needed)
        folder = None if dump_ir is None else str(Path(dump_ir) / inner)
        # Each job records imports in a source of its own.
        own = SourceFile(source.path, source.text)
        yield CompileJob(own, options, tuple(keep), None if last == STAGES[-1] else last, folder, report=report)


def _read_kernel_file(path: str) -> SourceFile:
    """Read a kernel file; if it is missing and its name looks like a command, raise an error that suggests one."""
    if not Path(path).exists() and "." not in path:
        import difflib

        if path in ("compile", "build"):
            raise_error("no-such-file", f"there is no command '{path}'", help="compiling has no command: tilec FILE.tl")
        near = difflib.get_close_matches(path, COMMANDS, n=1)
        advice = f"did you mean 'tilec {near[0]}'?" if near else f"commands: {', '.join(COMMANDS)}"
        raise_error("no-such-file", f"{path} is neither a file nor a command", help=advice)
    return files.read_source(path)


# ---- what is made of it ----------------------------------------------------------------------------------------------


def _build_contents(plan: OutputPlan, results: dict[str, CompileResult], style: Style) -> dict[str, bytes]:
    """Return the bytes of each output file by its path; raise a usage error if two targets are one machine."""
    contents: dict[str, bytes] = {}
    of_machine = {result.manifests[0].target: result for result in results.values() if result.manifests}
    if len(of_machine) < len(results) and {kind for kind, _, _ in plan.places} & set(JOINED_KINDS):
        fail_usage(f"{' and '.join(results)} are the same machine, and a file holds one cubin for each machine")
    for kind, target, path in plan.places:
        if kind == "fatbin":
            from tilec.host.fatbin import build_fatbin
            from tilec.host.machines import newest_portable

            portable = newest_portable(of_machine)
            ptx = {} if portable is None else {portable: of_machine[portable].texts["ptx"]}
            cubins = {name: result.texts["cubin"] for name, result in of_machine.items()}
            contents[path] = build_fatbin(cubins, ptx, Path(plan.kernel).name)
        elif kind == "header":
            from tilec.host.header import Variant, build_header

            machines = of_machine.items()
            variants = [Variant(name, r.texts["cubin"], r.texts["ptx"], r.manifests) for name, r in machines]
            contents[path] = build_header(Path(plan.kernel).name, variants, style).encode()
        else:
            assert target is not None
            result = results[target]
            contents[path] = _encode_manifests(result) if kind == "json" else result.texts[kind]
    return contents


def _encode_manifests(result: CompileResult) -> bytes:
    """Return the kernels' launch manifests as a JSON array, in the order of the file."""
    from tilec.ir.manifest import to_json

    records = [json.loads(to_json(manifest)) for manifest in result.manifests]
    return (json.dumps(records, indent=1, ensure_ascii=False) + "\n").encode()


def _list_dependencies(results: Sequence[CompileResult], targets: Sequence[str], given: dict[str, Any]) -> list[str]:
    """Return the files that a kernel file's outputs depend on, each once: inputs, imports and target files."""
    imported = [file.path for one in results for file in one.source.imported.values()]
    machines = [str(resources.target_file(target)) for target in targets]
    return list(dict.fromkeys([*list_input_files([results[0].source.path], given), *imported, *machines]))


_UNSAFE_IN_RULES = frozenset(";&|<>()`\\*?[]~=%:")
"""Characters with a meaning for make or Ninja in a path, or for the shell of a recipe."""


def _format_make_rule(outputs: Sequence[str], inputs: Sequence[str]) -> str:
    """Return the rule of make `outputs: inputs`; raise an error for a path with a character that make cannot have."""
    for path in (*outputs, *inputs):
        found = next((sign for sign in path if sign in _UNSAFE_IN_RULES or not sign.isprintable()), None)
        if found is not None:
            title = f"no rule of make can name {path!r}: it has {found!r} in it"
            raise_error("unwritable-output", title, help="rename it, or remove -MD and -MF")
    return f"{' '.join(map(_escape_path, outputs))}: {' '.join(map(_escape_path, inputs))}\n"


def _escape_path(path: str) -> str:
    """Return a path with $, blanks and # escaped as GCC escapes them, for make and Ninja."""
    return path.replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")
