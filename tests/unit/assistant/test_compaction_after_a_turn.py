"""When the store is asked what to summarise after a turn."""

import pytest

from libs.contracts.turn import TurnFinished
from libs.contracts.turn_fold import TurnState
from services.assistant.after import after_turn
from services.assistant.models import KnownModels
from services.assistant.settings import AssistantSettings
from tests.unit.assistant.chat_world import World, opened, says

SETTINGS = AssistantSettings(memory=False, compact_over_tokens=4000)


async def asked_after(state):
    world, asked = World(says("")), []

    async def ask(question, on_frame=None, timeout_seconds=None):
        asked.append(type(question).__name__)
        return await world.ask(question, on_frame, timeout_seconds)

    await after_turn(SETTINGS, None, ask, state, KnownModels())
    return asked


@pytest.mark.parametrize(("tokens", "asked"), [(0, True), (1, False), (4000, False), (4001, True)])
async def test_a_conversation_that_is_known_to_be_short_is_not_asked_about(tokens, asked):
    finished = TurnFinished(turn_id="t1", message_id="answer-t1", context_tokens=tokens)
    found = await asked_after(TurnState(turn_id="t1", status="finished", opened=opened(), finished=finished))
    assert found == (["DescribeModels", "PlanCompaction"] if asked else ["DescribeModels"])


async def test_a_turn_that_failed_does_not_say_how_long_its_conversation_is():
    found = await asked_after(TurnState(turn_id="t1", status="failed", opened=opened()))
    assert found == ["DescribeModels", "PlanCompaction"]
