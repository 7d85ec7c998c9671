"""The steps of a boot: strict where a node reports them, a mean where the bucket remembers them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.records import at
from trainer.base.strict_json import Unsound
from trainer.node import report
from trainer.runs.boot import STEPS, boots_from, to_bytes, with_boot
from trainer.runs.reports import read_result

BOOT = {"machine": 40.0, "code": 2.0, "environment": 31.0, "agent": 3.0, "import": 14.0, "smoke": 9.0}
BOOT |= {"baked": False}


def reported(boot: Any) -> dict[str, Any]:
    return dict(
        read_result(json.dumps({"state": "done", "boot": boot}).encode(), models_prefix="m/", names=()).boot
    )


def test_a_node_reports_what_lies_between_its_stages() -> None:
    assert report.boot(at(0), (at(2), at(33)), at(36), baked=True) == {
        "code": 2.0,
        "environment": 31.0,
        "agent": 3.0,
        "baked": True,
    }
    assert report.boot(at(0), (), at(36), baked=False) == {}
    # its clock was set meanwhile
    assert report.boot(at(9), (at(2), at(33)), at(30), baked=False)["code"] == 0.0


def test_a_result_may_lack_a_boot_or_an_import() -> None:
    assert reported({}) == {}
    assert reported({"code": 1, "environment": 2.5, "agent": 0}) == {
        "code": 1.0,
        "environment": 2.5,
        "agent": 0.0,
        "import": 0.0,
        "smoke": 0.0,
        "baked": False,
    }


@pytest.mark.parametrize(
    "boot",
    [{"code": -1}, {"code": 1e9}, {"environment": "31"}, {"import": True}, {"baked": 1}, [1], {"code": [1]}],
)
def test_a_senseless_boot_makes_the_result_unsound(boot: Any) -> None:
    with pytest.raises(Unsound):
        reported(boot)


def test_what_is_remembered_is_a_mean_by_type_and_kind_of_image() -> None:
    known = with_boot({}, "g6.xlarge", BOOT)
    known = with_boot(known, "g6.xlarge", {**BOOT, "environment": 41.0})
    known = with_boot(known, "g6.xlarge", {**BOOT, "environment": 1.0, "baked": True})
    known = boots_from(to_bytes(with_boot(known, "g5.xlarge", BOOT)))
    assert known["g6.xlarge"]["plain"] == {
        "runs": 2.0,
        **{step: BOOT[step] for step in STEPS},
        "environment": 36.0,
    }
    assert known["g6.xlarge"]["baked"]["environment"] == 1.0 and known["g5.xlarge"]["plain"]["runs"] == 1.0
    for _ in range(200):  # a type that became faster is known to be
        known = with_boot(known, "g6.xlarge", {**BOOT, "environment": 10.0})
    assert known["g6.xlarge"]["plain"]["environment"] == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"types": {"g6.xlarge": {"plain": {"runs": 0}}}}', b'{"types": [1]}', b"x" * (1 << 21)],
)
def test_a_damaged_memory_is_none(body: bytes) -> None:
    assert boots_from(body) == {}
