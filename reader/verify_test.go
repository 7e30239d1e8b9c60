package reader

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

// smallManifest returns small as a checkpoint that is right.
func smallManifest(t *testing.T, b *statetest.Backend, codec format.Codec) (*statetest.Checkpoint, *format.Manifest) {
	c := small(t, b, codec)
	m := manifestOf(c)
	old := m.File(format.StateFileName(6, "g0", "abc")) // that a handle refers to
	old.Size = int64(len(statetest.Get(t, b, "job/"+old.Name)))
	_, err := format.EncodeManifest(m)
	require.NoError(t, err)
	return c, m
}

func codes(fs []inflight.Finding, severity inflight.Severity) (list []string) {
	for _, f := range fs {
		if f.Severity == severity {
			list = append(list, f.Code)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func TestVerify(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	_, whole := smallManifest(t, b, format.CodecNone)
	old, first, second := "job/"+format.StateFileName(6, "g0", "abc"), "job/"+format.StateFileName(7, "g0", "abc"), "job/"+format.StateFileName(7, "g1", "abc")
	files := map[string][]byte{}
	for _, f := range []string{old, first, second} {
		files[f] = statetest.Get(t, b, f)
	}
	flip := func(name string, at int) func(*format.Manifest) {
		return func(*format.Manifest) {
			p := bytes.Clone(files[name])
			p[at] ^= 16
			statetest.Put(t, b, name, p)
		}
	}
	for _, tc := range []struct {
		name   string
		spoil  func(m *format.Manifest)
		errors []string
		texts  []string
	}{
		{name: "right"},
		{name: "payload of an own file", spoil: flip(first, 130), errors: []string{format.CodeMissingBytes, format.CodePayload}, texts: []string{"bytes 8192–8251 of gate 0 channel 2 missing"}},
		{name: "payload of an older file", spoil: flip(old, 130), errors: []string{format.CodeMissingBytes, format.CodePayload}, texts: []string{"bytes 0–39 of partition 1 subpartition 0 missing"}},
		{name: "a file is missing", spoil: func(*format.Manifest) { require.NoError(t, b.Remove(t.Context(), second)) }, errors: []string{format.CodeMissingFile}, texts: []string{"count/1: the file is not there"}},
		{name: "an older file is missing", spoil: func(*format.Manifest) { require.NoError(t, b.Remove(t.Context(), old)) }, errors: []string{format.CodeMissingFile}, texts: []string{"bytes 40–69 of partition 1"}},
		{name: "bytes appended", spoil: func(*format.Manifest) { statetest.Put(t, b, first, append(bytes.Clone(files[first]), 0)) }, errors: []string{format.CodeTrailingBytes, format.CodeWrongSize}},
		{name: "cut", spoil: func(*format.Manifest) { statetest.Put(t, b, second, files[second][:300]) }, errors: []string{format.CodeTorn, format.CodeWrongSize}},
		{name: "swapped", spoil: func(*format.Manifest) {
			statetest.Put(t, b, first, files[second])
			statetest.Put(t, b, second, files[first])
		}, errors: []string{format.CodeWrongSize, format.CodeForeign}},
		{name: "empty", spoil: func(*format.Manifest) { statetest.Put(t, b, first, nil) }, errors: []string{format.CodeEmpty, format.CodeWrongSize}},
		{name: "not ours", spoil: func(*format.Manifest) { statetest.Put(t, b, first, []byte("{\"some\": \"json\"}")) }, errors: []string{format.CodeForeign, format.CodeWrongSize}},
		{name: "a subtask is missing", spoil: func(m *format.Manifest) { m.Finished = nil }, errors: []string{format.CodeMissingSubtask}, texts: []string{"count/0: the checkpoint has no state"}},
		{name: "a subtask is incomplete", spoil: func(m *format.Manifest) {
			m.Handles = slices.Clone(m.Handles)
			m.Handles[1].Segments = m.Handles[1].Segments[:1]
		}, errors: []string{format.CodeIncomplete}},
		{name: "an older file is not listed", spoil: func(m *format.Manifest) { m.Files = m.Files[1:] }, errors: []string{CodeUnlistedFile}, texts: []string{"garbage collection may delete it"}},
		{name: "sums in the handle", spoil: func(m *format.Manifest) {
			m.Handles = slices.Clone(m.Handles)
			m.Handles[0].InputBytes++
		}, errors: []string{CodeIndex}},
		{name: "several at once", spoil: func(m *format.Manifest) {
			flip(first, 130)(m)
			flip(old, 130)(m)
			require.NoError(t, b.Remove(t.Context(), second))
		}, errors: []string{format.CodeMissingFile, format.CodeMissingBytes, format.CodePayload}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, p := range files {
				statetest.Put(t, b, name, p)
			}
			m := *whole
			if tc.spoil != nil {
				tc.spoil(&m)
			}
			r := Open(b, "job", Options{})
			defer r.Close()
			done := int64(0)
			rep, err := r.At(&m, "job/chk-0000000007").Verify(t.Context(), VerifyOptions{Records: true, Progress: func(n, total int64) {
				require.GreaterOrEqual(t, n, done)
				require.LessOrEqual(t, n, total)
				done = n
			}})
			require.NoError(t, err)
			require.Subset(t, codes(rep.Findings, inflight.SeverityError), tc.errors, rep.Findings)
			require.Equal(t, len(tc.errors) > 0, rep.Failed(), rep.Findings)
			text := fmt.Sprint(rep.Findings)
			for _, want := range tc.texts {
				require.Contains(t, text, want)
			}
			idle(t, r, b)
		})
	}
}

// TestVerifyFindsEverything damages random checkpoints: verification of an
// intact one finds nothing, and of a damaged one something; and so does
// verification of the file alone.
func TestVerifyFindsEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: statetest.Tasks(t), Tiny: true})
		m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: 3, Attempt: "a", Topology: &format.Topology{}, Partial: true}
		m.SetHandles(c.Handles, c.Files...)
		r := Open(b, "job", drawOptions(t))
		defer r.Close()
		verify := func() *Report {
			rep, err := r.At(m, "job/chk-0000000003").Verify(t.Context(), VerifyOptions{})
			require.NoError(t, err)
			return rep
		}
		require.Empty(t, codes(verify().Findings, inflight.SeverityError))
		f := rapid.SampledFrom(c.Files).Draw(t, "file")
		name := "job/" + f.Name
		p := statetest.Get(t, b, name)
		at := rapid.IntRange(0, len(p)-1).Draw(t, "at")
		switch rapid.IntRange(0, 2).Draw(t, "damage") {
		case 0:
			p[at] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		case 1:
			p = p[:at]
		case 2:
			p = append(p, bytes.Repeat([]byte{7}, at+1)...)
		}
		statetest.Put(t, b, name, p)
		require.True(t, verify().Failed())
		rep, err := r.VerifyFile(t.Context(), f.Name)
		require.NoError(t, err)
		require.True(t, rep.Failed())
	})
}

// TestVerifyTransient reads wrong once: that is a warning, not an error.
func TestVerifyTransient(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	_, m := smallManifest(t, b, format.CodecNone)
	r := Open(b, "job", Options{})
	defer r.Close()
	n := 0
	b.After = func(_ statetest.Read, p []byte) error {
		if n++; n == 1 {
			p[130] ^= 1
		}
		return nil
	}
	rep, err := r.At(m, "job/chk-0000000007").Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.False(t, rep.Failed(), rep.Findings)
	require.Contains(t, codes(rep.Findings, inflight.SeverityWarning), CodeTransient)
}

func TestVerifyHandle(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	c := small(t, b, format.CodecZstd)
	r := Open(b, "job", Options{})
	defer r.Close()
	for _, h := range c.Handles {
		rep, err := r.VerifyHandle(t.Context(), h)
		require.NoError(t, err)
		require.Empty(t, rep.Findings)
	}
	// Two blocks of the subtask are damaged: both are reported.
	h := c.Handles[1]
	for _, name := range []string{"job/" + h.Segments[0].File, "job/" + h.Segments[1].File} {
		p := statetest.Get(t, b, name)
		p[140] ^= 1
		statetest.Put(t, b, name, p)
	}
	rep, err := r.VerifyHandle(t.Context(), h)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(rep.Findings), 2)
	objects := map[string]bool{}
	for _, f := range rep.Findings {
		require.NotNil(t, f.Address, f)
		objects[f.Object] = true
	}
	require.Len(t, objects, 2)
	h.Checkpoint++
	rep, err = r.VerifyHandle(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, []string{format.CodeSection}, codes(rep.Findings, inflight.SeverityError))
}

// TestBareFile looks into a file that has no directory any more.
func TestBareFile(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	small(t, b, format.CodecNone)
	p := statetest.Get(t, b, "job/"+format.StateFileName(6, "g0", "abc"))
	statetest.Put(t, b, "somewhere/x.bin", p[:500])
	r := Open(b, "somewhere", Options{})
	defer r.Close()
	f, err := r.File(t.Context(), "x.bin")
	require.NoError(t, err)
	require.False(t, f.Sealed)
	require.Contains(t, codes(f.Findings, inflight.SeverityError), format.CodeTorn)
	s, err := f.Subtask(inflight.Task{Vertex: "count", Subtask: 1})
	require.NoError(t, err)
	defer s.Close()
	var got []string
	for b, err := range s.Buffers(t.Context()) {
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%s %s %d×%d", b.Address, b.Pos, len(b.Bytes), b.Bytes[0]))
	}
	require.Equal(t, []string{"partition 1 subpartition 0 0/0#0 40×1", "partition 1 subpartition 0 0/40#1 30×2", "partition 1 subpartition 0 0/70#2 150×3"}, got)
	_, err = r.File(t.Context(), "y.bin")
	require.ErrorIs(t, err, inflight.ErrNotExist)
}

func TestSalvage(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 4096})
	task, late := inflight.Task{Vertex: "count", Subtask: 1}, inflight.Task{Vertex: "src"}
	in := inflight.InputChannel{Channel: 2}.Address()
	for i := range 5 {
		w.append(task, in, uint64(4096*i), bytes.Repeat([]byte{byte(i)}, 4096))
	}
	w.append(task, inflight.Subpartition{}.Address(), 0, []byte("whole"))
	for i := range 3 {
		w.append(late, in, uint64(4096*i), bytes.Repeat([]byte{byte(i)}, 4096))
	}
	w.close()
	name := format.StateFileName(7, "g0", "abc")
	p := statetest.Get(t, b, "job/"+name)
	p[10000] ^= 1
	r := Open(b, "job", Options{})
	defer r.Close()
	plan := func(p []byte) string {
		statetest.Put(t, b, "job/"+name, p)
		f, err := r.File(t.Context(), name)
		require.NoError(t, err)
		s := PlanSalvage("x.cstate", f.Scanned)
		require.False(t, s.Subtasks[0].Whole())
		return s.String()
	}
	require.Equal(t, `x.cstate:
  count/1 (complete)
    bytes 0–8191 of gate 0 channel 2 kept
    bytes 12288–20479 of gate 0 channel 2 kept
    bytes 8192–12287 of gate 0 channel 2 missing
    bytes 0–4 of partition 0 subpartition 0 kept
  src/0 (complete)
    bytes 0–12287 of gate 0 channel 2 kept
`, plan(p))
	require.Equal(t, `x.cstate:
  count/1 (no complete mark: more may be missing at the end)
    bytes 0–8191 of gate 0 channel 2 kept
    bytes 12288–20479 of gate 0 channel 2 kept
    bytes 8192–12287 of gate 0 channel 2 missing
    bytes 0–4 of partition 0 subpartition 0 kept
  src/0 (no complete mark: more may be missing at the end)
    bytes 0–4095 of gate 0 channel 2 kept
`, plan(p[:26000]))
}
