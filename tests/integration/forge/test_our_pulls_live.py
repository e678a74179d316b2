"""What happens to the bot's own pull request and to a run at work: comments, reviews, checks, a merge or a close by hand."""

import pytest

from tests.integration.forge.github_server import BOT
from tests.integration.forge.hooks_world import MERGED, NEXT, SHA, finished, followed_up, issue, planned, published, pull, world


@pytest.fixture
async def here(tmp_path):
    async with world(tmp_path) as found:
        yield found


def checked(name: str, conclusion: str | None) -> dict:
    return {"name": name, "status": "completed" if conclusion else "in_progress", "conclusion": conclusion, "output": {"summary": None}}


async def check(here, number: int, sha: str = SHA, **payload) -> None:
    about = {"head_sha": sha, "conclusion": "failure", "name": "tests", "pull_requests": [{"number": number}]}
    await here.send("check_run", "github-actions[bot]", action="completed", check_run=about | payload)


async def test_comments_during_a_run_are_handed_to_it_from_the_author_and_from_writers(here):
    run_id = await here.at_work(7)
    await here.comment(7, "reporter", "It is only wrong for negative numbers.", 1)
    await here.comment(7, "lead", "请保留签名", 2)
    await here.comment(7, "stranger", "Me too!", 3)
    await here.comment(7, "dependabot[bot]", "Bump", 4)
    await here.quiet()
    state = await here.state(run_id)
    said = {(c.event.by, c.event.text, c.event.url) for c in state.comments}
    assert said == {
        ("github:reporter", "It is only wrong for negative numbers.", "https://github.example/c/1"),
        ("github:lead", "请保留签名", "https://github.example/c/2"),
    }
    assert len(state.unseen) == 2


async def test_comments_on_the_pull_request_count_while_the_run_is_at_work_and_are_talk_when_it_is_over(here):
    run_id = await here.with_pull(7)
    on = issue(107, BOT, pull(107, run_id)["body"], pull=True)
    await here.comment(107, "lead", "Nice work.", 1, on=on)
    await here.comment(107, "lead", "@agent-coder name it plus", 2, on=on)
    await here.quiet()
    assert [f.feedback for f in (await here.state(run_id)).follow_ups] == ["name it plus"]
    await here.comment(107, "lead", "And a docstring.", 3, on=on)
    await here.quiet()
    assert [c.event.text for c in (await here.state(run_id)).comments] == ["And a docstring."]


async def test_a_pull_request_of_somebody_else_is_not_worked_on(here):
    forged = pull(50, await here.with_pull(7))["body"]
    await here.comment(50, "lead", "/solve", 1, on=issue(50, "stranger", forged, pull=True))
    await here.quiet()
    assert len(await here.run_ids()) == 1
    assert "not on this one" in here.github.said(50, "answer-1")[0]


async def test_a_review_with_comments_is_one_follow_up_whichever_delivery_comes_first(here):
    run_id = await here.with_pull(7)
    here.reviewed(107, 1, "lead", "CHANGES_REQUESTED", "Almost.")
    here.github.review_comments[1] = [
        {"path": "adder.py", "line": 2, "body": "Name it plus."},
        {"path": "test_adder.py", "line": None, "original_line": 5, "body": "这里再加一个测试"},
        {"path": "README.md", "line": None, "body": "Say it here."},
    ]
    for number, comment in enumerate(here.github.review_comments[1]):
        about = comment | {"id": number, "user": {"login": "lead"}, "pull_request_review_id": 1, "html_url": "https://github.example/c"}
        await here.send("pull_request_review_comment", "lead", action="created", comment=about, pull_request=pull(107, run_id))
    await here.review(107, run_id, 1)
    await here.quiet()
    state = await here.state(run_id)
    (follow_up,) = state.follow_ups
    assert (follow_up.by, follow_up.source, follow_up.url) == ("github:lead", "review", "https://github.example/r/1")
    assert follow_up.feedback == "Almost.\n\nadder.py:2\nName it plus.\n\ntest_adder.py:5\n这里再加一个测试\n\nREADME.md\nSay it here."
    assert state.comments == ()


async def test_a_review_while_the_run_is_at_work_is_a_comment_and_none_by_strangers_counts(here):
    run_id = await here.with_pull(7)
    await here.append(run_id, followed_up(run_id, "earlier", "review"))
    here.reviewed(107, 1, "lead", "COMMENTED", "One more thing.")
    here.reviewed(107, 2, "stranger", "CHANGES_REQUESTED", "I do not like it.")
    here.reviewed(107, 3, "lead", "COMMENTED", "")
    here.reviewed(107, 4, "reporter", "COMMENTED", "It works for me.")
    for review_id in (1, 2, 3, 4):
        await here.review(107, run_id, review_id)
    await here.quiet()
    state = await here.state(run_id)
    assert [f.key for f in state.follow_ups] == ["earlier"]
    assert sorted(c.event.text for c in state.comments) == ["It works for me.", "One more thing."]


async def test_an_approval_by_another_writer_counts_for_the_commit_that_was_reviewed(here):
    run_id = await here.with_pull(7)
    here.reviewed(107, 1, "Lead", "APPROVED", "Good.")
    here.github.permissions["Lead"] = "admin"
    await here.review(107, run_id, 1)
    await here.quiet()
    (approval,) = (await here.state(run_id)).merge_approvals
    assert (approval.by, approval.sha, approval.url) == ("github:lead", SHA, "https://github.example/r/1")
    assert (await here.state(run_id)).follow_ups == ()


async def test_approvals_of_the_one_who_asked_and_of_strangers_do_not_count(here):
    run_id = await here.with_pull(7, by="maintainer")
    for review_id, by in enumerate(("maintainer", "stranger", "unknown", "helper[bot]")):
        here.reviewed(107, review_id, by, "APPROVED")
        await here.review(107, run_id, review_id)
    await here.quiet()
    assert (await here.state(run_id)).merge_approvals == ()
    assert len(here.github.said(107, "own-approval")) == 1


async def test_an_approval_is_withdrawn_by_a_dismissal_or_by_asking_for_changes(here):
    run_id = await here.with_pull(7)
    here.reviewed(107, 1, "lead", "APPROVED")
    await here.review(107, run_id, 1)
    await here.quiet()
    here.reviewed(107, 2, "lead", "COMMENTED", "By the way.")
    await here.review(107, run_id, 2)
    await here.quiet()
    assert len((await here.state(run_id)).merge_approvals) == 1
    here.github.reviews[107][0]["state"] = "DISMISSED"
    await here.review(107, run_id, 1, action="dismissed")
    await here.quiet()
    assert (await here.state(run_id)).merge_approvals == ()
    here.reviewed(107, 3, "lead", "APPROVED")
    await here.review(107, run_id, 3)
    await here.quiet()
    here.reviewed(107, 4, "lead", "CHANGES_REQUESTED", "No, wait.")
    await here.review(107, run_id, 4)
    await here.quiet()
    assert (await here.state(run_id)).merge_approvals == ()
    assert (await here.kinds(run_id)).count("merge_withdrawn") == 2


async def test_an_approval_that_comes_in_after_its_dismissal_does_not_count(here):
    run_id = await here.with_pull(7)
    here.reviewed(107, 1, "lead", "DISMISSED")
    await here.review(107, run_id, 1, action="dismissed")
    await here.review(107, run_id, 1)
    await here.quiet()
    assert (await here.state(run_id)).merge_approvals == ()


async def test_checks_are_told_once_all_have_ended(here):
    run_id = await here.with_pull(7)
    here.github.check_runs[SHA] = [checked("tests", "failure"), checked("lint", None)]
    await check(here, 107)
    await here.quiet()
    assert (await here.state(run_id)).follow_ups == ()
    here.github.check_runs[SHA][1] = checked("lint", "failure")
    await check(here, 107)
    await here.send(
        "check_suite", "github-actions[bot]", action="completed", check_suite={"head_sha": SHA, "pull_requests": [{"number": 107}]}
    )
    await here.send("status", "ci[bot]", sha=SHA, state="failure", context="ci", branches=[{"name": "fix/issue-7"}])
    await here.quiet()
    state = await here.state(run_id)
    (follow_up,) = state.follow_ups
    assert (follow_up.source, follow_up.key) == ("check", f"checks:{SHA}")
    assert "tests: failure" in follow_up.feedback
    assert "lint: failure" in follow_up.feedback
    assert state.comments == ()


async def test_green_checks_are_passed_once_and_only_for_the_newest_commit(here):
    run_id = await here.with_pull(7)
    here.github.check_runs = {SHA: [checked("tests", "success")], NEXT: [checked("tests", "success")]}
    await check(here, 107, NEXT, conclusion="success")
    await here.quiet()
    assert (await here.state(run_id)).checks_passed == ()
    await check(here, 107, conclusion="success")
    await here.send(
        "workflow_run", "github-actions[bot]", action="completed", workflow_run={"head_sha": SHA, "pull_requests": [{"number": 107}]}
    )
    await here.send("status", "ci[bot]", sha=SHA, state="success", context="ci", branches=[{"name": "fix/issue-7"}])
    await here.quiet()
    assert (await here.state(run_id)).checks_passed == (SHA,)
    assert (await here.kinds(run_id)).count("checks_passed") == 1


async def test_checks_alone_send_a_run_to_work_only_so_often(here):
    run_id = await here.with_pull(7)
    for sha in "123":
        await here.append(
            run_id, followed_up(run_id, f"checks:{sha}", "check"), planned(run_id, 2), published(run_id, 107), finished(run_id)
        )
    here.github.check_runs[SHA] = [checked("tests", "failure")]
    await check(here, 107)
    await check(here, 107)
    await here.quiet()
    assert len((await here.state(run_id)).follow_ups) == 3
    assert len(here.github.said(107, "tired-3")) == 1
    await here.append(run_id, followed_up(run_id, "review:9", "review"), planned(run_id, 3), published(run_id, 107), finished(run_id))
    await check(here, 107)
    await here.quiet()
    assert len((await here.state(run_id)).follow_ups) == 5


async def test_checks_of_other_branches_ask_github_nothing(here):
    await here.with_pull(7)
    before = here.github.calls.total()
    await here.send("status", "ci[bot]", sha=NEXT, state="success", context="ci", branches=[{"name": "main"}])
    await check(here, 50)
    await here.quiet()
    assert here.github.calls.total() == before


async def test_a_merge_by_hand_is_recorded_and_the_bots_own_is_not(here):
    run_id, own = await here.with_pull(7), await here.with_pull(8)
    merged = {"merged": True, "merge_commit_sha": MERGED, "state": "closed"}
    await here.send("pull_request", BOT, action="closed", pull_request=pull(108, own) | merged)
    await here.send("pull_request", "lead", action="closed", pull_request=pull(107, run_id) | merged)
    await here.quiet()
    found = (await here.state(run_id)).merged
    assert (found.sha, found.merge_sha, found.by, found.method) == (SHA, MERGED, ("github:lead",), None)
    assert (await here.state(own)).merged is None


async def test_a_pull_request_closed_without_a_merge_takes_no_more_follow_ups(here):
    run_id = await here.with_pull(7)
    await here.send("pull_request", "lead", action="closed", pull_request=pull(107, run_id))
    await here.quiet()
    assert (await here.state(run_id)).closed
    here.reviewed(107, 1, "lead", "APPROVED")
    here.reviewed(107, 2, "lead", "COMMENTED", "Too late.")
    for review_id in (1, 2):
        await here.review(107, run_id, review_id)
    await here.comment(107, "lead", "/solve", 1, on=issue(107, BOT, pull(107, run_id)["body"], pull=True))
    await here.quiet()
    assert (await here.kinds(run_id))[-1] == "closed"
    assert "closed" in here.github.said(107, "answer-1")[0]


async def test_a_pull_request_is_known_by_its_marker_when_the_bucket_forgot(here):
    run_id = await here.with_pull(7)
    await here.admin.api("STREAM.PURGE.KV_GITHUB", {})
    here.reviewed(107, 1, "lead", "APPROVED")
    await here.review(107, run_id, 1)
    await here.quiet()
    assert len((await here.state(run_id)).merge_approvals) == 1
    assert (await here.rows.pull(1, 107)).run_id == run_id
