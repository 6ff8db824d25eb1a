package docker

import (
	"context"
	"fmt"
	"iter"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/shell"
)

const (
	// DefaultMemory is the memory of a new container, in bytes.
	DefaultMemory = 1 << 30
	// DefaultPIDs is how many processes a new container may have.
	DefaultPIDs = 512
	// Label marks the containers that Start made, so that an operator finds containers that a killed process left.
	Label = "boxfleet.environment"
	// maxScript is how many bytes a script may have: it comes through a pipe.
	maxScript = 8 << 20
	// endTime bounds the removal of a container.
	endTime = 30 * time.Second
)

// Config says which container to start.
type Config struct {
	Image string // required; the engine must have it, it is not pulled
	User  string // user of commands: a name or a uid, either with :group; default: the image's
	Dir   string // working directory, absolute, which is created; default: the image's

	Memory  int64  // bytes; default: [DefaultMemory]
	PIDs    int    // processes; default: [DefaultPIDs]
	Network string // a network of the engine; default: none

	Grace time.Duration // time from TERM to KILL when a command is ended early; default: [shell.DefaultGrace]
}

// Environment is a container. Close it when it is not needed any more.
type Environment struct {
	*shell.Environment
	container string
	made      bool
	close     sync.Once
	closed    error
}

// name is the form of the name or id of an image or a container. It cannot be an option of the docker command.
var name = regexp.MustCompile(`\A[a-zA-Z0-9][a-zA-Z0-9_.:/@-]*\z`)

func invalid(field, format string, args ...any) error {
	return &environment.Error{Kind: environment.Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

func (c *Config) check() error {
	switch {
	case !name.MatchString(c.Image):
		return invalid("Image", "must be the name of an image, got %.200q", c.Image)
	case c.Dir != "" && !strings.HasPrefix(c.Dir, "/"):
		return invalid("Dir", "must be absolute, got %.200q", c.Dir)
	case c.Network != "" && !name.MatchString(c.Network):
		return invalid("Network", "must be the name of a network, got %.200q", c.Network)
	case c.Memory < 0 || c.PIDs < 0:
		return invalid("Memory", "and PIDs must not be negative")
	case c.User != "":
		return environment.Options{User: c.User}.Check()
	}
	return nil
}

// Start starts a container. Errors: ErrInvalid naming the field; ErrUnavailable if the engine cannot start it.
func Start(ctx context.Context, c Config) (*Environment, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	args := []string{"run", "--detach", "--init", "--pull", "never", "--label", Label + "=1", "--cap-drop", "ALL",
		"--security-opt", "no-new-privileges", "--memory", strconv.FormatInt(or(c.Memory, DefaultMemory), 10),
		"--pids-limit", strconv.FormatInt(or(int64(c.PIDs), DefaultPIDs), 10), "--entrypoint", "sh"}
	network := c.Network
	if network == "" {
		network = "none"
	}
	args = append(args, "--network", network)
	if c.User != "" {
		args = append(args, "--user", c.User)
	}
	if c.Dir != "" {
		args = append(args, "--workdir", c.Dir)
	}
	// The container waits for a signal. Not every image has a sleep that accepts "infinity".
	id, err := command(ctx, append(args, c.Image, "-c", "while :; do sleep 86400; done")...)
	if err != nil {
		return nil, err
	}
	e, err := environmentOf(id, c.Grace)
	if err != nil {
		return nil, err
	}
	e.made = true
	return e, nil
}

func or(value, fallback int64) int64 {
	if value == 0 {
		return fallback
	}
	return value
}

// Use makes an environment of a container that runs. Errors: ErrInvalid naming "container"; ErrUnavailable if it does
// not run.
func Use(ctx context.Context, container string) (*Environment, error) {
	if !name.MatchString(container) {
		return nil, invalid("container", "must be the name or the id of a container, got %.200q", container)
	}
	out, err := command(ctx, "container", "inspect", "--format", "{{.State.Running}} {{.Id}}", container)
	if err != nil {
		return nil, err
	}
	running, id, _ := strings.Cut(out, " ")
	if running != "true" {
		return nil, environment.Errorf(environment.Unavailable, "container %s does not run; start it", container)
	}
	return environmentOf(id, 0)
}

func environmentOf(id string, grace time.Duration) (*Environment, error) {
	base, err := shell.New(shell.Config{MaxScript: maxScript, Grace: grace,
		Description: environment.Description{Backend: "docker", Isolation: environment.IsolationContainer,
			Capabilities: []environment.Capability{environment.Users}},
		Run: func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] { return run(ctx, id, s) },
	})
	if err != nil {
		return nil, err
	}
	return &Environment{Environment: base, container: id}, nil
}

// run runs a script in a container.
func run(ctx context.Context, container string, s shell.Script) iter.Seq2[environment.Event, error] {
	argv := []string{"docker", "exec", "--interactive"}
	if s.User != "" {
		argv = append(argv, "--user", s.User)
	}
	argv = append(argv, container)
	return func(yield func(environment.Event, error) bool) {
		var said []byte
		for e, err := range shell.Process(ctx, "", s.Text, append(argv, s.Argv()...)...) {
			if len(e.Data) > 0 && len(said) < len(unknownUser)*4 {
				said = append(said, e.Data...)
			}
			if e.Result != nil && e.Result.ExitCode != 0 && s.User != "" && strings.Contains(string(said), unknownUser) {
				yield(environment.Event{}, invalid("user", "the container has no user %q", s.User))
				return
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// unknownUser is what the engine says about a user that does not exist.
const unknownUser = "unable to find user"

// command runs the docker command and returns what it prints.
func command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	out, err := cmd.Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if ctx.Err() != nil {
		return "", environment.Wrap(environment.Cancelled, ctx.Err(), "docker "+args[0])
	}
	why := environment.Wrap(environment.Unavailable, err, "docker "+args[0])
	if exit, ok := err.(*exec.ExitError); ok {
		why.Message = "docker " + args[0] + ": " + strings.TrimSpace(string(exit.Stderr))
	}
	return "", why
}

// Container returns the id of the container.
func (e *Environment) Container() string { return e.container }

// Close removes the container with its files if [Start] made it. Later calls return the same result. Error:
// ErrUnavailable if the engine does not answer.
func (e *Environment) Close() error {
	e.close.Do(func() {
		if !e.made {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		_, e.closed = command(ctx, "rm", "--force", "--volumes", e.container)
	})
	return e.closed
}
