package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import pulsartxnspark.store.WriterId.TxnBits;

class WriterIdTest {
  private static final long MOST_BITS = 8923183830823469059L;

  @Test
  void theBitsOfAWriterAreThoseThatPythonSends() {
    // The same figures are in tests/backends/pulsar/test_txn_bits.py.
    WriterId writer = WriterId.ofName("ptxn-3-41-7-a1b2c3d4").orElseThrow();
    assertEquals(3, writer.tc());
    assertEquals(41, writer.counter());
    assertEquals(new TxnBits(MOST_BITS, 41), writer.bits());
    assertEquals(3, writer.bits().tc());
    assertTrue(writer.bits().isOwn());
  }

  @Test
  void twoWritersOfOneTransactionHaveDifferentBits() {
    TxnBits first = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow().bits();
    TxnBits second = WriterId.ofName("ptxn-0-1-1-bb").orElseThrow().bits();
    assertNotEquals(first, second);
    assertEquals(first.least(), second.least());
  }

  @Test
  void otherProducersAreNoWriters() {
    for (String name : new String[] {"", "standalone-0-1", "ptxn-1-2-3", "ptxn-x-1-0-aa", "ptxn-65536-1-0-aa"}) {
      assertTrue(WriterId.ofName(name).isEmpty(), name);
    }
    assertFalse(new TxnBits(3, 7).isOwn());
  }
}
