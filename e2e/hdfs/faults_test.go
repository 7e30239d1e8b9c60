package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/inflight"
)

// calls are the calls of a store that has an object x, each by its name.
func calls(b backends.Backend) map[string]func(ctx context.Context) error {
	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			o, err := b.Create(ctx, "new", backends.CreateOptions{})
			if err == nil {
				err = o.Abort(ctx)
			}
			return err
		},
		"open":   func(ctx context.Context) error { _, err := b.Open(ctx, "x"); return err },
		"stat":   func(ctx context.Context) error { _, err := b.Stat(ctx, "x"); return err },
		"space":  func(ctx context.Context) error { _, err := b.Space(ctx); return err },
		"remove": func(ctx context.Context) error { return b.Remove(ctx, "y") },
		"list": func(ctx context.Context) error {
			for _, err := range b.List(ctx, "") {
				return err
			}
			return nil
		},
		"children": func(ctx context.Context) error {
			for _, err := range b.Children(ctx, "") {
				return err
			}
			return nil
		},
		"leftovers": func(ctx context.Context) error {
			for _, err := range b.Leftovers(ctx, "") {
				return err
			}
			return nil
		},
	}
}

// TestNamenodeHangs checks that a namenode that does not answer costs a context, or
// the time limit, and the client: with the next call all is well again.
func TestNamenodeHangs(t *testing.T) {
	c := one.up(t)
	n := new(network)
	b := c.open(t, c.tree(), func(o *hdfs.Options) { o.Dial = n.dial; o.RPCTimeout = time.Second })
	require.NoError(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}))
	for op, call := range calls(b) {
		n.silence("*")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		within(t, 2500*time.Millisecond, func() { require.ErrorIs(t, call(ctx), context.DeadlineExceeded, op) })
		cancel()
		if op == "stat" || op == "list" {
			within(t, 3*time.Second, func() { wants(t, call(t.Context()), inflight.ErrTimeout, true, "namenode", c.env["NAMENODE"]) })
		}
		n.silence()
		require.NoError(t, call(t.Context()), op)
	}
	o, err := b.Create(t.Context(), "z", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write([]byte("z"))
	require.NoError(t, err)
	n.silence(c.env["NAMENODE"])
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	within(t, 2500*time.Millisecond, func() { _, err = o.Finish(ctx) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	n.silence()
	require.Equal(t, []string{"x"}, list(t, b))
}

// TestNamenodeStops stops the namenode, also while an object is written: the
// object is finished when it is back.
func TestNamenodeStops(t *testing.T) {
	c := one.up(t)
	b := c.open(t, c.tree(), nil)
	require.NoError(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}))
	o, err := b.Create(t.Context(), "z", backends.CreateOptions{Exclusive: true})
	require.NoError(t, err)
	data := pattern(1, 3<<20)
	_, err = o.Write(data)
	require.NoError(t, err)
	c.control(t, "nn/stop")
	for op, call := range calls(b) {
		within(t, 2*time.Second, func() { wants(t, call(t.Context()), inflight.ErrUnavailable, true, c.env["NAMENODE"]) })
		_ = op
	}
	finished := make(chan error, 1)
	go func() { _, err := o.Finish(context.Background()); finished <- err }()
	c.control(t, "nn/start")
	require.NoError(t, <-finished)
	got, err := get(t.Context(), b, "z")
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.Equal(t, []string{"x", "z"}, list(t, b))
}

// TestAnswerLost cuts the connection around the rename that publishes.
func TestAnswerLost(t *testing.T) {
	c := one.up(t)
	for _, exclusive := range []bool{true, false} {
		n := new(network)
		b := c.open(t, c.tree(), func(o *hdfs.Options) { o.Dial = n.dial })
		finish := func(name string, deliver, gone bool) error {
			o, err := b.Create(t.Context(), name, backends.CreateOptions{Exclusive: exclusive})
			require.NoError(t, err)
			_, err = o.Write([]byte(name))
			require.NoError(t, err)
			n.mu.Lock()
			n.on = func(request []byte) (bool, bool) {
				n.mu.Lock()
				defer n.mu.Unlock()
				rename := bytes.Contains(request, []byte("rename2"))
				n.down = n.down || rename && gone
				return rename || n.down, rename && deliver
			}
			n.mu.Unlock()
			_, err = o.Finish(t.Context())
			n.mu.Lock()
			n.on, n.down = nil, false
			n.mu.Unlock()
			return err
		}
		require.NoError(t, finish("delivered", true, false), "it was renamed, and that can be seen")
		wants(t, finish("lost", false, false), inflight.ErrUnavailable, true)
		wants(t, finish("unknown", true, true), inflight.ErrOutcomeUnknown, true, "unknown")
		require.Equal(t, []string{"delivered", "unknown"}, list(t, b))
		require.Empty(t, leftovers(t, b))
	}
}

// lastPort returns the port of one of the datanodes that an open file lies on.
func (c *cluster) lastPort(t *testing.T, dir string, datanode int) string {
	open := strings.Fields(c.control(t, "open", "path", dir))
	require.Len(t, open, 1)
	nodes := strings.Fields(c.control(t, "blocks", "path", open[0]))
	_, port, ok := strings.Cut(nodes[datanode%len(nodes)], ":")
	require.True(t, ok, nodes)
	return port
}

// TestDatanodeKilled kills a datanode while an object is written to it: the object
// fails for good, with an error that says to try again; and trying again helps as
// soon as the namenode misses the datanode.
func TestDatanodeKilled(t *testing.T) {
	c := three.up(t)
	for _, datanode := range []int{0, 1} {
		root := c.tree()
		b := c.open(t, root, func(o *hdfs.Options) { o.Replication = 2 }) // one datanode to spare
		o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
		require.NoError(t, err)
		piece := pattern(1, 256<<10)
		for range 8 {
			_, err = o.Write(piece)
			require.NoError(t, err)
		}
		c.control(t, "dn/kill", "port", c.lastPort(t, root, datanode))
		t.Cleanup(func() { c.control(t, "dn/restart") })
		for n := 0; err == nil && n < 400; n++ { // 100 MiB, and the end of no block
			_, err = o.Write(piece)
		}
		if err != nil {
			_, again := o.Finish(t.Context())
			require.Equal(t, err, again)
		} else {
			_, err = o.Finish(t.Context())
		}
		wants(t, err, inflight.ErrUnavailable, true, "datanode")
		require.Empty(t, list(t, b))
		require.Empty(t, leftovers(t, b))
		tries := 0
		for limit := time.Now().Add(time.Minute); err != nil; tries++ {
			require.True(t, time.Now().Before(limit), "%v", err)
			err = put(t.Context(), b, "x", piece, backends.CreateOptions{})
		}
		t.Logf("datanode %d of the pipeline: %d tries", datanode, tries)
		c.control(t, "dn/restart")
	}
}

// TestDatanodeHangs checks the time limit for datanodes, and that Abort, Close and
// the end of a context do not wait for it.
func TestDatanodeHangs(t *testing.T) {
	c := one.up(t)
	n := new(network)
	b := c.open(t, c.tree(), func(o *hdfs.Options) { o.Dial = n.dial; o.DataTimeout = time.Second })
	data := pattern(1, 8<<20)
	require.NoError(t, put(t.Context(), b, "x", data, backends.CreateOptions{}))
	node := "127.0.0.1:" + strings.TrimSpace(c.control(t, "dn/list"))

	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	n.silence(node)
	within(t, 5*time.Second, func() {
		wants(t, s.ReadAt(t.Context(), make([]byte, 10), 0), inflight.ErrTimeout, true, "datanode")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, 2500*time.Millisecond, func() { require.ErrorIs(t, s.ReadAt(ctx, make([]byte, 10), 0), context.DeadlineExceeded) })

	create := func() backends.Object {
		o, err := b.Create(t.Context(), "y", backends.CreateOptions{})
		require.NoError(t, err)
		return o
	}
	n.silence()
	o := create()
	_, err = o.Write(data[:100_000])
	require.NoError(t, err)
	n.silence(node)
	for err == nil {
		_, err = o.Write(data)
	}
	wants(t, err, inflight.ErrTimeout, true, "datanode")
	_, err = o.Finish(t.Context())
	wants(t, err, inflight.ErrTimeout, true)

	n.silence()
	o = create()
	_, err = o.Write(data[:100_000])
	require.NoError(t, err)
	n.silence(node)
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, 2500*time.Millisecond, func() { _, err = o.Finish(ctx) })
	require.ErrorIs(t, err, context.DeadlineExceeded)

	n.silence()
	o = create()
	_, err = o.Write(data[:100_000])
	require.NoError(t, err)
	n.silence(node)
	written := make(chan error, 1)
	go func() {
		for {
			if _, err := o.Write(data); err != nil {
				written <- err
				return
			}
		}
	}()
	within(t, 2500*time.Millisecond, func() { require.NoError(t, o.Abort(t.Context())) })
	wants(t, <-written, inflight.ErrClosed, false)
	n.silence()
	require.Empty(t, leftovers(t, b))
	require.Equal(t, []string{"x"}, list(t, b))
}

// TestDatanodeKilledWhileReading reads on from another one.
func TestDatanodeKilledWhileReading(t *testing.T) {
	c := three.up(t)
	root := c.tree()
	b := c.open(t, root, nil)
	data := pattern(3, 16<<20)
	require.NoError(t, put(t.Context(), b, "x", data, backends.CreateOptions{}))
	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	r, err := s.Stream(t.Context(), 0, -1)
	require.NoError(t, err)
	head := make([]byte, 1<<20)
	_, err = io.ReadFull(r, head)
	require.NoError(t, err)
	nodes := strings.Fields(c.control(t, "blocks", "path", root+"/x"))
	require.Len(t, nodes, 3)
	t.Cleanup(func() { c.control(t, "dn/restart") })
	for _, node := range nodes[:2] {
		c.control(t, "dn/kill", "port", strings.TrimPrefix(node, "127.0.0.1:"))
	}
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, append(head, rest...)))
	require.NoError(t, r.Close())
	got := make([]byte, 100)
	require.NoError(t, s.ReadAt(t.Context(), got, 5<<20))
	require.Equal(t, data[5<<20:5<<20+100], got)
	c.control(t, "dn/kill")
	wants(t, s.ReadAt(t.Context(), got, 12<<20), inflight.ErrUnavailable, true, "datanode")
}

// TestNoDatanode writes where there is none.
func TestNoDatanode(t *testing.T) {
	c := one.up(t)
	b := c.open(t, c.tree(), nil)
	c.control(t, "dn/kill")
	wants(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}), inflight.ErrUnavailable, true, "datanode")
	require.NoError(t, put(t.Context(), b, "empty", nil, backends.CreateOptions{}), "without a byte there is no block")
	c.control(t, "dn/restart")
	require.Equal(t, []string{"empty"}, list(t, b))
}

// TestDiskFull makes the disks of the datanodes small.
func TestDiskFull(t *testing.T) {
	c := one.up(t)
	b := c.open(t, c.tree(), nil)
	before, err := b.Space(t.Context())
	require.NoError(t, err)
	require.Positive(t, before.Free)
	c.control(t, "dn/capacity", "bytes", "1")
	defer c.control(t, "dn/capacity", "bytes", "-1")
	err = put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{})
	wants(t, err, inflight.ErrNoSpace, false, "free space on the datanodes")
	space, err := b.Space(t.Context())
	require.NoError(t, err)
	require.Zero(t, space.Free)
	require.Empty(t, list(t, b))
}

// TestQuota runs into the quotas of a directory.
func TestQuota(t *testing.T) {
	c := three.up(t)
	root := c.tree()
	const block = 1 << 20
	c.control(t, "mkdirs", "path", root+"/deep", "owner", "flink")
	c.control(t, "mkdirs", "path", root, "mode", "755")
	c.control(t, "quota", "path", root, "space", fmt.Sprint(3*5*block)) // five blocks of three replicas
	b := c.open(t, root+"/deep", func(o *hdfs.Options) { o.BlockSize = block })
	space, err := b.Space(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5*block, space.Free)
	require.EqualValues(t, 5*block, space.Total)
	require.NoError(t, put(t.Context(), b, "x", pattern(1, 2*block), backends.CreateOptions{}))
	space, err = b.Space(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3*block, space.Free)
	o, err := b.Create(t.Context(), "y", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(pattern(2, 4*block))
	wants(t, err, inflight.ErrNoSpace, false, "quota", "setSpaceQuota")
	_, err = o.Finish(t.Context())
	wants(t, err, inflight.ErrNoSpace, false)
	require.Equal(t, []string{"x"}, list(t, b), "a writer that failed is never committed")
	require.Empty(t, leftovers(t, b))

	c.control(t, "quota", "path", root, "space", "-1", "names", "4") // the directories, x, and one more
	require.NoError(t, put(t.Context(), b, "y", []byte("y"), backends.CreateOptions{}))
	space, err = b.Space(t.Context())
	require.NoError(t, err)
	require.Zero(t, space.Free)
	wants(t, put(t.Context(), b, "z", []byte("z"), backends.CreateOptions{Exclusive: true}), inflight.ErrNoSpace, false, "quota", "-setQuota")
	require.Empty(t, leftovers(t, b))
}

// TestSafeMode reads, and waits with writing.
func TestSafeMode(t *testing.T) {
	c := one.up(t)
	b := c.open(t, c.tree(), nil)
	require.NoError(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}))
	o, err := b.Create(t.Context(), "y", backends.CreateOptions{})
	require.NoError(t, err)
	c.control(t, "safemode", "on", "1")
	defer c.control(t, "safemode", "on", "0")
	got, err := get(t.Context(), b, "x")
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
	wants(t, put(t.Context(), b, "z", nil, backends.CreateOptions{}), inflight.ErrUnavailable, true, "safe mode")
	wants(t, b.Remove(t.Context(), "x"), inflight.ErrUnavailable, true, "safe mode")
	_, err = o.Write([]byte("y"))
	wants(t, err, inflight.ErrUnavailable, true, "safe mode")
	require.NoError(t, o.Abort(t.Context()))
	c.control(t, "safemode", "on", "0")
	require.Len(t, leftovers(t, b), 1, "it could not be removed")
	for _, l := range leftovers(t, b) {
		require.NoError(t, l.Remove(t.Context()))
	}
	require.Empty(t, leftovers(t, b))
}

// TestPermission has one user write and another one look: that is forbidden, and
// never missing.
func TestPermission(t *testing.T) {
	c := one.up(t)
	root := c.tree()
	alice := c.open(t, root, func(o *hdfs.Options) { o.User = "alice" })
	bob := c.open(t, root, func(o *hdfs.Options) { o.User = "bob" })
	require.NoError(t, put(t.Context(), alice, "x", []byte("x"), backends.CreateOptions{}))
	for op, call := range calls(bob) {
		if op == "space" {
			continue
		}
		wants(t, call(t.Context()), inflight.ErrPermission, false, "bob", "on "+root+" (owner alice, group supergroup, mode 0700)", "set the user in the URL")
	}
	wants(t, bob.RemoveAll(t.Context(), ""), inflight.ErrPermission, false, "bob", "alice", "0700")
	_, err := bob.Space(t.Context())
	require.NoError(t, err)

	c.control(t, "mkdirs", "path", root, "mode", "755")
	wants(t, calls(bob)["create"](t.Context()), inflight.ErrPermission, false, "bob", "on "+root+" (owner alice, group supergroup, mode 0755)")
	s, err := bob.Open(t.Context(), "x")
	require.NoError(t, err)
	wants(t, s.ReadAt(t.Context(), make([]byte, 1), 0), inflight.ErrPermission, false, "bob", root+"/x (owner alice, group supergroup, mode 0600)", "read is needed")
	require.Equal(t, []string{"x"}, list(t, bob))
	wants(t, bob.Remove(t.Context(), "x"), inflight.ErrPermission, false, "bob", "alice")
}

// TestLeftovers leaves objects open, as a process that is killed does, and sweeps
// what stays: the leases go with it.
func TestLeftovers(t *testing.T) {
	c := one.up(t)
	root := c.tree()
	dead, b := c.open(t, root, nil), c.open(t, root, nil)
	for i := range 4 {
		o, err := dead.Create(t.Context(), fmt.Sprintf("chk-%d/x", i), backends.CreateOptions{Exclusive: i%2 == 0})
		require.NoError(t, err)
		_, err = o.Write(pattern(i, 200_000))
		require.NoError(t, err)
	}
	c.control(t, "mkdirs", "path", root+"/chk-9/deep", "owner", "flink")
	c.control(t, "mkdirs", "path", root+"/chk-9", "owner", "flink")
	require.Len(t, strings.Fields(c.control(t, "open", "path", root)), 4)
	var names []string
	for _, l := range leftovers(t, b) {
		names = append(names, l.Kind+" "+l.Name)
		require.NoError(t, l.Remove(t.Context()))
	}
	require.Equal(t, []string{"temporary file chk-0/x", "temporary file chk-1/x", "temporary file chk-2/x", "temporary file chk-3/x", "empty folder chk-9/deep"}, names)
	require.Empty(t, leftovers(t, b))
	require.Empty(t, strings.Fields(c.control(t, "open", "path", root)))
	require.Empty(t, list(t, b))
}

// TestWrongAddress names what is no namenode.
func TestWrongAddress(t *testing.T) {
	c := one.up(t)
	stat := func(address string) error {
		b := c.open(t, "/tmp", func(o *hdfs.Options) { o.Namenodes = []string{address}; o.RPCTimeout = 2 * time.Second })
		_, err := b.Stat(t.Context(), "x")
		return err
	}
	if err := stat(c.env["WEB"]); errors.Is(err, inflight.ErrUnavailable) {
		wants(t, err, inflight.ErrUnavailable, true, "RPC port") // it has hung up before its answer could be read
	} else {
		wants(t, err, inflight.ErrConfig, false, "RPC port", "HTTP")
	}
	wants(t, stat(strings.TrimPrefix(c.env["CONTROL"], "http://")), inflight.ErrTimeout, true, "RPC port")
	wants(t, stat("127.0.0.1:1"), inflight.ErrUnavailable, true, "127.0.0.1:1", "connection refused")
	wants(t, stat("nowhere.invalid:8020"), inflight.ErrUnavailable, true, "nowhere.invalid")
	wants(t, stat("127.0.0.1:"+strings.TrimSpace(c.control(t, "dn/list"))), inflight.ErrUnavailable, true, "RPC port")
	b := c.open(t, "/tmp/never/was", nil)
	for _, err := range b.List(t.Context(), "") {
		wants(t, err, inflight.ErrNotExist, false, "the directory does not exist")
	}
	var dials atomic.Int64
	b = c.open(t, c.tree(), func(o *hdfs.Options) {
		o.Namenodes = []string{"127.0.0.1:1", c.env["NAMENODE"]}
		o.Dial = func(ctx context.Context, kind, address string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, kind, address)
		}
	})
	for range 5 {
		require.NoError(t, put(t.Context(), b, "x", nil, backends.CreateOptions{}), "the second namenode answers")
	}
	require.LessOrEqual(t, dials.Load(), int64(4), "connections are kept")
}

// TestFewFiles has no file descriptor left.
func TestFewFiles(t *testing.T) {
	c := one.up(t)
	dial := func(ctx context.Context, kind, address string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: kind, Err: fmt.Errorf("socket: %w", syscall.EMFILE)}
	}
	b := c.open(t, c.tree(), func(o *hdfs.Options) { o.Dial = dial })
	_, err := b.Stat(t.Context(), "x")
	wants(t, err, inflight.ErrTooManyFiles, false, "the limit is ", "ulimit -n")

	n := new(network)
	b = c.open(t, c.tree(), func(o *hdfs.Options) {
		o.Dial = func(ctx context.Context, kind, address string) (net.Conn, error) {
			if address != c.env["NAMENODE"] {
				return dial(ctx, kind, address)
			}
			return n.dial(ctx, kind, address)
		}
	})
	wants(t, put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{}), inflight.ErrTooManyFiles, false, "ulimit -n")
}

// TestFlippedBits reads what is damaged on a disk: from another one, if there is
// one.
func TestFlippedBits(t *testing.T) {
	data := pattern(1, 3<<20)
	for _, size := range []int{100, 511, 100_000, len(data)} {
		root := one.tree()
		b := one.up(t).open(t, root, nil)
		require.NoError(t, put(t.Context(), b, "x", data[:size], backends.CreateOptions{}))
		require.Equal(t, "replicas: 1", one.control(t, "dn/corrupt", "path", root+"/x", "replicas", "9"))
		_, err := get(t.Context(), b, "x")
		wants(t, err, inflight.ErrCorrupt, false, "checksum", "fsck")
	}
	for range 3 {
		root := three.tree()
		b := three.up(t).open(t, root, nil)
		require.NoError(t, put(t.Context(), b, "x", data, backends.CreateOptions{}))
		require.Equal(t, "replicas: 2", three.control(t, "dn/corrupt", "path", root+"/x", "replicas", "2"))
		got, err := get(t.Context(), b, "x")
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
}

// TestSwept removes the temporary file under a writer.
func TestSwept(t *testing.T) {
	c := one.up(t)
	b := c.open(t, c.tree(), nil)
	for _, data := range []int{0, 100_000} {
		o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
		require.NoError(t, err)
		_, err = o.Write(pattern(1, data))
		require.NoError(t, err)
		require.NoError(t, b.RemoveAll(t.Context(), ""))
		_, err = o.Finish(t.Context())
		wants(t, err, inflight.ErrNotExist, false, "temporary file")
	}
	require.Empty(t, leftovers(t, b))
}
