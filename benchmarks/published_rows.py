"""The published measurements in `published/`: what was measured, on what, by whom, and which kernel of ours is like it.

`sources.toml` has the documents. Every other file is a group of rows that are judged together. A row says what its
source says: kernel, shape, type of elements, GPU, figure with its unit, and where in the document it stands. `ours`
names an entry of the same file: our kernels of that structure, one after the other, with the tiles that they may have.
The names in a row's shape are constants of those kernels.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.ir.types import TYPES_BY_NAME
from tilec.support import resources, schema
from tilec.target.table import evaluate_formula, load_target

FOLDER = Path(__file__).parent / "published"
SOURCES = "sources"
Unit = Literal["TFLOP/s", "GB/s", "ms", "us"]
Constant = int | float | bool | str

Said = Annotated[str, schema.Constraint(bool, "a string that is not empty")]
Positive = Annotated[float, schema.Constraint(lambda figure: figure > 0, "a number above 0")]


@dataclass(frozen=True)
class Source:
    """A document that says what was measured."""

    document: Said
    address: Annotated[str, schema.Constraint(lambda text: text.startswith("https://"), "an address")]


@dataclass(frozen=True)
class Part:
    """A kernel of ours: its file, from the root of the repository, and how it is compiled."""

    file: Said
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ours:
    """What does the work of a row: kernels that run one after the other, with the best of some tiles. `flop` and
    `bytes` are closed forms over the shape and `size`, the bytes of an element: what rates of a source count."""

    kernels: tuple[Part, ...]
    flop: Said
    bytes: Said
    tiles: tuple[Mapping[str, Any], ...] = ({},)


@dataclass(frozen=True)
class Row:
    """A measurement. `where` is the place in its source. `differs` says in what the kernel is built otherwise than
    ours, `assumed` what the source does not say and is taken for granted. Rows that are `held_out` are for judging,
    never for fitting; nor is anything fitted to one that differs, or whose number was read off a picture."""

    kernel: Said
    ours: Said
    shape: Mapping[str, int]
    dtype: Said
    gpu: Said
    figure: Positive
    unit: Unit
    source: Said
    where: Said
    held_out: bool
    clock_mhz: int | None = None
    read_from: Literal["text", "plot"] = "text"
    differs: str = ""
    assumed: str = ""

    @property
    def is_fit(self) -> bool:
        """Whether a constant may be fitted to it."""
        return not (self.held_out or self.differs or self.read_from == "plot")

    @property
    def name(self) -> str:
        return f"{self.kernel} {'×'.join(map(str, self.shape.values()))}"


@dataclass(frozen=True)
class Group:
    what: Said
    ours: Mapping[str, Ours]
    rows: tuple[Row, ...]

    def microseconds(self, row: Row) -> float:
        """The time that the row's figure means."""
        if row.unit in ("us", "ms"):
            return row.figure * (1000 if row.unit == "ms" else 1)
        ours = self.ours[row.ours]
        values = {**row.shape, "size": TYPES_BY_NAME[row.dtype].bits / 8}
        amount = evaluate_formula(ours.flop if row.unit == "TFLOP/s" else ours.bytes, values)
        return amount / row.figure / (1e6 if row.unit == "TFLOP/s" else 1e3)


def read(folder: Path = FOLDER) -> tuple[Mapping[str, Source], Mapping[str, Group]]:
    """The sources, and the groups by the names of their files. A `schema.SchemaError` names the place that is wrong."""
    files = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    sources = {key: schema.read_record(Source, value, f"{SOURCES}.{key}") for key, value in files.pop(SOURCES).items()}
    return sources, {name: schema.read_record(Group, table, name) for name, table in files.items()}


@cache
def target_of(gpu: str) -> str:
    """The target whose code it runs."""
    for name in resources.target_names():
        if any(one.name == gpu for one in load_target(name).gpus):
            return name
    raise ValueError(f"no target has a GPU '{gpu}'")
