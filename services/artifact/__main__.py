"""The composition root of the artifact service."""

import asyncio
from functools import partial

from libs.bus import Service
from libs.contracts import artifact as ask
from libs.contracts.run import RunVerified
from libs.settings import BusSettings
from services.artifact import handlers, run_steps
from services.artifact.settings import ArtifactSettings
from services.artifact.store import Store

_RETRIES = 5
_ANSWERS = (
    (ask.CreateRepository, handlers.create_repository, 8),
    (ask.ListRepositories, handlers.list_repositories, 4),
    (ask.ListTree, handlers.list_tree, 16),
    (ask.ReadCommitted, handlers.read_committed, 16),
    (ask.Diff, handlers.diff, 16),
    (ask.FetchBundle, handlers.fetch_bundle, 16),
    (ask.PushBranch, handlers.push_branch, 8),
    (ask.StoreBundle, handlers.store_bundle, 16),
    (ask.PutChunk, handlers.put_chunk, 32),
    (ask.ReleaseBlobs, handlers.release_blobs, 8),
    (ask.GetBlob, handlers.get_blob, 32),
    (ask.IssueGitToken, handlers.issue_token, 16),
    (ask.ServeGit, handlers.serve_git, 32),
)


def build(settings: ArtifactSettings | None = None) -> Service:
    """The service, wired. Steps go without a claim: a commit is found again by its content, so two workers do no harm."""
    chosen = settings or ArtifactSettings()
    root = chosen.home / "artifact"
    store = Store.on_disk(root, chosen.limits, allow_local_paths=chosen.allow_local_paths, max_blob_bytes=chosen.max_blob_bytes)
    service = Service("artifact")
    for question, handler, concurrency in _ANSWERS:
        service.answer(question, concurrency=concurrency)(partial(handler, store))
    find_login = partial(handlers.ask_forge, service)
    service.answer(ask.ImportRepository, concurrency=8)(partial(handlers.import_repository, store, find_login))
    service.step("commit", on=(RunVerified,), retries=_RETRIES, claim=False)(partial(run_steps.commit, store, chosen.author))

    async def sweep() -> None:
        while True:
            await store.sweep(chosen.run_keep_days * 86_400)
            await asyncio.sleep(chosen.sweep_seconds)

    service.background(sweep)
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
