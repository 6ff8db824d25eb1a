package docker

import (
	"context"
	"time"
)

// kind is the kind of object that a call is about. It decides which "not found" means that the object itself is gone.
type kind string

const (
	kindEngine    kind = "engine"
	kindContainer kind = "container"
	kindNetwork   kind = "network"
	kindVolume    kind = "volume"
	kindImage     kind = "image"
)

// call describes one request to the engine.
type call struct {
	verb  string // such as "start" or "inspect"
	kind  kind
	name  string        // of the object
	limit time.Duration // maximum duration
}

// subject names the call in an error.
func (c call) subject() string {
	s := c.verb + " " + string(c.kind)
	if c.name != "" {
		s += " " + c.name
	}
	return s
}

// do runs f under the call's deadline and translates its error. All calls of the Docker client go through here, except
// for the event stream, which has no end.
func (conn *connection) do(ctx context.Context, c call, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	limited, refused := withRefusal(limited)
	err := f(limited)
	if err := refused.get(); err != nil {
		return err
	}
	return translate(ctx, c, err)
}

// Reading is quick. A change may wait for locks and for the kernel. Starting and removing also wait for the runtime and
// the storage driver.
func (conn *connection) readLimit() time.Duration   { return conn.callTimeout / 3 }
func (conn *connection) changeLimit() time.Duration { return conn.callTimeout }
func (conn *connection) runLimit() time.Duration    { return 2 * conn.callTimeout }
