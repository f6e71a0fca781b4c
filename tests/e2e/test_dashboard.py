"""The dashboard in a real browser: what people do on each page, with a mouse, with keys, with and without a login."""

import random
import time
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from service.storage.store import Store
from tests.e2e.browser import PATIENCE_MS, Window, find_violations
from tests.service.answers import good
from tests.service.conftest import Worker
from tests.service.test_auth import bearer, make

expect.set_options(timeout=PATIENCE_MS)

IMAGE = '<img src=x onerror="window.hacked=1">'
SCRIPT = "<script>window.hacked=1</script>"
QUOTES = "it's \"50 %\" & 'more'"
BREAKOUT = '"><svg onload=window.hacked=1>'
# Two regimes, told apart by where customers come from. Every name would do harm if it were used as HTML.
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
# Each page, and the dangerous names that it shows.
PAGES = {
    "/": {SCRIPT},
    "/view/market": {IMAGE, SCRIPT, QUOTES},
    "/view/market/decision#d150": {IMAGE, SCRIPT, QUOTES},
    "/view/market/try": {IMAGE, SCRIPT, QUOTES},
    "/new": set(),
    "/login": set(),
}
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


@contextmanager
def serve(database):
    """A service that uses the real time."""
    worker = Worker(database, lambda: time.time_ns() // 1_000)
    try:
        yield worker
    finally:
        worker.stop()


def play(client, campaign, variable, levels, rounds, regime, first=1):
    """Customers of one regime: nine in ten have its level, and each regime rewards an action of its own."""
    chance = random.Random(first)
    best = get_state(client, campaign)["config"]["actions"][1 + regime]
    for begin in range(first, first + rounds, 50):
        items = []
        for number in range(begin, begin + 50):
            level = levels[regime if chance.random() < 0.9 else 1 - regime]
            items.append({"decision_id": f"d{number}", "context": {variable: level, "basket": 65}})
        decisions = good(client.post("/decide/batch", json={"campaign": campaign, "items": items}))["decisions"]
        rewards = [{"decision_id": made["decision_id"], "reward": float(made["action"] == best)} for made in decisions]
        good(client.post("/reward/batch", json={"campaign": campaign, "items": rewards}))


def get_state(client, campaign="market"):
    return good(client.get(f"/campaigns/{campaign}"))


@pytest.fixture(scope="module")
def worker(new_database):
    """A service with a campaign whose regime has changed twice, and one decision with a dangerous id and subject."""
    with serve(new_database("sqlite")) as worker:
        good(worker.client.post("/campaigns", json=MARKET), 201)
        for regime, first in enumerate((1, 101, 201)):
            play(worker.client, "market", BREAKOUT, ["search", SCRIPT], 100, regime % 2, first)
        decision = {"decision_id": IMAGE, "subject": SCRIPT, "context": {BREAKOUT: "search", "basket": 65}}
        good(worker.client.post("/decide", json={"campaign": "market", **decision}))
        yield worker


@pytest.fixture
def window(browser, worker):
    with Window(browser, worker.url) as window:
        yield window


def check_harmless(page):
    """No user's text has become part of the page's structure, or has run."""
    assert page.locator("img[src=x], main script, main svg[onload], [onerror]").count() == 0
    assert page.evaluate("window.hacked") is None


# --- what people do ---------------------------------------------------------------------------------------------------


def test_from_the_form_to_a_regime_change(window, worker):
    """Create a campaign, with mistakes on the way, send it customers, and see its page follow without a reload."""
    window.expected = {422}
    window.page.clock.install()  # so that the page's timers need not be waited for
    page = window.open("/new")
    page.get_by_role("button", name="Add action").click()
    page.get_by_role("button", name="Add variable").click()
    baseline, second, third = (page.get_by_role("textbox", name=name) for name in ("Baseline", "Action 2", "Action 3"))
    baseline.fill("none")
    source, basket = (page.get_by_role("group", name=f"Variable {number}") for number in (1, 2))
    source.get_by_label("Name", exact=True).fill("source")
    source.get_by_label("Levels").fill("shop, web")
    basket.get_by_label("Name", exact=True).fill("basket")
    basket.get_by_label("Type").select_option("range")
    basket.get_by_label("From").fill("0")
    basket.get_by_label("To", exact=True).fill("100")
    basket.get_by_label("Accept values").check()
    page.get_by_text("Advanced: regimes").click()
    page.get_by_label("Regimes", exact=True).select_option("2")

    name, problem = page.get_by_label("Campaign name"), page.locator("#name-error")
    name.fill(BREAKOUT)
    second.fill(IMAGE)
    third.fill(IMAGE)
    page.clock.run_for(1_000)
    expect(problem).to_contain_text(BREAKOUT)  # the API's own message, next to the field
    expect(name).to_have_attribute("aria-invalid", "true")
    name.fill("my-offers")
    page.clock.run_for(1_000)
    expect(problem).to_have_text("")
    expect(page.locator("form")).to_contain_text(IMAGE)
    check_harmless(page)
    second.fill("mail")
    third.fill("call")
    page.clock.run_for(1_000)
    expect(page.locator("#state")).to_contain_text("Ready")
    expect(page.locator("#json")).to_contain_text('"name": "my-offers"')
    expect(page.locator("#command")).to_contain_text(f"curl {worker.url}/campaigns")
    page.get_by_role("button", name="Create campaign").click()

    page.wait_for_url("**/view/my-offers")
    expect(page.locator("#now")).to_contain_text("No decisions yet")
    config = get_state(worker.client, "my-offers")["config"]
    assert (config["actions"], config["regimes"]) == (["none", "mail", "call"], 2)
    lenient = [{key: each[key] for key in ("missing", "outside")} for each in config["variables"]]
    assert lenient == [{"missing": "reject", "outside": "reject"}, {"missing": "level", "outside": "clip"}]
    page.evaluate("window.still = true")

    for regime, first in enumerate((1, 201, 401)):
        play(worker.client, "my-offers", "source", ["shop", "web"], 200, regime % 2, first)
    assert get_state(worker.client, "my-offers")["regimes"] == 2  # both were seen, so it has learned them
    page.clock.run_for(6_000)
    expect(page.locator("#range")).to_contain_text("rounds 1 to 600")
    belief = page.locator("#belief")
    belief.get_by_text("As a table").click()
    expect(belief.locator("table tbody tr").last).to_contain_text("600")
    before = belief.locator("path.fill").first.get_attribute("d")

    play(worker.client, "my-offers", "source", ["shop", "web"], 100, 1, 601)
    page.clock.run_for(6_000)
    expect(page.locator("#range")).to_contain_text("rounds 1 to 700")
    expect(belief.locator("table tbody tr").last).to_contain_text("700")
    assert belief.locator("path.fill").first.get_attribute("d") != before
    change = good(worker.client.get("/campaigns/my-offers/series?points=400"))["regime_changes"][-1]
    assert change["since_round"] > 600
    expect(belief.locator(".flag").filter(has_text=f"· {change['since_round']}")).to_be_visible()
    belief.get_by_text("List of events").click()
    expect(belief.locator(".events li").first).to_contain_text(f"from round {change['since_round']} on")
    assert page.evaluate("window.still"), "the page was loaded again"


def test_a_decision_is_explained(window, worker):
    """Also if its id is typed while the page's script is still loading."""
    page, held = window.open("/view/market"), []
    page.route("**/decision.js", lambda route: held.append(route))
    page.get_by_role("link", name="Why this action?").click(no_wait_after=True)
    page.get_by_label("Decision ID").fill("d150")
    held[0].continue_()
    page.get_by_role("button", name="Explain").click()  # waits until the script enables it
    answer = page.locator("#answer")
    decision = good(worker.client.post("/campaigns/market/explain", json={"decision_id": "d150"}))
    expect(answer.locator(".lead strong")).to_have_text(decision["action"])
    for score in decision["scores"]:
        expect(answer.get_by_role("rowheader", name=score["action"], exact=False).first).to_be_visible()
    expect(answer).to_contain_text("If the regime had been known")
    for regime in decision["regimes"]:
        expect(answer).to_contain_text(f"In {regime['label']}: {regime['action']}")
    reward = decision["reward"]["reward"]
    expect(answer.locator(".big")).to_have_text(f"{reward:.2f}" if reward else "0")


def test_rewards_that_came_early_are_told_truly(window, worker):
    """How many came, how many count, and from when the others will; sums and corrections are shown one by one."""
    rules = {"wait_seconds": 1_209_600, "default": 0, "correct_seconds": 2_419_200}
    config = {"name": "shop", "actions": ["none", "mail"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
    for way in ("provisional", "hold"):
        name = f"shop-{way}"
        changed = config | {"name": name, "rewards": rules | {"while_waiting": way}}
        good(worker.client.post("/campaigns", json=changed), 201)
        items = [{"decision_id": f"{i}", "context": {"risk": "low"}} for i in range(30)]
        good(worker.client.post("/decide/batch", json={"campaign": name, "items": items}))
        body = {"campaign": name, "decision_id": "3"}
        for sale in ("sale-1", "sale-2"):
            good(worker.client.post("/reward", json=body | {"reward": 20, "mode": "add", "reward_id": sale}))
        good(worker.client.post("/reward/correct", json=body | {"reward": 25, "reward_id": "returned"}))
        good(worker.client.post("/reward", json={"campaign": name, "decision_id": "4", "reward": 7}))
        more = [{"decision_id": f"{i}", "context": {"risk": "low"}} for i in range(30, 45)]
        good(worker.client.post("/decide/batch", json={"campaign": name, "items": more}))  # the model has read them
        page = window.open(f"/view/{name}")
        card = page.locator(".card", has=page.get_by_role("heading", name="Rewards", exact=True))
        rows = {"received": "2", "mean reward": "none counts yet", "not yet received": "43"}
        rows |= {"received, not yet learned from": "2" if way == "hold" else "0"}
        for row, value in rows.items():
            header = page.get_by_role("rowheader", name=row, exact=True)
            expect(card.get_by_role("row").filter(has=header).get_by_role("cell")).to_have_text(value)
        expect(card).to_contain_text("of these, counted only from")
        expect(page.locator("#actions .by-regime")).to_contain_text("none counts yet")
        expect(page.locator("#policies")).to_contain_text("2 rewards have come, and none counts yet")
        for words in ("no reward", "no rewards yet"):
            expect(page.locator("main").get_by_text(words, exact=True)).to_have_count(0)
        answer = window.open(f"/view/{name}/decision#3").locator("#answer")
        expect(answer.locator(".big")).to_have_text("25.0")
        expect(answer).to_contain_text("Reports count it from")
        history = answer.get_by_role("region", name="came, how, id, sent, altogether").get_by_role("row")
        expect(history).to_have_count(4)
        expect(history.nth(3)).to_contain_text("corrected")


def test_a_preview_changes_nothing(window, worker):
    window.expected = {422}
    before = get_state(worker.client)
    page = window.open("/view/market/try")
    answer, hint = page.locator("#preview"), page.locator("#variable-1-hint")
    for level in ("search", SCRIPT):
        page.get_by_label(BREAKOUT).select_option(level)
        context = {BREAKOUT: level, "basket": 65}
        preview = good(worker.client.post("/campaigns/market/preview", json={"context": context}))
        expect(answer.locator(".lead strong").first).to_have_text(preview["action"])
        expect(answer).to_contain_text(f"would be round {before['round'] + 1}")
        expect(answer.get_by_label("Belief after").first).to_be_visible()
    page.get_by_label("basket").fill("")
    expect(hint).to_have_class("bad hint")  # the API's own message, at the field
    page.get_by_label("basket").fill("95")
    expect(hint).to_contain_text("level: ")
    assert get_state(worker.client) == before
    assert len(worker.client.get("/campaigns/market/decisions").text.splitlines()) == before["round"]


def test_the_demo_fills_an_empty_service(browser, new_database):
    with serve(new_database("sqlite")) as worker, Window(browser, worker.url) as window:
        page = window.open("/")
        expect(page.get_by_text("No campaigns yet")).to_be_visible()
        assert not find_violations(page)
        page.get_by_role("button", name="Create the demo campaign").click()
        page.wait_for_url("**/view/demo", timeout=4 * PATIENCE_MS)
        expect(page.locator("#range")).to_contain_text("1,500 decisions")
        for label in ("everyday", "bargain hunt"):
            expect(page.locator("#belief .flag").filter(has_text=label).first).to_be_visible()
        page.get_by_role("link", name="Campaigns").first.click()
        row = page.get_by_role("row").filter(has_text="demo")
        expect(row).to_contain_text("1,500")
        expect(row.locator(".lift")).to_contain_text("per decision")
        expect(row.locator(".health .mark")).to_be_visible()
        page.wait_for_load_state("networkidle")


def test_a_viewer_looks_and_changes_nothing(browser, new_database):
    """That the API refuses what the page does not offer is shown in tests/service/test_matrix.py."""
    database = new_database("sqlite")
    store = Store(database)
    admin, viewer = make(store), make(store, "viewer")
    store.close()
    with serve(database) as worker, Window(browser, worker.url) as window:
        good(worker.client.post("/campaigns", json={**MARKET, "name": "mine"}, headers=bearer(admin)), 201)
        window.expected = {401}
        page = window.page
        page.goto("/view/mine")
        page.wait_for_url("**/login?next=*")
        page.get_by_label("Your key").fill("uc_0000000000_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).not_to_have_text("")
        page.get_by_label("Your key").fill(viewer)
        page.keyboard.press("Enter")
        page.wait_for_url("**/view/mine")  # where they wanted to go
        expect(page.locator("#now")).to_contain_text("Request the first decision")
        expect(page.locator("#who")).to_contain_text("viewer")
        expect(page.get_by_role("link", name="New campaign")).to_have_count(0)
        assert viewer not in page.evaluate("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")

        page.goto("/new")
        expect(page.locator("#refused")).to_contain_text("This needs an admin key; yours is a viewer key.")
        expect(page.get_by_role("button", name="Create campaign")).to_be_disabled()

        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        assert page.context.cookies() == []
        page.goto("/")
        page.wait_for_url("**/login?next=*")
        page.wait_for_load_state("networkidle")


def test_the_chart_is_operated_by_keys(window):
    page = window.open("/view/market")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    chart = page.locator("#belief .chart")
    for _ in range(40):
        page.keyboard.press("Tab")
        if chart.evaluate("element => element === document.activeElement"):
            break
    expect(chart).to_be_focused()
    whole = page.locator("#range").inner_text()
    page.keyboard.press("End")
    announcement = page.locator("#announcement")
    expect(announcement).to_contain_text("round 301")
    expect(chart.locator(".tip")).to_be_visible()
    expect(chart.locator(".cursor rect")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    expect(announcement).to_contain_text("round 300")
    page.keyboard.press("+")
    expect(page.locator("#range")).not_to_have_text(whole)
    page.keyboard.press("Backspace")
    expect(page.locator("#range")).to_have_text(whole)


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_safe_accessible_and_fits_a_phone(window, path):
    page = window.open(path)
    if path == "/view/market":
        expect(page.locator(".card .body").get_by_text("…", exact=True)).to_have_count(0)
        expect(page.locator("#policies table")).to_be_visible()  # the last: its report reads the whole log
    assert find_violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert find_violations(page, "color-contrast") == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # charts follow
    too_wide = page.evaluate(
        """[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 361
        && !e.closest(".scroll, pre, svg")).map((e) => e.outerHTML.slice(0, 90)).slice(0, 5)"""
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 360, too_wide
    for summary in page.locator("summary:visible").all():
        summary.click()
    text = page.evaluate("document.body.innerText")
    assert {name for name in PAGES[path] if name in text} == PAGES[path]
    check_harmless(page)


def test_addresses_are_text(window):
    """Whatever an address contains; and no page goes to another host because of it."""
    window.expected = {404}
    pages = dict(zip(ADDRESSES, window.open_all(ADDRESSES), strict=True))
    for page in pages.values():
        check_harmless(page)
    expect(pages[f"/view/market/decision#{quote(IMAGE)}"].locator("#answer .lead strong")).to_be_visible()
    expect(pages[f"/view/market/decision#{BREAKOUT}"].get_by_role("alert")).to_contain_text("Decision not found")
