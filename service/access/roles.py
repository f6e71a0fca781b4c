"""Who may call a route. Each endpoint declares it with `@allow`; the routes carry it, and `Keys.admit` enforces it."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

ROLES = ("admin", "client", "viewer")
ANYONE: frozenset[str] = frozenset()  # no key is needed
ADMINS = frozenset({"admin"})
DECIDERS = frozenset({"admin", "client"})
READERS = frozenset(ROLES)
WATCHERS = frozenset({"admin", "viewer"})
DECLARED = "undercurrent_access"  # the attribute of an endpoint that holds its declaration
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
CampaignSource = Literal["path", "body", "list", "among"]


class Access(NamedTuple):
    """Which roles may call a route, and how it is limited to the campaigns of the key.

    `path`: the path names the campaign, as `{name}`. `body`: the body names it; a lean route checks that. `list`: the
    answer only covers the key's campaigns. `among`: the route looks for its campaign among the key's. None: the route
    concerns the whole service, so a key limited to some campaigns cannot call it.
    """

    roles: frozenset[str]
    campaign: CampaignSource | None = None

    @property
    def is_public(self) -> bool:
        return not self.roles


def allow(roles: frozenset[str], campaign: CampaignSource | None = None) -> Callable[[Endpoint], Endpoint]:
    """Declare which roles may call an endpoint. A route without this declaration cannot be added."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, DECLARED, Access(roles, campaign))
        return endpoint

    return declare


def get_access(endpoint: Callable[..., Any]) -> Access:
    """Return what `@allow` declared; it is an error to have declared nothing."""
    access: Access | None = getattr(endpoint, DECLARED, None)
    if access is None:
        name = getattr(endpoint, "__qualname__", endpoint)
        raise TypeError(f"{name} does not declare who may call it: decorate it with @allow")
    return access
