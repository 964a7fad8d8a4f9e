"""Draws kernels whose meaning depends on an order, compiles them, and compares their emulated PTX with Python.

    python tests/order/order_campaign.py --first 1000 --count 300

`--target` and `--level` fix what is otherwise taken in turns; `--minimise` prints the smallest kernel of each finding,
and `--file kernel.tl` judges that one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from drawn_order import drawn
from judged_order import found
from smaller import smallest

TARGETS, LEVELS = ("sm_90a", "sm_80"), (2, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--level", type=int, choices=LEVELS)
    parser.add_argument("--minimise", action="store_true")
    parser.add_argument("--file", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("TILEC_VERIFY", "all")
    numbers = range(asked.first, asked.first + asked.count) if asked.file is None else [asked.first]
    began, verdicts, seen = time.process_time(), Counter[str](), set[str]()
    for number in numbers:
        target = asked.target or TARGETS[number % 2]
        level = asked.level or LEVELS[number // 2 % 2]
        text = drawn(number) if asked.file is None else asked.file.read_text(encoding="utf-8")
        verdict, told = found(text, number, target, level)
        verdicts[f"refused: {told.split(':')[0]}" if verdict == "refused" else verdict] += 1
        if verdict in ("agrees", "refused"):
            continue
        print(f"---- kernel {number} for {target} -O{level}: {verdict}\n{told}", flush=True)
        if asked.minimise and verdict not in seen:
            print(_minimised(text, number, target, level, verdict), flush=True)
        seen.add(verdict)
    each = (time.process_time() - began) / len(numbers)
    print(f"==== {dict(verdicts.most_common())}; {each:.2f} s of the processor each")
    return 1 if seen else 0


def _minimised(text: str, number: int, target: str, level: int, verdict: str) -> str:
    def is_found(source: str) -> bool:
        try:
            return found(source, number, target, level)[0] == verdict
        except Exception:  # what is left is no kernel
            return False

    return smallest(text, is_found, 400)


if __name__ == "__main__":
    sys.exit(main())
