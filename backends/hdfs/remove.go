package hdfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// parallel is how many names are removed at once.
const parallel = 4

// Remove deletes files, and the folders that become empty.
func (b *Backend) Remove(ctx context.Context, names ...string) error {
	errs := make([]error, len(names)+1)
	folders := map[string]bool{}
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(parallel, len(names)) {
		workers.Go(func() {
			for i := range next {
				errs[i] = b.remove(ctx, names[i])
			}
		})
	}
	for i, name := range names {
		next <- i
		folders[path.Dir(b.at(name))] = true
	}
	close(next)
	workers.Wait()
	if errors.Join(errs...) == nil && len(names) > 0 {
		_, errs[len(names)] = do(ctx, b, "remove", names[0], func(c *client) (any, error) {
			for folder := range folders {
				c.removeEmpty(folder)
			}
			return nil, nil
		})
	}
	return errors.Join(errs...)
}

// remove deletes one object; a folder is left alone: it is none.
func (b *Backend) remove(ctx context.Context, name string) error {
	at, err := b.lookUp("remove", name)
	if err != nil {
		return err
	}
	_, err = do(ctx, b, "remove", name, func(c *client) (any, error) {
		file, _, err := c.find(at)
		switch {
		case isMissing(err):
			return nil, nil
		case err != nil:
			return nil, err
		case file == at:
			err = c.Client.Remove(at)
		default:
			err = c.RemoveAll(at)
		}
		if isMissing(err) {
			err = nil
		}
		return nil, err
	})
	return err
}

// removeEmpty removes dir and the folders above it while they are empty, never
// the root. A Create that finds its folder gone makes it again. A folder is named
// by its number, so that no file is deleted that has just taken its name.
func (c *client) removeEmpty(dir string) {
	for root := c.pool.o.Dir; len(dir) > len(root); dir = path.Dir(dir) {
		st, err := c.stat(dir)
		if isMissing(err) {
			continue
		}
		if err != nil || !st.IsDir() {
			return
		}
		if err := c.Client.Remove(byID(id(st))); err != nil && !isMissing(err) {
			return
		}
	}
}

// byID returns the path of the file or folder with that number, wherever it lies.
func byID(id uint64) string { return fmt.Sprintf("/.reserved/.inodes/%d", id) }

// RemoveAll deletes a folder; of the root, all that is in it.
func (b *Backend) RemoveAll(ctx context.Context, prefix string) error {
	at, name, err := b.folder("remove all", prefix)
	if err != nil {
		return err
	}
	entries, err := b.readFolder(ctx, "remove all", at, name)
	if errors.Is(err, inflight.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.isPayload() && at != b.o.Dir {
			return nil // an object has that name
		}
	}
	for _, e := range entries {
		_, err := do(ctx, b, "remove all", backends.Below(name)+e.name, func(c *client) (any, error) {
			err := c.RemoveAll(path.Join(at, e.name))
			if isMissing(err) {
				err = nil
			}
			return nil, err
		})
		if err != nil {
			return err
		}
	}
	_, err = do(ctx, b, "remove all", name, func(c *client) (any, error) { c.removeEmpty(at); return nil, nil })
	return err
}
