package spillway.e2e;

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Stream;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.checkpoint.channel.Rewrite;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Answers requests on standard input, a JSON object a line each way, so that many restores share one JVM and one cluster:
 *
 *   restore    from, parallelism, limit (seconds), settings (of the job), and the shape: n, keys, pad, splits, backend
 *   start      dir, parallelism, the shape, segment, count_ms, sink_ms, warm_ms: runs the job under backpressure
 *   checkpoint                                                 of the job that was started
 *   cancel                                                     ends it; its last checkpoint is retained
 *   rewrite    from, to, mode: with Flink's own classes
 *   read       from: the digest of each channel, by Flink's own classes
 *   metadata   to, handles, merged: makes a _metadata file
 *   load       from, rounds, unmerge: how long Flink's classes take to load it
 *
 * A restore that hangs is answered, and is the last: its spinning thread would not let the cluster stop.
 */
final class Serve {
    private static final int SLOTS = 24;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Replayed replayed = Replayed.install();
    private Cluster restores; // that all restores run on
    private Cluster cluster; // of the job that was started
    private JobID job;
    private int runs;

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Serve s = new Serve();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer;
            try {
                answer = s.answer(JSON.readTree(line));
            } catch (Throwable t) {
                answer = failed(t);
                answer.put("state", "ERROR");
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
            if ("HANGS".equals(answer.get("state"))) Runtime.getRuntime().halt(4);
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(JsonNode q) throws Exception {
        return switch (q.path("verb").asText()) {
            case "restore" -> restore(q);
            case "start" -> start(q);
            case "checkpoint" -> map("checkpoint", cluster.checkpoint(job));
            case "cancel" -> cancel();
            case "rewrite" -> Rewrite.run(q.get("mode").asText(), Path.of(q.get("from").asText()), Path.of(q.get("to").asText()));
            case "read" -> Rewrite.read(Path.of(q.get("from").asText()));
            case "metadata" -> Metadata.make(Path.of(q.get("to").asText()), q.get("handles").asInt(), q.get("merged").asBoolean());
            case "load" -> Metadata.load(Path.of(q.get("from").asText()), q.get("rounds").asInt(), q.get("unmerge").asBoolean());
            default -> throw new IllegalArgumentException("verb " + q.path("verb"));
        };
    }

    static Map<String, Object> map(Object... kv) {
        Map<String, Object> m = new LinkedHashMap<>();
        for (int i = 0; i < kv.length; i += 2) m.put((String) kv[i], kv[i + 1]);
        return m;
    }

    private static Numbers.Shape shape(JsonNode q) {
        return new Numbers.Shape(q.get("n").asInt(), q.get("keys").asInt(), q.get("pad").asInt(), q.get("splits").asInt());
    }

    private Map<String, Object> start(JsonNode q) throws Exception {
        cluster = new Cluster(q.get("parallelism").asInt(), "taskmanager.memory.segment-size", q.get("segment").asText(),
                "taskmanager.memory.network.min", "64mb", "taskmanager.memory.network.max", "64mb");
        StreamExecutionEnvironment env = cluster.environment(q.get("dir").asText(), "execution.checkpointing.interval", "1 h",
                "state.backend.type", q.get("backend").asText(), "execution.checkpointing.num-retained", "1");
        Numbers.build(env, shape(q), q.get("parallelism").asInt(), "started", q.get("count_ms").asLong(), q.get("sink_ms").asLong());
        job = cluster.submit(env, "start", null);
        cluster.awaitRunning(job);
        Thread.sleep(q.get("warm_ms").asLong()); // until all buffers are full
        return map("state", "RUNNING");
    }

    private Map<String, Object> cancel() throws Exception {
        cluster.cancel(job);
        cluster.close();
        return map("state", "CANCELED");
    }

    private Map<String, Object> restore(JsonNode q) throws Exception {
        if (restores == null) restores = new Cluster(SLOTS, "taskmanager.memory.network.min", "192mb", "taskmanager.memory.network.max", "192mb");
        Numbers.Shape shape = shape(q);
        String from = q.get("from").asText(), run = "run-" + ++runs;
        int parallelism = q.get("parallelism").asInt();
        Path dir = Files.createTempDirectory("restore"); // removed with the JVM: old checkpoints are still being cleaned up when a job has ended
        StreamExecutionEnvironment env = restores.environment(dir.toString(), "execution.checkpointing.interval", "200 ms",
                "state.backend.type", q.get("backend").asText());
        Configuration settings = new Configuration();
        q.path("settings").properties().forEach(e -> settings.setString(e.getKey(), e.getValue().asText()));
        env.configure(settings);
        Numbers.build(env, shape, parallelism, run, 0, 0);
        replayed.reset();
        JobID id;
        try {
            id = restores.submit(env, run, from.contains(":") ? from : "file://" + Path.of(from).toAbsolutePath());
        } catch (ExecutionException e) {
            return failed(e);
        }
        JobResult result;
        try {
            result = restores.await(id, q.get("limit").asLong());
        } catch (TimeoutException e) {
            List<String> busy = busyReaders();
            for (int i = 0; i < 60 && busy.isEmpty(); i++, busy = busyReaders()) Thread.sleep(1000); // a slow machine has not got there yet
            return map("state", "HANGS", "busy", busy);
        }
        if (!result.isSuccess()) return failed(result.getSerializedThrowable().get().deserializeError(Serve.class.getClassLoader()));
        Map<String, Object> m = verdict(shape, Numbers.RESULTS.remove(run));
        m.put("checkpoints", restores.completedCheckpoints(id));
        m.put("replayed_input_buffers", replayed.inputBuffers.sum());
        m.put("replayed_output_buffers", replayed.outputBuffers.sum());
        m.put("replayed_input_bytes", replayed.inputBytes.sum());
        m.put("replayed_output_bytes", replayed.outputBytes.sum());
        return m;
    }

    private static Map<String, Object> verdict(Numbers.Shape shape, Collection<Numbers.Seen> sinks) {
        Numbers.Seen all = new Numbers.Seen();
        for (Numbers.Seen s : sinks) all.merge(s);
        long wrongKeys = 0, corruptAtCount = 0, disordered = 0;
        for (Map.Entry<Integer, long[]> e : shape.expected().entrySet()) {
            long[] want = e.getValue(), got = all.perKey.get(e.getKey());
            if (got == null || got[0] != want[0] || got[1] != want[1] || got[2] != want[2]) wrongKeys++;
            if (got != null) { corruptAtCount += got[3]; disordered += got[4]; }
        }
        List<Integer> missing = new ArrayList<>();
        for (int i = all.seen.nextClearBit(0); i < shape.n(); i = all.seen.nextClearBit(i + 1)) missing.add(i);
        boolean exact = missing.isEmpty() && all.dup == 0 && all.count == shape.n() && wrongKeys == 0 && all.corrupt == 0 && corruptAtCount == 0 && all.perKey.size() == shape.keys();
        return map("state", "FINISHED", "exactly_once", exact, "expected", shape.n(), "counted", all.count, "missing", missing, "duplicates", all.dup,
                "corrupt_at_count", corruptAtCount, "corrupt_at_sink", all.corrupt, "wrong_keys", wrongKeys, "disordered", disordered);
    }

    private static Map<String, Object> failed(Throwable t) {
        List<String> causes = new ArrayList<>();
        for (Throwable c = t; c != null && causes.size() < 12; c = c.getCause()) causes.add(c.getClass().getSimpleName() + ": " + String.valueOf(c.getMessage()).split("\n")[0]);
        return map("state", "FAILED", "causes", causes);
    }

    /** Where the threads are that read channel state. */
    private static List<String> busyReaders() {
        List<String> l = new ArrayList<>();
        Thread.getAllStackTraces().forEach((thread, stack) -> {
            if (Stream.of(stack).anyMatch(f -> f.getClassName().contains("SequentialChannelStateReader") || f.getClassName().contains("ChannelStateChunkReader")))
                l.add(thread.getName() + " " + thread.getState() + " " + stack[0]);
        });
        return l;
    }
}
