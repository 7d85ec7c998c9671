"""Stand-ins for AWS's CLI and its session-manager-plugin, for PATH: the calls that they make go to the
embedded AWS.

The CLI's asks StartSession with the credentials of its environment and starts the plugin, as AWS's own does:
with 1.46.3 in its place the tests pass, too (tried by hand, 2026-11-22). The plugin's, for want of a machine,
runs the session's command here, or leads one connection from the local port to the remote one.
"""

from __future__ import annotations

import sys
from pathlib import Path

CLI = """
import json, subprocess, sys

import boto3
from botocore.exceptions import ClientError

assert sys.argv[1:3] == ["ssm", "start-session"], sys.argv
given = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
assert given.keys() <= {"--region", "--target", "--document-name", "--parameters"}, given
request = {"Target": given["--target"]}
if "--document-name" in given:
    request |= {"DocumentName": given["--document-name"], "Parameters": json.loads(given["--parameters"])}
client = boto3.client("ssm", region_name=given["--region"])
try:
    session = client.start_session(**request)
except ClientError as error:
    print(f"\\nAn error occurred {error}", file=sys.stderr)
    sys.exit(254)
session.pop("ResponseMetadata")
words = [json.dumps(session), given["--region"], "StartSession", "", json.dumps(request), client.meta.endpoint_url]
code = subprocess.call(["session-manager-plugin", *words])
sys.exit(255 if code else 0)
"""
PLUGIN = """
import json, socket, subprocess, sys, threading

request = json.loads(sys.argv[5])
name, parameters = request.get("DocumentName", ""), request.get("Parameters", {})
if name != "AWS-StartPortForwardingSession":
    sys.exit(subprocess.call(["bash", "-c", *parameters["command"]] if name else ["bash"]))
listener = socket.create_server(("127.0.0.1", int(parameters["localPortNumber"][0])))
print("Waiting for connections...", flush=True)
client, _ = listener.accept()
machine = socket.create_connection(("127.0.0.1", int(parameters["portNumber"][0])))

def copy(source, sink):
    while block := source.recv(65536):
        sink.sendall(block)
    sink.shutdown(socket.SHUT_WR)

back = threading.Thread(target=copy, args=(machine, client))
back.start()
copy(client, machine)
back.join()
"""


def write_stubs(folder: Path) -> None:
    """Write both programs into a folder; a Python to print a version takes too long."""
    folder.mkdir(exist_ok=True)
    for name, text, version in (
        ("aws", CLI, "aws-cli/2.31.0"),
        ("session-manager-plugin", PLUGIN, "1.2.707.0"),
    ):
        (folder / f"{name}.py").write_text(text)
        path = folder / name
        path.write_text(
            f'#!/bin/bash\n[[ $1 == --version ]] && exec echo {version}\nexec {sys.executable} "$0.py" "$@"\n'
        )
        path.chmod(0o755)
