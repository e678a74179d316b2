"""One status comment for each issue, mail replies under the pull request, the description of the set-up, and where no token is."""

import asyncio
import logging
import stat

import pytest

from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.envelope import BlobRef
from libs.contracts.github import DescribeForge
from services.forge import errors
from tests.integration.forge.out_world import World, opened, out_world

STATUS = "<!-- agent-coder:status -->"
SECRET = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture
async def here(tmp_path):
    async with out_world(tmp_path) as found:
        yield found


async def shows(here: World, words: str) -> str:
    """The one status comment, once it has these words."""
    async with asyncio.timeout(60):
        while not [c for c in here.comments(7, STATUS) if words in c]:
            await asyncio.sleep(0.02)
    await here.quiet("status")
    (text,) = here.comments(7, STATUS)
    return text


async def test_one_comment_follows_the_run_to_its_end(here: World):
    await here.append("r1", opened("r1", here.repo))
    await shows(here, "I am at work on this: queued.")
    sha = here.commit("fix/issue-7", {"adder.py": "x\n"})
    await here.append("r1", *here.made("r1", sha, ["adder.py"]))
    text = await shows(here, "The pull request is ready")
    assert here.pulls()[0]["html_url"] in text
    assert "- [x] Pull request" in text
    await here.append("r1", team.RunClosed(run_id="r1", by="github:lead"))
    await shows(here, "closed without a merge")


async def test_a_second_run_of_the_issue_goes_on_with_the_same_comment(here: World):
    await here.append("r1", opened("r1", here.repo), events.RunCancelled(run_id="r1", by="github:lead", reason="not now, @you"))
    assert "@you" not in await shows(here, "Stopped: cancelled by")
    await here.append("r2", opened("r2", here.repo))
    assert "api/runs/r2" in await shows(here, "queued")


async def test_a_forgotten_comment_is_found_by_its_marker_and_a_deleted_one_made_again(here: World):
    await here.append("r1", opened("r1", here.repo))
    await shows(here, "queued")
    key = "comment.1.7.status"
    found = await here.bucket.get(key)
    assert found
    await here.admin.api("STREAM.PURGE.KV_GITHUB", {"filter": f"$KV.GITHUB.{key}"})
    here.repo.comments[7].insert(0, {"id": 999, "body": f"mine {STATUS}", "user": {"login": "stranger"}})
    await here.append("r1", events.RunCancelled(run_id="r1", by="github:lead"))
    async with asyncio.timeout(60):
        while not any("Stopped" in c for c in here.comments(7, STATUS)):
            await asyncio.sleep(0.02)
    await here.quiet("status")
    assert len(here.comments(7, STATUS)) == 2
    assert here.repo.comments[7][0]["body"] == f"mine {STATUS}"
    here.repo.comments[7] = []
    await here.append("r2", opened("r2", here.repo))
    await shows(here, "queued")


async def test_a_secondary_limit_that_only_the_text_tells_leaves_one_comment_in_the_end(here: World, monkeypatch):
    monkeypatch.setattr(errors, "_SECONDARY_SECONDS", 0.2)
    for after in (False, True):
        here.github.fault("(POST|PATCH) .*comments", 403, "You have exceeded a secondary rate limit and have been blocked.", 2, after=after)
    await here.committed("r1")
    await shows(here, "The pull request is ready")


async def test_a_reason_that_holds_a_secret_is_withheld(here: World):
    failed = events.RunFailed.model_validate({"run_id": "r1", "reason": f"the token {SECRET} is wrong", "step": "plan", "of": 1})
    await here.append("r1", opened("r1", here.repo), failed)
    assert SECRET not in await shows(here, "withheld")


async def test_a_mail_reply_is_quoted_once_under_the_pull_request(here: World):
    await here.committed("r1")
    number = (await here.until("r1", "finished")).published.number
    file = team.Attachment(name="log`.txt", media_type="text/plain", blob=BlobRef(sha256="0" * 64, size=1))
    reply = team.ReplyReceived(
        run_id="r1",
        sender="dev@example.org",
        message_id="<1@example.org>",
        action="comment",
        text="请改名\nthanks @all",
        attachments=(file,),
    )
    await here.append("r1", reply, reply, reply.model_copy(update={"action": "retry", "message_id": "<2@example.org>"}))
    await here.quiet("replies")
    (said,) = here.comments(number, "agent-coder:reply-")
    assert said.startswith("`dev@example.org` wrote by mail:\n\n> 请改名\n> thanks @\u200ball\n\nAttached: `log.txt`")


async def test_a_comment_that_github_will_not_take_is_a_dead_letter_and_blocks_nobody(here: World):
    here.github.fault("POST .*/issues/7/comments", 410, "Issues are disabled for this repo")
    await here.append("r1", opened("r1", here.repo))
    await here.quiet("status")
    letters = await here.gateway.bus.dead_letters.list()
    assert [("Issues are disabled" in letter.reason) for letter in letters] == [True]


async def test_the_set_up_is_described_check_by_check(here: World):
    found = await here.gateway.bus.ask(DescribeForge())
    wrong = {c.name: c.fix for c in found.checks if not c.ok}
    assert {"webhook", "event issue_comment"} <= set(wrong)
    assert "event issues" not in wrong
    assert "https://coder.example/webhooks/github" in wrong["webhook"]
    here.github.events = [c.name.removeprefix("event ") for c in found.checks if c.name.startswith("event ")]
    here.github.hook = {"url": "https://coder.example/webhooks/github", "secret": "********"}
    found = await here.gateway.bus.ask(DescribeForge())
    assert (found.configured, [c for c in found.checks if not c.ok]) == (True, [])
    here.github.granted["pull_requests"] = "read"
    key = here.app.settings.key_file
    key.chmod(0o644)
    found = await here.gateway.bus.ask(DescribeForge())
    assert {c.name for c in found.checks if not c.ok} == {"private key", "permission pull_requests: write", "installation octo"}
    key.write_text("-----BEGIN NOTHING-----")
    found = await here.gateway.bus.ask(DescribeForge())
    assert "cannot be used" in next(c.detail for c in found.checks if c.name == "the App answers")
    assert stat.S_IMODE(key.stat().st_mode) == 0o644


async def test_no_token_is_in_a_log_a_trace_an_event_or_a_file(here: World, caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="github")
    await here.app.describe()  # PyGithub sets its logger's level when it is first imported
    logging.getLogger("github").setLevel(logging.DEBUG)
    here.github.fault("POST .*/pulls$", 401, "Bad credentials")
    here.github.fault("GET .*/pulls$", 500, "boom")
    await here.committed("r1")
    await here.until("r1", "finished")
    await here.quiet("status")
    async with asyncio.timeout(30):
        while not (await here.admin.api("STREAM.INFO.TRACE", {}))["state"]["messages"]:
            await asyncio.sleep(0.05)
    assert here.github.tokens
    for token in here.github.tokens:
        assert token not in caplog.text
        held = [p for p in here.home.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
        assert held == []
    spans = await here.admin.api("STREAM.MSG.GET.TRACE", {"last_by_subj": "spans.forge"})
    assert "ghs_" not in str(spans)
