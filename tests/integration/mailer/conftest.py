"""What the tests of the mailer share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.mailer.post_office import Post, post_office


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    async with post_office(tmp_path) as office:
        yield office
