package bench;

import java.lang.management.ManagementFactory;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntFunction;
import org.redisson.Redisson;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.ExpiredObjectListener;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's RLock, acquired without a lease time, so that its watchdog renews it: {@code MODE URL OPTIONS}.
 *
 * <p>All settings are Redisson's defaults, but for the watchdog's timeout, which is the option {@code timeout_s}: it renews
 * every third of it. In the modes pairs, handover and crowd the JVM warms up for {@code warm_s} seconds, 10 if not given.
 */
public final class RedissonWorker {
    /** Calls under way while all locks are acquired or released: four for each of the 64 connections of the pool. */
    private static final int UNDER_WAY = 256;

    /** The thread that holds all locks, as Redisson names it. */
    private static final long HOLDER = 1;

    /** Names of each caller, which it takes in turns. */
    private static final int NAMES = 64;

    private final Protocol protocol;
    private final RedissonClient redisson;

    private RedissonWorker(Protocol protocol, String url) {
        this.protocol = protocol;
        URI uri = URI.create(url);
        Config config = new Config().setLockWatchdogTimeout(Math.round(protocol.number("timeout_s", 30.0) * 1000));
        String database = uri.getPath().replace("/", "");
        config.useSingleServer()
                .setAddress(uri.getScheme() + "://" + uri.getRawAuthority())
                .setDatabase(database.isEmpty() ? 0 : Integer.parseInt(database));
        redisson = Redisson.create(config);
    }

    public static void main(String[] arguments) throws Exception {
        Protocol protocol = new Protocol(arguments[2]);
        protocol.serve(() -> {
            RedissonWorker worker = new RedissonWorker(protocol, arguments[1]);
            return switch (arguments[0]) {
                case "hold" -> worker.hold();
                case "pairs" -> worker.pairs();
                case "handover" -> worker.handover();
                case "crowd" -> worker.crowd();
                default -> throw new UnsupportedOperationException("no " + arguments[0]);
            };
        });
    }

    // Holding

    /**
     * All locks belong to one thread, and are acquired and released through the asynchronous API.
     *
     * <p>The holder of an RLock is not told that it is lost: a renewal that finds the key gone, or taken, ends the renewals of
     * this lock, and unlock() throws. A user has to ask the server, by isHeldByCurrentThread() or remainTimeToLive(). What
     * can be told is that the server has removed a key, if its notify-keyspace-events has "Egx": with the option
     * {@code listen} one listener of each kind hears of all keys. They hear nothing while the server is away.
     */
    private Protocol.Mode hold() throws InterruptedException {
        String prefix = protocol.text("prefix", "b:");
        int first = protocol.count("first", 0);
        int number = protocol.count("locks", 0);
        RLock[] locks = new RLock[number];
        Arrays.setAll(locks, index -> redisson.getLock(prefix + (first + index)));
        forAll(number, index -> locks[index].lockAsync(HOLDER));
        Losses losses = new Losses(prefix, first, number);
        if (protocol.text("listen", "false").equals("true")) {
            redisson.getKeys().addListener((DeletedObjectListener) name -> losses.told(name, "deleted"));
            redisson.getKeys().addListener((ExpiredObjectListener) name -> losses.told(name, "expired"));
        }
        return order -> {
            if (order.equals("read")) {
                System.gc();
                long heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
                // Redisson does not count renewals.
                return "{\"renewed\": null, \"lost\": " + losses.told + ", \"heap\": " + heap + "}";
            }
            losses.over = true;
            // Throws where the lock has been lost.
            forAll(number, index -> locks[index].unlockAsync(HOLDER).exceptionally(RedissonWorker::unlessLost));
            return "{}";
        };
    }

    /** What the listeners tell. */
    private final class Losses {
        private final String prefix;
        private final int first;
        private final int number;
        private volatile boolean over;
        private volatile int told;

        Losses(String prefix, int first, int number) {
            this.prefix = prefix;
            this.first = first;
            this.number = number;
        }

        synchronized void told(String name, String reason) {
            if (over || !name.matches("\\Q" + prefix + "\\E\\d+")) {
                return;
            }
            int index = Integer.parseInt(name.substring(prefix.length()));
            if (index >= first && index < first + number) {
                protocol.lost(index, reason);
                told++;
            }
        }
    }

    private static Void unlessLost(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof IllegalMonitorStateException) {
                return null;
            }
        }
        throw new CompletionException(error);
    }

    /** Makes all calls, some at a time, and waits for their ends. Throws what the first failed one has thrown. */
    private static void forAll(int number, IntFunction<CompletionStage<?>> call) throws InterruptedException {
        Semaphore places = new Semaphore(UNDER_WAY);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int index = 0; index < number && failure.get() == null; index++) {
            places.acquire();
            call.apply(index).whenComplete((value, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
                places.release();
            });
        }
        places.acquire(UNDER_WAY);
        if (failure.get() != null) {
            throw new CompletionException(failure.get());
        }
    }

    // Acquiring and releasing

    private Protocol.Mode pairs() throws Exception {
        boolean tasks = protocol.text("kind", "threads").equals("tasks");
        int callers = protocol.count("callers", 1);
        warmUp(seconds -> pairs(tasks, callers, "warm:" + ProcessHandle.current().pid() + ":", seconds));
        for (int spinner = 0; spinner < protocol.count("spin", 0); spinner++) {
            Thread thread = new Thread(RedissonWorker::spin);
            thread.setDaemon(true);
            thread.start();
        }
        return order -> pairs(tasks, callers, "p:", Double.parseDouble(order));
    }

    private String pairs(boolean tasks, int callers, String prefix, double seconds) throws Exception {
        Run run = new Run(tasks, callers, seconds, (caller, going) -> {
            long pairs = 0;
            while (going.isGoing()) {
                RLock lock = redisson.getLock(prefix + caller + ":" + pairs % NAMES);
                lock.lock();
                lock.unlock();
                pairs++;
            }
            return pairs;
        });
        long pairs = run.counts.stream().mapToLong(Long::longValue).sum();
        return "{\"pairs\": " + pairs + ", \"seconds\": " + run.seconds + ", \"callers\": \"" + run.callers + "\"}";
    }

    private static void spin() {
        long number = 0;
        while (true) {
            number++;
        }
    }

    private Protocol.Mode crowd() throws Exception {
        String name = protocol.text("name", "c");
        int waiters = protocol.count("waiters", 100);
        warmUp(seconds -> crowd("warm:" + ProcessHandle.current().pid(), waiters, seconds));
        return order -> crowd(name, waiters, Double.parseDouble(order));
    }

    private String crowd(String name, int waiters, double seconds) throws Exception {
        long hold = Math.round(protocol.number("hold_s", 0.001) * 1e9);
        boolean tasks = protocol.text("kind", "threads").equals("tasks");
        Run run = new Run(tasks, waiters, seconds, (waiter, going) -> {
            long grants = 0;
            while (going.isGoing()) {
                RLock lock = redisson.getLock(name);
                lock.lock();
                try {
                    if (going.isGoing()) {
                        grants++;
                        TimeUnit.NANOSECONDS.sleep(hold);
                    }
                } finally {
                    lock.unlock();
                }
            }
            return grants;
        });
        return "{\"grants\": " + run.counts + ", \"seconds\": " + run.seconds + ", \"callers\": \"" + run.callers + "\"}";
    }

    private Protocol.Mode handover() throws Exception {
        String name = protocol.text("name", "h");
        // Two threads that contend run the same code as two processes.
        warmUp(seconds -> crowd("warm:" + ProcessHandle.current().pid(), 2, seconds));
        return order -> handover(name, Integer.parseInt(order));
    }

    private String handover(String name, int times) throws InterruptedException {
        long hold = Math.round(protocol.number("hold_s", 0.004) * 1e9);
        RLock lock = redisson.getLock(name);
        RAtomicLong turns = redisson.getAtomicLong(name + ":turns");
        List<String> moments = new ArrayList<>();
        for (int time = 0; time < times; time++) {
            lock.lock();
            double granted = Protocol.seconds();
            long turn = turns.incrementAndGet();
            TimeUnit.NANOSECONDS.sleep(hold);
            moments.add("[" + granted + ", " + Protocol.seconds() + "]");
            lock.unlock();
            // The other one's turn: a releaser that asked again at once would hand over to itself.
            while (time < times - 1 && turns.get() == turn) {
                TimeUnit.MILLISECONDS.sleep(2);
            }
        }
        return "{\"moments\": " + moments + "}";
    }

    // Callers

    private interface Work {
        void run(double seconds) throws Exception;
    }

    private void warmUp(Work work) throws Exception {
        double seconds = protocol.number("warm_s", 10.0);
        if (seconds > 0) {
            work.run(seconds);
        }
    }

    private interface Going {
        boolean isGoing();
    }

    private interface Caller {
        /** Calls until it is over, and returns how often. */
        long call(int number, Going going) throws Exception;
    }

    /** Callers that begin together, and end when the time is over. */
    private static final class Run {
        final List<Long> counts = new ArrayList<>();
        final double seconds;
        final String callers;
        private volatile boolean going = true;

        Run(boolean tasks, int number, double time, Caller caller) throws Exception {
            ExecutorService executor = tasks ? virtualThreads() : null;
            callers = executor != null ? "virtual threads" : "threads";
            if (executor == null) {
                executor = Executors.newFixedThreadPool(number);
            }
            CountDownLatch begin = new CountDownLatch(1);
            List<Future<Long>> calls = new ArrayList<>();
            for (int index = 0; index < number; index++) {
                int mine = index;
                calls.add(executor.submit(() -> {
                    begin.await();
                    return caller.call(mine, () -> going);
                }));
            }
            double began = Protocol.seconds();
            begin.countDown();
            TimeUnit.NANOSECONDS.sleep(Math.round(time * 1e9));
            going = false;
            for (Future<Long> call : calls) {
                counts.add(call.get());
            }
            seconds = Protocol.seconds() - began;
            executor.shutdown();
        }

        /** Tasks are virtual threads, which came with JDK 21; before, there is a platform thread for each. */
        private static ExecutorService virtualThreads() throws ReflectiveOperationException {
            try {
                return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
            } catch (NoSuchMethodException older) {
                return null;
            }
        }
    }
}
