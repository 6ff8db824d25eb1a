package sandbox

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
)

// maxPasswd is the maximum number of bytes that are read of an image's /etc/passwd.
const maxPasswd = 1 << 20

const removePasswdWithin = 10 * time.Second

// homeOf returns a function that finds the home directory of the sandbox's user.
func (c *creation) homeOf(ctx context.Context, user string) func() (home, env string, err error) {
	return func() (home, env string, err error) {
		return c.s.host.Homes.Of(&c.b.Spec, c.image, user, func() ([]byte, error) { return c.passwd(ctx) })
	}
}

// passwd reads an image's /etc/passwd. It returns no data if the image does not have this file. The engine can read
// files only from a container, so passwd makes a container that never starts, and removes it afterwards.
func (c *creation) passwd(ctx context.Context) ([]byte, error) {
	s := c.s
	if err := removePasswdContainer(ctx, s); err != nil { // an earlier try may have left the container
		return nil, err
	}
	labels := labels(c.b, s.key)
	labels[docker.LabelRole] = "passwd"
	var id string
	err := s.awaitEngine(func() (err error) {
		id, err = s.host.Engine.CreateContainer(ctx, docker.ContainerSpec{
			Name: passwdName(s), Image: c.image.ID, Entrypoint: []string{"/"}, Labels: labels,
		})
		return err
	})
	var data []byte
	if err == nil {
		s.host.Probe("after-passwd-create")
		data, err = s.host.Engine.ReadFile(ctx, id, "/etc/passwd", maxPasswd)
	}
	// Remove the container even if ctx has ended or the engine did not answer, because the engine may have made the
	// container.
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePasswdWithin)
	defer cancel()
	if removeErr := removePasswdContainer(removing, s); err == nil {
		err = removeErr
	}
	return data, err
}

func passwdName(s *Sandbox) string { return s.name() + ".passwd" }

func removePasswdContainer(ctx context.Context, s *Sandbox) error {
	return s.host.Engine.RemoveContainer(ctx, passwdName(s))
}
