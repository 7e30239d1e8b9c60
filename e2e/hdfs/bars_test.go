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
	"testing"
	"time"

	colinmarc "github.com/colinmarc/hdfs/v2"
	"github.com/stretchr/testify/require"

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

// TestBars compares with plain copies by the same client library, in one run on
// the same cluster: SPILLWAY_E2E=full.
func TestBars(t *testing.T) {
	size := 64 << 20
	if full() {
		size = 1 << 30
	}
	if mib, err := strconv.Atoi(os.Getenv("SPILLWAY_E2E_MIB")); err == nil {
		size = mib << 20
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(88 << 20)) // as GOMEMLIMIT does it
	c := one.up(t)
	root := c.tree()
	client, err := colinmarc.NewClient(colinmarc.ClientOptions{Addresses: []string{c.env["NAMENODE"]}, User: "flink"})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.MkdirAll(root, 0o755))
	buffer := pattern(5, 256<<10)
	rate := func(f func()) float64 {
		begun := time.Now()
		f()
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
			return (&net.Dialer{}).DialContext(ctx, kind, address)
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
	rounds := 1
	if full() {
		rounds = 3
	}
	for range rounds {
		raw := rate(rawWrite)
		require.NoError(t, b.RemoveAll(t.Context(), ""))
		var ours float64
		var h inflight.Handle
		memory := peak(func() {
			ours = rate(func() {
				h, err = capture(t, b, size, writer.Options{MaxBuffered: 48 << 20, TargetFileSize: 16 << 20, Codec: format.CodecNone})
				require.NoError(t, err)
			})
		})
		t.Logf("write: raw %.0f MiB/s, ours %.0f MiB/s, ratio %.2f, peak memory %d MiB, %d connections", raw, ours, ours/raw, memory>>20, dials.Swap(0))
		raw = rate(rawRead)
		memory = peak(func() { ours = rate(func() { require.Equal(t, size, restore(h)) }) })
		t.Logf("restore: raw %.0f MiB/s, ours %.0f MiB/s, ratio %.2f, peak memory %d MiB, %d connections", raw, ours, ours/raw, memory>>20, dials.Swap(0))
	}
}
