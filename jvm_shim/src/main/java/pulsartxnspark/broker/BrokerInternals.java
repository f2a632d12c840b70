package pulsartxnspark.broker;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.TransactionMetadataStoreService;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;

/**
 * What a broker does not hand to the provider of its coordinators: itself. The tracker that it hands
 * over has it, in a private field.
 *
 * @param pulsar the broker
 * @param service which calls the coordinators
 */
record BrokerInternals(PulsarService pulsar, TransactionMetadataStoreService service) {
  /**
   * Finds the broker.
   *
   * @param tracker of a broker
   * @return the broker that it belongs to
   * @throws IllegalStateException if this version of Pulsar has it elsewhere
   */
  static BrokerInternals of(TransactionRecoverTracker tracker) {
    TransactionMetadataStoreService service = fieldOf(tracker, TransactionMetadataStoreService.class);
    return new BrokerInternals(fieldOf(service, PulsarService.class), service);
  }

  private static <T> T fieldOf(Object object, Class<T> type) {
    for (Field field : object.getClass().getDeclaredFields()) {
      if (field.getType() == type && !Modifier.isStatic(field.getModifiers())) {
        try {
          field.setAccessible(true);
          return type.cast(field.get(object));
        } catch (ReflectiveOperationException | RuntimeException error) {
          throw absent(object, type, error);
        }
      }
    }
    throw absent(object, type, null);
  }

  private static IllegalStateException absent(Object object, Class<?> type, Throwable cause) {
    return new IllegalStateException(
        "expected a "
            + type.getSimpleName()
            + " in "
            + object.getClass().getName()
            + ", found none: this version of Pulsar is not supported by the transaction coordinator"
            + " of pulsar_txn_spark. Leave transactionMetadataStoreProviderClassName out",
        cause);
  }
}
