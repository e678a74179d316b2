"""Where GitHub and mail providers push to. Whoever holds the secret checks it: the forge, the mailer."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from libs.contracts.github import ReceiveWebhook
from libs.contracts.mail import ReceiveMail
from services.gateway.context import Here
from services.gateway.doors import answered, require_media_type
from services.gateway.models import Acknowledged
from services.gateway.problems import documented

router = APIRouter(tags=["webhooks"], responses=documented(408, 415, 429))
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_MAIL = ("message/rfc822", "text/plain", "application/octet-stream")
_HEADERS = ("x-github-", "x-hub-signature")
Address = Annotated[str, Query(max_length=320, description="of the SMTP envelope, when the provider knows it")]


def _body(*media_types: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": dict.fromkeys(media_types, _BINARY)}}


@router.post(
    "/webhooks/github",
    status_code=202,
    response_model=Acknowledged,
    summary="GitHub delivers an event of the App",
    openapi_extra=_body(_JSON, _FORM),
)
async def github_webhook(request: Request, here: Here) -> JSONResponse:
    """Signed with the App's webhook secret (`X-Hub-Signature-256`); answered when it is stored, and the same delivery counts once."""
    require_media_type(request, _JSON, _FORM)
    headers = {k: v for k, v in request.headers.items() if k.startswith(_HEADERS) or k == "content-type"}
    async with here.doors.read(request) as body:
        with here.bus.span("POST /webhooks/github", {}):
            return answered(await here.bus.ask(ReceiveWebhook(headers=headers, body=body.body, encoding=body.encoding, blob=body.blob)))


@router.post(
    "/webhooks/mail", status_code=202, response_model=Acknowledged, summary="A provider pushes a raw mail", openapi_extra=_body(*_MAIL)
)
async def mail_webhook(request: Request, here: Here, sender: Address = "", recipient: Address = "") -> JSONResponse:
    """One message as in RFC 5322, with the mail's webhook secret as a bearer token or as the password of basic authentication."""
    require_media_type(request, *_MAIL)
    authorization = request.headers.get("authorization", "")[:1000]
    async with here.doors.read(request) as body:
        question = ReceiveMail(
            authorization=authorization, sender=sender, recipient=recipient, body=body.body, encoding=body.encoding, blob=body.blob
        )
        with here.bus.span("POST /webhooks/mail", {}):
            return answered(await here.bus.ask(question))
