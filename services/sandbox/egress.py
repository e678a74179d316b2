"""The one way out of a sandbox: an HTTP proxy on a Unix socket that reaches the configured package registries and nothing else.

Names are resolved here, never in the sandbox. An address inside private networks is refused unless the configuration names it.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

PORTS = (443, 80)
HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 15.0
CONNECT_SECONDS = 15.0
IDLE_SECONDS = 300.0
CONNECTIONS = 128
CHUNK_BYTES = 65536
RELAY_PORT = 3128

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Private, shared, loopback, link-local, benchmark, multicast and reserved space (RFC 6890), and ways to write IPv4 as IPv6.
INSIDE: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
            *("192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
            *("::/127", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"),
        ),
    )
)


class Refused(Exception):
    """The proxy does not carry this request; `status` is the HTTP status to answer with."""

    def __init__(self, reason: str, status: str = "403 Forbidden") -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class AllowedHost:
    """A host that may be reached. `networks` are the private networks that its name may lead to."""

    host: str
    ports: tuple[int, ...] = PORTS
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "AllowedHost":
        """Read `host`, `host:port` or `host@10.0.0.0/8` (a mirror inside a private network). Raises ValueError."""
        place, _, network = text.strip().partition("@")
        parts = urlsplit(f"//{place}")
        if not parts.hostname or parts.path or parts.username is not None:
            raise ValueError(f"{text!r} is not a host: write host, host:port or host@network")
        networks = [ipaddress.ip_network(network)] if network else []
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.ip_network(parts.hostname))
        return cls(parts.hostname.lower().rstrip("."), (parts.port,) if parts.port else PORTS, tuple(networks))


@dataclass(frozen=True)
class Decision:
    """What the proxy decided about one request."""

    label: str
    host: str
    port: int
    allowed: bool
    reason: str


def log_decision(decision: Decision) -> None:
    """The default record of a decision: one line of the service's log."""
    verdict = "allowed" if decision.allowed else "refused"
    logger.info("egress %s %s:%d workspace=%s %s", verdict, decision.host, decision.port, decision.label, decision.reason)


class Egress:
    """Opens a proxy for one command at a time; `environment` and `certificates` are what clients in the sandbox need to use it."""

    def __init__(
        self,
        allowed: Sequence[AllowedHost],
        environment: dict[str, str] | None = None,
        certificates: tuple[Path, ...] = (),
        on_decision: Callable[[Decision], None] = log_decision,
    ) -> None:
        self.allowed = tuple(allowed)
        self.certificates = certificates
        self.environment = {**_proxy_environment(RELAY_PORT), **(environment or {})}
        self._on_decision = on_decision

    @contextlib.asynccontextmanager
    async def listen(self, label: str) -> AsyncIterator[Path]:
        """A proxy's socket, for as long as the context lasts; what it still carries then is cut."""
        with tempfile.TemporaryDirectory(prefix="egress-") as folder:
            path = Path(folder) / "socket"
            session = _Session(self, label, self._on_decision)
            server = await asyncio.start_unix_server(session.serve, path, limit=HEADER_BYTES)
            try:
                yield path
            finally:
                server.close()
                await session.close()

    async def decide(self, host: str, port: int) -> Sequence[str]:
        """The addresses that may be connected to for `host:port`. Raises Refused."""
        name = host.lower().rstrip(".")
        entry = next((entry for entry in self.allowed if entry.host == name and port in entry.ports), None)
        if entry is None:
            raise Refused(f"{host}:{port} is not one of the package registries that set-up may reach (AGENT_CODER_SANDBOX_REGISTRIES)")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Refused(f"{host} has no address: {error}", "502 Bad Gateway") from error
        addresses = [str(item[4][0]) for item in found]
        for address in addresses:
            _require_public(entry, ipaddress.ip_address(address.partition("%")[0]))
        return addresses


def _require_public(entry: AllowedHost, address: Address) -> None:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    inside = any(plain in network for network in INSIDE if network.version == plain.version)
    if inside and not any(plain in network for network in entry.networks if network.version == plain.version):
        raise Refused(f"{entry.host} leads to {address}, which is not public; configure it as {entry.host}@{address} when that is meant")


def _proxy_environment(port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    variables = {name: url for upper in ("HTTP_PROXY", "HTTPS_PROXY") for name in (upper, upper.lower())}
    java = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https"))
    return variables | {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "MAVEN_OPTS": java, "GRADLE_OPTS": java}


class _Session:
    """The connections of one command."""

    def __init__(self, egress: Egress, label: str, on_decision: Callable[[Decision], None]) -> None:
        self._egress = egress
        self._label = label
        self._on_decision = on_decision
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            logger.debug("egress connection of %s was cut", self._label)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _Request.read(reader, crowded=len(self._tasks) > CONNECTIONS)
            up_reader, up_writer = await self._connect(request)
        except Refused as refusal:
            body = f"{refusal}\n".encode()
            head = f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            return
        try:
            if request.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))
            else:
                up_writer.write(request.head)
                await _copy(reader, up_writer, request.body_bytes, finish=False)
                await _copy(up_reader, writer)
        finally:
            up_writer.close()

    async def _connect(self, request: "_Request") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            addresses = await self._egress.decide(request.host, request.port)
        except Refused as refusal:
            self._on_decision(Decision(self._label, request.host, request.port, False, str(refusal)))
            raise
        self._on_decision(Decision(self._label, request.host, request.port, True, "configured registry"))
        problem: Exception | None = None
        for address in addresses:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, request.port), CONNECT_SECONDS)
            except (OSError, TimeoutError) as error:
                problem = error
        raise Refused(f"{request.host} does not answer: {problem or 'it has no address'}", "502 Bad Gateway")


@dataclass(frozen=True)
class _Request:
    """A proxied request (RFC 9110 9.3.6 CONNECT, RFC 9112 3.2.2 absolute-form); `head` is what goes to the origin."""

    tunnel: bool
    host: str
    port: int
    head: bytes = b""
    body_bytes: int = 0

    @classmethod
    async def read(cls, reader: asyncio.StreamReader, crowded: bool) -> "_Request":
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEADER_SECONDS)
        except asyncio.LimitOverrunError:
            raise Refused("the request's header is too large", "431 Request Header Fields Too Large") from None
        if crowded:
            raise Refused("too many connections at once", "503 Service Unavailable")
        line, *fields = head.decode("latin-1").split("\r\n")
        try:
            method, target, _ = line.split(" ")
            place = urlsplit(f"//{target}" if method == "CONNECT" else target)
            host, port = place.hostname or "", place.port
        except ValueError:
            raise Refused("this is not a proxy request", "400 Bad Request") from None
        if method == "CONNECT":
            return cls(tunnel=True, host=host, port=port or 443)
        if place.scheme != "http":
            raise Refused("only http:// requests and CONNECT are carried", "400 Bad Request")
        path = (place.path or "/") + (f"?{place.query}" if place.query else "")
        return cls(
            False, host, port or 80, _origin_head(f"{method} {path} HTTP/1.1", place.netloc.rpartition("@")[2], fields), _body_bytes(fields)
        )


def _origin_head(line: str, authority: str, fields: Sequence[str]) -> bytes:
    """One request a connection, with the host that was decided on: what the client claims in Host does not count."""
    dropped = ("host:", "connection:", "proxy-", "keep-alive:", "upgrade:")
    kept = [field for field in fields if field and not field.lower().startswith(dropped)]
    return ("\r\n".join([line, f"Host: {authority}", "Connection: close", *kept]) + "\r\n\r\n").encode("latin-1")


def _body_bytes(fields: Sequence[str]) -> int:
    for field in fields:
        name, _, value = field.partition(":")
        if name.lower() == "transfer-encoding":
            raise Refused("a request body needs a length", "411 Length Required")
        if name.lower() == "content-length" and value.strip().isdigit():
            return int(value)
    return 0


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None = None, finish: bool = True) -> None:
    left = limit
    while left is None or left > 0:
        data = await asyncio.wait_for(reader.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)), IDLE_SECONDS)
        if not data:
            break
        left = None if left is None else left - len(data)
        writer.write(data)
        await writer.drain()
    if finish and writer.can_write_eof():
        with contextlib.suppress(OSError):
            writer.write_eof()
