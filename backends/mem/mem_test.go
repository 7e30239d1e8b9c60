package mem_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	for name, opt := range map[string]mem.Options{
		"tree":              {},
		"object store":      {ObjectStore: true},
		"held until finish": {HeldUntilFinish: true},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(*testing.T) backends.Backend { return mem.New(opt) }, backendtest.Options{})
		})
	}
}

func put(t testing.TB, b *mem.Backend, name, data string, exclusive bool) error {
	t.Helper()
	o, err := b.Create(t.Context(), name, backends.CreateOptions{Exclusive: exclusive, Attempt: "a-" + data})
	require.NoError(t, err)
	_, err = o.Write([]byte(data))
	require.NoError(t, err)
	_, err = o.Finish(t.Context())
	return err
}

// contents returns all objects, and all folders with a slash and no content.
func contents(t testing.TB, b *mem.Backend) map[string]string {
	t.Helper()
	all := map[string]string{}
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		s, err := b.Open(t.Context(), info.Name)
		require.NoError(t, err)
		data := make([]byte, info.Size)
		require.NoError(t, s.ReadAt(t.Context(), data, 0))
		all[info.Name] = string(data)
	}
	return all
}

func children(t testing.TB, b *mem.Backend, dir string) (names []string) {
	t.Helper()
	for name, err := range b.Children(t.Context(), dir) {
		require.NoError(t, err)
		names = append(names, name)
	}
	return names
}

func leftovers(t testing.TB, b *mem.Backend) (found []string) {
	t.Helper()
	for l, err := range b.Leftovers(t.Context(), "") {
		require.NoError(t, err)
		found = append(found, fmt.Sprintf("%s: %s", l.Kind, l.Name))
	}
	return found
}

func TestNamedStores(t *testing.T) {
	ctx := t.Context()
	a, err := backends.Open(ctx, "mem://"+t.Name())
	require.NoError(t, err)
	require.Equal(t, "mem://"+t.Name(), a.URL())
	require.NoError(t, put(t, a.(*mem.Backend), "x", "x", false))
	require.NoError(t, a.Close())
	b, err := backends.Open(ctx, "mem://"+t.Name())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"x": "x"}, contents(t, b.(*mem.Backend)), "the store outlives the handle")
	other, err := backends.Open(ctx, "mem://"+t.Name()+"2")
	require.NoError(t, err)
	require.Empty(t, contents(t, other.(*mem.Backend)))
	for _, bad := range []string{"mem://", "mem://a/b", "mem://a?b=c"} {
		_, err := backends.Open(ctx, bad)
		require.ErrorIs(t, err, inflight.ErrConfig, bad)
	}
}

func TestFates(t *testing.T) {
	for _, opt := range []mem.Options{{}, {ObjectStore: true}} {
		b, fate := mem.New(opt), mem.Apply
		var asked []mem.Request
		b.SetFate(func(r mem.Request) mem.Fate { asked = append(asked, r); return fate })

		fate = mem.LoseAnswer
		require.ErrorIs(t, put(t, b, "d/1", "one", true), inflight.ErrOutcomeUnknown)
		require.Equal(t, map[string]string{"d/1": "one"}, contents(t, b), "applied")
		require.ErrorIs(t, put(t, b, "d/1", "again", true), inflight.ErrOutcomeUnknown, "that it exists is lost too")
		require.Equal(t, mem.Request{ID: asked[0].ID, Name: "d/1", Exclusive: true, Attempt: "a-one", Size: 3}, asked[0])

		fate = mem.Delay
		require.ErrorIs(t, put(t, b, "d/2", "late", true), inflight.ErrOutcomeUnknown)
		require.ErrorIs(t, put(t, b, "d/2", "later", true), inflight.ErrOutcomeUnknown)
		require.ErrorIs(t, put(t, b, "d/2", "lost", true), inflight.ErrOutcomeUnknown)
		require.NotContains(t, contents(t, b), "d/2")
		flying := b.InFlight()
		require.Len(t, flying, 3)
		require.Equal(t, asked[2:], flying)
		b.Drop(flying[2].ID)
		require.True(t, b.Release(flying[1].ID))
		require.Equal(t, "later", contents(t, b)["d/2"])
		require.False(t, b.Release(flying[0].ID), "the name is taken")
		require.Equal(t, "later", contents(t, b)["d/2"])
		require.False(t, b.Release(flying[1].ID), "it has landed")
		require.Empty(t, b.InFlight())

		fate = mem.Double
		require.NoError(t, put(t, b, "d/3", "double", true))
		require.ErrorIs(t, put(t, b, "d/1", "no", true), inflight.ErrExist)
		flying = b.InFlight()
		require.Len(t, flying, 1, "what failed is not doubled")
		require.NoError(t, b.Remove(t.Context(), "d/3"))
		require.True(t, b.Release(flying[0].ID), "the name is free again")
		require.Equal(t, "double", contents(t, b)["d/3"])

		b.SetFate(nil)
		require.NoError(t, put(t, b, "d/4", "plain", true))
		require.Empty(t, leftovers(t, b))
	}
}

func TestPowerCut(t *testing.T) {
	ctx, b := t.Context(), mem.New(mem.Options{})
	cut := func() map[string]string { return contents(t, b.CrashClone(nil, mem.CrashConfig{})) }

	require.NoError(t, put(t, b, "job/chk-1/data", "d", false))
	require.Empty(t, cut(), "the name is not durable")
	require.NoError(t, b.SyncNames(ctx, "job/chk-1"))
	require.Equal(t, map[string]string{"job/chk-1/data": "d"}, cut())

	require.NoError(t, put(t, b, "job/chk-2/data", "d2", false))
	require.NoError(t, b.SyncNames(ctx, "job"))
	require.Equal(t, map[string]string{"job/chk-1/data": "d"}, cut(), "the folder is durable, what is in it is not")
	require.Equal(t, []string{"chk-1", "chk-2"}, children(t, b.CrashClone(nil, mem.CrashConfig{}), "job"))
	require.Equal(t, []string{"empty folder: job/chk-2"}, leftovers(t, b.CrashClone(nil, mem.CrashConfig{})))
	require.NoError(t, put(t, b, "job/chk-2/m", "m", true))
	require.Equal(t, map[string]string{"job/chk-1/data": "d", "job/chk-2/data": "d2", "job/chk-2/m": "m"}, cut(), "an exclusive create syncs its folder")

	require.NoError(t, put(t, b, "job/chk-1/data", "replaced", false))
	require.Equal(t, "d", cut()["job/chk-1/data"])
	require.NoError(t, b.Remove(ctx, "job/chk-1/data", "job/chk-2/data"))
	require.Equal(t, map[string]string{"job/chk-1/data": "d", "job/chk-2/data": "d2", "job/chk-2/m": "m"}, cut(), "what was deleted comes back")
	require.NoError(t, b.SyncNames(ctx, "job/chk-2"))
	require.Equal(t, map[string]string{"job/chk-2/m": "m"}, cut(), "a folder that is durably gone takes what was in it")
	require.Equal(t, contents(t, b), cut())
}

func TestObjectStoreLosesNoNames(t *testing.T) {
	b := mem.New(mem.Options{ObjectStore: true})
	require.NoError(t, put(t, b, "d/x", "x", false))
	b.SetFate(func(mem.Request) mem.Fate { return mem.Delay })
	require.Error(t, put(t, b, "d/late", "late", true))
	after := b.CrashClone(nil, mem.CrashConfig{})
	require.Equal(t, map[string]string{"d/x": "x"}, contents(t, after))
	require.True(t, after.Release(after.InFlight()[0].ID), "a late create is applied after the crash")
	require.Equal(t, map[string]string{"d/x": "x", "d/late": "late"}, contents(t, after))
	require.Len(t, b.InFlight(), 1, "the clone is another store")
}

func TestUnfinishedAfterACrash(t *testing.T) {
	for kind, opt := range map[string]mem.Options{"temporary file": {}, "multipart upload": {ObjectStore: true}} {
		b := mem.New(opt)
		o, err := b.Create(t.Context(), "d/x", backends.CreateOptions{})
		require.NoError(t, err)
		_, err = o.Write(make([]byte, 1000))
		require.NoError(t, err)
		require.Empty(t, leftovers(t, b.CrashClone(nil, mem.CrashConfig{})))
		killed := b.CrashClone(rand.New(rand.NewPCG(1, 2)), mem.CrashConfig{Names: 1, Leftovers: 1})
		for l, err := range killed.Leftovers(t.Context(), "d") {
			require.NoError(t, err)
			require.Equal(t, kind, l.Kind)
			require.Less(t, l.Size, int64(1000), "some of its bytes, with this seed")
			require.NoError(t, l.Remove(t.Context()))
		}
		require.Empty(t, leftovers(t, killed))
		require.Empty(t, children(t, killed, ""))
		require.Equal(t, []string{kind + ": d/x"}, leftovers(t, b))
		require.NoError(t, b.Close())
		require.Empty(t, leftovers(t, killed.Clone()))
	}
}

func TestRemovedTemporary(t *testing.T) {
	b := mem.New(mem.Options{})
	o, err := b.Create(t.Context(), "d/x", backends.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, b.RemoveAll(t.Context(), "d"))
	_, err = o.Finish(t.Context())
	require.ErrorIs(t, err, inflight.ErrNotExist)
	require.Empty(t, contents(t, b))
}

func TestSnapshots(t *testing.T) {
	b := mem.New(mem.Options{})
	require.NoError(t, put(t, b, "d/x", "x", false))
	before := b.Snapshot()
	o, err := b.Create(t.Context(), "d/y", backends.CreateOptions{})
	require.NoError(t, err)
	writing := b.Snapshot()
	require.NoError(t, put(t, b, "d/z", "z", true))
	after := b.Snapshot()
	require.NoError(t, b.Remove(t.Context(), "d/x"))

	b.Restore(before)
	require.Equal(t, map[string]string{"d/x": "x"}, contents(t, b))
	_, err = o.Finish(t.Context())
	require.ErrorIs(t, err, inflight.ErrNotExist, "it was not being written then")
	require.Equal(t, map[string]string{"d/x": "x", "d/z": "z"}, contents(t, after.Open()))
	require.Equal(t, []string{"temporary file: d/y"}, leftovers(t, writing.Open()))
	b.Restore(after)
	require.Equal(t, map[string]string{"d/x": "x", "d/z": "z"}, contents(t, b))
	require.Equal(t, after.Fingerprint(), b.Snapshot().Fingerprint())
	require.NoError(t, b.Remove(t.Context(), "d/z"))
	require.Contains(t, contents(t, after.Open()), "d/z", "a snapshot never changes")
}

func TestFingerprint(t *testing.T) {
	clock := time.Unix(0, 0)
	newStore := func() *mem.Backend {
		return mem.New(mem.Options{Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	}
	steps := map[string]func(b *mem.Backend){
		"nothing":     func(*mem.Backend) {},
		"object":      func(b *mem.Backend) { _ = put(t, b, "d/x", "x", false) },
		"other bytes": func(b *mem.Backend) { _ = put(t, b, "d/x", "y", false) },
		"other name":  func(b *mem.Backend) { _ = put(t, b, "d/y", "x", false) },
		"durable":     func(b *mem.Backend) { _ = put(t, b, "d/x", "x", true) },
		"unfinished":  func(b *mem.Backend) { _, _ = b.Create(t.Context(), "d/x", backends.CreateOptions{}) },
		"in flight": func(b *mem.Backend) {
			b.SetFate(func(mem.Request) mem.Fate { return mem.Delay })
			_ = put(t, b, "d/x", "x", false)
		},
		"exclusive in flight": func(b *mem.Backend) {
			b.SetFate(func(mem.Request) mem.Fate { return mem.Delay })
			_ = put(t, b, "d/x", "x", true)
		},
		"deleted, not durably": func(b *mem.Backend) { _ = put(t, b, "d/x", "x", true); _ = b.Remove(t.Context(), "d/x") },
	}
	seen := map[uint64]string{}
	for name, step := range steps {
		b := newStore()
		step(b)
		print := b.Snapshot().Fingerprint()
		require.NotContains(t, seen, print, "%s and %s", name, seen[print])
		seen[print] = name
		again := newStore()
		step(again)
		require.Equal(t, print, again.Snapshot().Fingerprint(), name)
	}
	a, b := newStore(), newStore()
	require.NoError(t, errors.Join(put(t, a, "d/x", "x", true), put(t, a, "d/y", "y", true)))
	require.NoError(t, errors.Join(put(t, b, "d/y", "y", false), put(t, b, "d/x", "x", true)))
	require.Equal(t, a.Snapshot().Fingerprint(), b.Snapshot().Fingerprint(), "another way to the same state")
}

// TestCrashModel compares crash clones with what the contract allows: a synced
// name is there as it was synced or as it was changed since; any other is
// there as it once was, or not at all.
func TestCrashModel(t *testing.T) {
	folders := []string{"a", "a/b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		b := mem.New(mem.Options{})
		synced, changed := map[string]string{}, map[string][]string{} // "" is absence
		live := map[string]string{}
		sync := func(folder string) {
			for name := range changed {
				if up(name, folder) {
					delete(changed, name)
					synced[name] = live[name]
				}
			}
		}
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			folder := rapid.SampledFrom(folders).Draw(rt, "folder")
			name := folder + "/" + rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name")
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0, 1:
				data := fmt.Sprint("v", i)
				exclusive := rapid.Bool().Draw(rt, "exclusive") && live[name] == ""
				require.NoError(rt, put(t, b, name, data, exclusive))
				live[name] = data
				changed[name] = append(changed[name], data)
				if exclusive {
					sync(folder)
				}
			case 2:
				require.NoError(rt, b.Remove(t.Context(), name))
				live[name] = ""
				changed[name] = append(changed[name], "")
			case 3:
				require.NoError(rt, b.SyncNames(t.Context(), folder))
				sync(folder)
			}
		}
		maps.DeleteFunc(live, func(_, data string) bool { return data == "" })
		seed := rapid.Uint64().Draw(rt, "seed")
		crash := func(names float64) map[string]string {
			return contents(t, b.CrashClone(rand.New(rand.NewPCG(seed, 0)), mem.CrashConfig{Names: names, Leftovers: 0.5}))
		}
		require.Equal(rt, live, crash(1), "a crash of the process loses nothing")
		after := crash(0.5)
		require.Equal(rt, after, crash(0.5), "the same seed, the same crash")
		for _, folder := range folders {
			for _, base := range []string{"x", "y"} {
				name := folder + "/" + base
				require.Contains(rt, append(slices.Clone(changed[name]), synced[name]), after[name], "%s after %v", name, changed[name])
			}
		}
		for name, data := range synced {
			if data != "" && len(changed[name]) == 0 {
				require.Equal(rt, data, after[name], "%s was durable", name)
			}
		}
	})
}

// up reports whether syncing folder, and the folders above it, syncs the entry name.
func up(name, folder string) bool {
	dir := name[:len(name)-2]
	return folder == dir || len(folder) > len(dir) && folder[:len(dir)+1] == dir+"/"
}

func BenchmarkSnapshotRestore(b *testing.B) {
	store := mem.New(mem.Options{})
	for i := range 20 {
		require.NoError(b, put(b, store, fmt.Sprintf("job/chk-%010d/_manifest.json", i), "manifest", true))
	}
	snap := store.Snapshot()
	for b.Loop() {
		require.NoError(b, put(b, store, "job/chk-0000000020/_manifest.json", "manifest", true))
		_ = store.Snapshot().Fingerprint()
		store.Restore(snap)
	}
}
