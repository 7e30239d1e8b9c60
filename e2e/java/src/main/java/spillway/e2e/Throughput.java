package spillway.e2e;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.datagen.source.*;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.util.Collector;

/**
 * Sources ×2 → hash → keyed count ×2 → sink, without checkpoints, objects reused: records and CPU time in a window. The fastest
 * that Flink can do: no source makes an object for a record, and the sink is chained.
 */
final class Throughput {
    private static final int PARALLELISM = 2, KEYS = 1000, LINE = 16; // counters lie on cache lines of their own
    private static final AtomicLongArray COUNTED = new AtomicLongArray(PARALLELISM * LINE);
    private static final TypeInformation<Tuple2<Integer, byte[]>> RECORD = Types.TUPLE(Types.INT, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);

    /** The same object again and again. */
    static final class Generate implements GeneratorFunction<Long, Tuple2<Integer, byte[]>> {
        private final Tuple2<Integer, byte[]> record;
        Generate(int body) { record = Tuple2.of(0, new byte[body]); }
        @Override public Tuple2<Integer, byte[]> map(Long i) {
            record.f0 = (int) (i % KEYS);
            return record;
        }
    }

    static final class Legacy extends RichParallelSourceFunction<Tuple2<Integer, byte[]>> {
        private final Tuple2<Integer, byte[]> record;
        private volatile boolean running = true;
        Legacy(int body) { record = Tuple2.of(0, new byte[body]); }

        @Override public void run(SourceContext<Tuple2<Integer, byte[]>> c) {
            for (long i = 0; running; i++) {
                record.f0 = (int) (i % KEYS);
                synchronized (c.getCheckpointLock()) { c.collect(record); }
            }
        }

        @Override public void cancel() { running = false; }
    }

    static final class Count extends KeyedProcessFunction<Integer, Tuple2<Integer, byte[]>, Tuple2<Integer, byte[]>> {
        private transient ValueState<Long> count;
        private transient int slot;
        private transient long n;

        @Override public void open(OpenContext c) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            slot = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() * LINE;
        }

        @Override public void processElement(Tuple2<Integer, byte[]> r, Context c, Collector<Tuple2<Integer, byte[]>> out) throws Exception {
            Long v = count.value();
            count.update(v == null ? 1L : v + 1);
            COUNTED.lazySet(slot, ++n);
            out.collect(r);
        }
    }

    private static long counted() {
        long n = 0;
        for (int i = 0; i < COUNTED.length(); i += LINE) n += COUNTED.get(i);
        return n;
    }

    /** Waits until the process has had so many seconds of CPU time: on a busy machine the compiler needs longer. */
    private static void spend(OperatingSystemMXBean os, long seconds) throws InterruptedException {
        for (long end = os.getProcessCpuTime() + seconds * 1_000_000_000L; os.getProcessCpuTime() < end; ) Thread.sleep(10);
    }

    public static void main(String[] a) throws Exception {
        boolean legacy = a[0].equals("legacy");
        int body = Integer.parseInt(a[1]);
        long warm = Long.parseLong(a[2]), seconds = Long.parseLong(a[3]);
        try (Cluster cluster = new Cluster(PARALLELISM)) {
            StreamExecutionEnvironment env = cluster.environment(null);
            env.setParallelism(PARALLELISM);
            env.getConfig().enableObjectReuse();
            DataStream<Tuple2<Integer, byte[]>> source = legacy ? env.addSource(new Legacy(body), "source", RECORD)
                    : env.fromSource(new DataGeneratorSource<>(new Generate(body), Long.MAX_VALUE, RECORD), WatermarkStrategy.noWatermarks(), "source");
            source.keyBy(r -> r.f0).process(new Count()).returns(RECORD).sinkTo(new DiscardingSink<>());
            cluster.awaitRunning(cluster.submit(env, "throughput", null));
            var os = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            spend(os, warm);
            long records = counted(), cpu = os.getProcessCpuTime(), wall = System.nanoTime();
            spend(os, seconds);
            records = counted() - records;
            cpu = os.getProcessCpuTime() - cpu;
            wall = System.nanoTime() - wall;
            System.out.printf("{\"source\":\"%s\",\"body\":%d,\"records\":%d,\"wall_ns\":%d,\"cpu_ns\":%d}%n", a[0], body, records, wall, cpu);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }
}
