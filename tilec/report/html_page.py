"""The schedule trace as one page of HTML: `tilec schedule --html`. It is made of the trace's record alone, so that it
shows what the trace says.
"""

from __future__ import annotations

from typing import Any

from tilec.report.html_loop import loop_heading, loop_parts
from tilec.report.html_parts import document, escaped, table


def page(trace: dict[str, Any]) -> str:
    """The page for a trace, as `sched.trace` makes it."""
    record = trace["tilec"]
    title = (record["kernel"] or "schedule") + (f" on {record['target']}" if record["target"] else "")
    about = f"Calibration: {record['calibration']}. Times are cycles." if record["calibration"] else "Times are cycles."
    body: list[str] = []
    if record["decisions"]:
        body += ["<h2>Decisions</h2>", decision_table(record["decisions"])]
    for loop in record["loops"]:
        body += [f"<h2>{escaped(loop_heading(loop))}</h2>", *loop_parts(loop)]
    return document(title, about, body if record["loops"] else [*body, NO_LOOP])


NO_LOOP = "<p>No pipelined loop.</p>"


def decision_table(decisions: list[dict[str, str]]) -> str:
    """What was decided about warps and blocks, by whom and why."""
    return table(
        ("what", "decision", "by", "because"), [(d["what"], d["chosen"], d["by"], d["why"]) for d in decisions]
    )
