"""One function per question to the artifact service, in the order of a run's story: import, read, carry, blobs, git over HTTP."""

import asyncio
import contextlib
from datetime import timedelta

from libs.bus import Asker, NoAnswer, Refusal, Service
from libs.contracts import artifact as ask
from libs.contracts.envelope import BlobRef, Done
from libs.contracts.github import RepositoryCredential
from services.artifact import errors
from services.artifact.answers import described, fitting_entries, fitting_patch, imported_answer, regrouped
from services.artifact.domain import Login
from services.artifact.importing import FindLogin
from services.artifact.refusals import as_refusals
from services.artifact.smart_http import GitHttpRequest
from services.artifact.store import Store

_READ_BYTES_IN_ALL = 4_000_000
_AT_ONCE = 8
# The gateway puts the bodies of large pushes under this owner.
_GIT_OWNER = "git"


async def import_repository(store: Store, find_login: FindLogin, question: ask.ImportRepository, _: Asker) -> ask.Imported:
    """Bring a source into the store and resolve its base."""
    with as_refusals():
        return imported_answer(await store.importer.import_source(question.source, question.base, find_login), question.base)


async def ask_forge(service: Service, url: str) -> Login | None:
    """A credential for a repository that the GitHub App is installed on; None for any other."""
    try:
        found = await service.bus.ask(RepositoryCredential(url=url))
    except Refusal as refusal:
        if refusal.retryable:
            raise errors.CredentialAway(f"No credential for {url} could be had: {refusal.detail}", refusal.after) from None
        return None
    except NoAnswer:
        raise errors.CredentialAway(f"The forge, which has the credentials of GitHub, does not answer for {url}.") from None
    return Login(found.username, found.token)


async def push_branch(store: Store, question: ask.PushBranch, _: Asker) -> ask.Pushed:
    """Push one commit to a branch elsewhere."""
    login = Login(question.username, question.token)
    with as_refusals():
        moved = await store.pusher.push(question.repository, question.url, question.branch, question.sha, login)
    return ask.Pushed(sha=question.sha, moved=moved)


async def create_repository(store: Store, question: ask.CreateRepository, _: Asker) -> ask.RepositoryDescription:
    """Make an empty repository; one that exists is the answer."""
    with as_refusals():
        with contextlib.suppress(errors.RepositoryExists):
            await store.repositories.create(question.name)
        return await described(store, question.name)


async def list_repositories(store: Store, question: ask.ListRepositories, _: Asker) -> ask.Repositories:
    """A page of repositories by name; the cursor is the last name of the page before."""
    names = [name for name in await asyncio.to_thread(store.repositories.names) if name > (question.cursor or "")]
    page = names[: question.limit]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> ask.RepositoryDescription:
        async with slots:
            return await described(store, name)

    with as_refusals():
        found = await asyncio.gather(*map(one, page))
    return ask.Repositories(repositories=tuple(found), next_cursor=page[-1] if len(names) > len(page) else None)


async def list_tree(store: Store, question: ask.ListTree, _: Asker) -> ask.Tree:
    """The files of a commit."""
    with as_refusals():
        return fitting_entries(await store.reader.list_files(question.repository, question.commit), question.limit)


async def read_committed(store: Store, question: ask.ReadCommitted, _: Asker) -> ask.CommittedFiles:
    """Several files of a commit."""
    with as_refusals():
        found = await store.reader.read_files(
            question.repository, question.commit, question.paths, max_bytes=question.max_bytes, total_bytes=_READ_BYTES_IN_ALL
        )
    files = (
        ask.CommittedFile(path=file.entry.path, content=file.data, size=file.entry.size_bytes, truncated=file.truncated) for file in found
    )
    return ask.CommittedFiles(files=tuple(files))


async def diff(store: Store, question: ask.Diff, _: Asker) -> ask.DiffResult:
    """What one commit has that the other has not."""
    with as_refusals():
        patch = await store.reader.diff(question.repository, question.base, question.head, each_commit=question.each_commit)
        files = await store.reader.changed_files(question.repository, question.base, question.head)
    return fitting_patch(patch, files, question.max_characters)


async def fetch_bundle(store: Store, question: ask.FetchBundle, asker: Asker) -> Done:
    """Stream a bundle of a commit."""
    with as_refusals():
        async with contextlib.aclosing(store.transport.bundle(question.repository, question.commit, question.have)) as pieces:
            async for piece in regrouped(pieces):
                await asker.frame(ask.Chunk(data=piece))
    return Done()


async def store_bundle(store: Store, question: ask.StoreBundle, _: Asker) -> Done:
    """Keep a commit under its run's hidden reference."""
    ref = f"refs/runs/{question.run_id}/{question.sequence}"
    with as_refusals():
        if await store.repositories.kept(question.repository, ref) != question.commit:
            bundle = store.blobs.path(question.bundle.sha256)
            await store.transport.receive_bundle(question.repository, ref, bundle, question.commit)
    return Done()


async def put_chunk(store: Store, question: ask.PutChunk, _: Asker) -> ask.BlobPut:
    """Take one chunk of a blob."""
    with as_refusals():
        upload = await store.blobs.put_chunk(question.owner, question.upload_id, question.offset, question.data, last=question.last)
    blob = BlobRef(sha256=upload.sha256, size=upload.received) if upload.sha256 else None
    return ask.BlobPut(received=upload.received, blob=blob)


async def release_blobs(store: Store, question: ask.ReleaseBlobs, _: Asker) -> Done:
    """Let go of what came in by a webhook."""
    with as_refusals():
        await store.blobs.delete_owner(f"webhook-{question.webhook}")
    return Done()


async def get_blob(store: Store, question: ask.GetBlob, asker: Asker) -> Done:
    """Stream a blob."""
    with as_refusals():
        async with contextlib.aclosing(store.blobs.read(question.sha256, question.offset)) as pieces:
            async for piece in pieces:
                await asker.frame(ask.Chunk(data=piece))
    return Done()


async def issue_token(store: Store, question: ask.IssueGitToken, _: Asker) -> ask.GitToken:
    """Make a token for a repository that exists."""
    with as_refusals():
        store.repositories.require(question.repository)
        issued = await store.tokens.issue(question.repository, question.scope, timedelta(seconds=question.expires_in_seconds))
    return ask.GitToken(token=issued.token, repository=issued.repository, scope=issued.scope, expires_at=issued.expires_at)


async def serve_git(store: Store, question: ask.ServeGit, asker: Asker) -> Done:
    """One HTTP request of a git client."""
    with as_refusals():
        body = store.blobs.path(question.body_blob.sha256) if question.body_blob else question.body
        request = GitHttpRequest(
            question.method, question.service_path, question.query, question.headers, body, question.token, question.trusted
        )
        response = await store.http.serve(request, question.repository)
        try:
            await asker.frame(ask.GitFrame(head=ask.GitHead(status=response.status, headers=response.headers)))
            async for piece in regrouped(response.body):
                await asker.frame(ask.GitFrame(data=piece))
        finally:
            await response.body.aclose()
            if question.body_blob:
                await store.blobs.release(_GIT_OWNER, question.body_blob.sha256)
    return Done()
