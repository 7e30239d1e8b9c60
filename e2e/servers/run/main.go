//go:build linux

// Command run starts the S3 servers for work by hand, and stops them:
//
//	run up [versitygw|versitygw-tls|seaweedfs]...   prints how to use each
//	run down
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spillway-io/spillway/e2e/servers"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "up":
		err = up(os.Args[2:])
	case len(os.Args) == 2 && os.Args[1] == "down":
		err = down()
	default:
		err = fmt.Errorf("usage: run up [KIND]... | run down")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// state is where the servers of this command live.
func state() (string, error) {
	dir, err := servers.StateDir()
	return filepath.Join(dir, "servers"), err
}

func up(names []string) error {
	dir, err := state()
	if err != nil {
		return err
	}
	kinds := servers.Kinds
	if len(names) > 0 {
		kinds = nil
		for _, name := range names {
			kinds = append(kinds, servers.Kind(name))
		}
	}
	fmt.Printf("export AWS_ACCESS_KEY_ID=%s AWS_SECRET_ACCESS_KEY=%s\n", servers.AccessKey, servers.SecretKey)
	for _, kind := range kinds {
		home := filepath.Join(dir, string(kind))
		if line, err := os.ReadFile(filepath.Join(home, "url")); err == nil {
			fmt.Print(string(line)) // it runs
			continue
		}
		s, err := servers.Start(servers.Config{Kind: kind, Dir: home, Detached: true})
		if err != nil {
			return err
		}
		if err := makeBucket(s); err != nil {
			return err
		}
		q := url.Values{"endpoint": {s.Endpoint}}
		if s.CAFile != "" {
			q.Set("ca", s.CAFile)
		}
		line := fmt.Sprintf("# %s: 's3://spillway/ckpt?%s'\n", kind, q.Encode())
		fmt.Print(line)
		for name, text := range map[string]string{"pid": strconv.Itoa(s.PID()), "url": line} {
			if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

func makeBucket(s *servers.Server) error {
	tr, err := minio.DefaultTransport(s.CAFile != "")
	if err != nil {
		return err
	}
	if s.CAFile != "" {
		tr.TLSClientConfig.InsecureSkipVerify = true
	}
	c, err := minio.New(s.Address, &minio.Options{Creds: credentials.NewStaticV4(servers.AccessKey, servers.SecretKey, ""), Secure: s.CAFile != "", Region: "us-east-1", Transport: tr})
	if err != nil {
		return err
	}
	return c.MakeBucket(context.Background(), "spillway", minio.MakeBucketOptions{})
}

// endTime is how long a killed server may take to be gone.
const endTime = 5 * time.Second

// down ends the servers by their ids, and removes what they kept.
func down() error {
	dir, err := state()
	if err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*", "pid"))
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(comm), filepath.Dir(name)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			for end := time.Now().Add(endTime); syscall.Kill(pid, 0) == nil && time.Now().Before(end); { // its files are open as long
				time.Sleep(time.Millisecond)
			}
		}
	}
	return os.RemoveAll(dir)
}
