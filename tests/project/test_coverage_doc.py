"""The page of coverage names only tests and places that exist, and leaves nothing unsaid."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "coverage.md"
DOCUMENTS = (
    *("PIP-471", "PIP-31", "PIP-160", "PIP-373", "PIP-460", "PIP-473", "PIP-475", "Review"),
    "Broker",  # what its plug-in shows to consumers
)
CELLS = 4
LEAST_PROOF = len("none: a reason")
FILE = re.compile(r"[\w./-]+\.(?:py|lua|proto|md|json|conf)")


def rows() -> list[list[str]]:
    """Return the cells of every row: document, item, where, proof."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] in DOCUMENTS:
            found.append(cells)
    return found


ROWS = rows()


def named(cell: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def place(path: str) -> Path:
    """Return the file that a row names."""
    at_root = ROOT / path
    return at_root if at_root.exists() else ROOT / "pulsar_txn_spark" / path


@cache
def symbols(file: Path) -> frozenset[str]:
    """Return the names that a file defines: functions, classes, their members, constants."""
    if file.suffix != ".py":
        return frozenset(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                found.update((prefix + node.name, node.name))  # a method with or without its class
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found.update(
                        prefix + name.id for name in ast.walk(target) if isinstance(name, ast.Name)
                    )

    collect(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def wrong_places(where: str) -> list[str]:
    """Return what is wrong with the third cell: files, and in brackets behind one what of it."""
    wrong = []
    for path, inner in re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", where):
        if not FILE.fullmatch(path):
            continue
        if not place(path).is_file():
            wrong.append(f"there is no {path}")
            continue
        if path.endswith(".md"):
            text = " ".join(place(path).read_text(encoding="utf-8").split())
            wrong += [f"{path} says nothing of {name}" for name in named(inner) if name not in text]
            continue
        known = symbols(place(path))
        wrong += [f"{path} defines no {name}" for name in named(inner) if name not in known]
    if not FILE.search(where) and not where.startswith("not built"):
        wrong.append("no place is named")
    return wrong


def wrong_proofs(proof: str) -> list[str]:
    """Return what is wrong with the fourth cell: tests by node id, or a reason."""
    wrong = []
    tests = [name for name in named(proof) if "::" in name]
    for test in tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).is_file() or name.replace("::", ".") not in symbols(ROOT / path):
            wrong.append(f"there is no test {test}")
        elif not name.rpartition("::")[2].startswith("test_"):
            wrong.append(f"{test} is no test")
    if not tests and not proof.startswith("none: "):
        wrong.append("neither a test nor a reason")
    elif proof.startswith("none: ") and len(proof) < LEAST_PROOF:
        wrong.append("the reason says nothing")
    if "open (" in proof:
        wrong.append("something is left open")
    return wrong


def unquoted_pages(where: str, proof: str) -> list[str]:
    """Return the pages that are a row's only proof, and of which it does not name the words."""
    if "::" in proof:
        return []
    pages = re.findall(r"`([\w./-]+\.md)`(?! \()", where)
    return [f"behind {page}, name in brackets what stands there" for page in pages]


def wrong_in(cells: list[str]) -> list[str]:
    """Return what is wrong with a row."""
    if len(cells) != CELLS or not all(cells):
        return ["expected four cells with something in each"]
    return wrong_places(cells[2]) + wrong_proofs(cells[3]) + unquoted_pages(*cells[2:])


def test_every_document_has_rows_and_no_item_has_two() -> None:
    assert {cells[0] for cells in ROWS} == set(DOCUMENTS)
    items = [(cells[0], cells[1]) for cells in ROWS]
    assert sorted(items) == sorted(set(items))


def test_every_row_of_a_table_is_looked_at() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    in_tables = [line for line in lines if line.startswith("|")]
    headings = [line for line in in_tables if line.startswith(("| Document |", "|---"))]
    assert len(ROWS) == len(in_tables) - len(headings)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_place_and_every_test_that_is_named_exists_and_no_cell_is_empty(
    document: str,
) -> None:
    wrong = {
        f"{cells[1]}": found
        for cells in ROWS
        if cells[0] == document and (found := wrong_in(cells))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "cells,complaint",
    [
        (["PIP-31", "x", "`cli/main.py`", ""], "expected four cells"),
        (["PIP-31", "x", "`cly.py`", "none: it has no meaning here"], "there is no cly.py"),
        (["PIP-31", "x", "`cli/main.py` (`mane`)", "none: it has no meaning"], "defines no mane"),
        (["PIP-31", "x", "somewhere", "none: it has no meaning here"], "no place is named"),
        (["PIP-31", "x", "`cli/main.py`", "`tests/cli/test_main.py::test_x`"], "there is no test"),
        (["PIP-31", "x", "`cli/main.py`", "`tests/cli/test_main.py::call`"], "is no test"),
        (["PIP-31", "x", "`cli/main.py`", "it works"], "neither a test nor a reason"),
        (["PIP-31", "x", "`cli/main.py`", "none: no"], "the reason says nothing"),
        (["PIP-31", "x", "`cli/main.py`", "none: a command. Elsewhere: open (cli)"], "left open"),
        (["PIP-31", "x", "`docs/client.md` (`gearbox`)", "none: no meaning"], "says nothing of"),
        (["PIP-31", "x", "`docs/client.md`", "none: it has no meaning here"], "name in brackets"),
    ],
)
def test_a_row_that_is_wrong_is_found(cells: list[str], complaint: str) -> None:
    assert complaint in wrong_in(cells)[0]


def test_every_metric_that_a_document_asks_for_has_a_row() -> None:
    from pulsar_txn_spark.metrics import METRICS  # noqa: PLC0415

    text = {name for cells in ROWS for name in re.findall(r"pulsar_\w+", cells[1])}
    assert {metric.name for metric in METRICS if metric.source} <= text


# What the documents name, in their spelling: methods, commands, states, errors, settings, metrics.
ITEMS = {
    "PIP-471": """
        newTxn addPartitionToTxn addSubscriptionToTxn endTxn
        appendBufferToTxn commit abort getMaxReadPosition isTxnAborted recover
        appendIndividualAck appendCumulativeAck replayAsync
        NEW_TXN ADD_PARTITION_TO_TXN ADD_SUBSCRIPTION_TO_TXN END_TXN
        END_TXN_ON_PARTITION END_TXN_ON_SUBSCRIPTION
        OPEN COMMITTED ABORTED TIME_OUT TxnConflict timeout_ms created_ms finalized_ms
        idx:writes-by-segment idx:acks-by-segment-subscription
        idx:txn-by-deadline idx:txn-by-final-state
        TransactionBufferProvider TransactionPendingAckStoreProvider
        TopicTransactionBuffer MLPendingAckStore
        __transaction_log_* __transaction_buffer_snapshot __transaction_pending_ack
        pulsar_txn_metadata_store_op_writes_total
        pulsar_txn_metadata_store_header_cas_total
        pulsar_txn_metadata_store_index_query_seconds
        pulsar_txn_metadata_store_outstanding_op_records
        pulsar_txn_tb_* topic:// persistent://
    """,
    "PIP-31": """
        PulsarClient.newTransaction TransactionBuilder.build withTransactionTimeout
        Transaction.commit Transaction.abort Producer.newMessage Consumer.acknowledge
        TxnID TCID TxnAction COMMIT ABORT
        CommandNewTxn CommandNewTxnResponse
        CommandAddPartitionToTxn CommandAddPartitionToTxnResponse
        CommandAddSubscriptionToTxn CommandAddSubscriptionToTxnResponse
        CommandEndTxn CommandEndTxnResponse
        CommandEndTxnOnPartition CommandEndTxnOnPartitionResponse
        CommandEndTxnOnSubscription CommandEndTxnOnSubscriptionResponse
        CommandSend CommandAck CommandAckResponse AckType Individual Cumulative
        CommandAck.ValidationError UncompressedSizeCorruption DecompressionError ChecksumMismatch
        BatchDeSerializeError DecryptionError
        OPEN COMMITTING COMMITTED ABORTING ABORTED
        TransactionMetadataStoreProvider.openStore TransactionMetadataStore.newTransaction
        addProducedPartitionToTxn addAckedPartitionToTxn updateTxnStatus
        TransactionMetadataOp NEW ADD_PARTITION ADD_SUBSCRIPTION UPDATE
        TxnNotFound TxnMetaStoreError InvalidTxnState
        MessageType DATA TXN_COMMIT TXN_ABORT indirect_ledger_id /_txnlog
        PENDING PENDING_ACK DELETED READ_COMMITTED READ_UNCOMMITTED SERIALIZABILITY
    """,
    "PIP-160": """
        TxLogBufferedWriter batchIndex batchSize
        BatchedTransactionMetadataEntry BatchedPendingAckMetadataEntry
        transactionLogBatchedWriteEnabled transactionLogBatchedWriteMaxRecords
        transactionLogBatchedWriteMaxSize transactionLogBatchedWriteMaxDelayInMillis
        transactionPendingAckBatchedWriteEnabled transactionPendingAckBatchedWriteMaxRecords
        transactionPendingAckBatchedWriteMaxSize transactionPendingAckBatchedWriteMaxDelayInMillis
        --set-txn-tc-batch-log --get-txn-tc-batch-log-stat
        --set-txn-pending-ack-batch-log --get-txn-pending-ack-batch-log-stat
        partitioned-lookup coordinator-internal-stats pending-ack-internal-stats
        pulsar_txn_tc_log_records_count_per_entry
        pulsar_txn_tc_batched_log_entry_size_bytes
        pulsar_txn_tc_batched_log_olderst_record_delay_time_seconds
        pulsar_txn_tc_batched_log_triggering_count_by_records
        pulsar_txn_tc_batched_log_triggering_count_by_size
        pulsar_txn_tc_batched_log_triggering_count_by_delay_time
        pulsar_pending_ack_batched_log_records_count_per_entry
        pulsar_pending_ack_batched_log_entry_size_bytes
        pulsar_pending_ack_batched_log_olderst_record_delay_time_seconds
        pulsar_pending_ack_batched_log_triggering_count_by_records
        pulsar_pending_ack_batched_log_triggering_count_by_size
        pulsar_pending_ack_batched_log_triggering_count_by_delay_time
        cluster coordinator_id
    """,
    "PIP-373": """
        __contains_txn_messages NotAllowedException
        update-properties remove-properties get-properties
        pulsar_broker_using_txn_topics_count
    """,
}


@pytest.mark.parametrize("document", ITEMS)
def test_whatever_a_document_names_has_a_row(document: str) -> None:
    items = "\n".join(cells[1] for cells in ROWS if cells[0] == document)
    missing = [
        name
        for name in ITEMS[document].split()
        if not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", items)
    ]
    assert missing == []
