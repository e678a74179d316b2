"""Wires what comes in from GitHub into the service."""

from functools import cache, partial

from libs.agent.blobs import get_blob
from libs.bus import Asker, Delivery, Kv, Service
from libs.contracts.github import GitHubDelivery, ReceiveWebhook, WebhookAnswer
from services.forge import intake, webhooks
from services.forge.app import GitHubApp
from services.forge.clients import GitHub
from services.forge.hearing import Kit
from services.forge.redelivery import keep_asking
from services.forge.rows import Rows
from services.forge.saying import Comments
from services.forge.settings import ForgeSettings


def register(service: Service, settings: ForgeSettings, app: GitHubApp) -> None:
    """Answer webhooks, handle what is kept of them, and ask for what never came through."""
    github = GitHub(app)

    async def keep(fact: GitHubDelivery) -> bool:
        return await service.bus.publish_once("HOOKS", f"hook.github.{fact.delivery}", fact)

    @service.answer(ReceiveWebhook)
    async def receive(question: ReceiveWebhook, _: Asker) -> WebhookAnswer:
        if not settings.configured:
            return WebhookAnswer(status=503, detail="no GitHub App is set up here: set AGENT_CODER_GITHUB_APP_ID, see docs/github.md")
        return await webhooks.receive(question, settings.webhook_secrets, partial(get_blob, service.bus.ask), keep)

    @cache
    def kit() -> Kit:
        bucket = Kv(service.bus.connection, "GITHUB")
        return Kit(service.bus, Rows(bucket), Comments(bucket), github, settings.github_label)

    @service.consume("hooks", concurrency=16)
    async def take_in(delivery: Delivery) -> None:
        await intake.take_in(kit(), delivery)

    if settings.configured:
        service.background(partial(keep_asking, github, settings.github_redelivery_seconds))
