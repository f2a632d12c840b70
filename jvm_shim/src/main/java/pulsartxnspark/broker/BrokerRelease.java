package pulsartxnspark.broker;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import org.apache.pulsar.PulsarVersion;

/** Whether the plug-in fits the release of Pulsar that has loaded it. */
final class BrokerRelease {
  private BrokerRelease() {}

  /**
   * Refuses a release whose broker would call what the plug-in does not have. Java itself finds that
   * out at the first call only, in the middle of a transaction.
   *
   * @param contract interface of the broker
   * @param plugin what implements it here
   * @throws IllegalStateException if a method of it is not implemented
   */
  static void require(Class<?> contract, Class<?> plugin) {
    for (Method required : contract.getMethods()) {
      if (Modifier.isAbstract(required.getModifiers()) && !has(plugin, required)) {
        throw new IllegalStateException(
            "pulsar_txn_spark does not support Pulsar "
                + PulsarVersion.getVersion()
                + ": its "
                + contract.getSimpleName()
                + " has the method "
                + required.toGenericString()
                + ", which the plug-in lacks. Use a release that the plug-in was tested with"
                + " (docs/broker.md), or leave the class names of pulsar_txn_spark out of the"
                + " broker's settings");
      }
    }
  }

  private static boolean has(Class<?> plugin, Method required) {
    return Arrays.stream(plugin.getMethods())
        .anyMatch(
            method ->
                !Modifier.isAbstract(method.getModifiers())
                    && method.getName().equals(required.getName())
                    && method.getReturnType() == required.getReturnType()
                    && Arrays.equals(method.getParameterTypes(), required.getParameterTypes()));
  }
}
