package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The metadata store on Redis: what brokers keep of acknowledgements under {@code {seg:<id>}}. */
public final class RedisAckStore implements AckStore {
  private static final String READ_AT_ONCE = "1000"; // in one step: it must not block the server

  private final Scripts scripts;
  private final StoreMetrics metrics;

  /**
   * Makes a store.
   *
   * @param scripts that it runs
   * @param metrics where the times of reading records go
   */
  public RedisAckStore(Scripts scripts, StoreMetrics metrics) {
    this.scripts = scripts;
    this.metrics = metrics;
  }

  private static String tag(Subscription subscription) {
    return "seg:" + subscription.segment();
  }

  private static List<String> keys(Subscription subscription) {
    return List.of("broker-acks-owner:" + subscription.name(), "broker-acks:" + subscription.name());
  }

  @Override
  public void note(Subscription subscription, String cursor) {
    List<String> keys = List.of("broker-acks-owner:" + subscription.name(), "broker-subscriptions");
    List<String> args = List.of(subscription.name(), cursor);
    List<Object> reply = run(new Scripts.Call("broker_acks_note", tag(subscription), keys, args));
    if ("RETIRED".equals(String.valueOf(reply.get(1)))) {
      throw retired(subscription);
    }
  }

  private static StoreRolledBackException retired(Subscription subscription) {
    return new StoreRolledBackException(
        "segment "
            + subscription.segment()
            + " was deleted: its subscriptions take no acknowledgements in transactions");
  }

  @Override
  public Opened open(Subscription subscription, String cursor) {
    List<String> args = List.of(cursor);
    List<Object> reply =
        run(new Scripts.Call("broker_acks_open", tag(subscription), keys(subscription), args));
    switch (String.valueOf(reply.get(1))) {
      case "OK" -> { }
      case "LOST" -> throw new StoreRolledBackException(
          "the metadata store lacks the acknowledgements of subscription "
              + subscription.name()
              + " in segment "
              + subscription.segment()
              + ": expected those of cursor "
              + cursor
              + ", found '"
              + reply.get(2)
              + "'. Nothing was read; restore the newest state of the store");
      default -> throw retired(subscription);
    }
    long owner = RedisTransactionStore.number(reply.get(2));
    long began = System.nanoTime();
    Map<String, String> records = records(subscription, owner);
    metrics.countQuery(
        StoreMetrics.Index.ACKS_BY_SEGMENT_SUBSCRIPTION, System.nanoTime() - began);
    return new Opened(owner, records);
  }

  private Map<String, String> records(Subscription subscription, long owner) {
    Map<String, String> records = new HashMap<>();
    String from = "0";
    do {
      List<String> args = List.of("" + owner, from, READ_AT_ONCE);
      List<Object> reply =
          run(
              new Scripts.Call(
                  "broker_acks_read", tag(subscription), keys(subscription), args));
      if ("FENCED".equals(reply.get(1))) {
        throw new StoreUnavailableException(
            "another broker has opened subscription " + subscription.name() + " meanwhile", null);
      }
      from = String.valueOf(reply.get(2));
      List<?> flat = (List<?>) reply.get(3);
      for (int i = 0; i < flat.size(); i += 2) {
        records.put(String.valueOf(flat.get(i)), String.valueOf(flat.get(i + 1)));
      }
    } while (!"0".equals(from));
    return records;
  }

  @Override
  public Answer write(Subscription subscription, long owner, Step step) {
    return answer(run(call(subscription, owner, step)));
  }

  @Override
  public CompletableFuture<Optional<Answer>> writeTogether(
      Subscription subscription, long owner, Step step) {
    return scripts
        .together("", List.of(call(subscription, owner, step)))
        .thenApply(taken -> taken.map(replies -> answer(replies.get(0))));
  }

  private static Scripts.Call call(Subscription subscription, long owner, Step step) {
    List<String> args = new ArrayList<>();
    args.add("" + owner);
    args.add("" + step.number());
    args.add("" + step.written().size());
    step.written()
        .forEach(
            (name, record) -> {
              args.add(name);
              args.add(record);
            });
    args.addAll(step.removed());
    return new Scripts.Call("broker_acks_write", tag(subscription), keys(subscription), args);
  }

  private static Answer answer(List<Object> reply) {
    return switch (String.valueOf(reply.get(1))) {
      case "OK", "ALREADY" -> Answer.OK;
      case "FENCED" -> Answer.FENCED;
      case "RETIRED" -> Answer.RETIRED;
      case "FULL" -> Answer.FULL;
      default -> throw new StoreRolledBackException(
          "the metadata store lacks acknowledged steps: the last one there is "
              + RedisTransactionStore.text(reply.get(2))
              + ". Nothing was written; restore the newest state of the store");
    };
  }

  private List<Object> run(Scripts.Call call) {
    List<Object> reply = scripts.run(call);
    if (reply == null) {
      throw new StoreRolledBackException(
          "tag {" + call.tag() + "} is not there, although its segment is: restore the store");
    }
    return reply;
  }
}
