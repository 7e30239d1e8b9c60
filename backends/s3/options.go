package s3

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Checksum says which checksums travel with what is written.
type Checksum string

// The checksum modes.
const (
	// ChecksumFull sends a CRC-32C with every request and has the store keep one
	// of the whole object. It is the default.
	ChecksumFull Checksum = "full"
	// ChecksumComposite sends a CRC-32C with every request; of an object in
	// several parts the store keeps none that can be compared.
	ChecksumComposite Checksum = "composite"
	// ChecksumSHA256 signs the bytes of every request, as the protocol has it from
	// the beginning: for stores that know no checksum headers.
	ChecksumSHA256 Checksum = "sha256"
	// ChecksumNone leaves it to TLS, and to the checksums in our files.
	ChecksumNone Checksum = "none"
)

// Exclusive says how an exclusive create is made.
type Exclusive string

// The modes of an exclusive create.
const (
	// ExclusiveProve sends If-None-Match, and has the store prove once, on an
	// object of its own, that it minds that. It is the default.
	ExclusiveProve Exclusive = "prove"
	// ExclusiveTrust sends If-None-Match and takes it that the store minds it.
	ExclusiveTrust Exclusive = "trust"
	// ExclusiveOff refuses exclusive creates: for stores that have no conditions.
	// Such a store can hold checkpoints to read, not a job's log to write.
	ExclusiveOff Exclusive = "off"
)

// Style says where the bucket stands in the URL of a request.
type Style string

// The styles.
const (
	StyleAuto    Style = "auto"    // virtual for Amazon, path for others
	StylePath    Style = "path"    // https://host/bucket/key
	StyleVirtual Style = "virtual" // https://bucket.host/key
)

// Listing says how the store lists.
type Listing string

// The ways of listing.
const (
	// ListingAuto is flat for Amazon, and tree for others: servers that keep files
	// walk through them, and may miss what appears meanwhile.
	ListingAuto Listing = "auto"
	// ListingFlat is one scan in the order of the keys.
	ListingFlat Listing = "flat"
	// ListingTree is folder by folder. It takes two requests for each folder.
	ListingTree Listing = "tree"
)

// Options are the options of New. Zero values are the defaults.
type Options struct {
	Bucket string
	Prefix string // the folder in the bucket that is the root; "" is the bucket itself

	Endpoint string // "https://host:port" or "http://host:port"; default: Amazon
	Region   string // default: us-east-1 with an Endpoint, else that of the bucket
	Style    Style
	CAFile   string // certificates to trust besides the system's

	// AccessKey, SecretKey and SessionToken are looked for in the environment, in
	// profile files and at the instance's role where AccessKey is "".
	AccessKey, SecretKey, SessionToken string
	Anonymous                          bool // requests are not signed

	PartSize    int64         // bytes of a part; default 8 MiB, at least 5 MiB
	Workers     int           // parts of one object under way at once; default 4
	Memory      int64         // bytes of parts in memory, for all objects; default 64 MiB
	Connections int           // requests under way at once; default Workers + 2
	Timeout     time.Duration // without a byte of progress, after which a request is given up; default 30s
	RetryFor    time.Duration // from the first failure of a request; default 15s

	Checksum  Checksum
	Exclusive Exclusive
	Listing   Listing
}

const (
	mib       = 1 << 20
	minPart   = 5 * mib
	maxPart   = 5 << 30
	maxParts  = 10_000
	defPart   = 8 * mib
	defMemory = 64 * mib
)

// fill sets the defaults, and refuses what cannot work.
func (o *Options) fill() error {
	o.Prefix = strings.Trim(o.Prefix, "/")
	setDefault(&o.Style, StyleAuto)
	setDefault(&o.PartSize, defPart)
	setDefault(&o.Workers, 4)
	setDefault(&o.Memory, max(defMemory, 2*o.PartSize))
	setDefault(&o.Connections, o.Workers+2)
	setDefault(&o.Timeout, 30*time.Second)
	setDefault(&o.RetryFor, 15*time.Second)
	setDefault(&o.Checksum, ChecksumFull)
	setDefault(&o.Exclusive, ExclusiveProve)
	setDefault(&o.Listing, ListingAuto)
	switch {
	case o.Bucket == "":
		return o.refuse("no bucket", "use s3://bucket/folder")
	case o.PartSize < minPart || o.PartSize > maxPart:
		return o.refuse(fmt.Sprintf("part-size is %d", o.PartSize), "stores take parts from 5 MiB to 5 GiB")
	case o.Memory < o.PartSize:
		return o.refuse(fmt.Sprintf("memory is %d, and a part has %d bytes", o.Memory, o.PartSize), "raise memory, or make part-size smaller")
	case o.Workers < 1 || o.Connections < 1:
		return o.refuse("workers and connections count from 1", "")
	case o.Timeout < 0 || o.RetryFor < 0:
		return o.refuse("a time is negative", "")
	case !slices.Contains([]Style{StyleAuto, StylePath, StyleVirtual}, o.Style):
		return o.refuse(fmt.Sprintf("style is %q", o.Style), "use auto, path or virtual")
	case !slices.Contains([]Checksum{ChecksumFull, ChecksumComposite, ChecksumSHA256, ChecksumNone}, o.Checksum):
		return o.refuse(fmt.Sprintf("checksum is %q", o.Checksum), "use full, composite, sha256 or none")
	case !slices.Contains([]Exclusive{ExclusiveProve, ExclusiveTrust, ExclusiveOff}, o.Exclusive):
		return o.refuse(fmt.Sprintf("exclusive is %q", o.Exclusive), "use prove, trust or off")
	case !slices.Contains([]Listing{ListingAuto, ListingFlat, ListingTree}, o.Listing):
		return o.refuse(fmt.Sprintf("listing is %q", o.Listing), "use auto, flat or tree")
	}
	return nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) refuse(cause, mend string) error {
	return &inflight.Error{Op: "open", Object: "s3://" + o.Bucket + "/" + o.Prefix, Err: fmt.Errorf("%w: %s", inflight.ErrConfig, cause), Mend: mend}
}

// settings are what a URL can set, by name.
var settings = map[string]func(o *Options, v string) error{
	"endpoint":    func(o *Options, v string) error { o.Endpoint = v; return nil },
	"region":      func(o *Options, v string) error { o.Region = v; return nil },
	"style":       func(o *Options, v string) error { o.Style = Style(v); return nil },
	"ca":          func(o *Options, v string) error { o.CAFile = v; return nil },
	"anonymous":   func(o *Options, v string) (err error) { o.Anonymous, err = strconv.ParseBool(v); return err },
	"part-size":   func(o *Options, v string) (err error) { o.PartSize, err = parseSize(v); return err },
	"memory":      func(o *Options, v string) (err error) { o.Memory, err = parseSize(v); return err },
	"workers":     func(o *Options, v string) (err error) { o.Workers, err = parseCount(v); return err },
	"connections": func(o *Options, v string) (err error) { o.Connections, err = parseCount(v); return err },
	"timeout":     func(o *Options, v string) (err error) { o.Timeout, err = parseTime(v); return err },
	"retry-for":   func(o *Options, v string) (err error) { o.RetryFor, err = parseTime(v); return err },
	"checksum":    func(o *Options, v string) error { o.Checksum = Checksum(v); return nil },
	"listing":     func(o *Options, v string) error { o.Listing = Listing(v); return nil },
	"exclusive":   func(o *Options, v string) error { o.Exclusive = Exclusive(v); return nil },
}

// parseURL reads s3://bucket/folder?setting=value. What the URL leaves open, the
// environment may say.
func parseURL(u *url.URL) (Options, error) {
	o := Options{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return o, o.refuse("the settings behind '?' cannot be parsed", "write '&' as %26 and ';' as %3B in values")
	case u.User != nil:
		return o, o.refuse("a user in the URL", "give keys by environment or profile file")
	case u.Fragment != "":
		return o, o.refuse("a '#' in the URL", "write it as %23")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, known := settings[name]
		switch {
		case !known:
			return o, o.refuse(fmt.Sprintf("there is no setting %q", clip(name)), mendSetting(name))
		case len(query[name]) != 1 || query.Get(name) == "":
			return o, o.refuse(name+" needs one value", "")
		}
		if err := set(&o, query.Get(name)); err != nil {
			return o, o.refuse(fmt.Sprintf("%s=%q is not what it should be", name, clip(query.Get(name))), "sizes are like 8MiB, times like 30s")
		}
	}
	o.fromEnvironment()
	return o, nil
}

// mendSetting never repeats the value: it may be a secret that stands in the
// wrong place.
func mendSetting(name string) string {
	name = strings.ToLower(name)
	for _, secret := range []string{"key", "secret", "token", "password"} {
		if strings.Contains(name, secret) {
			return "keys do not belong into the URL: give them by environment or profile file"
		}
	}
	return "there are: " + strings.Join(slices.Sorted(maps.Keys(settings)), ", ")
}

func clip(s string) string { return s[:min(len(s), 40)] }

func (o *Options) fromEnvironment() {
	first := func(p *string, names ...string) {
		for _, name := range names {
			if *p == "" {
				*p = os.Getenv(name)
			}
		}
	}
	first(&o.Endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	first(&o.Region, "AWS_REGION", "AWS_DEFAULT_REGION")
	first(&o.CAFile, "AWS_CA_BUNDLE")
}

// parseSize reads a number of bytes: 8388608, 8MiB, 8MB.
func parseSize(s string) (int64, error) {
	number := strings.TrimRight(s, "KMGTiBkb")
	unit := map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[s[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || unit == 0 || n > (1<<62)/unit {
		return 0, fmt.Errorf("not a size")
	}
	return n * unit, nil
}

func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 10_000 {
		return 0, fmt.Errorf("not a count")
	}
	return n, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("not a time")
	}
	return d, nil
}

// growAfter is how many parts go by before they get twice as large. So 10,000
// parts are never passed by an object that fits at all, and one of up to 7.8 GiB
// has parts of one size, which some stores want.
const growAfter = 1000

// partSize returns the bytes of the part with index i, from 0. It grows up to a
// quarter of the memory.
func (o *Options) partSize(i int, hint int64) int64 {
	size := max(o.PartSize, min((hint+maxParts-1)/maxParts, o.Memory))
	for n := growAfter; i >= n && size*2 <= max(o.Memory/4, o.PartSize); n += 3 * growAfter {
		size *= 2
	}
	return size
}

// maxObject is what fits into 10,000 parts.
func (o *Options) maxObject() (total int64) {
	for i := range maxParts {
		total += o.partSize(i, 0)
	}
	return total
}
