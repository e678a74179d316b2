"""CloudEvents 1.0, structured and binary, as the protocol bindings for HTTP and NATS carry them (section 3 of both).

Pure. ValueError
└── InboundError   what came in is no CloudEvent, or carries no command that is known here
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from libs.contracts.envelope import JsonObject
from libs.contracts.ids import derived_id
from libs.contracts.inbound import SOLVE_ISSUE_TYPE, CloudEvent, SolveIssue
from services.gateway.domain import check_command

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LOCAL = "local"
HEADER_TENANT = "agent-coder-tenant"
HEADER_USER = "agent-coder-user"
_PREFIX = "ce-"
_MAX_BATCH = 100


class InboundError(ValueError):
    """It cannot be understood."""


def media_type(headers: Mapping[str, str]) -> str:
    """The media type of a message, in small letters, without parameters."""
    value = next((v for k, v in headers.items() if k.lower() == "content-type"), "")
    return value.partition(";")[0].strip().lower()


def parse_http(headers: Mapping[str, str], body: bytes) -> list[JsonObject]:
    """The events of a request, each in structured form and checked: binary mode by its `ce-` headers, else one, else a batch.

    Raises:
        InboundError: it is not what it says; the text names the event and the field.
    """
    if _is_binary(headers):
        found: Any = from_binary(headers, body)
    else:
        found = _json(body)
    batch = found if isinstance(found, list) else [found]
    if media_type(headers) == STRUCTURED and isinstance(found, list):
        raise InboundError(f"{STRUCTURED} is one event: send a list as {BATCH}")
    if not 1 <= len(batch) <= _MAX_BATCH:
        raise InboundError(f"a batch has between 1 and {_MAX_BATCH} events")
    for number, event in enumerate(batch):
        try:
            checked(event)
        except InboundError as error:
            raise InboundError(f"event {number}: {error}") from error
    return batch


def parse_nats(headers: Mapping[str, str], payload: bytes) -> CloudEvent:
    """The event of a NATS message. Raises InboundError."""
    if media_type(headers) != STRUCTURED and _is_binary(headers):
        return checked(from_binary(headers, payload))
    return checked(_json(payload))


def _is_binary(headers: Mapping[str, str]) -> bool:
    return any(k.lower() == "ce-specversion" for k in headers)


def from_binary(headers: Mapping[str, str], body: bytes) -> JsonObject:
    """An event in structured form; attributes come from `ce-` headers (percent-decoded), the data from the body."""
    attributes = {k.lower()[len(_PREFIX) :]: unquote(v) for k, v in headers.items() if k.lower().startswith(_PREFIX)}
    kind = media_type(headers)
    if kind:
        attributes["datacontenttype"] = kind
    return {**attributes, "data": _json(body)} if body else dict(attributes)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InboundError(f"the body is not JSON in UTF-8: {error}"[:300]) from error


def checked(event: Any) -> CloudEvent:
    """A CloudEvent from its structured form. Raises InboundError."""
    try:
        return CloudEvent.model_validate(event)
    except ValidationError as error:
        raise InboundError(_first(error)) from error


def _first(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"]) or "the event"
    return f"{place}: {fault['msg']}"


def command_of(event: CloudEvent) -> SolveIssue:
    """The command that an event carries. Raises InboundError."""
    if event.type != SOLVE_ISSUE_TYPE:
        raise InboundError(f"nothing here handles the type {event.type!r}; known is {SOLVE_ISSUE_TYPE!r}")
    try:
        return check_command(SolveIssue.model_validate(_data(event)))
    except ValidationError as error:
        raise InboundError(f"data: {_first(error)}") from error
    except InboundError:
        raise
    except ValueError as error:
        raise InboundError(f"data: {error}") from error


def _data(event: CloudEvent) -> Any:
    if event.data_base64 is None:
        return _json(event.data.encode()) if isinstance(event.data, str) else event.data
    try:
        return _json(base64.b64decode(event.data_base64, validate=True))
    except binascii.Error as error:
        raise InboundError("data_base64 is not base64") from error


def run_id_of(event: CloudEvent, tenant: str = LOCAL, user: str = LOCAL) -> str | None:
    """The run that an event opens, the same for every copy of it (`source` and `id` name one event); None when it opens none."""
    sender = () if tenant == LOCAL else (tenant, user)
    return derived_id("event", *sender, event.source, event.id) if event.type == SOLVE_ISSUE_TYPE else None
