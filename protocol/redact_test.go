package protocol

import "testing"

func TestCredentialsInURLsAreRedacted(t *testing.T) {
	for text, want := range map[string]string{
		"dial nats://me:secret@host:4222: no":                  "dial nats://xxxxx@host:4222: no",
		"nats://token@a,tls://me:p@ss@b:1/x@y":                 "nats://xxxxx@a,tls://xxxxx@b:1/x@y",
		`Get "https://me:secret@registry.example/v2/": denied`: `Get "https://xxxxx@registry.example/v2/": denied`,
		"busybox:1@sha256:abc of me@example.org":               "busybox:1@sha256:abc of me@example.org",
		"see https://example.org/me@home":                      "see https://example.org/me@home",
	} {
		if got := Redacted(text); got != want {
			t.Errorf("%q: want %q, got %q", text, want, got)
		}
		if got := Errorf(Unavailable, "", "%s", text).Message; got != want {
			t.Errorf("error message: want %q, got %q", want, got)
		}
	}
}
