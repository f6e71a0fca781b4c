"""A real browser, Debian's Chromium: windows that record what goes wrong in their pages, and accessibility checks."""

import re
from typing import Any, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page

PATIENCE_MS = 30_000  # for what takes a second on a quiet machine
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")


class Window:
    """One user's browser at one service. Leaving it fails on errors in a page and on requests to any other host."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.expected: set[int] = set()  # statuses that the test provokes; Chromium logs each as an error
        self.complaints: list[str] = []
        self._context = browser.new_context(base_url=url, locale="en-GB")
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.on("console", self._check_console)
        self._context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        self._context.on("dialog", self._refuse_dialog)
        self._context.on("request", lambda request: self._check_request(request.url))
        self.page: Page = self._context.new_page()

    def open(self, path: str) -> Page:
        """Go to a page and wait until its requests are done."""
        self.page.goto(path, wait_until="networkidle")
        return self.page

    def open_all(self, paths: list[str]) -> list[Page]:
        """Open each page in a tab of its own. They load side by side."""
        pages = [self._context.new_page() for _ in paths]
        for page, path in zip(pages, paths, strict=True):
            page.goto(path, wait_until="commit")
        for page in pages:
            page.wait_for_load_state("networkidle")
        return pages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._context.close()
        assert failure or not self.complaints, "\n".join(self.complaints)

    def _check_console(self, message: ConsoleMessage) -> None:
        refused = REFUSED.match(message.text)
        expected = refused is not None and int(refused[1]) in self.expected
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(f"console: {message.text} ({message.location['url']})")

    def _refuse_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _check_request(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.complaints.append(f"request to another host: {url}")


def find_violations(page: Page, *rules: str) -> list[str]:
    """The accessibility problems that axe calls serious or critical, by all of its rules or only by these."""
    return [
        f"{violation['id']} ({violation['impact']}): {violation['help']}: {node['target']} {node['html'][:120]}"
        for violation in Axe().run(page, options={"runOnly": rules} if rules else None).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
