"""Merging: who counts, which commit, what is waited for, and what is said when GitHub will not."""

import asyncio

import pytest

from libs.contracts import team
from tests.integration.forge.github_out import BOT
from tests.integration.forge.out_world import World, out_world

MERGED = "c" * 40


@pytest.fixture
async def here(tmp_path):
    async with out_world(tmp_path) as found:
        found.repo.permissions = {"lead": "write", "maintainer": "admin", "second": "write", "reader": "read"}
        yield found


async def with_pull(here: World, **policy) -> tuple[str, int]:
    sha = await here.committed("r1", **policy)
    state = await here.until("r1", "finished")
    return sha, state.published.number


async def approve(here: World, sha: str, *by: str) -> None:
    for login in by:
        await here.append("r1", team.MergeApproved(run_id="r1", by=f"github:{login}", sha=sha))
    await here.quiet("merge")


def checks(here: World, sha: str, *said: str | None) -> None:
    here.repo.check_runs[sha] = [
        {"name": f"c{n}", "status": "completed" if word else "queued", "conclusion": word} for n, word in enumerate(said)
    ]


async def test_an_approval_of_the_head_by_a_writer_merges_exactly_it(here: World):
    sha, number = await with_pull(here, merge_method="rebase")
    await approve(here, sha, "lead")
    merged = (await here.state("r1")).merged
    assert (merged.sha, merged.merge_sha, merged.method, merged.by) == (sha, MERGED, "rebase", ("github:lead",))
    assert here.repo.pulls[number]["method"] == "rebase"
    assert here.github.calls[f"PUT /repos/octo/app/pulls/{number}/merge"] == 1


@pytest.mark.parametrize("who", ["reader", "maintainer", "nobody"])
async def test_an_approval_by_the_one_who_asked_or_without_write_permission_does_not_count(who: str, here: World):
    sha, number = await with_pull(here)
    await approve(here, sha, who)
    assert (await here.state("r1")).merged is None
    assert here.repo.pulls[number]["merged"] is False
    await approve(here, sha, "lead")
    assert (await here.state("r1")).merged.by == ("github:lead",)


async def test_nothing_is_merged_against_a_writer_who_asked_for_changes_of_the_very_commit(here: World):
    sha, number = await with_pull(here)

    def review(login: str, state: str, commit: str) -> dict:
        return {"id": 1, "user": {"login": login}, "state": state, "body": "", "commit_id": commit}

    here.repo.reviews[number] = [review("second", "CHANGES_REQUESTED", sha), review("reader", "CHANGES_REQUESTED", sha)]
    await approve(here, sha, "lead")
    assert (await here.state("r1")).merged is None
    assert "second asked for changes" in here.comments(number, "agent-coder:merge")[0]
    here.repo.reviews[number] += [review("second", "APPROVED", sha), review("lead", "CHANGES_REQUESTED", "b" * 40)]
    await approve(here, sha, "second")
    assert (await here.state("r1")).merged.by == ("github:lead", "github:second")


async def test_the_policy_asks_for_two_people_and_one_who_lost_the_permission_is_none(here: World):
    sha, number = await with_pull(here, merge_approvals=2)
    await approve(here, sha, "lead")
    here.repo.permissions["lead"] = "read"
    await approve(here, sha, "second")
    assert here.repo.pulls[number]["merged"] is False
    here.repo.permissions["lead"] = "write"
    await here.append("r1", team.MergeWithdrawn(run_id="r1", by="github:second"))
    await approve(here, sha, "lead")
    assert here.repo.pulls[number]["merged"] is False
    await approve(here, sha, "second")
    assert set((await here.state("r1")).merged.by) == {"github:lead", "github:second"}


async def test_what_was_pushed_after_the_approval_is_not_merged(here: World):
    sha, number = await with_pull(here)
    newer = here.commit("fix/issue-7", {"adder.py": "newer\n"}, parent=sha)
    place = here.home / "artifact" / "git" / f"{here.repository}.git"
    here.github.git.git("octo/app", "fetch", "-q", str(place), f"{newer}:refs/heads/fix/issue-7")
    await approve(here, sha, "lead")
    assert here.repo.pulls[number]["merged"] is False
    await approve(here, newer, "lead")
    assert (await here.state("r1")).merged.sha == newer


async def test_red_or_unfinished_checks_hold_the_merge_until_they_are_green(here: World):
    sha, number = await with_pull(here)
    for said in (("success", "failure"), ("success", None)):
        checks(here, sha, *said)
        await approve(here, sha, "lead")
        assert here.repo.pulls[number]["merged"] is False
    checks(here, sha, "success", "skipped")
    await here.append("r1", team.ChecksPassed(run_id="r1", sha=sha))
    await here.quiet("merge")
    assert (await here.state("r1")).merged is not None


async def test_a_draft_becomes_ready_when_green_and_an_approval_before_any_check_waits_with_a_word(here: World):
    here.github.granted["workflows"] = "write"
    sha = await here.committed("r1", {"adder.py": "x\n", ".github/workflows/ci.yml": "on: pull_request\n"})
    state = await here.until("r1", "finished")
    number = state.published.number
    assert here.repo.pulls[number]["draft"] is True
    await approve(here, sha, "lead")
    assert "none has reported on this commit yet" in here.comments(number, "agent-coder:merge")[0]
    checks(here, sha, "success")
    await here.append("r1", team.ChecksPassed(run_id="r1", sha=sha))
    await here.quiet("merge")
    assert here.repo.pulls[number]["draft"] is False
    assert (await here.state("r1")).merged is not None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (405, "Squash merges are not allowed on this repository."),
        (409, "Head branch was modified."),
        (403, "Protected branch"),
        (422, "No"),
    ],
)
async def test_a_merge_that_github_refuses_is_told_once_and_tried_at_the_next_approval(status: int, words: str, here: World):
    sha, number = await with_pull(here)
    here.github.fault("PUT .*/merge", status, words, times=3)
    for _ in range(3):
        await approve(here, sha, "lead")
    state = await here.state("r1")
    assert (state.merged, state.status) == (None, "finished")
    (said,) = here.comments(number, "agent-coder:merge")
    assert words in said
    await approve(here, sha, "lead")
    assert (await here.state("r1")).merged is not None


async def test_a_policy_that_leaves_the_merge_to_people_says_so_once(here: World):
    sha, number = await with_pull(here, merge="never")
    await approve(here, sha, "lead", "second")
    assert here.repo.pulls[number]["merged"] is False
    assert "leaves the merge to a person" in here.comments(number, "agent-coder:merge")[0]
    assert len(here.comments(number, "agent-coder:merge")) == 1


async def test_a_limit_is_waited_for_and_a_lost_answer_of_a_merge_is_no_second_one(here: World):
    sha, number = await with_pull(here)
    here.github.fault("PUT .*/merge", 429, "slow down", retry_after="1")
    here.github.fault("PUT .*/merge", 502, "Bad gateway", after=True)
    await here.append("r1", team.MergeApproved(run_id="r1", by="github:lead", sha=sha))
    async with asyncio.timeout(60):
        while (await here.state("r1")).merged is None:
            await asyncio.sleep(0.05)
    merged = (await here.state("r1")).merged
    assert (merged.method, merged.by, merged.merge_sha) == ("squash", ("github:lead",), MERGED)
    assert here.repo.pulls[number]["merged_by"] == {"login": BOT}


async def test_an_approval_delivered_twice_at_once_merges_once_and_says_nothing(here: World, monkeypatch):
    monkeypatch.setattr("libs.bus.delivery.DUPLICATE", True)
    sha, number = await with_pull(here)
    await approve(here, sha, "lead")
    kinds = [r.event.type for r in await here.journal.read("r1")]
    assert kinds.count("run.merged") == 1
    assert here.comments(number) == []


async def test_a_merge_without_permission_to_see_checks_says_which_is_missing(here: World):
    sha, number = await with_pull(here)
    del here.github.granted["checks"]
    here.app.tokens.drop(5)
    await approve(here, sha, "lead")
    assert "checks: read" in here.comments(number, "agent-coder:merge")[0]
    assert (await here.state("r1")).status == "finished"
