"""The bundled sample issue, solved from end to end: a server of its own, the event trail, the diff, the commit, and a clone that proves it.

Invariant: a home folder and a server that the demo started are gone when it returns.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from services.cli.client import Address, Api, address, segment
from services.cli.context import out, settings
from services.cli.context import show as show_json
from services.cli.errors import CliError
from services.cli.home import HomeFolder
from services.cli.leftovers import end_leftovers
from services.cli.local_git import clone, git
from services.cli.render import diff_lines, lines
from services.cli.story import INNER
from services.cli.watching import follow, watch

SAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "sample"
READY_SECONDS = 90.0
Json = dict[str, Any]


def demo(keep: bool, running: bool, as_json: bool) -> int:
    """Show it all; returns the exit code, 0 when the run finished and its commit was cloned.

    Raises:
        CliError: the server did not start, or the clone does not hold the commit.
    """
    if not SAMPLE.is_dir():
        raise CliError(f"The bundled sample is not at {SAMPLE}.", "Run the demo from a clone of the project.")
    with tempfile.TemporaryDirectory(prefix="agent-coder-demo-") as folder:
        place = Path(folder)
        repository = lay_out(place / "durations")
        with _server(place, running) as where:
            run = _solve(Api(where), repository, as_json)
            if run["status"] != "finished":
                return 1
            proved = _prove(Api(where), run, place / "clone")
            _tell(run, proved, as_json, stays=keep or running)
            if keep and not running:
                _wait(where, place)
    return 0


def lay_out(target: Path) -> Path:
    """The sample as a git repository with one commit."""
    shutil.copytree(SAMPLE / "repository", target)
    who = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in (("NAME", "sample"), ("EMAIL", "sample@localhost"))
    }
    git("init", "--quiet", "--initial-branch=main", cwd=target)
    git("add", "--all", cwd=target)
    git("-c", "commit.gpgsign=false", "commit", "--quiet", "--no-verify", "-m", "Read durations", cwd=target, environment=who)
    return target


def issue() -> tuple[str, str]:
    """The title and the text of the sample issue."""
    title, _, body = (SAMPLE / "issue.md").read_text(encoding="utf-8").partition("\n\n")
    return title, body


@contextlib.contextmanager
def _server(place: Path, running: bool) -> Iterator[Address]:
    """The server that runs, or one of its own on free ports with the scripted model."""
    if running:
        yield address(settings())
        return
    home = HomeFolder(place / "home")
    own = {key: value for key, value in os.environ.items() if not key.startswith(("MODEL", "AGENT_CODER_"))}
    environment = own | {"AGENT_CODER_HOME": str(home.path), "MODEL": f"scripted:{SAMPLE / 'model.json'}"}
    log = place / "up.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", "--port", "0"],
            env=environment,
            cwd=SAMPLE.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield _when_ready(home, process, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end_leftovers(home)


def _when_ready(home: HomeFolder, process: "subprocess.Popen[bytes]", log: Path) -> Address:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if "ready in " in log.read_text(errors="replace"):
            runtime = home.runtime()
            if runtime is not None:
                return Address(runtime.url, home.token())
        time.sleep(0.05)
    raise CliError(
        f"The demo's server did not start:\n{log.read_text(errors='replace')[-3000:]}", "agent-coder doctor tells what is missing."
    )


def _solve(api: Api, repository: Path, as_json: bool) -> Json:
    title, body = issue()
    accepted = api.post(f"/api/issues/{segment('demo')}/solve", {"title": title, "body": body, "repo": str(repository)})
    run_id = accepted["instanceId"]
    if as_json:
        follow(api.follow(run_id), lambda kind, data: None, lambda data: None)
        run = api.get(f"/api/runs/{run_id}")
        if run["status"] != "finished":
            show_json(run, True, lambda: None)
        return run
    console = out()
    lines(console, [("bold", "the sample issue, with the scripted test model in place of a real one"), ("", "")])
    return watch(api, run_id, console)


def _prove(api: Api, run: Json, into: Path) -> Json:
    """Clone the branch over HTTP; what was cloned, and the event trail.

    Raises:
        CliError: the clone does not hold the run's commit.
    """
    change = run["commit"]
    token = api.post(f"/api/repos/{segment(change['repository'])}/token", {"scope": "read"})["token"]
    clone(change["clone_url"], change["branch"], into, token)
    head = git("rev-parse", "HEAD", cwd=into).strip()
    if head != change["sha"]:
        raise CliError(f"The clone is at {head}, the run's commit is {change['sha']}.")
    trail = api.get(f"/api/runs/{run['instanceId']}/events", limit=1000)["events"]
    diff = api.get(f"/api/runs/{run['instanceId']}/diff")["diff"]
    return {"head": head, "trail": [event["type"] for event in trail], "diff": diff, "log": git("log", "-2", "--oneline", cwd=into)}


def _tell(run: Json, proved: Json, as_json: bool, stays: bool) -> None:
    change = run["commit"]
    gone = [] if stays else [("dim", "  the demo's server is stopped and removed; --keep leaves it running")]

    def words() -> None:
        lines(
            out(),
            [
                ("", ""),
                ("bold", "event trail"),
                ("", "  " + " → ".join(kind.removeprefix("run.") for kind in proved["trail"] if kind not in INNER)),
                ("bold", "diff"),
                *diff_lines(proved["diff"].rstrip("\n")),
                ("bold", "commit"),
                ("", f"  {change['sha']} on {change['branch']}"),
                ("", f"  {change['message'].splitlines()[0]}"),
                ("bold", "clone URL"),
                ("", f"  {change['clone_url']}"),
                ("green", f"  cloned and checked: {proved['log'].splitlines()[0]}"),
                *gone,
            ],
        )

    show_json({"run": run, "trail": proved["trail"], "diff": proved["diff"], "cloned": proved["head"]}, as_json, words)


def _wait(where: Address, place: Path) -> None:
    print(f"\nthe demo's server stays until Ctrl-C: AGENT_CODER_HOME={place / 'home'} agent-coder runs")
    with contextlib.suppress(KeyboardInterrupt, httpx.HTTPError):
        while True:
            time.sleep(1)
            httpx.get(f"{where.url}/healthz", trust_env=False)
