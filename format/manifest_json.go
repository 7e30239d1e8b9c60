package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spillway-io/spillway/inflight"
)

// A manifest is one line of JSON that begins with manifestHead and ends with
//
//	,"crc32c":"xxxxxxxx"}\n
//
// where the eight lower-case hexadecimal digits are the CRC-32C of all bytes
// before them. They are compared as text: parsed, 'a' and 'A' would be equal,
// and a flipped bit would pass.
const (
	manifestFormat = "spillway-manifest"
	manifestHead   = `{"format":"` + manifestFormat + `","version":`
	crcHead        = `,"crc32c":"`
	crcTail        = `"}` + "\n"
	crcDigits      = 8
	crcSize        = len(crcHead) + crcDigits + len(crcTail)

	// manifestIncompat are the incompat bits that this version understands. A
	// manifest with another one must not be read; unknown compat bits and
	// unknown fields may be ignored.
	manifestIncompat uint32 = 0
)

// The JSON of a manifest. Segments and directories are arrays, files are
// referred to by their index: it is what keeps 625 subtasks under 105 KB.
type (
	manifestJSON struct {
		Format   string `json:"format"`
		Version  int    `json:"version"`
		Incompat uint32 `json:"incompat"`
		Compat   uint32 `json:"compat"`
		*Manifest
		Files []fileJSON  `json:"files,omitempty"`
		Tasks []tasksJSON `json:"tasks,omitempty"`
	}
	fileJSON struct {
		Name      string          `json:"name"`
		Size      int64           `json:"size"`
		ID        inflight.FileID `json:"id"`
		Directory numbers         `json:"directory,omitempty"` // offset, length, crc
	}
	tasksJSON struct {
		Vertex   string        `json:"vertex"`
		Subtasks []subtaskJSON `json:"subtasks,omitempty"`
		Finished []int         `json:"finished,omitempty"`
	}
	subtaskJSON struct {
		Subtask     int       `json:"subtask"`
		Segments    []numbers `json:"segments,omitempty"`   // file, offset, length, crc
		References  numbers   `json:"references,omitempty"` // files
		InputBytes  uint64    `json:"input_bytes,omitempty"`
		OutputBytes uint64    `json:"output_bytes,omitempty"`
		StateBytes  uint64    `json:"state_bytes,omitempty"`
	}
)

// numbers is an array of whole numbers, and nothing else: null is none.
type numbers []int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(p []byte) error {
	inner, ok := bytes.CutPrefix(p, []byte("["))
	if ok {
		inner, ok = bytes.CutSuffix(inner, []byte("]"))
	}
	if !ok {
		return fmt.Errorf("%.40q is not an array of numbers", p)
	}
	*n = make(numbers, 0, min(4, len(inner)))
	for field := range bytes.SplitSeq(inner, []byte(",")) {
		if field = bytes.TrimSpace(field); len(field) == 0 && len(inner) == 0 {
			break
		}
		v, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return fmt.Errorf("%.40q is not an array of whole numbers", p)
		}
		*n = append(*n, v)
	}
	return nil
}

// EncodeManifest returns the bytes of m. It refuses what DecodeManifest would.
func EncodeManifest(m *Manifest) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, &inflight.Error{Op: "encode", Object: m.String(), Err: err}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // "source -> map" stays readable
	if err := e.Encode(manifestJSON{Format: manifestFormat, Version: ManifestVersion, Manifest: m}); err != nil {
		return nil, &inflight.Error{Op: "encode", Object: m.String(), Err: err}
	}
	p := bytes.TrimSuffix(b.Bytes(), []byte("}\n"))
	p = slices.Grow(p, 200*len(m.Files)+100*len(m.Handles)+crcSize)
	p = appendTasks(appendFiles(p, m.Files), m.tasksJSON())
	p = append(p, crcHead...)
	p = fmt.Appendf(p, "%08x"+crcTail, Checksum(p))
	if len(p) > MaxManifest {
		return nil, &inflight.Error{Op: "encode", Object: m.String(), Err: fmt.Errorf("%w: %d bytes, at most %d", inflight.ErrTooLarge, len(p), MaxManifest)}
	}
	return p, nil
}

func (m *Manifest) tasksJSON() []tasksJSON {
	if m.Topology == nil {
		return nil
	}
	files := make(map[string]int64, len(m.Files))
	for i, f := range m.Files {
		files[f.Name] = int64(i)
	}
	tasks := make([]tasksJSON, len(m.Topology.Vertices))
	index := make(map[string]*tasksJSON, len(tasks))
	for i, v := range m.Topology.Vertices {
		tasks[i].Vertex = v.ID
		tasks[i].Subtasks = make([]subtaskJSON, 0, min(v.Parallelism, len(m.Handles)))
		index[v.ID] = &tasks[i]
	}
	n := 0
	for i := range m.Handles {
		n += len(m.Handles[i].Segments)
	}
	list, lists := make(numbers, 0, 4*n), make([]numbers, 0, n) // memory
	for _, h := range m.Handles {
		s := subtaskJSON{Subtask: h.Task.Subtask, InputBytes: h.InputBytes, OutputBytes: h.OutputBytes, StateBytes: h.StateBytes}
		for _, g := range h.Segments {
			list = append(list, files[g.File], g.Offset, g.Length, int64(g.CRC))
			lists = append(lists, list[len(list)-4:])
		}
		s.Segments = lists[len(lists)-len(h.Segments):]
		for _, r := range h.References {
			s.References = append(s.References, files[r.Name])
		}
		t := index[h.Task.Vertex]
		t.Subtasks = append(t.Subtasks, s)
	}
	for _, f := range m.Finished {
		t := index[f.Vertex]
		t.Finished = append(t.Finished, f.Subtask)
	}
	for i := range tasks {
		slices.SortFunc(tasks[i].Subtasks, func(a, b subtaskJSON) int { return a.Subtask - b.Subtask })
		slices.Sort(tasks[i].Finished)
	}
	return slices.DeleteFunc(tasks, func(t tasksJSON) bool { return len(t.Subtasks)+len(t.Finished) == 0 })
}

// DecodeManifest reads a manifest. Its errors tell apart what is empty, torn,
// corrupt, foreign, of an unknown version, and too large. The checksum comes
// first, so that a flipped bit in the version is corruption, and an intact
// newer manifest is not.
func DecodeManifest(p []byte) (*Manifest, error) {
	if err := checkManifestBytes(p); err != nil {
		return nil, err
	}
	if err := checkManifestVersion(p); err != nil {
		return nil, err
	}
	w := manifestJSON{Manifest: new(Manifest)}
	if !w.decodePlain(p) {
		w = manifestJSON{Manifest: new(Manifest)}
		if err := json.Unmarshal(p, &w); err != nil {
			return nil, badManifest("%v", err)
		}
	}
	if err := w.fill(); err != nil {
		return nil, err
	}
	return w.Manifest, w.Manifest.check()
}

// checkManifestBytes checks the ends of p and its checksum.
func checkManifestBytes(p []byte) error {
	fail := func(code string, err error, format string, args ...any) error {
		return &FormatError{Code: code, Offset: -1, Text: "manifest: " + fmt.Sprintf(format, args...), Err: err}
	}
	switch {
	case len(p) == 0:
		return fail(CodeEmpty, inflight.ErrEmpty, "it has no byte")
	case len(p) > MaxManifest:
		return fail(CodeManifest, inflight.ErrTooLarge, "%d bytes, at most %d", len(p), MaxManifest)
	case len(p) < len(manifestHead) && manifestHead[:len(p)] == string(p):
		return fail(CodeTorn, inflight.ErrTorn, "it ends after %d bytes", len(p))
	}
	headOK := bytes.HasPrefix(p, []byte(manifestHead))
	end := p[max(0, len(p)-crcSize):]
	keyOK, tailOK := bytes.HasPrefix(end, []byte(crcHead)), bytes.HasSuffix(p, []byte(crcTail))
	if len(end) == crcSize && keyOK && tailOK {
		want := fmt.Sprintf("%08x", Checksum(p[:len(p)-crcDigits-len(crcTail)]))
		switch got := string(end[len(crcHead):][:crcDigits]); {
		case got != want:
			return fail(CodeManifest, inflight.ErrCorrupt, "checksum %q, computed %q", got, want)
		case !headOK:
			return fail(CodeForeign, inflight.ErrForeign, "an intact file of another kind")
		}
		return nil
	}
	switch {
	case headOK && (keyOK || tailOK):
		return fail(CodeManifest, inflight.ErrCorrupt, "its end is changed")
	case headOK && bytes.Contains(p, []byte(crcTail)):
		return fail(CodeTrailingBytes, inflight.ErrCorrupt, "bytes follow its end")
	case headOK:
		return fail(CodeTorn, inflight.ErrTorn, "it ends after %d bytes, without its checksum", len(p))
	case len(bytes.TrimLeft(p, "\x00")) == 0:
		return fail(CodeManifest, inflight.ErrCorrupt, "%d bytes of zero", len(p))
	}
	return fail(CodeForeign, inflight.ErrForeign, "it does not begin like a manifest")
}

// checkManifestVersion reads version and incompat, which stand first in every
// version, before anything else is interpreted.
func checkManifestVersion(p []byte) error {
	rest := p[len(manifestHead):]
	version, rest := cutNumber(rest)
	rest, ok := bytes.CutPrefix(rest, []byte(`,"incompat":`))
	incompat, _ := cutNumber(rest)
	switch {
	case !ok || version < 1 || incompat < 0 || incompat > math.MaxUint32:
		return badManifest("it does not begin with version and incompat")
	case version > ManifestVersion:
		return unknownManifest("version %d, known are 1 to %d", version, ManifestVersion)
	case uint32(incompat)&^manifestIncompat != 0:
		return unknownManifest("incompat bits %#x, known are %#x", incompat, manifestIncompat)
	}
	return nil
}

// cutNumber takes decimal digits off the beginning of p; -1: there are none, or
// too many.
func cutNumber(p []byte) (n int64, rest []byte) {
	i := 0
	for i < len(p) && p[i] >= '0' && p[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(string(p[:i]), 10, 64)
	if err != nil {
		return -1, p
	}
	return n, p[i:]
}

func unknownManifest(format string, args ...any) error {
	return &FormatError{Code: CodeVersion, Offset: -1, Text: fmt.Sprintf("manifest: "+format, args...), Err: inflight.ErrUnknownVersion}
}

// fill builds files, handles and finished subtasks from the JSON.
func (w *manifestJSON) fill() error {
	m := w.Manifest
	for _, f := range w.Files {
		info := FileInfo{Name: f.Name, FileID: f.ID, Size: f.Size}
		if d := f.Directory; d != nil {
			if len(d) != 3 || d[1] <= 0 || d[2] < 0 || d[2] > math.MaxUint32 {
				return badManifest("file %s: directory %d is not offset, length, crc", f.Name, d)
			}
			info.DirOffset, info.DirLength, info.DirCRC = d[0], d[1], uint32(d[2])
		}
		m.Files = append(m.Files, info)
	}
	subtasks, segments := 0, 0
	for _, t := range w.Tasks {
		subtasks += len(t.Subtasks)
		for _, s := range t.Subtasks {
			segments += len(s.Segments)
		}
	}
	m.Handles = slices.Grow(m.Handles, subtasks)
	all := make([]inflight.Segment, 0, segments)
	for _, t := range w.Tasks {
		for _, s := range t.Subtasks {
			start := len(all)
			h := inflight.Handle{Task: inflight.Task{Vertex: t.Vertex, Subtask: s.Subtask}, Checkpoint: m.ID,
				InputBytes: s.InputBytes, OutputBytes: s.OutputBytes, StateBytes: s.StateBytes}
			for _, g := range s.Segments {
				if len(g) != 4 || g[0] < 0 || g[0] >= int64(len(m.Files)) || g[3] < 0 || g[3] > math.MaxUint32 {
					return badManifest("subtask %s: segment %d is not file, offset, length, crc", h.Task, g)
				}
				f := &m.Files[g[0]]
				all = append(all, inflight.Segment{File: f.Name, FileID: f.FileID, Offset: g[1], Length: g[2], CRC: uint32(g[3])})
			}
			if len(all) > start {
				h.Segments = all[start:len(all):len(all)]
			}
			for _, i := range s.References {
				if i < 0 || i >= int64(len(m.Files)) {
					return badManifest("subtask %s refers to file %d of %d", h.Task, i, len(m.Files))
				}
				h.References = append(h.References, inflight.FileRef{Name: m.Files[i].Name, FileID: m.Files[i].FileID})
			}
			m.Handles = append(m.Handles, h)
		}
		for _, i := range t.Finished {
			m.Finished = append(m.Finished, inflight.Task{Vertex: t.Vertex, Subtask: i})
		}
	}
	return nil
}
