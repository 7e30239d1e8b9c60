package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

var writeChecks = []check{
	{name: "invisible-until-finish", about: "An object is not visible before Finish.", body: func(p *probe) {
		data := random(1, 100_000)
		o := p.create("x", backends.CreateOptions{})
		p.write(o, data)
		p.missing("x", "before Finish")
		info := p.finish(o)
		p.require(info.Name == p.dir+"x" && info.Size == int64(len(data)), "Finish answers %+v", info)
		p.require(bytes.Equal(p.get("x"), data), "other bytes are read than were written")
		same(p, "list", p.list(""), []string{"x"})
	}},
	{name: "sizes", about: "Objects of all sizes are read as they were written, in whatever steps.", body: checkSizes},
	{name: "exclusive-race", about: "Of 20 exclusive creates of one name, one wins, and all others read what it wrote.", body: checkRace},
	{name: "exclusive-taken", about: "An exclusive create of a name that is taken answers ErrExist and changes nothing.", body: func(p *probe) {
		if !p.caps.Exclusive {
			p.skip("the store has no exclusive create")
		}
		p.put("x", []byte("first"))
		for range 2 {
			o := p.create("x", backends.CreateOptions{Exclusive: true, Attempt: "second"})
			p.write(o, []byte("second"))
			_, err := o.Finish(p.ctx)
			p.wants(err, "exclusive create of a taken name", inflight.ErrExist)
		}
		p.require(string(p.get("x")) == "first", "it was changed")
		p.must(p.b.Remove(p.ctx, p.dir+"x"), "remove")
		o := p.create("x", backends.CreateOptions{Exclusive: true, Attempt: "third"})
		p.write(o, []byte("third"))
		p.finish(o)
		p.require(string(p.get("x")) == "third", "a name that is free again gets other bytes")
	}},
	{name: "two-writers", about: "Two writers of one name do not mix: one of them wins.", body: func(p *probe) {
		first, second := bytes.Repeat([]byte("1"), 70_000), bytes.Repeat([]byte("2"), 70_000)
		a, b := p.create("x", backends.CreateOptions{}), p.create("x", backends.CreateOptions{})
		p.write(a, first, 10_000)
		p.write(b, second, 10_000)
		p.finish(a)
		_, err := b.Finish(p.ctx)
		if err != nil {
			p.wants(err, "second Finish", inflight.ErrExist)
			second = first
		}
		p.require(bytes.Equal(p.get("x"), second), "other bytes are read than the winner wrote")
		same(p, "list", p.list(""), []string{"x"})
	}},
	{name: "abort", about: "Abort leaves nothing, can be repeated, and needs no living context.", body: func(p *probe) {
		ended, cancel := context.WithCancel(p.ctx)
		cancel()
		for _, ctx := range []context.Context{p.ctx, ended} {
			o := p.create("x", backends.CreateOptions{})
			p.write(o, random(2, 100_000))
			p.must(o.Abort(ctx), "abort")
			p.must(o.Abort(ctx), "second abort")
			p.closed(o)
			p.missing("x", "after Abort")
			p.require(len(p.leftovers("")) == 0, "Abort leaves %v", p.leftovers(""))
		}
		p.put("x", []byte("y"))
		p.require(string(p.get("x")) == "y", "the name cannot be used after Abort")
	}},
	{name: "finish-ends", about: "After Finish an object is ended: Abort does nothing, and other calls answer ErrClosed.", body: func(p *probe) {
		o := p.create("x", backends.CreateOptions{})
		p.write(o, []byte("x"))
		p.finish(o)
		p.must(o.Abort(p.ctx), "abort after Finish")
		p.closed(o)
		p.require(string(p.get("x")) == "x", "the object changed after Finish")
	}},
	{name: "abort-while-writing", about: "Abort ends a Write that another goroutine is in.", body: func(p *probe) {
		o := p.create("x", backends.CreateOptions{})
		p.write(o, random(3, 1000))
		written := make(chan error, 1)
		began := make(chan struct{})
		go func() {
			piece := random(4, 64<<10)
			for i := 0; ; i++ {
				if i == 2 {
					close(began)
				}
				if _, err := o.Write(piece); err != nil || i == 2000 {
					written <- err
					return
				}
			}
		}()
		<-began
		p.must(o.Abort(p.ctx), "abort")
		p.wants(<-written, "Write during Abort", inflight.ErrClosed)
		p.missing("x", "after Abort")
	}},
	{name: "create-context", about: "The context of Create does not bound the life of the object.", body: func(p *probe) {
		ctx, cancel := context.WithCancel(p.ctx)
		o, err := p.b.Create(ctx, p.dir+"x", backends.CreateOptions{})
		p.must(err, "create")
		cancel()
		p.write(o, []byte("x"))
		p.finish(o)
	}},
	{name: "finish-cancelled", about: "Finish answers soon after its context has ended, and leaves nothing, or says that it does not know.", body: func(p *probe) {
		for _, after := range []time.Duration{0, time.Millisecond} {
			o := p.create("x", backends.CreateOptions{})
			p.write(o, random(5, 1<<20))
			ctx, cancel := context.WithCancel(p.ctx)
			stop := context.AfterFunc(ctx, func() {})
			timer := time.AfterFunc(after, cancel)
			if after == 0 {
				cancel()
			}
			err := p.within("Finish", func() error { _, err := o.Finish(ctx); return err })
			timer.Stop()
			stop()
			cancel()
			p.must(o.Abort(p.ctx), "abort after Finish")
			switch {
			case err == nil:
				p.require(after > 0, "Finish succeeds although its context had ended")
				p.must(p.b.Remove(p.ctx, p.dir+"x"), "remove")
			case errors.Is(err, inflight.ErrOutcomeUnknown):
				p.must(p.b.Remove(p.ctx, p.dir+"x"), "remove")
			default:
				p.wants(err, "Finish", context.Canceled)
				p.missing("x", "after a cancelled Finish")
			}
		}
	}},
	{name: "empty-writes", about: "Empty writes do nothing.", body: func(p *probe) {
		o := p.create("x", backends.CreateOptions{})
		for _, piece := range []string{"", "a", "", "b", ""} {
			n, err := o.Write([]byte(piece))
			p.must(err, "write")
			p.require(n == len(piece), "Write takes %d of %d bytes", n, len(piece))
		}
		p.finish(o)
		p.require(string(p.get("x")) == "ab", "other bytes are read than were written")
	}},
	{name: "read-back", about: "An object that can be read back gives what Write has taken, until it ends.", body: checkReadBack},
	{name: "names-refused", about: "Create refuses names that are not made of the agreed characters.", body: func(p *probe) {
		for _, name := range []string{"", "/", "/x", "x/", "x//y", ".", "..", "x/.", "x/..", "x/../y", "../x", "x y", "x~y", "x\\y", "x\x00", "ä", "x\n", "x?y", "x#y", "x:y", "x*", strings.Repeat("x", 256)} {
			_, err := p.b.Create(p.ctx, name, backends.CreateOptions{})
			p.wants(err, fmt.Sprintf("create %q", name), inflight.ErrConfig)
			_, err = p.b.Open(p.ctx, name)
			p.wants(err, fmt.Sprintf("open %q", name), inflight.ErrConfig, inflight.ErrNotExist)
		}
	}},
	{name: "names-accepted", about: "All names of the agreed characters can be used.", body: func(p *probe) {
		for _, name := range []string{"x", "_x", "-x", ".x", "x.", "x.tmp", ".x.tmp", "...", "x..y", "X", "0", strings.Repeat("x", 255), "." + strings.Repeat("x", 250) + ".tmp", "d/d/d/d/d/d/d/d/x"} {
			p.put(name, []byte(name))
			p.require(string(p.get(name)) == name, "%q gets other bytes", name)
			p.must(p.b.Remove(p.ctx, p.dir+name), "remove")
			p.missing(name, "after Remove")
		}
	}},
}

// closed ends the check unless o is ended.
func (p *probe) closed(o backends.Object) {
	_, err := o.Write([]byte("late"))
	p.wants(err, "Write after the end", inflight.ErrClosed)
	_, err = o.Finish(p.ctx)
	p.wants(err, "Finish after the end", inflight.ErrClosed)
}

func checkSizes(p *probe) {
	for i, size := range []int{0, 1, 4095, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 5<<20 + 3} {
		data := random(uint64(i), size)
		name := fmt.Sprint("x", size)
		for _, steps := range [][]int{{256 << 10}, {7, 64 << 10, 1, 100_000}} {
			o := p.create(name, backends.CreateOptions{SizeHint: int64(size)})
			p.write(o, data, steps...)
			info := p.finish(o)
			s := p.open(name)
			p.require(info.Size == int64(size) && s.Info().Size == int64(size), "%d bytes: Finish says %d, Open %d", size, info.Size, s.Info().Size)
			p.require(!p.caps.ServerChecksum || s.Info().CRC32C != nil, "the store keeps checksums, and there is none")
			if sum := s.Info().CRC32C; sum != nil {
				want := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
				p.require(*sum == want, "%d bytes: the store's checksum is %08x, want %08x", size, *sum, want)
			}
			p.require(bytes.Equal(p.get(name), data), "%d bytes: ReadAt reads other bytes than were written", size)
			streamed, err := p.stream(s, 0, -1)
			p.must(err, "stream")
			p.require(bytes.Equal(streamed, data), "%d bytes: Stream reads other bytes than were written", size)
			p.must(s.Close(), "close")
			p.must(p.b.Remove(p.ctx, p.dir+name), "remove")
		}
	}
}

func checkRace(p *probe) {
	if !p.caps.Exclusive {
		p.skip("the store has no exclusive create")
	}
	const racers = 20
	type outcome struct {
		err  error
		mine string
		read []byte
	}
	for round := range 3 {
		name := fmt.Sprintf("%sround-%d/x", p.dir, round)
		outcomes := make(chan outcome, racers)
		start := make(chan struct{})
		for i := range racers {
			go func() {
				<-start
				out := outcome{mine: strings.Repeat(fmt.Sprintf("racer %02d ", i), 1000)}
				out.err = put(p.ctx, p.b, name, []byte(out.mine), backends.CreateOptions{Exclusive: true, Attempt: fmt.Sprint("racer", i)})
				if out.err == nil || errors.Is(out.err, inflight.ErrExist) {
					data, err := get(p.ctx, p.b, name)
					out.read = data
					if err != nil {
						out.err = fmt.Errorf("read after the race: %w", err)
					}
				}
				outcomes <- out
			}()
		}
		close(start)
		var winners, read []string
		for range racers {
			out := <-outcomes
			if out.err == nil {
				winners = append(winners, out.mine)
			} else {
				p.wants(out.err, "exclusive create", inflight.ErrExist)
			}
			read = append(read, string(out.read))
		}
		p.require(len(winners) == 1, "%d of %d racers have won", len(winners), racers)
		for _, r := range read {
			p.require(r == winners[0], "a racer reads other bytes than the winner wrote")
		}
	}
}

func checkReadBack(p *probe) {
	data := random(6, 300_000)
	o := p.create("x", backends.CreateOptions{})
	back, ok := o.(io.ReaderAt)
	if !ok {
		p.must(o.Abort(p.ctx), "abort")
		p.skip("objects of this store cannot be read back")
	}
	for written := 0; written < len(data); written += 100_000 {
		p.write(o, data[written:written+100_000], 30_000)
		got := make([]byte, written+100_000)
		n, err := back.ReadAt(got, 0)
		p.require(n == len(got) && (err == nil || err == io.EOF) && bytes.Equal(got, data[:n]), "read back after %d bytes: %d, %v", len(got), n, err)
		n, err = back.ReadAt(got[:10], int64(len(got)-4))
		p.require(n == 4 && err == io.EOF, "read back over the end: %d, %v", n, err)
		n, err = back.ReadAt(got[:10], int64(len(got)+1))
		p.require(n == 0 && err == io.EOF, "read back beyond the end: %d, %v", n, err)
	}
	p.must(o.Abort(p.ctx), "abort")
	_, err := back.ReadAt(data[:1], 0)
	p.wants(err, "read back after the end", inflight.ErrClosed)
}
