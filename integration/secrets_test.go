package integration

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// keeper sets secrets of the default tenant.
type keeper struct {
	t *testing.T
	c *sdk.Client
}

func (k keeper) set(name, value string) {
	k.t.Helper()
	if _, err := k.c.Secrets().Set(k.t.Context(), name, []byte(value)); err != nil {
		k.t.Fatal(err)
	}
}

func (k keeper) remove(name string) {
	k.t.Helper()
	if err := k.c.Secrets().Remove(k.t.Context(), name); err != nil {
		k.t.Fatal(err)
	}
}

// variables returns a sensitive variable.
func (k keeper) variables(name, value string) map[string]protocol.Sealed {
	k.t.Helper()
	sealed, err := k.c.Seal(k.t.Context(), name, value)
	if err != nil {
		k.t.Fatal(err)
	}
	return map[string]protocol.Sealed{name: sealed}
}

// unguessable returns a value that occurs nowhere by chance.
func unguessable(prefix string) string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return prefix + "-" + hex.EncodeToString(random[:])
}

func TestSecretsReachTheCommandsThatNameThem(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Secrets: true})
	ctx := f.Context(4 * time.Minute)
	k := keeper{t, f.Client}
	k.set("db", "of-the-sandbox")
	k.set("token", "token-value\n")
	k.set("own", "of-the-exec")
	spec := f.Spec()
	spec.User, spec.ReadOnly = "1000:1000", true
	spec.Command = []string{"sh", "-c", "cat /run/secrets/dir/db; echo; echo $TOKEN; echo $VARIABLE; exec sleep 1000"}
	spec.Secrets = []protocol.SecretUse{{Name: "db", File: "dir/db", Mask: true}, {Name: "token", Env: "TOKEN"}}
	spec.SensitiveEnv = k.variables("VARIABLE", "sensitive")
	service := protocol.Service{Image: spec.Image, User: "4242",
		SensitiveEnv: k.variables("HIDDEN", "in-the-service"),
		Secrets:      []protocol.SecretUse{{Name: "db"}, {Name: "token", Env: "TOKEN", Mask: true}},
		Command: []string{"sh", "-c",
			"cat /run/secrets/db; stat -c %u:%a /run/secrets/db; echo $TOKEN; exec sleep 1000"},
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD-SHELL",
			"test $TOKEN = token-value -a $HIDDEN = in-the-service -a -s /run/secrets/db"}},
		PostStart: []protocol.Hook{{Command: []string{"sh", "-c", "test $TOKEN = token-value"}}},
	}
	spec.RequiredServices = protocol.Services{"db": service}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	logged(ctx, f, s, "**************\ntoken-value\nsensitive\n")
	logged(ctx, f, s, "of-the-sandbox4242:400\n***********\n", sdk.WithService("db"))
	check := func(when string) {
		t.Helper()
		own := script(`cat $BOXFLEET_SECRETS/own; stat -c "%u %a" $BOXFLEET_SECRETS/own; echo $TOKEN $OWN $VARIABLE`)
		own.Secrets = []protocol.SecretUse{{Name: "own"}, {Name: "own", Env: "OWN", Mask: true}}
		own.SensitiveEnv = k.variables("VARIABLE", "of-one-exec")
		for _, in := range []struct{ service, user, want string }{
			{"", "", "***********1000 400\ntoken-value *********** of-one-exec\n"},
			{"", "0", "***********0 400\ntoken-value *********** of-one-exec\n"},
			{"db", "", "***********4242 400\n*********** *********** of-one-exec\n"},
		} {
			own.Service, own.User = in.service, in.user
			if got := mustExec(ctx, t, s, own); got != in.want {
				t.Errorf("%s, an exec in %q as %q prints %q, want %q", when, in.service, in.user, got, in.want)
			}
		}
		if got := mustExec(ctx, t, s, script("ls -R /run/secrets; echo $OWN $VARIABLE")); got !=
			"/run/secrets:\ndir\n\n/run/secrets/dir:\ndb\nsensitive\n" {
			t.Errorf("%s, after the execs, another exec sees %q", when, got)
		}
	}
	check("at first")
	k.set("token", "another-value")
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	k.set("token", "token-value") // a resume asks for the newest version again
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	check("after a resume")
	restartWithSecrets(ctx, t, f, k, s)
	check("after a restart of the worker")
}

// restartWithSecrets kills the worker while execs with secrets run. Meanwhile the secrets are removed, so the worker
// cannot ask for them again.
func restartWithSecrets(ctx context.Context, t *testing.T, f *fleet.Fleet, k keeper, s *sdk.Sandbox) {
	t.Helper()
	k.set("short", "lived")
	spec := script("cat $BOXFLEET_SECRETS/short; " +
		"while [ ! -e /dev/shm/enough ]; do sleep 0.1; done; cat $BOXFLEET_SECRETS/short")
	spec.Secrets = []protocol.SecretUse{{Name: "short", Mask: true}}
	var running []*sdk.Exec
	for range 2 {
		x, err := s.Start(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		for range x.Output(ctx, sdk.WithFollow(true)) {
			break // the exec is running now
		}
		running = append(running, x)
	}
	w := f.Processes("worker")[0]
	w.Kill()
	k.remove("short")
	w.Restart()
	mustExec(ctx, t, s, script("touch /dev/shm/enough"))
	for _, x := range running {
		if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "**********" {
			t.Errorf("an exec that ran while the worker was away prints %+v, %v", r, err)
		}
	}
	mustExec(ctx, t, s, script("rm /dev/shm/enough"))
	if _, err := s.Exec(ctx, spec); protocol.AsError(err).Reason != protocol.ReasonSecretMissing {
		t.Errorf("a new exec whose secret is gone: %v, want secret_missing", err)
	}
}

// logged waits until the output of a container's own command is stored.
func logged(ctx context.Context, f *fleet.Fleet, s *sdk.Sandbox, want string, opts ...sdk.LogsOption) {
	f.TB.Helper()
	f.Eventually(20*time.Second, "the output of a container's own command is stored", func() error {
		var got strings.Builder
		for k, err := range s.Logs(ctx, opts...) {
			if err != nil {
				return err
			}
			got.Write(k.Data)
		}
		if got.String() != want {
			return fmt.Errorf("%q is stored, want %q", got.String(), want)
		}
		return nil
	})
}

// A secret may be removed after its use was accepted, and coordinators may be away when its value is needed.
func TestACommandNeverStartsWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Secrets: true})
	ctx := f.Context(4 * time.Minute)
	k := keeper{t, f.Client}
	s := f.Create("s")
	uses := func(name string) protocol.ExecSpec {
		k.set(name, "value-of-"+name)
		x := script("touch /tmp/" + name + "; cat $BOXFLEET_SECRETS/" + name)
		x.Secrets = []protocol.SecretUse{{Name: name}}
		return x
	}
	removed, kept, spec := uses("removed"), uses("kept"), f.Spec()
	spec.Secrets = removed.Secrets
	f.Processes("worker")[0].Kill()
	var accepted []*sdk.Exec
	for _, x := range []protocol.ExecSpec{removed, kept} {
		started, err := s.Start(ctx, x)
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, started)
	}
	create, err := f.Client.Create(ctx, spec, sdk.WithID("box"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	k.remove("removed")
	c := f.Processes("coordinator")[0]
	c.Kill()
	w := f.Worker("w1", fleet.Role{NoWait: true})
	f.Eventually(30*time.Second, "the worker asks for values without success", func() error {
		if !strings.Contains(w.Log(), "could not carry out the next step of an exec; retrying") {
			return errors.New("it has not tried yet")
		}
		return nil
	})
	c.Restart()
	for name, err := range map[string]error{"an exec": wait(ctx, accepted[0]), "a create": create.WaitReady(ctx)} {
		e := protocol.AsError(err)
		if e == nil || e.Reason != protocol.ReasonSecretMissing || e.Field != "spec.secrets[0]" {
			t.Errorf("%s whose secret was removed: %v, want secret_missing of spec.secrets[0]", name, err)
		}
	}
	if r, err := accepted[1].Wait(ctx); err != nil || string(r.Stdout) != "value-of-kept" {
		t.Errorf("an exec whose value came late: %+v, %v", r, err)
	}
	if got := mustExec(ctx, t, s, script("cd /tmp; ls")); got != "kept\n" {
		t.Errorf("the execs that ran: %q, want only kept", got)
	}
}

func wait(ctx context.Context, x *sdk.Exec) error {
	_, err := x.Wait(ctx)
	return err
}
