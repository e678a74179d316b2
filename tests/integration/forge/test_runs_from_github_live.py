"""How something on GitHub starts a run, and what does not: real broker, real client, GitHub's API on loopback."""

from datetime import UTC, datetime, timedelta

import pytest

from libs.contracts.ids import derived_id
from libs.contracts.run import ApprovalRequested, RunCancelled
from libs.contracts.team import RunClosed
from libs.telemetry import trace_id
from tests.integration.forge.github_server import BOT
from tests.integration.forge.hooks_world import SHA, failed, finished, issue, planned, published, world


@pytest.fixture
async def here(tmp_path):
    async with world(tmp_path) as found:
        yield found


async def test_a_label_opens_one_run_however_often_it_is_delivered(here):
    guid = await here.label(7)
    assert await here.label(7, guid=guid) == guid
    await here.quiet()
    (run_id,) = await here.run_ids()
    opened = (await here.state(run_id)).opened
    assert run_id == derived_id("github", guid)
    assert (opened.issue.id, opened.issue.title, opened.issue.body) == ("7", "add subtracts", "add(1, 2) is -1.")
    assert (opened.origin, opened.requested_by, opened.repo) == ("github", "github:maintainer", "https://github.example/octo/app.git")
    target = opened.github
    assert (target.repository, target.repository_id, target.installation_id, target.number, target.author) == (
        "octo/app",
        1,
        5,
        7,
        "reporter",
    )


async def test_the_webhook_and_its_run_are_one_trace_and_a_later_comment_joins_it(here):
    guid = await here.label(7)
    await here.quiet()
    run_id = derived_id("github", guid)
    await here.comment(7, "lead", "Keep the name.", 1)
    await here.quiet()
    subjects = (("RUN", f"run.{run_id}.opened"), ("RUN", f"run.{run_id}.commented"))
    traces = [trace_id(await here.headers(*subject)) for subject in subjects]
    assert traces == [trace_id(await here.headers("HOOKS", f"hook.github.{guid}"))] * 2
    assert traces[0]


async def test_a_second_word_about_an_issue_at_work_starts_no_second_run(here):
    await here.label(7)
    await here.quiet()
    await here.comment(7, "lead", "/solve and keep the signature", 1)
    await here.send("issues", "maintainer", action="assigned", issue=issue(7), assignee={"login": BOT})
    await here.quiet()
    (run_id,) = await here.run_ids()
    assert [c.event.text for c in (await here.state(run_id)).comments] == ["and keep the signature"]
    await here.label(8)
    await here.quiet()
    assert len(await here.run_ids()) == 2


@pytest.mark.parametrize(
    "how",
    ["/solve it please", "@agent-coder, please", "请 @agent-coder 看看"],
)
async def test_a_comment_by_a_writer_opens_a_run_with_its_words(here, how):
    await here.comment(7, "maintainer", how, 1)
    await here.quiet()
    (run_id,) = await here.run_ids()
    body = (await here.state(run_id)).opened.issue.body
    assert body.startswith("add(1, 2) is -1.")
    assert "maintainer adds" in body


async def test_assignment_and_a_new_issue_that_speaks_to_the_bot_open_runs(here):
    await here.send("issues", "maintainer", action="assigned", issue=issue(7), assignee={"login": BOT})
    await here.send("issues", "maintainer", action="opened", issue=issue(8, "maintainer", "@agent-coder: add is wrong"))
    await here.send("issues", "maintainer", action="assigned", issue=issue(9), assignee={"login": "lead"})
    await here.send("issues", "maintainer", action="opened", issue=issue(10, "maintainer", "add is wrong"))
    await here.label(11, name="bug")
    await here.quiet()
    states = [await here.state(run_id) for run_id in await here.run_ids()]
    assert sorted(s.opened.issue.id for s in states) == ["7", "8"]


async def test_others_get_one_polite_answer_for_each_issue(here):
    await here.comment(7, "stranger", "/solve", 1)
    await here.comment(7, "unknown", "@agent-coder please", 2)
    await here.label(7, by="stranger")
    await here.comment(8, "stranger", "/solve", 3)
    await here.comment(9, "stranger", "I would solve this", 4)
    await here.quiet()
    assert await here.run_ids() == []
    assert [len(here.github.said(n, "who-may-ask")) for n in (7, 8, 9)] == [1, 1, 0]
    assert "write permission" in here.github.said(7, "who-may-ask")[0]


async def test_the_bots_own_events_and_those_of_other_bots_are_ignored(here):
    await here.comment(7, BOT, "/solve", 1)
    await here.comment(7, "dependabot[bot]", "@agent-coder /solve", 2)
    await here.label(7, by="github-actions[bot]")
    await here.send("issues", BOT, action="opened", issue=issue(8, BOT, "/solve"))
    await here.quiet()
    assert await here.run_ids() == []
    assert here.github.comments == {}


async def test_the_bots_own_comment_that_comes_back_during_a_run_is_no_word_for_it(here):
    run_id = await here.at_work(7, by="lead")
    await here.comment(7, BOT, "I am planning. @agent-coder /cancel", 1)
    await here.quiet()
    assert await here.kinds(run_id) == ["opened", "planned"]


async def test_a_dispatch_opens_a_run_of_an_issue_or_of_its_own_words(here):
    here.github.issues[7] = issue(7)
    about = {"action": "agent-coder-solve", "branch": "main"}
    await here.send("repository_dispatch", "maintainer", **about, client_payload={"issue": 7, "base": "release/1"})
    await here.send("repository_dispatch", "maintainer", **about, client_payload={"title": "Only words", "body": "Do it."})
    await here.send("repository_dispatch", "maintainer", **about, client_payload={"issue": 404})
    await here.send("repository_dispatch", "maintainer", **about, client_payload={"body": "no title"})
    await here.send("repository_dispatch", "stranger", **about, client_payload={"title": "Not me"})
    await here.send("repository_dispatch", "maintainer", action="deploy", branch="main", client_payload={"title": "Not for us"})
    await here.quiet()
    opened = {s.opened.issue.title: s.opened for s in [await here.state(r) for r in await here.run_ids()]}
    assert sorted(opened) == ["Only words", "add subtracts"]
    assert (opened["add subtracts"].base, opened["add subtracts"].github.number) == ("release/1", 7)
    assert opened["Only words"].github is None
    assert await here.letters() == []


async def test_a_new_word_when_the_run_is_over_follows_up_or_starts_anew(here):
    with_pull, without = await here.with_pull(7), await here.at_work(8)
    await here.append(without, RunCancelled(run_id=without, by="github:lead"))
    await here.comment(7, "lead", "/solve but name it plus", 1)
    await here.comment(8, "lead", "/solve", 2)
    await here.quiet()
    (follow_up,) = (await here.state(with_pull)).follow_ups
    assert (follow_up.feedback, follow_up.by, follow_up.source) == ("but name it plus", "github:lead", "comment")
    assert len(await here.run_ids()) == 3
    row, _ = await here.rows.issue(1, 8)
    assert row.run_id not in (with_pull, without)
    await here.append(with_pull, finished(with_pull), RunClosed(run_id=with_pull, by="github:lead"))
    await here.label(7)
    await here.quiet()
    assert len(await here.run_ids()) == 4


async def test_a_run_that_was_announced_and_never_opened_does_not_block_its_issue(here):
    assert await here.rows.put_issue(1, 7, "never", 0)
    await here.label(7)
    await here.quiet()
    (run_id,) = await here.run_ids()
    row, _ = await here.rows.issue(1, 7)
    assert row.run_id == run_id


async def test_an_old_delivery_that_comes_again_leaves_a_newer_run_alone(here):
    first = await here.label(7)
    await here.quiet()
    old = derived_id("github", first)
    await here.append(old, RunCancelled(run_id=old, by="github:lead"))
    await here.label(7)
    await here.quiet()
    await here.admin.api("STREAM.PURGE.HOOKS", {})  # as after 90 days
    await here.label(7, guid=first)
    await here.quiet()
    row, _ = await here.rows.issue(1, 7)
    assert len(await here.run_ids()) == 2
    assert row.run_id != old


async def test_an_archived_repository_and_one_without_installation_start_nothing(here):
    archived = {"id": 1, "full_name": "octo/app", "clone_url": "https://github.example/octo/app.git", "archived": True}
    elsewhere = {"id": 2, "full_name": "octo/other", "clone_url": "https://github.example/octo/other.git"}
    about = {"action": "labeled", "issue": issue(7), "label": {"name": "agent-coder"}}
    await here.send("issues", "maintainer", **about, repository=archived)
    await here.send("issues", "maintainer", **about, repository=elsewhere, installation=None)
    await here.quiet()
    assert await here.run_ids() == []
    await here.send("issues", "maintainer", **about, installation=None)
    await here.quiet()
    (run_id,) = await here.run_ids()
    assert (await here.state(run_id)).opened.github.installation_id == 5


async def test_a_suspended_installation_loses_its_tokens(here):
    await here.label(7)
    await here.quiet()
    minted = "POST /app/installations/5/access_tokens"
    before = here.github.calls[minted]
    await here.send("installation", "lead", action="suspend", installation={"id": 5})
    await here.quiet()
    await here.label(8)
    await here.quiet()
    assert here.github.calls[minted] > before


async def test_github_that_is_down_delays_and_loses_nothing(here):
    here.github.down = True
    await here.label(7)
    while here.github.calls.total() < 2:
        await here.gateway.bus.alive("forge")
    here.github.down = False
    await here.quiet()
    assert len(await here.run_ids()) == 1


async def test_retry_and_cancel_are_for_writers_and_answered_when_they_are_not_possible(here):
    run_id = await here.at_work(7)
    await here.comment(7, "stranger", "/cancel", 1)
    await here.quiet()
    assert (await here.state(run_id)).status == "editing"
    await here.comment(7, "lead", "/cancel", 2)
    await here.quiet()
    assert (await here.state(run_id)).why == "cancelled by github:lead"
    await here.comment(7, "maintainer", "/cancel", 3)
    await here.comment(9, "lead", "/cancel", 4)
    await here.quiet()
    assert "cancelled already" in here.github.said(7, "answer-3")[0]
    assert "/solve" in here.github.said(9, "answer-4")[0]


async def test_retry_sends_a_failed_step_to_work_again_with_the_words(here):
    run_id = await here.at_work(7)
    history = await here.journal.read(run_id)
    await here.append(run_id, failed(run_id, history[0].sequence))
    await here.comment(7, "lead", "/retry use the other model", 1)
    await here.quiet()
    state = await here.state(run_id)
    assert (await here.kinds(run_id))[-2:] == ["commented", "retried"]
    assert state.comments[0].event.text == "use the other model"
    assert state.status == "planning"


async def test_retry_of_a_finished_run_follows_up_and_of_one_without_pull_request_starts_anew(here):
    run_id = await here.with_pull(7)
    await here.comment(7, "lead", "/retry", 1)
    await here.quiet()
    assert len((await here.state(run_id)).follow_ups) == 1
    other = await here.at_work(8)
    await here.append(other, finished(other))
    await here.comment(8, "lead", "/retry", 2)
    await here.quiet()
    assert len(await here.run_ids()) == 3


async def test_a_question_is_answered_by_approve_and_deny(here):
    run_id = await here.at_work(7)
    of = (await here.state(run_id)).sequence
    ask = ApprovalRequested(run_id=run_id, step="edit", of=of, question="Is the plan good?", expires_at=datetime.now(UTC) + timedelta(1))
    await here.append(run_id, ask)
    await here.comment(7, "lead", "/approve go on", 1)
    await here.quiet()
    (approval,) = (await here.state(run_id)).approvals
    assert (approval.by, approval.comment, approval.of) == ("github:lead", "go on", of)
    await here.append(run_id, planned(run_id, 2), ask, published(run_id, 107, SHA))
    await here.comment(7, "lead", "/deny", 2)
    await here.quiet()
    assert (await here.state(run_id)).status == "denied"
