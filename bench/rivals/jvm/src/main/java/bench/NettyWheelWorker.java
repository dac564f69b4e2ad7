package bench;

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Netty's HashedWheelTimer: {@code wheel URL OPTIONS}; the URL is not used.
 *
 * <p>One timer serves the whole process, as its authors advise. The main thread calls it, and tasks run on the timer's own
 * thread, as is the default. The JVM warms up for {@code warm_s} seconds, 10 if not given.
 */
public final class NettyWheelWorker {
    private static final double FAR_S = 3600.0;

    /** As in bench/targets/timers.py: one of so many is started and cancelled while the others are pending, in so many laps. */
    private static final int STARTED = 5;

    private static final int LAPS = STARTED + 1;
    private static final String THREAD = "wheel-timer";
    private static final TimerTask NOTHING = timeout -> {};

    private final Random chance = new Random(1);
    private final HashedWheelTimer timer;
    private final int timers;

    private NettyWheelWorker(Protocol protocol) {
        timers = protocol.count("timers", 100_000);
        timer = new HashedWheelTimer(
                task -> new Thread(task, THREAD),
                Math.round(protocol.number("tick_ms", 10.0) * 1e6),
                TimeUnit.NANOSECONDS,
                protocol.count("slots", 1024));
        timer.start();
    }

    public static void main(String[] arguments) throws IOException {
        Protocol protocol = new Protocol(arguments[2]);
        protocol.serve(() -> {
            if (!arguments[0].equals("wheel")) {
                throw new UnsupportedOperationException("no " + arguments[0]);
            }
            NettyWheelWorker worker = new NettyWheelWorker(protocol);
            double until = Protocol.seconds() + protocol.number("warm_s", 10.0);
            while (Protocol.seconds() < until) {
                worker.calls(true);
                worker.due(0.0, 0.5);
            }
            return order -> switch (order) {
                case "schedule" -> worker.calls(false);
                case "cancel" -> worker.calls(true);
                case "due" -> worker.due(protocol.number("ahead_s", 2.0), protocol.number("spread_s", 10.24));
                case "idle" -> worker.idle(protocol.number("idle_s", 3.0));
                default -> throw new IllegalArgumentException("no order " + order);
            };
        });
    }

    /** Starts and cancels timers while others are pending, and returns what one call of one kind has taken. */
    private String calls(boolean cancel) throws Exception {
        Timeout[] pending = start(far(timers));
        settle();
        int count = Math.max(timers / STARTED, 1);
        long elapsed = 0;
        long cpu = 0;
        for (int lap = 0; lap < LAPS; lap++) {
            long[] delays = far(count);
            long cpuBegan = cpu();
            long began = System.nanoTime();
            Timeout[] started = start(delays);
            long ended = System.nanoTime();
            settle();
            if (cancel) {
                Collections.shuffle(Arrays.asList(started), chance);
                cpuBegan = cpu();
                began = System.nanoTime();
                cancel(started);
                ended = System.nanoTime();
                settle();
            }
            cpu += cpu() - cpuBegan;
            elapsed += ended - began;
            if (!cancel) {
                cancel(started);
                settle();
            }
        }
        cancel(pending);
        settle();
        double calls = (double) LAPS * count;
        return "{\"ns\": " + elapsed / calls + ", \"cpu_ns\": " + cpu / calls + "}";
    }

    private long[] far(int count) {
        return chance.doubles(count).mapToLong(share -> (long) ((1.0 + share) * FAR_S * 1e9)).toArray();
    }

    private Timeout[] start(long[] delays) {
        Timeout[] started = new Timeout[delays.length];
        for (int index = 0; index < delays.length; index++) {
            started[index] = timer.newTimeout(NOTHING, delays[index], TimeUnit.NANOSECONDS);
        }
        return started;
    }

    private static void cancel(Timeout[] started) {
        for (Timeout timeout : started) {
            timeout.cancel();
        }
    }

    /** Waits until the timer's thread has done what it was asked: it takes new timers in order. */
    private void settle() throws InterruptedException {
        CountDownLatch done = new CountDownLatch(1);
        timer.newTimeout(timeout -> done.countDown(), 0, TimeUnit.NANOSECONDS);
        done.await();
    }

    /** Starts all timers, due over a time that begins after all have been started, and returns how late they run. */
    private String due(double ahead, double spread) throws Exception {
        long[] late = new long[timers];
        int[] ran = {0};
        CountDownLatch done = new CountDownLatch(1);
        long cpuBegan = cpu();
        for (int index = 0; index < timers; index++) {
            long delay = (long) ((ahead + chance.nextDouble() * spread) * 1e9);
            long due = System.nanoTime() + delay;
            TimerTask task = timeout -> {
                late[ran[0]++] = System.nanoTime() - due;
                if (ran[0] == timers) {
                    done.countDown();
                }
            };
            timer.newTimeout(task, delay, TimeUnit.NANOSECONDS);
        }
        done.await();
        double cpu = (cpu() - cpuBegan) / 1e3 / timers;
        Arrays.sort(late);
        return "{\"cpu_us\": " + cpu + ", \"p50_ms\": " + late[timers / 2] / 1e6 + ", \"p99_ms\": "
                + late[timers * 99 / 100] / 1e6 + ", \"max_ms\": " + late[timers - 1] / 1e6 + "}";
    }

    /** Returns what the timer's thread costs without timers, and with all of them far in the future. */
    private String idle(double seconds) throws Exception {
        String empty = watched(seconds);
        Timeout[] pending = start(far(timers));
        settle();
        String far = watched(seconds);
        cancel(pending);
        settle();
        return "{\"empty\": " + empty + ", \"pending\": " + far + "}";
    }

    /** Looks at the timer's thread only: the JVM has threads of its own, which are awake without any timer, too. */
    private static String watched(double seconds) throws Exception {
        Path thread = thread();
        double began = Protocol.seconds();
        long cpu = cpu(thread);
        long wakeUps = wakeUps(thread);
        TimeUnit.NANOSECONDS.sleep(Math.round(seconds * 1e9));
        double elapsed = Protocol.seconds() - began;
        return "{\"cpu\": " + (cpu(thread) - cpu) / 1e9 / elapsed + ", \"wake_ups\": "
                + (wakeUps(thread) - wakeUps) / elapsed + "}";
    }

    // What the kernel has counted

    /** CPU time of all threads, in nanoseconds; the MXBean of the JVM counts in ticks of 10 ms. */
    private static long cpu() throws IOException {
        long cpu = 0;
        try (DirectoryStream<Path> threads = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path thread : threads) {
                try {
                    cpu += cpu(thread);
                } catch (NoSuchFileException ended) {
                    // A thread of the compiler or of the garbage collector: the JVM has fewer when it is idle.
                }
            }
        }
        return cpu;
    }

    private static long cpu(Path thread) throws IOException {
        return Long.parseLong(Files.readString(thread.resolve("schedstat")).split(" ")[0]);
    }

    private static long wakeUps(Path thread) throws IOException {
        for (String line : Files.readAllLines(thread.resolve("status"))) {
            if (line.startsWith("voluntary_ctxt_switches:")) {
                return Long.parseLong(line.split(":")[1].strip());
            }
        }
        throw new IllegalStateException("the kernel does not count context switches");
    }

    private static Path thread() throws IOException {
        try (DirectoryStream<Path> threads = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path thread : threads) {
                if (Files.readString(thread.resolve("comm")).strip().equals(THREAD)) {
                    return thread;
                }
            }
        }
        throw new IllegalStateException("the timer's thread is not there");
    }
}
