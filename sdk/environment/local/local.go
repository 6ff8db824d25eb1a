package local

import (
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/shell"
)

// Config says where commands run.
type Config struct {
	Dir   string        // working directory, absolute, which must exist; required
	Grace time.Duration // time from TERM to KILL when a command is ended early; default: [shell.DefaultGrace]
}

// Environment runs commands on this machine without isolation.
type Environment struct{ *shell.Environment }

// maxScript is the most bytes of a script. A pipe carries the script, so no system limit on arguments applies.
const maxScript = 8 << 20

// New makes an environment on this machine. Error: ErrInvalid naming "Dir".
func New(c Config) (*Environment, error) {
	if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() || !filepath.IsAbs(c.Dir) {
		return nil, &environment.Error{Kind: environment.Invalid, Field: "Dir",
			Message: fmt.Sprintf("must be the absolute path of a directory, got %.200q", c.Dir)}
	}
	base, err := shell.New(shell.Config{MaxScript: maxScript, Grace: c.Grace,
		Description: environment.Description{Backend: "local", Isolation: environment.IsolationNone,
			Capabilities: []environment.Capability{environment.Ports}},
		Run: func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
			return shell.Process(ctx, c.Dir, s.Text, s.Within(os.Getenv(shell.IDVariable)).Argv()...)
		}})
	if err != nil {
		return nil, err
	}
	return &Environment{base}, nil
}

// DialPort implements [environment.Dialer]: it connects to a port of this machine.
func (e *Environment) DialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, &environment.Error{Kind: environment.Invalid, Field: "port", Message: "must be 1 to 65535"}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, environment.Wrap(environment.Unavailable, err, "connect")
	}
	return conn, nil
}
