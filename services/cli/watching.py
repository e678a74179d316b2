"""Following a run on the terminal: its events as they come, live output in between, and its end."""

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from services.cli.client import Api
from services.cli.render import diff_lines, ending, lines
from services.cli.sse import ServerEvent
from services.cli.words import WORK, describe, short

Json = dict[str, Any]


def watch(api: Api, run_id: str, out: Console, last_event_id: str | None = None) -> Json:
    """Print a run's events until it ends; returns the run."""
    with Status("…", console=out) as status:
        follow(api.follow(run_id, last_event_id), lambda kind, data: _event(out, status, kind, data), lambda data: _live(out, status, data))
    return api.get(f"/api/runs/{run_id}")


def follow(events: Iterable[ServerEvent], on_event: Callable[[str, Json], None], on_live: Callable[[Json], None]) -> None:
    """Hand out the journal's events and the live progress between them; a journal event that comes twice is handed out once."""
    last = 0
    for event in events:
        if event.event == "progress":
            on_live(event.data)
        elif event.id is not None and event.id.isdecimal() and int(event.id) > last:
            last = int(event.id)
            on_event(event.event, event.data.get("data", {}))


def _event(out: Console, status: Status, kind: str, data: Json) -> None:
    lines(out, describe(kind, data))
    if kind == "run.step_started":
        status.update(Text(f"{WORK.get(data['step'], data['step'])} …"))
    elif kind == "run.approval_requested":
        status.update(Text("waiting for your answer"))


def _live(out: Console, status: Status, data: Json) -> None:
    if out.is_terminal:
        status.update(Text(short(f"{data['step']}: {data['text']}", max(out.width - 4, 20)), style="dim"))


def show_end(api: Api, run: Json, out: Console, fetched: bool = False) -> None:
    """The diff, and how to get it unless it is `fetched` anyway."""
    if run.get("commit"):
        lines(out, [("", ""), *diff_lines(api.get(f"/api/runs/{run['instanceId']}/diff")["diff"].rstrip("\n")), ("", "")])
    lines(out, ending(run, fetched))
