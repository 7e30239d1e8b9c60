package spillway.e2e.hdfs;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.kerby.kerberos.kerb.client.KrbClient;

/**
 * Secure gives a cluster a KDC in the same JVM, principals and keytabs (hdfs, alice, bob), a keystore, and the settings of
 * secure mode. Properties: protection and rpc (authentication, integrity, privacy), encrypt, ticket.seconds.
 */
final class Secure {
  private static final String PASSWORD = "changeit";
  private static MiniKdc kdc;

  private Secure() {}

  static void setUp(File dir, Configuration conf, Properties env) throws Exception {
    File keys = new File(dir, "kdc");
    keys.mkdirs();
    Properties p = MiniKdc.createConf();
    p.setProperty(MiniKdc.KDC_BIND_ADDRESS, "127.0.0.1"); // also the host in the krb5.conf that it writes
    p.setProperty("min.ticket.lifetime", "1");
    if (System.getProperty("ticket.seconds") != null) p.setProperty(MiniKdc.MAX_TICKET_LIFETIME, System.getProperty("ticket.seconds"));
    kdc = new MiniKdc(p, keys);
    kdc.start();
    File services = new File(keys, "hdfs.keytab");
    kdc.createPrincipal(services, "hdfs/localhost", "HTTP/localhost");
    for (String user : new String[] {"alice", "bob"}) {
      File keytab = new File(keys, user + ".keytab");
      kdc.createPrincipal(keytab, user);
      env.setProperty("KEYTAB_" + user.toUpperCase(), keytab.getPath());
    }
    env.setProperty("KRB5_CONFIG", kdc.getKrb5conf().getPath());
    env.setProperty("REALM", kdc.getRealm());
    stores(dir, keys);
    settings(conf, services);
    UserGroupInformation.setConfiguration(conf);
    UserGroupInformation.loginUserFromKeytab("hdfs/localhost@" + kdc.getRealm(), services.getPath());
  }

  /** kinit gets a ticket and writes it to a ticket cache. */
  static void kinit(String principal, String keytab, String cache) throws Exception {
    KrbClient client = new KrbClient(kdc.getKrb5conf().getParentFile());
    client.init();
    client.storeTicket(client.requestTgt(principal + "@" + kdc.getRealm(), new File(keytab)), new File(cache));
  }

  /** login gets a new ticket for the cluster itself, where there is a KDC. */
  static void login() throws IOException {
    if (kdc != null) UserGroupInformation.getLoginUser().checkTGTAndReloginFromKeytab();
  }

  private static void settings(Configuration conf, File keytab) {
    String service = "hdfs/localhost@" + kdc.getRealm(), web = "HTTP/localhost@" + kdc.getRealm();
    conf.set("hadoop.security.authentication", "kerberos");
    conf.set("hadoop.security.authorization", "true");
    conf.set("hadoop.security.auth_to_local", "RULE:[2:$1@$0](hdfs@" + kdc.getRealm() + ")s/.*/hdfs/\nDEFAULT");
    for (String daemon : new String[] {"namenode", "datanode"}) {
      conf.set("dfs." + daemon + ".kerberos.principal", service);
      conf.set("dfs." + daemon + ".keytab.file", keytab.getPath());
      conf.set("dfs." + daemon + (daemon.equals("namenode") ? ".https-address" : ".https.address"), "127.0.0.1:0");
    }
    conf.set("dfs.web.authentication.kerberos.principal", web);
    conf.set("dfs.web.authentication.kerberos.keytab", keytab.getPath());
    conf.set("dfs.block.access.token.enable", "true");
    conf.set("dfs.data.transfer.protection", System.getProperty("protection", "authentication"));
    conf.set("hadoop.rpc.protection", System.getProperty("rpc", "authentication"));
    if (Boolean.getBoolean("encrypt")) conf.set("dfs.encrypt.data.transfer", "true");
    conf.set("dfs.http.policy", "HTTPS_ONLY");
    conf.set("dfs.https.server.keystore.resource", "ssl-server.xml");
    conf.set("hadoop.ssl.server.conf", "ssl-server.xml");
    conf.set("hadoop.ssl.client.conf", "ssl-client.xml");
    conf.set("ipc.client.connect.max.retries.on.sasl", "3");
    conf.set("hadoop.kerberos.min.seconds.before.relogin", "0");
  }

  /** stores makes the keystore and truststore that secure mode wants for its web pages; dir is on the class path. */
  private static void stores(File dir, File keys) throws Exception {
    String keystore = new File(keys, "keys.p12").getPath(), truststore = new File(keys, "trust.p12").getPath(), crt = new File(keys, "crt").getPath();
    keytool("-genkeypair", "-alias", "k", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=localhost",
        "-ext", "SAN=dns:localhost,ip:127.0.0.1", "-validity", "30", "-keystore", keystore);
    keytool("-exportcert", "-alias", "k", "-keystore", keystore, "-file", crt);
    keytool("-importcert", "-noprompt", "-alias", "k", "-file", crt, "-keystore", truststore);
    for (String side : new String[] {"server", "client"}) {
      Configuration c = new Configuration(false);
      for (Map.Entry<String, String> e : Map.of("keystore.location", keystore, "keystore.password", PASSWORD, "keystore.keypassword", PASSWORD,
          "keystore.type", "PKCS12", "truststore.location", truststore, "truststore.password", PASSWORD, "truststore.type", "PKCS12").entrySet()) {
        c.set("ssl." + side + "." + e.getKey(), e.getValue());
      }
      try (OutputStream o = new FileOutputStream(new File(dir, "ssl-" + side + ".xml"))) {
        c.writeXml(o);
      }
    }
  }

  private static void keytool(String... args) throws Exception {
    List<String> all = new ArrayList<>(List.of("keytool", args[0], "-storetype", "PKCS12", "-storepass", PASSWORD));
    all.addAll(Arrays.asList(args).subList(1, args.length));
    Process p = new ProcessBuilder(all).redirectErrorStream(true).start();
    String out = new String(p.getInputStream().readAllBytes());
    if (p.waitFor() != 0) throw new IOException(String.join(" ", all) + ": " + out);
  }
}
