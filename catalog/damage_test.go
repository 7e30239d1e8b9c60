package catalog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// damages are what can happen to the bytes of an entry.
var damages = map[string]struct {
	change func(p []byte) []byte
	is     error
}{
	"flipped":       {func(p []byte) []byte { q := bytes.Clone(p); q[len(q)/2] ^= 4; return q }, inflight.ErrCorrupt},
	"cut":           {func(p []byte) []byte { return p[:len(p)/2] }, inflight.ErrTorn},
	"empty":         {func([]byte) []byte { return nil }, inflight.ErrEmpty},
	"zeroed":        {func(p []byte) []byte { return make([]byte, len(p)) }, inflight.ErrCorrupt},
	"foreign":       {func([]byte) []byte { return []byte("<html>404</html>") }, inflight.ErrForeign},
	"of another":    {func([]byte) []byte { return encoded(99) }, inflight.ErrForeign},
	"newer version": {newer, inflight.ErrUnknownVersion},
	"appended":      {func(p []byte) []byte { return append(bytes.Clone(p), "x"...) }, inflight.ErrCorrupt},
}

func encoded(id inflight.CheckpointID) []byte {
	p, err := format.EncodeManifest(&format.Manifest{Kind: format.KindClaim, Job: "job", ID: id, Epoch: inflight.Epoch(id), Attempt: "x"})
	if err != nil {
		panic(err)
	}
	return p
}

func newer(p []byte) []byte {
	s := strings.Replace(string(p), `"version":1`, `"version":2`, 1)
	s = s[:len(s)-len("xxxxxxxx\"}\n")]
	return fmt.Appendf(nil, "%s%08x\"}\n", s, format.Checksum([]byte(s)))
}

// history is a job whose tip is checkpoint 4, which keeps 2 and 3; 2 is a
// savepoint.
func history(t *testing.T) (*memory, *Log) {
	m := newMemory()
	l := openLog(t, m, Options{Retained: 2})
	c := start(t, l, StartOptions{})
	commit(t, m, c)
	commit(t, m, c, func(f *format.Manifest) { f.Savepoint = true })
	commit(t, m, c)
	commit(t, m, c)
	require.NoError(t, c.Retire(t.Context()))
	return m, l
}

func (m *memory) damage(id inflight.CheckpointID, change func([]byte) []byte) {
	name := entryName(int(id))
	m.objects[name] = change(m.objects[name])
}

func TestDamagedTip(t *testing.T) {
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			m, l := history(t)
			m.damage(4, d.change)
			before := m.names()

			_, err := l.Latest(t.Context())
			require.ErrorIs(t, err, inflight.ErrDamaged)
			require.ErrorIs(t, err, d.is)
			require.ErrorContains(t, err, "the next one to go back to is 3")
			_, err = l.Load(t.Context(), 4)
			require.ErrorIs(t, err, inflight.ErrDamaged)
			slots, err := l.List(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"2 savepoint completed", "3 checkpoint completed", "4  damaged"}, kinds(slots))
			require.Equal(t, CodeSlotDamaged, slots[2].Findings[0].Code)

			for _, o := range []GCOptions{{}, {Fence: true}, {DryRun: true}} {
				p, err := l.GC(t.Context(), o)
				require.ErrorIs(t, err, inflight.ErrDamaged)
				if p != nil {
					require.Error(t, p.Damage)
					require.Contains(t, p.String(), "nothing is deleted")
				}
			}
			_, err = l.Start(t.Context(), StartOptions{})
			require.ErrorIs(t, err, inflight.ErrDamaged)
			_, err = l.Start(t.Context(), StartOptions{Base: BaseFresh})
			require.ErrorIs(t, err, inflight.ErrDamaged)
			_, err = l.Start(t.Context(), StartOptions{Base: BaseID, ID: 4})
			require.ErrorIs(t, err, inflight.ErrDamaged)
			require.Equal(t, before, m.names(), "nothing was deleted or created")

			c := start(t, l, StartOptions{AllowOlder: true})
			require.EqualValues(t, 3, c.Base().Manifest.ID)
			require.Equal(t, []inflight.CheckpointID{4}, c.claim.PassedOver)
			require.Equal(t, []inflight.CheckpointID{2, 3}, c.claim.Keep)
			require.Equal(t, []inflight.CheckpointID{2}, c.claim.Savepoints)
			latest, err := l.Latest(t.Context())
			require.NoError(t, err, "it works again by itself")
			require.EqualValues(t, 3, latest.Manifest.ID)
			require.NoError(t, c.Retire(t.Context()))
			require.NotContains(t, m.names(), entryName(4))
			whole(t, m)
		})
	}
}

func TestDamagedOthers(t *testing.T) {
	flip := damages["flipped"].change
	t.Run("the coordinator's own tip", func(t *testing.T) {
		m := newMemory()
		l := openLog(t, m, Options{})
		c := start(t, l, StartOptions{})
		commit(t, m, c)
		commit(t, m, c)
		m.damage(2, flip)
		before := m.names()
		require.ErrorIs(t, c.Retire(t.Context()), inflight.ErrDamaged)
		require.Equal(t, before, m.names(), "the predecessor stays while the new one is not readable")
	})
	t.Run("a kept one", func(t *testing.T) {
		m, l := history(t)
		m.damage(2, flip)
		m.objects["job/chk-0000000001/g9-dead.cstate"] = []byte("garbage")
		p, err := l.GC(t.Context(), GCOptions{})
		require.ErrorIs(t, err, inflight.ErrDamaged)
		n, _ := p.Garbage()
		require.Zero(t, n)
		require.NotEmpty(t, p.Items)
		require.Contains(t, m.names(), "job/chk-0000000001/g9-dead.cstate")
		c := start(t, l, StartOptions{}) // the tip itself is whole
		require.EqualValues(t, 4, c.Base().Manifest.ID)
		// Releasing the savepoint ends the stand-off.
		_, err = l.GC(t.Context(), GCOptions{Fence: true, Release: []inflight.CheckpointID{2}})
		require.NoError(t, err)
		require.NotContains(t, m.names(), "job/chk-0000000001/g9-dead.cstate")
		whole(t, m)
	})
	t.Run("a kept one is missing", func(t *testing.T) {
		m, l := history(t)
		delete(m.objects, entryName(3))
		_, err := l.GC(t.Context(), GCOptions{})
		require.ErrorIs(t, err, inflight.ErrDamaged)
		require.ErrorIs(t, err, inflight.ErrNotExist)
	})
	t.Run("the base of the newest claim", func(t *testing.T) {
		m, l := history(t)
		start(t, l, StartOptions{})
		m.damage(4, flip)
		_, err := l.Latest(t.Context())
		require.ErrorIs(t, err, inflight.ErrDamaged)
		require.ErrorContains(t, err, "go back to is 3")
		c := start(t, l, StartOptions{AllowOlder: true})
		require.EqualValues(t, 3, c.Base().Manifest.ID)
		require.Equal(t, []inflight.CheckpointID{2, 3}, c.claim.Keep)
		whole(t, m)
	})
	t.Run("the base of the newest claim is missing", func(t *testing.T) {
		m, l := history(t)
		start(t, l, StartOptions{})
		delete(m.objects, entryName(4))
		_, err := l.Latest(t.Context())
		require.ErrorIs(t, err, inflight.ErrDamaged)
		require.EqualValues(t, 3, start(t, l, StartOptions{AllowOlder: true}).Base().Manifest.ID)
		whole(t, m)
	})
	t.Run("the newest claim", func(t *testing.T) {
		m, l := history(t)
		start(t, l, StartOptions{})
		m.damage(5, flip)
		_, err := l.Latest(t.Context())
		require.ErrorIs(t, err, inflight.ErrDamaged)
		c := start(t, l, StartOptions{AllowOlder: true})
		require.EqualValues(t, 4, c.Base().Manifest.ID)
		whole(t, m)
	})
	t.Run("an older one that lacks a file is no way back", func(t *testing.T) {
		m, l := history(t)
		latest, err := l.Load(t.Context(), 3)
		require.NoError(t, err)
		delete(m.objects, "job/"+latest.Manifest.Files[0].Name)
		m.damage(4, flip)
		_, err = l.Latest(t.Context())
		require.ErrorContains(t, err, "go back to is 2")
	})
	t.Run("all of them", func(t *testing.T) {
		m, l := history(t)
		for _, id := range []inflight.CheckpointID{2, 3, 4} {
			m.damage(id, flip)
		}
		_, err := l.Start(t.Context(), StartOptions{AllowOlder: true})
		require.ErrorIs(t, err, inflight.ErrDamaged)
		require.ErrorContains(t, err, "there is no older one (repair it, or start afresh)")
		c := start(t, l, StartOptions{Base: BaseFresh, AllowOlder: true})
		require.Nil(t, c.Base())
		commit(t, m, c)
		require.NoError(t, c.Retire(t.Context()))
		whole(t, m)
	})
	t.Run("the slot of a coordinator that sends again", func(t *testing.T) {
		m := newMemory()
		c := start(t, openLog(t, m, Options{}), StartOptions{})
		p, err := c.Begin()
		require.NoError(t, err)
		file := content(t, m, p)
		m.hook = func(o op) fault {
			if isFill(1)(o) {
				m.mu.Lock()
				m.objects[o.name] = flip(o.data)
				m.mu.Unlock()
				return fault{err: errLost, before: true}
			}
			return fault{}
		}
		require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrDamaged)
		_, err = c.Begin()
		require.ErrorIs(t, err, inflight.ErrDamaged, "it is over")
	})
}

// TestTransientDamage flips a bit on the way, once: it is read again.
func TestTransientDamage(t *testing.T) {
	m, l := history(t)
	name := entryName(4)
	good := m.objects[name]
	m.objects[name] = damages["flipped"].change(good)
	reads := 0
	m.hook = func(o op) fault {
		if o.kind == opRead && o.name == name {
			if reads++; reads == 2 {
				m.mu.Lock()
				m.objects[name] = good
				m.mu.Unlock()
			}
		}
		return fault{}
	}
	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, latest.Manifest.ID)
	require.Equal(t, 2, reads)
}

func TestGCPlan(t *testing.T) {
	m, l := history(t)
	c := start(t, l, StartOptions{}) // 5
	p, err := c.Begin()              // 6, aborted, with files left
	require.NoError(t, err)
	_, err = p.Abort(t.Context(), format.Cause{Kind: format.CauseFailed, Reason: "test"})
	require.NoError(t, err)
	commit(t, m, c) // 7 keeps 2, 4, and the base
	for name, data := range map[string]string{
		"chk-0000000001/g0-dead.cstate": "orphaned", "chk-0000000003/notes.txt": "unknown", "chk-0000000006/g0-left.cstate": "aborted",
		"chk-0000000007/_stats.json": "{}", "chk-0000000003/_stats.json": "{}", "chk-0000000008/g0-new.cstate": "pending", "chk-12/x": "unknown",
	} {
		m.objects["job/"+name] = []byte(data)
	}
	m.leftovers["job/chk-0000000007/g1-x.cstate"] = 9
	m.leftovers["job/chk-0000000009/g1-x.cstate"] = 8
	m.leftovers["job/elsewhere"] = 7
	plan, err := l.GC(t.Context(), GCOptions{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 7, *plan.Tip)
	require.EqualValues(t, 7, *plan.Top)
	require.Equal(t, []inflight.CheckpointID{2, 4}, plan.Keep)
	old := "x"
	for n := range m.objects {
		if a, ok := format.StateFileAttempt(n[strings.LastIndex(n, "/")+1:]); ok && strings.Contains(n, "0000000002/") {
			old = a
		}
	}
	var lines []string
	for _, i := range plan.Items {
		line := fmt.Sprintf("%s %s %d", i.Class, strings.NewReplacer("job/chk-00000000", "", old, "OLD", c.Attempt(), "NEW").Replace(i.Name), i.Size)
		if i.Delete {
			line = "- " + line
		}
		if strings.Contains(i.Name, "_manifest") {
			line = line[:strings.LastIndex(line, " ")]
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	require.Equal(t, []string{
		"- aborted 06/_manifest.json",
		"- aborted 06/g0-left.cstate 7",
		"- orphaned 01/g0-dead.cstate 8",
		"- retired 03/_manifest.json",
		"- retired 03/_stats.json 2",
		"- retired 03/g0-OLD.cstate 5",
		"- retired 05/_manifest.json",
		"- temporary 07/g1-x.cstate 9",
		"kept 02/_manifest.json",
		"kept 04/_manifest.json",
		"kept 07/_manifest.json",
		"kept 07/_stats.json 2",
		"pending 08/g0-new.cstate 7",
		"pending 09/g1-x.cstate 8",
		"referenced 02/g0-OLD.cstate 5",
		"referenced 04/g0-OLD.cstate 5",
		"referenced 07/g0-NEW.cstate 5",
		"unknown 03/notes.txt 7",
		"unknown job/chk-12/x 7",
		"unknown job/elsewhere 7",
	}, lines)
	n, size := plan.Garbage()
	require.Equal(t, 8, n)
	require.Greater(t, size, int64(100))
	require.Contains(t, plan.String(), "8 of 20 objects are garbage")

	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"1 checkpoint orphaned", "2 savepoint completed", "3 checkpoint completed", "4 checkpoint completed", "5 claim ",
		"6 checkpoint failed", "7 checkpoint completed", "8 checkpoint pending", "9 checkpoint pending"}, kinds(slots))
	require.Equal(t, []bool{false, true, false, true, false, false, true, false, false}, kept(slots))
	require.Len(t, slots[6].Leftovers, 1)
	require.False(t, slots[6].Modified.IsZero())
	require.Greater(t, slots[6].Size, slots[6].Manifest.FileBytes())

	fenced, err := l.GC(t.Context(), GCOptions{DryRun: true, Fence: true})
	require.NoError(t, err)
	for _, i := range fenced.Items {
		require.NotEqual(t, ClassPending, i.Class)
	}

	_, err = l.GC(t.Context(), GCOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"job/chk-0000000009/g1-x.cstate": 8, "job/elsewhere": 7}, m.leftovers)
	again, err := l.GC(t.Context(), GCOptions{DryRun: true})
	require.NoError(t, err)
	n, _ = again.Garbage()
	require.Zero(t, n)
	require.NoError(t, c.Retire(t.Context()))
	_, err = l.GC(t.Context(), GCOptions{Fence: true})
	require.NoError(t, err)
	require.NotContains(t, m.names(), "job/chk-0000000008/g0-new.cstate")
	require.Contains(t, m.names(), "job/chk-0000000003/notes.txt", "what is not ours is never deleted")
	// An upload above the claim is still nobody's: the next claim has it.
	require.Equal(t, map[string]int64{"job/chk-0000000009/g1-x.cstate": 8, "job/elsewhere": 7}, m.leftovers)
}

func kept(slots []Slot) (k []bool) {
	for _, s := range slots {
		k = append(k, s.Kept)
	}
	return k
}

func TestEmptyLog(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, slots)
	m.objects["job/chk-0000000003/g0-x.cstate"] = []byte("x")
	plan, err := l.GC(t.Context(), GCOptions{})
	require.NoError(t, err)
	require.Nil(t, plan.Tip)
	require.Equal(t, ClassPending, plan.Items[0].Class)
	_, err = l.Load(t.Context(), 3)
	require.ErrorIs(t, err, inflight.ErrNotExist)
	_, err = l.GC(t.Context(), GCOptions{Fence: true})
	require.NoError(t, err)
	require.Len(t, m.names(), 1, "the claim")
}

func TestFindingsAboutFiles(t *testing.T) {
	m, l := history(t)
	four, err := l.Load(t.Context(), 4)
	require.NoError(t, err)
	name := "job/" + four.Manifest.Files[0].Name
	m.objects[name] = []byte("other size")
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, format.CodeWrongSize, slots[2].Findings[0].Code)
	delete(m.objects, name)
	slots, err = l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, format.CodeMissingFile, slots[2].Findings[0].Code)
	_, err = l.Load(t.Context(), 5)
	require.ErrorIs(t, err, inflight.ErrNotExist)
	_, err = l.Start(t.Context(), StartOptions{})
	require.ErrorIs(t, err, inflight.ErrDamaged)
	require.ErrorContains(t, err, "is not there; the next one to go back to is 3 (")
	require.NotContains(t, m.names(), entryName(5), "no slot is claimed for what cannot be restored")
	start(t, l, StartOptions{AllowOlder: true})
	_, err = l.Load(t.Context(), 5)
	require.ErrorContains(t, err, "claim")
}

// TestLostFile keeps what is not kept any longer, while what is kept lacks a file.
func TestLostFile(t *testing.T) {
	for name, lose := range map[string]func(m *memory, name string){
		"gone":  func(m *memory, name string) { delete(m.objects, name) },
		"short": func(m *memory, name string) { m.objects[name] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			l := openLog(t, m, Options{})
			c := start(t, l, StartOptions{})
			commit(t, m, c)
			commit(t, m, c)
			two, err := l.Load(t.Context(), 2)
			require.NoError(t, err)
			file := "job/" + two.Manifest.Files[0].Name
			data := m.objects[file]
			lose(m, file)
			before := m.names()
			for _, o := range []GCOptions{{}, {Fence: true}, {DryRun: true}} {
				_, err := l.GC(t.Context(), o)
				require.ErrorIs(t, err, inflight.ErrDamaged)
				require.ErrorIs(t, err, inflight.ErrIncomplete)
				require.ErrorContains(t, err, two.Manifest.Files[0].Name)
			}
			require.ErrorIs(t, c.Retire(t.Context()), inflight.ErrDamaged)
			require.Equal(t, before, m.names())
			m.objects[file] = data
			require.NoError(t, c.Retire(t.Context()))
			whole(t, m)
		})
	}
}
