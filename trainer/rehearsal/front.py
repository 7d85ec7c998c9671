"""The front: one WSGI callable that every request to the embedded AWS goes through. A rule answers it, or moto does.

Paths of its own: /imds/<instance>/... is that instance's metadata, /_rehearsal/... the server's control (`server` mounts both).
Which account is meant stands in the access key. Rules are dict in, dict out, one table; see `storage`, `compute`,
`scheduling` and `lambdas`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from email.utils import format_datetime
from http.client import responses

from trainer.rehearsal import compute, lambdas, scheduling, storage, wire
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.wire import Answer, Call, Environ, StartResponse
from trainer.rehearsal.world import AwsError

RULES: Rules = {**storage.RULES, **compute.RULES, **scheduling.RULES, **lambdas.RULES}
# What services answer to an access key that nobody has; the others, whose answers are JSON, all say the same.
_UNKNOWN_KEY = {
    "ec2": ("AuthFailure", 401),
    "s3": ("InvalidAccessKeyId", 403),
    "iam": ("InvalidClientTokenId", 403),
    "sts": ("InvalidClientTokenId", 403),
}
Mount = Callable[[Environ, bytes], Answer]


class Front:
    """Answer requests for any number of accounts, each with its own cloud."""

    def __init__(self, make_cloud: Callable[[str], EmbeddedAccount]) -> None:
        self._make_cloud = make_cloud
        self._clouds: dict[str, EmbeddedAccount] = {}
        self._lock = threading.Lock()
        self.mounts: dict[str, Mount] = {}  # first part of the path -> who answers

    def cloud(self, account: str) -> EmbeddedAccount:
        """Return an account's cloud, made (and restored from memory) when first asked for."""
        with self._lock:
            if account not in self._clouds:
                self._clouds[account] = self._make_cloud(account)
            return self._clouds[account]

    def clouds(self) -> list[EmbeddedAccount]:
        """Return every cloud there is."""
        with self._lock:
            return list(self._clouds.values())

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        mount = self.mounts.get(environ.get("PATH_INFO", "").split("/")[1])
        body = wire.read_body(environ)
        if mount is not None:
            return _respond(mount(environ, body), start_response)
        try:
            account, _, _ = wire.account_of(environ)
        except AwsError as error:
            text = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
            return _respond((error.status, [("Content-Type", "application/xml")], text.encode()), start_response)
        call = wire.decode(environ, body)
        if call is None:
            return wire.to_moto(environ, account, start_response)
        if not account:
            code, status = _UNKNOWN_KEY.get(call.service, ("UnrecognizedClientException", 403))
            refused = AwsError(code, "The security token included in the request is invalid.", status)
            return _respond(wire.encode(call, refused), start_response)
        return self._answer(call, start_response)

    def _answer(self, call: Call, start_response: StartResponse) -> Iterable[bytes]:
        cloud = self.cloud(call.account)
        with cloud.lock:
            cloud.calls.append((call.service, call.operation))
            before = cloud.world.take_fault(call.operation, after=False)
            after = None if before else cloud.world.take_fault(call.operation, after=True)
        rule = RULES.get((call.service, call.operation))
        if rule is None and not before and not after:
            return wire.to_moto(call.environ, call.account, start_response)
        try:
            if before:
                raise before
            result = rule(cloud, call) if rule else wire.collect(call.environ, call.account)
            if after:
                raise after
        except AwsError as error:
            return _respond(wire.encode(call, error), start_response)
        status, headers, answered = result if isinstance(result, tuple) else wire.encode(call, result)
        date = format_datetime(cloud.clock.now(), usegmt=True)  # the desk reads AWS's clock from it
        headers = [*((name, value) for name, value in headers if name.lower() != "date"), ("Date", date)]
        return _respond((status, headers, answered), start_response)


def _respond(answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
    status, headers, body = answer
    if not any(name.lower() == "content-length" for name, _ in headers):
        headers = [*headers, ("Content-Length", str(len(body)))]
    start_response(f"{status} {responses.get(status, 'Unknown')}", headers)
    return [body]
