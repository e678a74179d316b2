"""Asks the package managers of this machine which registries they use, so that set-up may reach these and no other host.

Nothing is fetched with credentials: a configured index that carries a user name is passed on without it.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import ssl
import sys
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx

from services.sandbox.egress import PORTS, AllowedHost, Egress

ASK_SECONDS = 30.0
FETCH_SECONDS = 5.0
PIP_DEFAULTS = "from pip._internal.models.index import PyPI as p; print(p.simple_url); print('https://' + p.file_storage_domain)"
PIP_KEYS = {"index-url": "PIP_INDEX_URL", "extra-index-url": "PIP_EXTRA_INDEX_URL"}
CARGO_INDEX = re.compile(rb"sparse\+(https://[a-z0-9.-]+/)")
MAVEN_MODEL = "org/apache/maven/model/pom-4.0.0.xml"
MAVEN_URL = re.compile(rb"<url>(https?://[^<]+)</url>")
CERTIFICATE_FILES = (
    *("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
    *("CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE"),
)
VISIBLE = tuple(map(Path, ("/usr", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted")))


@dataclass
class Registries:
    """What was found: URLs of registries, and variables for the clients in the sandbox."""

    urls: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def add(self, *urls: str) -> None:
        """Take note of URLs; other schemes than http and https are dropped."""
        self.urls += [url for url in urls if urlsplit(url).scheme in {"http", "https"} and urlsplit(url).hostname]

    def hosts(self) -> tuple[AllowedHost, ...]:
        """Every host once; a URL with a port of its own allows that port."""
        found: dict[tuple[str, tuple[int, ...]], AllowedHost] = {}
        for url in self.urls:
            parts = urlsplit(url)
            host = AllowedHost.parse(parts.hostname or "")
            allowed = AllowedHost(host.host, (parts.port,) if parts.port else PORTS, host.networks)
            found[(allowed.host, allowed.ports)] = allowed
        return tuple(found.values())


class EgressProvider:
    """Makes the egress proxy's configuration when set-up first needs it: asking every client takes about a second."""

    def __init__(self, configured: Sequence[str] = ()) -> None:
        self._configured = [AllowedHost.parse(text) for text in configured]
        self._lock = asyncio.Lock()
        self._egress: Egress | None = None

    async def __call__(self) -> Egress:
        """The configured hosts, else the discovered ones."""
        async with self._lock:
            if self._egress is None:
                found = await discover()
                environment = {**_certificates(os.environ), **found.environment}
                files = tuple(Path(value) for name, value in environment.items() if name in CERTIFICATE_FILES and not _is_visible(value))
                self._egress = Egress(self._configured or found.hosts(), environment, files)
            return self._egress


async def discover() -> Registries:
    """Ask pip, npm, go, cargo and Maven, whichever are here."""
    registries = Registries()
    sources: tuple[Callable[[Registries], Awaitable[None]], ...] = (_pip, _npm, _go, _cargo, _maven)
    await asyncio.gather(*(source(registries) for source in sources))
    return registries


async def _pip(registries: Registries) -> None:
    registries.add(*(await _ask(sys.executable, "-c", PIP_DEFAULTS)).split())
    for line in (await _ask(sys.executable, "-m", "pip", "config", "list")).splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        urls = [url for url in value.strip("'\"").split() if url.startswith("http")]
        if name in PIP_KEYS and urls:
            registries.add(*urls)
            registries.environment[PIP_KEYS[name]] = " ".join(map(_without_user, urls))
        elif name == "cert":
            registries.environment["PIP_CERT"] = value.strip("'\"")


async def _npm(registries: Registries) -> None:
    text = await _ask("npm", "config", "list", "--json")
    settings = json.loads(text) if text else {}
    for key, value in settings.items():
        if isinstance(value, str) and (key == "registry" or key.endswith(":registry")):
            registries.add(value)
    if isinstance(registry := settings.get("registry"), str):
        registries.environment["NPM_CONFIG_REGISTRY"] = _without_user(registry)
    if isinstance(cafile := settings.get("cafile"), str):
        registries.environment["NPM_CONFIG_CAFILE"] = cafile


async def _go(registries: Registries) -> None:
    answer = (await _ask("go", "env", "GOPROXY", "GOSUMDB")).splitlines()
    if len(answer) == 2:
        proxies, database = answer
        registries.add(*re.split(r"[,|]", proxies))
        if database and database != "off":
            registries.add(f"https://{database.split()[0].partition('+')[0]}")
            registries.environment["GOSUMDB"] = database
        registries.environment["GOPROXY"] = ",".join(map(_without_user, re.split(r"[,|]", proxies)))


async def _cargo(registries: Registries) -> None:
    """cargo does not tell its index, but carries it; the index tells where the archives are (its config.json)."""
    sysroot = (await _ask("rustc", "--print", "sysroot")).strip()
    binary = Path(sysroot) / "bin" / "cargo"
    if not sysroot or not binary.is_file():
        return
    for index in {url.decode() for url in CARGO_INDEX.findall(await asyncio.to_thread(binary.read_bytes))}:
        registries.add(index)
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            async with httpx.AsyncClient(timeout=FETCH_SECONDS, verify=_trust()) as client:
                registries.add((await client.get(f"{index}config.json")).json()["dl"])


def _trust() -> ssl.SSLContext:
    own = next((value for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if Path(value := os.environ.get(name, "")).is_file()), None)
    return ssl.create_default_context(cafile=own)


async def _maven(registries: Registries) -> None:
    tool = shutil.which("mvn")
    if tool is None:
        return
    for jar in (Path(tool).resolve().parent.parent / "lib").glob("maven-model-builder*.jar"):
        with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(jar) as archive:
            registries.add(*(url.decode() for url in MAVEN_URL.findall(archive.read(MAVEN_MODEL))))


def _certificates(environment: Mapping[str, str]) -> dict[str, str]:
    """The host's own trust settings that name a file; cargo gets the general one when it has none."""
    found = {name: environment[name] for name in CERTIFICATE_FILES if Path(environment.get(name, "")).is_file()}
    if "SSL_CERT_FILE" in found:
        found.setdefault("CARGO_HTTP_CAINFO", found["SSL_CERT_FILE"])
    return found


def _is_visible(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in VISIBLE)


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _ask(*command: str) -> str:
    """A client's answer, empty when it is not here or does not answer."""
    tool = shutil.which(command[0])
    if tool is None:
        return ""
    try:
        process = await asyncio.create_subprocess_exec(
            *(tool, *command[1:]),
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        output, _ = await asyncio.wait_for(process.communicate(), ASK_SECONDS)
    except BaseException as error:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            return ""
        raise
    return output.decode(errors="replace") if process.returncode == 0 else ""
