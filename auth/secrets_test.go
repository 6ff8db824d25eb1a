package auth_test

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/seal"
)

func TestSettingASecretWaitsForACoordinator(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	sealed := v.sealed(seal.Secret("blue", "db"), "hunter2")
	v.end()
	set := make(chan error, 1)
	go func() {
		_, err := v.blue.SetSecret(t.Context(), "db", sealed)
		set <- err
	}()
	v.coordinator("c2", seal.Keys{v.key})
	if err := <-set; err != nil {
		t.Error(err)
	}
}

func TestVersionsOfSecrets(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	wantCode(t, "remove an unknown secret", v.blue.RemoveSecret(ctx, "db"), protocol.NotFound,
		protocol.ReasonSecretMissing)
	data := v.sealed(seal.Secret("blue", "db"), "value")
	for range 3 { // the answer was lost
		info, err := v.blue.SetSecret(ctx, "db", data)
		if err != nil || info.Versions[0].Version != 1 || info.Versions[0].Size != 5 || info.Versions[0].Actor != "anna" ||
			info.Versions[0].SetAt.IsZero() {
			t.Errorf("a repeated set returns %+v: %v", info, err)
		}
	}
	v.setTogether()
	for range 5 {
		v.set("db", rand.Text())
	}
	kept := v.list("db")
	if len(kept) != protocol.MaxSecretVersions || kept[0].Version != 12 || kept[9].Version != 3 {
		t.Errorf("the versions are %+v", kept)
	}
	v.assigned("s1", protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db", Version: 2}}})
	_, err := v.unseal(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"})
	wantCode(t, "a version that is no longer kept", err, protocol.NotFound, protocol.ReasonSecretMissing)

	if err := v.blue.RemoveSecret(ctx, "db"); err != nil {
		t.Fatal(err)
	}
	if kept := v.list("db"); kept != nil {
		t.Errorf("a removed secret is listed: %+v", kept)
	}
	wantCode(t, "remove it again", v.blue.RemoveSecret(ctx, "db"), protocol.NotFound, protocol.ReasonSecretMissing)
	if n := v.set("db", "again"); n != 13 {
		t.Errorf("after its removal, the secret gets version %d", n)
	}
	end := v.coordinator("c2", seal.Keys{v.key}) // it reads the bucket from its beginning
	defer end()
	for range 5 {
		if kept := v.list("db"); len(kept) != 1 || kept[0].Version != 13 {
			t.Errorf("the versions are %+v", kept)
		}
	}
}

// TestATenantThatHasUsedEveryNameSetsNewSecrets lets two coordinators purge what is left of removed secrets. Neither is
// told what the other purges.
func TestATenantThatHasUsedEveryNameSetsNewSecrets(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	numbers := make(chan int)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range numbers {
				if err := v.decider.DropSecret(ctx, "blue", fmt.Sprintf("s%05d", i), 1, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	numbers <- 0 // s00000 is the first
	for v.lastChange("s00000") == nil {
	}
	for i := 1; i < protocol.MaxTenantNames; i++ {
		numbers <- i
	}
	close(numbers)
	group.Wait()
	defer v.coordinator("c2", seal.Keys{v.key})()
	if n := v.set("s09999", "kept"); n != 2 {
		t.Errorf("a removed secret that is still known gets version %d", n)
	}
	for i := range 20 { // either coordinator may answer
		if n := v.set(fmt.Sprint("new", i), "value"); n <= protocol.MaxTenantNames {
			t.Errorf("a new secret gets version %d, which an earlier secret of this name may have had", n)
		}
	}
	if c := v.lastChange("s00000"); c != nil {
		t.Errorf("the bucket still has the secret that was removed first: %+v", c)
	}
	for range 4 {
		if n := v.set("s00000", rand.Text()); n <= 1 {
			t.Errorf("a forgotten secret gets version %d again", n)
		}
	}
	for _, name := range []string{"s05000", "s05001"} {
		if err := v.decider.PurgeSecret(ctx, "blue", name, v.lastChange(name).Revision); err != nil {
			t.Fatal(err)
		}
		if n := v.set(name, "value"); n <= 1 {
			t.Errorf("a secret that another coordinator has forgotten gets version %d again", n)
		}
	}
	wantCode(t, "remove a forgotten secret", v.blue.RemoveSecret(ctx, "s00001"), protocol.NotFound,
		protocol.ReasonSecretMissing)
}

func TestAViewerListsSecretsButSetsNone(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.set("db", "value")
	viewer := v.open(someone(rights.Viewer, "vera", "blue", ""))
	reads := viewer.TenantReads("blue")
	reply, err := reads.Query(t.Context(), protocol.EndpointSecrets, protocol.Query{})
	if err != nil || len(reply.Secrets) != 1 || reply.Secrets[0].Name != "db" {
		t.Errorf("the viewer lists %+v: %v", reply, err)
	}
	if err := reads.RemoveSecret(t.Context(), "db"); protocol.CodeOf(err) != protocol.PermissionDenied {
		t.Errorf("the viewer removes a secret: %v", err)
	}
	red := v.open(someone(rights.Viewer, "rosa", "red", "")).TenantReads("red")
	if reply, err := red.Query(t.Context(), protocol.EndpointSecrets, protocol.Query{}); err != nil ||
		len(reply.Secrets) != 0 {
		t.Errorf("another tenant lists %+v: %v", reply, err)
	}
}

func TestLimitsOfSecrets(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	v.set("most", string(make([]byte, protocol.MaxSecretValue)))
	for what, size := range map[string]int{"empty": 0, "too large": protocol.MaxSecretValue + 1,
		"larger than a sealed value": protocol.MaxSealedValue} {
		data := v.sealed(seal.Secret("blue", "x"), string(make([]byte, size)))
		_, err := v.blue.SetSecret(ctx, "x", data)
		if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != "value" {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := v.blue.SetSecret(ctx, "x", make([]byte, 2<<20))
	wantCode(t, "more than the server's max_payload", err, protocol.InvalidArgument, protocol.ReasonTooLarge)
	_, err = v.blue.SetSecret(ctx, "b@d", nil)
	if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != "name" {
		t.Errorf("a bad name: %v", err)
	}
}
