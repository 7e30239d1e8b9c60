package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/inflight"
)

const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
	// strangerFor bounds the tries while the store has never answered: then the
	// URL is as likely to be wrong as the store is to be down.
	strangerFor = 2 * time.Second
	// doubtTries is how often a request is made whose answer may be another the
	// next time.
	doubtTries = 3
)

// tries are the tries of one request. The zero value is not usable.
type tries struct {
	b       *Backend
	op, key string
	n       int
	began   time.Time // when the first of them failed
	pause   time.Duration
	sent    *atomic.Bool
	// unknown: one of them may have been carried out, and its answer was lost.
	unknown bool
}

func (b *Backend) tries(op, key string) *tries {
	return &tries{b: b, op: op, key: key, pause: firstPause}
}

// next returns the context for the next try.
func (t *tries) next(ctx context.Context) context.Context {
	t.b.signer.ready(ctx) // or the request fails at once
	if t.n++; t.n > 1 {
		t.b.wire.count.retries.Add(1)
	}
	sent := new(atomic.Bool)
	t.sent = sent
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
}

// progress says that a try was of use: the next failure is a first one.
func (t *tries) progress() { t.began, t.pause = time.Time{}, firstPause }

// again is asked after a try has failed with err. It waits and answers nil if
// there should be another one, and otherwise the error to report.
func (t *tries) again(ctx context.Context, err error) error {
	answer, answered := errors.AsType[minio.ErrorResponse](err)
	if answered {
		t.b.reached.Store(true)
	}
	t.unknown = t.unknown || t.sent.Load() && ambiguous(err)
	if ctx.Err() != nil {
		return t.b.fail(t.op, t.key, t.ended(ctx, err))
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		// A limit of the transport, which is no end of a context.
		err = fmt.Errorf("%w: %v", inflight.ErrTimeout, plain(err))
	}
	failure := t.b.fail(t.op, t.key, err)
	if t.began.IsZero() {
		t.began = time.Now()
	}
	limit := t.b.opt.RetryFor
	if !t.b.reached.Load() {
		limit = min(limit, strangerFor)
	}
	doubted := answered && doubtful(answer) && t.n < doubtTries
	if !inflight.Retryable(failure) && !doubted || time.Since(t.began)+t.pause > limit {
		return failure
	}
	t.b.tell(inflight.EventRetried, t.op, failure)
	if answered && (answer.StatusCode == http.StatusServiceUnavailable || answer.StatusCode == http.StatusTooManyRequests) {
		t.b.tell(inflight.EventThrottled, t.op, failure)
	}
	pause := t.pause/2 + rand.N(t.pause/2+1)
	t.pause = min(2*t.pause, longestPause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return t.b.fail(t.op, t.key, t.ended(ctx, err))
	}
}

// ended is the error of a context that has ended, with what was wrong before.
func (t *tries) ended(ctx context.Context, err error) error {
	end := endOf(ctx)
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return end
	}
	return fmt.Errorf("%w; before that: %v", end, plain(err))
}

// endOf returns why ctx has ended: ErrClosed where that is the backend or the
// object, else the error of the caller's context.
func endOf(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, inflight.ErrClosed):
		return inflight.ErrClosed
	case errors.Is(cause, context.DeadlineExceeded):
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// call makes a request until it succeeds or cannot be expected to.
func (b *Backend) call(ctx context.Context, op, key string, request func(context.Context) error) error {
	t := b.tries(op, key)
	for {
		err := request(t.next(ctx))
		if err == nil {
			b.worked()
			return nil
		}
		if err = t.again(ctx, err); err != nil {
			return err
		}
	}
}

// begin is asked first by every call. The context that it returns ends with the
// backend, too.
func (b *Backend) begin(ctx context.Context, op, key string) (context.Context, context.CancelFunc, error) {
	joined, end := join(ctx, b.life)
	if joined.Err() != nil {
		defer end()
		return nil, nil, b.fail(op, key, endOf(joined))
	}
	return joined, end, nil
}

// join returns a context that ends with either.
func join(ctx, other context.Context) (context.Context, context.CancelFunc) {
	joined, cancel := context.WithCancelCause(ctx)
	if other.Err() != nil {
		cancel(context.Cause(other))
	}
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { stop(); cancel(nil) }
}
