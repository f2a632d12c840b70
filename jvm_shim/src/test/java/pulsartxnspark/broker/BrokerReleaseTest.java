package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.broker.transaction.buffer.TransactionBufferProvider;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreProvider;
import org.junit.jupiter.api.Test;

class BrokerReleaseTest {
  interface Older {
    Number position();
  }

  interface Newer extends Older {
    default void harmless() {}

    void drain(long position);
  }

  static class OfOlder implements Older {
    @Override
    public Number position() {
      return 1;
    }

    public void drain(int position) {}
  }

  static class OfAnotherType {
    public Integer position() {
      return 1;
    }
  }

  @Test
  void aReleaseThatAsksForNothingMoreIsTaken() {
    assertDoesNotThrow(() -> BrokerRelease.require(Older.class, OfOlder.class));
  }

  @Test
  void aReleaseThatAsksForAMethodThatThePluginLacksIsRefused() {
    IllegalStateException refused =
        assertThrows(
            IllegalStateException.class, () -> BrokerRelease.require(Newer.class, OfOlder.class));
    assertTrue(refused.getMessage().contains("Pulsar " + PulsarVersion.getVersion() + ": its Newer"));
    assertTrue(refused.getMessage().contains("drain(long)"), refused.getMessage());
    assertThrows(
        IllegalStateException.class,
        () -> BrokerRelease.require(Older.class, OfAnotherType.class));
  }

  @Test
  void theReleaseThatThisIsBuiltWithIsTaken() {
    assertDoesNotThrow(
        () -> {
          BrokerRelease.require(
              TransactionBufferProvider.class, MetadataTransactionBufferProvider.class);
          BrokerRelease.require(
              TransactionMetadataStoreProvider.class, MetadataTransactionCoordinatorProvider.class);
          new MetadataTransactionBufferProvider();
          new MetadataTransactionCoordinatorProvider();
        });
  }
}
