"""The composition root of the gateway."""

import uvloop

from libs.bus import Delivery, Service
from libs.settings import BusSettings
from services.gateway import handlers
from services.gateway.app import create_app
from services.gateway.clients import NatsBus
from services.gateway.identity.guard import Verifier
from services.gateway.identity.owner import owner_token, signing_key
from services.gateway.server import serve
from services.gateway.settings import GatewaySettings


def build() -> Service:
    """The service with its HTTP server and its consumers; makes the owner's token on first start."""
    settings = GatewaySettings()
    service = Service("gateway")
    bus = NatsBus(lambda: service.bus)
    token = owner_token(settings.home)
    key = settings.signing_key.get_secret_value().encode() if settings.signing_key else signing_key(settings.home)
    verifier = _verifier(settings)

    async def http() -> None:
        await serve(create_app(bus, settings, token, key, verifier), settings)

    service.background(http)
    _consume(service, bus)
    return service


def _verifier(settings: GatewaySettings) -> Verifier | None:
    """The check of bearer JWTs; the library for it is loaded only where an issuer is set."""
    if settings.jwt_issuer is None:
        return None
    from services.gateway.identity.jwks import verifier_of

    return verifier_of(settings)


def _consume(service: Service, bus: NatsBus) -> None:
    @service.consume("inbox")
    async def take_in(delivery: Delivery) -> None:
        await handlers.take_in(bus, delivery)

    @service.consume("approvals")
    async def expire(delivery: Delivery) -> None:
        await handlers.expire(bus, delivery)

    @service.consume("advisories", concurrency=2)
    async def mourn(delivery: Delivery) -> None:
        await handlers.mourn(bus, delivery)


def main() -> None:
    """Run until told to stop."""
    uvloop.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
