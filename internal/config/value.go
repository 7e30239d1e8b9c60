package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// kind says how the text of a value is read.
type kind uint8

const (
	aText kind = iota
	aSwitch
	aNumber
	aShare
	aDuration
	aSize
	aChoice
	aList
)

// value is what was given: as it would be written, and what it means.
type value struct {
	text string
	v    any // string, bool, int, float64, time.Duration, int64, string, []string
}

// parse reads the text of a value.
func (o *Option) parse(text string) (v value, err error) {
	text = strings.TrimSpace(text)
	switch o.kind {
	case aText:
		return value{text, text}, nil
	case aSwitch:
		b, err := strconv.ParseBool(strings.ToLower(text))
		if err != nil {
			return v, fmt.Errorf("%q is neither true nor false", text)
		}
		return value{strconv.FormatBool(b), b}, nil
	case aNumber:
		n, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return v, fmt.Errorf("%q is no whole number", text)
		case int64(n) < o.least || n > math.MaxInt32:
			return v, fmt.Errorf("%d is not within %d and %d", n, o.least, math.MaxInt32)
		}
		return value{strconv.Itoa(n), n}, nil
	case aShare:
		f, err := parseShare(text)
		return value{strconv.FormatFloat(f, 'g', -1, 64), f}, err
	case aDuration:
		d, err := ParseDuration(text)
		if err == nil && int64(d) < o.least {
			err = fmt.Errorf("it must be more than 0")
		}
		return value{FormatDuration(d), d}, err
	case aSize:
		n, err := ParseSize(text)
		if err == nil && n < o.least {
			err = fmt.Errorf("%d is too small; %d at least", n, o.least)
		}
		return value{FormatSize(n), n}, err
	case aChoice:
		c := strings.ReplaceAll(strings.ToLower(text), "_", "-") // EXACTLY_ONCE
		if !slices.Contains(o.values, c) {
			return v, fmt.Errorf("%q is none of %s", text, strings.Join(o.values, ", "))
		}
		return value{c, c}, nil
	default:
		list := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
		return value{strings.Join(list, ","), list}, nil
	}
}

func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, fmt.Errorf("%q is no share: write a number from 0 to 1, or per cent", text)
	}
	return f, nil
}

var durationPart = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|seconds?|sec|s|minutes?|min|m|hours?|h|days?|d)\s*`)

var durationUnits = map[string]time.Duration{
	"ns": time.Nanosecond, "us": time.Microsecond, "µs": time.Microsecond, "ms": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hour": time.Hour, "hours": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
}

// ParseDuration reads a duration as Go or Flink write it: "1m30s", "10 min".
// A number without a unit is milliseconds, as in Flink.
func ParseDuration(text string) (time.Duration, error) {
	bad := fmt.Errorf("%q is no duration: write for example 500ms, 10s or 5 min", text)
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseUint(text, 10, 63); err == nil {
		if n > math.MaxInt64/uint64(time.Millisecond) {
			return 0, bad
		}
		return time.Duration(n) * time.Millisecond, nil
	}
	var sum float64
	rest := strings.ToLower(text)
	for rest != "" {
		m := durationPart.FindStringSubmatch(rest)
		if m == nil {
			return 0, bad
		}
		n, _ := strconv.ParseFloat(m[1], 64) // digits, by the expression
		sum += n * float64(durationUnits[m[2]])
		rest = rest[len(m[0]):]
	}
	if text == "" || sum >= math.MaxInt64 {
		return 0, bad
	}
	return time.Duration(math.Round(sum)), nil
}

// FormatDuration returns for example "10m", "1m30s" or "0".
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

var sizePart = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([a-z]*)$`)

var sizeUnits = map[string]float64{"": 1, "b": 1, "bytes": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "kibibytes": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "mebibytes": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "gibibytes": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40, "tebibytes": 1 << 40}

// ParseSize reads a number of bytes: "64MiB", "64 mb", "65536". As in Flink,
// all units are powers of 1,024.
func ParseSize(text string) (int64, error) {
	m := sizePart.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if m != nil {
		n, _ := strconv.ParseFloat(m[1], 64) // digits, by the expression
		if unit, ok := sizeUnits[m[2]]; ok && n*unit < math.MaxInt64 {
			return int64(n * unit), nil
		}
	}
	return 0, fmt.Errorf("%q is no size: write for example 65536, 64KiB or 256 mb", text)
}

// FormatSize returns for example "64MiB", or the number of bytes.
func FormatSize(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if u := int64(1) << (40 - 10*i); n >= u && n%u == 0 {
			return strconv.FormatInt(n/u, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// refuse is an error about one option.
func refuse(object, mend, format string, args ...any) error {
	return &inflight.Error{Op: "configure", Object: object, Mend: mend, Err: fmt.Errorf("%w: "+format, append([]any{inflight.ErrConfig}, args...)...)}
}
