"""In a real browser: the API's documentation under its strict policy, and what another site's page can do to us."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.browser import PATIENCE_MS, Window, chromium
from tests.service.answers import good
from tests.service.conftest import Clock, Worker
from tests.service.scraping import Scrape
from tests.service.test_auth import CONFIG

LOGO = "cdn.redoc.ly/redoc/logo-mini.svg"  # ReDoc's own; the browser does not fetch it, and says so
# Everything that a page may send anywhere without a preflight, and what is only sent after one.
ATTACK = """<!DOCTYPE html><title>another site</title><body><script>
window.attack = async (target) => {
  const body = JSON.stringify({name: "stolen", actions: ["a", "b"], variables: [{name: "v", levels: ["0", "1"]}]});
  const told = [];
  const attempt = async (what, run) => {
    try { told.push([what, await run()]); } catch { told.push([what, "failed"]); }
  };
  for (const type of ["text/plain", "application/x-www-form-urlencoded", "application/json"])
    for (const mode of ["no-cors", "cors"])
      await attempt(`${mode} ${type}`, async () => {
        const headers = {"content-type": type};
        const answer = await fetch(`${target}/campaigns`, {method: "POST", mode, body, headers});
        return answer.type === "opaque" ? "opaque" : answer.status;
      });
  await attempt("beacon", async () => navigator.sendBeacon(`${target}/campaigns`, body));
  await attempt("read", async () => (await fetch(`${target}/campaigns`)).status);
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => { try { done(frame.contentDocument.title || "empty"); } catch { done("unreadable"); } };
    frame.src = `${target}/`; document.body.append(frame);
  }));
  const form = Object.assign(document.createElement("form"), {method: "POST", enctype: "text/plain", target: "form"});
  const begun = body.slice(0, -1) + ',"regime_labels":["';  // what the form adds, an equals sign, is a label
  const field = Object.assign(document.createElement("input"), {name: begun, value: '"]}'});
  const sink = Object.assign(document.createElement("iframe"), {name: "form"});
  form.action = `${target}/campaigns`; form.append(field); document.body.append(sink, form);
  await new Promise((done) => { sink.onload = done; form.submit(); });
  return told;
};
</script>"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(ATTACK.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def worker(new_database) -> Iterator[Worker]:
    worker = Worker(new_database("sqlite"), Clock())
    good(worker.client.post("/campaigns", json={"name": "spring", **CONFIG}), 201)
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def test_the_documentation_works_under_its_policy(worker, browser):
    """Swagger UI sends a request of its own; no page is stopped by its policy, but for a logo from elsewhere."""
    window = Window(browser, worker.url)
    page = window.open("/docs")
    page.locator("#operations-operations-healthz_healthz_get .opblock-summary").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table").get_by_text('"ok"').first.wait_for()
    window.open("/redoc").get_by_role("heading", name="Undercurrent").wait_for()
    page.get_by_role("textbox").first.fill("rollback")
    page.locator("[data-role='search:results']").get_by_text("Rollback").wait_for()
    window.complaints = [one for one in window.complaints if LOGO not in one and "elsewhere: blob:" not in one]
    window.close()


def refusals(worker: Worker) -> float:
    """Requests that were answered 403 so far."""
    return Scrape(worker.client).by("requests_total", "status").get("403", 0)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_sites_page_can_do_nothing(worker, browser, name):
    """It is on another port, as near as another site can be: the same site, but not the same origin."""
    before = refusals(worker)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"http://{name}:{server.server_port}/")
        told = dict(page.evaluate("target => window.attack(target)", worker.url))
        context.close()
        server.shutdown()
    assert told.pop("beacon") is True  # it was sent
    assert told.pop("frame") in ("unreadable", "empty")
    assert set(told.values()) <= {"opaque", "failed"}  # nothing was read
    assert refusals(worker) - before >= 5  # they came: three without asking, a beacon, a form
    assert [campaign["name"] for campaign in good(worker.client.get("/campaigns"))["campaigns"]] == ["spring"]
