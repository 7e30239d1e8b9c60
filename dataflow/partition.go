package dataflow

import (
	"encoding/binary"

	"github.com/spillway-io/spillway/inflight"
)

// partition is one output edge of a task: a subpartition for each downstream
// subtask that it is connected with. All methods are the task's.
type partition struct {
	index     int
	subs      []*subpartition
	pool      *pool
	open      int // unfinished buffers
	selector  selector
	marks     uint64 // elements that are no records: watermarks, statuses, markers
	unaligned bool   // may hold channel state
	full      *bool  // is set when the pool has become unavailable
}

// emit writes a record to the subpartitions that the partitioner chooses.
func (p *partition) emit(r Record) {
	tag := byte(tagPlain)
	if r.Timed {
		tag = tagTimed
	}
	i := 0
	if len(p.subs) > 1 {
		i = p.selector(r.Body)
	}
	if i >= 0 {
		p.subs[i].append(tag, r.Time, r.Body)
		return
	}
	for _, s := range p.subs {
		s.append(tag, r.Time, r.Body)
	}
}

func (p *partition) watermark(ms int64) { p.toAll(tagWatermark, ms, nil) }

// toAll writes an element that is no record.
func (p *partition) toAll(tag byte, time int64, body []byte) {
	for _, s := range p.subs {
		s.append(tag, time, body)
		p.marks++
	}
}

func (p *partition) status(idle bool) {
	var code int32
	if idle {
		code = -1
	}
	p.toAll(tagStatus, 0, binary.BigEndian.AppendUint32(nil, uint32(code)))
}

func (p *partition) flush() {
	for _, s := range p.subs {
		s.flush()
	}
}

// available reports whether new input may be taken. When it may not, and every
// buffer that is out is an open one, nobody would ever free one: they are
// finished (Flink: at least one more buffer than subpartitions). The same for
// a subpartition whose only buffer is open.
func (p *partition) available() bool {
	if p.pool.avail.Load() {
		return true
	}
	p.flush()
	stuck := p.pool.out() <= p.open
	for _, s := range p.subs {
		if stuck || p.pool.perSub == 1 && p.pool.full(s.index) {
			s.finish()
		}
	}
	return p.pool.avail.Load()
}

// event puts ev behind the data of every subpartition.
func (p *partition) event(ev *event) {
	for _, s := range p.subs {
		s.event(ev)
	}
}

// barrier sends b: unaligned in front of the data, which is captured; else
// behind it. First into all subpartitions, then the capture: the barrier is
// what the others wait for. It returns how much data stands in front of b, or
// would without overtaking.
func (p *partition) barrier(b barrier, c Capture) (inFront uint64) {
	if !p.unaligned {
		b = b.forced()
	}
	switch {
	case b.alignment == Unaligned:
		vs := make([][]view, len(p.subs))
		offsets := make([]uint64, len(p.subs))
		for i, s := range p.subs {
			vs[i], offsets[i] = s.overtake(b)
		}
		for i := range p.subs {
			inFront += size(vs[i])
			captureRuns(vs[i], offsets[i], func(pos inflight.Pos, bufs ...inflight.Buffer) {
				c.Output(p.address(i), pos, bufs...)
			})
		}
	case b.timeoutable():
		for i, s := range p.subs {
			inFront += s.hold(b, c.HoldOutput(p.address(i)))
		}
	default:
		for _, s := range p.subs {
			inFront += s.event(&event{kind: evBarrier, b: b})
		}
	}
	return inFront
}

// timeout lets the barrier of a checkpoint overtake where it is still queued,
// and returns the holds that are to be filled.
func (p *partition) timeout(id inflight.CheckpointID) (late []overtaken) {
	for _, s := range p.subs {
		if o, ok := s.timeout(id); ok {
			late = append(late, o)
		}
	}
	return late
}

func (p *partition) abort(id inflight.CheckpointID, cause error) {
	for _, s := range p.subs {
		s.abort(id, cause)
	}
}

func (p *partition) address(i int) inflight.Subpartition {
	return inflight.Subpartition{Partition: p.index, Subpartition: p.subs[i].target}
}

// cuts appends what was emitted into each connection.
func (p *partition) cuts(cuts []inflight.Cut) []inflight.Cut {
	for i, s := range p.subs {
		cuts = append(cuts, inflight.Cut{
			Address: p.address(i).Address(), Epoch: p.pool.epoch, Bytes: s.published, Records: s.records, RecordsKnown: true,
		})
	}
	return cuts
}
