package doctor

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// find returns the check of that name.
func find(t *testing.T, checks []Check, name string) Check {
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	require.Fail(t, "no such check", "%s in %v", name, checks)
	return Check{}
}

func TestHealthy(t *testing.T) {
	dir := t.TempDir()
	b := local.New(dir)
	defer b.Close()
	for _, c := range Run(t.Context(), Options{Backend: b, MaxBuffered: 1, Network: 1, SpillDir: t.TempDir(), Files: 1}) {
		require.Equal(t, OK, c.State, c)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "it cleans up")
}

// odd is a store with something wrong.
type odd struct {
	backends.Backend
	caps   backends.Capabilities
	space  error
	offset time.Duration
}

func (o odd) Capabilities() backends.Capabilities { return o.caps }

func (o odd) Space(ctx context.Context) (backends.Space, error) {
	if o.space != nil {
		return backends.Space{}, o.space
	}
	return o.Backend.Space(ctx)
}

func (o odd) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	x, err := o.Backend.Create(ctx, name, opt)
	return oddObject{x, o.offset}, err
}

type oddObject struct {
	backends.Object
	offset time.Duration
}

func (o oddObject) Finish(ctx context.Context) (backends.Info, error) {
	i, err := o.Object.Finish(ctx)
	i.Modified = time.Now().Add(o.offset)
	return i, err
}

func TestAilments(t *testing.T) {
	b := mem.New(mem.Options{})
	all := backends.Capabilities{Exclusive: true, AtomicList: true}
	for _, row := range []struct {
		name  string
		o     Options
		check string
		state State
		text  string
	}{
		{"few files", Options{Backend: b, Files: math.MaxInt32}, "open files", Failed, "a checkpoint may need"},
		{"little memory", Options{Backend: b, MaxBuffered: 1 << 60}, "memory", Failed, "the buffers may take 1.0 EiB"},
		{"no spill directory", Options{Backend: b, SpillDir: filepath.Join(t.TempDir(), "gone")}, "spill directory", Failed, "no such file"},
		{"small spill directory", Options{Backend: b, SpillDir: t.TempDir(), MaxBuffered: 1 << 60}, "spill directory", Warning, "it has"},
		{"no exclusive creation", Options{Backend: odd{b, backends.Capabilities{AtomicList: true}, nil, 0}}, "promises", Failed, "two coordinators"},
		{"no order", Options{Backend: odd{b, backends.Capabilities{Exclusive: true}, nil, 0}}, "promises", Failed, "cannot list in order"},
		{"space unknown", Options{Backend: odd{b, all, inflight.ErrUnsupported, 0}}, "free space", OK, "cannot tell"},
		{"space fails", Options{Backend: odd{b, all, inflight.ErrUnavailable, 0}}, "free space", Failed, "unavailable"},
		{"clock", Options{Backend: odd{b, all, nil, time.Hour}}, "clock", Warning, "1h0m0s off"},
		{"read only", Options{Backend: wrap.ReadOnly(b)}, "store", Failed, "read-only"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := find(t, Run(t.Context(), row.o), row.check)
			require.Equal(t, row.state, c.State, c)
			require.Contains(t, c.Text, row.text)
			if c.State != OK && row.name != "space fails" {
				require.NotEmpty(t, c.Mend)
				require.NotContains(t, c.Text, c.Mend)
			}
		})
	}
}
