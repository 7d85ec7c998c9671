"""What is stored of a user's wish in the record: once, and of a run that goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.records import NOON
from trainer.control.stop import leave_to_control, request_stop


def test_the_first_request_to_stop_stays(make_cloud):
    cloud, record = make_cloud()
    first = request_stop(cloud, record.run_id)
    assert first.stop_requested_at == cloud.clock
    cloud.clock += timedelta(minutes=1)
    assert request_stop(cloud, record.run_id) == first


@pytest.mark.parametrize("state", ["ending", "closed"])
def test_a_run_that_has_ended_is_neither_stopped_nor_left(make_cloud, state):
    cloud, record = make_cloud(state=state, outcome="done", ending_at=NOON)
    assert request_stop(cloud, record.run_id) == record
    assert leave_to_control(cloud, record.run_id) == record


def test_a_run_is_left_to_control_once(make_cloud):
    cloud, record = make_cloud()
    first = leave_to_control(cloud, record.run_id)
    cloud.clock += timedelta(minutes=1)
    assert leave_to_control(cloud, record.run_id) == first
