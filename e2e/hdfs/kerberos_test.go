package hdfs_test

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/inflight"
)

// use opens a store by its URL and uses it.
func use(t *testing.T, u string) error {
	t.Helper()
	b, err := backends.Open(t.Context(), u)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := put(t.Context(), b, "x", pattern(1, 200_000), backends.CreateOptions{}); err != nil {
		return err
	}
	got, err := get(t.Context(), b, "x")
	require.True(t, err != nil || bytes.Equal(got, pattern(1, 200_000)))
	return err
}

// TestKerberos logs in by keytab and by ticket cache, also with tickets that end
// meanwhile.
func TestKerberos(t *testing.T) {
	c := secure.up(t)
	c.conf(t, "ALICE")
	dir := t.TempDir()
	cache := filepath.Join(dir, "cache")
	c.control(t, "kinit", "principal", "bob", "keytab", c.env["KEYTAB_BOB"], "cache", cache)
	ends := time.Now().Add(ticketSeconds * time.Second)

	root := c.tree()
	keytab, err := backends.Open(t.Context(), "hdfs://"+c.env["NAMENODE"]+root)
	require.NoError(t, err)
	defer keytab.Close()
	require.NoError(t, put(t.Context(), keytab, "a", []byte("a"), backends.CreateOptions{}))
	require.Contains(t, c.control(t, "stat", "path", root+"/a"), "owner=alice")

	t.Setenv("KRB5_CLIENT_KTNAME", "")
	t.Setenv("KRB5CCNAME", "FILE:"+cache)
	require.NoError(t, use(t, "hdfs:///tmp/bob"))
	require.Contains(t, c.control(t, "stat", "path", "/tmp/bob/x"), "owner=bob")
	b, err := backends.Open(t.Context(), "hdfs://"+root)
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Stat(t.Context(), "a")
	wants(t, err, inflight.ErrPermission, false, "user=bob", "owner alice")

	// Without a name: the principal with _HOST is that of the namenode's host.
	t.Setenv("HADOOP_CONF_DIR", "")
	q := url.Values{"namenode-principal": {"hdfs/_HOST"}, "keytab": {c.env["KEYTAB_ALICE"]}, "krb5-conf": {c.env["KRB5_CONFIG"]}, "protection": {"privacy"}}
	require.NoError(t, use(t, "hdfs://"+c.env["NAMENODE"]+c.tree()+"?"+q.Encode()))

	time.Sleep(time.Until(ends.Add(time.Second))) //lint:sleep tickets end by the clock of the KDC
	c.conf(t, "ALICE")
	require.NoError(t, put(t.Context(), keytab, "b", []byte("b"), backends.CreateOptions{}), "renewed by itself")
	t.Setenv("KRB5_CLIENT_KTNAME", "")
	wants(t, use(t, "hdfs:///tmp/bob"), inflight.ErrAuth, false, "expired", "kinit")
	c.control(t, "kinit", "principal", "bob", "keytab", c.env["KEYTAB_BOB"], "cache", cache)
	require.NoError(t, use(t, "hdfs:///tmp/bob"), "a new ticket is seen")
}

// TestKerberosRefused is refused by the KDC, the namenode, or before either.
func TestKerberosRefused(t *testing.T) {
	c := secure.up(t)
	c.conf(t, "ALICE")
	dir := t.TempDir()
	krb5, err := os.ReadFile(c.env["KRB5_CONFIG"])
	require.NoError(t, err)
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	nobody := "kdc = 127.0.0.1:1"
	var lines []string
	for line := range strings.Lines(string(krb5)) {
		if before, _, ok := strings.Cut(line, "kdc = "); ok {
			line = before + nobody + "\n"
		}
		lines = append(lines, line)
	}
	down := write("down.conf", strings.Join(lines, ""))
	for name, test := range map[string]struct {
		options string
		kind    error
		retry   bool
		texts   []string
	}{
		"other's keytab":   {"principal=bob@EXAMPLE.COM", inflight.ErrAuth, false, []string{"no key of bob@EXAMPLE.COM", "keytab"}},
		"empty keytab":     {"principal=alice@EXAMPLE.COM&keytab=" + write("none", ""), inflight.ErrConfig, false, []string{"keytab"}},
		"unknown realm":    {"principal=alice@OTHER.COM", inflight.ErrAuth, false, []string{"OTHER.COM"}},
		"no keytab":        {"keytab=" + dir + "/missing", inflight.ErrConfig, false, []string{"missing", "KRB5_CLIENT_KTNAME"}},
		"no configuration": {"krb5-conf=" + dir + "/missing", inflight.ErrConfig, false, []string{"KRB5_CONFIG"}},
		"KDC is down":      {"krb5-conf=" + down, inflight.ErrUnavailable, true, []string{"KDC"}},
		"other service":    {"namenode-principal=HTTP/localhost", inflight.ErrAuth, false, []string{"dfs.namenode.kerberos.principal", "HTTP/localhost"}},
		"unknown service":  {"namenode-principal=nn/localhost", inflight.ErrAuth, false, []string{"the KDC does not know nn/localhost"}},
		"protection":       {"protection=integrity", inflight.ErrConfig, false, []string{"integrity", "AES"}},
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, use(t, "hdfs:///tmp/alice?"+test.options), test.kind, test.retry, test.texts...)
		})
	}
	t.Run("foreign keytab", func(t *testing.T) { // one whose keys are not (or no longer) the KDC's
		keys, err := os.ReadFile(c.env["KEYTAB_BOB"])
		require.NoError(t, err)
		forged := write("forged", string(bytes.ReplaceAll(keys, []byte("\x00\x03bob"), []byte("\x00\x03bub"))))
		wants(t, use(t, "hdfs:///tmp/alice?keytab="+forged), inflight.ErrAuth, false, "bub@EXAMPLE.COM", "does not know that principal")
	})
	t.Run("no ticket cache", func(t *testing.T) {
		t.Setenv("KRB5_CLIENT_KTNAME", "")
		t.Setenv("KRB5CCNAME", dir+"/missing")
		wants(t, use(t, "hdfs:///tmp/alice"), inflight.ErrAuth, false, "missing", "kinit")
		t.Setenv("KRB5CCNAME", write("garbage", "\x05\x04\x00\x0cgarbage"))
		wants(t, use(t, "hdfs:///tmp/alice"), inflight.ErrAuth, false, "garbage", "kinit")
		t.Setenv("KRB5CCNAME", "KCM:")
		wants(t, use(t, "hdfs:///tmp/alice"), inflight.ErrConfig, false, "KCM", "keytab")
	})
	t.Run("no protection", func(t *testing.T) {
		b := c.open(t, "/tmp/alice", func(o *hdfs.Options) {
			o.User, o.Keytab, o.Conf = "", c.env["KEYTAB_ALICE"], map[string]string{"dfs.namenode.kerberos.principal": "hdfs/_HOST"}
		})
		wants(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}), inflight.ErrUnavailable, true, "dfs.data.transfer.protection")
	})
	t.Run("without Kerberos", func(t *testing.T) {
		t.Setenv("HADOOP_CONF_DIR", "")
		t.Setenv("KRB5_CLIENT_KTNAME", "")
		wants(t, use(t, c.url("alice", "/tmp/alice")), inflight.ErrAuth, false, "Kerberos", "HADOOP_CONF_DIR")
	})
	t.Run("to a cluster without", func(t *testing.T) {
		simple := one.up(t)
		wants(t, use(t, "hdfs://"+simple.env["NAMENODE"]+"/tmp/alice"), inflight.ErrConfig, false, "hadoop.security.authentication")
	})
}

// TestProtection writes to clusters whose protection the client library could
// write and not read. Configuration may not say so; the datanodes do.
func TestProtection(t *testing.T) {
	clusters := map[string]*cluster{"integrity": integrity}
	if full() {
		clusters["without AES"] = weak
	}
	for text, c := range clusters {
		t.Run(text, func(t *testing.T) {
			c.up(t).conf(t, "ALICE")
			wants(t, use(t, "hdfs:///tmp/alice"), inflight.ErrConfig, false, text, "AES")
			unset := c.open(t, "/tmp/alice", func(o *hdfs.Options) {
				o.User, o.Keytab = "", c.env["KEYTAB_ALICE"]
				o.Conf = map[string]string{"dfs.namenode.kerberos.principal": "hdfs/_HOST", "dfs.data.transfer.protection": "authentication"}
			})
			wants(t, put(t.Context(), unset, "x", []byte("x"), backends.CreateOptions{}), inflight.ErrConfig, false, text, "AES")
		})
	}
}
