package inflight

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// FileID is the random identity of one channel-state file. It is bound into the
// checksum of every block, so that a file that was swapped with another is
// noticed wherever it is read.
type FileID [16]byte

// NewFileID returns a random id.
func NewFileID() (id FileID) {
	rand.Read(id[:]) // never fails (Go 1.24)
	return id
}

// String returns id in hexadecimal.
func (id FileID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id FileID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *FileID) UnmarshalText(p []byte) error {
	if len(p) != 2*len(id) {
		return fmt.Errorf("file id %q: want %d hexadecimal digits", p, 2*len(id))
	}
	_, err := hex.Decode(id[:], p)
	return err
}

// Segment names the section of one subtask in one file: Length bytes at Offset
// of the file File, with checksum CRC (CRC-32C). The section says where the
// captured bytes lie.
type Segment struct {
	File   string `json:"file"` // relative to the job directory: chk-<id>/<name>
	FileID FileID `json:"file_id"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	CRC    uint32 `json:"crc"`
}

// FileRef names a channel-state file, relative to the job directory.
type FileRef struct {
	Name   string `json:"name"`
	FileID FileID `json:"file_id"`
}

// Handle says where the captured state of one subtask of one checkpoint lies:
// an ordered list of segments, the last of which carries the subtask's complete
// mark. It is all that is needed to restore the subtask; the manifest holds one
// for each. A handle without segments means that the subtask had neither bytes
// nor cuts.
type Handle struct {
	Task       Task         `json:"task"`
	Checkpoint CheckpointID `json:"checkpoint"`
	Segments   []Segment    `json:"segments,omitempty"`
	// References are the files of older checkpoints that captured bytes lie in,
	// beside those of the segments. They must be kept as long as the handle is.
	References []FileRef `json:"references,omitempty"`
	// InputBytes, OutputBytes and StateBytes count payload before compression.
	InputBytes  uint64 `json:"input_bytes,omitempty"`
	OutputBytes uint64 `json:"output_bytes,omitempty"`
	StateBytes  uint64 `json:"state_bytes,omitempty"`
}

// PersistedBytes is the payload of channel state, both sides, before
// compression; operator state is not in it.
func (h Handle) PersistedBytes() uint64 { return h.InputBytes + h.OutputBytes }
