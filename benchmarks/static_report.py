"""What comparisons of machine code have in common: their command line, their table, their JSON and their verdict."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

Measure = Callable[[list[str]], Sequence[Any]]


def report(doc: str, measure: Measure, table: Callable[[Sequence[Any]], Iterable[str]]) -> None:
    """Measure with the interpreters that the command line names, and print the lines of the `table`. Rows are
    dataclasses that have a `compiler` and its `spills`; ours must have none."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument(
        "--peers", nargs="+", default=[sys.executable], metavar="PYTHON", help="interpreters with peers"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rows here")
    asked = parser.parse_args()

    rows = measure(asked.peers)
    print(*table(rows), sep="\n")
    if asked.json:
        shown = [asdict(row) for row in rows]
        record = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "rows": shown}
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n")
    if any(row.spills for row in rows if row.compiler == "tilec"):
        sys.exit("tilec spills registers")
