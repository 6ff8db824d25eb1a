package attach

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// HookResult is the outcome of a hook.
type HookResult struct {
	ExitCode *int // nil: it has none
	Output   []byte
	Error    *protocol.Error // why it failed, nil if it did not
}

// Hook runs a hook as the container's user, in its directory. Under the same name it runs once for each boot of the
// container, also if the worker restarts meanwhile, since the supervisor remembers it. An error means that the outcome
// is not known.
func (a *Attachment) Hook(ctx context.Context, name string, h *protocol.Hook) (HookResult, error) {
	timeout := h.Timeout
	if timeout == 0 {
		timeout = protocol.DefaultHookTimeout
	}
	result, output, err := a.Command(ctx, control.Start{ID: hookID(a.Key, name), Argv: h.Command, Timeout: timeout.Std()})
	if err != nil {
		return HookResult{}, err
	}
	return HookResult{ExitCode: result.ExitCode, Output: output, Error: hookError(h, timeout, &result, output)}, nil
}

// hookPrefix begins the ids of hooks. Callers' execs may have such ids, too.
const hookPrefix = "hook-"

// IsHook reports whether an id may be that of a hook, which the supervisor must not forget: it would run twice.
func IsHook(id string) bool { return strings.HasPrefix(id, hookPrefix) }

// hookID is an exec id that nobody in the sandbox can guess, so that no exec of theirs is taken for the hook.
func hookID(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("hook " + name))
	return hookPrefix + hex.EncodeToString(mac.Sum(nil)[:16])
}

// hookError says why a hook failed, nil if it did not.
func hookError(h *protocol.Hook, timeout protocol.Duration, r *control.Result, output []byte) *protocol.Error {
	command := fmt.Sprintf("%.200q", h.Command)
	fail := func(code protocol.Code, format string, args ...any) *protocol.Error {
		return protocol.Errorf(code, protocol.ReasonHookFailed,
			"the hook %s %s%s", command, fmt.Sprintf(format, args...), Quote(output))
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

// Quote is the end of some output as a message quotes it, on lines of its own.
func Quote(output []byte) string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(output)), "\uFFFD")
	if text == "" {
		return ""
	}
	return "; its last output:\n" + text
}
