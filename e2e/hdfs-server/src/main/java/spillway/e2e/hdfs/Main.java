package spillway.e2e.hdfs;

import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * Main runs a real HDFS, a namenode and some datanodes, in one process on 127.0.0.1, with a control port (see Control).
 * Properties: dir (where everything lies), datanodes, secure (see Secure), and conf.KEY=VALUE for any setting of Hadoop.
 * When all is up, the file env in dir says where; dir is also a HADOOP_CONF_DIR.
 */
public final class Main {
  private Main() {}

  public static void main(String[] args) throws Exception {
    File dir = new File(System.getProperty("dir"));
    int datanodes = Integer.getInteger("datanodes", 1);
    Properties env = new Properties();
    Configuration conf = settings(dir, datanodes);
    if (Boolean.getBoolean("secure")) Secure.setUp(dir, conf, env);
    for (String k : System.getProperties().stringPropertyNames()) {
      if (k.startsWith("conf.")) conf.set(k.substring("conf.".length()), System.getProperty(k));
    }
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(datanodes).format(true).checkDataNodeAddrConfig(true).build();
    cluster.waitActive();
    for (String p : new String[] {"/tmp", "/user"}) {
      cluster.getFileSystem().mkdirs(new Path(p));
      cluster.getFileSystem().setPermission(new Path(p), new FsPermission((short) 01777));
    }
    env.setProperty("NAMENODE", "127.0.0.1:" + cluster.getNameNodePort());
    env.setProperty("CONTROL", "http://127.0.0.1:" + Control.start(cluster));
    if (cluster.getNameNode().getHttpAddress() != null) env.setProperty("WEB", "127.0.0.1:" + cluster.getNameNode().getHttpAddress().getPort());
    env.setProperty("PID", String.valueOf(ProcessHandle.current().pid()));
    writeConf(conf, new File(dir, "core-site.xml"), "hdfs://127.0.0.1:" + cluster.getNameNodePort());
    writeEnv(env, new File(dir, "env"));
    System.in.read(); // until whoever has started us is gone
    Runtime.getRuntime().halt(0);
  }

  private static Configuration settings(File dir, int datanodes) {
    Configuration conf = new Configuration();
    conf.set("hdfs.minidfs.basedir", new File(dir, "dfs").getAbsolutePath());
    System.setProperty("test.build.data", new File(dir, "data").getAbsolutePath());
    conf.setInt("dfs.replication", Math.min(datanodes, 3));
    conf.set("dfs.namenode.rpc-bind-host", "127.0.0.1");
    conf.set("dfs.namenode.safemode.extension", "0");
    conf.set("dfs.namenode.resource.du.reserved", "0");
    conf.set("dfs.heartbeat.interval", "1");
    conf.set("dfs.namenode.heartbeat.recheck-interval", "1000"); // a datanode is dead after 2*1s + 10*1s
    conf.set("dfs.namenode.stale.datanode.interval", "3000"); // and not written to after 3s
    conf.set("dfs.namenode.avoid.write.stale.datanode", "true");
    for (String k : new String[] {"datanode.address", "datanode.ipc.address", "datanode.http.address", "datanode.https.address", "namenode.http-address", "namenode.https-address"}) {
      conf.set("dfs." + k, "127.0.0.1:0");
    }
    conf.set("fs.permissions.umask-mode", "022");
    conf.set("ipc.server.listen.queue.size", "256");
    conf.set("dfs.client.use.datanode.hostname", "false");
    return conf;
  }

  private static void writeConf(Configuration conf, File file, String fs) throws Exception {
    Configuration client = new Configuration(false);
    for (String k : new String[] {"hadoop.security.authentication", "dfs.namenode.kerberos.principal", "dfs.data.transfer.protection", "hadoop.rpc.protection",
        "dfs.encrypt.data.transfer", "dfs.encrypt.data.transfer.cipher.suites", "dfs.replication", "dfs.blocksize"}) {
      if (conf.get(k) != null) client.set(k, conf.get(k));
    }
    client.set("fs.defaultFS", fs);
    try (OutputStream o = new FileOutputStream(file)) {
      client.writeXml(o);
    }
  }

  private static void writeEnv(Properties env, File file) throws Exception {
    StringBuilder lines = new StringBuilder();
    for (String k : new TreeSet<>(env.stringPropertyNames())) lines.append(k).append('=').append(env.getProperty(k)).append('\n');
    File part = new File(file.getPath() + ".part");
    Files.writeString(part.toPath(), lines);
    Files.move(part.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE);
  }
}
