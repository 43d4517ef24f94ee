# SPDX-License-Identifier: Apache-2.0
"""The closing lines of a test run count what really happened."""

from pathlib import Path

import pytest
import summary

GTEST = """<testsuites><testsuite name="S">
<testcase name="a" status="run" result="completed"/>
<testcase name="b" status="run" result="completed"><failure message="x"/></testcase>
<testcase name="c" classname="S" status="run" result="skipped"><skipped message="no&#x0A;hugepages"/></testcase>
<testcase name="d" status="notrun" result="suppressed"/>
<testcase name="DISABLED_Child" classname="S" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
GOOD = '<testsuites><testsuite><testcase name="a" status="run"/><testcase name="b" status="run"/></testsuite></testsuites>'
PYTEST = '<testsuites><testsuite><testcase name="p"/><testcase name="q"/></testsuite></testsuites>'


def ctest(**status: str) -> str:
    return "<testsuite>" + "".join(f'<testcase name="{name}" status="{value}"/>' for name, value in status.items()) + "</testsuite>"


@pytest.fixture
def run(tmp_path: Path, capsys):
    def summarise(python: bool = True, **reports: str) -> tuple[int, list[str]]:
        for name, text in reports.items():
            (tmp_path / f"{name}.xml").write_text(text)
        status = summary.main(tmp_path, python)
        return status, capsys.readouterr().out.splitlines()

    return summarise


def test_everything_passed(run):
    status, lines = run(net_test=GOOD, ctest=ctest(net_test="run"), pytest=PYTEST)
    assert (status, lines[-1]) == (0, "4 passed, 0 failed")


def test_failed_and_skipped_cases_are_counted_apart(run):
    status, lines = run(net_test=GTEST, ctest=ctest(net_test="fail"), pytest=PYTEST)
    assert (status, lines[-1]) == (1, "3 passed, 1 failed")
    assert "C++ 1 passed, 1 failed, 2 skipped" in lines[-2]
    assert lines[:3] == ["skipped:", "  S.c: no hugepages", "  d: no reason given"]


def test_the_slowest_are_named(run):
    cases = "".join(f'<testcase name="t{n}" status="run" time="{n / 10}"/>' for n in range(30))
    lines = run(net_test=f"<testsuite>{cases}</testsuite>", ctest=ctest(net_test="run"), pytest=PYTEST)[1]
    assert lines[:2] == ["slowest:", "     2.90 s  t29"] and lines[10] == "     2.00 s  t20" and lines[11].startswith("C++ 30 passed")


def test_a_program_that_crashed_without_a_report_is_a_failure(run):
    status, lines = run(net_test=GOOD, ctest=ctest(net_test="run", rpc_test="fail"), pytest=PYTEST)
    assert (status, lines[-1]) == (1, "4 passed, 1 failed")
    assert "rpc_test did not end well" in lines


def test_a_program_whose_cases_passed_but_that_ended_badly_is_a_failure(run):
    assert run(net_test=GOOD, ctest=ctest(net_test="fail"), pytest=PYTEST)[0] == 1


def test_the_sanitizers_run_without_python(run):
    status, lines = run(python=False, net_test=GOOD, ctest=ctest(net_test="run"))
    assert (status, lines) == (0, ["C++ 2 passed, 0 failed, 0 skipped", "2 passed, 0 failed"])
    assert run(python=False, net_test=GTEST, ctest=ctest(net_test="fail"))[0] == 1


@pytest.mark.parametrize("missing", ["ctest", "pytest"])
def test_a_missing_report_is_a_failure(run, missing):
    reports = {"net_test": GOOD, "ctest": ctest(net_test="run"), "pytest": PYTEST}
    del reports[missing]
    assert run(**reports)[0] == 1


def test_a_damaged_report_is_a_failure(run):
    assert run(net_test=GOOD, ctest=ctest(net_test="run"), pytest="<testsuites>")[0] == 1
