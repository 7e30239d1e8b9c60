package config

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/spillway-io/spillway/inflight"
)

// maxFile bounds a configuration file.
const maxFile = 1 << 20

// maxDepth bounds how deep a file nests.
const maxDepth = 20

// envPrefix is what the names of environment variables begin with.
const envPrefix = "SPILLWAY_"

// notOptions are variables of that prefix which mean something else.
var notOptions = map[string]bool{"SPILLWAY_CRASH": true, "SPILLWAY_SEEDS": true, "SPILLWAY_E2E": true}

// EnvName is the environment variable of an option.
func (o *Option) EnvName() string {
	key, name := o.Key, ""
	if p := o.pattern(); p != "" {
		key, name = p, strings.TrimPrefix(o.Key, p)
	}
	return envPrefix + strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToUpper(key)) + name
}

// LoadEnv takes in what the environment says, as os.Environ returns it. Names
// of sources and edges stand in it as they are:
// SPILLWAY_UNALIGNED_SOURCE_orders=aligned.
func (c *Config) LoadEnv(environ []string) error {
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, envPrefix) || notOptions[name] {
			continue
		}
		key := envKey(name)
		if key == "" {
			mend := ""
			if near := nearest(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", ".")); near != "" {
				mend = fmt.Sprintf("did you mean %s?", near)
			}
			return refuse("environment "+name, mend, "not an option")
		}
		if err := c.Set(Environment, "environment", key, text); err != nil {
			return err
		}
	}
	return nil
}

// envKey returns the key that a variable means; "": none.
func envKey(name string) string {
	for i := range options {
		o := &options[i]
		if p := o.pattern(); p != "" {
			prefix := strings.TrimSuffix(o.EnvName(), strings.TrimPrefix(o.Key, p))
			if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
				return p + rest
			}
		} else if o.EnvName() == name {
			return o.Key
		}
	}
	return ""
}

// LoadFile takes in a file: YAML, nested or with dots in the keys, or
// properties if its name ends so.
func (c *Config) LoadFile(path string) error {
	fail := func(err error) error { return &inflight.Error{Op: "read", Object: path, Err: err} }
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fail(err)
	case !info.Mode().IsRegular():
		return refuse(path, "", "it is no file")
	case info.Size() > maxFile:
		return fail(fmt.Errorf("%d bytes: %w", info.Size(), inflight.ErrTooLarge))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	to := &taker{c, path}
	if filepath.Ext(path) == ".properties" {
		return to.properties(data)
	}
	f, err := parseYAML(data)
	if err != nil {
		return refuse(path, "write YAML, or properties in a file of that name", "%s", firstLine(err))
	}
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if err := to.flatten(d.Body, "", 0); err != nil {
			return err
		}
	}
	return nil
}

// parseYAML parses; what the parser would panic on is no YAML.
func parseYAML(data []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not YAML: %v", r)
		}
	}()
	return parser.ParseBytes(data, 0)
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// taker takes in what stands in a file.
type taker struct {
	c    *Config
	path string
}

func (t *taker) place(line int) string { return fmt.Sprintf("%s:%d", t.path, line) }

func (t *taker) set(line int, key, text string) error {
	return t.c.Set(File, t.place(line), key, text)
}

// flatten takes in the scalars of a node, with dots between the keys.
func (t *taker) flatten(n ast.Node, key string, depth int) error {
	line := n.GetToken().Position.Line
	bad := func(what string) error {
		object := t.place(line)
		if key != "" {
			object = fmt.Sprintf("%s (%s)", key, object)
		}
		return refuse(object, "write key: value", "%s", what)
	}
	if depth > maxDepth {
		return bad("it nests too deep")
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if err := t.flatten(v, key, depth+1); err != nil {
				return err
			}
		}
		return nil
	case *ast.MappingValueNode:
		name := n.Key.GetToken().Value
		if key != "" {
			name = key + "." + name
		}
		return t.flatten(n.Value, name, depth+1)
	case *ast.SequenceNode:
		var list []string
		for _, v := range n.Values {
			s, ok := scalar(v)
			if !ok {
				return bad("a list of more than plain values")
			}
			list = append(list, s)
		}
		return t.set(line, key, strings.Join(list, ","))
	}
	if s, ok := scalar(n); ok && key != "" {
		return t.set(line, key, s)
	}
	return bad("there is no value")
}

// scalar returns the text of a plain value.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// properties takes in lines of "key = value" or "key: value".
func (t *taker) properties(data []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxFile+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "!") {
			continue
		}
		i := strings.IndexAny(line, "=:")
		if i < 0 {
			return refuse(t.place(n), "write key = value", "%q has no value", line)
		}
		if err := t.set(n, strings.TrimSpace(line[:i]), line[i+1:]); err != nil {
			return err
		}
	}
	return lines.Err()
}
