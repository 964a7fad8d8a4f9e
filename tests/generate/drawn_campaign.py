"""Small whole kernels, drawn by number: each is refused with a diagnostic, or computes what numpy says it means.

    python tests/generate/drawn_campaign.py --count 20000

The kernel of a number is the same as long as the files here are, and `tilec/support/options.py`: `--first N --count 1
--show` prints it, `--minimise` makes the smallest kernel of it that is found for the same reason, `--file kernel.tl`
tries one that has been written to a file, its first line included. With `--journal FILE` what has been tried is kept
there, and not tried again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from drawing.draw import drawn
from judging import Case, Verdict, judged
from minimising import minimised


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path, help="a file of lines of JSON, to which the verdicts are added")
    parser.add_argument("--show", action="store_true", help="print the kernels")
    parser.add_argument("--minimise", action="store_true", help="print the smallest kernel of each kind of finding")
    parser.add_argument("--file", type=Path, help="try the kernel in this file instead")
    asked = parser.parse_args()
    if asked.file is not None:
        return _one(asked.file.read_text(encoding="utf-8"), asked.minimise)
    known = _read(asked.journal)
    first_of: dict[str, int] = {}
    verdicts: list[Verdict] = []
    began = time.process_time()
    tried = 0
    for number in range(asked.first, asked.first + asked.count):
        text = drawn(number)
        if asked.show:
            print(text)
        verdict = known.get(number)
        if verdict is None:
            tried += 1
            verdict = judged(Case(text))
            _write(asked.journal, number, verdict)
        verdicts.append(verdict)
        if not verdict.is_fine and verdict.name not in first_of:
            first_of[verdict.name] = number
            print(f"---- kernel {number}: {verdict.name}\n{verdict.told}", flush=True)
            if asked.minimise:
                print(minimised(text, verdict.name), flush=True)
        if len(verdicts) % 500 == 0:
            _tell(verdicts, first_of, began, tried)
    _tell(verdicts, first_of, began, tried)
    return 1 if first_of else 0


def _one(text: str, is_minimised: bool) -> int:
    verdict = judged(Case(text))
    print(f"{verdict.name}\n{verdict.told}")
    if is_minimised and not verdict.is_fine:
        print(minimised(text, verdict.name))
    return 0 if verdict.is_fine else 1


def _read(journal: Path | None) -> dict[int, Verdict]:
    if journal is None or not journal.exists():
        return {}
    rows = (json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines())
    return {number: Verdict(**row) for number, row in rows}


def _write(journal: Path | None, number: int, verdict: Verdict) -> None:
    if journal is not None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps([number, {"kind": verdict.kind, "where": verdict.where, "told": verdict.told,
                                            "vague": verdict.vague}]) + "\n")  # fmt: skip


def _tell(verdicts: list[Verdict], first_of: dict[str, int], began: float, tried: int) -> None:
    kinds = Counter(v.kind for v in verdicts)
    vague = [v.vague for v in verdicts if v.kind == "agrees"]
    print(
        f"==== {len(verdicts)} kernels: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        + f"; {(time.process_time() - began) / max(tried, 1):.2f} s of the processor each; of what was compared "
        f"{sum(vague) / max(len(vague), 1):.0%} could be anything"
    )  # fmt: skip
    refused = Counter(v.where for v in verdicts if v.kind in ("refused", "meaningless"))
    print("refused: " + ", ".join(f"{count} {where}" for where, count in refused.most_common(40)))
    for name, count in Counter(v.name for v in verdicts if not v.is_fine).most_common():
        print(f"{count} times, first {first_of.get(name)}: {name}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
