// Package sshtest starts an sshd on the loopback address, with keys of its own, for tests and measurements of the
// environment behind SSH. It needs openssh-server.
package sshtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
)

// ErrNoServer says that the machine has no sshd.
var ErrNoServer = errors.New("no sshd on this machine: install openssh-server")

// startTime is how long an sshd may take until it accepts connections.
const startTime = 10 * time.Second

// Server is an sshd that listens on the loopback address.
type Server struct {
	// Config reaches the server as the present user.
	Config ssh.Config

	dir string
	cmd *exec.Cmd
}

// Start starts an sshd that keeps its files in an existing directory. force is the command that runs instead of the
// one that a client asks for; "" runs the client's. The caller must call Close. Errors: ErrNoServer; those of
// ssh-keygen and sshd.
func Start(ctx context.Context, dir, force string) (*Server, error) {
	sshd, err := find()
	if err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, Config: ssh.Config{Host: "127.0.0.1", Port: port, User: me.Username,
		KnownHosts: filepath.Join(dir, "known"), Identity: filepath.Join(dir, "user")}}
	if err := s.configure(ctx, force); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(sshd, "-D", "-e", "-f", filepath.Join(dir, "config"))
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.accepts(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// find returns the path of sshd, which may be outside the PATH of users.
func find() (string, error) {
	for _, name := range []string{"sshd", "/usr/sbin/sshd"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", ErrNoServer
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// configure makes the keys of the server and of its user, and a key that the server does not know.
func (s *Server) configure(ctx context.Context, force string) error {
	for _, name := range []string{"host", "user", "other"} {
		if err := run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd requires this directory
			return err
		}
	}
	key, err := os.ReadFile(filepath.Join(s.dir, "user.pub"))
	if err != nil {
		return err
	}
	config := fmt.Sprintf("ListenAddress 127.0.0.1\nPort %d\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\n"+
		"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"+
		"MaxSessions 200\nMaxStartups 200\nPrintMotd no\nSetEnv HOME=%s\n", s.Config.Port, s.dir, s.dir, s.dir)
	if force != "" {
		config += "ForceCommand " + force + "\n"
	}
	return errors.Join(
		s.write("authorized", string(key)),
		s.Know("host"),
		s.write(".bashrc", "echo Welcome\necho warning >&2\n"), // bash reads it when sshd starts bash
		s.write("config", config),
	)
}

// Know makes clients expect a key of the server: "host", which is its real key, "other", or "" for none.
func (s *Server) Know(key string) error {
	if key == "" {
		return s.write("known", "")
	}
	public, err := os.ReadFile(filepath.Join(s.dir, key+".pub"))
	if err != nil {
		return err
	}
	return s.write("known", fmt.Sprintf("[127.0.0.1]:%d %s", s.Config.Port, public))
}

// Stranger returns the path of a key that the server does not accept.
func (s *Server) Stranger() string { return filepath.Join(s.dir, "other") }

func (s *Server) write(name, content string) error {
	return os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600)
}

// accepts waits until the server accepts connections.
func (s *Server) accepts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Config.Port))
		if err == nil {
			return conn.Close()
		}
		if !backoff.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("sshd does not accept connections: %w", err)
		}
	}
}

// Close ends the server. Its files stay.
func (s *Server) Close() {
	_ = s.cmd.Process.Kill() // it may have ended already
	_ = s.cmd.Wait()         // it was killed
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
