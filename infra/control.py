"""The sweeper: a function that ends whatever is past its deadline. This file packs it; trainer/control/sweep.py is its code.

The zip holds the sweeper's own few modules and the boto3 of the lock, and nothing else: the Lambda runtime's boto3 is older
than ours, and what isn't in the zip can't break the one thing that always has to work.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws

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
# Import name -> distribution. boto3 and what it needs.
LIBRARIES = {
    "boto3": "boto3",
    "botocore": "botocore",
    "s3transfer": "s3transfer",
    "jmespath": "jmespath",
    "dateutil": "python-dateutil",
    "six": "six",
    "urllib3": "urllib3",
}
# botocore describes 400 services in 27 MB; these are the ones the sweeper speaks to (sts is where credentials may come from).
SERVICES = ("ec2", "s3", "scheduler", "sts")
_BOTOCORE_DATA = ("_retry.json", "endpoints.json", "partitions.json", "sdk-default-configuration.json")


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
    """Return the sweeper's zip. Raises pulumi.RunError where a library is missing or isn't the locked version."""
    check_versions()
    return pulumi.AssetArchive({name: pulumi.FileAsset(str(path)) for name, path in sorted(sweeper_files().items())})


def sweeper_files() -> dict[str, Path]:
    """Return the zip's content: path in the zip -> file here."""
    trainer = _package_folder("trainer")
    files = {name: trainer.parent / name for name in OWN_FILES}
    for package in LIBRARIES:
        files |= _python_files(package)
    botocore = _package_folder("botocore")
    files["botocore/cacert.pem"] = botocore / "cacert.pem"
    for path in _botocore_data(botocore / "data"):
        files[path.relative_to(botocore.parent).as_posix()] = path
    if missing := sorted(name for name, path in files.items() if not path.is_file()):
        raise pulumi.RunError(f"The sweeper's zip needs files that are not there: {', '.join(missing)}.")
    return files


def check_versions() -> None:
    """Refuse libraries other than those in requirements.lock. An installed wheel has no lock beside it."""
    lock = Path(__file__).resolve().parent.parent / "requirements.lock"
    if not lock.is_file():
        return
    locked = locked_versions(lock.read_text(encoding="utf-8"))
    for distribution in LIBRARIES.values():
        installed = importlib.metadata.version(distribution)
        if installed != locked.get(distribution):
            raise pulumi.RunError(
                f"{distribution} {installed} is installed and requirements.lock has {locked.get(distribution)}; "
                "the sweeper is tested with the locked one. Run `make setup`."
            )


def locked_versions(lock: str) -> dict[str, str]:
    """Read the `name==version` lines of a lock file."""
    return {match[1].lower(): match[2] for match in re.finditer(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE)}


def _package_folder(package: str) -> Path:
    """Find an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise pulumi.RunError(f"The package `{package}` is not installed. Run `make setup`.")
    return Path(next(iter(spec.submodule_search_locations)))


def _python_files(package: str) -> dict[str, Path]:
    """Return a package's Python files, or the one file of a module."""
    spec = importlib.util.find_spec(package)
    if spec is not None and not spec.submodule_search_locations and spec.origin:
        return {Path(spec.origin).name: Path(spec.origin)}
    folder = _package_folder(package)
    return {path.relative_to(folder.parent).as_posix(): path for path in folder.rglob("*.py")}


def _botocore_data(data: Path) -> list[Path]:
    """Return the service models that the sweeper needs: of each service the newest version, without its examples."""
    files = [data / name for name in _BOTOCORE_DATA]
    for service in SERVICES:
        newest = max(folder for folder in (data / service).iterdir() if folder.is_dir())
        files += [path for path in newest.iterdir() if path.is_file() and not path.name.startswith("examples-")]
    return files
