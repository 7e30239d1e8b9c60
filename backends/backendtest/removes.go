package backendtest

import (
	"strings"

	"github.com/spillway-io/spillway/backends"
)

var removeChecks = []check{
	{name: "remove", about: "Remove removes what is there, and does not mind what is not.", body: func(p *probe) {
		p.must(p.b.Remove(p.ctx), "remove nothing")
		p.must(p.b.Remove(p.ctx, p.dir+"x", p.dir+"d/x"), "remove what was never there")
		p.putAll([]string{"a", "b", "d/x", "d/y"})
		p.must(p.b.Remove(p.ctx, p.dir+"a", p.dir+"nothing", p.dir+"d/x"), "remove")
		p.must(p.b.Remove(p.ctx, p.dir+"a"), "remove again")
		p.must(p.b.Remove(p.ctx, p.dir+"d"), "remove the name of a folder")
		p.must(p.b.Remove(p.ctx, p.dir+"b/x"), "remove a name below an object")
		same(p, "List", p.list(""), []string{"b", "d/y"})
	}},
	{name: "empty-folders", about: "A folder goes with the last object in it, and can be used again.", body: func(p *probe) {
		p.putAll([]string{"d/e/x", "y"})
		p.must(p.b.Remove(p.ctx, p.dir+"d/e/x"), "remove")
		same(p, "Children", p.children(""), []string{"y"})
		p.put("d/e/x", []byte("again"))
		p.require(string(p.get("d/e/x")) == "again", "other bytes")
		p.must(p.b.Remove(p.ctx, p.dir+"d/e/x"), "remove")
		p.put("d", []byte("object"))
		p.require(string(p.get("d")) == "object", "other bytes")
	}},
	{name: "remove-all", about: "RemoveAll removes what lies below a folder, and nothing else.", body: func(p *probe) {
		p.must(p.b.RemoveAll(p.ctx, p.dir+"d"), "remove what is not there")
		p.putAll([]string{"d/x", "d/e/f/y", "d-e", "d.e", "da", "e/d/x"})
		o := p.create("d/unfinished", backends.CreateOptions{})
		p.write(o, random(12, 10_000))
		p.must(p.b.RemoveAll(p.ctx, p.dir+"d"), "remove all")
		same(p, "List", p.list(""), []string{"d-e", "d.e", "da", "e/d/x"})
		same(p, "Children", p.children(""), []string{"d-e", "d.e", "da", "e"})
		p.require(len(p.leftovers("d")) == 0, "RemoveAll leaves %v", p.leftovers("d"))
		p.must(o.Abort(p.ctx), "abort an object whose folder was removed")
		p.must(p.b.RemoveAll(p.ctx, p.dir+"d/"), "remove all again")
		p.must(p.b.RemoveAll(p.ctx, p.dir+"da"), "remove all below an object")
		p.must(p.b.RemoveAll(p.ctx, p.dir+"e/"), "remove all, with a slash")
		same(p, "List", p.list(""), []string{"d-e", "d.e", "da"})
	}},
	{name: "leftovers", about: "What unfinished writers leave is found, and removed on demand.", body: func(p *probe) {
		p.put("d/x", []byte("x"))
		for _, name := range []string{"d/one", "d/x", "e/" + strings.Repeat("y", 255)} {
			o := p.create(name, backends.CreateOptions{})
			p.write(o, random(13, 100_000))
			defer func() { p.must(o.Abort(p.ctx), "abort what was removed") }()
		}
		same(p, "List", p.list(""), []string{"d/x"})
		same(p, "Children", p.children("d"), []string{"x"})
		for _, l := range p.leftovers("e") {
			p.require(strings.HasPrefix(l.Name, p.dir+"e"), "a leftover of another folder: %s", l.Name)
		}
		for _, l := range p.leftovers("") {
			p.require(l.Kind != "" && strings.HasPrefix(l.Name, p.dir), "leftover: %+v", l)
			p.must(l.Remove(p.ctx), "remove a leftover")
			p.must(l.Remove(p.ctx), "remove a leftover again")
		}
		p.require(len(p.leftovers("")) == 0, "leftovers stay: %v", p.leftovers(""))
		p.require(string(p.get("d/x")) == "x", "an object went with the leftovers")
	}},
}
