package hostdir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestResolvConfHasTheContentThatAnEngineWrites(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"": "nameserver 127.0.0.11\noptions ndots:0\n",
		"# a\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n": "nameserver 127.0.0.11\noptions ndots:0\n",
		"domain a.example\nsearch b.example c.example\noptions edns0\n": "" +
			"nameserver 127.0.0.11\nsearch b.example c.example\noptions edns0 ndots:0\n",
		"options ndots:2 timeout:1\nsearch\n": "nameserver 127.0.0.11\noptions ndots:2 timeout:1\n",
	} {
		if got := resolvFile(host); got != want {
			t.Errorf("for the host's file %q: %q, want %q", host, got, want)
		}
	}
}

func TestTheHostsFileKeepsItsInode(t *testing.T) {
	t.Parallel()
	d := Dir{Path: t.TempDir()}
	if err := d.WriteEtc("web"); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(d.etc(), etcHosts)
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.201.0.2", "10.201.0.114", "10.201.0.3"} {
		if err := d.SetAddress("web", address); err != nil {
			t.Fatal(err)
		}
		if err := d.WriteEtc("web"); err != nil { // a create that continues an interrupted create calls WriteEtc again
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if want := hostsFile("web", address); err != nil || string(got) != want {
			t.Errorf("the hosts file has the content %q, error %v, want %q", got, err, want)
		}
	}
	after, err := os.Stat(name)
	if err != nil || !os.SameFile(before, after) || after.Mode() != 0o644 {
		t.Errorf("the hosts file has another inode, or mode %v instead of 0644, error %v", after.Mode(), err)
	}
	old := Dir{Path: t.TempDir()} // an older version of the worker made no such file
	if err := old.SetAddress("web", "10.201.0.2"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(old.Path); err != nil || len(entries) != 0 {
		t.Errorf("SetAddress created %v in the directory of an older worker, error %v", entries, err)
	}
}
