package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.junit.jupiter.api.Test;

class StoreSettingsTest {
  private static StoreSettings of(String url) {
    return StoreSettings.of(url, "", "", "", 1_000);
  }

  @Test
  void aUrlHasTheFormOfTheOptionOfSparksJobs() {
    StoreSettings settings = of("rediss://ada:s%20e@store:7000/2");
    assertEquals("rediss://store:7000/2", settings.toString());
    assertEquals(2, settings.database());
    assertEquals("ada", settings.username());
    assertEquals("s e", settings.password());
    assertEquals(StoreSettings.Tls.DEFAULT, settings.tls());
    assertNull(of("redis://store").tls());
    assertEquals(6379, of("redis://store").servers().get(0).getPort());
    assertEquals("::1", of("redis://u@[::1]:7").servers().get(0).getHost());
    assertEquals(3, of("redis://under_score?db=3").database());
    assertNull(of("redis://store").password());
  }

  @Test
  void anEscapeThatIsNoneIsTakenAsItIsWritten() {
    // The values are those of Python's urllib.parse.unquote, which reads the URL of Spark's jobs.
    Map.of(
            "100%qz", "100%qz",
            "abc%", "abc%",
            "%4%41", "%4A",
            "a%+1b", "a%+1b",
            "%c3%A9\u00e9%F0%9F%98%80", "\u00e9\u00e9\ud83d\ude00",
            "%C3\u00e9%A9", "\ufffd\u00e9\ufffd",
            "%E2%82", "\ufffd",
            "%ED%A0%80", "\ufffd\ufffd\ufffd")
        .forEach(
            (written, meant) -> {
              assertEquals(meant, of("redis://app:" + written + "@h:6379/0").password());
              assertEquals(meant, of("redis://" + written + "@h").username());
            });
  }

  @Test
  void aClusterIsNamedByAnyOfItsServers() {
    StoreSettings settings = of("rediss+cluster://ada:secret@a:1,b,[::1]:3");
    assertTrue(settings.cluster());
    assertEquals(3, settings.servers().size());
    assertEquals("rediss+cluster://a:1,b:6379,::1:3", settings.toString());
    assertNull(of("redis+cluster://a").tls());
    assertFalse(of("redis://a").cluster());
  }

  @Test
  void settingsOfTheirOwnStandInForThoseOfTheUrl() {
    StoreSettings settings = StoreSettings.of("redis://a:b@store", "ada", "other", "", 1_000);
    assertEquals("ada", settings.username());
    assertEquals("other", settings.password());
  }

  @Test
  void aBadSettingIsNamedWithoutItsSecrets() {
    for (String url : new String[] {"http://u:secret@h", "redis+cluster://u:secret@h/1", "redis://u:secret@h,i",
        "redis+cluster://u:secret@h,,i", "redis://", "secret words",
        "redis://u:secret@h/x",
        "redis://u:secret@h:99999", "redis://u:%qzsecret@h:99999", "redis://u:secret@h/1?db=1", "redis://u:secret@h?secret=1"}) {
      String message = assertThrows(IllegalArgumentException.class, () -> of(url)).getMessage();
      assertTrue(message.contains("pulsarTxnSparkStoreUrl"), message);
      assertFalse(message.contains("secret"), message);
    }
    assertThrows(
        IllegalArgumentException.class, () -> StoreSettings.of("rediss://h", "", "", "/none", 1_000));
    assertThrows(
        IllegalArgumentException.class, () -> StoreSettings.of("redis://h", "", "", "/none", 1_000));
    assertThrows(IllegalArgumentException.class, () -> StoreSettings.of("redis://h", "", "", "", 0));
    assertFalse(of("redis://u:secret@h").toString().contains("secret"));
  }
}
