package protocol

import "testing"

// Coordinators store fingerprints, so they must stay the same in later versions.
func TestAFingerprintNeverChanges(t *testing.T) {
	s := &SandboxSpec{Image: "i", Env: map[string]string{"B": "2", "A": "1"}, Memory: 1 << 30,
		Ports: []Port{{Container: 80}}, OnDelete: &Hook{Command: []string{"true"}}}
	if got, want := Fingerprint(s), "43af5e948f5fe788ec7888355ba21d58"; got != want {
		t.Errorf("the fingerprint is %s, want %s: new fields must have omitempty", got, want)
	}
	empty := &SandboxSpec{Image: "i", Env: map[string]string{}, Command: []string{}, Tools: []string{}}
	if got, want := Fingerprint(empty), Fingerprint(&SandboxSpec{Image: "i"}); got != want {
		t.Errorf("with empty fields the fingerprint is %s, without them %s", got, want)
	}
}
