package backends_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct{ url, cause, mend string }{
		"nothing":        {"", "no URL", "give a directory or a URL"},
		"unknown scheme": {"gopher://hole", `no backend for "gopher://"`, "known here: file, "},
		"a password":     {"s3://user:hunter2@bucket", "a password in the URL", "environment"},
		"two of them":    {"s3://user:hunter2@bucket?secret_key=hunter2", "a password in the URL", "environment"},
		"unparsable":     {"s3://user:hunter2@%zz", "cannot be parsed", "escape"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := backends.Open(t.Context(), c.url)
			require.ErrorIs(t, err, inflight.ErrConfig)
			require.ErrorContains(t, err, c.cause)
			require.ErrorContains(t, err, c.mend)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestRegister(t *testing.T) {
	opener := func(context.Context, *url.URL) (backends.Backend, error) { return nil, nil }
	require.Panics(t, func() { backends.Register("file", opener) }, "it is taken")
	require.Subset(t, backends.Schemes(), []string{"file", "mem"})
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "a/b", "_manifest.json", "chk-0000000007/x-1.cstate", "..a", strings.Repeat("a", 255)} {
		require.NoError(t, backends.CheckName(name), name)
	}
	for _, name := range []string{"", "/a", "a/", "a//b", ".", "a/..", "a b", "a~", "ü", "a\\b", strings.Repeat("a", 256)} {
		require.ErrorIs(t, backends.CheckName(name), inflight.ErrConfig, name)
	}
}

func TestBelow(t *testing.T) {
	for folder, want := range map[string]string{"": "", "/": "", "a": "a/", "a/": "a/", "a/b//": "a/b/"} {
		require.Equal(t, want, backends.Below(folder), folder)
	}
}
