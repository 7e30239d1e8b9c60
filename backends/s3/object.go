package s3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

const (
	// tidyTime is how long an upload is being aborted in the background, and
	// tidyGrace how long Abort waits for that when its context has ended.
	tidyTime  = 30 * time.Second
	tidyGrace = 700 * time.Millisecond
	// resolveTime is how long a lost answer is looked into when the context of
	// Finish has ended.
	resolveTime = 500 * time.Millisecond
	// writerHeader says who wrote an object.
	writerHeader = "Spillway-Writer"
)

type object struct {
	b         *Backend
	key, name string
	exclusive bool
	hint      int64
	writer    string // unique among all objects

	ctx    context.Context // ends with the object, or with a part that failed
	cancel context.CancelCauseFunc
	ended  atomic.Bool

	busy    sync.Mutex // is held by Write, Finish, and whoever cleans up
	cleaned bool
	size    int64
	crc     uint32
	cur     *part // is being filled
	failed  error // of the first Write that failed
	upload  *upload
}

// upload is a multipart upload under way.
type upload struct {
	id      string
	workers chan struct{}
	wg      sync.WaitGroup

	mu    sync.Mutex
	parts []minio.CompletePart
}

// Create begins an object. It makes no request: the first is made when a part is
// full, or by Finish.
func (b *Backend) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	key := b.prefix + name
	_, end, err := b.begin(ctx, "create", key)
	if err != nil {
		return nil, err
	}
	end()
	if err := backends.CheckName(name); err != nil {
		return nil, err
	}
	if opt.Exclusive && b.opt.Exclusive == ExclusiveOff {
		return nil, b.fail("create", key, fmt.Errorf("%w: exclusive creates are switched off", inflight.ErrUnsupported))
	}
	o := &object{b: b, key: key, name: name, exclusive: opt.Exclusive, hint: opt.SizeHint, writer: writerID(opt.Attempt)}
	o.ctx, o.cancel = context.WithCancelCause(b.life)
	if !b.adopt(o) {
		return nil, b.fail("create", key, inflight.ErrClosed)
	}
	return o, nil
}

// writerID makes a name for the writer of one object. The attempt is in it for
// people: several objects may have one.
func writerID(attempt string) string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	id := hex.EncodeToString(b[:])
	if len(attempt) <= 128 && backends.CheckName(attempt) == nil {
		id = attempt + "." + id
	}
	return id
}

// Write appends p to the part that is being filled. It waits where parts of this
// object are uploaded slower than they come, and where the memory of all objects
// is used up.
func (o *object) Write(p []byte) (int, error) {
	if o.ended.Load() {
		return 0, o.closedError("write")
	}
	o.busy.Lock()
	defer o.busy.Unlock()
	switch {
	case o.cleaned:
		return 0, o.closedError("write")
	case o.failed != nil:
		return 0, o.failed
	}
	n, err := o.take(p)
	o.size += int64(n)
	o.crc = crc32.Update(o.crc, castagnoli, p[:n])
	if err != nil {
		if cause := context.Cause(o.ctx); cause != nil {
			err = cause // a part that failed, or Abort
		}
		o.failed = o.b.fail("write", o.key, err)
	}
	return n, o.failed
}

func (o *object) take(p []byte) (n int, err error) {
	for n < len(p) {
		if err := context.Cause(o.ctx); err != nil {
			return n, err
		}
		if o.cur != nil && o.cur.full() {
			if err := o.send(); err != nil {
				return n, err
			}
		}
		if o.cur == nil {
			done := 0
			if o.upload != nil {
				done = len(o.upload.parts)
			}
			if done == maxParts {
				return n, fmt.Errorf("%w: %d bytes are in %d parts, and a store takes no more", inflight.ErrTooLarge, o.size+int64(n), maxParts)
			}
			o.cur = &part{pool: o.b.pool, limit: o.b.opt.partSize(done, o.hint)}
		}
		k, err := o.cur.fill(o.ctx, p[n:], o.hint)
		if n += k; err != nil {
			return n, err
		}
	}
	if o.upload != nil && o.cur != nil && o.cur.full() {
		return n, o.send() // the first part waits: it may be the only one
	}
	return n, nil
}

// send begins the upload of the part that was filled.
func (o *object) send() error {
	if o.upload == nil {
		id, err := o.initiate()
		if err != nil {
			return err
		}
		o.upload = &upload{id: id, workers: make(chan struct{}, o.b.opt.Workers)}
	}
	u := o.upload
	select {
	case u.workers <- struct{}{}:
	case <-o.ctx.Done():
		return context.Cause(o.ctx)
	}
	p := o.cur
	o.cur = nil
	u.mu.Lock()
	u.parts = append(u.parts, minio.CompletePart{PartNumber: len(u.parts) + 1})
	number := len(u.parts)
	u.mu.Unlock()
	o.b.pool.fly(p.taken)
	u.wg.Go(func() {
		defer func() { <-u.workers }()
		defer p.release(p.taken)
		if err := o.uploadPart(u, number, p); err != nil {
			o.cancel(err)
		}
	})
	return nil
}

// initiate begins a multipart upload.
func (o *object) initiate() (id string, err error) {
	opt := minio.PutObjectOptions{UserMetadata: map[string]string{writerHeader: o.writer}}
	switch o.b.opt.Checksum {
	case ChecksumFull:
		opt.UserMetadata["x-amz-checksum-algorithm"], opt.UserMetadata["x-amz-checksum-type"] = "CRC32C", "FULL_OBJECT"
	case ChecksumComposite:
		opt.UserMetadata["x-amz-checksum-algorithm"] = "CRC32C"
	}
	err = o.b.call(o.ctx, "begin upload", o.key, func(ctx context.Context) (err error) {
		id, err = o.b.core.NewMultipartUpload(ctx, o.b.opt.Bucket, o.key, opt)
		return err
	})
	return id, err
}

func (o *object) uploadPart(u *upload, number int, p *part) error {
	header := http.Header{}
	if o.b.sendsCRC() {
		header.Set("X-Amz-Checksum-Crc32c", encodeChecksum(p.crc))
	}
	opt := minio.PutObjectPartOptions{CustomHeader: header, DisableContentSha256: true, Sha256Hex: o.b.sha256Of(p)}
	var done minio.ObjectPart
	err := o.b.call(o.ctx, "upload part of", o.key, func(ctx context.Context) (err error) {
		body := p.reader()
		defer body.stop()
		done, err = o.b.core.PutObjectPart(ctx, o.b.opt.Bucket, o.key, u.id, number, body, p.size, opt)
		return err
	})
	if err == nil && done.ETag == "" {
		err = o.b.fail("upload part of", o.key, fmt.Errorf("%w: the store gives no tag for a part", inflight.ErrUnsupported))
	}
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[number-1].ETag, u.parts[number-1].ChecksumCRC32C = done.ETag, done.ChecksumCRC32C
	return nil
}

func (b *Backend) sendsCRC() bool {
	return b.opt.Checksum == ChecksumFull || b.opt.Checksum == ChecksumComposite
}

// sha256Of returns what the signature covers of the bytes; "": nothing.
func (b *Backend) sha256Of(p *part) string {
	if b.opt.Checksum != ChecksumSHA256 {
		return ""
	}
	sum := sha256.New()
	p.all(func(chunk []byte) { sum.Write(chunk) })
	return hex.EncodeToString(sum.Sum(nil))
}

// Finish makes the object visible, in one request.
func (o *object) Finish(ctx context.Context) (backends.Info, error) {
	if !o.ended.CompareAndSwap(false, true) {
		return backends.Info{}, o.closedError("finish")
	}
	defer context.AfterFunc(ctx, func() { o.cancel(ctx.Err()) })() // the object ends with this call
	o.busy.Lock()
	defer o.busy.Unlock()
	if o.cleaned {
		return backends.Info{}, o.closedError("finish")
	}
	err := o.failed
	if err == nil && ctx.Err() != nil {
		err = o.b.fail("finish", o.key, ctx.Err())
	}
	var info backends.Info
	if err == nil {
		info, err = o.publish(o.ctx)
	}
	o.cancel(inflight.ErrClosed)
	o.cleanUp(ctx, err == nil)
	if err != nil {
		return backends.Info{}, err
	}
	return info, nil
}

func (o *object) publish(ctx context.Context) (backends.Info, error) {
	if cause := context.Cause(ctx); cause != nil {
		return backends.Info{}, o.b.fail("finish", o.key, cause)
	}
	if o.exclusive {
		if err := o.b.prove(ctx, o.upload != nil); err != nil {
			return backends.Info{}, err
		}
	}
	if o.upload == nil {
		return o.put(ctx)
	}
	if o.cur != nil && o.cur.size > 0 {
		if err := o.send(); err != nil {
			return backends.Info{}, o.b.fail("finish", o.key, err)
		}
	}
	uploaded := make(chan struct{})
	go func() { o.upload.wg.Wait(); close(uploaded) }()
	select {
	case <-uploaded:
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); cause != nil { // a part that failed, or somebody who gave up
		return backends.Info{}, o.b.fail("finish", o.key, cause)
	}
	return o.complete(ctx)
}

// put creates the object in one request.
func (o *object) put(ctx context.Context) (backends.Info, error) {
	p := o.cur
	if p == nil {
		p = &part{pool: o.b.pool}
	}
	o.b.pool.fly(p.taken)
	defer o.b.pool.fly(-p.taken)
	opt := o.finalOptions()
	opt.DisableContentSha256 = true // no signed chunks: some servers stumble over those of empty bodies
	opt.UserMetadata[writerHeader] = o.writer
	if o.b.sendsCRC() {
		opt.UserMetadata["x-amz-checksum-crc32c"] = encodeChecksum(p.crc)
	}
	sum := o.b.sha256Of(p)
	return o.last(ctx, func(ctx context.Context) (minio.UploadInfo, error) {
		body := p.reader()
		defer body.stop()
		return o.b.core.PutObject(ctx, o.b.opt.Bucket, o.key, body, p.size, "", sum, opt)
	})
}

// complete makes the parts one object.
func (o *object) complete(ctx context.Context) (backends.Info, error) {
	opt := o.finalOptions()
	if o.b.opt.Checksum == ChecksumFull {
		opt.UserMetadata["x-amz-checksum-crc32c"] = encodeChecksum(o.crc)
		opt.UserMetadata["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	return o.last(ctx, func(ctx context.Context) (minio.UploadInfo, error) {
		return o.b.core.CompleteMultipartUpload(ctx, o.b.opt.Bucket, o.key, o.upload.id, o.upload.parts, opt)
	})
}

func (o *object) finalOptions() minio.PutObjectOptions {
	opt := minio.PutObjectOptions{UserMetadata: map[string]string{}}
	if o.exclusive {
		opt.SetMatchETagExcept("*")
	}
	return opt
}

// last makes the request that makes the object visible. Where its answer was
// lost, or speaks of an object that is there, the store is asked whose that is.
func (o *object) last(ctx context.Context, request func(context.Context) (minio.UploadInfo, error)) (backends.Info, error) {
	t := o.b.tries("finish", o.key)
	for {
		up, err := request(t.next(ctx))
		if err == nil {
			o.b.worked()
			info := backends.Info{Name: o.name, Size: o.size, ETag: strings.Trim(up.ETag, `"`)}
			if o.b.opt.Checksum == ChecksumFull {
				info.CRC32C = &o.crc
			}
			return info, nil
		}
		if err = t.again(ctx, err); err != nil {
			return o.resolve(ctx, t.unknown, err)
		}
	}
}

// resolve finds out what has become of the last request, which failed with
// cause. Unknown: an answer was lost.
func (o *object) resolve(ctx context.Context, unknown bool, cause error) (backends.Info, error) {
	taken := errors.Is(cause, inflight.ErrExist)
	lost := errors.Is(cause, inflight.ErrNotExist) && o.upload != nil // the upload is gone: completed, or aborted
	if !unknown && !taken && !lost {
		return backends.Info{}, cause
	}
	if ctx.Err() != nil { // a sure answer is worth a moment
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTime)
		defer cancel()
		ctx = short
	}
	st, err := o.b.head(ctx, "finish", o.key)
	switch {
	case err == nil && st.UserMetadata[writerHeader] == o.writer:
		return info(o.name, st), nil
	case taken && !unknown, o.exclusive && err == nil:
		return backends.Info{}, o.b.fail("finish", o.key, fmt.Errorf("the name is taken: %w", inflight.ErrExist))
	case lost && !unknown:
		return backends.Info{}, cause
	}
	failure := &inflight.Error{Op: "finish", Object: o.b.object(o.key), Err: &lostAnswer{cause}}
	if typed, ok := errors.AsType[*inflight.Error](cause); ok {
		failure.Mend = typed.Mend
	}
	return backends.Info{}, failure
}

// lostAnswer is an outcome that is not known. It wraps its cause only where that
// is the end of a context: a timeout, say, must not look as if another try of
// the same object could be made.
type lostAnswer struct{ cause error }

func (e *lostAnswer) Error() string {
	cause := e.cause
	if typed, ok := errors.AsType[*inflight.Error](cause); ok {
		cause = typed.Err
	}
	return fmt.Sprintf("%v: %v", inflight.ErrOutcomeUnknown, cause)
}

func (e *lostAnswer) Unwrap() []error {
	errs := []error{inflight.ErrOutcomeUnknown}
	for _, end := range []error{context.Canceled, context.DeadlineExceeded, inflight.ErrClosed} {
		if errors.Is(e.cause, end) {
			errs = append(errs, end)
		}
	}
	return errs
}

// Abort drops the object. It waits for the store to forget its parts, but not
// much longer than ctx allows.
func (o *object) Abort(ctx context.Context) error {
	o.ended.Store(true)
	o.cancel(inflight.ErrClosed)
	o.busy.Lock() // Write and Finish end soon
	defer o.busy.Unlock()
	o.cleanUp(ctx, false)
	return nil
}

// cleanUp gives back what the object holds, and aborts its upload unless that
// was completed. What cannot be aborted is a leftover. The object is busy.
func (o *object) cleanUp(ctx context.Context, completed bool) {
	if o.cleaned {
		return
	}
	o.cleaned = true
	o.b.forget(o)
	if o.cur != nil {
		o.cur.release(0)
		o.cur = nil
	}
	if o.upload == nil || completed {
		return
	}
	o.b.tidy(ctx, func(ctx context.Context) {
		o.upload.wg.Wait()                                                  // a part that comes after the abort would stay
		_ = o.b.call(ctx, "abort", o.key, func(ctx context.Context) error { // what stays is a leftover
			return o.b.core.AbortMultipartUpload(ctx, o.b.opt.Bucket, o.key, o.upload.id)
		})
	})
}

func (o *object) closedError(op string) error { return o.b.fail(op, o.key, inflight.ErrClosed) }
