package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The worker's side of the line protocol: options from the command line, orders from stdin, answers to stdout. */
final class Protocol {
    private static final Pattern OPTION = Pattern.compile("\"(\\w+)\"\\s*:\\s*(?:\"([^\"]*)\"|([^\\s,}]+))");

    private final Map<String, String> options = new HashMap<>();
    private final Queue<String> losses = new ConcurrentLinkedQueue<>();

    /** Reads the options: one flat JSON object. */
    Protocol(String json) {
        Matcher option = OPTION.matcher(json);
        while (option.find()) {
            options.put(option.group(1), option.group(2) != null ? option.group(2) : option.group(3));
        }
    }

    /** What does the work of a mode. */
    interface Mode {
        /** Carries out {@code go ORDER}, and returns the result, a JSON object. */
        String go(String order) throws Exception;
    }

    /** What connects, warms up and returns a mode that is ready. */
    interface Start {
        Mode start() throws Exception;
    }

    String text(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    double number(String name, double otherwise) {
        return options.containsKey(name) ? Double.parseDouble(options.get(name)) : otherwise;
    }

    int count(String name, int otherwise) {
        return (int) number(name, otherwise);
    }

    /** Keeps the line that says so until the next result. Any thread may call it. */
    void lost(int index, String reason) {
        losses.add("lost " + index + " " + seconds() + " " + reason);
    }

    /** CLOCK_MONOTONIC, which System.nanoTime() reads on Linux, in seconds. */
    static double seconds() {
        return System.nanoTime() / 1e9;
    }

    /** Starts the mode and serves it until the end of stdin, which ends the process. */
    void serve(Start start) throws IOException {
        Mode mode;
        try {
            mode = start.start();
        } catch (Exception error) {
            fail(error);
            System.out.flush();
            Runtime.getRuntime().halt(1);
            return;
        }
        say("up");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            try {
                String result = mode.go(line.replaceFirst("^go\\s*", "").strip());
                for (String loss = losses.poll(); loss != null; loss = losses.poll()) {
                    say(loss);
                }
                say("result " + result);
            } catch (Exception error) {
                fail(error);
            }
        }
        Runtime.getRuntime().halt(0);  // callers and timers may be under way
    }

    private static void fail(Exception error) {
        error.printStackTrace();
        // What a worker has not got is said as "no ...", without the name of the exception.
        String why = error instanceof UnsupportedOperationException ? error.getMessage() : error.toString();
        say("failed " + why.replaceAll("\\s+", " "));
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
