package hostfiles

import (
	"path"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// Homes finds the home directories of sandboxes' users. It keeps the home directories that it read from images, because
// an image never changes. Reading a file of an image needs a container, which adds about 50 ms to a create (`go test
// ./integration -run TestTheHomeOfAUser -v`). The zero value is ready to use.
type Homes struct {
	mu    sync.Mutex
	known map[imageUser]string // "": the user has no home in /etc/passwd
}

type imageUser struct{ image, user string }

// maxHomes limits how many home directories are kept. When this limit is reached, all kept home directories are
// removed.
const maxHomes = 1000

func (h *Homes) find(of imageUser) (home string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	home, known = h.known[of]
	return home, known
}

func (h *Homes) remember(of imageUser, home string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxHomes {
		h.known = map[imageUser]string{}
	}
	h.known[of] = home
}

// Of returns the home directory that the commands of a sandbox's user will have. It is HOME in the spec, otherwise HOME
// in the image, otherwise the directory in the image's /etc/passwd. passwd() reads this file. If root has no entry in
// the file, the home directory is /root, and the result env is the value to which HOME must be set. In all other cases,
// env is "". The error is invalid_argument if no home is found.
func (h *Homes) Of(
	spec *protocol.SandboxSpec, image docker.Image, user string, passwd func() ([]byte, error),
) (home, env string, err error) {
	if home, ok := spec.Env["HOME"]; ok {
		home, err = checkHome("spec.env.HOME", home)
		return home, "", err
	}
	for _, variable := range image.Env {
		if home, ok := strings.CutPrefix(variable, "HOME="); ok {
			home, err = checkHome("spec.image", home)
			return home, "", err
		}
	}
	name, _, _ := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	of := imageUser{image.ID, name}
	home, known := h.find(of)
	if !known {
		data, err := passwd()
		if err != nil {
			return "", "", err
		}
		home = passwdHome(data, name)
		h.remember(of, home)
	}
	if path.IsAbs(home) {
		return path.Clean(home), "", nil
	}
	if name == "0" || name == "root" {
		return "/root", "/root", nil
	}
	return "", "", protocol.Invalid("spec.user",
		"tools need a home directory, and the image's /etc/passwd has none for %s; set HOME in spec.env", name)
}

func checkHome(field, home string) (string, error) {
	if !path.IsAbs(home) {
		return "", protocol.Invalid(field, "HOME must be an absolute path because tools are mounted there, got %.80q", home)
	}
	return path.Clean(home), nil
}

// passwdHome returns the home directory of a user from the content of an /etc/passwd. user is a name or an id. The
// lines of the file have the form name:password:uid:gid:gecos:home:shell.
func passwdHome(passwd []byte, user string) string {
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(fields) >= 6 && (fields[0] == user || fields[2] == user) {
			return fields[5]
		}
	}
	return ""
}
