"""What a kernel with roles of its own has decided, as tables: the trace's `pipelines` and `roles`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tilec.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def hand_tables(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of the `tilec` member of a trace; nothing where tilec makes the roles."""
    if record.get("pipelines"):
        made = plain_table("pipelines", "<name", "<tiles", "stages", "bytes each", "bytes", "<filled by", "<taken by")
        for pipeline in record["pipelines"]:
            numbers = (f"{pipeline[key]:,}" for key in ("stages", "bytes", "total_bytes"))
            ends = (", ".join(pipeline[side]) for side in ("producers", "consumers"))
            made.add_row(Text(pipeline["name"]), Text(", ".join(pipeline["tiles"])), *numbers, *map(Text, ends))
        yield made
        yield Text()
    for role in record.get("roles", ()):
        last = role["first_warp"] + role["warps"] - 1
        yield Text(f"{role['name']}, warps {role['first_warp']} to {last}: statements, as they run", "bold")
        made = plain_table("", "line", "<statement")
        made.title = None
        for statement in role["statements"]:
            made.add_row(str(statement["line"]), Text("  " * statement["depth"] + statement["name"]))
        yield made
        yield Text()
