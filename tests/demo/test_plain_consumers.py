"""The demo's plain consumers receive everything once, and tell what is amiss."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pulsar
import pytest

from demo import __main__ as demo
from demo import plain_consumers as module
from demo.child import Settings
from demo.display import Display
from demo.plain_consumers import PlainConsumerError, PlainConsumers
from demo.run import Run
from demo.topics import DELAYS, ON_TIME, OUTPUTS

Place = tuple[int, int, int]
OPTIONS = {"service.url": "pulsar://nowhere:1"}


@dataclass(frozen=True)
class MessageId:
    place: Place

    def ledger_id(self) -> int:
        return self.place[0]

    def entry_id(self) -> int:
        return self.place[1]

    def batch_index(self) -> int:
        return self.place[2]


@dataclass(frozen=True)
class Message:
    place: Place
    key: str
    value: bytes

    def message_id(self) -> MessageId:
        return MessageId(self.place)

    def partition_key(self) -> str:
        return self.key

    def data(self) -> bytes:
        return self.value


@dataclass
class Consumer:
    """A consumer of a segment, to which a test sends what it likes."""

    last: Place = (-1, -1, -1)
    messages: queue.SimpleQueue[Message | Exception] = field(default_factory=queue.SimpleQueue)
    asked: int = 0

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.messages.put(message)
        self.last = max(self.last, *(message.place for message in messages))

    def receive(self, timeout_millis: int) -> Message:
        try:
            found = self.messages.get(timeout=min(timeout_millis, 5) / 1000)
        except queue.Empty:
            raise pulsar.Timeout from None
        if isinstance(found, Exception):
            raise found
        return found

    def get_last_message_id(self) -> MessageId:
        self.asked += 1
        if self.asked == 1:
            self.late()
        return MessageId(self.last)

    def late(self) -> None:
        """Do what happens when the broker is asked for the first time."""


@dataclass
class Cluster:
    """Two segments of each output topic."""

    consumers: dict[str, Consumer]

    def subscribe(self, segment: str, *_: object, **__: object) -> Consumer:
        return self.consumers[segment]

    def close(self) -> None:
        self.consumers.clear()

    def find_topic(self, topic: str) -> SimpleNamespace:
        refs = [SimpleNamespace(log_name=name) for name in self.consumers if topic in name]
        return SimpleNamespace(active=[SimpleNamespace(ref=ref) for ref in refs])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster({f"{topic}/{number}": Consumer() for topic in OUTPUTS for number in range(2)})
    monkeypatch.setattr(pulsar, "Client", lambda *_, **__: found)
    monkeypatch.setattr(module, "Admin", lambda _: found)
    yield found
    assert not found.consumers  # closed


def test_it_receives_all_that_the_broker_has_also_what_comes_late(cluster: Cluster) -> None:
    first, second = (cluster.consumers[f"{DELAYS}/{number}"] for number in range(2))
    first.send(Message((1, 0, 0), "a", b"1"), Message((1, 0, 1), "", b"2"))
    second.send(Message((4, 7, -1), "b", b"3"))
    late = Message((2, 0, 0), "a", b"4")
    first.late = lambda: first.send(late)  # type: ignore[method-assign]
    with PlainConsumers(OPTIONS, OUTPUTS) as plain:
        outputs = plain.outputs()
    assert outputs == {DELAYS: [("a", b"1"), (None, b"2"), ("a", b"4"), ("b", b"3")], ON_TIME: []}


def test_what_a_broker_sends_again_counts_once_and_a_copy_of_it_twice(cluster: Cluster) -> None:
    rows = Message((1, 0, 0), "a", b"1"), Message((1, 0, 1), "a", b"2")
    cluster.consumers[f"{ON_TIME}/0"].send(*rows, *rows, Message((1, 1, 0), "a", b"1"))
    with PlainConsumers(OPTIONS, OUTPUTS) as plain:
        assert plain.outputs()[ON_TIME] == [("a", b"1"), ("a", b"2"), ("a", b"1")]
        assert plain.received() == [("a", b"1"), ("a", b"2"), ("a", b"1")]


def test_what_is_announced_and_does_not_come_is_an_error(cluster: Cluster) -> None:
    consumer = cluster.consumers[f"{ON_TIME}/1"]
    consumer.send(Message((1, 0, 0), "a", b"1"))
    consumer.last = (1, 1, 0)
    with (
        PlainConsumers(OPTIONS, OUTPUTS, patience_s=0.05) as plain,
        pytest.raises(PlainConsumerError) as raised,
    ):
        plain.outputs()
    assert "last message is (1, 1, 0), but (1, 0, 0) was the last" in str(raised.value)


def test_a_consumer_that_fails_is_an_error(cluster: Cluster) -> None:
    cluster.consumers[f"{DELAYS}/1"].messages.put(pulsar.ConnectError("gone"))
    with (
        PlainConsumers(OPTIONS, OUTPUTS) as plain,
        pytest.raises(PlainConsumerError, match=r"delays/1 failed"),
    ):
        plain.outputs()


def test_it_ends_although_nobody_asks(cluster: Cluster) -> None:
    with PlainConsumers(OPTIONS, OUTPUTS):
        assert len(cluster.consumers) == 4


# --- and what the summary makes of it -------------------------------------------------------------


def facts(**differing: object) -> dict[str, object]:
    exact: dict[str, object] = {
        "exact": not differing,
        "expected": {DELAYS: 2, ON_TIME: 1},
        "read": {DELAYS: 2, ON_TIME: 1},
        "missing": 0,
        "doubled": 0,
        "wrong": 0,
        "examples": [],
    }
    return exact | differing


@pytest.mark.parametrize(
    "plain, shown",
    [
        ({"verdict": facts(), "disordered": []}, None),
        (None, None),
        (
            {
                "verdict": facts(doubled=1, examples=["doubled: flight 3 came out 2 times"]),
                "disordered": [],
            },
            "a plain consumer: doubled: flight 3",
        ),
        ({"verdict": facts(), "disordered": ["N1"]}, "of 1 keys out of order, among them N1"),
        ({"verdict": facts(read={}), "disordered": []}, "have not received what they should"),
    ],
)
def test_the_demo_is_exact_only_if_the_plain_consumers_say_so(
    plain: dict[str, object] | None,
    shown: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    findings: dict[str, object] = {
        "verdict": facts(),
        "disordered": [],
        "plain": plain,
        "audit": {"rows": 3, "aborted_rows": 0, "aborted_transactions": 0},
    }
    with Display(3) as display:
        exact = Run(Settings(str(tmp_path), {}, 1), display, ()).report(findings)
    screen = capsys.readouterr().out
    assert exact == (shown is None)
    assert (shown or "Exactly once") in screen
    assert ("plain consumers received of" in screen) == (plain is not None)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--shim"], "--shim needs --backend pulsar"),
        (["--shim", "--backend", "pulsar", "--split"], "--shim and --split exclude each other"),
    ],
)
def test_a_broker_with_the_plug_in_is_refused_where_it_makes_no_sense(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert complaint in capsys.readouterr().err
