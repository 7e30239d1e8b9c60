package flink

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

func TestSplitURL(t *testing.T) {
	for _, tc := range []struct{ url, dir, name string }{
		{"/a/b/chk-7", "/a/b", "chk-7"},
		{"/a/b/chk-7/", "/a/b", "chk-7"},
		{"chk-7", ".", "chk-7"},
		{"file:/a/chk-7", "/a", "chk-7"},
		{"file:///a/chk-7", "file:///a", "chk-7"},
		{"s3://bucket/p/chk-7?region=x", "s3://bucket/p?region=x", "chk-7"},
		{"s3://bucket/chk-7", "s3://bucket/", "chk-7"},
		{"hdfs://user@nn:8020/flink/chk-7", "hdfs://user@nn:8020/flink", "chk-7"},
	} {
		dir, name, err := SplitURL(tc.url)
		require.NoError(t, err, tc.url)
		require.Equal(t, []string{tc.dir, tc.name}, []string{dir, name}, tc.url)
	}
	for _, bad := range []string{"", "/", "s3://bucket", "s3://bucket/", "..", "file:///", "s3://%zz/a"} {
		_, _, err := SplitURL(bad)
		require.ErrorIs(t, err, inflight.ErrConfig, bad)
	}
}

func TestURI(t *testing.T) {
	for _, tc := range []struct{ path, root, want string }{
		{"file:/a/b/c", "file:///a", "b/c"},
		{"file:///a/b/c", "file:///a/b", "c"},
		{"/a/b", "file:///a", "b"},
		{"s3a://bucket/p/shared/x", "s3://bucket/p", "shared/x"},
		{"s3://other/p/x", "s3://bucket/p", ""},
		{"hdfs://nn:8020/f/x", "hdfs://me@nn:8020/f", "x"},
		{"hdfs:/f/x", "hdfs://me@nn:8020/f", "x"},
		{"file:/ab/c", "file:///a", ""},
		{"hdfs://nn/f/x", "file:///f", ""},
		{"file:/a/../b/c", "file:///b", "c"},
		{"file:/x", "file:///", "x"},
	} {
		u, err := parseURI(tc.path)
		require.NoError(t, err)
		root, err := parseURI(tc.root)
		require.NoError(t, err)
		name, ok := u.below(root)
		require.Equal(t, tc.want != "", ok, tc.path)
		if !ok {
			continue
		}
		require.Equal(t, tc.want, name, "%s below %s", tc.path, tc.root)
	}
	for _, bad := range []string{"", "a/b", "file:a", "s3:"} {
		_, err := parseURI(bad)
		require.ErrorIs(t, err, inflight.ErrConfig, bad)
	}
}

func TestOpenURL(t *testing.T) {
	root := flinktest.Unpack(t, "resume-rocksdb")
	c, err := OpenURL(t.Context(), filepath.Join(root, "chk-3"), OpenOptions{})
	require.NoError(t, err)
	require.Equal(t, "chk-3", c.Dir)
	is, err := Detect(t.Context(), c.Backend(), "chk-3")
	require.NoError(t, err)
	require.True(t, is)
	is, err = Detect(t.Context(), c.Backend(), "shared")
	require.NoError(t, err)
	require.False(t, is)
	sum := 0
	for _, r := range c.Room() {
		require.LessOrEqual(t, r.Channels+r.Keyed+r.State, r.Bytes)
		sum += r.Bytes
	}
	require.EqualValues(t, c.PropertiesOffset(), sum+24)
	require.NoError(t, c.Close())
	_, err = OpenURL(t.Context(), filepath.Join(root, "chk-4"), OpenOptions{})
	require.ErrorIs(t, err, inflight.ErrNotExist)

	// Rooted at the checkpoint itself, files beside it are found all the same.
	b, err := backends.Open(t.Context(), filepath.Join(root, "chk-3"))
	require.NoError(t, err)
	defer b.Close()
	r, err := Verify(t.Context(), b, "", VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, "3 × error moved-path", codes(r.Findings))
}

// far makes a store look remote.
type far struct{ backends.Backend }

func (f far) Capabilities() backends.Capabilities {
	c := f.Backend.Capabilities()
	c.Remote = true
	return c
}

// TestRemote reads from a store on which requests are dear.
func TestRemote(t *testing.T) {
	for _, name := range []string{"resume", "wide-10x10-2tm", "keyed-2x2-share1"} {
		c, _ := openFixture(t, name)
		here, err := c.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, err)
		var reads atomic.Int64
		count := wrap.NewFaults(c.Backend(), wrap.Rule{When: wrap.On(wrap.OpReadAt), Then: wrap.Before(func(wrap.Call) { reads.Add(1) })})
		there, err := Verify(t.Context(), far{count}, c.Dir, VerifyOptions{})
		require.NoError(t, err)
		require.Equal(t, here.Findings, there.Findings)
		require.Equal(t, here.Bytes, there.Bytes)
		files := int64(1) // _metadata
		for _, s := range here.Index.Streams {
			if s.Handle.Path() != "" {
				files++
			}
		}
		require.EqualValues(t, files, reads.Load(), "each file is read once")
	}
}

// TestOddNames has a base directory whose name a URL must escape.
func TestOddNames(t *testing.T) {
	root := flinktest.Unpack(t, "resume-rocksdb")
	odd := filepath.Join(filepath.Dir(root), "a b%20?é")
	require.NoError(t, os.Rename(root, odd))
	c, err := OpenURL(t.Context(), filepath.Join(odd, "chk-3"), OpenOptions{})
	require.NoError(t, err)
	p, err := c.PlanRelocate(t.Context(), RelocateOptions{Paths: []Move{{From: "file:/flink/checkpoints/resume-rocksdb", To: "file:" + filepath.ToSlash(odd)}}})
	require.NoError(t, err)
	require.NoError(t, p.Execute(t.Context(), c.Backend(), "new/chk-3"))
	require.NoError(t, c.Close())
	c, err = OpenURL(t.Context(), filepath.Join(odd, "new", "chk-3"), OpenOptions{})
	require.NoError(t, err)
	requireRight(t, c) // through the store of the checkpoint's parent, and that of shared/
	require.NoError(t, c.Close())
}
