"""Wires what goes out to GitHub into the service."""

from functools import cache, partial

from libs.bus import Asker, Delivery, Kv, Refusal, Retryable, Service, Step
from libs.contracts.github import Credential, DescribeForge, Integration, RepositoryCredential
from libs.contracts.run import RunCommitted, RunPublished
from libs.contracts.team import ChecksPassed, MergeApproved, RunMerged
from services.forge import merging, publishing
from services.forge.app import GitHubApp
from services.forge.describe import describe
from services.forge.errors import GitHubError, NotConfigured, NotInstalled
from services.forge.publishing import Desk
from services.forge.repository import CONTENTS
from services.forge.rows import Rows
from services.forge.saying import Comments
from services.forge.settings import ForgeSettings
from services.forge.status import Teller

RETRIES = 15  # below the deliveries that the consumers allow


def register(service: Service, settings: ForgeSettings, app: GitHubApp) -> None:
    """Publish, finish and merge; tell on GitHub; hand out credentials for imports; describe the set-up."""

    @cache
    def bucket() -> Kv:
        return Kv(service.bus.connection, "GITHUB")

    @cache
    def comments() -> Comments:
        return Comments(bucket())

    @cache
    def teller() -> Teller:
        return Teller(desk, service.bus, comments())

    desk = Desk(app, lambda: Rows(bucket()))
    service.step("publish", on=(RunCommitted,), retries=RETRIES, claim=False, concurrency=32)(partial(publishing.publish, desk))
    service.step("finish", on=(RunPublished,), retries=RETRIES, claim=False, concurrency=32)(publishing.finish)

    @service.step("merge", on=(MergeApproved, ChecksPassed), retries=RETRIES, claim=False)
    async def merge(event: MergeApproved | ChecksPassed, step: Step) -> RunMerged | None:
        return await merging.merge(desk, comments(), event, step)

    @service.consume("status", concurrency=16)
    async def tell(delivery: Delivery) -> None:
        await teller().on_event(delivery)

    @service.consume("replies", concurrency=8)
    async def quote(delivery: Delivery) -> None:
        await teller().on_reply(delivery)

    _answers(service, settings, app)


def _answers(service: Service, settings: ForgeSettings, app: GitHubApp) -> None:
    @service.answer(RepositoryCredential)
    async def lend(question: RepositoryCredential, _: Asker) -> Credential:
        return await lent(app, question.url)

    @service.answer(DescribeForge)
    async def shown(_: DescribeForge, __: Asker) -> Integration:
        return await describe(settings, app)

    async def let_go() -> None:
        app.close()

    service.on_close(let_go)


async def lent(app: GitHubApp, url: str) -> Credential:
    """A token that may read one repository. Raises Refusal `not_installed` for any other address, `unreachable` when GitHub is away."""
    name = app.full_name_of(url) if app.settings.configured else None
    if name is None:
        raise Refusal("not_installed", "the GitHub App has nothing to do with this address")
    try:
        there = app.repository(await app.installation_of(name), name)
        token = await there.token(CONTENTS)
    except NotInstalled as error:
        raise Refusal("not_installed", str(error)) from None
    except (GitHubError, NotConfigured) as error:
        raise Refusal("not_configured", str(error)) from None
    except Retryable as error:
        raise Refusal("unreachable", str(error), retryable=True, after=error.after) from None
    return Credential(username="x-access-token", token=token.value, expires_at=token.expires_at)
