"""The bus: journals with a fence, steps from event to event, questions, views, timers, dead letters. `Service` is the one entrance."""

from libs.bus import _nats  # noqa: F401 - before whatever imports nats
from libs.bus.deciding import Decide
from libs.bus.delivery import Delivery
from libs.bus.errors import Backoff, Fenced, LeaseLost, NeedsHuman, NoAnswer, NoJournal, Permanent, Refusal, Retryable
from libs.bus.journal import Journal
from libs.bus.kv import Kv
from libs.bus.questions import Asker
from libs.bus.service import Bus, Service
from libs.bus.steps import Step
from libs.bus.subjects import token

__all__ = [
    "Asker",
    "Backoff",
    "Bus",
    "Decide",
    "Delivery",
    "Fenced",
    "Journal",
    "Kv",
    "LeaseLost",
    "NeedsHuman",
    "NoAnswer",
    "NoJournal",
    "Permanent",
    "Refusal",
    "Retryable",
    "Service",
    "Step",
    "token",
]
