"""The table of the checks, in the order of the day: first what is free, then by price, at last what has to
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tests.live import bill, machines, nodes, runs, stacks
from tests.live.context import G_ON_DEMAND, G_SPOT, STANDARD, Live
from tests.live.policies import policies
from tests.live.runs import HALF_HOUR, launch
from trainer.attach.ssm import check_tools
from trainer.base.errors import ConfigError

THROWAWAY = "tmp"  # the end of the name of the stack with every option
NO_PULUMI = "needs the Pulumi CLI and a state of its own; a rehearsal applies the program without either"
NO_MACHINES = "its machines are processes of the desk, without Session Manager's agent"
NO_BUILDS, NO_BILL = "it has no Image Builder", "nobody sends a bill for it"


def never(live: Live) -> str:
    return ""


@dataclass(frozen=True)
class Check:
    """One check. `dollars` is the most that it can cost: its machines have a budget or a deadline that sees
    to it.
    """

    name: str
    what: str
    run: Callable[[Live], object]
    _: KW_ONLY
    minutes: float
    dollars: float = 0
    quota: Mapping[str, int] = field(default_factory=dict)  # code -> vCPUs that it needs at once
    stack: str = ""  # the end of the name of the stack that it makes or uses; "": the main one
    skip: Callable[[Live], str] = never  # why it can't run now
    not_embedded: str = ""  # why the embedded AWS can't show it

    def reason_to_skip(self, live: Live) -> str:
        """Return why it can't run here and now; '' where it can. Asks AWS for the quotas that it needs."""
        if live.embedded and self.not_embedded:
            return f"not on the embedded AWS: {self.not_embedded}"
        for code, vcpus in self.quota.items():
            quota = stacks.quota_of(live, code)
            if quota["Value"] < vcpus:
                has = f"{quota['QuotaName']} ({code}) is {quota['Value']:.0f} vCPU, and it needs {vcpus}"
                return f"{has}. Ask for more in Service Quotas, then start this again"
        return self.skip(live)


def no_tools(live: Live) -> str:
    try:
        check_tools()
    except ConfigError as error:
        return str(error)
    return ""


def no_default_vpc(live: Live) -> str:
    lacks = "the account has no default VPC: aws ec2 create-default-vpc"
    return "" if stacks.default_subnets(live) else lacks


def still_needed(live: Live) -> str:
    """Return which checks of this call want the throwaway stack and have not passed, such as for a quota."""
    users = [check.name for check in CHECKS if check.stack == THROWAWAY and check.name != "again"]
    waiting = [name for name in users if name in live.chosen and not live.seen.get(name, {}).get("passed")]
    names = ", ".join(waiting)
    return f"its stack is still wanted by {names}. --only again takes it down now" if waiting else ""


def gpu(name: str, what: str, run: Callable[[Live], object], dollars: float = 0.41, **more: Any) -> Check:
    """Return a check with one g6.xlarge, or another machine of four G vCPUs, on demand."""
    given: dict[str, Any] = {"minutes": 15, "quota": {G_ON_DEMAND: 4}} | more
    return Check(name, what, run, dollars=dollars, **given)


T3, SPOT = {STANDARD: 2}, {G_SPOT: 4}
CHECKS = (
    Check("identity", "who and where", stacks.identity, minutes=0.1),
    Check("quotas", "what the quotas allow", stacks.quotas, minutes=0.1),
    Check("up", "pulumi up twice, the second without a diff", stacks.up, minutes=8, not_embedded=NO_PULUMI),
    Check("bucket", "closed, and gives versions", stacks.bucket, minutes=16),
    Check("sweeper", "answers a synchronous call without an error", stacks.sweeper, minutes=0.2),
    Check("policies", "IAM's simulation of roles and launcher policy", policies, minutes=0.5),
    Check("dry-run", "a plan without a write", runs.dry_run, minutes=0.5),
    Check("doctor", "each check of the account says ok, or what to do", stacks.doctor, minutes=0.3),
    Check(
        "existing-vpc",
        "a stack in the default VPC",
        stacks.existing_vpc,
        minutes=15,
        stack="vpc",
        skip=no_default_vpc,
        not_embedded=NO_PULUMI,
    ),
    Check(
        "fleet",
        "CreateFleet's t3.large in all parts, and its power-off",
        machines.fleet,
        minutes=6,
        dollars=0.03,
        quota=T3,
    ),
    Check(
        "hung-boot",
        "a t3.large that never speaks is swept",
        machines.hung_boot,
        minutes=8,
        dollars=0.03,
        quota=T3,
    ),
    Check(
        "toggles",
        "a stack with every option, twice",
        stacks.toggles,
        minutes=30,
        dollars=0.05,
        stack=THROWAWAY,
        not_embedded=NO_PULUMI,
    ),
    Check("layers", "two schedules end a t3.large each", machines.layers, minutes=10, dollars=0.06, quota=T3),
    gpu("launcher", "a run on g6.xlarge by the launcher policy alone", runs.launcher),
    gpu("spot", "a run on g6.xlarge, on spot", launch("g6.xlarge", HALF_HOUR, "--spot"), quota=SPOT),
    gpu("stop", "a detached run is stopped", runs.stop, minutes=12),
    gpu("detach", "control closes a run that nobody watches", runs.detach),
    gpu("script", "the example script of the docs", runs.script),
    gpu(
        "retrain", "control starts a published job", runs.retrain(prepared=False), stack=THROWAWAY, minutes=25
    ),
    gpu(
        "attach",
        "a GPU by status and by attach",
        runs.attach,
        stack=THROWAWAY,
        minutes=25,
        skip=no_tools,
        not_embedded=NO_MACHINES,
    ),
    gpu(
        "fresh-retrain",
        "the same after a prepare run",
        runs.retrain(prepared=True),
        dollars=0.50,
        minutes=45,
        quota={G_ON_DEMAND: 4, **T3},
        stack=THROWAWAY,
    ),
    gpu(
        "interruption",
        "AWS takes a spot machine back",
        runs.interruption,
        dollars=0.81,
        minutes=20,
        quota=SPOT,
    ),
    gpu(
        "resume",
        "a stopped run is continued by another",
        runs.resume,
        dollars=0.82,
        minutes=25,
    ),
    gpu("storage", "two runs with cache and key", runs.storage, dollars=0.90, minutes=30, stack=THROWAWAY),
    gpu(
        "nodes",
        "machines of one run reach each other, and none of another's",
        nodes.nodes,
        dollars=1.20,
        minutes=35,
        quota={G_ON_DEMAND: 16},
        stack=THROWAWAY,
        not_embedded="its machines share the desk's network, and have no firewall of their own",
    ),
    gpu(
        "image",
        "an image is built and tested",
        stacks.image,
        dollars=1.70,
        minutes=120,
        stack=THROWAWAY,
        not_embedded=NO_BUILDS,
    ),
    gpu(
        "four-gpus",
        "a run on g6.12xlarge",
        launch("g6.12xlarge", "2.70"),
        2.70,
        minutes=20,
        quota={G_ON_DEMAND: 48},
    ),
    Check(
        "again",
        "mayfly down, pulumi up over what stayed, down",
        stacks.again,
        minutes=30,
        stack=THROWAWAY,
        skip=still_needed,
        not_embedded=NO_PULUMI,
    ),
    Check(
        "bill",
        "what AWS billed, the next day",
        bill.bill,
        minutes=0.2,
        dollars=0.01,
        skip=bill.not_yet,
        not_embedded=NO_BILL,
    ),
)
