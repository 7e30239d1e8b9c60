package s3_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/e2e/need"
	"github.com/spillway-io/spillway/e2e/servers"
)

// One server of each kind is started when the first test needs it, and serves
// all of them; each test has a bucket of its own. Tests that kill a server start
// one for themselves.
var (
	stateDir string
	started  sync.Map // of kinds to func() (*servers.Server, error)
)

// toxiproxy leaves goroutines behind when a connection breaks.
const toxiproxy = "github.com/Shopify/toxiproxy/v2"

func TestMain(m *testing.M) {
	for _, name := range []string{"AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_SESSION_TOKEN"} {
		os.Unsetenv(name)
	}
	os.Setenv("AWS_ACCESS_KEY_ID", servers.AccessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", servers.SecretKey)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if stateDir, err = os.MkdirTemp("", "spillway-s3-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(stateDir)
	code := m.Run()
	started.Range(func(_, start any) bool {
		if s, err := start.(func() (*servers.Server, error))(); err == nil {
			s.Stop()
		}
		return true
	})
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreAnyFunction(toxiproxy+".(*ToxicLink).read"), goleak.IgnoreAnyFunction(toxiproxy+"/toxics.(*ToxicStub).Run")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// shared returns the server of a kind that all tests use.
func shared(t testing.TB, kind servers.Kind) *servers.Server {
	t.Helper()
	start, _ := started.LoadOrStore(kind, sync.OnceValues(func() (*servers.Server, error) {
		return servers.Start(servers.Config{Kind: kind, Dir: filepath.Join(stateDir, string(kind))})
	}))
	s, err := start.(func() (*servers.Server, error))()
	need.Or(t, err)
	return s
}

// own starts a server for one test.
func own(t testing.TB, c servers.Config) *servers.Server {
	t.Helper()
	c.Dir = t.TempDir()
	s, err := servers.Start(c)
	need.Or(t, err)
	t.Cleanup(s.Stop)
	return s
}

// each runs a test on all servers.
func each(t *testing.T, test func(t *testing.T, s *servers.Server)) {
	for _, kind := range servers.Kinds {
		t.Run(string(kind), func(t *testing.T) { test(t, shared(t, kind)) })
	}
}

// raw is minio-go as it is, to prepare and to look.
func raw(t testing.TB, s *servers.Server) *minio.Client {
	t.Helper()
	tr, err := minio.DefaultTransport(s.CAFile != "")
	require.NoError(t, err)
	if s.CAFile != "" {
		tr.TLSClientConfig.RootCAs = trust(t, s.CAFile)
	}
	c, err := minio.New(s.Address, &minio.Options{Creds: credentials.NewStaticV4(servers.AccessKey, servers.SecretKey, ""), Secure: s.CAFile != "",
		Region: "us-east-1", Transport: tr, MaxRetries: 3})
	require.NoError(t, err)
	t.Cleanup(tr.CloseIdleConnections)
	return c
}

func trust(t testing.TB, file string) *x509.CertPool {
	pem, err := os.ReadFile(file)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pem))
	return pool
}

// bucket makes a bucket.
func bucket(t testing.TB, s *servers.Server) string {
	t.Helper()
	name := fmt.Sprintf("b%012x", rand.Uint64()>>16)
	require.NoError(t, raw(t, s).MakeBucket(t.Context(), name, minio.MakeBucketOptions{}))
	return name
}

// urlOf is the URL of a folder in a bucket; settings are key, value, key, value.
func urlOf(s *servers.Server, bucket, folder string, settings ...string) string {
	q := url.Values{"endpoint": {s.Endpoint}}
	if s.CAFile != "" {
		q.Set("ca", s.CAFile)
	}
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	return "s3://" + bucket + "/" + folder + "?" + q.Encode()
}

// open opens a store, and closes it after the test.
func open(t testing.TB, rawURL string) *s3.Backend {
	t.Helper()
	b, err := backends.Open(context.Background(), rawURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*s3.Backend)
}

// put writes an object in pieces of 256 KiB.
func put(ctx context.Context, b backends.Backend, name string, data []byte, o backends.CreateOptions) (backends.Info, error) {
	w, err := b.Create(ctx, name, o)
	if err != nil {
		return backends.Info{}, err
	}
	for len(data) > 0 {
		n, err := w.Write(data[:min(len(data), 256<<10)])
		if err != nil {
			return backends.Info{}, errors.Join(err, w.Abort(ctx))
		}
		data = data[n:]
	}
	return w.Finish(ctx)
}

// get reads an object.
func get(ctx context.Context, b backends.Backend, name string) ([]byte, error) {
	s, err := b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	data := make([]byte, s.Info().Size)
	return data, s.ReadAt(ctx, data, 0)
}

// random returns n bytes that depend on seed.
func random(seed byte, n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

func uploads(t testing.TB, b backends.Backend) (n int) {
	t.Helper()
	for _, err := range b.Leftovers(t.Context(), "") {
		require.NoError(t, err)
		n++
	}
	return n
}
