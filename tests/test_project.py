"""The project's commands, locks and documentation, and no dependence on one machine."""

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import undercurrent_client
from service import __version__
from service.base.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Paths that exist on one machine only, and addresses of package indexes.
MACHINE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users|opt)/\w"
    r"|pypi\.org|pythonhosted\.org|://\S+/simpl[e]\b|index[-_]url|find[-_]links|file:[/]{3}",
    re.IGNORECASE,
)


def read_pins(lock: str) -> dict[str, str]:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    matches = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)", line) for line in lines]
    assert all(matches), f"{lock} has lines other than name==version"
    names = [canonicalize_name(match[1]) for match in matches if match]
    assert len(names) == len(set(names)), f"{lock} pins a package twice"
    return dict(zip(names, (match[2] for match in matches if match), strict=True))


def test_readme_names_the_two_commands_on_its_first_screen():
    first_screen = "\n".join(README.splitlines()[:30])
    assert "make run" in first_screen
    assert "make test" in first_screen


def test_continuous_integration_runs_the_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"


def test_locks_pin_the_dependencies():
    locked = read_pins("requirements.lock")
    for extra in ("dask", "dev", "prepare", "sim"):
        assert_pinned(EXTRAS[extra], locked)
    assert_pinned(PROJECT["dependencies"], locked)
    client = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert_pinned(client["dependencies"], locked)
    bench = read_pins("requirements-bench.lock")
    assert_pinned(EXTRAS["bench"], bench)
    assert not bench.keys() & locked.keys(), "both locks are installed together"


def assert_pinned(requirements: list[str], locked: dict[str, str]) -> None:
    for requirement in map(Requirement, requirements):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked"
        assert requirement.specifier.contains(version), f"{requirement} does not allow the locked {version}"


def test_every_setting_is_documented():
    for name in Settings.model_fields:
        assert f"`{PREFIX}{name.upper()}`" in CONFIGURATION


def test_python_examples_of_the_library_page_run():
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/library.md", "exec"), {})


def test_links_between_the_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md", ROOT / "migrations/README.md"]
    pages += ROOT.glob("clients/*/README.md")
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_client_has_the_version_of_the_service():
    assert undercurrent_client.__version__ == __version__


def test_changelog_lists_the_version():
    assert re.search(rf"^## \[{re.escape(__version__)}\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_no_file_depends_on_one_machine():
    # All files that are committed or would be, even if another user owns the checkout.
    git = ["git", "-c", "safe.directory=*"]
    listing = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    assert ROOT / "README.md" in paths
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "line",
    [
        "cd /" + "work/main",
        '"/' + 'home/ada/x"',
        "--extra-index" + "-url x",
        "https://files.python" + "hosted.org/x",
    ],
)
def test_the_search_for_machine_traces_finds_them(line):
    assert MACHINE.search(line)


@pytest.mark.parametrize("package", ["clients/python", "policy", "service", "simulator"])
def test_no_module_and_no_function_is_too_long(package):
    for path in (ROOT / package).rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 400, f"{path.relative_to(ROOT)} has two subjects"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 60, f"{path.relative_to(ROOT)}: {node.name} is too long"


def test_the_architecture_page_names_what_exists():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    sources = [path for package in ("policy", "service") for path in (ROOT / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for file in re.findall(r"`([a-z_/]+\.py)`", page):
        assert (ROOT / "service" / file).exists() or (ROOT / file).exists(), file
    for name in re.findall(r"`[A-Z]\w+\.(\w+)`", page):
        assert f"def {name}(" in code, name
