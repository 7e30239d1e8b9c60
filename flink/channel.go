package flink

import (
	"encoding/binary"
	"iter"

	"github.com/spillway-io/spillway/inflight"
)

// ChannelHandle says where the captured buffers of one channel, or (merged,
// from version 6 on) of several channels of one subtask and side lie. It is its
// bytes as they stand in _metadata.
type ChannelHandle struct {
	Side   inflight.Side
	Merged bool

	raw      []byte // without the type byte of version 6
	at       int    // of raw in _metadata
	delegate int32  // where in raw the delegate stands,
	end      int32  // and where it ends
}

// Channel is one channel in a handle.
type Channel struct {
	Address   inflight.Address
	Subtask   int // the subtask that wrote the state
	StateSize int64
	// Offsets of the chunks, in the stream of the handle. Flink sorts them.
	Offsets Int64s
}

// The type bytes of version 6.
const (
	tagInput        = 1
	tagOutput       = 2
	tagMergedInput  = 3
	tagMergedOutput = 4
)

const (
	singleFixed = 16 // subtask, two indexes, number of offsets
	mergedFixed = 12 // subtask, size
	mergedItem  = 20 // of a channel in a merged handle, without its offsets
	minHandle   = singleFixed + 8 + 1
)

// Subtask returns the index of the subtask that wrote the state.
func (h ChannelHandle) Subtask() int { return int(int32(binary.BigEndian.Uint32(h.raw))) }

// Delegate returns the stream that the chunks lie in.
func (h ChannelHandle) Delegate() StreamHandle {
	return StreamHandle{raw: h.raw[h.delegate:h.end], at: h.at + int(h.delegate)}
}

// StateSize returns the size of the channel state as the handle says. Flink uses
// it for statistics only.
func (h ChannelHandle) StateSize() int64 {
	if h.Merged {
		return int64(binary.BigEndian.Uint64(h.raw[4:]))
	}
	return int64(binary.BigEndian.Uint64(h.raw[h.delegate-8:]))
}

// Offset returns where in _metadata h begins, behind the type byte of version 6.
func (h ChannelHandle) Offset() int64 { return int64(h.at) }

// List returns the list of channels of a merged handle, as it stands in
// _metadata.
func (h ChannelHandle) List() []byte {
	if !h.Merged {
		return nil
	}
	return h.raw[h.end+4:]
}

func (h ChannelHandle) address(a, b int) inflight.Address {
	if h.Side == inflight.Input {
		return inflight.InputChannel{Gate: a, Channel: b}.Address()
	}
	return inflight.Subpartition{Partition: a, Subpartition: b}.Address()
}

// Channels yields the channels of h. The list of a merged handle is looked at
// only now: its error, a *FormatError, ends the iteration.
func (h ChannelHandle) Channels() iter.Seq2[Channel, error] {
	return func(yield func(Channel, error) bool) {
		if !h.Merged {
			d := decoder{b: h.raw}
			c := Channel{Subtask: d.i32(fieldChannelSubtask), StateSize: h.StateSize()}
			c.Address = h.address(d.i32(fieldChannelIndex), d.i32(fieldChannelIndex))
			c.Offsets = Int64s(h.raw[singleFixed : h.delegate-8])
			yield(c, nil)
			return
		}
		d := h.listDecoder()
		for range d.count("channels in a merged handle", mergedItem) {
			c := d.mergedChannel(h)
			if d.err != nil || !yield(c, nil) {
				break
			}
		}
		if d.err != nil {
			yield(Channel{}, d.err)
		}
	}
}

// channelCount returns how many channels h says it has, and room for.
func (h ChannelHandle) channelCount() int {
	if !h.Merged {
		return 1
	}
	d := h.listDecoder()
	return d.count("channels", mergedItem)
}

// listRest counts the bytes behind the last channel of a merged handle's list.
func (h ChannelHandle) listRest() int {
	if !h.Merged {
		return 0
	}
	d := h.listDecoder()
	for range d.count("channels", mergedItem) {
		d.mergedChannel(h)
	}
	return d.left()
}

func (h ChannelHandle) listDecoder() decoder {
	list := h.List()
	return decoder{b: list, base: int64(h.at + len(h.raw) - len(list)), code: CodeMergedHandle}
}

func (d *decoder) mergedChannel(h ChannelHandle) Channel {
	c := Channel{Subtask: h.Subtask()}
	c.Address = h.address(d.i32(fieldChannelIndex), d.i32(fieldChannelIndex))
	c.StateSize = d.i64(fieldChannelSize)
	c.Offsets = d.offsets(fieldChannelOffset, d.count("offsets", 8))
	return c
}

// channelHandles reads the handles of one side. The caller has read version.
func (d *decoder) channelHandles(side inflight.Side, version int) []ChannelHandle {
	at := d.at
	n := d.i32(fieldCount)
	if n < 0 {
		d.note(at, "%d channel handles: Flink takes that for none", n)
	}
	if n <= 0 {
		return nil
	}
	if n > d.left()/minHandle && d.err == nil {
		d.err = torn(d.code, d.base+int64(at), "%d channel handles cannot stand in the %d bytes that are left", n, d.left())
		return nil
	}
	list := make([]ChannelHandle, 0, n)
	for range n {
		h := ChannelHandle{Side: side}
		if version >= 6 {
			h.Merged = d.channelTag(side)
		}
		d.channelHandle(&h)
		if d.err != nil {
			return nil
		}
		list = append(list, h)
	}
	return list
}

func (d *decoder) channelTag(side inflight.Side) (merged bool) {
	at := d.at
	switch tag := d.u8(fieldTag); {
	case side == inflight.Input && tag == tagInput, side == inflight.Output && tag == tagOutput:
		return false
	case side == inflight.Input && tag == tagMergedInput, side == inflight.Output && tag == tagMergedOutput:
		return true
	default:
		d.fail(at, "unknown tag of an %s channel handle: %d", side, tag)
		return false
	}
}

func (d *decoder) channelHandle(h *ChannelHandle) {
	h.at = d.at
	d.i32(fieldChannelSubtask)
	if !h.Merged {
		d.i32(fieldChannelIndex)
		d.i32(fieldChannelIndex)
		d.offsets(fieldChannelOffset, d.count("offsets", 8))
	}
	d.i64(fieldChannelSize)
	delegateAt := d.at
	h.delegate = int32(d.at - h.at)
	if d.streamHandle(0).IsNull() {
		d.fail(delegateAt, "channel handle that points nowhere: Flink fails on it")
	}
	h.end = int32(d.at - h.at)
	if h.Merged {
		list := d.bytes(fieldMerged)
		if d.trace != nil && d.err == nil {
			d.traceList(*h, list)
		}
	}
	h.raw = d.b[h.at:d.at]
}

// traceList names the fields in the list of a merged handle.
func (d *decoder) traceList(h ChannelHandle, list []byte) {
	at := d.at - len(list)
	h.raw = d.b[h.at:d.at]
	l := decoder{b: list, trace: func(f field, from, to int) { d.trace(f, at+from, at+to) }}
	for range l.count("channels", mergedItem) {
		l.mergedChannel(h)
	}
}

// NewChannelHandle returns a handle of channels whose chunks lie in delegate: a
// merged one, or, with a single channel and merge false, a plain one. All
// channels are of one side and subtask.
func NewChannelHandle(delegate StreamHandle, channels []Channel, merge bool) ChannelHandle {
	c := channels[0]
	h := ChannelHandle{Side: c.Address.Side, Merged: merge || len(channels) > 1}
	b := appendI32(nil, c.Subtask)
	if !h.Merged {
		b = appendAddress(b, c.Address)
		b = append(appendI32(b, c.Offsets.Len()), c.Offsets...)
		b = appendI64(b, c.StateSize)
		h.delegate = int32(len(b))
		h.raw = append(b, delegate.raw...)
		h.end = int32(len(h.raw))
		return h
	}
	var size int64
	list := appendI32(nil, len(channels))
	for _, c := range channels {
		size += c.StateSize
		list = appendI64(appendAddress(list, c.Address), c.StateSize)
		list = append(appendI32(list, c.Offsets.Len()), c.Offsets...)
	}
	b = appendI64(b, size)
	h.delegate = int32(len(b))
	b = append(b, delegate.raw...)
	h.end = int32(len(b))
	h.raw = append(appendI32(b, len(list)), list...)
	return h
}

func appendAddress(b []byte, a inflight.Address) []byte {
	if a.Side == inflight.Input {
		return appendI32(appendI32(b, a.Input.Gate), a.Input.Channel)
	}
	return appendI32(appendI32(b, a.Output.Partition), a.Output.Subpartition)
}

// appendHandles appends the list of one side as version writes it. Versions
// before 6 have no merged handles: they get one for each channel.
func appendHandles(b []byte, version int, list []ChannelHandle) ([]byte, error) {
	at, n := len(b), 0
	b = appendI32(b, 0)
	for _, h := range list {
		if version >= 6 {
			tag := byte(tagInput)
			if h.Side == inflight.Output {
				tag = tagOutput
			}
			if h.Merged {
				tag += tagMergedInput - tagInput
			}
			b = append(append(b, tag), h.raw...)
			n++
			continue
		}
		delegate := h.Delegate()
		for c, err := range h.Channels() {
			if err != nil {
				return nil, err
			}
			b = append(b, NewChannelHandle(delegate, []Channel{c}, false).raw...)
			n++
		}
	}
	binary.BigEndian.PutUint32(b[at:], uint32(n))
	return b, nil
}
