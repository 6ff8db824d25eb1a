package integration

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestFilesHaveTheOwnerThatWasAskedForUnderEachProfile gives files away in a container in which no process has a
// capability, and in one whose root may give files away.
func TestFilesHaveTheOwnerThatWasAskedForUnderEachProfile(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Profiles: []string{protocol.ProfileHardened, protocol.ProfileStandard}})
	ctx := f.Context(2 * time.Minute)
	for _, profile := range []string{protocol.ProfileHardened, protocol.ProfileStandard} {
		b := filesOf(ctx, t, f, profile, func(spec *protocol.SandboxSpec) { spec.Profile = profile })
		c := &commandLine{t, buildCLI(t), f, t.TempDir()}
		c.local("src/f", "file")
		c.local("src/d/g", "deep")
		c.givesFilesAway(b, profile)
		count, err := b.Unpack(ctx, "/w/kept", bytes.NewReader(ownedTree(t)), sdk.WithKeptOwners())
		if err != nil || count.Entries != 2 {
			t.Errorf("%s: unpacked %+v, %v", profile, count, err)
		}
		want := "1000:10 /w/cp\n1000:10 /w/cp/d\n1000:10 /w/cp/d/g\n1000:10 /w/cp/f\n1000:10 /w/dir\n1000:10 /w/file\n" +
			"3:4 /w/kept/d\n5:6 /w/kept/d/f\n1000:10 /w/stdin\n1000:10 /w/tar/d/f\n1000:10 /w/written\n"
		got := b.sh(ctx, t, "cd /w; stat -c '%u:%g %n' /w/cp /w/cp/d /w/cp/d/g /w/cp/f /w/dir /w/file /w/kept/d "+
			"/w/kept/d/f /w/stdin /w/tar/d/f /w/written")
		if got != want {
			t.Errorf("%s: the owners are\n%s\nwant\n%s", profile, got, want)
		}
	}
}

// givesFilesAway uses every command that has the option --owner.
func (c *commandLine) givesFilesAway(b boxed, sandbox string) {
	b.sh(c.t.Context(), c.t, "mkdir /w")
	for _, step := range []struct{ args, stdin string }{
		{"cp src " + sandbox + ":/w/cp", ""},
		{"cp src/f " + sandbox + ":/w/file", ""},
		{"cp - " + sandbox + ":/w/stdin", "from stdin"},
		{"cp --tar - " + sandbox + ":/w/tar", string(ownedTree(c.t))},
		{"fs write " + sandbox + " /w/written", "written"},
		{"fs mkdir " + sandbox + " /w/dir", ""},
	} {
		c.expect(0, "", step.stdin, append(strings.Fields(step.args), "--owner", "1000:10")...)
	}
}

// ownedTree returns a tar stream of a directory and a file that belong to different users.
func ownedTree(t *testing.T) []byte {
	t.Helper()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, h := range []tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 3, Gid: 4},
		{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 5, Gid: 6},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}
