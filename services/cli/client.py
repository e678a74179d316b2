"""The HTTP client of the command line: the bearer token, problems as errors in words, pages, and event streams that resume."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from libs.plain_http import trusts_nobody
from services.cli.answers import Telling
from services.cli.errors import ApiProblem, CliError, Unreachable, Usage
from services.cli.home import DEFAULT_URL, HomeFolder
from services.cli.settings import CliSettings
from services.cli.sse import ServerEvent, events

Json = dict[str, Any]
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Address:
    """Where the server is and what opens it."""

    url: str
    token: str | None


def address(settings: CliSettings) -> Address:
    """The environment goes before what the running server wrote into the home folder, that before the default port."""
    home = HomeFolder(settings.home)
    runtime = home.runtime()
    url = settings.url or (runtime.url if runtime else DEFAULT_URL)
    return Address(url.rstrip("/"), settings.token.get_secret_value() if settings.token else home.token())


class Api:
    """One server. Every method raises Unreachable without a server and ApiProblem when it refuses."""

    def __init__(self, where: Address, timeout_seconds: float = 60.0, retry_seconds: float = 0.5, away_seconds: float = 60.0) -> None:
        self.where = where
        self._retry_seconds = retry_seconds
        self._away_seconds = away_seconds
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {where.token}"} if where.token else {})
        parts = urlsplit(where.url)
        local = parts.hostname in LOOPBACK
        verify = trusts_nobody() if local and parts.scheme == "http" else True
        self._http = httpx.Client(base_url=where.url, headers=headers, timeout=timeout_seconds, trust_env=not local, verify=verify)

    def get(self, path: str, **query: Any) -> Json:
        """GET, the query's empty values left out."""
        return self._json("GET", path, params={k: v for k, v in query.items() if v is not None})

    def post(self, path: str, body: Json | None = None, headers: dict[str, str] | None = None, **query: Any) -> Json:
        """POST a JSON body."""
        return self._json("POST", path, json=body, headers=headers, params={k: v for k, v in query.items() if v is not None})

    def _json(self, method: str, path: str, **options: Any) -> Json:
        answer = self._send(method, path, **options)
        if not answer.content:
            return {}
        try:
            return dict(answer.json())
        except ValueError as error:
            raise CliError(f"{self.where.url} does not answer like agent-coder.", "Check AGENT_CODER_URL.") from error

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise unreachable(self.where, error) from error
        _check(answer)
        return answer

    def run_id(self, given: str) -> str:
        """The whole id of a run from its beginning.

        Raises:
            Usage: no run, or more than one, begins like that.
        """
        given = given.strip()
        if not given:
            raise Usage("A run's id is missing.", "`agent-coder runs` lists them.")
        try:
            return str(self.get(f"/api/runs/{segment(given)}")["instanceId"])
        except ApiProblem as problem:
            if problem.status not in (404, 422):
                raise
        found = [run["run_id"] for run in self.runs(limit=1000)["runs"] if run["run_id"].lower().startswith(given.lower())]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise Usage(f"{given} begins {len(found)} run ids: {', '.join(found[:5])}", "Give more of it.")
        raise Usage(f"There is no run {given}.", "`agent-coder runs` lists them.")

    def runs(self, limit: int, cursor: str | None = None, **filters: Any) -> Json:
        """Up to `limit` runs, newest first, over as many pages as it takes: `runs` and `next_cursor`."""
        found: list[Json] = []
        while True:
            page = self.get("/api/runs", cursor=cursor, limit=min(limit - len(found), 100), **filters)
            found.extend(page["runs"])
            cursor = page.get("next_cursor")
            if cursor is None or len(found) >= limit:
                return {"runs": found, "next_cursor": cursor}

    def events(self, run_id: str) -> Iterator[Json]:
        """The events of a run so far; none when its journal is gone."""
        after: int | None = 0
        while after is not None:
            try:
                page = self.get(f"/api/runs/{run_id}/events", after=after, limit=1000)
            except ApiProblem as problem:
                if problem.status == 410:
                    return
                raise
            yield from page["events"]
            after = page.get("next_after")

    def follow(self, run_id: str, last_event_id: str | None = None) -> Iterator[ServerEvent]:
        """The events of a run until it has ended. A connection that breaks is made anew behind the last event that came.

        Raises:
            Unreachable: the server stayed away for `away_seconds`.
        """
        gone_since: float | None = None
        while True:
            error: Exception = ConnectionError("the stream was closed")
            try:
                for event in self._stream(run_id, last_event_id):
                    gone_since = None
                    last_event_id = event.id or last_event_id
                    yield event
                    if event.event == "end":
                        return
            except (httpx.TransportError, ApiProblem) as found:
                if isinstance(found, ApiProblem) and found.status < 500:
                    raise
                error = found
            gone_since = self._wait(gone_since, error, ended=False)

    def chat(self, name: str, body: Json) -> Iterator[Json]:
        """Say something in a conversation: the UI-message chunks of the answer. A connection that breaks is made anew behind what came.

        Raises:
            Unreachable: nobody answers at once, or the server stayed away for `away_seconds`.
        """
        telling, gone_since = Telling(), None
        while not telling.ended:
            error: Exception = ConnectionError("the stream was closed")
            try:
                for event in self._answer(name, body, telling.turn_id):
                    gone_since = None
                    if (chunk := telling.take(event.data)) is not None:
                        yield chunk
            except httpx.TransportError as found:
                if gone_since is None and telling.turn_id is None and isinstance(found, httpx.ConnectError):
                    raise unreachable(self.where, found) from found
                error = found
            except ApiProblem as found:
                if found.status != 503 or (gone_since is None and telling.turn_id is None):
                    raise
                error = found
            telling.again()
            gone_since = self._wait(gone_since, error, ended=telling.ended)

    def _answer(self, name: str, body: Json, turn_id: str | None) -> Iterator[ServerEvent]:
        """The stream of a new turn, or of one that is known: a body that is sent again is the same turn."""
        if turn_id is None:
            return self._events("POST", "/api/chat", {}, body)
        return self._events("GET", f"/api/chat/{segment(name)}/stream?turn={segment(turn_id)}", {})

    def _wait(self, gone_since: float | None, error: Exception, *, ended: bool) -> float | None:
        """Wait before a connection is made anew; since when there has been none. Raises Unreachable after `away_seconds`."""
        if ended:
            return None
        gone_since = gone_since or time.monotonic()
        if time.monotonic() - gone_since > self._away_seconds:
            raise unreachable(self.where, error) from error
        time.sleep(self._retry_seconds)
        return gone_since

    def conversation(self, name: str) -> list[Json]:
        """The messages of a conversation, as its clients see them; none when there is none."""
        return list(self._send("GET", f"/agents/assistant/{segment(name)}/get-messages").json())

    def _stream(self, run_id: str, last_event_id: str | None) -> Iterator[ServerEvent]:
        return self._events("GET", f"/api/runs/{run_id}/events", {"Last-Event-ID": last_event_id} if last_event_id else {})

    def _events(self, method: str, path: str, headers: dict[str, str], body: Json | None = None) -> Iterator[ServerEvent]:
        with self._http.stream(method, path, headers={"Accept": "text/event-stream"} | headers, json=body) as answer:
            if answer.status_code >= 400:
                answer.read()
            _check(answer)
            yield from events(answer.iter_lines())


def unreachable(where: Address, error: Exception) -> Unreachable:
    """Nobody answers: how to start a server."""
    return Unreachable(
        f"No agent-coder server answers at {where.url} ({error or type(error).__name__}).",
        "Start one with `agent-coder up` (or `make run`), or set AGENT_CODER_URL.",
    )


def _check(answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    try:
        body = dict(answer.json())
    except ValueError:
        body = {"detail": answer.text[:500]}
    title = str(body.get("title") or answer.reason_phrase or answer.status_code)
    raise ApiProblem(answer.status_code, title, str(body.get("detail", "")), str(body.get("next", "")), str(body.get("code", "")))


def segment(text: str) -> str:
    """One path segment for any text."""
    return quote(text, safe="") or "-"
