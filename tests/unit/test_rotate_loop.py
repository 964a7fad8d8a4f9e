"""Where the text of an expanded loop begins."""

from __future__ import annotations

from tilec.passes.loop.rotate_loop import Flight, first_step


def test_an_iteration_begins_where_no_turn_goes_on() -> None:
    assert first_step([0, 1], [None, None], ()) == 0
    # The turn begins at the end of the interval and ends in the next one: an iteration that begins with it has one
    # stage.
    assert first_step([1, 1, 0], [(0, 1), None, (0, 0)], ()) == 2
    # One that began between its halves would cut it in two.
    assert first_step([0, 0, 0], [(0, 0), (0, 1), None], ()) == 0


def test_an_iteration_begins_where_no_product_is_in_flight() -> None:
    nothing = (None,) * 4
    assert first_step([0, 0, 0, 0], nothing, [Flight(1, 3, 4)]) == 0
    # Issued in step 2, waited for in the next iteration's step 1.
    assert first_step([1, 1, 0, 0], nothing, [Flight(2, 1, 4)]) == 2
    assert first_step([0, 0, 0, 0], nothing, [Flight(2, 0, 4)]) == 1  # between two that would do: the first
    # One or the other: where fewer iterations overlap.
    assert first_step([1, 1, 0, 0], nothing, [Flight(2, 1, 4), Flight(1, 2, 4)]) == 2


def test_an_iteration_ends_where_products_have_completed() -> None:
    """If there is no place without any: the first one has completed at the second place behind its issue."""
    short, long = Flight(0, 2, 1), Flight(2, 0, 4)
    assert [short.goes_on(at, 4) for at in range(4)] == [False, True, True, False]
    assert [short.runs_on(at, 4) for at in range(4)] == [False, True, False, False]
    assert first_step([0, 0, 0, 0], (None,) * 4, [short, long]) == 2
