"""Load Pulumi, and moto with the services of the embedded AWS; keep AWS's API descriptions once parsed, and the
methods of our dataclasses once compiled.

Run by the tests' fork server, which must not import anything of ours. Without it, forks that make clients of
S3 and EC2 would spend half of their time on parsing, and two thirds of their imports of ours on compiling what
`dataclasses` writes anew in each process: 0.2 core-seconds of each command and each call of a Lambda function.
"""

import builtins
import dataclasses
import importlib
import json
import os
import pkgutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# As trainer/rehearsal/wire.py sets it: moto reads the variable when it is imported.
os.environ["MOTO_AMIS_PATH"] = str(Path(__file__).parents[1] / "trainer" / "rehearsal" / "images.json")

import botocore.session  # noqa: E402  (the variable above comes first)
from botocore.loaders import JSONFileLoader  # noqa: E402
from moto.core.routing import get_service_router  # noqa: E402
from moto.core.utils import get_service_model  # noqa: E402
from moto.moto_server.werkzeug_app import create_backend_app  # noqa: E402

SERVICES = ("ec2", "events", "iam", "kms", "lambda", "logs", "s3", "scheduler", "sns", "sqs", "ssm", "sts")
CLIENTS = (*SERVICES, "cloudwatch", "imagebuilder", "pricing", "service-quotas")
# Resource modules of pulumi_aws that the program uses: what is missing here is loaded by each fork itself.
PULUMI = (
    "pulumi.runtime.mocks",
    *(f"pulumi_aws.{part}" for part in ("cloudwatch", "ec2", "iam", "lambda_", "s3", "scheduler")),
)

_parse = JSONFileLoader.load_file
_parsed: dict[str, object] = {}


def _load_file(self: JSONFileLoader, file_path: str) -> object:
    """Return what is in a file of botocore's, which nothing changes while tests run; None without one."""
    if _parsed.get(file_path) is None:
        _parsed[file_path] = _parse(self, file_path)
    return _parsed[file_path]


JSONFileLoader.load_file = _load_file  # each session has a loader of its own, and each process a session
session = botocore.session.Session()
for service in CLIENTS:
    session.create_client(
        service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
for part in PULUMI:
    importlib.import_module(part)
for service in SERVICES:
    get_service_model(service)
    get_service_router(service)
    create_backend_app(service)


def _texts_of_methods() -> list[str]:
    """Return the source of every method that `dataclasses` makes for our classes; a fork imports them."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        texts: list[str] = []

        def noted(text: str, *names: Any) -> None:
            texts.append(text)
            builtins.exec(text, *names)

        dataclasses.exec = noted  # type: ignore[attr-defined]
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        with suppress(BaseException):
            for module in pkgutil.walk_packages(importlib.import_module("trainer").__path__, "trainer."):
                if not module.name.endswith("__main__"):
                    with suppress(Exception):  # such as a stub of a node
                        importlib.import_module(module.name)
            importlib.import_module("tests.aws.server")
        with os.fdopen(writes, "w") as told:
            json.dump(texts, told)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as told:
        texts = json.load(told)
    os.waitpid(child, 0)
    return texts


_compiled = {text: compile(text, "<string>", "exec") for text in _texts_of_methods()}


def _exec(text: str, *names: Any) -> None:
    """Run the source of a method as `exec` does: the same text is the same code in each process."""
    builtins.exec(_compiled.get(text, text), *names)


dataclasses.exec = _exec  # type: ignore[attr-defined]
