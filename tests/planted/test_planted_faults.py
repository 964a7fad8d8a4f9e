"""The faults that `planting.py` plants are of the code as it is: a change that outdates one comes with another."""

from __future__ import annotations

import ast

import planting
import pytest
from faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_a_fault_replaces_is_there_once(fault: Fault) -> None:
    text = (planting.ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    changed = text.replace(fault.old, fault.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert [path for path in fault.near if not (planting.ROOT / "tests" / path).exists()] == []


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


def test_every_folder_of_tests_is_in_a_slice() -> None:
    folders = {path.parent.name for path in (planting.ROOT / "tests").glob("*/test_*.py")}
    assert folders - {"gpu", "peers", "planted"} == {folder for part in planting.SLICES for folder in part}
