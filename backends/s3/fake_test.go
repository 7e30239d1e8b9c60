package s3

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fake answers as a store would, in memory: for what real servers do not do on
// demand. What real ones do is tested in e2e/s3.
type fake struct {
	*httptest.Server
	// intercept may answer a request itself, and reports whether it did.
	intercept func(http.ResponseWriter, *http.Request) bool
	noCond    bool // it ignores If-None-Match

	mu      sync.Mutex
	objects map[string]*fakeObject
	uploads map[string]*fakeUpload
	seen    []*http.Request
	next    int
}

type fakeObject struct {
	data     []byte
	meta     http.Header
	etag     string
	modified time.Time
}

type fakeUpload struct {
	key   string
	meta  http.Header
	parts map[int][]byte
	begun time.Time
}

func newFake(t testing.TB) *fake {
	f := &fake{objects: map[string]*fakeObject{}, uploads: map[string]*fakeUpload{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// open opens the bucket of the fake.
func (f *fake) open(t testing.TB, change func(*Options)) *Backend {
	o := Options{Bucket: "bucket", Prefix: "ckpt", Endpoint: f.URL, AccessKey: "key", SecretKey: "hunter2hunter2", RetryFor: 2 * time.Second, Timeout: 5 * time.Second}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// requests returns those that came.
func (f *fake) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

func fakeError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s, it says</Message></Error>", code, code)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.intercept != nil && f.intercept(w, r) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"), "bucket/")
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("delete"):
		f.deleteMany(w, body)
	case r.Method == http.MethodPost && q.Has("uploads"):
		f.next++
		id := strconv.Itoa(f.next)
		f.uploads[id] = &fakeUpload{key: key, meta: r.Header, parts: map[int][]byte{}, begun: time.Now()}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case r.Method == http.MethodGet && q.Has("uploads"):
		f.listUploads(w, q.Get("prefix"))
	case q.Has("uploadId"):
		f.upload(w, r, key, body)
	case r.Method == http.MethodPut:
		f.put(w, r, key, body, r.Header, hex.EncodeToString(md5.New().Sum(body)[:8]))
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case q.Has("list-type"):
		f.list(w, q)
	default:
		f.get(w, r, key)
	}
}

func (f *fake) put(w http.ResponseWriter, r *http.Request, key string, data []byte, meta http.Header, etag string) {
	if f.objects[key] != nil && r.Header.Get("If-None-Match") == "*" && !f.noCond {
		fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	if sum := r.Header.Get("X-Amz-Checksum-Crc32c"); sum != "" && sum != encodeChecksum(crc32.Checksum(data, castagnoli)) {
		fakeError(w, http.StatusBadRequest, "BadDigest")
		return
	}
	f.next++
	etag = fmt.Sprintf("%s%08d", etag, f.next)
	f.objects[key] = &fakeObject{data: data, meta: meta, etag: etag, modified: time.Now()}
	w.Header().Set("ETag", `"`+etag+`"`)
	if r.Method == http.MethodPost {
		fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>%s</Key><ETag>%s</ETag></CompleteMultipartUploadResult>", key, etag)
	}
}

func (f *fake) upload(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	id := r.URL.Query().Get("uploadId")
	u := f.uploads[id]
	if u == nil {
		fakeError(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	switch r.Method {
	case http.MethodPut:
		n, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		u.parts[n] = body
		w.Header().Set("ETag", fmt.Sprintf(`"part%d"`, n))
	case http.MethodGet:
		fmt.Fprint(w, "<ListPartsResult>")
		for n, p := range u.parts {
			fmt.Fprintf(w, "<Part><PartNumber>%d</PartNumber><Size>%d</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Part>", n, len(p))
		}
		fmt.Fprint(w, "</ListPartsResult>")
	case http.MethodDelete:
		delete(f.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPost:
		var data []byte
		for _, n := range slices.Sorted(maps.Keys(u.parts)) {
			data = append(data, u.parts[n]...)
		}
		f.put(w, r, key, data, u.meta, "multi")
		if f.objects[key] != nil && len(f.objects[key].data) == len(data) {
			delete(f.uploads, id)
		}
	}
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, key string) {
	o := f.objects[key]
	if o == nil {
		fakeError(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	if match := r.Header.Get("If-Match"); match != "" && match != `"`+o.etag+`"` {
		fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	for name, values := range o.meta {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			w.Header()[name] = values
		}
	}
	h := w.Header()
	h.Set("ETag", `"`+o.etag+`"`)
	h.Set("X-Amz-Checksum-Crc32c", base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(o.data, castagnoli))))
	h.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	http.ServeContent(w, r, "", o.modified, strings.NewReader(string(o.data)))
}

func (f *fake) deleteMany(w http.ResponseWriter, body []byte) {
	var request struct {
		Object []struct{ Key string }
	}
	if xml.Unmarshal(body, &request) != nil {
		fakeError(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	fmt.Fprint(w, "<DeleteResult>")
	for _, o := range request.Object {
		if strings.HasSuffix(o.Key, "locked") {
			fmt.Fprintf(w, "<Error><Key>%s</Key><Code>AccessDenied</Code><Message>no</Message></Error>", o.Key)
			continue
		}
		delete(f.objects, o.Key)
		fmt.Fprintf(w, "<Deleted><Key>%s</Key></Deleted>", o.Key)
	}
	fmt.Fprint(w, "</DeleteResult>")
}

func (f *fake) list(w http.ResponseWriter, q url.Values) {
	fmt.Fprint(w, "<ListBucketResult>")
	last, n, more := "", 0, false
	after := q.Get("start-after")
	if token := q.Get("continuation-token"); token != "" {
		after = token
	}
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		rest, ok := strings.CutPrefix(key, q.Get("prefix"))
		if !ok || key <= after || last != "" && strings.HasSuffix(last, "/") && strings.HasPrefix(key, last) ||
			strings.HasSuffix(after, "/") && strings.HasPrefix(key, after) {
			continue
		}
		if more = n == 100; more {
			break
		}
		n++
		last = key
		if part, _, deep := strings.Cut(rest, "/"); deep && q.Get("delimiter") == "/" {
			last = q.Get("prefix") + part + "/"
			fmt.Fprintf(w, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", last)
			continue
		}
		o := f.objects[key]
		fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size><ETag>\"%s\"</ETag><LastModified>%s</LastModified></Contents>",
			key, len(o.data), o.etag, o.modified.UTC().Format(time.RFC3339))
	}
	if more {
		fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", last)
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

func (f *fake) listUploads(w http.ResponseWriter, prefix string) {
	fmt.Fprint(w, "<ListMultipartUploadsResult>")
	for id, u := range f.uploads {
		if strings.HasPrefix(u.key, prefix) {
			fmt.Fprintf(w, "<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>", u.key, id, u.begun.UTC().Format(time.RFC3339))
		}
	}
	fmt.Fprint(w, "</ListMultipartUploadsResult>")
}
