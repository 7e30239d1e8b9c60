package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSuite runs the acceptance suite on the fake.
func TestSuite(t *testing.T) {
	f := newFake(t)
	backendtest.Run(t, func(t *testing.T) backends.Backend {
		return f.open(t, func(o *Options) { o.Listing = ListingFlat })
	}, backendtest.Options{})
}

// TestSuiteOfTrees runs what has to do with lists on the other way of listing.
func TestSuiteOfTrees(t *testing.T) {
	f := newFake(t)
	for _, c := range backendtest.Checks() {
		switch c.Name {
		case "list-order", "children", "many-names", "list-follows", "list-race", "remove", "empty-folders", "remove-all", "leftovers", "concurrency":
			t.Run(c.Name, func(t *testing.T) {
				require.NoError(t, c.Run(t.Context(), f.open(t, func(o *Options) { o.Listing = ListingTree })))
			})
		}
	}
}

func put(t testing.TB, b *Backend, name string, data []byte, o backends.CreateOptions) (backends.Info, error) {
	t.Helper()
	w, err := b.Create(t.Context(), name, o)
	if err != nil {
		return backends.Info{}, err
	}
	if _, err := w.Write(data); err != nil {
		return backends.Info{}, errors.Join(err, w.Abort(t.Context()))
	}
	return w.Finish(t.Context())
}

func get(t testing.TB, b *Backend, name string) []byte {
	t.Helper()
	s, err := b.Open(t.Context(), name)
	require.NoError(t, err)
	defer s.Close()
	data := make([]byte, s.Info().Size)
	require.NoError(t, s.ReadAt(t.Context(), data, 0))
	return data
}

// TestStoreWithoutConditions: a store that ignores If-None-Match is found out
// before it can do harm.
func TestStoreWithoutConditions(t *testing.T) {
	f := newFake(t)
	f.noCond = true
	b := f.open(t, nil)
	for range 2 {
		for _, size := range []int{10, 9 * mib} {
			_, err := put(t, b, "x", make([]byte, size), backends.CreateOptions{Exclusive: true})
			require.ErrorIs(t, err, inflight.ErrUnsupported)
			require.ErrorContains(t, err, "ignores If-None-Match")
			require.ErrorContains(t, err, "exclusive=off")
		}
	}
	_, err := b.Stat(t.Context(), "x")
	require.ErrorIs(t, err, inflight.ErrNotExist, "nothing was created")
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		require.Fail(t, "the probe is left", info.Name)
	}
	require.Empty(t, f.uploads)

	off := f.open(t, func(o *Options) { o.Exclusive = ExclusiveOff })
	require.False(t, off.Capabilities().Exclusive)
	_, err = off.Create(t.Context(), "x", backends.CreateOptions{Exclusive: true})
	require.ErrorIs(t, err, inflight.ErrUnsupported)
	_, err = put(t, off, "x", []byte("x"), backends.CreateOptions{})
	require.NoError(t, err)

	trusting := f.open(t, func(o *Options) { o.Exclusive = ExclusiveTrust })
	_, err = put(t, trusting, "y", []byte("y"), backends.CreateOptions{Exclusive: true})
	require.NoError(t, err)
	require.Equal(t, Stats{Puts: 1}, trusting.Stats())
}

// TestProofIsAskedOnce: the store proves once that it minds the condition, and is
// asked again where it could not answer.
func TestProofIsAskedOnce(t *testing.T) {
	f := newFake(t)
	var down atomic.Bool
	down.Store(true)
	f.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		if down.Load() {
			fakeError(w, http.StatusForbidden, "AccessDenied")
		}
		return down.Load()
	}
	b := f.open(t, nil)
	_, err := put(t, b, "x", nil, backends.CreateOptions{Exclusive: true})
	require.ErrorIs(t, err, inflight.ErrPermission)
	down.Store(false)
	_, err = put(t, b, "x", nil, backends.CreateOptions{Exclusive: true})
	require.NoError(t, err)
	before := b.Stats().Requests()
	_, err = put(t, b, "y", nil, backends.CreateOptions{Exclusive: true})
	require.NoError(t, err)
	require.Equal(t, before+1, b.Stats().Requests())
	_, err = put(t, b, "y", nil, backends.CreateOptions{Exclusive: true})
	require.ErrorIs(t, err, inflight.ErrExist)
}

// TestChecksums: what travels in each mode.
func TestChecksums(t *testing.T) {
	for mode, want := range map[Checksum]struct{ put, part, complete, payload string }{
		ChecksumFull:      {"crc32c", "crc32c", "crc32c FULL_OBJECT", "UNSIGNED-PAYLOAD"},
		ChecksumComposite: {"crc32c", "crc32c", "", "UNSIGNED-PAYLOAD"},
		ChecksumSHA256:    {"", "", "", "hash"},
		ChecksumNone:      {"", "", "", "UNSIGNED-PAYLOAD"},
	} {
		t.Run(string(mode), func(t *testing.T) {
			f := newFake(t)
			b := f.open(t, func(o *Options) { o.Checksum = mode })
			require.Equal(t, mode == ChecksumFull, b.Capabilities().ServerChecksum)
			data := bytes.Repeat([]byte("0123456789"), mib)
			_, err := put(t, b, "small", data[:10], backends.CreateOptions{})
			require.NoError(t, err)
			_, err = put(t, b, "large", data, backends.CreateOptions{})
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, get(t, b, "large")))
			for _, r := range f.requests() {
				got := ""
				if r.Header.Get("X-Amz-Checksum-Crc32c") != "" {
					got = strings.TrimSpace("crc32c " + r.Header.Get("X-Amz-Checksum-Type"))
				}
				payload := r.Header.Get("X-Amz-Content-Sha256")
				if len(payload) == 64 {
					payload = "hash"
				}
				switch q := r.URL.Query(); {
				case r.Method == http.MethodPut && q.Has("partNumber"):
					require.Equal(t, want.part, got)
					require.Equal(t, want.payload, payload)
				case r.Method == http.MethodPut:
					require.Equal(t, want.put, got)
					require.Equal(t, want.payload, payload)
				case r.Method == http.MethodPost && q.Has("uploadId"):
					require.Equal(t, want.complete, got)
				}
			}
		})
	}
}

// TestDoubtful: what may go well the next time is tried again, but not for ever.
func TestDoubtful(t *testing.T) {
	for name, refusal := range map[string]struct {
		status int
		code   string
		want   error
		mend   string
	}{
		"damaged on the way":   {http.StatusBadRequest, "BadDigest", inflight.ErrCorrupt, "checksum=composite"},
		"folder that is going": {http.StatusConflict, "ExistingObjectIsDirectory", inflight.ErrConfig, "another name"},
	} {
		for bad, ok := range map[int32]bool{doubtTries - 1: true, doubtTries: false} {
			t.Run(fmt.Sprintf("%s/%d", name, bad), func(t *testing.T) {
				f := newFake(t)
				var n atomic.Int32
				f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodPut || n.Add(1) > bad {
						return false
					}
					fakeError(w, refusal.status, refusal.code)
					return true
				}
				_, err := put(t, f.open(t, nil), "x", []byte("x"), backends.CreateOptions{})
				if ok {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, refusal.want)
				require.ErrorContains(t, err, refusal.mend)
				require.Equal(t, bad, n.Load())
			})
		}
	}
}

// TestFailedPart: what was wrong with a part is what Write or Finish answers,
// whichever comes next.
func TestFailedPart(t *testing.T) {
	f := newFake(t)
	failed := make(chan struct{})
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") != "1" {
			return false
		}
		fakeError(w, http.StatusInsufficientStorage, "XMinioStorageFull")
		close(failed)
		return true
	}
	b := f.open(t, nil)
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	if _, err = o.Write(make([]byte, 9*mib)); err != nil { // it may hear of it already
		require.ErrorIs(t, err, inflight.ErrNoSpace)
	}
	<-failed
	require.Eventually(t, func() bool { return o.(*object).ctx.Err() != nil }, 5*time.Second, time.Millisecond)
	_, err = o.Finish(t.Context())
	require.ErrorIs(t, err, inflight.ErrNoSpace)
	require.NotErrorIs(t, err, context.Canceled)
	require.Empty(t, f.uploads)
}

// TestFinishIsPunctual: Finish ends with its context, also while it waits for the
// parts before the last one.
func TestFinishIsPunctual(t *testing.T) {
	f := newFake(t)
	hang := make(chan struct{})
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") != "2" {
			return false
		}
		<-hang
		return true
	}
	defer close(hang)
	b := f.open(t, func(o *Options) { o.Workers, o.Connections, o.PartSize = 1, 3, minPart })
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	for _, n := range []int{minPart + 1, minPart - 1, mib} { // the second part hangs, the third waits
		_, err = o.Write(make([]byte, n))
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = o.Finish(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, inflight.ErrOutcomeUnknown)
	require.Less(t, time.Since(start), 1500*time.Millisecond)
}

// TestSlowRole: a role that does not answer holds nobody longer than its context.
func TestSlowRole(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "MINIO_ROOT_USER", "MINIO_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	f := newFake(t)
	hang, role := make(chan struct{}), newFake(t)
	role.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		<-hang
		fmt.Fprint(w, `{"AccessKeyID":"key","SecretAccessKey":"secret","Expiration":"2099-01-01T00:00:00Z"}`)
		return true
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	b := f.open(t, func(o *Options) { o.AccessKey, o.SecretKey = "", "" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := b.Stat(ctx, "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), time.Second)
	close(hang)
	_, err = put(t, b, "x", []byte("x"), backends.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "x", string(get(t, b, "x")))
}

// TestRemoveInPart: what cannot be removed is named, and the rest goes.
func TestRemoveInPart(t *testing.T) {
	f := newFake(t)
	b := f.open(t, nil)
	for _, name := range []string{"a", "a-locked", "b", "b-locked"} {
		_, err := put(t, b, name, nil, backends.CreateOptions{})
		require.NoError(t, err)
	}
	err := b.Remove(t.Context(), "a", "a-locked", "b", "b-locked", "c")
	require.ErrorIs(t, err, inflight.ErrPermission)
	require.ErrorContains(t, err, "ckpt/a-locked")
	require.ErrorContains(t, err, "ckpt/b-locked")
	var left []string
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		left = append(left, info.Name)
	}
	require.Equal(t, []string{"a-locked", "b-locked"}, left)
}

// TestRestingStreams: streams that nobody reads do not keep others from their
// connection, and go on when they are read again.
func TestRestingStreams(t *testing.T) {
	f := newFake(t)
	b := f.open(t, func(o *Options) { o.Connections = 1 })
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // more than buffers on the way take
	_, err := put(t, b, "x", data, backends.CreateOptions{})
	require.NoError(t, err)
	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	var streams []io.ReadCloser
	got := make([]byte, 1000)
	for range 2 {
		r, err := s.Stream(t.Context(), 0, -1)
		require.NoError(t, err)
		_, err = io.ReadFull(r, got)
		require.NoError(t, err)
		streams = append(streams, r)
	}
	_, err = b.Stat(t.Context(), "x")
	require.NoError(t, err)
	for _, r := range streams {
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[1000:], rest))
		require.NoError(t, r.Close())
	}
}

// TestReplacedObjects: a store that minds neither If-Match nor Range is found
// out.
func TestReplacedObjects(t *testing.T) {
	f := newFake(t)
	b := f.open(t, nil)
	_, err := put(t, b, "x", []byte("0123456789"), backends.CreateOptions{})
	require.NoError(t, err)
	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	}
	require.ErrorIs(t, s.ReadAt(t.Context(), make([]byte, 3), 2), inflight.ErrUnsupported)
	_, err = put(t, b, "x", []byte("9876543210"), backends.CreateOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, s.ReadAt(t.Context(), make([]byte, 10), 0), inflight.ErrCorrupt)
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("If-Match")
		return false
	}
	require.ErrorIs(t, s.ReadAt(t.Context(), make([]byte, 10), 0), inflight.ErrCorrupt)
}

// TestCloseAborts: an upload does not outlive the backend that began it.
func TestCloseAborts(t *testing.T) {
	f := newFake(t)
	b := f.open(t, nil)
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(make([]byte, 20*mib))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Empty(t, f.uploads)
	_, err = o.Finish(t.Context())
	require.ErrorIs(t, err, inflight.ErrClosed)
}

// TestPartsGrow: however large an object, 10,000 parts are never passed, and no
// part passes a quarter of the memory.
func TestPartsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Bucket: "b", PartSize: rapid.Int64Range(minPart, 64*mib).Draw(t, "part")}
		o.Memory = rapid.Int64Range(o.PartSize, 4<<30).Draw(t, "memory")
		require.NoError(t, o.fill())
		hint := rapid.Int64Range(0, 1<<40).Draw(t, "hint")
		last, total, bound := int64(0), int64(0), max(o.PartSize, o.Memory)
		if hint == 0 {
			bound = max(o.PartSize, o.Memory/4)
		}
		for i := range maxParts {
			size := o.partSize(i, hint)
			if size < last || size > bound {
				t.Fatalf("part %d has %d bytes, the last one had %d, and the bound is %d", i, size, last, bound)
			}
			last, total = size, total+size
		}
		if hint <= o.Memory*maxParts {
			require.GreaterOrEqual(t, total, hint, "what was announced fits")
		}
		require.GreaterOrEqual(t, total, o.maxObject())
	})
	b := newFake(t).open(t, nil)
	require.Greater(t, b.Capabilities().MaxObject, int64(140<<30))
}

// TestPool: the limit holds while something will be given back, and is exceeded
// rather than waiting for ever.
func TestPool(t *testing.T) {
	p := newPool(3 * chunkSize)
	flying, err := p.get(t.Context(), chunkSize)
	require.NoError(t, err)
	p.fly(chunkSize)
	for range 2 {
		_, err = p.get(t.Context(), chunkSize)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = p.get(ctx, chunkSize)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	got := make(chan error)
	go func() { _, err := p.get(t.Context(), chunkSize); got <- err }()
	p.land([][]byte{flying}, chunkSize)
	require.NoError(t, <-got)
	_, err = p.get(t.Context(), chunkSize) // nothing flies
	require.NoError(t, err)
	require.Equal(t, int64(4*chunkSize), p.used)
}

// TestManyWriters: more writers than there is memory for, none of which goes on
// before all have begun, do not wait for each other for ever.
func TestManyWriters(t *testing.T) {
	b := newFake(t).open(t, func(o *Options) { o.Memory = 16 * mib })
	var all []backends.Object
	for i := range 12 {
		o, err := b.Create(t.Context(), fmt.Sprint("x", i), backends.CreateOptions{})
		require.NoError(t, err)
		_, err = o.Write(make([]byte, 3*mib))
		require.NoError(t, err)
		all = append(all, o)
	}
	for _, o := range all {
		_, err := o.Write(make([]byte, 8*mib))
		require.NoError(t, err)
	}
	for _, o := range all {
		_, err := o.Finish(t.Context())
		require.NoError(t, err)
	}
	require.Zero(t, b.pool.used)
	require.Zero(t, b.pool.flying)
}

func TestErrors(t *testing.T) {
	b := newFake(t).open(t, nil)
	answer := func(status int, code string) error {
		return minio.ErrorResponse{StatusCode: status, Code: code, Message: "line one\n  line two"}
	}
	for name, c := range map[string]struct {
		err       error
		kind      error
		retryable bool
	}{
		"key":           {answer(404, "NoSuchKey"), inflight.ErrNotExist, false},
		"signature":     {answer(403, "SignatureDoesNotMatch"), inflight.ErrAuth, false},
		"clock":         {answer(403, "RequestTimeTooSkewed"), inflight.ErrAuth, false},
		"token":         {answer(400, "ExpiredToken"), inflight.ErrAuth, false},
		"other 403":     {answer(403, "SomethingNew"), inflight.ErrPermission, false},
		"other 401":     {answer(401, ""), inflight.ErrAuth, false},
		"region":        {answer(301, "PermanentRedirect"), inflight.ErrConfig, false},
		"full":          {answer(507, "XMinioStorageFull"), inflight.ErrNoSpace, false},
		"other 507":     {answer(507, ""), inflight.ErrNoSpace, false},
		"quota":         {answer(403, "QuotaExceeded"), inflight.ErrNoSpace, false},
		"slow":          {answer(503, "SlowDown"), inflight.ErrUnavailable, true},
		"too many":      {answer(429, ""), inflight.ErrUnavailable, true},
		"conflict":      {answer(409, "ConditionalRequestConflict"), inflight.ErrUnavailable, true},
		"internal":      {answer(500, "InternalError"), inflight.ErrUnavailable, true},
		"gateway":       {answer(502, ""), inflight.ErrUnavailable, true},
		"slow request":  {answer(400, "RequestTimeout"), inflight.ErrTimeout, true},
		"no such thing": {answer(501, "NotImplemented"), inflight.ErrUnsupported, false},
		"method":        {answer(405, "MethodNotAllowed"), inflight.ErrReadOnly, false},
		"lock":          {answer(403, "ObjectLocked"), inflight.ErrReadOnly, false},
		"digest":        {answer(400, "BadDigest"), inflight.ErrCorrupt, false},
		"large":         {answer(400, "EntityTooLarge"), inflight.ErrTooLarge, false},
		"exists":        {answer(412, "PreconditionFailed"), inflight.ErrExist, false},
		"range":         {answer(416, "InvalidRange"), inflight.ErrTorn, false},
		"files":         {&url.Error{Op: "Put", URL: "http://h/long?X-Amz-Signature=hunter2hunter2", Err: &net.OpError{Op: "socket", Err: syscall.EMFILE}}, inflight.ErrTooManyFiles, false},
		"refused":       {&url.Error{Op: "Put", URL: "http://h/hunter2hunter2", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, inflight.ErrUnavailable, true},
		"reset":         {syscall.ECONNRESET, inflight.ErrUnavailable, true},
		"timeout":       {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, inflight.ErrTimeout, true},
		"canceled":      {&url.Error{Err: context.Canceled}, context.Canceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.fail("op", "ckpt/x", c.err)
			require.ErrorIs(t, err, c.kind)
			require.Equal(t, c.retryable, inflight.Retryable(err))
			require.Contains(t, err.Error(), "op s3://bucket/ckpt/x: ")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "hunter2")
			require.Equal(t, err, b.fail("again", "y", err), "it is wrapped once")
		})
	}
	for status, want := range map[int]bool{500: true, 502: true, 503: true, 408: true, 507: false, 501: false, 412: false, 403: false, 400: false} {
		require.Equal(t, want, ambiguous(minio.ErrorResponse{StatusCode: status}), status)
	}
	require.True(t, ambiguous(io.ErrUnexpectedEOF))
}

func TestStyles(t *testing.T) {
	for style, want := range map[Style]string{StyleAuto: "/bucket/ckpt/x", StylePath: "/bucket/ckpt/x", StyleVirtual: "/ckpt/x"} {
		f := newFake(t)
		b := f.open(t, func(o *Options) { o.Endpoint, o.Style = "http://store.example", style })
		var dialled string
		b.wire.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialled = addr
			return new(net.Dialer).DialContext(ctx, network, f.Listener.Addr().String())
		}
		_, err := put(t, b, "x", nil, backends.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, want, f.requests()[0].URL.Path)
		require.Equal(t, map[bool]string{false: "store.example:80", true: "bucket.store.example:80"}[style == StyleVirtual], dialled)
	}
}

func TestURL(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	parse := func(s string) (Options, error) {
		u, err := url.Parse(s)
		require.NoError(t, err)
		return parseURL(u)
	}
	o, err := parse("s3://bucket/a/b/?endpoint=https://h:9000&region=r&style=path&part-size=16MiB&memory=1GB&workers=3&connections=9&timeout=5s&retry-for=1m&checksum=sha256&exclusive=trust&listing=flat&anonymous=true&ca=/x")
	require.NoError(t, err)
	require.Equal(t, Options{Bucket: "bucket", Prefix: "a/b", Endpoint: "https://h:9000", Region: "r", Style: StylePath, CAFile: "/x", Anonymous: true,
		PartSize: 16 * mib, Memory: 1e9, Workers: 3, Connections: 9, Timeout: 5 * time.Second, RetryFor: time.Minute,
		Checksum: ChecksumSHA256, Exclusive: ExclusiveTrust, Listing: ListingFlat}, o)

	t.Setenv("AWS_ENDPOINT_URL", "http://all")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://s3")
	t.Setenv("AWS_DEFAULT_REGION", "default")
	o, err = parse("s3://bucket")
	require.NoError(t, err)
	require.Equal(t, "http://s3", o.Endpoint)
	require.Equal(t, "default", o.Region)
	b, err := backends.Open(t.Context(), "s3://bucket/a?region=r&endpoint=http%3A%2F%2Fh")
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, "s3://bucket/a?region=r&endpoint=http%3A%2F%2Fh", b.URL(), "it opens the same again")

	for _, bad := range []string{"8 MiB", "-1", "0", "MiB", "8XB", "9999999TiB", ""} {
		_, err := parseSize(bad)
		require.Error(t, err, bad)
	}
	for s, n := range map[string]int64{"5": 5, "5B": 5, "5KiB": 5 << 10, "5MB": 5e6, "5kB": 5e3, "1TiB": 1 << 40} {
		got, err := parseSize(s)
		require.NoError(t, err)
		require.Equal(t, n, got, s)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err = New(Options{Bucket: "b", CAFile: empty, Anonymous: true})
	require.ErrorIs(t, err, inflight.ErrConfig)
	_, err = New(Options{Bucket: "b", AccessKey: "a"})
	require.ErrorContains(t, err, "give both")
}
