"""A name server on loopback that knows what a test tells it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """`records`: `(name, type)` to texts as in a zone file. `silent`: it answers nothing. `asked` are the names that were asked for."""

    port: int = 0
    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    broken: bool = False
    broken_below: str = ""
    asked: list[str] = field(default_factory=list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        asked = query.question[0]
        name, kind = asked.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append(f"{name} {kind}")
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA | dns.flags.RA
        if self.broken or (self.broken_below and name.endswith(self.broken_below)):
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif found := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(asked.name, 60, "IN", kind, *found))
        elif not any(n == name for n, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)  # type: ignore[attr-defined]  # a datagram transport

    def txt(self, name: str, text: str) -> None:
        """Put a TXT record, in strings of 255 octets."""
        pieces = [text[at : at + 255] for at in range(0, len(text), 255)]
        self.records[name, "TXT"] = [" ".join(f'"{piece}"' for piece in pieces)]


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    """A running name server."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    server.port = transport.get_extra_info("sockname")[1]
    try:
        yield server
    finally:
        transport.close()
