package worker

import (
	"context"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// homes keeps what was looked up of users' homes: an image never changes, and looking takes a
// container, some 50 ms of a create (`go test ./integration -run TestTheHomeOfAUser -v`). The zero
// value is ready.
type homes struct {
	mu    sync.Mutex
	known map[imageUser]string // "": none in /etc/passwd
}

type imageUser struct{ image, user string }

// maxHomes bounds what is kept; beyond it all begins anew.
const maxHomes = 1000

func (h *homes) find(of imageUser) (home string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	home, known = h.known[of]
	return home, known
}

func (h *homes) keep(of imageUser, home string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxHomes {
		h.known = map[imageUser]string{}
	}
	h.known[of] = home
}

// maxPasswd bounds what is read of an image's /etc/passwd.
const maxPasswd = 1 << 20

// homeOf is the home directory of a sandbox's user, as its commands will find it: HOME of the spec or
// of the image, else what the image's /etc/passwd says. Root without an entry there has /root. given
// is a HOME that has to be set for that.
func (s *sandbox) homeOf(ctx context.Context, b *protocol.Sandbox, image docker.Image, user string) (home, given string, err error) {
	if home, ok := b.Spec.Env["HOME"]; ok {
		return checkedHome("spec.env.HOME", home)
	}
	for _, variable := range image.Env {
		if home, ok := strings.CutPrefix(variable, "HOME="); ok {
			return checkedHome("spec.image", home)
		}
	}
	name, _, _ := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	of := imageUser{image.ID, name}
	home, known := s.w.homes.find(of)
	if !known {
		passwd, err := s.passwd(ctx, b, image)
		if err != nil {
			return "", "", err
		}
		home = passwdHome(passwd, name)
		s.w.homes.keep(of, home)
	}
	if path.IsAbs(home) {
		return path.Clean(home), "", nil
	}
	if name == "0" || name == "root" {
		return "/root", "/root", nil
	}
	return "", "", protocol.Invalid("spec.user", "%s has no home in the image's /etc/passwd, where tools could go; set HOME in spec.env", name)
}

func checkedHome(field, home string) (string, string, error) {
	if !path.IsAbs(home) {
		return "", "", protocol.Invalid(field, "HOME must be an absolute path for tools to go there, got %.80q", home)
	}
	return path.Clean(home), "", nil
}

// passwdHome finds a user by name or by id: name:password:uid:gid:gecos:home:shell.
func passwdHome(passwd []byte, user string) string {
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(fields) >= 6 && (fields[0] == user || fields[2] == user) {
			return fields[5]
		}
	}
	return ""
}

// passwd reads an image's /etc/passwd; nothing where it has none. The Engine shows the files of
// containers only, so one is made for it, which never starts.
func (s *sandbox) passwd(ctx context.Context, b *protocol.Sandbox, image docker.Image) ([]byte, error) {
	if err := s.removePasswd(ctx); err != nil { // of an earlier try
		return nil, err
	}
	labels := s.labels(b)
	labels[docker.LabelRole] = "passwd"
	var id string
	err := s.whole(func() (err error) {
		id, err = s.w.engine.CreateContainer(ctx, docker.ContainerSpec{Name: s.passwdName(), Image: image.ID, Entrypoint: []string{"/"}, Labels: labels})
		return err
	})
	var data []byte
	if err == nil {
		s.w.cfg.Probe("after-passwd-create")
		data, err = s.w.engine.ReadFile(ctx, id, "/etc/passwd", maxPasswd)
	}
	// Also where the create was broken off, or the engine did not say whether it made the container.
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePasswdWithin)
	defer cancel()
	if removeErr := s.removePasswd(removing); err == nil {
		err = removeErr
	}
	return data, err
}

const removePasswdWithin = 10 * time.Second

func (s *sandbox) passwdName() string { return s.name() + ".passwd" }

func (s *sandbox) removePasswd(ctx context.Context) error {
	return s.w.engine.RemoveContainer(ctx, s.passwdName())
}
