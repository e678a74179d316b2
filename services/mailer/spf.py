"""Sender Policy Framework (RFC 7208): may this address send for that domain? Asks DNS through a function, so that tests bring their own."""

import ipaddress
import re
from collections.abc import Callable

MAX_LOOKUPS, MAX_VOID, MAX_HOSTS = 10, 2, 10
Ask = Callable[[str, str], list[str]]
"""`(name, type)` to what DNS holds: texts, addresses, or mail servers; empty when there is nothing. Raises DnsTrouble."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_RESULTS = {"+": "pass", "-": "fail", "~": "softfail", "?": "neutral"}
_TERM = re.compile(
    r"([+?~-]?)(all|include|a|mx|ptr|ip4|ip6|exists)"
    r"(?::([^/\s]*(?:/(?!/?\d)[^/\s]*)*))?((?:/\d{1,3})?(?://\d{1,3})?)",
    re.IGNORECASE,
)
_MACRO = re.compile(r"%(?:\{([slodiphcrtv])(\d*)(r?)([.+,/_=-]*)\}|([%_-]))", re.IGNORECASE)


class DnsTrouble(Exception):
    """DNS gives no answer now."""


class _Broken(Exception):
    """The record is not one (RFC 7208, permerror)."""


class Spf:
    """One check: of the address that connected, for the envelope sender or, when that is empty, for the name in HELO."""

    def __init__(self, ask: Ask, ip: str, sender: str, helo: str) -> None:
        self._ask = ask
        self._ip: Address = ipaddress.ip_address(ip)
        if isinstance(self._ip, ipaddress.IPv6Address) and self._ip.ipv4_mapped:
            self._ip = self._ip.ipv4_mapped
        self._helo = helo
        self._sender = sender if "@" in sender else f"postmaster@{helo}"
        self.domain = self._sender.rpartition("@")[2].lower().rstrip(".")
        self._lookups = self._void = 0

    def result(self) -> str:
        """`pass`, `fail`, `softfail`, `neutral`, `none` or `permerror`. Raises DnsTrouble."""
        try:
            return self._check(self.domain)
        except _Broken:
            return "permerror"

    def _check(self, domain: str) -> str:
        if not re.fullmatch(r"[a-z0-9_.-]{1,253}", domain) or "." not in domain:
            return "none"
        records = [r for r in self._ask(domain, "TXT") if r.lower() == "v=spf1" or r.lower().startswith("v=spf1 ")]
        if len(records) != 1:
            if records:
                raise _Broken
            return "none"
        redirect = ""
        for term in records[0].split()[1:]:
            if re.match(r"[a-z][a-z0-9_.-]*=", term, re.IGNORECASE):
                name, _, value = term.partition("=")
                redirect = value if name.lower() == "redirect" else redirect
                continue
            found = _TERM.fullmatch(term)
            if found is None:
                raise _Broken
            if self._matches(found[2].lower(), found[3], found[4] or "", domain):
                return _RESULTS[found[1] or "+"]
        return self._redirected(redirect, domain)

    def _redirected(self, redirect: str, domain: str) -> str:
        if not redirect:
            return "neutral"
        self._count()
        result = self._check(self._expand(redirect, domain))
        if result == "none":
            raise _Broken
        return result

    def _matches(self, name: str, given: str | None, cidr: str, domain: str) -> bool:
        if name in ("all", "ip4", "ip6"):
            return name == "all" or self._within([given or ""], cidr)
        self._count()
        target = self._expand(given, domain) if given else domain
        match name:
            case "include":
                return self._included(target)
            case "exists":
                return bool(self._look(target, "A"))
            case "a":
                return self._within(self._addresses(target), cidr)
            case "mx":
                return self._mail_server(target, cidr)
        return False  # ptr: slow and unreliable, "SHOULD NOT be published" (RFC 7208, 5.5)

    def _mail_server(self, target: str, cidr: str) -> bool:
        hosts = self._look(target, "MX")
        if len(hosts) > MAX_HOSTS:
            raise _Broken
        return any(self._within(self._addresses(host), cidr) for host in hosts)

    def _included(self, target: str) -> bool:
        result = self._check(target)
        if result in ("none", "permerror"):
            raise _Broken
        return result == "pass"

    def _within(self, addresses: list[str], cidr: str) -> bool:
        """Whether the client is one of `addresses`, or in their network: `/24` of version 4, `//64` of version 6, `/64` after `ip6:`."""
        four, _, six = cidr.lstrip("/").partition("//") if not cidr.startswith("//") else ("", "", cidr[2:])
        for address in addresses:
            bits = four if "." in address else six or four
            try:
                network = ipaddress.ip_network(f"{address}/{bits}" if bits else address, strict=False)
            except ValueError as error:
                raise _Broken from error
            if network.version == self._ip.version and self._ip in network:
                return True
        return False

    def _addresses(self, name: str) -> list[str]:
        return self._look(name, "A" if self._ip.version == 4 else "AAAA")

    def _look(self, name: str, kind: str) -> list[str]:
        found = self._ask(name, kind)
        self._void += not found
        if self._void > MAX_VOID:
            raise _Broken
        return found

    def _count(self) -> None:
        self._lookups += 1
        if self._lookups > MAX_LOOKUPS:
            raise _Broken

    def _expand(self, text: str, domain: str) -> str:
        """A domain with its macros (RFC 7208, 7)."""
        local = self._sender.rpartition("@")[0]
        dotted = ".".join(f"{int(self._ip):032x}") if self._ip.version == 6 else str(self._ip)
        values = {"s": self._sender, "l": local, "o": self.domain, "d": domain, "i": dotted, "p": "unknown", "h": self._helo}
        values["v"] = "in-addr" if self._ip.version == 4 else "ip6"

        def one(found: re.Match[str]) -> str:
            if found[5]:
                return {"%": "%", "_": " ", "-": "%20"}[found[5]]
            parts = re.split("[" + re.escape(found[4] or ".") + "]", values.get(found[1].lower(), ""))
            parts = parts[::-1] if found[3] else parts
            return ".".join(parts[-int(found[2]) :] if found[2] else parts)

        return _MACRO.sub(one, text).rstrip(".").lower()[-253:]
