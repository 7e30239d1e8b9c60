package backendtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/backends"
)

var listChecks = []check{
	{name: "list-order", about: "List yields the names that begin with the prefix, in the order of their bytes.", body: func(p *probe) {
		names := []string{"B", "a-1", "a.b", "a/b", "a/b.c", "a/c/d", "a/c-d", "a0", "aa/x", "b/1", "b/10", "b/2", "c"}
		slices.Sort(names)
		p.putAll(names)
		for _, prefix := range []string{"", "a", "a/", "a/b", "a/b.c", "a/c", "a/c/", "aa", "b/1", "c", "c/", "d", "d/", "a/b/"} {
			var want []string
			for _, name := range names {
				if strings.HasPrefix(name, prefix) {
					want = append(want, name)
				}
			}
			same(p, fmt.Sprintf("List(%q)", prefix), p.list(prefix), want)
		}
		for info, err := range p.b.List(p.ctx, p.dir) {
			p.must(err, "list")
			p.require(info.Size == int64(len(info.Name)-len(p.dir)), "List says that %s has %d bytes", info.Name, info.Size)
		}
		for _, err := range p.b.List(p.ctx, p.dir) {
			p.must(err, "list")
			break // and nothing is left behind
		}
	}},
	{name: "children", about: "Children yields the parts directly below a folder, in order.", body: func(p *probe) {
		same(p, "children of nothing", p.children(""), nil)
		p.putAll([]string{"a-1", "a.b", "a/b", "a/c/d", "a0", "b"})
		same(p, "children", p.children(""), []string{"a", "a-1", "a.b", "a0", "b"})
		same(p, "children of a folder", p.children("a"), []string{"b", "c"})
		same(p, "children of a folder with a slash", p.children("a/"), []string{"b", "c"})
		same(p, "children of an object", p.children("b"), nil)
		same(p, "children of nothing", p.children("x"), nil)
		top, _, _ := strings.Cut(p.dir, "/")
		var found bool
		for name, err := range p.b.Children(p.ctx, "") {
			p.must(err, "list the root")
			found = found || name == top
		}
		p.require(found, "the root does not list %s", top)
		for _, err := range p.b.Children(p.ctx, p.dir) {
			p.must(err, "list children")
			break
		}
	}},
	{name: "many-names", about: "Lists of more than a thousand names are complete.", body: func(p *probe) {
		var names []string
		for i := range 1050 {
			names = append(names, fmt.Sprintf("many/%06d", i*7))
		}
		p.putAll(names)
		same(p, "List", p.list("many/"), names)
		children := p.children("many")
		for i := range children {
			children[i] = "many/" + children[i]
		}
		same(p, "Children", children, names)
		for i := range names {
			names[i] = p.dir + names[i]
		}
		p.must(p.b.Remove(p.ctx, names...), "remove")
		same(p, "List after Remove", p.list(""), nil)
	}},
	{name: "list-follows", about: "A list has what was just created, and has not what was just removed.", body: func(p *probe) {
		for i := range 20 {
			name := fmt.Sprintf("x%d", i)
			p.put(name, nil)
			same(p, "List after Finish", p.list(""), []string{name})
			same(p, "Children after Finish", p.children(""), []string{name})
			p.must(p.b.Remove(p.ctx, p.dir+name), "remove")
			same(p, "List after Remove", p.list(""), nil)
		}
	}},
	{name: "list-race", about: "While the next name is created before the last is removed, no list is empty.", body: checkListRace},
}

// checkListRace is what the log of a job relies on: a list is atomic or an
// ascending scan, so a list that misses a name that has gone has a higher one.
func checkListRace(p *probe) {
	if !p.caps.AtomicList {
		p.skip("lists of the store are neither atomic nor ascending")
	}
	name := func(i int) string { return fmt.Sprintf("%sjob/chk-%010d/m", p.dir, i) }
	p.must(put(p.ctx, p.b, name(0), nil, backends.CreateOptions{Exclusive: true}), "create")
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := put(p.ctx, p.b, name(i), nil, backends.CreateOptions{Exclusive: true}); err != nil {
				stopped <- err
				return
			}
			if err := p.b.Remove(p.ctx, name(i-1)); err != nil {
				stopped <- err
				return
			}
		}
	}()
	begin := time.Now()
	for i := 0; i < 300 && time.Since(begin) < time.Second; i++ {
		listed, children := p.list("job/"), p.children("job")
		if len(listed) == 0 || len(children) == 0 || !slices.IsSorted(listed) || !slices.IsSorted(children) {
			close(stop)
			p.must(<-stopped, "create and remove")
			p.require(false, "List yields %v, Children yields %v", listed, children)
		}
	}
	close(stop)
	p.must(<-stopped, "create and remove")
}
