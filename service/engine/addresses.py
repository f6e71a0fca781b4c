"""The addresses that a webhook may have: public ones only, unless private ones are allowed.

A name is resolved once for each message. All its addresses must be public, and the connection goes to one of the
addresses that were checked here, so that a name which changes a moment later (DNS rebinding) gains nothing.
"""

import re
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx


Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Sequence[Address]]
NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")
GLOBAL_UNICAST = IPv6Network("2000::/3")  # the part in use; the standard library also calls much of the rest global
NAT64 = IPv6Network("64:ff9b::/96")
PRIVATE = "is private; UNDERCURRENT_WEBHOOK_PRIVATE=true allows such addresses"


class AddressError(Exception):
    """A message cannot go there. The text says why, without revealing an address of an internal network."""


class Target(NamedTuple):
    """The parts of a webhook's address."""

    url: "httpx.URL"
    host: str  # in ASCII, an IPv6 address without its brackets
    port: int

    @property
    def literal(self) -> Address | None:
        """The address that the host stands for, in any notation; None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            pass
        try:  # 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to every resolver
            return IPv4Address(socket.inet_aton(self.host.rstrip(".")))
        except (OSError, UnicodeError):
            return None

    def require_public(self, addresses: Sequence[Address] = ()) -> None:
        """Refuse a private host: by its name, or if any of its addresses is, since a connection might get that one."""
        literal, top_level = self.literal, self.host.rstrip(".").lower().rpartition(".")[2]
        known = [*addresses] if literal is None else [*addresses, literal]
        if top_level == "localhost" or not all(map(is_public, known)):
            raise AddressError(PRIVATE)


def parse_target(url: str) -> Target:
    import httpx  # takes 6 MiB, which a service without webhooks saves

    try:
        parsed = httpx.URL(url)
        host, port = parsed.raw_host.decode("ascii"), parsed.port
    except (httpx.InvalidURL, UnicodeError) as error:  # the IDNA library raises the latter
        raise AddressError(f"is not an address: {error}") from None
    if ":" not in host and not NAME.fullmatch(host):
        raise AddressError("has a host that is neither a name nor an address")
    if port is not None and not 1 <= port <= 65535:
        raise AddressError("has a port that does not exist")
    return Target(parsed, host, port or (443 if parsed.scheme == "https" else 80))


def is_public(address: Address) -> bool:
    """Is the address one of the public internet? Of an IPv6 address that embeds an IPv4 one, the latter counts."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    inner = address.ipv4_mapped or address.sixtofour
    if address in NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    return address.is_global and address in GLOBAL_UNICAST


def resolve_host(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host, in the order in which to try them. This blocks."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressError("has a host that cannot be resolved") from None
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in entries))
