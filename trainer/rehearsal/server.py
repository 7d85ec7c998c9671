"""The embedded AWS as a server: in this process for tests (`EmbeddedAws`), or a process of its own for commands.

Run by `client`, and by hand for a look:

    python -m trainer.rehearsal.server --root .mayfly
"""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server

from trainer.access import Access
from trainer.rehearsal import storage
from trainer.rehearsal.catalogue import Catalogue
from trainer.rehearsal.cloud import REGION, Cloud
from trainer.rehearsal.front import Front
from trainer.rehearsal.object_log import ObjectLog
from trainer.rehearsal.wire import access_key
from trainer.rehearsal.world import Delays, World

log = logging.getLogger("trainer.rehearsal")
_accounts = itertools.count(1)  # in this process: moto's state is its own, whoever starts a server in it


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer waits 40 ms for an acknowledgement between its head and its body

    def log(self, type: str, message: str, *args: Any) -> None:
        if type == "error":
            log.error(message.rstrip(), *args)


class EmbeddedAws:
    """An AWS in this process, for as long as the context lasts; in memory where `root` is None."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        catalogue: Catalogue = "historic",
        delays: Delays | None = None,
        run_nodes: bool = True,
        fire_schedules: bool = True,
    ) -> None:
        self.persistent = root is not None
        self.root = root or Path(tempfile.mkdtemp(prefix="mayfly-aws-"))
        self._catalogue = catalogue
        self._delays = delays or Delays(pending_seconds=0, shutting_down_seconds=0)
        self._run_nodes, self._fire_schedules = run_nodes, fire_schedules
        self.front = Front(self._make_cloud)
        self._server = make_server("127.0.0.1", 0, self.front, threaded=True, request_handler=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="embedded-aws")

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> EmbeddedAws:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if not self.persistent:
            shutil.rmtree(self.root, ignore_errors=True)

    def account(self) -> Access:
        """Return access to an account that nobody has used."""
        return self.access(f"{next(_accounts):012d}")

    def access(self, account: str) -> Access:
        """Return access to the account of that number."""
        key = access_key(account)
        return Access(region=REGION, endpoint_url=self.url, access_key=key, secret_key="rehearsal", rehearsal=True)

    def cloud(self, access: Access) -> Cloud:
        """Return what stands behind an access."""
        return self.front.cloud((access.access_key or "")[4:16])

    def world(self, access: Access) -> World:
        """Return the world behind an access, for its faults: full pools, lost answers."""
        return self.cloud(access).world

    def _make_cloud(self, account: str) -> Cloud:
        memory = ObjectLog(self.root / "s3" / account, account) if self.persistent else None
        cloud = Cloud(
            account=account,
            root=self.root,
            catalogue=self._catalogue,
            delays=self._delays,
            objects=memory,
            run_nodes=self._run_nodes,
            fire_schedules=self._fire_schedules,
            endpoint=lambda: self.url,
        )
        storage.restore(cloud)
        return cloud
