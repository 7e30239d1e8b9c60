package hdfs

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hdfs "github.com/colinmarc/hdfs/v2"
	"github.com/colinmarc/hdfs/v2/hadoopconf"

	"github.com/spillway-io/spillway/inflight"
)

const (
	maxIdle  = 8 // clients that wait for work; each renews its leases once a second
	idleTime = 30 * time.Second

	bufferSize = 1 << 10
)

// pool holds the clients that nobody uses.
type pool struct {
	o          *Options
	krb        kerberos
	background sync.WaitGroup // calls that nobody waits for any more

	mu     sync.Mutex
	closed bool
	idle   []*client            // the one that has waited longest first
	all    map[*client]struct{} // also those in use
	sweep  *time.Timer
}

func newPool(o *Options) *pool {
	p := &pool{o: o, krb: kerberos{o: o}, all: map[*client]struct{}{}}
	p.sweep = time.AfterFunc(time.Hour, p.expire)
	p.sweep.Stop()
	return p
}

// take returns a client that waits, if there is one: best one that is at the place
// where a file is to be read, or has the file open, or has none; and of these the
// one used last, whose connection is the least likely to have broken.
func (p *pool) take(file uint64, off int64) *client {
	for {
		p.mu.Lock()
		best, rank := -1, -1
		for i, c := range p.idle {
			r := 0
			switch {
			case file != 0 && c.file == file && c.next == off:
				r = 3
			case file != 0 && c.file == file:
				r = 2
			case c.file == 0:
				r = 1
			}
			if r >= rank {
				best, rank = i, r
			}
		}
		if best < 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[best]
		p.idle = slices.Delete(p.idle, best, best+1)
		p.mu.Unlock()
		if c.fault() == nil {
			c.reused = true
			c.users.Store(1)
			return c
		}
		c.end() // its connection broke while it waited
	}
}

// connect returns a client for one stream or call: a fresh one, or one that has
// waited. Release it.
func (b *Backend) connect(ctx context.Context, op, name string, fresh bool) (*client, error) {
	if !fresh {
		if c := b.pool.take(0, 0); c != nil {
			return c, nil
		}
	}
	c, err := b.pool.dial(ctx)
	return c, b.explain(ctx, c, op, name, err)
}

// dial makes a new client. It returns one also with an error: what is known of
// the trouble.
func (p *pool) dial(ctx context.Context) (*client, error) {
	c := &client{pool: p, conns: map[*conn]struct{}{}}
	c.users.Store(1)
	c.life, c.stop = context.WithCancel(context.Background())
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.all[c] = struct{}{}
	}
	p.mu.Unlock()
	if closed {
		c.stop()
		return c, inflight.ErrClosed
	}
	var err error
	opened := make(chan struct{})
	p.background.Go(func() { err = c.open(ctx); close(opened) })
	select {
	case <-opened:
		if err != nil {
			c.kill(err)
			c.end()
		}
		return c, err
	case <-ctx.Done():
		c.kill(ctx.Err())
		p.background.Go(func() { <-opened; c.end() })
		return c, ctx.Err()
	}
}

// put takes a client back. Where enough wait, the one that has waited longest
// goes.
func (p *pool) put(c *client) {
	p.mu.Lock()
	if !p.closed && c.fault() == nil {
		c.since = time.Now()
		p.idle = append(p.idle, c)
		c = nil
		if len(p.idle) == 1 {
			p.sweep.Reset(idleTime)
		}
		if len(p.idle) > maxIdle {
			c = p.idle[0]
			p.idle = slices.Delete(p.idle, 0, 1)
		}
	}
	p.mu.Unlock()
	if c != nil {
		c.end()
	}
}

// expire ends clients that have waited for long.
func (p *pool) expire() {
	p.mu.Lock()
	var old, young []*client
	for _, c := range p.idle {
		if c.fault() != nil || time.Since(c.since) >= idleTime {
			old = append(old, c)
		} else {
			young = append(young, c)
		}
	}
	p.idle = young
	if len(young) > 0 {
		p.sweep.Reset(idleTime)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.end()
	}
}

// close ends all clients; what is under way fails.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	idle, all := p.idle, maps.Clone(p.all)
	p.idle = nil
	p.sweep.Stop()
	p.mu.Unlock()
	for c := range all {
		c.kill(inflight.ErrClosed)
	}
	for _, c := range idle {
		c.end()
	}
}

// client is a client of the library for one stream or call at a time, with its
// connections.
type client struct {
	*hdfs.Client
	pool   *pool
	life   context.Context // of dials
	stop   context.CancelFunc
	users  atomic.Int32
	reused bool
	since  time.Time // it waits

	reader *hdfs.FileReader // of the last read
	file   uint64           // that the reader reads
	next   int64            // offset that it is at

	mu      sync.Mutex
	conns   map[*conn]struct{}
	killed  bool
	nameErr error // the first trouble with a namenode
	dataErr error // and with a datanode
}

// open connects to the active namenode.
func (c *client) open(ctx context.Context) error {
	o := c.pool.o
	known := hadoopconf.HadoopConf{} // of others, the library does not take everything
	for _, key := range []string{keyProtection, keyEncrypt, keyHostName} {
		known[key] = o.Conf[key]
	}
	opts := hdfs.ClientOptionsFromConf(known)
	opts.Addresses, opts.User = o.Namenodes, o.User
	opts.DataTransferProtection = o.Conf[keyProtection]
	leads := map[string]string{}
	if o.kerberos {
		k, err := c.pool.krb.login()
		if err != nil {
			return err
		}
		if opts.Addresses, leads, err = o.hostNames(ctx); err != nil {
			return err
		}
		opts.KerberosClient, opts.KerberosServicePrincipleName = k, o.principal
	}
	opts.NamenodeDialFunc = func(_ context.Context, network, address string) (net.Conn, error) {
		if to, ok := leads[address]; ok {
			address = to
		}
		return c.dial(network, address, true)
	}
	opts.DatanodeDialFunc = func(_ context.Context, network, address string) (net.Conn, error) {
		return c.dial(network, address, false)
	}
	client, err := hdfs.NewClient(opts)
	if err != nil {
		return err
	}
	c.Client = client
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.killed {
		c.nameErr = nil // of another namenode
	}
	return nil
}

// dial opens a connection that the client owns.
func (c *client) dial(network, address string, name bool) (net.Conn, error) {
	o := c.pool.o
	limit := o.DataTimeout
	if name {
		limit = o.RPCTimeout
	}
	ctx, cancel := context.WithTimeout(c.life, limit)
	defer cancel()
	nc, err := o.Dial(ctx, network, address)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.note(name, err)
		return nil, err
	}
	cn := &conn{Conn: nc, client: c, name: name, limit: limit}
	if !name {
		cn.buf = bufio.NewReaderSize(unbuffered{cn}, bufferSize)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		nc.Close()
		return nil, net.ErrClosed
	}
	c.conns[cn] = struct{}{}
	return cn, nil
}

// note remembers the first trouble. The lock is held.
func (c *client) note(name bool, err error) {
	switch {
	case c.killed:
	case name && c.nameErr == nil:
		c.nameErr = err
	case !name && c.dataErr == nil:
		c.dataErr = err
	}
}

// fault returns the first trouble that the client had.
func (c *client) fault() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nameErr != nil {
		return c.nameErr
	}
	return c.dataErr
}

// byDatanode reports whether a failure is a datanode's: no namenode has said that,
// or failed to say something.
func (c *client) byDatanode(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	remote := hdfs.Error(nil)
	return c.dataErr != nil || c.nameErr == nil && !errors.As(err, &remote)
}

// dataFault returns the first trouble with a datanode, or why the client was
// killed.
func (c *client) dataFault() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dataErr
}

// kill cuts all connections: what is under way fails at once.
func (c *client) kill(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(true, cause)
	c.note(false, cause)
	c.cut()
}

// spoil keeps a client from being used again whose state is not known.
func (c *client) spoil(err error) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.note(false, err)
	}
}

// cut closes all connections. The lock is held.
func (c *client) cut() {
	c.killed = true
	c.stop()
	for cn := range c.conns {
		cn.Conn.Close()
	}
}

// keep says that somebody else needs the client too.
func (c *client) keep() { c.users.Add(1) }

// release gives the client back.
func (c *client) release() {
	if c.users.Add(-1) == 0 {
		c.pool.put(c)
	}
}

// watch kills the client when ctx ends. The function that it returns ends that,
// and gives the client back.
func (c *client) watch(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() { c.kill(ctx.Err()) })
	return func() {
		if !stop() {
			c.kill(ctx.Err())
		}
		c.release()
	}
}

// end closes the client. Nobody uses it any more.
func (c *client) end() {
	c.mu.Lock()
	c.cut()
	c.mu.Unlock()
	p := c.pool
	p.mu.Lock()
	_, first := p.all[c]
	delete(p.all, c)
	p.mu.Unlock()
	if first && c.Client != nil {
		_ = c.Client.Close() // it stops renewing leases
	}
}

// conn is a connection with deadlines, that its client can cut.
//
// One to a datanode takes what is written after a failure without a complaint:
// then the library comes to the point where it reads the acknowledgement, and
// ends its goroutines. The failure is remembered by the client.
type conn struct {
	net.Conn
	client *client
	name   bool // to a namenode
	limit  time.Duration

	frame frame
	sasl  sasl
	buf   *bufio.Reader // of a datanode's: the library reads packets in small pieces
}

func (cn *conn) Read(p []byte) (int, error) {
	if !cn.name {
		n, err := cn.buf.Read(p)
		cn.sasl.read(p[:n])
		return n, err
	}
	n, err := cn.Conn.Read(p) // it has the deadline of the request
	if err == nil {
		err = cn.frame.read(p[:n])
	}
	return n, cn.check(err)
}

// unbuffered reads from a datanode.
type unbuffered struct{ cn *conn }

func (u unbuffered) Read(p []byte) (int, error) {
	_ = u.cn.Conn.SetReadDeadline(time.Now().Add(u.cn.limit)) // fails with the read
	n, err := u.cn.Conn.Read(p)
	return n, u.cn.check(err)
}

func (cn *conn) Write(p []byte) (int, error) {
	if !cn.name {
		if err := cn.sasl.write(p); err != nil {
			return 0, cn.check(err)
		}
	}
	_ = cn.Conn.SetDeadline(time.Now().Add(cn.limit)) // fails with the write
	n, err := cn.Conn.Write(p)
	if err != nil && cn.name {
		err = cn.lastWords(err)
	}
	if cn.check(err) != nil && !cn.name {
		return len(p), nil
	}
	return n, err
}

// lastWords looks at what somebody has said who hangs up: what is no namenode may
// have answered the greeting.
func (cn *conn) lastWords(err error) error {
	_ = cn.Conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // it is there, or never will be
	head := make([]byte, len(cn.frame.head))
	n, _ := cn.Conn.Read(head)
	if cn.frame.left > 0 {
		return err
	}
	return cmp.Or(cn.frame.read(head[:n]), err)
}

// check remembers a failure. After one the connection is of no use: answers would
// be taken for those of later requests.
func (cn *conn) check(err error) error {
	if err != nil {
		cn.client.mu.Lock()
		cn.client.note(cn.name, err)
		cn.client.mu.Unlock()
		cn.Conn.Close()
	}
	return err
}

// Close closes the connection.
func (cn *conn) Close() error {
	cn.client.mu.Lock()
	delete(cn.client.conns, cn)
	cn.client.mu.Unlock()
	return cn.Conn.Close()
}

// SetDeadline does nothing: the library would clear our deadlines.
func (cn *conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing, as SetDeadline.
func (cn *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, as SetDeadline.
func (cn *conn) SetWriteDeadline(time.Time) error { return nil }

// frame follows the answers of a namenode: a length of four bytes, and so many
// bytes. The library takes memory for whatever length it is told.
type frame struct {
	head [4]byte
	got  int // bytes of the head
	left int // bytes of the frame
}

const maxFrame = 128 << 20 // Hadoop's own limit (ipc.maximum.response.length)

var errNoNamenode = errors.New("what answers is no namenode")

func (f *frame) read(p []byte) error {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, len(p))
			f.left -= n
			p = p[n:]
			continue
		}
		n := copy(f.head[f.got:], p)
		f.got += n
		p = p[n:]
		if f.got == len(f.head) {
			f.got = 0
			f.left = int(f.head[0])<<24 | int(f.head[1])<<16 | int(f.head[2])<<8 | int(f.head[3])
			if f.left > maxFrame {
				return fmt.Errorf("%w: it begins with %q", errNoNamenode, f.head[:])
			}
		}
	}
	return nil
}
