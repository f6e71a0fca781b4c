"""The dashboard in a real browser: every page as people use it, with a mouse, with keys, with and without a login."""

import random
import time
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from service.storage.store import Store
from tests.e2e.browser import PATIENCE_MS, Window, chromium, serious
from tests.service.answers import good
from tests.service.conftest import Worker
from tests.service.test_auth import bearer, make

expect.set_options(timeout=PATIENCE_MS)

IMAGE = '<img src=x onerror="window.hacked=1">'
SCRIPT = "<script>window.hacked=1</script>"
QUOTES = "it's \"50 %\" & 'more'"
BREAKOUT = '"><svg onload=window.hacked=1>'
EVIL = (IMAGE, SCRIPT, QUOTES, BREAKOUT)
# Two regimes, told apart by where customers come from; every name in it would do harm as HTML.
MARKET = {
    "name": "market",
    "actions": ["no offer", IMAGE, QUOTES],
    "variables": [{"name": BREAKOUT, "levels": ["search", SCRIPT]}, {"name": "basket", "cuts": [40, 90]}],
    "signals": [BREAKOUT],
    "regimes": 2,
    "beliefs": {
        "estimator": "given",
        "parameters": {
            "transition": [[0.98, 0.02], [0.02, 0.98]],
            "emission": [[0.9, 0.1], [0.1, 0.9]],
            "initial": [0.5, 0.5],
        },
    },
    "regime_labels": [SCRIPT, QUOTES],
    "control": {"share": 0.1},
    "seed": 3,
}
PAGES = {
    "campaigns": "/",
    "campaign": "/view/market",
    "decision": "/view/market/decision#d150",
    "try": "/view/market/try",
    "new": "/new",
    "login": "/login",
}


def now() -> int:
    return time.time_ns() // 1_000


def play(client, campaign, variable, levels, rounds, regime, first=1):
    """So many customers of one regime, over HTTP: mostly with its level, and each regime has an action of its own."""
    chance = random.Random(first)
    for begin in range(first, first + rounds, 50):
        items = [
            {
                "decision_id": f"d{number}",
                "context": {variable: levels[regime if chance.random() < 0.9 else 1 - regime], "basket": 65},
            }
            for number in range(begin, min(begin + 50, first + rounds))
        ]
        decisions = good(client.post("/decide/batch", json={"campaign": campaign, "items": items}))["decisions"]
        actions = good(client.get(f"/campaigns/{campaign}"))["config"]["actions"]
        rewards = [
            {"decision_id": made["decision_id"], "reward": float(made["action"] == actions[1 + regime])}
            for made in decisions
        ]
        good(client.post("/reward/batch", json={"campaign": campaign, "items": rewards}))


def state(client, campaign="market"):
    return good(client.get(f"/campaigns/{campaign}"))


@pytest.fixture(scope="module")
def browser():
    """One for all tests here. Not for the session: while it is open, nothing else in this thread can use asyncio."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def worker(new_database):
    """A service with a campaign whose regime has changed twice."""
    worker = Worker(new_database("sqlite"), now)
    good(worker.client.post("/campaigns", json=MARKET), 201)
    for regime, first in enumerate((1, 101, 201)):
        play(worker.client, "market", BREAKOUT, ["search", SCRIPT], 100, regime % 2, first)
    yield worker
    worker.stop()


@pytest.fixture
def start():
    """Called with a database, a service of the test's own."""
    workers = []

    def start(database):
        workers.append(Worker(database, now))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def opened(browser, start):
    """Called with a service, a window at it. It closes before the service does, and must not have complained."""
    windows = []

    def opened(worker, **options):
        windows.append(Window(browser, worker.url, **options))
        return windows[-1]

    yield opened
    for window in windows:
        window.close()


@pytest.fixture
def window(opened, worker):
    return opened(worker)


def fill_in(page):
    """The form, up to what makes it good."""
    page.get_by_role("textbox", name="Baseline").fill("none")
    page.get_by_role("textbox", name="Action 2").fill("mail")
    page.get_by_role("button", name="Add an action").click()
    page.get_by_role("textbox", name="Action 3").fill("call")
    first = page.get_by_role("group", name="Variable 1")
    first.get_by_label("Name", exact=True).fill("source")
    first.get_by_label("Its levels").fill("shop, web")
    page.get_by_role("button", name="Add a variable").click()
    second = page.get_by_role("group", name="Variable 2")
    second.get_by_label("Name", exact=True).fill("basket")
    second.get_by_label("It is").select_option("range")
    second.get_by_label("From").fill("0")
    second.get_by_label("To", exact=True).fill("100")
    page.get_by_text("Advanced: regimes").click()
    page.get_by_label("Regimes", exact=True).select_option("2")


# --- the ways through the pages ---------------------------------------------------------------------------------------


def test_from_the_form_to_a_regime_change(window, worker):
    """Create a campaign with a mistake on the way, let customers come, and see the page follow by itself."""
    window.expected = {422}
    page = window.open("/new")
    fill_in(page)
    page.get_by_label("What is it called?").fill("My Offers!")
    refused = worker.client.post("/campaigns/check", json={**MARKET, "name": "My Offers!"})
    (problem,) = refused.json()["error"]["fields"]
    told = page.locator("#name-error")
    expect(told).to_contain_text(problem["message"], ignore_case=True)
    expect(page.get_by_label("What is it called?")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("What is it called?").fill("my-offers")
    expect(told).to_have_text("")
    expect(page.locator("#state")).to_contain_text("Ready")
    expect(page.locator("#json")).to_contain_text('"name": "my-offers"')
    expect(page.locator("#command")).to_contain_text(f"curl {worker.url}/campaigns")
    page.get_by_role("button", name="Create the campaign").click()

    page.wait_for_url("**/view/my-offers")
    expect(page.locator("#now")).to_contain_text("No decision yet")
    config = state(worker.client, "my-offers")["config"]
    assert (config["actions"], config["regimes"]) == (["none", "mail", "call"], 2)
    page.evaluate("window.still = true")

    play(worker.client, "my-offers", "source", ["shop", "web"], 200, 0)
    play(worker.client, "my-offers", "source", ["shop", "web"], 200, 1, 201)
    play(worker.client, "my-offers", "source", ["shop", "web"], 200, 0, 401)
    assert state(worker.client, "my-offers")["regimes"] == 2  # both were seen, so it has learned them
    expect(page.locator("#shown")).to_contain_text("rounds 1 to 600")
    belief = page.locator("#belief")
    belief.get_by_text("As a table").click()
    expect(belief.locator("table tbody tr").last).to_contain_text("600")
    before = belief.locator("path.fill").first.get_attribute("d")

    play(worker.client, "my-offers", "source", ["shop", "web"], 100, 1, 601)
    expect(page.locator("#shown")).to_contain_text("rounds 1 to 700")
    expect(belief.locator("table tbody tr").last).to_contain_text("700")
    assert belief.locator("path.fill").first.get_attribute("d") != before
    change = good(worker.client.get("/campaigns/my-offers/series?points=400"))["regime_changes"][-1]
    assert change["since_round"] > 600
    expect(belief.locator(".flag").filter(has_text=f"· {change['since_round']}")).to_be_visible()
    belief.get_by_text("What happened, in words").click()
    expect(belief.locator(".events li").first).to_contain_text(f"from round {change['since_round']} on")
    assert page.evaluate("window.still"), "the page was loaded again"


def test_a_decisions_explanation(window, worker):
    page = window.open("/view/market")
    page.get_by_role("link", name="Why this action?").click()
    page.get_by_label("Decision id").fill("d150")
    page.get_by_role("button", name="Explain").click()
    answer = page.locator("#answer")
    made = good(worker.client.post("/campaigns/market/explain", json={"decision_id": "d150"}))
    expect(answer.locator(".lead strong")).to_have_text(made["action"])
    for score in made["scores"]:
        expect(answer.get_by_role("rowheader", name=score["action"], exact=False).first).to_be_visible()
    expect(answer).to_contain_text("Had the regime been known")
    for regime in made["regimes"]:
        expect(answer).to_contain_text(f"In {regime['label']}: {regime['action']}")
    expect(answer.locator(".big")).to_have_text(f"{made['reward']['reward']:.2f}" if made["reward"]["reward"] else "0")


def test_what_is_typed_before_the_script_is_there_is_kept(window):
    page, held = window.page, []
    page.route("**/decision.js", lambda route: held.append(route))
    page.goto("/view/market/decision", wait_until="commit")
    page.get_by_label("Decision id").fill("d150")
    held[0].continue_()
    page.get_by_role("button", name="Explain").click()  # waits until the script lets it
    expect(page.locator("#answer .lead strong")).to_be_visible()


def test_an_unknown_decision_is_said_to_be_unknown(window):
    window.expected = {404}
    page = window.open("/view/market/decision#nobody")
    expect(page.get_by_role("alert")).to_contain_text("There is no such decision")


def test_a_preview_moves_nothing(window, worker):
    window.expected = {422}
    before = state(worker.client)
    page = window.open("/view/market/try")
    answer = page.locator("#preview")
    for level in ("search", SCRIPT):
        page.get_by_label(BREAKOUT).select_option(level)
        context = {BREAKOUT: level, "basket": 65}
        found = good(worker.client.post("/campaigns/market/preview", json={"context": context}))
        expect(answer.locator(".lead strong").first).to_have_text(found["action"])
        expect(answer).to_contain_text(f"would be round {before['round'] + 1}")
        expect(answer.get_by_label("Belief after").first).to_be_visible()
    page.get_by_label("basket").fill("")
    expect(page.locator("#variable-1-said")).to_have_class("bad said")  # the API's own words, at the field
    page.get_by_label("basket").fill("95")
    expect(page.locator("#variable-1-said")).to_contain_text("counts as")
    assert state(worker.client) == before
    assert len(worker.client.get("/campaigns/market/decisions").text.splitlines()) == before["round"]


def test_the_demo_fills_an_empty_service(start, opened, new_database):
    worker = start(new_database("sqlite"))
    window = opened(worker)
    page = window.open("/")
    expect(page.get_by_text("There is no campaign yet")).to_be_visible()
    assert not serious(page)
    page.get_by_role("button", name="Create the demo campaign").click()
    page.wait_for_url("**/view/demo", timeout=4 * PATIENCE_MS)
    expect(page.locator("#shown")).to_contain_text("1,500 decisions")
    for label in ("everyday", "bargain hunt"):
        expect(page.locator("#belief .flag").filter(has_text=label).first).to_be_visible()
    page.get_by_role("link", name="Campaigns").first.click()
    row = page.get_by_role("row").filter(has_text="demo")
    expect(row).to_contain_text("1,500")
    expect(row.locator(".lift")).to_contain_text("a decision")
    expect(row.locator(".health .mark")).to_be_visible()
    page.wait_for_load_state("networkidle")


def test_a_viewer_looks_and_changes_nothing(start, opened, new_database):
    database = new_database("sqlite")
    store = Store(database)
    admin, viewer = make(store), make(store, "viewer")
    store.close()
    worker = start(database)
    config = {"actions": ["none", "mail"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
    good(worker.client.post("/campaigns", json={"name": "mine", **config}, headers=bearer(admin)), 201)
    window = opened(worker)
    window.expected = {401, 403}
    page = window.page
    page.goto("/view/mine")
    page.wait_for_url("**/login?next=*")
    page.get_by_label("Your key").fill("uc_0000000000_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).not_to_have_text("")
    page.get_by_label("Your key").fill(viewer)
    page.keyboard.press("Enter")
    page.wait_for_url("**/view/mine")  # where they wanted to go
    expect(page.locator("#now")).to_contain_text("No decision yet")
    expect(page.locator("#who")).to_contain_text("viewer")
    expect(page.get_by_role("link", name="New campaign")).to_have_count(0)
    assert viewer not in page.evaluate("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")

    page.goto("/new")
    expect(page.locator("#refused")).to_contain_text("This needs an admin's key; yours is a viewer's.")
    expect(page.get_by_role("button", name="Create the campaign")).to_be_disabled()
    forced = """async ([method, path, body]) => (await fetch(path, {method, body: JSON.stringify(body),
        headers: {"Content-Type": "application/json", "X-Undercurrent-Page": "1"}})).status"""
    for method, path, body in [
        ("POST", "/campaigns", {"name": "forced", **config}),
        ("PATCH", "/campaigns/mine", {"paused": True}),
        ("DELETE", "/campaigns/mine?confirm=mine", {}),
    ]:
        assert page.evaluate(forced, [method, path, body]) == 403
    listed = good(worker.client.get("/campaigns", headers=bearer(admin)))["campaigns"]
    assert [(campaign["name"], campaign["paused"]) for campaign in listed] == [("mine", False)]

    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    assert window.cookies() == []
    page.goto("/")
    page.wait_for_url("**/login?next=*")
    page.wait_for_load_state("networkidle")


# --- every page -------------------------------------------------------------------------------------------------------


def shown(window, name):
    """A page with everything on it that comes by itself."""
    page = window.open(PAGES[name])
    if name == "campaign":
        expect(page.locator(".card .body").get_by_text("…", exact=True)).to_have_count(0)
        expect(page.locator("#policies table")).to_be_visible()  # the last: its report reads the whole log
    return page


@pytest.mark.parametrize("name", ["campaigns", "campaign", "decision", "try"])
def test_names_are_text(window, name):
    page = shown(window, name)
    for summary in page.locator("summary:visible").all():
        summary.click()
    text = page.evaluate("document.body.innerText")
    told = [evil for evil in EVIL if evil in text]
    assert (SCRIPT in told) if name == "campaigns" else {IMAGE, SCRIPT, QUOTES} <= set(told), told
    assert page.locator("img[src=x], main script, [onload], [onerror]").count() == 0
    assert page.evaluate("window.hacked") is None


def harmless(page):
    """Nothing of what was sent has become a part of the page, or has run."""
    assert page.locator("img[src=x], main script, main svg[onload], [onerror]").count() == 0
    assert page.evaluate("window.hacked") is None


def test_what_clients_send_is_text(window, worker):
    """A decision's id, and errors that repeat what was typed into a form."""
    good(worker.client.post("/campaigns", json={**MARKET, "name": "evil"}), 201)
    decision = {"decision_id": IMAGE, "subject": SCRIPT, "context": {BREAKOUT: "search", "basket": 65}}
    good(worker.client.post("/decide", json={"campaign": "evil", **decision}))
    window.expected = {422}
    harmless(window.open("/view/evil"))
    page = window.open("/view/evil/decision")
    page.get_by_label("Decision id").fill(IMAGE)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#answer .lead strong")).to_be_visible()
    harmless(page)
    page = window.open("/new")
    fill_in(page)
    page.get_by_label("What is it called?").fill(BREAKOUT)
    page.get_by_role("textbox", name="Baseline").fill(IMAGE)
    page.get_by_role("textbox", name="Action 2").fill(IMAGE)
    expect(page.locator("#name-error")).to_contain_text(BREAKOUT)
    page.get_by_label("What is it called?").fill("good")
    expect(page.locator("form")).to_contain_text(f"Repeated: {IMAGE}")
    harmless(page)


ADDRESSES = [
    f"/view/{quote(IMAGE)}",
    f"/view/{quote(BREAKOUT)}/try?{quote(SCRIPT)}",
    f"/view/market/decision#{quote(IMAGE)}",
    f"/view/market/decision#{BREAKOUT}",
    f"/?{SCRIPT}#{IMAGE}",
    "/login?next=javascript:window.hacked=1",
    "/login?next=data:text/html,<script>window.hacked=1</script>",
    "/login?next=//127.0.0.2/#javascript:window.hacked=1",
    f"/docs?url=data:,{quote(SCRIPT)}&configUrl=data:,{quote(SCRIPT)}#/{quote(IMAGE)}",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_are_text(window, address):
    """Whatever stands in them; and no page goes anywhere else for it."""
    window.expected = {404}
    harmless(window.open(address))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(opened, worker, name, scheme):
    window = opened(worker, color_scheme=scheme)
    assert serious(shown(window, name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_needs_no_scrolling_to_the_side(opened, worker, name):
    window = opened(worker, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = shown(window, name)
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    wide = page.evaluate(
        """[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 361
        && !e.closest(".scroll, pre, svg")).map((e) => e.outerHTML.slice(0, 90)).slice(0, 5)"""
    )
    assert widths == [360, 360], wide


def test_the_chart_is_operated_by_keys(window):
    page = shown(window, "campaign")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    chart = page.locator("#belief .chart")
    for _ in range(40):
        page.keyboard.press("Tab")
        if chart.evaluate("element => element === document.activeElement"):
            break
    expect(chart).to_be_focused()
    whole = page.locator("#shown").inner_text()
    page.keyboard.press("End")
    spoken = page.locator("#spoken")
    expect(spoken).to_contain_text("round 300")
    expect(chart.locator(".tip")).to_be_visible()
    expect(chart.locator(".cursor rect")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    expect(spoken).to_contain_text("round 299")
    page.keyboard.press("+")
    expect(page.locator("#shown")).not_to_have_text(whole)
    page.keyboard.press("Backspace")
    expect(page.locator("#shown")).to_have_text(whole)
