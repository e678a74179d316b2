"""Whether GitHub and mail are set up, and whether each part of it works."""

import asyncio

from fastapi import APIRouter

from libs.bus import NoAnswer
from libs.contracts.github import DescribeForge, Integration, IntegrationCheck
from libs.contracts.mail import DescribeMailer
from services.gateway.context import Gateway, Here
from services.gateway.identity.caller import LocalOperator
from services.gateway.models import Integrations
from services.gateway.problems import documented

router = APIRouter(tags=["integrations"])


@router.get("/api/integrations", responses=documented(403), summary="The set-up of GitHub and mail")
async def integrations(who: LocalOperator, here: Here) -> Integrations:
    """Each check with what to do when it fails; `configured` false means that nobody set it up, which is no fault."""
    github, mail = await asyncio.gather(_ask(here, DescribeForge(), "forge"), _ask(here, DescribeMailer(), "mailer"))
    return Integrations(github=github, mail=mail)


async def _ask(here: Gateway, question: DescribeForge | DescribeMailer, service: str) -> Integration:
    try:
        return await here.bus.ask(question)
    except NoAnswer as error:
        silent = IntegrationCheck(name=f"{service} answers", ok=False, detail=str(error), fix=f"see the log of {service}, then restart it")
        return Integration(configured=False, summary=f"the {service} does not answer", checks=(silent,))
