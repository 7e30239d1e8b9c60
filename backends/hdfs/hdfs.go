// Package hdfs stores objects as files in an HDFS directory.
//
// An object is written under a temporary name beside its own, ".NAME~RANDOM.tmp"
// (no name has a '~'), closed until the namenode says that it is complete, and
// then renamed. HDFS renames a file over another one, but no folder over a folder
// that has something in it: so an exclusive create makes a folder of the temporary
// name, writes a file "o" in it, and renames the folder. NAME and NAME/o are two
// forms of one object; an object whose own last part is "o" always has the second,
// so that a file "o" is never anything else.
//
// The client library knows no deadlines, no cancelling, and no repair of a
// pipeline of datanodes. Here each stream, and each call, has a client for itself,
// with connections that have deadlines and can be cut at any moment; a client is
// dropped after any trouble, the others wait in a small pool. When a datanode is
// lost while an object is written, the object fails with a retryable error:
// Capabilities say that callers keep the bytes until Finish.
package hdfs

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

func init() { backends.Register("hdfs", openURL) }

func openURL(_ context.Context, u *url.URL) (backends.Backend, error) {
	o, err := parse(u)
	if err != nil {
		return nil, &inflight.Error{Op: "open", Object: u.Redacted(), Err: fmt.Errorf("%w: %w", inflight.ErrConfig, err.cause), Mend: err.mend}
	}
	return New(o)
}

// Backend is the tree below one directory of HDFS.
type Backend struct {
	o    Options
	pool *pool

	mu      sync.Mutex
	closed  bool
	done    chan struct{} // closed with it
	objects map[*object]struct{}

	pipelines pipelines
	observer  atomic.Pointer[inflight.Observer]
}

// New returns the store that o describes. It makes no request; what cannot work
// is refused.
func New(o Options) (*Backend, error) {
	if err := o.fill(); err != nil {
		return nil, &inflight.Error{Op: "open", Object: o.url(), Err: fmt.Errorf("%w: %w", inflight.ErrConfig, err.cause), Mend: err.mend}
	}
	b := &Backend{o: o, done: make(chan struct{}), objects: map[*object]struct{}{}}
	b.pool = newPool(&b.o)
	return b, nil
}

// URL returns the root, with the user where one was given.
func (b *Backend) URL() string { return b.o.url() }

// Capabilities declares what HDFS promises.
func (b *Backend) Capabilities() backends.Capabilities {
	return backends.Capabilities{Exclusive: true, AtomicList: true, HeldUntilFinish: true, Remote: true, FreeSpace: true}
}

// Close drops the objects that are still open and ends all that is under way. It
// takes at most a second.
func (b *Backend) Close() error {
	b.mu.Lock()
	again, open := b.closed, b.objects
	b.closed, b.objects = true, nil
	b.mu.Unlock()
	if again {
		return nil
	}
	close(b.done)
	quiet := make(chan struct{})
	go func() {
		var aborts sync.WaitGroup
		for o := range open {
			aborts.Go(func() { _ = o.Abort(context.Background()) })
		}
		aborts.Wait()
		b.pool.close()
		b.pool.background.Wait()
		b.pool.krb.close()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-time.After(time.Second):
		b.pool.close()
	}
	return nil
}

// SetObserver has o told of requests that are made again, and of those that the
// namenode refuses since it is too busy. Calls under way may not tell.
func (b *Backend) SetObserver(o inflight.Observer) { b.observer.Store(&o) }

func (b *Backend) tell(name inflight.EventName, op string, err error) {
	if o := b.observer.Load(); o != nil {
		(*o).Observe(inflight.Event{Name: name, Object: op, Count: 1, Err: err})
	}
}

// again tells of a request that is made again since err came of it.
func (b *Backend) again(ctx context.Context, c *client, op, name string, err error) {
	b.tell(inflight.EventRetried, op, b.explain(ctx, c, op, name, err))
}

// ready is asked first by every call.
func (b *Backend) ready(ctx context.Context, op, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return &inflight.Error{Op: op, Object: b.object(name), Err: inflight.ErrClosed}
	}
	if err := ctx.Err(); err != nil {
		return &inflight.Error{Op: op, Object: b.object(name), Err: err}
	}
	return nil
}

// object returns what name is called in errors.
func (b *Backend) object(name string) string {
	return strings.TrimSuffix(b.o.url(), "/") + "/" + strings.TrimPrefix(name, "/")
}

// at returns the path of a name.
func (b *Backend) at(name string) string { return path.Join(b.o.Dir, name) }

// lookUp returns the path of what name stands for. A temporary name is no object.
func (b *Backend) lookUp(op, name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || isTemp(name) || strings.ContainsAny(name, ":\x00") {
		return "", &inflight.Error{Op: op, Object: fmt.Sprintf("%q", name), Err: fmt.Errorf("%w: not a name", inflight.ErrConfig)}
	}
	return b.at(name), nil
}

// folder returns the path of the folder prefix, and its name without slashes at
// the end.
func (b *Backend) folder(op, prefix string) (at, name string, err error) {
	if name = strings.TrimRight(prefix, "/"); name == "" {
		return b.o.Dir, "", nil
	}
	at, err = b.lookUp(op, name)
	return at, name, err
}

// SyncNames has nothing to do: the namenode has logged each name before it
// answers.
func (b *Backend) SyncNames(ctx context.Context, prefix string) error {
	_, name, err := b.folder("sync names", prefix)
	if err != nil {
		return err
	}
	return b.ready(ctx, "sync names", name)
}

// do makes calls to the namenode with a client of its own. What f does must be
// repeatable: where the connection of a client that had waited turns out to be
// dead, f is called once more. An answer that comes after the context has ended is
// dropped.
func do[T any](ctx context.Context, b *Backend, op, name string, f func(*client) (T, error)) (T, error) {
	for fresh := false; ; fresh = true {
		var zero T
		if err := b.ready(ctx, op, name); err != nil {
			return zero, err
		}
		c, err := b.connect(ctx, op, name, fresh)
		if err != nil {
			return zero, err
		}
		t, err := run(ctx, c, f)
		if err != nil && c.reused && c.fault() != nil && ctx.Err() == nil {
			b.again(ctx, c, op, name, err)
			continue
		}
		return t, b.explain(ctx, c, op, name, err)
	}
}

// run calls f and gives the client back when it has returned. When the context
// ends, it does not wait for that.
func run[T any](ctx context.Context, c *client, f func(*client) (T, error)) (T, error) {
	type answer struct {
		t   T
		err error
	}
	done := make(chan answer, 1)
	c.pool.background.Go(func() {
		t, err := f(c)
		done <- answer{t, err}
		c.release()
	})
	select {
	case a := <-done:
		return a.t, a.err
	case <-ctx.Done():
		c.kill(ctx.Err())
		var zero T
		return zero, ctx.Err()
	}
}

const (
	tempPrefix = "."
	tempMark   = "~"
	tempSuffix = ".tmp"
	maxPart    = 255

	payload = "o" // the file in the folder of an object that was created exclusively
)

// tempName returns a fresh temporary name for the object base. A name that would
// become too long is cut; the second mark tells.
func tempName(base string) string {
	tail := fmt.Sprintf("%s%016x%s", tempMark, rand.Uint64(), tempSuffix)
	if room := maxPart - len(tempPrefix) - len(tail); len(base) > room {
		base = base[:room-len(tempMark)] + tempMark
	}
	return tempPrefix + base + tail
}

// isTemp reports whether the last part of name has the form of a temporary name.
func isTemp(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	return strings.HasPrefix(base, tempPrefix) && strings.HasSuffix(base, tempSuffix) && strings.Contains(base, tempMark)
}

// tempTarget returns the name that the temporary name base would have become, or
// base where that cannot be told.
func tempTarget(base string) string {
	target, _, _ := strings.Cut(strings.TrimPrefix(base, tempPrefix), tempMark)
	if strings.Count(base, tempMark) != 1 || target == "" {
		return base
	}
	return target
}
