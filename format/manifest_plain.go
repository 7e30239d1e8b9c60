package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// A manifest ends with the arrays of files and tasks, and they are nearly all of
// it. They are written by hand, and read by hand where they look like that:
// reflection would cost more than all other steps of opening a checkpoint
// together. Any other JSON goes through encoding/json; the result is the same.
const (
	filesHead   = `,"files":[`
	tasksHead   = `,"tasks":[`
	subtaskHead = `{"subtask":`
)

// appendFiles appends the member files.
func appendFiles(p []byte, files []FileInfo) []byte {
	for i, f := range files {
		p = appendText(append(appendItem(p, i, filesHead), `{"name":`...), f.Name)
		p = strconv.AppendInt(append(p, `,"size":`...), f.Size, 10)
		p = appendText(append(p, `,"id":`...), f.FileID.String())
		if f.DirLength > 0 {
			p = appendNumbers(append(p, `,"directory":`...), f.DirOffset, f.DirLength, int64(f.DirCRC))
		}
		p = append(p, '}')
	}
	return closeItems(p, len(files))
}

// appendTasks appends the member tasks.
func appendTasks(p []byte, tasks []tasksJSON) []byte {
	for i, t := range tasks {
		p = appendText(append(appendItem(p, i, tasksHead), `{"vertex":`...), t.Vertex)
		for k := range t.Subtasks {
			p = t.Subtasks[k].append(appendItem(p, k, `,"subtasks":[`))
		}
		p = closeItems(p, len(t.Subtasks))
		if len(t.Finished) > 0 {
			p = appendNumbers(append(p, `,"finished":`...), t.Finished...)
		}
		p = append(p, '}')
	}
	return closeItems(p, len(tasks))
}

func (s *subtaskJSON) append(p []byte) []byte {
	p = strconv.AppendInt(append(p, subtaskHead...), int64(s.Subtask), 10)
	for i, g := range s.Segments {
		p = appendNumbers(appendItem(p, i, `,"segments":[`), g...)
	}
	p = closeItems(p, len(s.Segments))
	if len(s.References) > 0 {
		p = appendNumbers(append(p, `,"references":`...), s.References...)
	}
	for i, n := range []uint64{s.InputBytes, s.OutputBytes, s.StateBytes} {
		if n > 0 {
			p = strconv.AppendUint(append(p, totalKeys[i]...), n, 10)
		}
	}
	return append(p, '}')
}

var totalKeys = [3]string{`,"input_bytes":`, `,"output_bytes":`, `,"state_bytes":`}

// appendItem begins item i of an array, and the array before the first.
func appendItem(p []byte, i int, head string) []byte {
	if i == 0 {
		return append(p, head...)
	}
	return append(p, ',')
}

// closeItems ends an array of n items; it was begun if there is one.
func closeItems(p []byte, n int) []byte {
	if n == 0 {
		return p
	}
	return append(p, ']')
}

func appendNumbers[T int | int64](p []byte, list ...T) []byte {
	for i, n := range list {
		p = strconv.AppendInt(appendItem(p, i, "["), int64(n), 10)
	}
	return closeItems(p, len(list))
}

// appendText appends s as encoding/json would.
func appendText(p []byte, s string) []byte {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			_ = e.Encode(s) // a string has an encoding
			return append(p, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
		}
	}
	return append(append(append(p, '"'), s...), '"')
}

// decodePlain fills w from the manifest p, if its arrays are as written above.
func (w *manifestJSON) decodePlain(p []byte) bool {
	head, tail, ok := bytes.Cut(p, []byte(filesHead))
	if !ok {
		return false
	}
	n := bytes.Count(tail, []byte(subtaskHead))
	r := plainReader{p: tail, list: make(numbers, 0, 4*n), lists: make([]numbers, 0, n), subtasks: make([]subtaskJSON, 0, n)}
	files, tasks := r.files(), r.tasks()
	r.expect(crcHead)
	if r.bad || len(tail)-r.at != crcDigits+len(crcTail) {
		return false
	}
	// Closed here, the head is JSON only if the arrays are members of the outermost object.
	if err := json.Unmarshal(fmt.Appendf(nil, "%s}", head), w); err != nil || w.Files != nil || w.Tasks != nil {
		return false
	}
	w.Files, w.Tasks = files, tasks
	return true
}

// plainReader reads JSON that is written exactly as above: no spaces, members in
// order, no number below 0. Whatever else is there makes it bad.
type plainReader struct {
	p   []byte
	at  int
	bad bool

	// Memory for lists. One that is too small is given up to those that have a part of it.
	list     numbers
	lists    []numbers
	subtasks []subtaskJSON
}

// next skips s, if it comes next.
func (r *plainReader) next(s string) bool {
	if len(r.p)-r.at < len(s) || string(r.p[r.at:r.at+len(s)]) != s {
		return false
	}
	r.at += len(s)
	return true
}

func (r *plainReader) expect(s string) {
	if !r.next(s) {
		r.bad = true
	}
}

// more reports whether another item of an array follows.
func (r *plainReader) more() bool { return !r.bad && r.next(",") }

func (r *plainReader) number() int64 {
	n, start := int64(0), r.at
	for ; r.at < len(r.p) && r.p[r.at]-'0' <= 9; r.at++ {
		n = 10*n + int64(r.p[r.at]-'0')
	}
	if digits := r.at - start; digits == 0 || digits > 18 || digits > 1 && r.p[start] == '0' {
		r.bad = true
	}
	return n
}

// index returns n, which must be an int everywhere.
func (r *plainReader) index(n int64) int {
	if n > math.MaxInt32 {
		r.bad = true
	}
	return int(n)
}

func (r *plainReader) numbers() numbers {
	start := len(r.list)
	r.expect("[")
	for ok := true; ok; ok = r.more() {
		r.list = append(r.list, r.number())
	}
	r.expect("]")
	return r.list[start:len(r.list):len(r.list)]
}

func (r *plainReader) text() string {
	r.expect(`"`)
	n := bytes.IndexByte(r.p[r.at:], '"')
	if n < 0 {
		r.bad = true
		return ""
	}
	s := r.p[r.at : r.at+n]
	r.at += n + 1
	for _, c := range s {
		if c < ' ' || c == '\\' {
			r.bad = true
		}
	}
	if !utf8.Valid(s) {
		r.bad = true
	}
	return string(s)
}

// files reads the array behind filesHead.
func (r *plainReader) files() (files []fileJSON) {
	for ok := true; ok; ok = r.more() {
		var f fileJSON
		r.expect(`{"name":`)
		f.Name = r.text()
		r.expect(`,"size":`)
		f.Size = r.number()
		r.expect(`,"id":`)
		if err := f.ID.UnmarshalText([]byte(r.text())); err != nil {
			r.bad = true
		}
		if r.next(`,"directory":`) {
			f.Directory = r.numbers()
		}
		r.expect("}")
		files = append(files, f)
	}
	r.expect("]")
	return files
}

// tasks reads the member tasks.
func (r *plainReader) tasks() (tasks []tasksJSON) {
	r.expect(tasksHead)
	for ok := true; ok; ok = r.more() {
		var t tasksJSON
		r.expect(`{"vertex":`)
		t.Vertex = r.text()
		if r.next(`,"subtasks":[`) {
			start := len(r.subtasks)
			for ok := true; ok; ok = r.more() {
				r.subtasks = append(r.subtasks, r.subtask())
			}
			t.Subtasks = r.subtasks[start:len(r.subtasks):len(r.subtasks)]
			r.expect("]")
		}
		if r.next(`,"finished":`) {
			for _, n := range r.numbers() {
				t.Finished = append(t.Finished, r.index(n))
			}
		}
		r.expect("}")
		tasks = append(tasks, t)
	}
	r.expect("]")
	return tasks
}

func (r *plainReader) subtask() (s subtaskJSON) {
	r.expect(subtaskHead)
	s.Subtask = r.index(r.number())
	if r.next(`,"segments":[`) {
		start := len(r.lists)
		for ok := true; ok; ok = r.more() {
			r.lists = append(r.lists, r.numbers())
		}
		s.Segments = r.lists[start:len(r.lists):len(r.lists)]
		r.expect("]")
	}
	if r.next(`,"references":`) {
		s.References = r.numbers()
	}
	for i, to := range []*uint64{&s.InputBytes, &s.OutputBytes, &s.StateBytes} {
		if r.next(totalKeys[i]) {
			*to = uint64(r.number())
		}
	}
	r.expect("}")
	return s
}
