"""Where a webhook may point: to public addresses only, unless private ones are allowed.

A name is resolved once a message, every address that it has must be public, and the connection goes to an address that
was looked at here: a name that means something else a moment later (DNS rebinding) gains nothing.
"""

import re
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx

__all__ = ["AddressError", "Resolve", "Target", "public_only", "resolved", "target_of"]

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Sequence[Address]]
NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")
GLOBAL_UNICAST = IPv6Network("2000::/3")  # all that is in use; the standard library calls much of the rest global too
NAT64 = IPv6Network("64:ff9b::/96")
PRIVATE = "is private; UNDERCURRENT_WEBHOOK_PRIVATE=true allows such addresses"


class AddressError(Exception):
    """A message cannot go there; the text says why and tells no address of an inner network."""


class Target(NamedTuple):
    """A webhook's address, taken apart."""

    url: "httpx.URL"
    host: str  # in ASCII, an IPv6 address without its brackets
    port: int

    def at(self, address: Address) -> "httpx.URL":
        """The same, but of one machine."""
        return self.url.copy_with(host=str(address))

    @property
    def literal(self) -> Address | None:
        """The address that the host is, however it is written; None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            pass
        try:  # 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to every resolver
            return IPv4Address(socket.inet_aton(self.host.rstrip(".")))
        except (OSError, UnicodeError):
            return None

    def check(self) -> None:
        """Refuse what is private whatever a resolver says."""
        literal, name = self.literal, self.host.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost") or (literal is not None and not is_public(literal)):
            raise AddressError(PRIVATE)


def target_of(url: str) -> Target:
    """The parts of an address that a configuration allows."""
    import httpx  # 6 MiB that a service without webhooks does not need

    try:
        parsed = httpx.URL(url)
        host, port = parsed.raw_host.decode("ascii"), parsed.port
    except (httpx.InvalidURL, UnicodeError) as error:  # the IDNA library's errors are of the second kind
        raise AddressError(f"is not an address: {error}") from None
    if ":" not in host and not NAME.fullmatch(host):
        raise AddressError("has a host that is neither a name nor an address")
    if port is not None and not 1 <= port <= 65535:
        raise AddressError("has a port that does not exist")
    return Target(parsed, host, port or (443 if parsed.scheme == "https" else 80))


def is_public(address: Address) -> bool:
    """Can anyone on the internet have it? Of an IPv4 address inside an IPv6 one, that one must be."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    inner = address.ipv4_mapped or address.sixtofour
    if address in NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    return address.is_global and address in GLOBAL_UNICAST


def resolved(host: str, port: int) -> Sequence[Address]:
    """The addresses of a host, in the order in which they should be tried; blocks."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressError("has a host that cannot be resolved") from None
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


def public_only(addresses: Sequence[Address]) -> None:
    """Refuse a host if any of its addresses is private: which one a connection gets would be a matter of luck."""
    if not all(map(is_public, addresses)):
        raise AddressError(PRIVATE)
