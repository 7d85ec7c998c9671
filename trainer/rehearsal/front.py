"""The front: one WSGI callable that every request to the embedded AWS goes through. A rule answers it, or
moto does.

Every process on this machine can reach its port, and so can every web page in a browser. So a request must
have this server's Host, no Origin, and a signature by a key of this server. The server's own paths have other
checks of a secret: /imds/<instance>/<secret>/... is that instance's metadata, /efs/<instance>/<secret>/...
says what it may mount, and /_rehearsal/... is the server's control (`server` mounts all three).

The access key names account and caller; `authorization` checks the caller's policies. A rule takes a parsed
call and returns the members of its result, or moto's whole answer; one table has them all, from `storage`,
`compute`, `scheduling`, `lambdas`, `identities`, `topics`, `alarms` and `sessions`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from email.utils import format_datetime
from http.client import responses

from trainer.rehearsal import (
    alarms,
    compute,
    identities,
    image_builder,
    lambdas,
    quotas,
    scheduling,
    sessions,
    signatures,
    storage,
    topics,
    wire,
)
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.authorization import authorize
from trainer.rehearsal.home import FULL
from trainer.rehearsal.keys import Keyring
from trainer.rehearsal.wire import Answer, Call, Environ, StartResponse
from trainer.rehearsal.world import AwsError
from trainer.runs.record import utc_now

_OWNERS = (storage, compute, scheduling, lambdas, identities, quotas, topics, alarms, sessions, image_builder)
RULES: Rules = {key: rule for owner in _OWNERS for key, rule in owner.RULES.items()}
Mount = Callable[[Environ, bytes], Answer]
MOST_MOUNT_BYTES = 1 << 20
_MOTOS_OWN = (
    "moto-api",
    "favicon.ico",
    "latest",
)  # first parts of paths that moto answers itself, for any caller


class Front:
    """Answer requests for any number of accounts, each with its own cloud."""

    def __init__(self, make_cloud: Callable[[str], EmbeddedAccount], keyring: Keyring) -> None:
        self._make_cloud, self._keyring = make_cloud, keyring
        self.host = ""  # address and port, as the Host header has to say; set once the server listens
        self._clouds: dict[str, EmbeddedAccount] = {}
        self._lock = threading.Lock()
        self.mounts: dict[str, Mount] = {}  # first part of the path -> handler

    def cloud(self, account: str) -> EmbeddedAccount:
        """Return an account's cloud, made (and restored from memory) when first asked for."""
        with self._lock:
            if account not in self._clouds:
                self._clouds[account] = self._make_cloud(account)
            return self._clouds[account]

    def clouds(self) -> list[EmbeddedAccount]:
        """Return every cloud."""
        with self._lock:
            return list(self._clouds.values())

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        start_response = _without_cors(start_response)
        try:
            first = self._check_place(environ)
            if mount := self.mounts.get(first):
                return _respond(mount(environ, _small_body(environ)), start_response)
            body = self._check_sender(environ)
        except AwsError as error:
            return _respond(wire.refusal(environ, error), start_response)
        return self._answer(environ, body, start_response)

    def inside(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request that this process makes itself, without a socket: it needs no signature (WSGI)."""
        return self._answer(environ, wire.read_body(environ), start_response)

    def _check_place(self, environ: Environ) -> str:
        """Refuse requests that a web page can make; return the first part of the path."""
        if environ.get("HTTP_HOST") != self.host or "HTTP_ORIGIN" in environ:
            raise AwsError("AccessDenied", "The embedded AWS answers only programs of its own user.", 403)
        path = environ.get("RAW_URI", "")
        first = environ.get("PATH_INFO", "").split("/")[1] if path.startswith("/") else _MOTOS_OWN[0]
        if first in _MOTOS_OWN:
            raise AwsError("AccessDenied", "There is nothing here.", 403)
        return first

    def _check_sender(self, environ: Environ) -> bytes:
        """Return the body of a request, which a key of this server must have signed. Raises AwsError for
        others.
        """
        claim = signatures.claim_of(environ)
        account, _, service = wire.account_of(environ)
        if not account:
            raise identities.unknown_key(service)
        signatures.check_time(claim, utc_now())
        secret_key = self._keyring.secret_key(claim.access_key)
        if not signatures.hashes_its_body(environ):
            body = wire.read_body(environ)
            signatures.check_signature(claim, environ, body, secret_key=secret_key)
            return body
        signatures.check_signature(claim, environ, b"", secret_key=secret_key)
        body = wire.read_body(environ)
        signatures.check_body(environ, body)
        return body

    def _answer(self, environ: Environ, body: bytes, start_response: StartResponse) -> Iterable[bytes]:
        account, _, _ = wire.account_of(environ)
        call = wire.decode(environ, body)
        if call is None:
            return self._pass_on(environ, account, start_response)
        cloud = self.cloud(account)
        start_response = _dated(start_response, cloud)
        try:
            authorize(cloud, call, wire.access_key_of(environ))
        except AwsError as error:
            status, headers, content = wire.encode(call, error)
            return _respond(
                (status, headers, b"" if environ["REQUEST_METHOD"] == "HEAD" else content), start_response
            )
        try:
            return self._carry_out(cloud, call, start_response)
        finally:
            if call.service == "iam" and not call.operation.startswith(("Get", "List")):
                cloud.identities.clear()

    def _pass_on(self, environ: Environ, account: str, start_response: StartResponse) -> Iterable[bytes]:
        """Let moto answer requests without a botocore model; callers with policies are refused."""
        try:
            _, _, service = wire.account_of(environ)
            held = identities.principal_of(self.cloud(account), wire.access_key_of(environ), service)
        except AwsError as error:
            return _respond(wire.refusal(environ, error), start_response)
        if held:
            return _respond(
                wire.refusal(environ, AwsError("AccessDenied", "Access Denied", 403)), start_response
            )
        return wire.to_moto(environ, account, start_response)

    def _carry_out(
        self, cloud: EmbeddedAccount, call: Call, start_response: StartResponse
    ) -> Iterable[bytes]:
        with cloud.lock:
            cloud.calls.append((call.service, call.operation))
            asked = not call.params.get("DryRun")  # faults don't apply to dry runs
            before = cloud.world.take_fault(call.operation, after=False) if asked else None
            after = cloud.world.take_fault(call.operation, after=True) if asked and not before else None
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
        except OSError as error:
            if error.errno not in FULL:
                raise
            # 507: boto3 retries after a 500, and would report what the half-finished first try left.
            full = AwsError("DiskFull", f"No space left on the disk of {cloud.root}", 507)
            return _respond(wire.encode(call, full), start_response)
        return _respond(result if isinstance(result, tuple) else wire.encode(call, result), start_response)


def _small_body(environ: Environ) -> bytes:
    """Read the body of a request to one of the server's own paths. Raises AwsError for a body that is too
    large.
    """
    length = environ.get("CONTENT_LENGTH") or "0"
    if environ.get("HTTP_TRANSFER_ENCODING") or not length.isdecimal() or int(length) > MOST_MOUNT_BYTES:
        raise AwsError("RequestEntityTooLarge", "The body is too large.", 413)
    return wire.read_body(environ)


def _without_cors(start_response: StartResponse) -> StartResponse:
    """Return a start_response that drops the headers by which moto lets web pages read its answers."""

    def start(status: str, headers: list[tuple[str, str]], *more: object) -> object:
        return start_response(
            status, [one for one in headers if not one[0].lower().startswith("access-control-")], *more
        )

    return start


def _dated(start_response: StartResponse, cloud: EmbeddedAccount) -> StartResponse:
    """Return a start_response that dates every answer by the account's clock, from which the desk reads AWS's
    time.
    """

    def start(status: str, headers: list[tuple[str, str]], *more: object) -> object:
        date = ("Date", format_datetime(cloud.clock.now(), usegmt=True))
        return start_response(status, [*(one for one in headers if one[0].lower() != "date"), date], *more)

    return start


def _respond(answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
    status, headers, body = answer
    if not any(name.lower() == "content-length" for name, _ in headers):
        headers = [*headers, ("Content-Length", str(len(body)))]
    start_response(f"{status} {responses.get(status, 'Unknown')}", headers)
    return [body]
