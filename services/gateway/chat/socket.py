"""One WebSocket of one conversation: frames in, frames out.

Every frame goes out through one bounded queue, so a reader that is too slow holds back nobody but itself and is dropped in the end.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from libs.bus import Permanent, Refusal, Retryable
from libs.contracts.conversation import DeleteSession, ReadHistory, StoredMessage
from libs.contracts.envelope import JsonObject
from services.gateway.chat import frames
from services.gateway.chat.following import Following
from services.gateway.chat.names import session_id_of
from services.gateway.chat.requests import Answer, ChatRequest, output_text
from services.gateway.chat.rooms import Room
from services.gateway.chat.turns import Asked, answer_id
from services.gateway.context import Gateway
from services.gateway.feed import ended
from services.gateway.identity.caller import Caller
from services.gateway.identity.guard import CLOSE_UNAUTHORIZED
from services.gateway.problems import Problem, of_error, of_validation

log = logging.getLogger(__name__)
_QUEUE = 256
_HISTORY = 500
_MAX_PUMPS = 16
_ANNOUNCE_SECONDS = 1.0
CLOSE_RESTART = 1012
CLOSE_SLOW = 1008
_CLOSE_SECONDS = 1.0
_RECHECK_SECONDS = 10.0
Handler = Callable[[JsonObject], Awaitable[None]]


class Connection:
    """One client. `readonly` ones may watch and nothing else; `protocol` False spares them the frames about the agent itself."""

    def __init__(self, socket: WebSocket, here: Gateway, who: Caller, agent: str, name: str, *, readonly: bool, protocol: bool) -> None:
        self._socket = socket
        self._here = here
        self._who = who
        self._agent = agent
        self._name = name
        self._readonly = readonly
        self._protocol = protocol
        self._session_id = session_id_of(name, agent)
        self._room = Room(here.bus, who, self._session_id)
        self._id = secrets.token_hex(8)
        self._out: asyncio.Queue[str] = asyncio.Queue(_QUEUE)
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._requests: dict[str, str] = {}
        self._shown: set[str] = set()
        self._told: set[str] = set()
        self._admitted = True
        self._handlers: dict[str, Handler] = {
            frames.REQUEST: self._request,
            frames.CLEAR: self._clear,
            frames.CANCEL: self._cancel,
            frames.RESUME_REQUEST: self._resume,
            frames.RESUME_ACK: self._acknowledged,
            frames.TOOL_RESULT: self._tool_result,
            frames.TOOL_APPROVAL: self._tool_approval,
            frames.STATE: self._set_state,
            frames.MESSAGES: self._messages,
            frames.RPC: self._rpc,
        }

    async def serve(self) -> None:
        """Until the client goes, is too slow, is admitted no longer, or the server stops."""
        try:
            if await self._still_admitted():
                await self._greet()
                await self._work()
        finally:
            await self._close()

    async def _work(self) -> None:
        watching = (self._watch_turns, self._watch_shared, self._watch_credential)
        tasks = [asyncio.create_task(job()) for job in (self._announce, self._read, self._write, *watching, self._here.stopping.wait)]
        announcing = tasks[0]
        try:
            ending = {t for t in tasks if t is not announcing}
            finished, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                with contextlib.suppress(WebSocketDisconnect):
                    task.result()
        finally:
            await ended([*tasks, *self._pumps.values()])

    async def _close(self) -> None:
        """Say goodbye to a client that is there and listens."""
        if self._socket.client_state is WebSocketState.CONNECTED and self._socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(TimeoutError, WebSocketDisconnect):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    if not self._admitted:
                        await self._socket.close(CLOSE_UNAUTHORIZED, "Unauthorized")
                    else:
                        await self._socket.close(CLOSE_RESTART if self._here.stopping.is_set() else CLOSE_SLOW)

    async def _still_admitted(self) -> bool:
        """Whether the credential is as good as it was; what cannot be asked now is asked again later."""
        with contextlib.suppress(Retryable, Refusal):
            try:
                await self._here.identity.keys.recheck(self._who)
            except Problem:
                self._admitted = False
        return self._admitted

    async def _watch_credential(self) -> None:
        while await self._still_admitted():
            left = _RECHECK_SECONDS if self._who.until is None else max(self._who.until - time.time(), 0.0)
            await asyncio.sleep(min(left, _RECHECK_SECONDS))

    async def _greet(self) -> None:
        if self._protocol:
            await self._send(frames.identity(self._agent, self._name))
            await self._send(frames.state((await self._room.read()).state))
            await self._send(frames.mcp_servers())
        await self._send(frames.messages(await self._history(), connect=True))

    async def _history(self) -> tuple[StoredMessage, ...]:
        try:
            question = ReadHistory(**self._who.owned, session_id=self._session_id, limit=_HISTORY)
            return (await self._here.bus.ask(question)).messages
        except Refusal as refusal:
            if refusal.code != "not_found":
                raise
            return ()

    async def _send(self, frame: JsonObject) -> None:
        await self._out.put(json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode())

    async def _write(self) -> None:
        while True:
            text = await self._out.get()
            try:
                async with asyncio.timeout(self._here.settings.send_timeout_seconds):
                    await self._socket.send_text(text)
            except TimeoutError:
                log.info("a client of %s took nothing for %g s and is dropped", self._name, self._here.settings.send_timeout_seconds)
                return

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text") or ""
            if text == "ping":
                await self._out.put("pong")
            elif (frame := frames.parse(text)) is not None:
                if frame["type"] in frames.WRITES and not await self._still_admitted():
                    return
                await self._handle(frame)

    async def _handle(self, frame: JsonObject) -> None:
        kind = frame["type"]
        handler = self._handlers.get(kind)
        if handler is None:
            return
        try:
            if kind in frames.WRITES:
                await self._may_write()
            await handler(frame)
        except (Problem, Refusal, Retryable, Permanent, ValidationError) as error:
            problem = of_validation(list(error.errors(include_input=False))) if isinstance(error, ValidationError) else of_error(error)
            answer = (
                frames.failed(str(frame.get("id", "")), problem.detail) if kind == frames.REQUEST else frames.state_error(problem.detail)
            )
            await self._send(answer)

    async def _may_write(self) -> None:
        if self._readonly:
            raise Problem(403, "readonly", frames.READONLY)
        if self._here.limiter.on and not (admission := await self._here.limiter.admit(self._who)).admitted:
            raise admission.problem()

    async def _request(self, frame: JsonObject) -> None:
        request_id = str(frame.get("id", ""))[:200]
        init = frame.get("init")
        body = init.get("body") if isinstance(init, dict) else None
        request = ChatRequest.model_validate(frames.body_of(body)).model_copy(update={"agent": self._agent})
        await self._here.models.require(request.model)
        asked = await self._here.turns.ask(self._who, request, self._name)
        self._requests[request_id] = asked.turn_id
        self._follow(request_id, asked)

    def _follow(self, request_id: str, asked: Asked, **flags: Any) -> None:
        """Pass on a turn under an id; one that is being passed on already is not begun again."""
        if request_id in self._pumps and not self._pumps[request_id].done():
            return
        if sum(not pump.done() for pump in self._pumps.values()) >= _MAX_PUMPS:
            raise Problem(429, "too-many-streams", f"a connection follows at most {_MAX_PUMPS} answers at once")
        self._shown.add(asked.turn_id)
        self._pumps = {key: pump for key, pump in self._pumps.items() if not pump.done()}
        self._pumps[request_id] = asyncio.create_task(self._pump(request_id, asked, flags))

    async def _pump(self, request_id: str, asked: Asked, flags: JsonObject) -> None:
        following = Following(self._here.bus, self._who, asked, self._here.stopping)
        last, paused = "", False
        try:
            with self._here.streams.one(self._who):
                async with contextlib.aclosing(following.moments()) as moments:
                    async for chunk in (chunk async for moment in moments for chunk in moment):
                        last = str(chunk["type"])
                        paused = bool((chunk.get("messageMetadata") or {}).get("paused"))
                        await self._send(frames.chunk(request_id, chunk, **flags))
        except Problem as problem:
            skipped = problem.code in ("turn-dropped", "turn-superseded")
            await self._send(frames.done(request_id, outcome="skipped") if skipped else frames.failed(request_id, problem.detail))
            return
        except (Refusal, Retryable, Permanent) as error:
            await self._send(frames.failed(request_id, of_error(error).detail))
            return
        if not paused:
            self._told.add(asked.turn_id)
        if not self._here.stopping.is_set():
            outcome = {"error": "error", "abort": "aborted"}.get(last, "completed")
            await self._send(frames.done(request_id, outcome=outcome, **flags))

    async def _cancel(self, frame: JsonObject) -> None:
        """Stop the turn of a request; an id from an earlier connection means the turn that is active."""
        request_id = str(frame.get("id", ""))
        turn_id = self._requests.get(request_id) or (await self._here.turns.active(self._who, self._session_id)).active
        if turn_id is not None:
            await self._here.turns.cancel(self._who, turn_id, "stopped by the client")

    async def _running(self) -> Asked | None:
        """The turn that is being written; none while it waits for somebody."""
        active = (await self._here.turns.active(self._who, self._session_id)).active
        asked = await self._here.turns.follow(self._who, active) if active else None
        return asked if asked is not None and asked.at_work else None

    async def _resume(self, frame: JsonObject) -> None:
        probe = frame.get("probeId")
        probe_id = probe[:100] if isinstance(probe, str) else None
        asked = await self._running()
        if asked is None:
            await self._send(frames.resume_none(probe_id))
            return
        self._requests[asked.turn_id] = asked.turn_id
        self._shown.add(asked.turn_id)
        await self._send(frames.resuming(asked.turn_id, probe_id))

    async def _acknowledged(self, frame: JsonObject) -> None:
        turn_id = str(frame.get("id", ""))
        if turn_id in self._pumps and not self._pumps[turn_id].done():
            return
        asked = await self._here.turns.follow(self._who, self._requests.get(turn_id, turn_id))
        if not asked.unanswered:
            self._follow(turn_id, asked, replay=True, **({"continuation": True} if asked.after else {}))

    async def _tool_result(self, frame: JsonObject) -> None:
        failed = frame.get("state") == "output-error"
        text = str(frame.get("errorText") or "the tool failed")[:4000]
        said = {"error": text} if failed else {"output": output_text(frame.get("output"))}
        answer = Answer.model_validate({"call_id": str(frame.get("toolCallId", "")), "goes_on": _goes_on(frame), **said})
        changes = {"state": "output-error", "errorText": text} if failed else {"state": "output-available", "output": frame.get("output")}
        await self._answer(answer, changes)

    async def _tool_approval(self, frame: JsonObject) -> None:
        call_id, approved = str(frame.get("toolCallId", "")), frame.get("approved") is True
        changes = {"state": "approval-responded", "approval": {"id": call_id, "approved": approved}}
        await self._answer(Answer(call_id=call_id, approved=approved, goes_on=_goes_on(frame)), changes)

    async def _answer(self, answer: Answer, changes: JsonObject) -> None:
        active = (await self._here.turns.active(self._who, self._session_id)).active
        if active is None:
            raise Problem(409, "no-such-call", "nothing waits for an answer in this conversation")
        await self._here.turns.answer(self._who, active, [answer])
        message = next((m for m in await self._history() if m.id == answer_id(active)), None)
        if message is not None:
            await self._send(frames.updated(message, answer.call_id, changes))

    async def _clear(self, _: JsonObject) -> None:
        await self._here.turns.stop_all(self._who, self._session_id, "the conversation was cleared")
        try:
            await self._here.bus.ask(DeleteSession(**self._who.owned, session_id=self._session_id, messages_only=True))
        except Refusal as refusal:
            if refusal.code != "not_found":
                raise
        await self._room.cleared(self._id)

    async def _set_state(self, frame: JsonObject) -> None:
        try:
            await self._room.set_state(frame.get("state"), self._id)
        except ValueError as error:
            raise Problem(413, "content-too-large", str(error)) from error

    async def _messages(self, _: JsonObject) -> None:
        """A client sends what it believes the conversation to be: it is told what it is."""
        await self._send(frames.messages(await self._history()))

    async def _rpc(self, frame: JsonObject) -> None:
        await self._send(frames.rpc_error(frame.get("id"), f"Method {str(frame.get('method', ''))[:100]} is not callable"))

    async def _announce(self) -> None:
        """Offer the answer that is being written to a client that does not ask for it by itself."""
        await asyncio.sleep(_ANNOUNCE_SECONDS)
        with contextlib.suppress(Refusal, Retryable, Problem):
            asked = await self._running()
            if asked is not None and asked.turn_id not in self._shown:
                await self._offer(asked.turn_id)

    async def _offer(self, turn_id: str) -> None:
        self._requests[turn_id] = turn_id
        self._shown.add(turn_id)
        await self._send(frames.resuming(turn_id))

    async def _watch_turns(self) -> None:
        """Another connection's turn begins: its question is shown and its answer offered. When it has ended the whole is sent."""
        watched: str | None = None
        async for active in self._room.turns():
            if watched is not None and not self._follows(watched):
                await self._send(frames.messages(await self._history()))
            watched = active
            if active is not None and active not in self._shown:
                await self._send(frames.messages(await self._history()))
                await self._offer(active)

    def _follows(self, turn_id: str) -> bool:
        """Whether this connection is being told of the end of a turn, or was."""
        telling = (key for key, pump in self._pumps.items() if not pump.done())
        return turn_id in self._told or any(self._requests.get(key) == turn_id for key in telling)

    async def _watch_shared(self) -> None:
        shared = await self._room.read()
        async for changed in self._room.changes():
            if changed.cleared > shared.cleared and changed.cleared_by != self._id:
                await self._send({"type": frames.CLEAR})
            if changed.state != shared.state and changed.by != self._id and self._protocol:
                await self._send(frames.state(changed.state))
            shared = changed


def _goes_on(frame: JsonObject) -> bool:
    """Whether the turn goes on when its calls are answered; only a client that says so holds it back."""
    return frame.get("autoContinue") is not False
