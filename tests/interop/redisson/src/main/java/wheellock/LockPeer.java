package wheellock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A service with Redisson's locks that does what it is told: {@code LockPeer <port> <watchdog timeout>}.
 *
 * <p>It says "ready", and then reads lines {@code <thread> <command> <lock> [<number>...]}. Each thread does what it is
 * told in order, and says {@code <thread> <began> <ended> <result>}, with the times of System.nanoTime(). All other times
 * are in milliseconds. It ends when its input does.
 */
public final class LockPeer {
    private LockPeer() {}

    public static void main(String[] arguments) throws IOException {
        RedissonClient redisson = connect(Integer.parseInt(arguments[0]), Long.parseLong(arguments[1]));
        Map<String, ExecutorService> threads = new HashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor())
                    .execute(() -> System.out.println(words[0] + " " + timed(redisson, words)));
        }
        Runtime.getRuntime().halt(0);  // a thread may be waiting for a lock
    }

    private static RedissonClient connect(int port, long watchdogTimeout) {
        Config config = new Config().setThreads(2).setNettyThreads(2).setLockWatchdogTimeout(watchdogTimeout);
        config.useSingleServer()
                .setAddress("redis://127.0.0.1:" + port)
                .setConnectionMinimumIdleSize(2)
                .setConnectionPoolSize(8);
        return Redisson.create(config);
    }

    private static String timed(RedissonClient redisson, String[] words) {
        long began = System.nanoTime();
        String result;
        try {
            result = String.valueOf(obey(redisson, words));
        } catch (Exception error) {
            result = error.toString().replace('\n', ' ');
        }
        return began + " " + System.nanoTime() + " " + result;
    }

    private static Object obey(RedissonClient redisson, String[] words) throws InterruptedException {
        RLock lock = redisson.getLock(words[2]);
        return switch (words[1]) {
            case "lock" -> {
                lock.lock(number(words, 3), MILLISECONDS);
                yield true;
            }
            case "tryLock" -> lock.tryLock(number(words, 3), number(words, 4), MILLISECONDS);
            case "unlock" -> {
                lock.unlock();
                yield true;
            }
            case "forceUnlock" -> lock.forceUnlock();
            case "holdCount" -> lock.getHoldCount();
            case "isLocked" -> lock.isLocked();
            case "isHeld" -> lock.isHeldByCurrentThread();
            case "count" -> {
                count(lock, redisson.getAtomicLong(words[2] + ":count"), number(words, 3));
                yield true;
            }
            default -> throw new IllegalArgumentException("there is no command " + words[1]);
        };
    }

    /** The number at this place; where there is none, -1, by which Redisson means: renew it until it is unlocked. */
    private static long number(String[] words, int place) {
        return place < words.length ? Long.parseLong(words[place]) : -1;
    }

    /** Adds 1 so many times, in a way that goes wrong where two do it at once. */
    private static void count(RLock lock, RAtomicLong number, long times) {
        for (long time = 0; time < times; time++) {
            lock.lock();
            try {
                number.set(number.get() + 1);
            } finally {
                lock.unlock();
            }
        }
    }
}
