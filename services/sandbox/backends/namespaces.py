"""Why a kernel refuses user namespaces, in words that say what to do."""

from collections.abc import Mapping
from pathlib import Path

SWITCHES = (
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
)
ADVICE = {
    (SWITCHES[0], "0"): "user namespaces are switched off; allow them with `sysctl -w user.max_user_namespaces=15000`",
    (SWITCHES[1], "0"): "only root may make user namespaces; allow them with `sysctl -w kernel.unprivileged_userns_clone=1`",
    (SWITCHES[2], "1"): "AppArmor forbids user namespaces to unconfined programs; give bwrap a profile with `userns,`, "
    "or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
}
IN_CONTAINER = (
    "inside a container, its runtime forbids namespaces or hides parts of /proc: with Docker add "
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`, or run on the host"
)


def kernel_switches() -> dict[str, str]:
    """The switches that this kernel has, with their values."""
    return {name: Path(name).read_text().strip() for name in SWITCHES if Path(name).is_file()}


def explain(words: str, switches: Mapping[str, str]) -> str:
    """One text for a person from bubblewrap's words and the kernel's switches. Nothing is ever run without a sandbox."""
    reasons = [advice for (name, value), advice in ADVICE.items() if switches.get(name) == value]
    advice = "; ".join(reasons) or IN_CONTAINER
    return f"commands cannot be isolated on this machine, so none will run: {words.strip()}. What to do: {advice}"
