package reader

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Salvage is what of a damaged file is provably whole, channel by channel.
type Salvage struct {
	Object   string
	Subtasks []SalvagedSubtask
}

// SalvagedSubtask is the part of one subtask.
type SalvagedSubtask struct {
	Task     inflight.Task
	Status   format.Status // 0: no mark was found, and nobody can tell what is missing at the end
	Channels []SalvagedChannel
}

// SalvagedChannel is the part of one address: what is kept and what is lost, in
// the order of its stream.
type SalvagedChannel struct {
	Address inflight.Address
	Kept    []SalvagedRange
	Lost    []SalvagedRange
}

// SalvagedRange is a piece of a stream.
type SalvagedRange struct {
	Pos   inflight.Pos // of its first byte; PosUnknown where the engine gave none
	Bytes uint64
	// Extents are where kept bytes lie.
	Extents []format.FoundExtent
}

// Whole reports whether nothing of c is lost.
func (c *SalvagedChannel) Whole() bool { return len(c.Lost) == 0 }

// Whole reports whether nothing of s is lost, as far as this file can tell.
func (s *SalvagedSubtask) Whole() bool {
	return s.Status != 0 && !slices.ContainsFunc(s.Channels, func(c SalvagedChannel) bool { return !c.Whole() })
}

// PlanSalvage says what can be kept of a scanned file. It is pure; nothing is
// written anywhere. Subtasks whose capture was aborted are left out: all of
// their bytes are dead.
func PlanSalvage(object string, sc *format.Scanned) Salvage {
	p := Salvage{Object: object}
	for _, m := range sc.Members {
		s := SalvagedSubtask{Task: m.Task}
		if m.Section != nil {
			s.Status = m.Section.Status
		}
		if s.Status == format.StatusAborted {
			continue
		}
		for i := range m.Found {
			s.Channels = append(s.Channels, salvageChannel(&m.Found[i]))
		}
		slices.SortFunc(s.Channels, func(a, b SalvagedChannel) int { return a.Address.Compare(b.Address) })
		p.Subtasks = append(p.Subtasks, s)
	}
	slices.SortFunc(p.Subtasks, func(a, b SalvagedSubtask) int { return a.Task.Compare(b.Task) })
	return p
}

func salvageChannel(e *format.FoundEntry) SalvagedChannel {
	c := SalvagedChannel{Address: e.Address}
	for i := range e.Missing {
		c.Lost = addRange(c.Lost, &e.Missing[i], false)
	}
	end := inflight.PosUnknown
	for i := range e.Extents {
		x := &e.Extents[i]
		// Without a section only the positions tell that a block is gone.
		if hole := x.Pos.Offset - end.Offset; end.Known() && x.Pos.Known() && hole != 0 && x.Flags&format.RunGap == 0 && !covered(e.Missing, end.Offset) {
			c.Lost = append(c.Lost, SalvagedRange{Pos: end, Bytes: hole})
		}
		c.Kept = addRange(c.Kept, x, true)
		end = x.Pos.Advance(uint64(x.Length), x.Buffers())
	}
	slices.SortStableFunc(c.Lost, func(a, b SalvagedRange) int { return cmp.Compare(a.Pos.Offset, b.Pos.Offset) })
	return c
}

// covered reports whether a missing extent begins at that place of the stream.
func covered(missing []format.FoundExtent, offset uint64) bool {
	return slices.ContainsFunc(missing, func(x format.FoundExtent) bool { return x.Pos.Known() && x.Pos.Offset == offset })
}

// addRange appends x, to the last range where it continues that.
func addRange(ranges []SalvagedRange, x *format.FoundExtent, kept bool) []SalvagedRange {
	k := len(ranges) - 1
	if k < 0 || !x.Pos.Known() || !ranges[k].Pos.Known() || ranges[k].Pos.Offset+ranges[k].Bytes != x.Pos.Offset {
		ranges = append(ranges, SalvagedRange{Pos: x.Pos})
		k++
	}
	ranges[k].Bytes += uint64(x.Length)
	if kept {
		ranges[k].Extents = append(ranges[k].Extents, *x)
	}
	return ranges
}

// String says what is lost, one line each, and what is kept.
func (p Salvage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n", p.Object)
	for i := range p.Subtasks {
		s := &p.Subtasks[i]
		mark := s.Status.String()
		if s.Status == 0 {
			mark = "no complete mark: more may be missing at the end"
		}
		fmt.Fprintf(&b, "  %s (%s)\n", s.Task, mark)
		for j := range s.Channels {
			c := &s.Channels[j]
			for _, r := range c.Kept {
				fmt.Fprintf(&b, "    %s kept\n", rangeText(r, c.Address))
			}
			for _, r := range c.Lost {
				fmt.Fprintf(&b, "    %s missing\n", rangeText(r, c.Address))
			}
		}
	}
	return b.String()
}

func rangeText(r SalvagedRange, a inflight.Address) string {
	if !r.Pos.Known() {
		return fmt.Sprintf("%d bytes of %s", r.Bytes, a)
	}
	return fmt.Sprintf("bytes %d–%d of %s", r.Pos.Offset, r.Pos.Offset+r.Bytes-1, a)
}
