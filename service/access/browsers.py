"""What a service without keys owes to browsers on its machine: that no other site's page can use it through them.

Without keys whoever reaches the service may do everything, and it listens on the loopback address only. But a page of
any site can make a browser on that machine send requests to it (drive-by), or give its own name this machine's address
and be taken for one of ours (DNS rebinding). So requests must name this machine, and those that may change something
must not come from another site's page. Programs send no header that says they do, and notice nothing.

With keys nothing of this is needed: another site's page has none, and a cookie alone changes nothing (access/auth.py).
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from service.base.errors import ForbiddenError

__all__ = ["Visitors"]

READS = frozenset({"GET", "HEAD", "OPTIONS"})  # change nothing (R25); what they answer, other sites cannot read
OURS = frozenset({b"same-origin", b"none"})  # of Sec-Fetch-Site: one of our pages, or nobody's: an address bar
MOST_KNOWN = 100  # hosts that are remembered as good


class Visitors:
    """Refuses what comes through a browser from elsewhere; `names` are ours beside localhost."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_name_of(f"[{name}]" if name.count(":") > 1 else name) for name in names}
        self._known = {b""}  # browsers always name one

    def admit(self, scope: Scope) -> None:
        """Refuse a request for another machine, or one that may change something from another site's page."""
        host, site, origin = b"", None, None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"origin":
                origin = value
        if host not in self._known:
            self._require_ours(host)
        if (site or origin) and scope["method"] not in READS and not self._from_us(host, site, origin):
            raise ForbiddenError(
                "This request comes from another site's page. A service without keys takes changes from programs and "
                "from its own pages only; create a key (undercurrent keys create) for others"
            )

    def _require_ours(self, host: bytes) -> None:
        if not self._is_ours(_name_of(host.decode("latin-1"))):
            raise ForbiddenError(
                f"Nobody knows this service as {host.decode('latin-1')!r:.100}: without keys it answers to localhost "
                "and to names in UNDERCURRENT_ALLOWED_HOSTS only"
            )
        if len(self._known) < MOST_KNOWN:
            self._known.add(host)

    def _is_ours(self, name: str) -> bool:
        """Is it a name of this machine that nobody else can have?"""
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    @staticmethod
    def _from_us(host: bytes, site: bytes | None, origin: bytes | None) -> bool:
        """Browsers say it themselves, and no page can make them lie; older ones tell the page's origin only."""
        if site is not None:
            return site in OURS
        try:
            where = urlsplit((origin or b"").decode("latin-1")).netloc.lower()
        except ValueError:  # no browser's
            return False
        return where == host.decode("latin-1").lower() != ""


def _name_of(host: str) -> str:
    """A host without its port and brackets, in small letters; empty if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
