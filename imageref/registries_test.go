package imageref

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestTrustFollowsTheListOfRegistries(t *testing.T) {
	byDefault := []string{DockerHub, PublicRegistries}
	listed := []string{"127.0.0.1:5000", "mirror.corp:443"}
	for _, c := range []struct {
		list []string
		ref  string
		want Trust
	}{
		{byDefault, "busybox", Trusted}, {byDefault, "index.docker.io/library/busybox", Trusted},
		{byDefault, "ghcr.io/a/b:1", Checked},
		{byDefault, "8.8.8.8:5000/x", Checked},
		{byDefault, "127.0.0.1:18080/x", Refused}, {byDefault, "127.1:80/x", Refused},
		{byDefault, "2130706433:80/x", Refused}, {byDefault, "0x7f.1/x", Refused},
		{byDefault, "0177.0.0.1/x", Refused}, {byDefault, "127.0.0.1.:80/x", Refused},
		{byDefault, "localhost/x", Refused}, {byDefault, "localhost:5000/x", Refused},
		{byDefault, "a.localhost:5000/x", Refused}, {byDefault, "db:5432/x", Refused},
		{byDefault, "169.254.169.254/x", Refused}, {byDefault, "10.0.0.1:5000/x", Refused},
		{byDefault, "[::1]:80/x", Refused}, {byDefault, "[fd00:ec2::254]:80/x", Refused},
		{byDefault, "[::ffff:127.0.0.1]:80/x", Refused}, {byDefault, "metadata.google.internal/x", Refused},
		{byDefault, "boxfleet.local/d/x", Refused},
		{listed, "127.0.0.1:5000/x", Trusted}, {listed, "127.0.0.1:5001/x", Refused}, {listed, "mirror.corp:443/x", Trusted},
		{listed, "busybox", Refused},
		{listed, "ghcr.io/a/b", Refused},
	} {
		full, err := Full("image", c.ref)
		if err != nil {
			if c.want != Refused {
				t.Errorf("%s: %v", c.ref, err)
			}
			continue
		}
		if got := TrustOf(c.list, full); got != c.want {
			t.Errorf("trust in %s with registries %v: got %d, want %d", c.ref, c.list, got, c.want)
		}
	}
}

func TestCheckRegistriesNormalizesAndRejects(t *testing.T) {
	got, err := CheckRegistries("f", []string{"index.docker.io", "Mirror.Corp:443", "localhost", PublicRegistries})
	if err != nil || len(got) != 4 || got[0] != DockerHub || got[1] != "mirror.corp:443" || got[2] != "localhost" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "mirror", "https://mirror.corp", "mirror.corp/team", "*.corp", LocalRegistry} {
		if _, err := CheckRegistries(
			"f",
			[]string{bad},
		); protocol.CodeOf(err) != protocol.InvalidArgument ||
			protocol.AsError(err).Field != "f" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOnlyInternetAddressesArePublic(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "0.0.0.0": false, "10.1.2.3": false, "172.31.0.1": false, "192.168.1.1": false,
		"100.100.100.200": false,
		"169.254.169.254": false, "168.63.129.16": false, "224.0.0.1": false, "255.255.255.255": false, "::1": false,
		"::":      false,
		"fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "::ffff:127.0.0.1": false, "64:ff9b::7f00:1": false,
		"2002:7f00:1::": false, "2001::1": false, "ff02::1": false,
	} {
		if got := IsPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("IsPublic(%s) = %t", text, got)
		}
	}
	if IsPublic(netip.Addr{}) {
		t.Error("the zero address is public")
	}
}

func TestLocalNamesDifferByDeploymentKindAndReference(t *testing.T) {
	seen := map[string]string{}
	for _, deployment := range []string{"default", "Other", "-x_", "other"} {
		for _, ref := range []string{"busybox:1", "busybox:2", "ghcr.io/library/busybox:1", "127.0.0.1:5000/busybox:1",
			"a/b@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
			"x.test/" + longPath + ":1"} {
			full, err := Full("ref", ref)
			if err != nil {
				t.Fatal(err)
			}
			name := Local(deployment, "pulled", full)
			if again, err := Full("name", name); err != nil || again != name || Registry(name) != LocalRegistry {
				t.Errorf(
					"%s: local name %s is not a full reference in the local registry: %s, %v",
					ref,
					name,
					again,
					err,
				)
			}
			if Local(deployment, "imported", full) == name {
				t.Errorf("%s: kinds pulled and imported have the same name %s", ref, name)
			}
			if other := seen[name]; other != "" {
				t.Errorf("%s and %s have the same name %s", ref, other, name)
			}
			seen[name] = deployment + " " + ref
		}
	}
}

var longPath = strings.Repeat("a", 212)
