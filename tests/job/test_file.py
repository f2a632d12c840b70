"""A job file is read as it was meant, and each of its mistakes is named with its place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pulsar_txn_spark.errors import JobFileError
from pulsar_txn_spark.job import Job, load
from pulsar_txn_spark.job.file import seconds_of
from tests.job.conftest import GOOD

Loader = Callable[..., Job]
Complaints = Callable[..., list[str]]


def test_a_good_file_is_read(loader: Loader, tmp_path: Path) -> None:
    job = loader()
    assert (job.name, job.checkpoint, job.trigger) == ("flights", "/checkpoints/flights", "")
    assert job.folder == str(tmp_path)
    [source], [step], [sink] = job.sources, job.steps, job.sinks
    assert source.options == {"store.path": "/store", "topic": "flights", "subscription": "job"}
    assert (source.stream, source.decode, source.schema) == (True, "json", "id BIGINT, delay INT")
    assert step.inputs == ("flights",)
    assert str(step.place) == f"{tmp_path}/job.toml:18"  # where the statement itself begins
    assert (sink.name, sink.topic, sink.json, sink.view) == ("late", "late", True, None)
    assert job.transaction == {"store.path": "/store"}
    assert not job.persist
    assert pickle.loads(pickle.dumps(job)) == job


def test_settings_of_spark_may_do_without_their_prefix(loader: Loader) -> None:
    job = loader(
        (
            "[options]",
            (
                '[spark]\nmaster = "local[2]"\n"spark.a.b" = 1\nsql.shuffle.partitions = 8\n'
                'jars = ["a.jar", "b.jar"]\n\n[options]'
            ),
        )
    )
    assert job.spark == {
        "spark.master": "local[2]",
        "spark.a.b": "1",
        "spark.sql.shuffle.partitions": "8",
        "spark.jars": "a.jar,b.jar",
    }


def test_words_are_matched_without_regard_to_case(loader: Loader) -> None:
    assert (
        loader(('decode = "json"', 'decode = "JSON"\nmalformed = "Keep"')).sources[0].keep_malformed
    )


def test_several_topics_may_be_a_list(loader: Loader) -> None:
    job = loader(('topic = "flights"', 'topics = ["a", "b"]'))
    assert job.sources[0].options["topics"] == "a,b"


def test_all_mistakes_are_named_at_once_in_the_order_of_the_file(complaints: Complaints) -> None:
    assert complaints(
        ("checkpoint =", "chekpoint ="),
        ("subscription =", "subscripton ="),
        ('encode = "json"', 'encode = "jsn"'),
        ("[[step]]", "[[stp]]"),
    ) == [
        (
            "job.toml:1: [job] 'flights': 'checkpoint' is missing: name a folder that outlives the "
            'driver, on a file system that every driver reaches (or trigger = "batch", for no '
            "stream)"
        ),
        "job.toml:3: [job] 'flights': unknown key 'chekpoint': did you mean 'checkpoint'?",
        (
            "job.toml:11: [[source]] 'flights': unknown option 'subscripton': did you mean "
            "'subscription'?"
        ),
        "job.toml:15: unknown section 'stp': did you mean 'step'?",
        "job.toml:25: [[sink]]: 'encode' cannot be 'jsn': did you mean 'json'?",
    ]


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ('name = "flights"\ncheck', "name = 5\ncheck", "2: [job] '5': 'name' has to be a text"),
        ('name = "flights"\ncheck', 'name = ""\ncheck', "2: [job]: 'name' is empty"),
        ("[job]", '[job]\ntrigger = "once"', "write 'availableNow'"),
        ("[job]", '[job]\ntrigger = "often"', "or an interval such as '10 seconds'"),
        ("[job]", '[job]\nstopTimeout = "soon"', "'stopTimeout' cannot be 'soon'"),
        ("[job]", '[job]\npersist = "yes"', "'persist' has to be true or false"),
        ("[job]", '[job]\noutputMode = "updat"', "did you mean 'update'?"),
        ("[job]", '[job]\ntrigger = "batch"', "'checkpoint' has no effect with trigger"),
        ("[job]\n", 'checkpoint = "x"\n[job]\n', "'checkpoint' stands outside of a section"),
        ("[job]", "[[job]]", "'job' is a section: write [job]"),
        ("[[step]]", "[step]", "'step' is a section: write [[step]]"),
        ("[options]", "[options]\nsubscription = 's'", "put it into a [[source]]"),
        ("[options]", "[options]\nstore.timeoutMs = 'x'", "whole number from 10 to 600000"),
        ("[options]", "[options]\nstore.url = 'redis://h'", "may not be given together"),
        ("[options]", "[options]\nservice.url = 'pulsar://h'", "'admin.url' is missing"),
        ("[options]", "[options]\npulsar.client.foo = 1", "pulsar.client.foo"),
        ("[options]", "[transaction]\ntopic = 't'\n[options]", "'topic' stands in each [[sink]]"),
        ("[options]", "[transaction]\ntransactions = false\n[options]", "drop the option"),
        ("[options]", "[spark]\nremote = 'sc://h'\n[options]", "cannot be run through Spark"),
        ("[options]", "[spark]\napi.mode = 'Connect'\n[options]", "cannot be run through Spark"),
        ('topic = "flights"', 'topci = "flights"', "did you mean 'topic'?"),
        ('topic = "flights"\n', "", "no topic to read"),
        ('topic = "flights"', 'kafka.group.id = "g"', "use 'subscription'"),
        ('decode = "json"', 'decod = "json"', "did you mean 'decode'?"),
        ('schema = "id BIGINT, delay INT"\n', "", "decode = \"json\" needs a 'schema'"),
        ('decode = "json"\n', "", "'schema' has no effect without"),
        ('decode = "json"', 'decode = "json"\nwatermark = "x"', "'watermark' is a table"),
        ('decode = "json"', 'decode = "json"\nwatermark.column = "x"', "no 'delay'"),
        (
            'decode = "json"',
            'decode = "json"\nwatermark = {column = "x", delay = "long"}',
            "expected an interval such as '10 minutes'",
        ),
        ('decode = "json"', 'decode = "json"\nformat = "csv"', "'decode' is for pulsar_txn"),
        ('topic = "flights"', 'format = "csv"\nheader = true', "stand in options = { … }"),
        ('topic = "flights"', 'topic = "flights"\npath = "x"', "'path' is for other formats"),
        ('name = "late"', 'name = "Flights"', "the name stands at"),
        ('name = "late"', 'name = "too late"', "letters, digits and '_' only"),
        ('name = "late"\n', "", "'name' is missing"),
        ('sql = """', 'python = "f"\nsql = """', "exclude each other"),
        ('sql = """', 'inputs = ["flights"]\nsql = """', "'inputs' is for 'python'"),
        ('sql = """', 'note = """', "'sql' or 'python' is missing"),
        ('topic = "late"', 'topic = "persistent://a/b/c"', "24: [[sink]]: 'topic': topic persis"),
        ('topic = "late"', 'from = "lat"', "there is no view 'lat': did you mean 'late'?"),
        ('topic = "late"', "everyBatch = true", "stand in [transaction]"),
        ('topic = "late"', 'mode = "append"', "are for other formats"),
        ('encode = "json"', 'format = "csv"', "'topic', 'encode' and 'key' are for pulsar_txn"),
        ('[[sink]]\ntopic = "late"\nencode = "json"\n', "", "there is no [[sink]]"),
        ('encode = "json"', "key = 2013-01-01", "'key' has to be a text"),
    ],
)
def test_a_mistake_is_named(complaints: Complaints, before: str, after: str, expected: str) -> None:
    if expected.startswith("2: "):
        expected = f"job.toml:{expected}"
    assert expected in "\n".join(complaints((before, after)))


def test_what_is_no_toml_says_where(complaints: Complaints, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[job]\nname = "a\n')
    with pytest.raises(JobFileError, match=r"job\.toml:2:\d+: the job file is no valid TOML"):
        load(file)
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    file.write_bytes(b"\xff")
    with pytest.raises(JobFileError, match="no text in UTF-8"):
        load(file)


def test_a_function_gets_the_view_before_it_unless_inputs_are_named(loader: Loader) -> None:
    python = GOOD[GOOD.index("sql =") : GOOD.index("[[sink]]")]
    job = loader((python, 'python = "module:function"\n\n'))
    assert job.steps[0].inputs == ("flights",)
    job = loader((python, 'python = "module:function"\ninputs = ["flights", "flights"]\n\n'))
    assert job.steps[0].inputs == ("flights", "flights")


def test_inputs_stand_before_their_step(complaints: Complaints) -> None:
    python = GOOD[GOOD.index("sql =") : GOOD.index("[[sink]]")]
    [line] = complaints((python, 'python = "module:function"\ninputs = ["late"]\n\n'))
    assert line.endswith("no view 'late' stands before it (there are flights)")


def test_a_batch_reads_no_stream(loader: Loader) -> None:
    job = loader(
        ('checkpoint = "/checkpoints/flights"', 'trigger = "batch"'),
        ('subscription = "job"\n', ""),
    )
    assert job.is_batch
    assert job.checkpoint is None
    assert not job.sources[0].stream


def test_keys_are_matched_without_regard_to_case_wherever_the_sections_stand(
    tmp_path: Path,
) -> None:
    *rest, sink = GOOD.partition("[[sink]]")
    head = f'{rest[0][: rest[0].index("[options]")]}Trigger = "${{TRIGGER}}"\n'
    others = rest[0][rest[0].index("[options]") :].replace("decode", "Decode")
    others = others.replace('subscription = "job"\n', "")
    file = tmp_path / "job.toml"
    file.write_text(
        f"{others}[[sink]]{sink}\n{head}".replace('checkpoint = "/checkpoints/flights"', "")
    )
    job = load(file, environment={"TRIGGER": "Batch"})
    assert job.is_batch
    assert not job.sources[0].stream
    assert job.sources[0].decode == "json"
    assert "Decode" not in job.sources[0].options


def test_metrics_are_served_by_the_driver_alone(loader: Loader) -> None:
    job = loader(("[options]", "[options]\nmetrics.port = 0"))
    assert "metrics.port" in job.transaction
    assert "metrics.port" not in job.sources[0].options


def test_an_option_of_a_source_replaces_what_it_conflicts_with(loader: Loader) -> None:
    job = loader(('topic = "flights"', 'topic = "flights"\nstore.url = "redis://host"'))
    assert "store.path" not in job.sources[0].options
    assert job.sources[0].options["store.url"] == "redis://host"


def test_with_several_sinks_a_micro_batch_is_kept(loader: Loader) -> None:
    two = ("[[sink]]", '[[sink]]\ntopic = "all"\nfrom = "late"\nencode = "json"\n\n[[sink]]')
    assert loader(two).persist
    assert not loader(two, ("[job]", "[job]\npersist = false")).persist


def test_options_from_outside_come_before_or_behind_those_of_the_file(loader: Loader) -> None:
    job = loader(defaults={"store.url": "redis://default", "store.timeoutMs": "700"})
    assert job.options == {"store.path": "/store", "store.timeoutMs": "700"}
    job = loader(options={"store.url": "redis://explicit"})
    assert job.options == {"store.url": "redis://explicit"}


@pytest.mark.parametrize(
    "text, seconds",
    [("10 seconds", 10), ("1 minute", 60), ("500 milliseconds", 0.5), ("2 hours", 7200)],
)
def test_intervals_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of("soon") is None


def test_reading_a_file_starts_no_spark(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr(SparkSession, "__init__", refuse)
    loader()
