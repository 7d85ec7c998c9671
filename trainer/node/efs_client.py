"""The EFS client of a node whose image has none: AWS's mount helper, pinned by hash, and a tunnel for it.

    python3 -I efs_client.py install   # as root: volumes.sh calls it before it mounts the cache
    stunnel -help | CONFIGURATION      # this file, too: what mount.efs calls for a TLS tunnel

mount.efs signs in with the instance's role and puts role and access point in a client certificate. Its own
tunnel would have to be built, and Ubuntu's packages of stunnel and of the NFS client come over HTTP, which
the security group does not let out. So the tunnel is here, and NFS is mounted by the kernel alone.

Standard library only, for Python 3.9 and later: the image's own Python runs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import ssl
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# amazon-efs-utils v2.4.2 (MIT), the last version whose mount helper is one file (looked up 2026-11-24).
COMMIT = "e79f9c16a7b8e049043db58244db11c184f49b47"
SOURCE = "https://raw.githubusercontent.com/aws/efs-utils"
FILES = {  # path in the source -> place, mode, SHA-256
    "src/mount_efs/__init__.py": (
        *("sbin/mount.efs", 0o755),
        "6c7dc1296f3d54da50c00fece3f78f5c521c064689810045cff94bf2c47741c9",
    ),
    "dist/efs-utils.conf": (
        *("etc/amazon/efs/efs-utils.conf", 0o644),
        "8d66bc17c9aaf79044db68ee08a962f07cc69b8a0f665d66194dd27f49d83351",
    ),
    "dist/efs-utils.crt": (
        *("etc/amazon/efs/efs-utils.crt", 0o644),
        "114035cb7947d9a22905ae21f2f42660c9adb851b17edc2aa9bd293c08af7f99",
    ),
}
LOG = "var/log/amazon/efs"  # mount.efs writes there
# `mount -i` asks the kernel without a helper: it needs the address, and fails while no tunnel listens.
NFS = """#!/bin/sh
tries=0
until mount -i -t nfs4 -o "$4,addr=127.0.0.1" "$1" "$2"; do
  tries=$((tries + 1))
  [ $tries -lt 5 ] || exit 32
  sleep 1
done
"""
BLOCK = 1 << 20


def install(root: Path, fetch: Callable[[str], bytes]) -> None:
    """Install mount.efs, and what it calls where the image lacks it. Raises ValueError for another hash."""
    contents = {path: fetch(f"{SOURCE}/{COMMIT}/{path}") for path in FILES}
    for path, content in contents.items():
        if (found := hashlib.sha256(content).hexdigest()) != FILES[path][2]:
            raise ValueError(
                f"{path} of amazon-efs-utils {COMMIT[:8]} has sha256 {found}, not {FILES[path][2]}"
            )
    (root / LOG).mkdir(parents=True, exist_ok=True)
    for path, (place, mode, _) in FILES.items():
        write(root / place, contents[path], mode)
    tunnel = f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).resolve()} "$@"\n'
    for place, script in (("usr/local/sbin/stunnel", tunnel), ("sbin/mount.nfs4", NFS)):
        if shutil.which(Path(place).name, path=f"{root}/usr/sbin:{root}/sbin:{root}/usr/bin") is None:
            write(root / place, script.encode(), 0o755)


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file with its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def fetch(url: str) -> bytes:
    """Return what a URL holds. Raises OSError."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def settings_of(configuration: Path) -> dict[str, str]:
    """Return the settings of a stunnel configuration, as mount.efs writes it."""
    lines = configuration.read_text().splitlines()
    return dict(line.split(" = ", 1) for line in lines if " = " in line)


def context_of(settings: dict[str, str]) -> ssl.SSLContext:
    """Return the client's side of TLS: it checks the server's name and chain, and shows its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = (
        ssl.TLSVersion.TLSv1_2
    )  # as mount.efs asks stunnel for
    context.load_verify_locations(settings["CAfile"])
    context.load_cert_chain(settings["cert"], settings["key"])
    return context


def is_roots(near: int, far: int) -> bool:
    """Return whether the loopback connection from local port `near` to `far` belongs to root or the kernel.

    A script's user must not reach the cache, whose mount it does not see either. The kernel may show user 0
    for a connection that was closed, whoever had it: only state 01 counts, established.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [f"0100007F:{near:04X}", f"0100007F:{far:04X}", "01"]
    return any(row[1:4] == own and row[7] == "0" for row in rows)


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes one way until their source ends."""
    with suppress(OSError):  # either end has gone
        while block := await source.read(BLOCK):
            target.write(block)
            await target.drain()
    target.close()


async def serve(settings: dict[str, str], ready: Callable[[int], None] = lambda port: None) -> None:
    """Accept root's connections and carry each over TLS, until this process ends."""
    host, _, port = settings["connect"].rpartition(":")

    async def connected(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            peer, here = (target.get_extra_info(name)[1] for name in ("peername", "sockname"))
            if not is_roots(peer, here):
                return
            name = settings["checkHost"]
            far = await asyncio.open_connection(
                host, int(port), ssl=context_of(settings), server_hostname=name, limit=BLOCK
            )
            await asyncio.gather(carry(source, far[1]), carry(far[0], target))
        except OSError as error:
            with suppress(OSError):  # mount.efs, which reads this, may have ended
                print(f"tunnel: {settings['connect']}: {error}", file=sys.stderr)
        finally:
            target.close()

    near, _, at = settings["accept"].rpartition(":")
    server = await asyncio.start_server(connected, near, int(at), limit=BLOCK)
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def main(words: list[str]) -> int:
    """Install, or be the tunnel."""
    if words == ["install"]:
        try:
            install(Path("/"), fetch)
        except (OSError, ValueError) as error:
            print(f"mount.efs can't be installed: {error}", file=sys.stderr)
            return 1
    elif words == ["-help"]:
        print("checkHost = name that the server's certificate must have", file=sys.stderr)
    else:
        asyncio.run(serve(settings_of(Path(words[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
