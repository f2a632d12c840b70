"""What came of tests that a tool runs is said in a few words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.run_results import shown

PASSED = '<testcase name="a"/><testcase name="b"/>'
FAILED = '<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"/>'
SKIPPED = '<testcase name="a"><skipped/></testcase>'


@pytest.mark.parametrize(
    "cases, text, passed",
    [
        (PASSED, "2 passed", True),
        (FAILED, "2 of 3; not b", False),
        (SKIPPED, "0 of 1; not a", False),
        ("", "0 of 0; not ", False),
    ],
)
def test_a_report_names_the_tests_that_did_not_pass(
    tmp_path: Path, cases: str, text: str, passed: bool
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert shown(report) == (text, passed)


def test_several_reports_are_counted_together(tmp_path: Path) -> None:
    reports = [tmp_path / name for name in "ab"]
    for report, cases in zip(reports, (PASSED, SKIPPED), strict=True):
        report.write_text(f"<testsuite>{cases}</testsuite>")
    assert shown(*reports) == ("2 of 3; not a", False)
    assert shown() == ("0 of 0; not ", False)
