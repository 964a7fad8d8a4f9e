"""Advice about tiles: whether a kernel with another tile edge is predicted to be faster than the one as written.

The edges are ranked by layouts alone, and the most promising kernels are compiled in full: only the assembler shows
whether larger tiles still fit the registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.frontend.syntax import ast
from tilec.support.diagnostics import CompileError, Diagnostic, make_warning
from tilec.support.display import show_share
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile, Span
from tilec.tune.auto import MAX_TILE_EDGE, MIN_TILE_EDGE, find_constants, find_tunable_roles
from tilec.tune.knobs import apply_point
from tilec.tune.space import Point

if TYPE_CHECKING:
    from tilec.driver.build import Library
    from tilec.passes.cost.report import Report

LEAST_GAIN = 0.12
"""The least share of the predicted time that another tile must save (docs/tuning.md says how often that is right)."""
MAX_COMPILED = 3
"""The most kernels with other tiles that are compiled in full."""
_TOO_LARGE = ("register-spill", "wgmma-serialised")
"""Warnings of kernels that the model takes to be faster than they are."""

ReportLibrary = Callable[["Library"], "Report"]
"""Predicts the one kernel of a library, for the same sizes and contents as the kernel as written."""


def find_faster_tile(
    source: SourceFile, options: CompileOptions, written: Report, report_library: ReportLibrary
) -> Diagnostic | None:
    """Return a warning with the tile edge that saves most of the time predicted for the kernel as `written`; None where
    none saves enough.

    Only kernels with a producer warp on targets with wgmma are considered: for these it has been measured how often the
    prediction is right.
    """
    from tilec.frontend.syntax.parse import parse_file

    module = parse_file(source)
    values = {**find_constants(module), **dict(options.defines)}
    roles = find_tunable_roles(module)
    points = [point for name in roles if roles[name] == "tile" for point in list_other_edges(name, values, roles)]
    before, best = written.at(written.predicted), None
    for point in _rank_points(points, source, options)[:MAX_COMPILED]:
        found = _compile_point(source, apply_point(point, options), report_library)
        if found is not None and found <= (1 - LEAST_GAIN) * before and (best is None or found < best[0]):
            best = found, point
    if best is None:
        return None
    time, point = best
    changed = " and ".join(f"{name}={value}" for name, value in point)
    title = f"with {changed} this kernel is predicted to take {show_share(1 - time / before)} less time"
    name, _ = point[0]
    return make_warning(
        "slow-tile", title, _find_span(module, name), f"{name} is {values[name]}", help=f"use {changed}"
    )


def list_other_edges(name: str, values: Mapping[str, object], roles: Mapping[str, str]) -> Iterator[Point]:
    """Yield points with another value of a tile edge: half, twice, and half as much again with as many more threads."""
    edge = values.get(name)
    if type(edge) is not int:
        return
    for other in (edge // 2, 2 * edge):
        if edge % 2 == 0 and MIN_TILE_EDGE <= other <= MAX_TILE_EDGE:
            yield ((name, other),)
    threads = [one for one, role in roles.items() if role == "threads"]
    if len(threads) == 1 and edge % 2 == 0 and MIN_TILE_EDGE <= edge * 3 // 2 <= MAX_TILE_EDGE:
        count = values.get(threads[0])
        if type(count) is int and count % 64 == 0:
            yield ((name, edge * 3 // 2), (threads[0], count * 3 // 2))


def _rank_points(points: list[Point], source: SourceFile, options: CompileOptions) -> list[Point]:
    """Return the points that may be compiled to a faster kernel, those first for which layouts alone predict the least
    cycles: with a producer warp, and with registers for their sums."""
    from tilec.driver import build as driver
    from tilec.passes.cost.estimate import estimate_cycles, estimate_registers

    found: list[tuple[int, int]] = []
    for number, point in enumerate(points):
        variant = SourceFile(source.path, source.text)
        try:
            assignment, target = driver.assign_kernel_layouts(variant, apply_point(point, options))
        except CompileError:
            continue
        has_room = estimate_registers(assignment, target) <= target.limit("registers_per_thread")
        if assignment.form == "warp_specialised" and has_room:
            found.append((estimate_cycles(assignment, target), number))
    return [points[number] for _, number in sorted(found)]


def _compile_point(source: SourceFile, options: CompileOptions, report_library: ReportLibrary) -> float | None:
    """Return the predicted microseconds of a variant; None if it has errors, spills, or has no producer warp."""
    from tilec.driver import build as driver

    observer = driver.Observer()
    quiet = replace(options, lint="warn", silenced=(), errors=(), warnings_are_errors=False)
    try:
        library = driver.build_library(SourceFile(source.path, source.text), quiet, observer)
        (plan,) = library.plans
        if plan.assignment.form != "warp_specialised" or not plan.target.has("wgmma"):
            return None
        if any(warning.code in _TOO_LARGE for warning in observer.warnings):
            return None
        report = report_library(library)
    except CompileError:
        return None
    return report.at(report.predicted)


def _find_span(module: ast.Module, name: str) -> Span:
    """Return the place where a constant of the file is named first."""
    return next(node.span for node in ast.walk_nodes(module) if getattr(node, "id", getattr(node, "name", "")) == name)
