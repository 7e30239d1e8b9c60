// Package need says what a test needs of the machine. Where that is missing the
// test is left out and counted; under CI=true it fails.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Java is a JDK, and Maven under the name that MVN gives it, to run what.
func Java(t testing.TB, what string) {
	t.Helper()
	maven, _, _ := strings.Cut(os.Getenv("MVN")+" ", " ")
	if maven == "" {
		maven = "mvn"
	}
	Tool(t, what, "a JDK of version 17 or later (Debian: apt-get install openjdk-17-jdk-headless)", "javac")
	Tool(t, what, "Maven (Debian: apt-get install maven), or set MVN", maven)
}

// Tool is one of several programs, to run what; it returns its path.
func Tool(t testing.TB, what, mend string, names ...string) (path string) {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Or(t, fmt.Errorf("%s cannot be run without %s: install %s", what, strings.Join(names, " or "), mend))
	return ""
}

// Or is for what has been tried, and could not be had.
func Or(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}
