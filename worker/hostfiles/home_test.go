package hostfiles

import (
	"strconv"
	"testing"
)

func TestHomesComeFromPasswd(t *testing.T) {
	passwd := []byte("root:x:0:0:root:/root:/bin/sh\n" +
		"box:x:1000:1000:box:/home/box:/bin/sh\n" +
		"broken\n" +
		"nobody:x:65534:65534::/\n")
	for user, want := range map[string]string{
		"root": "/root", "0": "/root", "box": "/home/box", "1000": "/home/box", "nobody": "/", "x": "", "7": "", "": "",
	} {
		if got := passwdHome(passwd, user); got != want {
			t.Errorf("the home of the user %q is %q, want %q", user, got, want)
		}
	}
}

func TestTheNumberOfKeptHomesIsLimited(t *testing.T) {
	var h Homes
	if _, known := h.find(imageUser{"1", "box"}); known {
		t.Error("a home is known that was never kept")
	}
	for i := range 3 * maxHomes {
		of := imageUser{strconv.Itoa(i), "box"}
		h.remember(of, "/home")
		if home, known := h.find(of); home != "/home" || !known || len(h.known) > maxHomes {
			t.Fatalf("after home %d was kept: home %q, known %t, %d homes are kept, want at most %d", i, home, known,
				len(h.known), maxHomes)
		}
	}
	if _, known := h.find(imageUser{strconv.Itoa(3*maxHomes - 1), "root"}); known {
		t.Error("the home of another user of the image is known")
	}
}
