"""The front: one WSGI callable that every request to the embedded AWS goes through. A rule answers it, or
moto does.

Every process on this machine can reach its port, and so can every web page in a browser. So a request must
have this server's Host, no Origin, and a signature by a key of this server. The server's own paths have other
checks of a secret: /imds/<instance>/<secret>/... is that instance's metadata, /efs/<instance>/<secret>/...
says what it may mount, and /_rehearsal/... is the server's control (`server` mounts all three).

The access key names account and caller. A rule takes a parsed call and returns the members of its result, or
moto's whole answer; one table has them all, from `storage`, `compute`, `scheduling`, `lambdas`, `identities`
and `messages`. Permissions are not checked: the account of `tests/aws` does that, which has more rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from email.utils import format_datetime
from http.client import responses

from botocore.exceptions import ClientError

from trainer.base.errors import FULL
from trainer.base.instants import utc_now
from trainer.rehearsal import (
    compute,
    identities,
    lambdas,
    messages,
    scheduling,
    signatures,
    storage,
    wire,
)
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.keys import Keyring
from trainer.rehearsal.wire import Answer, Call, Environ, StartResponse
from trainer.rehearsal.world import AwsError

_OWNERS = (storage, compute, scheduling, lambdas, identities, messages)
RULES: Rules = {key: rule for owner in _OWNERS for key, rule in owner.RULES.items()}
Mount = Callable[[Environ, bytes], Answer]
MOST_MOUNT_BYTES = 1 << 20
# First parts of paths that moto answers itself, for any caller.
_MOTOS_OWN = ("moto-api", "favicon.ico", "latest")


class Front:
    """Answer requests for any number of accounts, each with its own cloud."""

    def __init__(self, make_cloud: Callable[[str], EmbeddedAccount], keyring: Keyring, rules: Rules) -> None:
        self._make_cloud, self._keyring, self._rules = make_cloud, keyring, rules
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
        try:
            first = self._check_place(environ)
            if mount := self.mounts.get(first):
                signatures.check_length(environ, MOST_MOUNT_BYTES)
                return _send(mount(environ, wire.read_body(environ)), start_response)
            body = self._check_sender(environ)
        except AwsError as error:
            return _send(wire.refusal(environ, error), start_response)
        return _send(self._answer(environ, body), start_response)

    def inside(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request that this process makes itself, without a socket: it needs no signature (WSGI)."""
        return _send(self._answer(environ, wire.read_body(environ)), start_response)

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

    def _answer(self, environ: Environ, body: bytes) -> Answer:
        account, _, _ = wire.account_of(environ)
        call = wire.decode(environ, body)
        if call is None:
            unknown = AwsError("InvalidRequest", "The embedded AWS knows no such operation.", 400)
            return wire.refusal(environ, unknown)
        cloud = self.cloud(account)
        status, headers, content = self._carry_out(cloud, call)
        # The desk reads AWS's time from every answer.
        date = ("Date", format_datetime(cloud.clock.now(), usegmt=True))
        headers = [*(one for one in headers if one[0].lower() != "date"), date]
        return status, headers, b"" if environ["REQUEST_METHOD"] == "HEAD" else content

    def _carry_out(self, cloud: EmbeddedAccount, call: Call) -> Answer:
        rule = self._rules.get((call.service, call.operation))
        try:
            principal = identities.principal_of(cloud, wire.access_key_of(call.environ), call.service)
            cloud.before(call, principal)
            result = rule(cloud, call) if rule else wire.collect(call.environ, call.account)
            cloud.after(call)
        except AwsError as error:
            return wire.encode(call, error)
        except ClientError as error:  # of a bucket, which raises what clients of S3 see
            answer = error.response
            status = int(answer["ResponseMetadata"]["HTTPStatusCode"])
            return wire.encode(call, AwsError(answer["Error"]["Code"], answer["Error"]["Message"], status))
        except OSError as error:
            if error.errno not in FULL:
                raise
            # 507: boto3 retries after a 500, and would report what the half-finished first try left.
            return wire.encode(call, AwsError("DiskFull", f"No space left on the disk of {cloud.root}", 507))
        return result if isinstance(result, tuple) else wire.encode(call, result)


def _send(answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
    """Send an answer, without the headers by which moto lets web pages read its answers."""
    status, headers, body = answer
    headers = [one for one in headers if not one[0].lower().startswith("access-control-")]
    start_response(f"{status} {responses.get(status, 'Unknown')}", headers)
    return [body]
