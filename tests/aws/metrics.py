"""CloudWatch's metrics and the states of alarms on them. Pure: every function takes the time.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-evaluation.html (2026-11-22): the last
periods are evaluated, and `TreatMissingData` decides about periods without data. Periods end at the moment of
the evaluation.
"""

from __future__ import annotations

import operator
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

MOST_POINTS = 2_000  # a metric: more than an alarm looks back on
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "Sum": sum,
    "Maximum": max,
    "Minimum": min,
    "Average": statistics.fmean,
    "SampleCount": len,
}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanThreshold": operator.gt,
    "GreaterThanOrEqualToThreshold": operator.ge,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}


@dataclass(frozen=True, kw_only=True)
class MetricId:
    """One metric: namespace, name and dimensions."""

    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, namespace: str, described: Mapping[str, Any]) -> MetricId:
        """Read a metric as PutMetricData and PutMetricAlarm name it."""
        dimensions = frozenset((one["Name"], one["Value"]) for one in described.get("Dimensions", []))
        return cls(namespace=namespace, name=described["MetricName"], dimensions=dimensions)


@dataclass(kw_only=True)
class Metrics:
    """The latest data points of every metric."""

    _points: dict[MetricId, deque[tuple[datetime, float]]] = field(default_factory=dict)

    def put(self, metric: MetricId, at: datetime, value: float) -> None:
        """Add a data point."""
        self._points.setdefault(metric, deque(maxlen=MOST_POINTS)).append((at, value))

    def shift(self, by: timedelta) -> None:
        """Move every data point to a later instant."""
        self._points = {
            metric: deque(((at + by, value) for at, value in points), maxlen=MOST_POINTS)
            for metric, points in self._points.items()
        }

    def values(self, metric: MetricId, start: datetime, end: datetime) -> list[float]:
        """Return the values after `start` and until `end`."""
        return [value for at, value in self._points.get(metric, ()) if start < at <= end]


@dataclass(kw_only=True)
class Alarm:
    """An alarm of PutMetricAlarm, with its creation time and its state."""

    params: Mapping[str, Any]
    since: datetime
    state: str = "INSUFFICIENT_DATA"

    @property
    def metric(self) -> MetricId:
        """Return its metric."""
        return MetricId.of(self.params["Namespace"], self.params)

    def evaluate(self, metrics: Metrics, now: datetime) -> tuple[str, str]:
        """Return the state at this instant and its reason; the present state until the alarm is older than
        its window, or than one period where it takes missing data for a breach: CloudWatch has no reason to
        wait for any.
        """
        params = self.params
        period, periods = timedelta(seconds=int(params["Period"])), int(params["EvaluationPeriods"])
        if now - self.since < period * (1 if params.get("TreatMissingData") == "breaching" else periods):
            return self.state, "the alarm is too young"
        breaching = [
            self._breaches(metrics, now - period * (number + 1), now - period * number)
            for number in range(periods)
        ]
        needed = int(params.get("DatapointsToAlarm", periods))
        treated = {"breaching": True, "notBreaching": False}.get(params.get("TreatMissingData", "missing"))
        if all(one is None for one in breaching) and treated is None:
            state = self.state if params.get("TreatMissingData") == "ignore" else "INSUFFICIENT_DATA"
        else:
            counted = sum(treated is True if one is None else one for one in breaching)
            state = "ALARM" if counted >= needed else "OK"
        missing = sum(one is None for one in breaching)
        rule = f"{params['ComparisonOperator']} {params['Threshold']:g}"
        over = sum(one is True for one in breaching)
        return state, f"Threshold Crossed: of {periods} datapoints {over} were {rule}, and {missing} missing."

    def _breaches(self, metrics: Metrics, start: datetime, end: datetime) -> bool | None:
        values = metrics.values(self.metric, start, end)
        if not values:
            return None
        compare = COMPARISONS[self.params["ComparisonOperator"]]
        return compare(STATISTICS[self.params["Statistic"]](values), float(self.params["Threshold"]))
