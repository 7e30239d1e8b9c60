// Package s3 stores objects in a bucket of Amazon S3, MinIO, or another store
// that speaks the protocol, through minio-go.
//
// An object that fits into one part is one PUT. A larger one is uploaded in
// parts, several at a time, while it is written; it becomes visible when the
// upload is completed. The memory of all parts of a backend is bounded. An
// exclusive create is a PUT, or a completion, with If-None-Match: *; every
// object names its writer, so that a writer whose answer was lost recognises its
// own. What a writer that was killed leaves is an unfinished upload; Leftovers
// lists them.
//
// Reads are pinned to the version that was opened by its ETag, and go on where
// they were cut off. Requests are tried again with growing pauses; the end of a
// context ends them at once.
//
// The URL is s3://bucket/folder?setting=value&…; the settings are the fields of
// Options, and docs/backends.md explains them. Keys come from AWS_ACCESS_KEY_ID
// and AWS_SECRET_ACCESS_KEY, MINIO_ACCESS_KEY and MINIO_SECRET_KEY, the profile
// AWS_PROFILE of the shared files, or the role of the instance, in this order.
package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

func init() { backends.Register("s3", openURL) }

func openURL(_ context.Context, u *url.URL) (backends.Backend, error) {
	o, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	b.query = u.RawQuery
	return b, nil
}

// Backend is a folder in a bucket.
type Backend struct {
	opt    Options
	prefix string // of the keys, "" or with a slash at its end
	query  string // of the URL
	signer *keys
	core   minio.Core
	wire   *wire
	pool   *pool

	life, after         context.Context // end with Close: of calls, and of what it waits for
	endLife, endAfter   context.CancelCauseFunc
	observer            atomic.Pointer[inflight.Observer]
	reached, successful atomic.Bool // the store has answered once, or has done what was asked
	proven              [2]proof    // of PUT and of completion

	mu         sync.Mutex
	open       map[*object]struct{} // nil after Close
	gone       bool                 // Close waits for the background
	background sync.WaitGroup       // aborts of uploads
}

// New returns the store in a folder of a bucket. It makes no request.
func New(o Options) (*Backend, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	b := &Backend{opt: o, prefix: backends.Below(o.Prefix), pool: newPool(o.Memory), open: map[*object]struct{}{}}
	for i := range b.proven {
		b.proven[i].lock = make(chan struct{}, 1)
	}
	var err error
	if b.wire, err = newWire(&o); err != nil {
		return nil, err
	}
	if b.signer, err = credentialsOf(&o); err != nil {
		return nil, err
	}
	if b.core, err = newCore(&o, b.wire, b.signer); err != nil {
		return nil, err
	}
	b.life, b.endLife = context.WithCancelCause(context.Background())
	b.after, b.endAfter = context.WithCancelCause(context.Background())
	return b, nil
}

func newCore(o *Options, w *wire, k *keys) (minio.Core, error) {
	host, secure := "s3.amazonaws.com", true
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return minio.Core{}, o.refuse("the endpoint is no http:// or https:// URL of a host", "use endpoint=https://host:port")
		}
		host, secure = u.Host, u.Scheme == "https"
		if o.Region == "" {
			o.Region = "us-east-1"
		}
	}
	style := map[Style]minio.BucketLookupType{StyleAuto: minio.BucketLookupAuto, StylePath: minio.BucketLookupPath, StyleVirtual: minio.BucketLookupDNS}[o.Style]
	core, err := minio.NewCore(host, &minio.Options{Creds: k.Credentials, Secure: secure, Transport: w, Region: o.Region, BucketLookup: style, MaxRetries: 1})
	if err != nil {
		return minio.Core{}, o.refuse(err.Error(), "use endpoint=https://host:port")
	}
	core.SetAppInfo("spillway", "1")
	return *core, nil
}

// URL returns the URL of the root.
func (b *Backend) URL() string {
	u := url.URL{Scheme: "s3", Host: b.opt.Bucket, Path: "/" + b.opt.Prefix, RawQuery: b.query}
	return u.String()
}

// object names a key in errors.
func (b *Backend) object(key string) string { return "s3://" + b.opt.Bucket + "/" + key }

// Capabilities declares what the store promises. That the store minds
// If-None-Match is proven before the first exclusive create, see
// Options.Exclusive.
func (b *Backend) Capabilities() backends.Capabilities {
	return backends.Capabilities{Exclusive: b.opt.Exclusive != ExclusiveOff, AtomicList: true, HeldUntilFinish: true, Remote: true,
		ServerChecksum: b.opt.Checksum == ChecksumFull, MaxObject: b.opt.maxObject()}
}

// SetObserver has o told of requests that are made again. Calls under way may
// not tell.
func (b *Backend) SetObserver(o inflight.Observer) { b.observer.Store(&o) }

func (b *Backend) tell(name inflight.EventName, op string, err error) {
	if o := b.observer.Load(); o != nil {
		(*o).Observe(inflight.Event{Name: name, Object: op, Count: 1, Err: err})
	}
}

// Stats returns what the backend has sent so far.
func (b *Backend) Stats() Stats { return b.wire.count.stats() }

// Close ends all calls and drops the objects that are being written. It waits at
// most a second for their uploads to be aborted.
func (b *Backend) Close() error {
	b.mu.Lock()
	open := b.open
	b.open = nil
	b.mu.Unlock()
	b.endLife(inflight.ErrClosed)
	var aborts sync.WaitGroup
	for o := range open {
		aborts.Go(func() { _ = o.Abort(b.life) }) // never fails
	}
	aborts.Wait()
	b.mu.Lock()
	b.gone = true
	b.mu.Unlock()
	b.endAfter(inflight.ErrClosed)
	b.background.Wait()
	b.pool.drop()
	b.wire.base.CloseIdleConnections()
	return nil
}

// adopt remembers o, to be dropped with the backend.
func (b *Backend) adopt(o *object) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		return false
	}
	b.open[o] = struct{}{}
	return true
}

func (b *Backend) forget(o *object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, o)
}

// tidy does what has to be done after a call, in the background and under a
// context of its own. It waits for it while ctx lasts, and a moment longer.
func (b *Backend) tidy(ctx context.Context, do func(context.Context)) {
	b.mu.Lock()
	defer func() { b.mu.Unlock() }()
	if b.gone {
		return
	}
	done := make(chan struct{})
	b.background.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(b.after, tidyTime)
		defer cancel()
		do(ctx)
	})
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(tidyGrace):
	}
}

// worked notes that the store has done what was asked: bucket and keys are right.
func (b *Backend) worked() {
	b.reached.Store(true)
	b.successful.Store(true)
}

func (b *Backend) isWorking() bool { return b.successful.Load() }

// SyncNames has nothing to do: what Finish answered for has a name.
func (b *Backend) SyncNames(ctx context.Context, folder string) error {
	_, end, err := b.begin(ctx, "sync names", b.prefix+folder)
	if err == nil {
		end()
	}
	return err
}

// Space is not known: the protocol has no question for it.
func (b *Backend) Space(ctx context.Context) (backends.Space, error) {
	_, end, err := b.begin(ctx, "space", b.prefix)
	if err != nil {
		return backends.Space{}, err
	}
	end()
	return backends.Space{}, b.fail("space", b.prefix, fmt.Errorf("%w: object stores do not tell what is free", inflight.ErrUnsupported))
}

// Stat looks at one object.
func (b *Backend) Stat(ctx context.Context, name string) (backends.Info, error) {
	st, err := b.head(ctx, "stat", b.prefix+name)
	if err != nil {
		return backends.Info{}, err
	}
	return info(name, st), nil
}

// head asks for the properties of an object. Its answer has no body, so that
// what is wrong with a request is asked once more where that is not clear.
func (b *Backend) head(ctx context.Context, op, key string) (st minio.ObjectInfo, err error) {
	ctx, end, err := b.begin(ctx, op, key)
	if err != nil {
		return st, err
	}
	defer end()
	if !canBeKey(key[len(b.prefix):]) {
		return st, b.fail(op, key, fmt.Errorf("%w: not a name", inflight.ErrConfig))
	}
	if key == b.prefix || strings.HasSuffix(key, "/") {
		return st, b.fail(op, key, fmt.Errorf("no object of that name: %w", inflight.ErrNotExist))
	}
	known := b.isWorking()
	err = b.call(ctx, op, key, func(ctx context.Context) (err error) {
		st, err = b.core.StatObject(ctx, b.opt.Bucket, key, minio.StatObjectOptions{Checksum: b.opt.Checksum == ChecksumFull})
		return err
	})
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok && r.StatusCode < 500 && (!known || r.StatusCode != http.StatusNotFound) {
		if why := b.explain(ctx, op, key); why != nil {
			err = why
		}
	}
	return st, err
}

// canBeKey reports whether name can stand in a request: servers trip over others.
func canBeKey(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// explain asks for the first byte of an object, as the answer to that says in its
// body what is wrong. Nil: nothing is.
func (b *Backend) explain(ctx context.Context, op, key string) error {
	return b.call(ctx, op, key, func(ctx context.Context) error {
		var first minio.GetObjectOptions
		first.Set("Range", "bytes=0-0")
		body, _, _, err := b.core.GetObject(ctx, b.opt.Bucket, key, first)
		if err == nil {
			body.Close()
		}
		return err
	})
}

// info is what the store says of an object.
func info(name string, st minio.ObjectInfo) backends.Info {
	return backends.Info{Name: name, Size: st.Size, Modified: st.LastModified.Truncate(time.Second), ETag: strings.Trim(st.ETag, `"`), CRC32C: checksumOf(st)}
}

// checksumOf returns the CRC-32C of the whole object. A composite one, of an
// upload in parts, is that of the checksums of the parts.
func checksumOf(st minio.ObjectInfo) *uint32 {
	raw, err := base64.StdEncoding.DecodeString(st.ChecksumCRC32C)
	if err != nil || len(raw) != 4 || st.ChecksumMode == "COMPOSITE" {
		return nil
	}
	sum := binary.BigEndian.Uint32(raw)
	return &sum
}

func encodeChecksum(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}
