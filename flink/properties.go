package flink

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/inflight"
)

// nullProperties is the null object as a Java stream: Flink restores from a
// checkpoint with it.
var nullProperties = []byte{0xAC, 0xED, 0x00, 0x05, 0x70}

const (
	javaPackage     = "org.apache.flink.runtime.checkpoint."
	propertiesClass = javaPackage + "CheckpointProperties"
	propertiesSUID  = 2
	checkpointClass = javaPackage + "CheckpointType"
	savepointClass  = javaPackage + "SavepointType"
)

// knownSUIDs are the serialVersionUIDs that Flink 1.17 to 2.3 computes for its
// types of snapshots. Another value fails the whole file there.
var knownSUIDs = map[string]int64{
	checkpointClass: -0x2921B0FCFA51E2C6, // D6DE4F0305AE1D3A
	savepointClass:  -0x5F782CF75BA7EB48, // A087D308A45814B8
}

// Properties are the checkpoint properties at the end of _metadata, from version
// 4 on.
type Properties struct {
	// Null: there are none. Flink restores from it, and takes the snapshot for a
	// checkpoint.
	Null bool

	DiscardSubsumed, DiscardFinished, DiscardCancelled, DiscardFailed, DiscardSuspended bool
	Forced, Unclaimed                                                                   bool

	Savepoint bool
	Name      string // "Checkpoint", "Savepoint", …
	// Sharing is the strategy for sharing files, of a checkpoint.
	Sharing string
	// PostAction and Format are those of a savepoint.
	PostAction, Format string
	// SUID is the serialVersionUID of the type; it belongs to a release of Flink.
	SUID int64

	end int // of the object, in _metadata
}

// String returns what Flink prints.
func (p *Properties) String() string {
	if p.Null {
		return "null"
	}
	kind := fmt.Sprintf("CheckpointType{name='%s', sharingFilesStrategy=%s}", p.Name, p.Sharing)
	if p.Savepoint {
		kind = fmt.Sprintf("SavepointType{name='%s', postCheckpointAction=%s, formatType=%s}", p.Name, p.PostAction, p.Format)
	}
	return fmt.Sprintf("CheckpointProperties{forced=%t, checkpointType=%s, discardSubsumed=%t, discardFinished=%t, discardCancelled=%t, discardFailed=%t, discardSuspended=%t}",
		p.Forced, kind, p.DiscardSubsumed, p.DiscardFinished, p.DiscardCancelled, p.DiscardFailed, p.DiscardSuspended)
}

// KnownType reports whether the releases of Flink that are known here can read p.
func (p *Properties) KnownType() bool {
	class := checkpointClass
	if p.Savepoint {
		class = savepointClass
	}
	return p.Null || p.SUID == knownSUIDs[class]
}

// Properties reads the checkpoint properties; nil before version 4. Errors are
// *FormatError in an *inflight.Error.
func (m *Metadata) Properties() (*Properties, error) {
	if m.Version < 4 {
		return nil, nil
	}
	p, err := parseProperties(m.raw, m.tail)
	if err != nil {
		return nil, &inflight.Error{Op: "parse", Object: MetadataName, Err: err}
	}
	return p, nil
}

func parseProperties(b []byte, at int) (*Properties, *FormatError) {
	d := &javaDecoder{decoder: decoder{b: b, at: at, code: CodeProperties}}
	if uint32(d.i32(fieldProperties)) != javaHeader {
		d.fail(at, "no Java object stream")
	}
	v := d.object()
	if d.err != nil {
		return nil, d.err
	}
	p := &Properties{end: d.at}
	if v == nil {
		p.Null = true
		return p, nil
	}
	o, ok := v.(*javaObject)
	if !ok || o.class == nil || o.class.name != propertiesClass || o.class.suid != propertiesSUID {
		return nil, corrupt(CodeProperties, int64(at), "not the checkpoint properties")
	}
	if text := p.take(o); text != "" {
		return nil, corrupt(CodeProperties, int64(at), "%s", text)
	}
	return p, nil
}

// take fills p; it returns what is wrong.
func (p *Properties) take(o *javaObject) string {
	var missing []string
	for name, to := range map[string]*bool{
		"discardCancelled": &p.DiscardCancelled, "discardFailed": &p.DiscardFailed, "discardFinished": &p.DiscardFinished,
		"discardSubsumed": &p.DiscardSubsumed, "discardSuspended": &p.DiscardSuspended, "forced": &p.Forced, "unclaimed": &p.Unclaimed,
	} {
		v, ok := o.fields[name].(bool)
		if *to = v; !ok {
			missing = append(missing, name)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		return "without " + strings.Join(missing, ", ")
	}
	kind, ok := o.fields["checkpointType"].(*javaObject)
	if !ok || kind.class == nil {
		return "without a type of checkpoint"
	}
	constant := func(name string) string {
		e, _ := kind.fields[name].(javaEnum)
		return e.constant
	}
	p.Name, _ = kind.fields["name"].(string)
	p.SUID = kind.class.suid
	switch kind.class.name {
	case checkpointClass:
		p.Sharing = constant("sharingFilesStrategy")
	case savepointClass:
		p.Savepoint = true
		p.PostAction, p.Format = constant("postCheckpointAction"), constant("formatType")
	default:
		return fmt.Sprintf("unknown type of checkpoint: %.80q", kind.class.name)
	}
	return ""
}

// encode returns the bytes that Flink writes for p.
func (p *Properties) encode() []byte {
	if p.Null {
		return nullProperties
	}
	const slashed = "org/apache/flink/runtime/checkpoint/"
	e := &javaEncoder{b: []byte{0xAC, 0xED, 0x00, 0x05, tcObject}, handles: map[string]int{}, next: baseHandle}
	e.class(propertiesClass, propertiesSUID, scSerializable, []javaFieldOf{
		{name: "discardCancelled"}, {name: "discardFailed"}, {name: "discardFinished"}, {name: "discardSubsumed"}, {name: "discardSuspended"},
		{name: "forced"}, {name: "unclaimed"}, {"checkpointType", "L" + slashed + "SnapshotType;"},
	}, e.null)
	e.remember("") // the object
	for _, v := range []bool{p.DiscardCancelled, p.DiscardFailed, p.DiscardFinished, p.DiscardSubsumed, p.DiscardSuspended, p.Forced, p.Unclaimed} {
		e.b = append(e.b, 0)
		if v {
			e.b[len(e.b)-1] = 1
		}
	}
	e.b = append(e.b, tcObject)
	if p.Savepoint {
		e.class(savepointClass, p.SUID, scSerializable, []javaFieldOf{
			{"formatType", "Lorg/apache/flink/core/execution/SavepointFormatType;"}, {"name", "Ljava/lang/String;"},
			{"postCheckpointAction", "L" + slashed + "SavepointType$PostCheckpointAction;"},
		}, e.null)
		e.remember("")
		e.enum("org.apache.flink.core.execution.SavepointFormatType", p.Format)
		e.string(p.Name, "")
		e.enum(savepointClass+"$PostCheckpointAction", p.PostAction)
		return e.b
	}
	e.class(checkpointClass, p.SUID, scSerializable, []javaFieldOf{
		{"name", "Ljava/lang/String;"}, {"sharingFilesStrategy", "L" + slashed + "SnapshotType$SharingFilesStrategy;"},
	}, e.null)
	e.remember("")
	e.string(p.Name, "")
	e.enum(javaPackage+"SnapshotType$SharingFilesStrategy", p.Sharing)
	return e.b
}

// constants are the constants of Flink's enums in the properties.
var constants = map[string]bool{
	"FORWARD": true, "FORWARD_BACKWARD": true, "NO_SHARING": true,
	"NONE": true, "SUSPEND": true, "TERMINATE": true,
	"CANONICAL": true, "NATIVE": true,
}

// names are what Flink calls its types of snapshots.
var names = map[string]bool{
	"Checkpoint": true, "Full Checkpoint": true,
	"Savepoint": true, "Suspend Savepoint": true, "Terminate Savepoint": true,
}

// problem returns what is wrong with p, whose bytes are b; Flink fails on it if
// fatal.
func (p *Properties) problem(b []byte) (text string, fatal bool) {
	if p.Null {
		return "", false
	}
	for _, c := range []string{p.Sharing, p.PostAction, p.Format} {
		if c != "" && !constants[c] {
			return fmt.Sprintf("unknown constant %.80q", c), true
		}
	}
	switch {
	case !p.KnownType():
		return "written by a release of Flink whose type of snapshot differs: 1.17 to 2.3 refuse the whole file", true
	case !names[p.Name] || !bytes.Equal(b, p.encode()):
		return "not as Flink 1.17 to 2.3 write them", false
	}
	return "", false
}
