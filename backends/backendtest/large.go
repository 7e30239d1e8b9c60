package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing/iotest"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// The sizes at which stores change their ways: 5 MiB is the smallest part that
// object stores take, 8 MiB what package s3 makes of it.
const mib = 1 << 20

var partSizes = []int{5*mib - 1, 5 * mib, 5*mib + 1, 8*mib - 1, 8 * mib, 8*mib + 1, 16*mib + 1}

var largeChecks = []check{
	{name: "part-sizes", about: "Objects whose size is that of a part, one byte more or less, are read as they were written.", body: func(p *probe) {
		for i, size := range partSizes {
			p.roundTrip(fmt.Sprint("x", size), uint64(20+i), size)
		}
	}},
	{name: "large", about: "An object of 100 MiB is read as it was written, and its ranges too.", body: func(p *probe) {
		p.roundTrip("x", 30, 100*mib)
	}},
	{name: "small-reads", about: "Reads of a stream that take little at a time miss nothing.", body: func(p *probe) {
		data := random(31, 20_000)
		p.put("x", data)
		s := p.open("x")
		for _, small := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			r, err := s.Stream(p.ctx, 0, -1)
			p.must(err, "stream")
			got, err := io.ReadAll(small(r))
			p.must(err, "read")
			p.require(bytes.Equal(got, data), "other bytes are read than were written (%d of %d)", len(got), len(data))
			n, err := r.Read(make([]byte, 10))
			p.require(n == 0 && errors.Is(err, io.EOF), "a read at the end gives %d bytes, and %v", n, err)
			p.must(r.Close(), "close stream")
		}
		p.must(s.Close(), "close")
	}},
	{name: "unfinished-large", about: "A large object whose writer does not come back is no object, and can be removed while it is written.", body: checkUnfinished},
	{name: "outcome", about: "What Finish answers when it is interrupted is true.", body: checkOutcome},
	{name: "interrupted", about: "Calls whose context ends while they are under way answer soon, with what was asked for or the context's error.", body: checkInterrupted},
}

// stream is what random gives, piece by piece.
type stream struct{ *rand.ChaCha8 }

func newStream(seed uint64) stream {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	return stream{rand.NewChaCha8(key)}
}

// roundTrip writes and reads an object that need not fit into memory.
func (p *probe) roundTrip(name string, seed uint64, size int) {
	o := p.create(name, backends.CreateOptions{})
	written := p.copyTo(o, newStream(seed), size)
	info := p.finish(o)
	p.require(info.Size == int64(size), "%d bytes were written, and Finish says %d", size, info.Size)
	s := p.open(name)
	if sum := s.Info().CRC32C; sum != nil {
		p.require(*sum == written, "%d bytes: the store's checksum is %08x, want %08x", size, *sum, written)
	}
	r, err := s.Stream(p.ctx, 0, -1)
	p.must(err, "stream")
	read := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(read, r)
	p.must(err, "read")
	p.must(r.Close(), "close stream")
	p.require(n == int64(size) && read.Sum32() == written, "%d bytes: Stream reads other bytes than were written (%d)", size, n)
	tail, want := make([]byte, 3), make([]byte, 3)
	p.must(s.ReadAt(p.ctx, tail, int64(size-3)), "read the end")
	from := newStream(seed)
	_, err = io.CopyN(io.Discard, from, int64(size-3))
	p.must(err, "generate")
	from.Read(want)
	p.require(bytes.Equal(tail, want), "%d bytes: ReadAt reads other bytes than were written", size)
	p.must(s.Close(), "close")
	p.must(p.b.Remove(p.ctx, p.dir+name), "remove")
}

// copyTo writes size bytes and returns their checksum.
func (p *probe) copyTo(o backends.Object, from io.Reader, size int) uint32 {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	piece := make([]byte, 256<<10)
	for size > 0 {
		piece = piece[:min(size, len(piece))]
		_, err := io.ReadFull(from, piece)
		p.must(err, "generate")
		sum.Write(piece)
		n, err := o.Write(piece)
		p.must(err, "write")
		p.require(n == len(piece), "write took %d of %d bytes", n, len(piece))
		size -= n
	}
	return sum.Sum32()
}

func checkUnfinished(p *probe) {
	p.put("d/x", []byte("x"))
	o := p.create("d/large", backends.CreateOptions{})
	p.copyTo(o, newStream(32), 20*mib)
	same(p, "List", p.list(""), []string{"d/x"})
	p.missing("d/large", "before Finish")
	for _, l := range p.leftovers("d") {
		p.require(l.Kind != "" && l.Size >= 0 && l.Remove != nil, "leftover: %+v", l)
		p.must(l.Remove(p.ctx), "remove a leftover")
	}
	p.require(len(p.leftovers("d")) == 0, "leftovers stay: %v", p.leftovers("d"))
	if _, err := o.Finish(p.ctx); err != nil {
		p.missing("d/large", "after a Finish that failed")
		p.must(o.Abort(p.ctx), "abort")
		p.require(len(p.leftovers("d")) == 0, "a Finish that failed leaves %v", p.leftovers("d"))
	} else {
		p.require(len(p.get("d/large")) == 20*mib, "Finish succeeds although a leftover was removed, and the object is not whole")
	}
	p.require(string(p.get("d/x")) == "x", "an object went with the leftovers")
}

// checkOutcome interrupts Finish at many moments.
func checkOutcome(p *probe) {
	data := random(33, 200_000)
	for i := range 12 {
		name := fmt.Sprintf("x%d", i)
		opt := backends.CreateOptions{Exclusive: p.caps.Exclusive, Attempt: name}
		o := p.create(name, opt)
		p.write(o, data)
		ctx, cancel := context.WithTimeout(p.ctx, time.Duration(i*i)*200*time.Microsecond)
		_, err := o.Finish(ctx)
		cancel()
		p.must(o.Abort(p.ctx), "abort after Finish")
		unknown := errors.Is(err, inflight.ErrOutcomeUnknown)
		if err != nil && !unknown {
			p.wants(err, "Finish", context.DeadlineExceeded)
			p.missing(name, "after a Finish that failed")
		}
		if got, errGet := get(p.ctx, p.b, p.dir+name); errGet == nil {
			p.require(bytes.Equal(got, data), "an object is not what was written after Finish answered %v", err)
		} else {
			p.wants(errGet, "read after Finish", inflight.ErrNotExist)
			p.require(err != nil, "Finish succeeded, and there is no object")
		}
		if !p.caps.Exclusive {
			continue
		}
		switch again := put(p.ctx, p.b, p.dir+name, []byte("again"), opt); {
		case err == nil:
			p.wants(again, "exclusive create of a taken name", inflight.ErrExist)
		case !unknown:
			p.must(again, "exclusive create of a name whose first Finish failed")
		case again != nil:
			p.wants(again, "exclusive create after an unknown outcome", inflight.ErrExist)
			p.require(bytes.Equal(p.get(name), data), "the name is taken, but not by the first writer")
		}
	}
}

func checkInterrupted(p *probe) {
	p.put("x", random(34, 4*mib))
	s := p.open("x")
	calls := func(ctx context.Context) map[string]func() error {
		calls := p.calls(ctx)
		for _, op := range []string{"create", "remove", "remove all"} { // they would change what the others look at
			delete(calls, op)
		}
		calls["read"] = func() error { return s.ReadAt(ctx, make([]byte, 4*mib), 0) }
		calls["stream"] = func() error {
			r, err := s.Stream(ctx, 0, -1)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				r.Close()
			}
			return err
		}
		return calls
	}
	for _, op := range slices.Sorted(maps.Keys(calls(p.ctx))) {
		for i := range 4 {
			ctx, cancel := context.WithCancel(p.ctx)
			timer := time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
			if err := p.within(op, calls(ctx)[op]); err != nil {
				p.wants(err, op+" whose context ended", context.Canceled)
			}
			timer.Stop()
			cancel()
		}
	}
	p.must(s.Close(), "close")
	same(p, "List afterwards", p.list(""), []string{"x"})
	p.require(len(p.get("x")) == 4*mib, "the object changed")
}
