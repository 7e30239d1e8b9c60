package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documented are the lines by the heads of their tables in docs/json.md.
var documented = map[string]any{
	"field of `checkpoint`": checkpointLine{}, "field of a subtask": subtaskLine{}, "field of `restore`": restoreLine{},
	"field of `summary`": summaryLine{}, "field of `result`": resultLine{}, "field of `option`": optionLine{},
	"field of `check`": checkLine{},
}

// jsonDoc returns the part of docs/json.md that is about this command.
func jsonDoc(t *testing.T) string {
	p, err := os.ReadFile("../../docs/json.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(p), "\n## Lines of ckpt-run\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

func TestDocFields(t *testing.T) {
	tables := map[string][]string{}
	var head string
	for line := range strings.Lines(jsonDoc(t)) {
		cell, _, row := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		switch {
		case strings.HasPrefix(line, "|---"):
		case !row || !strings.HasPrefix(line, "| "):
			head = ""
		case head == "":
			head = cell
		default:
			tables[head] = append(tables[head], cell)
		}
	}
	for head, line := range documented {
		var fields []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(line)) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
				fields = append(fields, name)
			}
		}
		require.ElementsMatch(t, fields, tables[head], head)
	}
}

// TestDocExamples decodes the examples strictly.
func TestDocExamples(t *testing.T) {
	seen := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```jsonl\n(.*?)```").FindAllStringSubmatch(jsonDoc(t), -1) {
		for line := range strings.Lines(block[1]) {
			var event struct {
				Event string `json:"event"`
			}
			require.NoError(t, json.Unmarshal([]byte(line), &event))
			d := json.NewDecoder(bytes.NewReader([]byte(line)))
			d.DisallowUnknownFields()
			v := reflect.New(reflect.TypeOf(documented["field of `"+event.Event+"`"]))
			require.NoError(t, d.Decode(v.Interface()), line)
			again, err := json.Marshal(v.Interface())
			require.NoError(t, err)
			require.JSONEq(t, line, string(again))
			seen[event.Event] = true
		}
	}
	require.Len(t, seen, 6)
}
