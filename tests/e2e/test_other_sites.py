"""In a real browser: the API's documentation under its strict policy, and attacks from another site's page."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.browser import PATIENCE_MS, Window
from tests.service.answers import good
from tests.service.conftest import Clock, Worker
from tests.service.scraping import Scrape
from tests.service.test_auth import CONFIG

LOGO = "cdn.redoc.ly/redoc/logo-mini.svg"  # ReDoc's own; the policy blocks it, and the browser logs that
# What a page may send anywhere without a preflight, and what needs one.
ATTACK = """<!DOCTYPE html><title>another site</title><body><script>
window.attack = async (target) => {
  const body = JSON.stringify({name: "stolen", actions: ["a", "b"], variables: [{name: "v", levels: ["0", "1"]}]});
  const results = [];
  const attempt = async (what, run) => {
    try { results.push([what, await run()]); } catch { results.push([what, "failed"]); }
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
  const opening = body.slice(0, -1) + ',"regime_labels":["';  // the equals sign that the form adds becomes a label
  const field = Object.assign(document.createElement("input"), {name: opening, value: '"]}'});
  const sink = Object.assign(document.createElement("iframe"), {name: "form"});
  form.action = `${target}/campaigns`; form.append(field); document.body.append(sink, form);
  await new Promise((done) => { sink.onload = done; form.submit(); });
  return results;
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


def test_the_documentation_works_under_its_policy(worker, browser):
    """Swagger UI sends a request, ReDoc searches; the policy stops nothing but a logo from another host."""
    with Window(browser, worker.url) as window:
        page = window.open("/docs")
        page.locator("#operations-operations-healthz_healthz_get .opblock-summary").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table").get_by_text('"ok"').first.wait_for()
        window.open("/redoc").get_by_role("heading", name="Undercurrent").wait_for()
        page.get_by_role("textbox").first.fill("rollback")
        page.locator("[data-role='search:results']").get_by_text("Rollback").wait_for()
        window.complaints = [one for one in window.complaints if LOGO not in one and "host: blob:" not in one]


def count_refusals(worker: Worker) -> float:
    """How many requests were answered 403 so far."""
    return Scrape(worker.client).by("requests_total", "status").get("403", 0)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_sites_page_can_do_nothing(worker, browser, name):
    """The attacker is on another port, as close as another site can be: same site, different origin."""
    before = count_refusals(worker)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"http://{name}:{server.server_port}/")
        results = dict(page.evaluate("target => window.attack(target)", worker.url))
        context.close()
        server.shutdown()
    assert results.pop("beacon") is True  # it was sent
    assert results.pop("frame") in ("unreadable", "empty")
    assert set(results.values()) <= {"opaque", "failed"}  # nothing was read
    assert count_refusals(worker) - before >= 5  # they arrived: three without a preflight, a beacon, a form
    assert [campaign["name"] for campaign in good(worker.client.get("/campaigns"))["campaigns"]] == ["spring"]
