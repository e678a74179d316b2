"""Questions over core request/reply: a deadline, a sign of life while it is worked on, streamed frames with credit, cancellation.

A stream that stops before its answer raises; it is never taken for an answer.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from libs.bus.connection import Connection, Replies, status_of
from libs.bus.errors import Away, NoAnswer, Permanent, Refusal, Retryable, describe
from libs.bus.faults import DUPLICATE, reach
from libs.contracts.envelope import Message, Question
from libs.telemetry import Telemetry, extract, inject

log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT", bound=Message)
FrameHandler = Callable[[bytes], Awaitable[None]]
SILENCE_SECONDS = 10.0
_SIGNS = 5
"""How many signs of life fit into the silence that is borne."""
WINDOW = 32
_CREDITS = WINDOW // 4
_KIND = "Frame"
_ID = "Question-Id"
_CREDIT = "Credit-To"


class Questioner:
    """Asks."""

    def __init__(self, connection: Connection, telemetry: Telemetry, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._silence_seconds = silence_seconds

    async def ask(self, question: Question[AnswerT], on_frame: FrameHandler | None = None, timeout_seconds: float | None = None) -> AnswerT:
        """Ask and wait for the answer; `on_frame` is awaited for each streamed frame and holds the sender back while it works.

        Raises:
            Refusal: the answer is no.
            NoAnswer: nobody serves the question, it stopped giving signs of life, or the deadline passed.
        """
        if not DUPLICATE:
            return await self._ask(question, on_frame, timeout_seconds)
        twin = asyncio.create_task(self._ask(question, None, timeout_seconds))
        try:
            return await self._ask(question, on_frame, timeout_seconds)
        finally:
            await asyncio.gather(twin, return_exceptions=True)

    async def _ask(self, question: Question[AnswerT], on_frame: FrameHandler | None, timeout_seconds: float | None) -> AnswerT:
        deadline = timeout_seconds or question.deadline_seconds
        with self._telemetry.span(
            f"ask {question.subject}", "client", messaging__system="nats", messaging__destination__name=question.subject
        ):
            queue: asyncio.Queue[Msg] = asyncio.Queue()
            replies = await self._connection.replies(queue.put)
            inbox = replies.inbox
            answered = False
            try:
                payload = question.model_dump_json(exclude_none=True).encode()
                headers = {_ID: inbox.rsplit(".", 1)[-1], **inject()}
                await self._send(question.subject, payload, headers, inbox)
                async with asyncio.timeout(deadline):
                    answer = await self._receive(question, queue, on_frame)
                answered = True
                return answer
            except TimeoutError as error:
                raise NoAnswer(f"{question.subject} took longer than {deadline:g} s") from error
            except Refusal:
                answered = True
                raise
            finally:
                replies.close()
                if not answered:
                    with contextlib.suppress(nats.errors.Error):
                        await self._connection.send(f"cancel.{question.subject.split('.')[1]}", inbox.rsplit(".", 1)[-1].encode())

    async def _send(self, subject: str, payload: bytes, headers: dict[str, str], inbox: str) -> None:
        try:
            await self._connection.send(subject, payload, headers, reply=inbox)
        except nats.errors.MaxPayloadError as error:
            raise Permanent(f"{subject}: the question is larger than the bus carries ({len(payload)} bytes)") from error
        except nats.errors.Error as error:
            raise NoAnswer(f"{subject} cannot be sent: {error}") from error

    async def _receive(self, question: Question[AnswerT], queue: asyncio.Queue[Msg], on_frame: FrameHandler | None) -> AnswerT:
        got, owed = 0, 0
        while True:
            try:
                async with asyncio.timeout(self._silence_seconds):
                    message = await queue.get()
            except TimeoutError as error:
                raise NoAnswer(f"{question.subject}: no sign of life for {self._silence_seconds:g} s") from error
            headers = message.headers or {}
            if status_of(message) == "503":
                raise Away(f"nobody answers {question.subject}: is the service {question.subject.split('.')[1]} running?")
            match headers.get(_KIND):
                case "data":
                    got += 1
                    if int(headers["Number"]) != got:
                        raise NoAnswer(f"{question.subject}: a frame was lost")
                    if on_frame is not None:
                        await on_frame(message.data)
                    owed += 1
                    if owed == _CREDITS:  # together they are one write
                        for _ in range(owed):
                            await self._connection.send(headers[_CREDIT], b"1")
                        owed = 0
                case "answer":
                    if int(headers.get("Number", "0")) != got:
                        raise NoAnswer(f"{question.subject}: a frame was lost")
                    return _parse(question, message.data)
                case "refusal":
                    no = json.loads(message.data)
                    raise Refusal(no["code"], no["detail"], retryable=no["retryable"], after=no["after"])


def _parse(question: Question[AnswerT], payload: bytes) -> AnswerT:
    try:
        return question.answer.model_validate_json(payload)  # type: ignore[return-value]  # answer is the class of AnswerT
    except ValidationError as error:
        raise Permanent(f"{question.subject}: the answer does not match its schema: {error.error_count()} faults") from error


class Asker:
    """The other end of a question that is being answered."""

    def __init__(self, connection: Connection, message: Msg) -> None:
        self._connection = connection
        self._reply = message.reply
        self.subject = message.subject
        self._credit = asyncio.Semaphore(WINDOW)
        self._credits: Replies | None = None
        self._signs_due: asyncio.TimerHandle | None = None
        self._signs: asyncio.Task[None] | None = None
        self.sent = 0
        self.id = (message.headers or {}).get(_ID, "")

    async def frame(self, frame: Message) -> None:
        """Send one frame; waits while the asker has not taken the last ones."""
        if self._credits is None:
            self._credits = await self._connection.replies(self._on_credit)
        await self._credit.acquire()
        self.sent += 1
        headers = {_KIND: "data", "Number": str(self.sent), _CREDIT: self._credits.inbox}
        await self._connection.send(self._reply, frame.model_dump_json(exclude_none=True).encode(), headers)
        reach(self._connection.name, "mid_stream", self.subject)

    async def _on_credit(self, _: Msg) -> None:
        self._credit.release()

    async def answer(self, answer: Message) -> None:
        """Send the answer."""
        await self._connection.send(self._reply, answer.to_json(), {_KIND: "answer", "Number": str(self.sent)})

    async def refuse(self, refusal: Refusal) -> None:
        """Say no."""
        body = {"code": refusal.code, "detail": refusal.detail, "retryable": refusal.retryable, "after": refusal.after}
        await self._connection.send(self._reply, json.dumps(body).encode(), {_KIND: "refusal"})

    def open(self, seconds: float) -> None:
        """Give a sign of life every `seconds` until closed. Most answers come before the first: there is no task for them."""

        def begin() -> None:
            self._signs = asyncio.create_task(self._alive(seconds))

        self._signs_due = asyncio.get_running_loop().call_later(seconds, begin)

    async def _alive(self, seconds: float) -> None:
        while True:
            await self._connection.send(self._reply, b"", {_KIND: "alive"})
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """Take no more credit and give no more signs."""
        if self._signs_due is not None:
            self._signs_due.cancel()
        if self._signs is not None:
            self._signs.cancel()
        if self._credits is not None:
            self._credits.close()


@dataclass(frozen=True)
class AnswerSpec:
    """Who answers a question, and how many at a time; a question over that limit waits, with signs of life."""

    question: type[Question[Any]]
    handler: Callable[[Any, Asker], Awaitable[Message]]
    concurrency: int


class Answerer:
    """Serves one kind of question as a member of the service's queue group."""

    def __init__(self, connection: Connection, telemetry: Telemetry, spec: AnswerSpec, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._connection = connection
        self._alive_seconds = silence_seconds / _SIGNS
        self._telemetry = telemetry
        self.spec = spec
        self._slots = asyncio.Semaphore(spec.concurrency)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._subscription: Any = None

    async def start(self) -> None:
        """Begin to answer."""
        self._subscription = await self._connection.subscribe(self.spec.question.subject, self._on_question, queue=self._connection.name)

    async def stop(self) -> None:
        """Stop taking questions and cancel those in work; their askers notice the silence."""
        with contextlib.suppress(nats.errors.Error):
            await self._subscription.unsubscribe()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cancel(self, question_id: str) -> None:
        """The asker has gone away."""
        if task := self._running.get(question_id):
            task.cancel()

    async def _on_question(self, message: Msg) -> None:
        asker = Asker(self._connection, message)
        task = asyncio.create_task(self._answer(asker, message))
        self._running[asker.id] = task
        task.add_done_callback(lambda _: self._running.pop(asker.id, None))

    async def _answer(self, asker: Asker, message: Msg) -> None:
        asker.open(self._alive_seconds)
        try:
            with self._telemetry.span(
                f"answer {message.subject}", "server", parent=extract(message.headers), messaging__destination__name=message.subject
            ):
                async with self._slots:
                    outcome = await self._outcome(asker, message)
                if isinstance(outcome, Refusal):
                    await asker.refuse(outcome)
                else:
                    await asker.answer(outcome)
        except nats.errors.Error as error:
            log.warning("%s: the answer was not sent: %s", message.subject, error)
        finally:
            asker.close()

    async def _outcome(self, asker: Asker, message: Msg) -> Message | Refusal:
        reach(self._connection.name, "before_work", message.subject)
        try:
            answer = await self.spec.handler(self.spec.question.model_validate_json(message.data), asker)
            reach(self._connection.name, "after_effect", message.subject)
            return answer
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            return Refusal("bad_request", f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
        except Refusal as refusal:
            return refusal
        except Retryable as error:
            return Refusal("unavailable", describe(error), retryable=True, after=error.after)
        except Permanent as error:
            return Refusal("refused", describe(error))
        except Exception as error:
            log.exception("%s raised", message.subject)
            return Refusal("internal", describe(error), retryable=True)
