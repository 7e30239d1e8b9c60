package spillway.e2e;

import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.*;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.runtime.state.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.operators.*;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.Collector;

/**
 * The job whose checkpoints are restored: numbers 0 to n-1 → record (number, key, payload) → keyBy → count, sum and xor by key →
 * rebalance → a sink that remembers which numbers it saw. Whatever was in flight, each number must be counted once.
 */
final class Numbers {
    /** What a checkpoint and its restore have to agree on. A record takes 29 + pad bytes on the wire. */
    record Shape(int n, int keys, int pad, int splits) implements Serializable {
        byte[] payload(long number) {
            byte[] b = new byte[pad];
            long x = number * 0x9E3779B97F4A7C15L + 0x1234567;
            for (int i = 0; i < pad; i++) { x ^= x << 13; x ^= x >>> 7; x ^= x << 17; b[i] = (byte) x; }
            return b;
        }

        boolean right(Tuple3<Long, Integer, byte[]> r) {
            return r.f0 >= 0 && r.f0 < n && r.f1 == (int) (r.f0 % keys) && Arrays.equals(r.f2, payload(r.f0));
        }

        /** Count, sum and xor of each key when every number is counted once. */
        Map<Integer, long[]> expected() {
            Map<Integer, long[]> m = new HashMap<>();
            for (long s = 0; s < n; s++) {
                long[] v = m.computeIfAbsent((int) (s % keys), k -> new long[3]);
                v[0]++; v[1] += s; v[2] ^= s;
            }
            return m;
        }
    }

    static final TypeInformation<Tuple3<Long, Integer, byte[]>> RECORD = Types.TUPLE(Types.LONG, Types.INT, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
    static final int MAX_PARALLELISM = 128;

    /** What the sinks of a run saw; they leave it here when they end. */
    static final ConcurrentMap<String, Queue<Seen>> RESULTS = new ConcurrentHashMap<>();

    /** Adds the job to env. Count and sink sleep so long for each record, which makes backpressure. */
    static void build(StreamExecutionEnvironment env, Shape shape, int parallelism, String run, long countMillis, long sinkMillis) {
        env.setParallelism(parallelism);
        env.setMaxParallelism(MAX_PARALLELISM);
        env.fromSource(new NumberSequenceSource(0, shape.n() - 1), WatermarkStrategy.noWatermarks(), "seq").uid("seq")
                .map(new ToRecord(shape)).returns(RECORD).name("rec").uid("rec")
                .keyBy(r -> r.f1).process(new Count(shape, countMillis)).returns(RECORD).name("count").uid("count")
                .rebalance().transform("sink", Types.LONG, new Sink(shape, run, sinkMillis)).uid("sink");
    }

    static final class ToRecord implements MapFunction<Long, Tuple3<Long, Integer, byte[]>> {
        private final Shape shape;
        ToRecord(Shape shape) { this.shape = shape; }
        @Override public Tuple3<Long, Integer, byte[]> map(Long s) { return Tuple3.of(s, (int) (s % shape.keys()), shape.payload(s)); }
    }

    /** By key: count, sum, xor, wrong payloads, numbers out of order; they go to the sink at the end of the input. */
    static final class Count extends KeyedProcessFunction<Integer, Tuple3<Long, Integer, byte[]>, Tuple3<Long, Integer, byte[]>> {
        private final Shape shape;
        private final long millis;
        private transient ValueState<Tuple5<Long, Long, Long, Long, Long>> state;
        private transient MapState<Integer, Long> last; // by split of the source

        Count(Shape shape, long millis) { this.shape = shape; this.millis = millis; }

        private void open() {
            if (state != null) return;
            state = getRuntimeContext().getState(new ValueStateDescriptor<>("acc", Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG)));
            last = getRuntimeContext().getMapState(new MapStateDescriptor<>("last", Types.INT, Types.LONG));
        }

        @Override public void processElement(Tuple3<Long, Integer, byte[]> r, Context c, Collector<Tuple3<Long, Integer, byte[]>> out) throws Exception {
            open();
            var a = state.value();
            if (a == null) {
                a = Tuple5.of(0L, 0L, 0L, 0L, 0L);
                c.timerService().registerEventTimeTimer(Long.MAX_VALUE - 1);
            }
            int split = (int) (r.f0 * shape.splits() / shape.n());
            Long before = last.get(split);
            state.update(Tuple5.of(a.f0 + 1, a.f1 + r.f0, a.f2 ^ r.f0, a.f3 + (shape.right(r) ? 0 : 1), a.f4 + (before != null && before >= r.f0 ? 1 : 0)));
            last.put(split, r.f0);
            if (millis > 0) Thread.sleep(millis);
            out.collect(r);
        }

        @Override public void onTimer(long time, OnTimerContext c, Collector<Tuple3<Long, Integer, byte[]>> out) throws Exception {
            open();
            var a = state.value();
            out.collect(Tuple3.of(-1L, c.getCurrentKey(), ByteBuffer.allocate(40).putLong(a.f0).putLong(a.f1).putLong(a.f2).putLong(a.f3).putLong(a.f4).array()));
        }
    }

    /** What a sink saw. Names and types of the fields are part of its checkpoints. */
    static final class Seen implements Serializable {
        BitSet seen = new BitSet();
        long count, sum, xor, dup, corrupt;
        TreeMap<Integer, long[]> perKey = new TreeMap<>(); // count, sum, xor, wrong payloads, out of order

        void add(Shape shape, Tuple3<Long, Integer, byte[]> r) {
            count++; sum += r.f0; xor ^= r.f0;
            if (!shape.right(r)) corrupt++;
            if (r.f0 < 0 || r.f0 >= shape.n()) return;
            if (seen.get(r.f0.intValue())) dup++;
            seen.set(r.f0.intValue());
        }

        void merge(Seen o) {
            BitSet both = (BitSet) seen.clone();
            both.and(o.seen);
            dup += both.cardinality() + o.dup;
            seen.or(o.seen);
            count += o.count; sum += o.sum; xor ^= o.xor; corrupt += o.corrupt;
            o.perKey.forEach(this::put);
        }

        void put(int key, long[] v) { if (perKey.put(key, v) != null) dup++; }

        byte[] bytes() throws IOException {
            var b = new ByteArrayOutputStream();
            try (var o = new ObjectOutputStream(b)) { o.writeObject(this); }
            return b.toByteArray();
        }

        /** The fixtures in testdata/flink come from a program in which this class had another name. */
        static Seen of(byte[] b) throws Exception {
            try (var in = new ObjectInputStream(new ByteArrayInputStream(b)) {
                @Override protected ObjectStreamClass readClassDescriptor() throws IOException, ClassNotFoundException {
                    ObjectStreamClass c = super.readClassDescriptor();
                    return c.getName().equals("peer.ResumeCheck$Acc") ? ObjectStreamClass.lookup(Seen.class) : c;
                }
            }) {
                return (Seen) in.readObject();
            }
        }
    }

    static final class Sink extends AbstractStreamOperator<Long> implements OneInputStreamOperator<Tuple3<Long, Integer, byte[]>, Long> {
        private final Shape shape;
        private final String run;
        private final long millis;
        private transient Seen seen;
        private transient ListState<byte[]> state;

        Sink(Shape shape, String run, long millis) { this.shape = shape; this.run = run; this.millis = millis; }

        @Override public void initializeState(StateInitializationContext c) throws Exception {
            super.initializeState(c);
            seen = new Seen();
            state = c.getOperatorStateStore().getListState(new ListStateDescriptor<>("acc", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
            if (c.isRestored()) for (byte[] b : state.get()) seen.merge(Seen.of(b));
        }

        @Override public void processElement(StreamRecord<Tuple3<Long, Integer, byte[]>> e) throws Exception {
            var r = e.getValue();
            if (r.f0 < 0) {
                ByteBuffer b = ByteBuffer.wrap(r.f2);
                seen.put(r.f1, new long[] {b.getLong(), b.getLong(), b.getLong(), b.getLong(), b.getLong()});
                return;
            }
            seen.add(shape, r);
            if (millis > 0) Thread.sleep(millis);
        }

        @Override public void snapshotState(StateSnapshotContext c) throws Exception {
            super.snapshotState(c);
            state.update(List.of(seen.bytes()));
        }

        @Override public void finish() { RESULTS.computeIfAbsent(run, k -> new ConcurrentLinkedQueue<>()).add(seen); }
    }
}
