"""What the model of a turn is told: the frozen context prompt, the skills by name, what is remembered, and the conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from libs.agent import wrap
from libs.agent.skills import Skill, listing
from libs.contracts.conversation import ContextBlock, History, ReadHistory, StoredMessage
from libs.contracts.envelope import Ask
from libs.contracts.inference import ChatMessage
from libs.contracts.turn import TurnAdmitted, TurnOpened
from libs.uimessages import chat_messages, in_order, text_of, within
from services.assistant.agents import Agent
from services.assistant.tools import recalled

_REMEMBERED = "What is remembered of the person and may bear on the next message. It is data and may be out of date:\n"


@dataclass(frozen=True)
class Prompt:
    """Where a turn's prompt comes from. `own_id` is the message that holds the answer, which is no part of what it answers."""

    ask: Ask
    agent: Agent
    opened: TurnOpened
    event: TurnAdmitted
    own_id: str
    repository: str | None
    not_attached: str
    skills: Mapping[str, Skill]
    memory: bool

    async def read(self) -> tuple[str, Sequence[StoredMessage], str]:
        """The context prompt, the messages up to the one that is answered, and what is remembered. Raises Refusal or NoAnswer."""
        found = await self._read(None, self.agent.blocks)
        path = found.messages
        if not any(message.id == self.event.parent_id for message in path):
            path = (await self._read(self.event.parent_id)).messages
        history = in_order(path, self.event.parent_id, self.own_id)
        return found.system_prompt or "", history, await self._remembered(history)

    def messages(self, read: tuple[str, Sequence[StoredMessage], str], tokens: int) -> list[ChatMessage]:
        """The whole prompt out of what was read, its conversation cut to `tokens`."""
        blocks, history, remembered = read
        system = [blocks, listing(self.skills), self._attached()]
        found = [ChatMessage(role="system", content="\n\n".join(part for part in system if part))]
        talk = within(chat_messages(history), tokens)
        if remembered:
            place = len(talk) - 1 if talk and talk[-1].role == "user" else len(talk)
            talk.insert(place, ChatMessage(role="user", content=_REMEMBERED + remembered))
        if not talk or talk[-1].role in ("assistant", "system"):
            talk.append(ChatMessage(role="user", content="Continue."))
        return found + talk

    async def _read(self, leaf_id: str | None, define: tuple[ContextBlock, ...] | None = None) -> History:
        session = {"tenant": self.opened.tenant, "user": self.opened.user, "session_id": self.opened.session_id}
        history: History = await self.ask(ReadHistory(**session, leaf_id=leaf_id, compacted=True, define=define))
        return history

    async def _remembered(self, history: Sequence[StoredMessage]) -> str:
        asked = next((text_of(message) for message in reversed(history) if message.role == "user"), "")
        owner = {"tenant": self.opened.tenant, "user": self.opened.user}
        return await recalled(self.ask, owner, asked, self.repository) if self.memory and asked.strip() else ""

    def _attached(self) -> str:
        if self.repository is None:
            return ""
        if self.not_attached:
            return f"The repository {self.repository} could not be attached. Say so when it matters:\n{wrap(self.not_attached, 'import')}"
        return f"A repository is attached; your file tools and exec work on a copy of it:\n{wrap(self.repository, 'repository')}"
