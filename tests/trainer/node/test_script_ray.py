"""Ray for a script of several nodes: what the script is given, who runs it, and when the others end."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nodes import bundle, listed, node, own_user, start, started_by
from trainer.base.cluster import Cluster
from trainer.base.errors import Stopped, UsageError
from trainer.job.reading import job_from
from trainer.node import command as module
from trainer.node import script_ray
from trainer.runs.store import start_key

__all__ = ["bundle", "node", "own_user", "start"]  # fixtures
IDS, ADDRESSES = ("i-1", "i-2"), ("10.0.0.4", "10.0.0.9")
SCRIPT = {"name": "s", "script": {"command": "sh run.sh", "ray": True}, "machine": {"max_duration": "1h"}}


@pytest.fixture
def served(node: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the variables of the Rays that a node of two starts; none is real."""
    begun: list[dict[str, str]] = []

    @contextmanager
    def pretended(node: Any, variables: dict[str, str], **_: Any) -> Iterator[Any]:
        begun.append(dict(variables))
        yield SimpleNamespace(poll=lambda: 1)

    monkeypatch.setattr(module, "ray_of_script", pretended)
    node.uplink.s3.objects[node.status.identity.keys.token] = b"0a" * 32
    return begun


def run(start: Any, node: Any, monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    node.uplink.s3.objects[start_key("r", 1)] = started_by("r", *ids, addresses=ADDRESSES)
    monkeypatch.setattr(module, "nodes_of", lambda manifest: 2)
    read = module.has_ray
    monkeypatch.setattr(module, "has_ray", lambda node, manifest: read(node, manifest) or True)
    start(
        'echo "$RAY_ADDRESS $RAY_AUTH_MODE" > $MAYFLY_OUT/told; cat "$RAY_AUTH_TOKEN_PATH" > $MAYFLY_OUT/token'
    )


def test_the_script_runs_on_the_first_node_with_ray(node, start, served, monkeypatch):
    run(start, node, monkeypatch, *IDS)
    files = listed(node)
    assert files["told"] == "10.0.0.4:6380 token\n"
    assert (len(served), served[0]["RAY_ADDRESS"]) == (1, "10.0.0.4:6380")
    (token,) = node.work.rglob("ray-token")
    assert token.stat().st_mode & 0o777 == 0o600 and token.read_text() == "0a" * 32


@pytest.mark.skipif(os.geteuid() != 0, reason="Ray and the script have a user of their own")
def test_a_script_that_is_started_again_finds_its_ray(node, own_user, start, monkeypatch):
    @contextmanager
    def pretended(node: Any, variables: dict[str, str], **_: Any) -> Iterator[Any]:
        with subprocess.Popen(["sleep", "1000"], user=own_user.uid) as ray:
            (node.work / "command" / "checkpoints" / "ray").write_text(f"{ray.pid}")
            yield ray
            ray.kill()

    monkeypatch.setattr(module, "ray_of_script", pretended)
    monkeypatch.setattr(module, "admit_only", lambda addresses: None)
    monkeypatch.setattr(module, "nodes_of", lambda manifest: 2)
    monkeypatch.setattr(module, "has_ray", lambda node, manifest: True)
    node.uplink.s3.objects[node.status.identity.keys.token] = b"0a" * 32
    node.uplink.s3.objects[start_key("r", 1)] = started_by("r", *IDS, addresses=ADDRESSES)
    start("""
[ -f again ] || { touch again; kill -KILL $$; }
grep -q "State:.S" /proc/$(cat $MAYFLY_CHECKPOINTS/ray)/status && echo there > $MAYFLY_OUT/ray
""")
    assert node.status.scripts[0]["starts"] == 2 and listed(node) == {"ray": "there\n"}


def test_the_others_only_serve(node, start, served, monkeypatch):
    run(start, node, monkeypatch, *reversed(IDS))
    assert len(served) == 1 and listed(node) == {} and node.status.scripts == []


def test_a_serving_node_ends_with_the_heads_ray(node, monkeypatch):
    with socket.create_server(("127.9.0.2", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(script_ray, "head_port", lambda cluster: port)
        node.cluster = Cluster(node=1, addresses=("127.9.0.2", "127.9.0.3"))
        assert script_ray.answers(node)
    assert not script_ray.answers(node)
    monkeypatch.setattr(script_ray, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(script_ray, "POLL_SECONDS", 0.0)
    asked: list[int] = []
    monkeypatch.setattr(script_ray, "answers", lambda node: len(asked) < 4)
    script_ray.serve(node, SimpleNamespace(poll=lambda: asked.append(1)))
    assert len(asked) == 3 + script_ray.MOST_MISSED + 1
    node.stop("stop.json")
    with pytest.raises(Stopped):
        script_ray.serve(node, SimpleNamespace(poll=lambda: None))


def test_ray_needs_several_machines_and_one_script():
    with pytest.raises(UsageError, match="script.ray without machine.nodes"):
        job_from(SCRIPT)
    several = {**SCRIPT, "machine": {"max_duration": "1h", "nodes": 2}}
    assert job_from(several).script.ray
    with pytest.raises(UsageError, match="script.ray with script.over"):
        job_from({**several, "script": {**SCRIPT["script"], "over": {"a": [1]}}})
