package docker

import (
	"context"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/docker/api/types/registry"
)

// helperTimeout limits how long a credential helper may take.
const helperTimeout = 20 * time.Second

// loginFor reads the credentials that `docker login` stored for a registry, in the configuration or in a credential
// helper. dir is the directory of the Docker configuration; "" means Docker's default. loginFor reads the files at each
// call, so a new login takes effect at once. It returns the zero value if there are no credentials.
func loginFor(ctx context.Context, dir, host string) (registry.AuthConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	type answer struct {
		login registry.AuthConfig
		err   error
	}
	answers := make(chan answer, 1) // buffered: a hanging credential helper may answer after the timeout
	go func() {
		file, err := config.Load(dir)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		got, err := file.GetAuthConfig(host)
		login := registry.AuthConfig{Username: got.Username, Password: got.Password, Auth: got.Auth,
			IdentityToken: got.IdentityToken, RegistryToken: got.RegistryToken}
		if login != (registry.AuthConfig{}) {
			login.ServerAddress = host
		}
		answers <- answer{login, err}
	}()
	select {
	case a := <-answers:
		return a.login, a.err
	case <-ctx.Done():
		return registry.AuthConfig{}, ctx.Err()
	}
}
