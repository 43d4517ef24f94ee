# SPDX-License-Identifier: Apache-2.0
"""Adds up the reports of one test run: summary.py [--no-python] FOLDER.

The folder holds one XML report per GoogleTest program, ctest.xml (which programs ran and how they ended) and pytest.xml. A
program that ended badly without a failed case of its own (it crashed, hung or could not start) counts as one failure. With
--no-python there is no pytest.xml, as for the sanitizers.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count_cases(path: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped cases of one JUnit-like report; an unreadable one has none."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"))
    return len(cases) - failed - skipped, failed, skipped


def failed_programs(path: Path) -> list[str]:
    """The ctest entries that did not end well."""
    try:
        cases = ElementTree.parse(path).iter("testcase")
    except (OSError, ElementTree.ParseError):
        return ["ctest"]
    return [case.get("name", "?") for case in cases if case.get("status") != "run"]


def main(folder: Path, python: bool = True) -> int:
    cxx_passed = cxx_failed = cxx_skipped = 0
    reports = sorted(set(folder.glob("*.xml")) - {folder / "ctest.xml", folder / "pytest.xml"})
    failed_in = {}
    for report in reports:
        passed, failed, skipped = count_cases(report)
        failed_in[report.stem] = failed
        cxx_passed, cxx_failed, cxx_skipped = cxx_passed + passed, cxx_failed + failed, cxx_skipped + skipped
    for name in failed_programs(folder / "ctest.xml"):
        if failed_in.get(name, 0) == 0:
            print(f"{name} did not end well")
            cxx_failed += 1
    py_passed, py_failed, py_skipped = count_cases(folder / "pytest.xml") if python else (0, 0, 0)
    if python and py_passed + py_failed == 0:
        print("pytest ran nothing")
        py_failed = 1
    line = f"C++ {cxx_passed} passed, {cxx_failed} failed, {cxx_skipped} skipped"
    print(f"{line}; Python {py_passed} passed, {py_failed} failed, {py_skipped} skipped" if python else line)
    print(f"{cxx_passed + py_passed} passed, {cxx_failed + py_failed} failed")
    return 1 if cxx_failed + py_failed > 0 else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), python="--no-python" not in sys.argv))
