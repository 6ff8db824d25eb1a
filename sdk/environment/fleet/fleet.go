package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// cancelTime bounds a request to cancel an exec.
	cancelTime = 10 * time.Second
	// endTime bounds the wait for the end of a cancelled exec, in addition to its grace period.
	endTime = 15 * time.Second
	// grace is the time from TERM to KILL when an exec is ended early.
	grace = 2 * time.Second
	// maxPort is the greatest TCP port.
	maxPort = 65535
)

// Environment is a sandbox. It is safe for concurrent use, and holds no resources.
type Environment struct {
	box   *sdk.Sandbox
	files *sdk.Files
}

// New makes an environment of a sandbox, which must be ready when calls are made.
func New(box *sdk.Sandbox) *Environment { return &Environment{box: box, files: box.Files()} }

// Sandbox returns the sandbox.
func (e *Environment) Sandbox() *sdk.Sandbox { return e.box }

// Describe implements [environment.Environment]. The isolation is that of containers; an operator may make it stronger
// with another runtime.
func (e *Environment) Describe() environment.Description {
	return environment.Description{Backend: "fleet", Isolation: environment.IsolationContainer,
		Capabilities: []environment.Capability{environment.POSIX, environment.Users, environment.Streams, environment.Ports}}
}

// ExecuteStreaming implements [environment.Environment]. The image must have a program sh.
func (e *Environment) ExecuteStreaming(ctx context.Context, command string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCommand(command); err != nil {
		return environment.Fail(err)
	}
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	return func(yield func(environment.Event, error) bool) {
		e.run(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", command}}, o, nil, yield)
	}
}

// findInterpreter runs the first of its arguments that is a program, with the code as its standard input. It reads PATH
// itself, because a shell would also find its own commands.
const findInterpreter = `for n in "$@"; do
	IFS=:
	for d in $PATH; do [ -f "$d/$n" ] && [ -x "$d/$n" ] && exec "$d/$n" -; done
done
echo "$BOXFLEET_MISSING" >&2
exit 127`

// ExecuteCodeStreaming implements [environment.Environment].
func (e *Environment) ExecuteCodeStreaming(ctx context.Context, language, code string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCode(language, code); err != nil {
		return environment.Fail(err)
	}
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	programs := environment.Interpreters(language)
	spec := protocol.ExecSpec{Command: append([]string{"sh", "-c", findInterpreter, "sh"}, programs...)}
	return func(yield func(environment.Event, error) bool) {
		missing := "no-interpreter-" + sdk.NewID()
		spec.Env = map[string]string{"BOXFLEET_MISSING": missing}
		failed := false
		e.run(ctx, spec, o, strings.NewReader(code), func(event environment.Event, err error) bool {
			if event.Stream == environment.Stderr && strings.HasPrefix(string(event.Data), missing) {
				failed = true
				return yield(environment.Event{}, environment.Errorf(environment.NoLanguage,
					"the sandbox has none of the programs that run %s: %s", language, strings.Join(programs, ", ")))
			}
			return !failed && yield(event, err)
		})
	}
}

// errLeft says that the caller left the loop.
var errLeft = errors.New("the caller left the loop")

// chunks yields what one stream of an exec prints.
type chunks struct {
	stream environment.Stream
	yield  func(environment.Event, error) bool
}

func (c *chunks) Write(data []byte) (int, error) {
	if len(data) > 0 && !c.yield(environment.Event{Stream: c.stream, Data: append([]byte(nil), data...)}, nil) {
		return 0, errLeft
	}
	return len(data), nil
}

// run runs an exec and yields what it prints. The exec ends with the call.
func (e *Environment) run(ctx context.Context, spec protocol.ExecSpec, o environment.Options, input *strings.Reader,
	yield func(environment.Event, error) bool) {
	if ctx.Err() != nil {
		yield(environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), "nothing was run"))
		return
	}
	spec.Cwd, spec.User, spec.Timeout, spec.Grace = o.Dir, o.User, protocol.Duration(o.Timeout), protocol.Duration(grace)
	if spec.Env == nil {
		spec.Env = map[string]string{}
	}
	for name, value := range o.Env {
		spec.Env[name] = value
	}
	id := sdk.NewID()
	opts := []sdk.ExecOption{sdk.WithID(id), sdk.WithCollect(0), sdk.WithStdout(&chunks{environment.Stdout, yield}),
		sdk.WithStderr(&chunks{environment.Stderr, yield})}
	if input != nil {
		opts = append(opts, sdk.WithStdin(input))
	}
	result, err := e.box.Exec(ctx, spec, opts...)
	switch {
	case errors.Is(err, errLeft):
		e.end(ctx, id)
	case ctx.Err() != nil && err != nil:
		e.end(ctx, id)
		yield(environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), "the command was ended"))
	case err != nil && result != nil && result.State == protocol.ExecStateTimedOut:
		yield(environment.Event{}, &environment.TimeoutError{After: o.Timeout})
	case err != nil:
		yield(environment.Event{}, execError(err))
	case result.ExitCode == nil:
		yield(environment.Event{}, environment.Errorf(environment.Failed, "the exit code of exec %s is not known", id))
	default:
		yield(environment.Event{Result: &environment.Result{ExitCode: *result.ExitCode,
			Truncated: result.Truncated || result.OutputError != nil}}, nil)
	}
}

// end cancels an exec and waits for its end.
func (e *Environment) end(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+endTime)
	defer cancel()
	x := e.box.ExecByID(id)
	asking, done := context.WithTimeout(ctx, cancelTime)
	defer done()
	if err := x.Cancel(asking); err == nil {
		_, _ = x.Wait(ctx, sdk.WithCollect(0)) // the exec ends without this client, too
	}
}

// execError translates the error of an exec.
func execError(err error) error {
	why := protocol.AsError(err)
	var field string
	kind := kinds[why.Reason]
	switch {
	case why.Reason == protocol.ReasonCwdInvalid:
		field, kind = "dir", environment.NotFound
		if strings.Contains(why.Message, "not a directory") {
			kind = environment.NotDirectory
		}
	case why.Reason == protocol.ReasonUserUnknown:
		field, kind = "user", environment.Invalid
	case kind == "":
		kind = kindOf(why.Code)
	}
	return &environment.Error{Kind: kind, Field: field, Message: why.Error(), Err: err}
}

// kinds translates reasons.
var kinds = map[string]environment.Kind{
	protocol.ReasonPathNotFound: environment.NotFound,
	protocol.ReasonIsDirectory:  environment.IsDirectory,
	protocol.ReasonNotDirectory: environment.NotDirectory,
	protocol.ReasonNotRegular:   environment.NotRegular,
	protocol.ReasonLinkLoop:     environment.Failed,
	protocol.ReasonPathDenied:   environment.Permission,
	protocol.ReasonReadOnly:     environment.Permission,
	protocol.ReasonTooLarge:     environment.TooLarge,
	protocol.ReasonUnsupported:  environment.Unsupported,
}

// kindOf translates the codes of errors whose reason is not in kinds.
func kindOf(code protocol.Code) environment.Kind {
	switch code {
	case protocol.InvalidArgument:
		return environment.Invalid
	case protocol.PermissionDenied:
		return environment.Permission
	case protocol.Cancelled:
		return environment.Cancelled
	case protocol.NotFound, protocol.FailedPrecondition, protocol.Unavailable, protocol.DeadlineExceeded,
		protocol.ResourceExhausted:
		return environment.Unavailable // the sandbox is gone, does not run, or does not answer
	}
	return environment.Failed
}

// DialPort implements [environment.Dialer].
func (e *Environment) DialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > maxPort {
		return nil, &environment.Error{Kind: environment.Invalid, Field: "port",
			Message: fmt.Sprintf("must be 1 to %d, got %d", maxPort, port)}
	}
	conn, err := e.box.DialContext(ctx, "tcp", fmt.Sprintf("localhost:%d", port))
	if err != nil {
		return nil, environment.Wrap(environment.Unavailable, err, "connect")
	}
	return conn, nil
}
