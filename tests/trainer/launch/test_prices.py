"""List prices of a region: the table's, the Price List's, or a high assumption that is named."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import date
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from trainer.aws.access import Access
from trainer.launch.prices import (
    UNKNOWN_REGION_FACTOR,
    PricedTypes,
    disk_price,
    list_prices,
    prices_in,
    table_prices,
    with_disk,
)
from trainer.machines.instances import instance_type
from trainer.machines.storage import RootDisk, storage_cost

MACHINES = [instance_type("g6.xlarge"), instance_type("p5.4xlarge")]
TODAY = date(2026, 11, 22)


def product(usd: str, unit: str = "Hrs") -> str:
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
    return json.dumps(
        {
            "product": {},
            "terms": {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}},
        }
    )


@pytest.fixture
def price_list(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    """The Price List as botocore's own model has it; a test says what it answers."""
    client = boto3.client(
        "pricing", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    regions = []

    def made(self: Access, service: str, **_: Any) -> Any:
        regions.append((self.region, service))
        return client

    monkeypatch.setattr(Access, "client", made)
    monkeypatch.setattr("trainer.launch.prices._PARALLEL", 1)  # the stub answers in order
    with Stubber(client) as stub:
        yield stub
    assert set(regions) <= {("us-east-1", "pricing")}


def expect(stub: Stubber, *answers: list[str]) -> None:
    for products in answers:
        stub.add_response(
            "get_products", {"PriceList": products}, {"ServiceCode": "AmazonEC2", "Filters": ANY}
        )


def test_a_type_missing_in_the_region_keeps_the_tables_price(price_list: Stubber) -> None:
    expect(price_list, [product("0.8512")], [])
    found = list_prices(Access(region="us-east-1"), MACHINES, region="us-east-1", today=TODAY)
    assert [machine.price_usd_per_hour for machine in found.machines] == [
        0.8512,
        MACHINES[1].price_usd_per_hour,
    ]
    assert [machine.price_date for machine in found.machines] == ["2026-11-22", MACHINES[1].price_date]
    assert found.basis == "list prices of us-east-1, 2026-11-22"


def test_the_tables_prices_count_where_aws_does_not_answer(price_list: Stubber) -> None:
    price_list.add_client_error("get_products", "AccessDeniedException", "no")
    found = list_prices(Access(region="us-east-1"), MACHINES, region="us-east-1", today=TODAY)
    assert found == table_prices(MACHINES) and found.basis == "list prices of us-east-1, 2026-07-20"


def test_a_slow_price_list_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("trainer.launch.prices.ASK_SECONDS", 0.01)
    monkeypatch.setattr("trainer.launch.prices._price", lambda *_, **__: released.wait(60))
    monkeypatch.setattr(Access, "client", lambda *_, **__: None)
    found = list_prices(Access(region="eu-central-1"), MACHINES, region="eu-central-1", today=TODAY)
    released.set()
    assert "unknown (no answer within 0 s)" in found.basis


def test_another_regions_prices_are_asked(price_list: Stubber) -> None:
    expect(price_list, [product("1.0063")], [])
    found = list_prices(Access(region="eu-central-1"), MACHINES, region="eu-central-1", today=TODAY)
    assert [machine.price_usd_per_hour for machine in found.machines] == [1.0063, None]
    assert found.basis == "list prices of eu-central-1, 2026-11-22"
    assert [machine.sagemaker_usd_per_hour for machine in found.machines] == [None, None]  # quoted elsewhere


def test_a_root_disk_is_in_every_price() -> None:
    disk = RootDisk(gib=100, iops=4000, throughput=500)
    # 100 GiB at $0.08, 1,000 IOPS at $0.005 and 375 MB/s at $0.04 a month
    assert disk.usd_per_hour == pytest.approx((8 + 5 + 15) / 730)
    assert RootDisk(gib=100).usd_per_hour == pytest.approx(8 / 730) and RootDisk().usd_per_hour == 0
    assert disk_price(disk, region="us-east-1") == disk.usd_per_hour
    assert disk_price(disk, region="sa-east-1") == UNKNOWN_REGION_FACTOR * disk.usd_per_hour
    unsold = replace(MACHINES[1], price_usd_per_hour=None)
    found = with_disk(PricedTypes(machines=(MACHINES[0], unsold), basis="list prices"), 0.0384)
    assert found.machines[0].price_usd_per_hour == pytest.approx(MACHINES[0].price_usd_per_hour + 0.0384)
    assert found.machines[1].price_usd_per_hour is None
    assert found.basis == "list prices, with $0.038 an hour for the root disk"


@pytest.mark.parametrize(
    ("mode", "throughput", "usd"),
    [
        ("s3", "", (0.0, 0.0, 0.023)),
        ("efs-cache", "bursting", (0.0, 0.0, 0.323)),  # kept in both
        ("efs-cache", "elastic", (0.03, 0.06, 0.323)),
    ],
)
def test_inputs_cost_by_the_storage_mode(mode: str, throughput: str, usd: tuple[float, ...]) -> None:
    cost = storage_cost(mode, throughput=throughput, input_bytes=2_000_000_000)
    assert (cost.read_usd, cost.add_usd, cost.month_usd) == pytest.approx([2 * one for one in usd])


def test_without_the_permission_prices_are_assumed_high(price_list: Stubber) -> None:
    price_list.add_client_error("get_products", "AccessDeniedException", "no")
    found = list_prices(Access(region="eu-central-1"), MACHINES[:1], region="eu-central-1", today=TODAY)
    assert found.machines[0].price_usd_per_hour == pytest.approx(
        UNKNOWN_REGION_FACTOR * MACHINES[0].price_usd_per_hour
    )
    assert (
        "2 x the list prices of us-east-1" in found.basis
        and "eu-central-1 are unknown (AccessDeniedException)" in found.basis
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        product("0"),
        product("-1"),
        product("inf"),
        product("nan"),
        product("one"),
        product("1", "Quantity"),
    ],
)
def test_a_product_of_another_shape_has_no_price(text: str) -> None:
    assert prices_in(text) == []
