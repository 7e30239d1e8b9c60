package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
)

// report prints what a run has to say: lines of JSON or tables, and on a
// terminal a line that changes.
type report struct {
	mu       sync.Mutex
	out      io.Writer // tables or JSON
	terminal io.Writer // of the live line; nil: there is none
	json     bool
	colour   bool
	live     bool  // the live line stands
	err      error // of out, the first one
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	normal = "\x1b[0m"
	wipe   = "\r\x1b[K"
)

func (r *report) paint(escape, text string) string {
	if !r.colour {
		return text
	}
	return escape + text + normal
}

// print writes text in place of the live line.
func (r *report) print(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	if _, err := io.WriteString(r.out, text); r.err == nil {
		r.err = err
	}
}

func (r *report) clear() {
	if r.live {
		fmt.Fprint(r.terminal, wipe)
		r.live = false
	}
}

// failed returns why nothing can be printed; nil: it can.
func (r *report) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// say prints lines for people only.
func (r *report) say(format string, args ...any) {
	if !r.json {
		r.print(fmt.Sprintf(format, args...) + "\n")
	}
}

// event prints v as JSON, or text.
func (r *report) event(v any, text func() string) {
	if !r.json {
		r.print(text())
		return
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // plain structs, to memory
	r.print(b.String())
}

// show draws the live line anew.
func (r *report) show(text string) {
	if r.terminal == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprint(r.terminal, wipe, r.paint(dim, text))
	r.live = true
}

// hide takes the live line away.
func (r *report) hide() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
}

// logWriter lets log lines take the place of the live line.
type logWriter struct {
	r *report
	w io.Writer
}

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.clear()
	return w.w.Write(p)
}

func (r *report) checkpoint(l checkpointLine) string {
	var b strings.Builder
	head := l.title()
	if l.skipped() {
		fmt.Fprintln(&b, r.paint(yellow, head+"  skipped: "+l.Decision))
		return b.String()
	}
	if l.State != "completed" {
		tone := yellow
		if l.State == "failed" {
			tone = red
		}
		fmt.Fprintln(&b, r.paint(tone, fmt.Sprintf("%s  %s after %s: %s (%s)", head, l.State, inMs(l.DurationMs), l.Reason, l.Text)))
		return b.String()
	}
	fmt.Fprintf(&b, "%s  %s  %s  %s  %s\n", r.paint(bold, head), l.Alignment, r.paint(bold, inMs(l.DurationMs)), inBytes(float64(l.SizeBytes)), plural(l.Files, "file"))
	if l.Partial {
		fmt.Fprintln(&b, "  "+r.paint(yellow, "partial: a source subtask was gone"))
	}
	rows := [][]string{{"subtask", "start_delay", "alignment", "sync", "async", "end_to_end", "persisted", "unaligned"}}
	for _, s := range l.Subtasks {
		rows = append(rows, []string{fmt.Sprintf("%s/%d", s.Vertex, s.Subtask), inMs(s.StartDelayMs), inMs(s.AlignmentMs), inMs(s.SyncMs),
			inMs(s.AsyncMs), inMs(s.EndToEndMs), inBytes(float64(s.PersistedBytes)), map[bool]string{true: "yes", false: "no"}[s.Unaligned]})
	}
	for i, line := range table(rows) {
		if i == 0 {
			line = r.paint(dim, line)
		}
		fmt.Fprintln(&b, "  "+line)
	}
	return b.String()
}

func (r *report) summary(l summaryLine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.paint(bold, fmt.Sprintf("summary of %s (without the first, and those after the end of the data)", plural(l.Measured, "checkpoint"))))
	rows := [][]string{{"completed", fmt.Sprintf("%d, failed %d, declined %d: %.0f %%", l.Completed, l.Failed, l.Declined, 100*l.SuccessRate)}}
	if l.Partial > 0 {
		rows = append(rows, []string{"partial", fmt.Sprintf("%d of them: without unaligned.allow-without-source %.0f %%", l.Partial, 100*l.WholeRate)})
	}
	if l.Measured > 0 {
		rows = append(rows,
			[]string{"duration", fmt.Sprintf("p50 %s, p99 %s, %s – %s, σ %s", inMs(l.DurationP50Ms), inMs(l.DurationP99Ms), inMs(l.DurationMinMs), inMs(l.DurationMaxMs), inMs(l.DurationStddevMs))},
			[]string{"size", fmt.Sprintf("%s – %s, σ/mean %.0f %%", inBytes(float64(l.SizeMinBytes)), inBytes(float64(l.SizeMaxBytes)), 100*l.SizeDeviation)})
		if l.SizeUnsteady {
			rows[len(rows)-1][1] += r.paint(yellow, fmt.Sprintf("  unsteady: more than %.0f %%", 100*unsteady))
		}
	}
	if l.RecordMs > 0 {
		rows = append(rows, []string{"record", inMs(l.RecordMs) + " measured"})
	}
	if l.Restarts > 0 {
		rows = append(rows, []string{"restarts", fmt.Sprint(l.Restarts)})
	}
	for _, line := range table(rows) {
		fmt.Fprintln(&b, "  "+line)
	}
	return b.String()
}

// keyless says how many lines have no value in the field of --key.
func (l resultLine) keyless(field string) string {
	are := "are"
	if l.Keyless == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s %s no JSON object with field %s: counted under the empty key", plural(int(l.Keyless), "line"), are, field)
}

func (r *report) result(l resultLine, field string) string {
	text := fmt.Sprintf("result: %d emitted, %d counted, %d lost, %d duplicated; replayed %s of %s", l.Emitted, l.Counted, l.Lost, l.Duplicated,
		plural(int(l.ReplayedBuffers), "buffer"), inBytes(float64(l.ReplayedBytes)))
	tone := bold
	if l.Lost+l.Duplicated > 0 {
		tone = red
	}
	text = r.paint(tone, text) + "\n"
	if l.Keyless > 0 {
		text += "  " + r.paint(yellow, l.keyless(field)) + "\n"
	}
	return text
}

// table aligns columns.
func table(rows [][]string) []string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // to memory
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// inMs writes milliseconds as people read them.
func inMs(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.2f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	case v < 1000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.2f s", v/1000)
}

// inBytes writes a size as people read it.
func inBytes(v float64) string {
	if v < 1024 {
		return fmt.Sprintf("%.0f B", v)
	}
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		if v /= 1024; v < 1023.95 {
			return fmt.Sprintf("%.1f %s", v, unit)
		}
	}
	return fmt.Sprintf("%.1f TiB", v/1024)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// oneLine returns the text of err on one line, without what would steer a
// terminal: keys and paths may have any bytes.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", ": ")), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// perSecond writes a rate.
func perSecond(n uint64, d time.Duration) string {
	rate := float64(n) / d.Seconds()
	switch {
	case rate >= 1e6:
		return fmt.Sprintf("%.1f M records/s", rate/1e6)
	case rate >= 1e4:
		return fmt.Sprintf("%.0f k records/s", rate/1e3)
	}
	return fmt.Sprintf("%.0f records/s", rate)
}
