package flink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openFixture unpacks a fixture and opens its checkpoint.
func openFixture(t testing.TB, name string) (*Checkpoint, string) {
	t.Helper()
	root := flinktest.Unpack(t, name)
	return openDir(t, root, flinktest.CheckpointDir(t, root)), root
}

func openDir(t testing.TB, root, dir string) *Checkpoint {
	t.Helper()
	b := local.New(root)
	c, err := Open(t.Context(), b, dir, OpenOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()); require.NoError(t, b.Close()) })
	return c
}

// describer describes a checkpoint as expected.json does.
type describer struct {
	t    testing.TB
	ctx  context.Context
	c    *Checkpoint
	root string
}

type obj = map[string]any

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (d describer) content(h StreamHandle) []byte {
	r, err := d.c.openStream(d.ctx, h)
	require.NoError(d.t, err)
	defer r.close()
	require.NoError(d.t, r.load(d.ctx))
	return r.data
}

func (d describer) handle(h StreamHandle, channel bool) any {
	if h.IsNull() {
		return nil
	}
	o := obj{"kind": h.Kind().String(), "size": h.Size()}
	switch h.Kind() {
	case KindByteStream:
		o["handle_name"] = h.Name()
	case KindRelativeFile:
		o["relative_path"] = h.Path()
	case KindFile, KindSegment:
		o["path"] = h.Path()
	}
	if h.Kind() == KindSegment {
		o["start_pos"], o["scope"], o["logical_file_id"] = h.StartPos(), h.Scope().String(), h.LogicalID()
	}
	if h.Path() != "" {
		f, err := d.c.Locate(d.ctx, h)
		require.NoError(d.t, err)
		o["file"] = f.Name
	}
	if !channel && h.Kind() != KindEmptySegment {
		b := d.content(h)
		if h.Kind() == KindSegment {
			// readAllBytes of Flink's stream of a segment, which made the listing, ends
			// after its first buffer.
			b = b[:min(len(b), 8192)]
		}
		o["sha256"] = sum(b)
	}
	return o
}

func (d describer) operatorState(s *OperatorState) []any {
	if s == nil {
		return []any{}
	}
	states := obj{}
	for _, n := range s.States {
		states[n.Name] = obj{"mode": n.Mode.String(), "offsets": "an array"}
	}
	o := obj{"kind": s.Kind(), "size": s.Size(), "states": states, "delegate": d.handle(s.Delegate, false)}
	if s.Merging {
		o["task_owned_dir"], o["shared_dir"] = s.TaskOwnedDir, s.SharedDir
	}
	return []any{o}
}

func (d describer) keyedState(s *KeyedState) []any {
	if s == nil {
		return []any{}
	}
	o := obj{"kind": s.Kind.String(), "size": s.Size(), "key_groups": []int{s.FirstKeyGroup, s.FirstKeyGroup + s.KeyGroups - 1}}
	if s.Kind != KeyedSavepoint {
		o["state_handle_id"] = s.ID
	}
	files := func(list []LocalFile) []any {
		l := []any{}
		for _, f := range list {
			l = append(l, obj{"local_path": f.LocalPath, "handle": d.handle(f.Handle, false)})
		}
		return l
	}
	if s.Kind == KeyedIncremental {
		o["backend_id"], o["checkpoint_id"], o["meta"] = s.BackendID, s.CheckpointID, d.handle(s.Meta, false)
		o["shared"], o["private"] = files(s.Shared), files(s.Private)
	} else {
		o["key_group_offsets"], o["delegate"] = slices.Collect(s.Offsets.All()), d.handle(s.Delegate, false)
	}
	return []any{o}
}

func (d describer) channelHandles(x *Index, list []ChannelHandle) []any {
	out := []any{}
	for _, h := range list {
		kind := map[inflight.Side]string{inflight.Input: "InputChannelStateHandle", inflight.Output: "ResultSubpartitionStateHandle"}[h.Side]
		o := obj{"subtask": h.Subtask(), "state_size": h.StateSize(), "delegate": d.handle(h.Delegate(), true)}
		if h.Merged {
			kind = "Merged" + kind
			o["serialized_offsets_bytes"], o["serialized_offsets_sha256"] = len(h.List()), sum(h.List())
		}
		o["kind"] = kind
		channels := []any{}
		for c, err := range h.Channels() {
			require.NoError(d.t, err)
			channels = append(channels, d.channel(x, c))
		}
		o["channels"] = channels
		out = append(out, o)
	}
	return out
}

func (d describer) channel(x *Index, c Channel) obj {
	o := obj{"subtask": c.Subtask, "state_size": c.StateSize, "offsets": slices.Collect(c.Offsets.All())}
	if c.Address.Side == inflight.Input {
		o["gate"], o["channel"] = c.Address.Input.Gate, c.Address.Input.Channel
	} else {
		o["partition"], o["subpartition"] = c.Address.Output.Partition, c.Address.Output.Subpartition
	}
	i := slices.IndexFunc(x.Channels, func(s ChannelState) bool {
		return &s.Offsets[0] == &c.Offsets[0] // the same place of the file
	})
	buffers := []any{}
	for b, err := range d.c.Buffers(d.ctx, x, i) {
		require.NoError(d.t, err)
		buffers = append(buffers, obj{"offset": b.Offset, "length": b.Length, "sha256": sum(b.Bytes)})
	}
	o["buffers"] = buffers
	return o
}

func (d describer) operator(x *Index, o *Operator) obj {
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	subtasks := []any{}
	sorted := slices.SortedFunc(slices.Values(o.Subtasks), func(a, b Subtask) int { return a.Index - b.Index })
	for _, s := range sorted {
		subtasks = append(subtasks, obj{
			"subtask": s.Index, "finished": s.Finished,
			"managed_operator": d.operatorState(s.ManagedOperator), "raw_operator": d.operatorState(s.RawOperator),
			"managed_keyed": d.keyedState(s.ManagedKeyed), "raw_keyed": d.keyedState(s.RawKeyed),
			"input_handles": d.channelHandles(x, s.Input), "output_handles": d.channelHandles(x, s.Output),
		})
	}
	return obj{
		"operator_id": o.ID.String(), "name": text(o.Name), "uid": text(o.UID), "parallelism": o.Parallelism, "max_parallelism": o.MaxParallelism,
		"fully_finished": o.Finished, "coordinator_state": d.handle(o.Coordinator, false), "subtasks": subtasks,
	}
}

func (d describer) all() obj {
	m, x := d.c.Metadata, d.c.Index()
	operators, masters := []any{}, []any{}
	for i := range m.Operators {
		operators = append(operators, d.operator(x, &m.Operators[i]))
	}
	for _, s := range m.Masters {
		masters = append(masters, obj{"name": s.Name, "version": s.Version, "bytes": len(s.Payload), "sha256": sum(s.Payload)})
	}
	p, err := m.Properties()
	require.NoError(d.t, err)
	streams := map[string]bool{}
	for _, s := range x.Streams {
		if s.Handle.Path() == "" {
			continue
		}
		f, err := d.c.Locate(d.ctx, s.Handle)
		require.NoError(d.t, err)
		if name := f.Name; s.Handle.Kind() == KindSegment {
			streams[name+"@"+jsonNumber(s.Handle.StartPos())] = true
		} else {
			streams[name] = true
		}
	}
	return obj{
		"checkpoint_dir": d.c.Dir, "checkpoint_id": m.CheckpointID, "metadata_bytes": len(m.Bytes()), "metadata_sha256": sum(m.Bytes()),
		"metadata_version": m.Version, "properties_offset": m.PropertiesOffset(), "master_states": masters, "checkpoint_properties": p.String(),
		"operators": operators, "channel_state_files": sorted(streams), "absolute_paths": sorted(d.absolute()),
		"files": d.files(), "totals": d.totals(x),
	}
}

// sorted returns the keys of m; never nil.
func sorted(m map[string]bool) []string {
	keys := slices.AppendSeq([]string{}, maps.Keys(m))
	slices.Sort(keys)
	return keys
}

func jsonNumber(n int64) string { b, _ := json.Marshal(n); return string(b) }

// absolute collects the absolute paths in the metadata, the names of inline
// handles included.
func (d describer) absolute() map[string]bool {
	paths := map[string]bool{}
	add := func(p string) {
		if strings.HasPrefix(p, "file:/") {
			paths[p] = true
		}
	}
	for i := range d.c.Operators {
		for j := range d.c.Operators[i].Subtasks {
			s := &d.c.Operators[i].Subtasks[j]
			for h := range s.StateHandles() {
				add(h.Path())
				add(h.Name())
			}
			for h := range s.Handles() {
				add(h.Delegate().Path())
				add(h.Delegate().Name())
			}
			for _, o := range []*OperatorState{s.ManagedOperator, s.RawOperator} {
				if o != nil {
					add(o.TaskOwnedDir)
					add(o.SharedDir)
				}
			}
		}
	}
	return paths
}

func (d describer) files() []any {
	list := []any{}
	require.NoError(d.t, filepath.WalkDir(d.root, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || slices.Contains([]string{".json", ".tsv", ".properties"}, filepath.Ext(p)) {
			return err
		}
		b, err := os.ReadFile(p)
		require.NoError(d.t, err)
		rel, err := filepath.Rel(d.root, p)
		require.NoError(d.t, err)
		list = append(list, obj{"path": filepath.ToSlash(rel), "bytes": len(b), "sha256": sum(b)})
		return nil
	}))
	return list
}

func (d describer) totals(x *Index) obj {
	handles := map[inflight.Side]int{}
	for h := range d.c.channelHandles() {
		handles[h.Side]++
	}
	channels, buffers, data := map[inflight.Side]int{}, map[inflight.Side]int{}, map[inflight.Side]int{}
	for i := range x.Channels {
		side := x.Channels[i].Address.Side
		channels[side]++
		for b, err := range d.c.Buffers(d.ctx, x, i) {
			require.NoError(d.t, err)
			buffers[side]++
			data[side] += len(b.Bytes)
		}
	}
	return obj{
		"input_handles": handles[inflight.Input], "input_channels": channels[inflight.Input], "input_buffers": buffers[inflight.Input], "input_bytes": data[inflight.Input],
		"output_handles": handles[inflight.Output], "output_channels": channels[inflight.Output], "output_buffers": buffers[inflight.Output], "output_bytes": data[inflight.Output],
	}
}

// notInTheFiles are the fields of expected.json that nothing on the store says.
var notInTheFiles = []string{"fixture", "original_base", "note", "written_by_flink", "config", "task_managers", "read_with_flink", "checkpoint_stats"}

// normal passes v through JSON, so that numbers compare as they are written.
func normal(t testing.TB, v any) (out obj) {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&out))
	return out
}

// untold clears what the listing of Flink's classes does not tell: offsets of
// operator state, which it prints as the address of an array, and a random id
// that is not in the file.
func untold(v any) {
	switch v := v.(type) {
	case map[string]any:
		if states, ok := v["states"].(map[string]any); ok {
			for _, s := range states {
				s.(map[string]any)["offsets"] = "an array"
			}
		}
		if v["kind"] == "KeyGroupsSavepointStateHandle" {
			delete(v, "state_handle_id")
		}
		for _, x := range v {
			untold(x)
		}
	case []any:
		for _, x := range v {
			untold(x)
		}
	}
}

// TestFixtures compares every field of every expected.json.
func TestFixtures(t *testing.T) {
	for _, name := range flinktest.Names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, root := openFixture(t, name)
			var want obj
			flinktest.Expected(t, root, &want)
			for _, k := range notInTheFiles {
				delete(want, k)
			}
			want = normal(t, want)
			untold(want)
			got := normal(t, describer{t, context.WithoutCancel(t.Context()), c, root}.all())
			for _, k := range slices.Sorted(maps.Keys(want)) {
				if k != "operators" {
					require.Equal(t, want[k], got[k], k)
				}
			}
			require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
			wantOps, gotOps := want["operators"].([]any), got["operators"].([]any)
			require.Len(t, gotOps, len(wantOps))
			for i := range wantOps {
				require.Equal(t, wantOps[i], gotOps[i])
			}

			raw, err := os.ReadFile(filepath.Join(root, path.Join(c.Dir, c.Name)))
			require.NoError(t, err)
			again, err := c.Rewrite(Changes{})
			require.NoError(t, err)
			require.True(t, bytes.Equal(raw, again), "rewritten without a change")
			again, err = c.Rewrite(everythingAnew(t))
			require.NoError(t, err)
			require.True(t, bytes.Equal(raw, again), "rewritten from its parts")
		})
	}
}
