"""Where the text of an expanded loop begins."""

from __future__ import annotations

from tilec.passes.loop.rotate_loop import InFlightProduct, choose_first_step


def test_an_iteration_begins_where_no_turn_goes_on() -> None:
    assert choose_first_step([0, 1], [None, None], ()) == 0
    # The turn begins at the end of the interval and ends in the next one: an iteration that begins with it has one
    # stage.
    assert choose_first_step([1, 1, 0], [(0, 1), None, (0, 0)], ()) == 2
    # One that began between its halves would cut it in two.
    assert choose_first_step([0, 0, 0], [(0, 0), (0, 1), None], ()) == 0


def test_an_iteration_begins_where_no_product_is_in_flight() -> None:
    nothing = (None,) * 4
    assert choose_first_step([0, 0, 0, 0], nothing, [InFlightProduct(1, 3, 4)]) == 0
    # Issued in step 2, waited for in the next iteration's step 1.
    assert choose_first_step([1, 1, 0, 0], nothing, [InFlightProduct(2, 1, 4)]) == 2
    assert (
        choose_first_step([0, 0, 0, 0], nothing, [InFlightProduct(2, 0, 4)]) == 1
    )  # between two that would do: the first
    # One or the other: where fewer iterations overlap.
    assert choose_first_step([1, 1, 0, 0], nothing, [InFlightProduct(2, 1, 4), InFlightProduct(1, 2, 4)]) == 2


def test_a_bind_and_its_users_stay_in_one_iteration() -> None:
    """Check that an iteration which best begins between a bind and its user begins elsewhere."""
    flights = [InFlightProduct(3, 1, 4)]
    assert choose_first_step([1, 1, 1, 0], (None,) * 4, flights) == 3
    assert choose_first_step([1, 0, 0, 0], (None,) * 4, flights) == 2
    assert choose_first_step([1, 0, 0, 0], (None,) * 4, flights, [(1, 2)]) == 3
    assert choose_first_step([1, 0, 0, 0], (None,) * 4, flights, [(0, 3)]) == 0


def test_an_iteration_ends_where_products_have_completed() -> None:
    """If there is no place without any: the first one has completed at the second place behind its issue."""
    short, long = InFlightProduct(0, 2, 1), InFlightProduct(2, 0, 4)
    assert [short.is_in_flight(at, 4) for at in range(4)] == [False, True, True, False]
    assert [short.is_running(at, 4) for at in range(4)] == [False, True, False, False]
    assert choose_first_step([0, 0, 0, 0], (None,) * 4, [short, long]) == 2
