"""The whole store, composed: repositories and what is done with them, tokens, blobs, and the upkeep of all."""

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from services.artifact.blobs import DiskBlobStore
from services.artifact.domain import Limits
from services.artifact.errors import ArtifactError
from services.artifact.fixes import Fixes
from services.artifact.importing import Importer
from services.artifact.pushing import Pusher
from services.artifact.reading import Reader
from services.artifact.repositories import Repositories
from services.artifact.smart_http import SmartHttp
from services.artifact.tokens import TokenStore
from services.artifact.transport import Transport

log = logging.getLogger(__name__)
_UNFINISHED_UPLOAD_SECONDS = 86_400.0


@dataclass(frozen=True)
class Store:
    """What the handlers work with."""

    repositories: Repositories
    importer: Importer
    reader: Reader
    transport: Transport
    fixes: Fixes
    pusher: Pusher
    tokens: TokenStore
    http: SmartHttp
    blobs: DiskBlobStore

    @classmethod
    def on_disk(cls, root: Path, limits: Limits, *, allow_local_paths: bool, max_blob_bytes: int) -> "Store":
        """A store in one directory, which is made when something is first kept."""
        repositories = Repositories(root, limits)
        tokens = TokenStore(root / "tokens.sqlite")
        return cls(
            repositories=repositories,
            importer=Importer(repositories, allow_local_paths=allow_local_paths),
            reader=Reader(repositories),
            transport=Transport(repositories),
            fixes=Fixes(repositories),
            pusher=Pusher(repositories),
            tokens=tokens,
            http=SmartHttp(repositories, tokens),
            blobs=DiskBlobStore(root / "blobs", max_blob_bytes),
        )

    async def sweep(self, keep_seconds: float) -> None:
        """Clears up after crashes, packs repositories, drops expired tokens, stale uploads, and what runs kept over `keep_seconds`."""
        if cleared := await asyncio.to_thread(self.repositories.clear_leftovers, time.time()):
            log.warning("cleared %d leftovers of a crash", cleared)
        await self.tokens.sweep()
        await self.blobs.sweep(_UNFINISHED_UPLOAD_SECONDS, keep_seconds)
        for name in await asyncio.to_thread(self.repositories.names):
            try:
                await self.repositories.expire_runs(name, time.time() - keep_seconds)
                await self.repositories.maintain(name)
            except ArtifactError as error:
                log.warning("repository %s was not tidied: %s", name, error)
