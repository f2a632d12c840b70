package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Locale;
import org.junit.jupiter.api.Test;

class LogPositionTest {
  @Test
  void theStoreGetsAsciiDigitsWhateverTheLocaleOfTheBroker() {
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("fa-IR"));
    try {
      LogPosition position = new LogPosition(12, 344);
      assertEquals("00000000000000000013:00000000000000000345", position.padded());
      assertEquals(position, LogPosition.ofPadded(position.padded()));
    } finally {
      Locale.setDefault(before);
    }
  }
}
