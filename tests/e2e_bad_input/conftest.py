"""One server for each module of hostile cases; the module's `CASES` are all at work from the start."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.testkit.product import FAST, product
from tests.e2e_bad_input.hostile import Hostile, assert_in_order, script


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hostile]:
    """A server with every case of the module opened; in the end it must still solve a good issue."""
    place = tmp_path_factory.mktemp("hostile")
    cases = getattr(request.module, "CASES", {})
    environment = {**FAST, **getattr(request.module, "ENVIRONMENT", {})}
    async with product(place / "home", f"scripted:{script(place, cases)}", environment=environment) as running:
        hostile = Hostile(running, place)
        for name, case in cases.items():
            await hostile.open(name, case)
        yield hostile
        await assert_in_order(running, place)
