package mem

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends"
)

// object is a finished object. It never changes.
type object struct {
	data     []byte
	hash     uint64 // of data
	modified time.Time
}

func (o *object) info(name string) backends.Info {
	return backends.Info{Name: name, Size: int64(len(o.data)), Modified: o.modified}
}

// temp is an object being written, as the store sees it.
type temp struct {
	name    string
	size    *atomic.Int64
	started time.Time
	owner   *Backend // nil after a crash
}

// state is all that a store holds. Paths are names of objects and folders.
type state struct {
	live     map[string]*object // what callers see
	temps    map[uint64]temp
	inFlight []pending

	// Only of the flavour with folders. The root is the folder "".
	tree        bool
	folders     map[string]int     // number of entries: objects, temporaries, folders
	disk        map[string]*object // what a power cut leaves for sure, where its folders are left
	diskFolders map[string]int     // likewise; the numbers mean nothing
}

func newState(objectStore bool) *state {
	st := &state{live: map[string]*object{}, temps: map[uint64]temp{}, tree: !objectStore}
	if st.tree {
		st.folders = map[string]int{"": 0}
		st.disk = map[string]*object{}
		st.diskFolders = map[string]int{"": 0}
	}
	return st
}

func (st *state) clone() *state {
	return &state{
		live: maps.Clone(st.live), temps: maps.Clone(st.temps), inFlight: slices.Clone(st.inFlight),
		tree: st.tree, folders: maps.Clone(st.folders), disk: maps.Clone(st.disk), diskFolders: maps.Clone(st.diskFolders),
	}
}

// parent returns the folder that path is in.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// link counts a new entry, and makes the folders that it needs.
func (st *state) link(path string) {
	if !st.tree {
		return
	}
	dir := parent(path)
	if _, ok := st.folders[dir]; !ok {
		st.folders[dir] = 0
		st.link(dir)
	}
	st.folders[dir]++
}

// unlink uncounts an entry, and removes the folders that become empty.
func (st *state) unlink(path string) {
	if !st.tree {
		return
	}
	dir := parent(path)
	st.folders[dir]--
	st.removeIfEmpty(dir)
}

func (st *state) removeIfEmpty(dir string) {
	if n, ok := st.folders[dir]; ok && n == 0 && dir != "" {
		delete(st.folders, dir)
		st.unlink(dir)
	}
}

// isFolder reports whether path is a folder, and overFile whether a folder
// above it would have to be an object.
func (st *state) isFolder(path string) bool {
	_, ok := st.folders[path]
	return ok
}

func (st *state) overFile(path string) bool {
	for path = parent(path); st.tree && path != ""; path = parent(path) {
		if st.live[path] != nil {
			return true
		}
	}
	return false
}

// put makes an object visible; its name is not durable yet.
func (st *state) put(name string, o *object) {
	if st.live[name] == nil {
		st.link(name)
	}
	st.live[name] = o
}

func (st *state) remove(name string) {
	if st.live[name] != nil {
		delete(st.live, name)
		st.unlink(name)
	}
}

func (st *state) removeAll(below string) {
	for name := range st.live {
		if strings.HasPrefix(name, below) {
			st.remove(name)
		}
	}
	for id, t := range st.temps {
		if strings.HasPrefix(t.name, below) {
			st.dropTemp(id)
		}
	}
	for folder := range st.folders {
		if strings.HasPrefix(folder+"/", below) {
			st.removeIfEmpty(folder)
		}
	}
}

func (st *state) dropTemp(id uint64) {
	if t, ok := st.temps[id]; ok {
		delete(st.temps, id)
		st.unlink(t.name)
	}
}

// syncUp makes the entries of dir, and of the folders above it, durable:
// creations and deletions.
func (st *state) syncUp(dir string) {
	if !st.tree {
		return
	}
	up := map[string]bool{}
	for ; dir != ""; dir = parent(dir) {
		up[dir] = true
	}
	up[""] = true
	syncEntries(st.disk, st.live, up)
	syncEntries(st.diskFolders, st.folders, up)
}

func syncEntries[V any](disk, live map[string]V, folders map[string]bool) {
	for path := range disk {
		if _, ok := live[path]; !ok && path != "" && folders[parent(path)] {
			delete(disk, path)
		}
	}
	for path, v := range live {
		if path != "" && folders[parent(path)] {
			disk[path] = v
		}
	}
}

var seed = maphash.MakeSeed()

// fingerprint is the same for equal states, whatever way led there. Times do
// not count.
func (st *state) fingerprint() uint64 {
	var sum uint64
	add := func(kind byte, path string, content uint64) {
		sum += maphash.Comparable(seed, struct {
			kind    byte
			path    string
			content uint64
		}{kind, path, content})
	}
	for path, o := range st.live {
		add('l', path, o.hash)
	}
	for path, o := range st.disk {
		add('d', path, o.hash)
	}
	for path := range st.folders {
		add('f', path, 0)
	}
	for path := range st.diskFolders {
		add('F', path, 0)
	}
	for _, t := range st.temps {
		add('t', t.name, 0)
	}
	for _, p := range st.inFlight {
		kind := byte('p')
		if p.Exclusive {
			kind = 'P'
		}
		add(kind, p.Name, p.object.hash)
	}
	return sum
}
