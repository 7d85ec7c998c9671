"""Posts of the notifier, and that no error of its own gives the webhook's address away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.webhook import webhook
from trainer.control.functions.notify import MOST_CHARACTERS, post, text_of

SECRET = "T000-B000-XXXX"


@pytest.fixture
def slack() -> Iterator[tuple[str, list[Any]]]:
    """A webhook on loopback: /ok takes what is posted, /moved sends elsewhere, anything else is not found."""
    answers = {f"/ok/{SECRET}": (200, ""), f"/moved/{SECRET}": (302, f"/ok/{SECRET}")}
    posted: list[Any] = []
    with webhook(lambda path: answers.get(path, (404, "")), posted) as url:
        yield url, posted


def test_an_alarm_is_its_name_its_meaning_and_its_reason() -> None:
    alarm = {
        "AlarmName": "mayfly-dev-sweeper-silent",
        "AlarmDescription": "It has not run.",
        "NewStateValue": "ALARM",
    }
    message = json.dumps({**alarm, "NewStateReason": "Threshold Crossed"})
    assert text_of({"Subject": "ignored", "Message": message}).splitlines() == [
        "ALARM: mayfly-dev-sweeper-silent",
        "It has not run.",
        "Threshold Crossed",
    ]


@pytest.mark.parametrize(
    ("notification", "expected"),
    [
        ({"Subject": "a run failed", "Message": "three lines"}, "a run failed\nthree lines"),
        ({"Subject": None, "Message": "[1]"}, "[1]"),
        ({"Message": '{"other": "JSON"}'}, '{"other": "JSON"}'),
        ({"Message": "x" * 10_000}, "x" * MOST_CHARACTERS),
    ],
)
def test_anything_else_is_posted_as_it_was_sent(notification: dict[str, Any], expected: str) -> None:
    assert text_of(notification) == expected


def test_a_message_is_posted_in_slacks_shape(slack: tuple[str, list[Any]]) -> None:
    url, posted = slack
    post(f"{url}/ok/{SECRET}", "hello")
    assert posted == [{"text": "hello"}]


def test_words_of_a_node_call_nobody_and_link_nowhere(slack: tuple[str, list[Any]]) -> None:
    """A message quotes last lines and errors of nodes; Slack obeys what stands in < and >."""
    url, posted = slack
    post(f"{url}/ok/{SECRET}", "| <!channel> & <https://elsewhere.example|your receipt>")
    assert posted == [{"text": "| &lt;!channel&gt; &amp; &lt;https://elsewhere.example|your receipt&gt;"}]


@pytest.mark.parametrize(
    ("address", "failure"),
    [
        ("{url}/gone/{secret}", "the webhook answered 404"),
        ("{url}/moved/{secret}", "the webhook answered 302"),
        ("http://127.0.0.1:1/{secret}", "can't be reached (URLError)"),
        ("https://{secret} with blanks/", "can't be reached (InvalidURL)"),
        ("http://elsewhere.example/{secret}", "does not begin with https://"),
        ("file:///{secret}", "does not begin with https://"),
    ],
)
def test_a_failure_is_an_error_without_the_address(
    slack: tuple[str, list[Any]], address: str, failure: str
) -> None:
    url, posted = slack
    with pytest.raises(RuntimeError) as failed:
        post(address.format(url=url, secret=SECRET), "hello")
    assert failure in str(failed.value) and SECRET not in str(failed.value) and posted == []
    assert failed.value.__cause__ is None and failed.value.__context__ is None
