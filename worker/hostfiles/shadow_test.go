package hostfiles

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestADirectoryWithLinksThatLeadOutIsCopied(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	fill(t, source, map[string]string{"f": "content", "d/g": "more", "d/in": "->../f", "d/empty/": ""})
	f, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to := filepath.Join(dir, "copies", "copy")
	if copied, err := shadow(f, to); copied || err != nil {
		t.Fatalf("without links that lead out: copied %v, error %v, want no copy", copied, err)
	}
	if _, err := os.Lstat(to); err == nil {
		t.Error("without links that lead out, a copy was made")
	}
	secret := filepath.Join(dir, "secret")
	fill(t, dir, map[string]string{"secret": "SECRET"})
	fill(t, source, map[string]string{"d/out": "->" + secret, "up": "->../secret", "turns": "->d/../../secret"})
	socket, err := net.Listen("unix", filepath.Join(source, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := os.Chmod(filepath.Join(source, "d"), 0o711); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call replaces the copy that the first call made
		if copied, err := shadow(f, to); !copied || err != nil {
			t.Fatalf("with links that lead out: copied %v, error %v, want a copy", copied, err)
		}
	}
	var got []string
	err = filepath.WalkDir(to, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(to, p)
		got = append(got, rel+" "+e.Type().String())
		return err
	})
	want := ". d---------,d d---------,d/empty d---------,d/g ----------,d/in L---------,f ----------"
	if err != nil || strings.Join(got, ",") != want {
		t.Errorf("the copy has the entries %s, error %v, want %s", strings.Join(got, ","), err, want)
	}
	if data, err := os.ReadFile(filepath.Join(to, "d", "in")); err != nil || string(data) != "content" {
		t.Errorf("a link that stays inside leads to a file with the content %q, error %v", data, err)
	}
	if info, err := os.Stat(filepath.Join(to, "d")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("a copied directory has the mode %v, error %v, want 0711", info.Mode(), err)
	}
}
