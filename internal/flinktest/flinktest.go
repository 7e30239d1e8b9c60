// Package flinktest unpacks the checkpoints of real Apache Flink that lie in
// testdata/flink, for tests.
package flinktest

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const suffix = ".tar.zst"

// Names returns the names of all fixtures, sorted.
func Names(t testing.TB) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder(t), "*"+suffix))
	if err != nil || len(found) == 0 {
		t.Fatalf("no fixtures in testdata/flink: %v", err)
	}
	for _, f := range found {
		names = append(names, strings.TrimSuffix(filepath.Base(f), suffix))
	}
	slices.Sort(names)
	return names
}

// Unpack unpacks fixture name below a temporary directory and returns its
// directory: what Flink knew as the checkpoint base.
func Unpack(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(folder(t), name+suffix))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := unpack(root, tar.NewReader(z)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return filepath.Join(root.Name(), name)
}

func unpack(root *os.Root, r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			if err := root.MkdirAll(strings.TrimSuffix(h.Name, "/"), 0o700); err != nil {
				return err
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := root.WriteFile(h.Name, content, 0o600); err != nil {
			return err
		}
	}
}

// Expected decodes the expected.json of the fixture in dir into v.
func Expected(t testing.TB, dir string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, filepath.Base(dir)+".expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// CheckpointDir returns the path of the checkpoint directory of the fixture in
// dir, relative to dir: "chk-2".
func CheckpointDir(t testing.TB, dir string) string {
	t.Helper()
	var e struct {
		Dir string `json:"checkpoint_dir"`
	}
	Expected(t, dir, &e)
	return e.Dir
}

// folder finds testdata/flink from the directory of the test.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		f := filepath.Join(dir, "testdata", "flink")
		if _, err := os.Stat(filepath.Join(f, "README.md")); err == nil {
			return f
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("testdata/flink not found")
		}
		dir = filepath.Dir(dir)
	}
}
