package sdk

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// defaultStreamTimeout is how long an operation inside a sandbox may take before it answers, if the context has no
// deadline.
const defaultStreamTimeout = 2 * time.Minute

// opening is an operation inside a sandbox that the sandbox's worker carries out.
type opening struct {
	open protocol.StreamOpen
	// repeats says that the operation changes nothing, so it may be sent again if it is unknown whether it was carried
	// out.
	repeats bool
	// waits says that the request is sent again while the worker has too many streams.
	waits bool
}

// do asks the sandbox's worker for the operation. If the worker does not run, or the sandbox has another one by now, do
// asks again until giveUpAfter has passed.
func (o opening) do(ctx context.Context, s *Sandbox) (*stream.Conn, *protocol.StreamReply, error) {
	id, err := s.find(ctx, findBounded)
	if err != nil {
		return nil, nil, err
	}
	for giveUp := time.Now().Add(s.client.giveUpAfter()); ; {
		target := jetstream.StreamTarget{Tenant: s.client.tenant, Sandbox: id}
		if target.Worker, err = workerOf(ctx, s); err != nil {
			return nil, nil, err
		}
		o.open.Timeout = Duration(streamTimeout(ctx))
		conn, reply, err := s.client.conn.OpenStream(ctx, target, o.open)
		if err == nil || !o.maySendAgain(err) || ctx.Err() != nil || time.Now().After(giveUp) {
			return conn, reply, err
		}
		moved := protocol.AsError(err).Reason == protocol.ReasonNotHere // the handle may know an older worker
		if !moved && !backoff.Sleep(ctx, retryPause) {
			return nil, nil, err
		}
		if readErr := s.Refresh(ctx); readErr != nil && !isTransient(readErr) {
			return nil, nil, readErr
		}
		if moved && s.Info().Worker == target.Worker {
			return nil, nil, err
		}
	}
}

// maySendAgain reports whether the operation may be sent again: because it was certainly not carried out and may
// succeed soon, or because carrying it out twice does no harm.
func (o opening) maySendAgain(err error) bool {
	switch protocol.AsError(err).Reason {
	case protocol.ReasonNoWorker, protocol.ReasonNotHere:
		return true
	case protocol.ReasonConnectFailed: // the answer of the sandbox, not of a worker in trouble
		return false
	case protocol.ReasonTooManyStreams:
		return o.waits
	}
	return o.repeats && protocol.CodeOf(err) == protocol.Unavailable
}

// streamTimeout returns how long to wait for the answer of a worker.
func streamTimeout(ctx context.Context) time.Duration {
	end, bounded := ctx.Deadline()
	if !bounded {
		return defaultStreamTimeout
	}
	return min(max(time.Until(end), protocol.MinStreamTimeout), protocol.MaxStreamTimeout)
}

// workerOf returns the name of the sandbox's worker. Error: failed_precondition with reason sandbox_not_ready if the
// sandbox is on no host.
func workerOf(ctx context.Context, s *Sandbox) (string, error) {
	if info := s.Info(); info.Worker != "" && info.State == StateReady {
		return info.Worker, nil
	}
	if err := s.Refresh(ctx); err != nil {
		return "", err
	}
	info := s.Info()
	if info.State != StateReady || info.Worker == "" {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady,
			"sandbox %s is %s; its files and ports can be used only while it is ready", info.ID, info.State)
	}
	return info.Worker, nil
}
