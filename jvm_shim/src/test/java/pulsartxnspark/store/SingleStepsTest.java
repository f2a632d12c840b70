package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** A step is taken only where the merged script would take it. */
class SingleStepsTest {
  private final List<String> taken = new ArrayList<>();
  private final Map<String, CompletableFuture<Optional<List<Object>>>> answers = new HashMap<>();

  private static Scripts.Call call(String script, String tag, Object... args) {
    return new Scripts.Call(script, tag, List.of(), List.of(args));
  }

  private static final List<Scripts.Call> ADMIT =
      List.of(call("txn_intend", "tc0"), call("seg_pin", "seg:s"), call("seg_pin", "seg:t"));
  private static final List<Scripts.Call> COMMIT =
      List.of(
          call("txn_end", "tc0"),
          call("txn_read", "tc0", "W|s|w", "W|t|w"),
          call("seg_materialize", "seg:s", "0:1", "0", "1", "COMMITTED"),
          call("seg_materialize", "seg:t", "0:1", "0", "1", "COMMITTED"),
          call("txn_forget_ops", "tc0"),
          call("txn_ended", "tc0"));

  private static CompletableFuture<Optional<List<Object>>> reply(Object... rest) {
    List<Object> reply = new ArrayList<>(List.of("1 a"));
    reply.addAll(List.of(rest));
    return CompletableFuture.completedFuture(Optional.of(reply));
  }

  private CompletableFuture<Optional<List<Object>>> step(Scripts.Call call) {
    String name = call.script() + " " + call.tag();
    taken.add(name);
    return answers.getOrDefault(name, reply("OK"));
  }

  private CompletableFuture<Optional<List<List<Object>>>> take(List<Scripts.Call> calls) {
    return SingleSteps.take(calls, this::step);
  }

  private int replies(List<Scripts.Call> calls) {
    return take(calls).join().orElseThrow().size();
  }

  private void readShows(String... intents) {
    List<byte[]> shown = new ArrayList<>();
    for (String one : intents) {
      shown.add(Scripts.bytes(one));
    }
    answers.put("txn_read tc0", reply("OK", "0", List.of(), shown));
  }

  @Test
  void noWriterIsPinnedBeforeItsIntentIsThere() {
    CompletableFuture<Optional<List<Object>>> intended = new CompletableFuture<>();
    answers.put("txn_intend tc0", intended);
    CompletableFuture<Optional<List<List<Object>>>> all = take(ADMIT);
    assertEquals(List.of("txn_intend tc0"), taken);
    intended.complete(reply("OK").join());
    assertEquals(3, all.join().orElseThrow().size());
    assertEquals(List.of("txn_intend tc0", "seg_pin seg:s", "seg_pin seg:t"), taken);
  }

  @Test
  void nothingFollowsARefusedStep() {
    answers.put("txn_intend tc0", reply("FENCED"));
    assertEquals(1, replies(ADMIT));
    assertEquals(List.of("txn_intend tc0"), taken);
    taken.clear();
    answers.put("txn_end tc0", reply("DECIDED", "ABORTED"));
    assertEquals(1, replies(COMMIT));
    assertEquals(List.of("txn_end tc0"), taken);
  }

  @Test
  void segmentsAreMaterializedAtOnceAndBeforeOperationsAreForgotten() {
    readShows("W|t|w", "W|s|w");
    CompletableFuture<Optional<List<Object>>> slow = new CompletableFuture<>();
    answers.put("seg_materialize seg:s", slow);
    CompletableFuture<Optional<List<List<Object>>>> all = take(COMMIT);
    assertEquals(List.of("seg_materialize seg:s", "seg_materialize seg:t"), taken.subList(4, 6));
    assertFalse(taken.contains("txn_forget_ops tc0"));
    slow.complete(reply("ALREADY").join());
    assertEquals(6, all.join().orElseThrow().size());
  }

  @Test
  void aSegmentThatIsNotDoneKeepsTheOperations() {
    readShows("W|s|w", "W|t|w");
    answers.put("seg_materialize seg:s", reply("MORE"));
    assertEquals(3, replies(COMMIT));
    assertFalse(taken.contains("txn_forget_ops tc0"));
  }

  private void assertNothingIsMaterialized() {
    taken.clear();
    assertEquals(2, replies(COMMIT));
    assertEquals(
        List.of(
            "txn_end tc0", "txn_read tc0", "seg_is_materialized seg:s", "seg_is_materialized seg:t"),
        taken);
  }

  @Test
  void nothingIsMaterializedUntilNoSegmentHasTheOtherMark() {
    readShows("W|s|w", "W|t|w");
    String mark = "seg_is_materialized seg:t";
    answers.put(mark, reply("RESOLVED", Scripts.bytes("ABORTED")));
    assertNothingIsMaterialized();
    answers.put(mark, CompletableFuture.failedFuture(new IllegalStateException("lost")));
    assertNothingIsMaterialized();
    answers.put(mark, CompletableFuture.completedFuture(Optional.empty()));
    assertNothingIsMaterialized();
    answers.put(mark, new CompletableFuture<>());
    assertFalse(take(COMMIT).isDone());
    for (Object[] free : new Object[][] {{"RESOLVED", Scripts.bytes("COMMITTED")}, {"CLOSED"}}) {
      answers.put(mark, reply(free));
      assertEquals(6, replies(COMMIT));
    }
  }

  @Test
  void nothingIsMaterializedOfATransactionThatHasTouchedMore() {
    readShows("W|s|w", "W|t|w", "W|u|w");
    assertEquals(2, replies(COMMIT));
    assertEquals(List.of("txn_end tc0", "txn_read tc0"), taken);
  }

  @Test
  void ofTheFirstStepItsCallerLearnsWhatHappened() {
    answers.put("txn_intend tc0", CompletableFuture.completedFuture(Optional.empty()));
    assertEquals(Optional.empty(), take(ADMIT).join());
    answers.put("txn_intend tc0", CompletableFuture.failedFuture(new IllegalStateException("lost")));
    assertTrue(take(ADMIT).isCompletedExceptionally());
  }

  @Test
  void aLostReplyOrAFaultInALaterStepEndsTheReplies() {
    answers.put("seg_pin seg:t", CompletableFuture.failedFuture(new IllegalStateException("lost")));
    assertEquals(2, replies(ADMIT));
    answers.put("seg_pin seg:s", CompletableFuture.completedFuture(Optional.empty()));
    assertEquals(1, replies(ADMIT));
  }
}
