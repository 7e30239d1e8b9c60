package inspect

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lineTypes are the lines by their headings in docs/json.md.
var lineTypes = map[string]any{
	"Buffers": BufferLine{}, "Findings": FindingLine{}, string(TypeFinding): NoteLine{}, string(TypeCheckpoint): CheckpointLine{}, string(TypeFile): FileLine{},
	string(TypeSubtask): SubtaskLine{}, string(TypeEdge): EdgeLine{}, string(TypeChannel): ChannelLine{}, string(TypeConnection): ConnectionLine{},
	string(TypeReplay): ReplayLine{}, string(TypeObject): ObjectLine{}, string(TypeSummary): SummaryLine{},
	string(TypeCapabilities): CapabilitiesLine{}, string(TypeCheck): CheckLine{},
	string(TypeMetadata): MetadataLine{}, string(TypeMaster): MasterLine{}, string(TypeOperator): OperatorLine{}, string(TypeState): StateLine{}, string(TypeHandle): HandleLine{},
	string(TypeUsage): UsageLine{}, string(TypeDifference): DifferenceLine{}, string(TypePlan): PlanLine{}, string(TypeLoss): LossLine{}, string(TypeSeal): SealLine{},
	"Elements": ElementLine{}, "Ranges": RangeLine{}, "Streams": Stream{}, "Keyed state": KeyedState{}, "Named states": NamedState{}, "Local files": LocalFile{}, "Totals": TotalsLine{},
}

// parts are the headings of what stands in lines, and of lines without a type.
var parts = []string{"Buffers", "Findings", "Elements", "Ranges", "Streams", "Keyed state", "Named states", "Local files", "Totals"}

// jsonDoc returns docs/json.md by headings.
func jsonDoc(t *testing.T) map[string]string {
	p, err := os.ReadFile("../docs/json.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, s := range regexp.MustCompile(`(?m)^##+ `).Split(string(p), -1)[1:] {
		head, body, _ := strings.Cut(s, "\n")
		sections[head] = body
	}
	return sections
}

// rows returns the cells of the tables in a text, heads left out.
func rows(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows[min(1, len(rows)):]
}

// fields returns the JSON names of a struct, in order.
func fields(typ reflect.Type) (names []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case f.Anonymous:
			names = append(names, fields(f.Type)...)
		case f.IsExported():
			names = append(names, name)
		}
	}
	return names
}

func TestDocFields(t *testing.T) {
	doc := jsonDoc(t)
	for head, line := range lineTypes {
		t.Run(head, func(t *testing.T) {
			require.Contains(t, doc, head)
			var documented []string
			for _, r := range rows(doc[head]) {
				for name := range strings.SplitSeq(r[0], ",") {
					documented = append(documented, strings.TrimSpace(name))
				}
			}
			require.ElementsMatch(t, fields(reflect.TypeOf(line)), documented)
		})
	}
}

// TestDocExamples decodes the examples strictly.
func TestDocExamples(t *testing.T) {
	examples := 0
	for head, text := range jsonDoc(t) {
		for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[1]) {
				d := json.NewDecoder(bytes.NewReader([]byte(line)))
				d.DisallowUnknownFields()
				v := reflect.New(reflect.TypeOf(lineTypes[head]))
				require.NoError(t, d.Decode(v.Interface()), line)
				again, err := json.Marshal(v.Interface())
				require.NoError(t, err)
				require.JSONEq(t, line, string(again))
				examples++
			}
		}
	}
	require.Greater(t, examples, 10)
}

// constants returns the string constants of packages that keep wants, by value.
func constants(t *testing.T, keep func(name, typ string) bool, dirs ...string) (values []string) {
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, names)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			for _, d := range f.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
					values = append(values, ofGroup(t, g, keep)...)
				}
			}
		}
	}
	return values
}

func ofGroup(t *testing.T, g *ast.GenDecl, keep func(name, typ string) bool) (values []string) {
	for _, s := range g.Specs {
		spec := s.(*ast.ValueSpec)
		typ, _ := spec.Type.(*ast.Ident)
		for i, id := range spec.Names {
			typeName := ""
			if typ != nil {
				typeName = typ.Name
			}
			if i >= len(spec.Values) || !keep(id.Name, typeName) {
				continue
			}
			if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				v, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				values = append(values, v)
			}
		}
	}
	return values
}

func TestDocCodes(t *testing.T) {
	isCode := func(name, _ string) bool { return strings.HasPrefix(name, "Code") && name != "CodecNone" }
	for head, dirs := range map[string][]string{"Codes of findings": {"format", "reader", "catalog", "inspect"}, "Codes of findings about Flink": {"flink"}} {
		codes := constants(t, isCode, dirs...)
		require.Greater(t, len(codes), 20)
		var documented []string
		for _, r := range rows(jsonDoc(t)[head]) {
			documented = append(documented, strings.Trim(r[0], "`"))
			require.Len(t, r, 3)
			require.NotEmpty(t, r[2])
		}
		require.ElementsMatch(t, codes, documented, head)
	}
}

func TestDocValues(t *testing.T) {
	documented := map[string][]string{}
	for _, r := range rows(jsonDoc(t)["Values"]) {
		documented[r[0]] = append(documented[r[0]], strings.Trim(r[1], "`"))
	}
	ofType := func(want string, dirs ...string) []string {
		return constants(t, func(_, typ string) bool { return typ == want }, dirs...)
	}
	prefixed := func(prefix string, dirs ...string) []string {
		return constants(t, func(name, typ string) bool { return strings.HasPrefix(name, prefix) && typ == "" }, dirs...)
	}
	want := map[string][]string{
		"side":      {"input", "output", "state"},
		"state":     ofType("State", "catalog"),
		"kind":      prefixed("Slot", "catalog"),
		"alignment": ofType("Alignment", "format"),
		"mode":      ofType("Mode", "format"),
		"severity":  ofType("Severity", "inflight"),
		"verdict":   ofType("Verdict", "reader"),
		"class":     ofType("Class", "catalog"),
		"result":    prefixed("Check", "inspect"),
		"use":       ofType("FileUse", "inspect"),
		"slot":      ofType("StateSlot", "inspect"),
		"by":        ofType("UsageBy", "inspect"),
		"change":    ofType("Change", "inspect"),
		"verb":      ofType("Verb", "inspect"),
	}
	for of, values := range want {
		require.NotEmpty(t, values, of)
		require.ElementsMatch(t, values, documented[of], of)
		delete(documented, of)
	}
	require.Empty(t, documented)

	types := ofType("LineType", "inspect")
	slices.Sort(types)
	var heads []string
	for head := range lineTypes {
		if !slices.Contains(parts, head) {
			heads = append(heads, head)
		}
	}
	slices.Sort(heads)
	require.Equal(t, types, heads)
}

// TestDocShownBy looks for the tests and scripts that docs/operations.md names.
func TestDocShownBy(t *testing.T) {
	p, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(p), "## Bad input")
	require.True(t, found)
	named := 0
	for _, r := range rows(table) {
		require.Len(t, r, 6, "%s", r)
		for ref := range strings.SplitSeq(r[5], ", ") {
			named++
			if script, ok := strings.CutPrefix(ref, "script "); ok {
				require.FileExists(t, filepath.Join("../cmd/ckpt-inspect/testdata/scripts", strings.Trim(script, "`")))
				continue
			}
			pkg, test, ok := strings.Cut(strings.Trim(ref, "`"), " ")
			require.True(t, ok, ref)
			require.True(t, hasTest(t, pkg, test), "%s has no %s", pkg, test)
		}
	}
	require.Greater(t, named, 40)
}

func hasTest(t *testing.T, pkg, test string) bool {
	names, err := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
	require.NoError(t, err)
	return slices.ContainsFunc(names, func(name string) bool {
		p, err := os.ReadFile(name)
		require.NoError(t, err)
		return bytes.Contains(p, []byte("\nfunc "+test+"(t *testing.T) {"))
	})
}
