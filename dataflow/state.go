package dataflow

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/spillway-io/spillway/inflight"
)

// State is a named piece of a subtask's state.
type State interface {
	// Freeze returns a picture that no longer changes. It runs on the task, so
	// it is short. Encode runs beside it, once, and hands over the picture in
	// pieces of any size, which are no longer touched.
	Freeze() Frozen
	// Restore takes back what Encode handed over, in one piece.
	Restore(data []byte) error
}

// Frozen is a picture of a State.
type Frozen interface{ Encode(put func([]byte)) }

// FrozenBytes is a Frozen that is encoded already.
type FrozenBytes []byte

// Encode puts b.
func (b FrozenBytes) Encode(put func([]byte)) { put(b) }

// Codec writes and reads values. A value must not be changed through a pointer
// that a copy shares.
type Codec[V any] struct {
	Append func(dst []byte, v *V) []byte
	Decode func(data []byte, v *V) error
}

// Int64 is the codec of numbers.
var Int64 = Codec[int64]{
	Append: func(dst []byte, v *int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(*v)) },
	Decode: func(data []byte, v *int64) error {
		if len(data) != 8 {
			return fmt.Errorf("a number of %d bytes: %w", len(data), inflight.ErrCorrupt)
		}
		*v = int64(binary.BigEndian.Uint64(data))
		return nil
	},
}

// Value is operator state of one small value.
type Value[V any] struct {
	V     V
	codec Codec[V]
}

// NewValue registers a value under name; it is V where nothing was restored.
func NewValue[V any](c *Context, name inflight.StateName, codec Codec[V], v V) (*Value[V], error) {
	s := &Value[V]{V: v, codec: codec}
	return s, c.Register(name, s)
}

// Freeze implements State.
func (s *Value[V]) Freeze() Frozen { return FrozenBytes(s.codec.Append(nil, &s.V)) }

// Restore implements State.
func (s *Value[V]) Restore(data []byte) error { return s.codec.Decode(data, &s.V) }

// Keyed is state with a value for each key. It is a hash trie of 16-way nodes
// that is changed in place, except where a picture still shows a node or an
// entry: that is copied before the first change. So Freeze takes no time, and
// records flow while the picture is encoded.
//
//	keyed state, for each key: hash uint32 · key length uvarint · key · value length uvarint · value
type Keyed[V any] struct {
	codec Codec[V]
	root  *node[V]
	age   uint64 // grows with each picture; what is older is shared
	n     int
	// hot holds entries that were used of late, two for each part of the hash:
	// so most records need no walk through the trie.
	hot [hotSize][2]*leaf[V]
}

const hotSize = 512

type node[V any] struct {
	age   uint64
	child [16]slot[V]
}

// slot is a node, or the entries of one hash, or empty.
type slot[V any] struct {
	n *node[V]
	l *leaf[V]
}

type leaf[V any] struct {
	age  uint64
	hash int32
	key  string
	v    V
	next *leaf[V]
}

// NewKeyed registers keyed state under name.
func NewKeyed[V any](c *Context, name inflight.StateName, codec Codec[V]) (*Keyed[V], error) {
	s := &Keyed[V]{codec: codec, root: &node[V]{}}
	return s, c.Register(name, s)
}

// Len is the number of keys.
func (s *Keyed[V]) Len() int { return s.n }

// Get returns the value of a key for reading; nil: there is none.
func (s *Keyed[V]) Get(k Key) *V {
	at := slot[V]{n: s.root}
	for h := spread(k.Hash); at.n != nil; h = bits.RotateLeft32(h, 4) {
		at = at.n.child[bits.RotateLeft32(h, 4)&15]
	}
	for l := at.l; l != nil; l = l.next {
		if l.hash == k.Hash && l.key == string(k.Bytes) {
			return &l.v
		}
	}
	return nil
}

// Put returns the value of a key for changing, a zero one if it is new. The
// pointer is good until the next call.
func (s *Keyed[V]) Put(k Key) *V {
	h := spread(k.Hash)
	hot := &s.hot[h%hotSize]
	for _, l := range hot {
		if l != nil && l.hash == k.Hash && l.age == s.age && l.key == string(k.Bytes) {
			return &l.v
		}
	}
	hot[1] = hot[0]
	hot[0] = s.find(h, k)
	return &hot[0].v
}

// find returns the entry of a key, changeable, a new one if there is none.
func (s *Keyed[V]) find(h uint32, k Key) *leaf[V] {
	n := s.own(&s.root)
	for depth := 1; ; depth++ {
		h = bits.RotateLeft32(h, 4)
		at := &n.child[h&15]
		if at.n == nil {
			if at.l == nil || at.l.hash == k.Hash {
				return s.putLeaf(&at.l, k)
			}
			s.split(at, depth)
		}
		n = s.own(&at.n)
	}
}

// own makes the node at *at changeable.
func (s *Keyed[V]) own(at **node[V]) *node[V] {
	if (*at).age != s.age {
		c := **at
		c.age = s.age
		*at = &c
	}
	return *at
}

// split moves the entries of a slot one level down.
func (s *Keyed[V]) split(at *slot[V], depth int) {
	h := bits.RotateLeft32(spread(at.l.hash), 4*depth+4)
	n := &node[V]{age: s.age}
	n.child[h&15].l = at.l
	*at = slot[V]{n: n}
}

// putLeaf finds or adds a key among the entries of its hash.
func (s *Keyed[V]) putLeaf(first **leaf[V], k Key) *leaf[V] {
	for at := first; *at != nil; at = &(*at).next {
		if (*at).age != s.age {
			c := **at
			c.age = s.age
			*at = &c
		}
		if (*at).key == string(k.Bytes) {
			return *at
		}
	}
	s.n++
	*first = &leaf[V]{age: s.age, hash: k.Hash, key: string(k.Bytes), next: *first}
	return *first
}

// each calls f for every key.
func (s *Keyed[V]) each(f func(key string, v *V)) { s.root.each(func(l *leaf[V]) { f(l.key, &l.v) }) }

func (n *node[V]) each(f func(*leaf[V])) {
	for _, at := range n.child {
		for l := at.l; l != nil; l = l.next {
			f(l)
		}
		if at.n != nil {
			at.n.each(f)
		}
	}
}

// Freeze implements State.
func (s *Keyed[V]) Freeze() Frozen {
	f := &frozenKeyed[V]{s.root, s.codec}
	s.age++
	return f
}

type frozenKeyed[V any] struct {
	root  *node[V]
	codec Codec[V]
}

// encodeChunk is about how much a picture hands over at a time.
const encodeChunk = 64 << 10

func (f *frozenKeyed[V]) Encode(put func([]byte)) {
	var out, value []byte
	f.root.each(func(l *leaf[V]) {
		out = binary.BigEndian.AppendUint32(out, uint32(l.hash))
		out = binary.AppendUvarint(out, uint64(len(l.key)))
		out = append(out, l.key...)
		value = f.codec.Append(value[:0], &l.v)
		out = binary.AppendUvarint(out, uint64(len(value)))
		out = append(out, value...)
		if len(out) >= encodeChunk {
			put(out)
			out = nil
		}
	})
	if len(out) > 0 {
		put(out)
	}
}

// Restore implements State.
func (s *Keyed[V]) Restore(data []byte) error {
	for len(data) > 0 {
		if len(data) < 4 {
			return fmt.Errorf("keyed state ends within a key: %w", inflight.ErrCorrupt)
		}
		k := Key{Hash: int32(binary.BigEndian.Uint32(data))}
		var value []byte
		var ok bool
		if k.Bytes, data, ok = cutBytes(data[4:]); ok {
			value, data, ok = cutBytes(data)
		}
		if !ok {
			return fmt.Errorf("keyed state ends within a key: %w", inflight.ErrCorrupt)
		}
		if err := s.codec.Decode(value, s.Put(k)); err != nil {
			return err
		}
	}
	return nil
}

// cutBytes takes a length and so many bytes off p.
func cutBytes(p []byte) (b, rest []byte, ok bool) {
	n, k := binary.Uvarint(p)
	if k <= 0 || n > uint64(len(p)-k) {
		return nil, nil, false
	}
	return p[k : k+int(n)], p[k+int(n):], true
}

// spread makes the upper bits of a hash depend on all of it. It is one to one,
// so that two hashes part within eight levels.
func spread(hash int32) uint32 {
	h := uint32(hash)
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
