"""Lambda's quota of a new account: ten executions, of which none may be reserved, are enough for the stack."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
from botocore.exceptions import ClientError

from tests.aws.server import CheckedAws
from tests.trainer.launch.test_checks import function
from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConnectionFailed
from trainer.launch.checks import ask_all, sweeper
from trainer.rehearsal import lambdas, messages, scheduling
from trainer.rehearsal.account import EXECUTIONS, EmbeddedAccount


def busy(cloud: EmbeddedAccount, executions: int) -> ExitStack:
    """Let other functions of the account take so many executions."""
    taken = ExitStack()
    for _ in range(executions):
        taken.enter_context(cloud.executions)
    return taken


def test_a_new_account_can_reserve_no_executions(access: Access) -> None:
    name = function(access, "work", "def handler(event, context): ...")
    with pytest.raises(ClientError, match=r"below its minimum value of \[10\]"):
        access.client("lambda").put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_busy_account_loses_no_call_of_the_stack(
    aws_server: CheckedAws, stack: tuple[Access, StackOutputs]
) -> None:
    """With two of ten executions free: standing calls and more events than that, sweeps before launches."""
    access, outputs = stack
    cloud = aws_server.cloud(access)
    with busy(cloud, EXECUTIONS - 2):
        cloud.advance(6 * 60)  # both standing schedules are due
        for number in range(4):
            kind = "EC2 Instance State-change Notification"
            messages.tell(cloud, kind, f"i-0000000000000000{number}", {"state": "terminated"})
        scheduling.fire_due(cloud)
        scheduling.wait_for_deliveries(cloud)
        lambdas.wait_for_invocations(cloud)
    logs = {
        kind: lambdas.log_file(cloud, f"mayfly-dev-{kind}").read_text() for kind in ("sweeper", "control")
    }
    assert logs["control"].count("is not an instance of this stack's runs") == 4
    assert logs["control"].count('"overdue"') == 1 and logs["sweeper"].count('"lease_check"') == 1
    assert not cloud.tried  # no event failed, so none is tried again

    with busy(cloud, EXECUTIONS), pytest.raises(ConnectionFailed, match="TooManyRequestsException"):
        ask_all({"the sweeper": partial(sweeper, access, outputs)}, access.place)
