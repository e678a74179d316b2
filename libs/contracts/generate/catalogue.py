"""Every message by its published name, `<name>.v<version>`: an event's type, a question's subject, else the class name."""

from libs.contracts.dead import DeadLetter
from libs.contracts.envelope import Event, Message, Question, Refused
from libs.contracts.github import GitHubDelivery
from libs.contracts.inbound import CloudEvent, SolveIssue
from libs.contracts.live import Progress, TimerDue
from libs.contracts.mail import MailReceived, OutgoingMail
from libs.contracts.registry import EVENTS, QUESTIONS
from libs.contracts.session import SpanBatch

OTHERS: tuple[type[Message], ...] = (
    CloudEvent,
    SolveIssue,
    GitHubDelivery,
    MailReceived,
    OutgoingMail,
    DeadLetter,
    Progress,
    TimerDue,
    SpanBatch,
    Refused,
)


def name_of(message: type[Message]) -> str:
    """The published name of a message, without its version."""
    if issubclass(message, Event):
        return message.type
    if issubclass(message, Question):
        return message.subject
    return message.__name__


def versioned(message: type[Message]) -> str:
    """The published name and version of a message."""
    return f"{name_of(message)}.v{message.version}"


def catalogue() -> dict[str, type[Message]]:
    """All published messages by name and version.

    Raises:
        ValueError: two classes have one name.
    """
    answers = [q.answer for q in QUESTIONS]
    frames = [q.frame for q in QUESTIONS if q.frame is not None]
    found: dict[str, type[Message]] = {}
    for message in (*EVENTS, *QUESTIONS, *answers, *frames, *OTHERS):
        if found.setdefault(versioned(message), message) is not message:
            raise ValueError(f"{versioned(message)} is the name of two classes: {message} and {found[versioned(message)]}")
    return dict(sorted(found.items()))
