package format

import (
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/inflight"
)

// Names inside a job directory. They are part of the format: they must not be
// changed.
const (
	// ManifestName is the name of the entry of a slot in its directory.
	ManifestName = "_manifest.json"
	// ManifestInDir is the second form of ManifestName: a store that can only
	// rename directories exclusively writes the entry there. Readers accept
	// both.
	ManifestInDir = ManifestName + "/o"
	// StatsName is the name of the statistics of a checkpoint in its directory.
	StatsName = "_stats.json"
	// StateSuffix is the suffix of channel-state files.
	StateSuffix = ".cstate"

	dirPrefix = "chk-"
	dirDigits = 10 // padded, so that a listing in key order is ascending
)

// MaxCheckpointID is the largest id of a slot: an Epoch is an id too.
const MaxCheckpointID inflight.CheckpointID = math.MaxUint32

// CheckpointDir returns the directory of slot id, relative to the job:
// "chk-0000000007".
func CheckpointDir(id inflight.CheckpointID) string {
	digits := strconv.FormatUint(uint64(id), 10)
	return dirPrefix + "0000000000"[min(len(digits), dirDigits):] + digits
}

// ParseCheckpointDir is the inverse of CheckpointDir; nothing else is accepted.
func ParseCheckpointDir(dir string) (id inflight.CheckpointID, ok bool) {
	digits, ok := strings.CutPrefix(dir, dirPrefix)
	if !ok || len(digits) != dirDigits {
		return 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = 10*id + inflight.CheckpointID(c-'0')
	}
	return id, id <= MaxCheckpointID
}

// StateFileName returns the name of a channel-state file, relative to the job:
// "chk-0000000007/<group>-<attempt>.cstate". The group is any word that is
// unique within the attempt; the attempt is the coordinator's, so that nobody
// else ever writes a file of that name.
func StateFileName(id inflight.CheckpointID, group, attempt string) string {
	return CheckpointDir(id) + "/" + group + "-" + attempt + StateSuffix
}

// StateFileAttempt returns the attempt in the last part of the name of a
// channel-state file.
func StateFileAttempt(base string) (attempt string, ok bool) {
	stem, ok := strings.CutSuffix(base, StateSuffix)
	if !ok {
		return "", false
	}
	group, attempt, ok := cutLast(stem, '-')
	return attempt, ok && group != "" && attempt != ""
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// SplitFileName takes a name relative to the job, "chk-<id>/<name>", apart. It
// is the only grammar that a manifest may use: absolute names, "..", schemes,
// deeper paths and reserved names are refused.
func SplitFileName(name string) (id inflight.CheckpointID, base string, err error) {
	dir, base, found := strings.Cut(name, "/")
	id, ok := ParseCheckpointDir(dir)
	if !found || !ok || !plainName(base) {
		return 0, "", badManifest("file name %q is not chk-<id padded to %d digits>/<name>", name, dirDigits)
	}
	return id, base, nil
}

// plainName reports whether s is one part of a path, of the characters that
// every store takes, and not a reserved or hidden name.
func plainName(s string) bool {
	if s == "" || len(s) > 255 || s[0] == '.' || s[0] == '_' {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// Resolve returns where file name of the manifest lies on the backend, given
// the directory that the manifest was read from. The checkpoint's own files lie
// beside the manifest, whatever the name of that directory is; files of older
// checkpoints lie in its siblings.
func (m *Manifest) Resolve(dir, name string) string {
	own, base, found := strings.Cut(name, "/")
	if id, ok := ParseCheckpointDir(own); found && ok && id == m.ID {
		return path.Join(dir, base)
	}
	return path.Join(path.Dir(dir), name)
}
