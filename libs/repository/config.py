"""`.agent-coder.toml`: what a repository says about itself. Every fault is named at once, by key.

[setup] commands = ["..."]
[test] commands = ["..."]  timeout_seconds = 300
[verify] no_tests = "fail" | "ask"
"""

import tomllib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.repository.project import ConfigError, NoTests

CONFIG_PATH = ".agent-coder.toml"
_NEXT = "Correct the file in the repository and open the run again."

_Shell = Annotated[str, Field(min_length=1, max_length=4000, pattern=r"\S")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SetupSection(_Section):
    commands: list[_Shell] | None = None


class TestSection(_Section):
    __test__ = False

    commands: list[_Shell] | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] | None = None


class VerifySection(_Section):
    no_tests: NoTests | None = None


class RepositoryConfig(_Section):
    """The whole file. None means: not said, so it is looked for elsewhere; an empty list means: none."""

    setup: SetupSection = SetupSection()
    test: TestSection = TestSection()
    verify: VerifySection = VerifySection()


def parse_config(text: str | None) -> RepositoryConfig:
    """Read the file's text; None means that it is no text.

    Raises ConfigError with one sentence for each fault.
    """
    if text is None:
        raise ConfigError(f"{CONFIG_PATH} is not text in UTF-8. {_NEXT}")
    try:
        return RepositoryConfig.model_validate(tomllib.loads(text.removeprefix("\ufeff")))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{CONFIG_PATH} is not valid TOML: {error}. {_NEXT}") from error
    except ValidationError as error:
        faults = "; ".join(_fault(tuple(item["loc"]), item["type"], item["msg"]) for item in error.errors())
        raise ConfigError(f"{CONFIG_PATH}: {faults}. {_NEXT}") from error


def _fault(location: tuple[int | str, ...], kind: str, message: str) -> str:
    key = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        return f"unknown key '{key}' (known: {_known_keys(location)})"
    return f"'{key}': {message[0].lower()}{message[1:]}"


def _known_keys(location: tuple[int | str, ...]) -> str:
    sections: dict[str, type[BaseModel]] = {"setup": SetupSection, "test": TestSection, "verify": VerifySection}
    model = sections.get(str(location[0]), RepositoryConfig) if len(location) > 1 else RepositoryConfig
    return ", ".join(model.model_fields)
