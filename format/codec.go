package format

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/spillway-io/spillway/inflight"
)

// Codec is how the payload of a block is compressed. The numbers are part of
// the file format.
type Codec uint8

// The codecs. CodecAuto is a choice of the encoder and never on disk: it
// samples, and stores what does not compress as it is.
const (
	CodecNone Codec = 0
	CodecS2   Codec = 1
	CodecZstd Codec = 2
	CodecAuto Codec = 255
)

// String returns the name that ParseCodec takes.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecS2:
		return "s2"
	case CodecZstd:
		return "zstd"
	case CodecAuto:
		return "auto"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// ParseCodec returns the codec of that name.
func ParseCodec(name string) (Codec, error) {
	for _, c := range []Codec{CodecNone, CodecS2, CodecZstd, CodecAuto} {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("%w: compression %q: choose none, s2, zstd or auto", inflight.ErrConfig, name)
}

// Both are stateless in use and safe for concurrent use. The decoder never
// takes more memory than the block header allows, and that is at most MaxBlock.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			panic(err) // constant options
		}
		return e
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxBlock), zstd.IgnoreChecksum(true))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// compress appends the compressed form of src to dst.
func (c Codec) compress(dst, src []byte) []byte {
	if c == CodecZstd {
		return zstdEncoder().EncodeAll(src, dst)
	}
	n := len(dst)
	dst = append(dst, make([]byte, s2.MaxEncodedLen(len(src)))...)
	return dst[:n+len(s2.Encode(dst[n:], src))]
}

// decompress fills dst, which has the length of the original, from src.
func (c Codec) decompress(dst, src []byte) error {
	switch c {
	case CodecS2:
		if n, err := s2.DecodedLen(src); err != nil || n != len(dst) {
			return fmt.Errorf("s2: %d bytes claimed, %d expected", n, len(dst))
		}
		_, err := s2.Decode(dst, src)
		return err
	case CodecZstd:
		out, err := zstdDecoder().DecodeAll(src, dst[:0:len(dst)])
		if err == nil && len(out) != len(dst) {
			err = fmt.Errorf("zstd: %d bytes, %d expected", len(out), len(dst))
		}
		return err
	}
	return fmt.Errorf("unknown codec %d", uint8(c))
}

// sampler decides for CodecAuto. Blocks are compressed with s2 while that pays;
// after one that did not, ever more are stored as they are before the next try.
type sampler struct{ skip, back int }

// worthwhile is the share of the original size below which compressing pays.
const worthwhile = 0.9

func (s *sampler) try() bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	return true
}

func (s *sampler) learn(paid bool) {
	if paid {
		s.back = 0
		return
	}
	s.back = min(2*s.back+1, 63)
	s.skip = s.back
}
