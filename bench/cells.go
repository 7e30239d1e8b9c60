package main

import (
	"fmt"
	"time"

	"github.com/spillway-io/spillway/bench/payload"
)

// A cell is one row of a benchmark: S subtasks of one vertex, each with I input
// channels and O subpartitions, B buffers of Size bytes in every channel, and
// at most Max subtasks to a file.
type cell struct {
	Name    string       `json:"name"`
	FS      string       `json:"fs"`
	Payload payload.Kind `json:"payload"`
	S       int          `json:"S"`
	I       int          `json:"I"`
	O       int          `json:"O"`
	B       int          `json:"B"`
	Size    int          `json:"size"`
	Max     int          `json:"max"`
}

func (c cell) buffers() int { return c.S * (c.I + c.O) * c.B }
func (c cell) bytes() int   { return c.buffers() * c.Size }

// framed is the size of the same payload as Flink lays it down in one file: a
// version, and a length before each buffer. The plain baselines write as much,
// so that every implementation is measured against the same bytes.
func (c cell) framed() int { return c.bytes() + 4*c.buffers() + 4 }

// budget says how long a cell is warmed and measured.
type budget struct {
	warmRounds, rounds, minRounds int
	warm, limit                   time.Duration
}

// level is how thorough a run is: full, or quick, to see that all is well.
type level struct{ quick bool }

func (l level) warm() time.Duration {
	if l.quick {
		return 300 * time.Millisecond
	}
	return 1500 * time.Millisecond
}

func (l level) limit() time.Duration {
	if l.quick {
		return 700 * time.Millisecond
	}
	return 8 * time.Second
}

// pick returns quick or full.
func pick[T any](l level, quick, full T) T {
	if l.quick {
		return quick
	}
	return full
}

// one of the three shapes of a channel.
func shape(fs string, s, size, max int) cell {
	c := cell{FS: fs, Payload: payload.Random, S: s, I: 8, O: 8, Size: size, Max: max}
	var name string
	switch size {
	case 32768:
		c.B, name = 8, "32K"
	case 4096:
		c.B, name = 64, "4K"
	default:
		c.B, name = 128, "200B"
	}
	c.Name = fmt.Sprintf("S%d-%s-max%d", s, name, max)
	return c
}

// writerCells returns the cells of W for s subtasks. Cells that differ in Max
// only stand side by side: they share their payload.
func writerCells(l level, fs string, s int) (cells []cell) {
	sizes := []int{32768, 4096, 200}
	if l.quick && s != 8 {
		sizes = sizes[:1]
	}
	maxes := pick(l, []int{5}, []int{1, 5, 100})
	if s == 1 {
		maxes = []int{1}
	}
	for _, size := range sizes {
		for _, max := range maxes {
			cells = append(cells, shape(fs, s, size, max))
		}
	}
	if s == 8 && !l.quick {
		c := shape(fs, s, 32768, 5)
		c.Payload = payload.JSON
		c.Name += "-json"
		cells = append(cells, c)
	}
	return cells
}

func (l level) writerBudget(c cell) budget {
	b := budget{warmRounds: pick(l, 1, 3), minRounds: 3, warm: l.warm(), limit: l.limit()}
	switch {
	case c.S == 1:
		b.rounds = pick(l, 15, 100)
	case c.Payload == payload.JSON:
		b.warmRounds, b.rounds = 2, 15
	case c.S == 8:
		b.rounds = pick(l, 7, 25)
	default:
		b.rounds = pick(l, 3, 9)
	}
	return b
}

// latencyCells returns the small checkpoints of LAT.
func latencyCells(l level, fs string) []cell {
	small := func(name string, s, ch, b, size, max int) cell {
		return cell{Name: name, FS: fs, Payload: payload.Random, S: s, I: ch, O: ch, B: b, Size: size, Max: max}
	}
	cells := []cell{
		small("3.2KB-inline", 1, 8, 1, 200, 5),
		small("64KiB", 1, 1, 1, 32768, 5),
		small("256KiB", 1, 4, 1, 32768, 5),
		small("576KiB", 1, 9, 1, 32768, 5),
		small("600KB-200B", 1, 10, 150, 200, 5),
	}
	for _, max := range pick(l, []int{5}, []int{1, 5, 100}) {
		cells = append(cells, small(fmt.Sprintf("512KiB-S8-max%d", max), 8, 1, 1, 32768, max))
	}
	return cells
}

func (l level) latencyBudget() budget {
	return budget{warmRounds: pick(l, 10, 100), rounds: pick(l, 40, 200), minRounds: 20, limit: l.limit()}
}

// restoreCells returns the cells of R.
func restoreCells(l level, fs string) (cells []cell) {
	full := [][3]int{
		{1, 32768, 1}, {1, 4096, 1}, {1, 200, 1},
		{8, 32768, 5}, {8, 4096, 5}, {8, 200, 5}, {8, 32768, 100},
		{64, 32768, 5}, {64, 4096, 5}, {64, 200, 5}, {64, 32768, 100},
	}
	for _, x := range pick(l, [][3]int{{1, 32768, 1}, {8, 32768, 5}, {8, 200, 5}}, full) {
		cells = append(cells, shape(fs, x[0], x[1], x[2]))
	}
	return cells
}

func (l level) restoreBudget(c cell, cold bool) budget {
	if cold {
		return budget{warmRounds: 1, rounds: 5, minRounds: 3, warm: l.warm(), limit: l.limit()}
	}
	b := budget{warmRounds: pick(l, 2, 4), minRounds: 3, warm: l.warm(), limit: l.limit()}
	switch c.S {
	case 1:
		b.rounds = 60
	case 8:
		b.rounds = 15
	default:
		b.rounds = 7
	}
	if l.quick {
		b.rounds = min(b.rounds, 7)
	}
	return b
}

// cold reports whether R also reads the cell with the page cache emptied.
func (l level) cold(c cell) bool {
	return c.FS == "disk" && !l.quick && c.Size == 32768 && c.Max != 100
}

// memoryCells are the cells whose peak memory is looked at: 1 GiB through two
// files, and 64 files open at once.
func memoryCells(fs string) []cell {
	big := shape(fs, 8, 32768, 5)
	big.B, big.Name = 256, "1GiB-S8-32K-max5"
	return []cell{big, shape(fs, 64, 32768, 1)}
}
