"""Records of the pipelines of a kernel, and of the stages acquired so far."""

from __future__ import annotations

from dataclasses import field

from tilec.ir.tile import Var
from tilec.ops.language.signature import Parameter, Signature
from tilec.ops.language.values import Pipeline, PipelineStage, Side
from tilec.support.records import dataclass
from tilec.support.source import Span

PIPELINE_SIGNATURES = {
    name: Signature(name, (Parameter("payload"), Parameter("stages")))
    for name in ("T.InputTilePipeline", "T.OutputTilePipeline")
}


@dataclass(frozen=True, slots=True)
class NestedAcquire:
    """An acquire of a stage by a role that holds a stage of another pipeline."""

    held: Pipeline
    acquired: Pipeline
    role: range
    held_span: Span
    span: Span


@dataclass(slots=True)
class PipelineRecords:
    """The pipelines of a kernel.

    `tiles` maps the name of a tile to the pipeline that holds it. `acquired` has the stages in source order.
    `try_acquire_results` has the result of `try_acquire` by pipeline and side, until the next acquire."""

    made: list[Pipeline] = field(default_factory=list)
    tiles: dict[str, Pipeline] = field(default_factory=dict)
    acquired: list[PipelineStage] = field(default_factory=list)
    nested: list[NestedAcquire] = field(default_factory=list)
    try_acquire_results: dict[tuple[str, Side], Var] = field(default_factory=dict)
