"""Devices in service: which failures are the device's, which the value's, and which the script's."""

from __future__ import annotations

from trainer.node.device_service import QUICK_SECONDS, DeviceService

BROKEN, OTHER, THIRD = (0,), (1,), (2,)
LONG = QUICK_SECONDS + 1


def with_a_row(*devices: tuple[int, ...]) -> DeviceService:
    """Return the service of these devices, on the first of which three values failed at once."""
    service = DeviceService(devices)
    for value in "abc":
        service.ended(BROKEN, value, passed=False, seconds=1)
    return service


def test_a_failing_device_leaves_once_another_passes_a_value() -> None:
    service = with_a_row(BROKEN, OTHER)
    assert service.may_begin(OTHER, {OTHER: 1}) and not service.may_begin(BROKEN, {OTHER: 1})
    assert service.taken_out({OTHER: 1}) == {} and service.may_begin(BROKEN, {}), (
        "nobody else is at work to tell"
    )
    service.ended(OTHER, "x", passed=True, seconds=2)
    assert service.taken_out({}) == {BROKEN: ["a", "b", "c"]} and service.taken_out({}) == {}
    assert not service.may_begin(BROKEN, {}) and service.may_begin(OTHER, {})
    assert service.ended(OTHER, "a", passed=True, seconds=1) is None and not service.may_begin(BROKEN, {})


def test_one_that_goes_on_for_longer_elsewhere_is_word_enough() -> None:
    service = with_a_row(BROKEN, OTHER)
    assert service.taken_out({OTHER: LONG}) == {BROKEN: ["a", "b", "c"]}


def test_a_value_that_fails_elsewhere_brings_the_device_back() -> None:
    service = with_a_row(BROKEN, OTHER)
    service.ended(OTHER, "x", passed=True, seconds=1)
    service.taken_out({})
    assert service.ended(OTHER, "a", passed=False, seconds=1) == BROKEN
    assert service.ended(OTHER, "b", passed=False, seconds=1) is None
    assert service.ended(OTHER, "c", passed=False, seconds=1) is None
    assert service.may_begin(BROKEN, {OTHER: 1})
    assert service.may_begin(OTHER, {BROKEN: 1})
    assert service.taken_out({}) == {}


def test_slow_failures_and_a_success_between_break_the_row() -> None:
    service = with_a_row(BROKEN, OTHER)
    service.ended(BROKEN, "slow", passed=False, seconds=LONG)
    service.ended(OTHER, "x", passed=True, seconds=1)
    assert service.taken_out({}) == {}
    for value, passed in (("d", False), ("e", False), ("f", True), ("g", False)):
        service.ended(BROKEN, value, passed=passed, seconds=1)
    service.ended(OTHER, "y", passed=True, seconds=1)
    assert service.taken_out({}) == {}


def test_a_success_before_the_row_began_says_nothing_of_it() -> None:
    service = DeviceService([BROKEN, OTHER])
    service.ended(OTHER, "x", passed=True, seconds=1)
    for value in "abc":
        service.ended(BROKEN, value, passed=False, seconds=1)
    assert service.taken_out({OTHER: 1}) == {}


def test_the_last_device_in_service_stays() -> None:
    service = with_a_row(BROKEN, OTHER)
    service.ended(OTHER, "x", passed=True, seconds=1)
    assert service.taken_out({})
    for value in "uvw":
        service.ended(OTHER, value, passed=False, seconds=1)
    assert service.taken_out({}) == {} and service.may_begin(OTHER, {})
    alone = with_a_row(BROKEN)
    assert alone.taken_out({BROKEN: LONG}) == {} and alone.may_begin(BROKEN, {BROKEN: 1})


def test_a_script_that_fails_at_once_everywhere_is_hopeless() -> None:
    service = DeviceService([BROKEN, OTHER, THIRD])
    for number in range(10):
        assert not service.is_hopeless({})
        service.ended((number % 3,), str(number), passed=False, seconds=1)
    assert service.is_hopeless({BROKEN: 1}) and not service.is_hopeless({BROKEN: LONG})
    service.ended(THIRD, "x", passed=True, seconds=1)
    assert not service.is_hopeless({})
    many = DeviceService((number,) for number in range(8))
    for number in range(23):
        many.ended((number % 8,), str(number), passed=False, seconds=1)
    assert not many.is_hopeless({}), "three a device"


def test_a_device_is_tested_once_a_row_and_stays_out_if_it_fails() -> None:
    service = DeviceService([BROKEN, OTHER])
    service.ended(BROKEN, "a", passed=False, seconds=1)
    assert service.to_test() == []
    service.ended(BROKEN, "b", passed=False, seconds=1)
    assert service.to_test() == [BROKEN] and service.tested(BROKEN, passed=True) == []
    assert service.to_test() == [], "it passed"
    service.ended(BROKEN, "c", passed=True, seconds=1)
    for value in "de":
        service.ended(BROKEN, value, passed=False, seconds=1)
    assert service.to_test() == [BROKEN] and service.tested(BROKEN, passed=False) == ["d", "e"]
    assert not service.may_begin(BROKEN, {}) and service.taken_out({OTHER: LONG}) == {}
    assert service.ended(OTHER, "d", passed=False, seconds=1) is None, "its test counts, not the value"
    assert not service.none_left
    service.ended(OTHER, "e", passed=False, seconds=1)
    assert service.tested(OTHER, passed=False) == ["d", "e"] and service.none_left
