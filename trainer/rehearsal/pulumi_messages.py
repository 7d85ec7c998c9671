"""Create the resource types of infra/notify.py on the embedded AWS: queue, topic, subscription, alarm."""

from __future__ import annotations

from trainer.rehearsal.pulumi_resources import Made, Properties, Resources, makes, physical_name
from trainer.rehearsal.pulumi_shapes import tag_list


@makes("aws:sqs/queue:Queue")
def _queue(cloud: Resources, name: str, properties: Properties) -> Made:
    queue, tags = physical_name(properties, name), properties.pop("tags", {})
    attributes = {
        "MessageRetentionPeriod": str(int(properties.pop("messageRetentionSeconds"))),
        "SqsManagedSseEnabled": str(properties.pop("sqsManagedSseEnabled")).lower(),
    }
    cloud.client("sqs").create_queue(QueueName=queue, Attributes=attributes, tags=tags)
    return queue, {"arn": cloud.arn("sqs", queue), "name": queue}


@makes("aws:sns/topic:Topic")
def _topic(cloud: Resources, name: str, properties: Properties) -> Made:
    topic, attributes = physical_name(properties, name), {"Policy": properties.pop("policy")}
    tags = tag_list(properties.pop("tags", {}))
    made = cloud.client("sns").create_topic(Name=topic, Attributes=attributes, Tags=tags)
    return made["TopicArn"], {"arn": made["TopicArn"], "name": topic}


@makes("aws:sns/topicSubscription:TopicSubscription")
def _topic_subscription(cloud: Resources, name: str, properties: Properties) -> Made:
    topic = properties.pop("topic")
    made = cloud.send("sns", "Subscribe", {**properties.rest(), "topicArn": topic})
    return made["SubscriptionArn"], {"arn": made["SubscriptionArn"]}


@makes("aws:cloudwatch/metricAlarm:MetricAlarm")
def _metric_alarm(cloud: Resources, name: str, properties: Properties) -> Made:
    alarm = physical_name(properties, name)
    dimensions = [{"name": key, "value": value} for key, value in properties.pop("dimensions", {}).items()]
    given = properties.rest()
    cloud.send("cloudwatch", "PutMetricAlarm", {**given, "dimensions": dimensions, "alarmName": alarm})
    return alarm, {"arn": cloud.arn("cloudwatch", f"alarm:{alarm}"), "name": alarm}


@makes("aws:budgets/budget:Budget")
def _budget(cloud: Resources, name: str, properties: Properties) -> Made:
    budget, tags = physical_name(properties, name), tag_list(properties.pop("tags", {}))
    limit = {"amount": properties.pop("limitAmount"), "unit": properties.pop("limitUnit")}
    notifications = [
        {
            "subscribers": [
                {"subscriptionType": "SNS", "address": arn}
                for arn in notification.pop("subscriberSnsTopicArns")
            ],
            "notification": notification,
        }
        for notification in map(dict, properties.pop("notifications"))
    ]
    given = {**properties.rest(), "budgetName": budget, "budgetLimit": limit}
    request = {"accountId": cloud.account, "budget": given, "notificationsWithSubscribers": notifications}
    cloud.send("budgets", "CreateBudget", request, ResourceTags=tags)
    return f"{cloud.account}:{budget}", {"name": budget}
