package auth_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// The server drops a message that its sender has no right to publish, so no answer comes. The client has no deadline
// here. It must return without waiting for an answer.
func TestACallWithoutTheRightForItIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, s := newAuthority(t)
	runCoordinator(t, open(t, a, s.ClientURL(), someone(rights.Coordinator, "c1", "", "")), "c1", jetstream.Assets{})
	client := func(id rights.Identity) *sdk.Client {
		t.Helper()
		c, err := sdk.Connect(t.Context(), sdk.Options{URL: s.ClientURL(), Creds: open(t, a, s.ClientURL(), id).creds})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	viewer, user := client(someone(rights.Viewer, "vera", "blue", "")), client(someone(rights.User, "anna", "blue", ""))
	stray := client(someone(rights.Worker, "w1", "", "HOSTA"))
	for what, call := range map[string]struct {
		do      func() error
		subject string
	}{
		"a viewer creates": {func() error {
			_, err := viewer.Create(ctx, sdk.SandboxSpec{Image: "busybox"})
			return err
		}, "boxfleet.v1.request.blue.vera.create."},
		"a user lists images": {func() error {
			for _, err := range user.Images().List(ctx) {
				return err
			}
			return nil
		}, "$JS.API.STREAM.MSG.GET.KV_boxfleet_images"},
		"a worker looks for a host": {func() error {
			_, err := stray.Hosts().Get(ctx, "w1")
			return err
		}, "boxfleet.v1.api.default.@w1.hosts"},
	} {
		began := time.Now()
		err := protocol.AsError(call.do())
		if err == nil || err.Code != protocol.PermissionDenied || err.Field != "creds" ||
			!strings.Contains(err.Message, call.subject) || time.Since(began) > 10*time.Second {
			t.Errorf("%s: got %v after %s", what, err, time.Since(began))
		}
	}
}

func TestARefusalNamesTheCredentials(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	_, other := newAuthority(t)
	file := open(t, a, s.ClientURL(), someone(rights.User, "anna", "blue", "")).creds
	for what, c := range map[string]struct{ creds, want string }{
		"credentials for other servers": {file, file},
		"no credentials":                {"", "boxfleet auth add"},
	} {
		_, err := sdk.Connect(t.Context(), sdk.Options{URL: other.ClientURL(), Creds: c.creds})
		e := protocol.AsError(err)
		if err == nil || e.Code != protocol.PermissionDenied || e.Field != "creds" || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
