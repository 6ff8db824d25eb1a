package rights_test

import (
	"encoding/base64"
	"testing"

	"github.com/boxfleet/boxfleet/rights"
)

// Older versions wrote no tag for the role, and others who sign credentials write no tags at all.
func TestTheIdentityOfCredentialsIsReadFromTheirTags(t *testing.T) {
	t.Parallel()
	const key = "UAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	file := func(claims string) []byte {
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
		return []byte("-----BEGIN NATS USER JWT-----\r\n" + token + "\r\n------END NATS USER JWT------\n\nseed\n")
	}
	for claims, want := range map[string]rights.Identity{
		`{"sub":"` + key + `","name":"anna","nats":{"tags":["role:viewer","tenant:blue"]}}`: {
			Role: rights.Viewer, Name: "anna", Tenant: "blue", Key: key},
		`{"sub":"` + key + `","name":"w1","nats":{"tags":["role:worker","host:HOSTA"]}}`: {
			Role: rights.Worker, Name: "w1", Host: "HOSTA", Key: key},
		`{"sub":"` + key + `","name":"anna","nats":{"tags":["tenant:blue"]}}`: {
			Role: rights.User, Name: "anna", Tenant: "blue", Key: key},
		`{"sub":"` + key + `","name":"w1","nats":{"tags":["host:HOSTA"]}}`: {
			Role: rights.Worker, Name: "w1", Host: "HOSTA", Key: key},
	} {
		if got, ok := rights.FromCredentials(file(claims)); !ok || got != want {
			t.Errorf("%s: got %+v, %v", claims, got, ok)
		}
	}
	for _, other := range [][]byte{
		nil, []byte("---\n"), []byte("---\na.b.c"), file(`{"sub":"` + key + `","name":"root"}`), file("x"),
		file(`{"sub":"` + key + `","name":"a.>","nats":{"tags":["role:operator"]}}`),
	} {
		if got, ok := rights.FromCredentials(other); ok {
			t.Errorf("%q: got %+v", other, got)
		}
	}
	anna := rights.Identity{Role: rights.User, Name: "anna", Tenant: "blue"}
	otto := rights.Identity{Role: rights.Operator, Name: "otto"}
	if anna.User() != "anna" || otto.User() != "@otto" {
		t.Errorf("got users %q and %q", anna.User(), otto.User())
	}
}
