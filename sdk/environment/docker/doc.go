// Package docker makes an environment of one container on a local engine: a new one from an image, or one that runs
// already. It uses the docker command of this machine, with that command's own settings.
//
//	env, err := docker.Start(ctx, docker.Config{Image: "debian:12"})
//	defer env.Close()
//
// The container needs a POSIX shell; see package shell, which does the work. A new container has no network, no
// capabilities of the kernel, and limits on memory and processes, unless the Config says otherwise. Closing the
// environment removes a container that Start made, and leaves one that [Use] found.
//
// The package imports only sdk/environment and shell.
package docker
