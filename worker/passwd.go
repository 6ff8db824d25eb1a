package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// maxPasswd bounds how much of an image's /etc/passwd is read.
const maxPasswd = 1 << 20

const removePasswdWithin = 10 * time.Second

// homeOf finds the home directory of a sandbox's user when it is called.
func (s *sandbox) homeOf(ctx context.Context, b *protocol.Sandbox, image docker.Image, user string) hostfiles.FindHome {
	return func() (home, env string, err error) {
		return s.w.homes.Of(&b.Spec, image, user, func() ([]byte, error) { return s.passwd(ctx, b, image) })
	}
}

// passwd reads an image's /etc/passwd, and returns nothing if the image has none. The engine only shows files of
// containers, so this makes one, which never starts, and removes it again.
func (s *sandbox) passwd(ctx context.Context, b *protocol.Sandbox, image docker.Image) ([]byte, error) {
	if err := s.removePasswd(ctx); err != nil { // left by an earlier try
		return nil, err
	}
	labels := s.labels(b)
	labels[docker.LabelRole] = "passwd"
	var id string
	err := s.whole(func() (err error) {
		id, err = s.w.engine.CreateContainer(ctx, docker.ContainerSpec{
			Name: s.passwdName(), Image: image.ID, Entrypoint: []string{"/"}, Labels: labels,
		})
		return err
	})
	var data []byte
	if err == nil {
		s.w.cfg.Probe("after-passwd-create")
		data, err = s.w.engine.ReadFile(ctx, id, "/etc/passwd", maxPasswd)
	}
	// Remove it also if ctx has ended, or if the engine did not answer and may have made it.
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePasswdWithin)
	defer cancel()
	if removeErr := s.removePasswd(removing); err == nil {
		err = removeErr
	}
	return data, err
}

func (s *sandbox) passwdName() string { return s.name() + ".passwd" }

func (s *sandbox) removePasswd(ctx context.Context) error {
	return s.w.engine.RemoveContainer(ctx, s.passwdName())
}
