package flink

import (
	"fmt"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// FormatError says what is wrong with bytes that Flink wrote, and where; its
// Code is one of this package.
type FormatError = format.FormatError

func corrupt(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrCorrupt}
}

func torn(code string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format, args...), Err: inflight.ErrTorn}
}
