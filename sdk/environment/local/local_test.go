package local_test

import (
	"testing"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/conformance"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
	"github.com/boxfleet/boxfleet/sdk/environment/local"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env, err := local.New(local.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	environmenttest.Run(t, env, conformance.Options{Dir: dir})
}

func TestX14_TheLocalMachineIsNoSandbox(t *testing.T) {
	t.Parallel()
	env, err := local.New(local.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if d := env.Describe(); d.Isolation != environment.IsolationNone || d.Backend != "local" {
		t.Errorf("it describes itself as %+v", d)
	}
}

func TestADirectoryThatDoesNotExistIsRefused(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", "relative", "/no/such/directory", "/etc/passwd"} {
		_, err := local.New(local.Config{Dir: dir})
		if environment.KindOf(err) != environment.Invalid {
			t.Errorf("%q: %v", dir, err)
		}
	}
}
