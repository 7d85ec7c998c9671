"""Where the checks run, and what they share: an account or the embedded AWS, its stack, the command line,
machines that end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainer.aws.access import Access, error_code, error_message
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError
from trainer.base.instants import utc_now
from trainer.control.check_account import requests_of
from trainer.control.cloud import AwsCloud
from trainer.control.fleet import create_fleet_request
from trainer.launch.preflight import find_image
from trainer.runs.attempts import Launch, Rung
from trainer.runs.record import RunRecord, client_token, new_run_id

ROOT = Path(__file__).resolve().parents[2]
CODE_KEY = "code/live-check.whl"
# Quotas of EC2, in vCPUs that run at once (EC2 user guide, looked up 2026-11-22).
STANDARD, G_ON_DEMAND, G_SPOT = "L-1216C47A", "L-DB2E81BA", "L-3819A6DF"
# User data that never says a word. The embedded AWS runs scripts alone: there it is no process, so that its
# clock can be moved meanwhile.
HUNG, HUNG_EMBEDDED = "#!/bin/bash\nsleep 7200\n", "hung"


class CheckFailed(Exception):
    """A check saw something else than what has to be."""


# What ends a check with one line; anything else is a mistake of the checks themselves.
FAILURES = (CheckFailed, TrainerError, BotoCoreError, ClientError)


def one_line(error: Exception) -> str:
    """Return a failure as one line, with AWS's code if it has one."""
    coded = isinstance(error, ClientError)
    return " ".join((f"{error_code(error)}: {error_message(error)}" if coded else str(error)).split())


def _told(stdout: str, stderr: str) -> str:
    """Return why a command failed: the error of its JSON document, else the end of what it printed."""
    try:
        error = json.loads(stdout)["error"]
        return f"{error['what']} ({error['why']}). {error['do']}".replace(" ()", "")
    except (ValueError, KeyError, TypeError):
        return (stderr or stdout).strip()[-2000:] or "it said nothing"


def require(holds: object, what: str) -> None:
    """Raise CheckFailed where something does not hold."""
    if not holds:
        raise CheckFailed(what)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One t3.large of a check."""

    record: RunRecord
    launch: Launch
    instance_id: str

    @property
    def run_id(self) -> str:
        return self.record.run_id


@dataclass(kw_only=True)
class Live:
    """One AWS to check."""

    access: Access
    stack: str
    folder: Path  # candles and jobs
    embedded: bool
    say: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=dict)  # of the commands that a check runs
    python: tuple[str, ...] = (sys.executable,)  # that runs them
    small: tuple[str, ...] = ()  # more words of a launch, which make it a small one
    now: Callable[[], datetime] = utc_now
    pause: Callable[[float], None] = time.sleep
    seen: Mapping[str, Any] = field(default_factory=dict)  # results so far, by check
    chosen: tuple[str, ...] = ()  # the checks of this call
    # Run -> dollars at least and at most, by its receipt.
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def outputs(self) -> StackOutputs:
        return read_stack(self.access, stack=self.stack)

    @cached_property
    def cloud(self) -> AwsCloud:
        return AwsCloud(self.access, self.outputs)

    @cached_property
    def account(self) -> str:
        return str(self.client("sts").get_caller_identity()["Account"])

    def client(self, service: str) -> Any:
        return self.access.client(service)

    def other(self, suffix: str, **changed: Any) -> Live:
        """Return the same AWS with another of its stacks, by the end of its name; the embedded AWS has one
        stack, with every option.
        """
        other = f"{self.stack[:10]}-{suffix}" if suffix and not self.embedded else self.stack
        return replace(self, stack=other, **changed)

    def role(self, kind: str) -> str:
        """Return the name of a role, or a policy, of the stack."""
        return f"{self.outputs.project}-{self.outputs.stack}-{self.outputs.region}-{kind}"

    def run(self, *command: str, codes: Sequence[int] = (0,)) -> str:
        """Run a command from the checkout, say it, and return its stdout. Raises CheckFailed for another exit
        code, and for a program that is missing.
        """
        shown = " ".join(command).replace(" ".join(self.python), "python")
        self.say(f"$ {shown.replace('python -m trainer.cli.main', 'mayfly')}")
        own = os.environ | dict(self.environment)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=own)
        except OSError as error:
            raise CheckFailed(f"{command[0]} does not start: {error}") from error
        if done.returncode not in codes:
            raise CheckFailed(f"exit code {done.returncode}: {_told(done.stdout, done.stderr)}")
        return done.stdout

    def mayfly(self, *words: str, codes: Sequence[int] = (0,)) -> Any:
        """Run a verb with --json and return its document."""
        text = self.run(*self._command(*words), "--json", codes=codes)
        try:
            return json.loads(text)
        except ValueError as error:
            raise CheckFailed(f"mayfly {words[0]} --json printed no JSON: {text[:200]!r}") from error

    def mayfly_text(self, *words: str) -> str:
        """Run a verb and return what it prints."""
        return self.run(*self._command(*words))

    def _command(self, *words: str) -> tuple[str, ...]:
        verb, rest = words[: words.index("--")] if "--" in words else words, words
        return (*self.python, "-m", "trainer.cli.main", *verb, "--stack", self.stack, *rest[len(verb) :])

    def until(self, look: Callable[[], Any], what: str, *, within: timedelta, every: float = 10) -> Any:
        """Look until something holds, and return it. Raises CheckFailed once the time is over."""
        ends = self.now() + within
        while not (value := look()):
            require(self.now() < ends, f"{what}: not within {within}")
            self.pause(every)
        return value

    @contextmanager
    def cleaning(self, what: str, clean: Callable[[], object]) -> Iterator[None]:
        """Clean up whatever happens. The check's own error is the one that is reported: one of the clean-up
        after it is a note.
        """
        try:
            yield
        except BaseException:
            try:
                clean()
            except FAILURES as error:
                self.say(f"note: {what} failed as well: {one_line(error)}")
            raise
        clean()

    def candles(self) -> Path:
        """Return a folder of synthetic candles of two symbols."""
        folder = self.folder / "candles"
        if not folder.is_dir():
            words = ("--symbols", "BTC-USD,ETH-USD", "--bars", "3000", "--timeframe", "1m")
            self.run(*self.python, "-m", "trainer.data.synthetic", "--out", str(folder), *words)
        return folder

    @contextmanager
    def machine(
        self, name: str, *, lives: timedelta, hung: bool = False, boot_seconds: int = 900
    ) -> Iterator[Machine]:
        """Run one t3.large by the product's own request, whose code has another hash than its tag; end it
        whatever happens.

        A hung one, whose user data is another, takes RunInstances: an instant fleet has the template's.
        """
        record, launch = self._intent(name, self.now() + lives, boot_seconds)

        def end() -> None:
            seen = self.cloud.instances(run_id=record.run_id)
            self.cloud.terminate(instance_ids=tuple(one.instance_id for one in seen))

        with self.cleaning(f"the end of {record.run_id}", end):
            if hung:
                request = requests_of(record, self.outputs, 0)["run_instances"]
                del request["DryRun"]
                request["UserData"] = HUNG_EMBEDDED if self.embedded else HUNG
                started = self.client("ec2").run_instances(**request)["Instances"][0]["InstanceId"]
            else:
                request = create_fleet_request(record.with_new_launch(launch), record.ladder[0], launch)
                answer = self.cloud.create_fleet(request=request)
                require(
                    answer.kind == "created", f"CreateFleet: {answer.kind} {answer.code}: {answer.message}"
                )
                started = answer.instance_ids[0]
            # EC2 may not know it for some seconds (InvalidInstanceID.NotFound), nor its address and disks while
            # it is pending. The embedded AWS knows them at once.
            waiter = self.client("ec2").get_waiter("instance_exists" if self.embedded else "instance_running")
            waiter.wait(InstanceIds=[started])
            self.say(f"{name}: {started}, run {record.run_id}, deadline {launch.deadline:%H:%M:%S} UTC")
            yield Machine(record=record, launch=launch, instance_id=str(started))

    def _intent(self, name: str, deadline: datetime, boot_seconds: int) -> tuple[RunRecord, Launch]:
        """Return the record of a run of one t3.large, and its launch."""
        outputs, now = self.outputs, self.now()
        rung = self._rung(boot_seconds)
        run_id = new_run_id(f"live-{name}", now)
        timed: dict[str, Any] = {
            "deadline": deadline.replace(microsecond=0),
            "deadline_cause": "max_duration",
        }
        record = RunRecord(
            run_id=run_id,
            project=outputs.project,
            stack=outputs.stack,
            owner=outputs.owner,
            place=self.access.place.name,
            bucket=outputs.bucket,
            instance_role_id=outputs.instance_role_id,
            job={"name": f"live-{name}"},
            ladder=(rung,),
            bundle_key=CODE_KEY,
            bundle_sha256="0" * 64,
            budget_usd=0,
            estimated_usd=0,
            preflight_at=now,
            created_at=now,
            **timed,
        )
        token = client_token(run_id, attempt=1, rung=0, launches_before=0)
        return record, Launch(rung=0, token=token, intended_at=now, **timed)

    def _rung(self, boot_seconds: int) -> Rung:
        """Return a t3.large in a zone that sells it."""
        outputs, ec2, name = self.outputs, self.client("ec2"), "t3.large"
        rules = [{"Name": "instance-type", "Values": [name]}]
        sold = ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=rules)
        zones = {one["Location"] for one in sold["InstanceTypeOfferings"]} & outputs.subnets.keys()
        require(zones, f"no zone of the stack's subnets sells {name}")
        zone, image = min(zones), find_image(self.access, ec2, outputs=outputs)
        price = 0.0832  # USD an hour, us-east-1 (2026-11-20)
        return Rung(
            instance_type=name,
            availability_zone=zone,
            subnet_id=outputs.subnets[zone],
            market="on_demand",
            price_usd_per_hour=price,
            on_demand_usd_per_hour=price,
            launch_template_id=outputs.launch_template,
            image_id=str(image["ImageId"]),
            vcpus=2,
            quota_code=STANDARD,
            boot_seconds=boot_seconds,
        )

    def wait_for_end(self, machine: Machine, how: str) -> str:
        """Wait until EC2 shows a machine as terminated; return its reason."""

        def ended() -> Any:
            seen = self.cloud.instances(run_id=machine.run_id)
            return [one for one in seen if one.state == "terminated"]

        what = f"the end of {machine.instance_id} by {how}"
        (seen,) = self.until(ended, what, within=timedelta(minutes=15), every=5)
        seconds = ((seen.ended_at or self.now()) - seen.launched_at).total_seconds()
        self.say(f"{seen.instance_id} ended by {how} after {seconds:.0f} s: {seen.reason}")
        return str(seen.reason)
