"""A real browser, Debian's Chromium: pages that are watched for errors, and what axe finds in them."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

MISSING = (
    "There is no Chromium for the browser tests. Install it: apt-get install chromium (as `make test` does for root)"
)
PATIENCE_MS = 30_000  # for what takes a second on a quiet machine
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser. Without one a test is skipped, except in CI: there it fails."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        # Containers give Chromium neither its sandbox nor much shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Window:
    """One person's browser at one service. `close` fails if a page complained, or asked anyone but the service."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.expected: set[int] = set()  # statuses that the test provokes: Chromium logs each as an error
        self.complaints: list[str] = []
        self._context = browser.new_context(base_url=url, locale="en-GB", **options)
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self._request(request.url))

    def open(self, path: str) -> Page:
        """The page, as soon as it asks for nothing more."""
        self.page.goto(path, wait_until="networkidle")
        return self.page

    def cookies(self) -> list[str]:
        return [cookie["name"] for cookie in self._context.cookies()]

    def close(self) -> None:
        self._context.close()
        assert not self.complaints, "\n".join(self.complaints)

    def _console(self, message: ConsoleMessage) -> None:
        refused = REFUSED.match(message.text)
        expected = refused is not None and int(refused[1]) in self.expected
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(f"console: {message.text} ({message.location['url']})")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.complaints.append(f"asked elsewhere: {url}")


def serious(page: Page) -> list[str]:
    """What axe calls serious or critical, with where it is."""
    found = Axe().run(page).response["violations"]
    return [
        f"{violation['id']} ({violation['impact']}): {violation['help']}: {node['target']} {node['html'][:120]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
