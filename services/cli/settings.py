"""What the command line takes from its environment: AGENT_CODER_HOME, AGENT_CODER_URL, AGENT_CODER_TOKEN."""

from pydantic import Field, SecretStr

from libs.settings import HomeSettings


class CliSettings(HomeSettings):
    """Where the server is and what opens it; what is absent is read from the home folder."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    token: SecretStr | None = None
