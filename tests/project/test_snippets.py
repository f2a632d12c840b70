"""Each snippet of the pages about jobs, deployment and SQL is run by a test, which stands here."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT, snippets

SUBMIT = "integration/spark/test_submit.py"
JOB = "integration/spark/test_job.py"
SQL = "integration/spark/test_sql.py"
SHELLS = "integration/spark/test_shells.py"
FIRST_JOB = f"{SUBMIT}::test_from_an_empty_machine_to_a_job_on_a_cluster"
OF_SQL = f"{SQL}::test_the_snippets_of_the_page_run"
OF_JOB = f"{JOB}::test_each_snippet_of_the_page_is_analyzed"
COMMANDS = f"{JOB}::test_the_commands_of_the_pages_run"

RUN_BY = {
    "docs/comparison.md": [],
    "docs/deployment.md": [
        COMMANDS,
        f"{SUBMIT}::test_in_client_mode_driver_and_executors_use_what_is_installed",
        f"{SUBMIT}::test_in_client_mode_driver_and_executors_take_the_package_from_py_files",
        "integration/spark/test_examples.py::test_the_snippet_that_registers_the_format_runs",
        f"{SUBMIT}::test_driver_and_executors_run_in_an_environment_from_archives",
        f"{SUBMIT}::test_a_job_file_in_the_cluster_goes_on_after_its_driver_was_killed",
        "tests/cli/test_server.py::test_the_commands_of_the_page_run",
        "tests/testing/test_pulsar_server_command.py::test_the_command_of_the_page_runs_the_example",
        "tests/cli/test_sweep.py::test_sweeps_go_on_with_metrics_until_they_are_told_to_stop",
    ],
    "docs/first-job.md": [FIRST_JOB] * len(snippets("docs/first-job.md")),
    "docs/job.md": [
        f"{JOB}::test_the_first_job_of_the_page_runs",
        COMMANDS,
        OF_JOB,
        f"{JOB}::test_avro_is_decoded_with_the_package_of_spark",
        OF_JOB,
        OF_JOB,
        OF_JOB,
    ],
    "docs/sql.md": [
        OF_SQL,
        OF_SQL,
        OF_SQL,
        OF_SQL,
        OF_SQL,
        OF_SQL,
        OF_SQL,
        f"{SHELLS}::test_a_table_outlives_the_session_of_spark_sql",
        f"{SHELLS}::test_the_format_is_there_in_scala",
    ],
}
"""Page -> for each of its snippets, in their order, the test that runs it."""


@pytest.mark.parametrize("page", RUN_BY)
def test_each_snippet_has_a_test_that_reads_it_from_the_page(page: str) -> None:
    found = [text.partition("\n")[0] for _, text in snippets(page)]
    assert len(found) == len(RUN_BY[page]), found
    for test in set(RUN_BY[page]):
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text, test
        folder, _, file_name = page.partition("/")
        assert re.search(rf'"{folder}/{file_name}"|"{folder}" / "{file_name}"', text), test
