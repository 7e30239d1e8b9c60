package inspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Table is something for people to read.
type Table struct {
	Title   string
	Columns []Column
	Rows    []Row
	Note    string // below it; may be empty
}

// Column is the head of a column.
type Column struct {
	Name  string
	Right bool // numbers
}

// Row is a row of a table.
type Row struct {
	Cells []string
	Tone  Tone
}

// Tone says how a row is meant. Printers may colour it.
type Tone int

// The tones.
const (
	TonePlain Tone = iota
	ToneGood
	ToneQuiet
	ToneWarning
	ToneError
)

// columns makes columns out of names; those that begin with '#' are numbers.
func columns(names ...string) (c []Column) {
	for _, n := range names {
		name, right := strings.CutPrefix(n, "#")
		c = append(c, Column{Name: name, Right: right})
	}
	return c
}

func newRow(tone Tone, cells ...any) Row {
	r := Row{Tone: tone}
	for _, c := range cells {
		r.Cells = append(r.Cells, oneLine(fmt.Sprint(c)))
	}
	return r
}

func (t *Table) add(tone Tone, cells ...any) { t.Rows = append(t.Rows, newRow(tone, cells...)) }

// ToneOf returns the tone of a severity.
func ToneOf(s inflight.Severity) Tone {
	switch s {
	case inflight.SeverityError:
		return ToneError
	case inflight.SeverityWarning:
		return ToneWarning
	}
	return ToneQuiet
}

// size is a number of bytes for people.
type size uint64

// String returns for example "812 B" or "1.5 MiB".
func (n size) String() string {
	if n < 1024 {
		return fmt.Sprintf("%d B", uint64(n))
	}
	f, unit := float64(n)/1024, "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB", "PiB"} {
		if f < 999.95 {
			break
		}
		f, unit = f/1024, next
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// age is how long ago something was, for people.
type age time.Duration

// String returns for example "42s" or "3d".
func (a age) String() string {
	d := time.Duration(a)
	switch {
	case d < 0:
		return "in the future"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// millis is a duration of _stats.json for people.
func millis(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", *ms)
}

// dash returns what v says, or "-" where that is nothing.
func dash[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// orDash returns s, or "-" where that is nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// sizeOrDash returns "-" for no bytes, so that what is there stands out.
func sizeOrDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return size(n).String()
}

// oneLine makes what may come from a damaged file fit for one line of a
// terminal.
func oneLine(s string) string {
	s = strings.ReplaceAll(s, "\n", ": ") // errors that were joined
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '?'
		}
		return r
	}, s)
}

// few returns a list of names for people: of many the first ones.
func few(names []string) string {
	const most = 10
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// longText is how many bytes of a text people are shown.
const longText = 1000

// Shorten cuts down a text that lists very much, and says how much is left out.
// What helps, in brackets at the end, stays.
func Shorten(s string) string {
	if len(s) <= longText {
		return s
	}
	tail := ""
	if k := strings.LastIndex(s, " ("); k >= 0 && len(s)-k < longText/3 && strings.HasSuffix(s, ")") {
		s, tail = s[:k], s[k:]
	}
	head := s[:min(len(s), longText-len(tail))]
	if k := strings.LastIndex(head, "; "); k > 0 {
		return fmt.Sprintf("%s; and %d more%s", head[:k], strings.Count(s[k:], "; "), tail)
	}
	head = strings.ToValidUTF8(head, "")
	return fmt.Sprintf("%s… and %d bytes more%s", head, len(s)-len(head), tail)
}

// plural returns "1 file", "2 files".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
