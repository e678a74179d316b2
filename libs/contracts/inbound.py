"""Facts from outside: CloudEvents 1.0 on `inbound.<source>.<type>`, and the commands that they may carry."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from libs.contracts.envelope import Message, Time
from libs.contracts.run import Issue, Policy

SOLVE_ISSUE_TYPE = "agent-coder.solve-issue"


class SolveIssue(Message):
    """The command to open a run; owned by whoever takes it in (gateway, forge, mailer)."""

    issue: Issue
    repo: str = Field(min_length=1, max_length=4096)
    base: str | None = Field(default=None, max_length=255)
    reporter_email: str | None = Field(default=None, max_length=254, pattern=r"^[^@\s<>,;]+@[^@\s<>,;]+$")
    policy: Policy = Policy()


class CloudEvent(Message):
    """A CloudEvents 1.0 event in structured JSON mode (CloudEvents JSON format, section 3); attributes we do not use are dropped."""

    specversion: Literal["1.0"]
    id: str = Field(min_length=1, max_length=256)
    source: str = Field(min_length=1, max_length=1024)
    type: str = Field(min_length=1, max_length=256)
    subject: str | None = Field(default=None, max_length=1024)
    time: Time | None = None
    datacontenttype: str | None = Field(default=None, max_length=128)
    data: Any = None
    data_base64: str | None = None

    @field_validator("datacontenttype")
    @classmethod
    def _json_only(cls, value: str | None) -> str | None:
        media = (value or "application/json").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise ValueError("only JSON data is understood: set datacontenttype to application/json")
        return value


class InboundSubject:
    """`inbound.<source>.<type>`: where a CloudEvent travels; both tokens encoded, see `libs.bus.subjects.token`."""

    pattern: ClassVar[str] = "inbound.*.*"
