"""Commits what a run has done on the branch of its issue, once, however often it is asked.

Invariant: the decision (branch, commit) is recorded on a hidden reference of the run before the branch moves, so a repeated or
interrupted request finds it and finishes it. Policy: docs/decisions/0010-branch-policy.md.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

from services.artifact.domain import FIX_PREFIX, ORIGIN, Committed, FixRequest, commit_message, free_branch, identity
from services.artifact.errors import BranchMoved, Contended, InvalidName, NothingToCommit, UnknownCommit
from services.artifact.git import Git
from services.artifact.names import check_sha, ref_component
from services.artifact.repositories import Repositories

_ATTEMPTS = 10


@dataclass(frozen=True)
class _Plan:
    """Branch `branch` goes from `old` (None: absent) to `sha`."""

    branch: str
    old: str | None
    sha: str
    tree: str
    created: bool
    merged: bool


class Fixes:
    """Fix branches of the store's repositories."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories

    async def commit_fix(self, name: str, request: FixRequest) -> Committed:
        """One commit `fix(<issue>): <title>` on `fix/issue-<id>`; the branch of an earlier run is continued or left beside a new one.

        Raises RepositoryNotFound, UnknownCommit, NothingToCommit, InvalidName, Contended (retryable).
        """
        git = self._repositories.git(name)
        await self._repositories.commit(name, request.base_commit)
        tree = await self._tree(git, request.tree)
        if tree == await self._tree(git, request.base_commit):
            raise NothingToCommit("The run changed no file, so there is nothing to commit. Give the issue more detail, or close it.")
        key = hashlib.sha256(f"{tree} {request.base_commit}".encode()).hexdigest()[:16]
        record = f"refs/runs/{ref_component(request.run_id)}/commits/{key}"
        for _ in range(_ATTEMPTS):
            plan, tag = await self._recorded(git, record)
            if plan is None or not await self._apply(git, plan):
                plan = await self._plan(git, request, tree)
                if not await self._write_record(git, record, plan, tag) or not await self._apply(git, plan):
                    continue
            message = await git.text("show", "--no-patch", "--format=%B", plan.sha)
            return Committed(plan.branch, plan.sha, plan.tree, message, plan.created, plan.merged)
        raise Contended(f"The branch of issue {request.issue_id!r} kept changing. Try again.")

    async def _plan(self, git: Git, request: FixRequest, tree: str) -> _Plan:
        branches = await self._repositories.refs(git, "refs/heads/")
        if request.branch is not None:
            return await self._follow_up(git, request, tree, request.branch, branches.get(request.branch))
        # A branch called `fix` leaves no room for branches below it.
        prefix = "fix-" if FIX_PREFIX.rstrip("/") in branches else FIX_PREFIX
        branch = f"{prefix}issue-{ref_component(request.issue_id)}"
        if request.on_existing_branch == "continue" and branch in branches:
            continued = await self._continue(git, request, tree, branch, branches[branch])
            if continued:
                return continued
        sha = await self._write_commit(git, request, tree, [request.base_commit])
        return _Plan(free_branch(branch, branches), None, sha, tree, created=True, merged=False)

    async def _follow_up(self, git: Git, request: FixRequest, tree: str, branch: str, head: str | None) -> _Plan:
        """The change on the run's own branch: on its base when that is where the branch was published, else merged into what is there."""
        base = request.base_commit
        rewritten = base == (await self._repositories.refs(git, ORIGIN)).get(branch)
        if head is not None and not (rewritten and await self._apart(git, head, base)):
            if continued := await self._continue(git, request, tree, branch, head):
                return continued
            raise BranchMoved(f"{branch} was changed at the same places while the run was at work. Retry the run from its plan.")
        sha = await self._write_commit(git, request, tree, [base])
        return _Plan(branch, head, sha, tree, created=True, merged=False)

    async def _apart(self, git: Git, one: str, other: str) -> bool:
        """Whether neither commit leads to the other."""
        return not (await self._repositories.is_ancestor(git, one, other) or await self._repositories.is_ancestor(git, other, one))

    async def _continue(self, git: Git, request: FixRequest, tree: str, branch: str, head: str) -> _Plan | None:
        """The run's change on top of the branch, or None when the two conflict."""
        base = request.base_commit
        if await self._repositories.is_ancestor(git, head, base):
            sha = await self._write_commit(git, request, tree, [base])
            return _Plan(branch, head, sha, tree, created=True, merged=False)
        alone = await self._write_commit(git, request, tree, [base])
        merge = await git.run("merge-tree", "--write-tree", "--no-messages", head, alone, ok=(0, 1, 128, 129))
        if merge.code:
            return None
        whole = check_sha(merge.text)
        if whole == await self._tree(git, head):
            return _Plan(branch, head, head, whole, created=False, merged=whole != tree)
        parents = [head] if await self._repositories.is_ancestor(git, base, head) else [head, base]
        sha = await self._write_commit(git, request, whole, parents)
        return _Plan(branch, head, sha, whole, created=True, merged=whole != tree)

    async def _write_commit(self, git: Git, request: FixRequest, tree: str, parents: list[str]) -> str:
        people = identity(request.author, "AUTHOR", request.timestamp) | identity(request.committer, "COMMITTER", request.timestamp)
        message = commit_message(request.issue_id, request.title, request.run_id).encode()
        above = [argument for parent in parents for argument in ("-p", parent)]
        return check_sha(await git.having(**people).text("commit-tree", tree, *above, "-F", "-", stdin=message))

    async def _apply(self, git: Git, plan: _Plan) -> bool:
        """Moves the branch, unless it holds the commit already. False when the branch went elsewhere."""
        ref = f"refs/heads/{plan.branch}"
        current = (await git.run("rev-parse", "--verify", "--quiet", ref, ok=(0, 1))).text
        if current and await self._repositories.is_ancestor(git, plan.sha, current):
            return True
        return await self._repositories.update_refs(git, [(ref, plan.sha, plan.old)])

    async def _recorded(self, git: Git, record: str) -> tuple[_Plan | None, str | None]:
        """The plan on record and the tag object that holds it."""
        tag = (await git.run("rev-parse", "--verify", "--quiet", record, ok=(0, 1))).text
        if not tag:
            return None, None
        _, _, body = (await git.text("cat-file", "tag", tag)).partition("\n\n")
        return _Plan(**json.loads(body)), tag

    async def _write_record(self, git: Git, record: str, plan: _Plan, replaces: str | None) -> bool:
        """An annotated tag that holds the plan in its text and keeps the commit alive. False when another request wrote first."""
        head = f"object {plan.sha}\ntype commit\ntag fix\ntagger agent-coder <agent-coder@localhost> 0 +0000\n\n"
        tag = await git.text("mktag", stdin=(head + json.dumps(asdict(plan)) + "\n").encode())
        return await self._repositories.update_refs(git, [(record, check_sha(tag), replaces)])

    async def _tree(self, git: Git, tree_or_commit: str) -> str:
        found = await git.run("rev-parse", "--verify", "--quiet", f"{check_sha(tree_or_commit)}^{{tree}}", ok=(0, 1, 128))
        try:
            return check_sha(found.text)
        except InvalidName:
            raise UnknownCommit(f"The repository holds no tree {tree_or_commit}. Save the run's commit first.") from None
