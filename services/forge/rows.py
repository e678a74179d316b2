"""Which run works on an issue or a pull request: hints in the bucket GITHUB, each of which can be found again on GitHub by a marker.

A hint is believed only as far as the journal of the run that it names confirms it.
"""

import re
from dataclasses import dataclass

from libs.bus import Fenced, Kv
from libs.contracts.envelope import Message

_RUN = re.compile(r"<!-- agent-coder:run=([A-Za-z0-9_-]{1,64}) -->")


class Row(Message):
    """The run of an issue or a pull request; `branch` is the head branch of the latter."""

    run_id: str
    branch: str = ""


def marker(text: str) -> str:
    """A hidden marker of ours in a comment or a pull request's body."""
    return f"<!-- agent-coder:{text} -->"


def run_marker(run_id: str) -> str:
    """What a pull request's body holds, so that its run is found when the bucket forgot."""
    return marker(f"run={run_id}")


def marked_run(body: str) -> str | None:
    """The run that a body of ours names; None when it names none."""
    found = _RUN.findall(body)
    return found[-1] if found else None


@dataclass(frozen=True)
class Rows:
    """The bucket. `repository_id` stays when a repository is renamed."""

    bucket: Kv

    async def issue(self, repository_id: int, number: int) -> tuple[Row, int] | None:
        """The run of an issue, and the revision of the row."""
        return await self._get(f"issue.{repository_id}.{number}")

    async def put_issue(self, repository_id: int, number: int, run_id: str, revision: int) -> bool:
        """Name the run of an issue; False when somebody else did since `revision` (0: nobody yet)."""
        return await self._put(f"issue.{repository_id}.{number}", Row(run_id=run_id), revision)

    async def pull(self, repository_id: int, number: int) -> Row | None:
        """The run of a pull request."""
        found = await self._get(f"pull.{repository_id}.{number}")
        return found[0] if found else None

    async def put_pull(self, repository_id: int, number: int, run_id: str, branch: str) -> None:
        """Name the run of a pull request; the one that published it last counts."""
        await self.bucket.put(f"pull.{repository_id}.{number}", Row(run_id=run_id, branch=branch).model_dump_json().encode())

    async def pulls_of_branch(self, repository_id: int, branch: str) -> list[int]:
        """The numbers of our pull requests from a branch."""
        rows = await self.bucket.scan(f"pull.{repository_id}.*")
        return [int(key.rpartition(".")[2]) for key, value in rows if Row.model_validate_json(value).branch == branch]

    async def _get(self, key: str) -> tuple[Row, int] | None:
        found = await self.bucket.get(key)
        return (Row.model_validate_json(found[0]), found[1]) if found else None

    async def _put(self, key: str, value: Message, revision: int) -> bool:
        try:
            await self.bucket.put(key, value.model_dump_json().encode(), revision)
        except Fenced:
            return False
        return True
