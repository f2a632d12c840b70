"""Drivers and brokers refuse the same servers: the rules of both languages are one table."""

from __future__ import annotations

import re
from pathlib import Path

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import durability

ROOT = Path(__file__).parents[2]
JAVA = (ROOT / "jvm_shim/src/main/java/pulsartxnspark/store/ServerCheck.java").read_text("utf-8")
CONF = (ROOT / "conf/broker.conf").read_text("utf-8")
_RULE = re.compile(r'(Rule\.of|new Rule)\(\s*"([\w-]+)",\s*"(\w+)",((?:\s*\+?\s*"[^"]*",?)+)\s*\)')
_STRING = re.compile(r'"([^"]*)"(,?)')


def java_rules(table: str) -> list[tuple[str, str, str, str]]:
    """Return name, needed value, reason and remedy of each rule of a table."""
    text = JAVA.partition(f"List<Rule> {table} =")[2].partition(";\n")[0]
    rules = []
    for kind, name, needed, rest in _RULE.findall(text):
        joined = "".join(part + ("\0" if comma else "") for part, comma in _STRING.findall(rest))
        why, line = joined.split("\0")
        remedy = f"CONFIG SET {line} (and '{line}' in redis.conf)" if kind == "Rule.of" else line
        rules.append((name, needed, why, remedy))
    return rules


def numbers(constant: str) -> list[int]:
    text = JAVA.partition(f" {constant} =")[2].partition(";\n")[0]
    return [int(number) for number in re.findall(r"\d+", text)]


def test_both_languages_need_the_same_of_a_server_for_the_same_reasons() -> None:
    for table, rules in (
        ("INFO_RULES", durability._INFO_RULES),
        ("CONFIG_RULES", durability._FSYNC_RULES),
    ):
        expected = [(rule.name, rule.needed, rule.why, rule.remedy) for rule in rules]
        assert java_rules(table) == expected


def test_both_languages_need_the_same_version_and_know_the_same_holes() -> None:
    assert numbers("MINIMUM_SERIES") == [series(durability.MINIMUM_VERSION)]
    for product, fixed in durability._LUA_HOLE_FIXED.items():
        flat = [number for key, patch in fixed.items() for number in (series(key), patch)]
        assert numbers(f"{product.upper()}_FIXED") == flat


def series(version: tuple[int, int]) -> int:
    return version[0] * 100 + version[1]


def test_both_languages_accept_the_same_by_settings_of_the_same_names_and_nothing_by_default() -> (
    None
):
    defaults = StoreConfig()
    assert not defaults.accept_data_loss
    assert not defaults.assume_durable
    for option in (durability.ACCEPT_OPTION, durability.ASSUME_OPTION):
        name = option.removeprefix("store.")
        setting = f"pulsarTxnSparkStore{name[0].upper()}{name[1:]}"
        assert f"{setting}=true" in JAVA
        assert f"\n{setting}=false\n" in CONF


def test_a_rule_that_differs_is_noticed() -> None:
    found = java_rules("CONFIG_RULES")
    assert [name for name, *_ in found] == ["appendfsync", "no-appendfsync-on-rewrite"]
    assert found[0][1] == "always"
