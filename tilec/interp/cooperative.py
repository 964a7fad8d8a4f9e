"""Work that waits for other work, on the CPU: one piece runs until it must wait, then the first that may goes on.

The order is always the same, so that a run can be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field

from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

Stuck = Callable[[list[Span]], None]
"""Says that nobody can go on, given where those that have not ended wait; or comes back when somebody can again."""


@dataclass(slots=True)
class _Piece:
    run: Callable[[], None]
    may_go_on: Callable[[], bool] = lambda: True
    waits_at: Span = NOWHERE
    may_run: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: BaseException | None = None
    is_done: bool = False


class Cooperative:
    def __init__(self, stuck: Stuck) -> None:
        self.stuck = stuck
        self.pieces: list[_Piece] = []
        self.order: list[_Piece] = []  # who goes on first
        self.back = threading.Semaphore(0)
        self.running: _Piece | None = None

    def until(self, may_go_on: Callable[[], bool], span: Span = NOWHERE) -> None:
        """The piece that runs waits."""
        piece = self.running
        assert piece is not None
        if may_go_on():
            return
        piece.may_go_on, piece.waits_at = may_go_on, span
        self._pause(piece)

    def give_way(self) -> None:
        """The piece that runs lets all others go first, as far as they get."""
        piece = self.running
        assert piece is not None
        self.order.remove(piece)
        self.order.append(piece)
        piece.may_go_on = lambda: True
        self._pause(piece)

    def _pause(self, piece: _Piece) -> None:
        self.back.release()
        piece.may_run.acquire()
        if piece.error is not None:
            raise piece.error

    def may_go_on(self) -> bool:
        """Whether somebody can."""
        return any(piece.may_go_on() for piece in self.order if not piece.is_done)

    def is_done(self, number: int) -> bool:
        """Whether that piece of the work has ended."""
        return self.pieces[number].is_done

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """All of it, each on a thread of its own; what one of them raises ends the others too, and is raised here."""
        self.pieces = [_Piece(run) for run in work]
        self.order = list(self.pieces)
        threads = [threading.Thread(target=self._run, args=(piece,), daemon=True) for piece in self.pieces]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        while waiting := [piece for piece in self.order if not piece.is_done]:
            ready = next((piece for piece in waiting if failure is not None or piece.may_go_on()), None)
            if ready is None:
                try:
                    self.stuck([piece.waits_at for piece in waiting])
                except BaseException as error:
                    failure = error
                continue
            ready.error = failure  # so that it ends
            self.running = ready
            ready.may_run.release()
            self.back.acquire()
            if ready.is_done and failure is None:
                failure = ready.error
        for thread in threads:
            thread.join()
        if failure is not None:
            raise failure

    def _run(self, piece: _Piece) -> None:
        piece.may_run.acquire()
        try:
            if piece.error is None:
                piece.run()
        except BaseException as error:
            piece.error = error
        piece.is_done = True
        self.back.release()
