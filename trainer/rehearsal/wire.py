"""AWS's wire format: any request to (service, operation, parameters), a result or an error back, and calls
into moto itself.

moto's own parsers, routers and serializers do the work; they are internal to it, which is why moto is pinned
exactly. Only this module, `http_server` and `catalogue` import moto. It has no rules of services.
"""

from __future__ import annotations

import functools
import io
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.aws.checksums import without_runtime
from trainer.base import environment

# moto reads this when it is imported: the images of the embedded AWS instead of thousands of its own (0.3 s a
# region).
environment.set_moto_images(Path(__file__).with_name("images.json"))

with without_runtime():
    import botocore.session  # noqa: E402  (the variable above comes first)
from botocore.awsrequest import HeadersDict  # noqa: E402
from botocore.exceptions import UnknownServiceError  # noqa: E402
from botocore.loaders import create_loader  # noqa: E402
from botocore.parsers import create_parser  # noqa: E402
from botocore.serialize import create_serializer  # noqa: E402
from moto.backends import get_backend  # noqa: E402
from moto.core import responses  # noqa: E402
from moto.core.base_backend import BackendDict  # noqa: E402
from moto.core.parse import PROTOCOL_PARSERS  # noqa: E402
from moto.core.request import Request, determine_request_protocol  # noqa: E402
from moto.core.routing import get_service_router  # noqa: E402
from moto.core.serialize import get_serializer_class  # noqa: E402
from moto.core.utils import get_service_model  # noqa: E402
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: E402
from werkzeug.exceptions import HTTPException  # noqa: E402
from werkzeug.test import EnvironBuilder  # noqa: E402

from trainer.aws.access import EMBEDDED_KEY  # noqa: E402
from trainer.rehearsal.keys import REGION, access_key  # noqa: E402
from trainer.rehearsal.world import AwsError  # noqa: E402

Environ = dict[str, Any]
Answer = tuple[int, list[tuple[str, str]], bytes]  # status, headers, body
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

# Signing names of services, where botocore's model has another name.
_MODEL_NAMES = {"elasticfilesystem": "efs", "monitoring": "cloudwatch", "servicequotas": "service-quotas"}
_SIGNING_NAMES = {model: signing for signing, model in _MODEL_NAMES.items()}

# moto opens four sessions when it loads EC2, and each would parse EC2's API description anew, in 0.1 s.
botocore.session.create_loader = functools.lru_cache(maxsize=None)(create_loader)
get_model = functools.lru_cache(maxsize=None)(get_service_model)
_moto = DomainDispatcherApplication(create_backend_app)
# moto searches its folder and its classes at each request: a quarter of its time.
_moto.get_backend_for_host = functools.lru_cache(maxsize=None)(_moto.get_backend_for_host)  # type: ignore[method-assign]
responses.method_names_from_class = functools.lru_cache(maxsize=None)(responses.method_names_from_class)  # type: ignore[attr-defined]
warnings.filterwarnings("ignore", module=r"moto\..*")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One parsed request."""

    service: str
    operation: str
    params: dict[str, Any]
    account: str
    region: str
    environ: Environ
    body: bytes
    model: Any = field(repr=False)
    protocol: str = ""


def account_of(environ: Environ) -> tuple[str, str, str]:
    """Return (account, region, service) that a request claims to be signed for; the account is empty for an
    unknown key.

    Raises AwsError for a request without an Authorization header. `signatures` checks the claim.
    """
    parts = _scope_of(environ)
    match = EMBEDDED_KEY.fullmatch(parts[0])
    if len(parts) < 4:
        raise AwsError("MissingAuthenticationToken", "The embedded AWS answers signed requests only.", 403)
    return (match[1] or match[2]) if match else "", parts[2], _MODEL_NAMES.get(parts[3], parts[3])


def access_key_of(environ: Environ) -> str:
    """Return the access key that a request claims."""
    return _scope_of(environ)[0]


def _scope_of(environ: Environ) -> list[str]:
    return environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition(",")[0].split("/")


def read_body(environ: Environ) -> bytes:
    """Read the request's body as it was sent, and put it back for the next reader."""
    if environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked":
        body = environ["wsgi.input"].read()
        environ.pop("HTTP_TRANSFER_ENCODING")
    else:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["CONTENT_LENGTH"] = str(len(body))
    environ["wsgi.input"] = io.BytesIO(body)
    environ.pop("wsgi.input_terminated", None)
    return bytes(body)


def decode(environ: Environ, body: bytes) -> Call | None:
    """Parse a request, or return None if no model of botocore has its operation."""
    account, region, service = account_of(environ)
    model = get_model(service)
    request = Request(dict(environ, **{"wsgi.input": io.BytesIO(body)}))
    try:
        operation, uri_params = get_service_router(service).match(request)
    except HTTPException:
        return None
    protocol = determine_request_protocol(model, request.content_type)
    raw = {
        "method": request.method,
        "values": request.values,
        "headers": request.headers,
        "body": body,
        "url_path": request.raw_path,
        "url_params": uri_params,
    }
    params = PROTOCOL_PARSERS[protocol](operation).parse(raw)  # type: ignore[arg-type]  # a typed dict of moto's own
    known = {"service": service, "operation": operation.name, "account": account, "region": region}
    return Call(**known, params=params, environ=environ, body=body, model=operation, protocol=protocol)


def encode(call: Call, result: dict[str, Any] | AwsError) -> Answer:
    """Return a result or an error as the service sends it: (status, headers, body)."""
    answer = get_serializer_class(call.service, call.protocol)(call.model).serialize(result)
    body = answer["body"] or b""
    if isinstance(result, AwsError):
        status = result.status
    elif call.operation == "Invoke":  # its HTTP status is a member, which moto's serializer leaves out
        status = int(result["StatusCode"])
    else:
        status = int(answer["status_code"])
    headers = [(name, str(value)) for name, value in answer["headers"].items()]
    return status, headers, body.encode() if isinstance(body, str) else bytes(body)


def refusal(environ: Environ, error: AwsError) -> Answer:
    """Return an error for an unknown caller as the service sends it, without parsing the request."""
    try:
        _, region, service = account_of(environ)
        model = get_model(service)
        protocol = determine_request_protocol(model, environ.get("CONTENT_TYPE"))
    except (AwsError, UnknownServiceError, NotImplementedError):
        text = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
        return error.status, [("Content-Type", "application/xml")], text.encode()
    operation = model.operation_model(model.operation_names[0])
    known = {"service": service, "operation": "", "params": {}, "account": "", "region": region, "body": b""}
    return encode(Call(**known, environ=environ, model=operation, protocol=protocol), error)  # type: ignore[arg-type]


def call_moto(account: str, service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    """Call moto as a client would, without a socket. Raises AwsError with moto's code."""
    return call_application(_moto_of(account), account, service, operation, params)


def state_of(account: str, service: str) -> Any:
    """Return what moto holds of a service in an account."""
    return get_backend(service)[account][REGION]


def call_application(
    application: Application, account: str, service: str, operation: str, params: dict[str, Any]
) -> dict[str, Any]:
    """Send a request to a WSGI application that speaks AWS, and return its parsed answer. Raises AwsError
    with its code.
    """
    model = get_model(service)
    operation_model = model.operation_model(operation)
    protocol = model.resolved_protocol  # the client's choice: moto may not support a model's first protocol
    sent = create_serializer(protocol, False).serialize_to_request(params, operation_model)
    body = sent["body"]
    data = urllib.parse.urlencode(body).encode() if isinstance(body, dict) else body
    scope = f"{access_key(account)}/20260101/{REGION}/{_SIGNING_NAMES.get(service, service)}/aws4_request"
    headers = {
        **sent["headers"],
        "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
    }
    # The path may have a query, such as "?policy", which selects a part of a bucket.
    path, _, fixed_query = sent["url_path"].partition("?")
    queries = (fixed_query, urllib.parse.urlencode(sent["query_string"], doseq=True))
    builder = EnvironBuilder(
        path=path,
        base_url="http://127.0.0.1",
        method=sent["method"],
        query_string="&".join(filter(None, queries)),
        headers=headers,
        data=data,
        content_type=headers.get("Content-Type"),
    )
    status, answer_headers, answer = answer_of(application, builder.get_environ())
    raw = {"status_code": status, "headers": HeadersDict(answer_headers), "body": answer}
    parsed: dict[str, Any] = create_parser(protocol).parse(raw, operation_model.output_shape)
    if status >= 300:
        error = parsed.get("Error", {})
        raise AwsError(error.get("Code", "InternalError"), error.get("Message", ""), status)
    return parsed


def collect(environ: Environ, account: str) -> Answer:
    """Let moto answer an unchanged request, for one account, and return (status, headers, body)."""
    return answer_of(_moto_of(account), environ)


def _moto_of(account: str) -> Application:
    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = account
        return _moto(environ, start_response)

    return answer


def answer_of(application: Application, environ: Environ) -> Answer:
    """Ask a WSGI application, and return (status, headers, body)."""
    seen: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        seen.append((status, headers))

    body = b"".join(application(environ, start_response))
    status, headers = seen[-1]
    return int(status.split()[0]), headers, body


def forget_account(account: str, *, keep: Sequence[str] = ()) -> None:
    """Drop everything that moto holds for an account, but for the services to keep."""
    instances: list[Any] = BackendDict._instances  # type: ignore[misc]
    for backends in list(instances):
        if backends.service_name in keep:
            continue
        backends.pop(account, None)
        if backends.service_name == "s3":
            owners = backends.bucket_accounts
            for bucket in [name for name, (_, owner) in owners.items() if owner == account]:
                del owners[bucket]
