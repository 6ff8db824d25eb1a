package docker

import (
	"errors"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/boxfleet/boxfleet/protocol"
)

// The messages are literal texts of engines.
func TestAFailedStartIsDistinguishedFromARefusedOne(t *testing.T) {
	for message, reason := range map[string]string{
		`failed to create task for container: failed to create shim task: OCI ` +
			`runtime create failed: runc create failed: unable to start container ` +
			`process: exec: "nothing": executable file not found in $PATH: unknown`: protocol.ReasonStartFailed,
		`failed to create shim task: OCI runtime create failed: context deadline ` +
			`exceeded: unknown`: protocol.ReasonStartFailed,
		`failed to create task for container: failed to start shim: exec: ` +
			`"containerd-shim-none-v1": executable file not found in $PATH: not found`: protocol.ReasonStartFailed,
		`error while creating mount source path '/x': mkdir /x: read-only file ` +
			`system`: protocol.ReasonStartFailed,
		`failed to create task for container: connection error: desc = "transport: ` +
			`error while dialing: dial unix /run/containerd/containerd.sock": ` +
			`unavailable`: ReasonEngineError,
		`failed to create task for container: rpc error: code = Unavailable desc = ` +
			`error reading from server: EOF`: ReasonEngineError,
		`failed to create task for container: transport is closing: unavailable`: ReasonEngineError,
		`failed to create task for container: failed to start shim: start failed: ` +
			`context deadline exceeded`: ReasonEngineError,
		`failed to create shim: context deadline exceeded`: ReasonEngineError,
	} {
		err := translate(t.Context(), call{verb: "start", kind: kindContainer, name: "x"},
			errors.New("Error response from daemon: "+message))
		if e := protocol.AsError(err); e.Reason != reason {
			t.Errorf("%s: got %v, want %s", message, err, reason)
		}
	}
	err := translate(t.Context(), call{verb: "start", kind: kindContainer, name: "x"},
		cerrdefs.ErrUnavailable.WithMessage("failed to create task for container: it restarts"))
	if e := protocol.AsError(err); e.Reason != ReasonEngineError {
		t.Errorf("an error that the engine calls unavailable: got %v", err)
	}
}

// A full disk is reported as such, whichever operation ran into it.
func TestAFullDiskIsDistinguishedFromAFailure(t *testing.T) {
	t.Parallel()
	for message, full := range map[string]bool{
		`mkdir /var/lib/docker/overlay2/abc: no space left on device`: true,
		`failed to register layer: write /x: disk quota exceeded`:     true,
		`failed to create task for container: OCI runtime create failed: write ` +
			`/run/x: no space left on device: unknown`: true,
		`failed to create task for container: OCI runtime create failed: mkdir ` +
			`/sys/fs/cgroup/memory/docker/abc: no space left on device: unknown`: false,
	} {
		for _, verb := range []string{"create", "start", "copy to", "pull"} {
			err := protocol.AsError(translate(t.Context(), call{verb: verb, kind: kindContainer, name: "x"},
				errors.New("Error response from daemon: "+message)))
			if got := err.Code == protocol.ResourceExhausted && err.Reason == protocol.ReasonDiskFull; got != full {
				t.Errorf("%s: %s: got %v", verb, message, err)
			}
		}
	}
}

// An engine's errors contain paths from sandboxes: 25,000 nested directories are 50 KB in the log line of each attempt.
func TestAnEnginesMessageIsShortened(t *testing.T) {
	t.Parallel()
	long := "openfdat " + strings.Repeat("d/", 25_000) + ": too many open files"
	err := translate(t.Context(), call{verb: "remove", kind: kindContainer, name: "x"}, errors.New(long))
	if text := err.Error(); len(text) > 4<<10 || !strings.Contains(text, "too many open files") {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
}
