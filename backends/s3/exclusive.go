package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/inflight"
)

// proof is whether the store minds If-None-Match. The lock is a channel, so that
// who waits for it can give up.
type proof struct {
	lock chan struct{}
	done bool
	err  error // the store does not
}

// prove finds out, once, whether the store refuses to create what is there. Many
// stores ignore the condition in silence: then two coordinators would both
// believe that they have committed.
func (b *Backend) prove(ctx context.Context, byParts bool) error {
	if b.opt.Exclusive != ExclusiveProve {
		return nil
	}
	p := &b.proven[0]
	if byParts {
		p = &b.proven[1]
	}
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return b.fail("prove", b.prefix, endOf(ctx))
	}
	if p.done {
		return p.err
	}
	ignored, err := b.probe(ctx, byParts)
	if err != nil {
		return err // of the store today, perhaps not tomorrow
	}
	p.done = true
	if ignored {
		p.err = b.fail("prove", b.prefix, fmt.Errorf("%w: the store ignores If-None-Match, so that two writers of one name would both succeed", inflight.ErrUnsupported))
		p.err.(*inflight.Error).Mend = "use another store for the checkpoints of a running job; exclusive=off is enough to read"
	}
	return p.err
}

// probe creates an object of its own twice, the second time on the condition
// that it is not there.
func (b *Backend) probe(ctx context.Context, byParts bool) (ignored bool, err error) {
	key := b.prefix + ".spillway-probe-" + writerID("")
	first := minio.PutObjectOptions{DisableContentSha256: true}
	second := minio.PutObjectOptions{DisableContentSha256: true}
	second.SetMatchETagExcept("*")
	put := func(opt minio.PutObjectOptions) error {
		return b.call(ctx, "prove", key, func(ctx context.Context) error {
			_, err := b.core.PutObject(ctx, b.opt.Bucket, key, bytes.NewReader([]byte("probe")), 5, "", "", opt)
			return err
		})
	}
	if err := put(first); err != nil {
		return false, err
	}
	defer b.tidy(ctx, func(ctx context.Context) {
		_ = b.call(ctx, "prove", key, func(ctx context.Context) error { // whoever may not delete leaves it
			return b.core.RemoveObject(ctx, b.opt.Bucket, key, minio.RemoveObjectOptions{})
		})
	})
	if byParts {
		err = b.probeParts(ctx, key, second)
	} else {
		err = put(second)
	}
	if errors.Is(err, inflight.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// probeParts tries to complete an upload of one part under the name key.
func (b *Backend) probeParts(ctx context.Context, key string, final minio.PutObjectOptions) error {
	return b.call(ctx, "prove", key, func(ctx context.Context) error {
		id, err := b.core.NewMultipartUpload(ctx, b.opt.Bucket, key, minio.PutObjectOptions{})
		if err != nil {
			return err
		}
		done, err := b.core.PutObjectPart(ctx, b.opt.Bucket, key, id, 1, bytes.NewReader([]byte("probe")), 5, minio.PutObjectPartOptions{DisableContentSha256: true})
		if err == nil {
			_, err = b.core.CompleteMultipartUpload(ctx, b.opt.Bucket, key, id, []minio.CompletePart{{PartNumber: 1, ETag: done.ETag}}, final)
		}
		if err != nil {
			_ = b.core.AbortMultipartUpload(ctx, b.opt.Bucket, key, id) // what stays is a leftover
		}
		return err
	})
}
