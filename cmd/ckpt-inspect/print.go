package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spillway-io/spillway/inspect"
)

// write prints a report: its lines as JSON, or its tables.
func (a *app) write(r inspect.Report) error {
	w := bufio.NewWriter(a.stdout)
	if a.json {
		for _, l := range r.Lines() {
			if err := writeJSON(w, l); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	for i, t := range r.Tables() {
		if i > 0 {
			fmt.Fprintln(w)
		}
		a.table(w, &t)
	}
	return w.Flush()
}

// writeJSON prints v on a line of its own.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints a table: the title, a line of heads, the rows, the note.
func (a *app) table(w io.Writer, t *inspect.Table) {
	if t.Title != "" {
		fmt.Fprintln(w, a.paint(bold, quoteControls(t.Title)))
	}
	if len(t.Rows) > 0 {
		heads := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			heads[i] = c.Name
		}
		rows := append([]inspect.Row{{Cells: heads, Tone: inspect.ToneQuiet}}, t.Rows...)
		var b bytes.Buffer
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		widths := numberWidths(t.Columns, rows)
		for _, r := range rows {
			for i, cell := range r.Cells {
				fmt.Fprintf(tw, "%*s\t", widths[i], cell)
			}
			fmt.Fprintln(tw)
		}
		_ = tw.Flush() // to memory
		for i, l := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
			// Whole lines are painted, so that escapes have no width in the table.
			fmt.Fprintln(w, a.paint(tones[rows[i].Tone], strings.TrimRight(l, " ")))
		}
	}
	if t.Note != "" {
		for l := range strings.SplitSeq(t.Note, "\n") {
			fmt.Fprintln(w, quoteControls(l))
		}
	}
}

const (
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

var tones = map[inspect.Tone]string{
	inspect.ToneGood: "\x1b[32m", inspect.ToneQuiet: "\x1b[2m", inspect.ToneWarning: "\x1b[33m", inspect.ToneError: "\x1b[31m",
}

func (a *app) paint(escape, text string) string {
	if !a.colour || escape == "" {
		return text
	}
	return escape + text + normal
}

// numberWidths returns the widths of the columns with numbers, to which they
// are filled up on the left; 0 for others.
func numberWidths(columns []inspect.Column, rows []inspect.Row) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		for _, r := range rows {
			if c.Right && i < len(r.Cells) {
				widths[i] = max(widths[i], utf8.RuneCountInString(r.Cells[i]))
			}
		}
	}
	return widths
}
