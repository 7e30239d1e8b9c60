package flink

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// rewriters make plans that keep what is there, and take no damage. "drop all"
// keeps all but channel state.
var rewriters = map[string]func(ctx context.Context, c *Checkpoint, o VerifyOptions) error{
	"compact": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanCompact(ctx, CompactOptions{Verify: o})
		return err
	},
	"drop": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanDrop(ctx, DropOptions{Verify: o})
		return err
	},
	"drop all": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanDrop(ctx, DropOptions{All: true, Verify: o})
		return err
	},
	"relocate": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanRelocate(ctx, RelocateOptions{Verify: o})
		return err
	},
	"relocate paths": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanRelocate(ctx, RelocateOptions{Paths: []Move{{From: "file:/flink", To: "file:/elsewhere"}}, Verify: o})
		return err
	},
	"convert": func(ctx context.Context, c *Checkpoint, o VerifyOptions) error {
		_, err := c.PlanToSpillway(ctx, ConvertOptions{Verify: o})
		return err
	},
}

// eachStore runs fn on a sealed checkpoint on disk, and on one in memory.
func eachStore(t *testing.T, name string, fn func(t *testing.T, b backends.Backend, dir string, moves []Move)) {
	for _, store := range []string{"disk", "mem"} {
		t.Run(store, func(t *testing.T) {
			root := flinktest.Unpack(t, name)
			var b backends.Backend = local.New(root)
			if store == "mem" {
				disk := b
				b = mem.New(mem.Options{})
				for info, err := range disk.List(t.Context(), "") {
					require.NoError(t, err)
					p, err := readAll(t.Context(), disk, info.Name, 1<<30)
					require.NoError(t, err)
					require.NoError(t, writeFile(t.Context(), b, info.Name, p))
				}
				require.NoError(t, disk.Close())
			}
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			moves := []Move{moveOf(name, root)}
			dir := flinktest.CheckpointDir(t, root)
			c := openOn(t, b, dir, moves)
			seal, _, err := c.Seal(t.Context(), SealOptions{State: true})
			require.NoError(t, err)
			require.NoError(t, seal.Write(t.Context(), b, SealName(dir)))
			for verb, plan := range rewriters {
				require.NoError(t, plan(t.Context(), c, VerifyOptions{}), verb)
			}
			fn(t, b, dir, moves)
		})
	}
}

func openOn(t *testing.T, b backends.Backend, dir string, moves []Move) *Checkpoint {
	c, err := Open(t.Context(), b, dir, OpenOptions{Moves: moves})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// change changes a file on b.
func change(t *testing.T, b backends.Backend, name string, fn func(p []byte) []byte) {
	p, err := readAll(t.Context(), b, name, 1<<30)
	require.NoError(t, err)
	require.NoError(t, b.Remove(t.Context(), name))
	require.NoError(t, writeFile(t.Context(), b, name, fn(p)))
}

// TestRewriteObeysSeal damages what only a seal can tell: what is written anew has
// no seal, and would be right for ever.
func TestRewriteObeysSeal(t *testing.T) {
	eachStore(t, "resume", func(t *testing.T, b backends.Backend, dir string, moves []Move) {
		c := openOn(t, b, dir, moves)
		x := requireRight(t, c).Index
		var hit Chunk
		for _, chunk := range x.Streams[0].Chunks {
			if chunk.Length > hit.Length {
				hit = chunk
			}
		}
		file := x.Streams[0].Handle.Path()
		change(t, b, path.Join(dir, file), func(p []byte) []byte { p[hit.end()-1] ^= 1; return p })
		c = openOn(t, b, dir, moves)
		r, err := c.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, err)
		require.Equal(t, "1 × error seal-chunk", codes(r.Findings))
		for verb, plan := range rewriters {
			require.NoError(t, plan(t.Context(), c, VerifyOptions{NoSeal: true}), verb)
			err := plan(t.Context(), c, VerifyOptions{})
			if verb == "drop all" {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, inflight.ErrDamaged, verb)
			require.ErrorContains(t, err, fmt.Sprintf("error seal-chunk %s at %d ", file, hit.Offset), verb)
			require.ErrorContains(t, err, "(salvage it first)", verb)
		}
		p, err := c.PlanSalvage(t.Context(), SalvageOptions{})
		require.NoError(t, err)
		for verb, plan := range rewriters {
			require.NoError(t, plan(t.Context(), execute(t, p), VerifyOptions{}), verb)
		}
	})
}

// TestRewriteObeysSealOfState damages what goes along with channel state.
func TestRewriteObeysSealOfState(t *testing.T) {
	eachStore(t, "stateful-heap", func(t *testing.T, b backends.Backend, dir string, moves []Move) {
		c := openOn(t, b, dir, moves)
		var hit StreamHandle
		require.NoError(t, c.eachStateFile(t.Context(), func(h StreamHandle, _ int64, _ uint32, _ error) {
			if h.Kind() == KindRelativeFile {
				hit = h
			}
		}))
		require.False(t, hit.IsNull())
		change(t, b, path.Join(dir, hit.Path()), func(p []byte) []byte { p[len(p)/2] ^= 1; return p })
		c = openOn(t, b, dir, moves)
		for verb, plan := range rewriters {
			require.NoError(t, plan(t.Context(), c, VerifyOptions{NoSeal: true}), verb)
			err := plan(t.Context(), c, VerifyOptions{})
			require.ErrorIs(t, err, inflight.ErrDamaged, verb)
			require.ErrorContains(t, err, "error seal-file "+hit.Path()+": not what was sealed", verb)
			require.ErrorContains(t, err, "(put it back as it was sealed, ", verb)
		}
		p, err := c.PlanSalvage(t.Context(), SalvageOptions{})
		require.NoError(t, err)
		require.Contains(t, codes(p.Notes), "1 × error seal-file")
	})
}

// TestRewriteObeysSealOfMetadata has other metadata than was sealed, and seals
// that are no good.
func TestRewriteObeysSealOfMetadata(t *testing.T) {
	eachStore(t, "resume", func(t *testing.T, b backends.Backend, dir string, moves []Move) {
		refused := func(text, mend string) {
			c := openOn(t, b, dir, moves)
			for verb, plan := range rewriters {
				err := plan(t.Context(), c, VerifyOptions{})
				require.ErrorIs(t, err, inflight.ErrDamaged, verb)
				require.ErrorContains(t, err, text, verb)
				require.ErrorContains(t, err, mend, verb)
			}
			p, err := c.PlanSalvage(t.Context(), SalvageOptions{})
			require.NoError(t, err)
			require.Contains(t, codes(p.Notes), strings.Fields(text)[1])
		}
		meta := path.Join(dir, MetadataName)
		change(t, b, meta, func(p []byte) []byte { return append(p, 'x') })
		refused("error seal-metadata "+meta+": not what was sealed", "move the seal away)")
		change(t, b, meta, func(p []byte) []byte { return p[:len(p)-1] })

		name := SealName(dir)
		change(t, b, name, func(p []byte) []byte { p[len(p)/2] ^= 1; return p })
		refused("error seal "+name+": its own checksum is wrong", "(put the seal back, or move it away")
		change(t, b, name, func(p []byte) []byte { return p[:len(p)/2] })
		refused("error seal "+name+": not all of it is there", "(put the seal back, or move it away")
		change(t, b, name, func([]byte) []byte { return []byte("something else") })
		refused("error seal "+name+": it is no seal", "(put the seal back, or move it away")
		other, _ := openFixture(t, "keyed-2x2")
		seal, _, err := other.Seal(t.Context(), SealOptions{})
		require.NoError(t, err)
		require.NoError(t, seal.Write(t.Context(), b, name))
		refused("error seal-metadata "+meta+": not what was sealed", "move the seal away)")
		require.NoError(t, b.Remove(t.Context(), name))
		for verb, plan := range rewriters {
			require.NoError(t, plan(t.Context(), openOn(t, b, dir, moves), VerifyOptions{}), verb)
			err := plan(t.Context(), openOn(t, b, dir, moves), VerifyOptions{Seal: seal})
			require.ErrorIs(t, err, inflight.ErrDamaged, verb)
		}
	})
}

// TestRelocateObeysSeal has damage that relocate looks for only where there is a
// seal, in files that it copies and in those that it does not.
func TestRelocateObeysSeal(t *testing.T) {
	for _, r := range recipes {
		if strings.HasPrefix(r.name, "meta") || r.name == "foreign-file" || r.name == "other-directory" {
			continue
		}
		c, root := openFixture(t, "resume")
		seal, _, err := c.Seal(t.Context(), SealOptions{})
		require.NoError(t, err)
		r.do(&sabotage{t: t, root: root, c: c, x: c.Index()})
		for _, verb := range []string{"relocate", "relocate paths"} {
			err = rewriters[verb](t.Context(), openDir(t, root, c.Dir), VerifyOptions{Seal: seal})
			require.ErrorIs(t, err, inflight.ErrDamaged, "%s, %s", r.name, verb)
			require.ErrorContains(t, err, c.Index().Streams[0].Handle.Path())
		}
	}
	c, _ := openMoved(t, "file-merging")
	seal, _, err := c.Seal(t.Context(), SealOptions{})
	require.NoError(t, err)
	f, err := c.Locate(t.Context(), c.Index().Streams[0].Handle)
	require.NoError(t, err)
	name := strings.TrimPrefix(f.Backend.URL(), "file://") + "/" + f.Name
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	o := VerifyOptions{Seal: seal}
	for _, damage := range [][]byte{append([]byte{1}, whole[1:]...), whole[:1]} {
		require.NoError(t, os.WriteFile(name, damage, 0o600))
		require.NoError(t, rewriters["relocate paths"](t.Context(), c, VerifyOptions{}))
		require.ErrorIs(t, rewriters["relocate paths"](t.Context(), c, o), inflight.ErrDamaged)
	}
	// Paths are changed too where what they lead to is not here.
	require.NoError(t, os.Remove(name))
	require.NoError(t, rewriters["relocate paths"](t.Context(), c, o))
}
