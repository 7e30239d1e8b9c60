package flink

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cacheLimit is how much channel state of a remote store a scan keeps in memory
// between reading the input parts and reading the output parts.
const cacheLimit = 32 << 20

// scan reads all channel state once and follows its records. The input parts
// come first, since an output part goes on where the input part of its
// connection ended; and which input part that is, only the records tell.
type scan struct {
	c *Checkpoint
	x *Index
	// channels and streams are in the order of the index.
	channels []channelScan
	streams  []streamScan

	gates, parts []*ends
	pairs        []*pair
	edges        []Edge // the caller's, then those inferred too

	sums      bool    // make checksums of chunks too
	digests   bool    // and of channels
	byChannel [][]int // for chunksOf
	// suspect chunks are taken for unreadable. before is the scan that found them:
	// where their bytes are right but for values, it knows how many records they are.
	suspect map[chunkAt]bool
	before  *scan

	mu       sync.Mutex
	cached   int64
	findings []inflight.Finding
	notes    []inflight.Finding // of a survey: what is to be known of the seal
}

// channelScan is what was seen of one channel.
type channelScan struct {
	frame  *following // of an input channel
	tracks []track    // of an output channel
	unread bool       // not all its chunks could be read
	bytes  int64      // of payload
	chunks int64      // that could be read
	digest format.Digest
}

// following follows the records of a channel.
type following struct {
	framer
	where int64 // where in its stream it went bad
}

// track follows an output channel from where one input part ended.
type track struct {
	start within
	following
}

// streamScan is what was seen of one stream.
type streamScan struct {
	reader *streamReader // kept in memory, or nil
	size   int64
	file   File
	broken bool     // it could not be opened, or read
	sums   []uint32 // CRC-32C of the payload of each chunk
	rest   uint32   // of what stands between the payloads
}

func (c *Checkpoint) newScan(x *Index, edges []Edge) *scan {
	s := &scan{c: c, x: x, channels: make([]channelScan, len(x.Channels)), streams: make([]streamScan, len(x.Streams)),
		gates: x.portsOf(inflight.Input), parts: x.portsOf(inflight.Output), edges: edges}
	inputs := 0
	for _, g := range s.gates {
		inputs += len(g.channels)
	}
	frames := make([]following, 0, inputs) // a channel may be there twice
	for i := range s.channels {
		if x.Channels[i].Address.Side == inflight.Input {
			frames = append(frames, following{})
			s.channels[i].frame = &frames[len(frames)-1]
		}
	}
	return s
}

// maxFindings bounds how many findings a scan makes; more say nothing new.
const maxFindings = 10_000

func (s *scan) find(f inflight.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.findings) < maxFindings {
		s.findings = append(s.findings, f)
	}
}

// streamFinding is a finding about stream i.
func (s *scan) streamFinding(sev inflight.Severity, code string, i int, offset int64, format string, args ...any) {
	s.find(inflight.Finding{Severity: sev, Code: code, Object: s.x.Streams[i].Handle.String(), Offset: offset, Text: fmt.Sprintf(format, args...)})
}

// channelError is a finding about a channel in its stream.
func (s *scan) channelError(code string, channel int, offset int64, err error, format string, args ...any) {
	s.find(s.x.channelError(code, channel, offset, err, format, args...))
}

func (x *Index) channelError(code string, channel int, offset int64, err error, format string, args ...any) inflight.Finding {
	c := &x.Channels[channel]
	return inflight.Finding{Severity: inflight.SeverityError, Code: code, Object: x.Streams[c.Stream].Handle.String(), Offset: offset,
		Task: &c.Task, Address: &c.Address, Text: fmt.Sprintf(format, args...), Err: cmp.Or(err, inflight.ErrCorrupt)}
}

// run reads everything. Damage is in the findings; an error means that ctx has
// ended.
func (s *scan) run(ctx context.Context) error {
	if err := s.eachStream(ctx, func(i int) error { return s.pass(ctx, i, inflight.Input) }); err != nil {
		return err
	}
	s.lay()
	if err := s.eachStream(ctx, func(i int) error { return s.pass(ctx, i, inflight.Output) }); err != nil {
		return err
	}
	s.join()
	return nil
}

// eachStream runs fn for each stream, several at once.
func (s *scan) eachStream(ctx context.Context, fn func(i int) error) error {
	workers := min(runtime.GOMAXPROCS(0), 4)
	if s.c.places.home.Capabilities().Remote {
		workers = 8
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		next int
		errs []error
	)
	take := func(err error) (i int, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		}
		next++
		return next - 1, next <= len(s.streams) && len(errs) == 0
	}
	for range min(workers, len(s.streams)) {
		wg.Go(func() {
			var err error
			for i, ok := take(nil); ok; i, ok = take(err) {
				err = fn(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pass reads the chunks of one side of stream i; the output side is the last one.
func (s *scan) pass(ctx context.Context, i int, side inflight.Side) error {
	st, chunks := &s.streams[i], s.x.Streams[i].Chunks
	if st.broken {
		return nil
	}
	r, err := s.open(ctx, i)
	if err != nil || st.broken {
		return err
	}
	if r != st.reader {
		defer r.close()
	}
	piece := s.inputPiece
	if side == inflight.Output {
		piece = s.outputPiece
	}
	err = r.each(ctx, chunks, chunkVisitor{
		want: func(c *Chunk) bool { return s.x.Channels[c.Channel].Address.Side == side },
		piece: func(k int, at int64, p []byte) error {
			c := &chunks[k]
			ch := &s.channels[c.Channel]
			if s.suspect[chunkAt{i, k}] {
				ch.unread = true
				return nil
			}
			ch.bytes += int64(len(p))
			if at == 0 {
				ch.chunks++
			}
			if s.sums {
				st.sums[k] = crc32.Update(st.sums[k], castagnoli, p)
			}
			if s.digests {
				ch.digest = ch.digest.Add(p)
			}
			if !ch.unread {
				piece(int(c.Channel), c.Offset+lengthSize+at, p)
			}
			return nil
		},
		bad: func(k int, err *FormatError) error {
			ch := &s.channels[chunks[k].Channel]
			if ch.unread {
				return nil // one finding for a channel is enough
			}
			ch.unread = true
			s.channelError(err.Code, int(chunks[k].Channel), err.Offset, err, "%s", err.Text)
			return nil
		},
	})
	if err == nil && side == inflight.Output {
		s.between(i, r.size)
		if s.sums {
			st.rest, err = r.restSum(ctx, chunks)
		}
		st.reader = nil
	}
	if err != nil {
		return s.broken(ctx, i, err)
	}
	return nil
}

// open opens stream i, or returns what is kept of it.
func (s *scan) open(ctx context.Context, i int) (*streamReader, error) {
	st := &s.streams[i]
	if st.reader != nil {
		return st.reader, nil
	}
	r, err := s.c.openStream(ctx, s.x.Streams[i].Handle)
	if err != nil {
		return nil, s.broken(ctx, i, err)
	}
	first := st.sums == nil
	if first {
		st.size, st.file = r.size, r.file
		st.sums = make([]uint32, 0)
		if s.sums {
			st.sums = make([]uint32, len(s.x.Streams[i].Chunks))
		}
	}
	if r.data == nil && r.windowMax == windowRemote && s.keep(r.size) {
		err = r.load(ctx)
		r.close()
	}
	if r.data != nil {
		st.reader = r
	}
	if err == nil && first {
		err = s.header(ctx, i, r)
	}
	if err != nil {
		return nil, s.broken(ctx, i, err)
	}
	return r, nil
}

// keep reports whether a stream of n bytes may stay in memory.
func (s *scan) keep(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || n > wholeStream || s.cached+n > cacheLimit {
		return false
	}
	s.cached += n
	return true
}

func (s *scan) header(ctx context.Context, i int, r *streamReader) error {
	err := r.header(ctx)
	var f *FormatError
	if !errors.As(err, &f) {
		return err
	}
	s.find(f.Finding(s.x.Streams[i].Handle.String()))
	return nil
}

// broken notes that stream i cannot be read, and why.
func (s *scan) broken(ctx context.Context, i int, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	st := &s.streams[i]
	st.broken = true
	for _, c := range s.x.Streams[i].Chunks {
		s.channels[c.Channel].unread = true
	}
	s.find(fileFinding(s.x.Streams[i].Handle, err))
	return nil
}

// inputPiece follows the records of an input channel.
func (s *scan) inputPiece(channel int, offset int64, p []byte) {
	s.channels[channel].frame.follow(offset, p)
}

// outputPiece follows the records of an output channel from each place where
// they may begin.
func (s *scan) outputPiece(channel int, offset int64, p []byte) {
	for i := range s.channels[channel].tracks {
		s.channels[channel].tracks[i].follow(offset, p)
	}
}

// follow adds p, which stands at offset of its stream, and notes where f goes bad.
func (f *following) follow(offset int64, p []byte) {
	before := f.pos
	if f.bad {
		return
	}
	if f.add(p); f.bad {
		f.where = offset + max(f.whole-before, 0)
	}
}

// between checks how the chunks of stream i, whose lengths are known, lie side
// by side.
func (s *scan) between(i int, size int64) {
	chunks := s.x.Streams[i].Chunks
	end, last := int64(headerSize), -1
	for k := range chunks {
		c := &chunks[k]
		if c.Offset < headerSize {
			continue
		}
		switch {
		case c.Offset < end && last >= 0:
			s.channelError(CodeChunkOverlap, int(c.Channel), c.Offset, nil, "a chunk that begins in the one of %s %s at %d",
				s.x.Channels[chunks[last].Channel].Task, s.x.Channels[chunks[last].Channel].Address, chunks[last].Offset)
		case min(c.Offset, size) > end && (last < 0 || chunks[last].Length >= 0):
			s.streamFinding(inflight.SeverityWarning, CodeDeadBytes, i, end, "%d bytes that belong to no channel", min(c.Offset, size)-end)
		}
		if e := c.end(); e >= end {
			end, last = e, k
		}
	}
	if end < size && (last < 0 || chunks[last].Length >= 0) {
		s.streamFinding(inflight.SeverityWarning, CodeDeadBytes, i, end, "%d bytes at the end that belong to no channel", size-end)
	}
}

// restSum is the CRC-32C of the bytes of a stream that are no payload. Chunks
// that cannot be read are left out.
func (r *streamReader) restSum(ctx context.Context, chunks []Chunk) (sum uint32, err error) {
	at := int64(0)
	read := func(end int64) error {
		for at < end {
			p, err := r.view(ctx, at, int(end-at), end)
			if err != nil {
				return err
			}
			sum = crc32.Update(sum, castagnoli, p)
			at += int64(len(p))
		}
		return nil
	}
	if err := read(min(headerSize, r.size)); err != nil {
		return 0, err
	}
	for i := range chunks {
		c := &chunks[i]
		if c.Length < 0 || c.Offset < at {
			continue
		}
		if err := read(c.Offset); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, binary.BigEndian.AppendUint32(nil, uint32(c.Length)))
		at = c.end()
	}
	return sum, read(r.size)
}

// lay prepares the output side: from where each output channel may go on.
func (s *scan) lay() {
	for _, e := range s.edges {
		s.pairs = append(s.pairs, &pair{fixed: true,
			gate: endsOf(s.gates, port{e.To, e.Gate}), part: endsOf(s.parts, port{e.From, e.Partition})})
	}
	given := slices.Clone(s.pairs)
	taken := func(e *ends) bool {
		return slices.ContainsFunc(given, func(p *pair) bool { return p.gate == e || p.part == e })
	}
	for _, g := range s.gates {
		for _, p := range s.parts {
			if fits(g, p) && !taken(g) && !taken(p) {
				s.pairs = append(s.pairs, &pair{gate: g, part: p})
			}
		}
	}
	for _, p := range s.parts {
		for out := range p.all() {
			s.track(out, within{})
		}
	}
	for _, p := range s.pairs {
		for in, out := range connections(p.gate, p.part) {
			if in >= 0 && out >= 0 && !s.lost(in) {
				s.track(out, s.channels[in].frame.within)
			}
		}
	}
}

func endsOf(list []*ends, p port) *ends {
	i := slices.IndexFunc(list, func(e *ends) bool { return e.port == p })
	if i < 0 {
		return nil
	}
	return list[i]
}

// lost reports whether it is not known where input channel in ends.
func (s *scan) lost(in int) bool { return s.channels[in].unread || s.channels[in].frame.bad }

func (s *scan) track(out int, start within) {
	ch := &s.channels[out]
	if !slices.ContainsFunc(ch.tracks, func(t track) bool { return t.start == start }) {
		ch.tracks = append(ch.tracks, track{start: start, following: following{framer: framer{within: start}}})
	}
}

// trackOf returns the track of output channel out that goes on from in, which may
// be -1.
func (s *scan) trackOf(in, out int) *track {
	var start within
	if in >= 0 {
		start = s.channels[in].frame.within
	}
	ch := &s.channels[out]
	i := slices.IndexFunc(ch.tracks, func(t track) bool { return t.start == start })
	return &ch.tracks[i]
}

// join finds the edges and checks the connections of each.
func (s *scan) join() {
	for _, p := range s.pairs {
		for in, out := range connections(p.gate, p.part) {
			whole, evidence := s.whole(in, out)
			if !whole {
				p.misses++
				continue
			}
			if p.hits++; evidence {
				p.evidence++
			}
		}
	}
	edges := match(s.pairs)
	for i, ch := range s.channels {
		if ch.frame != nil && ch.frame.bad && !ch.unread {
			s.channelError(CodeElement, i, ch.frame.where, nil, "%s, %d bytes into the channel", ch.frame.text(), ch.frame.whole)
		}
	}
	joined := map[*ends]bool{}
	for _, p := range edges {
		joined[p.gate], joined[p.part] = true, true
		s.judge(p)
		if !p.fixed {
			s.edges = append(s.edges, Edge{From: p.part.op, Partition: p.part.number, To: p.gate.op, Gate: p.gate.number, Evidence: p.evidence, Misses: p.misses})
		}
	}
	s.judgeOpen(joined)
}

// whole reports whether the connection is whole records, as far as it could be
// read, and whether a record goes over from the input part to the output part.
func (s *scan) whole(in, out int) (whole, evidence bool) {
	if in >= 0 && s.lost(in) || out >= 0 && s.channels[out].unread {
		return true, false
	}
	if out < 0 {
		return s.channels[in].frame.boundary(), false
	}
	t := s.trackOf(in, out)
	return t.boundary(), in >= 0 && !s.channels[in].frame.boundary()
}

// judge finds the connections of an edge that are not whole records.
func (s *scan) judge(p *pair) {
	for in, out := range connections(p.gate, p.part) {
		if whole, _ := s.whole(in, out); whole {
			continue
		}
		if out < 0 {
			s.unfinished(in, "and no output part goes on with it")
			continue
		}
		s.misfit(s.trackOf(in, out), in, out)
	}
}

func (s *scan) unfinished(in int, text string) {
	f := s.channels[in].frame
	s.channelError(CodeRecordFraming, in, -1, nil, "the last %d bytes are the beginning of a record, %s", f.pos-f.whole, text)
}

func (s *scan) misfit(t *track, in, out int) {
	goesOn := "from a boundary"
	if in >= 0 {
		goesOn = fmt.Sprintf("from the input part of %s %s", s.x.Channels[in].Task, s.x.Channels[in].Address)
	}
	if t.bad {
		s.channelError(CodeElement, out, t.where, nil, "%s, %d bytes into the output part, which goes on %s", t.text(), t.whole, goesOn)
		return
	}
	s.channelError(CodeRecordFraming, out, -1, nil, "the last %d bytes are the beginning of a record that does not end; the output part goes on %s", t.pos-t.whole, goesOn)
}

// judgeOpen looks at the gates and partitions without an edge: there too every
// channel must be whole with one of those that fit.
func (s *scan) judgeOpen(joined map[*ends]bool) {
	for _, g := range s.gates {
		if joined[g] {
			continue
		}
		for _, k := range slices.SortedFunc(maps.Keys(g.channels), link.compare) {
			in := int(g.channels[k])
			if s.lost(in) || s.channels[in].frame.boundary() || s.fitsSomewhere(joined, func(p *pair) (int, int, bool) {
				if p.gate != g {
					return 0, 0, false
				}
				out, ok := p.part.at(k.turned())
				return in, out, ok
			}) {
				continue
			}
			s.unfinished(in, "and no output part fits")
		}
		s.misfitting(joined, g, inflight.Input)
	}
	for _, p := range s.parts {
		if joined[p] {
			continue
		}
		for _, k := range slices.SortedFunc(maps.Keys(p.channels), link.compare) {
			out := int(p.channels[k])
			if s.channels[out].unread || s.trackOf(-1, out).boundary() || s.fitsSomewhere(joined, func(q *pair) (int, int, bool) {
				if q.part != p {
					return 0, 0, false
				}
				in, ok := q.gate.at(k.turned())
				return in, out, ok
			}) {
				continue
			}
			s.misfit(s.trackOf(-1, out), -1, out)
		}
		s.misfitting(joined, p, inflight.Output)
	}
}

// misfitting finds a gate or partition whose channels go on with others, each
// for itself, and which as a whole fits none: one of its channels is not its own.
func (s *scan) misfitting(joined map[*ends]bool, e *ends, side inflight.Side) {
	candidates := 0
	for _, p := range s.pairs {
		if p.gate != e && p.part != e || joined[p.gate] || joined[p.part] {
			continue
		}
		if candidates++; p.misses == 0 {
			return
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(e.channels), link.compare) {
		i := int(e.channels[k])
		byItself := side == inflight.Input && (s.lost(i) || s.channels[i].frame.boundary()) ||
			side == inflight.Output && (s.channels[i].unread || s.trackOf(-1, i).boundary())
		if candidates > 0 && !byItself {
			s.channelError(CodeRecordFraming, i, -1, nil, "the channel goes on with the other side, but no gate and partition fit each other with all their channels")
			return
		}
	}
}

func comparePair(a, b [2]int) int { return slices.Compare(a[:], b[:]) }

// fitsSomewhere reports whether a connection is whole, or cannot be judged, with
// one of the open pairs that of picks.
func (s *scan) fitsSomewhere(joined map[*ends]bool, of func(*pair) (in, out int, ok bool)) bool {
	return slices.ContainsFunc(s.pairs, func(p *pair) bool {
		if joined[p.gate] || joined[p.part] {
			return false
		}
		in, out, ok := of(p)
		if !ok {
			return false
		}
		whole, _ := s.whole(in, out)
		return whole
	})
}

// fileFinding says why the stream of h cannot be read.
func fileFinding(h StreamHandle, err error) inflight.Finding {
	f := inflight.Finding{Severity: inflight.SeverityError, Code: CodeUnreadable, Object: h.String(), Offset: -1, Text: err.Error(), Err: err}
	var bad *FormatError
	switch {
	case errors.As(err, &bad):
		f.Code, f.Offset, f.Text = bad.Code, bad.Offset, bad.Text
	case errors.Is(err, inflight.ErrNotExist):
		f.Code, f.Text = CodeMissingFile, "the file is not there"
	case errors.Is(err, inflight.ErrConfig), errors.Is(err, inflight.ErrCorrupt):
		f.Code = CodeUnresolvable
	}
	return f
}
