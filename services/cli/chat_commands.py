"""The command `chat`: a message to the assistant, its answer as it is written, consent to what it asks for."""

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any
from uuid import uuid4

import typer

from services.cli.context import AsJson, api, show
from services.cli.errors import CliError, Usage
from services.cli.run_commands import Json, source_of
from services.cli.words import plain, short


@dataclass
class Answer:
    """What came of a message: the text, and the calls that wait for consent, by id."""

    session: str
    text: str = ""
    waits: dict[str, str] = field(default_factory=dict)
    error: str | None = None


def chat(
    message: Annotated[str | None, typer.Argument(help="What to say; - is standard input. Without it the conversation is shown.")] = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="The conversation, by any name; a new one by default.")] = None,
    repo: Annotated[str | None, typer.Option("--repo", metavar="PATH|URL", help="Attach a repository from now on.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="One model by name.")] = None,
    consent: Annotated[bool | None, typer.Option("--yes/--no", help="Say it to what waits, or comes to wait, for consent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Talk to the assistant."""
    if message is None and session is None:
        raise Usage("Say something.", 'For example: agent-coder chat "What does this project do?" --repo .')
    server, name = api(), session or uuid4().hex[:12]
    if message is None and consent is None:
        found = server.conversation(name)
        show({"session": name, "messages": found}, as_json, lambda: _tell(name, found))
        return
    parts = [{"type": "text", "text": sys.stdin.read() if message == "-" else message}]
    body: Json = {"id": name, "messages": [{"id": f"m-{uuid4().hex}", "role": "user", "parts": parts}], "model": model}
    body["repository"] = source_of(server, repo)[0] if repo else None
    answer = Answer(name)
    try:
        _converse(server, answer, body if message is not None else _consented(server, name, bool(consent)), consent, as_json)
    except KeyboardInterrupt:
        typer.echo(f"\nthe answer goes on: agent-coder chat --session {name}", err=True)
        raise typer.Exit(130) from None
    show(asdict(answer), as_json, lambda: None)
    if session is None and not as_json:
        typer.echo(f"go on: agent-coder chat --session {name} …", err=True)
    if answer.error:
        raise CliError(answer.error)
    if answer.waits:
        raise CliError("The answer waits for your consent.", f"Give it: agent-coder chat --session {name} --yes (or --no)")


def _converse(server: Any, answer: Answer, body: Json, consent: bool | None, quiet: bool) -> None:
    """Send a body, follow the answer, and go on as long as consent is given or refused."""
    while True:
        answer.waits.clear()
        calls: dict[str, str] = {}
        for chunk in server.chat(answer.session, {key: value for key, value in body.items() if value is not None}):
            _take(answer, calls, chunk, quiet)
        said = consent
        if answer.waits and said is None and sys.stdin.isatty() and not quiet:
            said = typer.confirm(f"{'; '.join(answer.waits.values())}\nmay it?", err=True)
        if not answer.waits or said is None:
            return
        body = _consented(server, answer.session, said)


def _take(answer: Answer, calls: dict[str, str], chunk: Json, quiet: bool) -> None:
    """Keep what a chunk of the stream says, and show it: the text on standard output, calls on standard error."""
    match chunk:
        case {"type": "text-delta" | "text-end"}:
            answer.text += (text := plain(chunk.get("delta", "\n")))
            if not quiet:
                print(text, end="", flush=True)
        case {"type": "tool-input-available", "toolCallId": str() as call, "toolName": tool}:
            calls[call] = short(f"{tool} {json.dumps(chunk.get('input'), ensure_ascii=False)}")
            if not quiet:
                typer.echo(f"· {calls[call]}", err=True)
        case {"type": "tool-approval-request", "toolCallId": str() as call}:
            answer.waits[call] = calls.get(call, call)
        case {"type": "error" | "abort"}:
            answer.error = plain(chunk.get("errorText", "the answer was stopped"))


def _consented(server: Any, name: str, approved: bool) -> Json:
    """The body that says yes or no to every call that waits. Raises Usage: none does."""
    last: Json = next(iter(server.conversation(name)[-1:]), {})
    waiting = [part for part in last.get("parts", ()) if part.get("state") == "approval-requested"]
    if not waiting:
        raise Usage(f"Nothing waits for consent in {name}.")
    for part in waiting:
        part |= {"state": "approval-responded", "approval": part["approval"] | {"approved": approved}}
    return {"id": name, "messages": [last]}


def _tell(name: str, messages: list[Json]) -> None:
    """A conversation as text, each call of a tool behind a dot; what waits for consent is told on standard error."""
    waits = False
    for message in messages:
        said = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
        called = [part for part in message["parts"] if part["type"].startswith("tool-")]
        lines = [f"· {short(part['type'][5:] + ' ' + json.dumps(part.get('input'), ensure_ascii=False))}" for part in called]
        print("\n".join([f"{message['role']}: {plain(said).strip()}".strip(), *lines]) + "\n")
        waits = any(part.get("state") == "approval-requested" for part in called)
    if waits:
        typer.echo(f"it waits for your consent: agent-coder chat --session {name} --yes (or --no)", err=True)
    if not messages:
        typer.echo(f"Nothing was said in {name} yet.", err=True)
