"""An account's prices of reserved instances and savings plans, as botocore's own models have the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from trainer.aws.access import Access
from trainer.launch.commitment_prices import YEAR_SECONDS, account_commitments, reserved_in

TODAY = date(2026, 11, 27)
ACCESS = Access(region="eu-central-1")
PRODUCTS = {"ServiceCode": "AmazonEC2", "Filters": ANY}


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Stubber]]:
    """Both services; a test says what they answer."""
    keys = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    clients = {name: boto3.client(name, **keys) for name in ("pricing", "savingsplans")}
    monkeypatch.setattr(Access, "client", lambda self, service, **_: clients[service])
    stubbed = {name: Stubber(client) for name, client in clients.items()}
    for stub in stubbed.values():
        stub.activate()
    yield stubbed
    for stub in stubbed.values():
        stub.assert_no_pending_responses()


def term(option: str, *, hourly: str, once: str = "0", length: str = "1yr", of: str = "standard") -> Any:
    attributes = {"LeaseContractLength": length, "OfferingClass": of, "PurchaseOption": option}
    prices = {"a": {"unit": "Hrs", "pricePerUnit": {"USD": hourly}}}
    prices["b"] = {"unit": "Quantity", "pricePerUnit": {"USD": once}}
    return {"termAttributes": attributes, "priceDimensions": prices}


def product(*terms: Any) -> str:
    return json.dumps({"product": {}, "terms": {"Reserved": {str(n): one for n, one in enumerate(terms)}}})


def rate(option: str, usd: str, *, years: int = 1, **changed: Any) -> dict[str, Any]:
    offering = {"paymentOption": option, "durationSeconds": years * YEAR_SECONDS, "currency": "USD"}
    return {"savingsPlanOffering": {**offering, "planType": "Compute"}, "rate": usd, "unit": "Hrs", **changed}


def asked_for(instance_type: str, **more: Any) -> dict[str, Any]:
    wanted = {
        "region": "eu-central-1",
        "instanceType": instance_type,
        "productDescription": "Linux/UNIX",
        "tenancy": "shared",
    }
    return {
        "savingsPlanTypes": ["Compute"],
        "products": ["EC2"],
        "serviceCodes": ["AmazonEC2"],
        "filters": [{"name": name, "values": [value]} for name, value in wanted.items()],
        **more,
    }


def test_upfront_dollars_are_spread_over_the_term() -> None:
    (one,) = reserved_in(product(term("All Upfront", hourly="0", once="8760", length="1yr")))
    assert (one.usd_per_hour, one.years, one.upfront) == (1.0, 1, "all")
    assert not reserved_in(product(term("No Upfront", hourly="0.7", of="convertible")))
    for text in ("", "[]", "{}", product({}), product(term("No Upfront", hourly="nan"))):
        assert reserved_in(text) == []


def test_a_plan_has_what_costs_nothing_upfront_and_the_cheapest(stubs: dict[str, Stubber]) -> None:
    terms = [term("No Upfront", hourly="0.7"), term("Partial Upfront", hourly="0.3", once="3300")]
    terms.append(term("All Upfront", hourly="0", once="5700"))
    stubs["pricing"].add_response("get_products", {"PriceList": [product(*terms)]}, PRODUCTS)
    first = {"searchResults": [rate("No Upfront", "0.75"), rate("All Upfront", "0.72")], "nextToken": "more"}
    second = {"searchResults": [rate("No Upfront", "0.55", years=3), rate("No Upfront", "x", years=3)]}
    name = "describe_savings_plans_offering_rates"
    stubs["savingsplans"].add_response(name, first, asked_for("g5.xlarge"))
    stubs["savingsplans"].add_response(name, second, asked_for("g5.xlarge", nextToken="more"))
    found, missing = account_commitments(ACCESS, "g5.xlarge", region="eu-central-1", today=TODAY)
    assert [(one.title, round(one.usd_per_hour, 3)) for one in found] == [
        ("reserved, 1 year, no upfront", 0.7),
        ("reserved, 1 year, all upfront", 0.651),
        ("savings plan, 1 year, no upfront", 0.75),
        ("savings plan, 1 year, all upfront", 0.72),
        ("savings plan, 3 years, no upfront", 0.55),
    ]
    assert not missing and {(one.as_of, one.instance_type) for one in found} == {("2026-11-27", "g5.xlarge")}


def test_a_refused_list_is_named_with_its_action(stubs: dict[str, Stubber]) -> None:
    one = product(term("No Upfront", hourly="0.7"))
    stubs["pricing"].add_response("get_products", {"PriceList": [one]}, PRODUCTS)
    stubs["savingsplans"].add_client_error("describe_savings_plans_offering_rates", "AccessDeniedException")
    found, missing = account_commitments(ACCESS, "g5.xlarge", region="eu-central-1", today=TODAY)
    assert [one.title for one in found] == ["reserved, 1 year, no upfront"], "the other list, once"
    assert missing == (
        "AWS does not tell the prices of savings plans (AccessDeniedException); it takes"
        " savingsplans:DescribeSavingsPlansOfferingRates.",
    )


@pytest.mark.parametrize(
    "row",
    [
        {},
        rate("No Upfront", "0"),
        rate("No Upfront", "inf"),
        rate("No Upfront", "0.5", years=2),
        rate("No Upfront", "0.5", unit="Lambda-GB-Second"),
        rate("No Upfront", "0.5", savingsPlanOffering={"paymentOption": "No Upfront", "currency": "CNY"}),
    ],
)
def test_a_rate_of_another_shape_is_left_out(stubs: dict[str, Stubber], row: dict[str, Any]) -> None:
    stubs["pricing"].add_response("get_products", {"PriceList": []}, PRODUCTS)
    answer = {"searchResults": [row]}
    stubs["savingsplans"].add_response(
        "describe_savings_plans_offering_rates", answer, asked_for("g5.xlarge")
    )
    found = account_commitments(ACCESS, "g5.xlarge", region="eu-central-1", today=TODAY)
    assert found == ((), ())
