package protocol

import (
	"bytes"
	"testing"
)

// The fingerprint of a request is taken from its encoded spec.
func TestServicesAreEncodedTheSameEachTime(t *testing.T) {
	spec := &SandboxSpec{Image: "x", RequiredServices: map[string]Service{}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		spec.RequiredServices[name] = Service{Image: name}
	}
	first := Encode(spec)
	for range 50 {
		if !bytes.Equal(Encode(spec), first) {
			t.Fatal("the order of services changes")
		}
	}
	var again SandboxSpec
	if err := Decode(first, &again); err != nil || len(again.RequiredServices) != 6 || again.RequiredServices["c"].Image != "c" {
		t.Errorf("read back: %+v, %v", again.RequiredServices, err)
	}
}
