package bench;

import org.apache.flink.api.common.JobID;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.CheckpointProperties;
import org.apache.flink.runtime.checkpoint.CheckpointRetentionPolicy;
import org.apache.flink.runtime.checkpoint.CheckpointType;
import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.InflightDataRescalingDescriptor;
import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.TaskStateSnapshot;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriteRequestExecutorFactory;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter.ChannelStateWriteResult;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriterImpl;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.checkpoint.channel.ResultSubpartitionInfo;
import org.apache.flink.runtime.checkpoint.channel.SequentialChannelStateReaderImpl;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.io.network.api.writer.ResultPartitionWriter;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.BufferBuilder;
import org.apache.flink.runtime.io.network.buffer.BufferConsumer;
import org.apache.flink.runtime.io.network.buffer.BufferRecycler;
import org.apache.flink.runtime.io.network.buffer.NetworkBuffer;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.partition.BenchPartition;
import org.apache.flink.runtime.io.network.partition.PipelinedResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultSubpartition.BufferAndBacklog;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionIndexSet;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionView;
import org.apache.flink.runtime.io.network.partition.consumer.BenchGates;
import org.apache.flink.runtime.io.network.partition.consumer.BufferOrEvent;
import org.apache.flink.runtime.io.network.partition.consumer.InputGate;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.runtime.jobgraph.JobVertexID;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.state.ChannelStateHelper;
import org.apache.flink.runtime.state.CheckpointMetadataOutputStream;
import org.apache.flink.runtime.state.CheckpointStorageLocation;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.runtime.state.CompletedCheckpointStorageLocation;
import org.apache.flink.runtime.state.InputChannelStateHandle;
import org.apache.flink.runtime.state.ResultSubpartitionStateHandle;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.filesystem.FsCheckpointStorageAccess;
import org.apache.flink.runtime.state.filesystem.RelativeFileStateHandle;
import org.apache.flink.streaming.runtime.io.recovery.RecordFilterContext;
import org.apache.flink.util.CloseableIterator;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileWriter;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.CRC32;

/** Drives Flink's channel state classes as a Task would; see bench/README.md. */
public final class FlinkBench {
    static final int THRESHOLD = 20 * 1024; // execution.checkpointing.data-inline-threshold
    static final int WRITE_BUFFER = 4 * 1024; // execution.checkpointing.write-buffer-size
    static final int I = 8, O = 8;

    static final Map<String, String> opt = new LinkedHashMap<>();
    static FileWriter out;
    static double warmSeconds = 1.5; // each W and R cell is warmed for at least this
    static double capSeconds = 8; // measured rounds of one cell stop after this (at least 3 rounds)

    static final class Cfg {
        String fs, dir, payload = "random", name;
        int s, in = I, on = O, b, size, max;

        long payloadBytes() {
            return (long) s * (in + on) * b * size;
        }

        long buffers() {
            return (long) s * (in + on) * b;
        }

        long fileBytes(int files) {
            return payloadBytes() + 4 * buffers() + 4L * files;
        }

        String json() {
            return "\"name\":\"" + name + "\",\"fs\":\"" + fs + "\",\"payload\":\"" + payload
                    + "\",\"S\":" + s + ",\"I\":" + in + ",\"O\":" + on + ",\"B\":" + b
                    + ",\"size\":" + size + ",\"max\":" + max + ",\"bytes\":" + payloadBytes()
                    + ",\"buffers\":" + buffers();
        }

        Cfg copy() {
            Cfg c = new Cfg();
            c.fs = fs; c.dir = dir; c.payload = payload; c.name = name; c.s = s; c.in = in;
            c.on = on; c.b = b; c.size = size; c.max = max;
            return c;
        }
    }

    // ------------------------------------------------------------------ measuring

    static final com.sun.management.OperatingSystemMXBean OS =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    static final com.sun.management.ThreadMXBean TM =
            (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();

    static long cpu() {
        return OS.getProcessCpuTime();
    }

    static long alloc() {
        long t = 0;
        for (long v : TM.getThreadAllocatedBytes(TM.getAllThreadIds())) if (v > 0) t += v;
        return t;
    }

    static long gcCount() {
        long n = 0;
        for (var g : ManagementFactory.getGarbageCollectorMXBeans()) n += g.getCollectionCount();
        return n;
    }

    static void resetHwm() {
        try {
            Files.write(java.nio.file.Path.of("/proc/self/clear_refs"), "5".getBytes());
        } catch (Exception ignored) {
        }
    }

    static long hwmKb() throws Exception {
        for (String l : Files.readAllLines(java.nio.file.Path.of("/proc/self/status"))) {
            if (l.startsWith("VmHWM")) return Long.parseLong(l.replaceAll("[^0-9]", ""));
        }
        return -1;
    }

    static void emit(String line) throws Exception {
        System.out.println(line.length() > 160 ? line.substring(0, 160) + "..." : line);
        out.write("{\"impl\":\"flink\"," + line.substring(1) + "\n");
        out.flush();
    }

    static String arr(List<Long> l) {
        return l.toString().replace(" ", "");
    }

    static void rm(File f) {
        File[] c = f.listFiles();
        if (c != null) for (File x : c) rm(x);
        f.delete();
    }

    // ------------------------------------------------------------------ plain limit

    static final ByteBuffer MIB = ByteBuffer.allocateDirect(1 << 20);

    static {
        Payload p = new Payload(9999, 0, 0);
        while (MIB.remaining() >= 8) MIB.putLong(p.next());
    }

    static long plainWrite(String dir, long bytes, boolean force, boolean keep) throws Exception {
        java.nio.file.Path p = java.nio.file.Path.of(dir, "plain-" + UUID.randomUUID());
        long t0 = System.nanoTime();
        try (FileChannel ch =
                FileChannel.open(p, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            long left = bytes;
            while (left > 0) {
                MIB.clear();
                if (left < MIB.capacity()) MIB.limit((int) left);
                while (MIB.hasRemaining()) left -= ch.write(MIB);
            }
            if (force) ch.force(true);
        }
        long t = System.nanoTime() - t0;
        if (!keep) Files.delete(p);
        return t;
    }

    static long plainRead(File[] files) throws Exception {
        long t0 = System.nanoTime();
        for (File f : files) {
            try (FileChannel ch = FileChannel.open(f.toPath(), StandardOpenOption.READ)) {
                do {
                    MIB.clear();
                } while (ch.read(MIB) >= 0);
            }
        }
        return System.nanoTime() - t0;
    }

    static void evict(String dir) throws Exception {
        new ProcessBuilder(
                        "sh", "-c",
                        "for f in " + dir + "/*; do [ -f $f ] && dd if=$f iflag=nocache count=0 status=none; done; :")
                .inheritIO().start().waitFor();
    }

    // ------------------------------------------------------------------ the Flink writer

    static final BufferRecycler NOOP = s -> {};

    static final class Load {
        final Buffer[][][] in;
        final BufferConsumer[][][] on;
        final InputChannelInfo[] ii;
        final ResultSubpartitionInfo[] oi;

        Load(Cfg c) {
            in = new Buffer[c.s][c.in][c.b];
            on = new BufferConsumer[c.s][c.on][c.b];
            ii = new InputChannelInfo[c.in];
            oi = new ResultSubpartitionInfo[c.on];
            for (int i = 0; i < c.in; i++) ii[i] = new InputChannelInfo(0, i);
            for (int i = 0; i < c.on; i++) oi[i] = new ResultSubpartitionInfo(0, i);
            for (int s = 0; s < c.s; s++) {
                ByteBuffer mem = ByteBuffer.allocateDirect((c.in + c.on) * c.b * c.size);
                int at = 0;
                for (int ch = 0; ch < c.in + c.on; ch++) {
                    boolean isIn = ch < c.in;
                    byte[] data =
                            Payload.channel(
                                    c.payload, s, isIn ? 0 : 1, isIn ? ch : ch - c.in, c.b * c.size);
                    for (int b = 0; b < c.b; b++, at += c.size) {
                        MemorySegment seg =
                                MemorySegmentFactory.wrapOffHeapMemory(mem.slice(at, c.size));
                        if (isIn) {
                            seg.put(0, data, b * c.size, c.size);
                            in[s][ch][b] =
                                    new NetworkBuffer(
                                            seg, NOOP, Buffer.DataType.DATA_BUFFER, c.size);
                        } else {
                            BufferBuilder bb = new BufferBuilder(seg, NOOP);
                            bb.appendAndCommit(ByteBuffer.wrap(data, b * c.size, c.size));
                            on[s][ch - c.in][b] = bb.createBufferConsumerFromBeginning();
                            bb.finish();
                        }
                    }
                }
            }
        }
    }

    static final class Result {
        long wall, cpu, alloc;
        int files;
        long fileBytes, fileMin = Long.MAX_VALUE, fileMax;
        int inline;
        List<Collection<InputChannelStateHandle>> in = new ArrayList<>();
        List<Collection<ResultSubpartitionStateHandle>> on = new ArrayList<>();
    }

    static final class Rig implements AutoCloseable {
        final Cfg c;
        final Load load;
        final FsCheckpointStorageAccess coordinator;
        final ChannelStateWriterImpl[] writers;
        final ExecutorService pool;
        final String base;
        final CheckpointOptions options =
                CheckpointOptions.unaligned(
                        CheckpointType.CHECKPOINT, CheckpointStorageLocationReference.getDefault());
        long cp;

        Rig(Cfg c, Load load) throws Exception {
            this.c = c;
            this.load = load;
            JobID job = new JobID();
            base = c.dir + "/" + job;
            Path basePath = new Path("file://" + c.dir);
            coordinator = new FsCheckpointStorageAccess(basePath, null, job, THRESHOLD, WRITE_BUFFER);
            coordinator.initializeBaseLocationsForCheckpoint();
            ChannelStateWriteRequestExecutorFactory f =
                    new ChannelStateWriteRequestExecutorFactory(job);
            JobVertexID vertex = new JobVertexID();
            writers = new ChannelStateWriterImpl[c.s];
            for (int i = 0; i < c.s; i++) {
                writers[i] =
                        new ChannelStateWriterImpl(
                                vertex,
                                "bench (" + i + ")",
                                i,
                                () ->
                                        new FsCheckpointStorageAccess(
                                                new Path("file://" + c.dir),
                                                null,
                                                job,
                                                THRESHOLD,
                                                WRITE_BUFFER),
                                f,
                                c.max);
            }
            pool = Executors.newFixedThreadPool(c.s, r -> {
                Thread t = new Thread(r, "task");
                t.setDaemon(true);
                return t;
            });
        }

        Result round(boolean stat) throws Exception {
            Result r = new Result();
            final long id = ++cp;
            coordinator.initializeLocationForCheckpoint(id);
            long[] start = new long[c.s];
            long[] end = new long[c.s];
            ChannelStateWriteResult[] res = new ChannelStateWriteResult[c.s];
            CountDownLatch ready = new CountDownLatch(c.s);
            CountDownLatch go = new CountDownLatch(1);
            CountDownLatch done = new CountDownLatch(c.s);
            AtomicReference<Throwable> err = new AtomicReference<>();
            for (int k = 0; k < c.s; k++) {
                final int s = k;
                pool.execute(
                        () -> {
                            try {
                                ready.countDown();
                                go.await();
                                ChannelStateWriterImpl w = writers[s];
                                start[s] = System.nanoTime();
                                w.start(id, options);
                                for (int ch = 0; ch < c.in; ch++) {
                                    Buffer[] bs = new Buffer[c.b];
                                    for (int b = 0; b < c.b; b++) {
                                        bs[b] = load.in[s][ch][b].retainBuffer();
                                    }
                                    w.addInputData(
                                            id, load.ii[ch], 0,
                                            CloseableIterator.ofElements(Buffer::recycleBuffer, bs));
                                }
                                for (int ch = 0; ch < c.on; ch++) {
                                    Buffer[] bs = new Buffer[c.b];
                                    for (int b = 0; b < c.b; b++) {
                                        try (BufferConsumer x = load.on[s][ch][b].copy()) {
                                            bs[b] = x.build();
                                        }
                                    }
                                    w.addOutputData(id, load.oi[ch], 0, bs);
                                }
                                w.finishOutput(id);
                                w.finishInput(id);
                                res[s] = w.getAndRemoveWriteResult(id);
                                CompletableFuture.allOf(
                                                res[s].getInputChannelStateHandles(),
                                                res[s].getResultSubpartitionStateHandles())
                                        .whenComplete(
                                                (v, e) -> {
                                                    end[s] = System.nanoTime();
                                                    if (e != null) err.set(e);
                                                    done.countDown();
                                                });
                            } catch (Throwable e) {
                                err.set(e);
                                done.countDown();
                            }
                        });
            }
            ready.await();
            Thread.sleep(1);
            long a0 = stat ? alloc() : 0, c0 = cpu();
            go.countDown();
            done.await();
            r.cpu = cpu() - c0;
            if (stat) r.alloc = alloc() - a0;
            if (err.get() != null) throw new RuntimeException(err.get());
            r.wall = Arrays.stream(end).max().getAsLong() - Arrays.stream(start).min().getAsLong();
            for (int s = 0; s < c.s; s++) {
                r.in.add(res[s].getInputChannelStateHandles().get());
                r.on.add(res[s].getResultSubpartitionStateHandles().get());
            }
            for (File f : files(id)) {
                r.files++;
                r.fileBytes += f.length();
                r.fileMin = Math.min(r.fileMin, f.length());
                r.fileMax = Math.max(r.fileMax, f.length());
            }
            return r;
        }

        String cpDir(long id) {
            return base + "/chk-" + id;
        }

        File[] files(long id) {
            File[] fs = new File(cpDir(id)).listFiles();
            return fs == null ? new File[0] : fs;
        }

        void drop(long id) {
            rm(new File(cpDir(id)));
        }

        @Override
        public void close() throws Exception {
            for (ChannelStateWriterImpl w : writers) w.close();
            pool.shutdown();
            pool.awaitTermination(5, TimeUnit.SECONDS);
            rm(new File(base));
        }
    }

    static void write(Cfg c, Load load, int warm, int rounds) throws Exception {
        List<Long> wall = new ArrayList<>(), pf = new ArrayList<>(), pn = new ArrayList<>();
        List<Long> al = new ArrayList<>();
        long cpu = 0;
        Result last = null;
        try (Rig rig = new Rig(c, load)) {
            long warmUntil = System.nanoTime() + (long) (warmSeconds * 1e9);
            for (int i = 0; i < warm || System.nanoTime() < warmUntil; i++) {
                rig.round(false);
                rig.drop(rig.cp);
            }
            resetHwm();
            long gc0 = gcCount();
            long until = System.nanoTime() + (long) (capSeconds * 1e9);
            for (int i = 0; i < rounds && (i < 3 || System.nanoTime() < until); i++) {
                last = rig.round(true);
                rig.drop(rig.cp);
                wall.add(last.wall);
                al.add(last.alloc);
                cpu += last.cpu;
                pf.add(plainWrite(c.dir, c.fileBytes(1), true, false));
                pn.add(plainWrite(c.dir, c.fileBytes(1), false, false));
            }
            long gcs = gcCount() - gc0;
            if (last.files > 0 && last.fileBytes != c.fileBytes(last.files)) {
                throw new IllegalStateException("file bytes " + last.fileBytes);
            }
            emit("{\"kind\":\"W\"," + c.json() + ",\"wall_ns\":" + arr(wall) + ",\"plain_force_ns\":"
                    + arr(pf) + ",\"plain_noforce_ns\":" + arr(pn) + ",\"cpu_ns_total\":" + cpu
                    + ",\"rounds\":" + wall.size() + ",\"alloc_bytes\":" + arr(al) + ",\"gcs\":" + gcs
                    + ",\"files\":" + last.files + ",\"file_bytes\":" + last.fileBytes
                    + ",\"file_min\":" + (last.files == 0 ? 0 : last.fileMin) + ",\"file_max\":"
                    + last.fileMax + ",\"rss_peak_kb\":" + hwmKb() + "}");
        }
    }

    // ------------------------------------------------------------------ small latency

    static void latency(Cfg c, int warm, int n) throws Exception {
        List<Long> wall = new ArrayList<>(), pf = new ArrayList<>(), pn = new ArrayList<>();
        Result last = null;
        long cpu = 0;
        try (Rig rig = new Rig(c, new Load(c))) {
            for (int i = 0; i < warm; i++) {
                rig.round(false);
                rig.drop(rig.cp);
                plainWrite(c.dir, c.fileBytes(1), true, false);
            }
            long until = System.nanoTime() + (long) (capSeconds * 1e9);
            for (int i = 0; i < n && (i < 20 || System.nanoTime() < until); i++) {
                last = rig.round(false);
                rig.drop(rig.cp);
                wall.add(last.wall);
                cpu += last.cpu;
                pf.add(plainWrite(c.dir, c.fileBytes(1), true, false));
                pn.add(plainWrite(c.dir, c.fileBytes(1), false, false));
            }
            emit("{\"kind\":\"LAT\"," + c.json() + ",\"wall_ns\":" + arr(wall)
                    + ",\"plain_force_ns\":" + arr(pf) + ",\"plain_noforce_ns\":" + arr(pn)
                    + ",\"cpu_ns_total\":" + cpu + ",\"rounds\":" + wall.size() + ",\"files\":" + last.files
                    + ",\"file_bytes\":" + last.fileBytes + "}");
        }
    }

    // ------------------------------------------------------------------ the Flink reader

    static final class ReadResult {
        long wall, cpu, alloc, bytes, buffers, events;
    }

    static RecordFilterContext filter() {
        return new RecordFilterContext(
                new RecordFilterContext.InputFilterConfig[0],
                InflightDataRescalingDescriptor.NO_RESCALE,
                0,
                128,
                null,
                false);
    }

    static TaskStateSnapshot snapshot(Result w, int s) {
        TaskStateSnapshot t = new TaskStateSnapshot();
        t.putSubtaskStateByOperatorID(
                new OperatorID(1, 2),
                OperatorSubtaskState.builder()
                        .setInputChannelState(
                                ChannelStateHelper.mergeInputStateCollection(w.in.get(s)))
                        .setResultSubpartitionState(
                                ChannelStateHelper.mergeOutputStateCollection(w.on.get(s)))
                        .build());
        return t;
    }

    static ReadResult readRound(
            Cfg c, Result w, ExecutorService pool, NetworkBufferPool nbp, boolean real, boolean crc)
            throws Exception {
        ReadResult r = new ReadResult();
        SingleInputGate[] gates = new SingleInputGate[c.s];
        ResultPartitionWriter[] writers = new ResultPartitionWriter[c.s];
        TaskStateSnapshot[] snaps = new TaskStateSnapshot[c.s];
        for (int s = 0; s < c.s; s++) {
            MemorySegment[] ring = real ? null : BenchGates.ring(16, 32768);
            gates[s] = BenchGates.gate(c.in, nbp, ring);
            writers[s] = real ? BenchPartition.create(c.on, nbp) : new StubWriter(c.on, ring);
            snaps[s] = snapshot(w, s);
            if (crc) {
                ((StubWriter) writers[s]).crc = new CRC32[c.on];
                for (int i = 0; i < c.on; i++) ((StubWriter) writers[s]).crc[i] = new CRC32();
                for (int i = 0; i < c.in; i++) {
                    ((BenchGates.StubChan) gates[s].getChannel(i)).crc = new CRC32();
                }
            }
        }
        long[] start = new long[c.s], end = new long[c.s];
        long[][] got = new long[2 * c.s][3];
        CountDownLatch ready = new CountDownLatch(c.s), go = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(real ? 2 * c.s : c.s);
        AtomicReference<Throwable> err = new AtomicReference<>();
        for (int k = 0; k < c.s; k++) {
            final int s = k;
            pool.execute(
                    () -> {
                        try (SequentialChannelStateReaderImpl rd =
                                new SequentialChannelStateReaderImpl(snaps[s])) {
                            ready.countDown();
                            go.await();
                            start[s] = System.nanoTime();
                            rd.readOutputData(new ResultPartitionWriter[] {writers[s]}, false);
                            rd.readInputData(new InputGate[] {gates[s]}, filter());
                            end[s] = System.nanoTime();
                        } catch (Throwable e) {
                            err.set(e);
                        }
                        done.countDown();
                    });
            if (real) {
                pool.execute(
                        () -> {
                            try {
                                drain(c, gates[s], (PipelinedResultPartition) writers[s], got[s]);
                                got[s][2] = System.nanoTime();
                            } catch (Throwable e) {
                                err.set(e);
                            }
                            done.countDown();
                        });
            }
        }
        ready.await();
        Thread.sleep(1);
        long a0 = alloc(), c0 = cpu();
        go.countDown();
        done.await();
        r.cpu = cpu() - c0;
        r.alloc = alloc() - a0;
        if (err.get() != null) throw new RuntimeException(err.get());
        long e = 0;
        for (int s = 0; s < c.s; s++) {
            e = Math.max(e, Math.max(end[s], got[s][2]));
            if (real) {
                r.bytes += got[s][0];
                r.buffers += got[s][1];
                gates[s].close();
                PipelinedResultPartition p = (PipelinedResultPartition) writers[s];
                p.release(null);
                p.close();
            } else {
                StubWriter sw = (StubWriter) writers[s];
                for (long b : sw.bytes) r.bytes += b;
                r.buffers += sw.buffers;
                r.events += sw.events;
                for (int i = 0; i < c.in; i++) {
                    BenchGates.StubChan ch = (BenchGates.StubChan) gates[s].getChannel(i);
                    r.bytes += ch.bytes;
                    r.buffers += ch.buffers;
                    r.events += ch.events;
                    if (crc) check(c, s, 0, i, ch.crc);
                }
                for (int i = 0; crc && i < c.on; i++) check(c, s, 1, i, sw.crc[i]);
            }
        }
        if (r.bytes != c.payloadBytes()) {
            throw new IllegalStateException("restored " + r.bytes + " of " + c.payloadBytes());
        }
        r.wall = e - Arrays.stream(start).min().getAsLong();
        return r;
    }

    static void check(Cfg c, int s, int dir, int ch, CRC32 got) {
        CRC32 want = new CRC32();
        want.update(Payload.channel(c.payload, s, dir, ch, c.b * c.size));
        if (want.getValue() != got.getValue()) throw new IllegalStateException("crc mismatch");
    }

    /** The consuming side: first the subpartition views, then the gate, as fast as possible. */
    static void drain(Cfg c, SingleInputGate gate, PipelinedResultPartition p, long[] got)
            throws Exception {
        Object lock = new Object();
        ResultSubpartitionView[] vs = new ResultSubpartitionView[c.on];
        boolean[] signal = {false};
        for (int i = 0; i < c.on; i++) {
            vs[i] =
                    p.createSubpartitionView(
                            new ResultSubpartitionIndexSet(i),
                            v -> {
                                synchronized (lock) {
                                    signal[0] = true;
                                    lock.notifyAll();
                                }
                            });
        }
        long want = c.payloadBytes() / c.s * c.on / (c.in + c.on);
        long bytes = 0, n = 0;
        while (bytes < want) {
            boolean any = false;
            for (ResultSubpartitionView v : vs) {
                BufferAndBacklog b;
                while ((b = v.getNextBuffer()) != null) {
                    any = true;
                    if (b.buffer().isBuffer()) {
                        bytes += b.buffer().readableBytes();
                        n++;
                    }
                    b.buffer().recycleBuffer();
                }
            }
            if (!any) {
                synchronized (lock) {
                    if (!signal[0]) lock.wait(1);
                    signal[0] = false;
                }
            }
        }
        while (!gate.getStateConsumedFuture().isDone()) {
            Optional<BufferOrEvent> o = gate.pollNext();
            if (o.isPresent()) {
                if (o.get().isBuffer()) {
                    bytes += o.get().getBuffer().readableBytes();
                    n++;
                    o.get().getBuffer().recycleBuffer();
                }
            } else {
                try {
                    CompletableFuture.anyOf(gate.getAvailableFuture(), gate.getStateConsumedFuture())
                            .get(1, TimeUnit.MILLISECONDS);
                } catch (java.util.concurrent.TimeoutException ignored) {
                }
            }
        }
        got[0] = bytes;
        got[1] = n;
    }

    static void read(Cfg c, Load load, int warm, int rounds, boolean real, boolean cold)
            throws Exception {
        List<Long> wall = new ArrayList<>(), pr = new ArrayList<>(), al = new ArrayList<>();
        long cpu = 0;
        ReadResult last = null;
        NetworkBufferPool nbp =
                new NetworkBufferPool(real ? c.s * (c.in * 2 + c.on * 2 + 32) : 1, 32768);
        ExecutorService pool =
                Executors.newFixedThreadPool(c.s * 2, r -> {
                    Thread t = new Thread(r, "reader");
                    t.setDaemon(true);
                    return t;
                });
        try (Rig rig = new Rig(c, load)) {
            Result w = rig.round(false);
            File[] files = rig.files(rig.cp);
            String dir = rig.cpDir(rig.cp);
            if (!real) readRound(c, w, pool, nbp, false, true);
            long warmUntil = System.nanoTime() + (long) (warmSeconds * 1e9);
            for (int i = 0; i < warm || System.nanoTime() < warmUntil; i++) {
                readRound(c, w, pool, nbp, real, false);
            }
            resetHwm();
            long until = System.nanoTime() + (long) (capSeconds * 1e9);
            for (int i = 0; i < rounds && (i < 3 || System.nanoTime() < until); i++) {
                if (cold) evict(dir);
                last = readRound(c, w, pool, nbp, real, false);
                wall.add(last.wall);
                al.add(last.alloc);
                cpu += last.cpu;
                if (cold) evict(dir);
                pr.add(plainRead(files));
            }
            emit("{\"kind\":\"R\"," + c.json() + ",\"gate\":\"" + (real ? "real" : "stub")
                    + "\",\"cache\":\"" + (cold ? "cold" : "warm") + "\",\"wall_ns\":" + arr(wall)
                    + ",\"plain_read_ns\":" + arr(pr) + ",\"cpu_ns_total\":" + cpu + ",\"rounds\":"
                    + wall.size() + ",\"alloc_bytes\":" + arr(al) + ",\"files\":" + files.length
                    + ",\"restored_buffers\":" + last.buffers + ",\"events\":" + last.events
                    + ",\"rss_peak_kb\":" + hwmKb() + "}");
        } finally {
            pool.shutdown();
            nbp.destroyAllBufferPools();
            nbp.destroy();
        }
    }

    // ------------------------------------------------------------------ metadata

    static CheckpointMetadata metadata(int n, boolean merged, String chkDir) {
        int p = (n + 15) / 16;
        OperatorState os = new OperatorState(null, null, new OperatorID(7, 9), p, Math.max(128, p));
        Payload rnd = new Payload(7777, 0, 0);
        StreamStateHandle file = null;
        int left = n;
        for (int s = 0; s < p; s++) {
            if (s % 5 == 0) {
                String name = new UUID(rnd.next(), rnd.next()).toString();
                file =
                        new RelativeFileStateHandle(
                                new Path(chkDir, name), name, 4 + 5L * 16 * 8 * 32772);
            }
            List<InputChannelStateHandle> in = new ArrayList<>();
            List<ResultSubpartitionStateHandle> on = new ArrayList<>();
            for (int ch = 0; ch < 16 && left > 0; ch++, left--) {
                List<Long> offsets = new ArrayList<>();
                for (int b = 0; b < 8; b++) {
                    offsets.add(4 + (((s % 5) * 16 + ch) * 8L + b) * 32772);
                }
                if (ch < 8) {
                    in.add(
                            new InputChannelStateHandle(
                                    s, new InputChannelInfo(0, ch), file, offsets, 8L * 32772));
                } else {
                    on.add(
                            new ResultSubpartitionStateHandle(
                                    s, new ResultSubpartitionInfo(0, ch - 8), file, offsets,
                                    8L * 32772));
                }
            }
            OperatorSubtaskState.Builder b = OperatorSubtaskState.builder();
            b.setInputChannelState(
                    merged
                            ? ChannelStateHelper.mergeInputStateCollection(in)
                            : ChannelStateHelper.castToInputStateCollection(in));
            b.setResultSubpartitionState(
                    merged
                            ? ChannelStateHelper.mergeOutputStateCollection(on)
                            : ChannelStateHelper.castToOutputStateCollection(on));
            os.putState(s, b.build());
        }
        return new CheckpointMetadata(
                42,
                Collections.singletonList(os),
                Collections.emptyList(),
                CheckpointProperties.forCheckpoint(
                        CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION));
    }

    static void meta(String fs, String dir, int n, boolean merged, double seconds)
            throws Exception {
        JobID job = new JobID();
        FsCheckpointStorageAccess acc =
                new FsCheckpointStorageAccess(
                        new Path("file://" + dir), null, job, THRESHOLD, WRITE_BUFFER);
        acc.initializeBaseLocationsForCheckpoint();
        ClassLoader cl = FlinkBench.class.getClassLoader();
        List<Long> ser = new ArrayList<>(), par = new ArrayList<>();
        List<Long> serF = new ArrayList<>(), parF = new ArrayList<>();
        List<Long> pf = new ArrayList<>();
        long size = 0;
        long id = 0;
        CheckpointMetadata md = null;
        for (int phase = 0; phase < 2; phase++) { // 0 warms up
            for (List<Long> l : List.of(ser, par, serF, parF, pf)) l.clear();
            long until = System.nanoTime() + (long) (seconds * 1e9);
            for (int i = 0; i < 3 || (System.nanoTime() < until && i < 2000); i++) {
                CheckpointStorageLocation loc = acc.initializeLocationForCheckpoint(++id);
                String chk = dir + "/" + job + "/chk-" + id;
                md = metadata(n, merged, "file:" + chk);
                long t0 = System.nanoTime();
                ByteArrayOutputStream bos = new ByteArrayOutputStream();
                Checkpoints.storeCheckpointMetadata(md, bos);
                byte[] bytes = bos.toByteArray();
                long t1 = System.nanoTime();
                CompletedCheckpointStorageLocation fin;
                try (CheckpointMetadataOutputStream o = loc.createMetadataOutputStream()) {
                    Checkpoints.storeCheckpointMetadata(md, o);
                    fin = o.closeAndFinalizeCheckpoint();
                }
                long t2 = System.nanoTime();
                CheckpointMetadata back;
                try (InputStream is = fin.getMetadataHandle().openInputStream();
                        DataInputStream dis = new DataInputStream(is)) {
                    back = Checkpoints.loadCheckpointMetadata(dis, cl, fin.getExternalPointer());
                }
                long t3 = System.nanoTime();
                CheckpointMetadata back2 =
                        Checkpoints.loadCheckpointMetadata(
                                new DataInputStream(new ByteArrayInputStream(bytes)),
                                cl,
                                fin.getExternalPointer());
                long t4 = System.nanoTime();
                size = bytes.length;
                if (i == 0) {
                    long onDisk = new File(chk, "_metadata").length();
                    if (onDisk != size || back.getOperatorStates().isEmpty()
                            || !back.getOperatorStates().equals(back2.getOperatorStates())) {
                        throw new IllegalStateException("metadata round trip");
                    }
                }
                ser.add(t1 - t0);
                serF.add(t2 - t1);
                parF.add(t3 - t2);
                par.add(t4 - t3);
                pf.add(plainWrite(chk, size, true, false));
                rm(new File(chk));
            }
        }
        rm(new File(dir + "/" + job));
        emit("{\"kind\":\"M\",\"fs\":\"" + fs + "\",\"handles\":" + n + ",\"form\":\""
                + (merged ? "merged" : "unmerged") + "\",\"bytes\":" + size + ",\"ser_mem_ns\":"
                + arr(ser) + ",\"parse_mem_ns\":" + arr(par) + ",\"store_file_ns\":" + arr(serF)
                + ",\"load_file_ns\":" + arr(parF) + ",\"plain_force_ns\":" + arr(pf) + "}");
    }

    // ------------------------------------------------------------------ main

    static int b(int size) {
        return size == 32768 ? 8 : size == 4096 ? 64 : 128;
    }

    static Cfg cfg(String fs, String dir, int s, int size, int max, String payload) {
        Cfg c = new Cfg();
        c.fs = fs; c.dir = dir; c.s = s; c.size = size; c.max = max; c.b = b(size);
        c.payload = payload;
        c.name = "S" + s + "-" + (size == 32768 ? "32K" : size == 4096 ? "4K" : "200B") + "-max" + max
                + (payload.equals("random") ? "" : "-" + payload);
        return c;
    }

    static Cfg lat(String fs, String dir, String name, int s, int ch, int b, int size, int max) {
        Cfg c = new Cfg();
        c.fs = fs; c.dir = dir; c.name = name; c.s = s; c.in = ch; c.on = ch; c.b = b;
        c.size = size; c.max = max;
        return c;
    }

    public static void main(String[] args) throws Exception {
        for (String a : args) opt.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
        String mode = opt.get("mode"), fs = opt.get("fs");
        String dir = new File(opt.get("dir")).getAbsolutePath();
        boolean quick = "quick".equals(opt.get("level"));
        if (quick) {
            capSeconds = 0.7;
            warmSeconds = 0.3;
        }
        new File(dir).mkdirs();
        out = new FileWriter(opt.get("out"), true);
        long t0 = System.nanoTime();
        if (mode.equals("w")) {
            int s = Integer.parseInt(opt.get("S"));
            warmup(fs, dir, quick ? 0.6 : 3.0);
            int[] maxes = s == 1 ? new int[] {1} : quick ? new int[] {5} : new int[] {1, 5, 100};
            int[] sizes = quick && s != 8 ? new int[] {32768} : new int[] {32768, 4096, 200};
            for (int size : sizes) {
                Load load = new Load(cfg(fs, dir, s, size, 1, "random"));
                for (int max : maxes) {
                    int rounds = s == 1 ? 100 : s == 8 ? 25 : 9;
                    if (quick) rounds = s == 1 ? 15 : s == 8 ? 7 : 3;
                    write(cfg(fs, dir, s, size, max, "random"), load, quick ? 1 : 3, rounds);
                }
            }
            if (s == 8 && !quick) {
                Cfg c = cfg(fs, dir, 8, 32768, 5, "json");
                write(c, new Load(c), 2, 15);
            }
        } else if (mode.equals("lat")) {
            warmup(fs, dir, quick ? 0.6 : 3.0);
            int n = quick ? 40 : 200, w = quick ? 10 : 100;
            latency(lat(fs, dir, "3.2KB-inline", 1, 8, 1, 200, 5), w, n);
            latency(lat(fs, dir, "64KiB", 1, 1, 1, 32768, 5), w, n);
            latency(lat(fs, dir, "256KiB", 1, 4, 1, 32768, 5), w, n);
            latency(lat(fs, dir, "576KiB", 1, 9, 1, 32768, 5), w, n);
            latency(lat(fs, dir, "600KB-200B", 1, 10, 150, 200, 5), w, n);
            if (!quick) latency(lat(fs, dir, "512KiB-S8-max1", 8, 1, 1, 32768, 1), w, n);
            latency(lat(fs, dir, "512KiB-S8-max5", 8, 1, 1, 32768, 5), w, n);
            if (!quick) latency(lat(fs, dir, "512KiB-S8-max100", 8, 1, 1, 32768, 100), w, n);
        } else if (mode.equals("r")) {
            warmup(fs, dir, quick ? 0.5 : 1.5);
            boolean disk = fs.equals("disk");
            int[][] m = quick
                    ? new int[][] {{1, 32768, 1}, {8, 32768, 5}, {8, 200, 5}}
                    : new int[][] {
                        {1, 32768, 1}, {1, 4096, 1}, {1, 200, 1},
                        {8, 32768, 5}, {8, 4096, 5}, {8, 200, 5}, {8, 32768, 100},
                        {64, 32768, 5}, {64, 4096, 5}, {64, 200, 5}, {64, 32768, 100}
                    };
            for (int[] x : m) {
                Load load = new Load(cfg(fs, dir, x[0], x[1], x[2], "random"));
                int rounds = x[0] == 1 ? 60 : x[0] == 8 ? 15 : 7;
                if (quick) rounds = Math.min(rounds, 7);
                Cfg c = cfg(fs, dir, x[0], x[1], x[2], "random");
                read(c, load, quick ? 2 : 4, rounds, false, false);
                if (disk && !quick && x[1] == 32768 && x[2] != 100) {
                    read(c, load, 1, 5, false, true);
                }
                if (x[0] == 8 && x[2] == 5 && (!quick || x[1] == 32768)) {
                    read(c, load, quick ? 2 : 4, rounds, true, false);
                }
            }
        } else if (mode.equals("m")) {
            for (int n : new int[] {1, 100, 10000}) {
                meta(fs, dir, n, true, quick ? 0.15 : 1.5);
                if (!quick) meta(fs, dir, n, false, 1.5);
            }
        }
        System.err.printf("%s %s: %.1f s%n", mode, fs, (System.nanoTime() - t0) / 1e9);
        out.close();
        System.exit(0);
    }

    /** Compiles the hot paths (writer at three sizes, reader) before anything is measured. */
    static void warmup(String fs, String dir, double seconds) throws Exception {
        for (int size : new int[] {200, 4096, 32768}) {
            Cfg c = cfg(fs, dir, 4, size, 5, "random");
            c.b = size == 32768 ? 2 : 32;
            long until = System.nanoTime() + (long) (seconds / 3 * 1e9);
            try (Rig rig = new Rig(c, new Load(c))) {
                while (System.nanoTime() < until) {
                    rig.round(true);
                    rig.drop(rig.cp);
                    plainWrite(dir, 65536, true, false);
                }
            }
        }
    }
}
