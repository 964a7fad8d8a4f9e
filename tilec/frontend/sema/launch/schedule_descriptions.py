"""Descriptions of a schedule with roles, which T.annotate_ws_schedule takes: T.WSSchedule, and what it is made of.

They say which warps run which statement, and which barriers order them. tilec finds both by itself, from the statements
as they are written. So it reads the descriptions, for the mistakes that Python would find in them, and uses none.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.language.values import ScheduleDescription, Value, describe_value

_P = Parameter
_SYNCHRONISATIONS = ("producer_acquire", "producer_commit", "consumer_wait", "consumer_release")
WARPS_OF_A_GROUP = 4
"""TileLang moves registers between groups of so many warps, and wants whole ones."""

SCHEDULE_SIGNATURES = (
    Signature(
        "T.WSSchedule", (_P("num_warps"), _P("roles"), _P("pipelines"), _P("scopes"))
    ),
    Signature(
        "T.WSRole",
        (
            _P("name"), _P("warps_lo", keyword_only=True), _P("warps_hi", keyword_only=True),
            _P("max_nreg", 0, keyword_only=True),
        ),
    ),
    Signature("T.WSPipeline", (_P("name"), _P("buffers"), _P("depth"))),
    Signature("T.WSScope", (_P("id"), _P("bodies"))),
    Signature("T.WSOpRef", (_P("id"),)),
    Signature("T.WSSync", (_P("kind"), _P("pipeline"), _P("stage", 0))),
    *(Signature(f"T.WSSync.{name}", (_P("pipeline"), _P("stage", 0))) for name in _SYNCHRONISATIONS),
)  # fmt: skip
NAMED_STATEMENTS = Signature("T.ws_op", (_P("op_id"),))
"""`with T.ws_op("load"):` gives the statements in it a name, by which a schedule lists them."""

SCHEDULE_CONSTANTS: dict[str, str] = {
    "T.WSID": "tl.ws_op_id", "T.WSScope.ROOT": "tl.ws_scope_root",
    **{f"T.WSSyncKind.{name.upper()}": name for name in _SYNCHRONISATIONS},
}  # fmt: skip
"""By dotted name: the key under which `annotations=` names a statement, the scope that is the whole kernel, and the
kinds of synchronisation."""
SCHEDULE_NAMES = (
    *(s.name for s in SCHEDULE_SIGNATURES if s.name.count(".") == 1), NAMED_STATEMENTS.name, "T.WSID", "T.WSSyncKind"
)  # fmt: skip


def make_schedule_description(call: Call) -> Value:
    """Return the description that a call of `SCHEDULE_SIGNATURES` makes; refuse names that are no text, and numbers of
    warps and stages that are none.
    """
    for name in call.arguments:
        if (check := _CHECKS.get(name)) is not None and (wanted := check(call[name].value)):
            call.refuse(name, wanted)
    return ScheduleDescription(call.name)


def _want_text(value: Value) -> str:
    return "" if isinstance(value, str) and value else "a name in quotes"


def _want_count(value: Value) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else "an integer, at least 0"


def _want_warps(value: Value) -> str:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value > 0 and value % WARPS_OF_A_GROUP == 0
    return "" if is_whole else f"a multiple of {WARPS_OF_A_GROUP}"


def _want_descriptions(value: Value) -> str:
    """Return "" for a list of descriptions, else what is wanted instead."""
    if not isinstance(value, tuple):
        return "a list"
    wrong = next((each for each in value if not isinstance(each, ScheduleDescription)), None)
    return "" if wrong is None else f"a list of descriptions, and this has {describe_value(wrong)}"


_CHECKS: dict[str, Callable[[Value], str]] = {
    **dict.fromkeys(("name", "id", "op_id", "pipeline", "kind"), _want_text),
    **dict.fromkeys(("warps_lo", "warps_hi", "max_nreg", "depth", "stage"), _want_count),
    **dict.fromkeys(("roles", "pipelines", "scopes"), _want_descriptions),
    "num_warps": _want_warps,
}  # fmt: skip
"""By the name of a parameter: a function that returns what the argument must be, or "" where it is that."""
