"""Every fault of the variables of all services, under the names that a person set them by."""

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from libs.settings import BusSettings
from services.artifact.settings import ArtifactSettings
from services.assistant.settings import AssistantSettings
from services.editor.settings import EditorSettings
from services.forge.settings import ForgeSettings
from services.gateway.settings import GatewaySettings
from services.mailer.settings import MailerSettings
from services.planner.settings import PlannerSettings
from services.sandbox.settings import SandboxSettings
from services.session_store.settings import SessionStoreSettings
from services.verifier.settings import VerifierSettings

_ALL: tuple[type[BaseSettings], ...] = (
    *(BusSettings, ArtifactSettings, AssistantSettings, EditorSettings, ForgeSettings, GatewaySettings),
    *(MailerSettings, PlannerSettings, SandboxSettings, SessionStoreSettings, VerifierSettings),
)


def wrong_settings() -> list[str]:
    """One line for each variable that cannot be used: its name and what is expected."""
    return sorted({line for kind in _ALL for line in _faults(kind)})


def _faults(kind: type[BaseSettings]) -> list[str]:
    try:
        kind()
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [f"{_variable(prefix, fault['loc'])}{fault['msg'].removeprefix('Value error, ')}" for fault in found]
    return []


def _variable(prefix: str, loc: tuple[int | str, ...]) -> str:
    """The variable's name; nothing for a fault of several together, whose words name them."""
    name = str(loc[0]).upper() if loc else ""
    return f"{name if name.startswith('AGENT_CODER_') else prefix + name}: " if name else ""
