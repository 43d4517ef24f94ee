# SPDX-License-Identifier: Apache-2.0
"""Adds up the reports of one test run: summary.py [--no-python] FOLDER.

The folder holds one XML report per GoogleTest program, ctest.xml (which programs ran and how they ended) and pytest.xml. A
program that ended badly without a failed case of its own (it crashed, hung or could not start) counts as one failure. With
--no-python there is no pytest.xml, as for the sanitizers. Disabled cases of GoogleTest are what child processes run, not tests.
"""

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

SLOWEST = 10


@dataclass
class Cases:
    passed: int = 0
    failed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # name, reason
    seconds: list[tuple[float, str]] = field(default_factory=list)

    def add(self, other: "Cases") -> None:
        self.passed, self.failed = self.passed + other.passed, self.failed + other.failed
        self.skipped += other.skipped
        self.seconds += other.seconds

    def counts(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {len(self.skipped)} skipped"


def read_cases(path: Path) -> Cases:
    """The cases of one JUnit-like report; an unreadable one has none."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Cases()
    found = Cases()
    for case in cases:
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        skipped = case.find("skipped")
        if case.get("status") == "notrun" and "DISABLED_" in name:
            continue
        if case.find("failure") is not None or case.find("error") is not None:
            found.failed += 1
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            reason = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
            found.skipped.append((name, " ".join(reason.split()) or "no reason given"))
        else:
            found.passed += 1
        found.seconds.append((float(case.get("time") or 0), name))
    return found


def failed_programs(path: Path) -> list[str]:
    """The ctest entries that did not end well."""
    try:
        cases = ElementTree.parse(path).iter("testcase")
    except (OSError, ElementTree.ParseError):
        return ["ctest"]
    return [case.get("name", "?") for case in cases if case.get("status") != "run"]


def print_details(cases: Cases) -> None:
    slowest = sorted((one for one in cases.seconds if one[0] > 0), reverse=True)[:SLOWEST]
    if slowest:
        print("slowest:")
    for seconds, name in slowest:
        print(f"  {seconds:7.2f} s  {name}")
    if cases.skipped:
        print("skipped:")
    for name, reason in cases.skipped:
        print(f"  {name}: {reason}")


def main(folder: Path, python: bool = True) -> int:
    cxx = Cases()
    failed_in = {}
    for report in sorted(set(folder.glob("*.xml")) - {folder / "ctest.xml", folder / "pytest.xml"}):
        cases = read_cases(report)
        failed_in[report.stem] = cases.failed
        cxx.add(cases)
    for name in failed_programs(folder / "ctest.xml"):
        if failed_in.get(name, 0) == 0:
            print(f"{name} did not end well")
            cxx.failed += 1
    py = read_cases(folder / "pytest.xml") if python else Cases()
    if python and py.passed + py.failed == 0:
        print("pytest ran nothing")
        py.failed = 1
    both = Cases()
    both.add(cxx)
    both.add(py)
    print_details(both)
    print(f"C++ {cxx.counts()}; Python {py.counts()}" if python else f"C++ {cxx.counts()}")
    print(f"{both.passed} passed, {both.failed} failed")
    return 1 if both.failed > 0 else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), python="--no-python" not in sys.argv))
