"""What `gpu_cases.py` writes, `gpu.py` orders and `gpu_child.py` runs."""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GROUPS = (
    "samples", "other targets", "peaks", "headlines", "drawn", "workloads", "attention", "memory", "products", "ladder",
    "ablation",
)  # fmt: skip
"""In the order in which they run: what is right first, then what is asked about first."""


MARK = "@gpu "
"""What a line of the child's begins with that is not a kernel's own."""


@dataclass(frozen=True)
class Case:
    """`kind`: "sample" or "drawn", or a workload of `gpu_workloads` with `parameters`. `files` are cubins, which run
    one after the other; without any, only the peers are timed. A sample and a drawn kernel have `dtypes` by tensor and
    were given inputs of `seed`; a sample may differ from its reference as tests/samples says. Of kind "variants", each
    of the files is one kernel compiled in another way, under the name in `parameters["labels"]`."""

    name: str
    group: str
    kind: str
    files: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    steps: float = 0.0
    noise: float = 0.0
    seed: int = 0
    arrays: str = ""
    """The file of a sample's or drawn kernel's arguments and of what is expected of them."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the tenth and ninetieth percentile."""

    median: float
    low: float
    high: float


def summary(milliseconds: list[float]) -> Timing:
    ordered = sorted(milliseconds)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])


def read_cases(folder: Path) -> list[Case]:
    entries = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return [Case(**{**entry, "files": tuple(entry["files"]), "sha256": tuple(entry["sha256"])}) for entry in entries]


def cubins(folder: Path, case: Case) -> list[bytes]:
    """Those that the case speaks of, and no others."""
    found = [gzip.decompress((folder / f"{file}.cubin.gz").read_bytes()) for file in case.files]
    for file, cubin, digest in zip(case.files, found, case.sha256, strict=True):
        if hashlib.sha256(cubin).hexdigest() != digest:
            raise ValueError(f"{file}.cubin.gz is not the one that cases.json speaks of")
    return found
