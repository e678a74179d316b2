"""Fix branches: one commit a run, on the issue's branch, whatever was there before and however often it is asked."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.artifact.domain import Committed, FixRequest, Person, commit_message
from services.artifact.errors import BranchMoved, NothingToCommit, UnknownCommit
from services.artifact.fixes import Fixes
from services.artifact.importing import Importer
from services.artifact.repositories import Repositories
from tests.unit.artifact.sample import Sample, run_git

BOT = Person("agent-coder", "agent-coder@localhost")


class Store:
    """A store with one imported repository, and runs that want their trees committed."""

    def __init__(self, repositories: Repositories, importer: Importer, source: Sample) -> None:
        self.repositories, self.importer, self.source = repositories, importer, source
        self.fixes = Fixes(repositories)
        self.name = ""

    async def update(self) -> str:
        imported = await self.importer.import_source(str(self.source.path))
        self.name = imported.repository
        return imported.base_commit

    async def tree(self, base: str, files: dict[str, str | None]) -> str:
        """A tree as a run would save it: made elsewhere, fetched to a hidden reference here."""
        self.source.git("checkout", "-q", "--detach", base)
        made = self.source.commit(dict(files))
        self.source.git("checkout", "-q", "main")
        run_git(self.repositories.path(self.name), "fetch", "-q", str(self.source.path), f"+{made}:refs/runs/made/{made}")
        return made

    def request(self, base: str, tree: str, **changes) -> FixRequest:
        at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        return replace(FixRequest("run-1", "42", "add is wrong", tree, base, BOT, BOT, at), **changes)

    async def commit(self, base: str, tree: str, **changes) -> Committed:
        return await self.fixes.commit_fix(self.name, self.request(base, tree, **changes))

    def git(self, *arguments: str) -> str:
        return run_git(self.repositories.path(self.name), *arguments).stdout.strip()

    def branches(self) -> list[str]:
        return [name for name in self.git("for-each-ref", "--format=%(refname:short)", "refs/heads/").splitlines() if name != "main"]


@pytest.fixture
def store(repositories: Repositories, importer: Importer, source: Sample) -> Store:
    return Store(repositories, importer, source)


FIXED = "def add(a, b):\n    return a + b\n"


async def test_a_change_becomes_one_commit_on_the_issues_branch(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    done = await store.commit(base, tree)
    assert (done.branch, done.created, done.merged) == ("fix/issue-42", True, False)
    assert done.message == "fix(42): add is wrong\n\nAgent-Coder-Run: run-1"
    assert store.git("log", "--format=%H %P %an <%ae> %at %ct", "-1", done.branch) == (
        f"{done.sha} {base} agent-coder <agent-coder@localhost> 1767323045 1767323045"
    )
    assert store.git("rev-parse", f"{done.sha}^{{tree}}") == store.git("rev-parse", f"{tree}^{{tree}}") == done.tree
    assert store.git("show", f"{done.branch}:calc.py") == FIXED.strip()


async def test_the_same_request_is_carried_out_once(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    answers = await asyncio.gather(*(store.commit(base, tree) for _ in range(6)))
    answers.append(await store.commit(base, tree, on_existing_branch="suffix"))
    assert len({(made.branch, made.sha) for made in answers}) == 1
    assert store.branches() == ["fix/issue-42"]
    assert store.git("rev-list", "--count", f"{base}..fix/issue-42") == "1"


async def test_the_same_request_is_found_again_below_later_commits(store: Store) -> None:
    base = await store.update()
    first = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    second = await store.commit(first.sha, await store.tree(base, {"calc.py": FIXED, "x": "x\n"}), run_id="run-2")
    assert await store.commit(base, first.tree) == first
    assert store.git("rev-parse", "fix/issue-42") == second.sha


async def test_an_interrupted_request_is_finished_not_repeated(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    first = await store.commit(base, tree)
    store.git("update-ref", "-d", "refs/heads/fix/issue-42")
    assert await store.commit(base, tree) == first
    assert store.git("rev-parse", "fix/issue-42") == first.sha


async def test_a_branch_that_the_run_was_based_on_is_continued(store: Store) -> None:
    base = await store.update()
    first = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    tree = await store.tree(base, {"calc.py": FIXED, "test_calc.py": "assert True\n"})
    second = await store.commit(first.sha, tree, run_id="run-2")
    assert (second.branch, second.created, second.merged) == ("fix/issue-42", True, False)
    assert store.git("rev-list", "--parents", "-1", second.sha).split()[1:] == [first.sha]


async def test_a_second_run_from_the_same_base_is_put_on_top_when_it_merges(store: Store) -> None:
    base = await store.update()
    first = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    second = await store.commit(base, await store.tree(base, {"README.md": "# Calculator\n\nAdds.\n"}), run_id="run-2")
    assert (second.branch, second.merged) == ("fix/issue-42", True)
    assert store.git("rev-list", "--parents", "-1", second.sha).split()[1:] == [first.sha]
    assert store.git("show", "fix/issue-42:calc.py") == FIXED.strip()
    assert store.git("diff", "--name-only", first.sha, second.sha) == "README.md"


async def test_a_second_run_from_a_newer_base_brings_the_base_along(store: Store) -> None:
    base = await store.update()
    first = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    store.source.commit({"unrelated.py": "x = 1\n"})
    newer = await store.update()
    second = await store.commit(newer, await store.tree(newer, {"README.md": "# New\n"}), run_id="run-2")
    assert store.git("rev-list", "--parents", "-1", second.sha).split()[1:] == [first.sha, newer]
    assert sorted(store.git("diff", "--name-only", newer, second.sha).splitlines()) == ["README.md", "calc.py"]


async def test_a_second_run_that_found_the_same_change_adds_nothing(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    first = await store.commit(base, tree)
    second = await store.commit(base, tree, run_id="run-2")
    assert (second.branch, second.sha, second.created, second.merged) == (first.branch, first.sha, False, False)


async def test_a_second_run_that_conflicts_gets_a_branch_of_its_own(store: Store) -> None:
    base = await store.update()
    await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    other = await store.tree(base, {"calc.py": "def add(a, b):\n    return sum((a, b))\n"})
    second = await store.commit(base, other, run_id="run-2")
    third = await store.commit(base, other, run_id="run-3", on_existing_branch="suffix")
    assert (second.branch, third.branch) == ("fix/issue-42-2", "fix/issue-42-3")
    assert second.merged is False
    assert store.branches() == ["fix/issue-42", "fix/issue-42-2", "fix/issue-42-3"]


async def followed(store: Store, source_head: str | None) -> tuple[str, str]:
    """A run's first commit, and the base of its follow-up: the branch imported anew, where the source may show it at `source_head`."""
    base = await store.update()
    first = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    store.source.git("fetch", "-q", str(store.repositories.path(store.name)), f"+{first.branch}:{first.branch}")
    if source_head is not None:
        store.source.git("checkout", "-q", first.branch)
        store.source.git(*source_head.split())
        store.source.commit({"people.txt": "by hand\n"})
        store.source.git("checkout", "-q", "main")
    imported = await store.importer.import_source(str(store.source.path), first.branch)
    return first.sha, imported.base_commit


@pytest.mark.parametrize("policy", ["continue", "suffix"])
async def test_a_follow_up_goes_on_the_same_branch_whatever_the_policy(store: Store, policy) -> None:
    first, base = await followed(store, None)
    assert base == first
    tree = await store.tree(base, {"calc.py": FIXED + "# why\n"})
    request = {"branch": "fix/issue-42", "on_existing_branch": policy}
    done = await store.commit(base, tree, **request)
    assert (done.branch, done.merged, store.branches()) == ("fix/issue-42", False, ["fix/issue-42"])
    assert store.git("log", "--format=%H", f"{done.sha}~1").splitlines()[0] == first
    assert (await store.commit(base, tree, **request)).sha == done.sha


async def test_a_follow_up_that_was_not_published_is_the_base_of_the_next_one(store: Store) -> None:
    _, base = await followed(store, None)
    second = await store.commit(base, await store.tree(base, {"calc.py": FIXED + "# why\n"}), branch="fix/issue-42")
    assert (await store.importer.import_source(str(store.source.path), "fix/issue-42")).base_commit == second.sha


async def test_a_follow_up_builds_on_what_people_have_pushed_to_the_branch(store: Store) -> None:
    first, base = await followed(store, "status")
    assert base != first
    done = await store.commit(base, await store.tree(base, {"calc.py": FIXED + "# why\n"}), branch="fix/issue-42")
    assert (done.branch, store.git("log", "-1", "--format=%P", done.sha)) == ("fix/issue-42", base)
    assert store.git("show", f"{done.sha}:people.txt") == "by hand"


async def test_a_follow_up_builds_on_a_branch_that_people_have_rewritten(store: Store) -> None:
    first, base = await followed(store, "commit -q --amend -m rewritten")
    done = await store.commit(base, await store.tree(base, {"calc.py": FIXED + "# why\n"}), branch="fix/issue-42")
    assert (done.branch, store.branches()) == ("fix/issue-42", ["fix/issue-42"])
    assert first not in store.git("log", "--format=%H", done.branch).split()


async def test_a_push_to_the_branch_while_the_follow_up_is_at_work_is_merged_or_told(store: Store) -> None:
    first, base = await followed(store, None)
    tree = await store.tree(base, {"calc.py": FIXED + "# why\n"})
    other = await store.tree(first, {"people.txt": "by hand\n"})
    store.git("update-ref", "refs/heads/fix/issue-42", other)
    done = await store.commit(base, tree, branch="fix/issue-42")
    assert (done.branch, done.merged) == ("fix/issue-42", True)
    store.git("update-ref", "refs/heads/fix/issue-42", await store.tree(first, {"calc.py": FIXED + "# because\n"}))
    with pytest.raises(BranchMoved, match="Retry the run from its plan"):
        await store.commit(base, await store.tree(base, {"calc.py": FIXED + "# no\n"}), branch="fix/issue-42")


async def test_a_branch_of_that_name_with_an_unrelated_history_is_left_alone(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    store.source.git("checkout", "-q", "--orphan", "fix/issue-42")
    store.source.commit({"calc.py": "something else\n"})
    store.source.git("checkout", "-q", "main")
    await store.update()
    done = await store.commit(base, tree)
    assert done.branch == "fix/issue-42-2"


@pytest.mark.parametrize(("taken", "branch"), [("fix", "fix-issue-42"), ("fix/issue-42/more", "fix/issue-42-2")])
async def test_a_branch_that_leaves_no_room_is_stepped_around(taken: str, branch: str, store: Store) -> None:
    store.source.git("branch", taken)
    base = await store.update()
    done = await store.commit(base, await store.tree(base, {"calc.py": FIXED}))
    assert done.branch == branch


async def test_runs_that_commit_at_the_same_time_all_end_well(store: Store) -> None:
    base = await store.update()
    trees = [await store.tree(base, {f"file{number}.py": f"x = {number}\n"}) for number in range(4)]
    done = await asyncio.gather(*(store.commit(base, tree, run_id=f"run-{number}") for number, tree in enumerate(trees)))
    assert {item.branch for item in done} == {"fix/issue-42"}
    assert store.git("rev-list", "--count", f"{base}..fix/issue-42") == "4"
    assert store.git("ls-tree", "--name-only", "fix/issue-42").count("file") == 4


async def test_an_unchanged_tree_and_an_unknown_tree_are_told_apart(store: Store) -> None:
    base = await store.update()
    with pytest.raises(NothingToCommit):
        await store.commit(base, base)
    with pytest.raises(UnknownCommit):
        await store.commit(base, "0" * 40)
    assert store.branches() == []


async def test_a_pure_rename_is_a_change(store: Store) -> None:
    base = await store.update()
    calc = (store.source.path / "calc.py").read_text()
    done = await store.commit(base, await store.tree(base, {"calc.py": None, "rechner ☃.py": calc}))
    assert "R100" in store.git("diff-tree", "-r", "-M", base, done.sha)


@pytest.mark.parametrize("issue", ["a b/c", "../../heads/main", "修复-7", "x.lock", "--all", "☃" * 80])
async def test_any_issue_id_gets_a_valid_branch(issue: str, store: Store) -> None:
    base = await store.update()
    done = await store.commit(base, await store.tree(base, {"calc.py": FIXED}), issue_id=issue)
    assert store.branches() == [done.branch]
    assert done.branch.startswith("fix/issue-")
    assert done.branch.count("/") == 1


async def test_awkward_people_and_titles_make_a_valid_commit(store: Store) -> None:
    base = await store.update()
    tree = await store.tree(base, {"calc.py": FIXED})
    title = "first\nSigned-off-by: nobody\x00 <\ud800> 加法算错了 " + "x" * 300
    done = await store.commit(base, tree, title=title, author=Person("<\n>", ""))
    assert store.git("fsck", "--strict", "--no-dangling") == ""
    subject, _, rest = store.git("log", "-1", "--format=%B", done.sha).partition("\n")
    assert len(subject) == 250
    assert "加法算错了" in subject
    assert rest.strip() == "Agent-Coder-Run: run-1"


def test_a_title_without_text_gets_a_subject() -> None:
    assert commit_message("7", " \n\t", "r") == "fix(7): resolve the issue\n\nAgent-Coder-Run: r\n"


def test_a_title_mentions_nobody_closes_no_issue_and_skips_no_ci() -> None:
    message = commit_message("7", "@octo/team: closes #3, fixes octo/app#4 [skip ci]", "r")
    assert message.replace("\u200b", "") == "fix(7): @octo/team: closes #3, fixes octo/app#4 [skip ci]\n\nAgent-Coder-Run: r\n"
    assert not any(words in message for words in ("@octo", "#3", "#4", "[skip"))
