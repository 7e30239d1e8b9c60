package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Layer says how much the place counts that a value comes from: a higher one
// replaces what a lower one says.
type Layer int

// The layers.
const (
	Default Layer = iota
	Preset        // what another choice brings with it
	File
	Environment
	Command // flags, --set
)

// Config is what was given of the options. The zero value has the defaults.
type Config struct {
	given map[string]entry // by key
	notes []string
}

type entry struct {
	value
	layer  Layer
	origin string
	name   string // that it was given under
}

// Set takes in one value. origin says where it comes from, for people:
// "--interval", "--set", a file. A key that is not known is refused with the
// nearest one, and so is a second value from the same layer that says something
// else.
func (c *Config) Set(layer Layer, origin, name, text string) error {
	o, key, article := find(name)
	if o == nil {
		return unknown(origin, name)
	}
	v, err := o.parse(text)
	if err != nil {
		return refuse(fmt.Sprintf("%s (%s)", name, origin), "", "%w", err)
	}
	old, had := c.given[key]
	if had && old.layer == layer && old.text != v.text {
		return refuse(key, "leave one of them out", "it is %s by %s, and %s by %s", old.text, old.said(key), v.text, entry{origin: origin, name: name}.said(key))
	}
	if article {
		c.notes = append(c.notes, fmt.Sprintf("%s (%s) is no option of Flink: it is taken for %s", name, origin, key))
	}
	if had && old.layer > layer {
		return nil
	}
	if c.given == nil {
		c.given = map[string]entry{}
	}
	c.given[key] = entry{v, layer, origin, name}
	return nil
}

// said returns where the entry comes from, with the name if that is an alias.
func (e entry) said(key string) string {
	if e.name == "" || e.name == key {
		return e.origin
	}
	return e.origin + " " + e.name
}

func unknown(origin, name string) error {
	object := fmt.Sprintf("%s (%s)", name, origin)
	if mend := refused[name]; mend != "" {
		return refuse(object, mend, "not an option here")
	}
	mend := "see ckpt-run config for all"
	if near := nearest(name); near != "" {
		mend = fmt.Sprintf("did you mean %s?", near)
	}
	return refuse(object, mend, "not an option")
}

// Notes are lines about names that are not ours.
func (c *Config) Notes() []string { return c.notes }

// get returns what is in force of a key, and where it comes from.
func (c *Config) get(key string) entry {
	if e, ok := c.given[key]; ok {
		return e
	}
	o, _, _ := find(key)
	if o.Default == "" {
		return entry{origin: "default"}
	}
	v, err := o.parse(o.Default)
	if err != nil {
		panic(fmt.Sprintf("the default of %s: %v", key, err)) // a test parses them all
	}
	return entry{value: v, origin: "default", name: key}
}

// as returns the value of a key; T must be what its kind has.
func as[T any](c *Config, key string) (t T) {
	if v := c.get(key).v; v != nil {
		t = v.(T)
	}
	return t
}

// isSet reports whether a key was given a value that is not its default.
func (c *Config) isSet(key string) bool {
	o, _, _ := find(key)
	e, ok := c.given[key]
	if !ok {
		return false
	}
	def, err := o.parse(o.Default)
	return err != nil || e.text != def.text
}

// Effective is an option in force.
type Effective struct {
	Key, Value string
	Layer      Layer
	// Origin is "default", or what was passed to Set, with the name under which
	// it was given if that is an alias.
	Origin string
	Doc    string
}

// Effective returns all options in force, in the order of the table; those of
// single sources and edges only where they are given.
func (c *Config) Effective() (all []Effective) {
	for i := range options {
		o := &options[i]
		keys := []string{o.Key}
		if p := o.pattern(); p != "" {
			keys = slices.DeleteFunc(slices.Sorted(maps.Keys(c.given)), func(k string) bool { return !strings.HasPrefix(k, p) })
		}
		for _, key := range keys {
			e := c.get(key)
			all = append(all, Effective{Key: key, Value: e.text, Layer: e.layer, Origin: e.said(key), Doc: o.Doc})
		}
	}
	return all
}

// Value returns the text of what is in force of a key of the table.
func (c *Config) Value(key string) string { return c.get(key).text }
