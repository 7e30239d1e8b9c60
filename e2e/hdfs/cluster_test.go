// Package hdfs_test runs backends/hdfs, and what stands on it, against real HDFS:
// a namenode with one or three datanodes, and one with Kerberos, each started once
// for all tests. SPILLWAY_E2E=full runs the long forms.
package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/e2e/need"
	"github.com/spillway-io/spillway/inflight"
)

const serverDir = "../hdfs-server"

// full reports whether the long forms are wanted.
func full() bool { return os.Getenv("SPILLWAY_E2E") == "full" }

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.run").Value.String() == "" { // all will be needed: they start while the first tests run
		go func() {
			for _, c := range []*cluster{one, three, secure, integrity} {
				c.once.Do(func() { c.failed = c.start() })
			}
		}()
	}
	code := m.Run()
	for _, c := range []*cluster{one, three, secure, integrity, weak} {
		c.stop()
	}
	_ = os.RemoveAll(binaries.dir)
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cluster is a process with a real HDFS in it. E2E_HDFS names a folder with
// clusters that run already, each in a folder of its name, for work by hand.
type cluster struct {
	name     string
	settings []string

	once   sync.Once
	failed error
	dir    string
	cmd    *exec.Cmd
	stdin  io.Closer
	ended  chan struct{}
	err    error // of the process, when it has ended
	env    map[string]string
	trees  atomic.Int64
}

const ticketSeconds = 12

var (
	one    = &cluster{name: "one", settings: []string{"-Ddatanodes=1"}}
	three  = &cluster{name: "three", settings: []string{"-Ddatanodes=3"}}
	secure = &cluster{name: "secure", settings: []string{"-Ddatanodes=1", "-Dsecure=true", "-Dprotection=privacy", "-Dconf.dfs.encrypt.data.transfer.cipher.suites=AES/CTR/NoPadding",
		fmt.Sprintf("-Dticket.seconds=%d", ticketSeconds)}}
	// What the client library could write and not read.
	integrity = &cluster{name: "integrity", settings: []string{"-Ddatanodes=1", "-Dsecure=true", "-Dprotection=integrity"}}
	weak      = &cluster{name: "weak", settings: []string{"-Ddatanodes=1", "-Dsecure=true", "-Dprotection=privacy"}}
)

// up starts the cluster, if it does not run yet. Without a JDK or Maven the test
// is left out, which under CI is an error.
func (c *cluster) up(t testing.TB) *cluster {
	t.Helper()
	need.Java(t, "real HDFS")
	c.once.Do(func() { c.failed = c.start() })
	require.NoError(t, c.failed)
	return c
}

func (c *cluster) start() (err error) {
	if running := os.Getenv("E2E_HDFS"); running != "" {
		c.dir = filepath.Join(running, c.name)
		if c.readEnv() {
			return nil
		}
	}
	if out, err := exec.Command(filepath.Join(serverDir, "run.sh"), "build").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if c.dir, err = os.MkdirTemp("", "e2e-hdfs-"); err != nil {
		return err
	}
	c.cmd = exec.Command(filepath.Join(serverDir, "run.sh"), append([]string{c.dir}, c.settings...)...)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.ended = make(chan struct{})
	go func() { c.err = c.cmd.Wait(); close(c.ended) }()
	for limit := time.Now().Add(3 * time.Minute); !c.readEnv(); {
		select {
		case <-c.ended:
			log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			return fmt.Errorf("HDFS does not start: %w: %s", c.err, log)
		case <-time.After(50 * time.Millisecond):
			if time.Now().After(limit) {
				_ = c.cmd.Process.Kill()
				return fmt.Errorf("HDFS does not start within three minutes: see %s/log", c.dir)
			}
		}
	}
	return nil
}

// readEnv reads what a cluster writes when it is up.
func (c *cluster) readEnv() bool {
	text, err := os.ReadFile(filepath.Join(c.dir, "env"))
	if err != nil {
		return false
	}
	c.env = map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		c.env[key] = value
	}
	return true
}

func (c *cluster) stop() {
	c.once.Do(func() {}) // it may be about to start
	if c.ended == nil {
		return
	}
	_ = c.cmd.Process.Kill() // it has nothing to save
	<-c.ended
	_ = os.RemoveAll(c.dir)
}

// control has the cluster do something: verb is "dn/kill?port=1".
func (c *cluster) control(t testing.TB, verb string, args ...string) string {
	t.Helper()
	return string(c.post(t, nil, verb, args...))
}

func (c *cluster) post(t testing.TB, body []byte, verb string, args ...string) []byte {
	t.Helper()
	q := url.Values{}
	for i := 0; i < len(args); i += 2 {
		q.Set(args[i], args[i+1])
	}
	resp, err := http.Post(c.env["CONTROL"]+"/"+verb+"?"+q.Encode(), "", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode, "%s: %s", verb, answer)
	return answer
}

// tree returns a directory of its own for a test.
func (c *cluster) tree() string { return fmt.Sprintf("/tmp/t%d-%d", os.Getpid(), c.trees.Add(1)) }

// url returns the URL of a directory, for a user.
func (c *cluster) url(user, dir string) string {
	if user != "" {
		user += "@"
	}
	return "hdfs://" + user + c.env["NAMENODE"] + dir
}

// open opens the store in a directory, with options. It is closed with the test.
func (c *cluster) open(t testing.TB, dir string, with func(*hdfs.Options)) *hdfs.Backend {
	t.Helper()
	o := hdfs.Options{Namenodes: []string{c.env["NAMENODE"]}, Dir: dir, User: "flink"}
	if with != nil {
		with(&o)
	}
	b, err := hdfs.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// network stands between the client and the cluster.
type network struct {
	mu     sync.Mutex
	silent map[string]bool // addresses that no bytes come from any more
	down   bool            // nobody can be reached any more
	on     func(request []byte) (cut, deliver bool)
}

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: kind, Err: syscall.EHOSTUNREACH}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	return &link{Conn: c, n: n, address: address, closed: make(chan struct{})}, nil
}

// silence lets nothing come from some addresses any more; "*" means all.
func (n *network) silence(addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = map[string]bool{}
	for _, a := range addresses {
		n.silent[a] = true
	}
}

func (n *network) quiet(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.silent[address] || n.silent["*"]
}

// link is a connection of a network.
type link struct {
	net.Conn
	n       *network
	address string
	once    sync.Once
	closed  chan struct{}

	mu    sync.Mutex
	limit time.Time
}

// Read waits for the deadline where the other side is silent.
func (l *link) Read(p []byte) (int, error) {
	for {
		n, err := l.Conn.Read(p)
		switch {
		case !l.n.quiet(l.address) || err != nil && !errors.Is(err, io.EOF):
			return n, err
		case err == nil:
			continue // it is lost
		}
		l.mu.Lock()
		limit := time.Until(l.limit)
		l.mu.Unlock()
		select { // the end is not seen either
		case <-time.After(limit):
			return 0, os.ErrDeadlineExceeded
		case <-l.closed:
			return 0, net.ErrClosed
		}
	}
}

func (l *link) SetDeadline(t time.Time) error {
	l.mu.Lock()
	l.limit = t
	l.mu.Unlock()
	return l.Conn.SetDeadline(t)
}

func (l *link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	l.limit = t
	l.mu.Unlock()
	return l.Conn.SetReadDeadline(t)
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

func (l *link) Write(p []byte) (int, error) {
	l.n.mu.Lock()
	on := l.n.on
	l.n.mu.Unlock()
	if on != nil {
		cut, deliver := on(p)
		if cut {
			if deliver {
				_, _ = l.Conn.Write(p)
				_, _ = l.Conn.Read(make([]byte, 1)) // the answer begins, so it was carried out; nobody else reads yet
			}
			l.Conn.Close()
			return len(p), nil
		}
	}
	return l.Conn.Write(p)
}

// put writes an object.
func put(ctx context.Context, b backends.Backend, name string, data []byte, opt backends.CreateOptions) error {
	o, err := b.Create(ctx, name, opt)
	if err != nil {
		return err
	}
	if _, err := o.Write(data); err != nil {
		return errors.Join(err, o.Abort(ctx))
	}
	_, err = o.Finish(ctx)
	return err
}

// get reads an object.
func get(ctx context.Context, b backends.Backend, name string) ([]byte, error) {
	s, err := b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	data := make([]byte, s.Info().Size)
	return data, s.ReadAt(ctx, data, 0)
}

// list returns all names, and leftovers how many there are.
func list(t testing.TB, b backends.Backend) (names []string) {
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	return names
}

func leftovers(t testing.TB, b backends.Backend) (all []backends.Leftover) {
	for l, err := range b.Leftovers(t.Context(), "") {
		require.NoError(t, err)
		all = append(all, l)
	}
	return all
}

// wants checks kind and text of an error.
func wants(t testing.TB, err error, kind error, retryable bool, texts ...string) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	typed, ok := errors.AsType[*inflight.Error](err)
	require.True(t, ok, "%v", err)
	require.NotEmpty(t, typed.Op)
	require.Equal(t, retryable, inflight.Retryable(err), "%v", err)
	for _, text := range texts {
		require.Contains(t, err.Error(), text)
	}
	t.Log(err)
}

// within runs f, which must not take much longer than limit.
func within(t testing.TB, limit time.Duration, f func()) {
	t.Helper()
	begun := time.Now()
	f()
	require.Less(t, time.Since(begun), limit)
}

// pattern returns n bytes that depend on seed.
func pattern(seed, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*(2*seed+1)>>3 + i>>11 + seed)
	}
	return data
}
