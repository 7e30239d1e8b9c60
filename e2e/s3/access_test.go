package s3_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/e2e/servers"
	"github.com/spillway-io/spillway/inflight"
)

// secrets must not be in any error.
var secrets = []string{servers.SecretKey, servers.ReadOnlySecret, "wrongsecret", "X-Amz-Signature", "Signature="}

// refused checks an error: its kind, what it says helps, and that it gives away
// nothing.
func refused(t *testing.T, err error, kind error, mend string) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	typed, ok := errors.AsType[*inflight.Error](err)
	require.True(t, ok, "%v", err)
	require.NotEmpty(t, typed.Op)
	require.Regexp(t, mend, typed.Mend, "%v", err)
	require.NotContains(t, typed.Error(), "\n")
	for _, secret := range secrets {
		require.NotContains(t, err.Error(), secret)
	}
	t.Log(err)
}

// with opens a bucket with options in code.
func with(t *testing.T, s *servers.Server, name string, change func(*s3.Options)) *s3.Backend {
	t.Helper()
	o := s3.Options{Bucket: name, Prefix: "access", Endpoint: s.Endpoint, CAFile: s.CAFile, AccessKey: servers.AccessKey, SecretKey: servers.SecretKey,
		Timeout: 2 * time.Second, RetryFor: time.Second}
	change(&o)
	b, err := s3.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// operations are those whose errors a user may see first.
func operations(b backends.Backend) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"list": func(ctx context.Context) (err error) {
			for _, err = range b.List(ctx, "") {
			}
			return err
		},
		"children": func(ctx context.Context) (err error) {
			for _, err = range b.Children(ctx, "") {
			}
			return err
		},
		"open": func(ctx context.Context) error { _, err := b.Open(ctx, "there"); return err },
		"write": func(ctx context.Context) error {
			_, err := put(ctx, b, "new", []byte("x"), backends.CreateOptions{})
			return err
		},
		"exclusive": func(ctx context.Context) error {
			_, err := put(ctx, b, "new", []byte("x"), backends.CreateOptions{Exclusive: true})
			return err
		},
		"upload": func(ctx context.Context) error {
			_, err := put(ctx, b, "new", make([]byte, 9*mib), backends.CreateOptions{})
			return err
		},
		"remove": func(ctx context.Context) error { return b.Remove(ctx, "there", "x") },
		"leftovers": func(ctx context.Context) (err error) {
			for _, err = range b.Leftovers(ctx, "") {
			}
			return err
		},
	}
}

// TestRefused has every operation refused in every way, on every server.
func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		name := bucket(t, s)
		_, err := put(t.Context(), with(t, s, name, func(*s3.Options) {}), "there", []byte("x"), backends.CreateOptions{})
		require.NoError(t, err)
		wrongScheme, schemeError := "https", inflight.ErrConfig
		if s.CAFile != "" {
			wrongScheme, schemeError = "http", inflight.ErrUnavailable // it only hangs up
		}
		for what, c := range map[string]struct {
			change func(*s3.Options)
			kind   error
			mend   string
		}{
			"wrong secret":   {func(o *s3.Options) { o.SecretKey = "wrongsecret" }, inflight.ErrAuth, "check the secret key"},
			"unknown key":    {func(o *s3.Options) { o.AccessKey = "nobody" }, inflight.ErrAuth, "does not know the access key"},
			"anonymous":      {func(o *s3.Options) { o.Anonymous = true }, inflight.ErrPermission, "grant the access key .* " + name},
			"missing bucket": {func(o *s3.Options) { o.Bucket = "no-such-bucket" }, inflight.ErrNotExist, "create the bucket no-such-bucket"},
			"wrong scheme":   {func(o *s3.Options) { o.Endpoint = wrongScheme + "://" + s.Address }, schemeError, "write endpoint=http"},
		} {
			b := with(t, s, name, c.change)
			for op, call := range operations(b) {
				t.Run(what+"/"+op, func(t *testing.T) {
					kind := c.kind
					if op == "write" && kind == inflight.ErrUnavailable {
						kind = inflight.ErrOutcomeUnknown
					}
					refused(t, call(t.Context()), kind, c.mend)
				})
			}
		}
	})
}

func TestWrongRegion(t *testing.T) {
	s := shared(t, servers.VersityGW) // the other one does not mind
	b := with(t, s, bucket(t, s), func(o *s3.Options) { o.Region = "eu-north-1" })
	for op, call := range operations(b) {
		t.Run(op, func(t *testing.T) { refused(t, call(t.Context()), inflight.ErrConfig, "region=…") })
	}
}

func TestUntrustedCertificate(t *testing.T) {
	s := shared(t, servers.VersityGWTLS)
	b := with(t, s, bucket(t, s), func(o *s3.Options) { o.CAFile = "" })
	for op, call := range operations(b) {
		t.Run(op, func(t *testing.T) { refused(t, call(t.Context()), inflight.ErrConfig, "ca=FILE") })
	}
}

// TestReadOnly: reading works, writing is refused.
func TestReadOnly(t *testing.T) {
	ro := func(s *servers.Server, o *s3.Options) {
		if s.Kind == servers.SeaweedFS {
			o.AccessKey, o.SecretKey = servers.ReadOnlyKey, servers.ReadOnlySecret
		}
	}
	for _, kind := range []servers.Kind{servers.VersityGW, servers.SeaweedFS} {
		t.Run(string(kind), func(t *testing.T) {
			s := shared(t, kind)
			if kind == servers.VersityGW {
				s = own(t, servers.Config{Kind: kind})
			}
			name := bucket(t, s)
			rw := with(t, s, name, func(*s3.Options) {})
			_, err := put(t.Context(), rw, "there", []byte("x"), backends.CreateOptions{})
			require.NoError(t, err)
			if kind == servers.VersityGW {
				s.Kill()
				s.ReadOnly = true
				require.NoError(t, s.Restart())
			}
			b := with(t, s, name, func(o *s3.Options) { ro(s, o) })
			got, err := get(t.Context(), b, "there")
			require.NoError(t, err)
			require.Equal(t, "x", string(got))
			ops := operations(b)
			require.NoError(t, ops["list"](t.Context()))
			for _, op := range []string{"write", "exclusive", "upload", "remove"} {
				t.Run(op, func(t *testing.T) {
					refused(t, ops[op](t.Context()), inflight.ErrPermission, "grant the access key .*writing")
				})
			}
			got, err = get(t.Context(), b, "there")
			require.NoError(t, err)
			require.Equal(t, "x", string(got))
		})
	}
}

// TestNamesInTheWay: versitygw, as MinIO, keeps files: no key can be the folder
// of another.
func TestNamesInTheWay(t *testing.T) {
	s := shared(t, servers.VersityGW)
	b := with(t, s, bucket(t, s), func(*s3.Options) {})
	_, err := put(t.Context(), b, "a", []byte("x"), backends.CreateOptions{})
	require.NoError(t, err)
	_, err = put(t.Context(), b, "a/b", []byte("x"), backends.CreateOptions{})
	refused(t, err, inflight.ErrConfig, "an object stands where a folder should be")
	long := with(t, s, bucket(t, s), func(o *s3.Options) { o.Prefix = strings.Repeat("x", 300) })
	_, err = put(t.Context(), long, "a", []byte("x"), backends.CreateOptions{})
	refused(t, err, inflight.ErrConfig, "make the folder in the URL shorter")
}

// TestFullDisk: the server's disk is full. It is a small one, in a mount
// namespace of the server's own.
func TestFullDisk(t *testing.T) {
	s := own(t, servers.Config{Kind: servers.VersityGW, DiskMiB: 24})
	b := with(t, s, bucket(t, s), func(*s3.Options) {})
	_, err := put(t.Context(), b, "there", random(1, 4*mib), backends.CreateOptions{})
	require.NoError(t, err)
	_, err = put(t.Context(), b, "large", random(2, 40*mib), backends.CreateOptions{})
	refused(t, err, inflight.ErrNoSpace, "free space on the store")
	require.False(t, inflight.Retryable(err))
	require.Zero(t, uploads(t, b), "the upload takes space that others need")
	_, err = put(t.Context(), b, "again", random(3, 4*mib), backends.CreateOptions{})
	require.NoError(t, err, "what the failed upload took is free again")
	got, err := get(t.Context(), b, "there")
	require.NoError(t, err)
	require.Equal(t, random(1, 4*mib), got)
}

// TestNoKeys: without keys anywhere the error says where they were looked for.
func TestNoKeys(t *testing.T) {
	s := shared(t, servers.VersityGW)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"} {
		t.Setenv(name, "")
	}
	home := t.TempDir()
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(home, "credentials"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(home, "config"))
	nobody := httptest.NewServer(http.NotFoundHandler())
	defer nobody.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", nobody.URL) // or it would ask the network
	name := bucket(t, s)
	b := open(t, urlOf(s, name, "keys"))
	err := operations(b)["list"](t.Context())
	refused(t, err, inflight.ErrAuth, "AWS_ACCESS_KEY_ID.*MINIO_ACCESS_KEY.*AWS_PROFILE.*role")

	// The order: role, profile, MINIO_*, AWS_*. Each that comes later wins.
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"AccessKeyID":%q,"SecretAccessKey":%q,"Token":"","Expiration":"2099-01-01T00:00:00Z"}`, servers.AccessKey, servers.SecretKey)
	}))
	defer role.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	works := func(how string) {
		t.Helper()
		require.NoError(t, operations(open(t, urlOf(s, name, "keys")))["list"](t.Context()), how)
	}
	wrong := func() {
		t.Helper()
		refused(t, operations(open(t, urlOf(s, name, "keys")))["list"](t.Context()), inflight.ErrAuth, "check the secret key")
	}
	works("role")
	profile := func(secret string) {
		text := fmt.Sprintf("[spillway]\naws_access_key_id = %s\naws_secret_access_key = %s\n", servers.AccessKey, secret)
		require.NoError(t, os.WriteFile(filepath.Join(home, "credentials"), []byte(text), 0o600))
	}
	t.Setenv("AWS_PROFILE", "spillway")
	profile("wrongsecret")
	wrong()
	profile(servers.SecretKey)
	works("profile")
	t.Setenv("MINIO_ACCESS_KEY", servers.AccessKey)
	t.Setenv("MINIO_SECRET_KEY", "wrongsecret")
	wrong()
	t.Setenv("MINIO_SECRET_KEY", servers.SecretKey)
	works("MINIO_*")
	t.Setenv("AWS_ACCESS_KEY_ID", servers.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrongsecret")
	wrong()
	t.Setenv("AWS_SECRET_ACCESS_KEY", servers.SecretKey)
	works("AWS_*")
}

// TestHosts: a host that does not exist, and a port that nobody listens on.
func TestHosts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := l.Addr().String()
	require.NoError(t, l.Close())
	for endpoint, mend := range map[string]string{"http://no-such-host.invalid": "check the host of the endpoint|^$", "http://" + closed: "is the store running at " + closed} {
		b := open(t, "s3://bucket/x?endpoint="+endpoint)
		for op, call := range operations(b) {
			if op == "upload" {
				continue
			}
			t.Run(endpoint+"/"+op, func(t *testing.T) {
				t.Parallel()
				refused(t, within(t, 8*time.Second, func() error { return call(t.Context()) }), inflight.ErrUnavailable, mend)
			})
		}
	}
}

// commands builds the commands once.
var commands = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(stateDir, "bin")
	for _, name := range []string{"ckpt-inspect", "ckpt-run"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./cmd/"+name)
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return dir, nil
})

// command is the path of one.
func command(t testing.TB, name string) string {
	t.Helper()
	dir, err := commands()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// TestTooManyFiles: the process has no file descriptor left for a connection. It
// is a process of its own, which is this test again.
func TestTooManyFiles(t *testing.T) {
	url := os.Getenv("E2E_FEW_FILES")
	if url == "" {
		s := shared(t, servers.VersityGW)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTooManyFiles$")
		cmd.Env = append(os.Environ(), "E2E_FEW_FILES="+urlOf(s, bucket(t, s), "x", "retry-for", "1s"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	b := open(t, url)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}))
	var held []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	for op, call := range operations(b) {
		t.Run(op, func(t *testing.T) { refused(t, call(t.Context()), inflight.ErrTooManyFiles, "ulimit -n") })
	}
	for _, f := range held {
		require.NoError(t, f.Close())
	}
	require.NoError(t, operations(b)["list"](t.Context()))
}

// TestBadURLs: what cannot work is refused before any request.
func TestBadURLs(t *testing.T) {
	for rest, mend := range map[string]string{
		"bucket?secret-key=" + fmt.Sprint(rand.Uint64()): "keys do not belong into the URL",
		"bucket?regoin=x":               "there are: anonymous, ca, checksum",
		"bucket?endpoint=host:9000":     "endpoint=https://host:port",
		"bucket?endpoint=http://h/path": "endpoint=https://host:port",
		"bucket?part-size=1MiB":         "5 MiB",
		"bucket?part-size=x":            "8MiB",
		"bucket?style=x":                "auto, path or virtual",
		"bucket?checksum=x":             "full, composite, sha256 or none",
		"bucket?exclusive=x":            "prove, trust or off",
		"bucket?listing=x":              "auto, flat or tree",
		"bucket?region=":                "^$",
		"bucket?region=a&region=b":      "^$",
		"bucket#x":                      "%23",
		"bucket?ca=/nowhere.pem":        "PEM",
		"user@bucket/x":                 "environment",
		"/x":                            "s3://bucket/folder",
	} {
		t.Run(rest, func(t *testing.T) {
			_, err := backends.Open(t.Context(), "s3://"+rest)
			refused(t, err, inflight.ErrConfig, mend)
		})
	}
}
