package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/spillway-io/spillway"

// A rule says what one package, or with "/..." all packages below a folder,
// may import directly. The most exact rule holds. Every package needs one.
type rule struct {
	pkg     string   // relative to the module; "." is the façade
	ours    []string // packages of ours, or "dir/..."
	theirs  []string // others' packages and what is below them; golang.org/x is free
	program bool     // a command, a benchmark, an example or a test kit: it may import any others'
}

// below is what stands on the formats and the stores.
var below = []string{"inflight", "format", "backends"}

// public is what a program of somebody else's could import.
var public = []string{".", "inflight", "format", "backends", "backends/...", "sharing", "writer", "catalog", "reader", "restore", "inspect", "flink", "enginetest"}

var rules = []rule{
	{pkg: ".", ours: slices.DeleteFunc(slices.Clone(public), func(p string) bool { return p == "." })},
	{pkg: "inflight"},
	{pkg: "format", ours: []string{"inflight"}, theirs: []string{"github.com/klauspost/compress", "github.com/minio/crc64nvme"}},
	{pkg: "backends", ours: []string{"inflight"}},
	{pkg: "backends/...", ours: []string{"inflight", "backends"}},
	{pkg: "backends/s3", ours: []string{"inflight", "backends"}, theirs: []string{"github.com/minio/minio-go"}},
	{pkg: "backends/hdfs", ours: []string{"inflight", "backends"}, theirs: []string{"github.com/colinmarc/hdfs", "github.com/jcmturner/gokrb5"}},
	{pkg: "backends/all", ours: []string{"backends/local", "backends/mem", "backends/s3", "backends/hdfs"}},
	{pkg: "sharing", ours: below},
	{pkg: "writer", ours: append([]string{"sharing"}, below...)},
	{pkg: "catalog", ours: below},
	{pkg: "reader", ours: below},
	{pkg: "restore", ours: append([]string{"reader"}, below...)},
	{pkg: "flink", ours: append([]string{"reader"}, below...)},
	{pkg: "inspect", ours: append([]string{"flink", "catalog", "restore", "reader", "backends/backendtest"}, below...)},
	{pkg: "dataflow", ours: []string{"inflight"}},
	{pkg: "internal/attach", ours: append([]string{"dataflow", "sharing", "writer", "reader", "restore", "catalog"}, below...)},
	{pkg: "internal/config", ours: append([]string{"dataflow", "writer", "catalog", "restore", "internal/trigger"}, below...), theirs: []string{"github.com/goccy/go-yaml"}},
	{pkg: "internal/trigger", ours: []string{"dataflow", "backends"}, theirs: []string{"github.com/dustin/go-humanize"}},
	{pkg: "internal/interrupt"},
	{pkg: "internal/lint"},
	{pkg: "internal/statetest", ours: below, program: true},
	{pkg: "internal/flinktest", program: true},
	{pkg: "enginetest", ours: public, program: true},
	{pkg: "cmd/ckpt-inspect", ours: append([]string{"internal/interrupt"}, public...), program: true},
	{pkg: "cmd/ckpt-run", ours: append([]string{"cmd/ckpt-run/doctor", "cmd/ckpt-run/monitor", "dataflow", "internal/attach", "internal/config", "internal/interrupt", "internal/trigger"}, public...), program: true},
	{pkg: "cmd/ckpt-run/doctor", ours: append([]string{"backends/local"}, below...), program: true},
	{pkg: "cmd/ckpt-run/monitor", ours: append([]string{"dataflow"}, public...), program: true},
	{pkg: "bench", ours: append([]string{"bench/...", "dataflow", "internal/attach"}, public...), program: true},
	{pkg: "bench/...", ours: []string{"bench/..."}, program: true},
	{pkg: "examples/...", ours: public, program: true},
}

// forbidden are the arrows that must not exist over any number of steps.
var forbidden = []struct{ from, to string }{
	{"format", "backends"},
	{"writer", "reader"},
	{"restore", "writer"},
	{"dataflow", "writer"},
	{"dataflow", "restore"},
	{"dataflow", "catalog"},
}

// programsOnly is what no library package may reach over any number of steps.
var programsOnly = []string{
	module + "/cmd", module + "/bench", module + "/examples", module + "/dataflow",
	"github.com/prometheus", "github.com/spf13/cobra", "github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak",
}

// graph maps a package to what it imports, tests left aside.
type graph map[string][]string

func TestImports(t *testing.T) {
	g := load(t)
	require.Contains(t, g, module+"/inflight")
	for _, v := range violations(g) {
		t.Error(v)
	}
}

// load asks go for the packages of the module and all that they need.
func load(t *testing.T) graph {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,Standard", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	g := graph{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return g
		}
		require.NoError(t, err)
		if !p.Standard {
			g[p.ImportPath] = p.Imports
		}
	}
}

// violations checks g against the rules and returns a line for each breach.
func violations(g graph) (bad []string) {
	for pkg, imports := range g {
		name, mine := ours(pkg)
		if !mine {
			continue
		}
		r := ruleFor(name)
		if r == nil {
			bad = append(bad, fmt.Sprintf("%s has no rule: say in internal/lint what it may import", name))
			continue
		}
		for _, imp := range imports {
			if !r.allows(name, imp) {
				bad = append(bad, fmt.Sprintf("%s imports %s", name, imp))
			}
		}
		bad = append(bad, farViolations(g, pkg, r)...)
	}
	slices.Sort(bad)
	return bad
}

// farViolations checks what pkg reaches over any number of steps.
func farViolations(g graph, pkg string, r *rule) (bad []string) {
	name, _ := ours(pkg)
	for reached, via := range reach(g, pkg) {
		for _, f := range forbidden {
			if under(name, f.from) && under(reached, module+"/"+f.to) {
				bad = append(bad, fmt.Sprintf("%s reaches %s: %s", name, f.to, via))
			}
		}
		if r.program || strings.HasPrefix(name, "internal/") || under(name, "dataflow") {
			continue
		}
		for _, p := range programsOnly {
			if under(reached, p) {
				bad = append(bad, fmt.Sprintf("library %s reaches %s: %s", name, p, via))
			}
		}
	}
	return bad
}

// ours tells whether pkg is of this module, and its name within it.
func ours(pkg string) (string, bool) {
	if pkg == module {
		return ".", true
	}
	return strings.CutPrefix(pkg, module+"/")
}

func under(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// ruleFor returns the most exact rule for the package, or nil.
func ruleFor(name string) (best *rule) {
	for i := range rules {
		r := &rules[i]
		if r.pkg == name {
			return r
		}
		if matches(r.pkg, name) && (best == nil || len(r.pkg) > len(best.pkg)) {
			best = r
		}
	}
	return best
}

// matches reports whether pattern, a package or "dir/...", covers name.
func matches(pattern, name string) bool {
	if dir, all := strings.CutSuffix(pattern, "/..."); all {
		return strings.HasPrefix(name, dir+"/")
	}
	return pattern == name
}

// allows reports whether the package name, to which r applies, may import imp.
// A package's own internal folder is part of it.
func (r *rule) allows(name, imp string) bool {
	if target, mine := ours(imp); mine {
		return strings.HasPrefix(target, name+"/internal/") ||
			slices.ContainsFunc(r.ours, func(p string) bool { return matches(p, target) })
	}
	first, _, _ := strings.Cut(imp, "/")
	return r.program || !strings.Contains(first, ".") || under(imp, "golang.org/x") ||
		slices.ContainsFunc(r.theirs, func(p string) bool { return under(imp, p) })
}

// reach returns every package that pkg needs, with a path that leads there.
func reach(g graph, pkg string) map[string]string {
	via := map[string]string{}
	queue := []string{pkg}
	path := map[string]string{pkg: pkg}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, imp := range g[at] {
			if _, seen := path[imp]; !seen {
				path[imp] = path[at] + " → " + imp
				via[imp] = path[imp]
				queue = append(queue, imp)
			}
		}
	}
	return via
}

// TestViolations shows that the checker finds what it is there for.
func TestViolations(t *testing.T) {
	m := func(names ...string) []string {
		for i, n := range names {
			names[i] = module + "/" + n
		}
		return names
	}
	for _, tc := range []struct {
		name string
		g    graph
		want []string
	}{
		{"as drawn", graph{
			module + "/writer": m("sharing", "inflight"), module + "/sharing": append(m("format", "backends"), "io", "golang.org/x/sync/errgroup"),
			module + "/format":           append(m("inflight"), "github.com/klauspost/compress/zstd"),
			module + "/cmd/ckpt-inspect": append(m("inspect"), "github.com/spf13/cobra"), module + "/inspect": m("restore"), module + "/restore": m("reader"),
		}, nil},
		{"format must not know stores", graph{module + "/format": m("backends")},
			[]string{"format imports " + module + "/backends", "format reaches backends: " + module + "/format → " + module + "/backends"}},
		{"over two steps", graph{module + "/writer": m("sharing"), module + "/sharing": m("reader")},
			[]string{"sharing imports " + module + "/reader",
				"writer reaches reader: " + module + "/writer → " + module + "/sharing → " + module + "/reader"}},
		{"a command's library in a library", graph{module + "/catalog": {"github.com/spf13/cobra"}},
			[]string{"catalog imports github.com/spf13/cobra", "library catalog reaches github.com/spf13/cobra: " + module + "/catalog → github.com/spf13/cobra"}},
		{"over somebody else's package", graph{module + "/backends/s3": {"github.com/minio/minio-go/v7"}, "github.com/minio/minio-go/v7": {"github.com/prometheus/client_golang"}},
			[]string{"library backends/s3 reaches github.com/prometheus: " + module + "/backends/s3 → github.com/minio/minio-go/v7 → github.com/prometheus/client_golang"}},
		{"a driver's library elsewhere", graph{module + "/backends/local": {"github.com/minio/minio-go/v7"}},
			[]string{"backends/local imports github.com/minio/minio-go/v7"}},
		{"an example uses what is public", graph{module + "/examples/lines": append(m("writer", "internal/attach"), "example.org/x")},
			[]string{"examples/lines imports " + module + "/internal/attach"}},
		{"the vocabulary imports nothing of ours", graph{module + "/inflight": m("format")},
			[]string{"inflight imports " + module + "/format"}},
		{"its own internal folder", graph{module + "/writer": m("writer/internal/ring"), module + "/reader": m("writer/internal/ring")},
			[]string{"reader imports " + module + "/writer/internal/ring"}},
		{"unknown", graph{module + "/utils": nil}, []string{"utils has no rule: say in internal/lint what it may import"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, violations(tc.g))
		})
	}
}
