package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// DefaultPullStall is the default of [Config.PullStall].
	DefaultPullStall = 2 * time.Minute

	pullTries         = 3
	defaultRetryPause = time.Second
)

var errUnreachable = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonRegistryUnreachable}

// pulls has the methods that bring images to the engine, from registries and other sources. Concurrent calls for one
// image share one pull.
type pulls struct {
	*connection
	images       *images
	pullStall    time.Duration
	retryPause   time.Duration
	dockerConfig string

	mu      sync.Mutex
	running map[string]*pull // pulls by the name that the image gets on the engine
}

// PullImage pulls an image and inspects it. Concurrent calls for the same image share one pull, which is cancelled only
// when no caller waits for it any more. PullImage calls report, which may be nil, in the caller's goroutine: at the
// start of the pull, at growing intervals during the pull, and at the end of a successful pull.
//
// It fails with [ErrImageNotFound] if the registry does not have the image or hides it from this worker, and with
// permission_denied and reason image_denied if the registry denies access. Otherwise it fails with unavailable and one
// of these reasons: registry_unreachable after several attempts, image_pull_stalled after [Config.PullStall] without
// progress, or image_pull_failed for every other failure.
func (ps *pulls) PullImage(ctx context.Context, ref string, report func(protocol.PullProgress)) (Image, error) {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return Image{}, err
	}
	err = ps.pullOnce(ctx, full, full, report, func(ctx context.Context, moved *layers) error {
		return ps.pull(ctx, full, moved)
	})
	if err != nil {
		return Image{}, err
	}
	return ps.images.FindImage(ctx, ref)
}

// pullOnce waits for the running pull of this name. If no pull of the name is running, pullOnce starts one: it calls
// bring, which must get the image onto the engine under this name.
func (ps *pulls) pullOnce(ctx context.Context, full, name string, report func(protocol.PullProgress),
	bring func(context.Context, *layers) error) error {
	p := ps.joinPull(ctx, full, name, bring)
	defer ps.leavePull(p)
	return p.wait(ctx, report)
}

// pull is a running pull.
type pull struct {
	ref    string
	name   string // the name that the image gets on the engine
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
	moved  *layers

	waiting int // number of callers that wait; guarded by pulls.mu
}

// joinPull returns the running pull of a name, or starts one, and counts the caller as waiting.
func (ps *pulls) joinPull(ctx context.Context, ref, name string, bring func(context.Context, *layers) error) *pull {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.running[name]; p != nil {
		p.waiting++
		return p
	}
	// The pull belongs to all callers, so it must not end when the first caller's context ends.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &pull{ref: ref, name: name, cancel: cancel, done: make(chan struct{}), moved: newLayers(), waiting: 1}
	ps.running[name] = p
	go func() {
		defer cancel()
		p.err = ps.pullWithRetries(ctx, ref, p.moved, bring)
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if ps.running[name] == p {
			delete(ps.running, name)
		}
		close(p.done)
	}()
	return p
}

// leavePull stops counting the caller as waiting, and cancels the pull if no other caller waits for it. A later caller
// then starts a new pull.
func (ps *pulls) leavePull(p *pull) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	p.cancel()
	if ps.running[p.name] == p {
		delete(ps.running, p.name)
	}
}

// The interval between two reports grows from reportFirst to reportMost.
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

// pullWithRetries calls bring, at most pullTries times. It calls bring again only if the registry could not be reached,
// because that is often temporary.
func (ps *pulls) pullWithRetries(ctx context.Context, ref string, moved *layers,
	bring func(context.Context, *layers) error) error {
	pause := ps.retryPause
	for try := 1; ; try++ {
		err := bring(ctx, moved)
		if try == pullTries || !errors.Is(err, errUnreachable) {
			return err
		}
		ps.log.Info("could not reach an image's registry; retrying the pull", "image", ref, "error", err)
		moved.restart(try + 1)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 3
	}
}

// pull asks the engine to pull an image, and reads the engine's report to its end. Only then does the engine have the
// image.
func (ps *pulls) pull(ctx context.Context, ref string, moved *layers) error {
	auth, known := ps.credentials(ctx, registryOf(ref))
	c := call{verb: "pull", kind: kindImage, name: ref, limit: transferLimit}
	return ps.do(ctx, c, func(limited context.Context) error {
		moving, p := watchProgress(limited, ps.pullStall)
		defer p.done()
		report, err := ps.client.ImagePull(moving, ref, image.PullOptions{RegistryAuth: auth})
		if err == nil {
			defer report.Close()
			err = readReport(report, func(m *jsonmessage.JSONMessage) {
				if moved.update(m) {
					p.moved()
				}
			})
		}
		if errors.Is(cause(moving, err), errStalled) {
			return ps.stalled(ctx, ref)
		}
		return ps.pullFailed(ctx, ref, translate(ctx, c, err), known)
	})
}

// pullFailed translates the error of a failed pull. The engine's own text appears only in the worker's log.
func (ps *pulls) pullFailed(ctx context.Context, ref string, err error, known bool) error {
	if err != nil && ctx.Err() == nil {
		ps.log.Info("the Docker engine could not pull an image", "image", ref, "error", fmt.Sprintf("%.500q", err.Error()))
	}
	return pullError(ref, err, known)
}

// stalled returns the error of a pull without progress. If the engine does not answer a ping either, the engine hangs,
// and stalled returns the error of the ping.
func (ps *pulls) stalled(ctx context.Context, ref string) error {
	if err := ps.Ping(ctx); err != nil {
		return err
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonImagePullStalled,
		"pull image %s: the pull made no progress for %s", ref, ps.pullStall)
}

// readReport reads the engine's report of a long operation to its end. If a message of the report says that the
// operation failed, readReport returns that error.
func readReport(report io.Reader, handle func(*jsonmessage.JSONMessage)) error {
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
		handle(&message)
	}
}

// Error texts of engines and registries. A registry that hides its contents from anonymous clients does not distinguish
// a missing image from a denied image.
var (
	denied = regexp.MustCompile(`(?i)unauthorized|authentication required|no basic auth credentials|` +
		`incorrect username or password|insufficient_scope`)
	maybeDenied = regexp.MustCompile(`(?i)pull access denied|\bdenied:|403 Forbidden`)
	noSuchImage = regexp.MustCompile(`(?i)manifest unknown|manifest for .* not found|name unknown|` +
		`repository .*not (found|exist)|repository does not exist|no matching manifest`)
	unreachable = regexp.MustCompile(`(?i)connection refused|connection reset|no such host|server misbehaving|` +
		`no route to host|network is unreachable|i/o timeout|handshake timeout|Client\.Timeout|deadline exceeded|` +
		`unexpected EOF|: EOF|` +
		`HTTP status: 5\d\d|\b50[0234] (Bad|Service|Gateway|Internal)|server closed idle connection`)
)

// causes translate the engine's text for a failed pull. Callers must not see the engine's own text: it may quote the
// answer of any server that the engine took for the registry. The engine's text appears only in the worker's log.
var causes = []struct {
	engine *regexp.Regexp
	text   string
}{
	{regexp.MustCompile(`(?i)no space left on device`), "the engine's disk is full"},
	{regexp.MustCompile(`(?i)toomanyrequests|\b429\b`), "the registry limits the rate of requests"},
	{regexp.MustCompile(`(?i)x509: `), "the engine does not trust the registry's certificate"},
	{regexp.MustCompile(`(?i)server gave HTTP response to HTTPS client`), "the registry does not use TLS"},
	{regexp.MustCompile(`(?i)connection refused`), "connection refused"},
	{regexp.MustCompile(`(?i)no such host|server misbehaving`), "its name cannot be resolved"},
	{regexp.MustCompile(`(?i)no route to host|network is unreachable`), "there is no route to it"},
	{regexp.MustCompile(`(?i)timeout|deadline exceeded`), "it did not answer in time"},
	{regexp.MustCompile(`(?i)connection reset|EOF|server closed idle connection`), "it closed the connection"},
	{regexp.MustCompile(`HTTP status: 5\d\d|\b50[0234] (Bad|Service|Gateway|Internal)`),
		"it answered with an HTTP status of 500 or above"},
}

func causeOf(message, otherwise string) string {
	for _, c := range causes {
		if c.engine.MatchString(message) {
			return c.text
		}
	}
	return otherwise
}

// pullError translates the error of a failed pull, and leaves out the engine's text. The parameter known is true if the
// pull was made with credentials.
func pullError(ref string, err error, known bool) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code == protocol.Cancelled {
		return err
	}
	fail := func(code protocol.Code, reason, text string) error {
		return protocol.Errorf(code, reason, "pull image %s: %s", ref, text)
	}
	switch {
	case e.Reason == protocol.ReasonEngineUnavailable, e.Reason == protocol.ReasonDiskFull:
		return err
	case denied.MatchString(e.Message), known && maybeDenied.MatchString(e.Message):
		text := "the registry denies access: the worker has no credentials for this registry"
		if known {
			text = "the registry denies access with the worker's credentials"
		}
		return fail(protocol.PermissionDenied, protocol.ReasonImageDenied, text)
	case e.Reason == protocol.ReasonImageNotFound, noSuchImage.MatchString(e.Message), maybeDenied.MatchString(e.Message):
		return fail(protocol.NotFound, protocol.ReasonImageNotFound,
			"the registry has no such image, or requires credentials")
	case unreachable.MatchString(e.Message):
		return fail(protocol.Unavailable, protocol.ReasonRegistryUnreachable,
			"the registry cannot be reached: "+causeOf(e.Message, "it did not answer"))
	case e.Code == protocol.InvalidArgument:
		return fail(protocol.InvalidArgument, "", "the engine refuses the image reference")
	}
	return fail(protocol.Unavailable, protocol.ReasonImagePullFailed,
		causeOf(e.Message, "the engine could not pull the image; its error is in the worker's log"))
}

// credentials returns the credentials for a registry from the worker's Docker configuration, encoded for the engine. If
// there are no credentials, or if they cannot be read, it returns false, and the pull is anonymous.
func (ps *pulls) credentials(ctx context.Context, host string) (encoded string, known bool) {
	found, err := loginFor(ctx, ps.dockerConfig, host)
	if err != nil {
		ps.log.Warn("could not read the credentials for a registry; pulling without credentials", "registry", host,
			"error", err)
		return "", false
	}
	if found == (registry.AuthConfig{}) {
		return "", false
	}
	encoded, err = registry.EncodeAuthConfig(found)
	if err != nil {
		ps.log.Warn("could not encode the credentials for a registry; pulling without credentials", "registry", host,
			"error", err)
		return "", false
	}
	return encoded, true
}
