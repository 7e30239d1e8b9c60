package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

func idPointer(n inflight.CheckpointID) *inflight.CheckpointID { return &n }

// goldenManifests are the golden files of version 1: they are read for ever.
func goldenManifests() map[string]*Manifest {
	fileID := func(b byte) inflight.FileID { return inflight.FileID{0: b, 15: 0xff} }
	topology := &Topology{
		Vertices: []Vertex{
			{ID: "source", Parallelism: 2, Attributes: map[string]string{"kind": "Source: \"lines\" -> <map>"}},
			{ID: "count", Parallelism: 2, MaxParallelism: 128},
			{ID: "sink", Parallelism: 1},
		},
		Edges: []Edge{
			{From: "source", Partition: 0, To: "count", Gate: 0, Partitioner: "hash", Serializer: "sha256:00ff", Attributes: map[string]string{"key": "word"}},
			{From: "count", Partition: 0, To: "sink", Gate: 0, Partitioner: "rebalance"},
		},
	}
	full := &Manifest{
		Kind: KindCheckpoint, Job: "words", ID: 7, Attempt: "5f1c9a", Epoch: 4, Base: idPointer(3),
		Keep: []inflight.CheckpointID{1, 3}, Savepoints: []inflight.CheckpointID{1},
		Mode: ExactlyOnce, Alignment: Mixed, Topology: topology,
		Finished: []inflight.Task{{Vertex: "sink", Subtask: 0}},
	}
	full.SetHandles([]inflight.Handle{
		{Task: inflight.Task{Vertex: "source", Subtask: 0}, Checkpoint: 7, OutputBytes: 262144, StateBytes: 8,
			Segments: []inflight.Segment{{File: "chk-0000000007/g0-5f1c9a.cstate", FileID: fileID(2), Offset: 262400, Length: 210, CRC: 0xdeadbeef}}},
		{Task: inflight.Task{Vertex: "source", Subtask: 1}, Checkpoint: 7},
		{Task: inflight.Task{Vertex: "count", Subtask: 0}, Checkpoint: 7, InputBytes: 65536,
			Segments: []inflight.Segment{
				{File: "chk-0000000003/g0-77aa.cstate", FileID: fileID(1), Offset: 4096, Length: 64, CRC: 1},
				{File: "chk-0000000007/g1-5f1c9a.cstate", FileID: fileID(3), Offset: 70000, Length: 99, CRC: 0},
			}},
		{Task: inflight.Task{Vertex: "count", Subtask: 1}, Checkpoint: 7, InputBytes: 3, OutputBytes: 5,
			Segments: []inflight.Segment{{File: "chk-0000000007/g1-5f1c9a.cstate", FileID: fileID(3), Offset: 70099, Length: 77, CRC: 9}}},
	},
		FileInfo{Name: "chk-0000000003/g0-77aa.cstate", FileID: fileID(1), Size: 5000, DirOffset: 4160, DirLength: 72, DirCRC: 17},
		FileInfo{Name: "chk-0000000007/g0-5f1c9a.cstate", FileID: fileID(2), Size: 262800, DirOffset: 262610, DirLength: 40, DirCRC: 0xffffffff},
		FileInfo{Name: "chk-0000000007/g1-5f1c9a.cstate", FileID: fileID(3), Size: 70300})
	savepoint := &Manifest{
		Kind: KindCheckpoint, Job: "words", ID: 8, Attempt: "5f1c9a", Epoch: 4, Base: idPointer(3), Keep: []inflight.CheckpointID{1, 7},
		Savepoints: []inflight.CheckpointID{1}, Mode: AtLeastOnce, Alignment: Aligned, Savepoint: true, SelfContained: true, Partial: true,
		Topology: &Topology{Vertices: []Vertex{{ID: "source", Parallelism: 1}}},
	}
	savepoint.SetHandles([]inflight.Handle{{Task: inflight.Task{Vertex: "source"}, Checkpoint: 8}})
	return map[string]*Manifest{
		"manifest-checkpoint": full,
		"manifest-savepoint":  savepoint,
		"manifest-aborted": {Kind: KindAborted, Job: "words", ID: 9, Attempt: "5f1c9a", Epoch: 4,
			Cause: &Cause{Kind: CauseDeclined, Reason: "over-budget", Text: "count/1: over max-buffered-data"}},
		"manifest-claim": {Kind: KindClaim, Job: "words", ID: 10, Attempt: "0b77", Epoch: 10, Base: idPointer(3), Keep: []inflight.CheckpointID{1, 3},
			Savepoints: []inflight.CheckpointID{1}, PassedOver: []inflight.CheckpointID{7, 8}},
		"manifest-first-claim": {Kind: KindClaim, Job: "", ID: 0, Attempt: "0b77"},
	}
}

func goldenManifest(t testing.TB, name string) []byte {
	p, err := os.ReadFile(filepath.Join("../testdata/v1", name+".json"))
	require.NoError(t, err)
	return p
}

func TestManifestGolden(t *testing.T) {
	for name, want := range goldenManifests() {
		t.Run(name, func(t *testing.T) {
			p, err := EncodeManifest(want)
			require.NoError(t, err)
			if *rewrite {
				require.NoError(t, os.MkdirAll("../testdata/v1", 0o755))
				require.NoError(t, os.WriteFile(filepath.Join("../testdata/v1", name+".json"), p, 0o644))
			}
			require.Equal(t, string(goldenManifest(t, name)), string(p), "the encoder has changed: version 1 is frozen")
			got, err := DecodeManifest(goldenManifest(t, name))
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.True(t, json.Valid(p))
			require.Equal(t, 1, bytes.Count(p, []byte("\n")), "one line")
			require.Equal(t, len(want.Files) > 0, comparePlain(t, p))
			require.Equal(t, byReflection(t, want), string(p))
		})
	}
}

// byReflection returns what encoding/json alone makes of m.
func byReflection(t require.TestingT, m *Manifest) string {
	w := manifestJSON{Format: manifestFormat, Version: ManifestVersion, Manifest: m, Tasks: m.tasksJSON()}
	for _, f := range m.Files {
		j := fileJSON{Name: f.Name, Size: f.Size, ID: f.FileID}
		if f.DirLength > 0 {
			j.Directory = numbers{f.DirOffset, f.DirLength, int64(f.DirCRC)}
		}
		w.Files = append(w.Files, j)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(w))
	return string(sealedManifest(append(b.Bytes()[:b.Len()-len("}\n")], make([]byte, crcSize)...)))
}

// comparePlain reads p by hand and by reflection: if it can be read by hand,
// the result is the same.
func comparePlain(t require.TestingT, p []byte) bool {
	plain, reflected := manifestJSON{Manifest: new(Manifest)}, manifestJSON{Manifest: new(Manifest)}
	if !plain.decodePlain(p) {
		return false
	}
	require.NoError(t, json.Unmarshal(p, &reflected))
	require.Equal(t, reflected, plain)
	return true
}

// TestManifestPlain reads JSON that is nearly as it was written.
func TestManifestPlain(t *testing.T) {
	good := string(goldenManifest(t, "manifest-checkpoint"))
	for name, tc := range map[string]struct {
		old, new string
		plain    bool
	}{
		"as written":             {``, ``, true},
		"unknown in the head":    {`"compat":0`, `"compat":0,"later":{"files":[1]}`, true},
		"unknown, looks alike":   {`"compat":0`, `"compat":0,"later":{"a":1,"files":[{"name":"x"}]}`, false},
		"in a text":              {`"job":"words"`, `"job":"a,\"files\":["`, true},
		"files twice":            {`"compat":0`, `"compat":0,"files":[]`, false},
		"tasks twice":            {`"compat":0`, `"compat":0,"Tasks":[{"vertex":"x"}]`, false},
		"unknown at the end":     {`,"crc32c"`, `,"later":1,"crc32c"`, false},
		"unknown in a file":      {`"size":5000`, `"size":5000,"later":1`, false},
		"unknown in a subtask":   {`"output_bytes":262144`, `"output_bytes":262144,"later":1`, false},
		"a space":                {`"size":5000`, `"size": 5000`, false},
		"another order":          {`"output_bytes":262144,"state_bytes":8`, `"state_bytes":8,"output_bytes":262144`, false},
		"capitals":               {`{"subtask":1}`, `{"Subtask":1}`, false},
		"negative":               {`[[0,4096,64,1]`, `[[0,-4096,64,1]`, false},
		"huge":                   {`[[0,4096,64,1]`, `[[0,9223372036854775807,64,1]`, false},
		"leading zero":           {`[[0,4096,64,1]`, `[[0,04096,64,1]`, false},
		"fraction":               {`[[0,4096,64,1]`, `[[0,4096.0,64,1]`, false},
		"no number":              {`[[0,4096,64,1]`, `[[0,,64,1]`, false},
		"subtask beyond int32":   {`{"subtask":0,"segments":[[0`, `{"subtask":2147483648,"segments":[[0`, false},
		"escape":                 {`{"vertex":"sink"`, `{"vertex":"s\u0069nk"`, false},
		"not ASCII":              {`{"vertex":"sink"`, `{"vertex":"Abfluß"`, true},
		"not UTF-8":              {`{"vertex":"sink"`, "{\"vertex\":\"s\xffnk\"", false},
		"control character":      {`{"vertex":"sink"`, "{\"vertex\":\"s\x01nk\"", false},
		"open text":              {`{"vertex":"sink","finished":[0]}],"crc32c":"`, `{"vertex":"sink`, false},
		"no tasks":               {`"tasks":[`, `"task":[`, false},
		"another text for an id": {`"id":"01`, `"id":"0x`, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.plain, comparePlain(t, []byte(strings.Replace(good, tc.old, tc.new, 1))))
		})
	}
	for i := range len(good) {
		comparePlain(t, []byte(good[:i]))
		comparePlain(t, []byte(good[:i]+good[i+1:]))
	}
}

// manifestTyped tells the answers that a reader of a manifest can get.
func manifestTyped(err error) bool {
	var f *FormatError
	return errors.As(err, &f) && f.Code != "" && (inflight.IsCorruption(err) || errors.Is(err, inflight.ErrUnknownVersion) || errors.Is(err, inflight.ErrTooLarge))
}

func TestManifestEveryFlip(t *testing.T) {
	p := goldenManifest(t, "manifest-checkpoint")
	for i := range p {
		for bit := range 8 {
			q := bytes.Clone(p)
			q[i] ^= 1 << bit
			_, err := DecodeManifest(q)
			require.ErrorIs(t, err, inflight.ErrCorrupt, "byte %d (%q) bit %d", i, p[i], bit)
			require.True(t, manifestTyped(err))
		}
	}
}

func TestManifestEveryCut(t *testing.T) {
	for name := range goldenManifests() {
		p := goldenManifest(t, name)
		for n := range len(p) {
			_, err := DecodeManifest(p[:n])
			want := inflight.ErrTorn
			if n == 0 {
				want = inflight.ErrEmpty
			}
			require.ErrorIs(t, err, want, "cut at %d", n)
			require.True(t, manifestTyped(err))
		}
	}
}

// resealManifest puts the right checksum on changed JSON.
func resealManifest(s string) []byte {
	p := []byte(s[:len(s)-crcDigits-len(crcTail)])
	return fmt.Appendf(p, "%08x"+crcTail, Checksum(p))
}

func TestManifestRefused(t *testing.T) {
	good := string(goldenManifest(t, "manifest-checkpoint"))
	change := func(old, new string) []byte {
		require.Contains(t, good, old)
		return resealManifest(strings.Replace(good, old, new, 1))
	}
	file := `"chk-0000000003/g0-77aa.cstate"`
	for name, tc := range map[string]struct {
		p    []byte
		want error
		text string
	}{
		"zeroed":              {make([]byte, 100), inflight.ErrCorrupt, "zero"},
		"foreign":             {[]byte("#!/bin/sh\n"), inflight.ErrForeign, "does not begin"},
		"foreign, one byte":   {[]byte("x"), inflight.ErrForeign, "does not begin"},
		"foreign, same end":   {resealManifest(`{"a":1` + crcHead + "00000000" + crcTail), inflight.ErrForeign, "another kind"},
		"zeros at the end":    {append([]byte(good[:500]), make([]byte, 100)...), inflight.ErrTorn, "without its checksum"},
		"appended":            {[]byte(good + "\n"), inflight.ErrCorrupt, "bytes follow"},
		"two of them":         {[]byte(good + good), inflight.ErrCorrupt, "checksum"},
		"checksum in capital": {[]byte(good[:len(good)-11] + strings.ToUpper(good[len(good)-11:])), inflight.ErrCorrupt, "checksum"},
		"version 2":           {change(`"version":1`, `"version":2`), inflight.ErrUnknownVersion, "version 2"},
		"version 0":           {change(`"version":1`, `"version":0`), inflight.ErrCorrupt, "version"},
		"version huge":        {change(`"version":1`, `"version":99999999999999999999`), inflight.ErrCorrupt, "version"},
		"incompat":            {change(`"incompat":0`, `"incompat":4`), inflight.ErrUnknownVersion, "0x4"},
		"no incompat":         {change(`"incompat":0,`, ``), inflight.ErrCorrupt, "incompat"},
		"not JSON":            {change(`"compat":0,`, `"compat":0`), inflight.ErrCorrupt, "invalid"},
		"a float":             {change(`"id":7`, `"id":7.5`), inflight.ErrCorrupt, "id"},
		"parent":              {change(file, `"chk-0000000003/../../x"`), inflight.ErrCorrupt, "padded"},
		"dots":                {change(file, `"chk-0000000003/.."`), inflight.ErrCorrupt, "padded"},
		"absolute":            {change(file, `"/chk-0000000003/x"`), inflight.ErrCorrupt, "padded"},
		"scheme":              {change(file, `"s3://chk-0000000003/x"`), inflight.ErrCorrupt, "padded"},
		"unpadded":            {change(file, `"chk-3/x"`), inflight.ErrCorrupt, "padded"},
		"eleven digits":       {change(file, `"chk-00000000003/x"`), inflight.ErrCorrupt, "padded"},
		"id too large":        {change(file, `"chk-9999999999/x"`), inflight.ErrCorrupt, "padded"},
		"deeper":              {change(file, `"chk-0000000003/a/b"`), inflight.ErrCorrupt, "padded"},
		"backslash":           {change(file, `"chk-0000000003/a\\b"`), inflight.ErrCorrupt, "padded"},
		"reserved":            {change(file, `"chk-0000000003/_manifest.json"`), inflight.ErrCorrupt, "padded"},
		"later slot":          {change(file, `"chk-0000000008/x"`), inflight.ErrCorrupt, "later slot"},
		"no name":             {change(file, `""`), inflight.ErrCorrupt, "padded"},
		"self-contained":      {change(`"topology"`, `"self_contained":true,"topology"`), inflight.ErrCorrupt, "elsewhere"},
		"kind":                {change(`"kind":"checkpoint"`, `"kind":"other"`), inflight.ErrCorrupt, "kind"},
		"claim with tasks":    {change(`"kind":"checkpoint","job":"words","id":7,"attempt":"5f1c9a","epoch":4`, `"kind":"claim","job":"words","id":7,"attempt":"5f1c9a","epoch":7`), inflight.ErrCorrupt, "no subtasks"},
		"epoch":               {change(`"epoch":4`, `"epoch":7`), inflight.ErrCorrupt, "epoch"},
		"epoch negative":      {change(`"epoch":4`, `"epoch":-1`), inflight.ErrCorrupt, "epoch"},
		"base":                {change(`"base":3`, `"base":7`), inflight.ErrCorrupt, "base"},
		"keep order":          {change(`"keep":[1,3]`, `"keep":[3,1]`), inflight.ErrCorrupt, "order"},
		"keep itself":         {change(`"keep":[1,3]`, `"keep":[1,7]`), inflight.ErrCorrupt, "order"},
		"savepoint not kept":  {change(`"savepoints":[1]`, `"savepoints":[2]`), inflight.ErrCorrupt, "not kept"},
		"attempt":             {change(`"attempt":"5f1c9a"`, `"attempt":"../x"`), inflight.ErrCorrupt, "attempt"},
		"mode":                {change(`"mode":"exactly-once"`, `"mode":"at-least-once"`), inflight.ErrCorrupt, "at-least-once"},
		"unaligned savepoint": {change(`"alignment":"mixed"`, `"alignment":"mixed","savepoint":true`), inflight.ErrCorrupt, "savepoints cannot be unaligned"},
		"savepoint with data": {change(`"alignment":"mixed"`, `"alignment":"aligned","savepoint":true`), inflight.ErrCorrupt, "channel state"},
		"segment index":       {change(`[[0,4096,64,1]`, `[[3,4096,64,1]`), inflight.ErrCorrupt, "segment"},
		"segment short":       {change(`[[0,4096,64,1]`, `[[0,4096,64]`), inflight.ErrCorrupt, "segment"},
		"segment long":        {change(`[[0,4096,64,1]`, `[[0,4096,64,1,1]`), inflight.ErrCorrupt, "segment"},
		"segment outside":     {change(`[[0,4096,64,1]`, `[[0,4937,64,1]`), inflight.ErrCorrupt, "lies at"},
		"segment overflow":    {change(`[[0,4096,64,1]`, `[[0,9223372036854775807,9223372036854775807,1]`), inflight.ErrCorrupt, "lies at"},
		"segment empty":       {change(`[[0,4096,64,1]`, `[[0,4096,0,1]`), inflight.ErrCorrupt, "lies at"},
		"directory":           {change(`"directory":[4160,72,17]`, `"directory":[4160,72]`), inflight.ErrCorrupt, "directory"},
		"directory outside":   {change(`"directory":[4160,72,17]`, `"directory":[4160,7200,17]`), inflight.ErrCorrupt, "directory"},
		"file id":             {change(`"id":"01`, `"id":"1`), inflight.ErrCorrupt, "file id"},
		"file twice":          {change(`chk-0000000007/g0-`, `chk-0000000007/g1-`), inflight.ErrCorrupt, "order"},
		"subtask":             {change(`{"subtask":1,"segments"`, `{"subtask":2,"segments"`), inflight.ErrCorrupt, "topology"},
		"subtask twice":       {change(`{"subtask":1,"segments"`, `{"subtask":0,"segments"`), inflight.ErrCorrupt, "twice"},
		"finished twice":      {change(`"finished":[0]`, `"finished":[0,0]`), inflight.ErrCorrupt, "twice"},
		"vertex":              {change(`{"vertex":"count"`, `{"vertex":"other"`), inflight.ErrCorrupt, "topology"},
		"vertex twice":        {change(`{"id":"sink"`, `{"id":"source"`), inflight.ErrCorrupt, "twice"},
		"parallelism":         {change(`"parallelism":1`, `"parallelism":1000000`), inflight.ErrCorrupt, "parallelism"},
		"edge":                {change(`"to":"sink"`, `"to":"nowhere"`), inflight.ErrCorrupt, "not a vertex"},
		"gate":                {change(`"to":"sink","gate":0`, `"to":"sink","gate":-1`), inflight.ErrCorrupt, "gate -1"},
		"gate twice":          {change(`"to":"sink","gate":0`, `"to":"count","gate":0`), inflight.ErrCorrupt, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeManifest(tc.p)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			require.True(t, manifestTyped(err))
		})
	}
	_, err := DecodeManifest(make([]byte, MaxManifest+1))
	require.ErrorIs(t, err, inflight.ErrTooLarge)
}

func TestManifestNewerFieldsAreIgnored(t *testing.T) {
	good := string(goldenManifest(t, "manifest-checkpoint"))
	p := resealManifest(strings.Replace(good, `"compat":0`, `"compat":9,"later":{"a":[1]}`, 1))
	m, err := DecodeManifest(p)
	require.NoError(t, err)
	require.Equal(t, goldenManifests()["manifest-checkpoint"], m)
}

func TestManifestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Manifest){
		"text":         func(m *Manifest) { m.Job = "\xff" },
		"no topology":  func(m *Manifest) { m.Topology = nil },
		"file unknown": func(m *Manifest) { m.Files = m.Files[1:] },
		"file id":      func(m *Manifest) { m.Files[0].FileID[3] = 1 },
		"other handle": func(m *Manifest) { m.Handles[1].Checkpoint = 6 },
		"id too large": func(m *Manifest) { m.ID = MaxCheckpointID + 1 },
		"cause":        func(m *Manifest) { m.Kind, m.Topology = KindAborted, nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := goldenManifests()["manifest-checkpoint"]
			change(m)
			_, err := EncodeManifest(m)
			require.ErrorIs(t, err, inflight.ErrCorrupt)
		})
	}
}

func TestManifestAccessors(t *testing.T) {
	m := goldenManifests()["manifest-checkpoint"]
	require.EqualValues(t, 262144+65536+8, m.PersistedBytes())
	require.EqualValues(t, 8, m.StateBytes())
	require.EqualValues(t, 5000+262800+70300, m.FileBytes())
	require.Empty(t, m.Missing())
	m.Finished = nil
	require.Equal(t, []inflight.Task{{Vertex: "sink"}}, m.Missing())
	require.Equal(t, 128, m.Topology.Vertex("count").MaxParallelism)
	require.Nil(t, m.Topology.Vertex("other"))
	require.EqualValues(t, 65536, m.Handle(inflight.Task{Vertex: "count"}).InputBytes)
	require.Nil(t, m.Handle(inflight.Task{Vertex: "count", Subtask: 9}))
	require.EqualValues(t, 5000, m.File("chk-0000000003/g0-77aa.cstate").Size)
	require.Nil(t, m.File("x"))
	require.Equal(t, "checkpoint 7", m.String())
	require.Equal(t, "savepoint 8", goldenManifests()["manifest-savepoint"].String())

	require.Equal(t, "copy/of/it/g0-5f1c9a.cstate", m.Resolve("copy/of/it", "chk-0000000007/g0-5f1c9a.cstate"))
	require.Equal(t, "words/chk-0000000003/a", m.Resolve("words/chk-0000000007", "chk-0000000003/a"))
	require.Equal(t, "chk-0000000003/a", m.Resolve("chk-0000000007", "chk-0000000003/a"))
	require.Equal(t, "a", m.Resolve("", "chk-0000000007/a"))
}

// A subtask that had finished may have a handle, which says where its connections
// stood.
func TestManifestFinishedWithHandle(t *testing.T) {
	m := goldenManifests()["manifest-checkpoint"]
	m.Finished = append(m.Finished, m.Handles[0].Task)
	p, err := EncodeManifest(m)
	require.NoError(t, err)
	got, err := DecodeManifest(p)
	require.NoError(t, err)
	require.Contains(t, got.Finished, m.Handles[0].Task)
	require.NotNil(t, got.Handle(m.Handles[0].Task))
	m.Finished = append(m.Finished, m.Handles[0].Task)
	_, err = EncodeManifest(m)
	require.Error(t, err, "it had finished once")
}

func TestManifestNames(t *testing.T) {
	require.Equal(t, "chk-0000000007", CheckpointDir(7))
	require.Equal(t, "chk-4294967295", CheckpointDir(MaxCheckpointID))
	name := StateFileName(7, "p1-g3", "ab12")
	require.Equal(t, "chk-0000000007/p1-g3-ab12.cstate", name)
	n, base, err := SplitFileName(name)
	require.NoError(t, err)
	require.EqualValues(t, 7, n)
	attempt, ok := StateFileAttempt(base)
	require.True(t, ok)
	require.Equal(t, "ab12", attempt)
	for _, bad := range []string{"x", "x.cstate", "-ab.cstate", "g-.cstate", "_stats.json"} {
		_, ok := StateFileAttempt(bad)
		require.False(t, ok, bad)
	}
	for _, bad := range []string{"", "chk-7", "chk-00000000007", "chk-000000000x", "CHK-0000000007", "chk-4294967296", "chk-+000000007"} {
		_, ok := ParseCheckpointDir(bad)
		require.False(t, ok, bad)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := inflight.CheckpointID(rapid.Uint32().Draw(t, "id"))
		got, ok := ParseCheckpointDir(CheckpointDir(n))
		require.True(t, ok)
		require.Equal(t, n, got)
	})
}

// bigManifest is workload M: 10,000 channels, 625 subtasks in 125 files.
func bigManifest() *Manifest {
	m := &Manifest{Kind: KindCheckpoint, Job: "words", ID: 1234567, Attempt: "5f1c9a30b1d2e4f7", Epoch: 1234000, Base: idPointer(1233999),
		Keep: []inflight.CheckpointID{1234566}, Mode: ExactlyOnce, Alignment: Unaligned, SelfContained: true, Topology: new(Topology)}
	var handles []inflight.Handle
	var files []FileInfo
	for v := range 25 {
		vertex := Vertex{ID: fmt.Sprintf("vertex-%d", v), Parallelism: 25, MaxParallelism: 128}
		m.Topology.Vertices = append(m.Topology.Vertices, vertex)
		if v > 0 {
			m.Topology.Edges = append(m.Topology.Edges, Edge{From: m.Topology.Vertices[v-1].ID, To: vertex.ID, Partitioner: "hash", Serializer: "a3f5b2c1"})
		}
		for s := range vertex.Parallelism {
			n := v*vertex.Parallelism + s
			name := StateFileName(m.ID, fmt.Sprintf("g%d", n/5), m.Attempt)
			fileID := inflight.FileID{byte(n / 5), 0x5a, 0xff, 15: 77}
			if n%5 == 0 {
				files = append(files, FileInfo{Name: name, FileID: fileID, Size: 2_700_000, DirOffset: 2_699_000, DirLength: 160, DirCRC: 0xa0b1c2d3})
			}
			handles = append(handles, inflight.Handle{Task: inflight.Task{Vertex: vertex.ID, Subtask: s}, Checkpoint: m.ID,
				Segments:   []inflight.Segment{{File: name, FileID: fileID, Offset: 2_620_000 + int64(n), Length: 1720, CRC: 0xdeadbeef - uint32(n)}},
				InputBytes: 262_144, OutputBytes: 262_144, StateBytes: 1024})
		}
	}
	m.SetHandles(handles, files...)
	return m
}

func TestManifestSize(t *testing.T) {
	m := bigManifest()
	p, err := EncodeManifest(m)
	require.NoError(t, err)
	t.Logf("625 subtasks in 125 files: %d bytes", len(p))
	require.LessOrEqual(t, len(p), 105<<10)
	got, err := DecodeManifest(p)
	require.NoError(t, err)
	require.Equal(t, m, got)
}

func BenchmarkManifestEncode(b *testing.B) {
	m := bigManifest()
	p, _ := EncodeManifest(m)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := EncodeManifest(m)
		require.NoError(b, err)
	}
}

func BenchmarkManifestDecode(b *testing.B) {
	p, _ := EncodeManifest(bigManifest())
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := DecodeManifest(p)
		require.NoError(b, err)
	}
}

func TestManifestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawManifest(t)
		p, err := EncodeManifest(m)
		require.NoError(t, err)
		got, err := DecodeManifest(p)
		require.NoError(t, err)
		again, err := EncodeManifest(got)
		require.NoError(t, err)
		require.Equal(t, string(p), string(again))
		require.Equal(t, byReflection(t, m), string(p))
		comparePlain(t, p)
		require.Equal(t, m.PersistedBytes(), got.PersistedBytes())
		require.Len(t, got.Handles, len(m.Handles))
		require.Equal(t, m.Missing(), got.Missing())
	})
}

func drawManifest(t *rapid.T) *Manifest {
	ids := func(label string) []inflight.CheckpointID {
		s := rapid.SliceOfDistinct(rapid.Uint64Range(0, 99), rapid.ID[uint64]).Draw(t, label)
		slices.Sort(s)
		var out []inflight.CheckpointID
		for _, n := range s {
			out = append(out, inflight.CheckpointID(n))
		}
		return out
	}
	m := &Manifest{Kind: KindCheckpoint, Job: rapid.String().Draw(t, "job"), ID: 100, Attempt: "a1", Epoch: 5, Keep: ids("keep"),
		Mode: ExactlyOnce, Alignment: Unaligned, Topology: new(Topology)}
	if utf := strings.ToValidUTF8(m.Job, ""); utf != m.Job {
		m.Job = utf
	}
	var handles []inflight.Handle
	for v := range rapid.IntRange(1, 4).Draw(t, "vertices") {
		vertex := Vertex{ID: fmt.Sprint(v, rapid.String().Draw(t, "vertex")), Parallelism: rapid.IntRange(1, 5).Draw(t, "parallelism")}
		vertex.ID = strings.ToValidUTF8(vertex.ID, "?")
		m.Topology.Vertices = append(m.Topology.Vertices, vertex)
		for s := range vertex.Parallelism {
			task := inflight.Task{Vertex: vertex.ID, Subtask: s}
			if rapid.Bool().Draw(t, "finished") {
				m.Finished = append(m.Finished, task)
				continue
			}
			h := inflight.Handle{Task: task, Checkpoint: m.ID, InputBytes: rapid.Uint64Range(0, 1<<40).Draw(t, "input")}
			for range rapid.IntRange(0, 3).Draw(t, "segments") {
				f := rapid.IntRange(90, 100).Draw(t, "file")
				h.Segments = append(h.Segments, inflight.Segment{File: StateFileName(inflight.CheckpointID(f), "g", "a1"), FileID: inflight.FileID{byte(f)},
					Offset: rapid.Int64Range(0, 1<<40).Draw(t, "offset"), Length: rapid.Int64Range(1, 1<<20).Draw(t, "length"), CRC: rapid.Uint32().Draw(t, "crc")})
			}
			handles = append(handles, h)
		}
	}
	m.SetHandles(handles)
	return m
}

func FuzzDecodeManifest(f *testing.F) {
	for name := range goldenManifests() {
		p := goldenManifest(f, name)
		f.Add(p)
		f.Add(p[:len(p)/2])
	}
	f.Add([]byte{})
	f.Add([]byte(manifestHead))
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, q := range [][]byte{p, sealedManifest(p)} { // also past the checksum
			if checkManifestBytes(q) == nil && checkManifestVersion(q) == nil {
				comparePlain(t, q)
			}
			m, err := DecodeManifest(q)
			if err != nil {
				require.True(t, manifestTyped(err), "%v", err)
				continue
			}
			again, err := EncodeManifest(m)
			require.NoError(t, err)
			back, err := DecodeManifest(again)
			require.NoError(t, err)
			require.Equal(t, m, back)
		}
	})
}

// sealedManifest returns p with the right checksum, so that a fuzzer gets past it.
func sealedManifest(p []byte) []byte {
	if len(p) < crcSize {
		return p
	}
	q := append(bytes.Clone(p[:len(p)-crcSize]), crcHead...)
	return fmt.Appendf(q, "%08x"+crcTail, Checksum(q))
}

func TestStats(t *testing.T) {
	s := &CheckpointStats{ID: 3, State: "completed", Kind: "checkpoint", Alignment: Unaligned, DurationMS: 1.8, AckMS: 1.2, SizeBytes: 613211,
		ChannelStateBytes: 607120, StateBytes: 812, Files: 1, Subtasks: []SubtaskStats{{Task: inflight.Task{Vertex: "source"}, StartDelayMS: 0.1,
			SyncMS: 0.2, AsyncMS: 1.1, EndToEndMS: 1.5, PersistedBytes: 301100, Unaligned: true}}}
	p, err := EncodeStats(s)
	require.NoError(t, err)
	require.Contains(t, string(p), `"subtasks":[{"vertex":"source","subtask":0,"start_delay_ms":0.1,"alignment_ms":0,"sync_ms":0.2,"async_ms":1.1,"end_to_end_ms":1.5,"persisted_bytes":301100,"unaligned":true}]`)
	got, err := DecodeStats(p)
	require.NoError(t, err)
	require.Equal(t, s, got)
	_, err = DecodeStats(p[:len(p)-3])
	require.ErrorIs(t, err, inflight.ErrCorrupt)
}
