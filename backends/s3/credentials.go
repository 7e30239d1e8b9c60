package s3

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spillway-io/spillway/inflight"
)

// credentialsOf returns the keys that the options have, or a search for them.
func credentialsOf(o *Options) (*keys, error) {
	switch {
	case o.Anonymous:
		return &keys{Credentials: credentials.New(&credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}})}, nil
	case o.AccessKey != "" && o.SecretKey != "":
		return &keys{Credentials: credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.SessionToken)}, nil
	case o.AccessKey != "" || o.SecretKey != "":
		return nil, o.refuse("one of access key and secret key is missing", "give both")
	}
	s := &search{providers: []provider{
		{"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", &credentials.EnvAWS{}},
		{"MINIO_ACCESS_KEY and MINIO_SECRET_KEY", &credentials.EnvMinio{}},
		{"the profile AWS_PROFILE in ~/.aws", &credentials.FileAWSCredentials{}},
		{"the role of this machine", &credentials.IAM{Client: roleClient()}},
	}}
	return &keys{credentials.New(s), s}, nil
}

// keys are the keys of a backend. Search is nil where they were given.
type keys struct {
	*credentials.Credentials
	search *search
}

// ready waits until there are keys that last for a while, or none. A role is asked
// over the network, and minio-go would wait for it without regard to the context.
func (k *keys) ready(ctx context.Context) {
	if k.search == nil || time.Now().UnixNano() < k.search.until.Load() {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = k.GetWithContext(nil) // its error is that of the request
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// roleClient asks for the role of the instance. Where there is none, the address
// is often one that does not answer.
func roleClient() *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext:       (&net.Dialer{Timeout: time.Second}).DialContext,
		DisableKeepAlives: true,
	}}
}

type provider struct {
	name string
	credentials.Provider
}

// search takes the keys of the first provider that has some. Unlike minio-go's
// chain it never turns to requests without a signature: a store answers those in
// many confusing ways.
type search struct {
	providers []provider
	found     credentials.Provider
	until     atomic.Int64 // when to ask again, in nanoseconds of Unix time

	failed error // of the last search, which is not repeated for a while
	when   time.Time
}

// failedFor is how long a search that found nothing is not repeated.
const failedFor = time.Second

// RetrieveWithCredContext implements credentials.Provider.
func (s *search) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	if s.failed != nil && time.Since(s.when) < failedFor {
		return credentials.Value{}, s.failed
	}
	var tried []string
	for _, p := range s.providers {
		v, err := p.RetrieveWithCredContext(c)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			s.found = p.Provider
			life := 24 * time.Hour
			if !v.Expiration.IsZero() {
				life = time.Until(v.Expiration) * 3 / 4 // minio-go asks again after four fifths
			}
			s.until.Store(time.Now().Add(life).UnixNano())
			return v, nil
		}
		tried = append(tried, p.name)
	}
	s.failed = &inflight.Error{Op: "sign", Err: fmt.Errorf("%w: there are no keys", inflight.ErrAuth), Mend: "looked for: " + strings.Join(tried, "; ")}
	s.when = time.Now()
	return credentials.Value{}, s.failed
}

// Retrieve implements credentials.Provider.
func (s *search) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (s *search) IsExpired() bool { return s.found == nil || s.found.IsExpired() }
