package secrets_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachValueIsAskedForByItsField(t *testing.T) {
	t.Parallel()
	uses := []protocol.SecretUse{{Name: "db"}, {Name: "db", File: "a/b"}, {Name: "t", Env: "T", Mask: true}}
	service := protocol.Service{Secrets: uses,
		SensitiveEnv: map[string]protocol.Sealed{"B": nil, "A": nil}}
	spec := protocol.SandboxSpec{OptionalServices: protocol.Services{"db": service}}
	ask := func(_ context.Context, q protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
		return &protocol.UnsealedValue{Value: []byte(q.Sandbox + " " + q.Field)}, nil
	}
	get := secrets.OfService(&spec, "db").Getter(secrets.NewAsker(ask), protocol.UnsealQuery{Sandbox: "s"})
	got, err := get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, s := range got {
		fmt.Fprintf(&text, "%s|%s|%t|%s\n", s.File, s.Env, s.Mask, s.Value.Bytes())
	}
	const in = "|s optional_services.db."
	want := "db||false" + in + "secrets[0]\na/b||false" + in + "secrets[1]\n|T|true" + in + "secrets[2]\n" +
		"|A|false" + in + "sensitive_env.A\n|B|false" + in + "sensitive_env.B\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
	if secrets.OfSandbox(&spec).Getter(nil, protocol.UnsealQuery{}) != nil {
		t.Error("a spec without secrets has values to ask for")
	}
}

func TestAValueThatCannotBeUsedIsRefusedWithItsField(t *testing.T) {
	t.Parallel()
	for value, use := range map[string]protocol.SecretUse{"a\x00b-hidden": {Env: "E"}, "hid\n\r\n": {Mask: true}} {
		get := secrets.OfExec(&protocol.ExecSpec{Secrets: []protocol.SecretUse{use}}).Getter(
			secrets.NewAsker(func(context.Context, protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
				return &protocol.UnsealedValue{Value: []byte(value)}, nil
			}), protocol.UnsealQuery{})
		_, err := get(t.Context())
		if e := protocol.AsError(err); e == nil || e.Field != "spec.secrets[0]" || strings.Contains(err.Error(), "hid") {
			t.Errorf("the value %q: %v, want an error of spec.secrets[0] without the value", value, err)
		}
	}
}

func TestAValueIsPrintedAsAsterisks(t *testing.T) {
	t.Parallel()
	s := control.Secret{Env: "E", Value: control.NewValue([]byte("hidden"))}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "value", s.Value, "secret", s, "list", []control.Secret{s})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("text", "value", s.Value, "secret", s)
	for _, format := range []string{"%v", "%+v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&log, format, s)
		fmt.Fprintf(&log, format, s.Value)
	}
	for _, form := range []string{"hidden", "68696464656e", "104 105", "aGlkZGVu"} {
		if strings.Contains(log.String(), form) {
			t.Errorf("%q is in %s", form, &log)
		}
	}
}

// The coordinators answer one question after another here. All commands of both tenants ask at once.
func TestManyCommandsOfATenantDelayNoOtherTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, manyCommandsOfATenant)
}

func manyCommandsOfATenant(t *testing.T) {
	answers, each := make(chan struct{}, 1), 2*time.Millisecond
	var asked, served atomic.Int32
	a := secrets.NewAsker(func(ctx context.Context, q protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
		select {
		case answers <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		asked.Add(1)
		time.Sleep(each) // an answer takes this long, by the clock of synctest
		<-answers
		return &protocol.UnsealedValue{Value: []byte("value")}, nil
	})
	var spec protocol.ExecSpec
	for range protocol.MaxSecretUses {
		spec.Secrets = append(spec.Secrets, protocol.SecretUse{Name: "db"})
	}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 200 {
		group.Go(func() {
			get := secrets.OfExec(&spec).Getter(a, protocol.UnsealQuery{Tenant: "red"})
			for ctx.Err() == nil {
				if _, err := get(ctx); err == nil {
					served.Add(1)
				}
			}
		})
	}
	eventually.Holds(t, 20*time.Second, "the tenant asks for many values", func() bool { return asked.Load() > 100 })
	one := protocol.ExecSpec{Secrets: spec.Secrets[:1]}
	began := time.Now()
	_, err := secrets.OfExec(&one).Getter(a, protocol.UnsealQuery{Tenant: "blue"})(ctx)
	if took := time.Since(began); err != nil || took > 2*time.Second {
		t.Errorf("a command of another tenant waits %v: %v", took, err)
	}
	eventually.Holds(t, 20*time.Second, "a command of the tenant with many commands gets all its values", func() bool {
		return served.Load() > 0
	})
	stop()
	group.Wait()
}

func TestTheValuesToMaskAreLimited(t *testing.T) {
	t.Parallel()
	value := make([]byte, protocol.MaxSecretValue)
	a := secrets.NewAsker(func(context.Context, protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
		return &protocol.UnsealedValue{Value: bytes.Clone(value)}, nil
	})
	var spec protocol.ExecSpec
	for i := range 6 {
		spec.Secrets = append(spec.Secrets, protocol.SecretUse{Name: fmt.Sprint(i), Mask: i != 2}) // the third is not masked
	}
	_, err := secrets.OfExec(&spec).Getter(a, protocol.UnsealQuery{Tenant: "red"})(t.Context())
	e := protocol.AsError(err)
	if e == nil || e.Reason != protocol.ReasonTooLarge || e.Field != "spec.secrets[5].mask" {
		t.Errorf("five values of 64 KiB are masked: %v", err)
	}
	spec.Secrets = spec.Secrets[:5]
	if _, err := secrets.OfExec(&spec).Getter(a, protocol.UnsealQuery{Tenant: "red"})(t.Context()); err != nil {
		t.Errorf("four values of 64 KiB are masked: %v", err)
	}
}
