package reader

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

func TestHandles(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	c := small(t, b, format.CodecNone)
	single, double := c.Handles[0], c.Handles[1]
	require.Len(t, double.Segments, 2)
	old, own := "job/"+format.StateFileName(6, "g0", "abc"), "job/"+single.Segments[0].File
	wholeOld, wholeOwn := statetest.Get(t, b, old), statetest.Get(t, b, own)

	for _, tc := range []struct {
		name  string
		h     func() inflight.Handle
		spoil func()
		err   error
		text  string
		late  bool // noticed when data is read
	}{
		{name: "right", h: func() inflight.Handle { return double }},
		{name: "nothing captured", h: func() inflight.Handle { return inflight.Handle{Task: single.Task, Checkpoint: 7} }},
		{name: "another subtask", h: func() inflight.Handle { h := single; h.Task.Subtask++; return h }, err: inflight.ErrMismatch, text: "the section is of subtask src/0"},
		{name: "another checkpoint", h: func() inflight.Handle { h := single; h.Checkpoint++; return h }, err: inflight.ErrMismatch, text: "of checkpoint 7"},
		{name: "wrong sums", h: func() inflight.Handle { h := single; h.InputBytes++; return h }, err: inflight.ErrMismatch, text: "the handle says 61"},
		{name: "only the first part", h: func() inflight.Handle { h := double; h.Segments = h.Segments[:1]; return h }, err: inflight.ErrIncomplete, text: "continued"},
		{name: "only the last part", h: func() inflight.Handle { h := double; h.Segments = h.Segments[1:]; return h }, err: inflight.ErrMismatch, text: "continues 1"},
		{name: "parts swapped", h: func() inflight.Handle {
			h := double
			h.Segments = []inflight.Segment{h.Segments[1], h.Segments[0]}
			return h
		}, err: inflight.ErrMismatch},
		{name: "outside of the job", h: func() inflight.Handle {
			h := single
			h.Segments = []inflight.Segment{h.Segments[0]}
			h.Segments[0].File = "../other/g0-abc.cstate"
			return h
		}, err: inflight.ErrCorrupt, text: `"../other/g0-abc.cstate"`},
		{name: "no such file", h: func() inflight.Handle {
			h := single
			h.Segments = []inflight.Segment{h.Segments[0]}
			h.Segments[0].File = format.StateFileName(7, "g9", "abc")
			return h
		}, err: inflight.ErrNotExist, text: "g9-abc"},
		{name: "another checksum", h: func() inflight.Handle {
			h := single
			h.Segments = []inflight.Segment{h.Segments[0]}
			h.Segments[0].CRC++
			return h
		}, err: inflight.ErrCorrupt, text: "not the one that was meant"},
		{name: "far away", h: func() inflight.Handle {
			h := single
			h.Segments = []inflight.Segment{h.Segments[0]}
			h.Segments[0].Offset = 1 << 60
			return h
		}, err: inflight.ErrTorn},
		{name: "file swapped", h: func() inflight.Handle { return single }, spoil: func() { statetest.Put(t, b, own, wholeOld) }, err: inflight.ErrForeign, text: "put the right file back"},
		{name: "older file swapped", h: func() inflight.Handle { return double }, spoil: func() {
			statetest.Put(t, b, old, append(bytes.Clone(wholeOwn), make([]byte, 1000)...))
		}, err: inflight.ErrForeign, late: true, text: "was expected"},
		{name: "older file missing", h: func() inflight.Handle { return double }, spoil: func() { require.NoError(t, b.Remove(t.Context(), old)) }, err: inflight.ErrNotExist, late: true},
		{name: "empty", h: func() inflight.Handle { return single }, spoil: func() { statetest.Put(t, b, own, nil) }, err: inflight.ErrEmpty},
		{name: "cut", h: func() inflight.Handle { return single }, spoil: func() { statetest.Put(t, b, own, wholeOwn[:120]) }, err: inflight.ErrTorn},
		{name: "zeros", h: func() inflight.Handle { return single }, spoil: func() { statetest.Put(t, b, own, make([]byte, len(wholeOwn))) }, err: inflight.ErrCorrupt},
		{name: "bytes appended", h: func() inflight.Handle { return single }, spoil: func() { statetest.Put(t, b, own, append(bytes.Clone(wholeOwn), 1, 2)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.spoil != nil {
				tc.spoil()
				defer statetest.Put(t, b, own, wholeOwn)
				defer statetest.Put(t, b, old, wholeOld)
			}
			r := Open(b, "job", Options{})
			defer r.Close()
			s, err := r.Subtask(t.Context(), tc.h())
			if tc.late || tc.err == nil {
				require.NoError(t, err)
				want := c
				if len(tc.h().Segments) == 0 {
					want = &statetest.Checkpoint{}
				}
				err = readRight(t.Context(), t, s, want)
				s.Close()
			}
			require.ErrorIs(t, err, tc.err)
			if tc.err != nil {
				require.ErrorContains(t, err, tc.text)
				var typed *inflight.Error
				require.ErrorAs(t, err, &typed)
				require.NotEmpty(t, typed.Object)
				require.True(t, typed.Mend == "" || strings.Count(err.Error(), typed.Mend) == 1, "the mend is said once: %v", err)
				require.NotContains(t, err.Error(), "\n")
			}
			idle(t, r, b)
		})
	}
}

// manifestOf returns the manifest of c for a job of one edge.
func manifestOf(c *statetest.Checkpoint) *format.Manifest {
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: c.ID, Attempt: "abc", Epoch: 1, Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "src", Parallelism: 1}, {ID: "count", Parallelism: 2}}}}
	m.SetHandles(c.Handles, c.Files...)
	m.Finished = []inflight.Task{{Vertex: "count"}}
	return m
}

// TestCheckpoint opens checkpoints by their manifest, also a copy under another
// name.
func TestCheckpoint(t *testing.T) {
	for _, form := range []string{format.ManifestName, format.ManifestInDir} {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		w := newFile(t, b, 7, format.EncoderOptions{})
		task := inflight.Task{Vertex: "src"}
		w.append(task, inflight.Subpartition{}.Address(), 0, []byte("hello"))
		c := &statetest.Checkpoint{ID: 7, Handles: w.close(), Want: map[statetest.Key][]statetest.Buf{
			{Task: task, Address: inflight.Subpartition{}.Address()}: {{Data: []byte("hello")}},
		}}
		m := manifestOf(c)
		m.SelfContained = true
		m.Finished = append(m.Finished, inflight.Task{Vertex: "count", Subtask: 1})
		p, err := format.EncodeManifest(m)
		require.NoError(t, err)
		statetest.Put(t, b, "job/chk-0000000007/"+form, p)
		statetest.Put(t, b, "backup/monday/"+form, p)
		statetest.Put(t, b, "backup/monday/g0-abc.cstate", statetest.Get(t, b, "job/"+w.name))
		for _, at := range []struct{ job, dir string }{{"job", "chk-0000000007"}, {"backup", "monday"}, {"", "backup/monday"}} {
			r := Open(b, at.job, Options{})
			cp, err := r.Checkpoint(t.Context(), at.dir)
			require.NoError(t, err)
			s, err := cp.Subtask(t.Context(), task)
			require.NoError(t, err)
			require.NoError(t, readRight(t.Context(), t, s, c))
			s.Close()
			s, err = cp.Subtask(t.Context(), inflight.Task{Vertex: "count"})
			require.NoError(t, err)
			require.Zero(t, s.Len())
			s.Close()
			_, err = cp.Subtask(t.Context(), inflight.Task{Vertex: "sink"})
			require.ErrorIs(t, err, inflight.ErrNotExist)
			rep, err := cp.Verify(t.Context(), VerifyOptions{})
			require.NoError(t, err)
			require.Empty(t, rep.Findings)
			require.NoError(t, r.Close())
		}
		r := Open(b, "job", Options{})
		_, err = r.Checkpoint(t.Context(), "chk-0000000008")
		require.ErrorIs(t, err, inflight.ErrNotExist)
		p[20] ^= 1
		statetest.Put(t, b, "job/chk-0000000007/"+form, p)
		_, err = r.Checkpoint(t.Context(), "chk-0000000007")
		require.ErrorIs(t, err, inflight.ErrDamaged)
		p, err = format.EncodeManifest(&format.Manifest{Kind: format.KindClaim, Job: "job", Attempt: "a"})
		require.NoError(t, err)
		statetest.Put(t, b, "job/chk-0000000000/"+form, p)
		_, err = r.Checkpoint(t.Context(), "chk-0000000000")
		require.ErrorIs(t, err, inflight.ErrMismatch)
	}
}
