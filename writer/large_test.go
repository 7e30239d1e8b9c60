package writer

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestMemoryStaysUnderTheBound paces 256 MiB of channel state through a bound of
// 16 MiB on a real directory; with SPILLWAY_CRASH set, 10 GiB through 256 MiB.
func TestMemoryStaysUnderTheBound(t *testing.T) {
	total, limit := int64(256<<20), int64(16<<20)
	if os.Getenv("SPILLWAY_CRASH") != "" {
		total, limit = 10<<30, 256<<20
	}
	const tasks, size, each = 4, 32 << 10, 8 // buffers of a call
	b := local.New(t.TempDir())
	p := newPool(t, Options{Backend: b, MaxBuffered: limit, TasksPerFile: 2, Memory: format.NewPool(format.DefaultPoolLimit)})
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most, heap atomic.Int64
	watch := func() {
		most.Store(max(most.Load(), p.Buffered()))
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		heap.Store(max(heap.Load(), int64(now.HeapInuse)-int64(before.HeapInuse)))
	}
	free := make(chan []byte, 64) // the engine's buffers: 2 MiB
	for range cap(free) {
		free <- make([]byte, size)
	}
	var wg sync.WaitGroup
	for i := range tasks {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		wg.Go(func() {
			c := start(t, w, 1)
			pos := inflight.Pos{}
			for n := int64(0); n < total/tasks; n += each * size {
				require.NoError(t, p.WaitRoom(t.Context(), tasks*each*size))
				for range each {
					require.NoError(t, c.Input(input(0), pos, &lent{<-free, free}))
					pos = pos.Advance(size, 1)
				}
				if n%(4<<20) == 0 {
					watch()
				}
			}
			finish(t, c)
			require.EqualValues(t, total/tasks, handle(t, c).InputBytes)
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), limit*11/10)
	require.LessOrEqual(t, heap.Load(), limit+64<<20, "memory of the process")
	require.Zero(t, p.Buffered())
}
