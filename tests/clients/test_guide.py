"""Every program of docs/integrate.md is run; those in TypeScript by test_packages.py."""

import sys

import pytest

from tests.clients.guide import check, make_patient, read_programs
from tests.clients.packages import run


def test_programs_have_about_ten_lines():
    for language, count in (("python", 2), ("typescript", 2), ("bash", 1)):
        programs = read_programs(language)
        assert len(programs) == count
        assert all(len(list(filter(None, program.splitlines()))) <= 10 for program in programs)


@pytest.mark.slow
def test_python(service):
    client, openfeature = (make_patient(program, service.url) for program in read_programs("python"))
    check(service, run([sys.executable, "-c", client]), "order-2001", 1.25)
    printed = run([sys.executable, "-c", openfeature])
    check(service, printed, "order-2004", None)
    assert "propensity" in printed


@pytest.mark.slow
def test_curl(service):
    (program,) = read_programs("bash")
    check(service, run(["bash", "-euc", make_patient(program, service.url)]), "order-2003", 1.25)
