"""A script's own user: what it is given, and the firewall rule against it.

The rule is made by real tools in a network namespace that ends with its test. There, an endpoint answers at
the metadata service's address with credentials.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.node.own_user import OwnUser

RULE = "iptables -I OUTPUT -d 169.254.169.254 -m owner --uid-owner 1 -j REJECT"
IN_NAMESPACE = """
import json, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from trainer.base.errors import ConfigError
from trainer.node import own_user

for line in ("ip link set lo up", "ip address add 169.254.169.254/32 dev lo"):
    subprocess.run(line.split(), check=True)

class Credentials(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"credentials")

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(own_user.METADATA, Credentials)
threading.Thread(target=server.serve_forever, daemon=True).start()

run, made = own_user._run, []
own_user._run = lambda line: (0 if line.startswith(tuple(sys.argv[2:])) else run(line))  # the user is not made
own_user.ETC = Path(sys.argv[1])
own_user.pwd = SimpleNamespace(getpwnam=lambda name: SimpleNamespace(pw_uid=64321, pw_gid=64321))
ASK = "import urllib.request as r; print(r.urlopen('http://169.254.169.254/', timeout=9).read().decode())"

def answer(uid):
    asked = subprocess.run(["/usr/bin/python3", "-I", "-c", ASK], user=uid, group=uid, extra_groups=[], cwd="/",
                           capture_output=True, text=True)
    return asked.stdout.strip() or asked.stderr.strip().splitlines()[-1]

told = {"before": answer(64321)}
try:
    own_user.make_own_user(metadata=False)
except ConfigError as error:
    told["error"] = str(error)
print(json.dumps({**told, "script": answer(64321), "agent": answer(0), "another": answer(64322)}))
"""


@pytest.fixture
def namespaces() -> None:
    """Skip where there is no root, no tool, or a kernel without the owner match."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables", "unshare"))):
        pytest.skip("needs root, ip, iptables and unshare")
    tried = subprocess.run(["unshare", "--net", *RULE.split()], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no firewall rule can be made here: {tried.stderr.strip()}")


def in_namespace(folder: Path, *not_run: str) -> dict[str, Any]:
    """Return what was answered before and after the rule; commands that begin with `not_run` only succeed."""
    command = ["unshare", "--net", sys.executable, "-c", IN_NAMESPACE, str(folder), "useradd", *not_run]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("namespaces")
def test_only_the_scripts_user_is_kept_from_credentials(tmp_path: Path) -> None:
    told = in_namespace(tmp_path)
    assert told["before"] == told["agent"] == told["another"] == "credentials"
    assert "Connection refused" in told["script"] and "error" not in told


@pytest.mark.usefixtures("namespaces")
def test_a_rule_without_effect_fails_the_run(tmp_path: Path) -> None:
    told = in_namespace(tmp_path, "iptables")
    assert "its user still reaches 169.254.169.254, despite the firewall rule" in told["error"]
    assert told["script"] == "credentials"


def test_a_folder_swapped_for_a_link_leads_no_owner_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value's copy of the files is given to the user while other values, maybe hostile, are at work."""
    given, away, outside = (tmp_path / name for name in ("given", "away", "etc"))
    for folder in (given / "module", outside):
        folder.mkdir(parents=True)
        for name in ("passwd", "shadow"):
            (folder / name).write_text("root's")
    user = OwnUser(uid=64321, gid=64321) if os.geteuid() == 0 else OwnUser(uid=os.geteuid(), gid=os.getegid())
    before, chown = [file.stat() for file in sorted(outside.iterdir())], os.chown

    def watched(path: Any, *owner: int, **how: Any) -> None:
        chown(path, *owner, **how)
        own = given.stat().st_uid == user.uid  # whoever owns a folder may replace what is in it
        if own and not away.exists() and Path(path).name in ("passwd", "shadow"):
            (given / "module").rename(away)
            (given / "module").symlink_to(outside)

    monkeypatch.setattr(os, "chown", watched)
    user.give(given)
    assert [file.stat() for file in sorted(outside.iterdir())] == before
    module = given / "module" if not away.exists() else away
    assert {one.stat().st_uid for one in (given, module, *module.iterdir())} == {user.uid}
