package docker

import (
	"errors"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/boxfleet/boxfleet/protocol"
)

// The messages are literal error texts of engines.
func TestAnImpossibleStartIsDistinguishedFromAFailureOfTheEngine(t *testing.T) {
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
			t.Errorf("start with the error %q: got %v, want reason %s", message, err, reason)
		}
	}
	err := translate(t.Context(), call{verb: "start", kind: kindContainer, name: "x"},
		cerrdefs.ErrUnavailable.WithMessage("failed to create task for container: it restarts"))
	if e := protocol.AsError(err); e.Reason != ReasonEngineError {
		t.Errorf("start with an unavailable error of the engine: got %v, want reason %s", err, ReasonEngineError)
	}
}

// Any operation can fail because of a full disk.
func TestAFullDiskIsDistinguishedFromOtherFailures(t *testing.T) {
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
				t.Errorf("%s with the error %q: got %v; want reason disk_full: %v", verb, message, err, full)
			}
		}
	}
}

// An engine's error may contain a path from a sandbox. The path of 25,000 nested directories would add 50 KB to each
// log line.
func TestALongErrorOfTheEngineIsShortened(t *testing.T) {
	t.Parallel()
	long := "openfdat " + strings.Repeat("d/", 25_000) + ": too many open files"
	err := translate(t.Context(), call{verb: "remove", kind: kindContainer, name: "x"}, errors.New(long))
	if text := err.Error(); len(text) > 4<<10 || !strings.Contains(text, "too many open files") {
		t.Errorf("the error has %d bytes, want at most 4 KiB with the end of the engine's text: %.100s", len(text), text)
	}
}
