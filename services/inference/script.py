"""The file format of the scripted test model (docs/models.md): rules, each with a condition and the replies that it gives in order.

A script is stateless: the reply follows from the prompt alone, so a repeated call gets the same reply.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libs.contracts.inference import Complete
from services.inference.domain import UNKNOWN_PRICE, Price, text_of


class ScriptError(Exception):
    """A script cannot be used; the text says where and why."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class When(_Part):
    """Every condition that is given must hold. `turn` is the number of assistant messages in the prompt."""

    purpose: str | None = None
    contains: str | tuple[str, ...] = ()
    lacks: str | tuple[str, ...] = ()
    account: str | None = None
    turn: int | None = Field(default=None, ge=0)


class ScriptedCall(_Part):
    """A tool call; `arguments` as text is given as it is, cut off or not."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    id: str | None = None


class ScriptedError(_Part):
    """An upstream error. With `times` only the first tries of a call fail, then the rest of the reply is given."""

    status: int = Field(ge=100, le=599)
    message: str = "scripted error"
    retry_after_seconds: float | None = Field(default=None, ge=0)
    times: int | None = Field(default=None, ge=1)


class ScriptedUsage(_Part):
    """Tokens to report; estimated from the texts when absent."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)


class Reference(_Part):
    """Answer from a file of `{path: whole new text}`: a plan for a planning prompt, else the change in the form that is named."""

    file: Path
    form: Literal["whole_file", "search_replace", "unified_diff", "tool_calls"]
    originals: Path | None = None


class ScriptedReply(_Part):
    """One reply. `dropped` breaks off after the content, as a lost connection does.

    `stream_delay_seconds` is waited before each piece of a stream, `chunk_characters` is the size of a piece; else a piece is a word.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    error: ScriptedError | None = None
    delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    stream_delay_seconds: float | None = Field(default=None, ge=0, le=60)
    chunk_characters: int | None = Field(default=None, ge=1)
    dropped: bool = False
    usage: ScriptedUsage | None = None
    reference: Reference | None = None


class Rule(_Part):
    """The first rule whose condition holds answers: reply number `turn` of its list, the last one again when the list is over."""

    when: When = When()
    replies: tuple[ScriptedReply, ...] = Field(min_length=1)


class Script(_Part):
    """A whole script. Paths in it are relative to its own folder."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,60}$")
    edit_format: Literal["tools", "whole_file", "search_replace", "unified_diff"] = "tools"
    tool_calling: bool = True
    context_tokens: int = Field(default=128_000, ge=1024)
    price: Price = UNKNOWN_PRICE
    reference: Path | None = None
    form: Literal["whole_file", "search_replace", "unified_diff", "tool_calls"] | None = None
    originals: Path | None = None
    stream_delay_seconds: float | None = Field(default=None, ge=0, le=60)
    chunk_characters: int | None = Field(default=None, ge=1)
    rules: tuple[Rule, ...] = ()

    @model_validator(mode="after")
    def _answers_something(self) -> "Script":
        if not self.rules and self.reference is None:
            raise ValueError("give `rules`, or `reference` with `form`")
        if self.reference is not None and self.form is None:
            raise ValueError("`reference` needs `form`")
        return self


def load_script(path: Path) -> Script:
    """Read a script; its paths come back absolute. `reference` at the top is a last rule that answers every prompt from that file.

    Raises:
        ScriptError: no such file, no JSON, or not of the format.
    """
    try:
        script = Script.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"the script {path} cannot be read: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'file'}: {f['msg']}" for f in error.errors(include_url=False)[:5])
        raise ScriptError(f"the script {path} is not of the format in docs/models.md: {faults}") from error
    rules = script.rules
    if script.reference is not None and script.form is not None:
        rules = (*rules, Rule(replies=(ScriptedReply(reference=Reference(file=script.reference, form=script.form)),)))
    return script.model_copy(update={"rules": tuple(_placed(rule, script, path.parent) for rule in rules)})


def _placed(rule: Rule, script: Script, folder: Path) -> Rule:
    """A rule with what the script says for all replies: the folder of its paths, how a stream goes."""

    def place(reply: ScriptedReply) -> ScriptedReply:
        common = ("stream_delay_seconds", "chunk_characters")
        reply = reply.model_copy(update={name: getattr(script, name) for name in common if getattr(reply, name) is None})
        if reply.reference is None:
            return reply
        originals = reply.reference.originals or script.originals
        found = {"file": folder / reply.reference.file, "originals": folder / originals if originals else None}
        return reply.model_copy(update={"reference": reply.reference.model_copy(update=found)})

    return rule.model_copy(update={"replies": tuple(place(reply) for reply in rule.replies)})


def turn_of(question: Complete) -> int:
    """How many replies the prompt holds already."""
    return sum(1 for message in question.messages if message.role == "assistant")


def choose(script: Script, question: Complete) -> ScriptedReply | None:
    """The reply to a prompt, None when no rule fits."""
    text, turn = text_of(question), turn_of(question)
    for rule in script.rules:
        if _holds(rule.when, question, text, turn):
            return rule.replies[min(turn, len(rule.replies) - 1)]
    return None


def _holds(when: When, question: Complete, text: str, turn: int) -> bool:
    return (
        when.purpose in (None, question.purpose)
        and when.account in (None, question.account)
        and when.turn in (None, turn)
        and all(part in text for part in _several(when.contains))
        and not any(part in text for part in _several(when.lacks))
    )


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
