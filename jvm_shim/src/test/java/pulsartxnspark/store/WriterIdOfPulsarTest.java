package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import org.junit.jupiter.api.Test;
import pulsartxnspark.store.WriterId.TxnBits;

class WriterIdOfPulsarTest {
  @Test
  void allProducersOfATransactionAreOneWriterWhoseBitsArePulsarsId() {
    TxnBits bits = new TxnBits(13, 42);
    assertFalse(bits.isOwn());
    WriterId writer = WriterId.ofPulsar(bits, 4);
    assertEquals("ptxn-1-42-pulsar-13", writer.name());
    assertEquals(new TransactionId(1, 42), writer.txn());
    assertEquals(bits, writer.bits());
    // As it is read from a pin.
    assertEquals(writer, WriterId.ofName(writer.name()).orElseThrow());
    assertEquals(bits, WriterId.ofName(writer.name()).orElseThrow().bits());
  }
}
