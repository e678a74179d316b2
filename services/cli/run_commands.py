"""The commands about runs: solve, runs, show, watch, diff, fetch, cancel, approve, deny, retry, trace."""

from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.context import AsJson, RunId, api, out, show
from services.cli.errors import CliError, Usage

Json = dict[str, Any]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Your reason, kept with the decision.")]


def solve(
    repo: Annotated[str, typer.Argument(metavar="PATH|URL", help="A local repository, a URL, or a repository of the artifact store.")],
    title: Annotated[str, typer.Option("--title", "-t", help="What should change, in one line.")],
    body: Annotated[str | None, typer.Option("--body", "-b", help="The issue's text.")] = None,
    body_file: Annotated[
        str | None, typer.Option("--body-file", "-F", help="Read the issue's text from a file; - is standard input.")
    ] = None,
    issue: Annotated[str | None, typer.Option("--issue", "-i", help="The issue's id; the branch is fix/issue-<id>.")] = None,
    base: Annotated[str | None, typer.Option("--base", help="Branch, tag or commit to start from.")] = None,
    policy: Annotated[list[str] | None, typer.Option("--policy", "-p", metavar="KEY=VALUE", help="For example max_attempts=5.")] = None,
    mail: Annotated[str | None, typer.Option("--mail", metavar="ADDRESS", help="Who is told by mail of what comes of it.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show what happens until the run ends.")] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Wait, then fetch the branch into the local repository.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have an issue of a repository solved."""
    from uuid import uuid4

    from services.cli import solving
    from services.cli.client import segment

    server = api()
    source, local = source_of(server, repo)
    if fetch and local is None:
        raise Usage("--fetch needs a local repository.", "Without it: agent-coder fetch RUN --into PATH")
    request: Json = {"title": title, "body": solving.body(body, body_file), "repo": source, "base": base, "reporter_email": mail}
    request["policy"] = solving.policy(policy or [])
    path = f"/api/issues/{segment(issue or solving.issue_id(title))}/solve"
    accepted = server.post(path, {k: v for k, v in request.items() if v is not None}, headers={"Idempotency-Key": str(uuid4())})
    run_id = accepted["instanceId"]
    if not (watch or fetch):
        show(accepted, as_json, lambda: print(f"{run_id}\nfollow it: agent-coder watch {run_id}"))
        return
    run = _to_the_end(run_id, as_json, fetched=fetch)
    if fetch and run.get("commit"):
        _fetch(run, local or Path.cwd(), quiet=as_json)


def source_of(server: Any, repo: str) -> tuple[str, Path | None]:
    """What the server is told, and the local repository when it is one; warns about what a run does not see."""
    from urllib.parse import urlsplit

    from services.cli.client import LOOPBACK
    from services.cli.local_git import repository, uncommitted

    source = repository(repo)
    local = Path(source) if source.startswith("/") else None
    if local is None:
        return source, None
    if urlsplit(server.where.url).hostname not in LOOPBACK:
        raise Usage(f"The server {server.where.url} cannot see {local}.", "Give a URL that it can reach.")
    waiting = uncommitted(local)
    if waiting:
        typer.echo(
            f"warning: {waiting} uncommitted change(s) in {local} are not part of what is solved: commit them to include them", err=True
        )
    return source, local


def _to_the_end(run_id: str, as_json: bool, last_event_id: str | None = None, fetched: bool = False) -> Json:
    """Follow a run and show its end.

    Raises:
        CliError: it ended without a result.
    """
    from services.cli.watching import follow, show_end, watch

    server = api()
    try:
        if as_json:
            follow(server.follow(run_id, last_event_id), lambda kind, data: None, lambda data: None)
            run = server.get(f"/api/runs/{run_id}")
            show(run, True, lambda: None)
        else:
            console = out()
            run = watch(server, run_id, console, last_event_id)
            show_end(server, run, console, fetched)
    except KeyboardInterrupt:
        typer.echo(f"\nthe run goes on: agent-coder watch {run_id}    stop it: agent-coder cancel {run_id}", err=True)
        raise typer.Exit(130) from None
    if run["status"] != "finished":
        raise typer.Exit(1)
    return run


def _fetch(run: Json, into: Path, quiet: bool = False) -> None:
    from services.cli.client import segment
    from services.cli.local_git import fetch as fetch_branch

    change = run.get("commit")
    if change is None:
        raise CliError(
            f"The run {run['instanceId']} has no branch: it is {run['status']}.", f"agent-coder show {run['instanceId']} tells more."
        )
    token = api().post(f"/api/repos/{segment(change['repository'])}/token", {"scope": "read"})["token"]
    fetch_branch(into, change["clone_url"], change["branch"], token, run.get("base_commit"))
    if not quiet:
        typer.echo(f"the branch {change['branch']} is in {into.absolute()}: git switch {change['branch']}")


def fetch(
    run: RunId,
    into: Annotated[Path, typer.Option("--into", help="The local repository.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Fetch a run's branch into a local repository."""
    server = api()
    found = server.get(f"/api/runs/{server.run_id(run)}")
    _fetch(found, into, quiet=as_json)
    if as_json:
        show(found["commit"], True, lambda: None)


def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many at most.")] = 30,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on behind an earlier page.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="Only runs of this status: finished, failed, waiting, editing, ….")] = None,
    issue: Annotated[str | None, typer.Option("--issue", help="Only runs of this issue.")] = None,
    repo: Annotated[str | None, typer.Option("--repo", help="Only runs of this repository.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only runs with this in their title.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    page = api().runs(limit, cursor, status=status, issue=issue, repo=repo, q=text)

    def words() -> None:
        from services.cli.render import runs_table

        console = out()
        if page["runs"]:
            console.print(runs_table(page["runs"], console.width))
        elif status or issue or repo or text or cursor:
            print("no run is like that; without options `agent-coder runs` lists all")
        else:
            print('no runs. Start one: agent-coder solve PATH --title "What should change" --watch')
        if page["next_cursor"]:
            print(f"more: --cursor {page['next_cursor']}")

    show(page, as_json, words)


def show_run(run: RunId, as_json: AsJson = False) -> None:
    """Tell a run's whole story: who asked, each step, the pull request, mails, replies, the merge."""
    from services.cli.render import lines, run_words
    from services.cli.story import chapters, for_programs, in_words

    server = api()
    found = server.get(f"/api/runs/{server.run_id(run)}")
    told = chapters(server.events(found["instanceId"]))
    show(found | {"story": for_programs(told)}, as_json, lambda: lines(out(), run_words(found, in_words(told))))


def watch(
    run: RunId,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Sequence of the last event that you have seen.")] = None,
    as_json: AsJson = False,
) -> None:
    """Follow a run until it ends."""
    _to_the_end(api().run_id(run), as_json, None if after is None else str(after))


def diff(run: RunId, as_json: AsJson = False) -> None:
    """Show a run's change as a unified diff."""
    import sys

    from services.cli.render import diff_lines, lines

    server = api()
    found = server.get(f"/api/runs/{server.run_id(run)}/diff")

    def words() -> None:
        if sys.stdout.isatty():
            lines(out(), diff_lines(found["diff"]))
        else:
            sys.stdout.write(found["diff"])
        if found.get("truncated"):
            typer.echo("the diff is cut: `agent-coder fetch` brings the whole change", err=True)

    show(found, as_json, words)


def _decide(run: str, word: str, body: Json, as_json: bool, **query: Any) -> None:
    server = api()
    run_id = server.run_id(run)
    done = server.post(f"/api/runs/{run_id}/{word}", body, **query)
    then = "once more: agent-coder retry" if word in ("cancel", "deny") else "follow it: agent-coder watch"
    show(done, as_json, lambda: print(f"{done['type'].removeprefix('run.')}: {run_id}\n{then} {run_id}"))


def cancel(run: RunId, comment: Comment = "", as_json: AsJson = False) -> None:
    """Stop a run."""
    _decide(run, "cancel", {"comment": comment}, as_json)


def approve(run: RunId, comment: Comment = "", as_json: AsJson = False) -> None:
    """Say yes to what a run asks."""
    _decide(run, "approve", {"comment": comment}, as_json)


def deny(run: RunId, comment: Comment = "", as_json: AsJson = False) -> None:
    """Say no to what a run asks; that ends it."""
    _decide(run, "deny", {"comment": comment}, as_json)


def retry(
    run: RunId,
    step: Annotated[
        str | None, typer.Option("--from", help="plan, edit, verify, commit, finish, publish or merge; by default the one that failed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a step of a run to work again."""
    if step is None and (found := api().get(f"/api/runs/{api().run_id(run)}"))["status"] == "finished":
        raise Usage(
            f"The run {found['instanceId']} is finished: no step of it failed.", "Say which is to work again, for example --from edit"
        )
    _decide(run, "retry", {}, as_json, **{"from": step})


def trace(
    run: RunId,
    whole: Annotated[bool, typer.Option("--all", help="Every span: a question and its answer apart.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a run's trace: what took how long, tokens and money."""
    from services.cli.render import trace_summary, waterfall
    from services.cli.waterfall import joined

    server = api()
    found = server.get(f"/api/runs/{server.run_id(run)}/trace")

    def words() -> None:
        console = out()
        console.print(f"trace {found['trace_id']}: {trace_summary(found['spans'])}", style="bold")
        for row in waterfall(found["spans"] if whole else joined(found["spans"]), min(console.width, 140)):
            console.print(row, no_wrap=True, overflow="ellipsis")

    show(found, as_json, words)
