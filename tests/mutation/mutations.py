"""What the safety of the protocol hangs on: each safeguard, taken out, and the test that notices.

The list follows what a model checker says of the protocol: each of these single changes breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass

WIRE_CODE = "pulsar_txn_spark/backends/pulsar/wire"
RECEIPT_LEDGER_CODE = "pulsar_txn_spark/backends/pulsar/receipt_ledger.py"
LIBRARY = "pulsar_txn_spark/backends/pulsar/library"
PULSAR = "pulsar_txn_spark/backends/pulsar"
EMBEDDED_CODE = "pulsar_txn_spark/backends/embedded"
LUA = "pulsar_txn_spark/store/redis/lua"
REDIS = "pulsar_txn_spark/store/redis"
TXN = "pulsar_txn_spark/txn"
SEGMENTS = "pulsar_txn_spark/segments"
SOURCE_CODE = "pulsar_txn_spark/spark/source"
SINK_CODE = "pulsar_txn_spark/spark/sink"
SPARK = "pulsar_txn_spark/spark"
CLIENT_CODE = "pulsar_txn_spark/client"
ENGINE = "pulsar_txn_spark/engine"
BUFFER = "tests/txn/test_transaction_buffer.py"
ENDS = "tests/txn/test_end_txn.py"
HEADER = "tests/store/test_header_state_machine.py"
BATCH = "tests/txn/test_batch.py"
ACKS = "tests/txn/test_pending_ack.py"
MESSAGES = "tests/txn/test_message_acks.py"
SERVER = "tests/store/redis/test_server.py"
MOVES = "tests/store/redis/test_moving_slots.py"
A_STEP_WAITS = (
    f"{MOVES}::test_a_step_whose_slot_moves_waits_and_has_the_effect_of_one_that_met_no_move"
)
STORES = "tests/store/redis/test_store_identity.py"
HISTORIES = "tests/store/redis/test_store_histories.py"
CLIENT_TRANSACTIONS = "tests/store/redis/test_client_transactions.py"
BROKER_ACKS = "tests/store/redis/test_broker_acks.py"
PLANNER = "tests/spark/source/test_planner.py"
ADMIN_CALLS = "tests/spark/source/test_admin_calls.py"
MERGED_STEPS = "tests/store/redis/test_merged_steps.py"
AT_ONCE = "tests/store/redis/test_gates_at_once.py"
BATCH_READ = "tests/spark/source/test_batch_read.py"
SWEEPS = "tests/txn/test_sweeper.py"
EMBEDDED = "tests/backends/embedded/test_log.py"
LEDGERS = "tests/backends/pulsar/test_ledgers.py"
RECEIPT_LEDGER = "tests/backends/pulsar/test_receipt_ledger.py"
SEGMENT_WRITER = "tests/backends/pulsar/test_segment_writer.py"
PULSAR_WRITER = "tests/backends/pulsar/library/test_writer.py"
DROPPED = "tests/txn/test_dropped_writers.py"
TASKS = "tests/spark/sink/test_task.py"
SCOPES = "tests/spark/sink/test_batch_transaction.py"
OPS = "tests/txn/test_op_log.py"
SOURCE = "tests/spark/source/test_stream.py"
TRACKING = "tests/spark/source/test_tracking.py"
CLAIMS = "tests/spark/source/test_claims.py"
DELETED_TOPICS = "tests/spark/source/test_deleted_topics.py"
PROGRESS = "tests/txn/test_read_progress.py"
EVIDENCE = "tests/txn/test_replay_evidence.py"
CHECKPOINTS = "tests/models/test_checkpoint_histories.py"
EVENTS = "tests/txn/test_watcher.py"
MARK = "tests/txn/test_contains_txn.py"
IDLE = "tests/spark/source/test_idle.py"
METRICS = "tests/test_prometheus.py"
RETENTION = "tests/segments/test_retention.py"
TRIM = "tests/backends/pulsar/test_trim.py"
SCALING = "tests/segments/test_scaling.py"
WIRE = "tests/backends/pulsar/wire/test_transport.py"
TERMINATE = "tests/backends/pulsar/test_terminate.py"
PRODUCERS = "tests/backends/pulsar/wire/test_shared_producers.py"
NATIVE = "tests/backends/pulsar/test_native_topic_log.py"
SCALABLE = "tests/backends/pulsar/test_scalable_topic_log.py"
WIRE_CONNECTION = "tests/backends/pulsar/wire/test_connection.py"
WIRE_CLIENT = "tests/backends/pulsar/wire/test_client.py"
REDIRECTS = "tests/backends/pulsar/test_redirects.py"
ADMIN_POOL = "tests/backends/pulsar/test_admin_pool.py"
IDLE_FEEDS = "tests/backends/pulsar/wire/test_idle_feeds.py"
KNOWN_TOPICS = "tests/backends/pulsar/test_known_topics.py"
CURSOR = "tests/backends/pulsar/wire/test_cursor.py"
CONNECTIONS = "tests/store/redis/test_connection.py"
FULL = "tests/store/redis/test_full_store.py"
SCALABLE_STREAM = "tests/spark/source/test_scalable_stream.py"
SCALABLE_CODE = "pulsar_txn_spark/backends/pulsar/scalable_topic_log.py"
NATIVE_SINK = "tests/engine/test_native_sink.py"
NATIVE_SINK_CODE = "pulsar_txn_spark/engine/native_sink.py"
NATIVE_HISTORY = "tests/txn/test_native_history.py"
NATIVE_STREAM = "tests/spark/sink/test_native.py"
COORDINATORS = "tests/backends/pulsar/wire/test_coordinator.py"
NATIVE_CODE = f"{ENGINE}/native_sink.py"
HISTORY_CODE = f"{TXN}/native_history.py"
CLOSED_LEDGERS = "tests/backends/pulsar/test_closed_ledgers.py"
EXPIRY = "tests/backends/pulsar/test_subscription_expiry.py"
LIBRARY_READER = "tests/backends/pulsar/library/test_reader.py"
ADOPTION = "tests/segments/test_adoption.py"
BESIDE_A_RETURN = (
    f"{ADOPTION}::test_a_sweep_beside_a_return_leaves_neither_a_subscription_nor_a_policy_behind"
)
TOPIC_LOG = f"{PULSAR}/native_topic_log.py"
CHANGES = "tests/segments/test_changes.py"
CLIENT = "tests/client/test_client.py"
CLIENT_PRODUCERS = "tests/client/test_producer.py"
SHARED = "tests/client/test_shared_consumer.py"
CLIENT_ENDS = "tests/client/test_ends.py"
CLIENT_HANDLERS = "tests/client/test_signal_handlers.py"
STARTS = "tests/spark/source/test_starting_offsets.py"
PATTERNS = "tests/spark/source/test_topics_pattern.py"
OPTION_CODE = "pulsar_txn_spark/options"
OPTION_TESTS = "tests/options/test_parsed.py"
TIMES = "tests/spark/source/test_time_offsets.py"
DELAYS = "tests/spark/source/test_trigger_delay.py"
PATTERNS = "tests/spark/source/test_topics_pattern.py"
LEASE = "tests/engine/test_lease.py"
BROKER_CODE = "jvm_shim/src/main/java/pulsartxnspark/broker"
STORE_CODE = "jvm_shim/src/main/java/pulsartxnspark/store"
JAR = (
    "integration/java/test_broker_jar.py"
    "::test_the_jar_builds_with_its_tests_and_keeps_to_a_package_of_its_own"
)
GATE = "tests/backends/pulsar/test_gate.py"
ADMINS = "tests/admin/test_subscriptions.py"
STRETCHES = "tests/models/test_subscription_histories.py"
ANY_STRETCH = f"{STRETCHES}::test_each_stretch_of_a_subscription_delivers_what_it_must_once"
TAIL = "tests/spark/sink/test_lost_tail.py"
LIFECYCLE = "tests/segments/test_topic_lifecycle.py"
TOPIC_HISTORIES = "tests/models/test_topic_histories.py"
IN_EVERY_HISTORY = (
    f"{TOPIC_HISTORIES}"
    "::test_in_every_history_nothing_of_one_instance_of_a_topic_reaches_into_the_next"
)
JOB = "pulsar_txn_spark/job"
UNAVAILABLE = "tests/test_unavailable_logs.py"
UNAVAILABLE_CODE = "pulsar_txn_spark/unavailable_logs.py"


@dataclass(frozen=True)
class Edit:
    """Replace a piece of text, which is there exactly once, in a file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """One safeguard that is taken out.

    Parameters
    ----------
    name : str
        What is wrong then.
    invariant : str
        Which invariant breaks.
    killers : tuple of str
        Tests that fail then, each of them.
    edits : tuple of Edit
    """

    name: str
    invariant: str
    killers: tuple[str, ...]
    edits: tuple[Edit, ...]


def mutation(name: str, invariant: str, killer: str, *edits: Edit) -> Mutation:
    """Make a mutation; `killer` names one or more tests of one file, with commas between."""
    file, _, tests = killer.partition("::")
    return Mutation(
        name,
        invariant,
        tuple(f"{file}::{test.strip()}" for test in tests.split(",")),
        edits,
    )


MUTATIONS: tuple[Mutation, ...] = (
    # --- several steps as one --------------------------------------------------------------------
    mutation(
        "a merged step begins before it has read every tag",
        "INV-11",
        f"{MERGED_STEPS}::test_a_tag_that_is_not_the_one_that_was_known_keeps_all_others_untouched",
        Edit(
            f"{LUA}/_merged.lua", "  if identity(call.keys, call.args) then\n", "  if false then\n"
        ),
    ),
    mutation(
        "a merged step reads no tag without writing to it",
        "INV-11",
        f"{MERGED_STEPS}::test_a_tag_that_nobody_has_registered_is_not_registered_by_a_read",
        Edit(f"{LUA}/_without_writes.lua", "return command ~= 'HSET' and server", "return server"),
    ),
    mutation(
        "a writer is pinned for a transaction that was over when it was opened again",
        "INV-6",
        f"{MERGED_STEPS}::test_nobody_is_pinned_for_a_transaction_that_is_over",
        Edit(f"{LUA}/_merged.lua", "  txn_create = {OPEN = true},\n", ""),
    ),
    mutation(
        "the first writer's intent does not name the writer that is pinned",
        "INV-2",
        f"{MERGED_STEPS}::test_a_transaction_is_opened_with_its_first_writer",
        Edit(f"{LUA}/txn_create.lua", "'|ptxn%-#%-', writer", "'|ptxn%-#%-', '|ptxn-0-0-'"),
    ),
    mutation(
        "the first writer is pinned for another transaction",
        "INV-3",
        f"{MERGED_STEPS}::test_a_transaction_is_opened_with_its_first_writer",
        Edit(
            f"{LUA}/_merged.lua",
            "      call.args[5], call.args[7] = txn, counter\n",
            "      call.args[7] = counter\n",
        ),
    ),
    mutation(
        "a pointer names a transaction that was over before its batch began",
        "INV-6",
        f"{MERGED_STEPS}::test_no_pointer_names_a_transaction_that_was_over_before_it_began",
        Edit(f"{LUA}/_merged.lua", "  txn_create = {OPEN = true},\n", ""),
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "            _require_unended(key, begun.txn, begun.state)\n",
            "",
        ),
    ),
    mutation(
        "a batch begins in one step before an earlier attempt's other sinks are ended",
        "INV-7",
        f"{MERGED_STEPS}"
        "::test_an_attempt_that_begins_in_one_step_ends_what_an_earlier_one_left_in_other_sinks",
        Edit(f"{LUA}/_merged.lua", "call.name == 'sink_register' and #reply > 3", "false"),
    ),
    mutation(
        "a pointer that is written in one step names no transaction",
        "INV-7",
        f"{MERGED_STEPS}::test_a_micro_batch_begins_in_one_step_after_a_read_of_the_one_before",
        Edit(f"{LUA}/_merged.lua", " .. call.args[10] .. string.char(#txn) .. txn", ""),
    ),
    mutation(
        "what was read of a batch while it was OPEN is taken for its decision",
        "INV-15",
        "tests/txn/test_batch.py::test_what_is_known_of_a_batch_is_what_its_decision_said",
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "previous.header if previous.state is state else None",
            "previous.header",
        ),
    ),
    mutation(
        "a failed micro-batch without a task's message stays open",
        "INV-8",
        f"{BATCH}::test_what_this_driver_has_begun_is_aborted_by_the_pointer",
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "        if is_undecided and (pointer",
            "        if not is_undecided and (pointer",
        ),
    ),
    mutation(
        "a failed micro-batch aborts what another driver has begun",
        "INV-8",
        f"{BATCH}::test_what_another_driver_or_batch_has_begun_stays_open",
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "(pointer.batch_id, begun_by) == (key.batch, process)",
            "pointer.batch_id == key.batch",
        ),
    ),
    mutation(
        "tasks are planned by a snapshot that began elsewhere",
        "INV-4",
        f"{PLANNER}::test_a_plan_that_begins_before_the_snapshot_takes_another_one",
        Edit(
            "pulsar_txn_spark/spark/source/stream.py",
            "self._planned == (start, end)",
            "self._planned is not None and self._planned[1] == end",
        ),
    ),
    mutation(
        "a limit is shared without what waits behind sealed segments",
        "late rows",
        "tests/spark/source/test_event_time_lag.py::"
        "test_no_row_is_late_where_segments_have_changed_within_a_backlog",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "                total[parent] = total.get(parent, 0) + share\n",
            "                total[parent] = total.get(parent, 0)\n",
        ),
    ),
    mutation(
        "what waits behind an open transaction takes a share of a limit",
        "liveness",
        "tests/spark/source/test_event_time_lag.py::"
        "test_what_waits_behind_an_open_transaction_takes_no_share_of_a_limit",
        Edit(f"{SOURCE_CODE}/stream.py", " if key in within_reach}", "}"),
    ),
    mutation(
        "a query's first batch begins a topic that was created again where the old one ended",
        "INV-4",
        "tests/spark/source/test_deleted_topics.py::test_a_topic_that_is_created_again_before_the"
        "_first_batch_is_read_from_its_first_message",
        Edit(
            "pulsar_txn_spark/spark/source/offsets.py",
            ' and end["topics"][name]["inc"] == topic["inc"]',
            "",
        ),
    ),
    mutation(
        "tasks skip what a snapshot names that has asked for no names",
        "INV-4",
        f"{PLANNER}::test_what_was_aborted_is_skipped",
        Edit("pulsar_txn_spark/spark/source/planner.py", "not self.names_writers or ", ""),
    ),
    mutation(
        "a reader that is blocked gets no names of what lies before the pin",
        "INV-4",
        f"{DROPPED}::test_a_reader_that_is_blocked_is_told_of_the_writers_before_the_pin",
        Edit(f"{LUA}/seg_gate.lua", "  range_end = pins[1]\n", "  range_end = ARGV[5]\n"),
    ),
    mutation(
        "a transaction whose first reply was lost is left to its lease",
        "an abort is an abort",
        "tests/client/test_client.py"
        "::test_a_transaction_whose_first_reply_was_lost_is_aborted_all_the_same",
        Edit(
            "pulsar_txn_spark/client/transaction.py",
            "        if not self._header.asked_for:\n",
            "        if self._header.id is None:\n",
        ),
    ),
    mutation(
        "a writer is pinned although its intents were refused",
        "INV-6",
        f"{MERGED_STEPS}::test_no_writer_is_pinned_whose_intents_were_refused",
        Edit(f"{LUA}/_merged.lua", "  txn_intend = {OK = true},\n", ""),
    ),
    mutation(
        "a cursor is locked by a transaction whose intents were refused",
        "INV-6",
        f"{MERGED_STEPS}::test_no_acknowledgement_is_placed_whose_intents_were_refused",
        Edit(f"{LUA}/_merged.lua", "  txn_intend = {OK = true},\n", ""),
    ),
    mutation(
        "an acknowledgement goes on although its intents were refused",
        "INV-9",
        f"{MERGED_STEPS}::test_no_acknowledgement_is_placed_whose_intents_were_refused",
        Edit(
            "pulsar_txn_spark/txn/pending_ack.py",
            "                require_open(txn, answer)\n                return placed\n",
            "                return placed\n",
        ),
    ),
    mutation(
        "a commit in one step is materialized although it was decided otherwise",
        "INV-1",
        f"{MERGED_STEPS}::test_nothing_is_materialized_of_a_transaction_that_was_decided_otherwise",
        Edit(f"{LUA}/_merged.lua", "  txn_end = {OK = true},\n", ""),
    ),
    mutation(
        "a commit in one step is materialized by who does not know all writers",
        "INV-6",
        f"{MERGED_STEPS}"
        "::test_a_decision_is_not_materialized_by_one_that_does_not_know_all_writers",
        Edit(f"{LUA}/_merged.lua", "    if not known[intent] then\n", "    if false then\n"),
        Edit(f"{LUA}/_merged.lua", "  return #intents == #args - 3\n", "  return true\n"),
    ),
    mutation(
        "a transaction begins by a topology that has changed",
        "INV-12",
        f"{MERGED_STEPS}::test_no_transaction_begins_by_a_topology_that_has_changed",
        Edit(f"{LUA}/_merged.lua", "  topology_is = {OK = true},\n", ""),
    ),
    mutation(
        "any version of a topology is the one that was read",
        "INV-12",
        "tests/client/test_client.py"
        "::test_a_transaction_is_not_begun_by_the_topology_of_an_earlier_one",
        Edit(f"{LUA}/topology_is.lua", "'version') ~= ARGV[4] then", "'version') == '' then"),
    ),
    mutation(
        "in random histories: any version of a topology is the one that was read",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(f"{LUA}/topology_is.lua", "'version') ~= ARGV[4] then", "'version') == '' then"),
    ),
    mutation(
        "single steps go by a topology that nobody has checked",
        "INV-12",
        f"{MERGED_STEPS}::test_a_topology_that_the_single_steps_would_not_check_is_not_taken",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "        if answer is Code.CONFLICT or (answer is None and expected is not None):\n",
            "        if answer is Code.CONFLICT:\n",
        ),
    ),
    mutation(
        "in one step, materialized after the first of several pieces",
        "INV-9",
        f"{MERGED_STEPS}::test_what_one_step_cannot_give_up_at_once_is_given_up_by_the_next",
        Edit(f"{LUA}/_merged.lua", "CLOSED = true}", "CLOSED = true, MORE = true}"),
    ),
    mutation(
        "a server that knows no parts starts empty on a folder in parts",
        "INV-11",
        f"{SERVER}::test_a_server_that_cannot_read_the_folders_form_does_not_start_empty",
        Edit(
            f"{REDIS}/server.py", "    if in_parts:\n        # The", "    if False:\n        # The"
        ),
    ),
    mutation(
        "of two sets of data in a folder a server takes one and says nothing",
        "INV-11",
        f"{SERVER}::test_a_folder_with_two_sets_of_data_is_refused",
        Edit(f"{REDIS}/append_only_file.py", ".stat().st_size > 0:", ".stat().st_size < 0:"),
    ),
    mutation(
        "parts of an append-only file that no manifest names are passed over",
        "INV-11",
        f"{SERVER}::test_parts_without_their_manifest_are_refused",
        Edit(
            f"{REDIS}/append_only_file.py",
            "    return not tail.exists() or tail.stat().st_size == 0\n",
            "    return True\n",
        ),
    ),
    mutation(
        "an answer that came too late is taken for that of the next command",
        "INV-11",
        "tests/store/redis/test_exchange.py"
        "::test_an_answer_that_nobody_has_read_is_given_to_nobody",
        Edit(f"{REDIS}/exchange.py", "    return not poll.poll(0)\n", "    return True\n"),
    ),
    mutation(
        "a connection whose answer was late is used again",
        "INV-11",
        "tests/store/redis/test_exchange.py"
        "::test_a_connection_whose_answer_is_late_is_not_used_again",
        Edit(
            f"{REDIS}/exchange.py",
            "        except BaseException as error:\n            self.give_up(error)\n",
            "        except BaseException:\n"
            "            self._connections._idle.append(connection)\n",
        ),
    ),
    mutation(
        "servers of a cluster are asked one after the other",
        "bound",
        "tests/store/redis/test_connection.py"
        "::test_one_step_over_many_segments_takes_one_round_trip_in_a_cluster",
        Edit(
            f"{REDIS}/scripts.py",
            "            sent.append(_sent(server, commands))\n",
            "            sent.append(_answered(_sent(server, commands)))\n",
        ),
    ),
    mutation(
        "who gives up on one server of a cluster holds the connections to the others",
        "resources",
        "tests/store/redis/test_connection.py"
        "::test_a_server_of_a_cluster_that_does_not_answer_leaves_the_replies_of_the_others",
        Edit(
            f"{REDIS}/scripts.py", "                request.give_up()\n", "                pass\n"
        ),
    ),
    mutation(
        "a fork goes on with its parent's connections",
        "INV-11",
        "tests/store/redis/test_exchange.py::test_a_fork_takes_none_of_its_parent_s_connections",
        Edit(
            f"{REDIS}/exchange.py", "        if os.getpid() != self._pid:\n", "        if False:\n"
        ),
    ),
    mutation(
        "a slot of a cluster that nobody has is an error of the client's library",
        "errors say what to do",
        "tests/store/redis/test_connection.py"
        "::test_a_slot_that_no_server_of_a_cluster_has_is_a_store_that_does_not_answer",
        Edit(
            f"{REDIS}/scripts.py",
            "            except RedisClusterException:\n                continue",
            "            except KeyError:\n                continue",
        ),
    ),
    # --- what a user meets -----------------------------------------------------------------------
    mutation(
        "user and password of the admin URL stay in what is shown",
        "no secret is shown",
        "tests/test_secrets.py"
        "::test_a_secret_in_any_option_is_in_no_error_no_repr_no_log_and_no_check_up",
        Edit(
            f"{PULSAR}/passthrough.py",
            '    shown = f"{parts.scheme}://{address}{parts.path}".rstrip("/")\n',
            '    shown = url.rstrip("/")\n',
        ),
    ),
    mutation(
        "options show a secret, and so does a task's target that carries them",
        "no secret is shown",
        "tests/test_secrets.py"
        "::test_a_secret_in_any_option_is_in_no_error_no_repr_no_log_and_no_check_up",
        Edit(
            "pulsar_txn_spark/options/parsed.py",
            '"***" if key.startswith(PASSTHROUGH) or BY_KEY[key].secret else redacted(value)',
            "redacted(value)",
        ),
    ),
    mutation(
        "a scope need not be written in every batch",
        "INV-11",
        "tests/options/test_parsed.py"
        "::test_a_sink_is_written_in_every_batch_but_by_a_write_of_its_own_in_foreach_batch",
        Edit(
            "pulsar_txn_spark/options/table.py",
            "lambda use: bool(use & (Use.STREAM | Use.SCOPE))",
            "lambda use: bool(use & Use.STREAM)",
        ),
    ),
    mutation(
        "a malformed URL is repeated",
        "no secret is shown",
        "tests/test_secrets.py"
        "::test_a_secret_in_any_option_is_in_no_error_no_repr_no_log_and_no_check_up",
        Edit(
            "pulsar_txn_spark/options/parsed.py", "hidden = is_secret(option.key)", "hidden = False"
        ),
    ),
    mutation(
        "a table keeps a password in Spark's catalog",
        "no secret is shown",
        "tests/options/test_catalog_table.py::test_a_table_keeps_no_secret",
        Edit("pulsar_txn_spark/options/catalog_table.py", "    if secrets:\n", "    if False:\n"),
    ),
    mutation(
        "what was read from a table is written back to it where the write names no topic",
        "no row is written twice",
        "tests/spark/test_catalog_table.py::test_what_only_a_log_gives_is_not_written",
        Edit(
            f"{SPARK}/rows.py",
            "    for name in _GIVEN_BY_THE_LOG:\n        if name in names and",
            "    for name in _GIVEN_BY_THE_LOG:\n        if False and",
        ),
    ),
    mutation(
        "a stream takes a table's options out of the columns that it was read with",
        "no row is written twice",
        "tests/spark/test_catalog_table.py"
        "::test_a_dataframe_with_some_columns_of_a_table_is_refused_before_its_first_row",
        Edit(f"{SPARK}/rows.py", "    of_table = may_be_insert and ", "    of_table = "),
    ),
    mutation(
        "a conflict of acknowledgements leaves its transaction open",
        "PIP-31, 2.4",
        f"{CLIENT}::test_a_conflict_of_acknowledgements_ends_its_transaction_at_once",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            'self._abort_behind(error, "an acknowledgement conflicted with another one")',
            "pass",
        ),
    ),
    mutation(
        "a folder is made of whatever store.path holds",
        "no other store in silence",
        "tests/options/test_parsed.py::test_a_folder_that_was_not_meant_as_one_is_refused",
        Edit(
            "pulsar_txn_spark/options/values.py",
            "    if _NO_FOLDER.fullmatch(parse_text(value)):\n",
            "    if False:\n",
        ),
    ),
    mutation(
        "a stream whose options are wrong is refused while its reader is made",
        "PySpark hides it",
        "tests/spark/test_error_boundary.py"
        "::test_a_wrong_option_of_a_stream_is_raised_by_the_readers_first_method",
        Edit(
            f"{SPARK}/datasource.py",
            "            return RefusedStreamReader(error)\n",
            "            raise\n",
        ),
    ),
    # --- pins, dropped writers, the gate ---------------------------------------------------------
    mutation(
        "pin after append",
        "INV-2",
        f"{TASKS}::test_no_entry_is_appended_before_its_writer_is_pinned",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "        if self._admit is not None:\n            try:",
            "        if False:\n            try:",
        ),
    ),
    # --- what a sink must know, as Spark's checkpoint says so -----------------------------------
    mutation(
        "a sink follows a batch that it does not know as committed",
        "INV-11",
        f"{BATCH}::test_a_batch_is_not_followed_that_the_sink_does_not_know_as_committed",
        Edit(
            f"{TXN}/batch.py",
            "        if pointer.batch_id == key.batch - 1 and state is TxnState.COMMITTED:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a sink without a record goes on in the middle of a query",
        "INV-11",
        f"{BATCH}::test_a_batch_is_not_followed_that_the_sink_does_not_know_as_committed",
        Edit(
            f"{TXN}/batch.py",
            "        if not rules.every_batch or key.batch == 0:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a source is refused where a helper has moved its cursor",
        "INV-9",
        f"{BATCH}::test_a_cursor_is_moved_where_a_decision_that_nobody_materialized_has_moved_it",
        Edit(f"{TXN}/read_progress.py", "requests, catches_up=True)", "requests)"),
    ),
    mutation(
        "a source covers up a batch that the store lost",
        "INV-11",
        f"{BATCH}::test_a_cursor_is_not_moved_over_a_batch_that_its_sink_does_not_know",
        Edit(
            f"{TXN}/batch.py",
            "                if last > key.batch:\n",
            "                if True:\n",
        ),
    ),
    mutation(
        "a new sink writes again what another one has committed",
        "INV-7",
        f"{BATCH}::test_a_new_sink_does_not_write_what_another_one_has_committed",
        Edit(
            f"{TXN}/batch.py",
            "            if entry.batch != key.batch or not attempt or entry.attempt == attempt:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "an older copy of a checkpoint passes under another sink's name",
        "INV-7",
        f"{BATCH}::test_another_name_does_not_let_an_older_copy_of_the_checkpoint_pass",
        Edit(
            f"{TXN}/batch.py",
            "            if entry.batch > key.batch:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a transaction stays open under a name that a sink had in the meantime",
        "INV-7",
        f"{BATCH}::test_a_late_commit_under_a_name_of_the_meantime_is_refused",
        Edit(
            f"{TXN}/batch.py",
            "        for name in others if attempt else ():\n",
            "        for name in ():\n",
        ),
    ),
    mutation(
        "a pointer comes to name a transaction that does not know it",
        "INV-6",
        f"{BATCH}::test_an_attempt_that_begins_after_it_was_aborted_leaves_the_pointer_alone",
        Edit(
            f"{TXN}/batch.py",
            "    if key.streaming and state is not TxnState.OPEN:\n",
            "    if False:\n",
        ),
        Edit(f"{LUA}/txn_create.lua", "  if header[1] == 'OPEN' then\n", "  if false then\n"),
    ),
    mutation(
        "a task adds no intent to a transaction that was opened to be aborted",
        "INV-6",
        f"{BATCH}::test_a_task_that_finds_its_transaction_opened_to_be_aborted_adds_the_pointer",
        Edit(f"{LUA}/txn_create.lua", "  if header[1] == 'OPEN' then\n", "  if false then\n"),
    ),
    mutation(
        "a batch that runs again is refused where the source has moved the cursor over it",
        "INV-9",
        f"{BATCH}::test_a_batch_that_runs_again_behind_the_source_is_acknowledged_already",
        Edit(
            f"{TXN}/pending_ack.py",
            "    if cursor.txn and not cursor.sink and not cursor.batch:\n",
            "    if False:\n",
        ),
    ),
    mutation(
        "a function that writes nothing leaves no record of its batch",
        "INV-11",
        f"{SCOPES}::test_a_function_that_writes_nothing_records_its_batch",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "        if not self._declared and not self._rules.every_batch:\n",
            "        if not self._declared:\n",
        ),
    ),
    mutation(
        "what a scope has staged stays",
        "",
        f"{SCOPES}::test_what_a_scope_has_staged_goes_with_it_whatever_its_end",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "        if not self._declared or self._has_committed_staged:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "what a dead scope has staged stays",
        "",
        f"{SCOPES}::test_what_a_dead_scope_has_staged_is_swept_after_a_day",
        Edit(
            f"{TXN}/sweeper.py",
            "            self._sweep_stages(tc, report)\n",
            "            continue\n",
        ),
    ),
    mutation(
        "a sweep takes what a living scope has staged",
        "INV-7",
        f"{SCOPES}::test_what_a_dead_scope_has_staged_is_swept_after_a_day",
        Edit(
            f"{LUA}/stage_touch.lua",
            "  redis.call('ZADD', KEYS[3], text(now_ms()), ARGV[5])\n",
            "",
        ),
    ),
    mutation(
        "LAC after pins",
        "INV-4",
        f"{BUFFER}::test_whatever_comes_between_the_reads_of_lac_and_pins_is_not_read",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "            if to_high:\n",
            "            confirmed = [last_confirmed(segment) for segment in segments]\n"
            "            if to_high:\n",
        ),
    ),
    mutation(
        "whoever goes by the high-position passes a pin before it",
        "INV-2",
        f"{BUFFER}::test_an_open_transaction_blocks_whoever_does_not_ask_the_log",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "        end = min(end, lowest)\n",
            "        end = end if by_reports else min(end, lowest)\n",
        ),
    ),
    mutation(
        "whoever goes by the high-position gets no names of dropped writers before it",
        "INV-4",
        f"{DROPPED}::test_any_range_shows_exactly_what_committed",
        Edit(f"{LUA}/seg_gate.lua", "  range_end = high\n", "  range_end = ARGV[6]\n"),
    ),
    mutation(
        "a batch read leaves decided transactions undone where many pins are in front of them",
        "INV-4",
        f"{BUFFER}::test_whoever_reads_all_segments_at_once_completes_what_many_pins_are_in_front_of",
        Edit(f"{REDIS}/segments.py", "pins = 0 if at_once else _PINS_READ", "pins = _PINS_READ"),
    ),
    mutation(
        "whoever goes by the high-position looks at no pin behind it",
        "lost wake-up",
        f"{BUFFER}::test_a_decision_that_nobody_has_materialized_is_found_without_asking_the_log",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "                if to_high or pin.bound < lac\n            ]",
            "                if pin.bound < lac\n            ]",
        ),
    ),
    mutation(
        "a batch read takes the gates of its segments one by one",
        "INV-4",
        f"{AT_ONCE}::test_a_commit_between_two_gates_is_seen_in_both_or_in_neither[merged]",
        Edit(
            f"{REDIS}/segments.py",
            'self._scripts.merged("seg_gates", calls) or self._unchanged(calls)',
            "self._scripts.run_all(calls)",
        ),
    ),
    mutation(
        "a batch read on a cluster takes gates that have changed between two looks",
        "INV-4",
        f"{AT_ONCE}::test_a_commit_between_two_gates_is_seen_in_both_or_in_neither[single]",
        Edit(
            f"{REDIS}/segments.py",
            "if [reply[1:] for reply in after] == [reply[1:] for reply in before]:",
            "if True:",
        ),
    ),
    mutation(
        "a batch read goes by LACs of different moments",
        "INV-4",
        f"{BATCH_READ}::test_a_transaction_that_commits_between_two_lacs_is_read_whole",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "        to_high = by_reports or at_once\n",
            "        to_high = by_reports\n",
        ),
    ),
    mutation(
        "a batch read goes by a topology that has changed meanwhile",
        "INV-10",
        f"{BATCH_READ}::test_a_transaction_that_writes_over_a_split_is_read_whole",
        Edit(
            f"{SOURCE_CODE}/batch.py",
            "            if topologies == before:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "a batch read leaves committed rows out without a word",
        "INV-11",
        f"{BATCH_READ}"
        "::test_rows_behind_an_open_transaction_of_another_writer_are_left_out_with_a_warning, "
        "test_of_one_segment_a_part_of_a_transaction_is_read_with_a_warning",
        Edit(
            f"{SOURCE_CODE}/batch.py",
            "                if blocked:\n",
            "                if False:\n",
        ),
    ),
    mutation(
        "a batch read warns of each open transaction",
        "false alarm",
        f"{BATCH_READ}"
        "::test_rows_behind_an_open_transaction_of_another_writer_are_left_out_with_a_warning",
        Edit(f"{SOURCE_CODE}/batch.py", " and item.end < item.high", ""),
    ),
    mutation(
        "a batch read that may skip a loss ends where rows were only reported",
        "liveness",
        f"{BATCH_READ}::test_a_read_ends_where_its_log_does_only_if_a_loss_is_allowed",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "if (schedule is not None or at_once) and not self._fail_on_data_loss:",
            "if schedule is not None and not self._fail_on_data_loss:",
        ),
    ),
    mutation(
        "what a reader has passed is hidden again by the next transaction",
        "INV-4",
        f"{BATCH_READ}::test_rows_that_were_read_stay_readable_when_a_transaction_opens",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "                passing=True,\n",
            "                passing=False,\n",
        ),
    ),
    mutation(
        "a pin goes by what was reported alone",
        "INV-4",
        f"{BUFFER}::test_a_writer_that_is_pinned_right_after_a_look_is_pinned_behind_what_it_showed",
        Edit(f"{LUA}/seg_pin.lua", "if passed > bound then", "if false then"),
    ),
    mutation(
        "a pin goes by what was passed alone",
        "INV-4",
        f"{BUFFER}::test_what_is_committed_behind_what_a_reader_has_passed_stays_readable",
        Edit(f"{LUA}/seg_pin.lua", "if passed > bound then", "if passed ~= '' then"),
    ),
    mutation(
        "an older answer of the log takes back what was passed",
        "INV-4",
        f"{BUFFER}::test_an_older_answer_of_the_log_hides_nothing_again",
        Edit(
            f"{LUA}/seg_gate.lua",
            "    and lac > (redis.call('HGET', KEYS[6], 'passed') or '') then\n",
            "    and lac ~= redis.call('HGET', KEYS[6], 'passed') then\n",
        ),
    ),
    mutation(
        "each look at rows that nobody reports is a write",
        "cost",
        f"{BUFFER}::test_rows_that_nobody_reports_cost_a_look_no_round_trip",
        Edit(
            f"{LUA}/seg_gate.lua",
            "    and lac > (redis.call('HGET', KEYS[6], 'passed') or '') then\n",
            "    then\n",
        ),
    ),
    mutation(
        "what lies behind an open transaction counts as passed",
        "cost",
        f"{BATCH_READ}::test_only_what_nobody_reported_is_noted",
        Edit(f"{LUA}/seg_gate.lua", "redis.call('ZCARD', KEYS[3]) == 0", "true"),
    ),
    mutation(
        "a store may lose what a reader has passed unseen",
        "INV-11",
        f"{STORES}::test_every_change_raises_the_sequence_number_of_its_tag",
        Edit(f"{LUA}/seg_gate.lua", "  seq = changed()\n", ""),
    ),
    mutation(
        "what a reader has passed counts as reported",
        "lost wake-up",
        f"{EVENTS}::test_a_report_wakes_who_waits_also_if_another_reader_was_there_before_it",
        Edit(
            f"{LUA}/seg_gate.lua",
            "'HSET', KEYS[6], 'passed', lac)",
            "'HSET', KEYS[6], 'high-position', lac)",
        ),
    ),
    mutation(
        "a deleted segment lets a reader's note in",
        "INV-6",
        f"{RETENTION}::test_nothing_that_comes_late_brings_anything_back",
        Edit(f"{LUA}/seg_gate.lua", "lac > high and not retired", "lac > high"),
    ),
    mutation(
        "pins cached across reads",
        "INV-4",
        f"{BUFFER}::test_pins_and_dropped_writers_are_read_anew_for_every_read",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "            if to_high:\n",
            "            gates = self.__dict__.setdefault('cache', gates)\n"
            "            if to_high:\n",
        ),
    ),
    mutation(
        "unpin before drop as two steps",
        "INV-3",
        f"{BUFFER}::test_no_command_of_an_abort_shows_a_row_of_it",
        Edit(
            f"{REDIS}/segments.py",
            "        calls = materialize_calls(txn, state, decisions)\n",
            "        calls = materialize_calls(txn, state, decisions)\n"
            "        for d in decisions:\n"
            "            for fate in d.fates:\n"
            '                pins = f"{{seg:{d.segment}}}:pins"\n'
            "                pin = self._scripts.client.hget(pins, fate.writer)\n"
            "                if pin:\n"
            '                    member = pin.split(b"|")[0] + b"|" + fate.writer.encode()\n'
            "                    self._scripts.client.hdel(pins, fate.writer)\n"
            "                    self._scripts.client.zrem("
            'f"{{seg:{d.segment}}}:pin-order", member)\n',
        ),
        Edit(
            f"{LUA}/seg_materialize.lua",
            "  if pin then\n"
            "    local bound = string.sub(pin, 1, string.find(pin, '|', 1, true) - 1)\n",
            "  if redis.call('HEXISTS', KEYS[6], ARGV[4]) == 0 then\n    local bound = ''\n",
        ),
    ),
    mutation(
        "losers and aborted writers not dropped",
        "INV-3",
        f"{BUFFER}::test_a_zombie_of_an_aborted_transaction_appends_to_nobody, "
        "test_a_committed_transaction_is_visible_whole_and_an_aborted_one_never",
        Edit(f"{LUA}/seg_materialize.lua", "    if fate ~= 'WON' then\n", "    if false then\n"),
    ),
    mutation(
        "a late helper needs no pin to drop",
        "INV-3",
        f"{BUFFER}::test_a_process_that_materializes_hours_late_finds_no_pin_and_does_nothing",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "  if pin then\n"
            "    local bound = string.sub(pin, 1, string.find(pin, '|', 1, true) - 1)\n",
            "  if true then\n    local bound = string.sub(pin or '|', 1, 1)\n",
        ),
    ),
    mutation(
        "a late helper below closed",
        "INV-3",
        f"{BUFFER}::test_a_process_that_materializes_late_does_nothing_below_closed",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "if closed and tonumber(ARGV[6]) < tonumber(closed) then",
            "if false then",
        ),
    ),
    mutation(
        "no winners: every writer of a committed transaction counts",
        "INV-1",
        f"{BUFFER}::test_a_writer_that_is_not_named_by_the_commit_is_dropped_from_the_start",
        Edit(
            f"{TXN}/coordinator.py",
            "fates.append(WriterFate(writer, EARLIEST))\n",
            "fates.append(WriterFate(writer, None if committed else EARLIEST))\n",
        ),
    ),
    mutation(
        "bounds of winners ignored",
        "INV-1",
        f"{BUFFER}::test_a_winner_with_a_bound_counts_up_to_its_bound_only",
        Edit(
            f"{TXN}/coordinator.py",
            'bound = as_position(winner.bound) if winner.HasField("bound") else None',
            "bound = None",
        ),
    ),
    mutation(
        "no bound where nothing was acknowledged",
        "INV-1",
        f"{BUFFER}::test_a_winner_to_whom_nothing_was_acknowledged_is_dropped_from_the_start",
        Edit(
            f"{TXN}/coordinator.py",
            'if winner.HasField("bound") else None',
            'if winner.HasField("bound") and winner.HasField("last") else None',
        ),
    ),
    mutation(
        "a pin request that arrives after the materialization is taken",
        "INV-3",
        f"{BUFFER}::test_a_pin_request_that_arrives_twice_and_late_finds_the_segment_resolved, "
        "test_a_pin_that_overtakes_its_decision_is_refused_after_the_materialization",
        Edit(f"{LUA}/seg_pin.lua", "if resolved then", "if false then"),
    ),
    mutation(
        "a pin request that arrives after the closing is taken",
        "INV-6",
        f"{BUFFER}::test_a_closed_segment_takes_no_pin_of_an_older_transaction",
        Edit(
            f"{LUA}/seg_pin.lua",
            "if closed and tonumber(ARGV[7]) < tonumber(closed) then",
            "if false then",
        ),
    ),
    mutation(
        "a dropped writer is pinned again",
        "INV-3",
        f"{BUFFER}::test_a_pin_after_the_drop_is_refused",
        Edit(
            f"{LUA}/seg_pin.lua",
            "if redis.call('HEXISTS', KEYS[4], ARGV[4]) == 1 then",
            "if false then",
        ),
    ),
    mutation(
        "a repeated pin moves the bound",
        "INV-2",
        f"{BUFFER}::test_a_pin_asked_for_again_is_the_old_pin",
        Edit(f"{LUA}/seg_pin.lua", "if old then", "if false then"),
    ),
    mutation(
        "intents left out",
        "INV-6",
        f"{BUFFER}::test_a_losing_writer_whose_pin_alone_is_there_blocks_nobody",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "intents = [write_intent(segment, writer) for segment in segments]",
            "intents: list[str] = []",
        ),
    ),
    mutation(
        "intents taken after the decision",
        "INV-6",
        f"{BUFFER}::test_a_decided_transaction_admits_nobody_and_leaves_no_pin",
        Edit(f"{LUA}/_open_txn.lua", "if header[1] ~= 'OPEN' then", "if false then"),
    ),
    mutation(
        "a reader falls back behind what it has read",
        "INV-4",
        f"{BUFFER}::test_the_end_never_falls_below_what_was_read",
        Edit(
            f"{TXN}/transaction_buffer.py", "ReadableRange(max(start, end), ", "ReadableRange(end, "
        ),
    ),
    mutation(
        "positions compared as text",
        "INV-4",
        f"{BUFFER}::test_the_lowest_pin_counts_as_a_number, "
        "test_an_acknowledged_position_is_only_ever_raised",
        Edit(
            "pulsar_txn_spark/position.py",
            'f"{self.ledger + 1:0{_WIDTH}d}:{self.entry + 1:0{_WIDTH}d}"',
            'f"{self.ledger + 1}:{self.entry + 1}"',
        ),
    ),
    mutation(
        "a pin without a header is guessed away",
        "INV-6",
        f"{BUFFER}::test_a_pin_without_a_header_is_reported_and_not_guessed",
        Edit(
            f"{TXN}/coordinator.py",
            "            if header is None and txn not in missing:\n",
            "            if header is None and txn in missing:\n"
            "                continue\n"
            "            if header is None and txn not in missing:\n",
        ),
    ),
    mutation(
        "a header that a sweep has just removed is called missing",
        "INV-6",
        f"{BUFFER}::test_a_header_that_a_sweep_removes_meanwhile_is_not_missing",
        Edit(f"{TXN}/coordinator.py", "if header is None and txn not in missing:", "if False:"),
    ),
    mutation(
        "a helper trusts the flag that all is done",
        "INV-3",
        f"{BUFFER}::test_who_completes_a_transaction_does_what_is_left_even_where_its_header_says_that_all_is_done",
        Edit(
            f"{TXN}/coordinator.py",
            "self.materialize(header, repeat=True)",
            "self.materialize(header)",
        ),
    ),
    # --- the decision ----------------------------------------------------------------------------
    mutation(
        "commit without compare",
        "INV-1",
        f"{HEADER}::test_an_abort_after_a_commit_says_committed_and_changes_nothing, "
        "test_a_commit_after_an_abort_fails_and_names_the_cause",
        Edit(f"{LUA}/txn_end.lua", "if header[1] ~= 'OPEN' then", "if false then"),
    ),
    mutation(
        "anybody commits",
        "INV-8",
        f"{ENDS}::test_another_owner_is_fenced_whatever_the_state",
        Edit(
            f"{LUA}/txn_end.lua",
            "if ARGV[7] == 'nonce' and header[2] ~= ARGV[8] then",
            "if false then",
        ),
    ),
    mutation(
        "another process passes for the owner where the reply is lost",
        "INV-8",
        f"{ENDS}::test_another_owner_whose_replies_are_lost_is_fenced_as_well",
        Edit(
            f"{TXN}/coordinator.py",
            "if header is not None and by is EndedBy.OWNER and header.nonce != nonce:",
            "if False:",
        ),
    ),
    mutation(
        "last seen sequence numbers are taken for a part of the decision",
        "INV-1",
        f"{ENDS}::test_a_commit_again_that_has_seen_more_of_the_store_is_the_same",
        Edit(
            f"{TXN}/coordinator.py", '        outcome.ClearField("last_seen")\n', "        pass\n"
        ),
    ),
    mutation(
        "histories of last seen sequence numbers are taken for a part of the decision",
        "INV-1",
        f"{HISTORIES}::test_a_commit_again_after_a_restart_of_the_store_is_the_same",
        Edit(
            f"{TXN}/coordinator.py", '        outcome.ClearField("histories")\n', "        pass\n"
        ),
    ),
    mutation(
        "a commit drops writers that it does not name",
        "INV-3",
        f"{ENDS}::test_a_commit_that_names_no_writers_is_refused_where_there_are_some",
        Edit(
            f"{TXN}/coordinator.py",
            "        if header.state is TxnState.OPEN and writers:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a living transaction expires",
        "INV-8",
        f"{HEADER}::test_the_store_clock_decides_whether_a_lease_is_over",
        Edit(f"{LUA}/txn_end.lua", "  if tonumber(header[3]) > now then", "  if false then"),
    ),
    mutation(
        "a fence commits",
        "INV-1",
        f"{HEADER}::test_every_move_is_answered_as_the_table_of_transitions_says",
        Edit(
            f"{LUA}/txn_end.lua",
            "if ARGV[7] ~= 'nonce' and ARGV[5] ~= 'ABORTED' then",
            "if false then",
        ),
    ),
    mutation(
        "unknown taken as committed",
        "INV-11",
        f"{HEADER}::test_a_commit_whose_request_is_lost_is_made_again",
        Edit(
            f"{TXN}/coordinator.py",
            "                last = error\n",
            "                last = error\n                return TxnAnswer(Code.DECIDED, state)\n",
        ),
    ),
    mutation(
        "unknown taken as failed",
        "INV-11",
        f"{HEADER}::test_a_commit_whose_reply_is_lost_is_found_in_the_header",
        Edit(
            f"{TXN}/coordinator.py",
            "                last = error\n",
            '                raise TransactionAbortedError("no reply") from error\n',
        ),
    ),
    mutation(
        "a commit with other winners passes for a retry",
        "INV-1",
        f"{HEADER}::test_a_commit_repeated_with_other_winners_is_a_conflict",
        Edit(
            f"{TXN}/coordinator.py",
            "        if not _same_decision(header, record):\n",
            "        if False:\n",
        ),
    ),
    # --- the pointer, replay and fencing ---------------------------------------------------------
    mutation(
        "the pointer written without comparing",
        "INV-7",
        f"{BATCH}::test_the_pointer_is_written_only_over_what_was_read, "
        "test_of_two_attempts_that_begin_at_once_one_is_fenced",
        Edit(
            f"{LUA}/pointer_cas.lua",
            "if current ~= ARGV[5] or",
            "if false and current ~= ARGV[5] or",
        ),
        Edit(
            f"{LUA}/pointer_cas.lua",
            "or pointer ~= ARGV[6] or retired ~= ARGV[9] then",
            "or false then",
        ),
    ),
    mutation(
        "a query takes over without comparing what the old one has begun",
        "INV-8",
        f"{BATCH}::test_a_new_query_misses_no_batch_that_the_old_one_begins_meanwhile",
        Edit(f"{LUA}/pointer_cas.lua", " or retired ~= ARGV[9] then", " then"),
    ),
    mutation(
        "the older OPEN transaction not aborted",
        "INV-8",
        f"{BATCH}::test_the_open_transaction_of_another_attempt_is_aborted_at_once, "
        "test_the_next_batch_of_a_sink_that_is_written_sometimes_aborts_the_one_before",
        Edit(
            f"{TXN}/batch.py",
            "        if recorded.state is TxnState.OPEN:\n",
            "        if recorded.state is TxnState.OPEN:\n            return False\n"
            "        if recorded.state is TxnState.OPEN:\n",
        ),
    ),
    mutation(
        "one nonce gets a second transaction",
        "INV-7",
        f"{BATCH}::test_a_write_outside_of_a_stream_needs_no_pointer",
        Edit(f"{LUA}/txn_create.lua", "if known then", "if false then"),
    ),
    mutation(
        "a retired nonce begins again",
        "INV-8",
        f"{BATCH}::test_a_retired_attempt_stays_fenced_however_many_follow",
        Edit(f"{TXN}/batch.py", "if nonce in pointer.retired_nonces:", "if False:"),
    ),
    mutation(
        "a lower batch begins",
        "INV-7",
        f"{BATCH}::test_a_batch_below_the_pointer_is_fenced",
        Edit(f"{TXN}/batch.py", "if key.batch < pointer.batch_id:", "if False:"),
    ),
    mutation(
        "a retired query begins",
        "INV-8",
        f"{BATCH}::test_a_new_query_on_a_sink_id_is_a_new_lineage_and_retires_the_old_one",
        Edit(f"{TXN}/batch.py", "if current != key.query:", "if False:"),
    ),
    mutation(
        "a committed batch is written again",
        "INV-7",
        f"{BATCH}::test_a_replay_of_a_committed_batch_finds_it_and_writes_nothing",
        Edit(
            f"{TXN}/batch.py",
            "if previous.state is TxnState.COMMITTED and pointer.batch_id == key.batch:",
            "if False:",
        ),
    ),
    mutation(
        "a replay of other input passes",
        "INV-7",
        f"{BATCH}::test_a_replay_that_read_other_data_is_refused",
        Edit(f"{TXN}/replay_evidence.py", "if cause is not None:", "if False:"),
    ),
    # --- what the source refuses ------------------------------------------------------------------
    mutation(
        "offsets may run backwards",
        "INV-11",
        f"{SOURCE}::test_offsets_that_run_backwards_are_refused",
        Edit(f"{SOURCE_CODE}/stream.py", "    if backwards:\n", "    if False:\n"),
    ),
    mutation(
        "an executor may reach another store than the driver",
        "INV-11",
        f"{SOURCE}::test_an_executor_that_reaches_another_store_reads_nothing",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "    components.require_store(partition.store_uuid)\n",
            "",
        ),
    ),
    mutation(
        "an older PySpark may read from another start than the end was computed for",
        "INV-11",
        f"{TRACKING}::test_a_start_that_the_end_was_not_computed_for_is_refused",
        Edit(
            f"{SOURCE_CODE}/tracking.py",
            "        if self._answered is not None and self._answered != (start, end):\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "an older PySpark's restart forgets where the query stands",
        "INV-10",
        f"{TRACKING}::test_children_are_read_after_their_parents_also_after_a_restart",
        Edit(
            f"{SOURCE_CODE}/tracking.py",
            "        self._reached = end\n        return super()",
            "        return super()",
        ),
    ),
    mutation(
        "under Spark Connect one of several queries may be taken for a function's own",
        "INV-15",
        "tests/spark/test_connect.py::test_a_query_that_cannot_be_told_is_refused",
        Edit(f"{SPARK}/connect.py", "    if len(active) != 1:\n", "    if not active:\n"),
    ),
    mutation(
        "under Spark Connect another query's checkpoint is taken",
        "INV-15",
        "tests/spark/test_connect.py::test_the_checkpoint_of_another_query_is_refused",
        Edit(
            f"{SPARK}/connect.py",
            "        if active and checkpoint.query not in active:\n",
            "        if False:\n",
        ),
    ),
    # --- what tells a replay from other data ------------------------------------------------------
    mutation(
        "nothing but the ranges of our sources is compared",
        "INV-15",
        f"{CHECKPOINTS}::test_no_history_of_checkpoints_loses_or_doubles_a_row",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if committed is None or compared is Compared.NONE:\n",
            "    if True:\n",
        ),
    ),
    mutation(
        "a batch that was planned anew passes for a replay",
        "INV-15",
        f"{EVIDENCE}::test_a_batch_that_was_planned_anew_on_a_restored_checkpoint_is_no_replay",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if committed.planned and committed.planned == now.planned:\n",
            "    if committed.planned and now.planned:\n",
        ),
    ),
    mutation(
        "a replay by the same plan has to have the same rows",
        "INV-15",
        f"{EVIDENCE}::test_a_replay_by_the_same_plan_may_have_other_rows",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if committed.planned and committed.planned == now.planned:\n",
            "    if False:\n",
        ),
    ),
    mutation(
        "equal ranges vouch for a source of another kind",
        "INV-15",
        f"{EVIDENCE}::test_equal_ranges_do_not_vouch_for_a_foreign_source_beside_ours",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if same_reads and _only_own_sources(committed, now):\n",
            "    if same_reads:\n",
        ),
    ),
    mutation(
        "as many rows are the same rows",
        "INV-15",
        f"{EVIDENCE}::test_where_nobody_knows_the_sources_the_rows_decide_beside_the_ranges",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if committed.fingerprint != now.fingerprint:",
            "    if False:",
        ),
    ),
    mutation(
        "a cancelled side of a join stops the replay",
        "INV-15",
        f"{EVIDENCE}::"
        "test_a_side_that_adaptive_execution_cancelled_in_one_run_does_not_stop_the_replay",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    return first <= second or second <= first\n",
            "    return False\n",
        ),
    ),
    mutation(
        "a copied checkpoint that went its own way goes on",
        "INV-15",
        f"{EVIDENCE}::test_a_copy_that_went_through_a_batch_elsewhere_is_fenced_in_the_next",
        Edit(
            f"{TXN}/replay_evidence.py",
            "    if own is not None and own.digest not in before.planned:",
            "    if False:",
        ),
    ),
    mutation(
        "a replay whose evidence may be gone is compared with nothing",
        "INV-15",
        f"{EVIDENCE}::test_a_replay_is_fenced_where_another_driver_has_gone_on_meanwhile",
        Edit(
            f"{TXN}/batch.py",
            "        if pointer.batch_id != key.batch:\n            # With its header",
            "        if False:\n            # With its header",
        ),
    ),
    mutation(
        "the evidence goes with the header",
        "INV-15",
        f"{EVIDENCE}::test_a_lineage_is_known_after_failed_attempts_and_when_headers_are_gone",
        Edit(
            f"{TXN}/sweeper.py",
            "                pointer.evidence.CopyFrom(outcome.evidence)\n",
            "                pass\n",
        ),
    ),
    mutation(
        "a replay that was planned anew is not noted",
        "INV-15",
        f"{EVIDENCE}::test_rows_compares_the_rows_even_of_the_same_plan",
        Edit(f"{TXN}/batch.py", "            pointer.also_planned.append(evidence.planned)\n", ""),
    ),
    mutation(
        "Spark's offsets may be missing where they took the fingerprint's place",
        "INV-15",
        f"{EVIDENCE}::test_a_checkpoint_that_loses_the_running_batch_stops_it",
        Edit(f"{TXN}/replay_evidence.py", "    elif rule.promised:\n", "    elif False:\n"),
    ),
    mutation(
        "the checkpoint of another query vouches for a batch",
        "INV-15",
        f"{EVIDENCE}::test_the_checkpoint_of_another_query_says_nothing",
        Edit(
            f"{SPARK}/checkpoint.py",
            "    if checkpoint is None or checkpoint.query != query:\n",
            "    if checkpoint is None:\n",
        ),
    ),
    mutation(
        "an attempt is named by its application alone",
        "INV-15",
        f"{EVIDENCE}::test_a_replay_is_no_second_write_where_the_application_has_a_fixed_id, "
        "test_plans_of_a_dead_driver_do_not_count_where_the_application_has_a_fixed_id",
        Edit(
            f"{SPARK}/context.py",
            '    return f"{execution_id}@{driver}" if execution_id and driver else execution_id\n',
            "    return execution_id\n",
        ),
    ),
    mutation(
        "a fingerprint is a sum of columns",
        "INV-15",
        f"{EVIDENCE}::test_neighbouring_columns_and_rows_do_not_run_together",
        Edit(
            f"{SINK_CODE}/fingerprint.py",
            "    return int(_final(total).sum(dtype=np.uint64))\n",
            "    return int(total.sum(dtype=np.uint64))\n",
        ),
    ),
    mutation(
        "a second write to a sink passes for a replay",
        "INV-7",
        f"{BATCH}::test_a_second_write_to_a_sink_in_one_run_is_no_replay",
        Edit(f"{TXN}/batch.py", "                if rules.once:\n", "                if False:\n"),
    ),
    mutation(
        "a batch commits without some of its tasks",
        "INV-7",
        f"{BATCH}::test_a_batch_that_is_not_whole_is_not_committed",
        Edit(f"{TXN}/batch.py", "if partitions != list(range(len(partitions))):", "if False:"),
    ),
    mutation(
        "a batch commits tasks of another transaction",
        "INV-7",
        f"{BATCH}::test_tasks_of_two_transactions_are_not_committed_together",
        Edit(f"{TXN}/batch.py", "    if others:\n", "    if False:\n"),
    ),
    # --- slots -----------------------------------------------------------------------------------
    mutation(
        "committing although a declared write failed",
        "INV-7",
        f"{SCOPES}::test_a_write_whose_error_was_swallowed_keeps_the_scope_from_committing",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "failed = sorted(self._declared.keys() - self._succeeded.keys())",
            "failed: list[str] = []",
        ),
    ),
    mutation(
        "committing the attempt at a slot that user code saw fail",
        "INV-7",
        f"{SCOPES}::test_a_slot_that_ran_well_and_then_failed_does_not_commit",
        Edit(
            f"{SINK_CODE}/batch_transaction.py", "            self._succeeded.pop(name, None)\n", ""
        ),
    ),
    mutation(
        "late writes: a scope takes them behind its end",
        "INV-7",
        f"{SCOPES}::test_a_write_behind_the_end_of_a_scope_is_refused",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            self._require(expected)\n            if slot is None:\n",
            "            if slot is None:\n",
        ),
    ),
    mutation(
        "late writes: a scope takes them until its commit is done",
        "INV-7",
        f"{SCOPES}::test_a_write_while_the_scope_commits_is_refused",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            self._state = _ScopeState.ENDED\n        try:\n",
            "            pass\n        try:\n",
        ),
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            self._leases.end(self._lease)\n",
            "            self._leases.end(self._lease)\n"
            "            self._state = _ScopeState.ENDED\n",
        ),
    ),
    mutation(
        "late writes: one that ends behind its scope seems to count",
        "INV-7",
        f"{SCOPES}::test_a_write_whose_job_ends_behind_the_end_of_the_scope_does_not_seem_to_count",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            self._require(expected)  # a later success is not committed\n",
            "",
        ),
    ),
    mutation(
        "late writes: a scope that has not begun takes them, or begins anew",
        "INV-7",
        f"{SCOPES}::test_a_scope_takes_writes_only_once_it_has_begun_and_begins_once",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            if self._state is not _ScopeState.CREATED:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "late writes: a task of a scope that was aborted begins its transaction",
        "INV-8",
        f"{SCOPES}::test_a_late_task_of_a_scope_that_raised_begins_no_transaction",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "                    self._transactions().abort_nonce(self._nonce, cause)\n",
            "                    pass\n",
        ),
    ),
    mutation(
        "late writes: a task of an aborted attempt ends the next one",
        "INV-8",
        f"{SCOPES}::test_a_late_task_of_a_scope_that_raised_does_not_end_the_next_attempt",
        Edit(
            f"{TXN}/batch.py",
            "            self._coordinator.require_not_aborted(nonce)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "a function whose body does not run commits an empty batch",
        "",
        "tests/spark/test_error_boundary.py::test_a_function_whose_body_would_not_run_is_refused",
        Edit(f"{SINK_CODE}/foreach_batch.py", "        _require_plain(function)\n", ""),
    ),
    mutation(
        "a success that is seen late stands for a later run",
        "INV-7",
        f"{SCOPES}::test_a_success_that_is_seen_late_does_not_hide_the_failure_of_a_later_run",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            if self._declared[name] == number:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "a write without a slot is another run of one that a user named alike",
        "INV-7",
        f"{SCOPES}::test_a_write_without_a_slot_is_no_run_of_a_slot_of_any_name",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            'name = slot if slot is not None else f"{_UNNAMED}{self._unnamed}"',
            'name = slot if slot is not None else f"write-{len(self._declared)}"',
        ),
    ),
    mutation(
        "a slot has the name of a write without one, or of a staged result",
        "INV-7",
        f"{SCOPES}::test_a_slot_name_that_could_be_another_writes_is_refused",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "            _check_slot(slot)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "staging an attempt at a slot that is not the current one",
        "INV-7",
        f"{SCOPES}::test_a_run_of_a_slot_that_ends_after_the_next_has_begun_is_refused",
        Edit(f"{LUA}/txn_stage.lua", "if current ~= ARGV[6] then", "if false then"),
    ),
    mutation(
        "a scope whose commit failed stays open",
        "INV-8",
        f"{SCOPES}::test_a_scope_whose_commit_is_refused_aborts_its_transaction_at_once,"
        "test_a_scope_that_writes_nothing_and_cannot_commit_aborts_its_transaction,"
        "test_a_commit_whose_state_is_unknown_and_did_not_take_effect_is_aborted",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            '            self._abort(error, f"its commit raised {type(error).__name__}")\n',
            "",
        ),
    ),
    mutation(
        "a scope whose commit was interrupted stays open",
        "INV-8",
        f"{SCOPES}::test_a_scope_that_is_interrupted_while_it_commits_aborts_its_transaction",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "except BaseException as error:  # an interrupt",
            "except Exception as error:  # no interrupt",
        ),
    ),
    mutation(
        "a commit that took effect is left to look aborted",
        "INV-1",
        f"{SCOPES}::test_a_commit_whose_state_is_unknown_is_not_called_aborted_if_it_took_effect",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "        if state is TxnState.COMMITTED:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "the error of an abort hides the one that led to it",
        "",
        f"{SCOPES}::test_an_abort_that_fails_is_noted_at_the_error_that_led_to_it",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "        except PulsarTxnError as failed:\n",
            "        except ZeroDivisionError as failed:\n",
        ),
    ),
    mutation(
        "under Spark Connect each write of a function is an attempt of its own",
        "INV-7",
        f"{SCOPES}::test_connect_a_second_scope_of_one_name_in_one_batch_is_no_replay,"
        "test_connect_siblings_commit_batch_0_and_are_replayed,"
        "test_connect_a_scope_inside_another_does_not_abort_it",
        Edit(
            f"{SINK_CODE}/task.py",
            "{self._job.attempt or self._execution_id}",
            "{self._execution_id}",
        ),
    ),
    mutation(
        "under Spark Connect every run in which a function writes nothing is the same attempt",
        "INV-7",
        f"{SCOPES}"
        "::test_connect_a_batch_in_which_a_function_writes_nothing_is_replayed_on_the_same_server",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "{self._attempt or execution_id}",
            "{execution_id}",
        ),
    ),
    mutation(
        "under Spark Connect a run of a query is the same attempt as an earlier one",
        "INV-7",
        f"{SCOPES}"
        "::test_connect_all_writes_of_a_scope_are_one_transaction_that_is_replayed,"
        "test_connect_a_renamed_function_does_not_write_a_committed_batch_again,"
        "test_connect_what_an_earlier_run_left_open_in_another_scope_is_aborted",
        Edit(f"{SPARK}/connect.py", "-{secrets.token_hex(8)}", ""),
    ),
    mutation(
        "a process that is forked is the same attempt as its parent",
        "INV-7",
        "tests/spark/test_connect.py::test_another_process_is_another_attempt",
        Edit(f"{SPARK}/connect.py", "_name_of_process(os.getpid())", "_name_of_process(0)"),
    ),
    mutation(
        "under Spark Connect threads that write first at once are different attempts",
        "INV-7",
        "tests/spark/test_connect.py::test_threads_that_write_first_at_once_are_one_attempt",
        Edit(
            f"{SPARK}/connect.py",
            '    return _names.setdefault(pid, f"connect-{pid}-{secrets.token_hex(8)}")\n',
            "    if pid not in _names:\n"
            '        name = _names[pid] = f"connect-{pid}-{secrets.token_hex(8)}"\n'
            "        return name\n"
            "    return _names[pid]\n",
        ),
    ),
    mutation(
        "a thread with another query's properties writes for that query",
        "INV-7",
        "tests/spark/test_local_properties.py"
        "::test_a_pool_s_thread_writes_for_this_batch_and_not_for_the_one_that_it_was_made_in",
        Edit(
            f"{SPARK}/local_properties.py",
            "before == self._properties",
            "before[QUERY_ID]",
        ),
    ),
    mutation(
        "a block whose transaction was aborted by another cause seems to commit",
        "INV-1",
        f"{CLIENT}::test_a_block_whose_client_is_closed_meanwhile_does_not_seem_to_commit",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "                if error is None and not self._is_ended_by_owner:\n",
            "                if False:\n",
        ),
    ),
    mutation(
        "what is sent while a transaction is being ended is queued and never sent",
        "INV-1",
        "tests/client/test_aio.py::test_what_is_sent_while_a_transaction_is_being_ended_is_refused",
        Edit(f"{CLIENT_CODE}/aio.py", "        if self._ending:\n", "        if False:\n"),
    ),
    mutation(
        "a client sends a message to the children that may be in their parent",
        "INV-3",
        f"{CLIENT_PRODUCERS}"
        "::test_a_message_whose_fate_the_log_does_not_tell_does_not_go_to_the_children_as_well",
        Edit(
            f"{ENGINE}/topic_writers.py",
            "        if isinstance(error, SegmentLogUnavailableError) and not self._renews:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a receive with a timeout waits behind the task that is next in line",
        "liveness",
        "tests/client/test_aio.py::test_a_timeout_holds_behind_a_task_that_is_next_in_line",
        Edit(
            f"{CLIENT_CODE}/aio.py",
            "                await asyncio.wait({admission}, timeout=timeout_s)\n",
            "                await asyncio.wait({admission})\n",
        ),
    ),
    mutation(
        "a driver that was overtaken ends the newer one's transaction",
        "liveness",
        f"{NATIVE_SINK}::test_a_driver_that_was_overtaken_does_not_end_the_newer_transaction",
        Edit(
            NATIVE_SINK_CODE,
            "                reading.up_to(barrier, end_older)\n",
            "                reading.up_to(barrier, end_hiding)\n",
        ),
    ),
    mutation(
        "secrets of a job are arguments of its JVM",
        "secrets",
        "tests/job/test_session.py::test_no_secret_is_among_the_arguments_of_the_jvm",
        Edit(
            f"{JOB}/session.py",
            "        if not is_secret or key in _TOO_LATE:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a job whose last micro-batch fails while it ends has ended well",
        "silent failure",
        "tests/job/test_execution.py"
        "::test_a_micro_batch_that_fails_while_the_job_ends_is_a_failure",
        Edit(f"{JOB}/execution.py", "    if error is not None:\n        raise error\n", ""),
    ),
    mutation(
        "a broker writes positions in the digits of its locale",
        "INV-4",
        JAR,
        Edit(
            "jvm_shim/src/main/java/pulsartxnspark/store/LogPosition.java",
            "Locale.ROOT, ",
            "",
        ),
    ),
    mutation(
        "a refusal overtakes the receipts of its producer",
        "liveness",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "isOwn || metadata == null ? reply : answers.next(metadata.getProducerName(), reply)",
            "reply",
        ),
    ),
    mutation(
        "of two aborts of a cumulative acknowledgement at once one ends in an error for good",
        "liveness",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckEnd.java",
            "return commit ? !hasLockedUpTo() : parts.subscription().lockedUpTo() == null;",
            "return commit && !hasLockedUpTo();",
        ),
    ),
    mutation(
        "an acknowledgement that a full store has refused counts as written",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckSteps.java",
            "      batch.requests.forEach(request -> request.notWritten(unavailable(why)));\n",
            "",
        ),
    ),
    mutation(
        "a late copy of a broker's step writes what a full store has refused",
        "INV-9",
        "tests/store/redis/test_full_store.py"
        "::test_a_full_store_takes_the_number_of_a_broker_s_step_without_its_records",
        Edit(
            f"{LUA}/broker_acks_write.lua",
            "  redis.call('HSET', KEYS[2], 'step', ARGV[5])\n  return {changed(), 'FULL'}\n",
            "  return {changed(), 'FULL'}\n",
        ),
    ),
    mutation(
        "a client sends a message again that may be in the log",
        "INV-3",
        f"{CLIENT_PRODUCERS}"
        "::test_a_message_without_a_receipt_is_an_error_and_is_not_sent_a_second_time",
        Edit(f"{CLIENT_CODE}/producer.py", "renews=False", "renews=True"),
    ),
    mutation(
        "a search by time takes an entry that cannot be read for an old one",
        "INV-11",
        f"{TRIM}::test_an_entry_that_cannot_be_read_is_not_taken_for_an_old_one",
        Edit(
            f"{PULSAR}/log.py",
            "                self._require_trimmed(segment, at)\n",
            "                pass\n",
        ),
    ),
    mutation(
        "a sink commits what is left of a batch that other sinks have committed",
        "INV-11",
        f"{STARTS}::test_a_sink_that_writes_sometimes_does_not_commit_what_is_left_of_a_batch",
        Edit(
            f"{TXN}/batch.py",
            "        if execution_id and execution_id in marks and not attempt.replay:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a topic is scaled by the policy of a deleted one of its name",
        "INV-12",
        f"{SCALING}::test_a_topic_is_not_scaled_by_the_policy_of_a_deleted_one_of_its_name",
        Edit(
            f"{SEGMENTS}/scaler.py",
            "        if not ScalingPolicy.of(self._store.topics.read_properties(name)).enabled:\n"
            "            return None\n",
            "        properties = self._store.topics.read_properties(name)\n",
        ),
        Edit(
            f"{SEGMENTS}/scaler.py",
            "        properties = self._store.topics.read_properties(name)\n"
            "        policy = ScalingPolicy.of(properties)\n",
            "        policy = ScalingPolicy.of(properties)\n",
        ),
    ),
    mutation(
        "a subscription that is deleted while it is handed over comes back",
        "INV-13",
        f"{RETENTION}"
        "::test_a_subscription_that_is_deleted_while_it_is_handed_over_does_not_come_back",
        Edit(f"{LUA}/seg_retire.lua", "if #absent > 0 then", "if false then"),
    ),
    mutation(
        "a cursor that a query uses is taken back with a deleted subscription",
        "INV-13",
        f"{RETENTION}"
        "::test_a_subscription_that_is_deleted_while_it_is_handed_over_does_not_come_back",
        Edit(f"{LUA}/cursor_delete.lua", "    if cursor[i] ~= made[i] then", "    if false then"),
    ),
    mutation(
        "a second write of one sink counts as a replay where the first one is a replay",
        "INV-7",
        f"{TASKS}::test_a_second_write_of_one_sink_is_refused_in_each_replay_too",
        Edit(
            f"{SINK_CODE}/commit.py",
            'once_in = execution_id if job.rules.once else ""',
            'once_in = ""',
        ),
    ),
    mutation(
        "a second scope of one name counts as a replay where the first one is a replay",
        "INV-7",
        f"{SCOPES}::test_a_second_scope_of_one_name_is_refused_in_each_replay_too,"
        "test_connect_a_second_scope_of_one_name_is_refused_in_each_replay_too",
        Edit(
            f"{TXN}/batch.py",
            "once_in and replayed_in == once_in",
            "False",
        ),
    ),
    # --- acknowledgements ------------------------------------------------------------------------
    mutation(
        "an acknowledgement without start = cursor",
        "INV-9",
        f"{ACKS}::test_what_was_acknowledged_already_is_not_acknowledged_again, "
        "test_a_gap_behind_the_cursor_is_refused",
        Edit(f"{LUA}/ack_place.lua", "if cursor.position ~= ARGV[8] then", "if false then"),
    ),
    mutation(
        "two transactions hold one cursor",
        "INV-9",
        f"{ACKS}::test_two_open_transactions_cannot_lock_one_cursor",
        Edit(
            f"{LUA}/ack_place.lua",
            "  if pending[i] ~= ARGV[4] then\n    return {seq, 'PENDING', pending[i]}\n  end\n",
            "  if pending[i] ~= ARGV[4] then\n    break\n  end\n",
        ),
    ),
    mutation(
        "an acknowledgement that arrives after the materialization is placed",
        "INV-9",
        f"{ACKS}::test_an_acknowledgement_that_arrives_after_the_materialization_is_refused",
        Edit(f"{LUA}/_acknowledging.lua", "  if resolved then", "  if false then"),
    ),
    mutation(
        "an acknowledgement below closed is placed",
        "INV-6",
        f"{ACKS}::test_a_closed_segment_takes_no_acknowledgement_of_an_older_transaction",
        Edit(
            f"{LUA}/_acknowledging.lua",
            "if closed and tonumber(ARGV[6]) < tonumber(closed) then",
            "if false then",
        ),
    ),
    mutation(
        "a deleted segment blocks who has read it",
        "INV-9",
        f"{ACKS}::test_rows_of_a_deleted_segment_need_no_acknowledgement",
        Edit(f"{LUA}/ack_place.lua", "if retired then\n", "if false then\n"),
    ),
    mutation(
        "a batch is repeated without the ranges of a topic that was deleted",
        "INV-15",
        f"{DELETED_TOPICS}::test_a_committed_batch_is_repeated_although_a_topic_of_it_was_deleted",
        Edit(
            f"{SOURCE_CODE}/stream.py", 'if len(ending.topics) < len(end["topics"]):', "if False:"
        ),
    ),
    mutation(
        "a topic is repeated from where another one of its name was read to",
        "INV-15",
        f"{DELETED_TOPICS}"
        "::test_a_topic_that_came_with_a_committed_batch_may_be_deleted_before_it_is_repeated",
        Edit(f"{SOURCE_CODE}/planner.py", " and earlier.instance_id == instance_id\n", "\n"),
    ),
    mutation(
        "rows of a topic that is not named any more are acknowledged unread",
        "INV-9",
        f"{DELETED_TOPICS}"
        "::test_of_a_topic_that_is_only_not_named_any_more_nothing_is_acknowledged",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "if topic.segmented and not is_named and self._is_there(name, instance_id):",
            "if False:",
        ),
    ),
    mutation(
        "rows of a topic on the other backend are acknowledged unread, as of a deleted one",
        "INV-9",
        f"{DELETED_TOPICS}::test_a_topic_of_the_other_backend_is_not_taken_for_deleted",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "        except (TopicNotFoundError, SegmentNotFoundError):\n"
            "            return None\n\n    def _matching",
            "        except (TopicNotFoundError, SegmentNotFoundError, OptionError):\n"
            "            return None\n\n    def _matching",
        ),
    ),
    mutation(
        "a task with nothing left to read registers a plan that nobody claims for",
        "INV-9",
        f"{DELETED_TOPICS}"
        "::test_a_task_with_nothing_left_to_read_registers_no_plan_of_a_subscription_of_others",
        Edit(f"{SOURCE_CODE}/task.py", " or dict(partition.starts)\n", "\n"),
    ),
    mutation(
        "a segment that is deleted before it is claimed is lost",
        "INV-9",
        f"{ACKS}::test_a_segment_that_is_deleted_before_it_is_claimed_needs_no_acknowledgement",
        Edit(f"{TXN}/pending_ack.py", "if claim.code is not Code.DELETED:", "if True:"),
    ),
    mutation(
        "a second range of one transaction is taken for the first",
        "INV-9",
        f"{ACKS}::test_a_range_is_placed_at_the_cursor_alone",
        Edit(
            f"{LUA}/ack_place.lua",
            "if mine.start == ARGV[8] and mine.last == ARGV[9] then",
            "if mine then",
        ),
    ),
    mutation(
        "acknowledging for another query",
        "INV-9",
        f"{ACKS}::test_a_subscription_belongs_to_one_query_until_it_is_reset",
        Edit(f"{LUA}/_acknowledging.lua", "  if cursor.query ~= ARGV[7] then", "  if false then"),
    ),
    mutation(
        "an older source of the query acknowledges",
        "INV-9",
        f"{ACKS}::test_of_several_sources_on_a_subscription_the_one_that_started_last_is_alive",
        Edit(
            f"{LUA}/_acknowledging.lua",
            "if tonumber(cursor.source) > tonumber(source_epoch) then",
            "if false then",
        ),
    ),
    mutation(
        "an abort moves the cursor",
        "INV-9",
        f"{ACKS}::test_an_abort_leaves_the_cursor_where_it_was_and_lets_go_of_it",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "local applies = ARGV[7] == 'COMMITTED'\n",
            "local applies = true\n",
        ),
    ),
    mutation(
        "a reset while an acknowledgement is pending",
        "INV-9",
        f"{ACKS}::test_a_reset_is_refused_while_an_acknowledgement_is_pending",
        Edit(f"{LUA}/cursor_reset.lua", "if #pending > 0 then", "if false then"),
    ),
    mutation(
        "a pending acknowledgement survives a reset",
        "INV-9",
        f"{ACKS}::test_an_acknowledgement_of_an_earlier_cursor_version_moves_nothing",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "redis.call('HGET', cursor_key, 'generation') == ack.generation",
            "true",
        ),
    ),
    mutation(
        "any transaction passes for a sibling",
        "INV-9",
        f"{ACKS}::test_whatever_is_no_sibling_is_a_conflict",
        Edit(
            f"{TXN}/pending_ack.py",
            " and cursor.batch == ack.batch and cursor.sink != ack.sink",
            "",
        ),
    ),
    # --- acknowledgements of messages ------------------------------------------------------------
    mutation(
        "two transactions hold one message",
        "INV-9",
        f"{MESSAGES}::test_two_transactions_conflict_where_they_want_the_same_message",
        Edit(f"{LUA}/ack_individual.lua", "  if locks.other then\n", "  if false then\n"),
    ),
    mutation(
        "a cumulative acknowledgement goes over what another transaction has locked",
        "INV-9",
        f"{MESSAGES}::test_two_transactions_conflict_where_they_want_the_same_message",
        Edit(f"{LUA}/ack_cumulative.lua", "if locks.other then", "if false then"),
    ),
    mutation(
        "an acknowledgement of what is deleted succeeds",
        "INV-9",
        f"{MESSAGES}::test_what_is_committed_is_in_the_way_for_good, "
        "test_the_scripts_move_as_the_table_says",
        Edit(
            f"{LUA}/ack_individual.lua",
            "elseif locks.deleted and not normal and not locks.mine then",
            "elseif false then",
        ),
    ),
    mutation(
        "a cumulative acknowledgement of what is deleted succeeds",
        "INV-9",
        f"{MESSAGES}::test_what_is_committed_is_in_the_way_for_good, "
        "test_a_cumulative_acknowledgement_moves_as_the_table_says",
        Edit(
            f"{LUA}/ack_cumulative.lua",
            "if last <= cursor.position then\n  return {seq, 'DELETED', last}",
            "if last <= cursor.position then\n  return {seq, 'OK'}",
        ),
    ),
    mutation(
        "a cumulative acknowledgement eats what an aborted one gave back",
        "INV-9",
        f"{MESSAGES}"
        "::test_an_aborted_cumulative_acknowledgement_never_eats_what_is_acknowledged_later, "
        "test_a_cumulative_acknowledgement_over_a_gap_is_a_conflict_whatever_the_state",
        Edit(
            f"{LUA}/ack_cumulative.lua", "if free[1] and free[1][1] < start then", "if false then"
        ),
    ),
    mutation(
        "the cursor moves over messages that nobody acknowledged",
        "INV-9",
        f"{MESSAGES}::test_the_cursor_moves_over_what_is_acknowledged_without_a_gap_and_only_then",
        Edit(
            f"{LUA}/_ranges.lua", "if from == cursor and holder == '' then", "if holder == '' then"
        ),
    ),
    mutation(
        "the cursor moves over what a transaction has locked",
        "INV-9",
        f"{MESSAGES}::test_the_cursor_does_not_move_over_what_an_open_transaction_has_locked",
        Edit(
            f"{LUA}/_ranges.lua",
            "if from == cursor and holder == '' then",
            "if from == cursor then",
        ),
    ),
    mutation(
        "neighbours of two transactions become one",
        "INV-9",
        f"{MESSAGES}::test_two_transactions_conflict_where_they_want_the_same_message",
        Edit(f"{LUA}/_ranges.lua", "if to == start and who == holder then", "if to == start then"),
        Edit(
            f"{LUA}/_ranges.lua", "if from == last and who == holder then", "if from == last then"
        ),
    ),
    mutation(
        "readers that do not agree on what is visible pass",
        "INV-9",
        f"{MESSAGES}::test_readers_that_do_not_agree_on_what_is_visible_are_found_out",
        Edit(
            f"{LUA}/ack_individual.lua",
            "elseif locks.deleted and #free > 0 then",
            "elseif false then",
        ),
    ),
    mutation(
        "a message acknowledged after the materialization is placed",
        "INV-9",
        f"{MESSAGES}::test_an_acknowledgement_that_arrives_after_the_materialization_is_refused",
        Edit(f"{LUA}/_acknowledging.lua", "  if resolved then", "  if false then"),
    ),
    mutation(
        "a message acknowledged below closed is placed",
        "INV-6",
        f"{MESSAGES}::test_a_closed_segment_takes_no_message_of_an_older_transaction",
        Edit(
            f"{LUA}/_acknowledging.lua",
            "if closed and tonumber(ARGV[6]) < tonumber(closed) then",
            "if false then",
        ),
    ),
    mutation(
        "clients acknowledge for a query",
        "INV-9",
        f"{MESSAGES}::test_clients_and_queries_do_not_share_a_subscription",
        Edit(f"{LUA}/_acknowledging.lua", "  if cursor.query ~= ARGV[7] then", "  if false then"),
    ),
    mutation(
        "the record of pending acks goes before the last of its ranges",
        "INV-6",
        f"{MESSAGES}::test_what_a_transaction_locks_in_many_ranges_is_given_up_in_several_steps",
        Edit(f"{LUA}/seg_materialize.lua", "    if left then\n", "    if false then\n"),
    ),
    mutation(
        "materialized after the first of several steps",
        "INV-3",
        f"{MESSAGES}::test_what_a_transaction_locks_in_many_ranges_is_given_up_in_several_steps",
        Edit(f"{TXN}/coordinator.py", "if answer.code is Code.MORE", "if False"),
    ),
    mutation(
        "readers hear of a decision with the last of its steps alone",
        "INV-3",
        "tests/txn/test_watcher.py::test_a_decision_wakes_readers_with_the_first_of_its_steps",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "-- Also where more is left:",
            "if more then return {changed(), 'MORE', dropped, moved} end --",
        ),
    ),
    mutation(
        "an aborted acknowledgement of a message deletes it",
        "INV-9",
        f"{MESSAGES}::test_the_scripts_move_as_the_table_says, "
        "test_what_was_aborted_is_in_nobodys_way",
        Edit(f"{LUA}/_ranges.lua", "    if committed then\n", "    if true then\n"),
    ),
    mutation(
        "deleted messages survive a reset",
        "INV-9",
        f"{MESSAGES}::test_a_reset_waits_for_the_transactions_and_forgets_what_was_acknowledged",
        Edit(f"{LUA}/cursor_reset.lua", "redis.call('DEL', KEYS[5])\n", ""),
    ),
    mutation(
        "acknowledged ranges without a bound",
        "INV-11",
        f"{MESSAGES}::test_a_full_subscription_takes_only_what_starts_at_its_cursor",
        Edit(
            f"{LUA}/ack_individual.lua", "if added > 0 and size + added >", "if false and added >"
        ),
    ),
    mutation(
        "acknowledging a message without an intent",
        "INV-6",
        f"{MESSAGES}::test_the_intent_is_there_before_the_acknowledgement",
        Edit(
            f"{TXN}/pending_ack.py",
            "            intents = [ack_intent(where.segment, where.subscription)]\n"
            "            self._coordinator.intend(",
            "            intents: list[str] = []\n            self._coordinator.intend(",
        ),
    ),
    # --- collection ------------------------------------------------------------------------------
    mutation(
        "a header removed before the pointer knows its decision",
        "INV-6",
        f"{SWEEPS}::test_the_pointer_learns_the_decision_before_the_header_goes",
        Edit(
            f"{TXN}/sweeper.py",
            "        if participants.pointer is not None:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a header removed while its attempt may still write the pointer",
        "INV-6",
        f"{BATCH}::test_an_attempt_that_sleeps_between_header_and_pointer_does_not_block_the_sink",
        Edit(
            f"{TXN}/sweeper.py",
            "    if pointer is None:\n        return False\n    return pointer.batch_id > ",
            "    if True:\n        return True\n    return pointer.batch_id > ",
        ),
    ),
    mutation(
        "an attempt takes a header that a sweep has just removed for lost",
        "INV-6",
        f"{BATCH}::test_a_header_that_a_sweep_removes_while_an_attempt_begins_is_not_missing",
        Edit(
            f"{TXN}/batch.py",
            "if header is None and self._store.sinks.read_pointer(key.sink, key.query) != read:",
            "if False:",
        ),
    ),
    mutation(
        "a header removed while an older transaction of its TC is open",
        "INV-6",
        f"{SWEEPS}::test_a_header_stays_while_an_older_transaction_of_its_tc_is_open, "
        "test_headers_that_wait_for_an_older_open_transaction_are_counted",
        Edit(
            f"{LUA}/txn_due.lua",
            "if tonumber(string.sub(txn, string.find(txn, ':', 1, true) + 1)) < below then",
            "if true then",
        ),
    ),
    mutation(
        "headers that cannot go hide those behind",
        "INV-6",
        f"{SWEEPS}::test_headers_that_cannot_go_hide_no_others_and_are_named",
        Edit(
            f"{TXN}/sweeper.py",
            "self._offsets[tc] = offset + page.seen - removed if page.more else 0",
            "self._offsets[tc] = 0",
        ),
    ),
    mutation(
        "a sweep goes through all that older open transactions hold",
        "INV-6",
        f"{SWEEPS}::test_a_hundred_thousand_finished_transactions_cost_what_ten_open_ones_cost",
        Edit(f"{LUA}/txn_due.lua", "'LIMIT', ARGV[6], page + 1)", "'LIMIT', ARGV[6], 1e6)"),
    ),
    mutation(
        "one broken record stops the sweep",
        "INV-6",
        f"{SWEEPS}::test_a_decision_that_cannot_be_materialized_does_not_block_the_others",
        Edit(
            f"{TXN}/sweeper.py",
            "_ONE_IS_BROKEN = (StoreCorruptError,",
            "_ONE_IS_BROKEN = (TransactionConflictError,) or (StoreCorruptError,",
        ),
    ),
    mutation(
        "a decision is forgotten before it is materialized",
        "INV-3",
        f"{SWEEPS}::test_what_is_decided_is_materialized_within_the_retention_and_found_without_"
        "the_finished",
        Edit(f"{LUA}/txn_end.lua", "redis.call('ZADD', KEYS[6], finalized, ARGV[4])\n", ""),
    ),
    mutation(
        "two transactions get one id beyond what a double can tell apart",
        "INV-1",
        f"{SWEEPS}::test_ids_are_refused_where_a_double_could_not_tell_them_apart",
        Edit(
            f"{LUA}/txn_create.lua",
            "if tonumber(redis.call('GET', KEYS[2]) or '0') >= 9007199254740991 then",
            "if false then",
        ),
    ),
    mutation(
        "an append in a transaction before its writer is pinned",
        "INV-2",
        f"{BUFFER}::test_an_entry_is_appended_after_what_says_so_and_never_after_the_decision",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "        self.admit(txn, nonce, timeout_ms, writer, [segment])\n        record = ",
            "        at = append()\n        self.admit(txn, nonce, timeout_ms, writer, [segment])\n"
            "        append = lambda: at  # noqa: E731\n        record = ",
        ),
    ),
    mutation(
        "an append in a transaction without its operation record",
        "INV-2",
        f"{BUFFER}::test_an_entry_is_appended_after_what_says_so_and_never_after_the_decision",
        Edit(
            f"{TXN}/transaction_buffer.py",
            "            self._coordinator.append_ops(txn, nonce, ops)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "tasks record nothing of what they wrote",
        "INV-6",
        f"{TASKS}::test_each_task_records_what_it_wrote_and_where",
        Edit(
            f"{SINK_CODE}/task.py",
            "                    coordinator.append_ops(txn, nonce, ops)\n",
            "                    pass\n",
        ),
    ),
    mutation(
        "another number of coordinators is taken",
        "INV-7",
        f"{STORES}::test_another_number_of_coordinators_is_refused_with_both_numbers",
        Edit(
            f"{REDIS}/scripts.py",
            "if wanted is not None and wanted != int(coordinators):",
            "if False:",
        ),
    ),
    mutation(
        "what closing has made useless stays for ever",
        "INV-6",
        f"{SWEEPS}::test_nothing_of_a_transaction_that_was_collected_is_left_in_a_segment",
        Edit(f"{LUA}/seg_materialize.lua", "redis.call('ZADD', KEYS[9], ARGV[6], ARGV[4])", ""),
    ),
    mutation(
        "closed over a pin",
        "INV-6",
        f"{SWEEPS}::test_a_segment_is_not_closed_over_a_pin",
        Edit(
            f"{LUA}/seg_close.lua",
            "for _, pin in ipairs(redis.call('HVALS', KEYS[2])) do",
            "for _, pin in ipairs({}) do",
        ),
    ),
    mutation(
        "closed over a pending acknowledgement",
        "INV-6",
        f"{SWEEPS}::test_a_segment_is_not_closed_over_a_pending_acknowledgement",
        Edit(
            f"{LUA}/seg_close.lua",
            "for _, subscription in ipairs(redis.call('SMEMBERS', KEYS[5])) do",
            "for _, subscription in ipairs({}) do",
        ),
    ),
    mutation(
        "the floor raised by a later pair",
        "INV-5",
        f"{SWEEPS}::test_the_floor_is_the_one_noted_first_not_that_of_a_later_pair",
        Edit(
            f"{LUA}/seg_floor.lua", "if not pair then\n  local last", "if true then\n  local last"
        ),
    ),
    mutation(
        "a dropped record removed before the log has deleted its entries",
        "INV-5",
        f"{SWEEPS}::test_a_new_reader_from_earliest_after_all_collection_sees_exactly_what_committed",
        Edit(
            f"{LUA}/seg_floor.lua", "if ARGV[7] < string.sub(pair, bar + 1) then", "if false then"
        ),
    ),
    mutation(
        "a dropped record removed without a floor",
        "INV-5",
        f"{SWEEPS}::test_the_zombie_that_wakes_after_the_dropped_record_went_stays_invisible",
        Edit(f"{LUA}/seg_floor.lua", "raise(ARGV[4], floor)\n", ""),
    ),
    mutation(
        "a gate returns every writer that was ever dropped",
        "cost",
        f"{DROPPED}::test_a_read_at_the_end_does_not_cost_the_writers_that_were_dropped_before",
        Edit(f"{LUA}/seg_gate.lua", "if ARGV[5] == '' then", "if true then"),
    ),
    mutation(
        "a gate leaves a group of its range out",
        "INV-5",
        f"{DROPPED}::test_any_range_shows_exactly_what_committed",
        Edit(f"{LUA}/seg_gate.lua", "    if group >= range_end then", "    if true then"),
    ),
    mutation(
        "zombies behind their group are read",
        "INV-5",
        f"{DROPPED}::test_any_range_shows_exactly_what_committed",
        Edit(f"{LUA}/seg_gate.lua", "if before then\n", "if false then\n"),
    ),
    mutation(
        "a group's counters hold in front of its position as well",
        "INV-5",
        f"{DROPPED}::test_any_range_shows_exactly_what_committed",
        Edit(
            f"{LUA}/seg_gate.lua",
            "'[' .. ARGV[5], '-', 'LIMIT', 0, 1)[1]",
            "'+', '-', 'LIMIT', 0, 1)[1]",
        ),
    ),
    mutation(
        "a group does not have the names of those that reach into it",
        "INV-5",
        f"{DROPPED}::test_any_range_shows_exactly_what_committed, "
        "test_a_writer_that_is_dropped_below_a_group_belongs_to_it",
        Edit(
            f"{LUA}/seg_floor.lua", "if before and before > (from[i] or '') then", "if false then"
        ),
    ),
    mutation(
        "a group of what was deleted goes without a floor",
        "INV-5",
        f"{DROPPED}::test_the_floor_takes_over_from_groups_whose_data_is_gone",
        Edit(f"{LUA}/seg_floor.lua", "    raise(tc, counter)\n", ""),
    ),
    mutation(
        "a header goes that is not materialized everywhere",
        "INV-6",
        f"{SWEEPS}::test_a_header_that_is_not_materialized_everywhere_is_not_removed",
        Edit(f"{LUA}/txn_remove.lua", "if not header[2] then", "if false then"),
    ),
    mutation(
        "embedded: high-position raised before the acknowledgement",
        "INV-2",
        f"{EMBEDDED}::test_what_is_sent_is_no_receipt_before_it_is_acknowledged",
        Edit(
            f"{EMBEDDED_CODE}/log.py",
            "        self._in_flight += 1\n        self._lane.send",
            "        self._in_flight += 1\n"
            "        self._total.add(self._last + 1, messages, size)\n        self._lane.send",
        ),
    ),
    mutation(
        "Pulsar: high-position raised before the acknowledgement",
        "INV-2",
        f"{PULSAR_WRITER}::test_an_entry_that_is_on_its_way_is_no_receipt",
        Edit(
            RECEIPT_LEDGER_CODE,
            "            self._unacknowledged.append(entry)\n",
            "            self._unacknowledged.append(entry)\n"
            "            self._sums.add(self._sums.highest, entry.rows, entry.payload_bytes)\n",
        ),
    ),
    # --- the store -------------------------------------------------------------------------------
    mutation(
        "a tag that lost acknowledged writes passes",
        "INV-11",
        f"{STORES}::test_a_segment_that_lost_acknowledged_writes_is_found_out, "
        "test_a_decision_carries_the_last_seen_sequence_numbers_of_its_segments",
        Edit(f"{LUA}/_prelude.lua", "if tonumber(number) > tonumber(tag[3]) then", "if false then"),
    ),
    mutation(
        "a number that another history has overtaken passes",
        "INV-14",
        f"{HISTORIES}::test_a_state_passes_exactly_if_it_lies_in_the_past_of_the_tag",
        Edit(
            f"{LUA}/_prelude.lua", "if history ~= '-' and history ~= tag[7] then", "if false then"
        ),
    ),
    mutation(
        "a server that was started anew goes on with the history of its predecessor",
        "INV-14",
        f"{HISTORIES}::test_a_state_passes_exactly_if_it_lies_in_the_past_of_the_tag",
        Edit(f"{LUA}/_prelude.lua", "if not server or server == tag[6] then", "if true then"),
    ),
    mutation(
        "an ended history has no end",
        "INV-14",
        f"{HISTORIES}::test_a_state_passes_exactly_if_it_lies_in_the_past_of_the_tag",
        Edit(
            f"{LUA}/_prelude.lua",
            "if not last or tonumber(number) > tonumber(last) then",
            "if not last then",
        ),
    ),
    mutation(
        "of what a process was told of a tag only the highest number is compared",
        "INV-14",
        f"{HISTORIES}::test_a_state_passes_exactly_if_it_lies_in_the_past_of_the_tag",
        Edit(
            f"{REDIS}/scripts.py",
            "        states = [f\"{state.seq} {state.history or '-'}\" for state in call.seen]\n",
            "        states = [f\"{s.seq} {s.history or '-'}\" for s in sorted(call.seen)[-1:]]\n",
        ),
    ),
    mutation(
        "a header does not say which history its numbers are of",
        "INV-14",
        f"{HISTORIES}::test_a_header_remembers_the_history_of_its_segments",
        Edit(f"{TXN}/seen.py", "record.histories[tag] = state.history", "pass"),
    ),
    mutation(
        "a checkpoint does not say which history its numbers are of",
        "INV-14",
        f"{HISTORIES}::test_a_checkpoint_is_what_a_restarted_reader_remembers_a_store_by",
        Edit(
            f"{SOURCE_CODE}/offsets.py",
            'history = {"h": self.history} if self.history else {}',
            "history: dict[str, str] = {}",
        ),
    ),
    mutation(
        "the seq in the source's offset is not compared",
        "INV-11",
        f"{HISTORIES}::test_a_checkpoint_is_what_a_restarted_reader_remembers_a_store_by",
        Edit(f"{SOURCE_CODE}/planner.py", "        store.raise_last_seen(last_seen)\n", ""),
    ),
    mutation(
        "a tag whose maker died before it was registered is relied on",
        "INV-11",
        f"{HISTORIES}::test_a_tag_whose_maker_died_before_it_was_registered_is_missed_when_it_is_lost",
        Edit(f"{LUA}/_prelude.lua", "if string.sub(ARGV[3], 1, 1) ~= '+' then", "if false then"),
    ),
    mutation(
        "a tag of another store passes",
        "INV-11",
        f"{STORES}::test_a_tag_of_another_store_is_found_out_and_stays_unchanged",
        Edit(
            f"{LUA}/_prelude.lua",
            "if tag[1] ~= ARGV[1] or tag[2] ~= ARGV[2] then",
            "if false then",
        ),
    ),
    mutation(
        "a lost tag is initialized again",
        "INV-11",
        f"{STORES}::test_a_wiped_segment_is_found_out, test_a_wiped_coordinator_is_found_out, "
        "test_a_wiped_pointer_is_found_out_before_a_batch_is_written_twice",
        Edit(
            f"{REDIS}/scripts.py",
            "            if self._is_initialized(call.tag):\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a lost segment is initialized again where segments are prepared",
        "INV-11",
        f"{STORES}::test_a_prepared_segment_that_is_lost_before_its_first_use_is_found_out",
        Edit(f"{REDIS}/segments.py", ' if state != "born"]', "]"),
    ),
    mutation(
        "a tag that another task has just made is called lost",
        "INV-11",
        f"{STORES}::test_a_tag_that_another_process_initializes_in_between_is_not_taken_for_lost",
        Edit(
            f"{REDIS}/scripts.py",
            "        reply = self._ask(call)\n"
            "        if text(reply[1]) == _TagFault.NO_TAG_RECORD:\n"
            "            raise StoreRolledBackError(\n"
            '                f"tag',
            "        reply = []\n        if True:\n            raise StoreRolledBackError(\n"
            '                f"tag',
        ),
    ),
    mutation(
        "a decision carries no last seen sequence numbers",
        "INV-11",
        f"{STORES}::test_a_decision_carries_the_last_seen_sequence_numbers_of_its_segments",
        Edit(
            f"{TXN}/coordinator.py", "        self.store.raise_last_seen(noted_in(outcome))\n", ""
        ),
    ),
    mutation(
        "embedded: a closed connection is opened again under receipts that are outstanding",
        "INV-11",
        f"{EMBEDDED}::test_a_connection_that_was_closed_before_the_receipts_came_is_not_opened_again",
        Edit(
            f"{EMBEDDED_CODE}/append_lane.py",
            "        if not connection.is_connected:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "embedded: a receipt behind a refused entry counts",
        "INV-11",
        f"{EMBEDDED}::test_an_entry_behind_a_refused_one_is_not_counted",
        Edit(
            f"{EMBEDDED_CODE}/log.py",
            "        if self._error is not None or self._failed:\n            return\n",
            "",
        ),
    ),
    # --- operation records (PIP-160) -----------------------------------------------------------
    mutation(
        "a caller is answered before its record is stored",
        "PIP-160",
        f"{OPS}::test_nobody_is_answered_before_the_entry_is_stored",
        Edit(
            f"{TXN}/op_log.py",
            "            self._waiting.append(pending)\n",
            "            self._waiting.append(pending)\n"
            "            request.settle(OpAddress(txn, name, 0, 1), None)\n",
        ),
    ),
    mutation(
        "an entry takes the records of whoever asks",
        "INV-8",
        f"{OPS}::test_of_two_owners_of_one_transaction_in_an_entry_only_one_counts",
        Edit(
            f"{LUA}/txn_op_batch.lua", "elseif header[2] ~= ARGV[i + 1] then", "elseif false then"
        ),
    ),
    mutation(
        "an entry takes the records of a transaction that is over",
        "INV-6",
        f"{OPS}::test_a_transaction_that_is_over_takes_nothing_from_the_others_in_the_entry",
        Edit(f"{LUA}/txn_op_batch.lua", "elseif header[1] ~= 'OPEN' then", "elseif false then"),
    ),
    mutation(
        "an entry goes with the first transaction that is over",
        "PIP-160",
        f"{OPS}::test_an_entry_goes_with_the_last_transaction_that_has_a_record_in_it",
        Edit(
            f"{LUA}/txn_forget_ops.lua",
            "if redis.call('HLEN', batch) == 1 then",
            "if true then",
        ),
    ),
    mutation(
        "records wait without a bound",
        "PIP-160",
        f"{OPS}::test_whoever_brings_more_than_there_is_room_for_waits",
        Edit(f"{TXN}/op_log.py", "while self._waiting and self._full():", "while False:"),
    ),
    mutation(
        "a damaged entry is taken for one of the right size",
        "INV-11",
        f"{OPS}::test_a_batch_that_cannot_be_read_is_reported_and_not_skipped",
        Edit(f"{TXN}/op_log.py", "if len(items) != wanted.batch_size:", "if False:"),
    ),
    # --- notification --------------------------------------------------------------------------
    mutation(
        "events between two reads of a stream are skipped",
        "lost wake-up",
        f"{EVENTS}::test_a_watcher_that_missed_trimmed_events_reads_the_state_again",
        Edit(
            f"{REDIS}/event_feed.py",
            "*(self._last[key] for key in read.keys),",
            '*("$" for _ in read.keys),',
        ),
    ),
    mutation(
        "a lost connection goes unnoticed",
        "lost wake-up",
        f"{EVENTS}::test_a_lost_connection_counts_as_an_event_on_everything_it_followed",
        Edit(
            f"{REDIS}/event_feed.py",
            "        return {self._tags[key] for key in read.keys}\n",
            "        return set()\n",
        ),
    ),
    mutation(
        "a decision does not wake whom it blocks",
        "lost wake-up",
        f"{EVENTS}::test_a_decision_wakes_whom_it_blocks_although_nobody_materialized_it",
        Edit(
            f"{TXN}/watcher.py",
            "                concerned.add(segment)\n",
            "                pass\n",
        ),
    ),
    mutation(
        "a decision before its coordinator is followed is missed",
        "lost wake-up",
        f"{EVENTS}::test_a_decision_wakes_whom_it_blocks_although_nobody_materialized_it",
        Edit(f"{TXN}/watcher.py", "            self._due.add(segment)\n", "            pass\n"),
    ),
    mutation(
        "nothing is polled without an event",
        "lost wake-up",
        f"{EVENTS}::test_without_any_event_everything_is_polled_once_in_a_while",
        Edit(
            f"{TXN}/watcher.py",
            "            if now >= recheck_at:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "what a broker does not show at once is skipped where a loss is allowed",
        "lost rows",
        "tests/spark/source/test_planner.py::test_a_log_that_only_shows_its_end_later_loses_nothing",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "        if not behind or time.monotonic() >= deadline:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a task asks twice where a loss is allowed",
        "admin calls",
        f"{ADMIN_CALLS}::test_a_task_asks_each_segment_once_where_a_loss_is_allowed",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "snapshots[s].trimmed_to() if s in snapshots else None for",
            "None for",
        ),
    ),
    mutation(
        "a batch behind the end of its log fails where a loss is allowed",
        "failOnDataLoss",
        "tests/spark/source/test_planner.py"
        "::test_a_batch_behind_the_end_of_its_log_is_left_where_that_is_allowed",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "    if last == range_.end:\n",
            "    if True:\n",
        ),
    ),
    mutation(
        "nobody reads a part of a range that was trimmed",
        "lost rows",
        "tests/spark/source/test_planner.py"
        "::test_data_that_goes_between_the_snapshot_and_the_read_is_reported",
        Edit(
            "pulsar_txn_spark/backends/embedded/log.py",
            "            return [end]  # all of it was trimmed",
            "            return []  # all of it was trimmed",
        ),
    ),
    mutation(
        "a stream of events grows for ever",
        "bound",
        f"{EVENTS}::test_the_streams_stay_bounded_and_keep_their_newest_event",
        Edit(f"{LUA}/seg_raise.lua", "'MAXLEN', '~', '1024', '*'", "'*'"),
    ),
    mutation(
        "a source goes by what was reported for ever",
        "lost wake-up",
        f"{ADMIN_CALLS}"
        "::test_rows_that_nobody_reports_are_found_in_ten_seconds_and_more_of_them_at_once",
        Edit(
            f"{SOURCE_CODE}/snapshot_schedule.py",
            "known is None or now - known.taken_at >= LONGEST_S",
            "known is None",
        ),
    ),
    mutation(
        "snapshots are not taken more often where rows are that nobody reports",
        "lost wake-up",
        f"{ADMIN_CALLS}"
        "::test_rows_that_nobody_reports_are_found_in_ten_seconds_and_more_of_them_at_once",
        Edit(
            f"{SOURCE_CODE}/snapshot_schedule.py",
            "            known.counted_to, known.unreported_at = known.last_confirmed, now\n",
            "            pass\n",
        ),
    ),
    mutation(
        "entries of an open transaction count as rows that nobody reports",
        "bound",
        f"{ADMIN_CALLS}"
        "::test_entries_of_an_open_transaction_are_not_taken_for_rows_that_nobody_reports",
        Edit(f"{SOURCE_CODE}/snapshot_schedule.py", " and not readable.pinned:", ":"),
    ),
    mutation(
        "what a snapshot has shown behind a pin is forgotten",
        "lost wake-up",
        f"{ADMIN_CALLS}::test_rows_behind_a_pin_that_nobody_reports_are_found_when_it_is_gone",
        Edit(
            f"{SOURCE_CODE}/snapshot_schedule.py",
            "return self._known[segment].last_confirmed",
            "return EARLIEST",
        ),
    ),
    mutation(
        "rows that nobody reports are not expected if a pin was before them",
        "lost wake-up",
        f"{ADMIN_CALLS}::test_rows_behind_a_pin_that_nobody_reports_are_found_when_it_is_gone",
        Edit(
            f"{SOURCE_CODE}/snapshot_schedule.py",
            "        if known.last_confirmed > reported and not",
            "        if last_confirmed and known.last_confirmed > reported and not",
        ),
    ),
    mutation(
        "a sealed segment is read up to what was reported",
        "lost wake-up",
        f"{ADMIN_CALLS}::test_a_sealed_segment_is_read_to_its_end_at_once",
        Edit(f"{SOURCE_CODE}/planner.py", "return known[key]", "return EARLIEST"),
    ),
    mutation(
        "what was reported and lost fails a query that may skip it",
        "failOnDataLoss",
        f"{ADMIN_CALLS}::test_what_was_reported_and_lost_is_skipped_only_if_that_is_allowed",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            end = min(ranges[key].end, of_log[key].last_confirmed)\n",
            "            end = ranges[key].end\n",
        ),
    ),
    mutation(
        "a source does not poll where nobody announces",
        "lost wake-up",
        f"{IDLE}::test_with_a_native_topic_every_question_is_a_poll",
        Edit(
            f"{SOURCE_CODE}/idle.py",
            "if any(segment.in_pulsar_domain for segment in segments):",
            "if False:",
        ),
    ),
    # --- PIP-373 -------------------------------------------------------------------------------
    mutation(
        "the first pin sets no mark",
        "PIP-373",
        f"{MARK}::test_the_mark_is_there_before_the_first_transactional_entry",
        Edit(f"{LUA}/seg_pin.lua", "redis.call('HSETNX', KEYS[7], 'contains-txn', '1')\n", ""),
    ),
    mutation(
        "users change the system's property",
        "PIP-373",
        f"{MARK}::test_users_read_the_property_and_may_not_change_it",
        Edit(
            "pulsar_txn_spark/admin/properties.py",
            "if name.startswith(SYSTEM_PREFIX):",
            "if False:",
        ),
    ),
    mutation(
        "readers fetch the state of segments without the mark",
        "PIP-373",
        f"{MARK}::test_a_reader_of_a_segment_without_the_mark_fetches_no_transaction_state",
        Edit(
            f"{LUA}/seg_gate.lua",
            "if redis.call('HEXISTS', KEYS[6], 'contains-txn') == 0 and",
            "if redis.call('HEXISTS', KEYS[6], 'contains-txn') == 2 and",
        ),
    ),
    # --- retention: what somebody needs stays, and what went comes back by no late request --------
    mutation(
        "a late request brings something of a deleted segment back",
        "INV-6",
        f"{RETENTION}::test_nothing_that_comes_late_brings_anything_back",
        Edit(f"{LUA}/_prelude.lua", "local retired = tag[4]", "local retired = false"),
    ),
    *(
        mutation(
            f"a deleted segment lets {script} in",
            "INV-6",
            f"{RETENTION}::test_nothing_that_comes_late_brings_anything_back",
            Edit(f"{LUA}/{script}.lua", f"if retired then\n  return {{seq, '{code}'}}\nend\n", ""),
        )
        for script, code in (
            ("seg_pin", "DELETED"),
            ("seg_close", "ALREADY"),
            ("seg_raise", "ALREADY"),
            ("seg_is_materialized", "CLOSED"),
            ("cursor_claim", "DELETED"),
            ("cursor_reset", "DELETED"),
            ("cursor_create", "DELETED"),
            ("seg_floor", "ALREADY"),
            ("seg_trim", "ALREADY"),
        )
    ),
    *(
        mutation(
            f"a deleted segment lets {script} in",
            "INV-6",
            f"{RETENTION}::test_nothing_that_comes_late_brings_anything_back",
            Edit(f"{LUA}/{script}.lua", "if retired then", "if false then"),
        )
        for script in ("ack_individual", "ack_cumulative", "seg_materialize")
    ),
    mutation(
        "a deleted segment lets cursor_inherit in",
        "INV-6",
        f"{RETENTION}::test_nothing_that_comes_late_brings_anything_back",
        Edit(f"{LUA}/cursor_inherit.lua", "if retired or ", "if "),
    ),
    mutation(
        "a segment is deleted under a pin",
        "INV-6",
        f"{RETENTION}::test_a_segment_with_a_pin_is_not_retired",
        Edit(f"{LUA}/seg_retire.lua", "if pin then", "if false then"),
    ),
    mutation(
        "a segment is deleted under a pending acknowledgement",
        "INV-6",
        f"{RETENTION}::test_a_segment_with_a_pending_acknowledgement_is_not_retired",
        Edit(f"{LUA}/seg_retire.lua", "  if txn then", "  if false then"),
    ),
    mutation(
        "a segment is deleted although a subscription came at the last moment",
        "INV-11",
        f"{RETENTION}::test_a_subscription_that_comes_at_the_last_moment_is_seen",
        Edit(f"{LUA}/seg_retire.lua", "  if released < ARGV[4] then", "  if false then"),
        Edit(f"{LUA}/seg_retire.lua", "  if not handed_over[name] then", "  if false then"),
    ),
    mutation(
        "a subscription that is not known in the children is forgotten with the parent",
        "INV-11",
        f"{RETENTION}::test_a_subscription_that_has_not_come_to_the_children_is_known_there",
        Edit(
            f"{SEGMENTS}/retention.py",
            "                if not known and needed[child][name] is not None:\n",
            "                if False:\n",
        ),
    ),
    mutation(
        "retention begins a segment for a start that has died before it",
        "INV-13",
        f"{STARTS}::test_retention_begins_no_segment_for_a_start_that_has_died_before_it",
        Edit(
            f"{SEGMENTS}/retention.py",
            "        if mark and not here.queries[name]\n",
            "        if False\n",
        ),
    ),
    mutation(
        "a start that dies behind the verdict of a sweep is not seen",
        "INV-13",
        f"{STARTS}::test_retention_begins_no_segment_for_a_start_that_has_died_before_it",
        Edit(
            f"{SEGMENTS}/retention.py",
            "if segment.ref.id not in retained or _starting(topology, segment, retained):",
            "if segment.ref.id not in retained:",
        ),
    ),
    mutation(
        "a start that nobody finishes counts as through with its segment",
        "what retention tells an operator is what it does",
        f"{STARTS}::test_a_start_that_nobody_finishes_keeps_a_segment_until_its_subscription_is_"
        "deleted_or_reset",
        Edit(
            f"{SEGMENTS}/retention.py",
            "                delete = False\n",
            "",
        ),
    ),
    mutation(
        "a subscription that is further is sent back to a child",
        "INV-10",
        f"{RETENTION}::test_a_subscription_that_is_further_is_not_sent_back_to_a_child",
        Edit(
            f"{SEGMENTS}/retention.py",
            "if not known and needed[child][name] is not None:",
            "if not known:",
        ),
    ),
    mutation(
        "a merged parent goes before the other one was read",
        "INV-10",
        f"{RETENTION}::test_of_merged_parents_none_goes_before_all_were_read",
        Edit(
            f"{SEGMENTS}/retention.py",
            "                and all(materialized[p] for p in siblings)\n",
            "",
        ),
    ),
    mutation(
        "a segment goes before its parents",
        "INV-11",
        f"{RETENTION}::test_segments_go_from_the_roots_on",
        Edit(
            f"{SEGMENTS}/retention.py",
            "by_id[p].state is SegmentState.DELETED for p in segment.parents",
            "True for p in segment.parents",
        ),
    ),
    mutation(
        "what Spark may read once more is trimmed",
        "INV-11",
        f"{RETENTION}::test_what_spark_may_read_once_more_stays, "
        "test_a_segment_that_spark_may_read_once_more_stays",
        Edit(f"{LUA}/seg_retained.lua", "cursor[2] or cursor[3]", "cursor[3]"),
    ),
    mutation(
        "a reset forgets what the query before may read once more",
        "INV-11",
        f"{RETENTION}::test_a_reset_keeps_what_the_query_before_may_read_once_more",
        Edit(f"{LUA}/cursor_reset.lua", "(cursor[3] and cursor[1] ~= position)", "true"),
    ),
    mutation(
        "rows of an open transaction are trimmed",
        "INV-11",
        f"{RETENTION}::test_rows_of_an_open_transaction_stay_although_nobody_subscribes",
        Edit(
            f"{SEGMENTS}/retention.py",
            'bounds["an open transaction, or the end of the log"] = readable[id_]',
            'bounds["the end of the log"] = self._log.last_confirmed(segment.ref)',
        ),
    ),
    mutation(
        "a subscription that may still come to a segment does not hold it",
        "INV-11",
        f"{RETENTION}::test_a_subscription_needs_what_it_has_not_left_behind",
        Edit(
            f"{SEGMENTS}/retention.py",
            "None if name in further else EARLIEST",
            "None",
        ),
    ),
    mutation(
        "the metadata of a segment goes before its log",
        "INV-5",
        f"{RETENTION}::test_the_metadata_goes_after_the_log",
        Edit(
            f"{SEGMENTS}/retention.py",
            "        remove_logs(self._log, [segment], self._others(topology, segment))\n"
            "        # Retention step 6.\n"
            "        self._store.segments.purge(segment.ref.id)\n",
            "        self._store.segments.purge(segment.ref.id)\n"
            "        remove_logs(self._log, [segment], self._others(topology, segment))\n",
        ),
    ),
    mutation(
        "the metadata of a living segment can be purged",
        "INV-5",
        f"{RETENTION}::test_a_segment_that_was_not_retired_is_not_purged",
        Edit(f"{LUA}/seg_purge.lua", "if not retired then", "if false then"),
    ),
    mutation(
        "a deletion that was half done stays so",
        "INV-6",
        f"{RETENTION}::test_a_deletion_that_died_at_any_step_is_finished_by_the_next_sweep",
        Edit(
            f"{SEGMENTS}/retention.py",
            "            self._finish(topology, begun, report)\n",
            "",
        ),
    ),
    mutation(
        "dropped writers stay for ever where data was trimmed",
        "INV-5",
        f"{RETENTION}::test_dropped_writers_go_with_their_entries_and_zombies_stay_invisible",
        Edit(f"{SEGMENTS}/retention.py", "                settle(ref.id)\n", ""),
    ),
    mutation(
        "subscriptions that expire by the brokers' setting are taken for lasting",
        "INV-11",
        f"{EXPIRY}::test_a_topic_is_refused_where_the_brokers_expire_subscriptions",
        Edit(
            f"{PULSAR}/subscription_expiry.py",
            '            settings = self._ask("/brokers/configuration/runtime")\n',
            "            settings = b'{\"subscriptionExpirationTimeMinutes\": 0}'\n",
        ),
    ),
    mutation(
        "a setting below 0, by which subscriptions never expire, counts as an expiry",
        "",
        f"{EXPIRY}::test_the_brokers_setting_counts_where_the_namespace_has_none",
        Edit(
            f"{PULSAR}/subscription_expiry.py",
            "Expiry(namespace, max(0, int(minutes)), source)",
            "Expiry(namespace, int(minutes), source)",
        ),
    ),
    mutation(
        "brokers that do not state when subscriptions expire count as such that never do",
        "INV-11",
        f"{EXPIRY}::test_brokers_that_do_not_state_the_setting_are_warned_of_once",
        Edit(
            f"{PULSAR}/subscription_expiry.py",
            "json.loads(settings).get(BROKERS_SETTING)",
            "json.loads(settings).get(BROKERS_SETTING, 0)",
        ),
    ),
    mutation(
        "retention goes off where subscriptions expire",
        "INV-11",
        f"{EXPIRY}::test_retention_is_on_where_subscriptions_expire",
        Edit(
            f"{PULSAR}/admin_api.py",
            "        if expiry.minutes:\n            self.retain_all(topic)\n",
            "        if False:\n            self.retain_all(topic)\n",
        ),
    ),
    mutation(
        "retention goes off before the subscription has moved",
        "INV-11",
        f"{TRIM}::test_a_trim_whose_subscription_is_gone_lets_nothing_go",
        Edit(
            f"{PULSAR}/log.py",
            "        # Trim step 2; a trim that somebody has begun is finished as it was begun.\n",
            "        self._admin.retain_nothing(topic)\n",
        ),
    ),
    mutation(
        "the broker deletes what a subscription kept that is gone or going to expire",
        "INV-11",
        f"{TRIM}::test_a_trimmed_segment_whose_subscription_is_going_to_expire_is_kept_by_the_broker",
        Edit(f"{PULSAR}/log.py", "        self._admin.retain_all(topic)\n", ""),
    ),
    mutation(
        "a sweep does not look for the subscription of what it may not trim",
        "INV-11",
        f"{RETENTION}"
        "::test_a_topic_that_its_log_might_drop_is_not_trimmed_and_keeps_no_other_from_it, "
        "test_a_log_is_protected_in_each_sweep_although_nothing_may_be_trimmed",
        Edit(
            f"{SEGMENTS}/retention.py",
            "        self._log.protect_each([segment.ref for segment in topology.readable])\n",
            "",
        ),
    ),
    mutation(
        "a sink starts although the subscription of its control topic would expire",
        "INV-11",
        f"{NATIVE_SINK}"
        "::test_a_control_topic_whose_subscription_would_expire_is_refused_at_each_start",
        Edit(
            f"{PULSAR}/control_topic.py",
            "        else:\n            self._admin.require_no_expiry(self.name)\n",
            "",
        ),
    ),
    mutation(
        "a trim counts before the broker has removed the ledgers",
        "INV-5",
        f"{TRIM}::test_a_trim_counts_once_the_broker_has_removed_the_ledgers",
        Edit(
            f"{PULSAR}/known_topics.py",
            "if trim.ledger == first_ledger:",
            "if trim.ledger >= first_ledger:",
        ),
    ),
    mutation(
        "a trim is begun before the last one is done",
        "INV-11",
        f"{TRIM}::test_a_trim_that_was_begun_is_finished_before_another_one_begins",
        Edit(
            f"{PULSAR}/log.py",
            "        begun = origin.unfinished(managed_ledger.first_ledger)\n",
            "        begun = None\n",
        ),
    ),
    mutation(
        "a trim that wakes late overwrites what a later one has noted",
        "INV-11",
        f"{TRIM}::test_a_trim_that_wakes_behind_two_later_ones_takes_nothing_back",
        Edit(
            f"{PULSAR}/log.py",
            'mark = {f"{_trims_of(segment)}{next_ledger}": f"',
            'mark = {TRIM_PROPERTY: f"',
        ),
    ),
    mutation(
        "of two trims that were begun the shorter one is finished",
        "INV-11",
        f"{TRIM}::test_of_two_trims_that_were_begun_the_longer_one_is_finished",
        Edit(
            f"{PULSAR}/known_topics.py",
            "longest = max(self.trims, key=",
            "longest = min(self.trims, key=",
        ),
    ),
    mutation(
        "a trim forgets up to where the one before it has gone",
        "INV-11",
        f"{TRIM}::test_whoever_comes_next_finishes_a_trim_that_died_behind_another_one",
        Edit(
            f"{PULSAR}/known_topics.py",
            "if trim.ledger < first_ledger]",
            "if trim.ledger <= first_ledger]",
        ),
    ),
    mutation(
        "a trim that was meant for a topic's former segment is finished in its next one",
        "INV-12",
        f"{TRIM}::test_what_a_trim_has_noted_too_late_means_nothing_to_the_topic_s_next_segment",
        Edit(
            f"{PULSAR}/log.py",
            "if name == TRIM_PROPERTY or name.startswith(prefix)",
            "if name.startswith(TRIM_PROPERTY)",
        ),
    ),
    mutation(
        "a segment is judged by what the one before it in the same topic has given up",
        "INV-11",
        f"{TRIM}::test_what_one_segment_of_a_topic_has_given_up_means_nothing_to_the_next_one",
        Edit(
            f"{PULSAR}/log.py",
            "        known = self._known.get(segment)\n        origin = ",
            "        known = next(iter(self._known.values()), None)\n        origin = ",
        ),
    ),
    mutation(
        "the last ledger that holds data is trimmed",
        "INV-11",
        f"{TRIM}::test_a_trim_counts_once_the_broker_has_removed_the_ledgers",
        Edit(
            f"{PULSAR}/log.py",
            "for ledger in managed_ledger.ledgers[:-1] if",
            "for ledger in managed_ledger.ledgers if",
        ),
    ),
    mutation(
        "scaling has no pause after a change",
        "PIP-483",
        f"{SCALING}::test_the_policy_decides_by_table",
        Edit(f"{SEGMENTS}/scaling.py", "seen.changed_ms + policy.split_pause_ms", "0"),
    ),
    mutation(
        "scaling grows beyond its bound",
        "PIP-483",
        f"{SCALING}::test_the_policy_decides_by_table, "
        "test_a_load_that_stays_the_same_settles_and_never_swings",
        Edit(
            f"{SEGMENTS}/scaling.py",
            "if wanted and len(active) >= policy.max_segments:",
            "if False:",
        ),
    ),
    mutation(
        "a policy may merge what it has just split",
        "PIP-483",
        f"{SCALING}::test_a_policy_that_would_swing_or_run_away_is_refused",
        Edit(f"{SEGMENTS}/scaling.py", '"merge_below": (0, 0.5)', '"merge_below": (0, 1)'),
    ),
    mutation(
        "a hot segment of one key keeps the others of its topic from being scaled",
        "PIP-483",
        f"{SCALING}::test_a_segment_with_a_single_key_stops_no_other_from_being_split_or_merged",
        Edit(
            f"{SEGMENTS}/scaler.py",
            "            one_hash.add(name)\n",
            "            one_hash.update(segment.name for segment in active)\n",
        ),
    ),
    mutation(
        "a segment of one key is taken for one that a split would relieve",
        "PIP-483",
        f"{SCALING}::test_a_segment_whose_keys_all_have_one_hash_keeps_no_other_from_being_changed",
        Edit(
            f"{SEGMENTS}/scaling.py",
            "    wanted = [(name, why) for name, why in wanted if name not in one_hash]\n",
            "",
        ),
    ),
    mutation(
        "at the maximum a hot segment keeps cold neighbours from making room for its split",
        "PIP-483",
        f"{SCALING}::test_the_policy_decides_by_table, "
        "test_merges_at_the_maximum_and_beside_a_hot_key_settle_as_well",
        Edit(
            f"{SEGMENTS}/scaling.py",
            "        wanted = []  # until a merge makes room\n",
            "        return Decision((), left[-1])\n",
        ),
    ),
    mutation(
        "in the pause before a split something is merged, which begins the pause anew",
        "PIP-483",
        f"{SCALING}::test_what_is_hot_waits_out_the_pause_before_anything_is_merged",
        Edit(
            f"{SEGMENTS}/scaling.py",
            "    if left_ms > 0 and len(active) >= policy.min_segments:\n",
            "    if left_ms > 0 and len(active) >= policy.min_segments:\n        return None\n"
            "    if False:\n",
        ),
    ),
    # --- metrics: they may lack something, and never tell what was not, nor get in the way --------
    mutation(
        "a count fails the decision that it goes along with",
        "INV-1",
        f"{METRICS}::test_a_malformed_count_does_not_harm_the_decision_that_it_goes_along_with",
        Edit(
            f"{LUA}/txn_end.lua",
            "redis.pcall('HINCRBY', KEYS[#KEYS], ARGV[i], ARGV[i + 1])",
            "redis.call('HINCRBY', KEYS[#KEYS], ARGV[i], ARGV[i + 1])",
        ),
    ),
    mutation(
        "counts are lost with a refused decision",
        "metrics",
        f"{METRICS}::test_what_a_refused_decision_would_have_delivered_is_kept_for_the_next",
        Edit(
            f"{REDIS}/transactions.py",
            "    counters.add(drained)\n",
            "",
        ),
    ),
    mutation(
        "a delivery of counts is repeated",
        "metrics",
        f"{METRICS}::test_a_delivery_without_a_reply_counts_at_most_once",
        Edit(
            f"{REDIS}/store.py",
            "            reply = self.scripts.ask_once(call)\n"
            "        except (*NO_REPLY, StoreUnavailableError):",
            "            reply = self.scripts._ask(call)\n"
            "        except (*NO_REPLY, StoreUnavailableError):",
        ),
    ),
    mutation(
        "gathered operation records that were written twice are counted twice",
        "metrics",
        f"{METRICS}::test_op_records_that_were_gathered_are_counted_like_any_other",
        Edit(
            f"{LUA}/txn_op_batch.lua",
            "if redis.call('HSET', KEYS[2], 'txn:' .. ARGV[i], ARGV[i + 3]) == 1 then",
            "redis.call('HSET', KEYS[2], 'txn:' .. ARGV[i], ARGV[i + 3])\n  if true then",
        ),
    ),
    mutation(
        "operation records that were written twice are counted twice",
        "metrics",
        f"{METRICS}::test_op_records_are_counted_once_and_are_outstanding_until_they_are_collected",
        Edit(
            f"{LUA}/txn_op.lua",
            "  added = added + redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])\n",
            "  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])\n  added = added + 1\n",
        ),
    ),
    # --- the wire transport -------------------------------------------------------------------
    mutation(
        "rows in a ledger of which nobody knows whose it is are reported",
        "",
        f"{KNOWN_TOPICS}::test_rows_in_a_topic_that_took_the_name_are_never_reported",
        Edit(
            "pulsar_txn_spark/backends/pulsar/log.py",
            "if seen is not None and last.ledger in seen.ledgers:",
            "if seen is not None:",
        ),
    ),
    mutation(
        "what was read of a topic before an append proves that the topic is still the segment's",
        "INV-11",
        f"{KNOWN_TOPICS}"
        "::test_no_log_that_has_written_before_reports_rows_in_a_topic_that_took_the_name",
        Edit(
            "pulsar_txn_spark/backends/pulsar/log.py",
            "                return\n        known = self._read_properties(segment)\n",
            "                return\n        known = self._check_exists(segment)\n",
        ),
    ),
    mutation(
        "a topic that took a segment's name passes for the segment in the next task",
        "",
        f"{KNOWN_TOPICS}::test_rows_in_a_topic_that_took_the_name_are_never_reported",
        Edit(
            "pulsar_txn_spark/backends/pulsar/log.py",
            "            self._forget(segment)\n            what = ",
            "            what = ",
        ),
    ),
    mutation(
        "what was read of a topic on an earlier connection serves other tasks",
        "",
        f"{KNOWN_TOPICS}::test_what_was_read_on_an_earlier_connection_serves_nobody_else",
        Edit(
            "pulsar_txn_spark/backends/pulsar/known_topics.py",
            "if topic.read_at >= self._since:",
            "if True:",
        ),
    ),
    mutation(
        "a reader that waits goes on wherever the next range begins",
        "",
        f"{IDLE_FEEDS}::test_a_reader_that_waits_elsewhere_is_closed",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "or not 0 <= skipped <= _MOST_SKIPPED:",
            "and False:",
        ),
    ),
    mutation(
        "a reader that waits goes on in another ledger",
        "",
        f"{IDLE_FEEDS}::test_a_reader_of_another_ledger_is_not_used",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "if start.ledger != self._behind.ledger or not",
            "if not",
        ),
    ),
    mutation(
        "chunks of a message that was never whole join another message of the same id",
        "INV-11",
        "tests/backends/pulsar/wire/test_chunks.py"
        "::test_chunks_of_a_message_that_was_never_whole_join_no_other_message",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "                if its.chunk_id == 0:  # sent again",
            "                if False:  # sent again",
        ),
    ),
    mutation(
        "a message in chunks that pulsar-client has dropped is passed over",
        "INV-11",
        f"{NATIVE}::test_a_message_that_pulsar_client_dropped_is_not_passed_over",
        Edit(f"{PULSAR}/log.py", "        elif self.awaits(header):\n", "        elif False:\n"),
    ),
    mutation(
        "a message that pulsar-client cannot decrypt is passed over",
        "INV-11",
        f"{NATIVE}::test_a_message_that_pulsar_client_cannot_decrypt_is_not_passed_over",
        Edit(f"{PULSAR}/log.py", "            self._check_shown(at, header)\n", ""),
    ),
    mutation(
        "a last chunk that came again fails the read of its topic",
        "",
        f"{LIBRARY_READER}::test_a_last_chunk_that_came_again_is_no_reason_to_wait",
        Edit(f"{PULSAR}/log.py", "                seen.note(entry)\n", ""),
    ),
    mutation(
        "a key that is no text stops its source",
        "",
        "tests/backends/pulsar/wire/test_foreign_bytes.py::test_a_key_of_any_bytes_is_read",
        Edit(f"{WIRE_CODE}/batch.py", "    if isinstance(field, bytes):\n", "    if False:\n"),
    ),
    mutation(
        "a last chunk that was sent again lets the whole topic be read again",
        "",
        "tests/backends/pulsar/wire/test_chunks.py"
        "::test_a_last_chunk_that_was_sent_again_costs_no_look_at_the_whole_topic",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "            if chunks.parts or start == EARLIEST:\n",
            "            if len(chunks.parts) == wanted or start == EARLIEST:\n",
        ),
    ),
    mutation(
        "a broker that lacks what is due sends a reader its whole topic",
        "",
        f"{WIRE}::test_a_reader_that_begins_behind_the_last_entry_is_sent_only_what_comes_later",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "_FROM_THE_BEGINNING if start == EARLIEST else _FROM_THE_END",
            "_FROM_THE_END if start == BEHIND_ALL else _FROM_THE_BEGINNING",
        ),
    ),
    mutation(
        "a reader waits with the permits of a damaged entry",
        "",
        f"{IDLE_FEEDS}::test_a_reader_of_a_damaged_entry_does_not_wait",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "without_permits = self._granted <= 0",
            "without_permits = True",
        ),
    ),
    mutation(
        "a reader may create the topic that it reads",
        "",
        f"{KNOWN_TOPICS}::test_a_range_without_a_hole_is_read_without_a_request",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "force_topic_creation=False",
            "force_topic_creation=True",
        ),
    ),
    mutation(
        "frames are gathered for the socket while others are queued",
        "",
        f"{WIRE}::test_a_frame_that_is_queued_while_others_are_sent_costs_no_connection",
        Edit(
            f"{WIRE_CODE}/connection.py",
            "with self._lock:  # others may append to it meanwhile",
            "with contextlib.nullcontext():",
        ),
    ),
    mutation(
        "a writer sends again under its name where nothing is proven",
        "INV-11",
        f"{WIRE}::test_an_entry_that_was_stored_without_a_receipt_fails_the_attempt, "
        "test_a_broker_that_does_not_deduplicate_gets_nothing_again",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "        if (needs_proof and not proven) or is_gated or stored > acknowledged:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "silence of the broker's memory counts as proof that nothing was stored",
        "INV-11",
        f"{WIRE}::test_a_broker_that_does_not_deduplicate_gets_nothing_again",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "stored == acknowledged and stored >= 0",
            "stored == acknowledged",
        ),
    ),
    mutation(
        "a topic counts as sealed although the cluster has not stored it",
        "INV-10",
        f"{TERMINATE}::test_one_that_is_sealed_in_the_memory_of_a_broker_alone_is_sealed_again, "
        "test_one_whose_end_is_never_stored_is_not_sealed",
        Edit(
            "pulsar_txn_spark/backends/pulsar/admin_api.py",
            "        if end is None:\n            return None\n",
            "        if end is None:\n            return Position(99, 0), Position(3, 1)\n",
        ),
    ),
    mutation(
        "entries that a broker has acknowledged behind a segment's end are forgotten",
        "INV-10",
        f"{TERMINATE}::test_entries_that_were_acknowledged_behind_the_end_are_an_error",
        Edit(
            "pulsar_txn_spark/backends/pulsar/admin_api.py",
            "        if behind:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a segment ends where a broker says that has lost it",
        "INV-10",
        f"{TERMINATE}::test_a_topic_ends_where_the_metadata_say_and_not_where_a_broker_does",
        Edit(
            "pulsar_txn_spark/backends/pulsar/admin_api.py",
            "        return last\n",
            "        return self.managed_ledger(topic).last\n",
        ),
    ),
    mutation(
        "a task fails once it has lost a producer in each of many segments",
        "",
        "tests/segments/test_changes.py::"
        "test_a_task_goes_on_however_many_segments_have_lost_their_producers",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "losses = self._losses.get(segment.id, 0) + 1",
            "losses = sum(self._losses.values()) + 1",
        ),
    ),
    mutation(
        "a writer whose rows all have receipts needs its producer all the same",
        "",
        f"{WIRE}::test_a_lost_producer_is_not_opened_again_where_every_row_has_a_receipt",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "needed = sends or self._native or not self._ledger.is_settled()",
            "needed = True",
        ),
    ),
    mutation(
        "an entry is sent through a producer that serves another writer by now",
        "INV-11",
        "tests/backends/pulsar/test_receipt_ledger.py::"
        "test_nothing_is_sent_behind_the_back_of_whoever_closes_the_writer",
        Edit(
            "pulsar_txn_spark/backends/pulsar/receipt_ledger.py",
            "            if self._closed:  # its",
            "            if False:  # its",
        ),
    ),
    mutation(
        "who waits for a connection waits for ever where its opening is interrupted at the end",
        "transport",
        f"{WIRE_CLIENT}::test_who_waits_for_a_connection_is_not_interrupted_with_the_one_who_opens_it",
        Edit(
            f"{WIRE_CODE}/client.py",
            "            if mine is not None and not mine.done():\n",
            "            if mine is not None and isinstance(failed, RefusedError):\n",
        ),
    ),
    mutation(
        "a query that catches up waits for the lease of its own start that died",
        "INV-8",
        "tests/txn/test_batch.py::"
        "test_a_query_that_catches_up_does_not_wait_for_its_own_start_that_died",
        Edit(
            f"{TXN}/pending_ack.py",
            "if not completed and not (catches_up and self._end_earlier(holders, ack.query)):",
            "if not completed:",
        ),
    ),
    mutation(
        "a query that catches up ends a transaction of its sink, or of another query",
        "INV-8",
        "tests/txn/test_batch.py::test_a_query_that_catches_up_ends_nobody_elses_transaction",
        Edit(
            f"{TXN}/pending_ack.py",
            "header is not None and header.query == query and not header.sink:",
            "header is not None:",
        ),
    ),
    mutation(
        "a source moves and releases cursors of another query",
        "INV-9",
        f"{CLAIMS}::test_a_commit_moves_and_releases_no_cursor_of_another_query",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "if cursor is not None and claimed_by(cursor, self._source_epoch)",
            "if cursor is not None and cursor.query",
        ),
    ),
    mutation(
        "a cursor that is nobody's passes for that of a start",
        "INV-9",
        f"{PROGRESS}::test_a_claim_is_of_one_start_of_one_query",
        Edit(f"{TXN}/read_progress.py", "bool(cursor.query) and ", ""),
    ),
    mutation(
        "a task leaves a cursor where an earlier start of its query has left it",
        "INV-9",
        f"{CLAIMS}::test_a_restart_goes_on_behind_a_batch_that_acknowledged_nothing",
        Edit(f"{SOURCE_CODE}/task.py", "if _is_any_behind(answered, answers):", "if False:"),
    ),
    mutation(
        "a task moves only the cursors of the segments that it reads",
        "INV-9",
        f"{CLAIMS}::test_a_restart_catches_up_also_where_no_task_reads",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "progress.catch_up_with_plan(plan, query, int(batch), everywhere)",
            "progress.catch_up_with_plan(plan, query, int(batch), own)",
        ),
    ),
    mutation(
        "a task registers its plan before the cursors are where that begins",
        "INV-9",
        f"{CLAIMS}::test_what_a_start_left_open_as_it_caught_up_is_in_nobody_s_way",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "    if _is_any_behind(answered, answers):",
            "    store.queries.register_plan(query, batch, plan.source, record)\n"
            "    if _is_any_behind(answered, answers):",
        ),
    ),
    mutation(
        "a task covers up a batch that its sink has not recorded",
        "INV-11",
        f"{PROGRESS}::test_a_task_moves_no_cursor_over_a_batch_that_the_sink_has_not_recorded",
        Edit(f"{TXN}/read_progress.py", "int(batch) < before - 1", "int(batch) < 0"),
    ),
    mutation(
        "a task moves a cursor that its query has just taken over elsewhere",
        "INV-9",
        f"{PROGRESS}::test_a_task_moves_no_cursor_that_its_query_has_just_come_by",
        Edit(
            f"{TXN}/read_progress.py",
            "return bool(cursor.txn) or cursor.begun is None or cursor.begun < start",
            "return True",
        ),
    ),
    mutation(
        "a claim does not note where the query goes on that takes a cursor over",
        "INV-9",
        "tests/spark/source/test_starting_offsets.py::"
        "test_a_query_whose_first_rows_nobody_needed_says_how_its_successor_gets_them",
        Edit(f"{LUA}/cursor_claim.lua", ", 'begun', ARGV[6])", ")"),
    ),
    mutation(
        "a start that makes a single batch releases no sealed segment",
        "INV-13",
        f"{CLAIMS}::test_a_start_of_a_single_batch_keeps_no_sealed_segment_that_its_query_has_read",
        Edit(f"{LUA}/cursor_claim.lua", "if ARGV[8] == '1' and cursor[6] and", "if false and"),
    ),
    mutation(
        "a claim releases what its cursor has not passed",
        "INV-13",
        f"{CLAIMS}::test_a_claim_releases_nothing_that_its_cursor_has_not_passed",
        Edit(f"{LUA}/cursor_claim.lua", " and ARGV[6] <= cursor[3] then", " then"),
    ),
    mutation(
        "tasks of one batch abort each other as they catch up",
        "INV-8",
        f"{PROGRESS}::test_tasks_that_catch_up_at_the_same_moment_do_it_together",
        Edit(f"{TXN}/read_progress.py", 'name = f"{plan.source}-{batch}"', 'name = ""'),
    ),
    mutation(
        "a task fails with another one that caught up with it",
        "INV-8",
        f"{PROGRESS}::test_a_task_goes_on_where_another_one_s_failure_has_aborted_both",
        Edit(
            f"{TXN}/read_progress.py",
            "                if not isinstance(error, TransactionAbortedError):\n"
            "                    raise\n",
            "                raise\n",
        ),
    ),
    mutation(
        "a catch-up that was committed fails, as its caller did not hear of it",
        "INV-1",
        f"{PROGRESS}::test_who_does_not_hear_that_it_has_caught_up_finds_out,"
        "test_tasks_that_catch_up_at_the_same_moment_do_it_together",
        Edit(
            f"{TXN}/read_progress.py",
            "if end is TxnState.COMMITTED and isinstance(error, _DECIDED_ELSEWHERE):",
            "if False:",
        ),
    ),
    mutation(
        "a catch-up that failed stays open until its lease is over",
        "INV-8",
        f"{PROGRESS}::test_what_fails_to_catch_up_leaves_nothing_open",
        Edit(f"{TXN}/read_progress.py", "end = self._end(txn, nonce)", "end = None"),
    ),
    mutation(
        "a task of a sink writes by another store than the driver's",
        "INV-11",
        "tests/spark/sink/test_task.py::test_an_executor_that_reaches_another_store_writes_nothing",
        Edit(
            "pulsar_txn_spark/spark/sink/task.py",
            "    components.require_store(job.store_uuid)\n",
            "",
        ),
    ),
    mutation(
        "the plan of a batch that is run again is removed as the oldest one",
        "INV-9",
        "tests/txn/test_plans.py::test_a_batch_that_is_run_again_long_after_has_its_plan",
        Edit(
            "pulsar_txn_spark/store/redis/lua/plan_register.lua",
            "if old[i] ~= ARGV[6] then",
            "if true then",
        ),
    ),
    mutation(
        "a source that has found no segment never looks again",
        "",
        f"{IDLE}::test_a_source_that_has_found_no_topic_looks_again_once_in_a_while, "
        "test_the_end_of_an_adoption_is_found_although_there_was_no_segment_before",
        Edit(
            "pulsar_txn_spark/spark/source/idle.py",
            "not watcher.poll() and not watcher.topics_were_due",
            "not watcher.poll()",
        ),
    ),
    mutation(
        "a shared producer's last sequence id proves what is stored under other names",
        "INV-11",
        f"{PRODUCERS}::test_the_next_broker_proves_nothing_of_entries_under_another_name",
        Edit(f"{WIRE_CODE}/producer.py", "proven = not self._shared and stored", "proven = stored"),
    ),
    mutation(
        "a writer with transaction bits goes on at a broker that was not asked whether it gates",
        "INV-2",
        f"{WIRE}::test_a_writer_with_transaction_bits_does_not_go_on_at_another_broker",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "        is_gated = self._bits is not None and not self._native\n",
            "        is_gated = False\n",
        ),
    ),
    mutation(
        "a reader stays with a broker that has lost the topic and shows nothing",
        "",
        "tests/backends/pulsar/library/test_reader.py::"
        "test_a_broker_that_shows_nothing_for_a_while_may_not_have_the_topic_any_more",
        Edit(
            "pulsar_txn_spark/backends/pulsar/log.py",
            "            if now > looked_up_at + _LOOK_UP_SECONDS:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a producer is used again while entries have no receipts",
        "INV-11",
        f"{PRODUCERS}::test_a_producer_is_not_used_again_while_an_entry_has_no_receipt",
        Edit(
            "pulsar_txn_spark/backends/pulsar/receipt_ledger.py",
            "self._explain is None and not self._unacknowledged",
            "self._explain is None",
        ),
    ),
    mutation(
        "a producer is used again although its writer has failed",
        "INV-11",
        f"{PRODUCERS}::test_a_producer_is_not_used_again_after_a_failure",
        Edit(
            "pulsar_txn_spark/backends/pulsar/receipt_ledger.py",
            "self._explain is None and not self._unacknowledged",
            "not self._unacknowledged",
        ),
    ),
    mutation(
        "the sequence ids of a producer begin anew with each writer",
        "INV-11",
        f"{PRODUCERS}::test_writers_use_a_producer_one_after_the_other_with_ascending_sequence_ids",
        Edit(
            f"{WIRE_CODE}/opened_producer.py",
            "self._writer, self.last_number = None, last_number",
            "self._writer = None",
        ),
    ),
    mutation(
        "a producer that was lost while it waited is used again",
        "",
        f"{PRODUCERS}::test_a_producer_that_was_lost_while_it_waited_is_not_used_again",
        Edit(
            f"{WIRE_CODE}/opened_producer.py",
            "return self.lost is None and self._connection is not None and self._connection.usable",
            "return True",
        ),
    ),
    mutation(
        "a producer is left open by who is interrupted while it opens it",
        "",
        f"{PRODUCERS}::test_who_is_interrupted_while_it_opens_leaves_nothing_open",
        Edit(
            f"{WIRE_CODE}/opened_producer.py",
            "except BaseException:  # an interrupt, too",
            "except RefusedError:  # an interrupt, too",
        ),
    ),
    mutation(
        "a reader is left open by who is interrupted while it opens it",
        "",
        f"{PRODUCERS}::test_who_is_interrupted_while_it_opens_leaves_nothing_open",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "except BaseException:  # an interrupt, too",
            "except RefusedError:  # an interrupt, too",
        ),
    ),
    mutation(
        "a writer that cannot say what counts stays open",
        "",
        "tests/engine/test_topic_writers.py::"
        "test_a_writer_that_cannot_say_what_counts_is_closed_as_well",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "            self.close()  # nobody else knows it any more\n",
            "            pass\n        self.close()\n",
        ),
    ),
    mutation(
        "producers wait without a bound",
        "",
        "tests/backends/pulsar/wire/test_idle_producers.py::"
        "test_the_oldest_are_closed_where_too_many_wait, "
        "test_those_that_have_waited_long_are_closed_when_another_one_begins_to_wait",
        Edit(
            f"{WIRE_CODE}/idle_pool.py",
            "while len(self._since) > MOST or now - next(iter(self._since.values())) > LONGEST_S:",
            "while False:",
        ),
    ),
    mutation(
        "readers that were opened ahead and never read stay open",
        "",
        "tests/backends/pulsar/test_feeds_ahead.py::"
        "test_who_leaves_early_closes_what_nobody_has_asked_for_and_opens_nothing_more",
        Edit(
            "pulsar_txn_spark/backends/pulsar/feeds_ahead.py",
            "opened.result().close()",
            "opened.result()",
        ),
    ),
    mutation(
        "readers of ranges of which nothing is read stay open to the end of a task",
        "",
        "tests/backends/pulsar/test_feeds_ahead.py::"
        "test_the_feed_of_a_range_of_which_nothing_is_read_is_closed_with_the_next_range",
        Edit(
            "pulsar_txn_spark/backends/pulsar/feeds_ahead.py",
            "for passed in [n for n in self._opened if n < number]:",
            "for passed in list[int]():",
        ),
    ),
    mutation(
        "readers of short ranges fetch as much as those of long ones",
        "",
        f"{WIRE}::test_a_feed_of_a_short_range_fetches_one_entry_until_it_is_read",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "        if self._is_short:\n            # A broker",
            "        if False:\n            # A broker",
        ),
    ),
    mutation(
        "a topic that is fenced is not asked whether it was sealed",
        "INV-10",
        f"{WIRE}::test_a_topic_that_is_fenced_is_opened_again_to_hear_whether_it_was_sealed",
        Edit(f"{WIRE_CODE}/producer.py", "elif why.result in RETRIED:", "elif False:"),
    ),
    mutation(
        "a producer is opened again before the broker has said all of the one before",
        "INV-11",
        f"{WIRE}::test_what_a_broker_still_says_of_the_old_producer_is_not_taken_for_the_new_ones",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "        self._producer.close(min(_CLOSE_SECONDS, self._settings.timeout_s))\n",
            "        self._producer.leave()\n",
        ),
    ),
    mutation(
        "a silent address of a name takes the time of the one that answers",
        "transport",
        f"{WIRE_CONNECTION}::test_the_addresses_of_a_name_share_the_time_to_connect",
        Edit(
            f"{WIRE_CODE}/connection.py",
            "opened.settimeout(left / (len(resolved) - passed))",
            "opened.settimeout(left)",
        ),
    ),
    mutation(
        "the time to greet begins before an address has answered",
        "transport",
        f"{WIRE_CONNECTION}::test_a_broker_behind_a_silent_address_has_the_whole_time_to_greet",
        Edit(
            f"{WIRE_CODE}/connection.py",
            "            opened = self._dial()\n",
            "            began = time.monotonic()\n            opened = self._dial()\n",
        ),
        Edit(
            f"{WIRE_CODE}/connection.py",
            "self._greet(opened, behind_proxy)\n",
            "self._greet(opened, behind_proxy, began)\n",
        ),
        Edit(
            f"{WIRE_CODE}/connection.py",
            "    def _greet(self, opened: socket.socket, behind_proxy: str | None) -> None:\n",
            "    def _greet(self, opened, behind_proxy, began) -> None:\n",
        ),
        Edit(
            f"{WIRE_CODE}/connection.py",
            "        deadline = time.monotonic() + self._settings.connect_s\n        method,",
            "        deadline = began + self._settings.connect_s\n        method,",
        ),
    ),
    mutation(
        "a connection is opened under the lock of all connections",
        "transport",
        f"{WIRE_CLIENT}::test_a_connection_is_had_while_another_broker_does_not_answer",
        Edit(
            f"{WIRE_CODE}/client.py",
            "            return self._note_opened(key, mine, Connection(",
            "            with self._lock:\n"
            "                Connection(self.settings, address, behind_proxy)\n"
            "            return self._note_opened(key, mine, Connection(",
        ),
    ),
    mutation(
        "each thread opens a connection to a broker for itself",
        "transport",
        f"{WIRE_CLIENT}::test_all_who_ask_for_a_broker_at_a_time_wait_for_one_connection",
        Edit(
            f"{WIRE_CODE}/client.py",
            "            opening = self._openings.get(key)\n",
            "            opening = None\n",
        ),
    ),
    mutation(
        "all who wait for a connection are interrupted with the thread that opens it",
        "transport",
        f"{WIRE_CLIENT}::"
        "test_who_waits_for_a_connection_is_not_interrupted_with_the_one_who_opens_it",
        Edit(f"{WIRE_CODE}/client.py", "known = isinstance(failed, Exception)", "known = True"),
    ),
    mutation(
        "a lookup leaves open connections to later addresses aside",
        "transport",
        f"{WIRE_CLIENT}::test_an_open_connection_to_any_address_of_the_service_url_will_do",
        Edit(
            f"{WIRE_CODE}/client.py",
            "                connection = self._connections.get(where)\n",
            "                connection = None\n",
        ),
    ),
    mutation(
        "a lookup begins with an address that failed",
        "transport",
        f"{WIRE_CLIENT}::test_an_address_that_failed_last_is_tried_last",
        Edit(
            f"{WIRE_CODE}/client.py",
            "in_turn = sorted(self._failed_at, key=self._failed_at.__getitem__)",
            "in_turn = list(self._failed_at)",
        ),
    ),
    mutation(
        "a connection that is opened while its client is closed stays open",
        "transport",
        f"{WIRE_CLIENT}::test_a_connection_that_was_opened_behind_the_end_of_its_client_is_closed",
        Edit(f"{WIRE_CODE}/client.py", "            self._openings.clear()", "            pass"),
    ),
    mutation(
        "a lookup that is passed round is not tried again",
        "transport",
        f"{WIRE}::test_a_lookup_that_is_passed_round_is_tried_again_until_brokers_agree",
        Edit(
            f"{WIRE_CODE}/client.py",
            'raise RefusedError("ServiceUnitNotReady", f"{_REDIRECTS} brokers',
            'raise RefusedError("LookupError", f"{_REDIRECTS} brokers',
        ),
    ),
    mutation(
        "a call of the admin API ends where a redirect led to nobody",
        "transport",
        f"{REDIRECTS}::test_a_call_begins_again_where_a_redirect_leads_to_a_broker_that_is_gone",
        Edit(
            f"{PULSAR}/redirects.py",
            "            if is_last():\n                raise\n",
            "            raise\n",
        ),
    ),
    mutation(
        "a broker that a redirect named and that is gone counts as nobody behind admin.url",
        "transport",
        f"{REDIRECTS}::test_a_call_begins_again_where_a_redirect_leads_to_a_broker_that_is_gone",
        Edit(
            f"{PULSAR}/redirects.py",
            "        elif was_redirected(self) and isinstance(",
            "        elif False and isinstance(",
        ),
    ),
    mutation(
        "a broker that a redirect named and that is not ready has the last word",
        "transport",
        f"{REDIRECTS}::"
        "test_a_call_begins_again_where_a_redirect_leads_to_a_broker_that_is_not_ready",
        Edit(f"{PULSAR}/admin_api.py", " and not was_redirected(answer.retries)", ""),
    ),
    mutation(
        "redirects to a broker that is gone are followed for longer than was asked",
        "transport",
        f"{REDIRECTS}::"
        "test_redirects_to_a_broker_that_is_gone_are_followed_for_a_bounded_time_and_it_is_named",
        Edit(
            f"{PULSAR}/redirects.py",
            "time.monotonic() + pause_s > deadline",
            "time.monotonic() > deadline + 60",
        ),
    ),
    mutation(
        "a status that the caller accepts is waited out",
        "transport",
        f"{REDIRECTS}::test_a_status_that_says_something_to_the_caller_is_waited_for_a_short_time",
        Edit(
            f"{PULSAR}/admin_api.py",
            " if said_by_asked or answer.status in accept else",
            " if said_by_asked else",
        ),
    ),
    mutation(
        "a broker that is not ready is asked for as long as one that a redirect named",
        "transport",
        f"{REDIRECTS}::test_a_broker_that_says_it_is_not_ready_for_a_topic_is_asked_a_few_times",
        Edit(
            f"{PULSAR}/admin_api.py",
            " if said_by_asked or answer.status in accept else",
            " if answer.status in accept else",
        ),
    ),
    mutation(
        "a call that may be under way is begun again",
        "transport",
        f"{REDIRECTS}::test_a_call_that_may_be_under_way_is_not_begun_again_elsewhere",
        Edit(
            f"{PULSAR}/redirects.py",
            "was_redirected(self) and isinstance(error, ConnectTimeoutError):",
            "was_redirected(self):",
        ),
    ),
    mutation(
        "brokers that redirect to each other for a moment end a call",
        "transport",
        f"{REDIRECTS}::test_brokers_that_redirect_to_each_other_for_a_moment_are_asked_again, "
        "test_brokers_that_redirect_to_each_other_are_asked_for_a_bounded_time_and_named",
        Edit(f"{PULSAR}/redirects.py", "            if location:\n", "            if False:\n"),
    ),
    mutation(
        "a broker that says it has no transactions is asked several times",
        "transport",
        f"{REDIRECTS}::test_a_broker_that_says_it_has_no_transactions_is_asked_once",
        Edit(
            f"{PULSAR}/admin_api.py",
            "not in _UNREADY or _has_no_transactions(answer):",
            "not in _UNREADY:",
        ),
    ),
    mutation(
        "a proxy says how long a call of the admin API takes",
        "transport",
        f"{REDIRECTS}::test_nobody_waits_for_as_long_as_a_proxy_says",
        Edit(
            f"{PULSAR}/admin_api.py",
            "respect_retry_after_header=False,",
            "respect_retry_after_header=True,",
        ),
    ),
    mutation(
        "a broker that is started again ends a call",
        "transport",
        f"{REDIRECTS}::test_who_has_answered_before_is_waited_for_where_nobody_accepts",
        Edit(
            f"{PULSAR}/redirects.py",
            "return math.inf if was_reached else FEW_TRIES",
            "return FEW_TRIES",
        ),
    ),
    mutation(
        "a load balancer that hangs up amid the TLS handshake ends a call",
        "transport",
        f"{REDIRECTS}::"
        "test_who_has_answered_before_is_waited_for_where_a_proxy_closes_each_connection[https]",
        Edit(
            f"{PULSAR}/redirects.py",
            "any(isinstance(cause, _TLS_CLOSED) for cause in reason.args)",
            "False",
        ),
    ),
    mutation(
        "a certificate that is refused is waited out",
        "transport",
        f"{REDIRECTS}::test_a_certificate_of_another_name_is_not_waited_out[True]",
        Edit(
            f"{PULSAR}/redirects.py",
            "any(isinstance(cause, _TLS_CLOSED) for cause in reason.args)",
            "True",
        ),
    ),
    mutation(
        "an admin.url that never led to anybody is tried for as long as one that did",
        "transport",
        f"{REDIRECTS}::"
        "test_an_admin_api_that_nobody_has_ever_connected_to_is_away_for_every_topic_and_soon",
        Edit(
            f"{PULSAR}/redirects.py",
            "return math.inf if was_reached else FEW_TRIES",
            "return math.inf",
        ),
    ),
    mutation(
        "a login page passes for the success of a call",
        "transport",
        f"{REDIRECTS}::test_what_is_not_pulsars_admin_api_is_named_so",
        Edit(
            f"{PULSAR}/admin_api.py",
            "            if _is_page(answer):\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "credentials follow a redirect from https to http",
        "transport",
        f"{REDIRECTS}::test_a_redirect_from_https_to_http_gets_no_credentials",
        Edit(
            f"{PULSAR}/redirects.py",
            'if _pool.scheme == "https" and target.scheme == "http":',
            "if False:",
        ),
    ),
    mutation(
        "renewed certificates of the admin API are not read",
        "transport",
        f"{ADMIN_POOL}::test_a_renewed_certificate_is_shown_from_the_next_call_on",
        Edit(
            f"{PULSAR}/admin_pool.py",
            "            if files != self._loaded:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a certificate without its key ends the calls of the admin API",
        "transport",
        f"{ADMIN_POOL}::test_a_certificate_without_its_key_waits_for_it",
        Edit(
            f"{PULSAR}/admin_pool.py",
            "                    self._say_refused(files, error)\n",
            "                    raise error\n",
        ),
    ),
    mutation(
        "a broker that would create the topic is asked for its partitions",
        "transport",
        f"{WIRE}::test_a_broker_that_would_create_the_topic_is_not_asked_for_its_partitions",
        Edit(
            f"{WIRE_CODE}/client.py",
            "        if not broker.asks_without_creating:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "any receipt counts as one of the next entry",
        "INV-11",
        f"{WIRE}::test_a_receipt_of_a_duplicate_is_no_acknowledgement, "
        "test_a_receipt_out_of_turn_is_no_acknowledgement",
        Edit(
            RECEIPT_LEDGER_CODE,
            "            fault = self._fault(number, position, rows)\n",
            "            fault = None\n",
        ),
    ),
    mutation(
        "a receipt behind one that proves nothing counts",
        "INV-11",
        f"{RECEIPT_LEDGER}::test_a_receipt_that_proves_nothing_is_final",
        Edit(
            RECEIPT_LEDGER_CODE,
            "            if self._closed or self._explain is not None:\n",
            "            if self._closed:\n",
        ),
    ),
    mutation(
        "a writer whose rows could not be encoded goes on without them",
        "INV-11",
        f"{SEGMENT_WRITER}::"
        "test_a_writer_whose_rows_could_not_be_sent_never_reports_the_ones_behind_them",
        Edit(
            "pulsar_txn_spark/backends/pulsar/segment_writer.py",
            "            self._ledger.fail(lambda: error)\n",
            "",
        ),
    ),
    # --- the other domain -------------------------------------------------------------------------
    mutation(
        "a native topic is read up to its last entry",
        "read committed",
        f"{NATIVE}::test_a_topic_is_read_up_to_where_pulsars_own_transactions_let_readers",
        Edit(TOPIC_LOG, "        return state.max_read_position\n", "        return None\n"),
    ),
    mutation(
        "a broker without transactions speaks of all topics while others have them",
        "read committed",
        f"{NATIVE}::"
        "test_while_transactions_are_rolled_out_a_broker_without_speaks_of_no_other_topic",
        Edit(f"{PULSAR}/admin_api.py", "        self._has_transactions = True\n", ""),
    ),
    mutation(
        "a topic without transactions lets all others be read to their last entries",
        "read committed",
        f"{NATIVE}::test_a_topic_without_transactions_says_nothing_of_the_others",
        Edit(
            f"{PULSAR}/admin_api.py",
            "        if not stats:\n",
            "        if not stats:\n            self._off_at = time.monotonic()\n",
        ),
    ),
    mutation(
        "that brokers have no transactions is believed for ever",
        "read committed",
        f"{NATIVE}::test_a_broker_without_transactions_is_asked_once_a_minute_for_all_topics",
        Edit(TOPIC_LOG, "_OFF_SECONDS = 60.0", "_OFF_SECONDS = math.inf"),
    ),
    mutation(
        "a broker is believed while it recovers a topic's transactions",
        "read committed",
        f"{NATIVE}::test_a_topic_that_is_being_loaded_is_waited_for",
        Edit(
            f"{PULSAR}/admin_api.py",
            "if transactions is None or not transactions.recovering:",
            "if True:",
        ),
    ),
    mutation(
        "a segment is read past its gate under the name of its topic on Pulsar",
        "read committed",
        f"{NATIVE}::test_a_segment_is_not_read_past_its_gate",
        Edit(TOPIC_LOG, "        if owner is not None:\n", "        if False:\n"),
    ),
    mutation(
        "data that the broker deleted unread is skipped",
        "INV-11",
        f"{NATIVE}::test_data_that_the_broker_deleted_unread_is_reported",
        Edit(f"{PULSAR}/errors.py", "    if start < gone:\n", "    if False:\n"),
    ),
    mutation(
        "the end of a closed ledger is not told from a loss",
        "INV-11",
        f"{NATIVE}::test_the_end_of_a_closed_ledger_is_the_beginning_of_the_next_one",
        Edit(TOPIC_LOG, "end = managed_ledger.settled(", "end = ("),
    ),
    mutation(
        "a native range ends where a broker ends that has lost the topic",
        "INV-11",
        f"{NATIVE}::test_a_broker_that_has_lost_the_topic_makes_no_range_shorter",
        Edit(TOPIC_LOG, "if managed_ledger.reaches(end):", "if True:"),
    ),
    mutation(
        "a broker that does not know the next ledger of a native topic is believed",
        "INV-11",
        f"{NATIVE}::test_a_broker_that_has_lost_the_topic_makes_no_range_shorter",
        Edit(
            f"{PULSAR}/ledgers.py",
            "            return self.knows(position)\n",
            "            return True\n",
        ),
    ),
    mutation(
        "a native range of a sealed topic of which no ledger is left is waited for",
        "",
        f"{LEDGERS}"
        "::test_an_end_that_the_topic_had_is_reached_by_whoever_knows_what_came_or_went_since",
        Edit(
            f"{PULSAR}/ledgers.py",
            "        if position.entry < 0 or self.last_ledger < 0:\n",
            "        if position.entry < 0:\n",
        ),
    ),
    mutation(
        "a topic of another cluster is read from where ledgers have a higher id",
        "INV-12",
        f"{NATIVE}::test_a_stream_whose_topic_never_had_the_ledger_it_stands_in_stops",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            if not snapshot.knows(start):\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a batch that was planned on another cluster is read when it is repeated",
        "INV-12",
        f"{NATIVE}::test_a_batch_that_was_planned_on_another_topic_is_not_read_when_it_is_repeated",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            elif key in of_log and not of_log[key].knows(start):\n",
            "            elif False:\n",
        ),
    ),
    mutation(
        "a batch that is repeated asks no broker for the ledgers",
        "INV-12",
        f"{NATIVE}::test_a_batch_that_was_planned_on_another_topic_is_not_read_when_it_is_repeated",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "        of_log = {**snapshot.of_log, **self._native_snapshots(planned, starts)}\n",
            "        of_log = dict(snapshot.of_log)\n",
        ),
    ),
    mutation(
        "a broker that is behind is taken for another cluster's",
        "",
        f"{NATIVE}::test_a_stream_waits_for_a_broker_that_does_not_know_the_latest_ledger_yet",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            if not wanted or time.monotonic() >= deadline:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "an empty ledger that was replaced is taken for another topic's",
        "",
        f"{LEDGERS}::test_where_a_reader_of_this_topic_can_stand_is_never_taken_for_another_topic",
        Edit(
            f"{PULSAR}/ledgers.py",
            "            return position.ledger <= self.last_ledger or not self.is_open\n",
            "            pass\n",
        ),
    ),
    mutation(
        "an empty ledger that a sealed topic has dropped is taken for another topic's",
        "",
        f"{LEDGERS}::test_where_a_reader_of_this_topic_can_stand_is_never_taken_for_another_topic",
        Edit(
            f"{PULSAR}/ledgers.py",
            "position.ledger <= self.last_ledger or not self.is_open\n",
            "position.ledger <= self.last_ledger\n",
        ),
    ),
    mutation(
        "ledgers that retention has trimmed are taken for another topic's",
        "",
        f"{LEDGERS}::test_where_a_reader_of_this_topic_can_stand_is_never_taken_for_another_topic",
        Edit(
            f"{PULSAR}/ledgers.py",
            "        if self.last_ledger < 0 or position.ledger < self.first_ledger:\n",
            "        if self.last_ledger < 0:\n",
        ),
    ),
    mutation(
        "a message that begins before the range is dropped",
        "INV-11",
        f"{NATIVE}::test_a_message_that_begins_before_the_range_is_not_dropped",
        Edit(
            f"{PULSAR}/log.py",
            "        elif header.message not in self._begun:\n",
            "        elif False:\n",
        ),
    ),
    mutation(
        "what was read of a native topic is acknowledged in a transaction of ours",
        "one domain",
        f"{NATIVE}::test_such_a_topic_is_not_acknowledged_in_a_transaction_of_ours",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "    if domain in PULSAR_DOMAINS:\n",
            "    if False:\n",
        ),
    ),
    mutation(
        "a sink takes a native topic",
        "one domain",
        "tests/options/test_parsed.py::"
        "test_an_option_that_would_mix_the_transactions_of_both_domains_is_refused",
        Edit(
            "pulsar_txn_spark/options/parsed.py",
            "native = self.native or bool(use & Use.READ and not name.segmented)",
            "native = not name.segmented",
        ),
    ),
    mutation(
        "a driver under Pulsar's own transactions goes on after a newer one has begun",
        "native transactions",
        f"{NATIVE_HISTORY}::test_who_begins_last_fences_all_others",
        Edit(HISTORY_CODE, "        if self.newest != txn:\n", "        if self.newest is None:\n"),
    ),
    mutation(
        "a native transaction of an earlier attempt is left open",
        "native transactions",
        f"{NATIVE_SINK}::test_the_next_attempt_ends_what_a_dead_driver_left_open",
        Edit(
            NATIVE_CODE,
            "- ended - {txn}:\n                self._end_other(other)\n",
            "- ended - {txn}:\n",
        ),
    ),
    mutation(
        "a transaction whose record is still to come counts as another role's",
        "native transactions",
        f"{NATIVE_SINK}::"
        "test_a_commit_whose_record_comes_late_is_not_taken_for_another_roles_open_transaction",
        Edit(NATIVE_CODE, "refused.add(other)", "raise"),
    ),
    mutation(
        "what could not be ended while the control topic was read counts as ended",
        "native transactions",
        f"{NATIVE_SINK}::test_an_open_transaction_of_another_role_stops_a_driver",
        Edit(NATIVE_CODE, "refused.add(other)", "ended.add(other)"),
    ),
    mutation(
        "a commit of an earlier attempt that is under way is not waited for",
        "native transactions",
        f"{NATIVE_SINK}::test_a_record_whose_transaction_is_still_committing_is_waited_for",
        Edit(
            NATIVE_CODE,
            "                if ended is not Ended.OTHERWISE:\n                    return\n"
            "                # It is being committed.",
            "                return\n                # It is being committed.",
        ),
    ),
    mutation(
        "what earlier attempts committed is read before they have ended, and not after",
        "native transactions",
        f"{NATIVE_SINK}::test_a_record_that_was_sent_behind_the_next_drivers_is_read_all_the_same",
        Edit(NATIVE_CODE, "            if ended:\n", "            if ended - ended:\n"),
    ),
    mutation(
        "a native transaction that is not found counts as committed",
        "native transactions",
        f"{NATIVE_SINK}::test_a_commit_without_a_reply_is_decided_by_the_record_and_nothing_else",
        Edit(
            NATIVE_CODE,
            "return True if ended is Ended.AS_ASKED else None",
            "return True",
        ),
    ),
    mutation(
        "the record of a native transaction is no part of it",
        "native transactions",
        f"{NATIVE_SINK}::test_a_batch_is_one_transaction_with_its_record_in_it, "
        "test_a_commit_without_a_reply_is_decided_by_the_record_and_nothing_else",
        Edit(
            NATIVE_CODE,
            "self._control.append(record.encode(), bits)",
            "self._control.append(record.encode())",
        ),
    ),
    mutation(
        "a second attempt at a task writes into the same native transaction",
        "native transactions",
        f"{NATIVE_SINK}::"
        "test_a_second_attempt_at_a_task_writes_nothing_and_the_batch_cannot_commit, "
        "test_no_attempt_begins_to_write_once_the_transaction_is_closed",
        Edit(
            NATIVE_CODE,
            "        reading.up_to(position, blocked)\n"
            "        reading.history.require_writer(batch.txn, task, attempt)\n",
            "        reading.up_to(position, blocked)\n",
        ),
    ),
    mutation(
        "a native transaction takes further writers after the driver has closed it",
        "native transactions",
        f"{NATIVE_SINK}::test_no_attempt_begins_to_write_once_the_transaction_is_closed",
        Edit(HISTORY_CODE, "if self.closed or first != attempt:", "if first != attempt:"),
    ),
    mutation(
        "a native transaction commits rows of an attempt that failed",
        "native transactions",
        f"{NATIVE_STREAM}::test_a_batch_whose_task_was_tried_again_is_aborted_and_written_anew",
        Edit(HISTORY_CODE, "if self.writers != succeeded:", "if not self.writers:"),
    ),
    mutation(
        "rows are sent to a topic that takes no part in the native transaction",
        "native transactions",
        f"{NATIVE_SINK}::"
        "test_every_topic_takes_part_before_anything_of_the_transaction_is_sent_to_it, "
        "test_a_transaction_that_is_over_takes_no_further_topics",
        Edit(
            NATIVE_CODE,
            "self._coordinators.add_partitions(TxnBits(*batch.txn), [segment.log_name])",
            "pass",
        ),
    ),
    mutation(
        "a native transaction of another role counts as ended",
        "native transactions",
        f"{COORDINATORS}::test_a_transaction_of_another_role_does_not_count_as_ended",
        Edit(
            f"{WIRE_CODE}/coordinator.py",
            'if refused.result == "TransactionNotFound" and self._is_forgotten(refused.detail):',
            'if refused.result == "TransactionNotFound":',
        ),
    ),
    mutation(
        "a transaction of another role counts as ended on scalable topics",
        "native transactions",
        "tests/backends/pulsar/wire/test_scalable.py::"
        "test_a_transaction_that_nobody_owns_is_forgotten_unless_clients_have_names",
        Edit(f"{WIRE_CODE}/coordinator.py", '"Client (null) is neither', '"is neither'),
    ),
    mutation(
        "what the metadata call sealed counts as ended",
        "INV-10",
        f"{SCALABLE}::test_a_segment_that_is_called_sealed_and_is_not_yet_has_no_end",
        Edit(
            SCALABLE_CODE,
            "if self._asked(segment, lambda: probe.ends_at(end)):",
            "if True:",
        ),
    ),
    mutation(
        "the log's end counts as readable on scalable topics",
        "native transactions",
        f"{SCALABLE}::test_only_what_was_delivered_counts_as_readable",
        Edit(
            f"{WIRE_CODE}/scalable.py",
            "if entry is not None:\n            return entry.position",
            "if True:\n            return appended",
        ),
    ),
    mutation(
        "an earlier ledger that is gone is skipped on scalable topics",
        "native transactions",
        f"{SCALABLE}::test_what_an_earlier_ledger_had_may_be_gone_and_is_not_skipped",
        Edit(f"{PULSAR}/errors.py", "    if start < gone:\n", "    if False:\n"),
    ),
    mutation(
        "a range of a scalable topic that is gone as a whole is read as an empty one",
        "INV-11",
        f"{SCALABLE}::test_a_range_that_is_gone_as_a_whole_is_not_read_as_an_empty_one",
        Edit(SCALABLE_CODE, "        if unsure != EARLIEST:\n", "        if previous > start:\n"),
    ),
    mutation(
        "a ledger that is deleted while a range is read goes unnoticed",
        "INV-11",
        f"{SCALABLE}::test_a_ledger_that_is_deleted_while_a_range_is_read_is_noticed",
        Edit(
            SCALABLE_CODE,
            "entry is None or entry.position.ledger != previous.ledger",
            "entry is None or entry.position > end",
        ),
    ),
    mutation(
        "what a slow broker does not show is not gone",
        "INV-11",
        f"{SCALABLE}::test_a_slow_broker_hides_no_loss",
        Edit(
            SCALABLE_CODE,
            "            require_whole(segment, unsure, end, gone)\n",
            "            if self._first_after(segment, EARLIEST) is not None:\n"
            "                require_whole(segment, unsure, end, gone)\n",
        ),
    ),
    mutation(
        "a time is later than all that a slow broker does not show",
        "INV-11",
        f"{SCALABLE}::test_a_time_is_found_in_a_segment_that_a_broker_is_slow_to_show",
        Edit(
            SCALABLE_CODE,
            "        if start >= end:\n            return self._first_after(segment, start)\n",
            "        if True:\n            return self._first_after(segment, start)\n",
        ),
    ),
    mutation(
        "a batch up to a time leaves rows of an open transaction out",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_batch_up_to_a_time_leaves_no_rows_of_an_open_transaction_out",
        Edit(SCALABLE_CODE, "RangeSize(blocked if hidden < end else 0,", "RangeSize(0,"),
    ),
    mutation(
        "the end of a sealed segment is where its last row is still shown",
        "INV-10",
        f"{SCALABLE}::test_a_sealed_segment_ends_although_its_last_rows_were_aborted",
        Edit(SCALABLE_CODE, "max(end, self._asked(segment, probe.appended_to))", "end"),
    ),
    mutation(
        "a segment that brokers have deleted counts as read",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_parent_that_brokers_delete_half_read_is_no_gap_in_silence",
        Edit(
            f"{SOURCE_CODE}/offsets.py", "if descriptor not in known and not item.drained", "if 0"
        ),
    ),
    mutation(
        "a segment that came and went between two polls is not missed",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_segment_that_came_and_went_unseen_is_no_gap_in_silence",
        Edit(f"{SOURCE_CODE}/offsets.py", "for n in later if n not in numbers", "for n in ()"),
    ),
    mutation(
        "an offset names only the segments of a scalable topic that were begun",
        "INV-11",
        f"{SCALABLE_STREAM}::"
        "test_a_segment_that_is_deleted_before_its_first_row_was_read_is_no_gap_in_silence",
        Edit(f"{SOURCE_CODE}/planner.py", "EARLIEST if scalable else None", "None"),
    ),
    mutation(
        "that a segment was read to its end is not noted before brokers may delete it",
        "INV-11",
        f"{SCALABLE_STREAM}::"
        "test_a_segment_that_was_read_to_its_end_may_go_before_its_children_have_rows",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "return now.to_json() if skipped or read.lacks(now) else start",
            "return start",
        ),
    ),
    mutation(
        "that a deleted segment was skipped is not noted while nothing new comes",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_checkpoint_without_notes_goes_on_after_one_start_that_skips",
        Edit(f"{SOURCE_CODE}/stream.py", "if skipped or read.lacks(now)", "if read.lacks(now)"),
    ),
    mutation(
        "a batch read ends where a slow broker has shown nothing for a moment",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_batch_read_takes_all_that_a_slow_broker_has",
        Edit(f"{SOURCE_CODE}/batch.py", "segments, {}, patient=True", "segments, {}"),
    ),
    mutation(
        "Trigger.AvailableNow ends where a slow broker has shown nothing for a moment",
        "INV-11",
        f"{SCALABLE_STREAM}::test_available_now_takes_all_that_a_slow_broker_has",
        Edit(f"{SOURCE_CODE}/planner.py", "segments, {}, patient=True", "segments, {}"),
    ),
    mutation(
        "a segment is read before its broker knows what is open and aborted there",
        "read committed",
        f"{SCALABLE}::test_a_segment_that_is_being_loaded_shows_no_aborted_row",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "if self._settings.max_permits and not self._settings.asks_last:",
            "if False:",
        ),
    ),
    mutation(
        "a broker that has gone silent counts as one that blocks readers",
        "INV-11",
        f"{SCALABLE}::test_a_broker_that_shows_nothing_of_what_it_showed_gives_no_end",
        Edit(f"{WIRE_CODE}/scalable.py", "if known != EARLIEST:", "if False:"),
    ),
    mutation(
        "a batch is repeated without the rows of a segment that brokers have deleted",
        "INV-11",
        f"{SCALABLE_STREAM}::test_a_batch_is_not_repeated_without_the_rows_of_a_deleted_segment",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "starts = planner.stored_offset(start, topologies).positions()\n"
            "        ending = planner.stored_offset(end, topologies)",
            "starts = planner.checked_offset(start, topologies).positions()\n"
            "        ending = planner.checked_offset(end, topologies)\n"
            "        starts = {k: p for k, p in starts.items() if k in ending.positions()}",
        ),
    ),
    mutation(
        "a scalable topic that lost a segment is read from its beginning again",
        "INV-7",
        f"{SCALABLE_STREAM}::test_only_what_is_gone_is_skipped_and_nothing_is_read_twice",
        Edit(
            f"{SOURCE_CODE}/offsets.py",
            "if len(missing) < len(self.segments):",
            "if not missing:",
        ),
    ),
    mutation(
        "a record of an open transaction counts as a commit",
        "native transactions",
        f"{NATIVE_SINK}::"
        "test_a_record_that_is_shown_of_an_open_transaction_does_not_count_as_a_commit",
        Edit(
            NATIVE_SINK_CODE,
            "if ended is Ended.AS_ASKED:\n            raise",
            "if False:\n            raise",
        ),
    ),
    mutation(
        "a task counts as one core, whatever spark.task.cpus says",
        "tasks at once",
        "tests/spark/test_cores.py::test_a_task_that_takes_several_cores_leaves_room_for_fewer",
        Edit(f"{SPARK}/cores.py", "cores // cpus", "cores"),
    ),
    mutation(
        "no transaction has ended in a segment before rows are sent there",
        "native transactions",
        f"{NATIVE_SINK}::"
        "test_a_transaction_has_ended_in_a_segment_before_the_first_row_is_sent_there",
        Edit(
            NATIVE_SINK_CODE, "                self._resolve(segment)\n", "                pass\n"
        ),
    ),
    mutation(
        "no transaction has ended in a control topic before the first commit",
        "native transactions",
        f"{NATIVE_SINK}::test_the_record_of_a_first_commit_is_not_shown_before_it_is_decided",
        Edit(
            NATIVE_SINK_CODE,
            "if resolves and self._control.name not in self._resolved:",
            "if False:",
        ),
    ),
    mutation(
        "a record outweighs an abort that the coordinator has confirmed",
        "native transactions",
        f"{NATIVE_SINK}::test_no_record_outweighs_an_abort_that_the_coordinator_has_confirmed",
        Edit(
            NATIVE_SINK_CODE,
            "                return False\n        return None",
            "                return None\n        return None",
        ),
    ),
    mutation(
        "a subscription stays open that a broker opened too late",
        "native transactions",
        f"{CURSOR}::test_a_broker_that_subscribes_too_late_is_told_that_nobody_waits",
        Edit(
            f"{WIRE_CODE}/cursor.py",
            "            self._leave(consumer, connection)\n            raise",
            "            connection.remove(consumer)\n            raise",
        ),
    ),
    mutation(
        "a transaction is to cover scalable topics and others",
        "one domain",
        f"{NATIVE_SINK}::test_no_transaction_covers_scalable_topics_and_others",
        Edit(NATIVE_SINK_CODE, "if topic.scalable is not self._scalable:", "if False:"),
    ),
    mutation(
        "a control topic that was split is used",
        "native transactions",
        f"{NATIVE_SINK}::test_the_control_topic_of_a_scalable_sink_is_its_own_and_is_never_split",
        Edit(
            "pulsar_txn_spark/backends/pulsar/control_topic.py",
            "if len(segments) != 1:",
            "if False:",
        ),
    ),
    mutation(
        "a row of a scalable topic that is due is skipped",
        "native transactions",
        f"{SCALABLE}::test_a_row_that_is_due_and_does_not_come_is_an_error",
        Edit(
            SCALABLE_CODE,
            "if entry is not None or feed.ends_at(previous, self._patience_s):",
            "if True:",
        ),
    ),
    mutation(
        "a replay under Pulsar's own transactions is written again",
        "native transactions",
        f"{NATIVE_STREAM}::test_micro_batches_are_committed_and_a_replay_writes_nothing",
        Edit(HISTORY_CODE, "        return Decision.REPLAY\n", "        return Decision.WRITE\n"),
    ),
    mutation(
        "an id of Pulsar's own transactions is taken for one of ours",
        "one domain",
        f"{ENDS}::test_an_id_of_the_other_kind_is_refused_before_the_store_is_asked",
        Edit(
            f"{TXN}/coordinator.py",
            "        require_own(txn, self.store.identity.coordinators)\n",
            "        pass\n",
        ),
    ),
    mutation(
        "the children of an adoption wait for one partition only",
        "INV-10",
        f"{ADOPTION}::test_children_wait_for_all_partitions_that_were_adopted",
        Edit(
            f"{SEGMENTS}/topology.py",
            "                parents=parent_ids,\n",
            "                parents=parent_ids[-1:],\n",
        ),
    ),
    mutation(
        "an adopted partition takes rows",
        "INV-10",
        f"{ADOPTION}::test_adopted_partitions_are_parents_of_every_child_and_take_no_rows",
        Edit(
            f"{SEGMENTS}/topology.py",
            "if s.state is SegmentState.ACTIVE and not s.adopted]",
            "if s.state is SegmentState.ACTIVE]",
        ),
    ),
    mutation(
        "a partition is read as a segment before it is sealed",
        "read committed",
        f"{ADOPTION}::test_adopted_partitions_are_parents_of_every_child_and_take_no_rows",
        Edit(
            f"{SEGMENTS}/topology.py",
            "s.state not in unreadable and (s.sealed or not s.adopted)",
            "s.state not in unreadable",
        ),
    ),
    mutation(
        "a topic is sealed under an open transaction of Pulsar's own",
        "INV-11",
        f"{ADOPTION}::test_a_topic_with_an_open_transaction_of_pulsars_own_is_not_adopted",
        Edit(
            f"{PULSAR}/log.py",
            "if own is not None and (own.ongoing or own.max_read_position < last):",
            "if False:",
        ),
    ),
    mutation(
        "a topic that is produced to is sealed",
        "INV-11",
        f"{ADOPTION}::test_a_topic_with_producers_is_not_adopted",
        Edit(f"{PULSAR}/log.py", "        if producers:\n", "        if False:\n"),
    ),
    mutation(
        "a replay is compared with nothing where a sweep takes the header",
        "INV-15",
        f"{EVIDENCE}::test_a_replay_is_compared_with_what_was_committed_although_a_sweep_takes_the_header",
        Edit(
            f"{TXN}/batch.py",
            "        if header is None and pointer.decision == Pointer.UNDECIDED:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a commit that its owner repeats in single steps is a conflict",
        "INV-1",
        f"{MERGED_STEPS}::test_a_commit_is_repeated_by_its_owner_whichever_steps_it_takes",
        Edit(
            f"{TXN}/coordinator.py",
            "            pass  # it is COMMITTED: the decision says whether by this very commit\n",
            "            raise\n",
        ),
    ),
    mutation(
        "a reader stops where a sweep collects what it was about to abort",
        "INV-8",
        f"{BUFFER}::test_a_reader_reads_on_where_a_sweep_collects_what_it_was_about_to_abort",
        Edit(
            f"{TXN}/coordinator.py",
            "missing.add(txn)  # others have aborted it, and collected its header\n",
            "raise\n",
        ),
    ),
    mutation(
        "a refused adoption is begun all the same, and a sweep seals the topic",
        "INV-11",
        f"{ADOPTION}::test_an_adoption_that_is_refused_is_not_begun",
        Edit(
            f"{SEGMENTS}/catalog.py",
            "                self._log.check_adoptable(segment.ref)\n",
            "                pass\n",
        ),
    ),
    mutation(
        "a topic whose adoption is not done yet is read as an empty one",
        "INV-11",
        f"{ADOPTION}::test_a_query_that_starts_at_latest_while_a_topic_is_adopted_reads_nothing_old",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "        if not topology.active:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a reader without rights does not wait for whoever adopts a topic",
        "INV-11",
        f"{ADOPTION}::test_a_reader_without_rights_waits_for_whoever_adopts_a_topic",
        Edit(
            f"{SEGMENTS}/changes.py",
            "self.patience_s if topology.active else self.adoption_patience_s",
            "self.patience_s",
        ),
    ),
    mutation(
        "a query by a pattern ends with an adoption that is taken back",
        "INV-11",
        f"{ADOPTION}::test_a_topic_whose_adoption_is_taken_back_matches_no_pattern",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "            return None  # its adoption was taken back\n",
            "            raise\n",
        ),
    ),
    mutation(
        "a claim of a topic whose deletion died refuses the next adoption",
        "INV-12",
        f"{ADOPTION}::test_a_topic_is_adopted_again_behind_a_deletion_that_died",
        Edit(
            f"{SEGMENTS}/catalog.py",
            "            self.lifecycle.finish_deletion(existing)  # else",
            "            pass  # else",
        ),
    ),
    mutation(
        "a client reads a topic whose adoption cannot go on as an empty one",
        "INV-11",
        f"{ADOPTION}::test_whoever_reads_a_topic_whose_adoption_cannot_go_on_is_told_"
        "and_gets_no_empty_result",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "        if not topology.active:  # it is being adopted",
            "        if False:  # it is being adopted",
        ),
    ),
    mutation(
        "an adopted topic is deleted with the segmented one",
        "INV-11",
        f"{ADOPTION}::test_an_adopted_topic_is_given_back_and_never_deleted",
        Edit(
            f"{PULSAR}/log.py",
            "        if ADOPTED_PROPERTY in properties:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a topic is held for an adoption before it is claimed",
        "INV-11",
        f"{ADOPTION}::test_an_adoption_or_a_return_that_died_at_any_step_lets_no_topic_be_deleted",
        Edit(
            f"{PULSAR}/log.py",
            "        self._admin.set_properties(topic, {ADOPTED_PROPERTY: segment.id})\n",
            "        self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)\n"
            "        self._admin.set_properties(topic, {ADOPTED_PROPERTY: segment.id})\n",
        ),
    ),
    mutation(
        "the claim of an adopted topic goes before the segment's mark",
        "INV-11",
        f"{ADOPTION}::test_an_adoption_or_a_return_that_died_at_any_step_lets_no_topic_be_deleted",
        Edit(
            f"{PULSAR}/log.py",
            "            self._admin.remove_property(topic, SEGMENT_PROPERTY)\n",
            "            self._admin.remove_property(topic, ADOPTED_PROPERTY)\n",
        ),
        Edit(
            f"{PULSAR}/log.py",
            "(*trims, ORIGIN_PROPERTY, ADOPTED_PROPERTY)",
            "(*trims, ORIGIN_PROPERTY, SEGMENT_PROPERTY)",
        ),
    ),
    mutation(
        "an adoption gives back what another one has claimed",
        "INV-11",
        f"{ADOPTION}::test_of_two_that_adopt_one_topic_the_one_who_was_overwritten_is_told",
        Edit(
            f"{PULSAR}/log.py",
            "if properties.get(ADOPTED_PROPERTY) == segment.id:",
            "if ADOPTED_PROPERTY in properties:",
        ),
    ),
    mutation(
        "two adoptions take one topic",
        "INV-11",
        f"{ADOPTION}::test_of_two_that_adopt_one_topic_the_one_who_was_overwritten_is_told",
        Edit(
            f"{PULSAR}/log.py",
            "owners = {properties.get(SEGMENT_PROPERTY), properties.get(ADOPTED_PROPERTY)}",
            "owners = {properties.get(SEGMENT_PROPERTY)}",
        ),
    ),
    mutation(
        "a topic that was given back is sealed by what was known of it",
        "INV-12",
        f"{ADOPTION}::test_a_topic_that_was_given_back_is_not_sealed",
        Edit(
            f"{PULSAR}/log.py",
            "        self._read_properties(segment)\n        return self._admin.terminate",
            "        self._check_exists(segment)\n        return self._admin.terminate",
        ),
    ),
    mutation(
        "a topic is sealed that was deleted while it was adopted",
        "INV-12",
        f"{ADOPTION}"
        "::test_a_topic_that_is_deleted_while_it_is_adopted_gives_all_back_and_is_not_sealed",
        Edit(
            f"{SEGMENTS}/changes.py",
            "if adopted and _is_done(self._still_there(topology, change), change):",
            "if False:",
        ),
    ),
    mutation(
        "what a sweep sets on a topic that is given back meanwhile stays there",
        "",
        f"{BESIDE_A_RETURN}[return-inside-gone]",
        Edit(f"{PULSAR}/log.py", "            self._take_back(segment, trimmed=trimmed)\n", ""),
    ),
    mutation(
        "a trim moves the subscription of whoever has adopted the topic anew",
        "INV-11",
        f"{TRIM}::test_a_trim_that_wakes_takes_nothing_from_who_has_adopted_the_topic_anew",
        Edit(f"{PULSAR}/log.py", "            if trimmed:", "            if False:"),
    ),
    mutation(
        "a trim lets data go of a topic that was given back meanwhile",
        "INV-11",
        f"{TRIM}::test_a_trim_lets_nothing_go_of_a_topic_that_is_given_back_amid_it",
        Edit(
            f"{PULSAR}/log.py",
            "self._require_not_given_back(segment, trimmed=True)\n        self._admin.trim_ledgers",
            "pass\n        self._admin.trim_ledgers",
        ),
    ),
    mutation(
        "a topic that is given back counts as a segment until its claim goes",
        "",
        f"{BESIDE_A_RETURN}[sweep-inside-gone]",
        Edit(
            f"{PULSAR}/log.py",
            "            self._admin.remove_property(topic, SEGMENT_PROPERTY)\n",
            "",
        ),
        Edit(
            f"{PULSAR}/log.py",
            "(*trims, ORIGIN_PROPERTY, ADOPTED_PROPERTY)",
            "(*trims, ORIGIN_PROPERTY, SEGMENT_PROPERTY, ADOPTED_PROPERTY)",
        ),
    ),
    mutation(
        "a sweep takes back what keeps the data of whoever has adopted the topic anew",
        "INV-11",
        f"{ADOPTION}"
        "::test_a_sweep_takes_nothing_from_who_adopts_a_topic_that_was_given_back_meanwhile",
        Edit(
            f"{PULSAR}/log.py",
            "        if self._others_in(segment, properties):\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a sweep does not look who has adopted a topic while it took something back",
        "INV-11",
        f"{ADOPTION}"
        "::test_a_sweep_takes_nothing_from_who_adopts_a_topic_that_was_given_back_meanwhile",
        Edit(
            f"{PULSAR}/log.py",
            "if self._others_in(segment, self._properties(topic)):",
            "if False:",
        ),
    ),
    mutation(
        "a sweep drops the policies of partitions that are segments with those of one that is none",
        "INV-11",
        f"{ADOPTION}"
        "::test_a_sweep_beside_the_return_of_one_partition_leaves_the_policies_to_the_next_one",
        Edit(
            f"{PULSAR}/log.py",
            "self._let_go(topic, [name for name in partitions if name != topic])\n        # Who",
            "self._let_go(topic, [])\n        # Who",
        ),
    ),
    mutation(
        "one partition that is given back drops the policies of all",
        "INV-11",
        f"{ADOPTION}::test_retention_gives_one_partition_back_and_leaves_the_others_policies",
        Edit(f"{SEGMENTS}/retention.py", ", self._others(topology, segment))", ")"),
    ),
    mutation(
        "a deletion drops the policies of all partitions with the first one",
        "INV-11",
        f"{ADOPTION}"
        "::test_a_topic_that_is_deleted_while_it_is_adopted_gives_all_back_and_is_not_sealed",
        Edit(f"{SEGMENTS}/topic_lifecycle.py", "(*segments[number:], *left)", "left"),
    ),
    mutation(
        "an adoption that died leaves its policies to the topic that is given back",
        "",
        f"{ADOPTION}::test_an_adoption_that_was_left_half_done_leaves_no_policy_behind",
        Edit(
            f"{PULSAR}/log.py",
            "if not any(ADOPTED_PROPERTY in self._properties(other) for other in others):",
            "if not others:",
        ),
    ),
    mutation(
        "an adoption that was refused drops the policies of whoever has the next partition",
        "INV-11",
        f"{ADOPTION}::test_policies_stay_while_another_partition_is_a_segment",
        Edit(
            f"{PULSAR}/log.py",
            "ADOPTED_PROPERTY in self._properties(other) for",
            "SEGMENT_PROPERTY in self._properties(other) for",
        ),
    ),
    mutation(
        "a segment goes that a subscription of Pulsar's own has not read",
        "INV-11",
        f"{RETENTION}::test_a_drained_segment_stays_while_a_subscription_of_pulsars_own_has_a_backlog",
        Edit(f"{SEGMENTS}/retention.py", "                delete = not others\n", ""),
    ),
    mutation(
        "a reset goes behind what retention has let go",
        "INV-13",
        f"{ADMINS}::test_a_reset_never_goes_behind_what_retention_lets_go_meanwhile",
        Edit(f"{LUA}/cursor_reset.lua", "if ARGV[8] ~= '1' then", "if false then"),
        Edit(f"{LUA}/cursor_reset.lua", "  position = trimmed\n", ""),
    ),
    mutation(
        "a subscription is deleted in parents first",
        "INV-10",
        f"{ADMINS}::test_a_deletion_takes_a_cursor_along_that_is_handed_over_beside_it",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "in reversed(topology.readable):",
            "in topology.readable:",
        ),
    ),
    mutation(
        "a deletion takes the subscription of another topic of the name along",
        "INV-12",
        f"{ADMINS}::test_a_deletion_leaves_the_subscription_of_another_topic_of_the_name_alone",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            'components.topics.lifecycle.reread(topology, "a subscription of it was deleted")',
            "components.topics.require(topic)",
        ),
    ),
    mutation(
        "a subscription that comes again while it is deleted counts as deleted",
        "INV-13",
        f"{ADMINS}::test_a_deletion_takes_a_cursor_along_that_is_handed_over_beside_it",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "if not any(components.store.subscriptions.read_cursors(ids, subscription)):",
            "if ids:",
        ),
    ),
    # --- the client ------------------------------------------------------------------------------
    mutation(
        "client: an older consumer goes on acknowledging single messages",
        "INV-9",
        f"{CLIENT}::test_the_newest_consumer_of_a_subscription_takes_over",
        Edit(
            f"{LUA}/_acknowledging.lua",
            "if tonumber(cursor.source) > tonumber(source_epoch) then",
            "if false then",
        ),
    ),
    mutation(
        "client: an older consumer goes on acknowledging cumulatively",
        "INV-9",
        f"{CLIENT}::test_an_older_consumer_cannot_go_on_in_a_child_either",
        Edit(
            f"{LUA}/_acknowledging.lua",
            "if tonumber(cursor.source) > tonumber(source_epoch) then",
            "if false then",
        ),
    ),
    mutation(
        "client: an older consumer goes on receiving",
        "INV-9",
        f"{CLIENT}::test_a_consumer_that_waits_learns_that_it_was_taken_over, "
        "test_an_older_consumer_cannot_go_on_in_a_child_either",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "                if cursor.source_epoch > self._source_epoch:\n",
            "                if False:\n",
        ),
    ),
    mutation(
        "client: a new consumer leaves the transactions of the older one open",
        "INV-8",
        f"{CLIENT}::test_the_newest_consumer_of_a_subscription_takes_over",
        Edit(
            f"{TXN}/pending_ack.py",
            "            if not state.pending:\n                break\n",
            "            break\n",
        ),
    ),
    mutation(
        "client: what an aborted transaction acknowledged does not come again",
        "INV-9",
        f"{CLIENT}::test_what_an_aborted_transaction_acknowledged_comes_again_in_order",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            self._doubtful.discard(txn)\n        self._go_back()\n",
            "            self._doubtful.discard(txn)\n",
        ),
    ),
    mutation(
        "client: a message of before the rewind is acknowledged cumulatively",
        "INV-9",
        f"{CLIENT}::test_an_aborted_cumulative_acknowledgement_eats_nothing_that_comes_later",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            if message.delivery.redelivery_epoch != self._redelivery_epoch:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "client: a cumulative acknowledgement takes what another transaction has raw back",
        "INV-9",
        f"{CLIENT}::test_a_cumulative_acknowledgement_does_not_take_what_a_dead_transaction_gave_back",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "self._claims_of(where.segment).left_of(AckInterval(start, end), txn)",
            "[AckInterval(start, end)]",
        ),
    ),
    mutation(
        "client: an acknowledgement that is committed while it is looked up passes for aborted",
        "INV-9",
        "tests/client/test_shared_consumer.py"
        "::test_a_plain_acknowledgement_that_is_committed_while_it_is_looked_up_takes_nobody_back",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "                header = self._components.store.transactions.read(txn)  # it has",
            "                # it has",
        ),
    ),
    mutation(
        "client: a reader whose consumer a signal handler has closed is left open",
        "a signal handler waits for nothing that it has interrupted",
        f"{CLIENT_HANDLERS}::test_a_signal_wakes_a_loop_that_waits_for_a_message",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "                self._close_reader()  # a signal handler that closed could not\n",
            "                pass\n",
        ),
    ),
    mutation(
        "client: a signal handler waits for who waits for what it has interrupted",
        "liveness",
        "tests/client/test_signal_handlers.py::"
        "test_a_handler_amid_a_change_does_not_wait_for_a_thread_that_receives",
        Edit(
            f"{CLIENT_CODE}/consumer.py", "waits = not is_interrupted(self._state)", "waits = True"
        ),
    ),
    mutation(
        "client: writers of a producer that a signal handler has closed are left open",
        "a signal handler waits for nothing that it has interrupted",
        f"{CLIENT_HANDLERS}"
        "::test_a_producer_that_a_handler_closes_amid_a_send_is_closed_as_that_ends[False]",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "                self._close()  # a signal handler that closed could not\n",
            "                pass\n",
        ),
    ),
    mutation(
        "client: a signal handler commits a transaction without what is being sent in it",
        "INV-11",
        f"{CLIENT_HANDLERS}::test_a_handler_ends_no_transaction_amid_a_call_in_it[commit]",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            '        refuse_reentry(self._lock, "a method of a transaction")\n',
            "",
        ),
    ),
    mutation(
        "client: a transaction in use that a signal handler leaves keeps its lease",
        "a signal handler waits for nothing that it has interrupted",
        f"{CLIENT_HANDLERS}"
        "::test_a_transaction_in_use_is_left_to_its_owner_by_a_handler_that_closes_the_client"
        "[TopicWriters-append]",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "            self._header.opened = lambda: None\n",
            "",
        ),
    ),
    mutation(
        "client: a signal handler that ends a transaction changes what is being changed",
        "INV-9",
        f"{CLIENT_HANDLERS}"
        "::test_a_handler_that_ends_a_transaction_amid_a_delivery_has_its_consumer_find_that_out"
        "[abort]",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            self._doubtful.add(txn)\n            return True\n",
            "            return True\n",
        ),
    ),
    mutation(
        "client: what is made while a signal handler closes the client stays open",
        "a signal handler waits for nothing that it has interrupted",
        f"{CLIENT_HANDLERS}::test_what_is_made_while_a_handler_closes_the_client_is_closed_with_it",
        Edit(
            f"{CLIENT_CODE}/session.py",
            "        if not self._closed:\n            return made\n",
            "        if made:\n            return made\n",
        ),
    ),
    mutation(
        "aio: a call for a task that was cancelled keeps the next one waiting",
        "a timeout holds",
        "tests/client/test_aio.py"
        "::test_a_timeout_holds_while_a_thread_waits_for_a_task_that_was_cancelled",
        Edit(
            f"{CLIENT_CODE}/aio.py",
            "                self._consumer.hurry()",
            "                pass",
        ),
    ),
    mutation(
        "client: what another open transaction has locked is delivered again",
        "INV-9",
        f"{CLIENT}::test_what_one_open_transaction_locks_is_not_delivered_when_another_one_aborts",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "            holder = reading.state.holder_of(at)\n",
            "            holder = reading.state.holder_of(at) and None\n",
        ),
    ),
    mutation(
        "client: what was acknowledged while it lay ready is delivered again",
        "INV-9",
        f"{CLIENT}::test_what_one_open_transaction_locks_is_not_delivered_when_another_one_aborts",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "                if not self._claims_of(message.segment).contains(message.position):\n",
            "                if True:\n",
        ),
    ),
    mutation(
        "client: intervals skip what was acknowledged before",
        "INV-9",
        f"{CLIENT}::test_single_messages_of_a_batch_are_acknowledged_and_the_rest_comes_again",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "            previous = max(previous, at)\n",
            "            previous = max(previous, at) if holder is None else previous\n",
        ),
    ),
    mutation(
        "client: a transaction in which something failed is committed",
        "INV-7",
        f"{CLIENT}::test_a_transaction_in_which_something_failed_cannot_be_committed",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "            self._give_up(error)\n            raise\n\n    def _hand_over",
            "            raise\n\n    def _hand_over",
        ),
    ),
    mutation(
        "client: an unknown commit is taken for a failed one",
        "INV-11",
        f"{CLIENT}::test_a_commit_that_lost_the_store_after_the_decision_is_unknown_and_not_failed",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "            raise CommitStateUnknownError(\n"
            '                f"transaction {self._shown}: the store failed',
            "            raise TransactionAbortedError(\n"
            '                f"transaction {self._shown}: the store failed',
        ),
    ),
    mutation(
        "client: a commit is taken for a failed one if a server refuses what follows the decision",
        "INV-11",
        f"{CLIENT}::test_a_commit_that_lost_the_store_after_the_decision_is_unknown_and_not_failed",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        except StoreError as error:\n",
            "        except StoreUnavailableError as error:\n",
        ),
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "    StoreError,\n    TransactionAbortedError,",
            "    StoreError,\n    StoreUnavailableError,\n    TransactionAbortedError,",
        ),
    ),
    mutation(
        "the first batch of a source of this package is taken for that of another kind",
        "INV-15",
        f"{EVIDENCE}::test_a_foreign_source_is_told_by_its_offset",
        Edit(f"{SPARK}/checkpoint.py", "offset.keys() - _OF_FIRST_BATCH ==", "offset.keys() =="),
    ),
    mutation(
        "ranges of the sink's store vouch for a source on another store",
        "INV-15",
        f"{EVIDENCE}::test_equal_ranges_do_not_vouch_for_a_source_on_another_store",
        Edit(f"{SPARK}/checkpoint.py", ' and offset["store"].get("uuid") == store', ""),
    ),
    mutation(
        "aio: a commit overtakes what a cancelled task was sending",
        "INV-7",
        "tests/client/test_aio.py"
        "::test_a_commit_does_not_overtake_what_a_cancelled_task_was_sending",
        Edit(f"{CLIENT_CODE}/aio.py", "if before is None or before.done():", "if True:"),
    ),
    mutation(
        "aio: a transaction is committed without what was queued in it",
        "INV-7",
        "tests/client/test_aio.py"
        "::test_a_transaction_that_lacks_what_was_queued_is_not_committed_by_the_next_try",
        Edit(
            f"{CLIENT_CODE}/aio.py",
            "        with self._txn.whole():\n            for send in queued:",
            "        if True:\n            for send in queued:",
        ),
    ),
    mutation(
        "a decision in one step without a reply counts as refused if the next try is",
        "INV-11",
        f"{BATCH}::test_a_commit_without_a_reply_stays_unknown_where_the_next_try_is_refused",
        Edit(
            f"{TXN}/coordinator.py",
            "                    raise unknown from error\n",
            "                    pass\n",
        ),
    ),
    mutation(
        "a decision without a reply counts as refused if the next try is",
        "INV-11",
        f"{BATCH}::test_a_commit_without_a_reply_stays_unknown_where_the_next_try_is_refused",
        Edit(
            f"{TXN}/coordinator.py",
            "                    raise last from error\n",
            "                    pass\n",
        ),
    ),
    mutation(
        "a decision without a reply counts as refused if its header cannot be read",
        "INV-11",
        f"{BATCH}::test_a_commit_without_a_reply_stays_unknown_where_the_next_try_is_refused",
        Edit(
            f"{TXN}/coordinator.py",
            "                    raise error from refused\n",
            "                    raise\n",
        ),
    ),
    mutation(
        "client: children are read beside their parents",
        "INV-10",
        f"{CLIENT}::test_children_come_after_all_of_their_parent_also_when_it_comes_again",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "        released = [s for s in topology.segments if s.descriptor in order.released]\n",
            "        released = list(reversed(topology.readable))\n",
        ),
    ),
    mutation(
        "client: what was read before an error is passed over",
        "INV-11",
        f"{CLIENT}::test_an_error_between_two_segments_loses_nothing_of_the_first",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "            passed[id_] = (end, previous)\n",
            "            passed[id_] = (end, previous)\n            reading.position = end\n",
        ),
    ),
    mutation(
        "client: a new subscription at the end claims parents before children",
        "INV-11",
        f"{CLIENT}::test_a_subscription_at_the_end_whose_making_was_cut_short_begins_at_the_end",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "reversed(claimable) if self._latest and not known else claimable",
            "claimable",
        ),
    ),
    mutation(
        "many rows without a byte of their own are cut into no entry",
        "what was appended is written",
        f"{EMBEDDED}::test_rows_without_a_byte_are_written_however_many_there_are",
        Edit(
            "pulsar_txn_spark/backends/entry_codec.py",
            "np.cumsum(sizes + _ROW_BYTES)",
            "np.cumsum(sizes)",
        ),
    ),
    mutation(
        "a heartbeat gives up at the first outage of the store",
        "a lease outlives a restart of the store",
        f"{LEASE}::test_a_heartbeat_that_fails_is_tried_again_until_the_store_is_back",
        Edit(
            f"{ENGINE}/lease.py",
            "            self._failed_at[leased.tc] = self._clock.now()\n",
            "            self.let_go(leased)\n",
        ),
    ),
    mutation(
        "a heartbeat gives up when the store has no room for it",
        "a lease outlives a store that is full for a while",
        f"{LEASE}::test_a_heartbeat_that_fails_is_tried_again_until_the_store_is_back",
        Edit(f"{ENGINE}/lease.py", "    StoreError,\n", "    StoreUnavailableError,\n"),
        Edit(
            f"{ENGINE}/lease.py",
            "        except StoreError:\n",
            "        except StoreUnavailableError:\n",
        ),
    ),
    mutation(
        "a lease's thread that could not be started is taken for one that runs",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_after_a_thread_that_could_not_be_started_the_next_lease_has_one",
        Edit(
            f"{ENGINE}/lease.py",
            "        thread.start()\n"
            "        # Not before: one that did not start would be taken for one that runs.\n"
            "        self._thread = thread\n",
            "        self._thread = thread\n        thread.start()\n",
        ),
    ),
    mutation(
        "a lease that no thread could be started for is registered",
        "a lease is extended while its owner lives, and no longer",
        f"{LEASE}::test_after_a_thread_that_could_not_be_started_the_next_lease_has_one",
        Edit(
            f"{ENGINE}/lease.py",
            "            if self._thread is None:\n                self._start()\n",
            "            self._due[leased] = self._clock.now()\n"
            "            if self._thread is None:\n                self._start()\n",
        ),
    ),
    mutation(
        "an owner that is dropped in a certain moment ends the thread of all leases",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_after_an_owner_that_is_dropped_while_the_thread_looks_the_next_lease_is_extended",
        Edit(
            f"{ENGINE}/lease.py",
            "            while entries := list(self._due.items()):\n",
            "            while self._due:\n                entries = list(self._due.items())\n",
        ),
    ),
    mutation(
        "a lease waits for what others have left open",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_a_lease_is_extended_before_what_others_left_open_is_closed",
        Edit(
            f"{ENGINE}/lease.py",
            "        leased = self._next()\n",
            "        leased = self._next()\n        self._clean_up()\n",
        ),
    ),
    mutation(
        "a lease waits for all that others have left open",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_a_lease_that_is_due_does_not_wait_for_all_that_others_left_open",
        Edit(f"{ENGINE}/lease.py", "            if self._is_due():\n", "            if False:\n"),
    ),
    mutation(
        "what cannot be closed ends the thread of all leases",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_what_cannot_be_closed_ends_no_lease_and_is_logged",
        Edit(
            f"{ENGINE}/lease.py",
            "            except Exception as error:  # noqa: BLE001 - nobody else waits for it\n",
            "            except StoreError as error:\n",
        ),
    ),
    mutation(
        "a sweep that no thread can be started for fails a commit",
        "who committed hears so",
        f"{SWEEPS}"
        "::test_a_sweep_that_no_thread_can_be_started_for_fails_no_commit_and_is_tried_again",
        Edit(
            f"{TXN}/sweeper.py",
            "        except RuntimeError as error:\n",
            "        except PulsarTxnError as error:\n",
        ),
    ),
    mutation(
        "client: a flush looks at its transactions while another thread adds one",
        "what was flushed lies in the log",
        f"{CLIENT_PRODUCERS}"
        "::test_a_flush_and_the_sends_of_other_threads_do_not_disturb_each_other",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "        with self._txns_lock:\n            txns = list(self._txns)\n",
            "        txns = list(self._txns)\n",
        ),
    ),
    mutation(
        "client: a send adds its transaction while a flush looks at them",
        "what was flushed lies in the log",
        f"{CLIENT_PRODUCERS}"
        "::test_a_flush_and_the_sends_of_other_threads_do_not_disturb_each_other",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "            with self._txns_lock:\n                self._txns.add(txn)\n",
            "            self._txns.add(txn)\n",
        ),
    ),
    mutation(
        "client: a flush fails by a transaction that takes nothing more",
        "what was flushed lies in the log",
        f"{CLIENT_PRODUCERS}::test_a_flush_passes_over_transactions_that_take_nothing_more",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "                txn.flush_if_open()\n",
            "                txn.flush()\n",
        ),
    ),
    mutation(
        "client: a flush stops at the first transaction that fails",
        "what was flushed lies in the log",
        f"{CLIENT_PRODUCERS}::test_a_flush_that_fails_says_so_once_the_others_are_flushed",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "                failed = failed or error\n",
            "                raise error\n",
        ),
    ),
    mutation(
        "client: a flush keeps the errors of transactions to itself",
        "what was flushed lies in the log",
        f"{CLIENT_PRODUCERS}::test_a_flush_that_fails_says_so_once_the_others_are_flushed",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "                failed = failed or error\n",
            "                failed = None\n",
        ),
    ),
    mutation(
        "client: a send that waited behind the close opens writers",
        "what is closed stays closed",
        f"{CLIENT_PRODUCERS}::test_a_send_that_waited_behind_the_close_opens_nothing",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "            self._require_open(None)  # it may have been closed while this waited\n",
            "",
        ),
    ),
    mutation(
        "client: a fork closes the writers of its parent",
        "what a fork does leaves its parent's writers open",
        f"{CLIENT_PRODUCERS}::test_the_end_of_a_producer_in_a_fork_leaves_the_parents_writers_open",
        Edit(
            f"{CLIENT_CODE}/producer.py",
            "        if os.getpid() == self._pid:\n            super().close()\n",
            "        super().close()\n",
        ),
    ),
    mutation(
        "a fork finds a lock held by a thread that it does not have",
        "no process waits for ever",
        "tests/test_process_lock.py::test_a_fork_finds_the_lock_free_whoever_has_it_in_the_parent",
        Edit(
            "pulsar_txn_spark/process_lock.py",
            "        os.register_at_fork(after_in_child=self._renew)\n",
            "",
        ),
    ),
    mutation(
        "an owner hears nothing of its lost lease",
        "what was aborted is not written on",
        f"{LEASE}::test_an_owner_hears_that_its_lease_is_lost_and_it_is_extended_no_more",
        Edit(f"{ENGINE}/lease.py", "            leased.lost(error)\n", "            pass\n"),
    ),
    mutation(
        "the lease of an owner that was dropped is extended for ever",
        "nobody waits for a transaction that nobody can end",
        f"{LEASE}::test_the_thread_ends_with_an_owner_that_is_dropped",
        Edit(f"{ENGINE}/lease.py", "= weakref.WeakKeyDictionary()", "= {}"),
    ),
    mutation(
        "a heartbeat comes after the end of its lease",
        "what a scope has staged goes with it",
        f"{LEASE}::test_the_end_of_a_lease_waits_for_a_heartbeat_of_that_moment",
        Edit(
            f"{ENGINE}/lease.py",
            "self._changed.wait_for(lambda: self._beating is not leased)",
            "pass",
        ),
    ),
    mutation(
        "a task that lost its lease writes on",
        "what was aborted is not written on",
        f"{TASKS}::test_a_task_that_lost_its_lease_writes_no_more",
        Edit(f"{SINK_CODE}/task.py", "            require_lease()\n", ""),
    ),
    mutation(
        "a scope that lost its lease writes on",
        "what was aborted is not written on",
        f"{SCOPES}::test_a_scope_that_lost_its_lease_writes_no_more",
        Edit(
            f"{SINK_CODE}/batch_transaction.py",
            "        self._lease.require()\n        name, number",
            "        name, number",
        ),
    ),
    mutation(
        "client: no lease is extended",
        "INV-8",
        f"{CLIENT}::test_a_living_client_keeps_its_lease_and_one_that_lost_it_hears_of_it",
        Edit(f"{ENGINE}/lease.py", "            leased.beat()\n", "            pass\n"),
    ),
    mutation(
        "client: a commit carries no last seen sequence number of what it acknowledged",
        "INV-11",
        f"{CLIENT}::test_a_commit_carries_the_last_seen_sequence_number_of_each_segment_that_it_touched",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        self._acknowledged.add(where.segment)\n",
            "",
        ),
    ),
    mutation(
        "client: a subscription is freed over messages acknowledged one by one",
        "INV-9",
        f"{CLIENT}::test_a_subscription_is_not_freed_over_messages_acknowledged_one_by_one",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "    if acks is not None and (acks.deleted or acks.cursor.taken_after[1]):\n",
            "    if False and acks is not None:\n",
        ),
        Edit(
            f"{LUA}/cursor_reset.lua",
            "if ranges > 0 or string.find(position, ':.*:') then",
            "if false then",
        ),
    ),
    mutation(
        "a damaged entry is taken as it came",
        "INV-11",
        f"{WIRE}::test_a_damaged_entry_is_never_a_row",
        Edit(f"{WIRE_CODE}/frames.py", "    if checksum != expected:\n", "    if False:\n"),
    ),
    mutation(
        "a reader that begins an entry early hands it out again",
        "INV-7",
        f"{WIRE}::test_a_reader_goes_on_where_it_was_cut_off",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "if position > previous:  # a subscription begins an entry early, or some",
            "if True:",
        ),
    ),
    mutation(
        "a reader takes whatever comes, however large",
        "bounded memory",
        f"{WIRE}::test_prefetched_bytes_are_bounded_even_where_sizes_jump",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "if self._queue and self._buffered_bytes + len(body) > self._limit_bytes:",
            "if False:",
        ),
    ),
    mutation(
        "a writer sends whatever it has, whether or not there are receipts",
        "bounded memory",
        f"{WIRE}::test_what_is_in_flight_is_bounded_over_all_writers",
        Edit(
            RECEIPT_LEDGER_CODE,
            "not self._bytes or self._in_flight.bytes + cost_bytes <= self._limit_bytes",
            "True or cost_bytes > 0",
        ),
    ),
    mutation(
        "a message in chunks whose beginning is missing is handed out as far as it goes",
        "INV-11",
        f"{WIRE}::test_a_message_whose_first_chunk_is_gone_is_an_error_and_no_row",
        Edit(
            f"{WIRE_CODE}/reader.py",
            "        if metadata.chunk_id > len(chunks.parts):\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "auto takes the wire transport also where an option needs pulsar-client",
        "transport",
        f"{WIRE}::test_auto_is_wire_unless_an_option_needs_the_client",
        Edit(
            "pulsar_txn_spark/backends/pulsar/transport.py",
            "    if reason is None:\n",
            "    if True:\n",
        ),
    ),
    mutation(
        "what a writer wrote behind its last receipt counts, although it goes out again",
        "INV-7",
        "tests/segments/test_changes.py::"
        "test_rows_whose_receipts_are_lost_go_out_again_under_a_new_name",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "self._left.append(replace(written, bounded=True))",
            "self._left.append(replace(written, bounded=False))",
        ),
    ),
    mutation(
        "a writer that leaves a segment is not bounded",
        "INV-7",
        f"{CHANGES}::test_what_reached_a_sealed_segment_without_a_receipt_is_not_read_twice",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "self.name, receipt, bounded=bool(rest)), rest",
            "self.name, receipt), rest",
        ),
    ),
    mutation(
        "a part of a batch that a left segment has acknowledged goes out again",
        "INV-7",
        f"{CHANGES}::test_what_reached_a_sealed_segment_without_a_receipt_is_not_read_twice",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "        if rest and receipt.messages > self._proved:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "only the segment that met the seal is left",
        "INV-10",
        f"{CHANGES}::test_rows_for_a_merged_child_do_not_overtake_those_that_wait_for_a_parent",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "for id_ in [id_ for id_ in self._open if id_ not in active]:",
            "for id_ in [id_ for id_ in self._open if id_ not in active and id_ == segment.id]:",
        ),
    ),
    mutation(
        "a sealed topic that disconnects its readers counts as a broker that is away",
        "",
        f"{LIBRARY_READER}::"
        "test_a_reader_that_a_sealed_topic_disconnects_again_and_again_leaves_the_proof_to_the_log",
        Edit(
            "pulsar_txn_spark/backends/pulsar/library/reader.py",
            ' or last == "NotConnected":',
            ":",
        ),
    ),
    mutation(
        "what a task has written to a segment that was split is no part of its transaction",
        "INV-7",
        f"{CHANGES}::test_a_segment_is_split_twice_and_merged_under_one_writer",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "            self._left.append(written)\n            rest += unproved\n",
            "            rest += unproved\n",
        ),
    ),
    mutation(
        "rows go on to the children of a segment under the old name",
        "INV-2",
        f"{CHANGES}::test_a_segment_is_split_twice_and_merged_under_one_writer",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "topology = self._successors(segment, error)\n        self._topology_generation += 1\n",
            "topology = self._successors(segment, error)\n",
        ),
    ),
    mutation(
        "a child segment is read beside its parents",
        "INV-10",
        f"{CHANGES}::test_the_children_stay_shut_until_the_parent_was_read_in_an_earlier_batch, "
        "test_a_merge_waits_for_both_parents",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "            if not all(parent in passed for parent in segment.parents):\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a merged segment waits for one of its parents only",
        "INV-10",
        f"{CHANGES}::test_a_merge_waits_for_both_parents",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "all(parent in passed for parent in segment.parents)",
            "not segment.parents or any(parent in passed for parent in segment.parents)",
        ),
    ),
    mutation(
        "who was second takes the first one's change for its own",
        "topology",
        f"{CHANGES}::test_of_two_operators_at_once_one_wins_and_the_other_is_told",
        Edit(
            f"{SEGMENTS}/changes.py",
            "                self._swap(topology, after, Step.PLAN_CHILDREN)\n",
            "                self._swap(topology, after, Step.PLAN_CHILDREN)\n"
            "            return self.finish(self._require(topic))\n",
        ),
    ),
    mutation(
        "two plans of the same segments are not told apart",
        "INV-10",
        f"{CHANGES}::test_two_plans_of_the_same_children_are_told_apart",
        Edit(
            f"{SEGMENTS}/topology.py",
            "                parents=ids,\n                change=change,\n",
            '                parents=ids,\n                change="change",\n',
        ),
    ),
    mutation(
        "the topology says sealed of a segment whose log can grow",
        "INV-10",
        f"{CHANGES}::test_nothing_is_appended_to_a_parent_once_the_topology_says_sealed",
        Edit(
            f"{SEGMENTS}/changes.py",
            "            end = self._log.seal(parent.ref)\n            if",
            "            end = self._log.last_confirmed(parent.ref)\n            if",
        ),
    ),
    mutation(
        "a sealed segment counts as read before it is",
        "INV-10",
        f"{CHANGES}::test_the_children_stay_shut_until_the_parent_was_read_in_an_earlier_batch",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "    return segment.drained_at(EARLIEST if position is None else position)\n",
            "    return segment.sealed\n",
        ),
    ),
    mutation(
        "who stands at the beginning of an empty sealed segment has read its parents",
        "INV-10",
        "tests/models/test_segment_histories.py::"
        "test_in_every_history_each_row_is_read_once_and_each_key_in_order",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "            if not all(parent in passed for parent in segment.parents):\n"
            "                continue  # whatever its own position says: rows of its ancestors "
            "come first\n"
            "            if read or deleted:\n"
            "                passed.add(segment.ref.id)\n"
            "            elif ",
            "            if read or deleted:\n"
            "                passed.add(segment.ref.id)\n"
            "            elif all(parent in passed for parent in segment.parents) and ",
        ),
    ),
    mutation(
        "a deleted segment opens its children before its parents are read",
        "INV-10",
        f"{CHANGES}::test_a_deleted_segment_does_not_open_its_children_before_its_parents_are_read",
        Edit(
            f"{SEGMENTS}/reading_order.py",
            "            if not all(parent in passed",
            "            if not deleted and not all(parent in passed",
        ),
    ),
    mutation(
        "a change of segments that lost the race leaves the first one half done",
        "INV-10",
        f"{CHANGES}::test_who_comes_second_finishes_what_the_first_one_left_half_done",
        Edit(
            f"{SEGMENTS}/changes.py",
            "                self.finish(topology)\n                raise\n",
            "                raise\n",
        ),
    ),
    mutation(
        "a sweep leaves a change of segments half done",
        "INV-10",
        f"{CHANGES}::test_a_sweep_finishes_what_an_operator_has_left_half_done",
        Edit(
            "pulsar_txn_spark/engine/components.py",
            "maintenance_tasks = [finish_deletions, let_data_go, finish_changes]",
            "maintenance_tasks = [finish_deletions, let_data_go]",
        ),
    ),
    mutation(
        "the retention of a topic that is refused keeps the others from theirs",
        "",
        f"{RETENTION}::test_a_topic_that_its_broker_refuses_keeps_no_other_from_being_swept",
        Edit(
            f"{SEGMENTS}/retention.py",
            "            except (StoreUnavailableError, SegmentLogUnreachableError):\n",
            "            except (StoreUnavailableError, PulsarTxnError):\n",
        ),
    ),
    mutation(
        "a segment that is refused keeps headers of other segments",
        "",
        f"{RETENTION}::test_a_topic_that_its_broker_refuses_keeps_no_other_from_being_swept",
        Edit(
            f"{TXN}/sweeper.py",
            "        except SegmentLogUnreachableError:\n            raise  # nothing is wrong",
            "        except SegmentLogError:\n            raise  # nothing is wrong",
        ),
    ),
    mutation(
        "a deletion that is refused keeps others from being finished",
        "",
        f"{RETENTION}"
        "::test_a_deletion_or_change_that_a_broker_refuses_keeps_no_other_from_being_finished",
        Edit(
            f"{SEGMENTS}/catalog.py",
            "            except (StoreUnavailableError, SegmentLogUnreachableError):\n",
            "            except (StoreUnavailableError, PulsarTxnError):\n",
        ),
    ),
    mutation(
        "a sweep waits for each topic of brokers that nobody reaches",
        "",
        f"{RETENTION}::test_a_sweep_ends_where_nobody_can_reach_the_brokers",
        Edit(
            f"{SEGMENTS}/retention.py",
            "            except (StoreUnavailableError, SegmentLogUnreachableError):\n",
            "            except StoreUnavailableError:\n",
        ),
    ),
    mutation(
        "a broker that is away for one topic is taken for the whole admin API",
        "",
        f"{REDIRECTS}"
        "::test_the_broker_of_one_topic_that_is_away_or_slow_says_nothing_of_the_others",
        Edit(
            f"{PULSAR}/admin_api.py",
            "            if _unconnected(failed):\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "a maintenance task that fails keeps the others from their work",
        "",
        f"{SWEEPS}::test_a_maintenance_task_that_fails_keeps_no_other_from_its_work",
        Edit(
            f"{TXN}/sweeper.py",
            "                failed.append(error)\n",
            "                raise\n",
        ),
    ),
    mutation(
        "a sweep asks for a segment that is refused again and again",
        "",
        f"{SWEEPS}::test_a_segment_that_its_broker_refuses_is_asked_for_once_in_a_sweep",
        Edit(UNAVAILABLE_CODE, "        if at > self._began:\n", "        if False:\n"),
    ),
    mutation(
        "a pass waits for every log that is not available",
        "",
        f"{UNAVAILABLE}"
        "::test_a_pass_waits_for_a_bounded_time_and_the_next_one_begins_where_it_ended",
        Edit(UNAVAILABLE_CODE, "        if self._waited_s > PATIENCE_S:\n", "        if False:\n"),
    ),
    mutation(
        "scaling ends at a topic whose broker does not serve it",
        "",
        f"{SCALING}::test_a_topic_whose_broker_does_not_answer_keeps_no_other_from_being_scaled",
        Edit(
            f"{SEGMENTS}/scaler.py",
            "            except (StoreUnavailableError, SegmentLogUnreachableError):\n",
            "            except (StoreUnavailableError, SegmentLogUnavailableError):\n",
        ),
    ),
    mutation(
        "a cut by load waits for rows that a gating broker holds back",
        "",
        f"{GATE}::test_a_cut_by_load_goes_by_the_rows_that_a_gating_broker_shows",
        Edit(
            f"{SEGMENTS}/key_load.py",
            "log.deliverable_end(segment.ref)",
            "log.last_confirmed(segment.ref)",
        ),
    ),
    mutation(
        "a cut by load counts keys that no cut moves",
        "",
        f"{SCALING}::test_keys_of_other_segments_move_no_cut",
        Edit(
            f"{SEGMENTS}/key_load.py",
            "            if segment.hash_start <= at <= segment.hash_end:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "a row of the embedded log is no change of its segment",
        "INV-14",
        f"{HISTORIES}::test_a_transaction_whose_row_was_lost_is_not_committed_though_others_use"
        "_its_position[True]",
        Edit(
            f"{EMBEDDED_CODE}/lua/append.lua",
            "if not tag[1] or (server and server ~= tag[2]) then",
            "if true then",
        ),
    ),
    mutation(
        "nobody notes the state that the receipt of a row shows",
        "INV-14",
        f"{HISTORIES}::test_a_transaction_whose_row_was_lost_is_not_committed_though_others_use"
        "_its_position[False]",
        Edit(
            f"{EMBEDDED_CODE}/log.py",
            "            if state is not None:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "an append continues the history of a server that is no more",
        "INV-14",
        f"{HISTORIES}::test_an_append_continues_no_history_of_another_server",
        Edit(
            f"{EMBEDDED_CODE}/lua/append.lua",
            "if not tag[1] or (server and server ~= tag[2]) then",
            "if not tag[1] then",
        ),
    ),
    mutation(
        "a transaction whose row was lost is decided before anybody looks",
        "INV-14",
        f"{HISTORIES}::test_a_transaction_whose_row_was_lost_is_not_committed_though_others_use"
        "_its_position[True]",
        Edit(
            f"{TXN}/coordinator.py",
            '[name for kind, _, name in tags if kind == "seg"]',
            '[name for kind, _, name in tags if kind == "segment"]',
        ),
    ),
    mutation(
        "each pass waits for the same logs first",
        "",
        f"{UNAVAILABLE}"
        "::test_a_pass_waits_for_a_bounded_time_and_the_next_one_begins_where_it_ended",
        Edit(
            UNAVAILABLE_CODE,
            "return sorted(names, key=lambda name: self._failed.get(name, never)[0])",
            "return sorted(names, key=lambda name: never)",
        ),
    ),
    mutation(
        "a source leaves a change of segments half done",
        "INV-10",
        f"{IDLE}::test_a_source_finishes_a_change_that_was_left_half_done_but_not_at_once",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "return any(now - since >= CHANGE_GRACE_PERIOD_S",
            "return any(False and now - since >= CHANGE_GRACE_PERIOD_S",
        ),
    ),
    mutation(
        "what retention has deleted of a topic that came later is no loss",
        "INV-11",
        "tests/spark/source/test_topics_pattern.py"
        "::test_a_segment_of_a_new_topic_that_retention_has_deleted_is_a_loss",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "ReadingOrder.of(topology, at)\n",
            "ReadingOrder.of(topology, at, known=topic is not None)\n",
        ),
    ),
    mutation(
        "a batch read up to a time does not see a transaction that has not appended yet",
        "INV-11",
        "tests/spark/source/test_time_offsets.py"
        "::test_a_batch_read_up_to_a_time_is_refused_while_a_transaction_from_before_it_is_open",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "return before.pinned or after.pinned",
            "return bool(before.blocked_by)",
        ),
    ),
    mutation(
        "a change of segments tells nobody who waits",
        "",
        f"{IDLE}::test_rows_in_a_child_are_found_although_nobody_has_polled_since_the_split",
        Edit(
            f"{LUA}/topology_cas.lua",
            "redis.call('XADD', KEYS[4], 'MAXLEN', '~', '64', '*', 'type', 'topology', "
            "'version', next_version)\n",
            "",
        ),
    ),
    mutation(
        "a poll of the segments misses what happens to their topic meanwhile",
        "",
        f"{IDLE}::test_rows_in_a_child_are_found_although_nobody_has_polled_since_the_split",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "self._idle.watch(segments.values(), topologies)",
            "self._idle.watch(segments.values(), ())",
        ),
    ),
    mutation(
        "a range ends where the broker shows nothing more",
        "INV-11",
        f"{LIBRARY_READER}::test_a_broker_that_shows_nothing_more_before_the_end_makes_no_range_shorter",
        Edit(
            f"{PULSAR}/log.py",
            "            if due is None:\n                return None\n            entry",
            "            if True:\n                return None\n            entry",
        ),
    ),
    mutation(
        "a log that ends before the range is taken for an empty rest",
        "INV-11",
        f"{LIBRARY_READER}::test_a_broker_that_knows_no_such_entries_yet_is_waited_for_and_then_named",
        Edit(
            f"{PULSAR}/log.py",
            "return hidden_to, None if self._may_be_gone(managed_ledger, end) else end\n",
            "return hidden_to, None\n",
        ),
    ),
    mutation(
        "each look at what may be hidden begins at the first of it",
        "INV-11",
        f"{LIBRARY_READER}::test_a_range_ends_behind_more_hidden_entries_than_a_late_broker_is_waited_for",
        Edit(
            f"{PULSAR}/log.py",
            "            hidden_to, due = self._due(segment, before, end, holes)\n",
            "            hidden_to, due = self._due(segment, previous, end, holes)\n",
        ),
    ),
    mutation(
        "what was not looked at yet counts as due",
        "INV-11",
        f"{LIBRARY_READER}::test_a_range_ends_behind_more_hidden_entries_than_a_late_broker_is_waited_for,"
        "test_an_entry_behind_many_hidden_ones_that_does_not_come_is_named_in_the_end",
        Edit(
            f"{PULSAR}/log.py",
            "            if hidden_to > before:\n                looked_up_at",
            "            if False:\n                looked_up_at",
        ),
    ),
    mutation(
        "nobody asks for entries while those that may be hidden are looked at",
        "",
        f"{LIBRARY_READER}::test_what_comes_while_hidden_entries_are_looked_at_is_taken_at_once",
        Edit(
            f"{PULSAR}/log.py",
            "        until = time.monotonic() + _LOOK_SECONDS\n",
            '        until = float("inf")\n',
        ),
    ),
    mutation(
        "one request without an answer makes a topic slow for good",
        "",
        "tests/backends/pulsar/test_entry_headers.py::"
        "test_an_admin_api_that_left_one_request_unanswered_is_asked_again_some_minutes_later",
        Edit(
            f"{PULSAR}/entry_headers.py",
            "        if self._clock() >= self._unanswered_until.get(topic, 0.0):\n",
            "        if topic not in self._unanswered_until:\n",
        ),
    ),
    mutation(
        "pulsar-client drops a message that begins before the range",
        "INV-11",
        f"{LIBRARY_READER}::test_a_message_whose_first_chunk_lies_before_the_range_is_not_dropped",
        Edit(
            f"{PULSAR}/log.py",
            "                holes.note(at, header)\n            hidden_to = at\n",
            "            hidden_to = at\n",
        ),
    ),
    mutation(
        "the id of a message in chunks names its last one only",
        "",
        f"{NATIVE}::test_the_id_of_a_message_in_chunks_says_where_it_begins",
        Edit(f"{SPARK}/rows.py", "        if firsts and start in firsts:\n", "        if False:\n"),
    ),
    # --- the lives of topics ---------------------------------------------------------------------
    mutation(
        "a topic that is half deleted comes back under its segments' ids",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "            self._take_out_of_use(now)\n        raise",
            "            self.give_up(now.segments)\n"
            "            self._take_out_of_use(now)\n        raise",
        ),
        Edit(
            f"{SEGMENTS}/catalog.py",
            "        self._list(topology)\n        return topology\n",
            "        self._list(topology)\n"
            "        for segment in topology.active:\n"
            "            self._log.create(segment.ref)\n"
            "        return topology\n",
        ),
    ),
    mutation(
        "the versions of a topology begin anew with each topic",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(
            f"{LUA}/topology_cas.lua",
            "  redis.call('HSET', KEYS[1], 'last-version', next_version)\n",
            "",
        ),
    ),
    mutation(
        "versions begin anew: a planned change",
        "INV-12",
        f"{LIFECYCLE}::test_the_version_of_a_topology_never_comes_twice, "
        "test_a_change_planned_on_a_deleted_topic_does_not_touch_the_next_one",
        Edit(
            f"{LUA}/topology_cas.lua",
            "  redis.call('HSET', KEYS[1], 'last-version', next_version)\n",
            "",
        ),
    ),
    mutation(
        "a pin stays in a segment that is shut, and its header goes",
        "INV-6",
        f"{LIFECYCLE}::test_whoever_reads_a_topic_that_is_being_deleted_meets_no_pin_without_a_header",
        Edit(
            f"{LUA}/seg_materialize.lua",
            "local closed = redis.call('HGET', KEYS[5], ARGV[5])\n",
            "if retired then return {seq, 'CLOSED'} end\n"
            "local closed = redis.call('HGET', KEYS[5], ARGV[5])\n",
        ),
    ),
    mutation(
        "a slow deletion removes whatever has the topic's name",
        "INV-12",
        f"{LIFECYCLE}::test_a_slow_deletion_does_not_delete_the_topic_that_was_created_meanwhile",
        Edit(
            f"{LUA}/topology_cas.lua",
            "if version ~= ARGV[4] then",
            "if version ~= ARGV[4] and ARGV[5] ~= '' then",
        ),
    ),
    mutation(
        "a task goes on in another topic of the same name",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            'topics.lifecycle.reread(self._topology, "this task wrote to it")',
            "topics.require(self._topic)",
        ),
    ),
    mutation(
        "the deletion of a topic leaves open who has written to it",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "        for txn in sorted(writing):\n",
            "        for txn in sorted(writing)[:0]:\n",
        ),
    ),
    mutation(
        "a segment of a deleted topic is not shut before its writers are ended",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(
            f"{LUA}/seg_fence.lua",
            "if not retired then\n",
            "if false then\n",
        ),
    ),
    mutation(
        "a name is taken out of the catalogue though it was added again",
        "INV-12",
        IN_EVERY_HISTORY,
        Edit(f"{LUA}/catalog_remove.lua", "if stamp ~= ARGV[5] then", "if false then"),
    ),
    mutation(
        "a topic is listed after it is live",
        "INV-12",
        f"{LIFECYCLE}::test_a_creation_that_died_at_any_step_blocks_nothing",
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "        # Creation step 2: listed before it is live.\n"
            "        self._store.meta.add_topic(str(topology.topic))\n",
            "",
        ),
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "        if not self.alive(topology):\n            # Deleted meanwhile: what was",
            "        self._store.meta.add_topic(str(topology.topic))\n"
            "        if not self.alive(topology):\n            # Deleted meanwhile: what was",
        ),
    ),
    mutation(
        "a name without a topic stays in the catalogue",
        "INV-12",
        f"{LIFECYCLE}::test_a_name_that_is_listed_without_a_topic_disturbs_nobody_and_goes",
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "        return self._store.meta.remove_topic(name, stamp).code is not Code.CONFLICT\n",
            "        return False\n",
        ),
    ),
    mutation(
        "a property is set on whatever topic has the name",
        "INV-12",
        f"{LIFECYCLE}::test_a_property_that_was_meant_for_a_deleted_topic_is_not_set_on_the_next_one",
        Edit(f"{LUA}/topic_property.lua", "topic[2] ~= ARGV[4]", "false"),
    ),
    mutation(
        "the retention of a topic is applied to whatever has its name",
        "INV-12",
        f"{LIFECYCLE}::test_the_retention_of_a_deleted_topic_does_not_trim_the_next_one",
        Edit(
            f"{SEGMENTS}/retention.py",
            "if now is not None and now.instance_id == topology.instance_id:",
            "if now is not None:",
        ),
    ),
    mutation(
        "a log is made anew under the id of a deleted segment",
        "INV-12",
        f"{LIFECYCLE}::test_a_log_is_never_made_anew_under_a_used_id",
        Edit(
            f"{EMBEDDED_CODE}/lua/create.lua",
            "if redis.call('HEXISTS', KEYS[2], 'retired') == 1 then",
            "if false then",
        ),
    ),
    mutation(
        "the log's server is not asked for before a topic is begun",
        "INV-12",
        f"{LIFECYCLE}::test_a_failed_creation_leaves_nothing_that_blocks_the_next_one",
        Edit(
            f"{SEGMENTS}/topic_lifecycle.py",
            "                self._require_log(planned)\n",
            "",
        ),
    ),
    mutation(
        "an entry may be as large as the broker's limit, and no bookie stores it",
        "",
        f"{WIRE}::test_a_message_larger_than_the_broker_takes_is_refused_before_it_is_sent",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "if size > allowed - ENTRY_MARGIN_BYTES:",
            "if size > allowed:",
        ),
    ),
    mutation(
        "an entry of pulsar-client may be as large as the broker's limit, and no bookie stores it",
        "",
        "tests/backends/pulsar/library/test_writer.py::"
        "test_an_entry_that_a_default_bookie_would_not_store_is_refused_before_it_is_sent",
        Edit(
            f"{LIBRARY}/writer.py",
            "            if entry.cost_bytes > allowed - ENTRY_MARGIN_BYTES:",
            "            if entry.cost_bytes > allowed:",
        ),
    ),
    mutation(
        "a topic of ours gets the name of a scalable one of Pulsar's own",
        "",
        f"{NATIVE}::"
        "test_the_name_of_a_scalable_topic_of_pulsars_own_is_refused_before_anything_is_made",
        Edit(
            f"{SEGMENTS}/catalog.py",
            "        if self._pulsar_topics is not None:\n"
            "            self._pulsar_topics.refuse_scalable(topic)\n",
            "        del topic\n",
        ),
    ),
    mutation(
        "a broker that is busy with a subscription is asked once",
        "",
        f"{NATIVE}::test_a_broker_that_is_busy_with_a_subscription_is_asked_again",
        Edit(
            f"{PULSAR}/admin_api.py",
            "if not _may_pass_later(answer) or time.monotonic() + pause_s > deadline:",
            "if True:",
        ),
    ),
    mutation(
        "a request that a broker's web server refuses by itself is sent once",
        "",
        f"{NATIVE}::test_a_request_that_the_web_server_refuses_by_itself_is_sent_again",
        Edit(
            f"{PULSAR}/admin_api.py",
            "        return _stated_reason(answer) is None\n",
            "        return False\n",
        ),
    ),
    mutation(
        "a query's start makes no cursors",
        "INV-13",
        ANY_STRETCH,
        Edit(
            f"{SOURCE_CODE}/initial_offset.py",
            "        if not subscription or not start.creates_cursors:\n",
            "        if True:\n",
        ),
        Edit(f"{SOURCE_CODE}/task.py", "{**dict(partition.starts), **own}", "own"),
    ),
    mutation(
        "a query's start makes no cursors, and rows go that it has not read",
        "INV-13",
        f"{STARTS}::test_rows_stay_in_a_topic_that_the_query_reads_and_of_which_no_task_has_read_yet,"
        "test_a_reset_to_here_stays_where_the_query_began_although_it_has_read_nothing,"
        "test_a_child_is_not_handed_over_at_its_beginning_to_a_query_that_stands_further_on",
        Edit(
            f"{SOURCE_CODE}/initial_offset.py",
            "        if not subscription or not start.creates_cursors:\n",
            "        if True:\n",
        ),
        Edit(f"{SOURCE_CODE}/task.py", "{**dict(partition.starts), **own}", "own"),
    ),
    mutation(
        "a trim does not read the cursors again",
        "INV-13",
        f"{STARTS}::test_of_a_trim_and_a_query_s_start_one_sees_the_other",
        Edit(f"{LUA}/seg_trim.lua", "  if released and released < ARGV[4] then", "  if false then"),
    ),
    mutation(
        "a cursor is made before what a trim lets go",
        "INV-13",
        f"{STARTS}::test_of_a_trim_and_a_query_s_start_one_sees_the_other",
        Edit(
            f"{LUA}/cursor_create.lua",
            "if ARGV[7] == '1' and trimmed and trimmed > position then",
            "if false then",
        ),
    ),
    mutation(
        "a child that comes while a query starts is not retained",
        "INV-13",
        f"{STARTS}::test_a_child_that_comes_while_the_query_starts_is_retained_too",
        Edit(
            f"{SOURCE_CODE}/initial_offset.py",
            "        if created is not None and "
            "set(segments) == set(readable_segments(planner.topologies())):\n",
            "        if created is not None:\n",
        ),
    ),
    mutation(
        "initial cursors of children say that their parents were read",
        "INV-13",
        f"{STARTS}::test_a_start_that_dies_half_way_is_done_again_and_skips_nothing",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            'if owned and offsets.word == "subscription":',
            'if offsets.word == "subscription":',
        ),
    ),
    mutation(
        "initial cursors are created on all servers of a cluster at once",
        "INV-13",
        "tests/store/redis/test_connection.py"
        "::test_no_initial_cursor_of_a_child_comes_before_that_of_its_parent",
        Edit(
            "pulsar_txn_spark/store/redis/subscriptions.py",
            "[_as_cursor_answer(self._scripts.run(call)) for call in calls]",
            "[_as_cursor_answer(reply) for reply in self._scripts.run_all(calls)]",
        ),
    ),
    mutation(
        "a segment's topic is there for a while without its mark",
        "one domain",
        "tests/backends/pulsar/test_gate.py"
        "::test_a_topic_is_never_there_without_the_mark_of_its_segment",
        Edit(
            f"{PULSAR}/log.py",
            "marks = {CREATED_PROPERTY: segment.id}\n        if gate",
            "marks: dict[str, str] = {}\n        if gate",
        ),
    ),
    mutation(
        "a pattern needs to read topics that it does not match",
        "",
        f"{NATIVE}::test_a_topic_that_a_pattern_does_not_match_may_have_any_name_and_be_forbidden",
        Edit(TOPIC_LOG, " or not wanted(name):\n", ":\n"),
    ),
    mutation(
        "a topic whose name cannot be read ends each query whose pattern it matches",
        "",
        f"{NATIVE}::test_a_match_whose_name_cannot_be_read_is_left_out_with_a_warning",
        Edit(
            f"{SEGMENTS}/catalog.py",
            "            return is_readable(name)\n",
            "            return True\n",
        ),
    ),
    mutation(
        "a topic that is being created for a segment is a native one",
        "one domain",
        f"{NATIVE}::test_a_pattern_finds_topics_of_one_namespace_without_those_of_the_system",
        Edit(f"{PULSAR}/native_topic_log.py", " or properties.get(CREATED_PROPERTY)", ""),
    ),
    mutation(
        "client: a dead transaction hides messages that another thread acknowledged in it",
        "INV-9",
        f"{SHARED}::test_a_message_comes_again_whose_transaction_another_thread_has_aborted",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "return txn in self._txns or txn in self._doubtful",
            "return True",
        ),
    ),
    mutation(
        "client: a copy that comes behind the commit of its message is delivered",
        "INV-9",
        f"{SHARED}::test_what_was_acknowledged_for_good_is_not_delivered_again",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            for segment, interval in self._late.pop(txn, ()):\n",
            "            for segment, interval in ():\n",
        ),
    ),
    mutation(
        "client: a returned message is delivered after it was acknowledged for good",
        "INV-9",
        f"{SHARED}::test_what_was_acknowledged_for_good_is_not_delivered_again",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "if self._redeliver and intervals:",
            "if False:",
        ),
    ),
    mutation(
        "client: what another thread has committed meanwhile is delivered again",
        "INV-9",
        f"{SHARED}::test_a_consumer_goes_on_behind_what_another_thread_has_committed",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "self._ended(where.segment, intervals, late)  # another",
            "pass  # another",
        ),
    ),
    mutation(
        "client: a returned message is delivered although a transaction acknowledges it",
        "INV-9",
        f"{SHARED}::test_a_returned_message_waits_for_the_transaction_that_acknowledges_it",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "if not self._claims_of(message.segment).contains(message.position):",
            "if messages is self._redeliver or not self._claims_of("
            "message.segment).contains(message.position):",
        ),
    ),
    mutation(
        "a start that was cut short is taken for one that came further",
        "INV-13",
        f"{STARTS}::test_a_start_that_dies_half_way_is_done_again_and_skips_nothing",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            "        if number_of(segment) >= numbers.get(name, topology.next_segment)\n",
            "",
        ),
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "begun = ending.begun if start == self._initial else None",
            "begun = None",
        ),
    ),
    mutation(
        "of several starts that died the last one says what came later",
        "INV-13",
        f"{STARTS}::"
        "test_a_segment_that_came_between_two_starts_that_died_is_read_from_its_first_row",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            "min(cursor.next_segment, numbers.get(topic, cursor.next_segment))",
            "cursor.next_segment",
        ),
    ),
    mutation(
        "a topic that came between two starts that died is begun as the others",
        "INV-13",
        f"{STARTS}::test_a_topic_that_came_between_two_starts_that_died_is_read_from_its_first_row",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            "if marked and stamp > min(marked)",
            "if False",
        ),
    ),
    mutation(
        "each topic that a start has died before passes for a later one",
        "INV-13",
        f"{STARTS}::test_a_topic_that_a_start_has_died_before_is_no_later_one",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            "if marked and stamp > min(marked)",
            "if marked",
        ),
    ),
    mutation(
        "of several starts that died the last one says which topics came later",
        "INV-13",
        f"{STARTS}::test_of_several_starts_that_died_the_first_one_says_which_topics_came_later",
        Edit(
            f"{SOURCE_CODE}/starting_offsets.py",
            "stamp > min(marked)",
            "stamp > max(marked)",
        ),
    ),
    mutation(
        "a start skips what retention has deleted of a later topic",
        "INV-11",
        f"{STARTS}::test_what_retention_has_deleted_of_a_later_topic_is_not_skipped_in_silence",
        Edit(
            f"{SOURCE_CODE}/initial_offset.py",
            "                may_skip=key not in start.known\n                and segment",
            "                may_skip=segment",
        ),
    ),
    mutation(
        "a repeated first batch begins elsewhere",
        "INV-7",
        f"{STARTS}::test_a_first_batch_without_a_subscription_is_repeated_from_where_it_began",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "begun = ending.begun if start == self._initial else None",
            "begun = None",
        ),
    ),
    mutation(
        "a task that claims registers no plan",
        "INV-9",
        "tests/txn/test_plans.py"
        "::test_a_task_asks_for_its_segments_and_registers_its_plan_in_one_round_trip",
        Edit(
            "pulsar_txn_spark/store/redis/subscriptions.py",
            "[*calls, plan_call(query, batch, source, plan)]",
            "calls",
        ),
    ),
    mutation(
        "a task reads a segment whose subscription it was refused",
        "INV-9",
        f"{STARTS}::test_a_query_reads_nothing_of_a_subscription_that_is_anothers",
        Edit(f"{SOURCE_CODE}/task.py", "    require(own, answers)\n", ""),
    ),
    mutation(
        "the header that a process knows stands for whichever the pointer names",
        "INV-8",
        f"{BATCH}::test_a_process_takes_the_header_of_no_other_transaction_for_that_of_the_pointer",
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "if header is None or header.txn != txn:",
            "if header is None:",
        ),
    ),
    mutation(
        "a segment takes a decision over the other one",
        "INV-1",
        f"{HISTORIES}::test_a_decision_that_its_header_lost_stops_every_attempt_at_the_batch, "
        "test_a_commit_does_not_succeed_where_its_header_lost_an_abort[True], "
        "test_a_commit_does_not_succeed_where_its_header_lost_an_abort[False]",
        Edit(
            f"{LUA}/seg_materialize.lua", "if decided and decided ~= ARGV[7] then", "if false then"
        ),
    ),
    mutation(
        "a segment that has materialized the other decision stops nobody",
        "INV-1",
        f"{HISTORIES}::test_a_decision_that_its_header_lost_stops_every_attempt_at_the_batch, "
        "test_a_commit_does_not_succeed_where_its_header_lost_an_abort[True], "
        "test_a_commit_does_not_succeed_where_its_header_lost_an_abort[False]",
        Edit(f"{TXN}/coordinator.py", "if answer.code is Code.CONFLICT:", "if False:"),
    ),
    mutation(
        "segments materialize a decision although another one has the other mark",
        "INV-1",
        f"{HISTORIES}"
        "::test_a_decision_is_materialized_nowhere_if_one_segment_has_the_other_one, "
        "test_a_decision_is_materialized_nowhere_if_one_segment_lost_what_it_has_seen",
        Edit(
            f"{TXN}/coordinator.py",
            "        self._require_no_other_mark(header, participants.segments)\n",
            "",
        ),
    ),
    mutation(
        "a segment whose topic is being deleted hides what it has materialized",
        "INV-1",
        f"{HISTORIES}"
        "::test_a_segment_says_what_it_has_materialized_also_while_its_topic_is_being_deleted",
        Edit(
            f"{LUA}/seg_is_materialized.lua", "if decided then", "if decided and not retired then"
        ),
    ),
    mutation(
        "a commit does not note the sink's pointer with its query",
        "INV-14",
        f"{HISTORIES}"
        "::test_a_pointer_that_its_server_lost_stops_every_attempt_at_the_batch[True-behind], "
        "test_a_pointer_that_its_server_lost_stops_every_attempt_at_the_batch[False-overtaken]",
        Edit(
            f"{TXN}/batch.py",
            "        if self._store.merged.possible or not seen.seq:\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a batch begins whatever pointer its query has noted",
        "INV-14",
        f"{HISTORIES}"
        "::test_a_pointer_that_its_server_lost_stops_every_attempt_at_the_batch[False-behind], "
        "test_a_pointer_that_its_server_lost_stops_every_attempt_at_the_batch[True-overtaken]",
        Edit(f"{REDIS}/sinks.py", "        if reply[2]:\n", "        if False:\n"),
    ),
    mutation(
        "a task does not say which pointer it has begun with",
        "INV-14",
        "tests/spark/sink/test_task.py"
        "::test_a_batch_does_not_begin_again_whose_pointer_the_store_has_lost",
        Edit(
            f"{SINK_CODE}/task.py",
            '                tags.append(f"sink:{attempt.key.sink}")\n',
            "                pass\n",
        ),
    ),
    mutation(
        "a late commit notes an older pointer over a newer one",
        "INV-14",
        f"{HISTORIES}"
        "::test_a_query_knows_the_newest_pointer_and_forgets_those_of_sinks_that_it_forgets",
        Edit(
            f"{LUA}/sink_seen.lua",
            "tonumber(string.match(noted, '^%d+')) >= tonumber(ARGV[5])",
            "false",
        ),
    ),
    mutation(
        "a transaction that got a lost number again passes for the one that the pointer names",
        "INV-8",
        f"{HISTORIES}::test_a_transaction_number_that_was_given_again_is_not_taken_for_the_batch",
        Edit(
            f"{TXN}/batch.py",
            "if header is not None and header.nonce != pointer.nonce:",
            "if False:",
        ),
    ),
    mutation(
        "a source takes a transaction that got a lost number again for that of the batch",
        "INV-11",
        f"{HISTORIES}::test_a_transaction_number_that_was_given_again_is_not_taken_for_the_batch",
        Edit(f"{TXN}/committed.py", "header.nonce == pointer.nonce and ", ""),
    ),
    mutation(
        "a commit does not look for what its tasks have seen of the store",
        "INV-14",
        "tests/spark/sink/test_task.py"
        "::test_a_commit_notices_that_the_store_has_lost_what_a_task_had_written",
        Edit(
            "pulsar_txn_spark/txn/batch.py",
            "            self._store.raise_last_seen(noted_in(task))\n",
            "",
        ),
    ),
    mutation(
        "the names of a topic are topics of their own",
        "INV-10",
        "tests/spark/sink/test_task.py"
        "::test_rows_of_a_topic_that_is_named_in_several_ways_stay_in_order",
        Edit(
            "pulsar_txn_spark/spark/sink/task.py",
            "        for topic, indexes in named.items():\n            if len(named) == 1:",
            "        for topic, indexes in ((t, [i]) for t, many in named.items() for i in many):\n"
            "            if False:",
        ),
    ),
    mutation(
        "rows that an interrupt has taken along are no failure of a client's transaction",
        "INV-11",
        "tests/client/test_partial_failures.py"
        "::test_rows_that_an_interrupt_has_taken_along_are_missed_by_the_commit",
        Edit(
            "pulsar_txn_spark/client/transaction.py",
            "        except BaseException as error:  # an interrupt, too",
            "        except PulsarTxnError as error:  # an interrupt, too",
        ),
    ),
    mutation(
        "an acknowledgement that its consumer refuses is no failure of the transaction",
        "INV-11",
        "tests/client/test_partial_failures.py"
        "::test_an_acknowledgement_that_its_consumer_refuses_is_missed_by_the_commit",
        Edit(
            "pulsar_txn_spark/client/transaction.py",
            "            self.fail(error)\n",
            "            del error\n",
        ),
    ),
    mutation(
        "a message that came for a cancelled task overtakes those that come again",
        "INV-10",
        "tests/client/test_partial_failures.py"
        "::test_a_message_for_a_cancelled_task_waits_for_those_that_come_again_before_it",
        Edit(
            "pulsar_txn_spark/client/aio.py",
            "if not self._consumer.comes_again(message):",
            "if True:",
        ),
    ),
    mutation(
        "what descends from a named segment begins at its end",
        "INV-10",
        f"{STARTS}"
        "::test_behind_a_position_in_a_parent_every_row_of_its_descendants_is_read[position-none]",
        Edit(
            f"{SOURCE_CODE}/offset_options.py",
            "                    positions.setdefault(topic, {})[segment.descriptor] = EARLIEST",
            "                    del topic",
        ),
    ),
    mutation(
        "what descends from a segment with a named time begins at its end",
        "INV-10",
        f"{STARTS}"
        "::test_behind_a_position_in_a_parent_every_row_of_its_descendants_is_read[time-none]",
        Edit(
            f"{SOURCE_CODE}/offset_options.py",
            "*(times if isinstance(times, Mapping) else ())",
            "*()",
        ),
    ),
    mutation(
        "only the children of a named segment begin at their first row, and not theirs",
        "INV-10",
        f"{STARTS}"
        "::test_behind_a_position_in_a_parent_every_row_of_its_descendants_is_read[position-none]",
        Edit(
            f"{SOURCE_CODE}/offset_options.py",
            "                behind.add(segment.ref.id)\n                if segment",
            "                if segment",
        ),
    ),
    mutation(
        "a cursor in what descends from a named segment skips what retention has deleted",
        "INV-11",
        f"{STARTS}"
        "::test_rows_of_a_descendant_that_retention_has_deleted_are_not_skipped_in_silence",
        Edit(
            f"{SOURCE_CODE}/initial_offset.py",
            "    named = offsets.positions\n",
            "    named = start.offsets.positions\n",
        ),
    ),
    mutation(
        "offsets that name no position are taken for the word latest",
        "INV-11",
        f"{OPTION_TESTS}::test_malformed_offsets_are_refused",
        Edit(
            f"{OPTION_CODE}/values.py",
            "        if not any(positions.values()):",
            "        if False:",
        ),
    ),
    mutation(
        "a batch read of a pattern that matches no topic returns nothing",
        "INV-11",
        f"{PATTERNS}::test_a_batch_read_of_a_pattern_that_matches_nothing_is_an_error",
        Edit(f"{SOURCE_CODE}/topics.py", "        if is_batch:\n", "        if False:\n"),
    ),
    mutation(
        "a topic is read together with a partition of it",
        "INV-11",
        f"{PATTERNS}::test_a_topic_and_a_partition_of_it_are_not_read_both",
        Edit(
            f"{SOURCE_CODE}/topics.py",
            "        _require_disjoint(finished)\n        return",
            "        return",
        ),
    ),
    mutation(
        "a topic that is only not named any more is taken for a deleted one",
        "INV-11",
        f"{PATTERNS}::test_a_topic_that_is_only_not_named_any_more_is_no_loss_that_may_be_accepted",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            if self._fail_on_data_loss and name not in topologies:",
            "            if False:",
        ),
    ),
    mutation(
        "a topic that was created again is taken for one that is only not named any more",
        "INV-12",
        f"{PATTERNS}::test_a_topic_that_is_another_one_by_now_is_a_loss_also_if_it_is_not_named",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "return topology is not None and topology.instance_id == instance_id",
            "return topology is not None",
        ),
    ),
    mutation(
        "credentials without a URL mean the embedded server",
        "INV-12",
        f"{OPTION_TESTS}::test_an_option_that_means_nothing_beside_the_others_is_refused",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            "            if key in self._values and not any(",
            "            if not key and not any(",
        ),
    ),
    mutation(
        "a check of host names is asked of a connection without TLS",
        "INV-12",
        f"{OPTION_TESTS}::test_an_option_that_means_nothing_beside_the_others_is_refused",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            '        if is_plain and "store.tls.verifyHost" in self._values:',
            "        if False:",
        ),
    ),
    mutation(
        "evidence of replays is asked of a sink without transactions",
        "INV-15",
        f"{OPTION_TESTS}::test_an_option_that_means_nothing_beside_the_others_is_refused",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            '        if self._values.get("transactions") is False:',
            "        if False:",
        ),
    ),
    mutation(
        "a path beside a topic is not heeded",
        "INV-12",
        f"{OPTION_TESTS}::test_a_topic_and_a_path_are_not_both_named",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            '            if "path" in self._values and key in self._values:',
            "            if False:",
        ),
    ),
    mutation(
        "a URL of the store names two databases",
        "INV-12",
        "tests/store/redis/test_connection.py"
        "::test_a_malformed_address_is_refused_without_being_shown",
        Edit(
            f"{REDIS}/endpoint.py",
            '        if text:\n            raise _malformed("it names',
            '        if False:\n            raise _malformed("it names',
        ),
    ),
    mutation(
        "the embedded server's folder is another one in another working folder",
        "INV-12",
        f"{OPTION_TESTS}::test_the_embedded_server_s_folder_is_one_wherever_the_options_go",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            '            self.raw["store.path"] = self._values["store.path"]',
            "            pass",
        ),
    ),
    mutation(
        "the embedded server's default folder is another one in another home",
        "INV-12",
        f"{OPTION_TESTS}::test_the_embedded_server_s_folder_is_one_wherever_the_options_go",
        Edit(
            f"{OPTION_CODE}/parsed.py",
            'path=None if url is not None else str(server_folder(self.get("store.path"))),',
            'path=self.get("store.path"),',
        ),
    ),
    mutation(
        "a table's folder is another one in another working folder",
        "INV-12",
        "tests/spark/test_catalog_table.py"
        "::test_a_table_keeps_the_folder_that_its_options_meant_where_it_was_made",
        Edit(
            f"{SPARK}/catalog_table.py",
            "    comment = to_comment({**created, **folders})",
            "    comment = to_comment(created)",
        ),
    ),
    mutation(
        "a native writer goes on in another topic of the same name",
        "INV-12",
        f"{NATIVE_SINK}::test_a_transaction_does_not_go_on_in_another_topic_of_the_same_name",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "        is_other = self._native and acknowledged >= 0",
            "        is_other = False",
        ),
    ),
    mutation(
        "a task registers its plan before its claim",
        "INV-9",
        "tests/spark/source/test_claims.py::test_a_task_that_dies_before_its_claim_leaves_no_plan",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "    is_known = _CLAIMED.has(source, own)",
            "    is_known = True",
        ),
    ),
    mutation(
        "an end that a log has shown is forgotten while another log is waited for",
        "INV-11",
        "tests/spark/source/test_planner.py"
        "::test_an_end_that_a_log_has_shown_stays_while_another_one_is_waited_for",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "if segment not in best or best[segment].last_confirmed < taken.last_confirmed:",
            "if True:",
        ),
        Edit(
            f"{SOURCE_CODE}/task.py",
            "segments = [range_.segment for range_ in behind]",
            "segments = [range_.segment for range_ in ranges]",
        ),
    ),
    mutation(
        "acknowledged rows that a closed ledger lacks are passed over",
        "INV-11",
        f"{CLOSED_LEDGERS}"
        "::test_acknowledged_rows_that_a_closed_ledger_lacks_are_never_passed_over",
        Edit(f"{PULSAR}/log.py", "            self._check_end(wanted)\n", "            pass\n"),
    ),
    mutation(
        "a task that may skip what is lost sees no loss within its log",
        "INV-11",
        "tests/spark/source/test_planner.py"
        "::test_a_batch_ends_where_a_closed_ledger_of_it_ends_if_that_is_allowed",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "snapshot.last_up_to(range_.end)",
            "min(range_.end, snapshot.last_confirmed)",
        ),
    ),
    mutation(
        "a task claims one of its segments only",
        "INV-13",
        f"{STARTS}::test_a_task_claims_each_segment_that_it_reads",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "    is_known = _CLAIMED.has(source, own)\n",
            "    own = dict([*own.items()][:1])\n    is_known = _CLAIMED.has(source, own)\n",
        ),
    ),
    mutation(
        "a payload that came with its index overtakes those before it",
        "INV-10",
        f"{EMBEDDED}::test_more_entries_than_one_scan_or_one_fetch_takes_are_read_whole",
        Edit(
            f"{EMBEDDED_CODE}/log.py",
            "(is_here or not seen or size + entry.bytes > _FETCH_BYTES)",
            "(not seen or size + entry.bytes > _FETCH_BYTES)",
        ),
    ),
    mutation(
        "the first task claims only where it reads",
        "INV-13",
        f"{STARTS}::test_the_first_task_takes_the_subscription_in_every_segment",
        Edit(f"{SOURCE_CODE}/task.py", "{**dict(partition.starts), **own}", "own"),
    ),
    mutation(
        "a query that was reset keeps a segment from its successor",
        "INV-9",
        f"{STARTS}::test_a_query_that_was_reset_keeps_nothing_from_its_successor",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "for asks_only in (True, False):",
            "for asks_only in (False,):",
        ),
    ),
    mutation(
        "a reset does not shut out the queries that have started before",
        "INV-9",
        f"{STARTS}::test_a_query_that_claims_while_it_is_reset_keeps_nothing_from_its_successor",
        Edit(f"{LUA}/cursor_reset.lua", "local source = ARGV[9]\n", "local source = '0'\n"),
    ),
    mutation(
        "who was shut out by a reset comes back where retention hands the subscription over",
        "INV-9",
        f"{STARTS}::test_a_query_that_was_reset_does_not_go_on_where_its_segment_was_deleted",
        Edit(f"{LUA}/cursor_inherit.lua", "'source', ARGV[8],", "'source', '0',"),
    ),
    mutation(
        "a reset writes back where it has seen the cursor",
        "INV-13",
        f"{ADMINS}::test_a_reset_to_here_keeps_what_is_committed_while_it_runs",
        Edit(
            f"{LUA}/cursor_reset.lua",
            "if position == '' then\n",
            "if position == '' then\n  cursor[1] = ARGV[7]\n",
        ),
    ),
    mutation(
        "a reset moves a cursor that has moved meanwhile",
        "INV-13",
        f"{ADMINS}::test_a_reset_that_finds_the_cursor_moved_reads_it_again",
        Edit(
            f"{LUA}/cursor_reset.lua",
            "(ARGV[5] ~= '' and (cursor[1] or '') ~= ARGV[7]) then",
            "false then",
        ),
    ),
    mutation(
        "a reset and a deletion wait for a decided or an expired transaction for ever",
        "INV-13",
        f"{ADMINS}::test_a_decided_transaction_is_completed_on_behalf_of_its_dead_owner,"
        "test_an_expired_transaction_is_aborted_first",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "        if not components.coordinator.complete_on_behalf(holders, missing):\n",
            "        if True:\n",
        ),
    ),
    mutation(
        "a reset passes over a log that is gone though somebody needs it",
        "no loss in silence",
        f"{ADMINS}::test_a_log_that_is_gone_though_somebody_needs_it_is_an_error_of_the_reset",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "                raise\n            return None\n",
            "                return None\n            return None\n",
        ),
    ),
    mutation(
        "client: a subscription that was deleted beside its claim passes for read",
        "INV-13",
        f"{CLIENT}::test_a_consumer_whose_subscription_is_deleted_while_it_takes_over_is_told",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "            if not self._components.store.segments."
            "retained([where.segment])[0].retired:\n",
            "            if False:\n",
        ),
    ),
    mutation(
        "a running query takes a subscription back after a reset",
        "INV-13",
        f"{ADMINS}::test_a_query_that_runs_cannot_take_a_subscription_back,"
        "test_a_query_that_goes_on_elsewhere_does_not_take_a_subscription_that_was_moved",
        Edit(
            f"{LUA}/cursor_claim.lua",
            "  if tonumber(cursor[2] or '0') >= tonumber(ARGV[5])\n"
            "      or (cursor[5] == '1' and ARGV[8] == '1' and cursor[3] ~= ARGV[6]) then\n",
            "  if false then\n",
        ),
    ),
    mutation(
        "a client at the end skips the children of children that it has not polled",
        "INV-10",
        f"{CLIENT}::test_a_subscription_at_the_end_misses_nothing_of_children_s_children",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "            if (had | came_later).intersection(segment.parents):\n",
            "            if had.intersection(segment.parents):\n",
        ),
    ),
    mutation(
        "rows that are gone are an error although their batch is committed",
        "INV-7",
        f"{STARTS}::test_a_committed_batch_is_replayed_although_its_segment_was_deleted",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "not batch_is_committed(components.store, facts.query, facts.batch)",
            "facts.query",
        ),
    ),
    mutation(
        "rows that are gone are skipped although their batch is not committed",
        "INV-11",
        f"{STARTS}::test_a_batch_that_one_of_two_sinks_has_not_committed_is_an_error",
        Edit(
            f"{SOURCE_CODE}/task.py",
            "not facts.query or not batch_is_committed(components.store, facts.query, facts.batch)",
            "False",
        ),
    ),
    # --- receipts of pulsar-client ----------------------------------------------------------------
    mutation(
        "pulsar-client's 'deduplicated' counts as acknowledged",
        "",
        "tests/backends/pulsar/library/test_writer.py::test_a_deduplicated_row_is_not_acknowledged",
        Edit(
            RECEIPT_LEDGER_CODE,
            "        if position.ledger < 0 or position.entry < 0:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a batch of pulsar-client's that did not go whole counts as acknowledged",
        "",
        "tests/backends/pulsar/library/test_writer.py::test_a_batch_that_did_not_go_whole_is_not_acknowledged",
        Edit(
            RECEIPT_LEDGER_CODE,
            "        if rows is not None and rows != entry.rows:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a receipt of pulsar-client's may name a position from before",
        "",
        "tests/backends/pulsar/library/test_writer.py::test_a_position_that_does_not_grow_is_not_believed",
        Edit(
            RECEIPT_LEDGER_CODE,
            "        if position <= self._sums.highest:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "only the failed row is sent again",
        "",
        f"{CHANGES}::test_everything_from_the_first_row_without_a_receipt_on_goes_out_again",
        Edit(
            "pulsar_txn_spark/engine/topic_writers.py",
            "        rest = list(self._unproved)\n        if rest and receipt",
            "        rest = list(self._unproved)[:1]\n        if rest and receipt",
        ),
    ),
    mutation(
        "the floor rises behind an older last position of the log",
        "INV-5",
        f"{SWEEPS}::"
        "test_a_broker_that_answers_with_an_older_last_position_makes_no_committed_row_invisible",
        Edit(f"{LUA}/seg_floor.lua", "  if high and high > last then", "  if false then"),
    ),
    mutation(
        "with Trigger.AvailableNow a micro-batch waits for messages that never come",
        "",
        f"{DELAYS}::"
        "test_a_micro_batch_waits_for_messages_or_for_the_delay_and_the_first_one_for_nothing",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "            if self._available is None and self._delay",
            "            if self._delay",
        ),
    ),
    mutation(
        "what is left in a sealed segment waits for messages that it never gets",
        "",
        f"{DELAYS}::"
        "test_what_is_left_in_sealed_segments_does_not_wait_if_their_children_have_the_messages",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "lambda: self._messages_ahead(topologies, positions)",
            "lambda: sum(b.messages for b in self._backlogs(starts, ends).values())",
        ),
    ),
    mutation(
        "messages that cannot be read yet begin one small micro-batch after another",
        "",
        f"{DELAYS}::test_messages_behind_those_that_a_transaction_holds_back_do_not_count",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "self._snapshot.readable.items() if key in reach}",
            "self._snapshot.readable.items()}",
        ),
    ),
    # --- positions at a time ---------------------------------------------------------------------
    mutation(
        "a search for a time takes clocks to be in order",
        "no message since the time is skipped",
        "tests/segments/test_publish_times.py"
        "::test_times_that_are_out_of_order_by_less_than_the_skew_hide_no_entry",
        Edit(
            f"{SEGMENTS}/publish_times.py",
            "max(search(boundary, time_ms - CLOCK_SKEW_MS), boundary - SCANNED_ENTRIES)",
            "boundary",
        ),
    ),
    mutation(
        "a query starts in a child by the clock of its producer",
        "INV-10",
        f"{TIMES}::"
        "test_behind_a_younger_parent_a_child_is_read_from_its_beginning_whatever_its_clock_says",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "            is_later = any(parent in reached for parent in segment.parents)\n",
            "            is_later = False\n",
        ),
    ),
    mutation(
        "a parent that is older than the time is read nevertheless",
        "a position at a time is the first message since then",
        f"{TIMES}::"
        "test_a_parent_that_is_older_counts_as_read_and_a_younger_one_comes_before_its_child",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "            position = segment.sealed_at  # all of it is older: it counts as read\n",
            "            position = EARLIEST\n",
        ),
    ),
    mutation(
        "a time after every message starts at the latest position, whatever the strategy",
        "a wrong option is refused",
        f"{TIMES}::test_a_time_after_every_message_is_an_error_or_the_latest_position",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "    if unmatched and planner",
            "    if not unmatched and planner",
        ),
    ),
    mutation(
        "the latest position is asked for after the search for a time",
        "no message since the time is skipped",
        f"{TIMES}::test_a_message_that_comes_during_the_search_is_not_skipped",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "            position = latest[key]\n",
            "            position = planner.readable({key: segment.ref})[key].end\n",
        ),
    ),
    mutation(
        "a batch up to a time leaves out what an open transaction hides",
        "batch reads whose times meet read each row once",
        f"{TIMES}::"
        "test_a_batch_read_up_to_a_time_is_refused_while_a_transaction_from_before_it_is_open",
        Edit(
            f"{SOURCE_CODE}/time_offsets.py",
            "        if is_blocked:\n",
            "        if False:\n",
        ),
    ),
    mutation(
        "a job file with a secret in it is taken",
        "a secret is in no file that is passed on",
        "tests/job/test_secrets.py::test_a_secret_in_the_file_is_refused_and_not_shown",
        Edit(
            f"{JOB}/secrets.py",
            "    return may_be_secret(key) and bool(text.strip())\n",
            "    return False\n",
        ),
    ),
    mutation(
        "a file that everybody may read holds a URL with a password",
        "a secret is in no file that is passed on",
        "tests/test_secrets.py::test_a_file_that_cannot_be_taken_is_refused_without_its_text",
        Edit(
            "pulsar_txn_spark/options/table.py",
            "    return is_secret(key) and (not is_address or redacted(text) != text)\n",
            "    return is_secret(key) and not is_address\n",
        ),
    ),
    mutation(
        "a job that is to stop begins another micro-batch",
        "a stop is in order",
        "tests/job/test_execution.py::test_no_micro_batch_begins_once_the_job_is_to_stop",
        Edit(
            f"{JOB}/execution.py",
            "        if self._stop.requested.is_set():\n            raise _StoppedError\n",
            "",
        ),
    ),
    mutation(
        "a job that is to stop interrupts its running micro-batch",
        "a stop is in order",
        "tests/job/test_execution.py::test_a_running_micro_batch_ends_before_the_query_is_stopped",
        Edit(
            f"{JOB}/execution.py",
            '    while is_active := query.status["isTriggerActive"]:\n',
            "    while is_active := False:\n",
        ),
    ),
    mutation(
        "a topic that comes while the query runs is read from its latest message",
        "a new topic is read from its beginning",
        f"{PATTERNS}::test_a_new_topic_is_read_from_its_first_message",
        Edit(
            f"{SOURCE_CODE}/stream.py",
            "        key: (starts.get(key, EARLIEST), end)\n",
            "        key: (starts.get(key, end), end)\n",
        ),
    ),
    mutation(
        "a deleted topic is skipped in silence",
        "INV-11",
        f"{PATTERNS}::test_a_deleted_topic_is_a_loss_that_stops_the_query",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "            self._skip(deletion, _deleted_topic_error)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "a topic that was created again is read on behind the old one's position",
        "INV-12",
        f"{PATTERNS}::test_without_fail_on_data_loss_"
        "a_deleted_topic_is_skipped_and_a_new_one_of_its_name_is_read",
        Edit(
            f"{SOURCE_CODE}/planner.py",
            "        offset = offset.without(deletions)\n",
            "",
        ),
    ),
    mutation(
        "transaction bits go to a broker that does not gate",
        "",
        f"{GATE}::test_no_bits_go_to_a_broker_without_the_plug_in",
        Edit(f"{PULSAR}/log.py", "                self._require_gate(segment)\n", ""),
    ),
    mutation(
        "a topic is marked as gated only after its creation",
        "",
        f"{GATE}::test_a_topic_is_marked_as_gated_when_it_is_created",
        Edit(
            f"{PULSAR}/log.py",
            "self._admin.create_topic(topic, marks)",
            "self._admin.create_topic(topic)",
        ),
    ),
    mutation(
        "a transaction writes to a gated segment without bits",
        "INV-2",
        f"{GATE}::test_a_transaction_s_writer_carries_bits_where_the_broker_gates",
        Edit(f"{PULSAR}/log.py", "bits = TxnBits.of_writer(name)", "bits = None"),
    ),
    mutation(
        "the entry's metadata lack the transaction bits of the command",
        "INV-2",
        f"{WIRE}::"
        "test_the_transaction_bits_stand_in_the_command_and_in_the_entry_after_a_reconnect_too",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "            metadata.txnid_most_bits, metadata.txnid_least_bits = self._bits\n",
            "",
        ),
    ),
    mutation(
        "versions without transaction bits write to gated topics",
        "INV-2",
        "tests/segments/test_topology.py::"
        "test_a_topic_that_brokers_gate_lies_on_another_backend_for_versions_without_bits",
        Edit(
            f"{SEGMENTS}/topology.py",
            'backend=self.backend + (_GATED if self.gate_store else ""),',
            "backend=self.backend,",
        ),
    ),
    mutation(
        "the children of a gated topic's segments are not gated",
        "INV-2",
        f"{CHANGES}::test_the_children_of_a_gated_segment_are_created_as_gated",
        Edit(
            f"{SEGMENTS}/changes.py",
            "self._log.create(child.ref, topology.gate_store)",
            "self._log.create(child.ref)",
        ),
    ),
    mutation(
        "a reset to a time takes nothing but the latest position",
        "INV-13",
        f"{ANY_STRETCH}",
        Edit(
            "pulsar_txn_spark/admin/reset_target.py",
            "            end = end if position is None else min(position, end)\n",
            "",
        ),
    ),
    mutation(
        "a reset takes the position of another topic's segment",
        "INV-12",
        f"{ADMINS}::test_a_reset_refuses_positions_of_another_topic_or_of_an_earlier_life",
        Edit(
            "pulsar_txn_spark/admin/reset_target.py",
            "topology.segment(name)",
            'topology.segment(name.rpartition("/")[2])',
        ),
    ),
    mutation(
        "a reset takes the positions of another topic",
        "INV-12",
        f"{ADMINS}::test_a_reset_refuses_positions_of_another_topic_or_of_an_earlier_life",
        Edit(
            "pulsar_txn_spark/admin/reset_target.py",
            "if self.topic and self.topic != str(topology.topic):",
            "if False:",
        ),
    ),
    mutation(
        "a query starts at a position of an earlier life of its topic",
        "INV-12",
        f"{STARTS}::test_positions_by_the_id_of_an_earlier_life_of_a_topic_are_refused",
        Edit(
            f"{SOURCE_CODE}/offset_options.py",
            ' or ("/" in name and name != segments[key].id)',
            "",
        ),
    ),
    mutation(
        "a reset to a time skips what an open transaction hides",
        "INV-13",
        f"{ADMINS}::test_what_is_not_decided_yet_is_not_skipped_however_old_it_is",
        Edit(
            "pulsar_txn_spark/admin/reset_target.py",
            "            end = end if position is None else min(position, end)\n",
            "            end = components.log.last_confirmed(segment.ref)\n",
        ),
    ),
    mutation(
        "a reset to a time goes by the clock of a child's producer",
        "INV-10",
        f"{ADMINS}::"
        "test_a_reset_to_a_time_begins_a_child_at_its_beginning_if_its_parent_is_not_read",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "        is_later = any(parent in unread for parent in segment.parents)\n",
            "        is_later = False\n",
        ),
    ),
    mutation(
        "a reset to a time forgets behind an empty segment what its parent has later",
        "INV-10",
        f"{ADMINS}::test_a_reset_to_a_time_says_behind_an_empty_segment_what_its_parent_says",
        Edit(
            "pulsar_txn_spark/admin/subscriptions.py",
            "        if is_later or (move is not None and _leaves_unread(segment, move)):\n",
            "        if move is not None and _leaves_unread(segment, move):\n",
        ),
    ),
    # --- the plug-in of brokers: its own tests run when the jar is built --------------------------
    mutation(
        "acknowledgements in one batch of unknown size overlap behind its end",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/HandledSubscription.java",
            "    bits.flip(0, batchSize);\n    return bits.get(0, batchSize);\n",
            "    bits.flip(0, batchSize > 0 ? batchSize : left.length * Long.SIZE);\n"
            "    return batchSize > 0 ? bits.get(0, batchSize) : bits;\n",
        ),
    ),
    mutation(
        "an acknowledgement of nothing leaves a record",
        "what nobody needs is forgotten",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStore.java",
            "    if (positions.isEmpty()) {",
            "    if (false) {",
        ),
    ),
    mutation(
        "an empty record of an earlier version stops the polls of its subscription",
        "what nobody needs is forgotten",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckPoller.java",
            "                .filter(record -> !record.entries().isEmpty()) "
            "// as earlier versions wrote them\n",
            "",
        ),
    ),
    mutation(
        "a broker's buffer appends before it blocks consumers",
        "INV-2",
        JAR,
        Edit(f"{BROKER_CODE}/BufferAppends.java", "    writers.add(fresh);\n", ""),
    ),
    mutation(
        "a broker's buffer shows entries before it has recovered",
        "INV-4",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferWriters.java",
            "maxReadPosition = PositionFactory.EARLIEST;",
            "maxReadPosition = PositionFactory.LATEST;",
        ),
    ),
    mutation(
        "a broker's buffer forgets pins when it recovers",
        "INV-4",
        JAR,
        Edit(f"{BROKER_CODE}/BufferRecovery.java", "      ongoing.forEach(writers::add);\n", ""),
    ),
    mutation(
        "a broker's buffer shows what dropped writers have appended",
        "INV-3",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferPoller.java",
            "          parts.filter().drop(writer.id.bits(), drop.keptTo());\n",
            "",
        ),
    ),
    mutation(
        "a broker's buffer shows what dropped writers have appended when it is loaded anew",
        "INV-3",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferRecovery.java",
            "      parts.filter().load(gate, firstLedger);\n",
            "",
        ),
    ),
    mutation(
        "a broker's buffer that recovers does not say how far clients have written",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferRecovery.java",
            "      raiseForClients(ongoing, confirmed);\n",
            "",
        ),
    ),
    mutation(
        "a broker without coordinators in the store looks up the floor under Pulsar's",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferRecovery.java",
            "      parts.coordinators().learn(store.segments());\n",
            "      if (store.coordinators() != null) {\n"
            "        parts.coordinators().learn(store.segments());\n      }\n",
        ),
    ),
    mutation(
        "a broker's buffer refuses what clients send while the store is away",
        "INV-10",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "if (!writer.id.bits().isOwn()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker's buffer refuses a writer for one connection that was lost unnoticed",
        "liveness",
        JAR,
        Edit(f"{BROKER_CODE}/BufferAppends.java", "(isFirst || store", "(store"),
    ),
    mutation(
        "a broker's buffer asks for what clients have sent after it was closed",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "    if (writers.state() == State.Closed) {\n"
            "      return; // closing has refused whatever waited\n    }\n    Fate fate;\n",
            "    Fate fate;\n",
        ),
    ),
    mutation(
        "a broker's buffer tells the topic of markers",
        "",
        JAR,
        Edit(f"{BROKER_CODE}/BufferWriters.java", "if (!isMarker) {", "if (true) {"),
    ),
    mutation(
        "a broker's buffer has the last entry searched for behind each marker",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataTransactionBuffer.java",
            "if (!isMarkerMessage) {",
            "if (true) {",
        ),
    ),
    mutation(
        "a broker's floor hides what compaction has kept of deleted ledgers",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferFilter.java",
            "return position.getLedgerId() >= firstLedger;",
            "return true;",
        ),
    ),
    mutation(
        "a broker's floor that is raised holds from where the one before did",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferFilter.java",
            "floor = new Floor(Map.copyOf(raised), firstLedger);",
            "floor = new Floor(Map.copyOf(raised), before.firstLedger());",
        ),
    ),
    mutation(
        "a broker's filter forgets dropped writers whose deleted ledger is still read",
        "INV-5",
        JAR,
        Edit(f"{BROKER_CODE}/BufferFilter.java", "isBelow(before, bits)", "isBelow(floor, bits)"),
    ),
    mutation(
        "a broker's buffer shows what is undecided when the store is away",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferPoller.java",
            "      stopPolling();\n    }\n",
            "      stopPolling();\n      synchronized (writers) {\n"
            "        List.copyOf(writers.all()).forEach(writers::remove);\n"
            "        writers.advance();\n      }\n    }\n",
        ),
    ),
    mutation(
        "a broker believes a search for the last entry that began before the maximum moved",
        "",
        JAR,
        Edit(f"{BROKER_CODE}/BufferWriters.java", "      last.moved();\n", ""),
    ),
    mutation(
        "a broker has no last message in a segment that was sealed behind a rollover",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/PersistentTopicLog.java",
            "confirmed.getEntryId() < 0 ? ledger.getPreviousPosition(confirmed) : confirmed",
            "confirmed",
        ),
    ),
    mutation(
        "a broker is used although its bookie never stays registered",
        "",
        "tests/testing/test_bookie_registration.py"
        "::test_a_broker_is_killed_until_its_bookie_stays_registered",
        Edit(
            "pulsar_txn_spark/testing/pulsar_server.py",
            "if self._has_lost_registration():",
            "if False:",
        ),
    ),
    mutation(
        "a broker takes a loser for the winner of the same transaction",
        "INV-1",
        JAR,
        Edit(f"{STORE_CODE}/WriterId.java", "long hash = hash(name);", 'long hash = hash("");'),
    ),
    mutation(
        "a broker appends for a writer without a pin",
        "INV-8",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisSegmentStore.java",
            'case "UNPINNED" -> new Fate.Unpinned();',
            'case "UNPINNED" -> new Fate.Pinned(LogPosition.EARLIEST);',
        ),
    ),
    mutation(
        "a dropped writer that a sweep has grouped counts as the winner",
        "INV-5",
        JAR,
        Edit(
            f"{LUA}/seg_fates.lua",
            "    record = group and redis.call('HGET', ARGV[4] .. group, writer)\n",
            "",
        ),
    ),
    mutation(
        "a broker relies on a store that is older than what it has seen",
        "INV-14",
        JAR,
        Edit(
            f"{STORE_CODE}/Scripts.java",
            '    states.forEach((history, seq) -> known.add(seq + " " + '
            '(history.isEmpty() ? "-" : history)));\n',
            "",
        ),
    ),
    mutation(
        "a broker materializes an expired transaction by the intents from before its abort",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/TransactionHelper.java",
            "transactions.read(header.txn()).orElse(header);",
            "header;",
        ),
    ),
    mutation(
        "a broker completes nothing on behalf of a dead driver",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferPoller.java",
            "      store.helper().inTheWay(pinned);\n",
            "",
        ),
    ),
    mutation(
        "a broker lets all entries of a winner count, whatever its bound",
        "INV-3",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisTransactionStore.java",
            "LogPosition.EARLIEST : winner.bound();",
            "LogPosition.EARLIEST : null;",
        ),
    ),
    mutation(
        "a broker materializes a decision in a segment that lacks what the decision has seen",
        "INV-14",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisTransactionStore.java",
            "    scripts.raiseSeen(header.outcome().seen());\n",
            "",
        ),
    ),
    mutation(
        "a broker calls a transaction materialized whose segment has no tag",
        "INV-6",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisTransactionStore.java",
            "    return reply != null;\n",
            "    return true;\n",
        ),
    ),
    # --- pending acks of subscriptions ------------------------------------------------------------
    mutation(
        "a broker that lost a subscription goes on writing its pending acks",
        "INV-8",
        f"{BROKER_ACKS}::test_whoever_opened_it_before_is_fenced",
        Edit(
            f"{LUA}/broker_acks_write.lua",
            "if known[1] ~= ARGV[4] then",
            "if false then",
        ),
    ),
    mutation(
        "a step of pending acks is taken twice",
        "INV-11",
        f"{BROKER_ACKS}::test_a_step_is_taken_once_and_none_is_left_out",
        Edit(
            f"{LUA}/broker_acks_write.lua",
            "if known[2] == ARGV[5] then",
            "if false then",
        ),
    ),
    mutation(
        "a step of pending acks is left out",
        "INV-14",
        f"{BROKER_ACKS}::test_a_step_is_taken_once_and_none_is_left_out",
        Edit(
            f"{LUA}/broker_acks_write.lua",
            "if tonumber(known[2]) + 1 ~= tonumber(ARGV[5]) then",
            "if false then",
        ),
    ),
    *(
        mutation(
            f"pending acks are {done} in a deleted segment",
            "INV-12",
            f"{BROKER_ACKS}::test_nothing_of_it_is_left_of_a_deleted_segment",
            Edit(f"{LUA}/{script}.lua", "if retired then", "if false then"),
        )
        for done, script in (
            ("written", "broker_acks_write"),
            ("opened", "broker_acks_open"),
            ("noted", "broker_acks_note"),
        )
    ),
    mutation(
        "a store that lost pending acks counts as one without any",
        "INV-14",
        f"{BROKER_ACKS}::test_a_cursor_that_is_known_has_to_be_there",
        Edit(
            f"{LUA}/broker_acks_open.lua",
            "  if not noted then\n",
            "  if false then\n",
        ),
    ),
    mutation(
        "a new subscription inherits pending acks of one that was deleted",
        "INV-12",
        f"{BROKER_ACKS}::test_a_cursor_that_is_known_has_to_be_there",
        Edit(
            f"{LUA}/broker_acks_open.lua",
            "  redis.call('UNLINK', KEYS[3])\n",
            "",
        ),
    ),
    mutation(
        "a noted id takes a subscription from its owner",
        "INV-8",
        f"{BROKER_ACKS}::test_an_id_that_is_only_noted_takes_nothing_from_the_owner",
        Edit(
            f"{LUA}/broker_acks_note.lua",
            "redis.call('SADD', KEYS[3], ARGV[4])\n",
            "redis.call('HSET', KEYS[2], 'cursor', ARGV[5])\n",
        ),
    ),
    mutation(
        "a late request brings an earlier cursor back",
        "INV-8",
        f"{BROKER_ACKS}::test_a_late_request_brings_no_earlier_cursor_back",
        Edit(
            f"{LUA}/broker_acks_open.lua",
            "      redis.call('HDEL', KEYS[2], fields[i])\n",
            "",
        ),
    ),
    mutation(
        "a broker opens a subscription that it has unloaded",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStoreProvider.java",
            "    if (subscription.getCursor().isClosed()) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a subscription stays fenced that belongs to its broker",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckSteps.java",
            "      if (answer == Answer.FENCED) {\n",
            "      if (false) {\n",
        ),
    ),
    mutation(
        "a lost reply of a cursor locks its subscription",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStoreProvider.java",
            "    if (cause instanceof ManagedLedgerException.BadVersionException) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a subscription acknowledges nothing of what was committed while its broker was dead",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckReplay.java",
            ".forEach(this::apply);",
            ".forEach(one -> { });",
        ),
    ),
    mutation(
        "a broker forgets pending acks of open transactions",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckReplay.java",
            "    lock();\n",
            "",
        ),
    ),
    mutation(
        "a subscription ends a transaction otherwise than its header says",
        "INV-1",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckEnd.java",
            "    if (header != wanted()) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a header may go before the subscription has noted the decision",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckEnd.java",
            "      batch.written.put(known.name(), wanted().name());\n",
            "",
        ),
    ),
    mutation(
        "an acknowledgement that is refused has a record",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "    } else if (parts.subscription().refuses(txn, record)) {\n",
            "    } else if (false) {\n",
        ),
    ),
    mutation(
        "two transactions get records of one message at once",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckBatch.java",
            "touched.contains(entry.key())",
            "false",
        ),
    ),
    mutation(
        "the oldest holder of a message counts after a crash",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckReplay.java",
            "new TreeMap<>(Comparator.reverseOrder())",
            "new TreeMap<>(Comparator.naturalOrder())",
        ),
    ),
    mutation(
        "a broker forgets what it has committed before the cursor is written",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckPoller.java",
            "record.last().compareTo(persistent) <= 0",
            "record.last() != null",
        ),
    ),
    mutation(
        "a decided transaction acknowledges more",
        "INV-1",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "    if (!isElsewhere && now != Decision.OPEN) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a message that could not be written is taken from who has locked it",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "    if (name == null && parts.subscription().conflicts(record)) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a commit that comes twice applies what another transaction acknowledged",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckEnd.java",
            "    if (type == AckType.Cumulative && isOverMeanwhile()) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "a late acknowledgement is locked for good",
        "INV-1",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "      parts.subscription().restoreUpTo(locked);\n",
            "      locked = null;\n",
        ),
    ),
    mutation(
        "a message that is acknowledged late is delivered to nobody",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "      parts.subscription().redeliver(record);\n",
            "      why = Refusal.LATE;\n",
        ),
    ),
    mutation(
        "of a transaction with both kinds of acknowledgements only one is ended",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckEnd.java",
            "        && known.records.values().stream().allMatch(AckRecord::cumulative);\n",
            "        && true;\n",
        ),
    ),
    mutation(
        "a segment without its properties has no pending acks in the store",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStoreProvider.java",
            "      if (segment.isEmpty() && isKnown) {\n",
            "      if (false) {\n",
        ),
    ),
    mutation(
        "Pulsar's own replay takes pending acks of the store for its own",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/PulsarsPendingAcks.java",
            "            task.run();\n            follows.run();\n",
            "            follows.run();\n            task.run();\n",
        ),
    ),
    mutation(
        "the number of another coordinator's transaction decides pending acks",
        "INV-1",
        JAR,
        Edit(
            f"{BROKER_CODE}/Decisions.java",
            ".filter(stored -> stored.nonce().startsWith(nonces))",
            "",
        ),
    ),
    mutation(
        "pending acks of a store are taken over from another one",
        "INV-12",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStoreProvider.java",
            "    if (!actual.equals(segment.storeUuid())) {\n",
            "    if (false) {\n",
        ),
    ),
    mutation(
        "pending acks are written before the cursor says that there are any",
        "INV-14",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStoreProvider.java",
            "done -> subscription.getCursor().putCursorProperty(CURSOR_PROPERTY, id))",
            "done -> CompletableFuture.completedFuture(null))",
        ),
    ),
    mutation(
        "a transaction behind many others is never polled",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckPoller.java",
            ".sorted(Comparator.comparingLong(txn -> txn.polledMs))",
            "",
        ),
    ),
    mutation(
        "a request waits for as long as every thread waits for the store",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckPoller.java",
            '    parts.steps().refuseOverdue("the metadata store has not answered in time");\n',
            "",
        ),
    ),
    mutation(
        "a cumulative acknowledgement is written beside one in Pulsar's log",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/HandledSubscription.java",
            "        && (!locked.txn().equals(txn)\n",
            "        && (false\n",
        ),
    ),
    mutation(
        "Pulsar's log gets what is refused",
        "INV-9",
        JAR,
        Edit(
            f"{BROKER_CODE}/AckAppend.java",
            "    } else if (parts.subscription().refuses(txn, record)) {\n",
            "    } else if (!isElsewhere && parts.subscription().refuses(txn, record)) {\n",
        ),
    ),
    mutation(
        "Pulsar's log is opened by each acknowledgement that waits for it",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/PulsarsPendingAcks.java",
            "    if (opening == null || opening.isCompletedExceptionally()) {\n",
            "    if (opens != null) {\n",
        ),
    ),
    mutation(
        "Pulsar's log stays open that is opened after the unloading",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/PulsarsPendingAcks.java",
            "                    if (isClosed) {\n",
            "                    if (false) {\n",
        ),
    ),
    mutation(
        "a replay that has failed counts as complete",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/MetadataPendingAckStore.java",
            "            if (tryReplay()) {\n",
            "            if (tryReplay() || executor != null) {\n",
        ),
    ),
    # --- the gate of a topic ----------------------------------------------------------------------
    mutation(
        "a topic that brokers are to gate keeps segments from before",
        "",
        "tests/segments/test_changes.py"
        "::test_a_topic_is_gated_in_one_step_of_the_store_and_whoever_comes_by_finishes_it",
        Edit(
            "pulsar_txn_spark/segments/topology.py",
            "for number, segment in enumerate(self.active):",
            "for number, segment in enumerate(self.active[:1]):",
        ),
    ),
    mutation(
        "an entry of a gated segment has no ordering key",
        "",
        f"{WIRE}::test_an_entry_of_a_gated_segment_has_keys_of_one_group_and_the_group_as_its_ordering_key",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "            metadata.ordering_key = ordering_key\n",
            "            pass\n",
        ),
    ),
    mutation(
        "an entry of a gated segment has keys of several groups",
        "",
        f"{WIRE}::test_an_entry_of_a_gated_segment_has_keys_of_one_group_and_the_group_as_its_ordering_key",
        Edit(
            f"{WIRE_CODE}/producer.py",
            "        if not self._gated:\n            yield 0, rows.num_rows, None\n",
            '        if True:\n            yield 0, rows.num_rows, b"0"\n',
        ),
    ),
    mutation(
        "rows outside of transactions in a gated segment have no order by key",
        "",
        f"{WIRE}::test_an_entry_of_a_gated_segment_has_keys_of_one_group_and_the_group_as_its_ordering_key",
        Edit(f"{WIRE_CODE}/producer.py", "= gated\n", "= gated and bits is not None\n"),
    ),
    mutation(
        "a broker takes the certificate of any host for the store's",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            '      parameters.setEndpointIdentificationAlgorithm("HTTPS");\n',
            "",
        ),
    ),
    mutation(
        "a broker goes on with the certificates that its files held when it started",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "  private volatile boolean closed;\n",
            "  private volatile boolean closed;\n  private JedisClientConfig first;\n",
        ),
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "new DefaultJedisSocketFactory(server, config(settings, withinMs))",
            "new DefaultJedisSocketFactory(server,"
            " first = first == null ? config(settings, withinMs) : first)",
        ),
    ),
    mutation(
        "a broker starts with a key that is not its certificate's",
        "",
        JAR,
        Edit(f"{STORE_CODE}/StoreTls.java", "if (!isOf(key, chain.get(0))) {", "if (false) {"),
    ),
    mutation(
        "a driver asks the server to which a slot of its store is on its way",
        "INV-5",
        "tests/store/redis/test_connection.py"
        "::test_a_slot_on_its_way_to_another_server_does_not_answer_until_it_has_arrived",
        Edit(
            "pulsar_txn_spark/store/redis/connection.py",
            "connection.set_parser(_ClusterParser)",
            "connection.set_parser(DefaultParser)",
        ),
    ),
    mutation(
        "a script begins where its slot moves, and is broken off",
        "INV-9",
        f"{MOVES}::test_a_commit_whose_segment_moves_loses_no_acknowledgement",
        Edit(
            f"{LUA}/_prelude.lua",
            "local moving = redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':none')",
            "local moving = 1",
        ),
    ),
    mutation(
        "a script begins on the server to which its slot is on its way",
        "INV-5",
        f"{MOVES}::test_a_script_is_refused_by_the_server_to_which_its_slot_is_on_its_way",
        Edit(
            f"{LUA}/_prelude.lua",
            "redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':none')",
            "redis.pcall('EXISTS', KEYS[1] .. ':none')",
        ),
    ),
    mutation(
        "a step that is refused because its slot moves is not sent again",
        "a query outlives the move of a slot",
        f"{A_STEP_WAITS}[txn_intend]",
        Edit(
            f"{LUA}/_prelude.lua", "redis.error_reply('TRYAGAIN the", "redis.error_reply('ERR the"
        ),
    ),
    mutation(
        "a decision that was refused because its slot moves counts as unknown",
        "a query outlives the move of a slot",
        f"{MOVES}::test_a_decision_whose_slot_moves_is_not_unknown_as_it_was_not_taken",
        Edit(f"{REDIS}/scripts.py", "repeats=(ClusterError,)", "repeats=()"),
    ),
    mutation(
        "a lock goes before what it has locked is acknowledged",
        "INV-9",
        f"{MOVES}::test_what_is_acknowledged_outlives_a_script_that_is_broken_off",
        Edit(
            f"{LUA}/_ranges.lua",
            "    if committed then\n",
            "    redis.call('ZREM', ranges, member .. ' ' .. txn)\n"
            "    redis.call('ZREM', own, member)\n"
            "    if committed then\n",
        ),
    ),
    mutation(
        "a lock goes before the one that takes it in is there",
        "INV-9",
        f"{MOVES}::test_what_is_locked_outlives_a_script_that_is_broken_off",
        Edit(
            f"{LUA}/_ranges.lua",
            "      start = from\n",
            "      redis.call('ZREM', ranges, before)\n"
            "      redis.call('ZREM', own or ranges, own and from .. ' ' .. to or before)\n"
            "      start = from\n",
        ),
    ),
    mutation(
        "a broker asks the server to which a slot of its store is on its way",
        "INV-5",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "      } catch (JedisMovedDataException moved) {\n",
            "      } catch (JedisAskDataException ask) {\n"
            "        try (Own other = open(ask.getTargetNode())) {\n"
            "          other.jedis().asking();\n"
            "          return use.apply(other.jedis());\n"
            "        }\n"
            "      } catch (JedisMovedDataException moved) {\n",
        ),
    ),
    mutation(
        "a broker sends a step again whose reply was lost",
        "INV-1",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "        throw limit.isOver() ? late() : unavailable(error);\n",
            "",
        ),
    ),
    mutation(
        "a broker uses one node of a cluster as if it had all keys",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/ServerCheck.java",
            'if ("1".equals(cluster) && !settings.cluster()) {',
            "if (false) {",
        ),
    ),
    mutation(
        "a broker asks a replica of its store",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/ServerCheck.java",
            'if (answers.role != null && !"master".equals(answers.role)) {',
            "if (false) {",
        ),
    ),
    mutation(
        "a primary that became a replica answers with old data on open connections",
        "INV-4",
        "tests/store/redis/test_connection.py"
        "::test_a_primary_that_became_a_replica_answers_nothing_on_an_open_connection",
        Edit(
            f"{LUA}/_prelude.lua",
            "refused = string.find(replication, 'role:slave', 1, true)",
            "refused = false",
        ),
    ),
    mutation(
        "who may not ask for the role gets old data from a former primary",
        "INV-4",
        "tests/store/redis/test_connection.py"
        "::test_a_former_primary_answers_nothing_to_a_user_who_may_not_ask_for_the_role",
        Edit(
            f"{LUA}/_prelude.lua",
            "redis.pcall('ZADD', KEYS[1] .. ':none', 'XX', '0', '')",
            "0",
        ),
    ),
    mutation(
        "a query ends with the connection that waits for events",
        "a query outlives a failover",
        f"{IDLE}::test_events_that_cannot_be_followed_fail_no_poll_that_the_store_answers",
        Edit(
            f"{SOURCE_CODE}/idle.py",
            '        """Forget the events up to now: a complete poll comes next."""\n'
            "        self._is_quiet()\n",
            '        """Forget the events up to now: a complete poll comes next."""\n'
            "        if self._watcher is not None:\n            self._watcher.poll()\n",
        ),
    ),
    mutation(
        "a server of a cluster that is gone is asked for events for ever",
        "lost wake-up",
        "tests/store/redis/test_event_feed.py"
        "::test_events_of_a_cluster_are_followed_on_although_their_server_is_gone_for_good",
        Edit(
            f"{REDIS}/event_feed.py",
            "read.pool = self._find_server(read)",
            "read.pool = read.pool or self._find_server(read)",
        ),
    ),
    mutation(
        "a server of a cluster that failed over is asked for events where it was",
        "lost wake-up",
        "tests/store/redis/test_event_feed.py"
        "::test_a_server_of_a_cluster_that_failed_over_is_found_again_without_any_command_to_it",
        Edit(f"{REDIS}/event_feed.py", "            self._ask_for_slots(read.node)\n", ""),
    ),
    mutation(
        "a read that a server refuses is sent again without a pause",
        "bound",
        "tests/store/redis/test_event_feed.py"
        "::test_a_read_whose_slot_moves_is_sent_a_handful_of_times_and_misses_nothing,"
        "test_a_user_who_may_not_read_events_is_told_so_and_does_not_ask_without_end",
        Edit(f"{REDIS}/event_feed.py", "        read.not_before = read.sent_at + _PAUSE_S\n", ""),
    ),
    mutation(
        "the events of a slot that has moved are asked for where it was",
        "lost wake-up",
        "tests/store/redis/test_event_feed.py"
        "::test_a_read_whose_slot_moves_is_sent_a_handful_of_times_and_misses_nothing",
        Edit(
            f"{REDIS}/event_feed.py",
            "            self._client.nodes_manager.move_slot(error)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "a user who may not read events is not told so",
        "errors say what to do",
        "tests/store/redis/test_event_feed.py"
        "::test_a_user_who_may_not_read_events_is_told_so_and_does_not_ask_without_end",
        Edit(f"{REDIS}/event_feed.py", "if isinstance(error, NoPermissionError):", "if False:"),
    ),
    mutation(
        "a coordinator that is down fails readers whom it does not block",
        "a query outlives a failover",
        f"{EVENTS}::test_a_coordinator_that_is_down_fails_only_who_waits_for_its_transactions",
        Edit(f"{TXN}/watcher.py", "if self._leave_idle_coordinators():", "if False:"),
    ),
    mutation(
        "a coordinator that is down is not followed although it blocks a reader",
        "lost wake-up",
        f"{EVENTS}::test_a_coordinator_that_is_down_fails_only_who_waits_for_its_transactions",
        Edit(
            f"{TXN}/watcher.py",
            "        left = self._coordinators & blocking\n",
            "        left: set[int] = set()\n",
        ),
    ),
    mutation(
        "rows are lost that a broker passes over",
        "INV-11",
        f"{LIBRARY_READER}::test_an_entry_that_the_broker_passes_over_is_not_skipped,"
        "test_the_end_of_a_range_is_not_passed_over_either",
        Edit(f"{PULSAR}/log.py", "            self._check_hidden(wanted, at)\n", ""),
    ),
    mutation(
        "rows go out before anybody looks at what lies before them",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_rows_behind_ledgers_that_somebody_deleted_are_not_given_out,"
        "test_rows_behind_an_entry_that_did_not_come_are_not_given_out",
        Edit(
            f"{PULSAR}/log.py",
            "                    self._check_gap(wanted, previous, position, seen)\n",
            "                    gaps.append((previous, position))\n",
        ),
        Edit(
            f"{PULSAR}/log.py",
            "            seen = _Seen(holes)\n",
            "            seen, gaps = _Seen(holes), []\n",
        ),
        Edit(
            f"{PULSAR}/log.py",
            "        if previous != end:\n            self._check_end(wanted)\n",
            "        for gap in gaps:\n            self._check_gap(wanted, *gap, seen)\n"
            "        if previous != end:\n            self._check_end(wanted)\n",
        ),
    ),
    mutation(
        "ledgers in front of a reader are gone, and nobody looks",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_rows_behind_ledgers_that_somebody_deleted_are_not_given_out",
        Edit(
            f"{PULSAR}/log.py",
            "            self._check_whole(segment, wanted.start, wanted.end, known)\n",
            "",
        ),
    ),
    mutation(
        "ledgers in front of the reader of a native topic are gone, and nobody looks",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_rows_behind_ledgers_that_somebody_deleted_are_not_given_out",
        Edit(f"{PULSAR}/log.py", "            seen.unproven |= crosses\n", ""),
    ),
    mutation(
        "ledgers go unnoticed while a range is read",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_ledgers_that_go_while_a_range_is_read_are_noticed",
        Edit(
            f"{PULSAR}/log.py",
            "                seen.unproven |= crosses and not fresh\n",
            "",
        ),
    ),
    mutation(
        "rows go out before it is proven that no ledger has gone in front of them",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_ledgers_that_go_while_a_range_is_read_are_noticed",
        Edit(f"{PULSAR}/log.py", "                        self._prove(wanted, seen)\n", ""),
    ),
    mutation(
        "ledgers go unnoticed in front of the last rows of a range",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_ledgers_that_go_while_a_range_is_read_are_noticed",
        Edit(f"{PULSAR}/log.py", "        else:\n            self._prove(wanted, seen)\n", ""),
    ),
    mutation(
        "one entry that is there proves that all ledgers in front of it are",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_a_look_at_an_entry_does_not_prove_that_other_ledgers_are_there",
        Edit(
            f"{PULSAR}/log.py",
            "            self._check_hidden(wanted, at)\n",
            "            self._check_hidden(wanted, at)\n            break\n",
        ),
    ),
    mutation(
        "ledgers that somebody has deleted are put down to bookies",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_ledgers_that_go_while_a_range_is_read_are_noticed",
        Edit(
            f"{PULSAR}/log.py",
            "            self._check_whole(segment, wanted.start, wanted.end)\n"
            "            raise DataLossError(\n",
            "            raise DataLossError(\n",
        ),
    ),
    mutation(
        "an entry that a broker fails to look at once is lost",
        "availability",
        f"{CLOSED_LEDGERS}::test_an_entry_that_a_broker_fails_to_look_at_once_is_not_lost",
        Edit(
            f"{PULSAR}/entry_headers.py",
            "        time.sleep(_ASK_AGAIN_SECONDS)\n"
            "        header = source.entry_header(topic, position)\n",
            "        time.sleep(_ASK_AGAIN_SECONDS)\n",
        ),
    ),
    mutation(
        "a reader of many ranges looks at every entry that is hidden from it",
        "requests",
        f"{CLOSED_LEDGERS}::test_entries_that_are_hidden_from_a_reader_of_many_ranges_cost_few_"
        "calls_in_some_seconds",
        Edit(f"{PULSAR}/log.py", "        if taken >= _LOOKED_AT_ALWAYS:\n", "        if False:\n"),
    ),
    mutation(
        "after so many entries of a segment nobody ever looks again",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_entries_that_are_hidden_from_a_reader_of_many_ranges_cost_few_"
        "calls_in_some_seconds",
        Edit(
            f"{PULSAR}/log.py",
            "return (since, taken) if now < since + _LOOKED_AT_SECONDS else (now, 0)",
            "return (since, taken)",
        ),
    ),
    mutation(
        "entries that came after the broker was asked for its ledgers are passed over",
        "INV-11",
        f"{CLOSED_LEDGERS}::test_entries_that_the_broker_did_not_tell_of_before_are_asked_for",
        Edit(
            f"{PULSAR}/log.py",
            "fresh = known is None or known.last < until",
            "fresh = known is None",
        ),
    ),
    mutation(
        "an entry that the wire passes over counts as hidden",
        "INV-11",
        "tests/backends/pulsar/test_entry_headers.py"
        "::test_an_entry_that_the_wire_passes_over_is_what_the_admin_api_says,"
        "test_an_entry_that_the_wire_passes_over_and_nobody_tells_of_is_not_taken_for_hidden",
        Edit(
            f"{PULSAR}/entry_headers.py",
            "        if entry is None or entry.position != position:\n            return None\n",
            "        if entry is None:\n            return None\n"
            "        if entry.position != position:\n"
            '            return EntryHeader(hidden=True, message="", chunk=0, chunks=1)\n',
        ),
    ),
    mutation(
        "events of a former primary are waited for",
        "lost wake-up",
        "tests/store/redis/test_event_feed.py"
        "::test_a_server_that_became_a_replica_between_two_reads_is_left_after_a_silence",
        Edit(
            f"{REDIS}/event_feed.py",
            "if not streams and not is_primary(connection):",
            "if False:",
        ),
    ),
    mutation(
        "what a server refuses that has not met a script yet is no error of the store",
        "INV-11",
        "tests/store/redis/test_connection.py"
        "::test_a_refusal_is_an_error_of_the_store_also_of_a_script_that_the_server_has_not_met",
        Edit(
            f"{REDIS}/scripts.py",
            "        except ResponseError as error:\n",
            "        except ResponseError as error:\n"
            "            if isinstance(error.__context__, NoScriptError):\n                raise\n",
        ),
    ),
    mutation(
        "a driver keeps its connections to a server that is no primary any more",
        "INV-11",
        "tests/store/redis/test_connection.py"
        "::test_a_primary_that_became_a_replica_answers_nothing_on_an_open_connection",
        Edit(f"{REDIS}/connection.py", "connection.set_parser(_Parser)", "pass"),
    ),
    mutation(
        "a driver tries one idle connection after the other to a former primary",
        "INV-11",
        "tests/store/redis/test_connection.py"
        "::test_all_idle_connections_to_a_former_primary_are_closed_at_once",
        Edit(f"{REDIS}/exchange.py", "            self.cut_idle()\n", "            pass\n"),
    ),
    mutation(
        "connections that the network has dropped take all tries of a step",
        "a query outlives a failover",
        "tests/store/redis/test_dropped_connections.py"
        "::test_a_step_is_answered_although_the_network_has_dropped_all_idle_connections,"
        "test_a_transaction_commits_although_the_network_has_dropped_all_idle_connections",
        Edit(
            f"{REDIS}/exchange.py",
            "            self.give_up(error)\n",
            "            self.give_up()\n",
        ),
    ),
    mutation(
        "connections that the network has dropped take all tries of a task",
        "a query outlives a failover",
        "tests/store/redis/test_dropped_connections.py"
        "::test_a_writer_of_the_embedded_log_leaves_no_connection_that_the_network_has_dropped",
        Edit(
            f"{EMBEDDED_CODE}/append_lane.py",
            "        self._line.cut(error)\n",
            "        self._line.cut()\n",
        ),
    ),
    mutation(
        "two threads stumble over each other as they close connections to a former primary",
        "INV-11",
        "tests/store/redis/test_connection.py"
        "::test_two_threads_may_close_the_idle_connections_at_once",
        Edit(
            f"{REDIS}/exchange.py",
            "        for connection in self._popped():\n            self.cut(connection)\n",
            "        while self._idle:\n            self.cut(self._idle.pop())\n",
        ),
    ),
    mutation(
        "a broker keeps its connections to a server that is no primary any more",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "        jedis.getConnection().setBroken(); // else the pool would keep it\n"
            "        throw demoted(error);\n",
            "",
        ),
    ),
    mutation(
        "a broker's shared round trips keep a server that is no primary any more",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/Exchange.java",
            "        if (RedisConnections.isDemoted(refused)) {",
            "        if (false) {",
        ),
    ),
    mutation(
        "a broker asks a store that may lose what it has acknowledged",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/ServerCheck.java",
            "if (!settings.acceptDataLoss()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker needs less of its store than drivers do",
        "INV-11",
        "tests/project/test_server_rules.py"
        "::test_both_languages_need_the_same_of_a_server_for_the_same_reasons",
        Edit(
            f"{STORE_CODE}/ServerCheck.java",
            '              "appendfsync",\n              "always",\n',
            '              "appendfsync",\n              "everysec",\n',
        ),
    ),
    mutation(
        "a broker takes what it may not read of its store for good",
        "INV-11",
        JAR,
        Edit(
            f"{STORE_CODE}/ServerCheck.java",
            "if (!unread.isEmpty() && !settings.assumeDurable()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a request of a broker waits for the store as long as others keep it waiting",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "if (!reply.isDone()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker sends a request whose time was over while it waited",
        "",
        JAR,
        Edit(f"{STORE_CODE}/Exchange.java", "    some.removeIf(Request::isOver);\n", ""),
    ),
    mutation(
        "a store that stands still holds a broker's connection for good",
        "",
        JAR,
        Edit(f"{STORE_CODE}/TimeLimit.java", "      socket.close();\n", ""),
    ),
    mutation(
        "a connection that a broker has cut off is opened again, and checked by nobody",
        "INV-11",
        JAR,
        Edit(f"{STORE_CODE}/RedisConnections.java", "if (made.get() != null) {", "if (false) {"),
    ),
    mutation(
        "a connection that cannot be closed ends a broker's shared round trips",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "} catch (JedisException error) { // what it has not sent",
            "} catch (IllegalStateException error) { // what it has not sent",
        ),
    ),
    mutation(
        "a broker learns no slots when one server of a cluster talks nonsense",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/ClusterSlots.java",
            "} catch (RuntimeException error) { // no answer, or one that makes no sense",
            "} catch (redis.clients.jedis.exceptions.JedisException error) {",
        ),
    ),
    mutation(
        "a segment that is loaded anew misses what came before its first event",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/EventFollower.java",
            "if (notified.put(entry.getKey(), entry.getValue()) != entry.getValue()) {",
            "if (notified.put(entry.getKey(), entry.getValue()) == null) {",
        ),
    ),
    mutation(
        "a broker learns a cluster's slots from the server that does not answer well",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/ClusterSlots.java",
            "      inTurn.add(suspect);\n",
            "      inTurn.add(0, suspect);\n",
        ),
    ),
    mutation(
        "a broker's coordinator pins on a cluster before the intent is there",
        "INV-6",
        JAR,
        Edit(
            f"{STORE_CODE}/SingleSteps.java",
            "while (to < calls.size() && "
            "calls.get(to).script().equals(calls.get(from).script())) {",
            "while (to < calls.size()) {",
        ),
    ),
    mutation(
        "a broker's coordinator materializes on a cluster what it did not decide",
        "INV-3",
        JAR,
        Edit(
            f"{STORE_CODE}/SingleSteps.java",
            '          "txn_end", Set.of("OK"),\n',
            "",
        ),
    ),
    mutation(
        "a broker's coordinator materializes on a cluster although one segment has the other mark",
        "INV-1",
        JAR,
        Edit(
            f"{STORE_CODE}/SingleSteps.java",
            "                canAllTake(group, marks)\n",
            "                true\n",
        ),
    ),
    mutation(
        "a broker asks no segment of a cluster for its mark before it materializes a decision",
        "INV-1",
        JAR,
        Edit(
            f"{STORE_CODE}/Scripts.java",
            "    return connections.oneServer();\n",
            "    return true;\n",
        ),
    ),
    mutation(
        "a broker's coordinator forgets participants on a cluster that it does not know of",
        "INV-6",
        JAR,
        Edit(
            f"{STORE_CODE}/SingleSteps.java",
            'call.script().equals("txn_read") && !knowsAll(call, reply.get())',
            "false",
        ),
    ),
    mutation(
        "a broker forgets dropped writers that no floor filters",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferFilter.java",
            "!named.contains(bits) && isBelow(before, bits)",
            "!named.contains(bits)",
        ),
    ),
    mutation(
        "a broker gives receipts to Pulsar's clients before the store knows how far a segment goes",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "if (receipts == null || append.bits().isOwn()) {",
            "if (true) {",
        ),
    ),
    mutation(
        "a broker takes transactions of Pulsar's clients without their coordinator",
        "INV-2",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "if (!bits.isOwn() && store.coordinators() == null) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a producer's receipts come in another order than its messages",
        "INV-10",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "if (!append.bits().isOwn()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker's coordinator fails its clients while the store is away for a moment",
        "liveness",
        JAR,
        Edit(f"{BROKER_CODE}/CoordinatorSteps.java", " || nowMs() < untilMs", ""),
    ),
    mutation(
        "a broker takes a commit whose reply is under way for an abort by others",
        "INV-11",
        JAR,
        Edit(f"{BROKER_CODE}/CoordinatorLookups.java", " && !isCommittedHere(transaction)", ""),
    ),
    mutation(
        "a broker's coordinator asks the store again after it was closed",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorSteps.java",
            '          term.requireReady("ask the metadata store again");\n',
            "",
        ),
    ),
    mutation(
        "the floor of a coordinator is not that of Pulsar's that share it",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/SharedCoordinators.java",
            "bits.isOwn() ? bits.tc() : bits.tc() % number",
            "bits.tc()",
        ),
    ),
    mutation(
        "a broker's coordinator lets a client append without a pin",
        "INV-2",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorParticipants.java",
            "store.pin(segment, transaction.writer()) != Answer.OK",
            "segment == null",
        ),
    ),
    mutation(
        "a broker's coordinator takes the refusal of a merged step's pin for a pin",
        "INV-2",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisCoordinatorStore.java",
            '"OK".equals(replies.get(0).get(1)) && pins.size() == steps - 1;',
            '"OK".equals(replies.get(0).get(1));',
        ),
    ),
    mutation(
        "a broker admits entries by pins that are known from before the decision",
        "INV-2",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorDecision.java",
            "    parts.pins().forget(segments, transaction.writer());\n",
            "",
        ),
    ),
    mutation(
        "a broker knows pins for ever",
        "INV-2",
        JAR,
        Edit(
            f"{BROKER_CODE}/KnownPins.java",
            ".filter(known -> clockMs.getAsLong() < known.endsMs)",
            "",
        ),
    ),
    mutation(
        "a broker's coordinator calls a decision materialized that was only taken",
        "INV-6",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisCoordinatorStore.java",
            "replies.size() < steps || ",
            "false || ",
        ),
    ),
    mutation(
        "a broker's coordinator ends transactions of which Pulsar's topics do not know",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorDecision.java",
            "transaction.intents(), !transaction.hasPulsars()",
            "transaction.intents(), true",
        ),
    ),
    mutation(
        "a silent server of a cluster uses up the time of the others",
        "",
        JAR,
        Edit(f"{STORE_CODE}/ClusterSlots.java", "deadline.share(left--)", "deadline"),
    ),
    mutation(
        "a server that answers slowly without an end is waited for",
        "",
        JAR,
        Edit(
            f"{STORE_CODE}/RedisConnections.java",
            "made.set(limit.limit(socket(server, deadline)));",
            "made.set(socket(server, deadline));",
        ),
    ),
    mutation(
        "each command of a request has the time of the request",
        "",
        JAR,
        Edit(f"{STORE_CODE}/RedisConnections.java", "        limit.limit(own.socket());\n", ""),
    ),
    mutation(
        "gated segments are told of a decision that they learn from the store",
        "",
        JAR,
        Edit(
            f"{BROKER_CODE}/ClientTransaction.java",
            "    if (status == TxnStatus.OPEN) {\n      topics.addAll(gated);",
            "    if (true) {\n      topics.addAll(gated);",
        ),
    ),
    mutation(
        "a broker's coordinator does not ask again after a lost reply",
        "INV-11",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorSteps.java",
            "return together\n        .exceptionally(unknown -> Optional.empty())\n",
            "return together\n",
        ),
    ),
    mutation(
        "a broker's coordinator forgets what it could not tell the store",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorEnd.java",
            "      untold.put(transaction.txn().counter(), transaction);\n",
            "",
        ),
    ),
    mutation(
        "a broker's coordinator decides while a participant is registered",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorDecision.java",
            "if (!transaction.beginEnding()) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker's coordinator takes the other decision for its own",
        "INV-1",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorDecision.java",
            "if (answer != Answer.OK && answer != wanted) {",
            "if (false) {",
        ),
    ),
    mutation(
        "a broker's coordinator takes transactions over without fencing who had them",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorRecovery.java",
            "String nonce = parts.term().newNonce();",
            "String nonce = header.nonce();",
        ),
    ),
    mutation(
        "a broker's coordinator forgets the segments of a transaction that it takes over",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorRecovery.java",
            "transaction.noteIntents(header.intents());",
            "",
        ),
    ),
    mutation(
        "a client is told of a number that Pulsar's log has not reserved",
        "INV-12",
        JAR,
        Edit(
            f"{BROKER_CODE}/MigratingCoordinator.java",
            "reserved(txn.getLeastSigBits()).thenApply(done -> txn)",
            "CompletableFuture.completedFuture(txn)",
        ),
    ),
    mutation(
        "the metadata store gives out numbers of Pulsar's log",
        "INV-12",
        JAR,
        Edit(
            f"{BROKER_CODE}/MigratingCoordinator.java",
            "own.startAbove(numbers.last())",
            "own.startAbove(0)",
        ),
    ),
    mutation(
        "Pulsar's log gives out numbers of the metadata store",
        "INV-12",
        JAR,
        Edit(
            f"{BROKER_CODE}/MigratingCoordinator.java",
            "numbers.reserve(own.getCoordinatorStats().getLeastSigBits())",
            "numbers.reserve(0)",
        ),
    ),
    mutation(
        "topics take transactions of Pulsar's log for dead that are not ended",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/MigratingCoordinator.java", "Stream.of(own, pulsars)", "Stream.of(own)"
        ),
    ),
    mutation(
        "topics take transactions for dead that are being opened",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/LiveTransactions.java",
            "creating.put(ticket, lastCounter.get());",
            "",
        ),
    ),
    mutation(
        "a broker that has lost a coordinator creates transactions",
        "INV-8",
        f"{CLIENT_TRANSACTIONS}::test_only_the_broker_that_opened_the_coordinator_last_creates",
        Edit(f"{LUA}/txn_create.lua", "if KEYS[7] then", "if false then"),
    ),
    mutation(
        "a transaction is taken over from whoever asked last",
        "INV-8",
        f"{CLIENT_TRANSACTIONS}::test_who_takes_a_transaction_over_fences_who_had_it",
        Edit(f"{LUA}/txn_adopt.lua", "if header[2] ~= ARGV[5] or", "if"),
    ),
    mutation(
        "a broker that has lost a coordinator takes transactions over from the one that has it",
        "INV-8",
        f"{CLIENT_TRANSACTIONS}::test_who_takes_a_transaction_over_fences_who_had_it",
        Edit(
            f"{LUA}/txn_adopt.lua",
            " or redis.call('HGET', KEYS[4], pulsar) ~= epoch then",
            " then",
        ),
    ),
    mutation(
        "a broker does not notice that the store has lost a pin that it knows",
        "INV-14",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferAppends.java",
            "known.ifPresent(pin -> store.segments().raiseSeen(parts.segment(), pin.state()));",
            "",
        ),
    ),
    mutation(
        "a coordinator that was fenced stays where no other one can be opened",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorTerm.java",
            "      makeRoom.run();\n",
            "",
        ),
    ),
    mutation(
        "a coordinator that was closed does not know the transactions that it had",
        "INV-8",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorLookups.java",
            'term.notReady("look for a transaction")',
            "new TransactionNotFoundException(txnId)",
        ),
    ),
    mutation(
        "a participant of a bad name keeps its transaction from being ended",
        "INV-6",
        JAR,
        Edit(
            f"{BROKER_CODE}/CoordinatorParticipants.java",
            "    } catch (RuntimeException malformed) { // such as a topic's name\n"
            "      registered = CompletableFuture.failedFuture(malformed);\n",
            "    } finally {\n",
        ),
    ),
    mutation(
        "a header goes before Pulsar's own topics know the decision",
        "INV-6",
        f"{CLIENT_TRANSACTIONS}::test_a_header_stays_until_the_broker_has_ended_it_in_pulsars_topics",
        Edit(
            f"{LUA}/txn_remove.lua",
            "if #redis.call('ZRANGEBYSCORE', KEYS[8], counter, counter) > 0 then",
            "if false then",
        ),
    ),
    mutation(
        "a transaction of Pulsar's clients is ended before it is decided",
        "INV-6",
        f"{CLIENT_TRANSACTIONS}::test_a_header_stays_until_the_broker_has_ended_it_in_pulsars_topics",
        Edit(f"{LUA}/txn_ended.lua", "== 'OPEN' then", "== 'NEVER' then"),
    ),
    mutation(
        "a broker forgets dropped writers without having learnt of the floor",
        "INV-5",
        JAR,
        Edit(
            f"{BROKER_CODE}/BufferFilter.java",
            "    floor = new Floor(Map.copyOf(raised), firstLedger);\n",
            "",
        ),
        Edit(
            f"{BROKER_CODE}/BufferFilter.java",
            "isBelow(before, bits)",
            "isBelow(new Floor(raised, firstLedger), bits)",
        ),
    ),
    mutation(
        "a full server takes no step that ends or frees anything",
        "a full store recovers",
        f"{FULL}::test_a_full_store_recovers_as_its_transactions_end, "
        "test_a_full_store_recovers_by_single_steps_as_well, "
        "test_retention_makes_room_on_a_full_server, test_a_topic_is_deleted_on_a_full_server",
        Edit(
            f"{LUA}/_prelude.lua",
            "local function let_through()\n  redis.call('HDEL', KEYS[1], '')\n",
            "local function let_through()\n",
        ),
    ),
    *(
        mutation(
            name,
            "a full store recovers",
            f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room[{step}]",
            Edit(f"{LUA}/{script}.lua", "let_through()\n", "\n"),
        )
        for script, step, name in (
            ("txn_end", "commit", "a transaction cannot be committed while the store is full"),
            ("txn_intend", "txn_intend-1", "a full store takes no heartbeat"),
            (
                "txn_adopt",
                "adopt",
                "a broker cannot take open transactions over while the store is full",
            ),
            (
                "tc_open",
                "open a coordinator",
                "a broker cannot open a coordinator while the store is full",
            ),
            (
                "tc_raise",
                "raise a counter",
                "a coordinator's counter cannot be raised while the store is full",
            ),
            ("stage_touch", "touch a scope", "a full store takes no sign of life of a scope"),
            ("seg_close", "seg_close-0", "a full store closes no segment"),
            ("seg_fence", "seg_fence-0", "a full store fences no segment of a deleted topic"),
            ("seg_retire", "seg_retire-0", "a full store retires no segment"),
            ("seg_trim", "trim", "a full store marks nothing as trimmed"),
            ("seg_raise", "seg_raise-0", "a full store notes no acknowledged write"),
            ("seg_gate", "seg_gate-1", "a full store answers no reader that passes new rows"),
            ("seg_materialize", "drop a writer", "a full store materializes nothing"),
            (
                "cursor_inherit",
                "inherit a cursor",
                "a full store hands no subscription over to a child",
            ),
            ("cursor_release", "cursor_release-0", "a full store releases nothing"),
            ("cursor_reset", "cursor_reset-0", "a full store resets no subscription"),
            ("source_epoch", "source_epoch-0", "a full store counts no reset"),
            ("pointer_cas", "pointer_cas-0", "a full store teaches no pointer its decision"),
            ("topic_lease", "topic_lease-0", "a full store leases no topic to its retention"),
            (
                "topology_cas",
                "drop a segment from a topology",
                "a full store deletes no segment from a topology",
            ),
            ("topic_property", "set a retention", "a full store takes no retention"),
            ("metrics_add", "count", "a full store takes no counts, and a sweep fails"),
            (
                "broker_acks_open",
                "open acknowledgements",
                "a broker cannot open acknowledgements while the store is full",
            ),
            (
                "broker_acks_write",
                "replace a record",
                "a broker cannot replace acknowledgements while the store is full",
            ),
            ("stage_sweep", "stage_sweep-0", "a full store sweeps no scopes"),
            (
                "tag_state",
                "an unused coordinator",
                "a sweep of a full store fails for a coordinator that was never used",
            ),
        )
    ),
    mutation(
        "a new tag cannot be ended where the store has become full",
        "a full store recovers",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[an unused coordinator]",
        Edit(f"{LUA}/tag_create.lua", "redis.call('HDEL', KEYS[1], '')\n", ""),
    ),
    mutation(
        "a full store refuses all that a tag has which is not registered",
        "a full store recovers",
        f"{FULL}::test_a_tag_that_is_not_registered_yet_ends_what_it_has",
        Edit(f"{LUA}/_prelude.lua", "redis.pcall('HSET', KEYS[1]", "redis.call('HSET', KEYS[1]"),
    ),
    mutation(
        "a full store begins everything for a user who may not ask for the role",
        "a full store begins nothing",
        f"{FULL}::test_a_full_store_is_full_for_a_user_as_well_who_may_not_ask_for_the_role",
        Edit(
            f"{LUA}/_prelude.lua",
            "redis.pcall('ZADD', KEYS[1] .. ':none', 'XX', '0', '')",
            "redis.pcall('HDEL', KEYS[1], '')",
        ),
    ),
    mutation(
        "a full store begins the batches of a query with many sinks",
        "a full store begins nothing",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[a sink in the place of the oldest]",
        Edit(
            f"{LUA}/sink_register.lua",
            "redis.call('HSET', KEYS[2], ARGV[4], entry)\n",
            "redis.call('HDEL', KEYS[2], oldest)\nredis.call('HSET', KEYS[2], ARGV[4], entry)\n",
        ),
    ),
    mutation(
        "a full store records new participants",
        "a full store begins nothing",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[txn_intend-0]",
        Edit(f"{LUA}/txn_intend.lua", "if #ARGV < 7 then", "if true then"),
    ),
    mutation(
        "a full store takes operation records without their decision",
        "a full store begins nothing",
        f"{FULL}::test_the_records_of_a_commit_are_taken_with_it",
        Edit(f"{LUA}/txn_op.lua", "if ARGV[5] == '1' then", "if true then"),
    ),
    mutation(
        "a commit that brings its records along is refused by a full store",
        "a full store recovers",
        f"{FULL}::test_the_records_of_a_commit_are_taken_with_it",
        Edit(f"{REDIS}/merged.py", "nonce, ops, decides=True)", "nonce, ops)"),
    ),
    mutation(
        "a full store makes tags for whoever asks",
        "a full store begins nothing",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[tag_state-0]",
        Edit(
            f"{LUA}/tag_state.lua",
            "if before ~= '' or string.find(ARGV[4], '^tc%d+$') then",
            "if true then",
        ),
    ),
    mutation(
        "a change that has no room keeps retention from making some",
        "a full store recovers",
        f"{FULL}::test_a_change_that_needs_room_does_not_keep_retention_from_making_some",
        Edit(
            f"{ENGINE}/components.py",
            "[finish_deletions, let_data_go, finish_changes]",
            "[finish_deletions, finish_changes, let_data_go]",
        ),
    ),
    mutation(
        "a step of deleting a segment is taken for a new one",
        "a full store recovers",
        f"{FULL}::test_retention_makes_room_on_a_full_server",
        Edit(f"{SEGMENTS}/retention.py", "record, frees=True)", "record)"),
    ),
    mutation(
        "nobody is told that the store is full",
        "errors say what to do",
        f"{FULL}::test_a_full_store_recovers_as_its_transactions_end",
        Edit(f"{REDIS}/connection.py", 'or "OOM command not allowed" in str(error)', "or False"),
    ),
    mutation(
        "nobody is told that a newer server is full",
        "errors say what to do",
        f"{FULL}::test_newer_servers_say_in_other_words_that_they_are_full",
        Edit(f"{REDIS}/connection.py", "isinstance(error, OutOfMemoryError) or ", ""),
    ),
    mutation(
        "nobody is told that a server is nearly full",
        "errors say what to do",
        "tests/cli/test_doctor.py::test_a_redis_that_is_nearly_full_is_found",
        Edit(f"{REDIS}/durability.py", "    problems += _short_of_memory(info, address)\n", ""),
    ),
    mutation(
        "a step without room keeps a sweep of a full store from all others",
        "a full store recovers",
        f"{FULL}::test_a_step_without_room_keeps_no_sweep_from_the_other_transactions",
        Edit(
            f"{TXN}/sweeper.py",
            "(StoreCorruptError, StoreFullError, Trans",
            "(StoreCorruptError, Trans",
        ),
    ),
    mutation(
        "a full store lets nobody take a reset subscription over",
        "a full store recovers",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[cursor_claim-2]",
        Edit(
            f"{LUA}/cursor_claim.lua",
            "  let_through()\n  redis.call('HSET', KEYS[2], 'query', ARGV[4]",
            "  redis.call('HSET', KEYS[2], 'query', ARGV[4]",
        ),
    ),
    mutation(
        "a full store lets no source go on that was started again",
        "a full store recovers",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[cursor_claim-1]",
        Edit(
            f"{LUA}/cursor_claim.lua",
            "\nlet_through()\nredis.call('HSET', KEYS[2], 'source', ARGV[5])",
            "\nredis.call('HSET', KEYS[2], 'source', ARGV[5])",
        ),
    ),
    mutation(
        "a full store notes no floor",
        "a full store recovers",
        f"{FULL}::test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room"
        "[seg_floor-0]",
        Edit(f"{LUA}/seg_floor.lua", "let_through()\nif not pair then", "if not pair then"),
    ),
    mutation(
        "a full store groups no dropped writers",
        "a full store recovers",
        f"{FULL}::test_a_full_store_lets_dropped_writers_go",
        Edit(
            f"{LUA}/seg_floor.lua",
            "  let_through()\n  local from = redis.call('HMGET'",
            "  local from = redis.call('HMGET'",
        ),
    ),
    mutation(
        "a full store lets no group of dropped writers go",
        "a full store recovers",
        f"{FULL}::test_a_full_store_lets_dropped_writers_go",
        Edit(
            f"{LUA}/seg_floor.lua",
            "    let_through()\n    redis.call('HSET', KEYS[3], tc, counter)",
            "    redis.call('HSET', KEYS[3], tc, counter)",
        ),
    ),
    mutation(
        "a repeated acknowledgement leaves the transaction of the first try open",
        "INV-9",
        f"{CLIENT_ENDS}::test_an_acknowledgement_that_is_repeated_after_a_failure_of_the_store_counts",
        Edit(
            f"{TXN}/pending_ack.py",
            "        self._end_left_open()\n        nonce",
            "        nonce",
        ),
    ),
    mutation(
        "a consumer forgets acknowledgements of whose end it has not heard",
        "INV-9",
        f"{CLIENT_ENDS}::test_a_message_whose_acknowledgement_was_lost_comes_again",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "self._doubtful.update(self._acks.left_open)",
            "pass",
        ),
    ),
    mutation(
        "an error of another package leaves a client's transaction open",
        "an abort is an abort",
        f"{CLIENT_ENDS}::test_a_block_is_aborted_whatever_error_its_commit_meets",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "isinstance(error, Exception)",
            "isinstance(error, PulsarTxnError)",
        ),
    ),
    mutation(
        "a client's lease is kept for a commit that was interrupted",
        "an abort is an abort",
        f"{CLIENT_ENDS}::test_no_lease_is_extended_for_a_block_whose_commit_was_interrupted",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "                except BaseException:  # an interrupt, too",
            "                except PulsarTxnError:  # an interrupt, too",
        ),
    ),
    mutation(
        "a client's fork goes on with its parent's transaction",
        "INV-8",
        f"{CLIENT_ENDS}::test_a_forked_process_ends_nothing_of_its_parent",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        if os.getpid() != self._pid:\n            raise",
            "        if False:\n            raise",
        ),
    ),
    mutation(
        "a client's fork commits at the end of its parent's block",
        "INV-8",
        f"{CLIENT_ENDS}::test_a_forked_process_ends_nothing_of_its_parent",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        if os.getpid() != self._pid:\n            return  # a fork's copy",
            "        if False:\n            return  # a fork's copy",
        ),
    ),
    mutation(
        "a client's commit without an answer counts as aborted once its header is gone",
        "INV-1",
        f"{CLIENT_ENDS}::test_a_commit_without_an_answer_stays_unknown_if_its_header_is_gone",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "            if self._in_doubt:\n",
            "            if not self._in_doubt:\n",
        ),
    ),
    mutation(
        "a header that goes between two tries says that nothing was committed",
        "INV-1",
        f"{CLIENT_ENDS}::test_a_header_that_goes_between_two_tries_leaves_the_commit_unknown",
        Edit(
            f"{TXN}/coordinator.py",
            "raise unknown or _no_header(txn)",
            "raise _no_header(txn)",
        ),
    ),
    mutation(
        "a header that goes between two decisions says that nothing was committed",
        "INV-1",
        f"{CLIENT_ENDS}::test_a_header_that_goes_between_two_decisions_leaves_the_commit_unknown",
        Edit(
            f"{TXN}/coordinator.py",
            "raise last or _no_header(txn)",
            "raise _no_header(txn)",
        ),
    ),
    mutation(
        "a commit behind another decision succeeds if the header is gone",
        "INV-1",
        f"{CLIENT_ENDS}::test_a_header_that_goes_behind_the_decision_says_what_the_answer_says",
        Edit(
            f"{TXN}/coordinator.py",
            "            if answer.code is not Code.OK:\n                raise _decided_before",
            "            if False:\n                raise _decided_before",
        ),
    ),
    mutation(
        "a heartbeat behind an unknown commit calls it aborted",
        "INV-1",
        f"{CLIENT_ENDS}::test_a_heartbeat_behind_an_unknown_commit_does_not_call_it_aborted",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        if self._outcome is not None:\n            # Its commit",
            "        if False:\n            # Its commit",
        ),
    ),
    mutation(
        "client: the lease of a transaction in which something failed is extended",
        "nobody waits for a transaction that nobody can commit",
        f"{CLIENT_ENDS}::test_nobody_waits_for_a_failed_transaction_longer_than_its_lease[fail_flush]",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        self._failed = error\n        self._leave()\n",
            "        self._failed = error\n",
        ),
    ),
    mutation(
        "client: what is refused behind an unknown commit ends its lease",
        "INV-11",
        f"{CLIENT_ENDS}"
        "::test_a_commit_without_an_answer_keeps_its_lease_whatever_is_refused_behind_it",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "            if self._decided is None and self._outcome is None:\n",
            "            if True:\n",
        ),
    ),
    mutation(
        "client: an abort that a poll has found out takes the consumer back once more",
        "INV-9",
        f"{CLIENT_ENDS}::test_nobody_waits_for_a_failed_transaction_longer_than_its_lease[fail_flush]",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            if not self._follows(txn):\n                return  # a poll",
            "            if False:\n                return  # a poll",
        ),
    ),
    mutation(
        "client: an acknowledgement that was refused takes the consumer back",
        "INV-9",
        f"{SHARED}::test_a_refused_acknowledgement_makes_nothing_come_again",
        Edit(
            f"{CLIENT_CODE}/transaction.py",
            "        self.require_open()\n        self._guarded(self._header.open)\n",
            "        by.follow(self)\n"
            "        self.require_open()\n        self._guarded(self._header.open)\n",
        ),
    ),
    mutation(
        "client: what a refused plain acknowledgement had locked never comes again",
        "INV-9",
        f"{SHARED}::test_what_a_plain_acknowledgement_had_locked_comes_again_if_it_is_refused",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "                if not self._follows(holder)\n",
            "                if False\n",
        ),
    ),
    mutation(
        "client: a plain acknowledgement that was under way takes the consumer back",
        "INV-9",
        f"{SHARED}::test_a_plain_acknowledgement_that_is_under_way_makes_nothing_come_again",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            if txn in under_way and",
            "            if False and",
        ),
    ),
    mutation(
        "a lease waits for all those of a coordinator that does not answer",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_a_lease_does_not_wait_for_all_those_of_a_coordinator_that_does_not_answer",
        Edit(
            f"{ENGINE}/lease.py",
            "delayed = due if failed_at is None else",
            "delayed = due if True else",
        ),
    ),
    mutation(
        "leases of a coordinator that failed once wait for all others without a bound",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_after_a_single_error_no_lease_of_its_coordinator_ends_however_many_are_due",
        Edit(f"{ENGINE}/lease.py", "max(due, failed_at + _period_s(leased))", "math.inf"),
    ),
    mutation(
        "leases of a coordinator that fails all come at once after a period",
        "a lease is extended while its owner lives",
        f"{LEASE}::test_a_lease_does_not_wait_for_all_those_of_a_coordinator_that_does_not_answer",
        Edit(
            f"{ENGINE}/lease.py",
            "max(due, failed_at + _period_s(leased))",
            "due + _period_s(leased)",
        ),
    ),
    mutation(
        "aio: a call that waits for the one before is cancelled with all tasks of its loop",
        "INV-7",
        "tests/client/test_aio.py"
        "::test_a_call_that_waits_for_the_one_before_is_not_lost_with_the_tasks_of_its_loop",
        Edit(
            f"{CLIENT_CODE}/aio.py",
            "            begun = asyncio.get_running_loop().create_future()\n"
            "            before.add_done_callback(partial(self._begin_next, call, begun))\n",
            "            async def behind() -> None:\n"
            "                await asyncio.wait({before})\n"
            "                await self._begin(call)\n"
            "            begun = asyncio.ensure_future(behind())\n",
        ),
    ),
    mutation(
        "aio: a receive for which no thread could be started takes a message later",
        "lost rows",
        "tests/client/test_aio.py"
        "::test_a_receive_for_which_no_thread_could_be_started_takes_no_message",
        Edit(f"{CLIENT_CODE}/aio.py", "                wanted.clear()\n", ""),
    ),
    mutation(
        "client: what was locked under a header that was collected passes for acknowledged",
        "INV-9",
        f"{SHARED}"
        "::test_what_a_plain_acknowledgement_had_locked_comes_again_also_if_it_is_collected",
        Edit(
            f"{CLIENT_CODE}/reader.py",
            "state is None or all(map(state.has_deleted, intervals))",
            "True",
        ),
    ),
    mutation(
        "client: a plain acknowledgement whose header was collected takes the consumer back",
        "INV-9",
        f"{SHARED}"
        "::test_a_plain_acknowledgement_that_was_under_way_and_is_collected_takes_nobody_back",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "        if header is not None:\n"
            "            return header.state is TxnState.COMMITTED\n",
            "        if True:\n"
            "            return header is not None and header.state is TxnState.COMMITTED\n",
        ),
    ),
    mutation(
        "aio: a transaction is committed without what no thread could be started for",
        "INV-7",
        "tests/client/test_aio.py"
        "::test_what_no_thread_could_be_started_for_is_missed_by_the_commit[False]",
        Edit(
            f"{CLIENT_CODE}/aio.py",
            "            self._txn.fail(error)  # what was queued",
            "            pass  # what was queued",
        ),
    ),
    mutation(
        "what an interrupt has kept back of a subscription is passed",
        "INV-9",
        f"{CLIENT_ENDS}::test_what_an_interrupt_has_kept_back_comes_again",
        Edit(
            f"{CLIENT_CODE}/consumer.py",
            "            self._go_back()\n            raise\n",
            "            raise\n",
        ),
    ),
    mutation(
        "a slow sweep goes on without its lease",
        "two sweeps that trim one segment contradict each other",
        f"{RETENTION}::test_a_sweep_that_was_taken_for_dead_trims_nothing_more",
        Edit(
            f"{SEGMENTS}/retention.py",
            "            if not self._lease(topology):\n                return\n            if",
            "            if",
        ),
    ),
    mutation(
        "workers of a daemon draw the same numbers",
        "a worker is like one of PySpark's own daemon",
        "tests/spark/test_worker_daemon.py::test_no_two_workers_draw_the_same_random_numbers",
        Edit(
            f"{SPARK}/worker_daemon.py", "os.register_at_fork(after_in_child=np.random.seed)\n", ""
        ),
    ),
    mutation(
        "a server is used before its append-only file is there",
        "what is acknowledged is kept",
        f"{CONNECTIONS}"
        "::test_a_server_whose_append_only_file_is_not_there_yet_is_refused_until_it_is",
        Edit(f"{REDIS}/durability.py", "    if awaits_file(info, config):\n", "    if False:\n"),
    ),
    mutation(
        "a server whose append-only file is soon there is refused at once",
        "errors say what to do",
        f"{CONNECTIONS}::test_a_first_rewrite_that_is_soon_done_is_waited_for",
        Edit(
            f"{REDIS}/connection.py",
            "while awaits_file(info, self._config) and",
            "while False and",
        ),
    ),
    mutation(
        "a connection that met a replica of a cluster is kept",
        "what is acknowledged is kept",
        f"{CONNECTIONS}"
        "::test_a_server_of_a_cluster_that_was_met_as_a_replica_is_verified_once_it_is_the_primary",
        Edit(f"{REDIS}/connection.py", "        if info.is_replica:\n", "        if False:\n"),
    ),
    mutation(
        "a connection that is to be renewed counts as idle",
        "what is acknowledged is kept",
        f"{CONNECTIONS}::test_the_idle_connections_to_a_replica_of_a_cluster_are_not_used_again",
        Edit(f"{REDIS}/exchange.py", " and not connection.should_reconnect():", ":"),
    ),
    mutation(
        "a server in a folder that another user planted is taken for ours",
        "the embedded server is of one user",
        f"{SERVER}::test_a_server_that_another_user_put_in_the_place_of_ours_is_not_spoken_to[ensure]",
        Edit(
            f"{REDIS}/server.py",
            "    _prepare_socket_folder(folder, address)\n    launched = False\n",
            "    launched = False\n",
        ),
    ),
    mutation(
        "a connection goes to a server that another user planted",
        "the embedded server is of one user",
        f"{SERVER}::test_a_server_that_another_user_put_in_the_place_of_ours_is_not_spoken_to[connect]",
        Edit(
            f"{REDIS}/connection.py",
            "        server.prepare_socket_folder(self._folder)\n",
            "",
        ),
    ),
    mutation(
        "a look for the server pings one that another user planted",
        "the embedded server is of one user",
        f"{SERVER}::test_a_server_that_another_user_put_in_the_place_of_ours_is_not_spoken_to[examine]",
        Edit(
            f"{REDIS}/server.py",
            "    _check_socket_folder(folder, address)\n    return _probe(address)\n",
            "    return _probe(address)\n",
        ),
    ),
    mutation(
        "a fork keeps the lock of a folder whose server was being launched",
        "a server that died is started again",
        f"{SERVER}"
        "::test_a_process_that_is_forked_while_a_server_is_launched_does_not_keep_its_folder",
        Edit(
            f"{REDIS}/server.py",
            "    for descriptor in _descriptors:\n        os.close(descriptor)\n",
            "",
        ),
    ),
    mutation(
        "a fork keeps the lock of a folder that was being looked at",
        "a server that died is started again",
        f"{SERVER}"
        "::test_a_process_that_is_forked_during_a_look_at_the_server_does_not_keep_its_folder",
        Edit(f"{REDIS}/server.py", "        _descriptors.add(descriptor)\n", ""),
    ),
    mutation(
        "a server loses the lock of its folder where its starter has no standard streams",
        "a folder has one server at a time",
        f"{SERVER}"
        "::test_a_process_without_standard_streams_starts_a_server_that_holds_its_folder[closed0]",
        Edit(f"{REDIS}/server.py", "if descriptor <= _STANDARD_ERROR:", "if False:"),
    ),
    mutation(
        "a file or a socket becomes a standard stream that is closed",
        "each output is where it belongs",
        "tests/cli/test_main.py"
        "::test_a_stream_that_is_closed_is_the_null_device_also_for_started_processes[closed0]",
        Edit(
            "pulsar_txn_spark/cli/standard_streams.py",
            "            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)\n",
            "            pass\n",
        ),
    ),
    mutation(
        "a note is on standard output if standard error is closed",
        "each output is where it belongs",
        "tests/test_announcement.py"
        "::test_an_announcement_onto_a_closed_standard_error_is_on_no_other_stream",
        Edit("pulsar_txn_spark/announcement.py", "sys.stderr is not None and ", ""),
    ),
    mutation(
        "a status line that cannot be written ends a job that has committed",
        "a job that failed has left nothing",
        "tests/cli/test_job.py"
        "::test_a_status_line_that_cannot_be_written_does_not_decide_what_becomes_of_a_job"
        "[json-reader-gone-ends]",
        Edit("pulsar_txn_spark/cli/job.py", "run_job(job, report)", "run_job(job, _print_json)"),
    ),
    mutation(
        "what is left in the buffer of an output is the exit code of a job that has committed",
        "a job that failed has left nothing",
        "tests/cli/test_job.py"
        "::test_a_status_line_that_cannot_be_written_does_not_decide_what_becomes_of_a_job"
        "[json-reader-gone-ends]",
        Edit(
            "pulsar_txn_spark/cli/standard_streams.py",
            "                stream.flush()\n",
            "                pass\n",
        ),
    ),
    mutation(
        "a note that cannot be written ends a query",
        "a job that failed has left nothing",
        "tests/test_announcement.py::test_an_announcement_onto_a_full_disk_ends_nothing",
        Edit(
            "pulsar_txn_spark/announcement.py",
            "contextlib.suppress(OSError)",
            "contextlib.suppress()",
        ),
    ),
    mutation(
        "pulsar-client's log replaces what else a file of standard error gets",
        "each output is where it belongs",
        "tests/backends/pulsar/library/test_connections.py"
        "::test_a_file_keeps_both_the_log_and_what_else_is_written_to_it",
        Edit(f"{LIBRARY}/connections.py", "| os.O_APPEND)", "| 0)"),
    ),
    mutation(
        "pulsar-client logs into a file that is in the place of a closed standard error",
        "no loss",
        "tests/backends/pulsar/library/test_connections.py::"
        "test_a_file_that_is_in_the_place_of_a_closed_standard_error_stays_as_it_is",
        Edit(f"{LIBRARY}/connections.py", "if sys.__stderr__ is None:", "if False:"),
    ),
    mutation(
        "a client waits for a reader of standard error",
        "a failure is bounded in time",
        "tests/backends/pulsar/library/test_connections.py"
        "::test_a_named_pipe_without_a_reader_does_not_hold_a_client_up",
        Edit(
            f"{LIBRARY}/connections.py",
            "        return os.devnull\n    return _STANDARD_ERROR\n",
            "        pass\n    return _STANDARD_ERROR\n",
        ),
    ),
)
