package s3_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/e2e/servers"
)

// One server of each kind is started when the first test needs it, and serves
// all of them; each test has a bucket of its own. Tests that kill a server start
// one for themselves.
var (
	stateDir string
	started  sync.Map // of kinds to func() (*servers.Server, error)
)

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
		if err := goleak.Find(); err != nil {
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
	return need(t, s, err)
}

// own starts a server for one test.
func own(t testing.TB, c servers.Config) *servers.Server {
	t.Helper()
	c.Dir = t.TempDir()
	s, err := servers.Start(c)
	need(t, s, err)
	t.Cleanup(s.Stop)
	return s
}

// need leaves a test out where its server cannot be had; in CI that is a failure.
func need(t testing.TB, s *servers.Server, err error) *servers.Server {
	t.Helper()
	switch {
	case err == nil:
		return s
	case os.Getenv("CI") == "true":
		require.NoError(t, err)
	default:
		t.Skip(err)
	}
	return nil
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

// short is a name of a kind for a folder.
func short(s *servers.Server) string { return strings.ReplaceAll(string(s.Kind), "-", "") }
