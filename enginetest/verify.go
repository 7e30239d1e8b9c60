package enginetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// inspect looks into the newest checkpoint: it must be whole and right. One that
// a newer one takes the place of meanwhile is let go.
func (t *trial) inspect() {
	for {
		c := t.latest()
		if c == nil || t.flows[c.Manifest.ID] != nil {
			return
		}
		err := t.verify(c)
		if err == nil {
			return
		}
		if now := t.latest(); now == nil || now.Manifest.ID == c.Manifest.ID {
			t.fail("checkpoint %d: %w", c.Manifest.ID, err)
		}
	}
}

// verify verifies a checkpoint, and draws up its account.
func (t *trial) verify(c *catalog.Checkpoint) error {
	m := c.Manifest
	r := reader.Open(t.truth, t.job.Name, reader.Options{})
	defer r.Close()
	report, err := r.At(m, c.Dir).Verify(t.ctx, reader.VerifyOptions{Records: countable(m.Topology)})
	if err != nil {
		return err
	}
	for _, f := range report.Flows {
		if f.Verdict == reader.Violated {
			return fmt.Errorf("not conserved:\n%s", reader.Table(report.Flows))
		}
	}
	for _, f := range report.Findings {
		if f.Severity == inflight.SeverityError {
			return errors.New(f.String())
		}
	}
	if back := reader.Regressed(t.ancestor(m), report.Flows); len(back) > 0 {
		return fmt.Errorf("%s → %s: %s", back[0].From, back[0].To, back[0].Reason)
	}
	if err := t.suits(m); err != nil {
		return err
	}
	t.count(m, report.Flows)
	return nil
}

// ancestor returns the account of the checkpoint that m descends from: the one
// before it, or the base of its coordinator.
func (t *trial) ancestor(m *format.Manifest) []reader.Flow {
	for id := m.ID - 1; id > inflight.CheckpointID(m.Epoch); id-- {
		if t.flows[id] != nil {
			return t.flows[id]
		}
	}
	if m.Base == nil {
		return nil
	}
	return t.flows[*m.Base]
}

// lengthPrefixed begins the serializer of an edge whose records stand behind
// their length, as package inspect knows it.
const lengthPrefixed = "length-prefixed"

// countable reports whether all records can be told apart.
func countable(topology *format.Topology) bool {
	for _, e := range topology.Edges {
		if !strings.HasPrefix(e.Serializer, lengthPrefixed) {
			return false
		}
	}
	return len(topology.Edges) > 0
}

// suits checks that a checkpoint is of the kind that the job wants.
func (t *trial) suits(m *format.Manifest) error {
	switch bytes := m.PersistedBytes(); {
	case m.Mode != format.ExactlyOnce:
		return fmt.Errorf("its mode is %q, and not %q", m.Mode, format.ExactlyOnce)
	case t.job.Mode == Aligned && m.Alignment != format.Aligned:
		return fmt.Errorf("its alignment is %q in a job whose barriers are aligned", m.Alignment)
	case m.Alignment == format.Aligned && bytes > 0:
		return fmt.Errorf("it is aligned, and has %d bytes of data in flight", bytes)
	}
	return nil
}

func (t *trial) count(m *format.Manifest, flows []reader.Flow) {
	if flows == nil {
		flows = []reader.Flow{}
	}
	t.flows[m.ID] = flows
	t.tally.Captured += m.PersistedBytes()
	for _, f := range flows {
		if f.Verdict == reader.Proven {
			t.tally.Proven++
		} else {
			t.tally.NotProvable++
		}
	}
}
