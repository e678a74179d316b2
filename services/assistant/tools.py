"""The assistant's own tools: runs, context blocks, search, skills, memory and the time. Whose data is asked for comes from the turn."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError

from libs.agent import Arguments, Tool, ToolFailed, wrap
from libs.agent.skills import Skill, text_of
from libs.bus import Fenced
from libs.bus.journal import Journal
from libs.contracts.conversation import SearchContext, SearchMessages, SearchResult, SetContext
from libs.contracts.envelope import Ask, JsonObject
from libs.contracts.fold import RunState
from libs.contracts.ids import derived_id
from libs.contracts.memory import Recall, Remember
from libs.contracts.run import ChatThread, Issue, Policy, RunOpened
from libs.contracts.sources import may_name
from libs.contracts.turn import TurnOpened

T = TypeVar("T")
_BLOCKS = ("set_context", "search_context", "search_sessions", "load_skill", "unload_skill")
OWN_TOOLS = ("solve_issue", "run_status", *_BLOCKS, "remember", "recall", "current_time")
WITH_REPOSITORY = ("read", "ls", "glob", "grep", "write", "edit", "patch", "exec", "think")
NOT_ATTACHED = "Only repositories with an http or https URL can be used here."


class SolveIssueArguments(Arguments):
    title: str = Field(min_length=1, max_length=1000)
    body: str = Field(default="", max_length=60_000, description="all that is known of the issue, in the person's words")
    repo: str | None = Field(default=None, max_length=4096, description="URL or name of the repository; the attached one when left out")
    base: str | None = Field(default=None, max_length=255, description="the branch to start from")


class RunStatusArguments(Arguments):
    run_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")


class SetContextArguments(Arguments):
    label: str = Field(max_length=64)
    content: str = Field(max_length=64_000)
    action: Literal["replace", "append"] = "replace"
    key: str | None = Field(default=None, max_length=200, description="of the entry, in a block that is searched")


class SearchContextArguments(Arguments):
    label: str = Field(max_length=64)
    query: str = Field(min_length=1, max_length=500)


class SearchSessionsArguments(Arguments):
    query: str = Field(min_length=1, max_length=500)
    only_this: bool = Field(default=False, description="search this conversation only")


class SkillArguments(Arguments):
    name: str = Field(min_length=1, max_length=64)


class RememberArguments(Arguments):
    content: str = Field(min_length=1, max_length=4000, description="one fact, understandable by itself")
    kind: Literal["fact", "event", "instruction", "task"] = "fact"
    topic: str | None = Field(default=None, max_length=200, description="exact key; a newer fact of a topic supersedes the older one")
    about_project: bool = Field(default=False, description="keep it for the attached repository only")


class RecallArguments(Arguments):
    query: str = Field(min_length=1, max_length=4000)


class CurrentTimeArguments(Arguments):
    zone: str = Field(default="UTC", max_length=64, description="an IANA time zone, such as Asia/Shanghai")


class OwnTools:
    """What stands behind the tools; one object a turn."""

    def __init__(self, ask: Ask, runs: Journal, opened: TurnOpened, repository: str | None, skills: Mapping[str, Skill]) -> None:
        self._ask, self._runs, self._opened = ask, runs, opened
        self._repository, self._skills = repository, skills
        self._owner: JsonObject = {"tenant": opened.tenant, "user": opened.user}
        self._session: JsonObject = {**self._owner, "session_id": opened.session_id}

    def all(self) -> tuple[Tool[Any], ...]:
        """The tools of every agent."""
        return (
            Tool("solve_issue", "Start a run that solves an issue.", SolveIssueArguments, self.solve_issue, effects="repeatable"),
            Tool("run_status", "How a run goes.", RunStatusArguments, self.run_status),
            Tool("set_context", "Write a block of your context.", SetContextArguments, self.set_context, effects="once"),
            Tool("search_context", "Search the entries of a block.", SearchContextArguments, self.search_context),
            Tool("search_sessions", "Search the person's conversations.", SearchSessionsArguments, self.search_sessions),
            Tool("load_skill", "Read a skill.", SkillArguments, self.load_skill, rest="work with the part you have"),
            Tool("unload_skill", "Drop the text of a skill from the conversation.", SkillArguments, self.unload_skill),
            Tool(
                "remember", "Keep a fact about the person for later conversations.", RememberArguments, self.remember, effects="repeatable"
            ),
            Tool("recall", "Look up what is remembered of the person.", RecallArguments, self.recall),
            Tool("current_time", "The date and time.", CurrentTimeArguments, current_time),
        )

    async def solve_issue(self, arguments: SolveIssueArguments, call_id: str) -> str:
        """Open the run of this call; opened again, it is the same run."""
        repo = arguments.repo or self._repository
        if not repo:
            raise ToolFailed("No repository is attached to this conversation: give its URL or name as repo, or ask the person for it.")
        if not may_name(self._opened.tenant, repo):
            raise ToolFailed(NOT_ATTACHED)
        run_id = derived_id("chat", call_id)
        issue = Issue(id=f"chat-{run_id[:8].lower()}", title=arguments.title, body=arguments.body)
        event = RunOpened(
            run_id=run_id,
            issue=issue,
            repo=repo,
            base=arguments.base,
            policy=Policy(model=self._opened.model),
            requested_by=self._opened.user,
            tenant=self._opened.tenant,
            user=self._opened.user,
            origin="chat",
            chat=self._thread(),
            opened_at=datetime.now(UTC),
        )
        try:
            await self._runs.append(event, follows=0)
        except Fenced:
            return f"Run {run_id} was opened before."
        return f"Run {run_id} is opened. It takes minutes; this conversation is told when it has ended."

    def _thread(self) -> ChatThread:
        opened = self._opened
        return ChatThread(session_id=opened.session_id, agent=opened.agent, model=opened.model, plan=opened.plan)

    async def run_status(self, arguments: RunStatusArguments, call_id: str) -> str:
        """The state of a run of this person."""
        state = await self._runs.state(arguments.run_id)
        opened = state.opened
        if opened is None or not _sees(self._opened, opened):
            raise ToolFailed(f"There is no run {arguments.run_id}.")
        return shown_run(state)

    async def set_context(self, arguments: SetContextArguments, call_id: str) -> str:
        """Replace, append, or keep an entry; how full the block is then."""
        block = await self._ask(question(SetContext, **self._session, **arguments.model_dump()))
        full = f" [{100 * block.tokens // block.max_tokens}% — {block.tokens}/{block.max_tokens} tokens]" if block.max_tokens else ""
        return f"{block.label} is written.{full}"

    async def search_context(self, arguments: SearchContextArguments, call_id: str) -> str:
        """Entries that fit."""
        return _hits(await self._ask(question(SearchContext, **self._session, **arguments.model_dump())), "context")

    async def search_sessions(self, arguments: SearchSessionsArguments, call_id: str) -> str:
        """Messages that fit, in this or in all conversations of the person."""
        session = self._opened.session_id if arguments.only_this else None
        found = await self._ask(question(SearchMessages, **self._owner, query=arguments.query, session_id=session))
        return _hits(found, "earlier conversations")

    async def load_skill(self, arguments: SkillArguments, call_id: str) -> str:
        """The body of a skill."""
        return text_of(self._skill(arguments.name))

    async def unload_skill(self, arguments: SkillArguments, call_id: str) -> str:
        """Later prompts no longer hold the skill's text."""
        return f"The skill {self._skill(arguments.name).name} is dropped."

    async def remember(self, arguments: RememberArguments, call_id: str) -> str:
        """Keep one item."""
        fields = arguments.model_dump(exclude={"about_project"})
        project = (self._repository or "")[:200] if arguments.about_project else ""
        item = await self._ask(question(Remember, **self._session, **fields, project=project))
        return f"Remembered as {item.id}."

    async def recall(self, arguments: RecallArguments, call_id: str) -> str:
        """What is known that bears on the query."""
        return await recalled(self._ask, self._owner, arguments.query, self._repository) or "[nothing is remembered about this]"

    def _skill(self, name: str) -> Skill:
        if name not in self._skills:
            raise ToolFailed(f"There is no skill {name!r}. The skills are: {', '.join(self._skills) or 'none'}.")
        return self._skills[name]


def shown_run(state: RunState) -> str:
    """How a run stands, wrapped as data."""
    lines = [f"Run {state.run_id}: {state.status}, attempt {state.attempt}."]
    if state.opened is not None:
        lines.append(f"Issue: {state.opened.issue.title}")
    if state.committed is not None:
        lines.append(f"Result: branch {state.committed.branch}, commit {state.committed.sha}")
    if state.pending is not None:
        lines.append(f"It waits for a person: {state.pending.question}")
    lines.append(state.why)
    return wrap("\n".join(line for line in lines if line), f"run {state.run_id}")


async def recalled(ask: Ask, owner: JsonObject, query: str, repository: str | None) -> str:
    """What is remembered of a user, and of the user in the project, that bears on `query`, wrapped as data; empty when nothing does."""
    texts = []
    for project in dict.fromkeys(("", (repository or "")[:200])):
        found = await ask(question(Recall, **owner, query=query[:4000], project=project))
        if found.text:
            texts.append(found.text)
    return wrap("\n".join(texts), "memory") if texts else ""


async def current_time(arguments: CurrentTimeArguments, call_id: str) -> str:
    """ISO 8601 with the weekday."""
    try:
        zone = ZoneInfo(arguments.zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ToolFailed(f"There is no time zone {arguments.zone!r}; use an IANA name such as Europe/Berlin.") from error
    now = datetime.now(zone)
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {arguments.zone})"


def _sees(asker: TurnOpened, run: RunOpened) -> bool:
    """A person sees their own runs; the owner of the installation all of its own tenant."""
    owner = (asker.tenant, asker.user) == ("local", "local")
    return asker.tenant == run.tenant and (owner or asker.user == run.user)


def question(made: Callable[..., T], /, **fields: Any) -> T:
    """A question out of a model's words. Raises ToolFailed with what does not fit."""
    try:
        return made(**fields)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise ToolFailed(faults) from None


def _hits(found: SearchResult, source: str) -> str:
    lines = [
        f"[{hit.session_name or hit.session_id} · {hit.role}] {hit.excerpt}".replace("\u2068", "").replace("\u2069", "")
        for hit in found.hits
    ]
    return wrap("\n".join(lines), source) if lines else "[nothing found]"
