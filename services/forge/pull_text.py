"""What a pull request and a comment of ours say. Pure.

Words of the issue and of the model are untrusted: they can mention nobody, close no other issue and hold no marker of ours.
"""

import re
from dataclasses import dataclass

from libs.contracts.fold import RunState
from libs.contracts.run import CommandRun, RunCommitted
from libs.contracts.text import without_keywords, without_mentions
from services.forge.rows import marker, run_marker

LIMIT = 65_536  # of GitHub, for the body of a pull request and of a comment; counted in UTF-16 units to be on the safe side
TITLE = 250
BEGIN, END = marker("begin"), marker("end")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_CODE = re.compile(r"(?<![\\`])`[^`\n|]+`(?!`)")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}(?=[^`]*$)|~{3,})")
_OUTPUT_LINES = 8


@dataclass(frozen=True)
class Links:
    """Where people find the run; `issue` is the number of the issue in the same repository."""

    public_url: str
    issue: int | None = None

    def run(self, run_id: str) -> str:
        """The run itself."""
        return f"{self.public_url.rstrip('/')}/api/runs/{run_id}"

    def trace(self, run_id: str) -> str:
        """What happened in it, with durations."""
        return f"{self.run(run_id)}/trace"


def tame(text: str) -> str:
    """Untrusted words for Markdown on GitHub: a mention, a closing keyword, a tag or a hidden comment in them is nothing but text.

    A fence that they leave open is closed, so that nothing that follows is taken for code.
    """
    plain = text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")
    lines, fence = [], ""
    for line in plain.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            ends = mark is not None and mark[1].startswith(fence) and not line[mark.end() :].strip()
            fence = "" if ends else fence
            lines.append(without_mentions(line))
        else:
            fence = mark[1] if mark else ""
            lines.append(line if mark else _tame_line(line))
    return without_keywords("\n".join([*lines, fence] if fence else lines))


def _tame_line(line: str) -> str:
    """No tags and no mentions outside of code; code is what stands between two backticks and no mark of a table parts."""

    def plain(words: str) -> str:
        return without_mentions(_TAG.sub("&lt;", words))

    pieces, last = [], 0
    for code in _CODE.finditer(line):
        pieces += [plain(line[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*pieces, plain(line[last:])])


def size(text: str) -> int:
    """Characters as GitHub counts them at most."""
    return len(text.encode("utf-16-le", "replace")) // 2


def cut(text: str, room: int) -> str:
    """As much of a text as fits into `room` characters, whole lines where there are any."""
    if size(text) <= room:
        return text
    kept = text.encode("utf-16-le", "replace")[: max(room, 0) * 2].decode("utf-16-le", "ignore")
    return kept.rpartition("\n")[0] or kept


def title(event: RunCommitted) -> str:
    """The title of the pull request: the subject of the commit."""
    subject = event.message.splitlines()[0] if event.message.strip() else f"Changes of run {event.run_id}"
    return without_keywords(without_mentions(cut(subject, TITLE)))


def body(state: RunState, event: RunCommitted, links: Links) -> str:
    """What, why, how verified, cost, trace; cut to GitHub's limit with a link to the rest, the end always whole."""
    closing = f"Closes #{links.issue}\n\n" if links.issue is not None else ""
    tail = f"\n\n{closing}{END}\n{run_marker(event.run_id)}"
    head = "\n\n".join(part for part in (BEGIN, _what(state), _why(state), _verified(state), _cost(state, event, links)) if part)
    if size(head) + size(tail) <= LIMIT:
        return head + tail
    note = f"\n\n… This text was cut; the whole is at {links.run(event.run_id)}."
    kept = cut(head, LIMIT - size(tail) - size(note) - 8)
    fence = "\n```" if kept.count("\n```") % 2 else ""
    return kept + fence + note + tail


def updated(old: str, new: str) -> str:
    """The new text in place of ours in a body that people may have added to; what they wrote stays as far as there is room."""
    start, end = old.find(BEGIN), old.find(END)
    if start < 0 or end < start:
        return new
    before, after = old[:start], old[end + len(END) :]
    rest = re.sub(r"\s*<!-- agent-coder:run=[A-Za-z0-9_-]+ -->", "", after)
    whole = before + new + rest
    return whole if size(whole) <= LIMIT else new


def _what(state: RunState) -> str:
    summary = tame(state.edited.summary.strip()) if state.edited else ""
    changed = (state.verified.changed_files if state.verified else ()) or (state.edited.changed_files if state.edited else ())
    files = "\n".join(
        f"- `{f.path.replace('`', '')}` {f.status.replace('_', ' ')}{_lines(f.added_lines, f.deleted_lines)}" for f in changed[:100]
    )
    more = f"\n- and {len(changed) - 100} more" if len(changed) > 100 else ""
    return f"## What\n\n{summary or 'See the diff.'}" + (f"\n\n{files}{more}" if files else "")


def _lines(added: int | None, deleted: int | None) -> str:
    return "" if added is None else f" (+{added} −{deleted or 0})"


def _why(state: RunState) -> str:
    issue = tame(state.opened.issue.title) if state.opened else ""
    steps = (
        [f"{n}. {tame(s.title)}" + (f": {tame(s.why)}" if s.why else "") for n, s in enumerate(state.planned.plan.steps, 1)]
        if state.planned
        else []
    )
    asked = [f"{f.by.removeprefix('github:')} asked for more: {tame(cut(f.feedback, 1000))}" for f in state.follow_ups[-5:]]
    return "\n\n".join(["## Why", issue, *(["\n".join(steps)] if steps else []), *asked])


def _verified(state: RunState) -> str:
    if state.verified is None:
        return ""
    verdict = state.verified.verdict
    words = "\n".join(f"- {tame(reason)}" for reason in verdict.reasons)
    runs = "\n\n".join(_command(run) for run in state.verified.commands if run.phase in ("test", "rerun"))
    return "\n\n".join(p for p in ("## How it was verified", f"Verdict: {verdict.outcome.replace('_', ' ')}", words, runs) if p)


def _command(run: CommandRun) -> str:
    counts = ", ".join(
        f"{n} {word}" for n, word in ((run.passed, "passed"), (run.failed, "failed"), (run.skipped, "skipped")) if n is not None
    )
    ended = f"exit code {run.exit_code}" if run.exit_code is not None else run.outcome.replace("_", " ")
    tail = cut("\n".join(run.output_tail.strip().splitlines()[-_OUTPUT_LINES:]).replace("```", "'''"), 2000)
    words = ", ".join(filter(None, (ended, f"{run.duration_seconds:.1f} s", counts)))
    return f"`{run.command.replace('`', '')}`: {words}\n\n```text\n{tail}\n```"


def _cost(state: RunState, event: RunCommitted, links: Links) -> str:
    u = state.usage
    spent = f"{u.calls} model calls, {u.input_tokens:,} tokens in, {u.output_tokens:,} out, ${u.cost_usd:.2f}"
    attempts = f"{event.attempt} attempt" + ("s" if event.attempt != 1 else "")
    return f"## Cost\n\n{spent}; {attempts}. [Run]({links.run(event.run_id)}) · [Trace]({links.trace(event.run_id)})"
