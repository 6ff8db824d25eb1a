package protocol

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestErrorsMatchTheSentinelOfTheirCode(t *testing.T) {
	err := fmt.Errorf("request: %w", Errorf(NotFound, ReasonNoHost, "no host %q", "h"))
	for _, tc := range []struct {
		target *Error
		want   bool
	}{
		{ErrNotFound, true}, {&Error{Code: NotFound, Reason: ReasonNoHost}, true},
		{&Error{Code: NotFound, Reason: ReasonHostLost}, false}, {ErrAlreadyExists, false},
	} {
		if errors.Is(err, tc.target) != tc.want {
			t.Errorf("errors.Is(%v, %v) is not %v", err, tc.target, tc.want)
		}
	}
	if errors.Is(Errorf(NotFound, "", ""), io.EOF) {
		t.Error("an *Error matches io.EOF")
	}
	if got, want := AsError(err).Error(), `not_found (no_host): no host "h"`; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	if got, want := Invalid("spec.cwd", "must be %d", 1).Error(), "invalid_argument: spec.cwd: must be 1"; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
}

func TestForeignErrorsAreInternal(t *testing.T) {
	if AsError(nil) != nil || CodeOf(nil) != "" {
		t.Error("AsError(nil) is not nil")
	}
	if e := AsError(io.EOF); e.Code != Internal || e.Message != "EOF" {
		t.Errorf("got %v", e)
	}
	if CodeOf(fmt.Errorf("x: %w", ErrCancelled)) != Cancelled {
		t.Error("a wrapped error lost its code")
	}
}
