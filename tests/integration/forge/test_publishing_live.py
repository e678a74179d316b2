"""From a commit to a pull request: what is made, what is found again, what is refused in words, and what never leaves."""

import pytest

from libs.bus import Refusal, Step
from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.artifact import ImportRepository
from libs.contracts.github import RepositoryCredential
from services.forge import errors
from tests.integration.forge.out_world import World, commented, opened, out_world

SECRET = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture
async def here(tmp_path):
    async with out_world(tmp_path) as found:
        yield found


async def approve(here: World, run_id: str) -> None:
    pending = (await here.state(run_id)).pending
    assert pending is not None
    await here.append(run_id, events.RunApproved(run_id=run_id, step=pending.step, of=pending.of, by="github:lead"))


async def test_a_commit_becomes_one_pull_request_with_what_why_and_how(here: World):
    sha = await here.committed("r1")
    state = await here.until("r1", "finished")
    assert here.github.git.branches("octo/app")["fix/issue-7"] == sha
    (pull,) = here.pulls()
    assert (state.published.number, state.published.url, state.published.draft) == (pull["number"], pull["html_url"], False)
    assert (pull["title"], pull["base"]) == ("fix(7): add subtracts", "main")
    body = pull["body"]
    for words in (
        "Closes #7",
        "`pytest -q`: exit code 0, 1.5 s, 3 passed, 0 failed",
        "https://coder.example/api/runs/r1/trace",
        "`adder.py` modified",
    ):
        assert words in body
    assert body.rstrip().endswith("<!-- agent-coder:run=r1 -->")
    assert "@everybody" not in body
    assert "Fixes #99" not in body
    assert "agent-coder:run=x -->" not in body
    assert (await here.bucket.get(f"pull.1.{pull['number']}")) is not None


async def test_each_token_is_for_one_repository_and_holds_no_more_than_its_step_needs(here: World):
    await here.committed("r1")
    await here.until("r1", "finished")
    await here.quiet("status")
    minted = list(here.github.tokens.values())
    assert {len(t["repository_ids"]) for t in minted} == {1}
    assert all(len(t["permissions"]) == 1 for t in minted)
    assert [t["permissions"] for t in minted].count({"contents": "write"}) == 1


async def test_the_pull_request_of_the_branch_is_found_and_what_people_added_stays(here: World):
    await here.committed("r1")
    state = await here.until("r1", "finished")
    (pull,) = here.pulls()
    pull["body"] = f"A word first.\n\n{pull['body']}\n\nAnd one after."
    follow = team.RunFollowedUp(run_id="r1", by="github:lead", source="review", feedback="Name it plus.", key="review:1")
    sha = here.commit("fix/issue-7", {"adder.py": "def plus(a, b):\n    return a + b\n"}, parent=state.committed.sha)
    await here.append("r1", follow, *here.made("r1", sha, ["adder.py"], attempt=2, base=state.committed.sha))
    state = await here.until("r1", "finished")
    assert len(here.pulls()) == 1
    assert (state.published.sha, here.github.git.branches("octo/app")["fix/issue-7"]) == (sha, sha)
    body = here.pulls()[0]["body"]
    assert body.startswith("A word first.")
    assert body.endswith("And one after.")
    assert "Name it plus." in body
    assert body.count("<!-- agent-coder:run=r1 -->") == 1


async def test_a_branch_of_the_same_name_in_a_fork_is_not_ours(here: World):
    theirs = here.github.add_pull(here.repo, "fix/issue-7", "f" * 40, owner="stranger", repo_id=99)
    await here.committed("r1")
    state = await here.until("r1", "finished")
    assert state.published.number != theirs["number"]
    assert theirs["body"] == ""


async def test_a_run_on_a_pull_request_of_a_fork_goes_to_the_default_branch(here: World):
    await here.committed("r1", base="refs/pull/9/head")
    await here.until("r1", "finished")
    assert here.pulls()[0]["base"] == "main"


async def test_another_default_branch_and_a_base_that_was_asked_for(here: World):
    here.github.git.git("octo/app", "branch", "trunk", "main")
    here.github.git.git("octo/app", "branch", "release/1", "main")
    here.repo.default_branch = "trunk"
    await here.committed("r1")
    await here.until("r1", "finished")
    await here.committed("r2", branch="fix/issue-8", base="release/1")
    await here.until("r2", "finished")
    assert [p["base"] for p in here.pulls()] == ["trunk", "release/1"]


async def test_a_repository_with_workflows_gets_a_draft_and_one_without_drafts_does_not(here: World):
    await here.committed("r1", {"adder.py": "x\n", ".github/workflows/ci.yml": "on: pull_request\n"}, branch="fix/issue-6")
    state = await here.until("r1", "approval_requested")
    assert "permissions requested are not granted" in state.pending.question
    here.github.granted["workflows"] = "write"
    await approve(here, "r1")
    assert (await here.until("r1", "finished")).published.draft is True
    here.github.drafts = False
    await here.committed("r2", {"adder.py": "y\n", ".github/workflows/ci.yml": "on: pull_request\n"}, branch="fix/issue-8")
    assert (await here.until("r2", "finished")).published.draft is False


async def test_a_repository_that_is_not_installed_or_not_on_github_just_finishes(here: World):
    here.github.installed.clear()
    for number, repo in enumerate(("/srv/app", f"{here.github.url}/octo/app.git", "https://example.org/a/b.git")):
        run_id = f"r{number}"
        sha = here.commit(f"fix/issue-{number}", {"adder.py": f"{number}\n"})
        about = opened(run_id, here.repo, github=False).model_copy(update={"repo": repo})
        await here.append(run_id, about, *here.made(run_id, sha, ["adder.py"], f"fix/issue-{number}"))
        state = await here.until(run_id, "finished")
        assert state.published is None
    assert here.pulls() == []


async def test_a_url_of_an_installed_repository_is_published_without_an_issue(here: World):
    sha = here.commit("fix/issue-7", {"adder.py": "x\n"})
    about = opened("r1", here.repo, github=False).model_copy(update={"repo": f"{here.github.url}/octo/app.git"})
    await here.append("r1", about, *here.made("r1", sha, ["adder.py"]))
    state = await here.until("r1", "finished")
    assert state.published.repository_id == 1
    assert "Closes #" not in here.pulls()[0]["body"]


async def test_a_renamed_repository_is_found_by_its_id_and_by_its_old_address(here: World):
    here.github.rename(here.repo, "octo/new-name")
    await here.committed("r1")
    state = await here.until("r1", "finished")
    assert state.published.repository == "octo/new-name"
    sha = here.commit("fix/issue-8", {"adder.py": "x\n"})
    about = opened("r2", here.repo, github=False).model_copy(update={"repo": f"{here.github.url}/octo/app.git"})
    await here.append("r2", about, *here.made("r2", sha, ["adder.py"], "fix/issue-8"))
    assert (await here.until("r2", "finished")).published.repository == "octo/new-name"


async def test_an_archived_repository_waits_for_a_person_and_goes_on(here: World):
    here.repo.archived = True
    await here.committed("r1")
    state = await here.until("r1", "approval_requested")
    assert "octo/app is archived" in state.pending.question
    here.repo.archived = False
    await approve(here, "r1")
    await here.until("r1", "finished")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("GH006: Protected branch update failed for refs/heads/fix/issue-7.", "A rule of the repository protects this branch"),
        ("refusing to allow a GitHub App to create or update workflow", "workflows: write"),
        ("Repository is read-only", "Approve to try again"),
    ],
)
async def test_a_push_that_github_refuses_waits_with_its_words(said: str, advice: str, here: World):
    hook = here.github.git.path("octo/app") / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\necho 'error: {said}' >&2\nexit 1\n")
    hook.chmod(0o755)
    await here.committed("r1")
    state = await here.until("r1", "approval_requested")
    assert said in state.pending.question
    assert advice in state.pending.question
    hook.unlink()
    await approve(here, "r1")
    await here.until("r1", "finished")


async def test_what_people_pushed_to_the_branch_is_never_overwritten(here: World):
    theirs = here.commit("fix/issue-7", {"other.py": "theirs\n"})
    place = here.home / "artifact" / "git" / f"{here.repository}.git"
    here.github.git.git("octo/app", "fetch", "-q", str(place), f"{theirs}:refs/heads/fix/issue-7")
    await here.committed("r1")
    state = await here.until("r1", "approval_requested")
    assert "holds commits that this change does not build on" in state.pending.question
    assert here.github.git.branches("octo/app")["fix/issue-7"] == theirs


async def test_a_closed_pull_request_whose_branch_was_deleted_is_followed_by_a_new_one(here: World):
    await here.committed("r1")
    state = await here.until("r1", "finished")
    (pull,) = here.pulls()
    pull["state"] = "closed"
    here.github.git.git("octo/app", "update-ref", "-d", "refs/heads/fix/issue-7")
    follow = team.RunFollowedUp(run_id="r1", by="github:lead", source="http", feedback="More.", key="1")
    sha = here.commit("fix/issue-7", {"adder.py": "more\n"}, parent=state.committed.sha)
    await here.append("r1", follow, *here.made("r1", sha, ["adder.py"], attempt=2, base=state.committed.sha))
    await here.until("r1", "finished")
    assert [p["state"] for p in here.pulls()] == ["closed", "open"]


async def test_a_secret_stops_the_run_with_its_place_and_a_person_decides(here: World):
    await here.committed("r1", {"conf.py": f"a = 1\nkey = '{SECRET}'\n"})
    state = await here.until("r1", "approval_requested")
    assert "GitHub Token in conf.py, line 2" in state.pending.question
    assert SECRET not in state.pending.question
    assert "fix/issue-7" not in here.github.git.branches("octo/app")
    await approve(here, "r1")
    await here.until("r1", "finished")


async def test_a_secret_in_an_earlier_commit_of_the_branch_is_found_though_the_newest_tree_is_clean(here: World):
    first = here.commit("fix/issue-7", {"conf.py": f"key = '{SECRET}'\n"})
    sha = here.commit("fix/issue-7", {"conf.py": "key = None\n"}, parent=first)
    await here.append("r1", opened("r1", here.repo), *here.made("r1", sha, ["conf.py"]))
    assert "conf.py, line 1" in (await here.until("r1", "approval_requested")).pending.question


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"data.bin": f"\0\1{SECRET}\n"}, "data.bin, line 1"),
        ({"wide.txt": "x\0\n\0" + "".join(f"{c}\0" for c in SECRET)}, "wide.txt, line 2"),
        ({".gitattributes": "conf.py -diff\n", "conf.py": f"key = '{SECRET}'\n"}, "conf.py, line 1"),
        ({f"{SECRET}.py": f"key = '{SECRET}'\n"}, "the name of file 1 of the change"),
    ],
)
async def test_a_secret_is_found_in_what_git_calls_binary_and_in_names(files: dict[str, str], place: str, here: World):
    sha = here.commit("fix/issue-7", files)
    await here.append("r1", opened("r1", here.repo), *here.made("r1", sha, ["x.py"]))
    question = (await here.until("r1", "approval_requested")).pending.question
    assert place in question
    assert SECRET not in question


async def test_a_secret_in_an_attempt_that_never_left_is_found_below_the_next_one(here: World):
    first = await here.committed("r1", {"conf.py": f"key = '{SECRET}'\n"})
    await here.until("r1", "approval_requested")
    denied = events.RunDenied(run_id="r1", step="publish", by="mail:dev@example.org")
    again = team.RunFollowedUp(run_id="r1", by="mail:dev@example.org", source="mail", feedback="without the key", key="m2")
    second = here.commit("fix/issue-7", {"conf.py": "key = None\n"}, parent=first)
    await here.append("r1", denied, again, *here.made("r1", second, ["conf.py"], attempt=2, base=first))
    state = await here.until("r1", "approval_requested")
    assert "conf.py, line 1" in state.pending.question
    assert "fix/issue-7" not in here.github.git.branches("octo/app")


async def test_a_body_over_the_limit_is_cut_with_a_link_and_its_end_is_whole(here: World):
    files = {f"a/very/long/path/of/a/generated/file/number/{n:06d}/{'x' * 200}.py": "1\n" for n in range(100)}
    sha = here.commit("fix/issue-7", files)
    planned, edited, verified, committed = here.made("r1", sha, files)
    long = edited.model_copy(update={"summary": "很长的说明。🙂" * 12_000})
    await here.append("r1", opened("r1", here.repo), planned, long, verified, committed)
    await here.until("r1", "finished")
    body = here.pulls()[0]["body"]
    assert len(body.encode("utf-16-le")) // 2 <= 65_536
    assert "the whole is at https://coder.example/api/runs/r1" in body
    assert "Closes #7" in body
    assert body.endswith("<!-- agent-coder:run=r1 -->")


@pytest.mark.parametrize(
    ("place", "after"), [("POST .*/access_tokens", False), ("POST .*/pulls$", False), ("POST .*/pulls$", True), ("GET .*/pulls$", False)]
)
async def test_limits_are_waited_for_and_nothing_is_made_twice(place: str, after: bool, here: World, monkeypatch):
    monkeypatch.setattr(errors, "_SECONDARY_SECONDS", 0.2)
    here.github.fault(
        place, 403, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.", 2, after=after
    )
    here.github.fault(place, 429, "Too many", retry_after="1")
    here.github.fault(place, 403, "API rate limit exceeded", x_ratelimit_remaining="0", x_ratelimit_reset="1")
    here.github.fault(place, 502, "Bad gateway")
    await here.committed("r1")
    await here.until("r1", "finished")
    assert len(here.pulls()) == 1


async def test_comments_that_no_attempt_has_seen_become_a_follow_up(here: World):
    sha = here.commit("fix/issue-7", {"adder.py": "x\n"})
    planned, edited, verified, committed = here.made("r1", sha, ["adder.py"])
    early, late = commented("r1", "Early.", "comment:1"), commented("r1", "Also fix sub.", "comment:2")
    await here.append("r1", opened("r1", here.repo), early, planned, edited, late, verified, committed)
    state = await here.until("r1", "follow_up")
    assert [(f.source, f.key) for f in state.follow_ups] == [("comment", "unseen:comment:2")]
    assert "Also fix sub." in state.follow_ups[0].feedback
    assert "Early." not in state.follow_ups[0].feedback


async def test_a_comment_that_comes_in_while_the_run_is_being_ended_is_not_lost(here: World, monkeypatch):
    read = Step.state

    async def read_and_be_interrupted(step: Step):
        found = await read(step)
        if step.spec.name == "finish" and not found.comments:
            await here.append("r1", commented("r1", "Wait, one more."))
        return found

    monkeypatch.setattr(Step, "state", read_and_be_interrupted)
    await here.committed("r1")
    state = await here.until("r1", "follow_up")
    assert "Wait, one more." in state.follow_ups[0].feedback
    assert "run.finished" not in [r.event.type for r in await here.journal.read("r1")]


async def test_a_private_repository_is_imported_with_a_token_that_may_only_read_it(here: World):
    url = f"{here.github.url}/octo/app.git"
    imported = await here.planner.bus.ask(ImportRepository(source=url))
    assert imported.base_commit == here.base
    assert [t["permissions"] for t in here.github.tokens.values()] == [{"metadata": "read"}, {"contents": "read"}]
    config = (here.home / "artifact" / "git" / f"{imported.repository}.git" / "config").read_text()
    assert "ghs_" not in config
    assert RepositoryCredential.askers == ("artifact",)


async def test_an_import_waits_for_github_as_long_as_its_limit_asks(here: World):
    here.github.fault("GET /repos/octo/app/installation", 403, "You have exceeded a secondary rate limit.", Retry_After="7")
    with pytest.raises(Refusal) as refused:
        await here.planner.bus.ask(ImportRepository(source=f"{here.github.url}/octo/app.git"))
    assert (refused.value.code, refused.value.retryable, refused.value.after) == ("away", True, 7.0)
