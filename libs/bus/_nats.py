"""nats-py without aiohttp. It takes that for WebSockets where it is installed; they are not spoken here, and it is a tenth of a start."""

import sys
from importlib import import_module

_ABSENT = "aiohttp"
if _ABSENT not in sys.modules:
    sys.modules[_ABSENT] = None  # type: ignore[assignment]  # an import of it finds nothing
    try:
        import_module("nats.aio.client")
    finally:
        del sys.modules[_ABSENT]
