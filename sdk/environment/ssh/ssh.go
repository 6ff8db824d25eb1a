package ssh

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/shell"
)

const (
	// DefaultConnectTimeout bounds how long a connection takes to begin.
	DefaultConnectTimeout = 10 * time.Second
	// aliveEvery and aliveTries end a connection whose other side is gone after 45 s.
	aliveEvery, aliveTries = 15, 3
	// keptFor is how long, in seconds, the shared connection stays open without a call.
	keptFor = 60
	// maxScript is how many bytes a script may have: it comes through the connection.
	maxScript = 8 << 20
	// endTime bounds how long closing the connection takes.
	endTime = 5 * time.Second
)

// Config says where to connect.
type Config struct {
	Host       string // name or address; required
	Port       int    // default: 22
	User       string // required
	KnownHosts string // file with the host's key, absolute; required
	Identity   string // file with the private key, absolute; default: keys of the agent and of ~/.ssh

	ConnectTimeout time.Duration // default: [DefaultConnectTimeout]; whole seconds
	Grace          time.Duration // time from TERM to KILL when a command is ended early; default: [shell.DefaultGrace]
}

// Environment is another machine. Close it when it is not needed any more.
type Environment struct {
	*shell.Environment
	argv  []string // ssh with its options and the destination
	dir   string   // has the socket of the shared connection
	close sync.Once
}

// Names that ssh cannot take for an option or a command.
var (
	hostName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9.:_-]*\z`)
	userName = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_.-]*\z`)
	fileName = regexp.MustCompile(`\A/[^"%\x00-\x1f]*\z`)
)

func (c *Config) check() error {
	invalid := func(field, format string, args ...any) error {
		return &environment.Error{Kind: environment.Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case !hostName.MatchString(c.Host):
		return invalid("Host", "must be a host name or an address, got %.200q", c.Host)
	case c.Port < 0 || c.Port > 65535:
		return invalid("Port", "must be 1 to 65535, got %d", c.Port)
	case !userName.MatchString(c.User):
		return invalid("User", "must be the name of a user, got %.200q", c.User)
	case !fileName.MatchString(c.KnownHosts):
		return invalid("KnownHosts", "must be the absolute path of a file, without quotes and %%, got %.200q", c.KnownHosts)
	case c.Identity != "" && !fileName.MatchString(c.Identity):
		return invalid("Identity", "must be the absolute path of a file, without quotes and %%, got %.200q", c.Identity)
	case c.ConnectTimeout < 0:
		return invalid("ConnectTimeout", "must not be negative")
	}
	return nil
}

// New makes an environment. It does not connect yet. Error: ErrInvalid naming the field.
func New(c Config) (*Environment, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "boxfleet-ssh-")
	if err != nil {
		return nil, environment.Wrap(environment.Failed, err, "make a directory for the connection's socket")
	}
	e := &Environment{argv: append([]string{"ssh"}, c.options(dir)...), dir: dir}
	e.argv = append(e.argv, "--", c.Host)
	e.Environment, err = shell.New(shell.Config{MaxScript: maxScript, Grace: c.Grace, Run: e.run,
		Description: environment.Description{Backend: "ssh", Isolation: environment.IsolationUnknown}})
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return e, nil
}

// options returns the options of ssh.
func (c *Config) options(dir string) (args []string) {
	connect := c.ConnectTimeout
	if connect == 0 {
		connect = DefaultConnectTimeout
	}
	args = []string{"-F", "none", "-T", "-x", "-a", "-l", c.User}
	if c.Port != 0 {
		args = append(args, "-p", strconv.Itoa(c.Port))
	}
	for _, option := range []string{
		"BatchMode=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null", "UpdateHostKeys=no",
		`UserKnownHostsFile="` + c.KnownHosts + `"`, "CheckHostIP=no", "VerifyHostKeyDNS=no", "PasswordAuthentication=no",
		"KbdInteractiveAuthentication=no", "ClearAllForwardings=yes", "PermitLocalCommand=no", "EscapeChar=none",
		"LogLevel=ERROR", fmt.Sprintf("ConnectTimeout=%d", max(1, int(connect.Seconds()))),
		fmt.Sprintf("ServerAliveInterval=%d", aliveEvery), fmt.Sprintf("ServerAliveCountMax=%d", aliveTries),
		"ControlMaster=auto", `ControlPath="` + filepath.Join(dir, "c") + `"`, fmt.Sprintf("ControlPersist=%d", keptFor),
	} {
		args = append(args, "-o", option)
	}
	if c.Identity != "" {
		args = append(args, "-o", "IdentitiesOnly=yes", "-i", c.Identity)
	}
	return args
}

func (e *Environment) run(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
	return shell.Process(ctx, "", s.Text, append(e.argv[:len(e.argv):len(e.argv)], s.Command())...)
}

// Close ends the shared connection. Running calls fail with ErrUnavailable. Close returns nil.
func (e *Environment) Close() error {
	e.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		args := append([]string{"-O", "exit"}, e.argv[1:]...)
		_ = exec.CommandContext(ctx, e.argv[0], args...).Run() // fails if there is no connection
		os.RemoveAll(e.dir)
	})
	return nil
}
