"""A small DNS server on loopback, and a resolver that asks nobody else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset

Zone = Mapping[tuple[str, str], tuple[str, ...]]


class _Server(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        name, kind = str(question.name).rstrip(".").lower(), dns.rdatatype.to_text(question.rdtype)
        if found := self._zone.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, *found))
        elif not any(known == name for known, _ in self._zone):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), address)


@asynccontextmanager
async def dns_server(zone: Zone) -> AsyncIterator[dns.asyncresolver.Resolver]:
    """A resolver whose only server knows `zone`: (name, kind) to records in their text form."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Server(zone), local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    try:
        yield resolver
    finally:
        transport.close()
