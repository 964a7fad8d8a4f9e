"""The option --contents of commands that say how long a kernel takes: elements of tensors that decide it."""

from __future__ import annotations

import click

contents_option = click.option(
    "--contents",
    multiple=True,
    metavar="NAME=N[,N…]",
    help="The elements of a tensor of integers that decides how long loops run: one number for all of them, or each in "
    "row-major order.",
)


def parse_contents(text: str) -> tuple[str, int | tuple[int, ...]]:
    """Return name and elements of `NAME=N` or `NAME=N,N,…`, the value of --contents; raise a usage error if wrong."""
    name, _, listed = text.partition("=")
    numbers = listed.split(",")
    if not name.isidentifier() or not all(number.removeprefix("-").isdecimal() for number in numbers):
        example = name if name.isidentifier() else "lengths"
        raise click.UsageError(
            f"--contents {text}: write the tensor and its elements, as in --contents {example}=1024 or "
            f"--contents {example}=1000,24"
        )
    return name, int(listed) if len(numbers) == 1 else tuple(map(int, numbers))
