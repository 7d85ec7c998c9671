"""The sweeper: a function that ends whatever is past its deadline. This file packs it; trainer/control/sweep.py is its code.

The zip holds the sweeper's own few modules and the boto3 of the lock, from its wheels (wheels.py), and nothing else: the Lambda
runtime's boto3 is older than ours, and what isn't in the zip can't break the one thing that always has to work.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra import wheels

HANDLER = "trainer.control.sweep.handler"
RUNTIME = "python3.13"
OWN_FILES = (
    "trainer/__init__.py",
    "trainer/control/__init__.py",
    "trainer/control/sweep.py",
    "trainer/runs/__init__.py",
    "trainer/runs/keys.py",
    "trainer/runs/lease.py",
    "trainer/reading.py",
)
# botocore describes 400 services in 27 MB; these are the ones the sweeper speaks to (sts is where credentials may come from).
SERVICES = ("ec2", "s3", "scheduler", "sts")
_BOTOCORE_DATA = ("_retry.json", "endpoints.json", "partitions.json", "sdk-default-configuration.json")
_MODEL = re.compile(r"botocore/data/([^/]+)/([^/]+)/")


@dataclass(frozen=True, kw_only=True)
class SweeperArgs:
    function_name: str
    log_group: str
    log_days: int
    role_arn: pulumi.Input[str]
    bucket: pulumi.Input[str]
    project: str
    stack: str
    schedule_group: str
    tags: dict[str, str]


class Sweeper(pulumi.ComponentResource):
    """The sweeper's function and its log."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: SweeperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:control:Sweeper", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        # Made here, since a log group that Lambda makes by itself keeps its lines for ever.
        log = aws.cloudwatch.LogGroup(
            "sweeper", name=args.log_group, retention_in_days=args.log_days, tags=args.tags, opts=child
        )
        function = aws.lambda_.Function(
            "sweeper",
            name=args.function_name,
            description="Ends every instance of this stack that is past its deadline or silent past its lease.",
            runtime=RUNTIME,
            handler=HANDLER,
            role=args.role_arn,
            code=sweeper_archive(),
            timeout=90,
            memory_size=512,  # CPU comes with memory: boto3 starts in a second instead of three
            environment=aws.lambda_.FunctionEnvironmentArgs(
                variables={
                    "PROJECT": args.project,
                    "STACK": args.stack,
                    "BUCKET": args.bucket,
                    "SCHEDULE_GROUP": args.schedule_group,
                }
            ),
            logging_config=aws.lambda_.FunctionLoggingConfigArgs(log_format="Text", log_group=log.name),
            tags=args.tags,
            opts=child,
        )
        # Sweeping twice does no harm, so Lambda may try a failed sweep again; an old one is worth nothing, the next has come.
        aws.lambda_.FunctionEventInvokeConfig(
            "sweeper",
            function_name=function.name,
            maximum_retry_attempts=2,
            maximum_event_age_in_seconds=600,
            opts=child,
        )
        self.arn = function.arn
        self.register_outputs({"arn": self.arn})


def sweeper_archive() -> pulumi.AssetArchive:
    """Return the sweeper's zip. Raises pulumi.RunError where a file of ours or a wheel of the lock is missing."""
    return pulumi.AssetArchive({name: pulumi.FileAsset(str(path)) for name, path in sorted(sweeper_files().items())})


def sweeper_files() -> dict[str, Path]:
    """Return the zip's content: path in the zip -> file here."""
    trainer = _package_folder("trainer")
    files = {name: trainer.parent / name for name in OWN_FILES}
    if missing := sorted(name for name, path in files.items() if not path.is_file()):
        raise pulumi.RunError(f"The sweeper's zip needs files that are not there: {', '.join(missing)}.")
    lock = wheels.LOCK.read_text(encoding="utf-8")
    for library in wheels.LIBRARIES:
        files |= wheels.files_of(library, lock, _is_needed)
    return _newest_models(files)


def _is_needed(name: str) -> bool:
    """Return whether a file of a wheel goes into the zip: code, botocore's certificates, and the services that are called."""
    if name.startswith("botocore/data/"):
        folder, *below = name.removeprefix("botocore/data/").split("/")
        return folder in SERVICES and not below[-1].startswith("examples-") if below else folder in _BOTOCORE_DATA
    return (
        name.endswith(".py") and not name.partition("/")[0].endswith((".dist-info", ".data")) or name == "botocore/cacert.pem"
    )


def _newest_models(files: dict[str, Path]) -> dict[str, Path]:
    """Leave out what describes an older version of a service."""
    versions: dict[str, str] = {}
    for name in files:
        if (match := _MODEL.match(name)) is not None:
            versions[match[1]] = max(match[2], versions.get(match[1], ""))
    return {
        name: path for name, path in files.items() if (match := _MODEL.match(name)) is None or match[2] == versions[match[1]]
    }


def _package_folder(package: str) -> Path:
    """Find an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise pulumi.RunError(f"The package `{package}` is not installed. Run `make setup`.")
    return Path(next(iter(spec.submodule_search_locations)))
