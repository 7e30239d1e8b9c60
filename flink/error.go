package flink

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// FormatError says what is wrong with bytes that Flink wrote, and where. It
// unwraps to one of ErrCorrupt, ErrTorn, ErrEmpty, ErrForeign and
// ErrUnknownVersion of package inflight.
type FormatError struct {
	Code   string // one of the codes of this package
	Offset int64  // in the file; -1 where there is none
	Text   string
	Err    error
}

// Error returns the text with the offset.
func (e *FormatError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%v: %s", e.Err, e.Text)
	}
	return fmt.Sprintf("%v at %d: %s", e.Err, e.Offset, e.Text)
}

// Unwrap returns the sentinel.
func (e *FormatError) Unwrap() error { return e.Err }

// Finding returns e as a finding of severity error about object.
func (e *FormatError) Finding(object string) inflight.Finding {
	return inflight.Finding{Severity: inflight.SeverityError, Code: e.Code, Object: object, Offset: e.Offset, Text: e.Text, Err: e}
}

func corrupt(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrCorrupt}
}

func torn(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrTorn}
}
