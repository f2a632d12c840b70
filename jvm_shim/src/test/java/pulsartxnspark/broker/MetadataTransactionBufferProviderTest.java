package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.pulsar.broker.transaction.buffer.TransactionBufferProvider;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.StoreSettings;

class MetadataTransactionBufferProviderTest {
  private static final Path EXAMPLE = Path.of("../conf/broker.conf");

  @Test
  void theExampleOfTheSettingsIsValidAndNamesThisProvider() throws IOException {
    Properties example = new Properties();
    try (Reader file = Files.newBufferedReader(EXAMPLE)) {
      example.load(file);
    }
    StoreSettings settings = MetadataTransactionBufferProvider.storeSettings(example);
    assertEquals("redis://localhost:6379/0", settings.toString());
    String name = example.getProperty("transactionBufferProviderClassName");
    TransactionBufferProvider provider = TransactionBufferProvider.newProvider(name);
    assertEquals(MetadataTransactionBufferProvider.class, provider.getClass());
  }

  @Test
  void whatIsAcceptedOfTheStoreIsReadFromItsOwnSetting() {
    Properties set = new Properties();
    set.setProperty("pulsarTxnSparkStoreUrl", "redis://h");
    set.setProperty("pulsarTxnSparkStoreAcceptDataLoss", "true");
    StoreSettings settings = MetadataTransactionBufferProvider.storeSettings(set);
    assertTrue(settings.acceptDataLoss());
    assertFalse(settings.assumeDurable());
  }

  @Test
  void aMissingOrMalformedSettingIsNamed() {
    Properties none = new Properties();
    String message =
        assertThrows(
                IllegalArgumentException.class,
                () -> MetadataTransactionBufferProvider.storeSettings(none))
            .getMessage();
    assertTrue(message.contains("pulsarTxnSparkStoreUrl"), message);
    none.setProperty("pulsarTxnSparkStoreUrl", "redis://h");
    none.setProperty("pulsarTxnSparkStoreTimeoutMs", "soon");
    message =
        assertThrows(
                IllegalArgumentException.class,
                () -> MetadataTransactionBufferProvider.storeSettings(none))
            .getMessage();
    assertTrue(message.contains("pulsarTxnSparkStoreTimeoutMs"), message);
    assertTrue(MetadataTransactionBufferProvider.flag(none, "HelperEnabled", true));
    none.setProperty("pulsarTxnSparkHelperEnabled", "no");
    message =
        assertThrows(
                IllegalArgumentException.class,
                () -> MetadataTransactionBufferProvider.flag(none, "HelperEnabled", true))
            .getMessage();
    assertTrue(message.contains("expected true or false, found 'no'"), message);
  }
}
