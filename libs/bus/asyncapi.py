"""The bus as an AsyncAPI 3.0 document: every subject with its messages and headers, and which service sends or receives what.

Derived from the contracts and the topology. Streams and consumers stand under `x-jetstream`: the NATS binding has no place for them.
"""

from dataclasses import dataclass
from typing import Any, get_args

from libs.bus.subjects import matches
from libs.bus.topology import CONSUMERS, SERVICES, STREAMS
from libs.contracts.dead import DeadLetter
from libs.contracts.envelope import Event, Message, Question, Refused
from libs.contracts.generate.catalogue import catalogue, name_of, versioned
from libs.contracts.github import GitHubDelivery
from libs.contracts.inbound import CloudEvent
from libs.contracts.live import Progress, TimerDue
from libs.contracts.mail import MailReceived, OutgoingMail
from libs.contracts.registry import EVENTS, QUESTIONS
from libs.contracts.session import SpanBatch
from libs.contracts.work import StepName

Json = dict[str, Any]
_PARAMETERS: dict[str, Json] = {
    "run_id": {"description": "The run's id: one subject token of letters, digits, `-` and `_`, 64 at most."},
    "turn_id": {"description": "The chat turn's id: one subject token of letters, digits, `-` and `_`, 64 at most."},
    "step": {"description": "The step that a person's word is for.", "enum": list(get_args(StepName))},
    "id": {"description": "The id of a run."},
    "name": {"description": "The timer's name."},
    "source": {"description": "Who sends the event: one subject token."},
    "type": {"description": "The CloudEvent's type: one subject token."},
    "service": {"description": "The service that made the spans.", "enum": list(SERVICES)},
    "consumer": {"description": "The durable consumer that gave up."},
    "correlation": {"description": "The id of the run, `-` when there is none."},
}
_TEXT: Json = {"type": "string"}
_TRACE: Json = {"traceparent": {"type": "string", "description": "W3C trace context"}}
_HEADERS: dict[str, Json] = {
    "event": {
        "ce-specversion": {"const": "1.0"},
        "ce-type": {"type": "string", "description": "the message's name and version"},
        "ce-source": {"type": "string", "description": "the service"},
        "ce-time": {"type": "string", "format": "date-time"},
        "correlation-id": {"type": "string", "description": "the run's id"},
        "causation-id": {"type": "string", "description": "the sequence of the event that was handled"},
        "Nats-Expected-Last-Subject-Sequence": {"type": "string", "description": "the fence: sequence of the event that this one follows"},
        "Nats-Expected-Last-Subject-Sequence-Subject": {"type": "string", "description": "the whole journal, `run.<run_id>.>`"},
        **_TRACE,
    },
    "question": {
        "Question-Id": {"type": "string", "description": "last token of the reply subject; sent on `cancel.<service>` to give up"},
        **_TRACE,
    },
    "reply": {
        "Frame": {"enum": ["data", "answer", "refusal", "alive"]},
        "Number": {"type": "string", "description": "of a frame from 1; of an answer: how many frames there were"},
        "Credit-To": {"type": "string", "description": "where to acknowledge a frame"},
    },
    "inbound": {"ce-id": _TEXT, "ce-source": _TEXT, "ce-type": _TEXT, "ce-specversion": {"const": "1.0"}, **_TRACE},
    "letter": {
        "Letter": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "the letter without its payload: schemas/DeadLetter.v1.json",
        },
        "Original-ce-type": {"type": "string", "description": "and every other header of the message that died, with this prefix"},
    },
    "other": {},
}


@dataclass(frozen=True)
class _Subject:
    """A subject that is neither an event's nor a question's."""

    address: str
    message: type[Message]
    senders: tuple[str, ...]
    headers: str = "other"


_OTHERS = (
    _Subject("inbound.{source}.{type}", CloudEvent, ("gateway",), "inbound"),
    _Subject("hook.github.{id}", GitHubDelivery, ("forge",)),
    _Subject("hook.mail.{id}", MailReceived, ("mailer",)),
    _Subject("mail.out.{id}", OutgoingMail, ("mailer",)),
    _Subject("dead.{consumer}.{correlation}", DeadLetter, SERVICES, "letter"),
    _Subject(Progress.subject, Progress, SERVICES),
    _Subject("due.{id}.{name}", TimerDue, ()),
    _Subject("spans.{service}", SpanBatch, SERVICES),
)


def asyncapi(version: str = "1.0.0") -> Json:
    """The document; payloads refer to the schema files beside it."""
    channels: dict[str, Json] = {}
    operations: dict[str, Json] = {}
    for event in EVENTS:
        channels[event.type] = _channel(event.subject, [event])
        operations |= _journal_operations(event.type, event.subject, event.producers)
    for other in _OTHERS:
        channels[name_of(other.message)] = _channel(other.address, [other.message])
        operations |= _journal_operations(name_of(other.message), other.address, other.senders)
    for question in QUESTIONS:
        channels[question.subject] = _channel(question.subject, [question])
        channels[_reply(question)] = {
            **_channel("", _replies(question)),
            "address": None,
            "description": "The reply subject of one question.",
        }
        operations |= _question_operations(question)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "agent-coder", "version": version, "description": "Facts on journals and questions over request/reply."},
        "defaultContentType": "application/json",
        "servers": {"bus": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "nats-server with JetStream"}},
        "channels": dict(sorted(channels.items())),
        "operations": dict(sorted(operations.items())),
        "components": {"messages": _messages()},
    }


def _messages() -> dict[str, Json]:
    kinds = {other.message: other.headers for other in _OTHERS} | {q.answer: "reply" for q in QUESTIONS} | {Refused: "reply"}
    kinds |= {q.frame: "reply" for q in QUESTIONS if q.frame is not None}
    found = {}
    for name, message in catalogue().items():
        default = "event" if issubclass(message, Event) else "question" if issubclass(message, Question) else "other"
        headers = _HEADERS[kinds.get(message, default)]
        found[name] = {
            "name": name,
            "title": message.__name__,
            "summary": (message.__doc__ or "").strip().splitlines()[0],
            "contentType": "application/json",
            **({"headers": {"type": "object", "properties": headers}} if headers else {}),
            "payload": {"$ref": f"schemas/{name}.json"}
            if message is not DeadLetter
            else {"description": "the body of the message that died"},
        }
    return found


def _channel(address: str, messages: list[type[Message]]) -> Json:
    names = [versioned(m) for m in messages]
    channel: Json = {"address": address, "messages": {n: {"$ref": f"#/components/messages/{_pointer(n)}"} for n in names}}
    parameters = {part[1:-1]: _PARAMETERS[part[1:-1]] for part in address.split(".") if part.startswith("{")}
    if parameters:
        channel["parameters"] = parameters
    stream = next((n for n, config in STREAMS.items() if any(matches(s, _wild(address)) for s in config["subjects"])), None)
    if stream is not None:
        channel["x-jetstream"] = {"stream": stream, "description": STREAMS[stream]["description"]}
    return channel


def _journal_operations(name: str, address: str, senders: tuple[str, ...]) -> dict[str, Json]:
    found = {f"{s}.send.{name}": {"action": "send", "channel": _to(name), "x-service": s} for s in senders}
    for consumer in CONSUMERS:
        if any(_overlap(s, _wild(address)) for s in consumer.subjects):
            found[f"{consumer.service}.receive.{name}.{consumer.name}"] = {
                "action": "receive",
                "channel": _to(name),
                "x-service": consumer.service,
                "x-jetstream": {"stream": consumer.stream, "consumer": consumer.durable},
            }
    return found


def _question_operations(question: type[Question[Message]]) -> dict[str, Json]:
    owner = question.subject.split(".")[1]
    reply = {"channel": _to(_reply(question))}
    found: dict[str, Json] = {
        f"{owner}.receive.{question.subject}": {
            "action": "receive",
            "channel": _to(question.subject),
            "bindings": {"nats": {"queue": owner}},
            "reply": reply,
            "x-service": owner,
        }
    }
    for asker in question.askers:
        send = {"action": "send", "channel": _to(question.subject), "reply": reply, "x-service": asker}
        found[f"{asker}.send.{question.subject}"] = send | {"x-deadline-seconds": question.deadline_seconds}
    return found


def _replies(question: type[Question[Message]]) -> list[type[Message]]:
    return [question.answer, Refused, *([question.frame] if question.frame else [])]


def _reply(question: type[Question[Message]]) -> str:
    return f"{question.subject}.reply"


def _wild(address: str) -> str:
    return ".".join("*" if part.startswith("{") else part for part in address.split("."))


def _overlap(pattern: str, address: str) -> bool:
    """Whether some subject falls under both; `address` has no `>`."""
    want, have = pattern.split("."), address.split(".")
    if want[-1] == ">":
        want = [*want[:-1], *["*"] * (len(have) - len(want) + 1)]
    return len(want) == len(have) and all("*" in (w, h) or w == h for w, h in zip(want, have, strict=True))


def _to(channel: str) -> Json:
    return {"$ref": f"#/channels/{_pointer(channel)}"}


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
