"""Pulumi mocks of a rehearsal: they create resources and answer look-ups with the embedded AWS."""

from __future__ import annotations

import threading
from typing import Any

from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks

from trainer.aws.access import Access
from trainer.rehearsal import pulumi_messages as pulumi_messages  # registers its resource types
from trainer.rehearsal import pulumi_network as pulumi_network  # likewise
from trainer.rehearsal import pulumi_storage as pulumi_storage  # and this one
from trainer.rehearsal.applied_program import Recorder
from trainer.rehearsal.pulumi_lookups import look_up
from trainer.rehearsal.pulumi_resources import Resources


class EmbeddedCloud(Mocks):
    """Pulumi's mocks that create each resource on the embedded AWS."""

    def __init__(self, access: Access, *, account: str) -> None:
        self.recorder = Recorder()
        self.resources = Resources(access, account=account, recorder=self.recorder)
        self._lock = threading.Lock()  # Pulumi registers resources from several threads

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if not args.custom:  # a component, or the stack itself: nothing on AWS
            return "", dict(args.inputs)
        with self._lock:
            resource_id, outputs = self.resources.make(args.typ, args.name, args.inputs)
        echoed = {
            key: value for key, value in args.inputs.items() if key != "code"
        }  # an archive is never read back
        return resource_id, {**echoed, **outputs}

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        with self._lock:
            return look_up(self.resources, args.token, args.args), []
