package flink

import (
	"fmt"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// FormatError says what is wrong with bytes that Flink wrote, and where; its
// Code is one of this package.
type FormatError = format.FormatError

// damage refuses to go on with a checkpoint because of a finding. It is an
// ErrDamaged, though not of a manifest.
type damage struct{ inflight.Finding }

func (d damage) Error() string        { return "it is damaged: " + d.String() }
func (d damage) Is(target error) bool { return target == inflight.ErrDamaged }

func (c *Checkpoint) damaged(op string, f inflight.Finding, mend string) error {
	return &inflight.Error{Op: op, Object: c.Dir, Err: damage{f}, Mend: mend}
}

func corrupt(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrCorrupt}
}

func torn(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrTorn}
}
