package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

func hostError(err error, format string, args ...any) *protocol.Error {
	return hosterr.Wrap(err, format, args...)
}

func passing(err error) bool { return hosterr.Temporary(err) }

func sleep(ctx context.Context, d time.Duration) bool { return backoff.Sleep(ctx, d) }
