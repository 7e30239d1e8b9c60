// Command testsum reads the output of go test -json, prints what a person
// wants to see of it, and closes with one line that counts:
//
//	N passed, N failed, N skipped
//
// Each test that skipped itself, and each step of the Makefile that was left
// out (-left-out FILE, one a line), is named with its reason. With CI=true
// anything left out is an error: a check that silently does not run is worse
// than none.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

func main() {
	leftOut := flag.String("left-out", "", "file that names the steps left out, one a line")
	flag.Parse()
	s := newSummary(os.Stdout)
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	if err := s.readLeftOut(*leftOut); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	if !s.close(os.Getenv("CI") == "true") {
		os.Exit(1)
	}
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail
	Test       string
	Output     string
}

type testKey struct{ pkg, test string }

// summary gathers the outcome of a run.
type summary struct {
	out            io.Writer
	output         map[testKey][]string // of tests that have not ended
	failedIn       map[string]bool      // packages with a failed test
	passed, failed int
	leftOut        []string
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, output: map[testKey][]string{}, failedIn: map[string]bool{}}
}

// read takes events until the end of r. Lines that are not JSON are printed:
// they are what go has to say before it runs a test.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				s.printf("%s", line)
			} else {
				s.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) add(e event) {
	k := testKey{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.printf("%s", e.Output)
	case "run":
		s.output[k] = nil
	case "output":
		s.output[k] = append(s.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(k, e.Action)
		}
		delete(s.output, k)
	}
}

func (s *summary) endTest(k testKey, action string) {
	switch action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		s.failedIn[k.pkg] = true
		s.printOutput(k)
	case "skip":
		s.leftOut = append(s.leftOut, fmt.Sprintf("%s %s: %s", k.pkg, k.test, reason(s.output[k])))
	}
}

// endPackage prints the package's closing lines. In a package that fails, the
// tests still running (a panic, a timeout) have failed; where no test did (it
// does not build, a leak was found after the tests), the package counts as one.
func (s *summary) endPackage(e event) {
	if e.Action == "fail" {
		for k := range s.output {
			if k.pkg == e.Package && k.test != "" {
				s.endTest(k, "fail")
				delete(s.output, k)
			}
		}
		if !s.failedIn[e.Package] {
			s.failed++
		}
		s.printOutput(testKey{pkg: e.Package})
		return
	}
	for _, line := range s.output[testKey{pkg: e.Package}] {
		if strings.HasPrefix(line, "ok") {
			s.printf("%s", line)
		}
	}
}

func (s *summary) printOutput(k testKey) {
	s.printf("%s", strings.Join(s.output[k], ""))
}

// printf writes to the output; a summary that cannot be shown has no reader to
// tell it to.
func (s *summary) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...)
}

// reason finds what a test said when it skipped itself: the last line of its
// output that is not go test's own, without the file and line before it.
func reason(output []string) string {
	why := "no reason given"
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok = strings.Cut(text, ": "); ok {
				line = text
			}
		}
		why = line
	}
	return why
}

// readLeftOut adds the steps that the Makefile left out. No file: none.
func (s *summary) readLeftOut(name string) error {
	if name == "" {
		return nil
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			s.leftOut = append(s.leftOut, line)
		}
	}
	return err
}

// close prints the closing lines and reports whether the run is good.
func (s *summary) close(ci bool) bool {
	if len(s.leftOut) > 0 {
		s.printf("\nleft out:\n")
		for _, l := range s.leftOut {
			s.printf("  %s\n", l)
		}
	}
	good := s.failed == 0
	switch {
	case s.passed == 0:
		s.printf("no test passed\n")
		good = false
	case ci && len(s.leftOut) > 0:
		s.printf("in CI nothing may be left out\n")
		good = false
	}
	s.printf("%d passed, %d failed, %d skipped\n", s.passed, s.failed, len(s.leftOut))
	return good
}
