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
	ExitCode *int            // nil: the hook did not exit by itself
	Output   []byte          // last part of the hook's output
	Error    *protocol.Error // why the hook failed; nil: it did not fail
}

// Hook runs a hook as the container's default user, in its default directory. Within one boot of the supervisor, a hook
// with the same name runs only once, even if the worker restarts between two calls, because the supervisor keeps the
// result. An error means that the outcome is not known.
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

// hookPrefix begins the ids of hooks. A client may choose an exec id with this prefix, too.
const hookPrefix = "hook-"

// IsHook reports whether an id may be the id of a hook. The supervisor must not forget a hook, because the hook could
// then run twice.
func IsHook(id string) bool { return strings.HasPrefix(id, hookPrefix) }

// hookID returns the exec id of a hook. No client can guess this id, so no client can start an exec in place of the
// hook.
func hookID(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("hook " + name))
	return hookPrefix + hex.EncodeToString(mac.Sum(nil)[:16])
}

// hookError returns why a hook failed, or nil if it succeeded.
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

// Quote formats a command's output for an error message. It returns "" for no output.
func Quote(output []byte) string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(output)), "\uFFFD")
	if text == "" {
		return ""
	}
	return "; its last output:\n" + text
}
