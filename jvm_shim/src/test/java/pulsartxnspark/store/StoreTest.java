package pulsartxnspark.store;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;

/** Tests against a real Redis, or a cluster: one for the class, and a new store with one segment for each. */
public abstract class StoreTest {
  /** The server of the class that is running. */
  protected static RedisServer server;

  /** The store of the test that is running; it has the segment "s". */
  protected TestStore store;

  @BeforeAll
  protected static void startServer(TestInfo tests) {
    server = RedisServer.of(tests);
  }

  @AfterAll
  protected static void stopServer() {
    server.close();
  }

  @BeforeEach
  protected void makeStore() {
    store = new TestStore(server);
    store.prepare("s");
  }

  @AfterEach
  protected void closeStore() {
    store.close();
  }
}
