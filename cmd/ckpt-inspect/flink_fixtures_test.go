package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/internal/flinktest"
)

type obj = map[string]any

// jsonLines runs the inspector and returns what it prints, by type; buffers have
// none.
func jsonLines(t testing.TB, args ...string) map[string][]obj {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), testEnv(&stdout, &stderr), append(args, "--json")), "%s: %s", args, &stderr)
	lines := map[string][]obj{}
	for l := range strings.Lines(stdout.String()) {
		o := decode(t, []byte(l))
		of, _ := o["type"].(string)
		lines[of] = append(lines[of], o)
	}
	return lines
}

// decode keeps numbers as they are written.
func decode(t testing.TB, p []byte) (o obj) {
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&o), string(p))
	return o
}

// listing makes of what show and dump print what expected.json says.
type listing struct {
	t        testing.TB
	root     string // of the fixture
	prefix   string // of the store that was opened, in root
	show     map[string][]obj
	buffers  map[string][]any // by channel
	absolute map[string]bool
	streams  map[string]bool // files, and parts of files, with channel state
	sums     map[string]bool // segments that were compared with their files
}

// channelKey tells the lines of channels and of buffers apart.
func channelKey(o obj) string {
	return fmt.Sprint(o["operator_id"], o["subtask"], o["side"], o["gate"], o["channel"], o["partition"], o["subpartition"])
}

func newListing(t testing.TB, name string) *listing {
	root := flinktest.Unpack(t, name)
	dir := flinktest.CheckpointDir(t, root)
	l := &listing{t: t, root: root, prefix: path.Dir(dir), buffers: map[string][]any{}, absolute: map[string]bool{}, streams: map[string]bool{}, sums: map[string]bool{}}
	l.show = jsonLines(t, "show", "--digest", filepath.Join(root, dir))
	for _, b := range jsonLines(t, "dump", "--digest", filepath.Join(root, dir))[""] {
		require.NotContains(t, b, "epoch")
		require.NotContains(t, b, "stream_offset")
		require.NotContains(t, b, "seq")
		k := channelKey(b)
		l.buffers[k] = append(l.buffers[k], obj{"offset": b["offset"], "length": b["length"], "sha256": b["sha256"]})
		l.checkBytes(b)
	}
	return l
}

// checkBytes looks for a buffer where its line says that it lies.
func (l *listing) checkBytes(b obj) {
	p, err := os.ReadFile(filepath.Join(l.root, l.prefix, b["file"].(string)))
	require.NoError(l.t, err)
	at := number64(l.t, b["offset"]) + 4
	if start, ok := b["start_pos"]; ok {
		at += number64(l.t, start)
	}
	sum := sha256.Sum256(p[at : at+number64(l.t, b["length"])])
	require.Equal(l.t, b["sha256"], hex.EncodeToString(sum[:]))
}

func number64(t testing.TB, v any) int64 {
	n, err := v.(json.Number).Int64()
	require.NoError(t, err)
	return n
}

// handle is a stream as expected.json has it.
func (l *listing) handle(v any, channels bool) any {
	if v == nil {
		return nil
	}
	s := v.(obj)
	o := obj{"kind": s["class"], "size": s["size_bytes"]}
	for _, k := range []string{"path", "name"} {
		if p, ok := s[k].(string); ok && strings.HasPrefix(p, "file:/") {
			l.absolute[p] = true
		}
	}
	switch s["class"] {
	case "ByteStreamStateHandle":
		o["handle_name"] = s["name"]
	case "RelativeFileStateHandle":
		o["relative_path"] = s["path"]
	case "FileStateHandle":
		o["path"] = s["path"]
	case "SegmentFileStateHandle":
		o["path"], o["start_pos"], o["scope"], o["logical_file_id"] = s["path"], s["start_pos"], s["scope"], s["logical_file_id"]
	}
	if f, ok := s["file"].(string); ok {
		o["file"] = path.Join(l.prefix, f)
	}
	if !channels {
		if sum, ok := s["sha256"]; ok {
			o["sha256"] = sum
		}
		if s["class"] == "SegmentFileStateHandle" {
			o["sha256"] = l.segment(s)
		}
	} else if f, ok := o["file"].(string); ok {
		if start, ok := s["start_pos"]; ok {
			f += fmt.Sprintf("@%s", start)
		}
		l.streams[f] = true
	}
	return o
}

// segment returns the digest that the listing has of a segment: of its first 8192
// bytes, since Flink's stream of one, which made it, ends there. Ours is of all,
// and compared with the file.
func (l *listing) segment(s obj) string {
	p, err := os.ReadFile(filepath.Join(l.root, l.prefix, s["file"].(string)))
	require.NoError(l.t, err)
	at, n := number64(l.t, s["start_pos"]), number64(l.t, s["size_bytes"])
	sum := sha256.Sum256(p[at : at+n])
	require.Equal(l.t, hex.EncodeToString(sum[:]), s["sha256"])
	sum = sha256.Sum256(p[at : at+min(n, 8192)])
	return hex.EncodeToString(sum[:])
}

// state is keyed or operator state as expected.json has it.
func (l *listing) state(operator string, subtask any, slot string) []any {
	list := []any{}
	for _, s := range l.show["state"] {
		if s["operator_id"] != operator || s["subtask"] != subtask || s["state"] != slot {
			continue
		}
		o := obj{"kind": s["class"], "size": s["size_bytes"]}
		if strings.HasSuffix(slot, "operator") {
			states := obj{}
			named, _ := s["states"].([]any)
			for _, n := range named {
				n := n.(obj)
				states[n["name"].(string)] = obj{"mode": n["mode"], "offsets": "an array"}
				require.NotEmpty(l.t, n["offsets"])
			}
			o["states"], o["delegate"] = states, l.handle(s["delegate"], false)
			for _, k := range []string{"task_owned_dir", "shared_dir"} {
				if dir, ok := s[k].(string); ok {
					o[k] = dir
					l.absolute[dir] = true
				}
			}
			list = append(list, o)
			continue
		}
		o["key_groups"] = s["key_groups"]
		if id, ok := s["state_handle_id"]; ok {
			o["state_handle_id"] = id
		}
		if s["class"] == "IncrementalRemoteKeyedStateHandle" {
			o["backend_id"], o["checkpoint_id"], o["meta"] = s["backend_id"], s["checkpoint_id"], l.handle(s["meta"], false)
			o["shared"], o["private"] = l.localFiles(s["shared"]), l.localFiles(s["private"])
		} else {
			offsets, _ := s["key_group_offsets"].([]any)
			o["key_group_offsets"], o["delegate"] = append([]any{}, offsets...), l.handle(s["delegate"], false)
		}
		list = append(list, o)
	}
	return list
}

func (l *listing) localFiles(v any) []any {
	list := []any{}
	files, _ := v.([]any)
	for _, f := range files {
		f := f.(obj)
		list = append(list, obj{"local_path": f["local_path"], "handle": l.handle(f["handle"], false)})
	}
	return list
}

// handles are the handles of channel state of one side.
func (l *listing) handles(operator string, subtask any, side string) []any {
	list := []any{}
	for _, h := range l.show["handle"] {
		if h["operator_id"] != operator || h["subtask"] != subtask || h["side"] != side {
			continue
		}
		o := obj{"kind": h["class"], "subtask": h["written_by"], "state_size": h["state_size"], "delegate": l.handle(h["delegate"], true)}
		if n, ok := h["list_bytes"]; ok {
			o["serialized_offsets_bytes"], o["serialized_offsets_sha256"] = n, h["list_sha256"]
		}
		channels := []any{}
		for _, c := range l.show["channel"] {
			if c["handle"] != h["handle"] {
				continue
			}
			ch := obj{"subtask": h["written_by"], "state_size": c["state_size"], "offsets": c["offsets"], "buffers": append([]any{}, l.buffers[channelKey(c)]...)}
			for _, k := range []string{"gate", "channel", "partition", "subpartition"} {
				if n, ok := c[k]; ok {
					ch[k] = n
				}
			}
			channels = append(channels, ch)
		}
		require.Len(l.t, channels, int(number64(l.t, h["channels"])))
		o["channels"] = channels
		list = append(list, o)
	}
	return list
}

func (l *listing) operators() []any {
	list := []any{}
	orNull := func(v any) any {
		if v == "" {
			return nil
		}
		return v
	}
	for _, op := range l.show["operator"] {
		id := op["operator_id"].(string)
		subtasks := []any{}
		for _, s := range l.show["subtask"] {
			if s["operator_id"] != id {
				continue
			}
			n := s["subtask"]
			subtasks = append(subtasks, obj{"subtask": n, "finished": s["finished"] == true,
				"managed_operator": l.state(id, n, "managed-operator"), "raw_operator": l.state(id, n, "raw-operator"),
				"managed_keyed": l.state(id, n, "managed-keyed"), "raw_keyed": l.state(id, n, "raw-keyed"),
				"input_handles": l.handles(id, n, "input"), "output_handles": l.handles(id, n, "output")})
		}
		slices.SortStableFunc(subtasks, func(a, b any) int {
			return int(number64(l.t, a.(obj)["subtask"]) - number64(l.t, b.(obj)["subtask"]))
		})
		list = append(list, obj{"operator_id": id, "name": orNull(op["name"]), "uid": orNull(op["uid"]), "parallelism": op["parallelism"], "max_parallelism": op["max_parallelism"],
			"fully_finished": op["finished"] == true, "coordinator_state": l.handle(op["coordinator"], false), "subtasks": subtasks})
	}
	return list
}

func (l *listing) files() []any {
	list := []any{}
	for _, f := range l.show["file"] {
		list = append(list, obj{"path": path.Join(l.prefix, f["name"].(string)), "bytes": f["size_bytes"], "sha256": f["sha256"]})
	}
	return list
}

func (l *listing) totals() obj {
	n := map[string]int64{}
	for _, h := range l.show["handle"] {
		n[h["side"].(string)+"_handles"]++
	}
	for _, c := range l.show["channel"] {
		side := c["side"].(string)
		n[side+"_channels"]++
		n[side+"_buffers"] += number64(l.t, c["buffers"])
		n[side+"_bytes"] += number64(l.t, c["bytes"])
	}
	o := obj{}
	for _, side := range []string{"input", "output"} {
		for _, k := range []string{"handles", "channels", "buffers", "bytes"} {
			o[side+"_"+k] = json.Number(fmt.Sprint(n[side+"_"+k]))
		}
	}
	return o
}

func (l *listing) all() obj {
	require.Len(l.t, l.show["checkpoint"], 1)
	require.Len(l.t, l.show["metadata"], 1)
	c, m := l.show["checkpoint"][0], l.show["metadata"][0]
	masters := []any{}
	for _, s := range l.show["master"] {
		masters = append(masters, obj{"name": s["name"], "version": s["version"], "bytes": s["size_bytes"], "sha256": s["sha256"]})
	}
	o := obj{"checkpoint_dir": path.Join(l.prefix, c["dir"].(string)), "checkpoint_id": c["id"], "metadata_bytes": m["size_bytes"], "metadata_sha256": m["sha256"],
		"metadata_version": m["version"], "properties_offset": m["properties_offset"], "master_states": masters, "checkpoint_properties": m["properties"],
		"operators": l.operators(), "files": l.files(), "totals": l.totals()}
	for k, names := range map[string]map[string]bool{"channel_state_files": l.streams, "absolute_paths": l.absolute} {
		list := []any{}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			list = append(list, n)
		}
		o[k] = list
	}
	return o
}

// notInTheFiles are the fields of expected.json that nothing on the store says.
var notInTheFiles = []string{"fixture", "original_base", "note", "written_by_flink", "config", "task_managers", "read_with_flink", "checkpoint_stats"}

// untold clears what the listing of Flink's classes does not tell: offsets of
// operator state, which it prints as the address of an array, and a random id that
// is not in the file.
func untold(v any) {
	switch v := v.(type) {
	case obj:
		if states, ok := v["states"].(obj); ok {
			for _, s := range states {
				s.(obj)["offsets"] = "an array"
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

// TestFlinkFixtures gets every field of every expected.json through the command.
func TestFlinkFixtures(t *testing.T) {
	names := flinktest.Names(t)
	if raceEnabled { // the others differ in their bytes only
		names = []string{"resume", "file-merging", "stateful-rocksdb-incremental", "flink-1.17.2-connect-3-4", "keyed-2x2-share1", "finished-subtask"}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newListing(t, name)
			p, err := os.ReadFile(filepath.Join(l.root, name+".expected.json"))
			require.NoError(t, err)
			want := decode(t, p)
			for _, k := range notInTheFiles {
				delete(want, k)
			}
			untold(want)
			got := l.all()
			require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
			for _, k := range slices.Sorted(maps.Keys(want)) {
				require.Equal(t, want[k], got[k], k)
			}
		})
	}
}
