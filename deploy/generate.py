"""Writes `proto/` from the contracts, the bus and the gateway (`make proto`); with `--check` it compares and writes nothing."""

import sys
from pathlib import Path

from libs.bus.asyncapi import asyncapi
from libs.contracts.generate.files import check, text, write
from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings

PROTO = Path(__file__).resolve().parent.parent / "proto"


def extra() -> dict[str, str]:
    """The documents that are more than contracts, by path in `proto/`."""
    app = create_app(bus=None, settings=GatewaySettings(), token="")  # described only: no request reaches the bus
    return {"asyncapi.json": text(asyncapi()), "openapi.json": text(app.openapi())}


def main(arguments: list[str]) -> int:
    """Write or check; faults go to stderr and give the exit code 1."""
    faults = check(PROTO, extra()) if "--check" in arguments else write(PROTO, extra())
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
