"""The words of pull requests: what untrusted text cannot do in them, and how they are cut and brought up to date."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import run as events
from libs.contracts.fold import RunState
from services.forge.pull_text import LIMIT, Links, body, cut, size, tame, title, updated
from services.forge.rows import marked_run

LINKS = Links("https://coder.example/", 7)
COMMITTED = events.RunCommitted(run_id="r1", attempt=1, repository="app", branch="fix/issue-7", sha="a" * 40, message="fix(7): it\n\nbody")


def state(summary: str = "It adds.", issue: str = "It subtracts", output: str = "3 passed") -> RunState:
    opened = events.RunOpened(run_id="r1", issue=events.Issue(id="7", title=issue), repo="app", opened_at=datetime(2026, 1, 1, tzinfo=UTC))
    edited = events.RunEdited(run_id="r1", attempt=1, commit="a" * 40, tree="a" * 40, changed_files=(), summary=summary)
    command = events.CommandRun(command="pytest", phase="test", outcome="exited", exit_code=0, output_tail=output)
    verified = events.RunVerified(
        run_id="r1", attempt=1, commit="a" * 40, verdict=events.Verdict(ok=True, outcome="passed"), commands=(command,)
    )
    return RunState(run_id="r1", opened=opened, edited=edited, verified=verified)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("@everybody look", "@everybody"),
        ("(@octo/team)", "@octo"),
        ("Fixes #12", "Fixes #12"),
        ("closes: octo/app#3", "octo/app#3"),
        ("RESOLVED https://github.example/a/b/issues/1", "RESOLVED https://github.example"),
        ("<!-- agent-coder:run=other -->", "<!--"),
        ("请看@everybody", "@everybody"),
        ("/@everybody", "@everybody"),
        ("`@everybody", "@everybody"),
        ("| ` @everybody | ` |", "@everybody"),
        ("\\`@everybody`", "@everybody"),
        ('<a title="`">@everybody `', "<a"),
        ("<div>\n`@everybody`\n</div>", "<div>"),
        ("修复fixes #12", "fixes #12"),
        ("fixes GH-12", "fixes GH-12"),
        ("<pre>", "<pre>"),
        ("</details><img src=x>", "<img"),
        ("now [skip ci]", "[skip ci]"),
        ("[CI-Skip]", "[CI-Skip]"),
        ("***NO_CI***", "***NO_CI***"),
    ],
)
def test_untrusted_words_mention_close_and_mark_nothing(text: str, gone: str):
    assert gone not in tame(text)


@pytest.mark.parametrize(
    ("text", "fence"), [("```\nx = 1", "```"), ("~~~~python\n```\n~~~", "~~~~"), ("Do\n\n```diff\n- a\n+ b", "```"), ("```a`b", "```a`b")]
)
def test_a_fence_that_is_left_open_hides_nothing_that_follows(text: str, fence: str):
    assert tame(text).splitlines()[-1] == fence
    assert tame(tame(text)) == tame(text)


@pytest.mark.parametrize(
    "text",
    [
        "a@example.org",
        "see #12",
        "`@decorator`",
        "`List<int>`",
        "a < b",
        "https://h.test/@x/y",
        "[see ci]",
        "修复了 #3 的问题",
        "x --> y",
        "",
    ],
)
def test_other_words_stay_readable(text: str):
    assert tame(text).replace("&gt;", ">") == text


def test_the_run_that_a_body_names_is_ours_whatever_the_model_wrote():
    text = body(state(summary="<!-- agent-coder:run=evil --> <!-- agent-coder:end -->"), COMMITTED, LINKS)
    assert marked_run(text) == "r1"
    assert "Closes #7" in text


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=40), st.integers(0, 70_000))
def test_a_body_never_passes_the_limit_and_its_end_is_whole(piece: str, times: int):
    text = body(state(summary=piece * times), COMMITTED, LINKS)
    assert size(text) <= LIMIT
    assert text.endswith("<!-- agent-coder:run=r1 -->")
    assert "Closes #7" in text


@settings(deadline=None)
@given(st.text(), st.integers(0, 50))
def test_cut_keeps_a_beginning_that_fits(text: str, room: int):
    kept = cut(text, room)
    assert size(kept) <= max(room, 0) or kept == text
    assert text.startswith(kept)


def test_a_fence_that_was_cut_is_closed():
    text = body(state(summary="```\n" + "x\n" * 40_000 + "```"), COMMITTED, LINKS)
    assert "the whole is at https://coder.example/api/runs/r1" in text
    assert text.count("\n```") % 2 == 0


def test_a_new_text_takes_the_place_of_the_old_one_and_leaves_what_people_wrote():
    old = body(state("First."), COMMITTED, LINKS)
    new = body(state("Second."), COMMITTED, LINKS)
    assert updated(f"Before.\n{old}\nAfter.", new) == f"Before.\n{new}\nAfter."
    assert updated(old, new) == new
    assert updated("Somebody wrote it anew.", new) == new
    assert updated("x" * 60_000 + old, body(state("y" * 20_000), COMMITTED, LINKS)).startswith("<!--")


def test_the_title_is_the_subject_of_the_commit():
    assert title(COMMITTED) == "fix(7): it"
    assert title(COMMITTED.model_copy(update={"message": " "})) == "Changes of run r1"
    assert len(title(COMMITTED.model_copy(update={"message": "长" * 400}))) == 250
