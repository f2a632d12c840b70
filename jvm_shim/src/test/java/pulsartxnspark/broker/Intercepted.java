package pulsartxnspark.broker;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;

/** Stores that answer some of the calls as a test says. */
final class Intercepted {
  /** Answers a call. */
  interface Answers {
    Object answer(Call call) throws Throwable;
  }

  /**
   * A call of a store's method.
   *
   * @param real whose
   * @param method which one
   * @param arguments of the call
   */
  record Call(Object real, Method method, Object[] arguments) {
    boolean is(String name) {
      return method.getName().equals(name);
    }

    /** Gives what the real store answers. */
    Object pass() throws Throwable {
      try {
        return method.invoke(real, arguments);
      } catch (InvocationTargetException error) {
        throw error.getCause();
      }
    }
  }

  private Intercepted() {}

  static <T> T store(Class<T> type, T real, Answers answers) {
    return type.cast(
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (proxy, method, arguments) -> answers.answer(new Call(real, method, arguments))));
  }
}
