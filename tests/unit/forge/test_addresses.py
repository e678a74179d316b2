"""Which addresses belong to the GitHub that is set up."""

import pytest

from services.forge.app import GitHubApp
from services.forge.settings import ForgeSettings

PUBLIC, ENTERPRISE, LOCAL = "https://api.github.com", "https://ghe.example/api/v3", "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("base", "url", "name"),
    [
        (PUBLIC, "https://github.com/octo/app.git", "octo/app"),
        (PUBLIC, "https://github.com/octo/app", "octo/app"),
        (PUBLIC, "https://x:y@GitHub.com/octo/my.app.git/", "octo/my.app"),
        (PUBLIC, "git@github.com:octo/app.git", "octo/app"),
        (PUBLIC, "ssh://git@github.com/octo/app.git", "octo/app"),
        (ENTERPRISE, "https://ghe.example/octo/app.git", "octo/app"),
        (LOCAL, "http://127.0.0.1:9000/octo/app.git", "octo/app"),
        (PUBLIC, "http://github.com/octo/app.git", None),
        (PUBLIC, "https://github.com.example/octo/app.git", None),
        (PUBLIC, "https://githubXcom/octo/app.git", None),
        (PUBLIC, "https://github.com/octo", None),
        (PUBLIC, "https://github.com/octo/app/tree/main", None),
        (PUBLIC, "https://gitlab.example/github.com/octo/app", None),
        (ENTERPRISE, "https://github.com/octo/app.git", None),
        (LOCAL, "http://127.0.0.1:9001/octo/app.git", None),
        (PUBLIC, "/srv/app", None),
        (PUBLIC, "app", None),
    ],
)
def test_an_address_is_on_this_github_or_not(base: str, url: str, name: str | None):
    assert GitHubApp(ForgeSettings(github_base_url=base)).full_name_of(url) == name
