"""The README's five minutes with curl, as a newcomer would type them."""

import re
import shlex
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
HOST = "http://127.0.0.1:8000"


def curl_commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    words = [shlex.split(block, comments=True) for block in blocks if "curl" in block]
    commands: list[list[str]] = []
    for word in (word for block in words for word in block):
        if word == "curl":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_curl_command_works_in_order(client):
    commands = curl_commands()
    assert len(commands) >= 9
    for quiet, address, *data in commands:
        assert quiet == "-s"
        assert address.startswith(HOST)
        path = address.removeprefix(HOST)
        if data:
            flags = dict(zip(data[::2], data[1::2], strict=True))
            assert flags.keys() <= {"-d", "-X"}
            # curl's own content type: what a newcomer's first command sends.
            form = {"content-type": "application/x-www-form-urlencoded"}
            answer = client.request(flags.get("-X", "POST"), path, content=flags["-d"].encode(), headers=form)
        else:
            answer = client.get(path)
        assert answer.status_code in (200, 201), f"{path}: {answer.text}"
    assert client.get("/campaigns/spring-offers").json()["round"] == 3
    stored = client.get("/campaigns/spring-offers/decisions/order-1003").json()
    assert stored["reward"]["reward"] == 12.5 + 20


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_answer_it_shows_has_the_fields_of_a_real_one(client):
    for path, body in (("/campaigns", 0), ("/decide", 1)):
        answer = client.post(path, content=curl_commands()[body][-1].encode())
    (shown,) = re.findall(r'^\{"decision_id": "order-1001".*?\}$', README, re.MULTILINE | re.DOTALL)
    assert re.findall(r'"(\w+)": ', shown.partition('"scores"')[0]) == [k for k in answer.json() if k != "scores"]
