"""Rules of CloudWatch: metrics are kept, and alarms on them evaluated once a minute of the account's clock.

moto stores the readable state of alarms. Besides the data of PutMetricData there are metrics of the embedded
AWS itself: AWS/Lambda Invocations and Errors, and AWS/SQS ApproximateNumberOfMessagesVisible of the queues
that an alarm watches. An alarm has one metric and one statistic; its actions are topics.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.aws.metrics import COMPARISONS, STATISTICS, Alarm, MetricId
from tests.aws.queues import depth
from tests.aws.topics import publish_as_service
from trainer.base.instants import iso
from trainer.rehearsal.account import REGION, Rules
from trainer.rehearsal.wire import Answer, Call, collect
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

log = logging.getLogger(__name__)
SERVICE = "cloudwatch.amazonaws.com"
EVERY = timedelta(minutes=1)
_ACTIONS = {"ALARM": "AlarmActions", "OK": "OKActions", "INSUFFICIENT_DATA": "InsufficientDataActions"}


def put_metric_data(cloud: CheckedAccount, call: Call) -> Answer:
    """Keep data points; one without a time gets the account's."""
    with cloud.lock:
        for datum in call.params["MetricData"]:
            if not isinstance(datum.get("Value"), int | float):
                raise AwsError("UnsupportedOperation", "The embedded AWS takes data points with one Value.")
            at = datum.get("Timestamp") or cloud.clock.now()
            cloud.metrics.put(MetricId.of(call.params["Namespace"], datum), at, float(datum["Value"]))
    return collect(call.environ, call.account)


def put_metric_alarm(cloud: CheckedAccount, call: Call) -> Answer:
    """Create an alarm, or change one, which keeps its state; a new one has insufficient data."""
    params = call.params
    known = params.get("Statistic") in STATISTICS and params.get("ComparisonOperator") in COMPARISONS
    if not known or "Metrics" in params:
        what = "The embedded AWS evaluates alarms on one statistic of one metric."
        raise AwsError("UnsupportedOperation", what)
    answer = collect(call.environ, call.account)
    if answer[0] < 300:
        with cloud.lock:
            before = cloud.alarms.get(params["AlarmName"])
            alarm = Alarm(params=params, since=cloud.clock.now())
            alarm.state = before.state if before else alarm.state
            cloud.alarms[params["AlarmName"]] = alarm
        _tell_moto(cloud, alarm, "Unchecked: Initial alarm creation")
    return answer


def delete_alarms(cloud: CheckedAccount, call: Call) -> Answer:
    """Delete alarms."""
    for name in call.params["AlarmNames"]:
        cloud.alarms.pop(name, None)
    return collect(call.environ, call.account)


def set_alarm_state(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Set an alarm's state until its next evaluation, and take its actions, as AWS does."""
    alarm = cloud.alarms.get(call.params["AlarmName"])
    if alarm is None:
        raise AwsError("ResourceNotFound", f"There is no alarm {call.params['AlarmName']}.", 404)
    _enter(cloud, alarm, call.params["StateValue"], call.params["StateReason"])
    return {}


def evaluate_due(cloud: CheckedAccount) -> None:
    """Evaluate every alarm, at most once a minute."""
    with cloud.lock:
        now = cloud.clock.now()
        if not cloud.alarms or (cloud.alarms_at and now - cloud.alarms_at < EVERY):
            return
        cloud.alarms_at = now
        alarms = list(cloud.alarms.values())
    for alarm in alarms:
        if alarm.metric.namespace == "AWS/SQS":
            _look_at_queue(cloud, alarm.metric)
        state, reason = alarm.evaluate(cloud.metrics, now)
        if state != alarm.state:
            _enter(cloud, alarm, state, reason)


def _look_at_queue(cloud: CheckedAccount, metric: MetricId) -> None:
    try:
        messages = depth(cloud, dict(metric.dimensions)["QueueName"])
    except AwsError:  # a missing queue has no metric
        return
    cloud.metrics.put(metric, cloud.clock.now(), messages)


def _enter(cloud: CheckedAccount, alarm: Alarm, state: str, reason: str) -> None:
    before, alarm.state = alarm.state, state
    _tell_moto(cloud, alarm, reason)
    params, name = alarm.params, alarm.params["AlarmName"]
    arn = f"arn:aws:cloudwatch:{REGION}:{cloud.account}:alarm:{name}"
    message = {
        "AlarmName": name,
        "AlarmDescription": params.get("AlarmDescription"),
        "AWSAccountId": cloud.account,
        "NewStateValue": state,
        "OldStateValue": before,
        "NewStateReason": reason,
        "StateChangeTime": iso(cloud.clock.now().replace(microsecond=0)),
        "Region": REGION,
        "AlarmArn": arn,
    }
    for topic_arn in params.get(_ACTIONS[state], []) if params.get("ActionsEnabled", True) else []:
        subject = f'{state}: "{name}" in US East (N. Virginia)'
        try:
            publish_as_service(cloud, SERVICE, arn, topic_arn, subject=subject, message=json.dumps(message))
        except AwsError as error:  # as on AWS: the alarm's history shows it
            log.warning("the action of alarm %s failed: %s", name, error)


def _tell_moto(cloud: CheckedAccount, alarm: Alarm, reason: str) -> None:
    told = {"AlarmName": alarm.params["AlarmName"], "StateValue": alarm.state, "StateReason": reason}
    cloud.moto("cloudwatch", "SetAlarmState", {**told, "StateReasonData": "{}"})


RULES: Rules = {
    ("cloudwatch", "PutMetricData"): put_metric_data,
    ("cloudwatch", "PutMetricAlarm"): put_metric_alarm,
    ("cloudwatch", "DeleteAlarms"): delete_alarms,
    ("cloudwatch", "SetAlarmState"): set_alarm_state,
}
