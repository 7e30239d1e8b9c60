package s3

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spillway-io/spillway/inflight"
)

// credentialsOf returns the keys that the options have, or a search for them.
func credentialsOf(o *Options) (*credentials.Credentials, error) {
	switch {
	case o.Anonymous:
		return credentials.New(&credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}}), nil
	case o.AccessKey != "" && o.SecretKey != "":
		return credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.SessionToken), nil
	case o.AccessKey != "" || o.SecretKey != "":
		return nil, o.refuse("one of access key and secret key is missing", "give both")
	}
	return credentials.New(&search{providers: []provider{
		{"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", &credentials.EnvAWS{}},
		{"MINIO_ACCESS_KEY and MINIO_SECRET_KEY", &credentials.EnvMinio{}},
		{"the profile AWS_PROFILE in ~/.aws", &credentials.FileAWSCredentials{}},
		{"the role of this machine", &credentials.IAM{Client: roleClient()}},
	}}), nil
}

// roleClient asks for the role of the instance. Where there is none, the address
// is often one that does not answer.
func roleClient() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
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
}

// RetrieveWithCredContext implements credentials.Provider.
func (s *search) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	var tried []string
	for _, p := range s.providers {
		v, err := p.RetrieveWithCredContext(c)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			s.found = p.Provider
			return v, nil
		}
		tried = append(tried, p.name)
	}
	return credentials.Value{}, &inflight.Error{Op: "sign", Err: fmt.Errorf("%w: there are no keys", inflight.ErrAuth),
		Mend: "looked for: " + strings.Join(tried, "; ")}
}

// Retrieve implements credentials.Provider.
func (s *search) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (s *search) IsExpired() bool { return s.found == nil || s.found.IsExpired() }
