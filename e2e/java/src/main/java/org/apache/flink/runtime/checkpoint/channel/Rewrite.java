package org.apache.flink.runtime.checkpoint.channel;

import java.io.*;
import java.nio.file.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.stream.*;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.runtime.checkpoint.*;
import org.apache.flink.runtime.checkpoint.metadata.*;
import org.apache.flink.runtime.state.*;
import org.apache.flink.runtime.state.filesystem.*;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;

/**
 * Reads channel state with Flink's own classes, and rewrites a checkpoint into the shapes that a reader has to know: versions 3, 4 and
 * 5 of the metadata, and channel state cut and placed in other ways. It lies in this package for the serializer of channel state.
 */
public final class Rewrite {
    private static final Set<String> LAID_ANEW = Set.of("one-file", "file-per-channel", "inline", "absolute", "gaps", "merged-chunks", "split-chunks", "empty-chunks");

    /** The state of one channel on its way from the old checkpoint into the new one. */
    private static final class Item {
        int operator, subtask;
        AbstractChannelStateHandle<?> old;
        List<byte[]> chunks;
        List<Long> offsets;
        long size;
        String file;
        StreamStateHandle delegate;
    }

    private final String mode;
    private final Path from, to;
    private final List<Item> items = new ArrayList<>();

    private Rewrite(String mode, Path from, Path to) { this.mode = mode; this.from = from; this.to = to; }

    public static Map<String, Object> run(String mode, Path from, Path to) throws Exception {
        return new Rewrite(mode, from.toAbsolutePath(), to.toAbsolutePath()).run();
    }

    /** What Flink reads: the SHA-256 of the bytes of each channel. */
    public static Map<String, Object> read(Path from) throws Exception {
        Map<String, Object> channels = new TreeMap<>();
        for (OperatorState o : load(from.toAbsolutePath()).getOperatorStates())
            for (Map.Entry<Integer, OperatorSubtaskState> e : o.getSubtaskStates().entrySet()) {
                String task = o.getOperatorID() + "/" + e.getKey();
                for (var h : ChannelStateHelper.extractUnmergedInputHandles(e.getValue()))
                    channels.put(task + " gate " + h.getInfo().getGateIdx() + " channel " + h.getInfo().getInputChannelIdx(), digest(h));
                for (var h : ChannelStateHelper.extractUnmergedOutputHandles(e.getValue()))
                    channels.put(task + " partition " + h.getInfo().getPartitionIdx() + " subpartition " + h.getInfo().getSubPartitionIdx(), digest(h));
            }
        return new LinkedHashMap<>(Map.of("channels", channels));
    }

    private static String digest(AbstractChannelStateHandle<?> h) throws Exception {
        MessageDigest d = MessageDigest.getInstance("SHA-256");
        for (byte[] c : chunks(h)) d.update(c);
        return HexFormat.of().formatHex(d.digest());
    }

    private static CheckpointMetadata load(Path from) throws IOException {
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(from.resolve("_metadata"))))) {
            return Checkpoints.loadCheckpointMetadata(in, Rewrite.class.getClassLoader(), from.toString());
        }
    }

    private Map<String, Object> run() throws Exception {
        Files.createDirectories(to);
        CheckpointMetadata old = load(from);
        List<OperatorState> operators = new ArrayList<>(old.getOperatorStates());
        Set<String> channelFiles = new TreeSet<>();
        for (int i = 0; i < operators.size(); i++)
            for (Map.Entry<Integer, OperatorSubtaskState> e : new TreeMap<>(operators.get(i).getSubtaskStates()).entrySet()) {
                for (var h : ChannelStateHelper.extractUnmergedInputHandles(e.getValue())) add(i, e.getKey(), h, channelFiles);
                for (var h : ChannelStateHelper.extractUnmergedOutputHandles(e.getValue())) add(i, e.getKey(), h, channelFiles);
            }
        boolean anew = LAID_ANEW.contains(mode);
        try (Stream<Path> s = Files.list(from)) {
            for (Path p : s.filter(p -> !p.endsWith("_metadata") && !(anew && channelFiles.contains(p.getFileName().toString()))).toList()) Files.copy(p, to.resolve(p.getFileName()));
        }
        if (anew) lay();
        int version = mode.matches("v[345]") ? mode.charAt(1) - '0' : 6;
        CheckpointMetadata made = new CheckpointMetadata(old.getCheckpointId(), rebuild(operators, version == 6 && !mode.equals("unmerged")), old.getMasterStates(), old.getCheckpointProperties());
        try (DataOutputStream o = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(to.resolve("_metadata"))))) {
            Checkpoints.storeCheckpointMetadata(made, o, MetadataSerializers.getSerializer(version));
        }
        long bytes = 0;
        for (Item t : items) for (byte[] c : t.chunks) bytes += c.length;
        return new LinkedHashMap<>(Map.of("version", version, "channels", items.size(), "bytes", bytes));
    }

    private void add(int operator, int subtask, AbstractChannelStateHandle<?> h, Set<String> files) throws Exception {
        Item t = new Item();
        t.operator = operator;
        t.subtask = subtask;
        t.old = h;
        t.offsets = h.getOffsets();
        t.size = h.getStateSize();
        t.delegate = h.getDelegate();
        t.chunks = chunks(h);
        if (h.getDelegate() instanceof RelativeFileStateHandle f) files.add(f.getRelativePath());
        items.add(t);
    }

    private static List<byte[]> chunks(AbstractChannelStateHandle<?> h) throws Exception {
        ChannelStateSerializer serializer = new ChannelStateSerializerImpl();
        List<byte[]> l = new ArrayList<>();
        try (FSDataInputStream in = h.getDelegate().openInputStream()) {
            serializer.readHeader(in);
            for (long offset : h.getOffsets().stream().sorted().toList()) {
                in.seek(offset);
                byte[] b = new byte[serializer.readLength(in)];
                new DataInputStream(in).readFully(b);
                l.add(b);
            }
        }
        return l;
    }

    /** Writes the channel state into new files, or inline. */
    private void lay() throws Exception {
        boolean each = mode.equals("file-per-channel") || mode.equals("inline");
        Map<String, ByteArrayOutputStream> files = new LinkedHashMap<>();
        for (Item t : items) {
            t.chunks = cut(t.chunks);
            t.offsets = new ArrayList<>();
            t.size = 0;
            t.file = each ? "channel-" + files.size() : "channel-state";
            ByteArrayOutputStream b = files.computeIfAbsent(t.file, k -> new ByteArrayOutputStream());
            DataOutputStream d = new DataOutputStream(b);
            if (b.size() == 0) d.writeInt(0);
            if (mode.equals("gaps")) d.write(new byte[777]);
            for (byte[] c : t.chunks) {
                t.offsets.add((long) b.size());
                d.writeInt(c.length);
                d.write(c);
                t.size += 4 + c.length;
            }
        }
        Map<String, StreamStateHandle> handles = new HashMap<>();
        for (Map.Entry<String, ByteArrayOutputStream> e : files.entrySet()) handles.put(e.getKey(), handle(e.getKey(), e.getValue().toByteArray()));
        for (Item t : items) t.delegate = handles.get(t.file); // merging wants the same object
    }

    private List<byte[]> cut(List<byte[]> chunks) {
        List<byte[]> l = new ArrayList<>();
        switch (mode) {
            case "merged-chunks" -> {
                ByteArrayOutputStream b = new ByteArrayOutputStream();
                chunks.forEach(b::writeBytes);
                l.add(b.toByteArray());
            }
            case "split-chunks" -> {
                for (byte[] c : chunks) for (int i = 0; i < c.length; i += 1000) l.add(Arrays.copyOfRange(c, i, Math.min(c.length, i + 1000)));
            }
            case "empty-chunks" -> {
                l.add(new byte[0]);
                l.addAll(chunks);
                l.add(new byte[0]);
            }
            default -> l.addAll(chunks);
        }
        return l;
    }

    private StreamStateHandle handle(String file, byte[] b) throws IOException {
        if (mode.equals("inline")) return new ByteStreamStateHandle(UUID.randomUUID().toString(), b);
        Files.write(to.resolve(file), b);
        var path = new org.apache.flink.core.fs.Path("file:" + to.resolve(file));
        return mode.equals("absolute") ? new FileStateHandle(path, b.length) : new RelativeFileStateHandle(path, file, b.length);
    }

    private List<OperatorState> rebuild(List<OperatorState> operators, boolean merge) {
        List<OperatorState> made = new ArrayList<>();
        for (int i = 0; i < operators.size(); i++) {
            OperatorState o = operators.get(i);
            OperatorState n = new OperatorState(o.getOperatorName().orElse(null), o.getOperatorUid().orElse(null), o.getOperatorID(), o.getParallelism(), o.getMaxParallelism());
            if (o.getCoordinatorState() != null) n.setCoordinatorState(o.getCoordinatorState());
            for (Map.Entry<Integer, OperatorSubtaskState> e : new TreeMap<>(o.getSubtaskStates()).entrySet()) {
                List<InputChannelStateHandle> in = new ArrayList<>();
                List<ResultSubpartitionStateHandle> out = new ArrayList<>();
                for (Item t : items) {
                    if (t.operator != i || t.subtask != e.getKey()) continue;
                    if (t.old instanceof InputChannelStateHandle h) in.add(new InputChannelStateHandle(h.getSubtaskIndex(), h.getInfo(), t.delegate, t.offsets, t.size));
                    if (t.old instanceof ResultSubpartitionStateHandle h) out.add(new ResultSubpartitionStateHandle(h.getSubtaskIndex(), h.getInfo(), t.delegate, t.offsets, t.size));
                }
                n.putState(e.getKey(), e.getValue().toBuilder()
                        .setInputChannelState(merge ? ChannelStateHelper.mergeInputStateCollection(in) : ChannelStateHelper.castToInputStateCollection(in))
                        .setResultSubpartitionState(merge ? ChannelStateHelper.mergeOutputStateCollection(out) : ChannelStateHelper.castToOutputStateCollection(out)).build());
            }
            made.add(n);
        }
        return made;
    }
}
