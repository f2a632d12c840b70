"""Class paths of other projects' programs, from Maven Central."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import SideError
from pulsar_txn_spark.testing.pulsar_server import cache_folder

_SECONDS = 600.0  # the first time they are downloaded
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pulsar-txn-spark</groupId>
  <artifactId>benchmarks-{name}</artifactId>
  <version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


def class_path(name: str, artifacts: Sequence[str]) -> str:
    """Return a class path, resolved by Maven the first time.

    Parameters
    ----------
    name : str
        What it is for.
    artifacts : sequence of str
        Group, artifact and version of each, with colons in between.

    Raises
    ------
    SideError
        If Maven is absent or fails.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise SideError(f"there is no 'mvn' on the PATH to fetch {name} with")
    project = _POM.format(
        name=name,
        dependencies="".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts),
    )
    folder = cache_folder() / f"benchmarks-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pom, kept = folder / "pom.xml", folder / "classpath"
        if pom.exists() and pom.read_text() == project and kept.exists():
            jars = kept.read_text().strip()
            if all(Path(jar).exists() for jar in jars.split(os.pathsep)):
                return jars
        pom.write_text(project)
        command = [maven, "-B", "-q", "-f", str(pom), "dependency:build-classpath"]
        command += [f"-Dmdep.outputFile={kept}", "-Dmdep.includeScope=runtime"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode:
            pom.unlink()  # what an earlier project resolved to is not taken for this one's
            raise SideError(f"Maven could not resolve {name}: {done.stdout[:500]}")
        return kept.read_text().strip()
