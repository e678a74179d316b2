"""Every handler of an event of GitHub, delivered twice, twice at the same time, and killed before and after its effect: one effect."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.bus import NoAnswer
from libs.contracts.run import ApprovalRequested, GitHubTarget, Issue, RunEvent, RunOpened
from libs.contracts.team import MergeApproved
from libs.testkit.product import FAST
from tests.integration.forge.github_server import REPO, environment
from tests.integration.forge.hooks_world import MERGED, SHA, World, failed, finished, planned, published, pull, world

pytestmark = pytest.mark.timeout(500)
Act = Callable[[World, str], Awaitable[None]]
ROOT = Path(__file__).parents[3]


async def seed(here: World, number: int, *after: RunEvent, pulled: bool = False) -> str:
    """A run `run<number>` of issue `number`, as its journal would be."""
    run_id = f"run{number}"
    url = f"https://github.example/{REPO}/issues/{number}"
    target = GitHubTarget(repository=REPO, repository_id=1, installation_id=5, number=number, author="reporter", url=url)
    about = {"issue": Issue(id=str(number), title="t"), "repo": "app", "requested_by": "github:maintainer", "origin": "github"}
    opening = RunOpened(run_id=run_id, github=target, opened_at=datetime.now(UTC), **about)
    await here.append(run_id, opening, planned(run_id), *after)
    await here.rows.put_issue(1, number, run_id, 0)
    if pulled:
        await here.append(run_id, published(run_id, number + 100), finished(run_id))
        await here.rows.put_pull(1, number + 100, run_id, f"fix/issue-{number}")
        here.github.pulls[number + 100] = pull(number + 100, run_id)
    return run_id


async def prepare(here: World) -> None:
    """The runs that the events of all stories are about."""
    await seed(here, 2)
    for number in (3, 4, 6, 7, 8):
        await seed(here, number, pulled=True)
    await seed(here, 5, MergeApproved(run_id="run5", by="github:lead", sha=SHA), pulled=True)
    await seed(here, 9)
    await seed(here, 10, failed("run10", 0))
    later = datetime.now(UTC) + timedelta(days=1)
    await seed(here, 12, ApprovalRequested(run_id="run12", step="plan", of=1, question="Shall I?", expires_at=later))
    here.reviewed(103, 1, "lead", "CHANGES_REQUESTED", "More.")
    here.reviewed(104, 2, "lead", "APPROVED")
    here.reviewed(105, 3, "lead", "DISMISSED")
    here.github.check_runs[SHA] = [{"name": "tests", "status": "completed", "conclusion": "success"}]


async def merged(here: World, guid: str) -> None:
    about = pull(107, "run7") | {"merged": True, "merge_commit_sha": MERGED}
    await here.send("pull_request", "lead", guid, action="closed", pull_request=about)


async def passed(here: World, guid: str) -> None:
    about = {"head_sha": SHA, "conclusion": "success", "name": "tests", "pull_requests": [{"number": 106}]}
    await here.send("check_run", "ci[bot]", guid, action="completed", check_run=about)


STORIES: dict[str, tuple[Act, str]] = {
    "opened": (lambda here, guid: here.label(1, guid=guid), ""),
    "commented": (lambda here, guid: here.comment(2, "lead", "Keep the name.", 1, guid=guid), "run2"),
    "follow_up": (lambda here, guid: here.review(103, "run3", 1, guid), "run3"),
    "merge_approved": (lambda here, guid: here.review(104, "run4", 2, guid), "run4"),
    "merge_withdrawn": (lambda here, guid: here.review(105, "run5", 3, guid, action="dismissed"), "run5"),
    "checks_passed": (passed, "run6"),
    "merged": (merged, "run7"),
    "closed": (lambda here, guid: here.send("pull_request", "lead", guid, action="closed", pull_request=pull(108, "run8")), "run8"),
    "cancelled": (lambda here, guid: here.comment(9, "lead", "/cancel", 2, guid=guid), "run9"),
    "retried": (lambda here, guid: here.comment(10, "lead", "/retry now", 3, guid=guid), "run10"),
    "said": (lambda here, guid: here.comment(11, "stranger", "/solve", 4, guid=guid), ""),
    "approved": (lambda here, guid: here.comment(12, "lead", "/approve", 5, guid=guid), "run12"),
}
GROUPS = (
    ("opened", "commented", "said"),
    ("follow_up", "merge_approved", "merge_withdrawn"),
    ("checks_passed", "merged", "closed"),
    ("cancelled", "retried", "approved"),
)


async def assert_once(here: World, stories: tuple[str, ...]) -> None:
    """What each story is to leave, once; nothing given up, nothing said to anybody that was not to be said."""
    for story in stories:
        run_id = STORIES[story][1]
        if run_id:
            assert Counter(await here.kinds(run_id))[story] == 1, (story, await here.kinds(run_id))
    opened = [run_id for run_id in await here.run_ids() if not run_id.startswith("run")]
    assert len(opened) == ("opened" in stories)
    assert len(here.github.said(11, "who-may-ask")) == ("said" in stories)
    assert sum(map(len, here.github.comments.values())) == ("said" in stories)
    assert await here.letters() == []


@asynccontextmanager
async def process(here: World, **more: str) -> AsyncIterator[None]:
    """The intake in a process that is started again whenever it dies."""
    env = {
        **os.environ,
        **environment(here.forge),
        "AGENT_CODER_NATS_URL": here.settings.nats_url,
        **FAST,
        **more,
    }
    running: list[asyncio.subprocess.Process] = []

    async def keep_running() -> None:
        while True:
            started = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.integration.forge.hooks_process", env=env, cwd=ROOT)
            running[:] = [started]
            assert await started.wait() == -signal.SIGKILL

    keeper = asyncio.create_task(keep_running())
    try:
        yield
        assert not keeper.done(), keeper.exception()
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError, AssertionError):
            await keeper
        with contextlib.suppress(ProcessLookupError):
            running[0].kill()
        await running[0].wait()


async def deliver(here: World, story: str) -> None:
    """As GitHub does, with a repetition while there is no answer, and once more after there was one."""
    for _ in range(2):
        async with asyncio.timeout(200):
            while True:
                try:
                    await STORIES[story][0](here, f"guid-{story}")
                    break
                except NoAnswer:
                    await asyncio.sleep(0.1)


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
async def test_a_forge_that_is_killed_before_and_after_each_effect_makes_it_once(group, tmp_path):
    crash = tmp_path / "reached"
    crash.mkdir()
    events = [story for story in group if story != "said"]
    specs = [f"forge:{place}:run.{story}" for story in events for place in ("before_append", "after_append")]
    specs += ["forge:after_effect:comment_made"] if "said" in group else []
    specs += [f"forge:{place}:q.forge.webhook" for place in ("before_work", "after_effect")] if "opened" in group else []
    async with world(tmp_path, intake=False) as here:
        await prepare(here)
        async with process(here, AGENT_CODER_CRASH_AT=",".join(specs), AGENT_CODER_CRASH_DIR=str(crash)):
            for story in group:  # one after the other, so that no kill hides another one
                await deliver(here, story)
                await here.quiet()
            await assert_once(here, group)
    assert sorted(p.name for p in crash.iterdir()) == sorted(specs)


async def test_everything_delivered_and_asked_twice_at_the_same_time_is_done_once(tmp_path):
    async with world(tmp_path, intake=False) as here:
        await prepare(here)
        async with process(here, AGENT_CODER_DUPLICATE="1"), process(here):
            await asyncio.gather(*(deliver(here, story) for story in STORIES))
            await here.quiet()
            await assert_once(here, tuple(STORIES))
