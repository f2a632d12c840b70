from __future__ import annotations

import json

import pytest

from demo import data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def messages() -> list[tuple[str | None, bytes]]:
    table = data.flights()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def csv_rows() -> list[dict[str, str]]:
    return list(data.csv_rows())


def test_every_published_flight_is_there(
    messages: list[tuple[str | None, bytes]], csv_rows: list[dict[str, str]]
) -> None:
    assert len(messages) == data.FLIGHTS == len(csv_rows)


def test_an_unknown_tail_number_is_a_null_key(messages: list[tuple[str | None, bytes]]) -> None:
    assert sum(key is None for key, _ in messages) == 2512
    assert not any(key == "" for key, _ in messages)


def test_each_value_is_the_csv_row_with_its_number(
    messages: list[tuple[str | None, bytes]], csv_rows: list[dict[str, str]]
) -> None:
    texts = {"carrier", "tailnum", "origin", "dest", "time_hour"}
    for number, ((key, value), row) in enumerate(zip(messages, csv_rows, strict=True)):
        expected: dict[str, object] = {
            name: None if text in {"", "NA"} else (text if name in texts else int(text))
            for name, text in row.items()
        }
        assert json.loads(value) == {"id": number, **expected}
        assert key == expected["tailnum"]


def test_the_input_is_the_same_every_time(messages: list[tuple[str | None, bytes]]) -> None:
    assert data.flights()["value"].to_pylist() == [value for _, value in messages]


def test_every_carrier_has_an_airline(csv_rows: list[dict[str, str]]) -> None:
    names = data.csv_airlines()
    assert len(names) == 16
    assert {row["carrier"] for row in csv_rows} == set(names)
    assert data.airlines().to_pylist() == [
        {"carrier": carrier, "name": name} for carrier, name in names.items()
    ]


def test_the_absence_of_the_data_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda _name: None)  # type: ignore[attr-defined]
    with pytest.raises(data.DemoDataError, match="make demo"):
        data.flights()
