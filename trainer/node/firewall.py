"""Host firewall of a node among several: it admits connections of the attempt's own nodes and of nobody else.

Ray and torch listen on every address and unpickle what comes, so that a stranger who reaches them runs code.
The stack's security group keeps strangers out of the network, other runs of the stack are inside; this keeps
those out as well. Only for IP: EFA's own protocol passes it by.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from trainer.base.errors import ConfigError

CHAIN = "MAYFLY-NODES"
SSH_PORT = 22  # with attach = ssh; who reaches it is the security group's to say
SECONDS = 60.0


def admit_only(addresses: Sequence[str]) -> None:
    """Refuse what no node of these private IPv4 addresses began, and what this one did not ask for. Raises
    ConfigError if the rules can't be made.
    """
    code = _restore("iptables-restore", rules_of(addresses))
    _restore("ip6tables-restore", rules_of(()))  # no address of ours is one of IPv6, which may be off
    if code:
        why = f"iptables-restore ended with {code}"
        do = "Choose an image_line whose image has iptables with its conntrack match."
        raise ConfigError("the nodes can't be kept from strangers", why=why, do=do)


def rules_of(addresses: Sequence[str]) -> str:
    """Return the rules as iptables-restore reads them, all or none: for IPv4, and without addresses for
    IPv6.
    """
    icmp = "icmp" if addresses else "ipv6-icmp"
    admitted = [f"-s {address}/32" for address in addresses]
    returned = ["-i lo", "-m conntrack --ctstate RELATED,ESTABLISHED", *admitted, f"-p {icmp}"]
    lines = [
        "*filter",
        f":{CHAIN} - [0:0]",
        *(f"-A {CHAIN} {match} -j RETURN" for match in (*returned, f"-p tcp -m tcp --dport {SSH_PORT}")),
        f"-A {CHAIN} -j DROP",
        f"-I INPUT 1 -j {CHAIN}",
        "COMMIT",
    ]
    return "".join(f"{line}\n" for line in lines)


def _restore(program: str, rules: str) -> int:
    """Make rules beside those that there are, and return the program's exit code; 127 if it can't be run."""
    try:
        made = subprocess.run(
            [program, "--noflush"],
            input=rules.encode(),
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return 127
    return made.returncode
