"""Check that a producer reads only data that it has written to its stage itself.

A T.copy or T.tma_copy may complete only after the release of the stage, and a stage not written since its acquire has
data of an earlier iteration. The index of a stage is a variable of its acquire, which identifies the statements on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.frontend.sema.pipeline_records import PipelineRecords
from tilec.ir.tile import Buffer, Expr, Load, Stmt, Store, TileOp, walk_expr, walk_statements
from tilec.ops.values import PipelineStage
from tilec.passes.analysis.usage import find_reads, find_writes, list_expressions
from tilec.support.diagnostics import ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class _TileUse:
    """One use of a tile of the stage with this index; "copies" fills it from a tensor."""

    how: Literal["reads", "writes", "copies"]
    tile: Buffer
    index: Expr
    span: Span


def check_stage_contents(statements: Sequence[Stmt], pipelines: PipelineRecords, mistakes: ErrorCollector) -> None:
    """Check the tiles of each stage that a producer acquires. Errors: `stage-access`."""
    tiles = {tile for made in pipelines.made for tile in made.tiles.values()}
    used: dict[tuple[Expr, Buffer], list[_TileUse]] = {}
    for use in (u for stmt in walk_statements(tuple(statements)) for u in _find_uses(stmt)):
        if use.tile in tiles:
            used.setdefault((use.index, use.tile), []).append(use)
    for stage in pipelines.acquired:
        if stage.side == "producer":
            for tile in stage.pipeline.tiles.values():
                with mistakes.caught():
                    _check_stage(stage, used.get((stage.index, tile), []))


def _find_uses(stmt: Stmt) -> Iterator[_TileUse]:
    """Yield the uses in the statement itself, reads before writes."""
    for expr in list_expressions(stmt):
        for part in walk_expr(expr):
            if isinstance(part, Load):
                yield _TileUse("reads", part.buffer, part.indices[0], stmt.span)
    match stmt:
        case Store(buffer=buffer, indices=indices):
            yield _TileUse("writes", buffer, indices[0], stmt.span)
        case TileOp(regions=regions):
            is_load = stmt.copies_from_tensor
            read, written = find_reads(stmt), find_writes(stmt)
            for region in regions:
                if region.buffer in read:
                    yield _TileUse("reads", region.buffer, region.start[0], stmt.span)
            for region in regions:
                if region.buffer in written:
                    yield _TileUse("copies" if is_load else "writes", region.buffer, region.start[0], stmt.span)
        case _:
            pass


def _check_stage(stage: PipelineStage, uses: list[_TileUse]) -> None:
    made = stage.pipeline
    read = next((u for u in uses if u.how == "reads"), None)
    if read is None:
        return
    copy = next((u for u in uses if u.how == "copies"), None)
    first = next((u for u in uses if u.how == "writes"), None)
    is_left_over = made.function == "T.InputTilePipeline" and (first is None or uses.index(first) > uses.index(read))
    if copy is None and not is_left_over:
        return
    why = "the stage has not been written yet" if copy is None else "its copies may still be pending"
    raise_error(
        "stage-access",
        "a producer reads its own stage",
        read.span,
        why,
        secondary=(
            *((Label(copy.span, "copied here"),) if copy is not None else ()),
            Label(stage.taken.span, "acquired here, by the producer"),
        ),
        help=f"read it in the consumer, after `{made.name}.consumer()`",
    )
