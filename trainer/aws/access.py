"""Access to one AWS: the caller's own account, found by the SDK, or the embedded one of a rehearsal. Clients
and errors.
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from trainer import __version__
from trainer.aws.checksums import without_runtime
from trainer.aws.error_codes import CONNECTION, SDK_FAILED, UNKNOWN, Meaning, meaning
from trainer.aws.place import ACCOUNT, REHEARSAL, Place
from trainer.base import environment
from trainer.base.errors import ConfigError, EmbeddedAwsGone, NotVersioned, TrainerError

# Keys of an embedded AWS (`rehearsal.keys`), which accepts no others; Amazon's have no 0, 1, 8 or 9.
EMBEDDED_KEY = re.compile(r"AKIA(\d{12})(?:DESK|USER[0-9A-F]{16})|ASIA(\d{12})(?:NODE|FUNC|TIME)[0-9A-F]{16}")
MOST_CONNECTIONS = 64  # of a client: more threads than these wait for none, but connect anew each time
SMALL_BODY_BYTES = 2 << 20  # as AWS's SDK for Go has it
T = TypeVar("T")
_LOOPBACK = "http://127.0.0.1:"  # where an embedded AWS listens, never through a proxy


@dataclass(frozen=True, kw_only=True)
class Access:
    """Region, endpoint and credentials of one AWS. Without an endpoint the SDK finds all of them itself."""

    region: str | None = None
    endpoint_url: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    place: Place = ACCOUNT
    folder: Path | None = None  # no AWS at all: a folder instead of the bucket

    def client(self, service: str, *, total_max_attempts: int = 5, timeout_seconds: float = 30.0) -> Any:
        """Return a botocore client. `total_max_attempts=1` leaves every retry to the caller (launches need
        that).

        Clients and their open connections are reused; threads may share one.
        """
        if self.folder is not None:
            from trainer.aws.folder_bucket import FolderBucket  # late: an account's commands need none

            return FolderBucket(self.folder) if service == "s3" else NoService(service)
        with _session_lock:  # a session makes one client at a time
            return _client(self, service, total_max_attempts, timeout_seconds)


class NoService:
    """An AWS service that a folder can't replace: every call fails."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        why = "a folder is used instead of a bucket, without AWS"
        raise ConfigError(
            f"with --local there is no {self._service} to ask", why=why, do="Leave --local out."
        )


def own_access() -> Access:
    """Return access by AWS's own settings; a rehearsal's if their access key is one of an embedded AWS."""
    key = environment.own_access_key() or _configured_key()
    return Access(place=REHEARSAL if EMBEDDED_KEY.fullmatch(key) else ACCOUNT)


@contextmanager
def _loading() -> Iterator[None]:
    """Load many objects, which stay, and never look for garbage among them: a fifth of a client's time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        with without_runtime():
            yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _configured_key() -> str:
    with _loading():
        import botocore.session  # late, like boto3 itself
        from botocore.exceptions import BotoCoreError

    try:
        return str(botocore.session.get_session().get_scoped_config().get("aws_access_key_id", ""))
    except BotoCoreError:  # the next call to AWS reports the error in these files
        return ""


def begin_calls(asks: Sequence[Callable[[], T]], *, most: int) -> list[Future[T]]:
    """Begin calls in order, at most so many at a time, on threads that the end of this process does not wait
    for: it would wait minutes for an answer that nobody wants any more. One that has not begun can be
    cancelled.
    """
    futures = [Future[T]() for _ in asks]
    left, lock = iter(zip(asks, futures, strict=True)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                ask, future = next(left, (None, None))
            if ask is None or future is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(ask())
            except BaseException as error:  # whoever reads the result raises it
                future.set_exception(error)

    for _ in range(min(most, len(futures))):
        threading.Thread(target=work, name="call", daemon=True).start()
    return futures


def user_session() -> Any:
    """Return the session of the user's settings: credentials and region as AWS's tools find them."""
    return _session(own_settings=True)


# Sources of the region. botocore reads the second variable only; AWS's other tools read the first before it.
_REGION_SOURCES = ("region", list(environment.REGION_VARIABLES), None, None)
_session_lock = threading.Lock()


@lru_cache(maxsize=64)  # a process speaks to one account, but for an embedded AWS and its tests
def _client(access: Access, service: str, total_max_attempts: int, timeout_seconds: float) -> Any:
    with _loading():
        return _made(access, service, total_max_attempts, timeout_seconds)


def _made(access: Access, service: str, total_max_attempts: int, timeout_seconds: float) -> Any:
    from botocore.config import Config  # late: 0.3 s, and --help must not pay for it
    from botocore.exceptions import BotoCoreError

    direct = not access.place.has_proxy or (access.endpoint_url or "").startswith(_LOOPBACK)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": total_max_attempts},
        connect_timeout=10,
        read_timeout=timeout_seconds,
        max_pool_connections=MOST_CONNECTIONS,
        s3={"addressing_style": "path"} if access.endpoint_url else {},
        proxies={} if direct else None,  # None: as the environment says
        user_agent=_user_agent(),
    )
    try:
        client = _session(own_settings=access.access_key is None).create_client(
            service,
            region_name=access.region,
            endpoint_url=access.endpoint_url,
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret_key,
            config=config,
        )
    except BotoCoreError:  # some are ValueErrors, too
        raise
    except ValueError as error:  # of the endpoint
        do = "Correct AWS_ENDPOINT_URL, or endpoint_url in AWS's settings, such as http://localhost:4566."
        raise ConfigError(f"{service} can't be asked", why=str(error), do=do) from error
    client.meta.events.register_last("before-call.s3", _send_at_once)
    client.meta.events.register("after-call.s3.GetObject", _translate_reading)
    http = client._endpoint.http_session
    http.send = _reading_errors(http.send)
    return client


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Leave out botocore's question whether S3 wants what a request has, of small ones: it takes the time of
    a second request.
    """
    from botocore.utils import determine_content_length

    length = determine_content_length(params.get("body"))
    if length is not None and length <= SMALL_BODY_BYTES:
        params["headers"].pop("Expect", None)


def _reading_errors(send: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return botocore's function that sends a request, with the text of an error answer read within it: that
    of one about an object botocore reads later, where it lets urllib3's errors through.
    """
    from botocore.exceptions import ConnectionClosedError
    from botocore.httpsession import ProtocolError, URLLib3ReadTimeoutError, URLLib3SSLError

    def send_and_read(request: Any) -> Any:
        response = send(request)
        try:
            if response.status_code >= 300:
                response.content  # noqa: B018  # a property, which keeps what it reads
        except (ProtocolError, URLLib3ReadTimeoutError, URLLib3SSLError) as error:
            raise ConnectionClosedError(endpoint_url=request.url, error=error) from error
        return response

    return send_and_read


def _translate_reading(parsed: dict[str, Any], **_: Any) -> None:
    """Have an object's body raise botocore's error for bytes that TLS refuses."""
    if (body := parsed.get("Body")) is not None:
        body.__class__ = _body_type()


@cache
def _body_type() -> type[Any]:
    """Return botocore's type of a body, with urllib3's error of TLS, which it lets through, as its own."""
    from botocore.exceptions import ResponseStreamingError
    from botocore.httpsession import URLLib3SSLError
    from botocore.response import StreamingBody

    class Body(StreamingBody):  # type: ignore[misc]  # botocore has no types
        def read(self, amt: int | None = None) -> Any:
            try:
                return super().read(amt)
            except URLLib3SSLError as error:
                raise ResponseStreamingError(error=error) from error

    return Body


@cache
def _user_agent() -> str:
    """Return who asks, as CloudTrail shows it. botocore would put its own together twice for each request, a
    tenth of the request's time.
    """
    from botocore import __version__ as botocore_version

    return f"Mayfly/{__version__} Botocore/{botocore_version}"


@cache
def _session(*, own_settings: bool) -> Any:
    """Return the session of this process; a rehearsal's ignores the user's settings, so that a wrong profile
    does no harm.

    Of botocore: boto3's would add its transfers, 50 ms of imports that nobody here uses.
    """
    import botocore.session

    if own_settings:
        variables: dict[str, Any] = {"region": _REGION_SOURCES}
    else:
        variables = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
        variables["profile"] = (None, None, None, None)
    session = botocore.session.Session(session_vars=variables)
    session.register_component("data_loader", _loader())
    session.register_component("response_parser_factory", _parsers())
    return session


class _Every(frozenset[str]):
    """Names that have every name among them."""

    def __contains__(self, name: object) -> bool:
        return True


@cache
def _loader() -> Any:
    """Return botocore's loader of API descriptions, which caches parsed ones."""
    from botocore.loaders import create_loader

    loader = create_loader()
    # Else it looks through the folders of all services, 30 ms, before it opens the one that is asked for.
    loader.list_available_services = lambda type_name: _Every()
    return loader


@cache
def _parsers() -> Any:
    """Return botocore's response parsers, with responses that are no whole answer of AWS turned into
    connection errors.
    """
    from botocore.exceptions import HTTPClientError
    from botocore.parsers import ResponseParserError, ResponseParserFactory

    class NoAnswer(HTTPClientError):  # type: ignore[misc]  # botocore has no types
        fmt = "{error}"

    class Parsers(ResponseParserFactory):  # type: ignore[misc]  # botocore has no types
        def create_parser(self, protocol_name: str) -> Any:
            parser = super().create_parser(protocol_name)
            parse = parser.parse

            def parse_whole(response: Any, shape: Any) -> Any:
                if wrong := _wrong_with(response, shape):
                    raise NoAnswer(error=wrong)
                try:
                    return parse(response, shape)
                except ResponseParserError as error:
                    raise NoAnswer(error=error) from error

            parser.parse = parse_whole
            return parser

    parsers = Parsers()
    parsers.set_parser_defaults(timestamp_parser=moment_of)
    return parsers


_PAGE_BEGINS = (b"<!doctype html", b"<html")


def _wrong_with(response: Any, shape: Any) -> str:
    """Return why a response is no whole answer of AWS, or ''. botocore takes a page of a proxy or a hotel,
    and JSON that ends early, for an answer without members. From 500 on it tries again.
    """
    status, headers, body = response["status_code"], response["headers"], response["body"]
    if status >= 500:
        return ""
    text = body if isinstance(body, bytes) else b""  # else a stream, which counts its own bytes
    is_page = text[:100].lstrip().lower().startswith(_PAGE_BEGINS)
    if not isinstance(body, bytes):  # an object that is a page has an ETag
        is_page = headers.get("Content-Type", "").startswith("text/html") and "ETag" not in headers
    if is_page:
        return f"a web page came instead of AWS's answer, with status {status}"
    declared = headers.get("Content-Length", "")
    if text and declared.isdecimal() and len(text) < int(declared):
        return f"the answer ends after {len(text)} of {declared} bytes"
    if status != 200 or shape is None:
        return ""
    places = {name: member.serialization.get("location") for name, member in shape.members.items()}
    if places.get("ETag") == "header" and "ETag" not in headers:
        return "the answer is not S3's: it has no ETag"
    if body == b"" and None in places.values():
        return "the answer has no body"
    return ""


def moment_of(value: Any) -> datetime:
    """Return the time of an answer as botocore's own parser does, which takes a tenth of a download of a
    small file for one.
    """
    if isinstance(value, str):
        with suppress(ValueError):
            iso = value[4:5] == "-" and "T" in value
            found = datetime.fromisoformat(value) if iso else parsedate_to_datetime(value)
            if found.tzinfo is not None:
                return found
    from botocore.utils import parse_timestamp

    moment: datetime = parse_timestamp(value)
    return moment


def error_code(error: BaseException) -> str:
    """Return the AWS code of a botocore error ('NoSuchKey', '412'), or the class's name if AWS sent none."""
    if (answer := _answer(error)) is None:
        return type(error).__name__
    return str(answer["Error"].get("Code") or answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def error_message(error: BaseException) -> str:
    """Return AWS's own message of a botocore error, or the error's text if AWS sent none."""
    answer = _answer(error)
    return str(error) if answer is None else str(answer["Error"].get("Message", ""))


def _answer(error: BaseException) -> dict[str, Any] | None:
    """Return AWS's answer in a botocore error; None if AWS sent no error."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) and "Error" in response else None


def meaning_of(error: BaseException) -> Meaning:
    """Return the meaning of a botocore error: by AWS's code, else by its class (CONNECTION if AWS was not
    reached).
    """
    from botocore import exceptions  # late, like boto3 itself

    # time-outs, too, and a body that ends early
    broken = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
    if isinstance(error, broken):
        return CONNECTION
    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return meaning(error_code(error), error_message(error), status=status)
    known = meaning(error_code(error))
    return SDK_FAILED if known is UNKNOWN else known


def version_of(response: Mapping[str, Any], where: str) -> str:
    """Return the VersionId of S3's answer about an object. Raises NotVersioned if there is none.

    S3 may answer so for a quarter of an hour after versioning was first enabled (S3 user guide, "Enabling
    versioning").
    """
    version_id = str(response.get("VersionId") or "")
    if not version_id:
        why = "its versioning was enabled minutes ago, or is off"
        do = "Wait a quarter of an hour after the first pulumi up; if it stays, run pulumi up again."
        raise NotVersioned(f"S3 keeps {where} without a version", why=why, do=do)
    return version_id


@contextmanager
def aws_errors(doing: str, *, but: Collection[str] = ()) -> Iterator[None]:
    """Turn botocore's errors into ours (`aws_error`). Those with one of the codes of `but` are ignored."""
    from botocore.exceptions import BotoCoreError, ClientError  # late, like boto3 itself

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        if error_code(error) not in but:
            raise aws_error(error, doing) from error


def aws_error(error: BaseException, doing: str) -> TrainerError:
    """Turn a botocore error into ours, by `trainer.aws.error_codes`. `doing` names the failed act: "cannot
    read s3://bucket/key".
    """
    code, message, known = error_code(error), error_message(error), meaning_of(error)
    asked = str(getattr(error, "kwargs", {}).get("endpoint_url", ""))
    if code == "EndpointConnectionError" and asked.startswith(_LOOPBACK):
        again = "Repeat the command with --rehearse to start it again and settle its runs."
        do = f"Its instances have ended with it. {again}"
        return EmbeddedAwsGone(f"{doing}: the embedded AWS has ended", why=message, do=do)
    return known.error(doing, why=f"{code}: {message}" if message else code, do=known.remedy)
