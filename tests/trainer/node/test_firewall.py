"""The firewall of a node among several, made by real tools in two network namespaces that end with their test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from trainer.base.errors import ConfigError
from trainer.node import firewall
from trainer.node.firewall import admit_only, rules_of

OWN, PEER, STRANGER = "10.0.0.4", "10.0.0.9", "10.0.0.66"
# This side is the node. The other one has two addresses, of a node of the attempt and of one of another run.
IN_NAMESPACES = """
import json, socket, subprocess, sys
from trainer.node import firewall

own, peer, stranger = sys.argv[1:4]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
other = subprocess.Popen(["unshare", "--net", "sleep", "60"], **quiet)

def here(line):
    subprocess.run(line.split(), check=True)

def there(line, **more):
    return subprocess.run(["nsenter", "--net", "--target", str(other.pid), *line], **more)

while there(["true"]).returncode or there(["readlink", "/proc/self/ns/net"], capture_output=True).stdout \\
        == subprocess.run(["readlink", "/proc/self/ns/net"], capture_output=True).stdout:
    pass
here("ip link set lo up")
here(f"ip link add node type veth peer name others netns {other.pid}")
here(f"ip address add {own}/24 dev node")
here("ip link set node up")
for address in (peer, stranger):
    there(["ip", "address", "add", f"{address}/24", "dev", "others"], check=True)
there(["ip", "link", "set", "others", "up"], check=True)

servers = []
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    server = socket.socket(socket.AF_INET, kind)
    server.bind(("0.0.0.0", 6379))  # as Ray listens
    if kind is socket.SOCK_STREAM:
        server.listen()
    server.settimeout(0.5)
    servers.append(server)

ASK = '''
import socket, sys
try:
    socket.create_connection((sys.argv[1], 6379), timeout=1, source_address=(sys.argv[2], 0)).sendall(b"x")
    print("connected")
except OSError as error:
    print(type(error).__name__)
said = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
said.bind((sys.argv[2], 0))
said.sendto(b"hello", (sys.argv[1], 6379))
'''

def asked(address):
    tcp = there([sys.executable, "-I", "-c", ASK, own, address], capture_output=True, text=True).stdout.strip()
    try:
        udp = servers[1].recvfrom(9)[1][0] == address
    except TimeoutError:
        udp = False
    return [tcp, udp]

def answered():
    with socket.socket() as client:
        client.settimeout(5)
        listening = "import socket; s = socket.create_server(('" + stranger + "', 443)); print(flush=True); "
        listening += "s.accept()[0].sendall(b'answer')"
        child = subprocess.Popen(["nsenter", "--net", "--target", str(other.pid), sys.executable, "-I", "-c", listening],
                                 stdout=subprocess.PIPE)
        child.stdout.readline()
        client.connect((stranger, 443))
        answer = client.recv(9).decode()
        child.wait()
        return answer

told = {"before": [asked(peer), asked(stranger)]}
firewall.admit_only((own, peer))
told["after"] = [asked(peer), asked(stranger)]
told["own"] = socket.create_connection(("127.0.0.1", 6379), timeout=1).getpeername()[0]
told["answer"] = answered()  # as of S3
other.kill()
print(json.dumps(told))
"""


def in_namespaces() -> dict[str, Any]:
    """Return what a node and a stranger reach, before the rules and after. Skips with its reason where there is
    no root, no tool, or a kernel without a match.
    """
    tools = ("ip", "iptables-restore", "unshare", "nsenter")
    if os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip(f"needs root and {', '.join(tools)}")
    rules = rules_of((OWN,)).encode()
    tried = subprocess.run(
        ["unshare", "--net", "iptables-restore", "--noflush"], input=rules, capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no firewall rule can be made here: {tried.stderr.decode().strip()}")
    command = ["unshare", "--net", sys.executable, "-I", "-c", IN_NAMESPACES, OWN, PEER, STRANGER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_only_nodes_of_the_attempt_reach_a_node() -> None:
    told = in_namespaces()
    assert told["before"] == [["connected", True], ["connected", True]]
    assert told["after"] == [["connected", True], ["TimeoutError", False]]
    assert told["own"] == "127.0.0.1" and told["answer"] == "answer"


def test_the_rules_name_each_node_and_end_with_a_drop() -> None:
    lines = rules_of((OWN, PEER)).splitlines()
    assert lines[0] == "*filter" and lines[-2:] == ["-I INPUT 1 -j MAYFLY-NODES", "COMMIT"]
    assert [line for line in lines if " -s " in line] == [
        f"-A MAYFLY-NODES -s {address}/32 -j RETURN" for address in (OWN, PEER)
    ]
    assert lines[-3] == "-A MAYFLY-NODES -j DROP"
    assert " -s " not in rules_of(()) and "ipv6-icmp" in rules_of(())


@pytest.mark.parametrize("code", [2, 127])
def test_a_node_without_its_rules_ends(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "_restore", lambda program, _: code if program[2] != "6" else 0)
    with pytest.raises(ConfigError, match=f"kept from strangers .iptables-restore ended with {code}"):
        admit_only((OWN, PEER))
