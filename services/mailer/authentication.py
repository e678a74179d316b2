"""Whether a mail comes from whom its From says: a pass of SPF or DKIM for a domain that is aligned with From's (RFC 7489, 3.1).

Two sources, never mixed: the Authentication-Results of the relay that we trust (RFC 8601), or our own check.
"""

import asyncio
import ipaddress
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.mailer.parsing import Mail
from services.mailer.spf import DnsTrouble, Spf

if TYPE_CHECKING:
    from dns.resolver import Resolver

_DNS_SECONDS = 5.0
_SIGNATURES = 5
_RELAY_HEADERS = 10
_LATER = "temperror"
_THREADS = 8


@dataclass(frozen=True)
class Peer:
    """Who handed a mail over. `ip` None: a provider over HTTP, who showed the secret. `sender` is the envelope's, empty for `<>`."""

    ip: str | None
    helo: str = ""
    sender: str = ""


class Unproven(Exception):
    """Nothing shows that the mail comes from whom it says; `temporary` when DNS may know later."""

    def __init__(self, why: str, *, temporary: bool = False) -> None:
        super().__init__(why)
        self.temporary = temporary


def aligned(domain: str, author: str) -> bool:
    """Whether a proven domain speaks for the author's: the same, or one below the other. Siblings do not, so that no list is needed."""
    low, high = sorted((domain.lower().rstrip("."), author.lower().rstrip(".")), key=len)
    return low == high or ("." in low and high.endswith(f".{low}"))


class SenderCheck:
    """Proves senders. `relay` is the authserv-id that counts, `networks` the addresses from which it may come over SMTP."""

    def __init__(self, relay: str | None, networks: tuple[str, ...], resolver: "Resolver | None" = None) -> None:
        self._relay = relay.lower() if relay else None
        self._networks = [ipaddress.ip_network(n, strict=False) for n in networks]
        self._resolver = resolver
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prove")  # slow names of strangers keep nothing else waiting

    async def proven(self, raw: bytes, mail: Mail, peer: Peer) -> str:
        """`prove`, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.prove, raw, mail, peer)

    def prove(self, raw: bytes, mail: Mail, peer: Peer) -> str:
        """How the sender is proven, in words. Blocks while DNS is asked.

        Raises:
            Unproven: nothing proves it.
        """
        author = (mail.sender or "@").rpartition("@")[2]
        if self._relay is not None and self._believes(peer):
            return by_relay(mail, self._relay, author)
        try:
            return self._own(raw, peer, author)
        except DnsTrouble as error:
            raise Unproven(f"DNS gives no answer about {author}: {error}", temporary=True) from error

    def _believes(self, peer: Peer) -> bool:
        return peer.ip is None or any(ipaddress.ip_address(peer.ip) in network for network in self._networks)

    def _own(self, raw: bytes, peer: Peer, author: str) -> str:
        strict = self._strict(author)
        seen: list[str] = []
        for domain, result in self._dkim(raw, mail_headers=b"message-id" in raw[:262_144].lower()):
            if result == "pass" and _fits(domain, author, strict["adkim"]):
                return f"dkim=pass {domain}"
            seen.append(f"dkim={result} {domain}")
        if peer.ip is not None:
            check = Spf(self.look, peer.ip, peer.sender, peer.helo)
            try:
                result = check.result()
            except DnsTrouble:
                result = _LATER
            if result == "pass" and _fits(check.domain, author, strict["aspf"]):
                return f"spf=pass {check.domain}"
            seen.append(f"spf={result} {check.domain}")
        later = any(f"={_LATER} " in words for words in seen)
        raise Unproven(
            f"nothing proves that this mail comes from {author}: {', '.join(seen) or 'it has no DKIM signature'}", temporary=later
        )

    def _strict(self, author: str) -> dict[str, bool]:
        """Whether the author's DMARC record wants the very same domain (RFC 7489, 6.3); the first record from the domain upwards."""
        labels = author.split(".")
        for start in range(min(len(labels) - 1, 4)):
            for record in self.look(f"_dmarc.{'.'.join(labels[start:])}", "TXT"):
                if record.lower().startswith("v=dmarc1"):
                    tags = dict(re.findall(r"([a-z]+)\s*=\s*([^;\s]*)", record.lower()))
                    return {tag: tags.get(tag) == "s" for tag in ("adkim", "aspf")}
        return {"adkim": False, "aspf": False}

    def _dkim(self, raw: bytes, *, mail_headers: bool) -> list[tuple[str, str]]:
        """Domain and result of the first signatures. One that leaves a part of the body or the Message-ID open proves nothing."""
        import dkim

        def key(name: bytes, timeout: int = 5) -> bytes | None:
            found = self.look(name.decode("ascii", "replace").rstrip("."), "TXT")
            return found[0].encode() if found else None

        try:
            verifier = dkim.DKIM(raw)
        except dkim.DKIMException:
            return []
        found: list[tuple[str, str]] = []
        for number in range(min(_SIGNATURES, sum(1 for name, _ in verifier.headers if name.lower() == b"dkim-signature"))):
            try:
                good = verifier.verify(number, key)
            except DnsTrouble:
                good = None
            except Exception:  # noqa: BLE001 - a library on a stranger's bytes: whatever it meets, the signature proves nothing
                good = False
            fields: dict[bytes, bytes] = getattr(verifier, "signature_fields", {})
            signed = fields.get(b"h", b"").lower().split(b":")
            whole = b"l" not in fields and (not mail_headers or b"message-id" in [name.strip() for name in signed])
            domain = fields.get(b"d", b"").decode("ascii", "replace").lower()
            result = _LATER if good is None else "fail" if not good else "pass" if whole else "incomplete"
            found.append((domain, result))
        return found

    def look(self, name: str, kind: str) -> list[str]:
        """What DNS holds. Raises DnsTrouble."""
        import dns.exception
        import dns.resolver

        try:
            answer: Any = (self._resolver or dns.resolver.get_default_resolver()).resolve(name, kind, lifetime=_DNS_SECONDS, search=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, ValueError, OSError) as error:
            raise DnsTrouble(f"{name}: {type(error).__name__}") from error
        if kind == "TXT":
            return [b"".join(r.strings).decode("utf-8", "replace") for r in answer]
        if kind == "MX":
            return [str(r.exchange).rstrip(".") for r in sorted(answer, key=lambda r: r.preference)]
        return [str(r.address) for r in answer]


def _fits(domain: str, author: str, strict: bool) -> bool:
    return domain == author if strict else aligned(domain, author)


def by_relay(mail: Mail, relay: str, author: str) -> str:
    """What the relay's Authentication-Results say. The topmost DMARC result decides; without one, an aligned DKIM or SPF pass.

    Raises:
        Unproven: they do not prove it, or there are none.
    """
    import authres  # type: ignore[import-untyped]  # it has no types

    results: list[Any] = []
    for value in mail.all("Authentication-Results")[:_RELAY_HEADERS]:
        try:
            header = authres.AuthenticationResultsHeader.parse(f"Authentication-Results: {value}")
        except (authres.AuthResError, ValueError, AttributeError, TypeError, RecursionError):
            continue
        if str(header.authserv_id or "").lower() == relay:
            results.extend(header.results)
    dmarc = next((r for r in results if r.method == "dmarc" and r.result != "none"), None)
    if dmarc is not None:
        of = _property(dmarc, "from") or author
        if dmarc.result == "pass" and of == author:
            return f"dmarc=pass {author} ({relay})"
        raise Unproven(f"{relay} says dmarc={dmarc.result} for {of}", temporary=dmarc.result == "temperror")
    for result in results:
        domain = _property(result, "d", "i") if result.method == "dkim" else _property(result, "mailfrom", "helo")
        if result.method in ("dkim", "spf") and result.result == "pass" and domain and aligned(domain, author):
            return f"{result.method}=pass {domain} ({relay})"
    said = ", ".join(f"{r.method}={r.result}" for r in results[:8]) or "nothing"
    raise Unproven(f"nothing proves that this mail comes from {author}: {relay} says {said}")


def _property(result: Any, *names: str) -> str:
    for name in names:
        for item in result.properties:
            if item.name == name:
                return str(item.value).strip("\"'<>").rpartition("@")[2].lower()
    return ""
