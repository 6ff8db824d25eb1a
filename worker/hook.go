package worker

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// runHook runs a hook in the primary container, as the sandbox's user and in its directory, and
// returns its exit code where it has one, and the end of its output. It is run once per boot of the
// container under a name, also where the worker is restarted meanwhile: its supervisor remembers it.
// failed says why it failed; err, that it is not known what became of it.
func (s *sandbox) runHook(ctx context.Context, name string, h *protocol.Hook) (exit *int, output []byte, failed *protocol.Error, err error) {
	a, err := s.attachment(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	timeout := h.Timeout
	if timeout == 0 {
		timeout = protocol.DefaultHookTimeout
	}
	id := hookID(a.key, name)
	result, output, err := s.command(ctx, a, control.Start{ID: id, Argv: h.Command, Timeout: timeout.Std()})
	if err != nil {
		return nil, nil, nil, err
	}
	return result.ExitCode, output, hookError(h, timeout, &result, output), nil
}

// farewell runs the on_delete command of a sandbox that runs, once, and appends what became of it.
// The execs run on meanwhile. Whatever becomes of it, the sandbox is deleted.
func (s *sandbox) farewell(ctx context.Context, b *protocol.Sandbox) error {
	h := b.Spec.OnDelete
	if h == nil || b.OnDelete != "" || b.ReadyAt.IsZero() || s.inspection.Container != decide.ContainerRunning {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, h.Timeout.Std()+hookMargin)
	defer cancel()
	e := protocol.Event{Kind: protocol.SandboxHook, Phase: &protocol.SandboxDetails{Phase: "on_delete"}}
	s.mu.Lock()
	attached := s.attached != nil
	s.mu.Unlock()
	var err error
	if !attached { // the worker was restarted meanwhile
		_, err = s.startAgain(bounded, b)
	}
	if err == nil {
		e.Phase.ExitCode, e.Phase.Output, e.Error, err = s.runHook(bounded, "on_delete", h)
	}
	if ctx.Err() != nil || err != nil && protocol.AsError(err).Reason == protocol.ReasonLeaseLost {
		return cmp.Or(ctx.Err(), err) // the next worker runs it, or learns what became of it
	}
	if err != nil {
		e.Error = protocol.Errorf(protocol.Unavailable, protocol.ReasonHookFailed, "what became of the hook is not known: %v", err)
	}
	if e.Error != nil {
		e.Reason = e.Error.Reason
	}
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Hook(st, e) })
	if errors.Is(err, errSuperseded) {
		return nil
	}
	return err
}

// hookMargin is how long beyond its timeout a hook may take, with all that is around it.
const hookMargin = 10 * time.Second

// hookPrefix begins the ids of hooks. Execs of callers may have such ids, too.
const hookPrefix = "hook-"

// hookID is an exec id that nobody in the sandbox can guess, so that no exec of theirs is taken for
// the hook.
func hookID(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("hook " + name))
	return hookPrefix + hex.EncodeToString(mac.Sum(nil)[:16])
}

// hookError says why a hook failed, nil where it did not.
func hookError(h *protocol.Hook, timeout protocol.Duration, r *control.Result, output []byte) *protocol.Error {
	command := fmt.Sprintf("%.200q", h.Command)
	fail := func(code protocol.Code, format string, args ...any) *protocol.Error {
		return protocol.Errorf(code, protocol.ReasonHookFailed, "the hook %s %s%s", command, fmt.Sprintf(format, args...), quoted(output))
	}
	switch {
	case r.TimedOut:
		return fail(protocol.DeadlineExceeded, "ran longer than %s", timeout)
	case r.Failed:
		return fail(protocol.FailedPrecondition, "could not be run: %v", r.Error)
	case r.ExitCode == nil:
		return fail(protocol.FailedPrecondition, "was interrupted")
	case *r.ExitCode != 0:
		return fail(protocol.FailedPrecondition, "ended with exit code %d", *r.ExitCode)
	}
	return nil
}

// quoted adds the end of some output to a message, on lines of its own.
func quoted(output []byte) string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(output)), "\uFFFD")
	if text == "" {
		return ""
	}
	return "; its last output:\n" + text
}
