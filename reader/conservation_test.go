package reader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

// pipe is one connection of the simulated pipeline: length-prefixed records in
// buffers, some still with the sender, some with the receiver, some half
// decoded.
type pipe struct {
	key            Connection
	out, in        statetest.Key
	emitted        uint64 // bytes and records
	emittedRecords uint64
	output, input  []statetest.Buf // queued at the sender, at the receiver
	rest           []byte          // of a record that the receiver has begun to read
	taken          uint64          // bytes that the receiver took out of input
	records        uint64          // that the operator has processed
}

// consumed is where the operator of the receiver stands.
func (p *pipe) consumed() uint64 { return p.taken - uint64(len(p.rest)) }

// pipeline is src ×2 → count ×3 → sink ×1, all to all.
type pipeline struct {
	t     *rapid.T
	top   *format.Topology
	pipes []*pipe
}

func newPipeline(t *rapid.T) *pipeline {
	l := &pipeline{t: t, top: &format.Topology{
		Vertices: []format.Vertex{{ID: "src", Parallelism: 2}, {ID: "count", Parallelism: 3}, {ID: "sink", Parallelism: 1}},
		Edges: []format.Edge{
			{From: "src", Partition: 1, To: "count", Gate: 0, Partitioner: "hash"},
			{From: "count", Partition: 0, To: "sink", Gate: 2, Partitioner: "rebalance"},
		},
	}}
	for i, e := range l.top.Edges {
		for u := range l.top.Vertex(e.From).Parallelism {
			for d := range l.top.Vertex(e.To).Parallelism {
				l.pipes = append(l.pipes, &pipe{key: Connection{i, u, d},
					out: statetest.Key{Task: inflight.Task{Vertex: e.From, Subtask: u}, Address: inflight.Subpartition{Partition: e.Partition, Subpartition: d}.Address()},
					in:  statetest.Key{Task: inflight.Task{Vertex: e.To, Subtask: d}, Address: inflight.InputChannel{Gate: e.Gate, Channel: u}.Address()}})
			}
		}
	}
	return l
}

// run does n random steps.
func (l *pipeline) run(n int) {
	t := l.t
	for range n {
		p := rapid.SampledFrom(l.pipes).Draw(t, "pipe")
		switch rapid.IntRange(0, 3).Draw(t, "step") {
		case 0, 1: // the sender emits records into one buffer, or into several
			var b bytes.Buffer
			for range rapid.IntRange(1, 3).Draw(t, "records") {
				n := rapid.IntRange(0, 20).Draw(t, "length")
				require.NoError(t, binary.Write(&b, binary.BigEndian, int32(n)))
				b.Write(bytes.Repeat([]byte{byte(n)}, n))
				p.emittedRecords++
			}
			for b.Len() > 0 {
				piece := slices.Clone(b.Next(rapid.IntRange(1, 30).Draw(t, "buffer")))
				p.output = append(p.output, statetest.Buf{Pos: inflight.Pos{Offset: p.emitted}, Data: piece})
				p.emitted += uint64(len(piece))
			}
		case 2: // a buffer travels
			if len(p.output) > 0 {
				p.input = append(p.input, p.output[0])
				p.output = p.output[1:]
			}
		case 3: // the receiver takes a buffer, and its operator all whole records
			if len(p.input) > 0 {
				p.rest = append(p.rest, p.input[0].Data...)
				p.taken += uint64(len(p.input[0].Data))
				p.input = p.input[1:]
				for len(p.rest) >= 4 && len(p.rest) >= 4+int(binary.BigEndian.Uint32(p.rest)) {
					p.rest = p.rest[4+int(binary.BigEndian.Uint32(p.rest)):]
					p.records++
				}
			}
		}
	}
}

// cuts and captured state of the pipeline, before they are written.
type snapshot struct {
	bufs map[statetest.Key][]statetest.Buf
	cuts map[statetest.Key]inflight.Cut
}

// snapshot captures all: what the sender and the receiver have, the begun
// record of the decoder first.
func (l *pipeline) snapshot() *snapshot {
	s := &snapshot{bufs: map[statetest.Key][]statetest.Buf{}, cuts: map[statetest.Key]inflight.Cut{}}
	for _, p := range l.pipes {
		s.bufs[p.out] = slices.Clone(p.output)
		var in []statetest.Buf
		if len(p.rest) > 0 {
			in = append(in, statetest.Buf{Pos: inflight.Pos{Offset: p.consumed()}, Data: slices.Clone(p.rest)})
		}
		s.bufs[p.in] = append(in, p.input...)
		s.cuts[p.out] = inflight.Cut{Address: p.out.Address, Bytes: p.emitted, Records: p.emittedRecords, RecordsKnown: true}
		s.cuts[p.in] = inflight.Cut{Address: p.in.Address, Bytes: p.consumed(), Records: p.records, RecordsKnown: true}
	}
	return s
}

// verify writes s as a checkpoint and verifies it.
func (l *pipeline) verify(s *snapshot) *Report {
	t := l.t
	b := mem.New(mem.Options{})
	var file bytes.Buffer
	name := format.StateFileName(7, "g0", "abc")
	e, err := format.NewEncoder(&file, name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, format.EncoderOptions{BlockSize: 128})
	require.NoError(t, err)
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: 7, Attempt: "abc", Mode: format.ExactlyOnce, Alignment: format.Unaligned, Topology: l.top}
	var members []format.Member
	for _, v := range l.top.Vertices {
		for i := range v.Parallelism {
			task := inflight.Task{Vertex: v.ID, Subtask: i}
			member, err := e.Begin(task, nil)
			require.NoError(t, err)
			members = append(members, member)
			for k, bufs := range s.bufs {
				for _, buf := range bufs {
					if k.Task == task {
						require.NoError(t, e.Append(member, k.Address, buf.Pos, buf.Data))
					}
				}
			}
			for k, c := range s.cuts {
				if k.Task == task {
					require.NoError(t, e.SetCut(member, c))
				}
			}
			require.NoError(t, e.Complete(member))
		}
	}
	info, err := e.Close()
	require.NoError(t, err)
	statetest.Put(t, b, "job/"+name, file.Bytes())
	var handles []inflight.Handle
	for _, member := range members {
		handles = append(handles, e.Handle(member))
	}
	m.SetHandles(handles, info)
	r := Open(b, "job", Options{})
	defer r.Close()
	rep, err := r.At(m, "job/chk-0000000007").Verify(t.Context(), VerifyOptions{Records: true})
	require.NoError(t, err)
	return rep
}

// TestConservation: what is captured of a pipeline at any moment adds up.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newPipeline(t)
		var before []Flow
		for range 2 {
			l.run(rapid.IntRange(0, 60).Draw(t, "steps"))
			rep := l.verify(l.snapshot())
			require.Empty(t, rep.Findings)
			require.Len(t, rep.Flows, len(l.pipes))
			for i := range rep.Flows {
				f := &rep.Flows[i]
				require.Equal(t, Proven, f.Verdict, f.Reason)
				require.True(t, f.RecordsProven)
				require.Zero(t, f.Difference)
				require.Zero(t, f.RecordDifference)
			}
			require.Empty(t, Regressed(before, rep.Flows))
			if l.pipes[0].records > 0 && before != nil && before[0].Consumed.Records < l.pipes[0].records {
				require.NotEmpty(t, Regressed(rep.Flows, before))
			}
			before = rep.Flows
		}
	})
}

func size(bufs []statetest.Buf) (n int) {
	for _, b := range bufs {
		n += len(b.Data)
	}
	return n
}

// faults are the ways in which captures went wrong in real systems, and how the
// account shows them.
var faults = []struct {
	name string
	// plant damages s at p; it reports false where there is nothing to damage.
	plant func(t *rapid.T, s *snapshot, p *pipe, others []*pipe) bool
}{
	{"a queued buffer is dropped", func(t *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		k := rapid.SampledFrom([]statetest.Key{p.in, p.out}).Draw(t, "side")
		if len(s.bufs[k]) == 0 {
			return false
		}
		i := rapid.IntRange(0, len(s.bufs[k])-1).Draw(t, "which")
		s.bufs[k] = slices.Delete(s.bufs[k], i, i+1)
		return true
	}},
	{"an arriving buffer is not captured", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		n := len(s.bufs[p.in])
		if n == 0 {
			return false
		}
		s.bufs[p.in] = s.bufs[p.in][:n-1]
		return true
	}},
	{"what is under way is captured at both ends", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		if len(s.bufs[p.out]) == 0 {
			return false
		}
		s.bufs[p.in] = append(s.bufs[p.in], s.bufs[p.out][0])
		return true
	}},
	{"the wrong channel is addressed", func(_ *rapid.T, s *snapshot, p *pipe, others []*pipe) bool {
		for _, o := range others {
			// Two channels that have the same bytes in flight look alike.
			if o != p && o.in.Task == p.in.Task && len(s.bufs[p.in]) > 0 && size(s.bufs[p.in]) != size(s.bufs[o.in]) {
				s.bufs[p.in], s.bufs[o.in] = s.bufs[o.in], s.bufs[p.in]
				return true
			}
		}
		return false
	}},
	{"a gate that nobody has", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		if len(s.bufs[p.in]) == 0 {
			return false
		}
		k := p.in
		k.Address.Input.Gate = 9
		s.bufs[k], s.bufs[p.in] = s.bufs[p.in], nil
		return true
	}},
	{"the begun record is not captured", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		if len(p.rest) == 0 {
			return false
		}
		s.bufs[p.in] = s.bufs[p.in][1:]
		return true
	}},
	{"a record is processed before the snapshot, and captured", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		// Position and capture err together: in bytes all is well.
		all := slices.Concat(s.bufs[p.in], s.bufs[p.out])
		if len(all) == 0 {
			return false
		}
		c := s.cuts[p.in]
		c.Records++
		s.cuts[p.in] = c
		return true
	}},
	{"the cut of the operator is too late", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		c := s.cuts[p.in]
		c.Bytes++
		s.cuts[p.in] = c
		return true
	}},
	{"the cut of the sender is too early", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		c := s.cuts[p.out]
		if c.Bytes == 0 {
			return false
		}
		c.Bytes--
		s.cuts[p.out] = c
		return true
	}},
	{"positions are off, sums are right", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		if len(s.bufs[p.out]) == 0 {
			return false
		}
		bufs := slices.Clone(s.bufs[p.out])
		for i := range bufs {
			bufs[i].Pos.Offset += 3
		}
		s.bufs[p.out] = bufs
		return true
	}},
	{"a record is cut in the middle", func(_ *rapid.T, s *snapshot, p *pipe, _ []*pipe) bool {
		k := p.out
		n := len(s.bufs[k])
		if n == 0 || len(s.bufs[k][n-1].Data) < 2 {
			return false
		}
		bufs := slices.Clone(s.bufs[k])
		bufs[n-1].Data = bufs[n-1].Data[:len(bufs[n-1].Data)-1]
		s.bufs[k] = bufs
		c := s.cuts[k]
		c.Bytes--
		s.cuts[k] = c
		return true
	}},
}

// TestConservationFaults plants one fault: it is red, whatever else happens.
func TestConservationFaults(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			planted := 0
			rapid.Check(t, func(t *rapid.T) {
				l := newPipeline(t)
				l.run(40)
				s := l.snapshot()
				if !fault.plant(t, s, rapid.SampledFrom(l.pipes).Draw(t, "at"), l.pipes) {
					return
				}
				planted++
				rep := l.verify(s)
				require.True(t, rep.Failed(), Table(rep.Flows))
				require.Contains(t, codes(rep.Findings, inflight.SeverityError), CodeConservation)
			})
			require.Positive(t, planted)
		})
	}
}

// TestProve is the arithmetic, case by case.
func TestProve(t *testing.T) {
	src, cnt := inflight.Task{Vertex: "src"}, inflight.Task{Vertex: "count", Subtask: 1}
	in, out := inflight.InputChannel{Gate: 3, Channel: 0}.Address(), inflight.Subpartition{Partition: 2, Subpartition: 1}.Address()
	top := &format.Topology{Vertices: []format.Vertex{{ID: "src", Parallelism: 1}, {ID: "count", Parallelism: 2}}, Edges: []format.Edge{{From: "src", Partition: 2, To: "count", Gate: 3}}}
	at := func(n uint64) inflight.Pos { return inflight.Pos{Epoch: 1, Offset: n} }
	cut := func(a inflight.Address, bytes, records uint64) Entry {
		return Entry{Address: a, HasCut: true, Cut: inflight.Cut{Address: a, Bytes: bytes, Records: records, RecordsKnown: records > 0}, Start: inflight.PosUnknown, End: inflight.PosUnknown}
	}
	data := func(e Entry, from, to uint64) Entry {
		e.Bytes, e.Start, e.End = to-from, at(from), at(to)
		return e
	}
	bare := func(a inflight.Address, from, to uint64) Entry { return data(Entry{Address: a}, from, to) }
	unknown := func(e Entry, n uint64) Entry { e.Bytes = n; return e }
	gap := func(e Entry) Entry { e.Gaps = 1; return e }
	for _, tc := range []struct {
		name     string
		in, out  *Entry
		records  *RecordCount
		finished []inflight.Task
		verdict  Verdict
		reason   string
		proven   bool // in records
	}{
		{name: "nothing in flight", in: new(cut(in, 100, 10)), out: new(cut(out, 100, 10)), verdict: Proven, proven: true},
		{name: "both parts", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), records: &RecordCount{Whole: 10}, verdict: Proven, proven: true},
		{name: "in bytes only", in: new(data(cut(in, 100, 0), 100, 130)), out: new(data(cut(out, 200, 0), 130, 200)), verdict: Proven},
		{name: "records not counted", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), verdict: Proven},
		{name: "more records consumed than emitted", in: new(data(cut(in, 100, 30), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), verdict: Violated, reason: "30 records were consumed, 20 emitted"},
		{name: "a hole between the parts", in: new(data(cut(in, 100, 10), 100, 120)), out: new(data(cut(out, 200, 20), 130, 200)), verdict: Violated, reason: "10 bytes are missing"},
		{name: "an overlap", in: new(data(cut(in, 100, 10), 100, 135)), out: new(data(cut(out, 200, 20), 130, 200)), verdict: Violated, reason: "5 bytes too many"},
		{name: "a hole, made up for", in: new(data(cut(in, 110, 10), 100, 120)), out: new(data(cut(out, 200, 20), 130, 200)), verdict: Violated, reason: "what was consumed ends at 110, captured input begins at 100"},
		{name: "parts do not join, no cuts", in: new(bare(in, 100, 120)), out: new(bare(out, 130, 200)), verdict: Violated, reason: "captured input ends at 120, captured output begins at 130"},
		{name: "output ends early", out: new(data(cut(out, 200, 20), 130, 190)), verdict: Violated, reason: "captured output ends at 190, emitted are 200"},
		{name: "a gap", in: new(gap(bare(in, 100, 120))), verdict: Violated, reason: "captured bytes do not follow on each other"},
		{name: "a record too many", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), records: &RecordCount{Whole: 11}, verdict: Violated, reason: "1 records too many"},
		{name: "a record is missing", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), records: &RecordCount{Whole: 9}, verdict: Violated, reason: "1 records are missing"},
		{name: "left over", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), records: &RecordCount{Whole: 10, Left: 3}, verdict: Violated, reason: "3 bytes are left over behind the last whole record"},
		{name: "not records", in: new(data(cut(in, 100, 10), 100, 130)), out: new(data(cut(out, 200, 20), 130, 200)), records: &RecordCount{Bad: true}, verdict: Violated, reason: "captured bytes are not whole records from a boundary on"},
		{name: "no positions", in: new(unknown(cut(in, 100, 0), 30)), out: new(unknown(cut(out, 200, 0), 70)), verdict: NotProvable, reason: "captured bytes have no positions"},
		{name: "no positions, wrong sum", in: new(unknown(cut(in, 100, 0), 31)), out: new(unknown(cut(out, 200, 0), 70)), verdict: Violated, reason: "1 bytes too many"},
		{name: "upstream says nothing", in: new(data(cut(in, 100, 10), 100, 130)), verdict: NotProvable, reason: "the upstream subtask did not record what it had emitted"},
		{name: "upstream finished", in: new(data(cut(in, 100, 10), 100, 130)), finished: []inflight.Task{src}, verdict: NotProvable, reason: "the upstream subtask had finished"},
		{name: "downstream finished", out: new(cut(out, 100, 10)), finished: []inflight.Task{cnt}, verdict: NotProvable, reason: "the downstream subtask had finished"},
		{name: "downstream says nothing", out: new(cut(out, 100, 10)), verdict: NotProvable, reason: "the downstream subtask did not record what it had consumed"},
		{name: "data and no cuts", in: new(bare(in, 100, 120)), out: new(bare(out, 120, 200)), verdict: NotProvable, reason: "neither end recorded where it stood"},
		{name: "nothing at all", verdict: NotProvable, reason: "no end of the edge recorded anything"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := Evidence{Topology: top, Finished: tc.finished, State: map[inflight.Task][]Entry{}, Records: map[Connection]RecordCount{}}
			if tc.in != nil {
				e.State[cnt] = []Entry{*tc.in}
			}
			if tc.out != nil {
				e.State[src] = []Entry{*tc.out}
			}
			if tc.records != nil {
				e.Records[Connection{0, 0, 1}] = *tc.records
			}
			flows := e.Prove()
			require.Len(t, flows, 1)
			f := &flows[0]
			require.Equal(t, tc.verdict, f.Verdict, f.Reason)
			require.Equal(t, tc.reason, f.Reason)
			require.Equal(t, tc.proven, f.RecordsProven)
			require.Equal(t, tc.verdict == Violated, f.Finding("x").Severity == inflight.SeverityError)
			require.Contains(t, Table(flows), string(tc.verdict))
		})
	}
	far := inflight.Subpartition{Partition: 2, Subpartition: 7}.Address()
	flows := Evidence{Topology: top, State: map[inflight.Task][]Entry{src: {bare(far, 0, 10)}}}.Prove()
	require.Equal(t, Violated, flows[0].Verdict)
	require.Contains(t, flows[0].Reason, "no subtask 7")
}

func TestRegressed(t *testing.T) {
	cut := func(bytes, records uint64) *inflight.Cut {
		return &inflight.Cut{Bytes: bytes, Records: records, RecordsKnown: true}
	}
	before := []Flow{{From: inflight.Task{Vertex: "a"}, Consumed: cut(10, 2), Emitted: cut(20, 4)}}
	for _, tc := range []struct {
		now  Flow
		text string
	}{
		{Flow{Consumed: cut(10, 2), Emitted: cut(20, 4)}, ""},
		{Flow{Consumed: cut(11, 3), Emitted: cut(30, 6)}, ""},
		{Flow{Consumed: cut(9, 2), Emitted: cut(20, 4)}, "consumed went back: 10 bytes and 2 records before, 9 and 2 now"},
		{Flow{Consumed: cut(10, 1), Emitted: cut(20, 4)}, "consumed went back"},
		{Flow{Consumed: cut(10, 2), Emitted: cut(19, 4)}, "emitted went back"},
		{Flow{Emitted: cut(20, 4)}, ""},
	} {
		tc.now.From = inflight.Task{Vertex: "a"}
		bad := Regressed(before, []Flow{tc.now, {From: inflight.Task{Vertex: "new"}}})
		require.Equal(t, tc.text != "", len(bad) == 1)
		if len(bad) > 0 {
			require.Equal(t, Violated, bad[0].Verdict)
			require.Contains(t, bad[0].Reason, tc.text)
		}
	}
}

func TestRecordCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		n := rapid.IntRange(0, 10).Draw(t, "records")
		for i := range n {
			size := rapid.IntRange(0, 300).Draw(t, "size")
			stream = binary.BigEndian.AppendUint32(stream, uint32(size))
			stream = append(stream, bytes.Repeat([]byte{byte(i)}, size)...)
		}
		extra := rapid.IntRange(0, 3).Draw(t, "extra")
		stream = append(stream, make([]byte, extra)...)
		var c RecordCounter
		for len(stream) > 0 {
			k := rapid.IntRange(1, min(len(stream), 200)).Draw(t, "piece")
			c.Add(stream[:k])
			stream = stream[k:]
		}
		require.Equal(t, RecordCount{Whole: uint64(n), Left: uint64(extra)}, c.Count())
	})
	var c RecordCounter
	c.Add([]byte{0, 0, 0, 0, 0xff, 0, 0, 0, 1})
	require.Equal(t, RecordCount{Whole: 1, Left: 5, Bad: true}, c.Count())
}

func ExampleTable() {
	at := func(n uint64) inflight.Pos { return inflight.Pos{Offset: n} }
	in, out := inflight.InputChannel{}.Address(), inflight.Subpartition{}.Address()
	flows := Evidence{
		Topology: &format.Topology{
			Vertices: []format.Vertex{{ID: "src", Parallelism: 1}, {ID: "count", Parallelism: 1}},
			Edges:    []format.Edge{{From: "src", To: "count"}},
		},
		State: map[inflight.Task][]Entry{
			{Vertex: "src"}:   {{Address: out, HasCut: true, Cut: inflight.Cut{Bytes: 900}, Bytes: 300, Start: at(600), End: at(900)}},
			{Vertex: "count"}: {{Address: in, HasCut: true, Cut: inflight.Cut{Bytes: 400}, Bytes: 100, Start: at(400), End: at(500)}},
		},
	}.Prove()
	fmt.Print(Table(flows))
	// Output:
	// FROM     TO         EMITTED  CONSUMED  INPUT  OUTPUT  DIFFERENCE  RECORDS  VERDICT
	// src/0:0  count/0:0  900      400       100    300     100         -        violated: 100 bytes are missing
}

// TestUnreadIsNotProvable takes no count of bytes that could not be read for
// proof: neither of a loss nor of its absence.
func TestUnreadIsNotProvable(t *testing.T) {
	up, down := inflight.Task{Vertex: "up"}, inflight.Task{Vertex: "down"}
	out := Entry{Address: inflight.Subpartition{}.Address(), Bytes: 20, Start: inflight.Pos{Offset: 10}, End: inflight.Pos{Offset: 30}, HasCut: true, Cut: inflight.Cut{Bytes: 30, Records: 3, RecordsKnown: true}}
	in := Entry{Address: inflight.InputChannel{}.Address(), Start: inflight.PosUnknown, End: inflight.PosUnknown, HasCut: true, Cut: inflight.Cut{Bytes: 10, Records: 1, RecordsKnown: true}}
	e := Evidence{Topology: &format.Topology{Vertices: []format.Vertex{{ID: "up", Parallelism: 1}, {ID: "down", Parallelism: 1}}, Edges: []format.Edge{{From: "up", To: "down"}}},
		State: map[inflight.Task][]Entry{up: {out}, down: {in}}, Records: map[Connection]RecordCount{{}: {Whole: 1}}}
	flows := e.Prove()
	require.Len(t, flows, 1)
	require.Equal(t, Violated, flows[0].Verdict)
	require.EqualValues(t, 1, flows[0].RecordDifference)
	e.Unread = map[Connection]bool{{}: true}
	flows = e.Prove()
	require.Equal(t, NotProvable, flows[0].Verdict)
	require.Equal(t, "captured bytes could not be read", flows[0].Reason)
	require.Zero(t, flows[0].RecordDifference)
	require.False(t, flows[0].RecordsProven)
	require.Equal(t, inflight.SeverityInfo, flows[0].Finding("x").Severity)
}
