package hdfs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/inflight"
)

// TestSuite runs the acceptance suite.
func TestSuite(t *testing.T) {
	t.Run("one datanode", func(t *testing.T) { // as a user does it
		c := one.up(t)
		root := c.tree()
		c.control(t, "mkdirs", "path", root, "owner", "flink")
		out, err := command(t, "cmd/ckpt-inspect", "backend-check", c.url("flink", root)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "exclusive create   yes")
		require.Contains(t, string(out), " ok, 0 failed, 1 skipped")
		t.Logf("%s", out)
		require.Empty(t, list(t, c.open(t, root, nil)))
	})
	t.Run("three datanodes", func(t *testing.T) {
		c := three.up(t)
		backendtest.Run(t, func(t *testing.T) backends.Backend {
			// Where the datanodes are slow to report small blocks, the namenode gives no
			// further one, and the client does not wait as Hadoop's does: that is a failure
			// to be tried again, by whoever holds the bytes.
			b, err := hdfs.New(hdfs.Options{Namenodes: []string{c.env["NAMENODE"]}, Dir: "/tmp/suite", BlockSize: 16 << 20})
			require.NoError(t, err)
			return b
		}, backendtest.Options{})
	})
	t.Run("kerberos", func(t *testing.T) {
		c := secure.up(t)
		c.conf(t, "ALICE")
		backendtest.Run(t, func(t *testing.T) backends.Backend {
			b, err := backends.Open(t.Context(), "hdfs:///tmp/suite")
			require.NoError(t, err)
			return b
		}, backendtest.Options{})
	})
}

// conf sets the environment of a user of a cluster with Kerberos.
func (c *cluster) conf(t *testing.T, user string) {
	t.Setenv("HADOOP_CONF_DIR", c.dir)
	t.Setenv("KRB5_CONFIG", c.env["KRB5_CONFIG"])
	t.Setenv("KRB5_CLIENT_KTNAME", c.env["KEYTAB_"+user])
}

// TestJava lets Hadoop's own client read what was written here, and the other way
// round, also over several blocks.
func TestJava(t *testing.T) {
	c := three.up(t)
	root := c.tree()
	const block = 1 << 20
	b := c.open(t, root, func(o *hdfs.Options) { o.BlockSize = block })
	c.control(t, "mkdirs", "path", root+"/r", "mode", "755")
	c.control(t, "mkdirs", "path", root, "mode", "755", "owner", "flink")
	for i, size := range []int{0, 1, 511, 512, 64<<10 - 1, 64<<10 + 1, block - 1, block, block + 1, 3*block + 12345} {
		for _, exclusive := range []bool{false, true} {
			name, file := fmt.Sprintf("w/%d-%v", size, exclusive), ""
			data := pattern(i, size)
			require.NoError(t, put(t.Context(), b, name, data, backends.CreateOptions{Exclusive: exclusive}))
			if exclusive {
				file = "/o"
			}
			require.True(t, string(data) == string(c.post(t, nil, "cat", "path", root+"/"+name+file)), "%s: Java reads other bytes", name)
		}
		name := fmt.Sprintf("r/%d", size)
		data := pattern(i+100, size)
		c.post(t, data, "put", "path", root+"/"+name)
		got, err := get(t.Context(), b, name)
		require.NoError(t, err)
		require.True(t, string(data) == string(got), "%s: other bytes than Java wrote", name)
	}
	require.Empty(t, c.control(t, "open", "path", root), "files are open")
}

// TestForms checks that the two forms of an object are not mixed up with folders
// and objects that have the name of a form.
func TestForms(t *testing.T) {
	c := one.up(t)
	root := c.tree()
	b := c.open(t, root, nil)
	names := []string{"a", "a-x/o", "a.b", "d/o", "d/o.x", "d/p/o", "o", "x/_manifest.json"}
	for i, name := range names {
		require.NoError(t, put(t.Context(), b, name, []byte(name), backends.CreateOptions{Exclusive: i%2 == 0}))
	}
	require.Equal(t, names, list(t, b))
	for _, name := range names {
		got, err := get(t.Context(), b, name)
		require.NoError(t, err)
		require.Equal(t, name, string(got))
	}
	_, err := b.Stat(t.Context(), "a/o") // the file of another object
	wants(t, err, inflight.ErrNotExist, false)
	require.Contains(t, c.control(t, "stat", "path", root+"/x/_manifest.json"), "length=16") // a file
	require.Contains(t, c.control(t, "stat", "path", root+"/a/o"), "length=1")
	c.control(t, "mkdirs", "path", root+"/y/_manifest.json", "owner", "flink")
	c.control(t, "mkdirs", "path", root+"/y", "owner", "flink")
	c.post(t, []byte("by hand"), "put", "path", root+"/y/_manifest.json/o") // as a copy from elsewhere has it
	got, err := get(t.Context(), b, "y/_manifest.json")
	require.NoError(t, err)
	require.Equal(t, "by hand", string(got))
	require.NoError(t, b.Remove(t.Context(), append(names, "y/_manifest.json")...))
	require.Empty(t, list(t, b))
	require.Empty(t, leftovers(t, b))
}

// TestRace lets 20 clients of their own race for one name.
func TestRace(t *testing.T) {
	c := three.up(t)
	root := c.tree()
	type outcome struct {
		mine, read string
		err        error
	}
	outcomes := make(chan outcome, 20)
	for i := range cap(outcomes) {
		b := c.open(t, root, nil)
		go func() {
			out := outcome{mine: strings.Repeat(fmt.Sprint("racer ", i, " "), 100)}
			out.err = put(t.Context(), b, "chk/_manifest.json", []byte(out.mine), backends.CreateOptions{Exclusive: true})
			read, err := get(t.Context(), b, "chk/_manifest.json")
			if err != nil {
				out.err = err
			}
			out.read = string(read)
			outcomes <- out
		}()
	}
	var won []string
	var read []string
	for range cap(outcomes) {
		out := <-outcomes
		if out.err == nil {
			won = append(won, out.mine)
		} else {
			require.ErrorIs(t, out.err, inflight.ErrExist)
		}
		read = append(read, out.read)
	}
	require.Len(t, won, 1)
	for _, r := range read {
		require.Equal(t, won[0], r)
	}
}

// TestConfiguration opens stores by the settings of HADOOP_CONF_DIR.
func TestConfiguration(t *testing.T) {
	c := one.up(t)
	dir := t.TempDir()
	t.Setenv("HADOOP_CONF_DIR", dir)
	t.Setenv("HADOOP_USER_NAME", "hue")
	write := func(file string, settings ...string) {
		text := "<configuration>"
		for i := 0; i < len(settings); i += 2 {
			text += "<property><name>" + settings[i] + "</name><value>" + settings[i+1] + "</value></property>"
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text+"</configuration>"), 0o600))
	}
	write("core-site.xml", "fs.defaultFS", "hdfs://lake", "fs.permissions.umask-mode", "027")
	write("hdfs-site.xml", "dfs.nameservices", "lake", "dfs.ha.namenodes.lake", "nn1, nn2", "dfs.namenode.rpc-address.lake.nn1", "127.0.0.1:1",
		"dfs.namenode.rpc-address.lake.nn2", c.env["NAMENODE"], "dfs.replication", "1", "dfs.blocksize", "2m")
	for _, u := range []string{"hdfs://lake/tmp/conf", "hdfs:///tmp/conf"} {
		b, err := backends.Open(t.Context(), u)
		require.NoError(t, err)
		require.Equal(t, "hdfs://lake/tmp/conf", b.URL())
		require.NoError(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}))
		require.NoError(t, b.Close())
	}
	require.Equal(t, "length=1 replication=1 block=2097152 owner=hue mode=rw-r-----", c.control(t, "stat", "path", "/tmp/conf/x"))
	b, err := backends.Open(t.Context(), c.url("tom", "/tmp/conf2?umask=022&block-size=1048576"))
	require.NoError(t, err)
	require.NoError(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}))
	require.NoError(t, b.Close())
	require.Equal(t, "length=1 replication=1 block=1048576 owner=tom mode=rw-r--r--", c.control(t, "stat", "path", "/tmp/conf2/x"))
}
