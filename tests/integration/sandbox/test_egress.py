"""Set-up reaches the configured hosts through the proxy, and nothing else; the registry here is a server on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.sandbox.backends.process import ProcessBackend
from services.sandbox.egress import AllowedHost, Decision, Egress
from services.sandbox.errors import BackendUnavailable

FETCH = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], data=sys.argv[2].encode() if len(sys.argv) > 2 else None, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("failed", error)
"""


class Registry:
    """Answers every request with its own head and body."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0)
            body = (await reader.readexactly(length)).decode()
            self.seen.append(head)
            answer = f"{head.splitlines()[0]}|{body}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(answer), answer))
            await writer.drain()
        writer.close()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0)
    registry.port = server.sockets[0].getsockname()[1]
    async with server:
        yield registry


class Proxied:
    """A backend whose set-up may reach the hosts named."""

    def __init__(self, folder: Path, *allowed: str) -> None:
        self.decisions: list[Decision] = []
        self.egress = Egress([AllowedHost.parse(text) for text in allowed], on_decision=self.decisions.append)
        self.backend = ProcessBackend.on_this_machine(folder, egress=self._factory)

    async def _factory(self) -> Egress:
        return self.egress

    async def fetch(self, command, *arguments: str) -> str:
        result = await self.backend.run(command(["python", "-c", FETCH, *arguments], network="registries", label="ws-1"))
        assert result.exit_code == 0, result
        return result.stdout.decode().strip()


async def talk(egress: Egress, *lines: str) -> str:
    """Send raw lines to the proxy itself and read what it says."""
    async with egress.listen("raw") as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    return answer.decode()


async def test_configured_host_is_reached_from_inside(tmp_path, command, registry):
    proxied = Proxied(tmp_path / "rt", f"127.0.0.1:{registry.port}")
    # The loopback of the host needs the proxy, which clients leave out for loopback by default.
    spec = command(
        ["env", "no_proxy=", "NO_PROXY=", "python", "-c", FETCH, f"http://127.0.0.1:{registry.port}/simple/?q=1", "body"],
        network="registries",
    )
    result = await proxied.backend.run(spec)
    assert result.stdout.decode().strip() == "POST /simple/?q=1 HTTP/1.1|body"
    assert [(decision.host, decision.allowed) for decision in proxied.decisions] == [("127.0.0.1", True)]


async def test_other_host_is_refused_with_the_reason(tmp_path, command):
    proxied = Proxied(tmp_path / "rt", "registry.invalid")
    assert "403" in await proxied.fetch(command, "http://other.invalid/x")
    assert "other.invalid:80 is not one of the package registries" in await proxied.fetch(command, "http://other.invalid/x")
    assert "403" in await proxied.fetch(command, "https://other.invalid/x")
    assert {decision.allowed for decision in proxied.decisions} == {False}
    assert {decision.label for decision in proxied.decisions} == {"ws-1"}


async def test_set_up_has_no_network_beside_the_proxy(tmp_path, command, registry):
    proxied = Proxied(tmp_path / "rt", f"127.0.0.1:{registry.port}")
    attempt = f"socket.create_connection(('127.0.0.1', {registry.port}), 5)"
    script = f"import socket\ntry: {attempt}; print('reached')\nexcept OSError: print('closed')"
    result = await proxied.backend.run(command(["python", "-c", script], network="registries"))
    assert result.stdout == b"closed\n"


async def test_command_without_network_sees_no_proxy(tmp_path, command):
    proxied = Proxied(tmp_path / "rt", "registry.invalid")
    result = await proxied.backend.run(command("env | grep -i proxy; ls /run"))
    assert result.stdout == b""


async def test_backend_without_proxy_says_so(backend, command):
    with pytest.raises(BackendUnavailable, match="no egress proxy"):
        await backend.run(command("true", network="registries"))


async def test_exit_code_and_output_of_a_set_up_command_are_its_own(tmp_path, command):
    proxied = Proxied(tmp_path / "rt")
    result = await proxied.backend.run(command("echo out; echo err >&2; exit 7", network="registries"))
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


async def test_tunnel_carries_bytes_both_ways(registry):
    egress = Egress([AllowedHost.parse(f"127.0.0.1:{registry.port}")])
    async with egress.listen("raw") as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"CONNECT 127.0.0.1:{registry.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /inside HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).endswith(b"GET /inside HTTP/1.1|")
        writer.close()


@pytest.mark.parametrize("host", ["localhost", "ip6-localhost.invalid"])
async def test_name_that_leads_inside_is_refused_unless_configured_so(registry, host):
    refused = await talk(Egress([AllowedHost.parse(f"{host}:{registry.port}")]), f"GET http://{host}:{registry.port}/ HTTP/1.1")
    assert refused.startswith(("HTTP/1.1 403", "HTTP/1.1 502"))
    assert registry.seen == []


async def test_name_that_leads_inside_is_carried_when_configured_so(registry):
    egress = Egress([AllowedHost.parse(f"localhost:{registry.port}@127.0.0.0/8"), AllowedHost.parse(f"localhost:{registry.port}@::1")])
    egress = Egress([AllowedHost("localhost", (registry.port,), tuple(net for entry in egress.allowed for net in entry.networks))])
    assert "GET / HTTP/1.1|" in await talk(egress, f"GET http://localhost:{registry.port}/ HTTP/1.1")


async def test_request_cannot_name_another_host_than_the_one_decided_on(registry):
    egress = Egress([AllowedHost.parse(f"127.0.0.1:{registry.port}")])
    await talk(egress, f"GET http://127.0.0.1:{registry.port}/ HTTP/1.1", "Host: internal.invalid", "Proxy-Authorization: Basic eA==")
    head = registry.seen[0].lower()
    assert f"host: 127.0.0.1:{registry.port}" in head
    assert "internal.invalid" not in head
    assert "proxy-authorization" not in head


async def test_second_request_on_a_connection_is_not_carried(registry):
    egress = Egress([AllowedHost.parse(f"127.0.0.1:{registry.port}")])
    line = f"GET http://127.0.0.1:{registry.port}/{{}} HTTP/1.1"
    await talk(egress, line.format("one"), "", line.format("two"))
    assert [head.split(" ")[1] for head in registry.seen] == ["/one"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["nonsense"], "400"),
        (["GET /relative HTTP/1.1"], "400"),
        (["GET ftp://registry.invalid/ HTTP/1.1"], "400"),
        (["CONNECT registry.invalid:notaport HTTP/1.1"], "400"),
        (["CONNECT registry.invalid:22 HTTP/1.1"], "403"),
        (["CONNECT 169.254.169.254:80 HTTP/1.1"], "403"),
        (["CONNECT [::1]:443 HTTP/1.1"], "403"),
        (["POST http://registry.invalid/ HTTP/1.1", "Transfer-Encoding: chunked"], "411"),
        (["GET http://registry.invalid/ HTTP/1.1", "X: " + "y" * 40_000], "431"),
        (["GET http://registry.invalid/ HTTP/1.1"], "502"),
    ],
)
async def test_bad_requests_get_their_status(lines, status):
    assert (await talk(Egress([AllowedHost.parse("registry.invalid")]), *lines)).startswith(f"HTTP/1.1 {status}")
