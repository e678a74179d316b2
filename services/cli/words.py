"""A run's events in words, one or more lines each. Pure.

Text of issues, models and commands is untrusted: control characters never reach the terminal.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

Json = dict[str, Any]
Line = tuple[str, str]
ENDED = ("finished", "failed", "cancelled", "denied")
WORK = {
    "plan": "planning",
    "edit": "editing",
    "verify": "verifying",
    "commit": "committing",
    "finish": "finishing",
    "publish": "publishing",
    "merge": "merging",
}
_ORIGINS = {"github": "on GitHub ", "mail": "by mail ", "chat": "in a chat ", "event": "by an event "}
TOOLS = frozenset({"read", "ls", "glob", "grep", "write", "edit", "patch", "exec", "think", "done"})
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: object) -> str:
    """The text without terminal controls and without marks that reorder it."""
    return _CONTROL.sub("", str(text))


def short(text: object, limit: int = 160) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tokens(usage: Json) -> str:
    """Tokens and money of model calls."""
    cost = usage.get("cost_usd", 0.0)
    money = f", ${cost:.4f}" if cost else ""
    return f"{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out{money}"


def describe(kind: str, data: Json) -> list[Line]:
    """(style, text) lines for one event; none for an event that a person need not see."""
    handler = _DESCRIBE.get(kind)
    return handler(data) if handler else [("dim", kind)]


def plan_lines(plan: Json) -> list[Line]:
    """The steps of a plan."""
    lines: list[Line] = [("", f"  {plain(plan['summary'])}")] if plan.get("summary") else []
    for number, step in enumerate(plan["steps"], 1):
        lines.append(("", f"  {number}. {short(step['title'], 300)}"))
        if step.get("why"):
            lines.append(("dim", f"     {short(step['why'], 300)}"))
        if step.get("files"):
            lines.append(("dim", f"     {short(', '.join(step['files']), 300)}"))
    return lines


def changed(files: list[Json]) -> list[Line]:
    """One line a changed file."""
    marks = {"added": "A", "deleted": "D", "renamed": "R", "mode_changed": "m", "type_changed": "T"}
    return [("", f"  {marks.get(file['status'], 'M')} {_file(file)}") for file in files]


def _file(file: Json) -> str:
    name = f"{file['renamed_from']} → {file['path']}" if file.get("renamed_from") else file["path"]
    counts = f"  +{file['added_lines']} -{file.get('deleted_lines', 0)}" if file.get("added_lines") is not None else ""
    return plain(name) + counts


def command_lines(commands: list[Json]) -> list[Line]:
    """What was run and how it ended."""
    width = max((len(_outcome(c)) for c in commands), default=0)
    return [("dim", f"  {c['phase']:<8}  {_outcome(c):<{width}}  {short(c['command'], 100)}") for c in commands]


def _outcome(command: Json) -> str:
    if command["outcome"] != "exited":
        return str(command["outcome"])
    if command.get("passed") is not None:
        failed = command.get("failed") or 0
        return f"{command['passed']} passed" + (f", {failed} failed" if failed else "")
    return f"exit code {command.get('exit_code')}"


def _opened(data: Json) -> list[Line]:
    came = _ORIGINS.get(data.get("origin", ""), "")
    place = data.get("github") or {}
    by = plain(data.get("requested_by") or "").removeprefix("mail:").removeprefix("github:")
    asked = f", asked {came}by {by}" if by else ""
    return [
        ("bold", f"issue {plain(data['issue']['id'])}: {short(data['issue']['title'], 300)}"),
        ("dim", f"run {plain(data.get('run_id', ''))} in {plain(data['repo'])}{asked}"),
        *([("dim", plain(place["url"]))] if place.get("url") else []),
    ]


def _step_started(data: Json) -> list[Line]:
    again = f" (delivery {data['delivery']})" if data.get("delivery", 1) > 1 else ""
    return [("cyan", f"{WORK.get(data['step'], data['step'])} …{again}")]


def _step_failed(data: Json) -> list[Line]:
    wait = data.get("retry_in_seconds")
    then = f"; again in {wait:.0f} s" if wait is not None else ""
    return [("yellow", f"{data['step']} did not work: {short(data['error'], 500)}{then}")]


def _planned(data: Json) -> list[Line]:
    attempt = f", attempt {data['attempt']}" if data["attempt"] > 1 else ""
    return [("bold", f"plan on {plain(data['base_branch'])} {data['base_commit'][:10]}{attempt}"), *plan_lines(data["plan"])]


def _model_replied(data: Json) -> list[Line]:
    lines: list[Line] = [("dim", f"  model: {tokens(data.get('usage', {}))}")]
    if data.get("content") and data["step"] != "plan":  # the plan itself follows
        lines.insert(0, ("", f"  {short(data['content'], 300)}"))
    return lines + [("", f"  → {plain(call['name'])} {_arguments(call['arguments'])}") for call in data.get("tool_calls", ())]


def _arguments(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return short(text, 100)
    if not isinstance(found, dict):
        return short(text, 100)
    return short("  ".join(f"{key}={short(value, 60)}" for key, value in found.items()), 140)


def _tool_returned(data: Json) -> list[Line]:
    if data["tool"] == "setup" and data.get("ok", True):
        return [("dim", "  the workspace is set up")]
    if data["tool"] not in TOOLS:  # a note of the step to itself
        return []
    said = plain(data.get("result", "")).splitlines()
    first = next((line for line in said if line.strip() and not line.startswith("<untrusted_data")), "")
    return [("dim" if data.get("ok", True) else "yellow", f"    {short(first, 140)}")]


def _edited(data: Json) -> list[Line]:
    return [("bold", f"edited: {len(data['changed_files'])} file(s)"), *changed(data["changed_files"])]


def _verified(data: Json) -> list[Line]:
    return [("green", f"verified: {_verdict(data)}"), *command_lines(data.get("commands", []))]


def _rejected(data: Json) -> list[Line]:
    return [("yellow", f"rejected: {_verdict(data)}"), *command_lines(data.get("commands", []))]


def _verdict(data: Json) -> str:
    verdict = data["verdict"]
    return short("; ".join(verdict.get("reasons") or ()) or verdict["outcome"], 500)


def _committed(data: Json) -> list[Line]:
    first = plain(data["message"]).splitlines()[0] if data["message"] else ""
    return [("green", f"committed {data['sha'][:10]} on {plain(data['branch'])}: {first}")]


def question_lines(run_id: str, asked: Json, known: Iterable[Line] = ()) -> list[Line]:
    """What a run asks, without the lines that stand above it already, and the two answers."""
    above = {text.strip() for _, text in known}
    first, *rest = [short(line, 300) for line in str(asked["question"])[:2000].splitlines() if line.strip()] or [""]
    more = [f"  {line}" for line in rest if line not in above]
    answers = f"  agent-coder approve {run_id}    or    agent-coder deny {run_id}"
    return [("magenta", line) for line in (f"waits for you before it goes on to {asked['step']}: {first}", *more, answers)]


def _by(word: str) -> Callable[[Json], list[Line]]:
    def lines(data: Json) -> list[Line]:
        said = data.get("comment") or data.get("reason") or ""
        return [("yellow", f"{word} by {plain(data['by'])}" + (f": {short(said, 500)}" if said else ""))]

    return lines


def _said(word: str, text: str) -> Callable[[Json], list[Line]]:
    """Somebody's words, where they were said, and what they were taken for."""

    def lines(data: Json) -> list[Line]:
        who, kind = data.get("by") or data.get("sender"), str(data.get("source") or data.get("action")).replace("_", " ")
        files = ", ".join(short(file["name"], 80) for file in data.get("attachments", ()))
        notes = [part for part in (plain(data.get("url") or ""), f"with {files}" if files else "") if part]
        said = [("", f"  {short(data[text], 500)}")] if data.get(text) else []
        return [("cyan", f"{plain(who).removeprefix('mail:')} {word} ({kind})"), *said, *(("dim", f"  {note}") for note in notes)]

    return lines


def _published(data: Json) -> list[Line]:
    draft = "draft " if data.get("draft") else ""
    return [("green", f"{draft}pull request: {plain(data['url'])}"), ("dim", f"  {data['sha'][:10]} on {plain(data.get('branch', ''))}")]


def _notified(data: Json) -> list[Line]:
    outcome, about = data["outcome"], data["kind"].replace("pr_", "PR ").replace("_", " ")
    done = "mail to" if outcome == "sent" else f"no mail to ({outcome.replace('_', ' ')})"
    why = f": {short(data['detail'], 300)}" if data.get("detail") and outcome != "sent" else ""
    return [("green" if outcome == "sent" else "yellow", f"{done} {plain(data['recipient'])}: {about}{why}")]


def _merged(data: Json) -> list[Line]:
    how = f" ({data['method']}, as {data['merge_sha'][:10]})" if data.get("method") and data.get("merge_sha") else ""
    return [("bold green", f"merged {data['sha'][:10]}{how} by {plain(', '.join(data.get('by', ())) or 'hand')}")]


def _finished(data: Json) -> list[Line]:
    summary = f" — {short(data['test_summary'], 200)}" if data.get("test_summary") else ""
    return [("bold green", f"finished after {data['attempts']} attempt(s){summary}"), ("dim", f"  {tokens(data.get('usage', {}))}")]


_DESCRIBE: dict[str, Callable[[Json], list[Line]]] = {
    "run.opened": _opened,
    "run.step_started": _step_started,
    "run.step_failed": _step_failed,
    "run.planned": _planned,
    "run.model_replied": _model_replied,
    "run.tool_started": lambda _: [],
    "run.tool_returned": _tool_returned,
    "run.edited": _edited,
    "run.verified": _verified,
    "run.rejected": _rejected,
    "run.committed": _committed,
    "run.published": _published,
    "run.approval_requested": lambda data: question_lines(data.get("run_id", "RUN"), data),
    "run.approved": _by("approved"),
    "run.denied": _by("denied"),
    "run.retried": _by("sent to work again"),
    "run.failed": lambda data: [("bold red", f"failed: {plain(data['reason'])}")],
    "run.cancelled": _by("cancelled"),
    "run.finished": _finished,
    "run.follow_up": _said("asks for more", "feedback"),
    "run.commented": _said("says", "text"),
    "run.reply_received": _said("answered by mail", "text"),
    "run.notified": _notified,
    "run.merge_approved": lambda data: [("green", f"{plain(data['by'])} approved {data['sha'][:10]} for the merge")],
    "run.merge_withdrawn": lambda data: [("yellow", f"{plain(data['by'])} took the approval back")],
    "run.checks_passed": lambda data: [("green", f"the repository's own checks passed for {data['sha'][:10]}")],
    "run.merged": _merged,
    "run.closed": lambda data: [("yellow", f"pull request closed by {plain(data['by'])}")],
}
