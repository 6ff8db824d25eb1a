package sdk

import (
	"context"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnInterruptedUploadIsRetried(t *testing.T) {
	broken := protocol.Errorf(protocol.Unavailable, "", "chunks were not stored in their order")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		fails []error // errors of the first attempts; later attempts succeed
		tries int
		want  protocol.Code
	}{
		"no failure":       {t.Context(), nil, 1, ""},
		"one interruption": {t.Context(), []error{broken}, 2, ""},
		"one timeout": {t.Context(), []error{protocol.Errorf(protocol.DeadlineExceeded, "", "no answer")}, 2,
			""},
		"interrupted every time": {t.Context(), []error{broken, broken, broken, broken}, uploadTries, protocol.Unavailable},
		"the tree changed": {t.Context(), []error{protocol.Errorf(protocol.FailedPrecondition, "", "it changed"),
			broken}, 1, protocol.FailedPrecondition},
		"the context is cancelled": {canceled, []error{broken, broken}, 1, protocol.Unavailable},
		"the source is gone": {t.Context(), []error{broken, protocol.Invalid("source", "is gone")}, 2,
			protocol.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			err := retryUpload(c.ctx, func() error {
				tries++
				if tries <= len(c.fails) {
					return c.fails[tries-1]
				}
				return nil
			})
			if tries != c.tries || (err != nil) != (c.want != "") || err != nil && protocol.CodeOf(err) != c.want {
				t.Errorf("%d tries, then %v; want %d, code %q", tries, err, c.tries, c.want)
			}
		})
	}
}
