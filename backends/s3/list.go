package s3

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// List yields what a listing in the order of the keys has. Keys that end with a
// slash are marks of folders, which some tools make; they are no objects.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		for o, err := range b.keys(ctx, "list", b.prefix+prefix) {
			if err != nil {
				yield(backends.Info{}, err)
				return
			}
			if !strings.HasSuffix(o.Key, "/") && !yield(info(o.Key[len(b.prefix):], o), nil) {
				return
			}
		}
	}
}

// Children yields what lies directly below dir. The store's order has "a-b"
// before "a/", ours "a" before "a-b", so that all are collected first.
func (b *Backend) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		below := b.prefix + backends.Below(dir)
		level, err := b.level(ctx, "list", below)
		if err != nil {
			yield("", err)
			return
		}
		names := make([]string, 0, len(level))
		for _, o := range level {
			if name := strings.TrimSuffix(o.Key[len(below):], "/"); name != "" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// keys yields the keys that begin with prefix, ascending.
func (b *Backend) keys(ctx context.Context, op, prefix string) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		ctx, end, err := b.begin(ctx, op, prefix)
		if err != nil {
			yield(minio.ObjectInfo{}, err)
			return
		}
		defer end()
		if !b.isTree() {
			for o, err := range b.scan(ctx, op, prefix, true) {
				if !yield(o, err) || err != nil {
					return
				}
			}
			return
		}
		err = b.walk(ctx, op, prefix, func(o minio.ObjectInfo) error {
			if !yield(o, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && err != errStop {
			yield(minio.ObjectInfo{}, err)
		}
	}
}

// errStop ends a walk that nobody follows any more.
var errStop = errors.New("stop")

// scan yields what a listing has, as the store orders it. Without deep, what
// lies below the next slash is one key that ends with it, perhaps several times.
func (b *Backend) scan(ctx context.Context, op, prefix string, deep bool) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		last := ""
		for t := b.tries(op, prefix); ; {
			opt := minio.ListObjectsOptions{Prefix: prefix, Recursive: deep, StartAfter: last}
			var failure error
			for o := range b.core.ListObjectsIter(t.next(ctx), b.opt.Bucket, opt) {
				if failure = o.Err; failure != nil {
					break
				}
				if ctx.Err() != nil || !strings.HasPrefix(o.Key, prefix) {
					continue
				}
				if !yield(o, nil) {
					return
				}
				if deep {
					last = o.Key
					t.progress()
				}
			}
			if failure == nil && ctx.Err() == nil {
				b.worked()
				return
			}
			if failure == nil {
				failure = ctx.Err() // the listing ends without a word
			}
			if failure = t.again(ctx, failure); failure != nil {
				yield(minio.ObjectInfo{}, failure)
				return
			}
		}
	}
}

// level returns what a folder has, or the part of it that begins with prefix, in
// the order of the keys; keys of folders end with a slash.
func (b *Backend) level(ctx context.Context, op, prefix string) (level []minio.ObjectInfo, err error) {
	ctx, end, err := b.begin(ctx, op, prefix)
	if err != nil {
		return nil, err
	}
	defer end()
	for o, err := range b.scan(ctx, op, prefix, false) {
		if err != nil {
			return nil, err
		}
		level = append(level, o)
	}
	slices.SortFunc(level, func(x, y minio.ObjectInfo) int { return strings.Compare(x.Key, y.Key) })
	return slices.CompactFunc(level, func(x, y minio.ObjectInfo) bool { return x.Key == y.Key }), nil
}

// walk visits the keys that begin with prefix, folder by folder. Stores that keep
// files list a tree in the same way, but have read a folder's names before they
// look into the first of them, so that what is created in front of them is
// missed; and not all do it in the order of the keys. Here a level is read again
// after each folder in it.
func (b *Backend) walk(ctx context.Context, op, prefix string, visit func(minio.ObjectInfo) error) error {
	for last, again := "", true; again; {
		again = false
		level, err := b.level(ctx, op, prefix)
		if err != nil {
			return err
		}
		for _, o := range level {
			if o.Key <= last || o.Key == prefix && strings.HasSuffix(prefix, "/") {
				continue
			}
			last = o.Key
			if strings.HasSuffix(o.Key, "/") {
				again, err = true, b.walk(ctx, op, o.Key, visit)
			} else {
				err = visit(o)
			}
			if err != nil {
				return err
			}
			if again {
				break
			}
		}
	}
	return nil
}

// isTree reports whether lists are made folder by folder.
func (b *Backend) isTree() bool {
	return b.opt.Listing == ListingTree || b.opt.Listing == ListingAuto && !s3utils.IsAmazonEndpoint(*b.core.EndpointURL())
}

// dropFolders removes the folders of keys that have become empty, up to the root,
// where the store does not do that itself. One that is not empty it keeps.
func (b *Backend) dropFolders(ctx context.Context, op string, keys []string) error {
	if !b.wire.folders.Load() {
		return nil
	}
	folders := map[string]struct{}{}
	for _, key := range keys {
		for i := strings.LastIndexByte(key, '/'); i >= len(b.prefix); i = strings.LastIndexByte(key[:i], '/') {
			folders[key[:i+1]] = struct{}{}
		}
	}
	deepest := slices.SortedFunc(maps.Keys(folders), func(x, y string) int { return len(y) - len(x) })
	for _, folder := range deepest {
		err := b.call(ctx, op, folder, func(ctx context.Context) error {
			return b.core.RemoveObject(ctx, b.opt.Bucket, folder, minio.RemoveObjectOptions{})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes objects, up to 1000 in one request.
func (b *Backend) Remove(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		_, end, err := b.begin(ctx, "remove", b.prefix)
		if err == nil {
			end()
		}
		return err
	}
	keys := make([]string, 0, len(names))
	for _, name := range names {
		if name != "" && !strings.HasSuffix(name, "/") { // a folder is no object
			keys = append(keys, b.prefix+name)
		}
	}
	return b.removeKeys(ctx, "remove", keys)
}

// removeKeys tries all; what a request leaves is tried again.
func (b *Backend) removeKeys(ctx context.Context, op string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	ctx, end, err := b.begin(ctx, op, keys[0])
	if err != nil {
		return err
	}
	defer end()
	var errs []error
	for batch := range slices.Chunk(keys, 1000) {
		errs = append(errs, b.removeBatch(ctx, op, batch))
	}
	return errors.Join(append(errs, b.dropFolders(ctx, op, keys))...)
}

func (b *Backend) removeBatch(ctx context.Context, op string, keys []string) error {
	if len(keys) == 1 {
		err := b.call(ctx, op, keys[0], func(ctx context.Context) error {
			return b.core.RemoveObject(ctx, b.opt.Bucket, keys[0], minio.RemoveObjectOptions{})
		})
		if errors.Is(err, inflight.ErrNotExist) && b.isWorking() {
			return nil
		}
		return err
	}
	var refused []error
	for t := b.tries(op, keys[0]); ; {
		left, failure := b.removeOnce(t.next(ctx), keys, op, &refused)
		if len(left) == 0 {
			return errors.Join(refused...)
		}
		keys = left
		if failure = t.again(ctx, failure); failure != nil {
			return errors.Join(append(refused, failure)...)
		}
	}
}

// removeOnce sends one request. It returns the keys for which another try may
// help, with the failure of the last of them, and appends what is final.
func (b *Backend) removeOnce(ctx context.Context, keys []string, op string, refused *[]error) (left []string, failure error) {
	done := map[string]bool{}
	results, err := b.core.RemoveObjectsWithIter(ctx, b.opt.Bucket, func(yield func(minio.ObjectInfo) bool) {
		for _, key := range keys {
			if !yield(minio.ObjectInfo{Key: key}) {
				return
			}
		}
	}, minio.RemoveObjectsOptions{})
	if err != nil {
		return keys, err
	}
	for r := range results {
		answer, _ := errors.AsType[minio.ErrorResponse](r.Err)
		switch typed := b.fail(op, r.ObjectName, r.Err); {
		case r.Err == nil, answer.Code != "" && answer.StatusCode == 0 && errors.Is(typed, inflight.ErrNotExist):
			done[r.ObjectName] = true
		case answer.Code == "" || answer.StatusCode != 0 || inflight.Retryable(typed):
			failure = r.Err // of the request, or for now
		default:
			done[r.ObjectName] = true
			*refused = append(*refused, typed)
		}
	}
	for _, key := range keys {
		if !done[key] {
			left = append(left, key)
		}
	}
	if failure == nil && len(left) > 0 {
		if failure = ctx.Err(); failure == nil {
			failure = errCut // no word about some of them
		}
	}
	return left, failure
}

// RemoveAll deletes all keys below the folder, and aborts the uploads.
func (b *Backend) RemoveAll(ctx context.Context, folder string) error {
	below := b.prefix + backends.Below(folder)
	var errs []error
	for l, err := range b.uploads(ctx, "remove all", below) {
		if err == nil {
			err = l.Remove(ctx)
		}
		errs = append(errs, err)
	}
	var batch []string
	flush := func() {
		if len(batch) > 0 {
			errs = append(errs, b.removeKeys(ctx, "remove all", batch))
			batch = batch[:0]
		}
	}
	for o, err := range b.keys(ctx, "remove all", below) {
		if err != nil {
			errs = append(errs, err)
			break
		}
		if batch = append(batch, o.Key); len(batch) == 1000 {
			flush()
		}
	}
	flush()
	return errors.Join(errs...)
}

// Leftovers yields the uploads that have not been completed, those of writers at
// work among them. A lifecycle rule of the bucket may remove them, too.
func (b *Backend) Leftovers(ctx context.Context, folder string) iter.Seq2[backends.Leftover, error] {
	return b.uploads(ctx, "list leftovers", b.prefix+backends.Below(folder))
}

func (b *Backend) uploads(ctx context.Context, op, below string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		ctx, end, err := b.begin(ctx, op, below)
		if err != nil {
			yield(backends.Leftover{}, err)
			return
		}
		defer end()
		keyMarker, idMarker := "", ""
		for {
			var page minio.ListMultipartUploadsResult
			err := b.call(ctx, op, below, func(ctx context.Context) (err error) {
				page, err = b.core.ListMultipartUploads(ctx, b.opt.Bucket, below, keyMarker, idMarker, "", 1000)
				return err
			})
			if err != nil {
				yield(backends.Leftover{}, err)
				return
			}
			for _, u := range page.Uploads {
				if !strings.HasPrefix(u.Key, below) {
					continue
				}
				l := backends.Leftover{Name: u.Key[len(b.prefix):], Kind: "multipart upload", Modified: u.Initiated.Truncate(time.Second),
					Size: b.uploadSize(ctx, u), Remove: func(ctx context.Context) error { return b.removeUpload(ctx, u.Key, u.UploadID) }}
				if !yield(l, nil) {
					return
				}
			}
			if !page.IsTruncated || page.NextKeyMarker == "" {
				return
			}
			keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
		}
	}
}

// uploadSize adds up the parts that have come. 0 where the store does not tell:
// it may have been completed in between.
func (b *Backend) uploadSize(ctx context.Context, u minio.ObjectMultipartInfo) (size int64) {
	for marker := 0; ; {
		page, err := b.core.ListObjectParts(ctx, b.opt.Bucket, u.Key, u.UploadID, marker, 1000)
		if err != nil {
			return u.Size
		}
		for _, p := range page.ObjectParts {
			size += p.Size
		}
		if !page.IsTruncated || page.NextPartNumberMarker <= marker {
			return size
		}
		marker = page.NextPartNumberMarker
	}
}

func (b *Backend) removeUpload(ctx context.Context, key, id string) error {
	ctx, end, err := b.begin(ctx, "remove leftover", key)
	if err != nil {
		return err
	}
	defer end()
	err = b.call(ctx, "remove leftover", key, func(ctx context.Context) error {
		return b.core.AbortMultipartUpload(ctx, b.opt.Bucket, key, id)
	})
	if errors.Is(err, inflight.ErrNotExist) {
		return nil
	}
	return err
}
