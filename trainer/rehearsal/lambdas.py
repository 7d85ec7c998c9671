"""Rules of Lambda: a function runs from the zip that CreateFunction received, unpacked, with nothing else of ours importable.

Each invocation is a process, `lambda_runner.py`, on this Python's standard library and the zip alone. moto keeps what can be
read about functions. One version, no layers, no concurrency limits; an asynchronous invocation is tried once.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.rehearsal.account import REGION, EmbeddedAccount, Function, Rules
from trainer.rehearsal.applied_program import open_folder
from trainer.rehearsal.wire import Answer, Call, collect
from trainer.rehearsal.world import AwsError
from trainer.runs.record import utc_now

log = logging.getLogger(__name__)
RUNNER = Path(__file__).with_name("lambda_runner.py")
_NAME = re.compile(r"[a-zA-Z0-9-_]{1,64}")
UNUSED_SECONDS = 24 * 3600.0
_processes: set[subprocess.Popen[bytes]] = set()


def create_function(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Create a function, and unpack its zip."""
    params = call.params
    if not _NAME.fullmatch(params["FunctionName"]):  # it names a folder, too
        raise AwsError("ValidationException", f"FunctionName '{params['FunctionName']}' must match [a-zA-Z0-9-_]+.")
    answer = collect(call.environ, call.account)
    if answer[0] < 300:
        try:
            folder = _unpack(cloud, params["Code"].get("ZipFile") or b"")
        except OSError:  # a full disk: there is no such function
            cloud.moto("lambda", "DeleteFunction", {"FunctionName": params["FunctionName"]})
            raise
        with cloud.lock:
            cloud.functions[params["FunctionName"]] = Function(
                name=params["FunctionName"],
                handler=params["Handler"],
                role=params["Role"].rpartition("/")[2],
                timeout_seconds=int(params.get("Timeout", 3)),
                memory_mib=int(params.get("MemorySize", 128)),
                environment=dict(params.get("Environment", {}).get("Variables", {})),
                folder=folder,
            )
    return answer


def delete_function(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Delete a function."""
    answer = collect(call.environ, call.account)
    if answer[0] < 300:
        with cloud.lock:
            cloud.functions.pop(function_name(call.params["FunctionName"]), None)
    return answer


def refuse_update(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Refuse to change a function in place: each rehearsal creates it anew, and a stale one would mislead."""
    raise AwsError("InvalidParameterValueException", "The embedded AWS does not update functions; create it again.")


def invoke(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Run a function: wait for its answer, or (InvocationType Event) let it run."""
    name = function_name(call.params["FunctionName"])
    payload = call.params.get("Payload") or b"{}"
    kind = call.params.get("InvocationType") or "RequestResponse"
    function = _function(cloud, name)
    if kind == "DryRun":
        return {"StatusCode": 204}
    if kind == "Event":
        invoke_event(cloud, name, payload)
        return {"StatusCode": 202}
    answer = run(cloud, function, payload)
    failed = {"FunctionError": "Unhandled"} if "error" in answer else {}
    told = json.dumps(answer["error"] if failed else answer["result"]).encode()
    return {"StatusCode": 200, "Payload": told, "ExecutedVersion": "$LATEST", **failed}


def invoke_event(cloud: EmbeddedAccount, name: str, payload: bytes) -> threading.Thread:
    """Start a function and return at once; a failure stands in its log. Raises AwsError for an unknown function."""
    function = _function(cloud, name)
    thread = threading.Thread(target=run, args=(cloud, function, payload), daemon=True, name=f"lambda-{name}")
    thread.start()
    return thread


def function_name(arn_or_name: str) -> str:
    """Return the name of the function that an ARN or a name means."""
    return arn_or_name.partition(":function:")[2].partition(":")[0] or arn_or_name


def run(cloud: EmbeddedAccount, function: Function, payload: bytes) -> dict[str, Any]:
    """Run a function to its end: {"result": ...} or {"error": {"errorType", "errorMessage", ...}}."""
    home = log_file(cloud, function.name).parent
    home.mkdir(parents=True, exist_ok=True)
    _keep(function.folder)
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
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mib),
        **function.environment,
    }
    context = {
        "function_name": function.name,
        "invoked_function_arn": f"arn:aws:lambda:{REGION}:{cloud.account}:function:{function.name}",
        "memory_limit_in_mb": function.memory_mib,
        "aws_request_id": str(uuid.uuid4()),
        "timeout_seconds": function.timeout_seconds,
        "clock_ahead_seconds": (cloud.clock.now() - utc_now()).total_seconds(),
    }
    with log_file(cloud, function.name).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUNNER), str(function.folder), function.handler, json.dumps(context)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            cwd=function.folder,
            start_new_session=True,
        )
        _processes.add(process)
        try:
            told, _ = process.communicate(payload, timeout=function.timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            answer = _failure("Sandbox.Timedout", f"Task timed out after {function.timeout_seconds:.2f} seconds")
        else:
            answer = json.loads(told) if told else _failure("Runtime.ExitError", f"exit status {process.returncode}")
        finally:
            _processes.discard(process)
        if "error" in answer:
            log.warning("function %s failed: %s", function.name, answer["error"])
            output.write(json.dumps(answer["error"]).encode() + b"\n")
    return dict(answer)


def log_file(cloud: EmbeddedAccount, name: str) -> Path:
    """Return the file that holds what a function printed."""
    return cloud.root / "lambda" / cloud.account / f"{name}.log"


def stop_all() -> None:
    """Kill every invocation of this process that still runs: its server ends."""
    for process in list(_processes):
        process.kill()


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"errorType": kind, "errorMessage": message}}


def _function(cloud: EmbeddedAccount, name: str) -> Function:
    with cloud.lock:
        if name not in cloud.functions:
            arn = f"arn:aws:lambda:{REGION}:{cloud.account}:function:{name}"
            raise AwsError("ResourceNotFoundException", f"Function not found: {arn}", 404)
        return cloud.functions[name]


def _unpack(cloud: EmbeddedAccount, code: bytes) -> Path:
    """Unpack a zip where its hash says, unless it is there: its libraries are compiled once, not once an account."""
    folder = cloud.function_code / hashlib.sha256(code).hexdigest()[:32]
    open_folder(folder.parent)
    if not _keep(folder):
        partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            try:
                archive.extractall(partial)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        try:
            partial.rename(folder)
        except OSError:  # somebody else unpacked the same zip meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.exists():
                raise
        _forget_unused(folder.parent)
    return folder


def _keep(folder: Path) -> bool:
    """Note that a folder is in use, and say whether it is there."""
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


RULES: Rules = {
    ("lambda", "CreateFunction"): create_function,
    ("lambda", "DeleteFunction"): delete_function,
    ("lambda", "UpdateFunctionCode"): refuse_update,
    ("lambda", "UpdateFunctionConfiguration"): refuse_update,
    ("lambda", "Invoke"): invoke,
}
