package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/e2e/servers"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// full is set for the bars as they are meant, on a quiet machine; otherwise less
// is moved, and times decide nothing.
var full = os.Getenv("E2E_BARS") != ""

func pick[T any](whole, short T) T {
	if full {
		return whole
	}
	return short
}

// stream is n bytes that cannot be read at an offset, as what a task writes.
type endless struct{ block []byte }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.block), nil }

func source(n int64) io.Reader { return io.LimitReader(endless{random(1, 512<<10)}, n) }

// best runs two things in turn and returns the shortest time of each, as they
// tell it.
func best(t *testing.T, rounds int, ours, raw func() (time.Duration, error)) (o, r time.Duration) {
	t.Helper()
	o, r = time.Hour, time.Hour
	for range rounds {
		took, err := ours()
		require.NoError(t, err)
		o = min(o, took)
		took, err = raw()
		require.NoError(t, err)
		r = min(r, took)
	}
	return o, r
}

// timed times all of f.
func timed(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		start := time.Now()
		err := f()
		return time.Since(start), err
	}
}

// TestThroughput: writing and reading through the backend is as fast as through
// minio-go alone, with as many parts of the same size.
func TestThroughput(t *testing.T) {
	s := shared(t, servers.VersityGW)
	name := bucket(t, s)
	b := open(t, urlOf(s, name, "fast"))
	c := raw(t, s)
	size := pick(int64(1<<30), 128<<20)
	write := func() error {
		o, err := b.Create(t.Context(), "ours", backends.CreateOptions{})
		if err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{o}, source(size), make([]byte, 512<<10)); err != nil {
			return err
		}
		_, err = o.Finish(t.Context())
		return err
	}
	rawWrite := func() error {
		_, err := c.PutObject(t.Context(), name, "raw", source(size), -1, minio.PutObjectOptions{PartSize: 8 << 20, ConcurrentStreamParts: true, NumThreads: 4})
		return err
	}
	o, r := best(t, 3, timed(write), timed(rawWrite))
	ratio := r.Seconds() / o.Seconds()
	t.Logf("write: ours %.0f MiB/s, minio-go %.0f MiB/s: %.2f", mibs(size, o), mibs(size, r), ratio)
	require.Greater(t, ratio, pick(0.9, 0))

	read := func() error {
		src, err := b.Open(t.Context(), "ours")
		if err != nil {
			return err
		}
		defer src.Close()
		body, err := src.Stream(t.Context(), 0, -1)
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, body, make([]byte, 512<<10))
		return err
	}
	rawRead := func() error {
		body, err := c.GetObject(t.Context(), name, "raw", minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{body}, make([]byte, 512<<10))
		return err
	}
	o, r = best(t, 3, timed(read), timed(rawRead))
	ratio = r.Seconds() / o.Seconds()
	t.Logf("read: ours %.0f MiB/s, minio-go %.0f MiB/s: %.2f", mibs(size, o), mibs(size, r), ratio)
	require.Greater(t, ratio, pick(0.9, 0))
}

func mibs(n int64, d time.Duration) float64 { return float64(n) / mib / d.Seconds() }

// TestMemory: a checkpoint of any size is written and restored in 96 MiB. It is
// done by a process of its own, which is this test again.
func TestMemory(t *testing.T) {
	if url := os.Getenv("E2E_MEMORY"); url != "" {
		useMemory(t, url)
		return
	}
	s := shared(t, servers.VersityGW)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemory$", "-test.v")
	cmd.Env = append(os.Environ(), "E2E_MEMORY="+urlOf(s, bucket(t, s), "memory"), "GOMEMLIMIT=80MiB")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, after, found := strings.Cut(string(out), "peak memory: ")
	require.True(t, found, "%s", out)
	number, _, _ := strings.Cut(after, " ")
	peak, err := strconv.Atoi(number)
	require.NoError(t, err)
	t.Logf("%s", out)
	t.Logf("%d MiB were written and restored with %d MiB of memory", pick(1024, 256), peak)
	require.LessOrEqual(t, peak, 96)
}

func useMemory(t *testing.T, url string) {
	b := open(t, url+"&memory=24MiB&workers=2")
	size := pick(128<<20, 32<<20)
	handles := capture(t, b, size, writer.Options{MaxBuffered: 16 << 20, TargetFileSize: 8 << 20})
	t.Logf("written: %s, of which the program is %s", status("VmHWM"), status("RssFile"))
	require.NoError(t, b.Close())
	readBack(t, open(t, url), size, handles) // as a process that restores does
	kib, err := strconv.Atoi(strings.Fields(status("VmHWM"))[0])
	require.NoError(t, err)
	fmt.Printf("peak memory: %d MiB, anonymous at the end %s\n", kib>>10, status("RssAnon"))
}

const tasks = 8

// capture writes size bytes of channel state for each of 8 subtasks, as fast as
// there is room for them.
func capture(t *testing.T, b backends.Backend, size int, o writer.Options) []inflight.Handle {
	o.Backend, o.Job, o.TasksPerFile, o.Codec = b, "job", tasks, format.CodecNone
	pool, err := writer.NewPool(o)
	require.NoError(t, err)
	block := random(2, 32<<10)
	handles := make([]inflight.Handle, tasks)
	var wg sync.WaitGroup
	for i := range tasks {
		w, err := pool.Writer(inflight.Task{Vertex: "count", Subtask: i})
		require.NoError(t, err)
		c, err := w.Start(1, writer.StartOptions{Epoch: 1, Attempt: fmt.Sprint("a", time.Now().UnixNano())})
		require.NoError(t, err)
		wg.Go(func() {
			for off := 0; off < size; off += len(block) {
				if err := pool.WaitRoom(t.Context(), int64(4*tasks*len(block))); err != nil {
					t.Error(err)
				}
				_ = c.Input(inflight.InputChannel{}, inflight.Pos{Offset: uint64(off)}, inflight.Bytes(block)) // the result says why not
			}
			_ = c.FinishInput()
			_ = c.FinishOutput()
			<-c.Done()
			var err error
			if handles[i], err = c.Handle(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, pool.Close())
	return handles
}

// readBack reads what capture wrote, one subtask after the other.
func readBack(t *testing.T, b backends.Backend, size int, handles []inflight.Handle) {
	r := reader.Open(b, "job", reader.Options{})
	for _, h := range handles {
		sub, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		n := 0
		for buffer, err := range sub.Buffers(t.Context()) {
			require.NoError(t, err)
			n += len(buffer.Bytes)
		}
		sub.Close()
		require.Equal(t, size, n)
	}
	require.NoError(t, r.Close())
}

// replay restores what capture wrote, all subtasks at once.
func replay(t *testing.T, b backends.Backend, size int, handles []inflight.Handle) {
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: 1, Attempt: "a", Mode: format.ExactlyOnce, Alignment: format.Unaligned, Topology: topology(tasks)}
	m.SetHandles(handles)
	plan, err := restore.NewPlan(m, m.Topology, restore.Options{})
	require.NoError(t, err)
	from := reader.Open(b, "job", reader.Options{})
	r, err := restore.NewReplay(t.Context(), from.At(m, path.Join("job", format.CheckpointDir(1))), plan, restore.ReplayOptions{})
	require.NoError(t, err)
	result, err := r.Run(t.Context(), func(inflight.Task) restore.Sink { return nowhere{} })
	require.NoError(t, err)
	require.EqualValues(t, tasks*size, result.Bytes)
	r.Close()
	require.NoError(t, from.Close())
}

// nowhere is a restore.Sink.
type nowhere struct{}

func (nowhere) State(context.Context, inflight.StateName, *reader.Buffer) error { return nil }
func (nowhere) Output(context.Context, inflight.Subpartition, inflight.Pos, *reader.Buffer) error {
	return nil
}
func (nowhere) Input(context.Context, inflight.InputChannel, inflight.Pos, *reader.Buffer) error {
	return nil
}
func (nowhere) Done(context.Context) error { return nil }

// downloadParts reads an object with minio-go, a few parts at a time, each into
// memory of its own.
func downloadParts(ctx context.Context, c *minio.Client, bucket, key string, size, part int64, workers int) error {
	core := minio.Core{Client: c}
	var next atomic.Int64
	failures := make(chan error, workers)
	for range workers {
		go func() {
			failures <- func() error {
				p := make([]byte, part)
				for {
					off := (next.Add(1) - 1) * part
					if off >= size {
						return nil
					}
					var o minio.GetObjectOptions
					if err := o.SetRange(off, min(off+part, size)-1); err != nil {
						return err
					}
					body, _, _, err := core.GetObject(ctx, bucket, key, o)
					if err != nil {
						return err
					}
					_, err = io.ReadFull(body, p[:min(part, size-off)])
					if err = errors.Join(err, body.Close()); err != nil {
						return err
					}
				}
			}()
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-failures)
	}
	return err
}

// TestChannelState: channel state is written as fast as minio-go writes bytes,
// and on a link of 100 MB/s restored as fast as it reads them, with requests of
// the same size and as many at a time.
func TestChannelState(t *testing.T) {
	s := shared(t, servers.VersityGW)
	name := bucket(t, s)
	b, c := open(t, urlOf(s, name, "state")), raw(t, s)
	size := pick(128<<20, 16<<20)
	var handles []inflight.Handle
	write := func() error {
		handles = capture(t, b, size, writer.Options{})
		return nil
	}
	rawWrite := func() error {
		_, err := c.PutObject(t.Context(), name, "raw", source(int64(tasks*size)), -1, minio.PutObjectOptions{PartSize: 8 << 20, ConcurrentStreamParts: true, NumThreads: 4})
		return err
	}
	o, r := best(t, 2, timed(write), timed(rawWrite))
	total := int64(tasks * size)
	t.Logf("channel state of %d MiB: ours %.0f MiB/s, minio-go %.0f MiB/s: %.2f", total/mib, mibs(total, o), mibs(total, r), r.Seconds()/o.Seconds())
	require.Greater(t, r.Seconds()/o.Seconds(), pick(0.9, 0))
	readBack(t, b, size, handles)

	measure := func(rounds int, s *servers.Server, requests int) float64 {
		b, c := open(t, urlOf(s, name, "state", "connections", strconv.Itoa(requests))), raw(t, s)
		read := func() error {
			replay(t, b, size, handles)
			return nil
		}
		const part = 8 << 20 // as that of eight subtasks
		rawRead := func() error {
			return downloadParts(t.Context(), c, name, "raw", total, part, requests)
		}
		o, r := best(t, rounds, timed(read), timed(rawRead))
		t.Logf("restore of channel state, %d requests at once: ours %.0f MiB/s, minio-go %.0f MiB/s: %.2f", requests, mibs(total, o), mibs(total, r), r.Seconds()/o.Seconds())
		return r.Seconds() / o.Seconds()
	}
	// The server has the same two cores, and takes from what checking needs.
	require.Greater(t, measure(pick(5, 1), s, 6), pick(0.5, 0))
	wire := servers.NewWire(t, s.Address)
	far := *s
	far.Endpoint, far.Address = "http://"+wire.Address(), wire.Address()
	wire.Fault("bandwidth", "downstream", map[string]any{"rate": 100_000})
	require.Greater(t, measure(pick(2, 1), &far, 1), pick(0.9, 0))
}

// status is a line of /proc/self/status.
func status(field string) string {
	text, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(text), field+":")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// TestRequests: 1,000 subtasks of 1 KB at 100 in a file are 10 files, a manifest
// and the statistics.
func TestRequests(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		const subtasks = 1000
		// The machine may be busy: files wait for their members.
		o := spillway.Options{Writer: writer.Options{TasksPerFile: 100, SealLinger: 5 * time.Second}}
		url := urlOf(s, bucket(t, s), "many")
		j := job(t, url, "job", subtasks, o)
		of := func(i int) []byte { return random(byte(i), 1000) }
		before := j.Backend.(*s3.Backend).Stats()
		_, err := checkpoint(t.Context(), j, of)
		require.NoError(t, err)
		require.NoError(t, j.Close()) // the statistics are written in the background
		after := j.Backend.(*s3.Backend).Stats()
		puts := after.Puts - before.Puts
		t.Logf("1,000 subtasks of 1 KB: %d PUTs, %d other requests", puts, after.Requests()-before.Requests()-puts)
		require.LessOrEqual(t, puts, int64(13), "12, and 1 that is conditional")

		again := job(t, url, "job", subtasks, o)
		before = again.Backend.(*s3.Backend).Stats()
		for i, data := range restored(t, again, subtasks) {
			require.Equal(t, of(i), data)
		}
		after = again.Backend.(*s3.Backend).Stats()
		t.Logf("their restore: %d GETs, %d HEADs, %d bytes", after.Gets-before.Gets, after.Heads-before.Heads, after.Read-before.Read)
	})
}

// TestScattered: 5,000 pieces of 1 KB of one subtask, each between pieces of
// others, are read in 20 requests.
func TestScattered(t *testing.T) {
	s := shared(t, servers.VersityGW)
	url := urlOf(s, bucket(t, s), "scattered")
	const pieces, size, subtasks = 5000, 1000, 4
	o := spillway.Options{Writer: writer.Options{TasksPerFile: subtasks}}
	j := job(t, url, "job", subtasks, o)
	c, err := j.Begin(t.Context())
	require.NoError(t, err)
	for n := range pieces {
		for i := range subtasks {
			task := inflight.Task{Vertex: "count", Subtask: i}
			require.NoError(t, c.Captures[task].Input(inflight.InputChannel{}, inflight.Pos{Offset: uint64(n * size)}, inflight.Bytes(random(byte(n), size))))
		}
	}
	for _, capture := range c.Captures {
		require.NoError(t, capture.FinishInput())
		require.NoError(t, capture.FinishOutput())
	}
	_, err = c.Commit(t.Context(), format.Unaligned)
	require.NoError(t, err)

	again := job(t, url, "job", subtasks, o)
	base := again.Coordinator.Base()
	b := again.Backend.(*s3.Backend)
	before := b.Stats()
	sub, err := again.Reader.At(base.Manifest, base.Dir).Subtask(t.Context(), inflight.Task{Vertex: "count", Subtask: 2})
	require.NoError(t, err)
	defer sub.Close()
	n, read := 0, 0
	var got bytes.Buffer
	for buffer, err := range sub.Buffers(t.Context()) {
		require.NoError(t, err)
		got.Write(buffer.Bytes)
		n++
	}
	read = got.Len()
	require.Equal(t, pieces*size, read)
	for i := range pieces {
		require.Equal(t, random(byte(i), size), got.Next(size))
	}
	after := b.Stats()
	t.Logf("%d pieces of %d bytes: %d GETs", n, size, after.Gets-before.Gets)
	require.LessOrEqual(t, after.Gets-before.Gets, int64(20))
}

// TestCompression: on a link of 20 MB/s, compression of what can be compressed
// pays, and that of what cannot costs nothing.
func TestCompression(t *testing.T) {
	s := shared(t, servers.VersityGW)
	size := pick(32<<20, 8<<20)
	measure := func(kind payload.Kind, codec format.Codec) time.Duration {
		wire := servers.NewWire(t, s.Address)
		far := *s
		far.Endpoint = "http://" + wire.Address()
		const subtasks = 4
		url := urlOf(&far, bucket(t, s), "link", "workers", "1", "connections", "1") // each connection has the rate of the link
		o := spillway.Options{Writer: writer.Options{Codec: codec}}
		data := make([][]byte, subtasks)
		for i := range data {
			data[i] = payload.Channel(kind, i, payload.Input, 0, size/subtasks)
		}
		j := job(t, url, "job", subtasks, o)
		for _, stream := range []string{"upstream", "downstream"} {
			wire.Fault("bandwidth", stream, map[string]any{"rate": 20_000})
		}
		start := time.Now()
		_, err := checkpoint(t.Context(), j, func(i int) []byte { return data[i] })
		require.NoError(t, err)
		took := time.Since(start)
		again := job(t, url, "job", subtasks, o)
		start = time.Now()
		got := restored(t, again, subtasks)
		took += time.Since(start)
		for i := range got {
			require.True(t, bytes.Equal(data[i], got[i]))
		}
		return took
	}
	bars := map[payload.Kind]float64{payload.JSON: 1.8, payload.Random: 0.97}
	for _, kind := range []payload.Kind{payload.JSON, payload.Random} {
		auto, none := time.Hour, time.Hour
		for range pick(3, 1) {
			auto, none = min(auto, measure(kind, format.CodecAuto)), min(none, measure(kind, format.CodecNone))
		}
		ratio := none.Seconds() / auto.Seconds()
		t.Logf("%s, %d MiB: auto %v, none %v: %.2f", kind, size>>20, auto.Round(time.Millisecond), none.Round(time.Millisecond), ratio)
		require.Greater(t, ratio, pick(bars[kind], 0))
	}
}

// TestParallelRestore: on a link of 100 MB/s eight subtasks restore as fast as
// their bytes can be downloaded, and each byte is fetched once. Without the link
// the server gives a GB/s, out of the page cache and on the same cores; there,
// checking the bytes and handing them on takes its share.
func TestParallelRestore(t *testing.T) {
	s := shared(t, servers.VersityGW)
	name := bucket(t, s)
	const subtasks = 8
	data := random(3, pick(32<<20, 4<<20))
	j := job(t, urlOf(s, name, "parallel"), "job", subtasks, spillway.Options{Writer: writer.Options{TasksPerFile: subtasks, Codec: format.CodecNone, MaxBuffered: 1 << 30}})
	done, err := checkpoint(t.Context(), j, func(int) []byte { return data })
	require.NoError(t, err)
	stored := done.Manifest.FileBytes()

	measure := func(url string) (ratio, fetched float64) {
		b := open(t, url)
		rawRead := func() error {
			for _, f := range done.Manifest.Files {
				if err := download(t.Context(), b, "job/"+f.Name); err != nil {
					return err
				}
			}
			return nil
		}
		restore := func() (time.Duration, error) {
			again := job(t, url, "job", subtasks, spillway.Options{})
			before, start := again.Backend.(*s3.Backend).Stats(), time.Now()
			restoreInto(t, again, func(int, []byte) {})
			took := time.Since(start)
			fetched = float64(again.Backend.(*s3.Backend).Stats().Read-before.Read) / float64(stored)
			return took, again.Close()
		}
		o, r := best(t, 3, restore, timed(rawRead))
		ratio = r.Seconds() / o.Seconds()
		t.Logf("8 subtasks: %.0f MiB/s, download %.0f MiB/s: %.2f; %.3f of the bytes were fetched", mibs(stored, o), mibs(stored, r), ratio, fetched)
		return ratio, fetched
	}
	ratio, fetched := measure(urlOf(s, name, "parallel"))
	require.Greater(t, ratio, pick(0.15, 0))
	require.Less(t, fetched, 1.05, "each byte is fetched once, but for the ends of files")
	wire := servers.NewWire(t, s.Address)
	far := *s
	far.Endpoint = "http://" + wire.Address()
	wire.Fault("bandwidth", "downstream", map[string]any{"rate": 100_000})
	ratio, _ = measure(urlOf(&far, name, "parallel", "connections", "1")) // each connection has the rate of the link
	require.Greater(t, ratio, pick(0.9, 0))
}

func download(ctx context.Context, b backends.Backend, name string) error {
	src, err := b.Open(ctx, name)
	if err != nil {
		return err
	}
	defer src.Close()
	body, err := src.Stream(ctx, 0, -1)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, body, make([]byte, 512<<10))
	return err
}

// TestConnections prints what more connections are worth on a link with latency.
func TestConnections(t *testing.T) {
	if !full {
		t.Log("the rates in docs/backends.md: set E2E_BARS to measure them")
		return
	}
	s := shared(t, servers.SeaweedFS) // which keeps connections
	for _, n := range []int{2, 8, 32} {
		wire := servers.NewWire(t, s.Address)
		far := *s
		far.Endpoint = "http://" + wire.Address()
		b := open(t, urlOf(&far, bucket(t, s), "c", "connections", strconv.Itoa(n)))
		wire.Fault("latency", "downstream", map[string]any{"latency": 100})
		const writers, objects = 32, 5
		start := time.Now()
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range objects {
					if _, err := put(t.Context(), b, fmt.Sprintf("%d/%d", w, i), random(1, 1000), backends.CreateOptions{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%d connections: %.0f small objects/s at 100 ms", n, writers*objects/time.Since(start).Seconds())
	}
}
