"""What operations touch is said of each kind, twice: an unknown one may not pass for one that touches nothing."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from tilec.ir import warp
from tilec.ir.warp import Operation
from tilec.ir.warp_verify import effects
from tilec.passes.lower.waits import touches
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

KINDS = [kind for kind in vars(warp).values() if isinstance(kind, type) and issubclass(kind, Operation)]
KINDS.remove(Operation)


@dataclass(frozen=True, slots=True)
class Unknown(Operation):
    pass


def is_unknown(kind: type[Operation], ask: object) -> bool:
    """Asked of an operation whose fields are there, whatever they hold: only that it has a case matters."""
    assert callable(ask)
    op = kind.__new__(kind)
    for each in kind.__mro__:
        for name in getattr(each, "__slots__", ()):
            object.__setattr__(op, name, MagicMock())
    try:
        ask(op)
    except InternalError as error:
        return "closed set" in str(error)
    except Exception:
        return False
    return False


@pytest.mark.parametrize("ask", [effects.effects_without_scalars, touches.find_touches])
def test_every_operation_is_known(ask: object) -> None:
    assert len(KINDS) > 40
    assert [kind.__name__ for kind in KINDS if is_unknown(kind, ask)] == []
    assert is_unknown(Unknown, ask)
