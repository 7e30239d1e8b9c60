package hdfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	krb "github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/spillway-io/spillway/inflight"
)

// fillKerberos finds the files of Kerberos where the cluster asks for it. They
// are read with the first connection.
func (o *Options) fillKerberos() *refusal {
	o.kerberos = strings.EqualFold(o.Conf[keyAuth], "kerberos") || o.Keytab != "" || o.Principal != ""
	if !o.kerberos {
		return nil
	}
	o.principal, _, _ = strings.Cut(o.Conf[keyPrincipal], "@")
	if o.principal == "" {
		return refuse("set it in the hdfs-site.xml of HADOOP_CONF_DIR, or namenode-principal= in the URL: hdfs/_HOST", "%s is not set", keyPrincipal)
	}
	file := func(value *string, env, otherwise string) {
		if *value == "" {
			*value = os.Getenv(env)
		}
		if *value == "" {
			*value = otherwise
		}
		*value = strings.TrimPrefix(*value, "FILE:")
	}
	file(&o.KrbConf, "KRB5_CONFIG", "/etc/krb5.conf")
	file(&o.Keytab, "KRB5_CLIENT_KTNAME", "")
	file(&o.ccache, "KRB5CCNAME", fmt.Sprintf("/tmp/krb5cc_%d", os.Getuid()))
	if kind, _, other := strings.Cut(o.ccache, ":"); o.Keytab == "" && other {
		return refuse("use a file (KRB5CCNAME=FILE:…), or a keytab", "a ticket cache of the kind %s", kind)
	}
	return nil
}

// kerberos holds what proves who we are. The login with a keytab is made once,
// and renewed by the library; a ticket cache is read for each connection, so that
// a new kinit is seen.
type kerberos struct {
	o *Options

	mu     sync.Mutex
	client *krb.Client
}

// login returns a client that has a ticket. The login is a call of its own, so
// that what goes wrong has a type.
func (k *kerberos) login() (*krb.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client != nil {
		return k.client, nil
	}
	conf, err := config.Load(k.o.KrbConf)
	if err != nil {
		return nil, authError(inflight.ErrConfig, "set KRB5_CONFIG, or krb5-conf= in the URL", fmt.Errorf("configuration of Kerberos: %w", err))
	}
	if k.o.Keytab == "" {
		return k.fromCache(conf)
	}
	keys, err := keytab.Load(k.o.Keytab)
	if err != nil {
		return nil, authError(inflight.ErrConfig, "set KRB5_CLIENT_KTNAME, or keytab= in the URL", fmt.Errorf("keytab: %w", err))
	}
	name, realm, err := k.o.who(keys, conf)
	if err != nil {
		return nil, err
	}
	client := krb.NewWithKeytab(name, realm, keys, conf, krb.DisablePAFXFAST(true))
	if err := client.Login(); err != nil {
		client.Destroy()
		return nil, loginError(name+"@"+realm, err)
	}
	k.client = client
	return client, nil
}

// who returns the principal to log in as.
func (o *Options) who(keys *keytab.Keytab, conf *config.Config) (name, realm string, err error) {
	if len(keys.Entries) == 0 {
		return "", "", authError(inflight.ErrConfig, "make a new one", fmt.Errorf("keytab %s has no key", o.Keytab))
	}
	principal := o.Principal
	if principal == "" {
		for _, e := range keys.Entries {
			if name := strings.Join(e.Principal.Components, "/"); o.asUser == "" || name == o.asUser {
				return name, e.Principal.Realm, nil
			}
		}
		principal = o.asUser
	}
	name, realm, _ = strings.Cut(principal, "@")
	if realm == "" {
		realm = conf.LibDefaults.DefaultRealm
	}
	for _, e := range keys.Entries {
		if strings.Join(e.Principal.Components, "/") == name && e.Principal.Realm == realm {
			return name, realm, nil
		}
	}
	return "", "", authError(inflight.ErrAuth, "use the keytab of that principal, or another principal= in the URL", fmt.Errorf("keytab %s has no key of %s@%s", o.Keytab, name, realm))
}

// fromCache reads the ticket cache.
func (k *kerberos) fromCache(conf *config.Config) (*krb.Client, error) {
	const mend = "run kinit, or set KRB5CCNAME or KRB5_CLIENT_KTNAME"
	cache, err := loadCache(k.o.ccache)
	if err != nil {
		return nil, authError(inflight.ErrAuth, mend, fmt.Errorf("no ticket cache: %w", err))
	}
	client, err := krb.NewFromCCache(cache, conf, krb.DisablePAFXFAST(true))
	if err == nil {
		err = client.Login() // the ticket is looked at, the KDC is not asked
	}
	if err != nil {
		return nil, authError(inflight.ErrAuth, mend, fmt.Errorf("the ticket in %s has expired, or is none: %w", k.o.ccache, err))
	}
	return client, nil
}

// loadCache reads a ticket cache. The library indexes into it without looking.
func loadCache(path string) (c *credentials.CCache, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%s is not one", path)
		}
	}()
	return credentials.LoadCCache(path)
}

func (k *kerberos) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client != nil {
		k.client.Destroy()
		k.client = nil
	}
}

// authError is an error of a login, before it is known what for.
func authError(sentinel error, mend string, err error) error {
	return &kindError{sentinel: sentinel, cause: err, mend: mend}
}

// loginError says what the KDC has against a login.
func loginError(principal string, err error) error {
	text, sentinel, mend := err.Error(), inflight.ErrAuth, "check the principal, the keytab and the clocks"
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("KDC_ERR_C_PRINCIPAL_UNKNOWN"):
		mend = "the KDC does not know that principal: use another principal= in the URL, or have it created"
	case has("no KDCs defined"), has("does not have any defined KDCs"):
		sentinel, mend = inflight.ErrConfig, "name the KDC of that realm in the Kerberos configuration, or use another realm"
	case has("KRB_AP_ERR_SKEW"), has("clock skew"):
		mend = "set the clock"
	case has("Decrypting_Error"), has("KDC_ERR_PREAUTH_FAILED"):
		mend = "the key in the keytab is not (or no longer) that of the principal: get a new keytab"
	case has("Networking_Error"):
		sentinel, mend = inflight.ErrUnavailable, "check that the KDC runs, and its address in the Kerberos configuration"
	}
	return authError(sentinel, mend, fmt.Errorf("login of %s: %w", principal, err))
}

// hostNames returns the addresses of the namenodes as host names, and where each
// leads: a principal with _HOST means the name, and Kerberos knows no IP
// addresses.
func (o *Options) hostNames(ctx context.Context) (names []string, leads map[string]string, err error) {
	leads = map[string]string{}
	for _, address := range o.Namenodes {
		host, port, _ := net.SplitHostPort(address)
		name := strings.ToLower(host)
		if strings.Contains(o.principal, "_HOST") && net.ParseIP(host) != nil {
			found, err := net.DefaultResolver.LookupAddr(ctx, host)
			if err != nil || len(found) == 0 {
				return nil, nil, authError(inflight.ErrConfig, "name the namenode by its host name, or the principal without _HOST", errors.Join(fmt.Errorf("no host name for %s, and %s is %s", host, keyPrincipal, o.principal), err))
			}
			name = strings.ToLower(strings.TrimSuffix(found[0], "."))
		}
		name = net.JoinHostPort(name, port)
		leads[name] = address
		names = append(names, name)
	}
	return names, leads, nil
}
