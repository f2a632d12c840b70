package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * An entry that a buffer is to append. It has been retained: it is released when it was appended or
 * refused.
 *
 * @param txn its transaction
 * @param entry with its metadata
 * @param messages in it
 * @param done its receipt
 * @param named its writer; null if all producers of the transaction are one
 */
record BufferAppend(
    TxnID txn, ByteBuf entry, int messages, CompletableFuture<Position> done, WriterId named) {
  /** What kind of refusal it is: clients of this package tell by the word in the message. */
  enum Refusal {
    /** The writer has no pin: its transaction is decided. */
    FENCED,
    /** The store does not tell. */
    UNAVAILABLE,
    /** The entry is not one of a writer. */
    INVALID;

    /** The one error upon which the broker does not close the topic's producers. */
    NotAllowedException of(TxnID txn, String why) {
      return new NotAllowedException(
          MetadataTransactionBuffer.KIND
              + " "
              + this
              + ": an entry of transaction "
              + txn
              + " is refused: "
              + why);
    }
  }

  TxnBits bits() {
    return new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
  }

  void refuse(Exception error) {
    entry.release();
    done.completeExceptionally(error);
  }
}
