package spillway.e2e;

import java.io.*;
import java.nio.file.*;
import java.util.*;
import org.apache.flink.runtime.checkpoint.*;
import org.apache.flink.runtime.checkpoint.channel.*;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.state.*;
import org.apache.flink.runtime.state.filesystem.RelativeFileStateHandle;

/** How long Flink's classes take for a _metadata file with many channels. */
final class Metadata {
    private static final int CHANNELS = 100; // of a subtask, half of them input
    private static final int CHUNK = 4 + 32768;

    /** Writes a _metadata with so many channels, of one chunk each: a handle each, or merged by subtask and side. */
    static Map<String, Object> make(Path to, int channels, boolean merged) throws Exception {
        int parallelism = channels / CHANNELS;
        OperatorState op = new OperatorState("count", "count", new OperatorID(7, 9), parallelism, Math.max(128, parallelism));
        for (int s = 0; s < parallelism; s++) {
            String name = new UUID(s, s).toString();
            StreamStateHandle file = new RelativeFileStateHandle(new org.apache.flink.core.fs.Path("file:/chk-1", name), name, 4L + CHANNELS * CHUNK);
            List<InputChannelStateHandle> in = new ArrayList<>();
            List<ResultSubpartitionStateHandle> out = new ArrayList<>();
            for (int c = 0; c < CHANNELS; c++) {
                List<Long> offsets = List.of(4L + (long) c * CHUNK);
                if (c < CHANNELS / 2) in.add(new InputChannelStateHandle(s, new InputChannelInfo(0, c), file, offsets, CHUNK));
                else out.add(new ResultSubpartitionStateHandle(s, new ResultSubpartitionInfo(0, c - CHANNELS / 2), file, offsets, CHUNK));
            }
            op.putState(s, OperatorSubtaskState.builder()
                    .setInputChannelState(merged ? ChannelStateHelper.mergeInputStateCollection(in) : ChannelStateHelper.castToInputStateCollection(in))
                    .setResultSubpartitionState(merged ? ChannelStateHelper.mergeOutputStateCollection(out) : ChannelStateHelper.castToOutputStateCollection(out))
                    .build());
        }
        CheckpointMetadata m = new CheckpointMetadata(1, List.of(op), List.of(), CheckpointProperties.forCheckpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION));
        try (OutputStream o = new BufferedOutputStream(Files.newOutputStream(to))) { Checkpoints.storeCheckpointMetadata(m, o); }
        return Serve.map("bytes", Files.size(to));
    }

    /** Loads a _metadata that lies in memory; unmerge: and takes merged handles apart, as a restore does. */
    static Map<String, Object> load(Path from, int rounds, boolean unmerge) throws Exception {
        byte[] file = Files.readAllBytes(from);
        List<Long> nanos = new ArrayList<>();
        long channels = 0;
        for (int i = 0; i < rounds; i++) {
            long start = System.nanoTime();
            CheckpointMetadata m = Checkpoints.loadCheckpointMetadata(new DataInputStream(new ByteArrayInputStream(file)), Metadata.class.getClassLoader(), from.getParent().toString());
            channels = 0;
            if (unmerge)
                for (OperatorState o : m.getOperatorStates())
                    for (OperatorSubtaskState s : o.getStates())
                        channels += ChannelStateHelper.extractUnmergedInputHandles(s).size() + ChannelStateHelper.extractUnmergedOutputHandles(s).size();
            nanos.add(System.nanoTime() - start);
        }
        return Serve.map("nanos", nanos, "channels", channels);
    }
}
