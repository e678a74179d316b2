"""What a mail says, made of a run's state and the event that it is about. Pure: no clock, no I/O."""

from dataclasses import dataclass

from libs.contracts.fold import RunState
from libs.contracts.mail import MailKind
from libs.contracts.run import ApprovalRequested, CommandRun, RunEvent, RunFailed, RunFinished, RunPublished, RunVerified
from libs.contracts.team import RunMerged
from services.mailer.templates import Block, Button, Fact, Letter, Para, Quote, cut, one_line

_FILES, _COMMANDS, _WORDS = 20, 10, 4000
_TITLE = 160
_REPLY_HINTS: dict[type[RunEvent], str] = {
    RunPublished: "Reply to this mail to comment on the pull request; begin with /retry to have the change worked over as you say.",
    RunFinished: "Reply to this mail to ask for more on the same branch.",
}


@dataclass(frozen=True)
class Topic:
    """What an event is told as. `key` says which events of a run are the same news."""

    kind: MailKind
    key: str


@dataclass(frozen=True)
class Ways:
    """The addresses that a letter shows; `approve` and `deny` only when somebody must decide."""

    public_url: str
    approve: str = ""
    deny: str = ""
    unsubscribe: str = ""


def topic(event: RunEvent, sequence: int, then: RunState, now: RunState) -> Topic | None:
    """Whether and as what an event is told; `then` is the run right after it, `now` the newest state.

    One mail for each kind in each round of a run; a question and a failure are news each time. A pull request is told when it is
    published, not once more when the run is finished; a question that was answered meanwhile is not told.
    """
    round_ = str(len(then.follow_ups))
    match event:
        case RunPublished():
            return Topic("pr_ready", round_)
        case RunFinished():
            return Topic("finished", round_) if then.published is None else None
        case RunMerged():
            return Topic("merged", "")
        case RunFailed():
            return Topic("failed", str(sequence))
        case ApprovalRequested():
            return Topic("needs_decision", str(sequence)) if now.pending and now.pending.sequence == sequence else None
    return None


def letter(event: RunEvent, state: RunState, ways: Ways) -> Letter:
    """The letter about `event`; `state` is the run right after it."""
    title = one_line(state.opened.issue.title, _TITLE) if state.opened else state.run_id
    match event:
        case RunPublished():
            updated = bool(state.follow_ups)
            word, what = ("PR updated", "The pull request was updated") if updated else ("PR ready", "A pull request is ready")
            blocks = _published(event, state)
        case RunFinished():
            word, what, blocks = "done", "The change is done", _finished(event, state, ways)
        case RunMerged():
            word, what, blocks = "merged", "The change is merged", _merged(event, state)
        case ApprovalRequested():
            word, what, blocks = "needs your decision", "A decision is needed", _asked(event, ways)
        case RunFailed():
            word, what, blocks = "failed", "The run failed", _failed(event, state)
        case _:
            raise ValueError(f"no letter tells of {type(event).__name__}")
    return Letter(f"[agent-coder] {word}: {title}", f"{what}: {title}", blocks, _footer(event, state.run_id, ways))


def withheld(told: Letter, where: str) -> Letter:
    """The letter without the words of others, because they look like they hold a secret."""
    notice = Para(
        f"The words of this message are left out: they look like they hold a secret ({where[:500]}). "
        "Look at the run itself before you pass anything on."
    )
    kept = [b for b in told.blocks if isinstance(b, Button)]
    what = told.headline.partition(":")[0]
    return Letter(f"[agent-coder] {what}", what, [notice, *kept], told.footer)


def _published(event: RunPublished, state: RunState) -> list[Block]:
    draft = [Para("It is a draft until the repository's own checks are green.")] if event.draft else []
    return [Para(event.url), *draft, *_change(state)]


def _finished(event: RunFinished, state: RunState, ways: Ways) -> list[Block]:
    repository = state.committed.repository if state.committed else ""
    clone = f"git clone --branch {event.branch} {ways.public_url.rstrip('/')}/git/{repository}.git"
    return [
        Fact("Branch", event.branch),
        Fact("Commit", event.sha),
        Para(f"Fetch it into your repository with\n  agent-coder fetch {event.run_id}\nor clone it with\n  {clone}"),
        *_change(state),
    ]


def _merged(event: RunMerged, state: RunState) -> list[Block]:
    url = [Para(state.published.url)] if state.published else []
    by = ", ".join(event.by)
    return [*url, Fact("Commit", event.merge_sha or event.sha), *([Fact("Approved or merged by", by)] if by else [])]


def _asked(event: ApprovalRequested, ways: Ways) -> list[Block]:
    return [
        Quote(cut(event.question, 8000)),
        Button("Approve", ways.approve, "yes"),
        Button("Deny", ways.deny, "no"),
        Para("Each link shows the question once more before anything happens. Or reply with /approve or /deny as the first line."),
        Para(f"Without an answer the run ends on {event.expires_at:%Y-%m-%d at %H:%M} UTC."),
    ]


def _failed(event: RunFailed, state: RunState) -> list[Block]:
    at = f" at the step {event.step}" if event.step and event.kind != "attempts" else ""
    return [
        Para(f"It ended{at}, because:"),
        Quote(cut(event.reason, _WORDS)),
        *_cost(state),
        Para(f"Reply with /retry as the first line to try again, or:\n  agent-coder retry {event.run_id}"),
    ]


def _change(state: RunState) -> list[Block]:
    """What was changed, how it was verified, what it cost."""
    summary = state.edited.summary if state.edited else ""
    if not summary and state.planned:
        summary = state.planned.plan.summary
    blocks: list[Block] = [Quote(cut(summary, _WORDS))] if summary.strip() else []
    files = (state.verified.changed_files if state.verified else ()) or (state.edited.changed_files if state.edited else ())
    if files:
        names = [f"{f.status} {one_line(f.path, 200)}" for f in files[:_FILES]]
        more = [f"and {len(files) - _FILES} more"] if len(files) > _FILES else []
        blocks += [Para("Changed:"), Quote("\n".join([*names, *more]))]
    return [*blocks, *(_verified(state.verified) if state.verified else []), *_cost(state)]


def _verified(event: RunVerified) -> list[Block]:
    """The tests and what they said; of a change that a person approved without them, that nothing shows that it works."""
    verdict, tests = event.verdict, [c for c in event.commands if c.phase in ("test", "rerun")]
    blocks: list[Block] = [Fact("Not verified", one_line("; ".join(verdict.reasons), _WORDS))] if verdict.outcome == "no_tests" else []
    if tests:
        heading = "What the tests say:" if blocks else "Verified with:"
        return [*blocks, Para(heading), Quote("\n".join(_command(c) for c in tests[:_COMMANDS]))]
    return blocks or [Fact("Verified", verdict.outcome.replace("_", " "))]


def _command(run: CommandRun) -> str:
    counts = ((run.passed, "passed"), (run.failed, "failed"), (run.skipped, "skipped"))
    said = ", ".join(f"{number} {word}" for number, word in counts if number)
    end = f"exit code {run.exit_code}" if run.outcome == "exited" else run.outcome.replace("_", " ")
    return f"{one_line(run.command, 300)} → {end}" + (f" ({said})" if said else "")


def _cost(state: RunState) -> list[Block]:
    if not state.usage.calls:
        return []
    return [Fact("Cost", f"${state.usage.cost_usd:.4f}, {state.usage.calls} model calls, {max(state.attempt, 1)} attempt(s)")]


def _footer(event: RunEvent, run_id: str, ways: Ways) -> list[str]:
    hint = _REPLY_HINTS.get(type(event))
    off = [f"No more of these mails: {ways.unsubscribe}"] if ways.unsubscribe else []
    return [*([hint] if hint else []), f"The story of this run: agent-coder show {run_id}", *off]
