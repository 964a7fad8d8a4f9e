"""What all tests share: golden files, and kernels from text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
Golden = Callable[[str, str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the golden files with what the code makes now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(stage, name, text)` compares `text` with tests/golden/<stage>/<name>.txt."""

    def compare(stage: str, name: str, text: str) -> None:
        path = TESTS / "golden" / stage / f"{name}.txt"
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        where = path.relative_to(TESTS.parent)
        if not path.exists():
            pytest.fail(f"{where} does not exist; `pytest --bless` writes it", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"differs from {where}; if the change is meant, `pytest --bless` and read the diff"

    return compare
