"""The routes of the application, with who may call each."""

from functools import cache
from tempfile import gettempdir
from typing import NamedTuple

from starlette.routing import Mount, Route

from service.access.roles import Access
from service.base.settings import Settings
from service.cli.application import create_app
from service.web.routing import find_access

__all__ = ["ServedRoute", "list_routes"]


class ServedRoute(NamedTuple):
    """A method and a path that the application answers; a mount of files has method `*`."""

    method: str
    path: str
    access: Access
    is_lean: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def allows(self, role: str) -> bool:
        return self.access.is_public or role in self.access.roles


@cache
def list_routes() -> tuple[ServedRoute, ...]:
    """List all routes. A route that does not declare who may call it is an error."""
    app = create_app(Settings(database_url=f"sqlite:///{gettempdir()}/never-opened.db"))
    routes = []
    for route in app.api.routes:
        access = find_access(route)
        if isinstance(route, Mount):
            routes.append(ServedRoute("*", f"{route.path}/{{path:path}}", access))
        else:
            assert isinstance(route, Route), f"{route} is of an unknown kind"
            routes += [
                ServedRoute(method, route.path, access, route.path in app.lean)
                for method in sorted(route.methods or ())
            ]
    return tuple(routes)
