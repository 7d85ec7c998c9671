"""The file by which an agent tells its command of the other nodes."""

from __future__ import annotations

import json

import pytest

from trainer.base.cluster import Cluster, read_cluster, write_cluster
from trainer.base.errors import UsageError


def test_what_is_written_is_read(tmp_path):
    cluster = Cluster(node=1, addresses=("10.0.0.5", "10.0.0.9", "127.0.0.3"))
    write_cluster(tmp_path / "cluster.json", cluster)
    assert read_cluster(tmp_path / "cluster.json") == cluster
    assert (cluster.head, cluster.address, cluster.is_head) == ("10.0.0.5", "10.0.0.9", False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "format is not 1"),
        ({"addresses": ["10.0.0.5"]}, "two or more"),
        ({"addresses": ["10.0.0.5", "10.0.0.5"]}, "two or more"),
        ({"node": 2}, "this one among them"),
        ({"node": -1}, "node"),
        ({"addresses": ["10.0.0.5", "8.8.8.8"]}, "private network"),
        ({"addresses": ["10.0.0.5", "0.0.0.0"]}, "private network"),
        ({"addresses": ["10.0.0.5", "a;b"]}, "not an IPv4 address"),
    ],
)
def test_another_file_is_refused(tmp_path, change, why):
    body = {"format": 1, "node": 0, "addresses": ["10.0.0.5", "10.0.0.9"], **change}
    (tmp_path / "cluster.json").write_text(json.dumps(body))
    with pytest.raises(UsageError, match=why):
        read_cluster(tmp_path / "cluster.json")
