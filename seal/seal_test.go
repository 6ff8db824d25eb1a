package seal_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

func newKey(t testing.TB) *seal.Key {
	t.Helper()
	k, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t testing.TB, k *seal.Key, purpose seal.Purpose, value string) []byte {
	t.Helper()
	data, err := seal.To(k.Public(), purpose, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAValueOpensForItsPurposeOnly(t *testing.T) {
	k := newKey(t)
	q := protocol.UnsealQuery{Tenant: "blue", Sandbox: "s", Generation: 1, Field: "secrets[0]"}
	other, exec := q, q
	other.Generation, exec.Exec = 2, "x"
	purposes := []seal.Purpose{seal.Secret("blue", "a"), seal.Secret("blue", "b"), seal.Secret("red", "a"),
		seal.Variable("blue", "a"), seal.Answer(&q), seal.Answer(&other), seal.Answer(&exec)}
	for _, of := range purposes {
		data := sealed(t, k, of, "hunter2")
		for _, as := range purposes {
			value, err := k.Open(data, as)
			if (err == nil) != (of == as) || err == nil && string(value) != "hunter2" {
				t.Errorf("%+v opens as %+v: %q, %v", of, as, value, err)
			}
			if err != nil && protocol.AsError(err).Reason != protocol.ReasonNotSealedForThis {
				t.Errorf("%+v as %+v: %v", of, as, err)
			}
		}
	}
	if _, err := newKey(t).Open(sealed(t, k, purposes[0], "x"), purposes[0]); protocol.AsError(err).Reason !=
		protocol.ReasonNoFleetKey {
		t.Errorf("another key: %v", err)
	}
}

func TestSealedBytesDifferEachTimeAndHideTheValue(t *testing.T) {
	k, purpose := newKey(t), seal.Secret("blue", "a")
	a, b := sealed(t, k, purpose, "hunter2"), sealed(t, k, purpose, "hunter2")
	if bytes.Equal(a, b) || bytes.Contains(a, []byte("hunter2")) {
		t.Errorf("sealed as %q and %q", a, b)
	}
	most := sealed(t, k, purpose, strings.Repeat("x", protocol.MaxSecretValue))
	if len(most) > protocol.MaxSealedValue-protocol.MaxIDLength*2 {
		t.Errorf("the largest value has %d sealed bytes, at most %d are allowed", len(most), protocol.MaxSealedValue)
	}
}

func TestKeysOpenWhatWasSealedToOlderKeys(t *testing.T) {
	first, second := newKey(t), newKey(t)
	var text []byte
	for _, k := range []*seal.Key{second, first} {
		seed, err := k.Seed()
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, "# a key\n\n"...), append(seed, '\n')...)
	}
	keys, err := seal.ParseKeys("keys", text)
	if err != nil || keys.Public() != second.Public() {
		t.Fatalf("got %v: %v", keys, err)
	}
	for _, k := range []*seal.Key{first, second} {
		if v, err := keys.Open(sealed(t, k, seal.Secret("a", "b"), "x"), seal.Secret("a", "b")); err != nil ||
			string(v) != "x" {
			t.Errorf("got %q, %v", v, err)
		}
	}
	for _, wrong := range []string{"", "# nothing", "SUSEED", first.Public(), string(text) + "garbage"} {
		if _, err := seal.ParseKeys("keys", []byte(wrong)); protocol.CodeOf(err) != protocol.InvalidArgument ||
			strings.Contains(err.Error(), "garbage") || protocol.AsError(err).Field != "keys" {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestAKeyIsPrintedWithoutItsSeed(t *testing.T) {
	k := newKey(t)
	seed, err := k.Seed()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, []any{k, seal.Keys{k}}); strings.Contains(text, string(seed)) ||
			!strings.Contains(text, k.Public()) {
			t.Errorf("%s prints %s", format, text)
		}
	}
	if err := seal.ValidateKey(string(seed)); err == nil || strings.Contains(err.Error(), string(seed)[:20]) {
		t.Errorf("a seed in place of a public key: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	k := newKey(f)
	f.Add(sealed(f, k, seal.Secret("a", "b"), "hunter2"))
	f.Add([]byte("hunter2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := k.Open(data, seal.Secret("a", "c"))
		if reason := protocol.AsError(err).Reason; reason != protocol.ReasonNotSealedForThis &&
			reason != protocol.ReasonNoFleetKey {
			t.Errorf("got %v", err)
		}
	})
}
