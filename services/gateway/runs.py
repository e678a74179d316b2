"""The use cases of runs: open one, decide about one, show one. Whatever is appended goes behind the fence of what was read."""

import asyncio
import time
from datetime import UTC, datetime

from libs.bus import Decide, Fenced, NoAnswer, NoJournal, Refusal
from libs.contracts.decisions import NotPossible
from libs.contracts.fold import RunState
from libs.contracts.ids import derived_id
from libs.contracts.inbound import SolveIssue
from libs.contracts.inference import DescribeModels
from libs.contracts.run import RunEvent, RunOpened
from libs.contracts.session import ReadRun
from services.gateway import domain
from services.gateway.clients import GatewayBus
from services.gateway.identity.caller import Caller
from services.gateway.problems import Problem, not_found, unavailable


class ModelCheck:
    """Whether a model is configured; a yes is remembered for a moment, so that a burst of issues asks once."""

    def __init__(self, bus: GatewayBus, *, timeout_seconds: float, cache_seconds: float) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds
        self._cache_seconds = cache_seconds
        self._good_until = 0.0
        self._names: tuple[str, ...] = ()
        self._lock = asyncio.Lock()

    async def require(self, model: str | None = None) -> None:
        """Raises Problem 503: no model is configured (with the variables to set), or the inference service does not answer;
        422: there is none of the name `model`.
        """
        async with self._lock:
            if time.monotonic() >= self._good_until:
                await self._look()
        if model is not None and model not in self._names:
            raise Problem(422, "unknown-model", f"the model {model!r} is not configured", "GET /v1/models lists yours; or leave it out")

    async def _look(self) -> None:
        """Ask which models there are."""
        try:
            found = await self._bus.ask(DescribeModels(), timeout_seconds=self._timeout_seconds)
        except NoAnswer as error:
            raise unavailable(f"the inference service does not answer, so nothing would work on the issue: {error}") from error
        if not found.models:
            raise Problem(503, "no-model", "no model is configured", found.advice or "set MODEL and restart, for example MODEL=openai/NAME")
        self._names = tuple(found_model.name for found_model in found.models)
        self._good_until = time.monotonic() + self._cache_seconds


async def open_run(bus: GatewayBus, models: ModelCheck, command: SolveIssue, key: str | None, who: Caller) -> tuple[str, bool]:
    """Open a run; returns its id, and whether it was there already under the same idempotency key.

    The id comes from the key, so the same request with the same key meets the same journal, also at the same time
    (draft-ietf-httpapi-idempotency-key-header). Raises Problem 422 when the key came with another request before.
    """
    domain.check_source(command.repo, who.tenant)
    now = datetime.now(UTC)
    run_id = derived_id("idempotency-key", who.tenant, who.user, key) if key is not None else domain.new_run_id(now)
    event = domain.opening(command, run_id, now, by=who.user, origin="http", tenant=who.tenant, user=who.user)
    if key is not None and await _opened_before(bus, event):
        return run_id, True
    await models.require()
    try:
        await bus.journal.append(event, follows=0)
    except Fenced:
        if await _opened_before(bus, event):
            return run_id, True
        raise
    return run_id, False


async def _opened_before(bus: GatewayBus, event: RunOpened) -> bool:
    opened = (await bus.journal.state(event.run_id)).opened
    if opened is None:
        return False
    if opened.request_digest != event.request_digest:
        raise Problem(
            422, "idempotency-key-reused", "this Idempotency-Key came with a different request before", "use a new key for a new request"
        )
    return True


async def append_decided(bus: GatewayBus, run_id: str, decide: Decide, who: Caller | None = None) -> tuple[int, RunEvent] | None:
    """Append what `decide` makes of the run's newest state (`libs.bus.deciding`); None when there was nothing to append.

    Raises Problem 404 for an unknown run or one that `who` (None: the server itself) may not see, 409 when the word means nothing now.
    """
    try:
        return await bus.decide(run_id, lambda state, history: decide(visible(state, who), history))
    except NoJournal:
        raise await gone_or_unknown(bus, run_id, who) from None
    except NotPossible as error:
        raise Problem(409, error.code, error.detail, error.advice) from error


def run_id_of(text: str) -> str:
    """A run id from a path. Raises Problem 404 when it cannot be one."""
    if not domain.RUN_ID.fullmatch(text):
        raise unknown_run(text)
    return text


def unknown_run(run_id: str) -> Problem:
    """There is no such run."""
    return not_found(f"there is no run {run_id[:64]}", "GET /api/runs lists the runs")


def visible(state: RunState, who: Caller | None) -> RunState:
    """`state` when `who` may see the run. Raises Problem 404, the same as for a run that is not there."""
    opened = state.opened
    if who is not None and not (who.sees(opened.tenant, opened.user) if opened else who.local and who.may("operator")):
        raise unknown_run(state.run_id)
    return state


async def read_state(bus: GatewayBus, run_id: str, who: Caller) -> RunState:
    """A run as its journal says; as the read model last saw it when the journal is gone. Raises Problem 404."""
    state = await bus.journal.state(run_id)
    return visible(state, who) if state.sequence else await _stored_state(bus, run_id, who)


async def _stored_state(bus: GatewayBus, run_id: str, who: Caller | None) -> RunState:
    try:
        state = await bus.ask(ReadRun(run_id=run_id))
    except Refusal as error:
        if error.code == "not_found":
            raise unknown_run(run_id) from error
        raise
    if state.opened is None:
        raise unknown_run(run_id)
    return visible(state, who)


async def gone_or_unknown(bus: GatewayBus, run_id: str, who: Caller | None) -> Problem:
    """Why there is no journal: the run is long over (410), or there never was one (404)."""
    try:
        await _stored_state(bus, run_id, who)
    except Problem as problem:
        return problem
    return Problem(410, "journal-gone", f"the journal of run {run_id} was deleted, only its last state is kept", "open a new run")
