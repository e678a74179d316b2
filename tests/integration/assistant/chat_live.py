"""The gateway's side of a chat on a real broker, and services that answer from memory."""

import asyncio
import json
from functools import partial

from libs.bus import Fenced, Service
from libs.bus.journal import Journal
from libs.bus.questions import Questioner
from libs.bus.tail import Tail
from libs.contracts import turn as events
from libs.contracts.inference import TextDelta
from libs.contracts.registry import KINDS
from libs.contracts.turn_fold import fold_turn
from libs.telemetry import Telemetry
from services.assistant.__main__ import build
from services.assistant.agents import ASSISTANT
from services.assistant.settings import AssistantSettings
from services.assistant.skills import Library
from tests.unit.assistant.chat_world import opened, user


class Chat:
    """The gateway's side: it opens turns, answers calls, cancels, and watches."""

    def __init__(self, connection, world, settings, home):
        self.connection, self.world, self.settings, self.home = connection, world, settings, home
        self.turns = Journal(connection, KINDS["turn"])
        self.runs = Journal(connection)
        self.questioner = Questioner(connection, Telemetry("gateway"))

    def assistant(self, agent=ASSISTANT, **settings):
        return build(AssistantSettings(**settings), Library(self.home / "skills"), {agent.name: agent}).running(self.settings)

    async def send(self, text, turn_id="t1", **fields):
        self.world.put(user(text, ident=f"m-{turn_id}"))
        await self.turns.append(opened(turn_id, f"m-{turn_id}", **fields), follows=0)

    async def state(self, turn_id="t1"):
        history, _ = await self.turns.read_to_end(turn_id)
        return fold_turn(history, turn_id)

    async def until(self, turn_id, *statuses):
        async with asyncio.timeout(60):
            while (state := await self.state(turn_id)).status not in statuses:
                await asyncio.sleep(0.02)
            return state

    async def append(self, turn_id, event):
        while True:
            _, last = await self.turns.read_to_end(turn_id)
            try:
                return await self.turns.append(event, follows=last)
            except Fenced:
                continue

    async def word(self, turn_id, call_id, **fields):
        state = await self.state(turn_id)
        answered = events.TurnAnswered(turn_id=turn_id, step="turn", of=state.admitted_sequence, call_id=call_id, by="local", **fields)
        return await self.append(turn_id, answered)

    async def chunks(self, turn_id="t1", last="finish"):
        """Each chunk with its number and its delivery's token."""
        found = []
        async with asyncio.timeout(60):
            async for message in Tail(self.connection, "LIVE", f"live.{turn_id}.part").messages():
                frame = json.loads(message.payload)
                found += [{"n": n, "token": frame["token"], "chunk": chunk} for n, chunk in enumerate(frame["chunks"], frame["n"])]
                if found[-1]["chunk"]["type"] == last:
                    break
        return found


def serving(name, questions, ask):
    async def answer(question, asker):
        async def on_frame(payload):
            await asker.frame(TextDelta.model_validate_json(payload))

        return await ask(question, on_frame)

    service = Service(name)
    for question in questions:
        service.answer(question)(partial(answer))
    return service
