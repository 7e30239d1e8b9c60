package hdfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// What needs a namenode is tested in e2e/hdfs, against a real one.

func TestMain(m *testing.M) {
	for _, key := range []string{"HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "KRB5_CLIENT_KTNAME", "KRB5CCNAME", "KRB5_CONFIG"} {
		_ = os.Unsetenv(key) // it cannot fail with such a name
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, rawURL string) (*Backend, error) {
	t.Helper()
	b, err := backends.Open(t.Context(), rawURL)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*Backend), nil
}

// conf writes a configuration of Hadoop, and sets HADOOP_CONF_DIR.
func conf(t *testing.T, settings ...string) {
	text := "<configuration>"
	for i := 0; i < len(settings); i += 2 {
		text += fmt.Sprintf("<property><name>%s</name><value> %s </value></property>", settings[i], settings[i+1])
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hdfs-site.xml"), []byte(text+"</configuration>"), 0o600))
	t.Setenv("HADOOP_CONF_DIR", dir)
}

func TestURL(t *testing.T) {
	t.Setenv("HADOOP_USER_NAME", "hue")
	b, err := open(t, "hdfs://nn/a/b?replication=2&block-size=1048576&umask=027&rpc-timeout=5s&data-timeout=6s")
	require.NoError(t, err)
	require.Equal(t, "hdfs://nn:8020/a/b", b.URL())
	require.Equal(t, []string{"nn:8020"}, b.o.Namenodes)
	require.Equal(t, "hue", b.o.User)
	require.Equal(t, 2, b.o.Replication)
	require.EqualValues(t, 1<<20, b.o.BlockSize)
	require.EqualValues(t, 0o027, b.o.umask)
	require.Equal(t, 5*time.Second, b.o.RPCTimeout)
	require.Equal(t, 6*time.Second, b.o.DataTimeout)
	b, err = open(t, "hdfs://flink@nn:9000/")
	require.NoError(t, err)
	require.Equal(t, "hdfs://flink@nn:9000/", b.URL())
	require.Equal(t, "flink", b.o.User)
	require.EqualValues(t, 0o077, b.o.umask)
	require.Equal(t, "hdfs://flink@nn:9000/x", b.object("x"))
}

func TestURLRefused(t *testing.T) {
	for u, text := range map[string]string{
		"hdfs://nn":                             "not a URL of an HDFS directory",
		"hdfs://nn/a:b":                         "not a URL",
		"hdfs://nn/a#b":                         "not a URL",
		"hdfs:///a":                             "no namenode",
		"hdfs://nn/a?replicas=2":                `unknown option "replicas"`,
		"hdfs://nn/a?replication=two":           "replication=two",
		"hdfs://nn/a?replication=-1":            "replication -1",
		"hdfs://nn/a?block-size=1000":           "block size 1000",
		"hdfs://nn/a?umask=9":                   "umask=9",
		"hdfs://nn/a?rpc-timeout=5":             "rpc-timeout=5",
		"hdfs://nn/a?protection=integrity":      "integrity, which the client library can write and not read",
		"hdfs://nn/a?protection=none":           "none",
		"hdfs://nn/a?keytab=/k":                 "dfs.namenode.kerberos.principal is not set",
		"hdfs://user:secret@nn/a":               "a password in the URL",
		"hdfs://nn/a?principal=x@Y":             "dfs.namenode.kerberos.principal is not set",
		"hdfs://nn/a?data-timeout=1h&x=secret2": "unknown option",
	} {
		_, err := open(t, u)
		require.ErrorIs(t, err, inflight.ErrConfig, u)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), ":secret")
	}
}

func TestConf(t *testing.T) {
	conf(t, "fs.defaultFS", "hdfs://lake", "dfs.ha.namenodes.lake", "a, b", "dfs.namenode.rpc-address.lake.a", "h1:1", "dfs.namenode.rpc-address.lake.b", "h2",
		"dfs.replication", "2", "dfs.blocksize", "64m", "fs.permissions.umask-mode", "022")
	for _, u := range []string{"hdfs:///x", "hdfs://lake/x"} {
		b, err := open(t, u)
		require.NoError(t, err)
		require.Equal(t, "hdfs://lake/x", b.URL())
		require.Equal(t, []string{"h1:1", "h2:8020"}, b.o.Namenodes)
		require.Equal(t, 2, b.o.Replication)
		require.EqualValues(t, 64<<20, b.o.BlockSize)
		require.EqualValues(t, 0o022, b.o.umask)
	}
	b, err := open(t, "hdfs://other:1/x?replication=1")
	require.NoError(t, err)
	require.Equal(t, []string{"other:1"}, b.o.Namenodes)
	require.Equal(t, 1, b.o.Replication)
}

func TestConfRefused(t *testing.T) {
	t.Setenv("HADOOP_CONF_DIR", t.TempDir())
	_, err := open(t, "hdfs://nn/x")
	require.ErrorContains(t, err, "neither core-site.xml nor hdfs-site.xml")
	kerberos := []string{"hadoop.security.authentication", "kerberos", "dfs.namenode.kerberos.principal", "nn/_HOST@R"}
	for text, settings := range map[string][]string{
		"dfs.namenode.rpc-address.nn.b is not set":       {"dfs.ha.namenodes.nn", "a,b", "dfs.namenode.rpc-address.nn.a", "h1:1"},
		"umask-mode=u=rwx":                               {"fs.permissions.umask-mode", "u=rwx"},
		"dfs.namenode.kerberos.principal is not set":     {"hadoop.security.authentication", "kerberos"},
		"integrity, which the client library can write":  append(kerberos, "dfs.data.transfer.protection", "integrity,privacy"),
		"privacy without AES, which the client library":  append(kerberos, "dfs.data.transfer.protection", "privacy"),
		"without AES, which the client library can":      append(kerberos, "dfs.encrypt.data.transfer", "true", "dfs.data.transfer.protection", "authentication"),
		"a ticket cache of the kind KEYRING":             kerberos,
		"dfs.data.transfer.protection=something unknown": append(kerberos, "dfs.data.transfer.protection", "something unknown"),
	} {
		t.Run(text, func(t *testing.T) {
			if strings.Contains(text, "ticket cache") {
				t.Setenv("KRB5CCNAME", "KEYRING:persistent")
			}
			conf(t, settings...)
			_, err := open(t, "hdfs://nn/x")
			require.ErrorIs(t, err, inflight.ErrConfig)
			require.ErrorContains(t, err, text)
		})
	}
	for _, settings := range [][]string{
		append(kerberos, "dfs.data.transfer.protection", "authentication,privacy"),
		append(kerberos, "dfs.data.transfer.protection", "privacy", "dfs.encrypt.data.transfer.cipher.suites", "AES/CTR/NoPadding"),
		kerberos,
	} {
		conf(t, settings...)
		b, err := open(t, "hdfs://nn/x")
		require.NoError(t, err)
		require.Equal(t, "nn/_HOST", b.o.principal)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "512": 512, "1k": 1 << 10, "128M": 128 << 20, "1g": 1 << 30, "x": 0, "m": 0, "1.5g": 0} {
		require.Equal(t, want, parseSize(text), text)
	}
}

func TestTempNames(t *testing.T) {
	for _, base := range []string{"x", ".x.tmp", "_manifest.json", strings.Repeat("y", 255)} {
		temp := tempName(base)
		require.True(t, isTemp(temp) && isTemp("a/"+temp))
		require.LessOrEqual(t, len(temp), 255)
		require.NotEqual(t, temp, tempName(base))
		if len(base) < 200 {
			require.Equal(t, base, tempTarget(temp))
		} else {
			require.Equal(t, temp, tempTarget(temp))
		}
		require.False(t, isTemp(base))
	}
}

// TestFrame gives the frames of a namenode in all pieces, and what is none.
func TestFrame(t *testing.T) {
	var stream []byte
	for _, n := range []int{0, 1, 300, 5} {
		stream = binary.BigEndian.AppendUint32(stream, uint32(n))
		stream = append(stream, bytes.Repeat([]byte{0xff}, n)...)
	}
	for size := 1; size <= len(stream); size++ {
		var f frame
		for p := stream; len(p) > 0; p = p[min(size, len(p)):] {
			require.NoError(t, f.read(p[:min(size, len(p))]))
		}
		require.Zero(t, f.left+f.got)
	}
	for _, text := range []string{"HTTP/1.1 400 Bad Request", "\xff\xff\xff\xff", "\x08\x00\x00\x01"} {
		var f frame
		require.ErrorIs(t, f.read([]byte(text)), errNoNamenode)
	}
}

// TestSasl plays handshakes.
func TestSasl(t *testing.T) {
	hello := append([]byte{0xDE, 0xAD, 0xBE, 0xEF}, 2, 8, 0)
	answer := func(qop string) []byte { return []byte(`charset=utf-8,username="x",qop=` + qop + `,response=00`) }
	message := func(cipher bool) []byte {
		m := append([]byte{8, 0, 2<<3 | 2, 10}, "rspauth=ab"...)
		if cipher {
			m = append(m, 4<<3|2, 3, 1, 2, 3)
		}
		return append([]byte{byte(len(m))}, m...)
	}
	for name, test := range map[string]struct {
		qop    string
		cipher bool
		want   error
	}{
		"authentication":      {"auth", false, nil},
		"integrity":           {"auth-int", false, errIntegrity},
		"privacy without AES": {"auth-conf", false, errNoCipher},
		"privacy":             {"auth-conf", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var s sasl
			require.NoError(t, s.write(hello))
			s.read(message(true)) // a challenge is not looked at
			err := s.write(answer(test.qop))
			for _, b := range message(test.cipher) {
				s.read([]byte{b})
			}
			if err == nil {
				err = s.write([]byte("a request"))
			}
			require.ErrorIs(t, err, test.want)
			if test.want == nil {
				require.NoError(t, s.write(answer("auth-int")), "it is data by now")
			}
		})
	}
	var plain sasl
	require.NoError(t, plain.write([]byte{0, 28, 0x51}))
	require.NoError(t, plain.write(answer("auth-int")))
	for _, broken := range [][]byte{nil, {1}, {5, 0x22}, {5, 0x12, 0xff}, {0xff}, {3, 0x12, 200, 1, 1}, {2, 0x80}} {
		require.False(t, hasCipher(broken))
	}
}

// exception is an error of a namenode.
type exception struct{ class, message string }

func (e exception) Method() string    { return "m" }
func (e exception) Desc() string      { return "d" }
func (e exception) Exception() string { return e.class }
func (e exception) Message() string   { return e.message + "\n\tat java.lang.Thread" }
func (e exception) Error() string     { return "failed" }

func TestClassify(t *testing.T) {
	b, err := open(t, "hdfs://nn/x")
	require.NoError(t, err)
	ipc := "org.apache.hadoop.ipc."
	for _, test := range []struct {
		err   error
		kind  error
		retry bool
		text  string
	}{
		{exception{ipc + "StandbyException", "Operation category READ is not supported in state standby"}, inflight.ErrUnavailable, true, "hdfs://nameservice"},
		{exception{ipc + "RetriableException", "NameNode still not started"}, inflight.ErrUnavailable, true, "try again"},
		{exception{"org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /x"}, inflight.ErrUnavailable, true, "block-size="},
		{exception{"org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create"}, inflight.ErrUnavailable, true, "safe mode"},
		{exception{"org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "quota"}, inflight.ErrNoSpace, false, "setSpaceQuota"},
		{exception{"org.apache.hadoop.security.authorize.AuthorizationException", "User x"}, inflight.ErrAuth, false, "principal"},
		{exception{"org.apache.hadoop.fs.ParentNotDirectoryException", "/x"}, inflight.ErrConfig, false, "choose another"},
		{exception{"org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException", "/x"}, inflight.ErrConfig, false, "choose another"},
		{exception{"java.io.IOException", "rename destination directory is not empty: /x"}, inflight.ErrExist, false, ""},
		{exception{"java.io.IOException", "Source /a and destination /b must both be directories"}, inflight.ErrExist, false, ""},
		{exception{"java.io.IOException", "File /x could only be replicated to 0 nodes. There are 3 datanode(s) running"}, inflight.ErrNoSpace, false, "dfsadmin -report"},
		{exception{"java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running"}, inflight.ErrUnavailable, true, "start"},
		{exception{"java.io.IOException", "Specified block size is less than configured minimum value"}, inflight.ErrConfig, false, "block-size="},
		{exception{"java.io.IOException", "something else"}, nil, false, "something else"},
		{errors.New("no available namenodes: StandbyException"), inflight.ErrUnavailable, true, "no namenode is active"},
		{errors.New("no available namenodes: SASL handshake: KDC_ERR_S_PRINCIPAL_UNKNOWN"), inflight.ErrAuth, false, "KDC does not know"},
		{errors.New("no available namenodes: SASL handshake: sasl call failed with FATAL_UNAUTHORIZED (x)"), inflight.ErrAuth, false, "the namenode is not"},
		{errors.New("no available namenodes: SASL handshake: Networking_Error: TGS Exchange Error"), inflight.ErrUnavailable, true, "KDC runs"},
		{errors.New("unexpected sequence number"), inflight.ErrAuth, false, "HADOOP_CONF_DIR"},
		{errors.New("invalid checksum"), inflight.ErrCorrupt, false, "fsck"},
		{errors.New("negotiating data protection: invalid qop: [auth]"), inflight.ErrConfig, false, "dfs.data.transfer.protection"},
		{&fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}, inflight.ErrNotExist, false, ""},
		{&net.OpError{Op: "dial", Err: syscall.EMFILE}, inflight.ErrTooManyFiles, false, "ulimit -n"},
		{&net.OpError{Op: "dial", Err: syscall.ENFILE}, inflight.ErrTooManyFiles, false, "fs.file-max"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, inflight.ErrTimeout, true, "does not answer"},
		{io.ErrUnexpectedEOF, inflight.ErrUnavailable, true, "datanode"},
	} {
		err := b.explain(t.Context(), nil, "write", "a", test.err)
		typed, ok := errors.AsType[*inflight.Error](err)
		require.True(t, ok)
		require.Equal(t, "hdfs://nn:8020/x/a", typed.Object)
		if test.kind != nil {
			require.ErrorIs(t, err, test.kind)
		}
		require.Equal(t, test.retry, inflight.Retryable(err), "%v", err)
		require.ErrorContains(t, err, test.text)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestPermissionText(t *testing.T) {
	b, err := open(t, "hdfs://nn/x")
	require.NoError(t, err)
	err = b.explain(t.Context(), nil, "read", "a", exception{"org.apache.hadoop.security.AccessControlException",
		`Permission denied: user=bob, access=EXECUTE, inode="/x":flink:supergroup:drwxr-x--T`})
	require.ErrorIs(t, err, inflight.ErrPermission)
	require.EqualError(t, err, "read hdfs://nn:8020/x/a: permission denied for user=bob on /x (owner flink, group supergroup, mode 0750): execute is needed (grant access, or set the user in the URL (hdfs://USER@…))")
}

// TestBackOff waits longer after each failure, and begins anew a while after the last.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipelines
		for _, pause := range []time.Duration{firstPause, 8 * firstPause, lastPause, lastPause, lastPause} {
			begun := time.Now()
			time.Sleep(time.Millisecond)
			for range 5 { // under way together
				p.failed(begun)
			}
			begun = time.Now()
			require.NoError(t, p.wait(t.Context(), nil))
			require.GreaterOrEqual(t, time.Since(begun), pause/2)
			require.LessOrEqual(t, time.Since(begun), pause)
		}
		p.failed(time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.wait(ctx, nil), context.DeadlineExceeded)
		closed := make(chan struct{})
		close(closed)
		require.ErrorIs(t, p.wait(t.Context(), closed), inflight.ErrClosed)
		time.Sleep(2*lastPause + 1)
		begun := time.Now()
		require.NoError(t, p.wait(t.Context(), nil))
		require.Zero(t, time.Since(begun))
		p.failed(begun)
		require.NoError(t, p.wait(t.Context(), nil))
		require.LessOrEqual(t, time.Since(begun), firstPause)
	})
}

// TestStrangeConf has settings that nobody can use, and need not.
func TestStrangeConf(t *testing.T) {
	conf(t, "fs.defaultFS", "hdfs://%zz", "dfs.blocksize", "large", "dfs.replication", "x", "dfs.ha.namenodes.other", ",")
	_, err := open(t, "hdfs:///x")
	require.ErrorIs(t, err, inflight.ErrConfig)
	b, err := open(t, "hdfs://127.0.0.1:1/x")
	require.NoError(t, err)
	_, err = b.Stat(t.Context(), "a")
	require.ErrorIs(t, err, inflight.ErrUnavailable)
	require.True(t, inflight.Retryable(err))
}

// TestNobodyAnswers has nobody behind the address, or somebody who says nothing:
// no call outlives its context.
func TestNobodyAnswers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	b, err := open(t, (&url.URL{Scheme: "hdfs", Host: listener.Addr().String(), Path: "/x"}).String())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = b.Stat(ctx, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begun), time.Second)
	require.NoError(t, b.Close())
	_, err = b.Stat(t.Context(), "a")
	require.ErrorIs(t, err, inflight.ErrClosed)
}

// TestObserver has a connection that broke while it waited, and a namenode that
// is too busy.
func TestObserver(t *testing.T) {
	b, err := open(t, "hdfs://127.0.0.1:1/x")
	require.NoError(t, err)
	var got []inflight.Event
	b.SetObserver(inflight.ObserverFunc(func(e inflight.Event) { got = append(got, e) }))
	c := &client{pool: b.pool, conns: map[*conn]struct{}{}}
	c.life, c.stop = context.WithCancel(t.Context())
	c.users.Store(1)
	c.release()
	_, err = do(t.Context(), b, "stat", "a", func(c *client) (any, error) {
		c.spoil(io.EOF)
		return nil, io.EOF
	})
	require.ErrorIs(t, err, inflight.ErrUnavailable, "nobody answers the second try")
	require.Len(t, got, 1)
	require.Equal(t, []any{inflight.EventRetried, "stat", int64(1)}, []any{got[0].Name, got[0].Object, got[0].Count})
	require.ErrorContains(t, got[0].Err, "stat hdfs://127.0.0.1:1/x/a: ")

	busy := exception{"org.apache.hadoop.ipc.RetriableException", "Server too busy"}
	require.ErrorIs(t, b.explain(t.Context(), nil, "list", "a", busy), inflight.ErrUnavailable)
	require.Equal(t, []any{inflight.EventThrottled, "list"}, []any{got[1].Name, got[1].Object})
	_ = b.explain(t.Context(), nil, "list", "a", exception{"org.apache.hadoop.ipc.RetriableException", "safe mode"})
	require.Len(t, got, 2)
}

// TestPool takes and gives back clients that are connected to nobody.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(&Options{})
		add := func(file uint64, next int64) *client {
			c := &client{pool: p, conns: map[*conn]struct{}{}, file: file, next: next}
			c.life, c.stop = context.WithCancel(context.Background())
			c.users.Store(1)
			p.all[c] = struct{}{}
			c.release()
			return c
		}
		waiting := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.idle)
		}
		var all []*client
		for i := range maxIdle + 2 {
			all = append(all, add(uint64(i%3), int64(i)))
		}
		require.Equal(t, maxIdle, waiting())
		require.Len(t, p.all, maxIdle)
		require.True(t, all[0].killed && all[1].killed, "the ones that had waited longest have gone")
		require.Same(t, all[4], p.take(1, 4), "it is at the place")
		require.Same(t, all[8], p.take(2, 99), "it has the file open, and was used last")
		require.Same(t, all[9], p.take(0, 0), "it has no file open")
		all[7].spoil(io.EOF)
		require.Same(t, all[6], p.take(9, 0))
		require.Same(t, all[3], p.take(9, 0))
		require.Same(t, all[5], p.take(9, 0), "the one before it has broken while it waited, or is next")
		for c := p.take(9, 0); c != nil; c = p.take(9, 0) {
			require.NotSame(t, all[7], c)
		}
		for _, c := range []*client{all[3], all[4]} {
			c.keep()
			c.release()
			require.Zero(t, waiting(), "somebody still uses it")
			c.release()
			require.Equal(t, 1, waiting())
			time.Sleep(idleTime)
			synctest.Wait()
			require.Zero(t, waiting())
			require.Error(t, c.life.Err())
		}
		p.close()
		c := add(0, 0)
		require.True(t, c.killed)
		_, err := p.dial(t.Context())
		require.ErrorIs(t, err, inflight.ErrClosed)
	})
}

// TestFollow: who reads on where a read ends waits for it, while that goes on.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{ends: map[int64]*turn{}}
		begin := time.Now()
		first, second := s.at(t.Context(), 0, 100), s.at(t.Context(), 100, 200)
		go func() {
			for range 10 {
				time.Sleep(standstill / 2)
				first.turn.moved.Add(1)
			}
			first.Close()
		}()
		second.follow()
		require.Equal(t, 5*standstill, time.Since(begin), "until the end of the first")

		third := s.at(t.Context(), 200, 300)
		begin = time.Now()
		third.follow()
		require.LessOrEqual(t, time.Since(begin), 2*standstill, "nobody reads the second")

		other := s.at(t.Context(), 150, 200)
		begin = time.Now()
		other.follow()
		require.Zero(t, time.Since(begin))
		for _, r := range []*stream{second, third, other} {
			require.NoError(t, r.Close())
			require.NoError(t, r.Close())
		}
		require.Empty(t, s.ends)
	})
}
