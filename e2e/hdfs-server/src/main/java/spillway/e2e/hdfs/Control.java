package spillway.e2e.hdfs;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DFSTestUtil;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.hdfs.protocol.OpenFileEntry;
import org.apache.hadoop.hdfs.protocol.OpenFilesIterator.OpenFilesType;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.FsDatasetSpi;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.FsVolumeSpi;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.impl.FsVolumeImpl;

/**
 * Control answers requests that do to the cluster what a test wants: GET /VERB?KEY=VALUE&... An exception is a 500 with its
 * trace. What reads and writes files here is Hadoop's own client.
 */
final class Control {
  private interface Verb {
    byte[] answer(Map<String, String> q, InputStream body) throws Exception;
  }

  private final MiniDFSCluster cluster;
  private final Deque<MiniDFSCluster.DataNodeProperties> dead = new ArrayDeque<>();
  private final Map<String, Verb> verbs = new HashMap<>();

  private Control(MiniDFSCluster cluster) {
    this.cluster = cluster;
    datanodes();
    namenode();
    files();
    verbs.put("/kinit", (q, body) -> {
      Secure.kinit(q.get("principal"), q.get("keytab"), q.get("cache"));
      return text("ok");
    });
  }

  static int start(MiniDFSCluster cluster) throws IOException {
    Control control = new Control(cluster);
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext("/", control::handle);
    server.setExecutor(Executors.newCachedThreadPool(r -> {
      Thread t = new Thread(r);
      t.setDaemon(true);
      return t;
    }));
    server.start();
    return server.getAddress().getPort();
  }

  private DistributedFileSystem fs() throws IOException {
    return cluster.getFileSystem();
  }

  private void datanodes() {
    verbs.put("/dn/list", (q, body) -> {
      StringBuilder ports = new StringBuilder();
      for (DataNode d : cluster.getDataNodes()) ports.append(d.getXferPort()).append('\n');
      return text(ports);
    });
    verbs.put("/dn/kill", (q, body) -> { // the one with the transfer port, or all
      for (int i = cluster.getDataNodes().size() - 1; i >= 0; i--) {
        String port = String.valueOf(cluster.getDataNodes().get(i).getXferPort());
        if (q.getOrDefault("port", port).equals(port)) dead.add(cluster.stopDataNode(i));
      }
      return text("dead: " + dead.size());
    });
    verbs.put("/dn/restart", (q, body) -> {
      while (!dead.isEmpty()) cluster.restartDataNode(dead.remove(), true);
      cluster.waitActive();
      cluster.triggerHeartbeats();
      return text("ok");
    });
    verbs.put("/dn/capacity", (q, body) -> { // so large is each disk; -1 is as large as it is
      for (DataNode d : cluster.getDataNodes()) {
        try (FsDatasetSpi.FsVolumeReferences volumes = d.getFSDataset().getFsVolumeReferences()) {
          for (FsVolumeSpi v : volumes) ((FsVolumeImpl) v).setCapacityForTesting(Long.parseLong(q.get("bytes")));
        }
      }
      cluster.triggerHeartbeats();
      return text("ok");
    });
  }

  private void namenode() {
    verbs.put("/nn/stop", (q, body) -> {
      cluster.shutdownNameNode(0);
      return text("ok");
    });
    verbs.put("/nn/start", (q, body) -> {
      cluster.restartNameNode(0, true);
      return text("ok");
    });
    verbs.put("/safemode", (q, body) -> text("safe: " + fs().setSafeMode("1".equals(q.get("on")) ? SafeModeAction.ENTER : SafeModeAction.LEAVE)));
    verbs.put("/quota", (q, body) -> {
      String none = String.valueOf(HdfsConstants.QUOTA_DONT_SET);
      fs().setQuota(path(q), Long.parseLong(q.getOrDefault("names", none)), Long.parseLong(q.getOrDefault("space", none)));
      return text("ok");
    });
    verbs.put("/open", (q, body) -> { // files below path with a lease
      StringBuilder names = new StringBuilder();
      RemoteIterator<OpenFileEntry> it = fs().listOpenFiles(EnumSet.of(OpenFilesType.ALL_OPEN_FILES), q.get("path"));
      while (it.hasNext()) names.append(it.next().getFilePath()).append('\n');
      return text(names);
    });
  }

  private void files() {
    verbs.put("/cat", (q, body) -> {
      try (FSDataInputStream in = fs().open(path(q))) {
        return in.readAllBytes();
      }
    });
    verbs.put("/put", (q, body) -> {
      try (FSDataOutputStream out = fs().create(path(q), true)) {
        body.transferTo(out);
      }
      return text("ok");
    });
    verbs.put("/mkdirs", (q, body) -> {
      fs().mkdirs(path(q));
      if (q.containsKey("mode")) fs().setPermission(path(q), new FsPermission(q.get("mode")));
      if (q.containsKey("owner")) fs().setOwner(path(q), q.get("owner"), null);
      return text("ok");
    });
    verbs.put("/stat", (q, body) -> {
      FileStatus st = fs().getFileStatus(path(q));
      return text("length=" + st.getLen() + " replication=" + st.getReplication() + " block=" + st.getBlockSize() + " owner=" + st.getOwner() + " mode=" + st.getPermission());
    });
    verbs.put("/blocks", (q, body) -> {
      StringBuilder lines = new StringBuilder();
      for (BlockLocation l : fs().getFileBlockLocations(path(q), 0, Long.MAX_VALUE)) {
        lines.append(String.join(" ", l.getNames())).append('\n');
      }
      return text(lines);
    });
    verbs.put("/dn/corrupt", (q, body) -> { // so many replicas of the only block
      ExtendedBlock block = DFSTestUtil.getFirstBlock(fs(), path(q));
      int done = 0, wanted = Integer.parseInt(q.get("replicas"));
      for (int i = 0; i < cluster.getDataNodes().size() && done < wanted; i++) {
        cluster.corruptReplica(i, block);
        done++;
      }
      return text("replicas: " + done);
    });
  }

  private static Path path(Map<String, String> q) {
    return new Path(q.get("path"));
  }

  private static byte[] text(CharSequence s) {
    return s.toString().getBytes(StandardCharsets.UTF_8);
  }

  private void handle(HttpExchange x) throws IOException {
    byte[] answer;
    int code = 200;
    try {
      Verb verb = verbs.get(x.getRequestURI().getPath());
      if (verb == null) throw new IllegalArgumentException("known: " + Arrays.toString(List.copyOf(verbs.keySet()).toArray()));
      Secure.login();
      answer = verb.answer(query(x), x.getRequestBody());
    } catch (Throwable t) {
      StringWriter trace = new StringWriter();
      t.printStackTrace(new PrintWriter(trace));
      answer = text(trace.toString());
      code = 500;
    }
    x.sendResponseHeaders(code, answer.length == 0 ? -1 : answer.length);
    if (answer.length > 0) x.getResponseBody().write(answer);
    x.close();
  }

  private static Map<String, String> query(HttpExchange x) {
    Map<String, String> q = new HashMap<>();
    String raw = x.getRequestURI().getRawQuery();
    if (raw == null || raw.isEmpty()) return q;
    for (String pair : raw.split("&")) {
      int at = pair.indexOf('=');
      q.put(pair.substring(0, at), URLDecoder.decode(pair.substring(at + 1), StandardCharsets.UTF_8));
    }
    return q;
  }
}
