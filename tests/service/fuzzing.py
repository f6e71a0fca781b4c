"""schemathesis against a living service: every route of the OpenAPI document, every check, every phase.

python -m tests.service.fuzzing [--examples 200] [--seed 1] [--database sqlite|postgresql]
"""

import argparse
import hashlib
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import ChecksConfig, SchemathesisConfig
from schemathesis.engine import Status, from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.openapi.checks import AllowHeaderMismatch, RejectedPositiveData, UnsupportedMethodResponse

from service.engine.requests import CAMPAIGN_EXAMPLE, CONTEXT_EXAMPLE
from service.storage.store import Store
from tests.databases import KINDS, Databases
from tests.e2e.server import launch_servers
from tests.service.answers import good
from tests.service.playing import CONFIGS, Script, http_post
from tests.service.test_auth import make

__all__ = ["Found", "fuzz", "living"]

Seen = Counter[tuple[str, int]]
SEASONAL = {"season": "summer", "spend": 36.5, "tenure": 2}
CONTEXTS: dict[str, Any] = {"spring-offers": CONTEXT_EXAMPLE} | dict.fromkeys(
    ("default", "given", "waiting", "paused", "old"), SEASONAL
)


class _NoClock:
    now = 0


def living(client: httpx.Client) -> None:
    """Campaigns as a service has them: deciding, waiting for rewards, paused, archived; with someone erased."""
    post = http_post(client)
    good(client.post("/campaigns", json=CAMPAIGN_EXAMPLE), 201)
    for name, config, rounds in (
        ("default", "default", 60),
        ("given", "given", 60),
        ("waiting", "waiting", 30),
        ("paused", "default", 20),
        ("old", "default", 20),
    ):
        Script(CONFIGS[config], _NoClock(), name=name).create(post).play(post, rounds)
    good(client.patch("/campaigns/paused", json={"paused": True}))
    good(client.post("/subjects/erase", json={"subject": "customer 1"}))
    good(client.post("/campaigns/old/archive"))


# --- what a schema cannot say -----------------------------------------------------------------------------------------


class Beyond(NamedTuple):
    """A request that is good as far as a schema can tell, and refused: on which routes, and with what words."""

    routes: str
    field: str
    message: str


CONFIGURING = r"POST /campaigns(/check)?|POST /campaigns/\{name\}/(clone|actions|levels)|PATCH /campaigns/\{name\}"
DECIDING = r"POST (/campaigns/\{name\})?/decide(/batch)?|POST /campaigns/\{name\}/(preview|import)"
BY_PATH = r"POST /campaigns/\{name\}/(decide|reward)(/batch|/correct|/subject)?"
CREDITING = r"POST (/campaigns/\{name\})?/reward/subject"
REWARDING = r"POST (/campaigns/\{name\})?/reward"
BEYOND_A_SCHEMA = [
    # Rules between fields of a configuration.
    Beyond(CONFIGURING, r"variables\[\d+\]", "needs exactly one kind"),
    Beyond(CONFIGURING, r"variables\[\d+\]\.name", ".* is reserved"),
    Beyond(CONFIGURING, r"variables\[\d+\]\.levels", r"\d+ labels"),
    Beyond(CONFIGURING, r"variables\[\d+\]\.cuts", "not increasing"),
    Beyond(CONFIGURING, r"variables\[\d+\]\.(unseen|outside|levels)", ".*undeclared.*|only a number.*|'missing' is .*"),
    Beyond(r"POST /campaigns/\{name\}/levels", "variable", ".* is not a variable with levels|.* is a signal, .*"),
    Beyond(CONFIGURING, r"(variables\[\d+\]|rewards)\.range", ".* is empty"),
    Beyond(CONFIGURING, r"actions|variables|signals|retired_actions|variables\[\d+\]\.levels", "repeated: .*"),
    Beyond(CONFIGURING, r"rewards\.(default|wait_seconds)", "missing|.* is outside range"),
    Beyond(CONFIGURING, r"rewards\.correct_seconds", ".* is less than wait_seconds"),
    Beyond(REWARDING, "reward_id", "is required|only goes with mode add"),  # it goes with the mode
    Beyond(CONFIGURING, r"bonus\.\w+", "used only by .*|needed by .*|.*regime.*"),
    Beyond(CONFIGURING, r"beliefs\.(\w+)", "needed by .*|used only by .*|not used by .*|.*needs (an )?estimator.*"),
    Beyond(CONFIGURING, r"beliefs\.window_rounds", "not with .*"),
    Beyond(CONFIGURING, r"alerts\.rounds", ".* is more than beliefs.window_rounds"),
    Beyond(CONFIGURING, r"beliefs\.parameters\..*", r"\d+ (rows|numbers).*"),
    Beyond(CONFIGURING, "stage_length", r"\d+"),  # 1 for a theorem's form
    Beyond(CONFIGURING, "propensity_floor", ".* is more than each of .* actions can have"),
    Beyond(CONFIGURING, "signals", "choose the variables.*|.* level combinations"),
    Beyond(CONFIGURING, r"signals\[\d+\]", ".* is not a variable with levels or cuts"),
    Beyond(CONFIGURING, "retired_actions", ".*: no action, or the baseline|only the baseline would be left"),
    Beyond(CONFIGURING, "regimes|regime_labels|clock", ".*"),  # as many as the signals allow, and the estimator
    Beyond(CONFIGURING, r"features(\..*)?", ".*"),  # its terms are made of variables, levels and actions
    Beyond(CONFIGURING, "actions", ".*too_long|.*at most 64.*"),  # one more than there may be
    Beyond(CONFIGURING, r"alerts\.webhook", ".*"),  # the address of a public host that the resolver knows
    # A part that the cloned campaign does not have needs more than one that it has.
    Beyond(r"POST /campaigns/\{name\}/clone", r"clock\.period_seconds|beliefs\.parameters\.\w+", "is required"),
    # To a schema 2.0 is a whole number; here it is none.
    Beyond("POST .*|PATCH .*", ".*", r"Input should be a valid integer(, not \d+\.0)?"),
    # What a request may hold depends on the campaign, its models, and the time of day.
    Beyond(DECIDING, r".*context(\..*)?", ".*"),
    Beyond(DECIDING, r".*excluded_actions", "unknown: .*|excludes every action"),
    Beyond(f"{DECIDING}|{CREDITING}", r".*\b(at|decided_at)", "lies in the future|.* is not a time|.*out of range.*"),
    Beyond(r"POST /campaigns/\{name\}/import", r"rows\[\d+\]\.\w+", ".*"),
    Beyond(BY_PATH, "campaign", "is not the campaign of the path"),
    Beyond(
        r"POST (/campaigns/\{name\})?/reward(/correct|/subject)?|POST /personalizer/.*/reward",
        "reward|value",
        r"[-+\d.e]+ is out of (rewards\.)?range",
    ),
    Beyond(
        r"POST /campaigns/\{name\}/actions/retire",
        "action",
        ".* is not an action of this campaign|.* is the baseline, .*|only the base.*",
    ),
    Beyond(r"POST /campaigns/\{name\}/rollback", "model_version", ".* is no earlier model"),
    Beyond(r"GET /campaigns/\{name\}/report", "model_version", ".* is not a model of this campaign"),
    Beyond(r"GET /campaigns/\{name\}/(report|series|decisions)", "to", "is before `from`"),
    Beyond(r"DELETE /campaigns/\{name\}", "confirm", "is not the campaign's name"),
    Beyond("POST /personalizer/v1.0/rank", "actions", "repeated: .*"),
    # The fields of a rank that fits no campaign.
    Beyond("POST /personalizer/v1.0/rank", r"body|actions|contextFeatures.*|excludedActions|deferActivation", ".*"),
]


# What has been erased is gone, as what never was is not found; a batch of too many items is too large.
ADDED = {"positive_data_acceptance": ["410"], "negative_data_rejection": ["413"]}


def excused(label: str, failure: Any, response: Any) -> bool:
    """Is a failure none: does the check ask for what a schema cannot say?"""
    if isinstance(failure, RejectedPositiveData) and failure.status_code == 422:
        told = response.json()["error"]["fields"]
        return bool(told) and all(_beyond_a_schema(label, **problem) for problem in told)
    if isinstance(failure, RejectedPositiveData) and label.startswith("POST /ofrep/"):  # the context is the campaign's
        return bool(response.json()["errorCode"] in ("INVALID_CONTEXT", "GENERAL"))
    if isinstance(failure, UnsupportedMethodResponse):  # without a key nobody learns what there is, not even here
        return bool(response.status_code == 401)
    # A campaign may be called `check`, and is read and changed like any other.
    return isinstance(failure, AllowHeaderMismatch) and label == "POST /campaigns/check"


def _beyond_a_schema(label: str, field: str, message: str, allowed: Any) -> bool:
    return any(
        re.fullmatch(one.routes, label)
        and re.fullmatch(one.field, field, re.DOTALL)
        and re.fullmatch(one.message, message, re.DOTALL)
        for one in BEYOND_A_SCHEMA
    )


# --- a run ------------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a run has found: failed checks, and how often which route gave which status."""

    failures: list[str]
    seen: Seen


def fuzz(url: str, key: str | None, *, seed: int, examples: int, deterministic: bool = False) -> Found:
    """All phases with all checks against the service at `url`, which has the living campaigns."""
    load_all_checks()
    checks: dict[str, Any] = {check.__name__: {"enabled": True} for check in CHECKS.get_all()}
    for name, statuses in ADDED.items():
        checks[name]["expected-statuses"] = [*getattr(ChecksConfig(), name).expected_statuses, *statuses]
    config: dict[str, Any] = {
        "seed": seed,
        "base-url": url,
        "suppress-health-check": ["all"],
        "continue-on-failure": True,
        "generation": {
            "max-examples": examples,
            "deterministic": deterministic,
            "database": "none",
            "no-shrink": True,
        },
        "checks": checks,
    }
    if key is not None:
        config["auth"] = {"openapi": {"key": {"bearer": key}, "personalizer": {"api_key": key}}}
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=SchemathesisConfig.from_dict(config))
    seen: Seen = Counter()
    failures: dict[str, str] = {}

    @schema.hook
    def map_case(context: Any, case: Any) -> Any:
        return _alive(case)

    @schema.hook
    def after_call(context: Any, case: Any, response: Any) -> None:
        if response.request.method == case.operation.method.upper():
            seen[case.operation.label, response.status_code] += 1

    @schema.hook
    def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
        return not excused(case.operation.label, failure, response)

    for event in from_schema(schema).execute():
        if isinstance(event, ScenarioFinished):
            for case_id, nodes in event.recorder.checks.items():
                for node in nodes:
                    if node.status is Status.FAILURE and node.failure_info is not None:
                        failure = node.failure_info.failure
                        response = event.recorder.interactions[case_id].response
                        told = f"{failure.operation}: {node.name}: {failure.message}\n{node.failure_info.code_sample}\n"
                        told += f"{response.status_code}: {response.content[:600]!r}" if response else "no answer"
                        failures.setdefault(f"{failure.operation} {node.name}", told)
        elif isinstance(event, NonFatalError):
            failures.setdefault(f"{event.label} error", f"{event.label}: {event.value}")
        elif isinstance(event, FatalError):
            raise event.exception
    return Found(list(failures.values()), seen)


def _alive(case: Any) -> Any:
    """Three of four good requests are about a campaign that there is, with a context that fits it."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    number = int.from_bytes(hashlib.sha256(repr((case.path_parameters, case.body)).encode()).digest()[:4])
    name = list(CONTEXTS)[number // 4 % len(CONTEXTS)]
    if number % 4 == 0:
        return case
    if "name" in (case.path_parameters or {}):
        case.path_parameters["name"] = name
    if isinstance(case.body, dict):
        if "campaign" in case.body:
            case.body["campaign"] = name
        for item in (case.body, *_items(case.body)):
            if "context" in item:
                item["context"] = CONTEXTS[name]
        _mend(case.body)
    return case


def _mend(body: dict[str, Any]) -> None:
    """Fewer of the mistakes between fields of a configuration, which would hide whatever comes after them."""
    for variable in body["variables"] if isinstance(body.get("variables"), list) else ():
        kinds = [kind for kind in ("range", "cuts", "levels") if variable.get(kind) is not None]
        for kind in kinds[1:]:
            del variable[kind]
    if isinstance(body.get("bonus"), dict) and "theory" not in str(body["bonus"].get("form")):
        body["bonus"] = {name: value for name, value in body["bonus"].items() if name in ("form", "scale")}


def _items(body: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("items", "rows"):
        if isinstance(body.get(name), list):
            yield from (item for item in body[name] if isinstance(item, dict))


@contextmanager
def serving(kind: str, keys: bool) -> Iterator[tuple[str, str | None]]:
    """A real server with the living campaigns: its address, and a key if it asks for one."""
    with tempfile.TemporaryDirectory() as folder:
        databases = Databases(Path(folder))
        try:
            database = databases(kind)
            key = None
            if keys:
                store = Store(database)
                key = make(store)
                store.close()
            with launch_servers(Path(folder)) as launch:
                server = launch(database)
                headers = {} if key is None else {"authorization": f"Bearer {key}"}
                with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                    living(client)
                yield server.url, key
        finally:
            databases.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the service with schemathesis: all checks, all phases.")
    parser.add_argument("--examples", type=int, default=100, help="cases of each route in each phase")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--database", choices=KINDS, action="append")
    chosen = parser.parse_args()
    failed = False
    for kind in chosen.database or KINDS:
        for keys in (False, True):
            print(f"{kind}, {'with' if keys else 'without'} keys, seed {chosen.seed} ...", flush=True)
            with serving(kind, keys) as (url, key):
                found = fuzz(url, key, seed=chosen.seed, examples=chosen.examples)
            for failure in found.failures:
                print(f"\n--- {failure}", flush=True)
            statuses = Counter(f"{status}" for (_, status), count in found.seen.items() for _ in range(count))
            told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            print(f"  {found.seen.total()} requests ({told}): {len(found.failures)} failures", flush=True)
            failed |= bool(found.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
