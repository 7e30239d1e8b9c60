package hdfs

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// What the client library gets wrong when it reads.
var (
	errIntegrity = errors.New("data transfer protection integrity, which the client library can write and not read")
	errNoCipher  = errors.New("data transfer protection privacy without AES, which the client library can write and not read")
)

// sasl watches a connection to a datanode agree on its protection, and refuses
// what could be written and not read, whatever the configuration says.
//
//	ours    0xDEADBEEF, hello
//	theirs  challenge
//	ours    qop=auth | auth-int | auth-conf, and that we know AES
//	theirs  proof, and the cipher if they know it too
//	ours    a request, protected as agreed
type sasl struct {
	phase   int
	private bool
	proof   []byte
}

const (
	saslHello = iota // nothing written yet
	saslAnswer
	saslProof
	saslDone
)

func (s *sasl) write(p []byte) error {
	switch s.phase {
	case saslHello:
		s.phase = saslDone
		if bytes.HasPrefix(p, []byte{0xDE, 0xAD, 0xBE, 0xEF}) {
			s.phase = saslAnswer
		}
	case saslAnswer:
		s.phase = saslProof
		s.private = bytes.Contains(p, []byte("qop=auth-conf"))
		if bytes.Contains(p, []byte("qop=auth-int")) {
			return errIntegrity
		}
	case saslProof:
		s.phase = saslDone
		if s.private && !hasCipher(s.proof) {
			return errNoCipher
		}
		s.proof = nil
	}
	return nil
}

func (s *sasl) read(p []byte) {
	if s.phase == saslProof && len(s.proof) < 64<<10 {
		s.proof = append(s.proof, p...)
	}
}

// hasCipher reports whether a DataTransferEncryptorMessageProto with its length
// before it has a cipherOption (field 4).
func hasCipher(message []byte) bool {
	_, n := binary.Uvarint(message)
	for message = message[max(n, 0):]; len(message) > 0; {
		key, n := binary.Uvarint(message)
		if n <= 0 {
			return false
		}
		value, m := binary.Uvarint(message[n:])
		switch {
		case m <= 0:
			return false
		case key == 4<<3|2:
			return true
		case key&7 == 2: // a length, and so many bytes
			if value > uint64(len(message)-n-m) {
				return false
			}
			message = message[n+m+int(value):]
		default:
			message = message[n+m:]
		}
	}
	return false
}
