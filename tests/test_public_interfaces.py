"""The packages use only documented interfaces of third parties: no private name, no internal module."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = {"migrations", "policy", "service", "simulator", "undercurrent_client"}
# Modules that their projects document. Look up a module in its project's documentation before you add it.
DOCUMENTED = {
    *(
        "alembic",
        "alembic.config",
        "alembic.util",
        "anyio",
        "distributed",
        "greenlet",
        "httpx",
        "jinja2",
        "joblib",
        "xgboost",
        "xlrd",
    ),
    *("asyncpg", "fastapi", "fastapi.exceptions", "fastapi.responses", "fastapi.routing", "fastapi.templating"),
    *("matplotlib", "matplotlib.pyplot", "msgspec", "msgspec.structs", "numba", "numpy", "numpy.typing", "tqdm"),
    *("prometheus_client", "prometheus_client.core", "prometheus_client.exposition", "prometheus_client.multiprocess"),
    *("prometheus_client.registry", "pyarrow", "pyarrow.json", "pyarrow.parquet"),
    *("pydantic", "pydantic.config", "pydantic.json_schema", "pydantic_core"),
    *("scipy", "scipy.optimize", "scipy.special", "threadpoolctl", "uvicorn"),
    *("sqlalchemy", "sqlalchemy.dialects", "sqlalchemy.engine", "sqlalchemy.exc", "sqlalchemy.ext.asyncio"),
    *("sqlalchemy.schema",),
    *("starlette.concurrency", "starlette.exceptions", "starlette.responses", "starlette.routing"),
    *("starlette.staticfiles", "starlette.types"),
}


def is_third_party(module: str) -> bool:
    return module.partition(".")[0] not in OURS | sys.stdlib_module_names


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def find_violations(tree: ast.AST) -> Iterator[str]:
    """Name each import of an undocumented module or a private name, and each private attribute of an imported name."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_third_party(alias.name):
                    imported.add(alias.asname or alias.name.partition(".")[0])
                    if alias.name not in DOCUMENTED:
                        yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and is_third_party(node.module):
            imported |= {alias.asname or alias.name for alias in node.names}
            if node.module not in DOCUMENTED:
                yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value
            while isinstance(owner, ast.Attribute | ast.Call):
                owner = owner.value if isinstance(owner, ast.Attribute) else owner.func
            if isinstance(owner, ast.Name) and owner.id in imported:
                yield ast.unparse(node)


def test_only_public_interfaces_are_used():
    found = {}
    for package in ("clients/python", "policy", "service", "simulator"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if violations := set(find_violations(ast.parse(file.read_text()))):
                found[file.relative_to(ROOT).as_posix()] = violations
    assert not found


def test_violations_are_found():
    source = """
import uvicorn, starlette._utils, os
import numpy as np
from numba.core import cgutils
from fastapi import FastAPI, _compat
np.linalg._umath_linalg.inv(os._exit, FastAPI().__dict__)
"""
    expected = {"starlette._utils", "numba.core", "fastapi._compat", "np.linalg._umath_linalg"}
    assert set(find_violations(ast.parse(source))) == expected
