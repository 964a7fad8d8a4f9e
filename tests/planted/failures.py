"""A plugin of pytest: which tests fail, one a line, in the file that $PLANTED_FAILURES names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Workers hand their reports on to the process that has started them."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["PLANTED_FAILURES"]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
