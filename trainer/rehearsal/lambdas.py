"""Rules of Lambda: a function runs from the unpacked zip of CreateFunction; nothing else of ours is
importable.

Each invocation is a process, `lambda_runner.py`, on this Python's standard library and the zip alone, with
the function's role. moto stores the readable state of functions. An account runs ten functions at once, as a
new one on AWS: a further call is refused, a further event waits. One version, no layers, no reserved
concurrency; a failed event is not tried again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.base.instants import utc_now
from trainer.rehearsal.account import REGION, EmbeddedAccount, EventInvocation, Function, Rules, refuse
from trainer.rehearsal.applied_program import open_folder
from trainer.rehearsal.forks import ForkedProcess, start_python
from trainer.rehearsal.wire import Call, state_of
from trainer.rehearsal.world import AwsError

log = logging.getLogger(__name__)
RUNNER = Path(__file__).with_name("lambda_runner.py")
UNUSED_SECONDS = 24 * 3600.0  # after which unpacked code is removed
_NAME = re.compile(r"[a-zA-Z0-9-_]{1,64}")
_EMPTY_ZIP = b"PK\x05\x06" + bytes(18)
_processes: set[subprocess.Popen[bytes] | ForkedProcess] = set()
_stopped: set[subprocess.Popen[bytes] | ForkedProcess] = set()  # by the end of their server


def create_function(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Create a function, and unpack its zip."""
    return create(cloud, call.params)


def create(cloud: EmbeddedAccount, params: dict[str, Any]) -> dict[str, Any]:
    """Create a function by the parameters of CreateFunction, and return what it returns."""
    name, role = params["FunctionName"], params["Role"].rpartition("/")[2]
    if not _NAME.fullmatch(name):  # also the name of a folder
        raise AwsError("ValidationException", f"FunctionName '{name}' must match [a-zA-Z0-9-_]+.")
    if not cloud.trusts(role, "lambda.amazonaws.com", arn_of(cloud, name)):
        what = "The role defined for the function cannot be assumed by Lambda."
        raise AwsError("InvalidParameterValueException", what)
    if params.get("DeadLetterConfig"):
        what = "The embedded AWS has on-failure destinations, and no DeadLetterConfig."
        raise AwsError("UnsupportedOperation", what)
    code = params["Code"].get("ZipFile") or b""
    digest = hashlib.sha256(code).digest()
    folder = unpack(code, folder=cloud.function_code / digest.hex()[:32])
    # moto never runs its copy of the code, and parsing megabytes takes 20 core-ms: it gets an empty zip, then
    # size and hash.
    answer = cloud.moto("lambda", "CreateFunction", {**params, "Code": {"ZipFile": _EMPTY_ZIP}})
    size, sha256 = len(code), base64.b64encode(digest).decode()
    described = state_of(cloud.account, "lambda").get_function(name)
    described.code_size, described.code_sha_256 = size, sha256
    with cloud.lock:
        cloud.functions[name] = Function(
            name=name,
            handler=params["Handler"],
            role=role,
            log_group=params.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{name}",
            timeout_seconds=int(params.get("Timeout", 3)),
            environment=dict(params.get("Environment", {}).get("Variables", {})),
            folder=folder,
        )
    return {**answer, "CodeSize": size, "CodeSha256": sha256}


def unpack(code: bytes, *, folder: Path) -> Path:
    """Unpack a zip into a folder, named after its hash, unless that exists; return the folder."""
    open_folder(folder.parent)
    if not keep(folder):
        partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            try:
                archive.extractall(partial)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        try:
            partial.rename(folder)
        except OSError:  # another process unpacked the same zip meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.exists():
                raise
        _forget_unused(folder.parent)
    return folder


def keep(folder: Path) -> bool:
    """Mark a folder as in use; return whether it exists."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    return True


def _forget_unused(parent: Path) -> None:
    """Remove the code that no server has used for a day."""
    for folder in parent.iterdir():
        with suppress(FileNotFoundError):  # another server was faster
            if folder.stat().st_mtime < time.time() - UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def invoke(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Run a function: wait for its answer, or (InvocationType Event) let it run."""
    name = function_name(call.params["FunctionName"])
    payload = call.params.get("Payload") or b"{}"
    kind = call.params.get("InvocationType") or "RequestResponse"
    function = _function(cloud, name)
    if kind == "Event":
        invoke_event(cloud, name, payload)
        return {"StatusCode": 202}
    if kind != "RequestResponse":
        return refuse(cloud, call)
    if not cloud.executions.acquire(blocking=False):
        raise AwsError("TooManyRequestsException", "Rate Exceeded.", 429)
    try:
        answer = run(cloud, function, payload)
    finally:
        cloud.executions.release()
    failed = {"FunctionError": "Unhandled"} if "error" in answer else {}
    told = json.dumps(answer["error"] if failed else answer["result"]).encode()
    return {"StatusCode": 200, "Payload": told, "ExecutedVersion": "$LATEST", **failed}


def invoke_event(cloud: EmbeddedAccount, name: str, payload: bytes) -> None:
    """Start a function and return at once. Raises AwsError for an unknown function."""
    _function(cloud, name)
    start(cloud, EventInvocation(function_name=name, payload=payload, request_id=str(uuid.uuid4())))


def wait_for_invocations(cloud: EmbeddedAccount) -> None:
    """Wait until no asynchronous invocation runs, including those that start meanwhile."""
    while threads := _under_way(cloud):
        for thread in threads:
            thread.join()


def end_all(cloud: EmbeddedAccount) -> None:
    """End an account's functions with its server: what waits for its turn would bring its folder back."""
    with cloud.lock:
        cloud.functions.clear()
    stop_all()
    wait_for_invocations(cloud)


def _under_way(cloud: EmbeddedAccount) -> list[threading.Thread]:
    with cloud.lock:  # each has started
        return [thread for thread in cloud.invocations if thread.is_alive()]


def start(cloud: EmbeddedAccount, invocation: EventInvocation) -> None:
    """Run a function on an event, in a thread."""
    name = f"lambda-{invocation.function_name}"
    thread = threading.Thread(target=_attempt, args=(cloud, invocation), daemon=True, name=name)
    with cloud.lock:
        cloud.invocations.append(thread)
        thread.start()


def _attempt(cloud: EmbeddedAccount, invocation: EventInvocation) -> None:
    try:
        function = cloud.functions.get(invocation.function_name)
        if function is None:  # deleted meanwhile
            return
        with cloud.executions:  # Lambda keeps the event until one is free
            answer = run(cloud, function, invocation.payload, request_id=invocation.request_id)
        if "error" in answer:
            cloud.event_failed(function, invocation, answer["error"])
    finally:
        cloud.invocations.remove(threading.current_thread())


def arn_of(cloud: EmbeddedAccount, name: str) -> str:
    """Return a function's ARN."""
    return f"arn:aws:lambda:{REGION}:{cloud.account}:function:{name}"


def function_name(arn_or_name: str) -> str:
    """Return a function's name, from its ARN or name."""
    return arn_or_name.partition(":function:")[2].partition(":")[0] or arn_or_name


def run(
    cloud: EmbeddedAccount, function: Function, payload: bytes, *, request_id: str = ""
) -> dict[str, Any]:
    """Run a function to its end: {"result": ...} or {"error": {"errorType", "errorMessage", ...}}."""
    home = log_file(cloud, function.name).parent
    home.mkdir(parents=True, exist_ok=True)
    keep(function.folder)
    own = cloud.credentials("FUNC", function.name, role=function.role)
    environment = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),  # not the desk's: botocore would read ~/.aws there
        "AWS_ENDPOINT_URL": cloud.endpoint(),
        "AWS_ACCESS_KEY_ID": own.access_key,
        "AWS_SECRET_ACCESS_KEY": own.secret_key,
        "AWS_SESSION_TOKEN": "rehearsal",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        **function.environment,
    }
    context = {
        "function_name": function.name,
        "invoked_function_arn": arn_of(cloud, function.name),
        "aws_request_id": request_id or str(uuid.uuid4()),
        "timeout_seconds": function.timeout_seconds,
        "clock_ahead_seconds": (cloud.clock.now() - utc_now()).total_seconds(),
    }
    log_path = log_file(cloud, function.name) if cloud.may_log(function) else Path(os.devnull)
    with (
        log_path.open("ab") as output,
        tempfile.TemporaryFile() as event,
        tempfile.TemporaryFile() as answers,
    ):
        event.write(payload)
        event.seek(0)
        files = {0: event.fileno(), 1: answers.fileno(), 2: output.fileno()}
        # Isolated and without site-packages: it imports the standard library and the zip, as on AWS.
        runner = ("-I", "-S", "-c", RUNNER.read_text(encoding="utf-8"))
        process = start_python(
            (*runner, str(function.folder), function.handler, json.dumps(context)),
            server=cloud.fork_functions() if cloud.fork_functions else None,
            environment=environment,
            folder=function.folder,
            files=files,
            name="lambda",
        )
        _processes.add(process)
        try:
            exit_code = process.wait(timeout=function.timeout_seconds)
        except (TimeoutError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
            what = f"Task timed out after {function.timeout_seconds:.2f} seconds"
            answer = _failure("Sandbox.Timedout", what)
        else:
            answers.seek(0)
            told = answers.read()
            answer = json.loads(told) if told else _failure("Runtime.ExitError", f"exit status {exit_code}")
        finally:
            _processes.discard(process)
        cloud.invoked(function, failed="error" in answer)
        if "error" in answer and process not in _stopped:
            log.warning("function %s failed: %s", function.name, answer["error"])
            output.write(json.dumps(answer["error"]).encode() + b"\n")
    return dict(answer)


def log_file(cloud: EmbeddedAccount, name: str) -> Path:
    """Return the file of a function's output."""
    return cloud.root / "lambda" / cloud.account / f"{name}.log"


def stop_all() -> None:
    """Kill every running invocation of this process: its server ends."""
    running = list(_processes)
    _stopped.update(running)
    for process in running:
        process.kill()


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"errorType": kind, "errorMessage": message}}


def _function(cloud: EmbeddedAccount, name: str) -> Function:
    with cloud.lock:
        if name not in cloud.functions:
            raise AwsError("ResourceNotFoundException", f"Function not found: {arn_of(cloud, name)}", 404)
        return cloud.functions[name]


RULES: Rules = {
    ("lambda", "CreateFunction"): create_function,
    ("lambda", "DeleteFunction"): refuse,
    ("lambda", "UpdateFunctionCode"): refuse,
    ("lambda", "UpdateFunctionConfiguration"): refuse,
    ("lambda", "Invoke"): invoke,
}
