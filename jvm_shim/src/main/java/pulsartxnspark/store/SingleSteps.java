package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * Takes the steps of a merged script one after the other, where no server has all of their tags. Each
 * is taken only if {@code _merged.lua} would take it: no pin without its intent, and nothing is
 * materialized that was not decided. One script for several tags is run for all of them at once.
 * Several segments are asked for their marks before any of them materializes a decision.
 *
 * <p>What is left when a step is refused, or its reply is lost, is what a client leaves that dies
 * there. Every step may be repeated, and the caller goes on alone.
 */
final class SingleSteps {
  /** By script, the codes behind which a step may follow; as in {@code _merged.lua}. */
  private static final Map<String, Set<String>> PASSES =
      Map.of(
          "txn_op", Set.of("OK"),
          "txn_intend", Set.of("OK"),
          "txn_end", Set.of("OK"),
          "seg_materialize", Set.of("OK", "ALREADY", "CLOSED"),
          "txn_forget_ops", Set.of("OK"));

  private final List<Scripts.Call> calls;
  private final Function<Scripts.Call, CompletableFuture<Optional<List<Object>>>> step;
  private final List<List<Object>> replies = new ArrayList<>();

  private SingleSteps(
      List<Scripts.Call> calls,
      Function<Scripts.Call, CompletableFuture<Optional<List<Object>>>> step) {
    this.calls = calls;
    this.step = step;
  }

  /**
   * Takes steps.
   *
   * @param calls the steps, in their order
   * @param step takes one; gives nothing if its tag is not as it is known, and fails if its reply is lost
   * @return the replies, up to the first behind which nothing may follow; nothing, or an error, if
   *     that is so of the first step
   */
  static CompletableFuture<Optional<List<List<Object>>>> take(
      List<Scripts.Call> calls,
      Function<Scripts.Call, CompletableFuture<Optional<List<Object>>>> step) {
    return new SingleSteps(calls, step).next();
  }

  private CompletableFuture<Optional<List<List<Object>>>> next() {
    int from = replies.size();
    int to = from + 1;
    while (to < calls.size() && calls.get(to).script().equals(calls.get(from).script())) {
      to++;
    }
    List<Scripts.Call> group = calls.subList(from, to);
    if (group.size() == 1 || !group.get(0).script().equals("seg_materialize")) {
      return take(group);
    }
    List<CompletableFuture<Optional<List<Object>>>> marks =
        group.stream().map(RedisTransactionStore::markCall).map(step).toList();
    return whenAll(marks)
        .thenCompose(
            all ->
                canAllTake(group, marks)
                    ? take(group)
                    : CompletableFuture.completedFuture(Optional.of(replies)));
  }

  /** Tells whether every segment can take the decision; one of which this is not known cannot. */
  private static boolean canAllTake(
      List<Scripts.Call> group, List<CompletableFuture<Optional<List<Object>>>> marks) {
    for (int i = 0; i < group.size(); i++) {
      Optional<List<Object>> mark = reply(marks.get(i));
      if (mark.isEmpty() || RedisTransactionStore.isOther(mark.get(), group.get(i))) {
        return false;
      }
    }
    return true;
  }

  private CompletableFuture<Optional<List<List<Object>>>> take(List<Scripts.Call> group) {
    List<CompletableFuture<Optional<List<Object>>>> taken = group.stream().map(step).toList();
    return whenAll(taken)
        .thenApply(all -> note(taken))
        .thenCompose(
            goesOn -> {
              if (goesOn && replies.size() < calls.size()) {
                return next();
              }
              // Of the first step the caller has to know whether it may have been taken.
              return replies.isEmpty()
                  ? taken.get(0).thenApply(fault -> Optional.empty())
                  : CompletableFuture.completedFuture(Optional.of(replies));
            });
  }

  private static CompletableFuture<Void> whenAll(
      List<CompletableFuture<Optional<List<Object>>>> answers) {
    return CompletableFuture.allOf(answers.toArray(CompletableFuture<?>[]::new))
        .exceptionally(lost -> null);
  }

  private static Optional<List<Object>> reply(CompletableFuture<Optional<List<Object>>> answer) {
    return answer.exceptionally(lost -> Optional.empty()).join();
  }

  /** Notes the replies of steps that were taken at once; tells whether others may follow. */
  private boolean note(List<CompletableFuture<Optional<List<Object>>>> taken) {
    for (CompletableFuture<Optional<List<Object>>> answer : taken) {
      Optional<List<Object>> reply = reply(answer);
      if (reply.isEmpty()) {
        return false;
      }
      Scripts.Call call = calls.get(replies.size());
      replies.add(reply.get());
      Set<String> passing = PASSES.get(call.script());
      if (passing != null && !passing.contains(String.valueOf(reply.get().get(1)))) {
        return false;
      }
      if (call.script().equals("txn_read") && !knowsAll(call, reply.get())) {
        return false;
      }
    }
    return true;
  }

  /** What is materialized must be all that the transaction has touched. */
  private static boolean knowsAll(Scripts.Call read, List<Object> reply) {
    Set<String> intents =
        reply.size() < 5
            ? Set.of()
            : ((List<?>) reply.get(4)).stream()
                .map(RedisTransactionStore::text)
                .collect(Collectors.toSet());
    return intents.equals(new HashSet<>(read.args().stream().map(String::valueOf).toList()));
  }
}
