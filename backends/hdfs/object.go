package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"time"

	hdfs "github.com/colinmarc/hdfs/v2"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// The states of an object. Abort moves it to ended unless the rename may be under
// way.
const (
	creating   = iota // Create has not answered
	writing           // until Finish or Abort
	finishing         // Finish waits for the datanodes; it can still be given up
	publishing        // the rename is under way or done
	ended
)

const (
	pieceSize  = 256 << 10       // the library takes memory for what it is given at once
	sealTime   = time.Minute     // for the datanodes to report the last block, and for a namenode to come back
	settleTime = 5 * time.Second // to find out what became of a rename
	surePeriod = 400 * time.Millisecond
)

type object struct {
	b      *Backend
	name   string
	final  string // path of the object
	temp   string // that is renamed
	file   string // that is written: temp, or a file in it
	folder bool   // temp is a folder
	begun  time.Time

	state atomic.Int32

	mu     sync.Mutex
	client *client
	gone   bool // the client was given back

	using   sync.Mutex // by Write, Finish, or the end of Abort
	writer  *hdfs.FileWriter
	written int64
	failed  error // of the first Write that failed
}

// Create makes a temporary file beside name, or in a folder of a temporary name.
func (b *Backend) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	if err := b.ready(ctx, "create", name); err != nil {
		return nil, err
	}
	if err := backends.CheckName(name); err != nil {
		return nil, err
	}
	if err := b.pipelines.wait(ctx, b.done); err != nil {
		return nil, &inflight.Error{Op: "create", Object: b.object(name), Err: err}
	}
	folder := opt.Exclusive || path.Base(name) == payload
	for fresh := false; ; fresh = true {
		c, err := b.connect(ctx, "create", name, fresh)
		if err != nil {
			return nil, err
		}
		o := &object{b: b, name: name, final: b.at(name), folder: folder, begun: time.Now(), client: c}
		_, err = run(ctx, c, func(*client) (any, error) { return nil, o.begin() })
		switch {
		case err == nil:
			return o, b.adopt(o)
		case c.reused && c.fault() != nil && ctx.Err() == nil:
			b.again(ctx, c, "create", name, err)
			continue
		case !o.state.CompareAndSwap(creating, ended): // it was made while the context ended
			o.discard()
		}
		return nil, b.explain(ctx, c, "create", name, err)
	}
}

// adopt remembers o, to be aborted with the backend.
func (b *Backend) adopt(o *object) error {
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.objects[o] = struct{}{}
	}
	b.mu.Unlock()
	if closed {
		o.discard()
		return o.closedError("create")
	}
	return nil
}

func (b *Backend) forget(o *object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, o)
}

// begin creates the file. A folder that is missing is made; somebody who deleted
// the last object in it may just have removed it again.
func (o *object) begin() error {
	o.client.keep()
	err := o.make()
	if err == nil && !o.state.CompareAndSwap(creating, writing) { // the context has ended
		o.discard()
		return inflight.ErrClosed
	}
	if err != nil {
		o.letGo()
	}
	return err
}

func (o *object) make() error {
	dir, base := path.Split(o.final)
	repl, block, err := o.b.sizes(o.client)
	for n := 1; err == nil; n++ {
		o.temp = dir + tempName(base)
		o.file = o.temp
		if o.folder {
			o.file += "/" + payload
			err = o.client.Mkdir(o.temp, 0o777&^o.b.o.umask)
		}
		if err == nil {
			if o.writer, err = o.client.CreateFile(o.file, repl, block, 0o666&^o.b.o.umask); err == nil {
				return nil
			}
			if o.folder {
				_ = o.client.RemoveAll(o.temp) // or it is a leftover
			}
		}
		if !errors.Is(err, fs.ErrNotExist) || n == 100 {
			break
		}
		if err = o.client.MkdirAll(path.Clean(dir), 0o777&^o.b.o.umask); errors.Is(err, fs.ErrExist) {
			err = &kindError{inflight.ErrConfig, errors.New("a file stands where a folder should be"), "choose another directory"}
		}
	}
	return err
}

// letGo gives the client back; others may use it then.
func (o *object) letGo() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.gone {
		o.gone = true
		o.client.release()
	}
}

// cut ends what the client is doing for this object.
func (o *object) cut(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.gone {
		o.client.kill(cause)
	}
}

// sizes returns replication and block size for a new file.
func (b *Backend) sizes(c *client) (repl int, block int64, err error) {
	repl, block = b.o.Replication, b.o.BlockSize
	if repl > 0 && block > 0 {
		return repl, block, nil
	}
	d, err := c.ServerDefaults()
	if repl == 0 {
		repl = d.Replication
	}
	if block == 0 {
		block = d.BlockSize
	}
	return repl, block, err
}

// Write sends p to the datanodes.
func (o *object) Write(p []byte) (n int, err error) {
	o.using.Lock()
	defer o.using.Unlock()
	switch {
	case o.state.Load() != writing:
		return 0, o.closedError("write")
	case o.failed != nil:
		return 0, o.failed
	}
	for n < len(p) && err == nil { // an empty write would make an empty block, which cannot be closed
		var took int
		took, err = o.writer.Write(p[n:min(len(p), n+pieceSize)])
		if err == nil {
			err = o.client.dataFault()
		}
		if err == nil {
			n += took
		}
	}
	o.written += int64(n)
	if err != nil {
		o.failed = o.lost("write", err)
	}
	return n, o.failed
}

// lost explains a failure of the writer.
func (o *object) lost(op string, err error) error {
	if o.state.Load() == ended {
		return o.closedError(op)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err = o.b.explain(ctx, o.client, op, o.name, err)
	switch {
	case errors.Is(err, inflight.ErrNotExist):
		return o.swept(op)
	case !inflight.Retryable(err), !o.client.byDatanode(err):
		return err
	}
	o.b.pipelines.failed(o.begun)
	return o.b.ifFull(ctx, op, o.name, err)
}

func (o *object) swept(op string) error {
	return &inflight.Error{Op: op, Object: o.b.object(o.name), Err: fmt.Errorf("the temporary file has gone: %w", inflight.ErrNotExist), Mend: "was it swept?"}
}

// Finish closes the file, and renames it when it is complete.
func (o *object) Finish(ctx context.Context) (backends.Info, error) {
	if !o.state.CompareAndSwap(writing, finishing) {
		return backends.Info{}, o.closedError("finish")
	}
	o.using.Lock()
	defer o.using.Unlock()
	defer o.b.forget(o)
	err := o.failed
	if err == nil {
		err = o.seal(ctx)
	}
	var st *hdfs.FileInfo
	if err == nil {
		o.letGo()
		st, err = o.check(ctx)
	}
	if err == nil && !o.state.CompareAndSwap(finishing, publishing) {
		err = o.closedError("finish")
	}
	if err != nil {
		o.state.Store(ended)
		o.discard()
		return backends.Info{}, err
	}
	defer o.state.Store(ended)
	if err := o.publish(ctx, st); err != nil {
		return backends.Info{}, err
	}
	return info(o.name, st), nil
}

// seal closes the file: all datanodes of each block have it, and the namenode
// knows that of at least one. It may have to be asked several times, and may be
// away for a while. What a datanode says is final: the library forgets it, and
// would ask the namenode in vain.
func (o *object) seal(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { o.cut(ctx.Err()) })()
	limit := time.Now().Add(sealTime)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := o.writer.Close()
		if err == nil {
			err = o.client.dataFault()
			if err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return &inflight.Error{Op: "finish", Object: o.b.object(o.name), Err: ctx.Err()}
		}
		late := time.Now().After(limit)
		switch replicating := hdfs.IsErrReplicating(err); {
		case replicating && late:
			err = &kindError{inflight.ErrTimeout, errors.New("no datanode has reported the last block"), "try again; look at hdfs dfsadmin -report"}
			return o.lost("finish", err)
		case late, !replicating && o.client.byDatanode(err), !replicating && !inflight.Retryable(o.b.classify(o.client, err)):
			return o.lost("finish", err)
		case !replicating: // to ask until the block is reported is no trouble
			o.b.again(ctx, o.client, "finish", o.name, err)
		}
		select {
		case <-time.After(pause):
		case <-o.client.life.Done():
		}
	}
}

// check looks at the closed file: one whose writer failed may be closed, and too
// short.
func (o *object) check(ctx context.Context) (*hdfs.FileInfo, error) {
	st, err := do(ctx, o.b, "finish", o.name, func(c *client) (*hdfs.FileInfo, error) { return c.stat(o.file) })
	if errors.Is(err, inflight.ErrNotExist) {
		err = o.swept("finish")
	}
	if err == nil && st.Size() != o.written {
		err = &inflight.Error{Op: "finish", Object: o.b.object(o.name), Mend: "try again",
			Err: fmt.Errorf("%w: the file has %d bytes, and %d were written", inflight.ErrUnavailable, st.Size(), o.written)}
	}
	return st, err
}

// moment returns a context that ends a moment after ctx: for what is worth it.
func moment(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(surePeriod, cancel) })
	return later, func() { stop(); cancel() }
}

// publish renames. A sure answer is worth a moment.
func (o *object) publish(ctx context.Context, st *hdfs.FileInfo) error {
	sure, cancel := moment(ctx)
	defer cancel()
	var answered bool
	c, err := o.b.connect(sure, "finish", o.name, false)
	if err == nil {
		_, err = run(sure, c, func(c *client) (any, error) { return nil, c.Rename(o.temp, o.final) })
		answered = err == nil || c.fault() == nil && sure.Err() == nil
		err = o.b.explain(sure, c, "finish", o.name, err)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = &inflight.Error{Op: "finish", Object: o.b.object(o.name), Err: ctx.Err()}
	}
	return o.settle(ctx, st, err, answered)
}

// settle finds out what became of a rename that failed, or whose answer was lost.
// Once the source is gone, nothing can be renamed any more; whose the object is,
// its number tells.
func (o *object) settle(ctx context.Context, st *hdfs.FileInfo, cause error, answered bool) error {
	sure, cancel := moment(ctx)
	defer cancel()
	sure, cancel = context.WithTimeout(sure, settleTime)
	defer cancel()
	ours, err := do(sure, o.b, "finish", o.name, func(c *client) (bool, error) {
		if err := c.RemoveAll(o.temp); err != nil && !isMissing(err) {
			return false, err
		}
		c.removeEmpty(path.Dir(o.temp))
		_, now, err := c.find(o.final)
		if isMissing(err) {
			return false, nil
		}
		return err == nil && id(now) == id(st), err
	})
	switch {
	case err == nil && ours:
		return nil
	case err != nil && !answered:
		if e, ok := errors.AsType[*inflight.Error](cause); ok {
			cause = e.Err
		}
		return &inflight.Error{Op: "finish", Object: o.b.object(o.name), Err: fmt.Errorf("%w: %w", inflight.ErrOutcomeUnknown, cause), Mend: "look whether it is there"}
	}
	return cause
}

// Abort drops the file.
func (o *object) Abort(context.Context) error {
	for {
		state := o.state.Load()
		if state >= publishing {
			return nil
		}
		if o.state.CompareAndSwap(state, ended) {
			o.cut(inflight.ErrClosed)
			if state == writing { // otherwise Finish does the rest
				o.using.Lock()
				defer o.using.Unlock()
				o.b.forget(o)
				o.discard()
			}
			return nil
		}
	}
}

// discard ends the writer and removes the file. What cannot be removed is a
// leftover. Nobody else uses the object.
func (o *object) discard() {
	if !o.gone {
		o.cut(inflight.ErrClosed)
		_ = o.writer.Close() // it fails, and ends what the library does in the background
		o.letGo()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*surePeriod)
	defer cancel()
	_, _ = do(ctx, o.b, "abort", o.name, func(c *client) (any, error) {
		err := c.RemoveAll(o.temp)
		c.removeEmpty(path.Dir(o.temp))
		return nil, err
	})
}

func (o *object) closedError(op string) error {
	return &inflight.Error{Op: op, Object: o.b.object(o.name), Err: inflight.ErrClosed}
}

// pipelines makes new objects wait a while after a datanode was lost, the longer
// the more often of late: the namenode names it again until it has missed it. An
// object that succeeds says nothing about that: it had others.
type pipelines struct {
	mu    sync.Mutex
	count int
	last  time.Time // an object failed
	until time.Time
}

const (
	firstPause = time.Second
	lastPause  = 30 * time.Second // after that a namenode does not write to a datanode that it does not hear of
)

// failed is told when the object that failed was begun: of several that were
// under way together only one counts.
func (p *pipelines) failed(begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if begun.Before(p.last) {
		return
	}
	if time.Since(p.last) > 2*lastPause {
		p.count = 0
	}
	pause := min(firstPause<<(3*min(p.count, 3)), lastPause)
	p.count++
	p.last = time.Now()
	p.until = p.last.Add(pause/2 + rand.N(pause/2))
}

func (p *pipelines) wait(ctx context.Context, closed <-chan struct{}) error {
	p.mu.Lock()
	pause := time.Until(p.until)
	p.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return inflight.ErrClosed
	}
}
