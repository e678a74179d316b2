"""What people see: tables, a run in words, diffs and the waterfall, on a rich console. Nothing here is parsed as markup."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.waterfall import Row, Span, bar, rows, seconds, total_seconds
from services.cli.words import ENDED, Line, plain, plan_lines, question_lines, short, tokens

Json = dict[str, Any]
STYLES = {"finished": "green", "failed": "red", "denied": "red", "cancelled": "yellow", "waiting": "magenta"}
NARROW = 110  # cells for a waterfall
WIDE = 140  # cells for a list of runs
BARS = {
    "gateway": "white",
    "planner": "cyan",
    "editor": "green",
    "verifier": "yellow",
    "artifact": "magenta",
    "inference": "blue",
    "sandbox": "red",
}
_DIFF = (
    ("+++", "bold"),
    ("---", "bold"),
    ("diff ", "bold cyan"),
    ("index ", "dim"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


def console(stderr: bool = False) -> Console:
    """A console that follows the terminal, and keeps whole lines where there is none."""
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found = Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=max(found.width, 200))
    return found


def lines(out: Console, found: list[Line]) -> None:
    """Styled lines."""
    for style, text in found:
        out.print(Text(text, style=style))


def runs_table(runs: list[Json], width: int) -> Table:
    """The list of runs, a line each; with less than `WIDE` cells the beginnings of the ids and the columns that one looks at first."""
    narrow = width < WIDE
    columns = ("run status title cost age" if narrow else "run status issue title attempt cost age branch").split()
    found = [_cells(run, narrow) for run in runs]
    widths = {name: max(cell_len(name), *(cells[name].cell_len for cells in found)) for name in columns}
    rest = sum(cells + 2 for name, cells in widths.items() if name != "title")
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(
            name, no_wrap=True, overflow="ellipsis", width=min(widths[name], max(width - rest, 10)) if name == "title" else None
        )
    for cells in found:
        table.add_row(*(cells[name] for name in columns))
    return table


def _cells(run: Json, narrow: bool) -> dict[str, Text]:
    cost = run.get("usage", {}).get("cost_usd", 0.0)
    return {
        "run": Text(run["run_id"][:10] if narrow else run["run_id"]),
        "status": Text(run["status"], style=STYLES.get(run["status"], "cyan")),
        "issue": Text(short(run["issue_id"], 24)),
        "title": Text(short(run["title"], 60)),
        "attempt": Text(str(run["attempt"])),
        "cost": Text(f"${cost:.3f}" if cost else "–"),
        "age": Text(age(run["created_at"])),
        "branch": Text(plain(run.get("branch") or "–")),
    }


def age(created: str, now: datetime | None = None) -> str:
    """How long ago, in one unit."""
    past = ((now or datetime.now(UTC)) - datetime.fromisoformat(created)).total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            return f"{int(past // size)} {unit}"
    return f"{max(int(past), 0)} s"


def run_words(run: Json, story: Sequence[Line] = ()) -> list[Line]:
    """Everything about a run, in words: where it is, its story, why it did what it did, what came out."""
    status, found = run["status"], list[Line]()
    if not story:  # its journal is gone, only the last state is kept
        found += [
            ("bold", f"issue {plain(run['issue']['id'])}: {short(run['issue']['title'], 300)}"),
            ("", f"run {run['instanceId']} in {plain(run['repo'])}"),
        ]
    found += [*story, (STYLES.get(status, "cyan"), f"{status}, attempt {run['attempt']}, opened {age(run['created_at'])} ago")]
    if run.get("why") and not run.get("pending"):
        found.append(("yellow", f"why: {plain(run['why'])}"))
    if run.get("thoughts"):
        found += [("bold", "why it did what it did")]
        found += [("", f"  {short(t['topic'], 80)}: {short(t['reasoning'], 400)}") for t in run["thoughts"]]
    return [*found, ("dim", tokens(run["usage"])), *ending(run, known=story)]


def ending(run: Json, fetched: bool = False, known: Sequence[Line] = ()) -> list[Line]:
    """What came out, and what to do next unless the branch is `fetched` anyway; without the lines of a question that are `known`."""
    run_id = run["instanceId"]
    if run.get("commit"):
        commit = run["commit"]
        outcome = "merged" if run.get("merged") else "closed" if run.get("closed") else "open"
        pull = [("green", f"pull request: {plain(run['pull_request_url'])} ({outcome})")] if run.get("pull_request_url") else []
        return [
            ("bold green", f"branch {plain(commit['branch'])} at {commit['sha'][:10]} of {plain(commit['clone_url'])}"),
            *pull,
            *([] if fetched else [("", f"into your repository: agent-coder fetch {run_id}      only look: agent-coder diff {run_id}")]),
        ]
    if run.get("pending"):
        return question_lines(run_id, run["pending"], known or (plan_lines(run["plan"]) if run.get("plan") else ()))
    if run["status"] in ENDED:
        return [("", f"once more: agent-coder retry {run_id}      what happened when: agent-coder trace {run_id}")]
    return [("dim", f"at work: agent-coder watch {run_id}")]


def diff_lines(diff: str) -> list[Line]:
    """A unified diff, coloured by the kind of each line."""
    return [(next((style for start, style in _DIFF if line.startswith(start)), ""), plain(line)) for line in diff.split("\n")]


def waterfall(spans: Sequence[Span], width: int) -> list[Text]:
    """The trace as bars: indented names, time, tokens and money."""
    found = rows(spans)
    total = total_seconds(found)
    names = [f"{'  ' * min(row.depth, 8)}{short(row.name, 44)}" for row in found]
    notes = [_notes(row) for row in found]
    narrow = width < NARROW
    label = min(max((cell_len(name) for name in names), default=0), 34 if narrow else 56)
    times = 11 if narrow else 23
    room = max(width - label - times - min(max(map(cell_len, notes), default=0), 24 if narrow else 40), 8)
    drawn: list[Text] = []
    for row, name, note in zip(found, names, notes, strict=True):
        before, block = bar(row, total, room)
        text = Text(set_cell_size(name, label), style="red" if row.failed else "")
        service = "" if narrow else f"{row.service[:11]:<11} "
        text.append(f" {service}{seconds(row.duration):>9} ", style="dim")
        text.append(" " * before + block + " " * (room - before - len(block)), style="red" if row.failed else BARS.get(row.service, "cyan"))
        text.append(note)
        drawn.append(text)
    return drawn


def _notes(row: Row) -> str:
    spent = f" {row.input_tokens:,}→{row.output_tokens:,} tok" if row.input_tokens or row.output_tokens else ""
    money = f" ${row.cost_usd:.4f}" if row.cost_usd else ""
    said = [word for word in ("failed" if row.failed else "", short(row.why, 60)) if word]
    return f"{spent}{money}{' again' if row.again else ''}{' ' if said else ''}{': '.join(said)}"


def trace_summary(spans: Sequence[Span]) -> str:
    """One line over the waterfall."""
    found = rows(spans)
    used = f"{sum(r.input_tokens for r in found):,} tokens in, {sum(r.output_tokens for r in found):,} out"
    return f"{len(found)} spans, {seconds(total_seconds(found))}, {used}, ${sum(r.cost_usd for r in found):.4f}"
