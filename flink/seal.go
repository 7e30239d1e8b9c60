package flink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"path"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// SealVersion is the version of seals that this package writes.
const SealVersion = 1

// maxSeal is the largest seal that is read, in bytes.
const maxSeal = 1 << 30

// sealFormat tells a seal from other JSON.
const sealFormat = "spillway-flink-seal"

// Seal holds checksums of a checkpoint, made right after it: of _metadata, of
// each chunk of channel state and, if wanted, of the other files. Inline state
// is part of _metadata. It is written beside the directory of the checkpoint;
// in it, Flink could not remove the directory.
type Seal struct {
	Format     string                `json:"format"`
	Version    int                   `json:"version"`
	Checkpoint inflight.CheckpointID `json:"checkpoint"`
	Metadata   SealedMetadata        `json:"metadata"`
	Streams    []SealedStream        `json:"streams,omitempty"`
	Files      []SealedFile          `json:"files,omitempty"`
}

// SealedMetadata is the checksum of _metadata.
type SealedMetadata struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// SealedStream holds the checksums of a channel-state file or segment.
type SealedStream struct {
	Stream string        `json:"stream"` // as the metadata names it
	Size   int64         `json:"size"`
	Rest   Checksum      `json:"rest"` // of what stands between the payloads
	Chunks []SealedChunk `json:"chunks"`
}

// SealedChunk is the checksum of a chunk's payload. In JSON it is a list.
type SealedChunk struct {
	Offset int64
	Length int32
	CRC    Checksum
}

// SealedFile is the checksum of a file or segment of other state.
type SealedFile struct {
	File string   `json:"file"`
	Size int64    `json:"size"`
	CRC  Checksum `json:"crc32c"`
}

// Checksum is a CRC-32C; in JSON it is eight hexadecimal digits.
type Checksum uint32

// MarshalText implements encoding.TextMarshaler.
func (c Checksum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%08x", uint32(c)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Checksum) UnmarshalText(b []byte) error {
	p, err := hex.DecodeString(string(b))
	if err != nil || len(p) != 4 {
		return fmt.Errorf("checksum %.20q: want 8 hexadecimal digits", b)
	}
	*c = Checksum(uint32(p[0])<<24 | uint32(p[1])<<16 | uint32(p[2])<<8 | uint32(p[3]))
	return nil
}

// MarshalJSON implements json.Marshaler.
func (c SealedChunk) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `[%d,%d,"%08x"]`, c.Offset, c.Length, uint32(c.CRC)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *SealedChunk) UnmarshalJSON(b []byte) error {
	list := []any{&c.Offset, &c.Length, &c.CRC}
	want := len(list)
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) != want {
		return fmt.Errorf("a chunk of %d values: want offset, length, checksum", len(list))
	}
	return nil
}

// The seal ends with its own checksum, as a manifest of ours does.
const (
	sealTail    = ",\"crc32c\":\"xxxxxxxx\"}\n"
	sealSumFrom = len(sealTail) - len("xxxxxxxx\"}\n")
)

// Encode returns the JSON of s.
func (s *Seal) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	b = append(b[:len(b)-1], sealTail[:sealSumFrom]...)
	return fmt.Appendf(b, "%08x\"}\n", crc32.Checksum(b, castagnoli)), nil
}

// DecodeSeal reads the JSON of a seal. ErrMismatch says that it is none.
func DecodeSeal(b []byte) (*Seal, error) {
	fail := func(format string, args ...any) (*Seal, error) {
		return nil, &inflight.Error{Op: "decode", Object: "seal", Err: corrupt(CodeSeal, -1, format, args...)}
	}
	if !bytes.HasPrefix(b, []byte(`{"format":"`+sealFormat+`"`)) {
		return nil, &inflight.Error{Op: "decode", Object: "seal", Err: &FormatError{Code: CodeSeal, Offset: -1, Text: "it is no seal", Err: inflight.ErrMismatch}}
	}
	n := len(b) - (len(sealTail) - sealSumFrom)
	if n < 0 || !bytes.HasSuffix(b[:n], []byte(sealTail[:sealSumFrom])) {
		return fail("not all of it is there")
	}
	if want := fmt.Sprintf("%08x\"}\n", crc32.Checksum(b[:n], castagnoli)); want != string(b[n:]) {
		return fail("its own checksum is wrong")
	}
	var s Seal
	if err := json.Unmarshal(b, &s); err != nil {
		return fail("%v", err)
	}
	if s.Version != SealVersion {
		return nil, &inflight.Error{Op: "decode", Object: "seal", Err: &FormatError{Code: CodeSeal, Offset: -1, Err: inflight.ErrUnknownVersion,
			Text: fmt.Sprintf("version %d; %d is known", s.Version, SealVersion)}}
	}
	return &s, nil
}

// SealName returns the name of the seal of the checkpoint directory dir:
// "chk-7.seal.json", beside it.
func SealName(dir string) string { return dir + ".seal.json" }

// SealOptions are the options of Checkpoint.Seal.
type SealOptions struct {
	// State: the files of keyed and operator state too.
	State bool
	// Damaged: a checkpoint with findings of severity error is sealed all the
	// same.
	Damaged bool
	Verify  VerifyOptions
}

// Seal makes the seal of c. It verifies c first and reads all channel state; a
// checkpoint that is damaged already is refused with ErrDamaged.
func (c *Checkpoint) Seal(ctx context.Context, o SealOptions) (*Seal, *Report, error) {
	o.Verify.NoSeal = true
	r, err := c.Verify(ctx, o.Verify)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range r.Findings {
		if f.Severity == inflight.SeverityError && !o.Damaged {
			return nil, r, c.damaged("seal", f, "salvage it first")
		}
	}
	x := c.Index()
	s := c.newScan(x, nil)
	s.sums = true
	if err := s.run(ctx); err != nil {
		return nil, r, err
	}
	sum := sha256.Sum256(c.raw)
	seal := &Seal{Format: sealFormat, Version: SealVersion, Checkpoint: c.CheckpointID,
		Metadata: SealedMetadata{Size: int64(len(c.raw)), SHA256: hex.EncodeToString(sum[:])}}
	for i := range x.Streams {
		st := &s.streams[i]
		if x.Streams[i].Handle.Kind() == KindByteStream || st.broken {
			continue
		}
		sealed := SealedStream{Stream: x.Streams[i].Handle.String(), Size: st.size, Rest: Checksum(st.rest)}
		for k, chunk := range x.Streams[i].Chunks {
			if chunk.Length >= 0 {
				sealed.Chunks = append(sealed.Chunks, SealedChunk{chunk.Offset, chunk.Length, Checksum(st.sums[k])})
			}
		}
		seal.Streams = append(seal.Streams, sealed)
	}
	if o.State {
		err = c.eachStateFile(ctx, func(h StreamHandle, size int64, sum uint32, err error) {
			if err == nil {
				seal.Files = append(seal.Files, SealedFile{h.String(), size, Checksum(sum)})
			}
		})
	}
	return seal, r, err
}

// eachStateFile reads each file and segment of keyed and operator state once.
func (c *Checkpoint) eachStateFile(ctx context.Context, fn func(h StreamHandle, size int64, sum uint32, err error)) error {
	seen := map[string]bool{}
	for i := range c.Operators {
		for j := range c.Operators[i].Subtasks {
			for h := range c.Operators[i].Subtasks[j].StateHandles() {
				for h.Kind() == KindKeyGroups {
					h = h.Inner()
				}
				if h.Path() == "" || seen[h.String()] {
					continue
				}
				seen[h.String()] = true
				size, sum, err := c.streamSum(ctx, h)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				fn(h, size, sum, err)
			}
		}
	}
	return nil
}

func (c *Checkpoint) streamSum(ctx context.Context, h StreamHandle) (size int64, sum uint32, err error) {
	r, err := c.openStream(ctx, h)
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	err = r.pieces(ctx, func(p []byte) error {
		sum = crc32.Update(sum, castagnoli, p)
		return nil
	})
	return r.size, sum, err
}

// Write writes s beside the checkpoint directory dir on b, in the place of one
// that is there.
func (s *Seal) Write(ctx context.Context, b backends.Backend, name string) error {
	p, err := s.Encode()
	if err != nil {
		return err
	}
	if err := b.Remove(ctx, name); err != nil {
		return err
	}
	return writeFile(ctx, b, name, p)
}

// sealOf returns the seal to compare with; nil: there is none.
func (v *verifier) sealOf(ctx context.Context, o VerifyOptions) (*Seal, error) {
	if o.Seal != nil || o.NoSeal {
		return o.Seal, nil
	}
	return v.seal(ctx)
}

// seal reads the seal beside the checkpoint; nil: there is none that is usable.
func (v *verifier) seal(ctx context.Context) (*Seal, error) {
	s, name, err := readSeal(ctx, v.c.places)
	if err == nil || ctx.Err() != nil || errors.Is(err, inflight.ErrNotExist) {
		return s, ctx.Err()
	}
	var bad *FormatError
	if errors.As(err, &bad) {
		v.findings = append(v.findings, bad.Finding(name))
		return nil, nil
	}
	v.findings = append(v.findings, inflight.Finding{Severity: inflight.SeverityWarning, Code: CodeSeal, Object: name, Offset: -1, Text: err.Error(), Err: err})
	return nil, nil
}

func readSeal(ctx context.Context, p *places) (*Seal, string, error) {
	base := path.Base(p.dir)
	if p.dir == "" {
		var err error
		if _, base, err = SplitURL(p.home.URL()); err != nil {
			return nil, "", inflight.ErrNotExist // a store without a directory above
		}
	}
	l, err := p.sibling(ctx, SealName(base))
	if err != nil {
		return nil, SealName(base), err
	}
	s, err := ReadSeal(ctx, l.backend, l.name)
	return s, l.name, err
}

// ReadSeal reads the seal of that name on b.
func ReadSeal(ctx context.Context, b backends.Backend, name string) (*Seal, error) {
	p, err := readAll(ctx, b, name, maxSeal)
	if err != nil {
		return nil, err
	}
	return DecodeSeal(p)
}

// sealOfDamaged says of metadata that cannot be read whether it was sealed.
func (r *Report) sealOfDamaged(ctx context.Context, b backends.Backend, dir string, o VerifyOptions) error {
	p := &places{home: b, dir: dir, open: o.OpenURL, opened: map[string]backends.Backend{}}
	if p.open == nil {
		p.open = backends.Open
	}
	if o.NoSeal {
		return nil
	}
	seal := o.Seal
	if seal == nil {
		var err error
		seal, _, err = readSeal(ctx, p)
		if err := errors.Join(err, p.close()); err != nil {
			return ctx.Err()
		}
	}
	raw, err := readAll(ctx, b, path.Join(dir, MetadataName), MaxMetadata)
	if err != nil {
		return ctx.Err()
	}
	r.Sealed = true
	if f := seal.metadata(raw, path.Join(dir, MetadataName)); f != nil {
		r.Findings = append(r.Findings, *f)
	}
	return nil
}

func (s *Seal) metadata(raw []byte, object string) *inflight.Finding {
	sum := sha256.Sum256(raw)
	if hex.EncodeToString(sum[:]) == s.Metadata.SHA256 {
		return nil
	}
	return &inflight.Finding{Severity: inflight.SeverityError, Code: CodeSealMetadata, Object: object, Offset: -1, Err: inflight.ErrCorrupt,
		Text: fmt.Sprintf("not what was sealed: %d bytes then, %d now", s.Metadata.Size, len(raw))}
}

// compare compares what was read with a seal.
func (v *verifier) compare(ctx context.Context, seal *Seal, s *scan) error {
	at := map[string]int{}
	for i := range v.x.Streams {
		at[v.x.Streams[i].Handle.String()] = i
	}
	for i := range seal.Streams {
		sealed := &seal.Streams[i]
		if k, ok := at[sealed.Stream]; ok {
			v.compareStream(sealed, k, s)
		} else {
			v.sealFinding(sealed.Stream, "it was sealed, and nothing refers to it now")
		}
	}
	return v.compareKept(ctx, seal)
}

// compareKept compares what is no channel state with a seal.
func (v *verifier) compareKept(ctx context.Context, seal *Seal) error {
	if f := seal.metadata(v.c.raw, v.meta); f != nil {
		v.findings = append(v.findings, *f)
	}
	files := map[string]SealedFile{}
	for _, f := range seal.Files {
		files[f.File] = f
	}
	if len(files) == 0 {
		return nil
	}
	return v.c.eachStateFile(ctx, func(h StreamHandle, size int64, sum uint32, err error) {
		f, ok := files[h.String()]
		if ok && err == nil && (f.Size != size || f.CRC != Checksum(sum)) {
			v.sealFinding(f.File, "not what was sealed: %d bytes then, %d now", f.Size, size)
		}
	})
}

func (v *verifier) sealFinding(object, format string, args ...any) {
	v.findings = append(v.findings, inflight.Finding{Severity: inflight.SeverityError, Code: CodeSealFile, Object: object, Offset: -1,
		Text: fmt.Sprintf(format, args...), Err: inflight.ErrCorrupt})
}

func (v *verifier) compareStream(sealed *SealedStream, k int, s *scan) {
	st := &s.streams[k]
	if st.broken {
		return // there is a finding for that
	}
	if st.size != sealed.Size || Checksum(st.rest) != sealed.Rest {
		v.sealFinding(sealed.Stream, "not what was sealed, between its chunks: %d bytes then, %d now", sealed.Size, st.size)
	}
	for i := range sealed.differ(v.x.Streams[k].Chunks, st.sums) {
		c := v.x.Streams[k].Chunks[i]
		v.findings = append(v.findings, v.x.channelError(CodeSealChunk, int(c.Channel), c.Offset, nil, "not the chunk that was sealed"))
	}
}

// differ yields the indexes of the chunks that can be read and are not what was
// sealed.
func (s *SealedStream) differ(chunks []Chunk, sums []uint32) iter.Seq[int] {
	return func(yield func(int) bool) {
		want := make(map[int64]SealedChunk, len(s.Chunks))
		for _, c := range s.Chunks {
			want[c.Offset] = c
		}
		for i, c := range chunks {
			w, ok := want[c.Offset]
			if c.Length >= 0 && (!ok || w.Length != c.Length || w.CRC != Checksum(sums[i])) && !yield(i) {
				return
			}
		}
	}
}
