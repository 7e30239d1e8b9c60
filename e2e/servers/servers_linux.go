package servers

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Kind is a kind of server.
type Kind string

// The kinds.
const (
	VersityGW    Kind = "versitygw"     // on a directory, http
	VersityGWTLS Kind = "versitygw-tls" // the same with TLS, and kept connections
	SeaweedFS    Kind = "seaweedfs"
)

// Kinds are all kinds.
var Kinds = []Kind{VersityGW, VersityGWTLS, SeaweedFS}

// The keys that the servers take. The second pair may read and list only.
const (
	AccessKey, SecretKey         = "testkey", "testsecretkey123"
	ReadOnlyKey, ReadOnlySecret  = "rokey", "rosecretkey123"
	startTime                    = 60 * time.Second
	seaweedGRPC                  = 10_000 // its ports for gRPC are that much higher
	certificateFile, keyFileName = "cert.pem", "key.pem"
)

// Config is what a server is started with.
type Config struct {
	Kind Kind
	Dir  string // its state; it lives on over a restart
	// Data is where versitygw keeps the objects; default: below Dir.
	Data string
	// DiskMiB gives versitygw a disk of that size for the objects, in a mount
	// namespace of its own; it is empty again after a restart.
	DiskMiB int
	// ReadOnly has versitygw refuse writes.
	ReadOnly bool
	// Port is chosen where it is 0.
	Port int
	// Detached servers outlive this process.
	Detached bool
}

// Server is a server that runs.
type Server struct {
	Config
	Endpoint string // http://127.0.0.1:port
	Address  string // 127.0.0.1:port
	CAFile   string // of a server with TLS

	ports []int
	proc  *process
}

// Start starts a server and waits until it answers.
func Start(c Config) (*Server, error) {
	if err := fetch(c.Kind); err != nil {
		return nil, err
	}
	s := &Server{Config: c}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if s.ports, err = freePorts(4); err != nil {
		return nil, err
	}
	if c.Port != 0 {
		s.ports[0] = c.Port
	}
	s.Address = fmt.Sprintf("127.0.0.1:%d", s.ports[0])
	s.Endpoint = "http://" + s.Address
	if c.Kind == VersityGWTLS {
		s.Endpoint, s.CAFile = "https://"+s.Address, filepath.Join(c.Dir, certificateFile)
		if err := makeCertificate(c.Dir); err != nil {
			return nil, err
		}
	}
	return s, s.run()
}

// Restart starts the server again on the same port and data, after Kill or Stop.
func (s *Server) Restart() error { return s.run() }

func (s *Server) run() (err error) {
	args, err := s.command()
	if err != nil {
		return err
	}
	if s.proc, err = spawn(s.Dir, s.Detached, args...); err != nil {
		return err
	}
	for end := time.Now().Add(startTime); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case <-s.proc.done:
			return fmt.Errorf("%s ended at once: %s", s.Kind, s.log())
		default:
		}
		if s.answers() {
			return nil
		}
	}
	s.Kill()
	return fmt.Errorf("%s does not answer: %s", s.Kind, s.log())
}

func (s *Server) command() ([]string, error) {
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	if s.Kind == SeaweedFS {
		return s.weed(bin)
	}
	data := s.Data
	if data == "" {
		data = filepath.Join(s.Dir, "data")
	}
	iam, versions := filepath.Join(s.Dir, "iam"), filepath.Join(s.Dir, "versions")
	for _, d := range []string{data, iam, versions} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	args := []string{filepath.Join(bin, "versitygw"), "--port", s.Address, "--access", AccessKey, "--secret", SecretKey, "--quiet", "--health", "/health", "--iam-dir", iam}
	if s.ReadOnly {
		args = append(args, "--readonly")
	}
	if s.Kind == VersityGWTLS {
		args = append(args, "--keep-alive", "--cert", s.CAFile, "--key", filepath.Join(s.Dir, keyFileName))
	}
	args = append(args, "posix", "--versioning-dir", versions, data)
	if s.DiskMiB > 0 {
		mount := fmt.Sprintf(`mount -t tmpfs -o size=%dm none "$0" && exec "$@"`, s.DiskMiB)
		args = append([]string{"unshare", "--map-root-user", "--mount", "sh", "-c", mount, data}, args...)
	}
	return args, nil
}

// weed is one process with master, volume server, filer and S3. All ports are on
// the loopback, and buckets are not created by accident.
func (s *Server) weed(bin string) ([]string, error) {
	data, config := filepath.Join(s.Dir, "data"), filepath.Join(s.Dir, "s3.json")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	identities := fmt.Sprintf(`{"identities":[
{"name":"test","credentials":[{"accessKey":%q,"secretKey":%q}],"actions":["Admin","Read","Write","List","Tagging"]},
{"name":"ro","credentials":[{"accessKey":%q,"secretKey":%q}],"actions":["Read","List"]}]}`, AccessKey, SecretKey, ReadOnlyKey, ReadOnlySecret)
	if err := os.WriteFile(config, []byte(identities), 0o600); err != nil {
		return nil, err
	}
	p := s.ports
	return []string{filepath.Join(bin, "weed"), "-logdir=" + s.Dir, "server", "-dir=" + data, "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
		fmt.Sprintf("-master.port=%d", p[1]), fmt.Sprintf("-volume.port=%d", p[2]), "-filer", fmt.Sprintf("-filer.port=%d", p[3]),
		"-s3", fmt.Sprintf("-s3.port=%d", p[0]), "-s3.ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0",
		"-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false", "-s3.config=" + config,
		"-volume.max=0", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=128", "-master.volumePreallocate=false", "-master.telemetry=false"}, nil
}

// answers reports whether the server takes requests. SeaweedFS answers before it
// has a volume to write to.
func (s *Server) answers() bool {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(url string) (body []byte, err error) {
		resp, err := client.Get(url)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return io.ReadAll(resp.Body)
	}
	if s.Kind != SeaweedFS {
		_, err := get(s.Endpoint + "/health")
		return err == nil
	}
	if _, err := get(s.Endpoint + "/"); err != nil {
		return false
	}
	body, err := get(fmt.Sprintf("http://127.0.0.1:%d/dir/assign", s.ports[1]))
	return err == nil && bytes.Contains(body, []byte(`"fid"`))
}

func (s *Server) log() string {
	log, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return strings.TrimSpace(string(log[max(0, len(log)-1000):]))
}

// PID returns the id of the process.
func (s *Server) PID() int { return s.proc.cmd.Process.Pid }

// Pause stops the process as SIGSTOP does; Resume goes on.
func (s *Server) Pause() error { return s.proc.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume goes on after Pause.
func (s *Server) Resume() error { return s.proc.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends the process at once, and waits for that.
func (s *Server) Kill() { s.proc.end(syscall.SIGKILL) }

// Stop ends the process. SeaweedFS leaves sockets in the folder for temporary
// files; they go, too.
func (s *Server) Stop() {
	s.proc.end(syscall.SIGKILL)
	if s.Kind == SeaweedFS {
		for _, p := range s.ports {
			for _, port := range []int{p, p + seaweedGRPC} {
				left, _ := filepath.Glob(fmt.Sprintf("%s/seaweedfs-*-%d.sock", os.TempDir(), port))
				for _, name := range left {
					os.Remove(name)
				}
			}
		}
	}
}

// process is a child that dies with this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// spawn starts a child. The kernel ends it with the thread that started it: that
// one waits for it.
func spawn(dir string, detached bool, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !detached {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // it is killed
		}
		close(p.done)
	}()
	return p, <-started
}

func (p *process) end(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(sig) // it may have ended
	<-p.done
}

var fetched sync.Map

// fetch has the binary built or fetched.
func fetch(kind Kind) error {
	name := "versitygw"
	if kind == SeaweedFS {
		name = "weed"
	}
	once, _ := fetched.LoadOrStore(name, sync.OnceValue(func() error {
		root, err := moduleDir()
		if err != nil {
			return err
		}
		out, err := exec.Command(filepath.Join(root, "servers", "fetch.sh"), name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s cannot be had: %w: %s", name, err, bytes.TrimSpace(out))
		}
		return nil
	}))
	return once.(func() error)()
}

// moduleDir is e2e/.
func moduleDir() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(text, []byte("module github.com/spillway-io/spillway/e2e\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not run inside of e2e/")
		}
	}
	return "", err
}

// StateDir is where servers that are started by hand, and binaries, are kept.
func StateDir() (string, error) { return binDir() }

func binDir() (string, error) {
	root, err := moduleDir()
	return filepath.Join(root, "..", "build", "e2e"), err
}

// freePorts returns ports that nobody listens on, and neither on those for gRPC.
func freePorts(n int) (ports []int, err error) {
	for tries := 0; len(ports) < n && tries < 1000; tries++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if port+seaweedGRPC > 65_535 {
			continue
		}
		high, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+seaweedGRPC))
		if err != nil {
			continue
		}
		high.Close()
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, errors.New("there are no free ports")
	}
	return ports, nil
}

// makeCertificate writes a certificate for 127.0.0.1 that signs itself.
func makeCertificate(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, certificateFile)); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, keyFileName), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600),
		os.WriteFile(filepath.Join(dir, certificateFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
}
