package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	for _, tc := range []struct {
		name, in, leftOut string
		ci, good          bool
		want              []string // in this order
	}{
		{
			name: "pass", good: true, ci: true,
			in: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`,
			want: []string{"ok  \tp", "1 passed, 0 failed, 0 skipped\n"},
		},
		{
			name: "fail shows the test's output",
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: boom\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`,
			want: []string{"boom", "FAIL\tp", "1 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "a panic counts the tests that were running",
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}
`,
			want: []string{"panic: oh", "1 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "a package fails without a test of its own: a leak found after the tests, a build error",
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"ImportPath":"q","Action":"build-output","Output":"q/q.go:1: undefined: x\n"}
{"Action":"fail","Package":"q"}
{"Action":"run","Package":"r","Test":"TestA"}
{"Action":"pass","Package":"r","Test":"TestA"}
{"Action":"output","Package":"r","Output":"goleak: found\n"}
{"Action":"fail","Package":"r"}
`,
			want: []string{"undefined: x", "goleak", "1 passed, 3 failed, 0 skipped\n"},
		},
		{
			name: "skips are named, and are no error at a developer's desk", good: true, leftOut: "govulncheck: no database\n",
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: needs root: mounts a disk\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`,
			want: []string{"p TestB: needs root: mounts a disk\n", "govulncheck: no database\n", "1 passed, 0 failed, 2 skipped\n"},
		},
		{
			name: "a skip is an error in CI", ci: true,
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestB"}
`,
			want: []string{"p TestB: no reason given\n", "nothing may be left out", "1 passed, 0 failed, 1 skipped\n"},
		},
		{
			name: "nothing ran", in: "go: cannot find main module\n",
			want: []string{"cannot find main module", "no test passed", "0 passed, 0 failed, 0 skipped\n"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "left-out")
			if tc.leftOut != "" {
				if err := os.WriteFile(file, []byte(tc.leftOut), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			if err := s.readLeftOut(file); err != nil {
				t.Fatal(err)
			}
			if good := s.close(tc.ci); good != tc.good {
				t.Errorf("good = %v, want %v", good, tc.good)
			}
			rest := out.String()
			for _, w := range tc.want {
				_, after, ok := strings.Cut(rest, w)
				if !ok {
					t.Fatalf("%q is missing, or out of order, in:\n%s", w, out.String())
				}
				rest = after
			}
		})
	}
}
