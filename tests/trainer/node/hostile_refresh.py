"""A hostile refresh script: it tries all that its machine's credentials may reach, and prints what it got."""

import json
import os

import boto3
from botocore.exceptions import ClientError

REFUSALS = ("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation")
bucket, own = os.environ["BUCKET_TO_ROB"], os.environ["OWN_ID"]
clients = {
    name: boto3.client(name, config=boto3.session.Config(retries={"total_max_attempts": 1}))
    for name in ("s3", "ssm", "ec2", "iam", "lambda", "sts", "scheduler", "sns")
}
s3, ssm = clients["s3"], clients["ssm"]


def secret(name):
    return ssm.get_parameter(Name=f"/mayfly/mayfly/{name}", WithDecryption=True)


version = json.loads(os.environ["VERSIONS"])
reads = {key: lambda key=key: s3.get_object(Bucket=bucket, Key=key) for key in version}
reads |= {
    f"{key} by version": lambda key=key: s3.get_object(Bucket=bucket, Key=key, VersionId=version[key])
    for key in version
}
shared = (
    "raw/main/",
    "raw-index/",
    "code/",
    "retrains/",
    "scheduled/",
    "runs/r1/",
    "models/production/",
    "models/retrains/",
)
others = (f"models/experiments/{own}/", f"checkpoints/{own}/", "checkpoints/AROAOTHER:i-1/", "resumed/r/2/")
others = (*others, "runs/r1/attempts/1/", "attempts/AROAOTHER:i-1/r/1/0/")
writes = [f"{prefix}x" for prefix in (*shared, *others, f"attempts/{own}/r2/1/0/", f"live/{own}/r2/1/")]
tries = {
    **{f"read {name}": call for name, call in reads.items()},
    **{f"write {key}": lambda key=key: s3.put_object(Bucket=bucket, Key=key, Body=b"x") for key in writes},
    "replace a file of the set": lambda: s3.put_object(
        Bucket=bucket, Key="raw/main/BTC-USD_1m.parquet", Body=b"x"
    ),
    "delete a file of the set": lambda: s3.delete_object(Bucket=bucket, Key="raw/main/BTC-USD_1m.parquet"),
    "list the bucket": lambda: s3.list_objects_v2(Bucket=bucket),
    "list its own keys": lambda: s3.list_objects_v2(Bucket=bucket, Prefix=f"attempts/{own}/"),
    "list buckets": lambda: s3.list_buckets(),
    "read a secret that it was given": lambda: secret("dev/secrets/API_KEY"),
    "read another retrain's secret": lambda: secret("dev/secrets/OTHER"),
    "read the webhook": lambda: secret("dev/webhook"),
    "read the stack's outputs": lambda: ssm.get_parameter(Name="/mayfly/mayfly/dev"),
    "read another stack's secret": lambda: secret("prod/secrets/API_KEY"),
    "list secrets": lambda: ssm.get_parameters_by_path(
        Path="/mayfly/mayfly/dev/secrets", WithDecryption=True
    ),
    "write a secret": lambda: ssm.put_parameter(
        Name="/mayfly/mayfly/dev/secrets/NEW", Value="x", Type="SecureString"
    ),
    "see instances": lambda: clients["ec2"].describe_instances(),
    "end itself through EC2": lambda: clients["ec2"].terminate_instances(InstanceIds=[own.partition(":")[2]]),
    "start instances": lambda: clients["ec2"].run_instances(
        LaunchTemplate={"LaunchTemplateId": os.environ["TEMPLATE"]},
        ImageId=os.environ["IMAGE"],
        InstanceType="t3.large",
        MinCount=1,
        MaxCount=1,
    ),
    "see its role": lambda: clients["iam"].list_roles(),
    "take another role": lambda: clients["sts"].assume_role(
        RoleArn="arn:aws:iam::123456789012:role/mayfly-dev-us-east-1-control", RoleSessionName="hostile"
    ),
    "call control": lambda: clients["lambda"].invoke(FunctionName=os.environ["CONTROL"]),
    "see schedules": lambda: clients["scheduler"].list_schedules(),
    "tell people": lambda: clients["sns"].publish(TopicArn=os.environ["TOPIC"], Message="x"),
    "say who it is": lambda: clients["sts"].get_caller_identity(),
}
for name, call in tries.items():
    try:
        call()
        print("got:", name)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        print("refused:" if code in REFUSALS else f"failed {code}:", name)
print("env:", sorted(name for name in os.environ if "SECRET" in name or "KEY" in name))
