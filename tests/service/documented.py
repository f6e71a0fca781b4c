"""Is an answer what the OpenAPI document says of it? A NaN is written as null, so one in a number's place is found."""

import math
import re
from collections.abc import Mapping
from typing import Any

import httpx
import jsonschema_rs

__all__ = ["Documented"]


class Documented:
    """Checks answers against an application's own OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._paths = [
            (re.compile(re.sub(r"{[^}]*}", "[^/]+", path) + "$"), methods)
            for path, methods in sorted(document["paths"].items(), key=lambda item: "{" in item[0])
        ]
        self._validators: dict[str, Any] = {}

    def __call__(self, response: httpx.Response) -> None:
        """Every answer has its documented shape, and every number in it is one."""
        path, method = response.request.url.path, response.request.method.lower()
        documented = next(methods[method] for known, methods in self._paths if known.match(path) and method in methods)
        answer = documented["responses"].get(str(response.status_code))
        assert answer is not None, f"{method} {path}: {response.status_code} {response.text}"
        if "$ref" in answer:  # errors are described once
            answer = self._document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
        kind, _, _ = response.headers.get("content-type", "").partition(";")
        if kind != "application/json":
            return
        body = response.json()
        assert _numbers_only(body), f"{method} {path}: {response.text}"
        content = answer["content"][kind]["schema"]
        key = str(content)
        if key not in self._validators:
            whole = {**content, "components": self._document["components"]}
            self._validators[key] = jsonschema_rs.validator_for(whole)
        problems = [f"{error.instance_path}: {error.message}" for error in self._validators[key].iter_errors(body)]
        assert not problems, f"{method} {path}: {problems[:5]}"


def _numbers_only(value: Any) -> bool:
    """Python reads NaN and Infinity, which are no JSON."""
    if isinstance(value, dict):
        return all(map(_numbers_only, value.values()))
    if isinstance(value, list):
        return all(map(_numbers_only, value))
    return not isinstance(value, float) or math.isfinite(value)
