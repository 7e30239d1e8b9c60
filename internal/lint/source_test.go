package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// TestSource reads every Go file of the module.
func TestSource(t *testing.T) {
	n := 0
	for _, name := range files(t) {
		if filepath.Ext(name) != ".go" {
			continue
		}
		n++
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		rel, err := filepath.Rel(root, name)
		require.NoError(t, err)
		for _, c := range checkSource(t, filepath.ToSlash(rel), src) {
			t.Error(c)
		}
	}
	require.Greater(t, n, 10)
}

// TestText reads every text file of the tree.
func TestText(t *testing.T) {
	for _, name := range files(t) {
		if strings.Contains(filepath.ToSlash(name), "internal/lint/") {
			continue // it has to name what it looks for
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, c := range checkText(name, string(text)) {
			t.Error(c)
		}
	}
}

// files lists the files of the tree that people write: no build output, no
// test data.
func files(t *testing.T) (names []string) {
	text := []string{".go", ".md", ".sh", ".yml", ".yaml", ".mod", ".java", ".py", ".xml", ""}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (slices.Contains([]string{"build", "bin", "testdata", "node_modules"}, d.Name()) ||
				strings.HasPrefix(d.Name(), ".") && d.Name() != "." && d.Name() != ".." && d.Name() != ".ci") {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && slices.Contains(text, filepath.Ext(path)) {
			names = append(names, path)
		}
		return nil
	}))
	return names
}

// checkSource returns a line for each exported name without a proper comment,
// and for each test that sleeps.
func checkSource(t *testing.T, name string, src []byte) []string {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	require.NoError(t, err)
	if strings.HasSuffix(name, "_test.go") {
		return sleeps(fset, f)
	}
	if f.Name.Name == "main" {
		return nil
	}
	return undocumented(fset, f)
}

// undocumented finds the exported names without a comment that begins with
// them. Constants and variables may share the comment of their group.
func undocumented(fset *token.FileSet, f *ast.File) (bad []string) {
	complain := func(id *ast.Ident, doc *ast.CommentGroup) {
		if id.IsExported() && !startsWith(doc, id.Name) {
			bad = append(bad, fmt.Sprintf("%s: exported %s needs a comment that begins with its name", fset.Position(id.Pos()), id.Name))
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type)) {
				complain(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					doc := s.Doc
					if doc == nil && len(d.Specs) == 1 {
						doc = d.Doc
					}
					complain(s.Name, doc)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						if d.Doc == nil && s.Doc == nil && s.Comment == nil {
							complain(id, nil)
						}
					}
				}
			}
		}
	}
	return bad
}

func startsWith(doc *ast.CommentGroup, name string) bool {
	if doc == nil {
		return false
	}
	text := doc.Text()
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	rest, ok := strings.CutPrefix(text, name)
	return ok && (rest == "" || !isNameByte(rest[0]))
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// receiver returns the type name of a method's receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// allowSleep is the comment, with a reason behind it, that lets a test sleep.
const allowSleep = "lint:sleep "

// sleeps finds the calls of time.Sleep outside of synctest.Test, where time is
// virtual. A line that says why it sleeps is let pass.
func sleeps(fset *token.FileSet, f *ast.File) (bad []string) {
	if !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { p, _ := strconv.Unquote(i.Path.Value); return p == "time" }) {
		return nil
	}
	allowed := map[int]bool{}
	for _, g := range f.Comments {
		for _, c := range g.List {
			if _, why, ok := strings.Cut(c.Text, allowSleep); ok && strings.TrimSpace(why) != "" {
				line := fset.Position(c.Pos()).Line
				allowed[line], allowed[line+1] = true, true
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isSelector(call.Fun, "synctest", "Test") {
			return false
		}
		if e, ok := n.(*ast.SelectorExpr); ok && isSelector(e, "time", "Sleep") {
			if pos := fset.Position(e.Pos()); !allowed[pos.Line] {
				bad = append(bad, fmt.Sprintf("%s: a test must not sleep to be right (use synctest, or say why: //%sREASON)", pos, allowSleep))
			}
		}
		return true
	})
	return bad
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// checkText finds what is left of unfinished work, and names of one machine.
func checkText(name, text string) (bad []string) {
	for i, line := range strings.Split(text, "\n") {
		for _, word := range []string{"TODO", "FIXME", "not implemented", "<<<<<<<", ">>>>>>>", "/root/", "/work/"} {
			if strings.Contains(line, word) {
				bad = append(bad, fmt.Sprintf("%s:%d: %q", name, i+1, word))
			}
		}
	}
	return bad
}

// TestCheckSource shows that the checks find what they are there for.
func TestCheckSource(t *testing.T) {
	for _, tc := range []struct {
		name, file, src string
		want            int
	}{
		{"all documented", "a.go", `package a
// F does.
func F() {}
// A T is.
type T struct{ X int }
// M is.
func (t *T) M() {}
// The kinds.
const ( A = 1; B = 2 )
var V = 1 // V is.
func g() {}
type u struct{}
func (u) Hidden() {}
`, 0},
		{"nothing documented", "a.go", `package a
func F() {}
type T struct{}
func (t T) M() {}
const A = 1
`, 4},
		{"the wrong name", "a.go", "package a\n// Format does.\nfunc F() {}\n", 1},
		{"a group's comment is no type's", "a.go", "package a\n// Types.\ntype (\n\tT int\n\tU int\n)\n", 2},
		{"a command", "a.go", "package main\nfunc F() {}\n", 0},
		{"sleeps", "a_test.go", "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", 1},
		{"says why", "a_test.go", "package a\nimport \"time\"\nfunc f() {\n\t//lint:sleep the kernel's clock has to move\n\ttime.Sleep(1)\n}\n", 0},
		{"says nothing", "a_test.go", "package a\nimport \"time\"\nfunc f() {\n\t//lint:sleep \n\ttime.Sleep(1)\n}\n", 1},
		{"in a bubble", "a_test.go", "package a\nimport (\"time\"; \"testing/synctest\")\nfunc f() { synctest.Test(nil, func() { time.Sleep(1) }) }\n", 0},
		{"as a value", "a_test.go", "package a\nimport \"time\"\nvar wait = time.Sleep\n", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Len(t, checkSource(t, tc.file, []byte(tc.src)), tc.want)
		})
	}
	require.Len(t, checkText("x", "fine\n// TODO: later\n"), 1)
}
