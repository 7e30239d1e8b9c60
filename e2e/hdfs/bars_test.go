package hdfs_test

import (
	"context"
	"io"
	"net"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	colinmarc "github.com/colinmarc/hdfs/v2"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/writer"
)

// peak returns the most memory that the Go runtime has in use while f runs.
func peak(f func()) (bytes uint64) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		for tick := time.Tick(2 * time.Millisecond); ; {
			metrics.Read(s)
			bytes = max(bytes, s[0].Value.Uint64()-s[1].Value.Uint64())
			select {
			case <-stop:
				return
			case <-tick:
			}
		}
	}()
	f()
	close(stop)
	<-done
	return bytes
}

// cpu returns what the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// dialer opens connections.
type dialer func(ctx context.Context, kind, address string) (net.Conn, error)

// wire has a rate for each direction, which all connections share: a proxy's is
// that of a connection.
type wire struct{ up, down *rate.Limiter }

const burst = 2 << 20 // more than is sent at once

func newWire(bytesPerSecond float64) *wire {
	l := rate.Limit(bytesPerSecond)
	return &wire{rate.NewLimiter(l, burst), rate.NewLimiter(l, burst)}
}

func (w *wire) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, kind, address)
	return &wired{c, w}, err
}

// wired is a connection over a wire.
type wired struct {
	net.Conn
	wire *wire
}

func (c *wired) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if late := c.wire.down.WaitN(context.Background(), n); err == nil {
		err = late
	}
	return n, err
}

func (c *wired) Write(p []byte) (int, error) {
	if err := c.wire.up.WaitN(context.Background(), len(p)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// TestBars compares with plain copies by the same client library, in one run on
// the same cluster, on this machine and over a link of 100 MB/s: 1 GiB, and 256
// MiB over the link, with SPILLWAY_E2E=full. It has no verdict: on a busy machine
// a run says little.
func TestBars(t *testing.T) {
	size, rounds := 64<<20, 1
	if full() {
		size, rounds = 1<<30, 5
	}
	if mib, err := strconv.Atoi(os.Getenv("SPILLWAY_E2E_MIB")); err == nil {
		size = mib << 20
	}
	t.Run("here", func(t *testing.T) { bars(t, size, rounds, (&net.Dialer{}).DialContext) })
	t.Run("link", func(t *testing.T) { bars(t, size/4, 1, newWire(100e6).dial) })
}

func bars(t *testing.T, size, rounds int, dial dialer) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(88 << 20)) // as GOMEMLIMIT does it
	c := one.up(t)
	root := c.tree()
	client, err := colinmarc.NewClient(colinmarc.ClientOptions{Addresses: []string{c.env["NAMENODE"]}, User: "flink", NamenodeDialFunc: dial, DatanodeDialFunc: dial})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.MkdirAll(root, 0o755))
	buffer := pattern(5, 256<<10)
	var cost time.Duration // of a GiB, of the last call
	rate := func(f func()) float64 {
		begun, used := time.Now(), cpu()
		f()
		cost = (cpu() - used) * (1 << 30) / time.Duration(size)
		return float64(size) / (1 << 20) / time.Since(begun).Seconds()
	}
	rawWrite := func() {
		require.NoError(t, client.RemoveAll(root+"/raw"))
		w, err := client.CreateFile(root+"/raw", 1, 128<<20, 0o644)
		require.NoError(t, err)
		for n := 0; n < size; n += len(buffer) {
			_, err := w.Write(buffer)
			require.NoError(t, err)
		}
		for err = w.Close(); colinmarc.IsErrReplicating(err); err = w.Close() {
			time.Sleep(5 * time.Millisecond) //lint:sleep as the library asks for
		}
		require.NoError(t, err)
	}
	rawRead := func() {
		r, err := client.Open(root + "/raw")
		require.NoError(t, err)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
		require.NoError(t, err)
		require.EqualValues(t, size, n)
		require.NoError(t, r.Close())
	}
	var dials atomic.Int64
	b := c.open(t, root+"/ours", func(o *hdfs.Options) {
		o.Dial = func(ctx context.Context, kind, address string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, kind, address)
		}
	})
	restore := func(h inflight.Handle) (n int) {
		r := reader.Open(b, "job", reader.Options{Memory: 32 << 20})
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		for buffer, err := range s.Buffers(t.Context()) {
			require.NoError(t, err)
			n += len(buffer.Bytes)
		}
		require.NoError(t, r.Close())
		return n
	}
	var best struct{ write, rawWrite, read, rawRead float64 }
	for range rounds {
		raw := rate(rawWrite)
		rawCost := cost
		require.NoError(t, b.RemoveAll(t.Context(), ""))
		var ours float64
		var h inflight.Handle
		memory := peak(func() {
			ours = rate(func() {
				h, err = capture(t, b, size, writer.Options{MaxBuffered: 32 << 20, TargetFileSize: 24 << 20, Codec: format.CodecNone})
				require.NoError(t, err)
			})
		})
		t.Logf("write: raw %.0f MiB/s, ours %.0f MiB/s, ratio %.2f, CPU of a GiB: raw %v, ours %v; peak memory %d MiB, %d connections", raw, ours, ours/raw, rawCost, cost, memory>>20, dials.Swap(0))
		best.rawWrite, best.write = max(best.rawWrite, raw), max(best.write, ours)
		raw = rate(rawRead)
		rawCost = cost
		memory = peak(func() { ours = rate(func() { require.Equal(t, size, restore(h)) }) })
		t.Logf("restore: raw %.0f MiB/s, ours %.0f MiB/s, ratio %.2f, CPU of a GiB: raw %v, ours %v; peak memory %d MiB, %d connections", raw, ours, ours/raw, rawCost, cost, memory>>20, dials.Swap(0))
		best.rawRead, best.read = max(best.rawRead, raw), max(best.read, ours)
	}
	t.Logf("the best of each: write %.2f, restore %.2f of the client library alone", best.write/best.rawWrite, best.read/best.rawRead)
}
