"""The consumer of kept webhooks: each fact goes to the handler of its event, and is done, put back, or buried with the reason."""

import logging
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from libs.bus import Backoff, Delivery, Permanent, Retryable
from libs.bus.dead_letters import ErrorKind
from libs.bus.errors import GiveUp, Retry, decide
from libs.contracts.github import GitHubDelivery
from libs.telemetry import extract
from services.forge.clients import Place
from services.forge.comments import on_comment
from services.forge.domain import heard
from services.forge.errors import GitHubError, NotConfigured
from services.forge.hearing import Hearing, Kit
from services.forge.on_pulls import on_check, on_pull, on_review
from services.forge.opening import on_dispatch, on_issue

log = logging.getLogger(__name__)
RETRIES = 15
_UNSET_SECONDS = 60.0
_BACKOFF = Backoff(1.0, 300.0)

HANDLERS: dict[str, Callable[[Hearing], Awaitable[None]]] = {
    "issues": on_issue,
    "issue_comment": on_comment,
    "repository_dispatch": on_dispatch,
    "pull_request": on_pull,
    "pull_request_review": on_review,
    "pull_request_review_comment": on_review,
    "check_run": on_check,
    "check_suite": on_check,
    "workflow_run": on_check,
    "status": on_check,
}


async def take_in(kit: Kit, delivery: Delivery) -> None:
    """Handle one kept webhook and settle its message."""
    try:
        fact = GitHubDelivery.model_validate_json(delivery.payload)
    except ValidationError as error:
        await _bury(kit, delivery, Permanent(f"it does not match its schema: {error.error_count()} faults"), "schema")
        return
    try:
        with kit.bus.telemetry.span(f"process github {fact.event}", "consumer", parent=extract(delivery.headers)):
            await _handle(kit, fact, delivery)
    except GitHubError as error:
        await _bury(kit, delivery, error, "permanent")
    except Exception as error:  # noqa: BLE001 - the one place that decides about every error of a handler
        await _failed(kit, delivery, error)
    else:
        await delivery.ack()


async def _handle(kit: Kit, fact: GitHubDelivery, delivery: Delivery) -> None:
    handler = HANDLERS.get(fact.event)
    if handler is None:  # something about an installation or a repository: what tokens were minted for may be no more
        if fact.installation_id is not None:
            kit.github.forget(fact.installation_id)
        return
    slug = await kit.github.slug()
    if not heard(fact, f"{slug}[bot]"):
        return
    place = await _place(kit, fact)
    if place is not None:
        await handler(Hearing(kit, fact, place, slug, delivery.headers, delivery.number))


async def _place(kit: Kit, fact: GitHubDelivery) -> Place | None:
    """Where it happened; a webhook of a repository itself names no installation."""
    installation = fact.installation_id or await kit.github.installation_of(fact.repository)
    if installation is None or fact.repository_id is None:
        log.info("delivery %s of %s comes from no installation of the App", fact.delivery, fact.repository)
        return None
    return Place(installation, fact.repository, fact.repository_id)


async def _failed(kit: Kit, delivery: Delivery, error: Exception) -> None:
    if isinstance(error, NotConfigured):
        error = Retryable(str(error), after=_UNSET_SECONDS)
    match decide(error, delivery.number, RETRIES, _BACKOFF, delivery.sequence):
        case Retry(delay):
            bug = error if type(error).__module__ != "libs.bus.errors" else None
            log.warning("%s is put back for %.1f s: %s", delivery.subject, delay, error, exc_info=bug)
            await delivery.nak(delay)
        case GiveUp() as end:
            await _bury(kit, delivery, error, "exhausted" if end.dead else "permanent")
        case _:
            await _bury(kit, delivery, error, "permanent")


async def _bury(kit: Kit, delivery: Delivery, error: Exception, kind: ErrorKind) -> None:
    """Keep it with its reason before it is taken off its stream."""
    log.warning("%s is given up: %s", delivery.subject, error)
    await kit.bus.dead_letters.bury(delivery, str(error), kind, "github")
    await delivery.ack()
