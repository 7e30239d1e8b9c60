package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

// A record carries who made it and its number on the way to its count subtask,
// so that a count sees by itself what was lost or came twice, whatever the
// runtime thinks:
//
//	kind byte · source uint16 · number uint64 · payload
//
// The last record of a source to each count closes the account: its number is
// how many came before, and its payload a hash that belongs to that count.
const (
	kindRecord  = 0
	kindClosing = 1

	headBytes = 1 + 2 + 8
	wireBytes = 5 // that the runtime puts in front of a record
)

// keyed makes a key function of payloads one of records.
func keyed(payload dataflow.KeyFunc) dataflow.KeyFunc {
	return func(b []byte) dataflow.Key {
		if b[0] == kindClosing {
			return dataflow.Key{Hash: int32(binary.BigEndian.Uint32(b[headBytes:]))}
		}
		return payload(b[headBytes:])
	}
}

// owner says which subtask of n a key belongs to.
func owner(k dataflow.Key, n int) int {
	return dataflow.KeyGroupOwner(dataflow.KeyGroup(k.Hash, dataflow.DefaultMaxParallelism), n, dataflow.DefaultMaxParallelism)
}

// hashOf returns a hash that belongs to subtask i of n.
func hashOf(i, n int) (hash int32) {
	for owner(dataflow.Key{Hash: hash}, n) != i {
		hash++
	}
	return hash
}

// account is what a source has emitted, by count subtask.
type account struct {
	Emitted []uint64 `json:"emitted"`
	Closed  int      `json:"closed"` // accounts that are closed
}

// source numbers the records of a Generator or a LineFile, which take their
// bodies from it, and ends with closing records: when the data ends, or after
// some time.
type source struct {
	dataflow.Source
	payload dataflow.KeyFunc
	index   int           // among all sources
	counts  int           // subtasks
	limit   time.Duration // since the job began; 0: none
	ending  func()        // called when the data has ended

	at   *dataflow.Value[account]
	body []byte
}

// Open implements dataflow.Source.
func (s *source) Open(c *dataflow.Context) (err error) {
	if s.at, err = dataflow.NewValue(c, "account", jsonCodec[account](), account{Emitted: make([]uint64, s.counts)}); err != nil {
		return err
	}
	if len(s.at.V.Emitted) != s.counts {
		return fmt.Errorf("an account with %d counts, not %d: %w", len(s.at.V.Emitted), s.counts, inflight.ErrMismatch)
	}
	return s.Source.Open(c)
}

// Next implements dataflow.Source.
func (s *source) Next(c *dataflow.Context) (dataflow.Status, error) {
	a := &s.at.V
	if a.Closed == 0 && (s.limit == 0 || c.Now() < s.limit) {
		if st, err := s.Source.Next(c); err != nil || st.Why != dataflow.Done {
			return st, err
		}
	}
	s.ending()
	if a.Closed == s.counts {
		return dataflow.Status{Why: dataflow.Done}, nil
	}
	b := s.head(nil, kindClosing, a.Emitted[a.Closed])
	c.Emit(dataflow.Record{Body: binary.BigEndian.AppendUint32(b, uint32(hashOf(a.Closed, s.counts)))})
	a.Closed++
	return dataflow.Status{}, nil
}

// Disconnect implements dataflow.Disconnecter.
func (s *source) Disconnect() error {
	if d, ok := s.Source.(dataflow.Disconnecter); ok {
		return d.Disconnect()
	}
	return nil
}

func (s *source) head(dst []byte, kind byte, number uint64) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, kind), uint16(s.index))
	return binary.BigEndian.AppendUint64(dst, number)
}

// number puts the head into b, which begins with room for it.
func (s *source) number(b []byte) []byte {
	to := owner(s.payload(b[headBytes:]), s.counts)
	s.head(b[:0], kindRecord, s.at.V.Emitted[to])
	s.at.V.Emitted[to]++
	return b
}

// line makes the record of a line.
func (s *source) line(p []byte) []byte {
	s.body = append(append(s.body[:0], make([]byte, headBytes)...), p...)
	return s.number(s.body)
}

// received is what a count subtask knows of one source.
type received struct {
	Next       uint64  `json:"next"` // number
	Counted    uint64  `json:"counted"`
	Lost       uint64  `json:"lost"`
	Duplicated uint64  `json:"duplicated"`
	Keyless    uint64  `json:"keyless,omitempty"` // of those counted
	Total      *uint64 `json:"total,omitempty"`   // once the account is closed
}

// take counts one record.
func (r *received) take(kind byte, number uint64) (data bool) {
	switch {
	case kind == kindClosing:
		if r.Total != nil {
			r.Duplicated++
		}
		r.Total = &number
		return false
	case number < r.Next:
		r.Duplicated++
	default:
		r.Lost += number - r.Next
		r.Next = number + 1
	}
	r.Counted++
	return true
}

// counter is the keyed count: for each record it emits "key TAB count", and it
// checks the numbers.
type counter struct {
	dataflow.Base
	key     dataflow.KeyFunc
	keyless func(payload []byte) bool // asked where the key is empty; may be nil
	text    func(dst []byte, k dataflow.Key) []byte
	sleep   time.Duration
	books   *books

	counts *dataflow.Keyed[int64]
	from   *dataflow.Value[[]received]
	out    []byte
	last   time.Duration
}

// Open implements dataflow.Operator.
func (o *counter) Open(c *dataflow.Context) (err error) {
	if o.counts, err = dataflow.NewKeyed(c, "counts", dataflow.Int64); err != nil {
		return err
	}
	o.from, err = dataflow.NewValue(c, "received", jsonCodec[[]received](), make([]received, o.books.sources))
	if err == nil && len(o.from.V) != o.books.sources {
		err = fmt.Errorf("%d sources, not %d: %w", len(o.from.V), o.books.sources, inflight.ErrMismatch)
	}
	o.books.open(c.Task.Subtask, o)
	return err
}

// Process implements dataflow.Operator.
func (o *counter) Process(c *dataflow.Context, r dataflow.Record) error {
	b := r.Body
	if len(b) < headBytes || int(binary.BigEndian.Uint16(b[1:])) >= len(o.from.V) {
		return fmt.Errorf("%d bytes are no record: %w", len(b), inflight.ErrCorrupt)
	}
	from := &o.from.V[binary.BigEndian.Uint16(b[1:])]
	if !from.take(b[0], binary.BigEndian.Uint64(b[3:])) {
		return nil
	}
	k := o.key(b)
	if len(k.Bytes) == 0 && o.keyless != nil && o.keyless(b[headBytes:]) {
		from.Keyless++
	}
	n := o.counts.Put(k)
	*n++
	o.out = strconv.AppendInt(append(o.text(o.out[:0], k), '\t'), *n, 10)
	c.Emit(dataflow.Record{Body: o.out})
	if o.sleep > 0 {
		now := c.Now()
		o.books.took(now-o.last, o.sleep)
		o.last = now
		c.Busy(o.sleep)
	}
	return nil
}

// lacks returns a function that tells lines that have no value in a field: no
// objects, those without the field, and those where it is null.
func lacks(field string) func(line []byte) bool {
	return func(line []byte) bool {
		var object map[string]any
		return json.Unmarshal(line, &object) != nil || object[field] == nil
	}
}

// jsonCodec is the codec of small state.
func jsonCodec[T any]() dataflow.Codec[T] {
	return dataflow.Codec[T]{
		Append: func(dst []byte, v *T) []byte {
			b, _ := json.Marshal(v) // plain numbers
			return append(dst, b...)
		},
		Decode: func(data []byte, v *T) error {
			if err := json.Unmarshal(data, v); err != nil {
				return fmt.Errorf("%w: %w", inflight.ErrCorrupt, err)
			}
			return nil
		},
	}
}
