"""Streams, consumers and users, declared in this one place. A service declares nothing by itself.

Streams: RUN (journals), INBOX (facts from outside), DEAD, TIMERS (definitions and what fired), LIVE and TRACE (in memory), KV buckets.
"""

from dataclasses import dataclass, field
from typing import Any

from libs.bus.connection import Connection
from libs.contracts.registry import EVENTS, QUESTIONS
from libs.contracts.work import WorkEvent

_NS = 1_000_000_000
SERVICES = (
    "gateway",
    "forge",
    "mailer",
    "inference",
    "session_store",
    "sandbox",
    "artifact",
    "planner",
    "editor",
    "verifier",
    "assistant",
)
ADMIN = "admin"
ADVISORIES = ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")

STREAMS: dict[str, dict[str, Any]] = {
    "RUN": {"subjects": ["run.>"], "allow_direct": True, "description": "journals of runs"},
    "TURN": {"subjects": ["turn.>"], "allow_direct": True, "description": "journals of chat turns"},
    "INBOX": {"subjects": ["inbound.>"], "allow_direct": True, "max_age": 30 * 86_400 * _NS, "description": "facts from outside"},
    "HOOKS": {
        "subjects": ["hook.>"],
        "allow_direct": True,
        "max_age": 90 * 86_400 * _NS,
        "description": "facts from outside that forge or mailer has checked: webhooks, mail",
    },
    "MAIL": {"subjects": ["mail.>"], "allow_direct": True, "max_age": 30 * 86_400 * _NS, "description": "mail on its way out"},
    "DEAD": {"subjects": ["dead.>"], "allow_direct": True, "description": "what could not be handled"},
    "ADVISORIES": {"subjects": list(ADVISORIES), "max_age": 7 * 86_400 * _NS, "description": "deliveries that the server gave up"},
    "TIMERS": {
        "subjects": ["timer.>", "due.>"],
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "discard": "old",
        "description": "timers of the server, and what fired",
    },
    "LIVE": {
        "subjects": ["live.>"],
        "allow_direct": True,
        "storage": "memory",
        "max_age": 900 * _NS,
        "max_bytes": 64 * 1024 * 1024,
        "discard": "old",
        "description": "progress",
    },
    "TRACE": {
        "subjects": ["spans.>"],
        "retention": "workqueue",
        "storage": "memory",
        "max_age": 900 * _NS,
        "max_bytes": 64 * 1024 * 1024,
        "discard": "old",
        "description": "spans on their way to the session store",
    },
    "KV_BUDGET": {
        "subjects": ["$KV.BUDGET.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 90 * 86_400 * _NS,
        "description": "what each account has spent and reserved",
    },
    "KV_REPLIES": {
        "subjects": ["$KV.REPLIES.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 3600 * _NS,
        "description": "model replies by request id",
    },
    "KV_API_KEYS": {
        "subjects": ["$KV.API_KEYS.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "description": "API keys by their digest, and those of each user",
    },
    "KV_AGENT_STATE": {
        "subjects": ["$KV.AGENT_STATE.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 90 * 86_400 * _NS,
        "description": "what the clients of each conversation share",
    },
    "KV_RATES": {
        "subjects": ["$KV.RATES.>"],
        "allow_direct": True,
        "storage": "memory",
        "max_msgs_per_subject": 1,
        "max_age": 3600 * _NS,
        "description": "when each user's newest requests came",
    },
    "KV_CONVERSATIONS": {
        "subjects": ["$KV.CONVERSATIONS.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "description": "which turn each conversation works on, and which wait",
    },
    "KV_GITHUB": {
        "subjects": ["$KV.GITHUB.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "description": "which run works on each issue and pull request, and which comment tells of it",
    },
    "KV_MAIL": {
        "subjects": ["$KV.MAIL.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 400 * 86_400 * _NS,
        "description": "limits, suppressed recipients and used links of mail",
    },
    "KV_USAGE": {
        "subjects": ["$KV.USAGE.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 400 * 86_400 * _NS,
        "description": "what was used, by day, tenant, user, account and model",
    },
    "KV_CACHE": {
        "subjects": ["$KV.CACHE.>"],
        "allow_direct": True,
        "max_msgs_per_subject": 1,
        "max_age": 86_400 * _NS,
        "max_bytes": 256 * 1024 * 1024,
        "description": "model replies to equal prompts",
    },
}


@dataclass(frozen=True)
class ConsumerSpec:
    """A durable pull consumer of one service."""

    service: str
    name: str
    stream: str
    subjects: tuple[str, ...]
    max_deliver: int = 20
    max_ack_pending: int = 1000

    @property
    def durable(self) -> str:
        """The consumer's name on the server."""
        return f"{self.service}-{self.name}"


def step_subjects(step: str, on: tuple[type[WorkEvent], ...]) -> tuple[str, ...]:
    """What a step listens to: its events, and a person's word that sends it to work again."""
    work = on[0].work
    word = {"run": "approved", "turn": "answered"}[work]
    return (*(e.subject.replace(f"{{{e.id_field}}}", "*") for e in on), f"{work}.*.{word}.{step}", f"{work}.*.retried.{step}")


def _run(service: str, step: str, *events: str) -> ConsumerSpec:
    return ConsumerSpec(
        service, step, "RUN", (*(f"run.*.{e}" for e in events), f"run.*.approved.{step}", f"run.*.retried.{step}"), max_ack_pending=5000
    )


CONSUMERS: tuple[ConsumerSpec, ...] = (
    _run("planner", "plan", "opened", "rejected", "follow_up"),
    _run("editor", "edit", "planned"),
    _run("verifier", "verify", "edited"),
    _run("artifact", "commit", "verified"),
    _run("forge", "publish", "committed"),
    _run("forge", "finish", "published"),
    _run("forge", "merge", "merge_approved", "checks_passed"),
    ConsumerSpec("forge", "hooks", "HOOKS", ("hook.github.>",)),
    ConsumerSpec(
        "forge",
        "status",
        "RUN",
        tuple(
            f"run.*.{e}"
            for e in (
                "opened",
                "planned",
                "edited",
                "verified",
                "rejected",
                "committed",
                "published",
                "follow_up",
                "approval_requested",
                "approved.*",
                "denied",
                "retried.*",
                "failed",
                "cancelled",
                "finished",
                "merged",
                "closed",
            )
        ),
    ),
    ConsumerSpec("forge", "replies", "RUN", ("run.*.reply_received",)),
    ConsumerSpec("mailer", "hooks", "HOOKS", ("hook.mail.>",)),
    ConsumerSpec(
        "mailer", "notify", "RUN", tuple(f"run.*.{e}" for e in ("published", "finished", "failed", "approval_requested", "merged"))
    ),
    ConsumerSpec("mailer", "send", "MAIL", ("mail.out.>",), max_deliver=-1, max_ack_pending=20_000),  # what waits for its time is pending
    ConsumerSpec("assistant", "admit", "TURN", ("turn.*.opened",)),
    ConsumerSpec("assistant", "turn", "TURN", ("turn.*.admitted", "turn.*.answered.turn", "turn.*.retried.turn"), max_ack_pending=5000),
    ConsumerSpec("assistant", "next", "TURN", tuple(f"turn.*.{e}" for e in ("finished", "failed", "cancelled", "superseded"))),
    ConsumerSpec("assistant", "told", "RUN", tuple(f"run.*.{e}" for e in ("finished", "failed", "cancelled", "denied"))),
    ConsumerSpec("assistant", "debounce", "TIMERS", ("due.*.debounce",)),
    ConsumerSpec("gateway", "inbox", "INBOX", ("inbound.>",)),
    ConsumerSpec("gateway", "advisories", "ADVISORIES", ("$JS.EVENT.ADVISORY.CONSUMER.>",)),
    ConsumerSpec("gateway", "approvals", "TIMERS", ("due.*.approval",)),
    ConsumerSpec("session_store", "runs", "RUN", ("run.>",), max_deliver=-1, max_ack_pending=10_000),
    ConsumerSpec("session_store", "spans", "TRACE", ("spans.>",), max_deliver=5),
)


@dataclass(frozen=True)
class Permissions:
    """What one NATS user may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


@dataclass
class _Grants:
    publish: set[str] = field(default_factory=set)
    subscribe: set[str] = field(default_factory=set)


_EXTRA: dict[str, _Grants] = {
    "gateway": _Grants(
        {
            "inbound.>",
            "alive.>",
            "$JS.API.STREAM.MSG.DELETE.DEAD",
            "$JS.API.DIRECT.GET.INBOX",
            "$JS.API.DIRECT.GET.INBOX.>",
            "$JS.API.DIRECT.GET.LIVE",
            "$JS.API.DIRECT.GET.LIVE.>",
            *(f"$KV.{bucket}.>" for bucket in ("API_KEYS", "RATES", "AGENT_STATE")),
            *(f"$JS.API.DIRECT.GET.KV_{bucket}.>" for bucket in ("API_KEYS", "RATES", "AGENT_STATE")),
            *(f"$JS.API.DIRECT.GET.KV_{bucket}" for bucket in ("AGENT_STATE", "CONVERSATIONS")),
            "$JS.API.STREAM.PURGE.KV_AGENT_STATE",
        },
        {"run.>", "turn.>", "live.>", "$KV.AGENT_STATE.>", "$KV.CONVERSATIONS.>"},
    ),
    "assistant": _Grants(
        {"timer.*.debounce", "$KV.CONVERSATIONS.>", "$JS.API.DIRECT.GET.KV_CONVERSATIONS.>", "$JS.API.STREAM.PURGE.KV_CONVERSATIONS"}
    ),
    "forge": _Grants({"hook.github.*", "$KV.GITHUB.>", "$JS.API.DIRECT.GET.KV_GITHUB.>", "$JS.API.DIRECT.GET.KV_GITHUB"}),
    "mailer": _Grants(
        {"hook.mail.*", "mail.out.*", "$KV.MAIL.>", "$JS.API.DIRECT.GET.KV_MAIL.>", "$JS.API.DIRECT.GET.KV_MAIL"}
        | {"$JS.API.DIRECT.GET.HOOKS", "$JS.API.DIRECT.GET.HOOKS.>", "$JS.API.DIRECT.GET.MAIL", "$JS.API.DIRECT.GET.MAIL.>"},
    ),
    "inference": _Grants(
        {
            *(f"$KV.{bucket}.>" for bucket in ("BUDGET", "REPLIES", "USAGE", "CACHE")),
            *(f"$JS.API.DIRECT.GET.KV_{bucket}.>" for bucket in ("BUDGET", "REPLIES", "USAGE", "CACHE")),
            *(f"$JS.API.DIRECT.GET.KV_{bucket}" for bucket in ("BUDGET", "REPLIES", "USAGE", "CACHE")),
        },
    ),
}


def permissions(service: str) -> Permissions:
    """What `service` needs and no more, derived from the events that it produces, the questions it asks and answers, its consumers."""
    extra = _EXTRA.get(service, _Grants())
    publish = {"live.>", "dead.>", f"spans.{service}", "_INBOX.>", "cancel.>", "timer.*.approval"} | extra.publish
    subscribe = {f"_INBOX.{service}.>", f"cancel.{service}", f"alive.{service}"} | extra.subscribe
    for event in EVENTS:
        if service in event.producers:
            publish.add(event.subject.replace(f"{{{event.id_field}}}", "*").replace("{step}", "*"))
    for question in QUESTIONS:
        if service in question.askers:
            publish.add(question.subject)
        if question.subject.split(".")[1] == service:
            subscribe.add(question.subject)
    for consumer in CONSUMERS:
        if consumer.service == service:
            publish |= {
                f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}",
                f"$JS.ACK.{consumer.stream}.{consumer.durable}.>",
            }
    publish |= {"$JS.API.DIRECT.GET.RUN", "$JS.API.DIRECT.GET.RUN.>", "$JS.API.DIRECT.GET.DEAD", "$JS.API.DIRECT.GET.DEAD.>"}
    publish |= {"$JS.API.DIRECT.GET.TURN", "$JS.API.DIRECT.GET.TURN.>"} if service in ("gateway", "assistant", "mailer") else set()
    subscribe |= {"run.*.cancelled", "turn.*.cancelled"}
    return Permissions(tuple(sorted(publish)), tuple(sorted(subscribe)))


async def declare(admin: Connection, *, replicas: int = 1, ack_wait_seconds: float = 15.0) -> None:
    """Create or update every stream and consumer. Run by whoever starts the broker, never by a service.

    Raises:
        RuntimeError: the server refuses a declaration; the text names it.
    """
    for name, config in STREAMS.items():
        full = {"name": name, "storage": "file", "num_replicas": replicas, "discard": "new", **config}
        if name.startswith("KV_"):
            full["discard"] = "old"
        await _create_or_update(admin, f"STREAM.CREATE.{name}", f"STREAM.UPDATE.{name}", full)
    for consumer in CONSUMERS:
        request = {
            "stream_name": consumer.stream,
            "config": {
                "durable_name": consumer.durable,
                "filter_subjects": list(consumer.subjects),
                "ack_policy": "explicit",
                "ack_wait": int(ack_wait_seconds * _NS),
                "max_deliver": consumer.max_deliver,
                "max_ack_pending": consumer.max_ack_pending,
                "deliver_policy": "all",
            },
        }
        answer = await admin.api(f"CONSUMER.DURABLE.CREATE.{consumer.stream}.{consumer.durable}", request)
        if "error" in answer:
            raise RuntimeError(f"consumer {consumer.durable}: {answer['error'].get('description')}")


async def _create_or_update(admin: Connection, create: str, update: str, config: dict[str, Any]) -> None:
    answer = await admin.api(create, config)
    if answer.get("error", {}).get("err_code") == 10058:  # the name is in use with another configuration
        answer = await admin.api(update, config)
    if "error" in answer:
        raise RuntimeError(f"stream {config['name']}: {answer['error'].get('description')}")
