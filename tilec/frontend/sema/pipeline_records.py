"""Which pipelines a kernel has, and what its statements have done with them so far."""

from __future__ import annotations

from dataclasses import field

from tilec.ir.tile import Var
from tilec.ops.signature import Parameter, Signature
from tilec.ops.values import Pipeline, Side, Stage
from tilec.support.records import dataclass
from tilec.support.source import Span

PIPELINES = {
    name: Signature(name, (Parameter("payload"), Parameter("stages")))
    for name in ("T.InputTilePipeline", "T.OutputTilePipeline")
}


@dataclass(frozen=True, slots=True)
class Nested:
    """A role has acquired a stage of one pipeline while it held one of another."""

    held: Pipeline
    acquired: Pipeline
    role: range
    held_span: Span
    span: Span


@dataclass(slots=True)
class Pipelines:
    """Those of a kernel, with what its statements have done with them so far; `tiles` are the pipelines of the tiles
    that they hold, by name, `acquired` the stages in the order of the text. `looked` has what a side found by
    `try_acquire`, as long as the stage that it is about is the next one."""

    made: list[Pipeline] = field(default_factory=list)
    tiles: dict[str, Pipeline] = field(default_factory=dict)
    acquired: list[Stage] = field(default_factory=list)
    nested: list[Nested] = field(default_factory=list)
    looked: dict[tuple[str, Side], Var] = field(default_factory=dict)
