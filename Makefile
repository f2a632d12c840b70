# Every target sets up what it needs by itself, in .venv. Needed beforehand: make, Python >= 3.11
# and, for whatever runs Spark, Java >= 17. With Maven, a real Pulsar broker can be started too.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BACKEND ?= embedded
SPLIT ?=
JOB ?=
# What `make test` leaves out; `make test MARK="not benchmark and not long and not crash"`
# is quicker.
MARK ?= not benchmark and not long
# Passed on: `make test ARGS="-k offsets -x"`, `make demo ARGS="--kills 5"`.
ARGS ?=
# So many processes share the tests: `make test JOBS=0` runs them one after the other. Two leave two
# cores idle for a fifth of the time, while servers start and timeouts pass.
JOBS ?= 3
# The fast tests wait (for timeouts, for servers that start) half of their time.
FAST_JOBS ?= 4
FAST_MARK := not benchmark and not long and not crash and not slow

VENV := .venv
PY := $(VENV)/bin/python
# Spark starts a "python3" of its own choice to look for data sources unless it is told which.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
# Where this is set, each of the hundreds of Python processes compiles the package for itself.
export PYTHONDONTWRITEBYTECODE :=
# Sparks that live for seconds, as those of the tests do, start in half the time.
BRIEF_SPARKS = SPARK_SUBMIT_OPTS="$$($(PY) tools/spark_jvm_options.py $(VENV))"

PROTO := pulsar_txn_spark/store/metadata.proto pulsar_txn_spark/backends/pulsar/pulsar.proto

.PHONY: help
help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The set-up is repeated when the dependencies have changed; it takes no time otherwise.
$(VENV)/%.stamp: pyproject.toml setup.cfg tools/setup-venv tools/dependency_group.py
	@PYTHON="$(PYTHON)" tools/setup-venv $(VENV) $*
	@touch $@

.PHONY: java
java:
	@tools/check-java

.PHONY: demo
demo: java $(VENV)/demo.stamp  ## the flights, four kills, and the proof (BACKEND=pulsar, SPLIT=1, JOB=1, SHIM=1)
	$(PY) -m demo --backend $(BACKEND) $(if $(SPLIT),--split) $(if $(JOB),--job) $(if $(SHIM),--shim) $(ARGS)

.PHONY: test
test: java $(VENV)/dev.stamp  ## all tests: the fast ones, then those against real servers
	$(BRIEF_SPARKS) $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "$(MARK)" $(ARGS)

.PHONY: fast
fast: $(VENV)/dev.stamp  ## the fast tests alone: no kills, no packages, fewer random histories
	INTERLEAVINGS=$${INTERLEAVINGS:-32} HISTORIES=$${HISTORIES:-10} \
	    TOPIC_HISTORIES=$${TOPIC_HISTORIES:-8} \
	    $(PY) -m pytest -n $(FAST_JOBS) -m "$(FAST_MARK)" tests $(ARGS)

.PHONY: interleavings
interleavings: $(VENV)/dev.stamp  ## many random interleavings: INTERLEAVINGS=100000, INTERLEAVINGS_FROM=0
	INTERLEAVINGS=$${INTERLEAVINGS:-10000} $(PY) -m pytest -n $(JOBS) --timeout 0 -rP \
	    tests/models/test_interleavings.py $(ARGS)

.PHONY: crash
crash: java $(VENV)/dev.stamp  ## the crash suite alone: a kill at every protocol step
	$(BRIEF_SPARKS) $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m crash $(ARGS)

.PHONY: long
long: java $(VENV)/dev.stamp  ## what make test leaves out, such as the demo on Pulsar under splits
	$(BRIEF_SPARKS) $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m long $(ARGS)

.PHONY: shim
shim: java $(VENV)/dev.stamp  ## the jar by which a Pulsar broker gates segments, and its tests (Maven)
	$(PY) -m pulsar_txn_spark.testing.broker_jar

.PHONY: versions
versions: java $(VENV)/dev.stamp  ## each supported PySpark and Python; ARGS="--write docs/compatibility.md"
	$(PY) -m tools.versions $(ARGS)

.PHONY: redis-versions
redis-versions: java $(VENV)/dev.stamp  ## servers of Redis and Valkey; ARGS="--server PATH … --write docs/compatibility.md"
	$(PY) -m tools.redis_versions $(ARGS)

.PHONY: mutants
mutants: $(VENV)/dev.stamp  ## take each safeguard out, in a copy, and see its test fail
	$(PY) -m tests.mutation $(ARGS)

.PHONY: lint
lint: $(VENV)/dev.stamp  ## ruff, mypy, import-linter
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

.PHONY: format
format: $(VENV)/dev.stamp  ## let ruff fix and format what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# With PEER_JAR=connector.jar also the JVM connector, in a virtual environment of its own with the
# PySpark that it was built for.
PEER_PYSPARK := 4.0.5
$(VENV)/peer.stamp: $(VENV)/dev.stamp
	$(PY) -m venv $(VENV)/peer
	$(VENV)/peer/bin/python -m pip install --quiet --disable-pip-version-check pyspark==$(PEER_PYSPARK)
	@touch $@

.PHONY: bench
bench: export PEER_PYTHON := $(CURDIR)/$(VENV)/peer/bin/python
bench: java $(VENV)/dev.stamp $(if $(PEER_JAR),$(VENV)/peer.stamp)  ## throughput and latency, both backends, and the transaction layer by itself
	$(PY) -m benchmarks $(ARGS)

.PHONY: bench-revisions
bench-revisions: java $(VENV)/dev.stamp  ## this folder beside the revision BASE, in pairs
	$(PY) -m benchmarks.revisions $(BASE) $(ARGS)

.PHONY: bench-turns
bench-turns: export PEER_PYTHON := $(CURDIR)/$(VENV)/peer/bin/python
bench-turns: java $(VENV)/dev.stamp $(if $(PEER_JAR),$(VENV)/peer.stamp)  ## the revision BASE, this folder and the connector, run by run
	$(PY) -m benchmarks.turns $(BASE) $(ARGS)

.PHONY: bench-coordination
bench-coordination: $(VENV)/dev.stamp  ## the transaction layer by itself, without Spark
	$(PY) -m benchmarks --part coordinator --part services --part visibility --part op_log \
	    --part gates --part looks --part store_memory $(ARGS)

.PHONY: dist
dist: java $(VENV)/dist.stamp  ## what a release consists of: wheel, sdist, py-files zip, packed environment
	$(PY) tools/dist.py $(ARGS)

.PHONY: docs
docs: $(VENV)/docs.stamp  ## the documentation with the API reference, as pages in dist/site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --site-dir dist/site $(ARGS)

.PHONY: proto
proto: $(VENV)/dev.stamp  ## generate the protobuf code again
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTO)

.PHONY: clean
clean:  ## remove .venv and everything that was made
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
	    .hypothesis .import_linter_cache spark-warehouse artifacts metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
