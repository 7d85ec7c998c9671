"""`make quick` stays quick: no whole run, no training and no stack slips into it. Names of tests are short."""

from __future__ import annotations

import pytest

from tests.selection import LINUX_FOLDERS, ROOT, SLOW_FIXTURES, SLOW_FOLDERS, needs_linux, slow_fixtures


def test_whatever_begins_a_run_or_a_stack_is_marked_slow(request: pytest.FixtureRequest) -> None:
    for item in (
        request.session.items
    ):  # of this session: all of them in `make test`, and in `make quick` those that it takes
        if slow_fixtures(item) or item.path.parent.name in SLOW_FOLDERS:
            assert item.get_closest_marker("slow"), item.nodeid


def test_quick_leaves_out_what_is_slow() -> None:
    assert '-m "not slow and not gpu"' in (ROOT / "scripts/quick").read_text()


@pytest.mark.parametrize("path", SLOW_FIXTURES)
def test_fixtures_that_begin_something_are_in_the_table(path: str) -> None:
    text = (ROOT / path).read_text()
    for name in SLOW_FIXTURES[path]:
        assert f"def {name}(" in text, "its tests would slip into make quick"


def test_a_mac_leaves_out_the_embedded_aws_and_nodes(request: pytest.FixtureRequest) -> None:
    assert all((ROOT / folder).is_dir() for folder in LINUX_FOLDERS)
    assert not needs_linux(request.node)
    request.node.fixturenames.append("aws_server")
    assert needs_linux(request.node)


def test_a_name_of_a_test_has_at_most_60_characters(request: pytest.FixtureRequest) -> None:
    names = {getattr(item, "originalname", item.name) for item in request.session.items}
    assert [name for name in sorted(names) if len(name) > 60] == []
