"""What spot saved, by hand."""

from __future__ import annotations

import pytest

from trainer.runs.spot_saving import SpotBill, saved_usd

HOUR = 3600.0


def bill(low: float, high: float, *, taken: bool = False, price: float = 1.0) -> SpotBill:
    return SpotBill(
        seconds_low=low, seconds_high=high, usd_per_hour=price, on_demand_usd_per_hour=3.0, taken=taken
    )


def test_spot_saves_the_difference_of_the_prices() -> None:
    assert saved_usd([bill(HOUR, 2 * HOUR)], twice_seconds=0) == pytest.approx((2.0, 4.0))
    assert saved_usd([], twice_seconds=0) == (0, 0)


def test_what_was_computed_twice_is_no_saving() -> None:
    assert saved_usd([bill(HOUR, HOUR)], twice_seconds=600) == pytest.approx((1.5, 2.0))


@pytest.mark.parametrize(
    ("low", "high", "taken", "free"),
    [
        (3000, 3100, True, 3100 / HOUR),  # an hour that AWS interrupted may be free
        (3500, 3700, True, 1.0),  # perhaps within the first hour
        (3600, 3700, True, 0.0),
        (3000, 3100, False, 0.0),  # it ended itself
    ],
)
def test_an_interrupted_first_hour_may_be_free(low: float, high: float, taken: bool, free: float) -> None:
    least, most = saved_usd([bill(low, high, taken=taken)], twice_seconds=0)
    assert (least, most) == pytest.approx((low * 2 / HOUR, high * 2 / HOUR + free))


def test_spot_dearer_than_on_demand_saves_less_than_nothing() -> None:
    assert saved_usd([bill(HOUR, 2 * HOUR, price=4.0)], twice_seconds=0) == pytest.approx((-2.0, -1.0))
