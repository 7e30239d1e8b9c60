package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/inflight"
)

// known is what an answer of the store means.
type known struct {
	sentinel error
	mend     string
}

// codes are the answers that stores give by name. %s is the bucket.
var codes = map[string]known{
	minio.NoSuchKey:    {inflight.ErrNotExist, ""},
	"NotFound":         {inflight.ErrNotExist, ""},
	minio.NoSuchBucket: {inflight.ErrNotExist, "create the bucket %s, or correct the URL"},

	"SignatureDoesNotMatch":          {inflight.ErrAuth, "check the secret key"},
	"InvalidAccessKeyId":             {inflight.ErrAuth, "the store does not know the access key: check it, and the endpoint"},
	"InvalidToken":                   {inflight.ErrAuth, "get new session credentials"},
	"InvalidTokenId":                 {inflight.ErrAuth, "get new session credentials"},
	"ExpiredToken":                   {inflight.ErrAuth, "get new session credentials"},
	"ExpiredTokenException":          {inflight.ErrAuth, "get new session credentials"},
	"TokenRefreshRequired":           {inflight.ErrAuth, "get new session credentials"},
	"RequestTimeTooSkewed":           {inflight.ErrAuth, "set the clock of this machine: it differs from the store's"},
	"RequestExpired":                 {inflight.ErrAuth, "set the clock of this machine: it differs from the store's"},
	"MissingSecurityHeader":          {inflight.ErrAuth, "give keys by environment or profile file"},
	"CredentialsNotSupported":        {inflight.ErrAuth, "give other keys"},
	"AllAccessDisabled":              {inflight.ErrPermission, "the account or bucket is disabled"},
	"AccountProblem":                 {inflight.ErrPermission, "the account is disabled"},
	minio.AccessDenied:               {inflight.ErrPermission, "grant the access key reading, writing, listing and deleting in the bucket %s, and multipart uploads"},
	minio.MethodNotAllowed:           {inflight.ErrReadOnly, "the store does not take writes here"},
	"ObjectLocked":                   {inflight.ErrReadOnly, "the bucket %s keeps its objects from being changed"},
	"InvalidRequestReadOnly":         {inflight.ErrReadOnly, ""},
	"XMinioServerReadOnly":           {inflight.ErrReadOnly, ""},
	"XMinioStorageFull":              {inflight.ErrNoSpace, "free space on the store, or retain fewer checkpoints"},
	"InsufficientStorage":            {inflight.ErrNoSpace, "free space on the store, or retain fewer checkpoints"},
	"InsufficientCapacity":           {inflight.ErrNoSpace, "free space on the store, or retain fewer checkpoints"},
	"QuotaExceeded":                  {inflight.ErrNoSpace, "raise the quota of the bucket %s, or retain fewer checkpoints"},
	"XMinioAdminBucketQuotaExceeded": {inflight.ErrNoSpace, "raise the quota of the bucket %s, or retain fewer checkpoints"},

	"AuthorizationHeaderMalformed":       {inflight.ErrConfig, "set the region of the bucket: region=… in the URL, or AWS_REGION"},
	minio.InvalidRegion:                  {inflight.ErrConfig, "set the region of the bucket: region=… in the URL, or AWS_REGION"},
	"IllegalLocationConstraintException": {inflight.ErrConfig, "set the region of the bucket: region=… in the URL, or AWS_REGION"},
	"PermanentRedirect":                  {inflight.ErrConfig, "set the region of the bucket: region=… in the URL, or AWS_REGION"},
	"TemporaryRedirect":                  {inflight.ErrConfig, "set the region of the bucket: region=… in the URL, or AWS_REGION"},
	minio.InvalidBucketName:              {inflight.ErrConfig, "buckets have 3 to 63 lower-case letters, digits, '-' and '.'"},
	"KeyTooLongError":                    {inflight.ErrConfig, "make the folder in the URL shorter"},
	"XMinioInvalidObjectName":            {inflight.ErrConfig, "choose another name"},
	"ExistingObjectIsDirectory":          {inflight.ErrConfig, "a folder stands where an object should be: choose another name"},
	"ObjectParentIsFile":                 {inflight.ErrConfig, "an object stands where a folder should be: choose another folder"},
	"XMinioParentIsObject":               {inflight.ErrConfig, "an object stands where a folder should be: choose another folder"},
	"XMinioObjectExistsAsDirectory":      {inflight.ErrConfig, "a folder stands where an object should be: choose another name"},
	minio.EntityTooLarge:                 {inflight.ErrTooLarge, "make part-size larger, or target-file-size smaller"},
	"EntityTooSmall":                     {inflight.ErrConfig, "make part-size larger"},
	minio.NotImplemented:                 {inflight.ErrUnsupported, "the store cannot do that: see docs/backends.md for checksum=… and exclusive=…"},
	minio.APINotSupported:                {inflight.ErrUnsupported, "the store cannot do that: see docs/backends.md for checksum=… and exclusive=…"},
	"NoSuchUpload":                       {inflight.ErrNotExist, "what was written has been removed, as a leftover or by a lifecycle rule"},
	"BadDigest":                          {inflight.ErrCorrupt, "the bytes changed on the way, or the store computes another checksum: try checksum=composite or checksum=sha256"},
	"InvalidDigest":                      {inflight.ErrCorrupt, "the bytes changed on the way, or the store computes another checksum: try checksum=composite or checksum=sha256"},
	"XAmzContentSHA256Mismatch":          {inflight.ErrCorrupt, "the bytes changed on the way"},
	"XAmzContentChecksumMismatch":        {inflight.ErrCorrupt, "the bytes changed on the way"},

	"ConditionalRequestConflict": {inflight.ErrUnavailable, ""}, // another conditional write is under way: it says try again
	"OperationAborted":           {inflight.ErrUnavailable, ""},
	"RequestTimeout":             {inflight.ErrTimeout, ""},
	"SlowDown":                   {inflight.ErrUnavailable, slower},
	"SlowDownRead":               {inflight.ErrUnavailable, slower},
	"SlowDownWrite":              {inflight.ErrUnavailable, slower},
	"TooManyRequests":            {inflight.ErrUnavailable, slower},
	"Throttling":                 {inflight.ErrUnavailable, slower},
}

const slower = "the store asks for fewer requests: lower connections=…, or raise tasks-per-file"

// byStatus is for answers whose name says nothing.
func byStatus(status int) known {
	switch {
	case status == http.StatusNotFound:
		return known{inflight.ErrNotExist, ""}
	case status == http.StatusForbidden:
		return codes[minio.AccessDenied]
	case status == http.StatusUnauthorized:
		return known{inflight.ErrAuth, "check the keys"}
	case status == http.StatusPreconditionFailed:
		return known{inflight.ErrExist, ""}
	case status == http.StatusRequestedRangeNotSatisfiable:
		return known{inflight.ErrTorn, ""}
	case status == http.StatusInsufficientStorage:
		return codes["InsufficientStorage"]
	case status == http.StatusNotImplemented:
		return codes[minio.NotImplemented]
	case status == http.StatusMethodNotAllowed:
		return codes[minio.MethodNotAllowed]
	case status == http.StatusMovedPermanently, status == http.StatusTemporaryRedirect:
		return codes["PermanentRedirect"]
	case status == http.StatusRequestTimeout:
		return known{inflight.ErrTimeout, ""}
	case status == http.StatusTooManyRequests:
		return codes["SlowDown"]
	case status == http.StatusBadRequest:
		return known{inflight.ErrConfig, "the store does not take the request: check the settings in the URL"}
	case status >= 500:
		return known{inflight.ErrUnavailable, ""}
	}
	return known{}
}

// named is an error of the store that also is a sentinel of ours. It reads as
// the store's, with its name.
type named struct{ sentinel, cause error }

func (e *named) Error() string {
	if r, ok := e.cause.(minio.ErrorResponse); ok {
		return fmt.Sprintf("%v: the store answers %s", e.sentinel, oneLine(r))
	}
	return fmt.Sprintf("%v: %v", e.sentinel, e.cause)
}

func (e *named) Unwrap() []error { return []error{e.sentinel, e.cause} }

// oneLine is what an answer says, short and without line breaks.
func oneLine(r minio.ErrorResponse) string {
	text := r.Code
	if r.Message != "" && r.Message != r.Code {
		text += ": " + strings.TrimSpace(r.Message)
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	if status := strconv.Itoa(r.StatusCode); r.StatusCode != 0 && !strings.HasPrefix(text, status) {
		text = status + " " + text
	}
	return text
}

// fail says what was being done to an object, of which kind err is, and what
// helps.
func (b *Backend) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if already, ok := errors.AsType[*inflight.Error](err); ok {
		return already
	}
	sentinel, mend := b.classify(err)
	err = plain(err)
	if sentinel != nil && !errors.Is(err, sentinel) {
		err = &named{sentinel, err}
	}
	return &inflight.Error{Op: op, Object: b.object(key), Err: err, Mend: mend}
}

// plain takes the URL off an error of the transport: it is long, and the object
// is named anyway.
func plain(err error) error {
	u, ok := err.(*url.Error)
	switch {
	case !ok:
		return err
	case strings.HasPrefix(u.Err.Error(), "Connection closed by foreign host"): // as minio-go calls an EOF
		return errClosed
	}
	return u.Err
}

var errClosed = errors.New("the connection was closed")

// classify returns the sentinel for err, nil where there is none, and what the
// user can do.
func (b *Backend) classify(err error) (sentinel error, mend string) {
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok {
		if strings.Contains(r.Message, "HTTP request to an HTTPS server") {
			return inflight.ErrConfig, "write endpoint=https://…"
		}
		k, ok := codes[r.Code]
		if !ok {
			k = byStatus(r.StatusCode)
		}
		if strings.Contains(k.mend, "%s") {
			k.mend = fmt.Sprintf(k.mend, b.opt.Bucket)
		}
		return k.sentinel, k.mend
	}
	for _, ours := range []error{context.Canceled, context.DeadlineExceeded, inflight.ErrClosed, inflight.ErrAuth, inflight.ErrCorrupt, inflight.ErrTorn,
		inflight.ErrOutcomeUnknown, inflight.ErrUnsupported, inflight.ErrTooLarge, inflight.ErrConfig, inflight.ErrExist, inflight.ErrNotExist} {
		if errors.Is(err, ours) {
			return nil, ""
		}
	}
	return b.classifyNetwork(err)
}

// classifyNetwork is classify for what is no answer of the store.
func (b *Backend) classifyNetwork(err error) (sentinel error, mend string) {
	host := b.core.EndpointURL().Host
	text := err.Error()
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return inflight.ErrConfig, "if the certificate of " + host + " is your own, name it: ca=FILE in the URL, or AWS_CA_BUNDLE"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return inflight.ErrConfig, "use the host name that is in the certificate of " + host
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return inflight.ErrUnavailable, "check the host of the endpoint"
		}
		return inflight.ErrUnavailable, ""
	}
	netErr, isNet := errors.AsType[net.Error](err)
	switch {
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return inflight.ErrConfig, "write endpoint=http://…"
	case errors.Is(err, syscall.EMFILE):
		return inflight.ErrTooManyFiles, "raise the limit with `ulimit -n`"
	case errors.Is(err, syscall.ENFILE):
		return inflight.ErrTooManyFiles, "raise the limit of the system (fs.file-max)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return inflight.ErrUnavailable, "is the store running at " + host + "?"
	case isNet && netErr.Timeout():
		return inflight.ErrTimeout, "the store at " + host + " does not answer: check the network, or raise timeout=…"
	}
	if !b.reached.Load() && b.core.EndpointURL().Scheme == "http" {
		mend = "if the store speaks TLS, write endpoint=https://…"
	}
	return inflight.ErrUnavailable, mend // resets, closed connections, cut answers
}

// errCut says that a body ended before its end.
var errCut = fmt.Errorf("the answer was cut off: %w", io.ErrUnexpectedEOF)

// doubtful reports whether a refusal may be none the next time: bytes were
// damaged on the way, or a store of files answers so because it removed a folder,
// empty for a moment, in which the object was to be.
func doubtful(r minio.ErrorResponse) bool {
	switch r.StatusCode {
	case http.StatusBadRequest:
		return errors.Is(codes[r.Code].sentinel, inflight.ErrCorrupt)
	case http.StatusConflict:
		return r.Code == "ExistingObjectIsDirectory"
	}
	return false
}

// ambiguous reports whether a request that failed with err may have been carried
// out, once it was sent: its answer was lost, or is a proxy's.
func ambiguous(err error) bool {
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch r.StatusCode {
		case http.StatusNotImplemented, http.StatusInsufficientStorage:
			return false
		case 0: // an error inside a 200
			return r.Code == "InternalError"
		}
		return r.StatusCode >= 500 || r.StatusCode == http.StatusRequestTimeout
	}
	return true
}
