"""Takes the screenshots in this folder: every page of the dashboard, light and dark, with the demo campaign.

`.venv/bin/python docs/dashboard/screenshots.py` starts a service on a temporary database, presses the demo's button
and takes the screenshots with Playwright and the installed Chromium.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

TARGET = Path(__file__).parent
UNDERCURRENT = Path(sys.executable).with_name("undercurrent")
WIDTH, SCREEN = 1280, 800
DECISION = "demo-1431"


@contextmanager
def serve(database: str) -> Iterator[str]:
    """Start a service and yield its address."""
    command = [UNDERCURRENT, "serve", "--port", "0", "--database-url", database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        if address is None:
            raise SystemExit("The service did not start.")
        yield address[0]
    finally:
        process.terminate()
        process.wait()


def take_screenshots(page: Page, *parts: tuple[str, str | None]) -> None:
    """Save the page, light and dark, cut into parts: the name of each, and the selector where the next one starts."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)  # until transitions have ended
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        top = 0
        for name, next_part in parts:
            box = page.locator(next_part).bounding_box() if next_part else None
            end = round(box["y"]) - 8 if box else whole.height
            save(whole.crop((0, top, whole.width, end)), f"{name}-{scheme}")
            top = end
    page.emulate_media(color_scheme="light")


def save(picture: Image.Image, name: str) -> None:
    path = TARGET / f"{name}.png"
    # Keeping the 256 most common colours makes the file a third as large and leaves backgrounds and lines exact.
    pixels = np.asarray(picture).reshape(-1, 3).astype(np.int64)
    packed, place, count = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    common = colours[np.argsort(-count)[:256]]
    nearest = ((colours[:, None] - common) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    small = Image.fromarray(nearest[place].reshape(picture.height, picture.width))
    small.putpalette(common.astype(np.uint8).tobytes())
    small.save(path, optimize=True)
    print(f"{path.name}: {picture.width} × {picture.height}, {path.stat().st_size / 1024:.0f} KB")


def fill_in_form(page: Page) -> None:
    """Fill in the form for a new campaign, with one mistake."""
    page.fill("#name", "spring-offers")
    page.click("#add-action")
    for number, action in enumerate(("no offer", "mail", "call"), 1):
        page.fill(f"#action-{number}", action)
    page.fill("#variable-1-name", "risk")
    page.fill("#variable-1-levels", "low, middle, high")
    page.fill("#share", "10 %")
    expect(page.locator("#share-error")).not_to_be_empty()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        database = f"sqlite:///{folder}/screenshots.db"
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with serve(database) as address:
            page = browser.new_page(viewport={"width": WIDTH, "height": SCREEN}, locale="en-GB")
            page.goto(address)
            expect(page.locator("#curl")).not_to_be_empty()
            take_screenshots(page, ("welcome", None))
            page.click("#demo")
            page.wait_for_url("**/view/demo", timeout=120_000)
            expect(page.locator("#policies table")).to_be_visible()
            take_screenshots(
                page, ("campaign", "#actions"), ("campaign-earns", "#transition"), ("campaign-model", None)
            )
            page.goto(f"{address}/view/demo/decision#{DECISION}")
            expect(page.locator(".scores").first).to_be_visible()
            take_screenshots(page, ("decision", None))
            page.goto(f"{address}/view/demo/try")
            expect(page.locator("#preview .scores").first).to_be_visible()
            take_screenshots(page, ("try", None))
            page.goto(f"{address}/new")
            fill_in_form(page)
            take_screenshots(page, ("new", None))
            page.goto(address)
            expect(page.locator(".campaigns .verdict")).to_be_visible()
            page.set_viewport_size({"width": WIDTH, "height": 300})  # one campaign leaves most of a screen empty
            take_screenshots(page, ("campaigns", None))
            page.set_viewport_size({"width": WIDTH, "height": SCREEN})
            key = [UNDERCURRENT, "keys", "create", "--role", "viewer", "--name", "anyone", "--database-url", database]
            subprocess.run(key, check=True, capture_output=True)
            page.goto(f"{address}/login")
            page.wait_for_timeout(1_500)  # until the service has loaded the key
            page.reload()
            expect(page.locator("#key")).to_be_enabled()
            take_screenshots(page, ("login", None))
        browser.close()


if __name__ == "__main__":
    main()
