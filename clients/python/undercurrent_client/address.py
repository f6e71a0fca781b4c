"""How the clients connect: the address of the service, and the settings of httpx that follow from it."""

from typing import Any

import httpx

from undercurrent_client.errors import MismatchError
from undercurrent_client.version import __version__

TIMEOUT = 10.0  # seconds to connect, to send, and between two parts of an answer
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def parse_address(url: str) -> httpx.URL:
    """Parse the address of a service; refuse anything else."""
    try:
        address = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL:
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host:
        raise MismatchError(f"{url!r} is not the address of a service, like http://127.0.0.1:8000")
    return address


def choose_settings(address: httpx.URL, key: str | None) -> dict[str, Any]:
    """Choose the settings that both of httpx's clients take."""
    headers = {"content-type": "application/json", "user-agent": f"undercurrent-client/{__version__}"}
    return {
        "base_url": address,
        "headers": headers | ({"authorization": f"Bearer {key}"} if key else {}),
        "verify": address.scheme == "https",  # loading certificates that nobody needs takes a while
        "trust_env": address.host not in LOCAL_HOSTS,  # a company proxy cannot reach services on this machine
    }
