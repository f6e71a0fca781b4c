"""Protects a service without keys from other sites' pages in a browser on the same machine.

Without keys, anyone who reaches the service may do everything, so it listens on the loopback address only. But any page
in a browser on that machine can send requests there (drive-by), or give its own host name this machine's address and
pass for one of our pages (DNS rebinding). So a request must name this machine as its host, and one that could change
something must not come from another site's page. Programs do not send the headers that are checked, so nothing changes
for them.

With keys none of this is needed: another site's page has no key, and a cookie alone changes nothing (keys.py).
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from service.base.errors import ForbiddenError

READS = frozenset({"GET", "HEAD", "OPTIONS"})  # change nothing (R25); other sites cannot read their answers
OWN_SITES = frozenset({b"same-origin", b"none"})  # values of Sec-Fetch-Site: our pages, or the address bar
MOST_KNOWN = 100  # hosts remembered, allowed or not


class Visitors:
    """Refuses requests that other sites' pages make. `names` are further names of this service besides localhost."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_parse_host(f"[{name}]" if name.count(":") > 1 else name) for name in names}
        self._is_own_host = lru_cache(MOST_KNOWN)(self._check_host)  # the same few hosts come with every request

    def admit(self, scope: Scope) -> None:
        """Refuse a request for another host, or one from another site's page that could change something."""
        headers = dict(scope["headers"])
        host, site, origin = headers.get(b"host", b""), headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if host and not self._is_own_host(host):  # programs may send no host; browsers always do
            raise ForbiddenError(
                f"Host {host.decode('latin-1')!r:.100} is not allowed: a service without keys only answers to "
                "localhost and to the names in UNDERCURRENT_ALLOWED_HOSTS"
            )
        if (site or origin) and scope["method"] not in READS and not self._is_own_page(host, site, origin):
            raise ForbiddenError(
                "This request comes from another site's page. A service without keys only accepts changes from "
                "programs and from its own pages; create a key (undercurrent keys create) for others"
            )

    def _check_host(self, host: bytes) -> bool:
        """Return whether this is a name of this machine that no other machine can have."""
        name = _parse_host(host.decode("latin-1"))
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    @staticmethod
    def _is_own_page(host: bytes, site: bytes | None, origin: bytes | None) -> bool:
        """Return whether a request comes from our pages. Old browsers send only Origin; no page can forge either."""
        if site is not None:
            return site in OWN_SITES
        try:
            site_host = urlsplit((origin or b"").decode("latin-1")).netloc.lower()
        except ValueError:  # no browser sends this
            return False
        return site_host == host.decode("latin-1").lower() != ""


def _parse_host(host: str) -> str:
    """Return a host without its port and brackets, in lower case; empty if it is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
