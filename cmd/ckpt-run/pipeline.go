package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spillway-io/spillway/dataflow"
)

// The vertices, in order.
const (
	vertexSource  = "source"
	vertexChanges = "changes"
	vertexCount   = "count"
	vertexSink    = "sink"
)

// pipeline is what a run is made of: source → hash → keyed count → sink. With
// changes, the counts read a second source, too.
type pipeline struct {
	parallelism int
	sleep       time.Duration // a record takes at a count
	sinkSleep   time.Duration
	limit       time.Duration // after which the sources end; 0: never
	faults      []dataflow.Fault

	// Made up records,
	records     int64 // of all sources; negative: without end
	keys        int
	recordBytes int // on the wire
	changes     bool
	// or lines.
	input string
	field string // of a line of JSON; "": the line is the key

	output string
	plain  bool
	log    *slog.Logger

	books  books
	ended  chan struct{} // closed when the first source has no more data
	ending sync.Once
}

// graph builds the job.
func (p *pipeline) graph() *dataflow.Graph {
	p.ended = make(chan struct{})
	p.books = books{sources: p.parallelism, counts: p.parallelism}
	if p.changes {
		p.books.sources++
	}
	payload, text := p.payloadKey()
	key := keyed(payload)
	g := dataflow.NewGraph()
	g.Records = p.kind()
	numbered := func(index int, make func(*source) dataflow.Source) dataflow.Source {
		s := &source{payload: payload, index: index, counts: p.parallelism, limit: p.limit, ending: func() { p.ending.Do(func() { close(p.ended) }) }}
		s.Source = make(s)
		return dataflow.ScriptedSource(s, p.faults)
	}
	g.Source(vertexSource, p.parallelism, func(i int) dataflow.Source {
		return numbered(i, func(s *source) dataflow.Source {
			if p.input != "" {
				return &dataflow.LineFile{Connect: p.open, Body: s.line}
			}
			return p.generator(i, s)
		})
	})
	inputs := []dataflow.Input{dataflow.From(vertexSource, dataflow.Hash(key))}
	if p.changes {
		g.Source(vertexChanges, 1, func(int) dataflow.Source { return numbered(p.parallelism, p.changeLog) })
		inputs = append(inputs, dataflow.From(vertexChanges, dataflow.Hash(key)))
	}
	var keyless func([]byte) bool
	if p.field != "" {
		keyless = lacks(p.field)
	}
	g.Operator(vertexCount, p.parallelism, func(int) dataflow.Operator {
		return dataflow.ScriptedOperator(&counter{key: key, keyless: keyless, text: text, sleep: p.sleep, books: &p.books}, p.faults)
	}, inputs...)
	g.Operator(vertexSink, p.parallelism, func(int) dataflow.Operator {
		return dataflow.ScriptedOperator(p.sink(), p.faults)
	}, dataflow.From(vertexCount, dataflow.Forward()))
	return g
}

// kind says what the records are.
func (p *pipeline) kind() string {
	switch {
	case p.field != "":
		return "lines by field " + strconv.Quote(p.field)
	case p.input != "":
		return "lines"
	}
	return "numbered keys"
}

// payloadKey returns the key of a payload, and how a key is written.
func (p *pipeline) payloadKey() (dataflow.KeyFunc, func([]byte, dataflow.Key) []byte) {
	asText := func(dst []byte, k dataflow.Key) []byte { return append(dst, k.Bytes...) }
	switch {
	case p.field != "":
		return dataflow.JSONKey(p.field), asText
	case p.input != "":
		return dataflow.LineKey, asText
	}
	return func(b []byte) dataflow.Key { return dataflow.IntKey(b[:4]) },
		func(dst []byte, k dataflow.Key) []byte { return strconv.AppendInt(dst, int64(k.Hash), 10) }
}

// generator makes up records of the right size whose keys come in turn.
func (p *pipeline) generator(subtask int, s *source) *dataflow.Generator {
	g := &dataflow.Generator{Records: -1}
	if p.records >= 0 {
		i, n, all := int64(subtask), int64(p.parallelism), p.records-p.changeRecords()
		g.Records = all*(i+1)/n - all*i/n
	}
	keys := int64(p.keys)
	body := make([]byte, p.recordBytes-wireBytes)
	random := rand.New(rand.NewPCG(1, uint64(subtask)))
	for i := range body {
		body[i] = "abcdefghijklmnopqrstuvwxyz012345"[random.IntN(32)] // not as easy to compress as zeros
	}
	g.Body = func(dst []byte, n int64) []byte {
		binary.BigEndian.PutUint32(body[headBytes:], uint32(n%keys))
		return append(dst, s.number(body)...)
	}
	return g
}

// changeRecords is how many of the records are changes.
func (p *pipeline) changeRecords() int64 {
	if !p.changes {
		return 0
	}
	return p.records / 10
}

// changePause is how long the change log is silent between two events.
const changePause = 10 * time.Millisecond

// changeLog is a source like change data capture: one partition, few and small
// events, each with its full schema. They are about the keys of the records.
func (p *pipeline) changeLog(s *source) dataflow.Source {
	g := &dataflow.Generator{Records: -1, Pause: changePause}
	if p.records >= 0 {
		g.Records = p.changeRecords()
	}
	event, keys := dataflow.ChangeEvent(int64(p.keys)), int64(p.keys)
	g.Body = func(dst []byte, n int64) []byte {
		body := append(dst, make([]byte, headBytes)...)
		body = binary.BigEndian.AppendUint32(body, uint32(n%keys))
		return s.number(event(body, n))
	}
	return g
}

func (p *pipeline) open() (io.ReaderAt, int64, error) {
	f, err := os.Open(p.input)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	return f, info.Size(), err
}

func (p *pipeline) sink() dataflow.Operator {
	switch {
	case p.output == "":
		return &noSink{sleep: p.sinkSleep}
	case p.plain:
		return &dataflow.PlainSink{Sleep: p.sinkSleep, Append: func(subtask int) (io.WriteCloser, error) {
			name := filepath.Join(p.output, fmt.Sprintf("plain-%04d.tsv", subtask))
			return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		}}
	}
	return &dataflow.FileSink{Files: dataflow.Dir(p.output), Log: p.log, Sleep: p.sinkSleep}
}

// noSink takes records, and does nothing with them.
type noSink struct {
	dataflow.Base
	sleep time.Duration
}

// Process implements dataflow.Operator.
func (s *noSink) Process(c *dataflow.Context, _ dataflow.Record) error {
	if s.sleep > 0 {
		c.Busy(s.sleep)
	}
	return nil
}

// queues is how many bytes the queues of the job can hold: what an unaligned
// checkpoint can have to capture.
func (p *pipeline) queues(o dataflow.Options) (bytes int64) {
	partition := func(subpartitions int) int64 {
		return int64(cmp.Or(o.OutputBuffers, 2*subpartitions+8) + max(0, o.OverdraftBuffers))
	}
	n := int64(p.parallelism)
	buffers := int64(p.books.sources)*partition(p.parallelism) + n*partition(1) // sources → count → sink
	if o.Credit {
		perGate := func(channels int64) int64 {
			return channels*int64(max(0, o.ExclusiveBuffers)) + int64(max(0, o.FloatingBuffers))
		}
		buffers += n * (perGate(n) + perGate(1))
		if p.changes {
			buffers += n * perGate(1)
		}
	}
	return buffers * int64(o.BufferSize)
}
