"""Which models there are, from the environment and from `models.toml` in the home folder. Every fault is reported at once.

Nothing is guessed: without `MODEL` and without a file there is no model, and the service says what to set.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from libs.contracts.inference import ModelDescription
from libs.settings import HomeSettings
from services.inference.catalogue import Catalogue, Known
from services.inference.domain import ModelSpec, Price
from services.inference.governance import Governance, Limits, read_governance
from services.inference.script import Script, ScriptError, load_script

SCRIPTED = "scripted:"
_TABLES = ("models", "plans", "budgets")
EditFormat = Literal["tools", "whole_file", "search_replace", "unified_diff"]
KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "mistral": ("MISTRAL_API_KEY",),
    "groq": ("GROQ_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
}
ADVICE = (
    "No model is configured. Set MODEL and its provider's key, then start again. Examples:\n"
    "  MODEL=anthropic/claude-sonnet-4-5 ANTHROPIC_API_KEY=...\n"
    "  MODEL=openai/gpt-4o OPENAI_API_KEY=...\n"
    "  MODEL=ollama/qwen3-coder                         (a local Ollama)\n"
    "  MODEL=my-model MODEL_BASE_URL=http://host/v1     (any OpenAI-compatible server; MODEL_API_KEY when it wants one)\n"
    "See docs/models.md."
)


class SettingsError(Exception):
    """The model settings are wrong; the text lists every fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("The model settings are wrong:\n" + "\n".join(f"  - {fault}" for fault in faults))
        self.faults = tuple(faults)


class ModelEntry(BaseModel):
    """One `[[models]]` table of `models.toml`; the environment's MODEL variables build the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    edit_format: EditFormat | None = None
    tool_calling: bool | None = None
    context_tokens: int | None = Field(default=None, ge=1024)
    base_url: str | None = Field(default=None, pattern=r"^https?://")
    api_key_env: str | None = None
    price_in: float | None = Field(default=None, ge=0)
    price_out: float | None = Field(default=None, ge=0)
    price_cached: float | None = Field(default=None, ge=0)


class InferenceSettings(HomeSettings):
    """The environment. Prices are US dollars per million tokens."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_", frozen=True, extra="ignore", env_ignore_empty=True)

    model: str | None = Field(default=None, validation_alias="MODEL")
    fallbacks: str = Field(default="", validation_alias="MODEL_FALLBACKS")
    base_url: str | None = Field(default=None, validation_alias="MODEL_BASE_URL", pattern=r"^https?://")
    api_key: SecretStr | None = Field(default=None, validation_alias="MODEL_API_KEY")
    edit_format: EditFormat | None = Field(default=None, validation_alias="MODEL_EDIT_FORMAT")
    context_tokens: int | None = Field(default=None, validation_alias="MODEL_CONTEXT_TOKENS", ge=1024)
    tool_calling: bool | None = Field(default=None, validation_alias="MODEL_TOOL_CALLING")
    price_in: float | None = Field(default=None, validation_alias="MODEL_PRICE_IN", ge=0)
    price_out: float | None = Field(default=None, validation_alias="MODEL_PRICE_OUT", ge=0)
    call_timeout_seconds: float = Field(default=280.0, validation_alias="MODEL_TIMEOUT_SECONDS", gt=0, le=3600)
    tries: int = Field(default=3, validation_alias="MODEL_TRIES", ge=1, le=10)
    backoff_seconds: float = Field(default=1.0, validation_alias="MODEL_BACKOFF_SECONDS", gt=0, le=60)
    breaker_failures: int = Field(default=5, validation_alias="MODEL_BREAKER_FAILURES", ge=1, le=1000)
    breaker_cooldown_seconds: float = Field(default=120.0, validation_alias="MODEL_BREAKER_COOLDOWN_SECONDS", gt=0, le=86_400)
    run_usd: float | None = Field(default=None, validation_alias="MODEL_RUN_USD", ge=0)
    user_day_usd: float | None = Field(default=None, validation_alias="MODEL_USER_DAY_USD", ge=0)


class Configured(BaseModel):
    """The models by use: `chain` in the order of fallback, `selectable` those that a question or a plan may name besides."""

    model_config = ConfigDict(frozen=True)

    chain: tuple[ModelSpec, ...] = ()
    selectable: tuple[ModelSpec, ...] = ()
    advice: str = ""
    governance: Governance = Governance()


def read_settings() -> InferenceSettings:
    """The environment's settings.

    Raises:
        SettingsError: with all faults.
    """
    try:
        return InferenceSettings()
    except ValidationError as error:
        raise SettingsError(_faults(error)) from error


def configured(settings: InferenceSettings, environment: Mapping[str, str] = os.environ) -> Configured:
    """The models that the settings and `models.toml` name. With MODEL the chain is MODEL and its fallbacks, else the file's order.

    Raises:
        SettingsError: with all faults of the environment's values and of the file.
    """
    faults: list[str] = []
    document = _document(settings.home / "models.toml", faults)
    listed = {entry.name: entry for entry in _file_entries(document, faults)}
    names = [settings.model, *settings.fallbacks.split(",")] if settings.model else list(listed)
    names = list(dict.fromkeys(name.strip() for name in names if name and name.strip()))
    if settings.fallbacks.strip() and not settings.model:
        faults.append("MODEL_FALLBACKS is set but MODEL is not: set MODEL to the first model")
    catalogue = Catalogue()
    specs: dict[str, ModelSpec] = {}
    for name in [*names, *(other for other in listed if other not in names)]:
        entry = _with_environment(listed.get(name, ModelEntry(name=name[:200])), settings if name == settings.model else None)
        spec = _spec(entry, settings.api_key if name == settings.model else None, environment, catalogue, faults)
        if spec is not None:
            specs[name] = spec
    limits = Limits(run_usd=settings.run_usd, user_day_usd=settings.user_day_usd)
    governance = _named(read_governance(document, limits, faults), specs, faults)
    if faults:
        raise SettingsError(faults)
    chain = tuple(specs[name] for name in names)
    selectable = tuple(spec for name, spec in specs.items() if name not in names)
    return Configured(chain=chain, selectable=selectable, advice=_advice(chain), governance=governance)


def _named(governance: Governance, specs: Mapping[str, ModelSpec], faults: list[str]) -> Governance:
    """The plans with the names that models show; a file names the scripted model by its path."""
    plans: dict[str, tuple[str, ...]] = {}
    for plan, models in governance.plans.items():
        unknown = [model for model in models if model not in specs]
        faults.extend(f"plans.{plan}: {model} is neither MODEL, nor a fallback, nor a [[models]] entry" for model in unknown)
        plans[plan] = tuple(dict.fromkeys(specs[model].name for model in models if model in specs))
    return governance.model_copy(update={"plans": plans})


def _advice(chain: tuple[ModelSpec, ...]) -> str:
    if not chain:
        return ADVICE
    return "\n".join(key_advice(spec) for spec in chain if spec.missing_key)


def key_advice(spec: ModelSpec) -> str:
    """What to set for a model whose key is missing."""
    return f"The model {spec.name} needs its key: set {spec.missing_key}, then start again. See docs/models.md."


def _with_environment(entry: ModelEntry, settings: InferenceSettings | None) -> ModelEntry:
    """An entry with the MODEL_* variables laid over it; they speak of MODEL itself, never of its fallbacks."""
    if settings is None:
        return entry
    own = ("base_url", "edit_format", "context_tokens", "tool_calling", "price_in", "price_out")
    return entry.model_copy(update={key: value for key in own if (value := getattr(settings, key)) is not None})


def _document(path: Path, faults: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{path}: {error}")
        return {}
    unknown = [name for name in document if name not in _TABLES]
    faults.extend(f"{path}: there is no table {name}; there are: {', '.join(_TABLES)}" for name in unknown)
    if not document:
        faults.append(f"{path}: no [[models]] table found")
    return document


def _file_entries(document: Mapping[str, Any], faults: list[str]) -> list[ModelEntry]:
    path = "models.toml"
    tables = document.get("models", [])
    if not isinstance(tables, list):
        faults.append(f"{path}: models: write each one as [[models]]")
        return []
    entries: list[ModelEntry] = []
    for number, table in enumerate(tables, 1):
        try:
            entries.append(ModelEntry.model_validate(table))
        except ValidationError as error:
            faults.extend(f"{path}: model {number}: {fault}" for fault in _faults(error))
    doubles = {entry.name for entry in entries if [other.name for other in entries].count(entry.name) > 1}
    faults.extend(f"{path}: {name} is listed twice" for name in sorted(doubles))
    return entries


def _faults(error: ValidationError) -> list[str]:
    return [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors(include_url=False)]


def _spec(
    entry: ModelEntry, own_key: SecretStr | None, environment: Mapping[str, str], catalogue: Catalogue, faults: list[str]
) -> ModelSpec | None:
    if entry.name.startswith(SCRIPTED):
        return _scripted(entry, faults)
    if (entry.price_in is None) != (entry.price_out is None):
        faults.append(f"{entry.name}: give both prices, in and out, or none")
    if entry.api_key_env and not environment.get(entry.api_key_env):
        faults.append(f"{entry.name}: api_key_env names {entry.api_key_env}, which is not set")
    key = SecretStr(environment[entry.api_key_env]) if entry.api_key_env and environment.get(entry.api_key_env) else own_key
    wire = wire_name(entry.name, entry.base_url)
    known = catalogue.find(wire)
    tool_calling = entry.tool_calling if entry.tool_calling is not None else entry.edit_format in (None, "tools")
    description = ModelDescription(
        name=entry.name,
        tool_calling=tool_calling,
        edit_format=entry.edit_format or ("tools" if tool_calling else "whole_file"),
        context_tokens=entry.context_tokens or known.context_tokens or ModelDescription(name="").context_tokens,
    )
    if description.edit_format == "tools" and not tool_calling:
        faults.append(f"{entry.name}: the edit format `tools` needs tool calling; choose whole_file, search_replace or unified_diff")
    return ModelSpec(
        description=description,
        wire=wire,
        base_url=entry.base_url,
        api_key=key,
        missing_key=None if entry.base_url or key else _missing_key(wire, environment),
        price=_price(entry) or known.price,
        most_output_tokens=known.most_output_tokens,
        listed=known != Known(),
    )


def _price(entry: ModelEntry) -> Price | None:
    if entry.price_in is None or entry.price_out is None:
        return None
    return Price(input_usd=entry.price_in, output_usd=entry.price_out, cached_usd=entry.price_cached)


def _missing_key(wire: str, environment: Mapping[str, str]) -> str | None:
    wanted = KEY_VARIABLES.get(wire.split("/", 1)[0], ())
    return None if not wanted or any(environment.get(name) for name in wanted) else " or ".join(wanted)


def wire_name(name: str, base_url: str | None) -> str:
    """litellm's name of a model: with a base URL the OpenAI protocol is spoken, but for an Ollama whose URL has no `/v1`."""
    provider, _, rest = name.partition("/")
    if provider in ("ollama", "ollama_chat") and rest:
        return f"openai/{rest}" if base_url and base_url.rstrip("/").endswith("/v1") else f"ollama_chat/{rest}"
    if base_url is None:
        return name
    return f"openai/{rest if provider == 'openai' and rest else name}"


def _scripted(entry: ModelEntry, faults: list[str]) -> ModelSpec | None:
    path = Path(entry.name.removeprefix(SCRIPTED)).expanduser().absolute()
    try:
        script: Script = load_script(path)
    except ScriptError as error:
        faults.append(str(error))
        return None
    name = f"{SCRIPTED}{script.name or path.stem}"
    description = ModelDescription(
        name=name,
        tool_calling=script.tool_calling if entry.tool_calling is None else entry.tool_calling,
        edit_format=entry.edit_format or script.edit_format,
        context_tokens=entry.context_tokens or script.context_tokens,
        scripted=True,
    )
    return ModelSpec(description=description, wire=name, price=_price(entry) or script.price, script=path)
