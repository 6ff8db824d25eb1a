package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// DefaultPullStall is the longest that a pull may go on without progress.
	DefaultPullStall = 2 * time.Minute

	pullTries         = 3
	defaultRetryPause = time.Second
)

var errUnreachable = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonRegistryUnreachable}

// PullImage pulls an image and reads it. The same image is pulled once at a time on an engine: who
// asks for it meanwhile waits for that pull, which ends early only when everybody who waits has gone.
// report, which may be nil, is called in the caller's goroutine: when the pull begins, then from time
// to time, less and less often, while it goes on, and at its end.
//
// It fails with [ErrImageNotFound] when the registry has no such image, or admits to none;
// permission_denied with reason image_denied; and unavailable with a reason:
// registry_unreachable, after some tries; image_pull_stalled, after [Config.PullStall] without
// progress; image_pull_failed for everything else.
func (e *Engine) PullImage(ctx context.Context, ref string, report func(protocol.PullProgress)) (Image, error) {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return Image{}, err
	}
	p := e.joinPull(ctx, full)
	defer e.leavePull(p)
	if err := p.wait(ctx, report); err != nil {
		return Image{}, err
	}
	return e.FindImage(ctx, ref)
}

// pull is one that runs.
type pull struct {
	ref    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
	moved  *layers

	waiting int // callers; guarded by the engine
}

// joinPull returns the running pull of ref, or a new one, as one more who waits for it.
func (e *Engine) joinPull(ctx context.Context, ref string) *pull {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pulls[ref]; p != nil {
		p.waiting++
		return p
	}
	// It is nobody's own: it outlives the caller who came first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &pull{ref: ref, cancel: cancel, done: make(chan struct{}), moved: newLayers(), waiting: 1}
	e.pulls[ref] = p
	go func() {
		defer cancel()
		p.err = e.pullWithRetries(ctx, ref, p.moved)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.pulls[ref] == p {
			delete(e.pulls, ref)
		}
		close(p.done)
	}()
	return p
}

// leavePull ends a pull that nobody waits for any more; who comes later begins anew.
func (e *Engine) leavePull(p *pull) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	p.cancel()
	if e.pulls[p.ref] == p {
		delete(e.pulls, p.ref)
	}
}

// Between two reports, at first and at most.
const (
	reportFirst = 2 * time.Second
	reportMost  = 30 * time.Second
)

func (p *pull) wait(ctx context.Context, report func(protocol.PullProgress)) error {
	if report == nil {
		report = func(protocol.PullProgress) {}
	}
	progress := func() protocol.PullProgress { return p.moved.progress(p.ref) }
	last := progress()
	report(last)
	pause := reportFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-p.done:
			if p.err == nil {
				end := progress()
				end.Complete = true
				report(end)
			}
			return p.err
		case <-ctx.Done():
			return translate(ctx, call{verb: "pull", kind: kindImage, name: p.ref, limit: transferLimit}, ctx.Err())
		case <-timer.C:
			if now := progress(); now != last {
				last = now
				report(now)
			}
			pause = min(2*pause, reportMost)
			timer.Reset(pause)
		}
	}
}

// pullWithRetries tries again where the registry could not be reached, which often passes.
func (e *Engine) pullWithRetries(ctx context.Context, ref string, moved *layers) error {
	pause := e.retryPause
	for try := 1; ; try++ {
		err := e.pull(ctx, ref, moved)
		if try == pullTries || !errors.Is(err, errUnreachable) {
			return err
		}
		e.log.Info("a registry is not reached, and tried again", "image", ref, "error", err)
		moved.again(try + 1)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 3
	}
}

// pull asks the engine to pull and reads its report to the end; only then is the image there.
func (e *Engine) pull(ctx context.Context, ref string, moved *layers) error {
	auth, known := e.credentials(ctx, registryOf(ref))
	c := call{verb: "pull", kind: kindImage, name: ref, limit: transferLimit}
	return e.do(ctx, c, func(limited context.Context) error {
		moving, p := watchProgress(limited, e.pullStall)
		defer p.done()
		report, err := e.client.ImagePull(moving, ref, image.PullOptions{RegistryAuth: auth})
		if err == nil {
			defer report.Close()
			err = readReport(report, func(m *jsonmessage.JSONMessage) {
				if moved.heard(m) {
					p.moved()
				}
			})
		}
		if errors.Is(cause(moving, err), errStalled) {
			return e.stalled(ctx, ref)
		}
		return pullError(translate(ctx, c, err), known)
	})
}

// stalled tells a pull that stands still from an engine that does.
func (e *Engine) stalled(ctx context.Context, ref string) error {
	if err := e.Ping(ctx); err != nil {
		return err
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonImagePullStalled, "pull image %s: no progress for %s", ref, e.pullStall)
}

// readReport reads what an engine reports of something long, which says in its midst when that
// failed.
func readReport(report io.Reader, heard func(*jsonmessage.JSONMessage)) error {
	decoder := json.NewDecoder(report)
	for {
		var message jsonmessage.JSONMessage
		if err := decoder.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if message.Error != nil {
			return message.Error
		}
		heard(&message)
	}
}

// Words of engines and registries. A registry that shows nobody without credentials what it has
// does not tell a missing image from a denied one.
var (
	denied      = regexp.MustCompile(`(?i)unauthorized|authentication required|no basic auth credentials|incorrect username or password|insufficient_scope`)
	maybeDenied = regexp.MustCompile(`(?i)pull access denied|\bdenied:|403 Forbidden`)
	noSuchImage = regexp.MustCompile(`(?i)manifest unknown|manifest for .* not found|name unknown|` +
		`repository .*not (found|exist)|repository does not exist|no matching manifest`)
	unreachable = regexp.MustCompile(`(?i)connection refused|connection reset|no such host|server misbehaving|no route to host|` +
		`network is unreachable|i/o timeout|handshake timeout|Client\.Timeout|deadline exceeded|unexpected EOF|: EOF|` +
		`HTTP status: 5\d\d|\b50[0234] (Bad|Service|Gateway|Internal)|server closed idle connection`)
)

// pullError says what a failed pull means. An engine that failed to pull is not an engine that
// failed. known says whether the registry was given credentials.
func pullError(err error, known bool) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code == protocol.Cancelled {
		return err
	}
	fail := func(code protocol.Code, reason string) error { return protocol.Errorf(code, reason, "%s", e.Message) }
	switch {
	case e.Reason == protocol.ReasonEngineUnavailable:
		return err
	case denied.MatchString(e.Message), known && maybeDenied.MatchString(e.Message):
		hint := "the worker has no credentials for it"
		if known {
			hint = "with the worker's credentials"
		}
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonImageDenied, "%s (%s)", e.Message, hint)
	case e.Reason == protocol.ReasonImageNotFound, noSuchImage.MatchString(e.Message), maybeDenied.MatchString(e.Message):
		return fail(protocol.NotFound, protocol.ReasonImageNotFound)
	case unreachable.MatchString(e.Message):
		return fail(protocol.Unavailable, protocol.ReasonRegistryUnreachable)
	case e.Code == protocol.InvalidArgument:
		return err
	}
	return fail(protocol.Unavailable, protocol.ReasonImagePullFailed)
}

// credentials finds what the worker's Docker configuration has for a registry, in the form that the
// engine takes. Without, or when a helper fails, the pull is tried without.
func (e *Engine) credentials(ctx context.Context, host string) (encoded string, known bool) {
	found, err := loginFor(ctx, e.dockerConfig, host)
	if err != nil {
		e.log.Warn("the credentials for a registry cannot be read; trying without", "registry", host, "error", err)
		return "", false
	}
	if found == (registry.AuthConfig{}) {
		return "", false
	}
	encoded, err = registry.EncodeAuthConfig(found)
	if err != nil {
		e.log.Warn("the credentials for a registry cannot be sent; trying without", "registry", host, "error", err)
		return "", false
	}
	return encoded, true
}
