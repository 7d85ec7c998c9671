"""The store of torchrun is on loopback alone, and new for each start of the ranks."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from trainer.train.ranks.torchrun import StaticRendezvous

LOOPBACK = "127.0.0.1"


def listening_on(port: int) -> set[str]:
    """Return the addresses on which somebody listens to a port, as the kernel writes them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, number = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(number, 16) == port:
                found.add(address)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="by the kernel's table")
def test_each_start_has_a_new_store_on_loopback_alone():
    rendezvous = StaticRendezvous("run", address=LOOPBACK, port=0, node=0, nodes=1)
    ports = []
    for start in range(2):
        found = rendezvous.next_rendezvous()
        info = found.bootstrap_store_info
        assert (found.rank, found.world_size, info.master_addr) == (0, 1, LOOPBACK)
        assert listening_on(info.master_port) == {"0100007F"}
        client = TCPStore(LOOPBACK, info.master_port, is_master=False, timeout=timedelta(seconds=500))
        assert not client.check(["of a rank"])
        client.set("of a rank", str(start))
        ports.append(info.master_port)
    assert ports[0] != ports[1]
