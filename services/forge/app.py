"""The GitHub App's client: PyGithub's requester with the App's JWT or a token for one repository, answers as plain JSON.

Calls run in threads of their own and are never repeated here: whoever asked decides by the error (`services.forge.errors`).
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import quote, urlsplit

from libs.bus import Retryable
from services.forge.errors import GitHubError, NotConfigured, NotFound, NotInstalled, Refused, meaning
from services.forge.repository import RepositoryClient
from services.forge.settings import ForgeSettings
from services.forge.tokens import Scope, Token, Tokens

Json = Any
Answer = tuple[Mapping[str, str], Json]
GRAPHQL = "/graphql"
_JWT_SECONDS = 300
_SILENT = logging.Logger("github", logging.CRITICAL)  # PyGithub's own shows answers whole at DEBUG, and minted tokens are answers
_THREADS = 8
PAGE = 100


@lru_cache(maxsize=2)
def _signer(pem: bytes) -> Callable[[dict[str, Any]], str]:
    """Signs the App's tokens (RS256). Reading a key takes 60 ms, as it is checked; a file that was replaced is read anew."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, RSAPrivateKey):
        raise TypeError("no RSA key")
    return partial(jwt.encode, key=key, algorithm="RS256")


class GitHubApp:
    """The App that this installation of agent-coder is to GitHub."""

    def __init__(self, settings: ForgeSettings) -> None:
        self.settings = settings
        self.tokens = Tokens(self._mint)
        self._slug = ""

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="github")

    @property
    def host(self) -> str:
        """Where people's browsers and git find the repositories: github.com, or the host of GITHUB_BASE_URL."""
        netloc = urlsplit(self.settings.github_base_url).netloc
        return "github.com" if netloc == "api.github.com" else netloc

    @property
    def web_url(self) -> str:
        """The web address of that host."""
        return f"{urlsplit(self.settings.github_base_url).scheme}://{self.host}"

    def full_name_of(self, url: str) -> str | None:
        """`owner/name` of a clone URL (https, ssh or `git@host:…`) or web address on this GitHub; None for any other address."""
        host = re.escape(self.host)
        web, ssh = rf"{urlsplit(self.web_url).scheme}://(?:[^@/]*@)?{host}/", rf"(?:ssh://)?git@{host.partition(':')[0]}[:/]"
        found = re.fullmatch(rf"(?:{web}|{ssh})([\w.-]+/[\w.-]+?)(?:\.git)?/?", url, re.IGNORECASE | re.ASCII)
        return found[1] if found else None

    async def slug(self) -> str:
        """The App's name in addresses; its login is `<slug>[bot]`."""
        self._slug = self._slug or str((await self.describe())["slug"])
        return self._slug

    async def login(self) -> str:
        """Who the App is in comments and pull requests."""
        return f"{await self.slug()}[bot]"

    async def describe(self) -> Json:
        """`GET /app`: slug, permissions, events."""
        return await self.as_app("GET", "/app")

    async def hook(self) -> Json:
        """`GET /app/hook/config`: the webhook's URL and content type."""
        return await self.as_app("GET", "/app/hook/config")

    async def installations(self) -> list[Json]:
        """The accounts that installed the App, the first thousand."""
        return [item async for item in self._pages("/app/installations", pages=10)]

    async def deliveries(self, pages: int = 5) -> list[Json]:
        """The newest deliveries of the App's webhook, the newest first: `id`, `guid`, `status_code`, `redelivery`."""
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(pages):
            query = {"per_page": str(PAGE)} | ({"cursor": cursor} if cursor else {})
            headers, page = await self._as_app("GET", "/app/hook/deliveries", query)
            found.extend(page)
            cursor = _cursor(headers.get("link", ""))
            if not cursor:
                break
        return found

    async def redeliver(self, delivery_id: int) -> None:
        """`POST /app/hook/deliveries/{id}/attempts`: GitHub sends a delivery once more."""
        await self.as_app("POST", f"/app/hook/deliveries/{delivery_id}/attempts")

    async def installation_of(self, full_name: str) -> int:
        """The installation that a repository belongs to.

        Raises:
            NotInstalled: the App is not installed there, or there is no such repository.
        """
        try:
            found = await self.as_app("GET", f"/repos/{quote(full_name)}/installation")
        except NotFound as error:
            raise NotInstalled(error.status, f"the App is not installed on {full_name}") from None
        return int(found["id"])

    def repository(self, installation_id: int, full_name: str, repository_id: int | None = None) -> RepositoryClient:
        """The client of one repository."""
        return RepositoryClient(self, installation_id, full_name, repository_id)

    def drop_tokens(self, installation_id: int) -> None:
        """Forget the tokens of an installation that was suspended or removed."""
        self.tokens.drop(installation_id)

    async def as_app(self, verb: str, path: str, parameters: Mapping[str, str] | None = None, body: Json = None) -> Json:
        """A request with the App's JWT (RS256, good for five minutes, back-dated by one). Raises GitHubError, Retryable, NotConfigured."""
        return (await self._as_app(verb, path, parameters, body))[1]

    async def with_token(self, token: Token, verb: str, path: str, parameters: Mapping[str, str] | None = None, body: Json = None) -> Json:
        """A request with an installation's token; one that GitHub refuses (401) is dropped, and asking again mints another."""
        from github import Auth

        try:
            return (await self._send(Auth.Token(token.value), verb, path, parameters, body))[1]
        except GitHubError as error:
            if error.status == 401:
                self.tokens.drop(token=token)
                raise Retryable("GitHub refused the installation's token") from None
            raise

    def close(self) -> None:
        """Let the threads go."""
        if "_threads" in self.__dict__:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _as_app(self, verb: str, path: str, parameters: Mapping[str, str] | None = None, body: Json = None) -> Answer:
        from github import Auth

        if self.settings.github_app_id is None:
            raise NotConfigured("no GitHub App is configured: set AGENT_CODER_GITHUB_APP_ID")
        try:
            signed = _signer(self.settings.key_file.read_bytes())
            auth = Auth.AppAuth(self.settings.github_app_id, sign_func=signed, jwt_expiry=_JWT_SECONDS)
            auth.create_jwt()
        except Exception as error:  # noqa: BLE001 - any fault of the key means the same to an administrator, and its text may hold the key
            raise NotConfigured(
                f"the App's private key in {self.settings.key_file} cannot be used ({type(error).__name__}): "
                "put the PEM file there that GitHub made for the App"
            ) from None
        return await self._send(auth, verb, path, parameters, body)

    async def _send(
        self, auth: Any, verb: str, path: str, parameters: Mapping[str, str] | None, body: Json
    ) -> tuple[Mapping[str, str], Json]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._request, auth, verb, path, parameters, body)

    def _request(self, auth: Any, verb: str, path: str, parameters: Mapping[str, str] | None, body: Json) -> Answer:
        import github
        import requests
        from github.Requester import Requester

        Requester.injectLogger(_SILENT)
        options: dict[str, Any] = {"retry": None, "seconds_between_requests": None, "seconds_between_writes": None}
        base, timeout = self.settings.github_base_url.rstrip("/"), int(self.settings.github_timeout_seconds) or 1
        try:
            with github.Github(auth=auth, base_url=base, timeout=timeout, user_agent="agent-coder", **options) as client:
                place = client.requester.graphql_url if path == GRAPHQL else path
                headers, data = client.requester.requestJsonAndCheck(verb, place, parameters=dict(parameters or {}), input=body)
                return headers, data
        except github.GithubException as error:
            raise meaning(error.status, error.data, error.headers or {}, time.time()) from None
        except (requests.RequestException, OSError) as error:
            raise Retryable(f"GitHub at {self.host} does not answer ({type(error).__name__})") from None
        except (RuntimeError, ValueError) as error:
            raise Refused(0, f"an answer that is not understood: {error}") from None

    async def _pages(self, path: str, pages: int) -> AsyncIterator[Json]:
        for number in range(1, pages + 1):
            page = await self.as_app("GET", path, {"per_page": str(PAGE), "page": str(number)})
            for item in page:
                yield item
            if len(page) < PAGE:
                return

    async def token(self, installation_id: int, repository_id: int | None, permissions: Mapping[str, str]) -> Token:
        """A token for one repository with these permissions and no others."""
        return await self.tokens.get(Scope.of(installation_id, repository_id, permissions))

    async def _mint(self, installation_id: int, request: dict[str, object]) -> tuple[str, datetime]:
        try:
            made = await self.as_app("POST", f"/app/installations/{installation_id}/access_tokens", body=request)
        except NotFound as error:
            raise NotInstalled(error.status, f"installation {installation_id} of the App is gone") from None
        return str(made["token"]), datetime.fromisoformat(str(made["expires_at"])).astimezone(UTC)


def _cursor(link: str) -> str | None:
    """The cursor of the next page in a Link header (RFC 8288)."""
    for part in link.split(","):
        address, _, relation = part.partition(";")
        if 'rel="next"' in relation and "cursor=" in address:
            return address.strip(" <>").rpartition("cursor=")[2].partition("&")[0]
    return None
