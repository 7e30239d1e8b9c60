package format

import (
	"hash/crc32"
	"math/bits"

	"github.com/minio/crc64nvme"

	"github.com/spillway-io/spillway/inflight"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC-32C of p.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Digest is the CRC-64/NVME of a byte stream. Unlike most digests it can be
// combined: a channel's digest follows from those of its runs.
type Digest uint64

// Add returns the digest of the stream followed by p.
func (d Digest) Add(p []byte) Digest { return Digest(crc64nvme.Update(uint64(d), p)) }

// Join returns the digest of the stream followed by another one of n bytes with
// digest e.
func (d Digest) Join(e Digest, n uint64) Digest {
	if d == 0 {
		return e
	}
	return Digest(shift64(uint64(d), n)) ^ e
}

// Without returns the digest of the last n bytes of a stream with digest d,
// given the digest of what precedes them.
func (d Digest) Without(prefix Digest, n uint64) Digest {
	return d ^ Digest(shift64(uint64(prefix), n))
}

// poly is the reflected polynomial of CRC-64/NVME.
const poly = 0x9a6c9329ac4bc9b5

// shift64 advances a CRC over n zero bytes: multiplication by x^(8n) modulo the
// polynomial, in the reflected representation (x^0 is the top bit).
func shift64(crc, n uint64) uint64 {
	for k := 0; n != 0; n >>= 1 {
		if n&1 != 0 {
			crc = mulmod(powers[k], crc)
		}
		k++
	}
	return crc
}

// powers[k] is x^(8·2^k) modulo the polynomial.
var powers = func() (p [64]uint64) {
	p[0] = 1 << (63 - 8)
	for k := 1; k < len(p); k++ {
		p[k] = mulmod(p[k-1], p[k-1])
	}
	return p
}()

func mulmod(a, b uint64) (r uint64) {
	for a != 0 {
		i := bits.LeadingZeros64(a)
		// The bits of a are taken from x^0 up; b is multiplied by x along the way.
		for ; i > 0; i-- {
			b = b>>1 ^ poly&-(b&1)
			a <<= 1
		}
		r ^= b
		a &^= 1 << 63
	}
	return r
}

// blockChecksum is the checksum of a block header: it binds the block to its
// file and place, so that one of our own files inside a payload is not taken
// for blocks. The block number is part of the header.
//
// The place is added byte by byte: a slice of it would be allocated.
func blockChecksum(id inflight.FileID, offset int64, header []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range id {
		crc = castagnoli[byte(crc)^b] ^ crc>>8
	}
	for i := range 8 {
		crc = castagnoli[byte(crc)^byte(offset>>(8*i))] ^ crc>>8
	}
	return crc32.Update(^crc, castagnoli, header)
}
