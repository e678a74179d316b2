"""The skills on this machine: shipped, the installation's, the user's; a later source wins over an earlier one of the same name."""

import functools
from pathlib import Path

from libs.agent.skills import Skill, in_folder, merged
from libs.bus.subjects import token
from libs.contracts.conversation import OwnedCall

SHIPPED = Path(__file__).parent / "skills"


@functools.cache
def _shipped() -> tuple[Skill, ...]:
    return tuple(in_folder(SHIPPED))


class Library:
    """The skills on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, owner: OwnedCall) -> dict[str, Skill]:
        """Shipped ones, the installation's and the user's, by name."""
        tenant = self._folder if owner.tenant == "local" else self._folder / owner.tenant
        return merged(_shipped(), in_folder(self._folder), in_folder(tenant / token(owner.user)))
