package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"regexp"
	"strings"
	"syscall"

	hdfs "github.com/colinmarc/hdfs/v2"

	"github.com/spillway-io/spillway/inflight"
)

// kindError is an error of the cluster that also is a sentinel of ours, where there
// is one. It reads as the cluster's.
type kindError struct {
	sentinel, cause error
	mend            string
}

func (e *kindError) Error() string { return e.cause.Error() }

func (e *kindError) Unwrap() []error {
	if e.sentinel == nil {
		return []error{e.cause}
	}
	return []error{e.sentinel, e.cause}
}

// explain says what was being done to name, of which kind err is, and what helps.
// c is the client that it happened to.
func (b *Backend) explain(ctx context.Context, c *client, op, name string, err error) error {
	if err == nil {
		return nil
	}
	if already, ok := errors.AsType[*inflight.Error](err); ok {
		return already
	}
	e := &inflight.Error{Op: op, Object: b.object(name)}
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	switch {
	case closed:
		e.Err = inflight.ErrClosed
	case ctx.Err() != nil:
		e.Err = ctx.Err()
	default:
		k := b.classify(c, err)
		if tooBusy(err) {
			b.tell(inflight.EventThrottled, op, k)
		}
		if k.sentinel == inflight.ErrPermission {
			k = b.permission(ctx, name, k)
		}
		e.Err, e.Mend = k, k.mend
	}
	return e
}

// tooBusy reports whether a namenode says that it has too much to do: its queue of
// calls is full, and ipc.<port>.backoff.enable is set.
func tooBusy(err error) bool {
	remote := hdfs.Error(nil)
	return errors.As(err, &remote) && strings.HasSuffix(remote.Exception(), ".RetriableException") && strings.Contains(remote.Message(), "too busy")
}

// classify returns of which kind err is.
func (b *Backend) classify(c *client, err error) *kindError {
	if k, ok := errors.AsType[*kindError](err); ok {
		return k
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok && err == error(pathErr) {
		err = pathErr.Err // the path is in Object
	}
	if remote := hdfs.Error(nil); errors.As(err, &remote) {
		return b.remote(remote)
	}
	kind := func(sentinel error, mend string) *kindError { return &kindError{sentinel, err, mend} }
	// The library flattens errors of connections to text: what they were is known
	// to the client.
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) || c != nil && (errors.Is(c.fault(), target) || errors.Is(c.dataFault(), target)) {
				return true
			}
		}
		return false
	}
	text := err.Error()
	switch {
	case errors.Is(err, inflight.ErrClosed):
		return kind(inflight.ErrClosed, "")
	case errors.Is(err, fs.ErrNotExist):
		return kind(inflight.ErrNotExist, "")
	case errors.Is(err, fs.ErrExist):
		return kind(inflight.ErrExist, "")
	case errors.Is(err, fs.ErrPermission):
		return kind(inflight.ErrPermission, "")
	case errors.Is(err, fs.ErrInvalid):
		return kind(inflight.ErrConfig, "choose another name or directory")
	case is(errIntegrity, errNoCipher):
		return &kindError{inflight.ErrConfig, c.dataFault(), "set dfs.data.transfer.protection=privacy with dfs.encrypt.data.transfer.cipher.suites=AES/CTR/NoPadding on the cluster, or authentication without encryption"}
	case is(syscall.EMFILE):
		return &kindError{inflight.ErrTooManyFiles, fmt.Errorf("too many open files: the limit is %s", fileLimit()), "raise the limit with `ulimit -n`"}
	case is(syscall.ENFILE):
		return kind(inflight.ErrTooManyFiles, "raise the limit of the system (fs.file-max)")
	case is(errNoNamenode):
		return &kindError{inflight.ErrConfig, c.fault(), "use the RPC port of the namenode (dfs.namenode.rpc-address), not that of its web pages"}
	case strings.Contains(text, "invalid checksum"):
		return kind(inflight.ErrCorrupt, "look at the disks of the datanodes (hdfs fsck)")
	case strings.Contains(text, "invalid qop"):
		return kind(inflight.ErrConfig, "set dfs.data.transfer.protection as on the cluster")
	}
	if k := b.secured(text, kind); k != nil {
		return k
	}
	if c != nil && strings.HasPrefix(text, "no available namenodes") && c.fault() != nil {
		err = c.fault()
	}
	return b.unreachable(c, err)
}

// secured recognises what goes wrong between two that do not agree on Kerberos.
func (b *Backend) secured(text string, kind func(error, string) *kindError) *kindError {
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("KDC_ERR_S_PRINCIPAL_UNKNOWN"):
		return kind(inflight.ErrAuth, "set dfs.namenode.kerberos.principal as on the cluster: the KDC does not know "+b.o.principal)
	case has("FATAL_UNAUTHORIZED"), has("invalid server token"):
		return kind(inflight.ErrAuth, "set dfs.namenode.kerberos.principal as on the cluster: the namenode is not "+b.o.principal)
	case has("kerberos authentication not supported"):
		return kind(inflight.ErrConfig, "the cluster has no Kerberos: unset hadoop.security.authentication")
	case has("no valid existing session"), has("KRB_AP_ERR_TKT_EXPIRED"), has("Ticket expired"):
		return kind(inflight.ErrAuth, "run kinit, or use a keytab (KRB5_CLIENT_KTNAME)")
	case has("Networking_Error"), has("error sending to a KDC"):
		return kind(inflight.ErrUnavailable, "check that the KDC runs, and its address in the Kerberos configuration")
	case has("SASL handshake"), has("Root cause:"):
		return kind(inflight.ErrAuth, "check principal, keytab and clocks")
	case has("unexpected sequence number"), has("SIMPLE authentication is not enabled"):
		if !b.o.kerberos {
			return kind(inflight.ErrAuth, "the cluster asks for Kerberos: set HADOOP_CONF_DIR, and KRB5_CLIENT_KTNAME or run kinit")
		}
	}
	return nil
}

// unreachable says what stands behind a connection that failed.
func (b *Backend) unreachable(c *client, err error) *kindError {
	timeout := func(err error) bool {
		n, ok := errors.AsType[net.Error](err)
		return ok && n.Timeout()
	}
	nameErr, dataErr := error(nil), error(nil)
	if c != nil {
		c.mu.Lock()
		nameErr, dataErr = c.nameErr, c.dataErr
		c.mu.Unlock()
	}
	who, mend, first := "datanode", "try again; a datanode that is lost is avoided once the namenode knows (dfs.namenode.avoid.write.stale.datanode)", dataErr
	if nameErr != nil {
		who, mend, first = "namenode "+strings.Join(b.o.Namenodes, ", "), "check that it runs, the address, and that it is the RPC port", nameErr
	}
	if dataErr != nil && b.o.kerberos && b.o.Conf[keyProtection] == "" {
		mend = "set dfs.data.transfer.protection as on the cluster, or try again"
	}
	if first == nil {
		first = err
	}
	switch {
	case strings.Contains(err.Error(), "StandbyException"):
		return &kindError{inflight.ErrUnavailable, errors.New("no namenode is active"), "name all namenodes of the cluster (hdfs://nameservice/dir with HADOOP_CONF_DIR), or wait for the failover"}
	case timeout(first), timeout(err):
		return &kindError{inflight.ErrTimeout, fmt.Errorf("%s does not answer: %w", who, first), mend}
	}
	if errors.Is(first, io.EOF) {
		first = errors.New("it closed the connection")
	}
	if first.Error() != err.Error() && nameErr == nil && !errors.Is(err, net.ErrClosed) {
		first = fmt.Errorf("%w: %w", err, first)
	}
	return &kindError{inflight.ErrUnavailable, fmt.Errorf("%s: %w", who, first), mend}
}

// remote returns of which kind an exception of the namenode is.
func (b *Backend) remote(e hdfs.Error) *kindError {
	exception := e.Exception()[strings.LastIndexAny(e.Exception(), ".$")+1:]
	message, _, _ := strings.Cut(e.Message(), "\n")
	if len(message) > 500 {
		message = message[:500] + "…"
	}
	kind := func(sentinel error, mend string) *kindError {
		return &kindError{sentinel, fmt.Errorf("%s: %s", exception, message), mend}
	}
	has := func(s string) bool { return strings.Contains(message, s) }
	switch exception {
	case "AccessControlException":
		return kind(inflight.ErrPermission, "")
	case "AuthorizationException", "SaslException", "InvalidToken":
		return kind(inflight.ErrAuth, "check user, principal and keytab")
	case "DSQuotaExceededException", "QuotaByStorageTypeExceededException":
		return kind(inflight.ErrNoSpace, "raise the quota (hdfs dfsadmin -setSpaceQuota), use a smaller block-size= in the URL, or retain fewer checkpoints")
	case "NSQuotaExceededException", "MaxDirectoryItemsExceededException":
		return kind(inflight.ErrNoSpace, "raise the quota (hdfs dfsadmin -setQuota), or retain fewer checkpoints")
	case "SafeModeException":
		return kind(inflight.ErrUnavailable, "wait: a namenode that starts leaves safe mode by itself; otherwise hdfs dfsadmin -safemode leave")
	case "StandbyException":
		return kind(inflight.ErrUnavailable, "name all namenodes of the cluster (hdfs://nameservice/dir with HADOOP_CONF_DIR), or wait for the failover")
	case "NotReplicatedYetException": // Hadoop's client waits here; the library has forgotten the block by then
		return kind(inflight.ErrUnavailable, "try again; use a larger block-size= in the URL, so that files have one block")
	case "RetriableException", "RecoveryInProgressException", "RetryStartFileException":
		return kind(inflight.ErrUnavailable, "try again")
	case "FileNotFoundException":
		return &kindError{inflight.ErrNotExist, fs.ErrNotExist, ""}
	case "FileAlreadyExistsException", "AlreadyBeingCreatedException", "PathIsNotEmptyDirectoryException":
		return &kindError{inflight.ErrExist, fs.ErrExist, ""}
	case "ParentNotDirectoryException":
		return kind(inflight.ErrConfig, "a file stands where a folder should be: choose another directory")
	case "InvalidPathException", "HadoopIllegalArgumentException", "PathComponentTooLongException":
		return kind(inflight.ErrConfig, "choose another name or directory")
	case "LeaseExpiredException":
		return kind(inflight.ErrNotExist, "")
	case "RpcNoSuchProtocolException", "VersionMismatch", "RpcNoSuchMethodException":
		return kind(inflight.ErrConfig, "use the RPC port of a namenode (dfs.namenode.rpc-address) of Hadoop 2.7 or later")
	}
	switch {
	case has("rename destination directory is not empty"), has("must both be directories"):
		return &kindError{inflight.ErrExist, fs.ErrExist, ""}
	case has("blk_") && has("does not exist"):
		return kind(inflight.ErrNotExist, "")
	case has("There are 0 datanode(s) running"):
		return kind(inflight.ErrUnavailable, "start the datanodes")
	case has("could only be"): // written, or replicated, to so many nodes
		return kind(inflight.ErrNoSpace, "free space on the datanodes, or add some; look at hdfs dfsadmin -report")
	case has("minimum block size"), has("Specified block size"):
		return kind(inflight.ErrConfig, "use a larger block-size= in the URL (dfs.namenode.fs-limits.min-block-size)")
	case has("replication"):
		return kind(inflight.ErrConfig, "use another replication= in the URL")
	}
	return kind(nil, "")
}

var denied = regexp.MustCompile(`user=([^,]+), access=([A-Z_]+), inode="([^"]*)":([^:]*):([^:]*):([-a-zA-Z]{10})`)

// permission says who may do what with what is in the way. The library keeps the
// namenode's words for some calls only; for the others the nearest thing that can
// be looked at is the one.
func (b *Backend) permission(ctx context.Context, name string, k *kindError) *kindError {
	const mend = "grant access, or set the user in the URL (hdfs://USER@…)"
	if m := denied.FindStringSubmatch(k.Error()); m != nil {
		return &kindError{k.sentinel, fmt.Errorf("permission denied for user=%s on %s (owner %s, group %s, mode %04o): %s is needed", m[1], m[3], m[4], m[5], octal(m[6]), strings.ToLower(m[2])), mend}
	}
	c, err := b.connect(ctx, "stat", name, false)
	if err != nil {
		return &kindError{k.sentinel, fmt.Errorf("permission denied for user=%s", b.o.User), mend}
	}
	defer c.watch(ctx)()
	for at := b.at(name); ; at = path.Dir(at) {
		info, err := c.Stat(at)
		if st, ok := info.(*hdfs.FileInfo); err == nil && ok {
			return &kindError{k.sentinel, fmt.Errorf("permission denied for user=%s on %s (owner %s, group %s, mode %04o)", c.User(), at, st.Owner(), st.OwnerGroup(), st.Mode().Perm()), mend}
		}
		if at == "/" {
			return &kindError{k.sentinel, fmt.Errorf("permission denied for user=%s", c.User()), mend}
		}
	}
}

// octal returns what drwxr-x--- is in numbers.
func octal(mode string) (bits os.FileMode) {
	for _, c := range mode[1:] {
		bits <<= 1
		if c != '-' && c != 'T' && c != 'S' {
			bits |= 1
		}
	}
	return bits
}
