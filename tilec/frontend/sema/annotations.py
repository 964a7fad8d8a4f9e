"""The `annotations=` of a loop: a dictionary of whatever else somebody has to say about it."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ops.signature import Argument, Call, nearest
from tilec.ops.values import Dictionary, describe
from tilec.support.diagnostics import Diagnostic, fail, warning


def annotated(call: Call) -> list[tuple[str, Argument]]:
    """The entries of `annotations=`."""
    if "annotations" not in call.arguments or call["annotations"].value is None:
        return []
    value = call["annotations"].value
    if not isinstance(value, Dictionary):
        call.refuse("annotations", 'a dictionary, as in {"software_pipeline_stage": [0, 1]}')
    assert isinstance(value, Dictionary)
    found = []
    for entry in value.entries:
        if not isinstance(entry.key, str):
            fail("wrong-argument", f"{call.name}: annotations have names", entry.span, f"this is {describe(entry.key)}")
        found.append((entry.key, Argument(entry.value, entry.span)))
    return found


def unknown_annotation(call: Call, written: str, argument: Argument, known: Iterable[str]) -> Diagnostic:
    near = nearest(written, known)
    return warning(
        "unknown-annotation",
        f"{call.name}: the annotation {written!r} means nothing here",
        argument.span,
        "it is ignored",
        help=f"did you mean {near!r}?" if near else None,
    )
