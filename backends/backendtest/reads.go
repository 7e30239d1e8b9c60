package backendtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

var readChecks = []check{
	{name: "missing", about: "What does not exist answers ErrNotExist when it is opened, and so does a folder.", body: func(p *probe) {
		p.missing("x", "never created")
		p.put("d/x", []byte("x"))
		p.missing("d", "a folder")
		p.missing("d/x/y", "below an object")
		_, err := p.b.Open(p.ctx, p.dir+"nowhere")
		p.require(strings.Contains(err.Error(), "nowhere"), "the error does not name the object: %v", err)
	}},
	{name: "stat", about: "Stat, List, Open and Finish tell the same.", body: func(p *probe) {
		finished := p.put("x", random(7, 5000))
		stat, err := p.b.Stat(p.ctx, p.dir+"x")
		p.must(err, "stat")
		s := p.open("x")
		p.must(s.Close(), "close")
		infos := []backends.Info{finished, stat, s.Info()}
		for info, err := range p.b.List(p.ctx, p.dir) {
			p.must(err, "list")
			infos = append(infos, info)
		}
		p.require(len(infos) == 4, "List yields %d objects, want 1", len(infos)-3)
		for _, info := range infos {
			p.require(info.Name == p.dir+"x" && info.Size == 5000, "%+v", info)
			p.require(info.Modified.Equal(stat.Modified) || info.Modified.IsZero(), "it was modified at %v and at %v", info.Modified, stat.Modified)
			p.require(info.ETag == stat.ETag || info.ETag == "", "it has the tags %q and %q", info.ETag, stat.ETag)
		}
	}},
	{name: "read-ranges", about: "ReadAt reads all that is asked for, or answers ErrTorn beyond the end.", body: func(p *probe) {
		data := random(8, 10_000)
		p.put("x", data)
		s := p.open("x")
		for _, r := range [][2]int64{{0, 0}, {0, 1}, {0, 10_000}, {1, 9_999}, {4096, 4096}, {9_999, 1}, {10_000, 0}} {
			got := make([]byte, r[1])
			p.must(s.ReadAt(p.ctx, got, r[0]), fmt.Sprintf("read %d bytes at %d", r[1], r[0]))
			p.require(bytes.Equal(got, data[r[0]:r[0]+r[1]]), "read %d bytes at %d: other bytes", r[1], r[0])
		}
		for _, r := range [][2]int64{{0, 10_001}, {9_999, 2}, {10_000, 1}, {10_001, 0}, {20_000, 10}, {1 << 62, 10}, {-1, 1}} {
			err := s.ReadAt(p.ctx, make([]byte, r[1]), r[0])
			p.wants(err, fmt.Sprintf("read %d bytes at %d of 10000", r[1], r[0]), inflight.ErrTorn)
		}
		p.must(s.Close(), "close")
		p.put("empty", nil)
		s = p.open("empty")
		p.must(s.ReadAt(p.ctx, nil, 0), "read nothing of an empty object")
		p.wants(s.ReadAt(p.ctx, make([]byte, 1), 0), "read of an empty object", inflight.ErrTorn)
		p.must(s.Close(), "close")
	}},
	{name: "stream-ranges", about: "Stream gives the range that was asked for, or ErrTorn beyond the end.", body: checkStreams},
	{name: "parallel-reads", about: "A source can be read by several goroutines at once.", body: func(p *probe) {
		data := random(9, 1<<20)
		p.put("x", data)
		s := p.open("x")
		const readers = 8
		errs := make(chan error, readers)
		for r := range readers {
			go func() {
				got := make([]byte, 64<<10)
				for off := int64(r) << 10; off+int64(len(got)) <= int64(len(data)); off += 100_000 {
					if err := s.ReadAt(p.ctx, got, off); err != nil {
						errs <- err
						return
					}
					if !bytes.Equal(got, data[off:off+int64(len(got))]) {
						errs <- fmt.Errorf("other bytes at %d", off)
						return
					}
				}
				errs <- nil
			}()
		}
		var first error
		for range readers {
			if err := <-errs; err != nil {
				first = err
			}
		}
		p.must(first, "read")
		p.must(s.Close(), "close")
	}},
	{name: "pinned", about: "A source reads the version that it was opened on, or fails, when the object is replaced or removed.", body: func(p *probe) {
		before, after := bytes.Repeat([]byte("1"), 100_000), bytes.Repeat([]byte("2"), 100_000)
		changes := map[string]func(){
			"replaced": func() {
				_ = put(p.ctx, p.b, p.dir+"x", after, backends.CreateOptions{}) // a store may refuse
			},
			"removed": func() { p.must(p.b.Remove(p.ctx, p.dir+"x"), "remove") },
		}
		for how, change := range changes {
			p.must(p.b.Remove(p.ctx, p.dir+"x"), "remove")
			p.put("x", before)
			s := p.open("x")
			got := make([]byte, 50_000)
			p.must(s.ReadAt(p.ctx, got, 0), "read")
			change()
			if err := s.ReadAt(p.ctx, got, 50_000); err != nil {
				p.wants(err, "read of an object that was "+how, inflight.ErrCorrupt, inflight.ErrNotExist)
			} else {
				p.require(bytes.Equal(got, before[:50_000]), "bytes of another version are read after the object was %s", how)
			}
			p.must(s.Close(), "close")
		}
	}},
	{name: "stream-cancelled", about: "A stream ends with its context.", body: func(p *probe) {
		p.put("x", random(10, 1<<20))
		s := p.open("x")
		ctx, cancel := context.WithCancel(p.ctx)
		r, err := s.Stream(ctx, 0, -1)
		p.must(err, "stream")
		_, err = io.ReadFull(r, make([]byte, 1000))
		p.must(err, "read")
		cancel()
		err = p.within("read of a stream", func() error { _, err := io.Copy(io.Discard, r); return err })
		p.wants(err, "read after the context has ended", context.Canceled)
		p.must(r.Close(), "close stream")
		p.must(s.Close(), "close")
	}},
}

func checkStreams(p *probe) {
	data := random(11, 300_000)
	p.put("x", data)
	s := p.open("x")
	for _, r := range [][2]int64{{0, -1}, {0, 0}, {0, 300_000}, {1, 1}, {3, 299_997}, {123_456, 65_536}, {299_999, -1}, {300_000, -1}, {300_000, 0}} {
		what := fmt.Sprintf("stream %d bytes at %d", r[1], r[0])
		got, err := p.stream(s, r[0], r[1])
		p.must(err, what)
		want := data[r[0]:]
		if r[1] >= 0 {
			want = want[:r[1]]
		}
		p.require(bytes.Equal(got, want), "%s: other bytes (%d of %d)", what, len(got), len(want))
	}
	for _, r := range [][2]int64{{0, 300_001}, {299_999, 2}, {300_001, -1}, {300_001, 0}, {-1, 5}} {
		_, err := p.stream(s, r[0], r[1])
		p.wants(err, fmt.Sprintf("stream %d bytes at %d of 300000", r[1], r[0]), inflight.ErrTorn)
	}
	// Two at once, one of them given up.
	a, err := s.Stream(p.ctx, 0, -1)
	p.must(err, "stream")
	b, err := s.Stream(p.ctx, 150_000, -1)
	p.must(err, "second stream")
	got := make([]byte, 100_000)
	_, err = io.ReadFull(a, got)
	p.must(err, "read")
	p.must(a.Close(), "close a stream early")
	rest, err := io.ReadAll(b)
	p.must(err, "read the second stream")
	p.require(bytes.Equal(got, data[:100_000]) && bytes.Equal(rest, data[150_000:]), "two streams mix")
	p.must(b.Close(), "close stream")
	p.must(s.Close(), "close")
}
