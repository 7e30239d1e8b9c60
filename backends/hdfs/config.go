package hdfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/colinmarc/hdfs/v2/hadoopconf"
)

// Options describe a store. A URL says the same:
//
//	hdfs://[user@]namenode[:port]/dir?replication=2&umask=027
//	hdfs://nameservice/dir                  namenodes from HADOOP_CONF_DIR
//	hdfs:///dir                             fs.defaultFS from HADOOP_CONF_DIR
type Options struct {
	// Namenodes are the addresses (host:port) of the namenodes of one cluster; of
	// several the active one is found.
	Namenodes []string
	// Service stands in the URL in place of the namenode, where there are several.
	Service string
	// Dir is the root of the store. It is made by the first Create.
	Dir string
	// User is who we say we are; default HADOOP_USER_NAME, or the user of the
	// process. With Kerberos it is the principal's.
	User string
	// Conf holds settings of Hadoop, as in core-site.xml and hdfs-site.xml: those
	// of security, and dfs.replication, dfs.blocksize, fs.permissions.umask-mode.
	Conf map[string]string

	// Replication of files; default dfs.replication, or the namenode's.
	Replication int
	// BlockSize of files; default dfs.blocksize, or the namenode's.
	BlockSize int64
	// Umask takes rights from 0666 and 0777; default fs.permissions.umask-mode, or
	// 077: nobody else reads what is in flight.
	Umask *os.FileMode

	// RPCTimeout bounds each answer of a namenode; default 30s.
	RPCTimeout time.Duration
	// DataTimeout is how long a datanode may stand still; default 60s.
	DataTimeout time.Duration
	// Dial opens connections; default a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Keytab is the file with the principal's key; default KRB5_CLIENT_KTNAME.
	// Where there is none, the ticket cache of KRB5CCNAME is used.
	Keytab string
	// Principal is user@REALM; default the first one in the keytab.
	Principal string
	// KrbConf is Kerberos' configuration; default KRB5_CONFIG or /etc/krb5.conf.
	KrbConf string

	umask     os.FileMode
	kerberos  bool
	ccache    string
	principal string // of the namenodes
	asUser    string // User where it was given
}

// refusal is a setting that cannot work.
type refusal struct {
	cause error
	mend  string
}

func refuse(mend, format string, args ...any) *refusal {
	return &refusal{fmt.Errorf(format, args...), mend}
}

// settings are the options of a URL, and what each sets.
var settings = map[string]func(o *Options, value string) error{
	"replication":        func(o *Options, v string) (err error) { o.Replication, err = strconv.Atoi(v); return err },
	"block-size":         func(o *Options, v string) (err error) { o.BlockSize, err = strconv.ParseInt(v, 10, 64); return err },
	"umask":              func(o *Options, v string) error { return o.setUmask(v) },
	"rpc-timeout":        func(o *Options, v string) (err error) { o.RPCTimeout, err = time.ParseDuration(v); return err },
	"data-timeout":       func(o *Options, v string) (err error) { o.DataTimeout, err = time.ParseDuration(v); return err },
	"keytab":             func(o *Options, v string) error { o.Keytab = v; return nil },
	"principal":          func(o *Options, v string) error { o.Principal = v; return nil },
	"krb5-conf":          func(o *Options, v string) error { o.KrbConf = v; return nil },
	"namenode-principal": func(o *Options, v string) error { o.Conf[keyPrincipal] = v; return nil },
	"protection": func(o *Options, v string) error {
		o.Conf[keyProtection], o.Conf[keyCiphers] = v, anyCipher
		return nil
	},
}

// Settings of Hadoop that are looked at.
const (
	keyAuth       = "hadoop.security.authentication"
	keyPrincipal  = "dfs.namenode.kerberos.principal"
	keyProtection = "dfs.data.transfer.protection"
	keyEncrypt    = "dfs.encrypt.data.transfer"
	keyHostName   = "dfs.client.use.datanode.hostname"
	keyCiphers    = "dfs.encrypt.data.transfer.cipher.suites"
	anyCipher     = "?" // whether the cluster has one is seen when a datanode answers
	defaultPort   = "8020"
)

// parse reads a URL, and the files of HADOOP_CONF_DIR.
func parse(u *url.URL) (o Options, bad *refusal) {
	if u.Opaque != "" || u.Fragment != "" || u.Path == "" || strings.Contains(u.Path, ":") {
		return o, refuse("use hdfs://[user@]namenode:port/dir", "not a URL of an HDFS directory")
	}
	o = Options{Dir: path.Clean(u.Path), User: u.User.Username(), Conf: map[string]string{}}
	conf, err := hadoopconf.LoadFromEnvironment()
	if dir := os.Getenv("HADOOP_CONF_DIR"); err == nil && conf == nil && dir != "" {
		err = fmt.Errorf("HADOOP_CONF_DIR: neither core-site.xml nor hdfs-site.xml is in %s", dir)
	}
	if err != nil {
		return o, &refusal{err, "correct HADOOP_CONF_DIR, or unset it"}
	}
	for key, value := range conf {
		o.Conf[key] = strings.TrimSpace(value)
	}
	for key, values := range u.Query() {
		set := settings[key]
		if set == nil {
			return o, refuse("known: "+strings.Join(slices.Sorted(maps.Keys(settings)), ", "), "unknown option %q", key)
		}
		if err := set(&o, values[0]); err != nil {
			return o, refuse("correct it", "option %s=%s: %w", key, values[0], errors.Unwrap(err))
		}
	}
	return o, o.find(u.Host)
}

// find finds the addresses of what stands in the place of a namenode.
func (o *Options) find(host string) *refusal {
	if host == "" {
		fs, err := url.Parse(o.Conf["fs.defaultFS"])
		if err != nil || fs.Scheme != "hdfs" || fs.Host == "" {
			return refuse("name the namenode in the URL, or set fs.defaultFS in the core-site.xml of HADOOP_CONF_DIR", "no namenode")
		}
		host = fs.Host
	}
	if ids := o.Conf["dfs.ha.namenodes."+host]; ids != "" {
		o.Service = host
		for id := range strings.SplitSeq(ids, ",") {
			key := "dfs.namenode.rpc-address." + host + "." + strings.TrimSpace(id)
			if o.Conf[key] == "" {
				return refuse("set it in the hdfs-site.xml of HADOOP_CONF_DIR", "%s is not set", key)
			}
			o.Namenodes = append(o.Namenodes, o.Conf[key])
		}
		return nil
	}
	o.Namenodes = []string{host}
	return nil
}

// fill checks the options and adds what is left out.
func (o *Options) fill() *refusal {
	o.asUser = o.User
	if len(o.Namenodes) == 0 {
		return refuse("give host:port", "no namenode")
	}
	o.Namenodes = slices.Clone(o.Namenodes)
	for i, address := range o.Namenodes {
		if _, _, err := net.SplitHostPort(address); err != nil {
			o.Namenodes[i] = net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
		}
	}
	if !path.IsAbs(o.Dir) || path.Clean(o.Dir) != o.Dir || strings.Contains(o.Dir, ":") {
		return refuse("use an absolute path without '..' and ':'", "the directory %q", o.Dir)
	}
	o.Conf = maps.Collect(maps.All(o.Conf)) // a copy, also of nil
	if o.RPCTimeout <= 0 {
		o.RPCTimeout = 30 * time.Second
	}
	if o.DataTimeout <= 0 {
		o.DataTimeout = time.Minute
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	for _, fill := range []func() *refusal{o.fillUser, o.fillFiles, o.fillKerberos, o.checkProtection} {
		if bad := fill(); bad != nil {
			return bad
		}
	}
	return nil
}

func (o *Options) fillUser() *refusal {
	if o.User == "" {
		o.User = os.Getenv("HADOOP_USER_NAME")
	}
	if o.User == "" {
		if u, err := user.Current(); err == nil {
			o.User = u.Username
		}
	}
	if o.User == "" {
		return refuse("set it in the URL, or set HADOOP_USER_NAME", "no user")
	}
	return nil
}

// fillFiles fills what files are created with.
func (o *Options) fillFiles() *refusal {
	if v := o.Conf["dfs.replication"]; o.Replication == 0 && v != "" {
		o.Replication, _ = strconv.Atoi(v)
	}
	if v := o.Conf["dfs.blocksize"]; o.BlockSize == 0 && v != "" {
		o.BlockSize = parseSize(v)
	}
	if o.Replication < 0 || o.Replication > 512 || o.BlockSize < 0 || o.BlockSize%512 != 0 {
		return refuse("use a replication of 1 to 512, and a multiple of 512 bytes", "replication %d, block size %d", o.Replication, o.BlockSize)
	}
	o.umask = 0o077
	if v := o.Conf["fs.permissions.umask-mode"]; o.Umask == nil && v != "" {
		if err := o.setUmask(v); err != nil {
			return refuse("use three octal digits, or umask= in the URL", "fs.permissions.umask-mode=%s", v)
		}
	}
	if o.Umask != nil {
		o.umask = *o.Umask
	}
	return nil
}

func (o *Options) setUmask(v string) error {
	mask, err := strconv.ParseUint(v, 8, 9)
	m := os.FileMode(mask)
	o.Umask = &m
	return err
}

// parseSize reads a size as Hadoop writes it: 128m. What it cannot read is 0.
func parseSize(v string) int64 {
	v = strings.ToLower(v)
	unit := strings.IndexByte("kmgtp", v[len(v)-1])
	n, err := strconv.ParseInt(strings.TrimRight(v, "kmgtp"), 10, 64)
	if err != nil {
		return 0
	}
	return n << (10 * (unit + 1))
}

// checkProtection refuses what the client library can write, and not read.
func (o *Options) checkProtection() *refusal {
	const mend = "set dfs.data.transfer.protection=privacy and dfs.encrypt.data.transfer.cipher.suites=AES/CTR/NoPadding on the cluster, or authentication without encryption"
	first, _, _ := strings.Cut(o.Conf[keyProtection], ",") // what datanodes offer first is taken
	first = strings.ToLower(strings.TrimSpace(first))
	if strings.EqualFold(o.Conf[keyEncrypt], "true") {
		first = "privacy"
	}
	switch first {
	case "", "authentication":
	case "integrity":
		return &refusal{errIntegrity, mend}
	case "privacy":
		if o.Conf[keyCiphers] == "" {
			return &refusal{errNoCipher, mend}
		}
	default:
		return refuse("use authentication or privacy, as the cluster has it", "%s=%s", keyProtection, first)
	}
	o.Conf[keyProtection] = first
	return nil
}

// url returns the URL of the store, without what is not needed to know it.
func (o *Options) url() string {
	u := url.URL{Scheme: "hdfs", Host: o.Service, Path: o.Dir}
	if u.Host == "" && len(o.Namenodes) > 0 {
		u.Host = o.Namenodes[0]
	}
	if o.asUser != "" {
		u.User = url.User(o.asUser)
	}
	return u.String()
}
