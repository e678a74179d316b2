"""Names from outside and what they become: repository names, reference components, import sources.

Invariant: nothing from outside becomes a path, a reference or a command argument before it went through here.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from services.artifact.domain import Login
from services.artifact.errors import InvalidName, SourceRefused

_SEGMENT = r"[a-z0-9][a-z0-9._-]*"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,3}}")
_RUN_REF = re.compile(r"refs/runs/([A-Za-z0-9_-][A-Za-z0-9_.-]{0,99})/(\d{1,18})")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SCP_LIKE = re.compile(r"(?P<user>[A-Za-z0-9_][\w.-]*)@(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>[^:].*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMPONENT_BYTES = 100


def check_repository_name(name: str) -> str:
    """The name itself when it is one: 1–4 segments of `[a-z0-9][a-z0-9._-]*`, 200 characters at most. Raises InvalidName."""
    bad = any(part.endswith((".git", ".lock", ".")) or ".." in part for part in name.split("/"))
    if len(name) > 200 or bad or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name[:200]!r} is not a repository name. Use small letters, digits, '.', '_' and '-', and '/' between at most four parts."
        )
    return name


def check_sha(sha: str) -> str:
    """The full object id itself, or InvalidName."""
    if not _SHA.fullmatch(sha):
        raise InvalidName(f"{sha[:80]!r} is not a full commit id (40 hexadecimal digits).")
    return sha


def is_sha(text: str) -> bool:
    return _SHA.fullmatch(text) is not None


def check_run_ref(ref: str) -> str:
    """`refs/runs/<run id>/<number>` itself, or InvalidName."""
    match = _RUN_REF.fullmatch(ref)
    if not match or ".." in ref or match[1].endswith((".lock", ".")):
        raise InvalidName(f"{ref[:200]!r} is not a reference of a run. Commits of a run go to refs/runs/<run id>/<number>.")
    return ref


def ref_component(identifier: str) -> str:
    """One component of a reference name for any id, readable where it can be, different for different ids.

    Letters and digits of any script, '_', '-' and inner dots stay (NFC); the rest becomes '_', and then, or when cut, a digest follows.
    The rules of git-check-ref-format(1) hold for the result.
    """
    kept = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", identifier))
    kept = re.sub(r"\.(?=\.|lock$|$)|^\.", "_", kept)
    cut = kept.encode("utf-8", "replace")[:_COMPONENT_BYTES].decode("utf-8", "ignore")
    if cut and cut == identifier:
        return cut
    digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cut.rstrip('.')}-{digest}" if cut else digest


def slug(text: str) -> str:
    """The part of a repository name that people recognise; `repo` when nothing of it can be kept."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain.removesuffix(".git")).strip("-")[:60].strip("-") or "repo"


@dataclass(frozen=True)
class RemoteSource:
    """A repository elsewhere. `url` holds no credential; `login` is kept out of every text."""

    url: str
    protocol: str
    login: Login | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").removesuffix(".git")
        digest = hashlib.sha256(f"{parts.netloc}{path}".encode()).hexdigest()[:8]
        return f"{slug(unquote(path.rsplit('/', 1)[-1]))}-{digest}"


@dataclass(frozen=True)
class LocalSource:
    """A repository in a directory of this machine."""

    path: Path

    @property
    def name(self) -> str:
        shown = self.path.parent.name if self.path.name == ".git" else self.path.name
        return f"{slug(shown)}-{hashlib.sha256(bytes(self.path)).hexdigest()[:8]}"


@dataclass(frozen=True)
class StoredSource:
    """A repository of this store."""

    name: str


Source = RemoteSource | LocalSource | StoredSource


def parse_source(source: str, *, allow_local_paths: bool) -> Source:
    """What an import source means: an https, http or ssh URL (`user@host:path` too), an absolute path, or a repository name.

    Raises SourceRefused for any other transport and for text that git could take for an option or a command.
    """
    text = source.strip()
    if not text or len(text) > 4096 or text.startswith("-") or _CONTROL.search(text):
        raise SourceRefused(
            "The source is empty, starts with '-' or holds control characters. Give a URL, an absolute path or a repository name."
        )
    if re.match(r"[A-Za-z0-9+.-]*::", text):
        raise SourceRefused("Remote helpers (such as 'ext::') are not run. Give an https, http or ssh URL.")
    if text.lower().startswith("file://"):
        text = unquote(text[len("file://") :])
    if text.startswith("/"):
        if not allow_local_paths:
            raise SourceRefused("Repositories of this machine's directories are not imported here (the setting allow_local_paths is off).")
        return LocalSource(Path(text).resolve())
    if "://" in text:
        return _remote(text)
    if match := _SCP_LIKE.fullmatch(text):
        return _remote(f"ssh://{match['user']}@{match['host']}/{match['path'].lstrip('/')}")
    if text.startswith((".", "~", "\\")):
        raise SourceRefused(f"{text[:200]!r} is a relative path. Give the absolute path.")
    return StoredSource(check_repository_name(text.removesuffix(".git")))


def _remote(text: str) -> RemoteSource:
    parts = _split(text)
    host = parts.hostname or ""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.scheme not in ("https", "http", "ssh"):
        raise SourceRefused(f"The transport {parts.scheme[:20]!r} is not imported. Give an https, http or ssh URL.")
    if not host or host.startswith("-") or user.startswith("-") or parts.path.startswith("/-") or len(parts.path) < 2:
        raise SourceRefused(
            "The URL has no host, no path, or a part that git would take for an option. Give the clone URL of a repository."
        )
    place = f"[{host}]" if ":" in host else host
    if parts.port:
        place += f":{parts.port}"
    if parts.scheme == "ssh":
        if password:
            raise SourceRefused("An ssh URL with a password is not used. Load a key into the ssh agent instead.")
        return RemoteSource(f"ssh://{user + '@' if user else ''}{place}{parts.path}", "ssh")
    return RemoteSource(f"{parts.scheme}://{place}{parts.path}", parts.scheme, Login(user, password) if user or password else None)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise SourceRefused("The URL cannot be read. Give the clone URL of a repository.") from None
    return parts
