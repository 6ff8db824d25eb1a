package integration

import (
	"archive/tar"
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestATreeIsCopiedIntoAService checks that the tree is copied once, before the service's command starts, and only into
// the service's container.
func TestATreeIsCopiedIntoAService(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	for _, name := range []string{"primary", "db", "cache"} {
		writeFile(t, filepath.Join(dir, name, "f"), name, 0o640, time.Unix(1_000_000_000, 0))
	}
	spec := withServices(f, services{"db": small("cat /seed/f >/tmp/seen; exec sleep 1000")},
		services{"cache": small("cat /seed/f >/tmp/seen; exec sleep 1000")})
	for _, c := range []struct{ source, target, service, owner string }{
		{source: filepath.Join(dir, "primary"), target: "/seed"},
		{source: filepath.Join(dir, "db"), target: "/seed", service: "db", owner: "70:71"},
		{source: filepath.Join(dir, "db", "f"), target: "/etc/db.conf", service: "db"},
		{source: filepath.Join(dir, "cache"), target: "/seed", service: "cache"},
	} {
		copied, err := f.Client.Upload(ctx, c.source, c.target, sdk.WithService(c.service), sdk.WithOwner(c.owner))
		if err != nil {
			t.Fatal(err)
		}
		spec.Copies = append(spec.Copies, copied)
	}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the optional service is ready",
		func() error { return serviceIs(f, "s", "cache", protocol.ServiceStateReady) })
	for _, name := range []string{"db", "cache"} {
		if got := printedBy(t, ctx, s, name, "cat", "/tmp/seen"); got != name {
			t.Errorf("when its command started, %s read %q", name, got)
		}
	}
	if got := printedBy(t, ctx, s, "db", "sh", "-c",
		"stat -c '%a %u:%g %Y' /seed/f; cat /etc/db.conf"); got != "640 70:71 1000000000\ndb" {
		t.Errorf("the tree is %q", got)
	}
	if got := printedBy(t, ctx, s, "", "sh", "-c",
		"cat /seed/f; ls /etc/db.conf 2>/dev/null || echo none"); got != "primarynone" {
		t.Errorf("the primary container has %q", got)
	}
	if got := printedBy(t, ctx, s, "cache", "sh", "-c", "ls /etc/db.conf 2>/dev/null || echo none"); got != "none" {
		t.Errorf("another service has %q", got)
	}
	if info := s.Info(); info.Spec.Copies[1] != spec.Copies[1] || info.Spec.Copies[1].Service != "db" {
		t.Errorf("read back: %+v", info.Spec.Copies)
	}
	// A resume keeps the changes that a service has made to its copy.
	printedBy(t, ctx, s, "db", "sh", "-c", "echo changed >/seed/f; rm /etc/db.conf")
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "db", "sh", "-c",
		"cat /seed/f /tmp/seen; ls /etc/db.conf 2>/dev/null || echo none"); got != "changed\nchanged\nnone" {
		t.Errorf("after a resume the tree is %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestAReadOnlySandboxHasCopiesInItsServices uses a primary container with a read-only root file system.
func TestAReadOnlySandboxHasCopiesInItsServices(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), "copied", 0o644, time.Now())
	copied, err := f.Client.Upload(ctx, dir, "/seed", sdk.WithService("db"))
	if err != nil {
		t.Fatal(err)
	}
	spec := withServices(f, services{"db": small("exec sleep 1000")}, nil)
	spec.ReadOnly, spec.Copies = true, []protocol.Copy{copied}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "db", "cat", "/seed/f"); got != "copied" {
		t.Errorf("got %q", got)
	}
	f.Judge()
}

// TestATreeThatCannotBeCopiedFailsItsService checks that trees which a sandbox cannot take are refused for services,
// too.
func TestATreeThatCannotBeCopiedFailsItsService(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	data, hostile := tarOf(t, tar.Header{Name: "h", Linkname: "/etc/shadow", Typeflag: tar.TypeLink})
	if err := f.Conn.PutBlob(ctx, "default", hostile, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	w := f.Processes("worker")[0]
	for what, c := range map[string]struct {
		digest string
		code   protocol.Code
	}{
		"a hard link":           {hostile, protocol.InvalidArgument},
		"a tree never uploaded": {sha("never"), protocol.FailedPrecondition},
	} {
		spec := withServices(f, services{"db": small("exec sleep 1000")}, nil)
		spec.Copies = []protocol.Copy{{Digest: c.digest, Target: "/x", Service: "db"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, what, err, c.code, protocol.ReasonCopyFailed, "spec.copies[0]")
		if err != nil && !strings.Contains(err.Error(), "the required service db") {
			t.Errorf("%s: the error does not name the service: %v", what, err)
		}
		becomesEmpty(f, w)
	}
	// If the tree of an optional service cannot be copied, the service fails and is not started.
	spec := withServices(f, nil, services{"db": small("exec sleep 1000")})
	spec.Copies = []protocol.Copy{{Digest: hostile, Target: "/x", Service: "db"}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the service has failed",
		func() error { return serviceIs(f, "s", "db", protocol.ServiceStateFailed) })
	if status := f.History("s").State.Sandbox.Services["db"]; status.Reason != protocol.ReasonCopyFailed ||
		status.Error.Field != "spec.copies[0]" {
		t.Errorf("the service failed with %+v", status)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"},
		Service: "db"}); protocol.AsError(err).Reason != protocol.ReasonServiceDown {
		t.Errorf("an exec in the service: %v", err)
	}
	if got := serviceEvents(f.History("s"), "db"); len(got) != 1 {
		t.Errorf("the history has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}
