package protocol

import (
	"path"
	"strings"
	"testing"
)

func TestACopysOwnerIsNumeric(t *testing.T) {
	for owner, want := range map[string][2]int{"": {-1, -1}, "0": {0, 0}, "1000": {1000, 1000}, "1000:7": {1000, 7},
		"0:4294967294": {0, 4294967294}} {
		c := Copy{Owner: owner}
		if uid, gid, ok := c.Owners(); !ok || uid != want[0] || gid != want[1] {
			t.Errorf("%q: %d, %d, %v", owner, uid, gid, ok)
		}
	}
	for _, owner := range []string{"root", ":", "1:", ":1", "-1", "+1", "01", "1:2:3", " 1", "4294967295", "1:4294967295",
		"99999999999"} {
		spec := goodSandbox()
		spec.Copies = []Copy{{Digest: someDigest, Target: "/a", Owner: owner}}
		wantError(t, spec.Validate(), InvalidArgument, "", "spec.copies[0].owner")
	}
}

func TestLinksOfATreeStayInside(t *testing.T) {
	for link, stays := range map[[2]string]bool{
		{"l", "f"}: true, {"l", "."}: true, {"d/l", ".."}: true, {"d/l", "../f"}: true, {"d/l", "./../x/y"}: true,
		{"l", "a//b"}:        true,
		{"d/e/l", "../../f"}: true, {"l", "..f"}: true,
		{"l", ""}: false, {"l", ".."}: false, {"l", "../x"}: false, {"d/l", "../../x"}: false, {"l", "/etc"}: false,
		{"l", "a\x00"}:  false,
		{"l", "a/../b"}: false, {"d/l", "../a/../../x"}: false, {"l", "a/.."}: false,
		{"l", strings.Repeat("a/", MaxTreePath)}: false,
	} {
		if got := TreeLinkStays(link[0], link[1]); got != stays {
			t.Errorf("%q to %.40q: stays %v, want %v", link[0], link[1], got, stays)
		}
	}
}

func TestTreePathsAreLimited(t *testing.T) {
	deep := strings.TrimSuffix(strings.Repeat("d/", MaxTreeDepth), "/")
	for _, name := range []string{"a", "a/b", "./a", "a/", ".", "..a", strings.Repeat("n", MaxTreeName), deep} {
		if why := TreePathError(name); why != "" {
			t.Errorf("%.40q %s", name, why)
		}
	}
	for _, name := range []string{"/a", "..", "../a", "a/../../b", "a\x00", strings.Repeat("n", MaxTreeName+1),
		deep + "/d",
		strings.Repeat("./", MaxTreePath)} {
		if TreePathError(name) == "" {
			t.Errorf("%.40q is accepted", name)
		}
	}
}

func FuzzTreeLinks(f *testing.F) {
	f.Add("a/b", "../c")
	f.Add("a", "b/../..")
	f.Fuzz(func(t *testing.T, name, text string) {
		if TreePathError(name) != "" || !TreeLinkStays(name, text) {
			return
		}
		if leads := path.Join("/tree", path.Dir(path.Clean(name)), text); leads != "/tree" &&
			!strings.HasPrefix(leads, "/tree/") {
			t.Fatalf("%q to %q leads to %q", name, text, leads)
		}
	})
}
